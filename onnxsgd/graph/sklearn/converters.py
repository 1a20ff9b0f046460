"""Converters of transformers that skl2onnx 1.20 lacks, or writes in many nodes.

Constants are float32 numbers of which float64 graphs compute the others: ``log(2)``, not 0.6931472.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from sklearn.kernel_approximation import RBFSampler
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, SplineTransformer

from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.sklearn.converter_nodes import ConverterNodes
from onnxsgd.graph.sklearn.polynomial_features import convert_polynomial, infer_polynomial_shape
from onnxsgd.graph.sklearn.splines import convert_splines, infer_splines_shape

if TYPE_CHECKING:
    from skl2onnx.algebra.onnx_operator import OnnxOperator
    from skl2onnx.common._container import ModelComponentContainer
    from skl2onnx.common._topology import Operator, Scope

__all__ = ["is_registered", "own_converters"]


def own_converters() -> dict[str, dict[type, Callable[..., None]]]:
    """Return the arguments of skl2onnx with the converters of this module that users did not register."""
    kinds = [kind for kind in _CONVERTERS if not is_registered(kind)]
    return {
        "custom_conversion_functions": {kind: _CONVERTERS[kind] for kind in kinds},
        "custom_shape_calculators": {kind: _SHAPES[kind] for kind in kinds},
    }


def is_registered(kind: type) -> bool:
    """Tell whether a user registered a converter of a class."""
    from skl2onnx._supported_operators import sklearn_operator_name_map
    from skl2onnx.common import _registration

    known = _registration._converter_pool.get(sklearn_operator_name_map.get(kind))
    return known is not None and not known._fct.__module__.startswith("skl2onnx.")


def _infer_function_shape(operator: Operator) -> None:
    """Set the type and the shape of the output of a FunctionTransformer, or refuse it."""
    from skl2onnx.common.data_types import FloatTensorType
    from skl2onnx.shape_calculators.function_transformer import (
        calculate_sklearn_function_transformer_output_shapes as infer_identity_shape,
    )

    transformer = operator.raw_operator
    if transformer.func is None:
        infer_identity_shape(operator)
        return
    if not _is_known(transformer.func) or transformer.kw_args:
        known = ", ".join(sorted(function.__name__ for function in _FUNCTIONS))
        raise UnsupportedError(f"func may be one of numpy's {known}, without kw_args")
    widths = [variable.type.shape[1] for variable in operator.inputs]
    rows = operator.inputs[0].get_first_dimension()
    operator.outputs[0].type = FloatTensorType([rows, None if None in widths else sum(widths)])


def _convert_function(scope: Scope, operator: Operator, container: ModelComponentContainer) -> None:
    """Write the function of a FunctionTransformer."""
    from skl2onnx.operator_converters.function_transformer import (
        convert_sklearn_function_transformer as convert_identity,
    )

    if operator.raw_operator.func is None:
        convert_identity(scope, operator, container)
        return
    w = ConverterNodes(operator, container.target_opset)
    w.finish(_FUNCTIONS[operator.raw_operator.func](w, w.features()), scope, container)


def _is_known(function: object) -> bool:
    # others may not be hashable
    return isinstance(function, np.ufunc) and function in _FUNCTIONS


def _log1p(w: ConverterNodes, x: OnnxOperator) -> OnnxOperator:
    """``log(u) x / (u - 1)`` of the rounded ``u = 1 + x``, which is exact near 0 as well (W. Kahan)."""
    u = w.Add(x, 1)
    difference = w.Sub(u, 1)
    is_lost = w.Equal(difference, 0)
    factor = w.Div(x, w.Where(is_lost, np.ones(1, np.float32), difference))
    return w.Where(is_lost, x, w.Mul(w.Log(u), factor))


def _cosine(w: ConverterNodes, x: OnnxOperator) -> OnnxOperator:
    """``1 - 2 sin(x / 2)^2``: onnxruntime 1.19 has no kernel of Cos in float64."""
    half = w.Sin(w.Mul(x, 0.5))
    return w.Sub(np.ones(1, np.float32), w.Mul(w.Mul(half, half), 2))


def _expm1(w: ConverterNodes, x: OnnxOperator) -> OnnxOperator:
    """``tanh(x / 2) (exp(x) + 1)``, without the cancellation of ``exp(x) - 1`` near 0."""
    return w.Mul(w.Tanh(w.Mul(x, 0.5)), w.Add(w.Exp(x), 1))


_TWO, _TEN = np.array([2], np.float32), np.array([10], np.float32)

#: The functions of numpy that a FunctionTransformer may have.
_FUNCTIONS: dict[np.ufunc, Callable[[ConverterNodes, OnnxOperator], OnnxOperator]] = {
    np.absolute: lambda w, x: w.Abs(x),
    np.cos: _cosine,
    np.exp: lambda w, x: w.Exp(x),
    np.expm1: _expm1,
    np.log: lambda w, x: w.Log(x),
    np.log10: lambda w, x: w.Div(w.Log(x), w.Log(_TEN)),
    np.log1p: _log1p,
    np.log2: lambda w, x: w.Div(w.Log(x), w.Log(_TWO)),
    np.sin: lambda w, x: w.Sin(x),
    np.sqrt: lambda w, x: w.Sqrt(x),
    np.square: lambda w, x: w.Mul(x, x),
}


def _infer_sampler_shape(operator: Operator) -> None:
    """Set the type and the shape of the output of an RBFSampler."""
    from skl2onnx.common.data_types import FloatTensorType

    rows = operator.inputs[0].get_first_dimension()
    operator.outputs[0].type = FloatTensorType([rows, len(operator.raw_operator.random_offset_)])


def _convert_sampler(scope: Scope, operator: Operator, container: ModelComponentContainer) -> None:
    """Write random Fourier features: ``cos(X W + b) sqrt(2 / n_components)``."""
    sampler, w = operator.raw_operator, ConverterNodes(operator, container.target_opset)
    weights, offset = (
        np.asarray(array, np.float32) for array in (sampler.random_weights_, sampler.random_offset_)
    )
    waves = _cosine(w, w.Add(w.MatMul(w.features(), weights), offset))
    size = w.Sqrt(w.Div(_TWO, np.array([len(offset)], np.float32)))
    w.finish(w.Mul(waves, size), scope, container)


#: Functions that write the nodes of a transformer, by its class.
_CONVERTERS: dict[type, Callable[[Scope, Operator, ModelComponentContainer], None]] = {
    FunctionTransformer: _convert_function,
    PolynomialFeatures: convert_polynomial,
    RBFSampler: _convert_sampler,
    SplineTransformer: convert_splines,
}

#: Functions that set the type and the shape of its output.
_SHAPES: dict[type, Callable[[Operator], None]] = {
    FunctionTransformer: _infer_function_shape,
    PolynomialFeatures: infer_polynomial_shape,
    RBFSampler: _infer_sampler_shape,
    SplineTransformer: infer_splines_shape,
}
