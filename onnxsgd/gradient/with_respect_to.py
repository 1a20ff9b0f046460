"""Weights and inputs to differentiate with respect to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.exceptions import NotTrainableError, ParameterError, ParameterTypeError
from onnxsgd.graph.gradient_path import Passes, values_upstream
from onnxsgd.graph.model import FROZEN, REAL_TYPES, real_initializers
from onnxsgd.graph.named_shapes import infer_shapes
from onnxsgd.graph.parameter_roles.roles import find_roles

__all__ = ["Sources", "select_sources"]


@dataclass(frozen=True)
class Sources:
    """Names of the tensors to differentiate with respect to.

    Attributes
    ----------
    weights : list of str
        Initializers.
    inputs : list of str
        Inputs.
    """

    weights: list[str]
    inputs: list[str]


def select_sources(
    model: ir.Model,
    lowered: ir.Model,
    weights: Sequence[str] | None,
    inputs: Sequence[str] | None,
    passes: Passes,
    labels: Sequence[str] = (),
    mixed: bool = False,
) -> Sources:
    """Return the weights and inputs that the arguments of a user denote.

    Parameters
    ----------
    model, lowered : ir.Model
        The original graph, and the lowered one.
    weights : sequence of str or None
        Initializers; None for those of `model` that a gradient reaches, or, if it has none, for the
        parameters among those of `lowered`.
    inputs : sequence of str or None
        Inputs; None for those of real numbers that a gradient reaches.
    passes : callable
        Returns whether a gradient flows in the chosen engine, see
        :class:`~onnxsgd.gradient.engines.Engine`.
    labels : sequence of str
        Inputs without a gradient.
    mixed : bool
        Whether `inputs` may name initializers too. It is then the complete list, beside `weights`.

    Raises
    ------
    ParameterError
        If a name is not known, or is that of a label.
    ParameterTypeError
        If `weights` or `inputs` is not a list of names.
    NotTrainableError
        If nothing is left, or lowering turned a weight into a constant.
    """
    given_weights, given_inputs = _names(weights, "weights"), _names(inputs, "inputs")
    reached = _reached(lowered, passes)
    if mixed and given_inputs is not None:
        named = [name for name in given_inputs if name in lowered.graph.initializers]
        given_inputs = [name for name in given_inputs if name not in named]
        given_weights = [*(given_weights or ()), *(n for n in named if n not in (given_weights or ()))]
    if given_weights is None:
        given_weights = [name for name in _default_weights(model, lowered) if name in reached]
    if given_inputs is None:
        real = [str(value.name) for value in lowered.graph.inputs if value.dtype in REAL_TYPES]
        given_inputs = [name for name in real if name in reached and name not in labels]
    _check(model, lowered, given_weights, given_inputs, labels)
    if not given_weights and not given_inputs:
        raise NotTrainableError(
            "There is nothing to differentiate for: no gradient reaches an initializer or an input of real "
            "numbers, or none is named in weights and inputs."
        )
    return Sources(given_weights, given_inputs)


def _names(given: Sequence[str] | None, parameter: str) -> list[str] | None:
    if given is None:
        return None
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise ParameterTypeError(f"{parameter} must be a list of names or None, not {given!r}.")
    return list(given)


def _reached(lowered: ir.Model, passes: Passes) -> set[str]:
    """Return the names of all values with a gradient path to an output."""
    typed = lowered.clone()
    infer_shapes(typed)
    return {str(value.name) for value in values_upstream(typed.graph, typed.graph.outputs, passes)}


def _default_weights(model: ir.Model, lowered: ir.Model) -> list[str]:
    original = [str(value.name) for value in real_initializers(model.graph)]
    found = {str(value.name): value for value in real_initializers(lowered.graph)}
    if not original:
        roles = find_roles(lowered.graph)
        return [name for name, value in found.items() if roles[value].kind is not None]
    return [name for name in original if name in found and FROZEN not in found[name].metadata_props]


def _check(
    model: ir.Model, lowered: ir.Model, weights: list[str], inputs: list[str], labels: Sequence[str]
) -> None:
    for name in weights:
        if name in model.graph.initializers and name not in lowered.graph.initializers:
            raise NotTrainableError(
                f"weights: {name!r} cannot be trained: it is part of a constant once the operators without "
                f"a gradient are rewritten, or nothing depends on it."
            )
    for name in inputs:
        if name in labels:
            raise ParameterError(f"inputs: {name!r} is a label: no gradient is taken for labels.")
