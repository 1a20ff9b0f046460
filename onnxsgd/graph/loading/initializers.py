"""The trainable initializers of a graph."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxsgd.graph.loading.load import check_proto

__all__ = ["get_train_initializer"]

_REAL = frozenset({TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE})


def get_train_initializer(onx: onnx.ModelProto) -> dict[str, tuple[np.ndarray, TensorProto]]:
    """Return the initializers of a graph whose elements are real numbers.

    Not all of them are parameters: converters keep constants such as clip bounds among them, see
    :func:`~onnxsgd.describe_trainable`.

    Parameters
    ----------
    onx : onnx.ModelProto
        The graph.

    Returns
    -------
    dict
        In the order of the graph, for each name an array and the tensor of `onx` that it was read from; the
        types are float16, float32 and float64.

    Raises
    ------
    ParameterTypeError
        If `onx` is something else.
    GraphError
        If it is not valid, or the data of a tensor is external and was not loaded.

    Examples
    --------
    >>> import onnx
    >>> from onnxsgd import get_train_initializer
    >>> onx = onnx.parser.parse_model('''<ir_version: 9, opset_import: ["" : 18]>
    ... g (float[N, 2] X) => (float[N] Y) <float[2] W = {1, 2}, int64[1] shape = {-1}> {
    ...     Z = MatMul(X, W)
    ...     Y = Reshape(Z, shape)
    ... }''')
    >>> [(name, array) for name, (array, _) in get_train_initializer(onx).items()]
    [('W', array([1., 2.], dtype=float32))]
    """
    check_proto(onx, "onx")
    return {
        tensor.name: (numpy_helper.to_array(tensor), tensor)
        for tensor in onx.graph.initializer
        if tensor.data_type in _REAL
    }
