"""Training steps for batches of any length: sizes that the graph leaves open stay open in the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxsgd._library_errors import run_error
from onnxsgd.data.generators import seeded
from onnxsgd.engine.step.given_gradient import GivenGradient
from onnxsgd.exceptions import OnnxSGDError
from onnxsgd.gradient.engines import PORTABLE

if TYPE_CHECKING:
    from onnxsgd.engine.step.idle_runners import CompiledOnUse
    from onnxsgd.engine.step.step_spec import StepSpec

__all__ = ["agrees", "may_be_open", "open_row_shapes"]

#: The accepted difference between the results of two forms of a step, relative to the largest number.
_TOLERANCE = 1e-4


def may_be_open(spec: StepSpec) -> bool:
    """Tell whether a step may leave sizes open: the native engine takes forms of fixed sizes alone."""
    return spec.engine == PORTABLE and not isinstance(spec.loss, GivenGradient)


def open_row_shapes(
    model: ir.Model, features: Mapping[str, Any]
) -> tuple[tuple[str, tuple[int | str, ...]], ...]:
    """Return the shape of a row of each feature, with a symbol for each size that `model` leaves open."""
    inputs, shapes = {value.name: value for value in model.graph.inputs}, []
    for name, array in features.items():
        sizes = tuple(array.shape[1:])
        value = inputs.get(name)
        if value is not None and value.shape is not None and len(value.shape) == len(sizes) + 1:
            known = value.shape[1:]
            # inference takes equal symbols for equal sizes
            sizes = tuple(
                size if isinstance(size, int) else f"{name}_{axis}" for axis, size in enumerate(known)
            )
        shapes.append((name, sizes))
    return tuple(shapes)


def agrees(opened: CompiledOnUse, fixed: CompiledOnUse, features: Mapping[str, Any]) -> bool:
    """Tell whether a step of open sizes makes the update of the step of fixed ones.

    Rules of gradients, and rewriting, know less of open sizes: the two are compared on the data of a batch,
    with random numbers for all else. It is not taken if it cannot be built.
    """
    generator, feeds = seeded(0), dict[str, np.ndarray]()
    for name, (dtype, shape) in fixed.step.inputs.items():
        feeds[name] = generator.uniform(0.5, 1.0, shape).astype(dtype)
        if name in features:
            feeds[name] = np.resize(features[name][: shape[0]], shape).astype(dtype)
    try:
        found = _run(opened, feeds)
    except (OnnxSGDError, TypeError, ValueError):
        return False
    expected = _run(fixed, feeds)
    return all(map(_are_close, found, expected))


def _run(compiled: CompiledOnUse, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    session = compiled.session
    try:
        results: list[np.ndarray] = session.run(None, feeds)
    except Exception as error:
        raise run_error(error) from error
    return results


def _are_close(found: np.ndarray, expected: np.ndarray) -> bool:
    tolerance = _TOLERANCE * np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    return found.shape == expected.shape and np.allclose(
        found, expected, rtol=0.0, atol=tolerance, equal_nan=True
    )
