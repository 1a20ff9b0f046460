"""A converter of PolynomialFeatures: a few nodes for each degree.

That of skl2onnx 1.20 writes two nodes for each output feature; this module can go when that is mended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx

if TYPE_CHECKING:
    from skl2onnx.common._container import ModelComponentContainer
    from skl2onnx.common._topology import Operator, Scope

__all__ = ["convert_polynomial", "infer_polynomial_shape"]


def infer_polynomial_shape(operator: Operator) -> None:
    """Set the type and the shape of the output for skl2onnx."""
    from skl2onnx.common.data_types import FloatTensorType

    rows = operator.inputs[0].get_first_dimension()
    operator.outputs[0].type = FloatTensorType([rows, operator.raw_operator.n_output_features_])


def convert_polynomial(scope: Scope, operator: Operator, container: ModelComponentContainer) -> None:
    """Write, for each degree, the product of as many selections of columns, and concatenate them."""
    powers = operator.raw_operator.powers_
    degrees = powers.sum(axis=1)
    x = scope.get_unique_variable_name("features")
    container.add_node("Cast", operator.inputs[0].full_name, x, to=onnx.TensorProto.FLOAT)
    parts = []
    for degree in np.unique(degrees):
        # each row: the columns to multiply, repeated by their power
        columns = np.array([np.repeat(np.arange(powers.shape[1]), row) for row in powers[degrees == degree]])
        parts.append(_ones(scope, container, x) if degree == 0 else _products(scope, container, x, columns))
    container.add_node("Concat", parts, operator.outputs[0].full_name, axis=1)


def _products(scope: Scope, container: ModelComponentContainer, x: str, columns: np.ndarray) -> str:
    product = _select(scope, container, x, columns[:, 0])
    for factor in columns.T[1:]:
        name = scope.get_unique_variable_name("product")
        container.add_node("Mul", [product, _select(scope, container, x, factor)], name)
        product = name
    return product


def _select(scope: Scope, container: ModelComponentContainer, x: str, columns: np.ndarray) -> str:
    indices, name = scope.get_unique_variable_name("columns"), scope.get_unique_variable_name("selected")
    container.add_initializer(indices, onnx.TensorProto.INT64, [len(columns)], columns)
    container.add_node("Gather", [x, indices], name, axis=1)
    return name


def _ones(scope: Scope, container: ModelComponentContainer, x: str) -> str:
    """Return a column of ones with a row for each sample."""
    names = [scope.get_unique_variable_name(n) for n in ("shape", "first", "one", "rows", "column", "ones")]
    shape, first, one, rows, column, ones = names
    container.add_initializer(first, onnx.TensorProto.INT64, [1], [0])
    container.add_initializer(one, onnx.TensorProto.INT64, [1], [1])
    container.add_node("Shape", x, shape)
    container.add_node("Gather", [shape, first], rows)
    container.add_node("Concat", [rows, one], column, axis=0)
    value = onnx.helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [1.0])
    container.add_node("ConstantOfShape", column, ones, value=value)
    return ones
