"""Tensors whose columns are multiples of the data's columns: sparse data stay sparse in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from scipy import sparse

from onnxsgd.graph.model import value_named
from onnxsgd.graph.nodes import constant, is_real, standard_operator

__all__ = ["ColumnMultiple", "column_multiple", "copied_input"]


@dataclass(frozen=True)
class ColumnMultiple:
    """A tensor as a multiple of a data input.

    Attributes
    ----------
    feature : str
        The data input.
    factors : ndarray of shape [n_columns] or [1]
        The factor of each column, or of all, in float64.
    dtype : dtype
        The type of the tensor.
    """

    feature: str
    factors: np.ndarray
    dtype: np.dtype

    def of(self, table: Any) -> Any:
        """Return the tensor for a CSR matrix, as such."""
        factors = self.factors if len(self.factors) == 1 else self.factors[table.indices]
        data = (table.data * factors).astype(self.dtype)
        return sparse.csr_array((data, table.indices, table.indptr), shape=table.shape)


def column_multiple(model: ir.Model, name: str) -> ColumnMultiple | None:
    """Return the tensor `name` as a multiple of a data input; None if it is another function.

    Cases: Identity, Cast to real numbers, Mul and Div by constants, Add and Sub of zeros, as MaxAbsScaler and
    StandardScaler without a mean have them.
    """
    value = value_named(model.graph, name)
    if value.dtype is None or not is_real(value):
        return None
    dtype, factors = value.dtype.numpy(), np.ones(1)
    while (node := value.producer()) is not None:
        step = _step(node)
        if step is None or not is_real(node.outputs[0]):
            return None
        value, factor = step
        factors = factors * factor
    is_input = value.is_graph_input() and value.shape is not None and len(value.shape) == 2
    return (
        ColumnMultiple(str(value.name), factors, dtype) if is_input and np.isfinite(factors).all() else None
    )


def copied_input(model: ir.Model, name: str) -> str | None:
    """Return the data input of which the tensor `name` is a copy in the same type; None if it is none."""
    value = wanted = value_named(model.graph, name)
    while (node := value.producer()) is not None:
        source = node.inputs[0] if standard_operator(node) in ("Identity", "Cast") else None
        if source is None or source.dtype != wanted.dtype:
            return None
        value = source
    return str(value.name) if value.is_graph_input() else None


def _step(node: ir.Node) -> tuple[ir.Value, np.ndarray] | None:
    """Return the operand of which a node computes a multiple, and the factors."""
    operator, x = standard_operator(node), node.inputs[0]
    if x is not None and operator in ("Identity", "Cast"):
        return x, np.ones(1)
    if operator not in ("Mul", "Div", "Add", "Sub"):
        return None
    known = constant(node.inputs[1])
    if known is None and operator in ("Mul", "Add"):
        x, known = node.inputs[1], constant(node.inputs[0])
    if x is None or known is None or known.size != (known.shape[-1] if known.ndim else 1):
        return None
    numbers = known.reshape(-1).astype(np.float64)
    if operator in ("Add", "Sub"):
        return None if numbers.any() else (x, np.ones(1))
    with np.errstate(divide="ignore"):
        return x, numbers if operator == "Mul" else 1.0 / numbers
