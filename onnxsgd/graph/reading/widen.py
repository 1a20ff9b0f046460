"""Widening of the last layer: further raw predictions of each target, computed from the same features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import attribute, constant, first, is_real, rank, required
from onnxsgd.graph.parameter_roles.patterns import behind_form, made_by
from onnxsgd.graph.writing import add_initializer, computed

__all__ = ["widen_last_layer"]


def widen_last_layer(
    model: ir.Model, n_outputs: int, factors: Sequence[float], offsets: np.ndarray
) -> tuple[ir.Model, tuple[str, str]] | None:
    """Return `model` with the scores ``[f z for f in factors] + offsets`` in place of its scores z.

    Cases: the score is ``Gemm(h, W)``, ``Gemm(h, W, b)``, ``MatMul(h, W)`` or ``MatMul(h, W) + b``, possibly
    in another form, where h is a table, and W and b are initializers that nothing else reads.

    Parameters
    ----------
    model : ir.Model
        A graph whose only output is the score. It is not changed.
    n_outputs : int
        The number of scores z of a sample.
    factors : sequence of float
        The factors of z among the new scores.
    offsets : ndarray of shape (n_outputs * len(factors),)
        The numbers that are added.

    Returns
    -------
    (model, (coefficients, intercepts)) or None
        The graph, and the names of the initializers of its last layer, those of `model` where it has them.
        None: another graph, or another number of scores.
    """
    copy = model.clone()
    graph = copy.graph
    score = graph.outputs[0]
    parts = _last_layer(behind_form(score))
    if parts is None:
        return None
    features, coef, intercept, is_transposed = parts
    table = _table(coef, is_transposed)
    shift = np.zeros(1) if intercept is None else np.ravel(_array(intercept))
    if rank(features) != 2 or table.shape[1] != n_outputs or len(shift) not in (1, n_outputs):
        return None
    wide = np.hstack([factor * table for factor in factors])
    shifted = np.concatenate([factor * (shift + np.zeros(n_outputs)) for factor in factors]) + offsets
    _fill(coef, wide.T if is_transposed else wide)
    if intercept is None:
        name = unique_name("intercept", graph_names(graph))
        intercept = add_initializer(graph, name, shifted.astype(_array(coef).dtype))
    else:
        _fill(intercept, shifted)
    result = computed("Gemm", [features, coef, intercept], {"transB": int(is_transposed)})
    rows = score.shape[0] if score.shape else None
    result.type, result.shape = score.type, ir.Shape([rows, len(offsets)])
    result.name, score.name = score.name, unique_name(f"narrow_{score.name}", graph_names(graph))
    graph.append(result.producer())  # type: ignore[arg-type]
    graph.outputs[:] = [result]
    RemoveUnusedNodesPass()(copy)
    return copy, (str(coef.name), str(intercept.name))


def _last_layer(value: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value | None, bool] | None:
    """Return features, coefficients, intercepts, and whether coefficients are transposed."""
    intercept = None
    if (total := made_by(value, "Add")) is not None:
        sides = [required(total, 0), required(total, 1)]
        intercept = next((side for side in sides if side.is_initializer()), None)
        if intercept is None:
            return None
        value = behind_form(sides[1 - sides.index(intercept)])
    product = made_by(value, "MatMul", "Gemm")
    if product is None or attribute(product, "transA", 0):
        return None
    if any(attribute(product, name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return None
    coef = required(product, 1)
    if len(product.inputs) > 2 and product.inputs[2] is not None:
        if intercept is not None:
            return None
        intercept = product.inputs[2]
    layer = [coef] if intercept is None else [coef, intercept]
    if not all(part.is_initializer() and is_real(part) and len(part.uses()) == 1 for part in layer):
        return None
    return first(product), coef, intercept, bool(attribute(product, "transB", 0))


def _table(coef: ir.Value, is_transposed: bool) -> np.ndarray:
    """Return coefficients of shape [n_features, n_outputs]."""
    array = _array(coef)
    return array.T if is_transposed else array.reshape(len(array), -1)


def _array(value: ir.Value) -> np.ndarray:
    array = constant(value)
    if array is None:
        raise LookupError(f"{value.name!r} is no initializer")
    return array


def _fill(value: ir.Value, array: np.ndarray) -> None:
    """Replace the array of an initializer by one of another shape."""
    tensor = ir.tensor(np.ascontiguousarray(array, _array(value).dtype), name=value.name)
    value.const_value, value.shape = tensor, ir.Shape(tensor.shape.numpy())
