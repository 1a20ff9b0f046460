"""Penalties on tensors, as ONNX nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

from onnxsgd._builder import Builder
from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.graph.input_axes import input_axis
from onnxsgd.graph.model import REAL_TYPES, unique_name, value_named
from onnxsgd.graph.nodes import content
from onnxsgd.penalties import Penalty

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

#: Keeps the derivative of a norm of zeros finite, in float32 too.
_TINY = 1e-30

__all__ = ["TensorPenalty", "penalty_loss_onnx", "penalty_value", "read_penalties"]


def penalty_loss_onnx(
    name: str,
    dtype: DTypeLike | int,
    l1: float | None = None,
    l2: float | None = None,
    existing_names: set[str] | None = None,
) -> tuple[list[onnx.TensorProto], list[onnx.NodeProto]]:
    """Return the initializers and the nodes of a penalty on one tensor.

    ::

        penalty = l1 sum |w| + l2 sum w^2

    The penalty is the output of the last node, of shape [1]. Its derivative by an element that is 0 is 0.

    Parameters
    ----------
    name : str
        The tensor w, of any shape.
    dtype : numpy dtype or int
        Its type, float16, float32 or float64: a numpy dtype, or a number of ``onnx.TensorProto.DataType``.
    l1, l2 : float, optional
        The coefficients, finite; None is 0.
    existing_names : set of str, optional
        The names in use; new names differ from them and are added.

    Returns
    -------
    initializers : list of onnx.TensorProto
    nodes : list of onnx.NodeProto
        Valid in every opset from 7 on.

    Raises
    ------
    ParameterError
        If both coefficients are None or 0, one is not finite, or the type is not real.
    ParameterTypeError
        If `name`, a coefficient or `existing_names` has the wrong type.

    Examples
    --------
    >>> from onnxsgd import penalty_loss_onnx
    >>> initializers, nodes = penalty_loss_onnx("coef", "float32", l2=0.5)
    >>> [node.op_type for node in nodes]
    ['Mul', 'ReduceSum', 'Mul']
    """
    from onnxscript import GraphBuilder

    if not isinstance(name, str) or not name:
        raise ParameterTypeError(f"name={name!r} is not accepted: it must be the name of a tensor.")
    if existing_names is not None and not isinstance(existing_names, set):
        raise ParameterTypeError(f"existing_names must be a set or None, not {existing_names!r}.")
    l1, l2 = _coefficients(name, {"l1": l1, "l2": l2})
    names = set() if existing_names is None else existing_names
    names.add(name)
    tensor = ir.Value(name=name, type=ir.TensorType(_real_type(dtype)))
    graph = ir.Graph([tensor], [], nodes=[], opset_imports={"": 13}, name="penalty")
    penalty_value(GraphBuilder(graph).op, tensor, l1, l2)
    initializers = []
    for value in list(graph.initializers.values()):
        value.name = unique_name(f"{name}_penalty_coefficient", names)
        initializers.append(ir.to_proto(content(value)))
    for node in graph:
        node.metadata_props.clear()
        node.outputs[0].name = node.name = unique_name(f"{name}_penalty_{node.op_type}", names)
    return initializers, [ir.to_proto(node) for node in graph]


def penalty_value(op: Builder, tensor: ir.Value, l1: float, l2: float) -> ir.Value:
    """Build ``l1 sum |tensor| + l2 sum tensor^2``, of shape [1]; at least one coefficient is not 0."""
    terms = []
    if l1:
        terms.append(op.Mul(op.ReduceSum(op.Abs(tensor), keepdims=0), [l1]))
    if l2:
        terms.append(op.Mul(op.ReduceSum(op.Mul(tensor, tensor), keepdims=0), [l2]))
    return terms[0] if len(terms) == 1 else op.Add(*terms)


@dataclass(frozen=True)
class TensorPenalty:
    """The penalty of one tensor of a graph.

    Attributes
    ----------
    l1, l2 : float
        The coefficients of the absolute norm and of the squared norm.
    start : ndarray or None
        The values that the tensor is counted from; None: zeros.
    group_axes : tuple of int
        The axes that the groups of the absolute norm span; none: each element is a group.
    root : float
        The square root of the size of a group.
    """

    l1: float
    l2: float
    start: np.ndarray | None = None
    group_axes: tuple[int, ...] = ()
    root: float = 1.0

    def build(self, op: Builder, tensor: ir.Value) -> ir.Value:
        """Build the penalty, of shape [1]."""
        if self.start is not None:
            # no initializer, which might be taken for a weight
            start = op.Constant(value=ir.tensor(self.start))
            tensor = op.Sub(tensor, op.CastLike(start, tensor))
        if not self.group_axes:
            return penalty_value(op, tensor, self.l1, self.l2)
        square = op.ReduceSum(op.Mul(tensor, tensor), axes=list(self.group_axes), keepdims=0)
        # the root, and 0 with the derivative 0 at 0
        norms = op.Div(square, op.Sqrt(op.Add(square, _TINY)))
        total = op.Mul(op.ReduceSum(norms, keepdims=0), [self.l1 * self.root])
        return op.Add(total, penalty_value(op, tensor, 0.0, self.l2)) if self.l2 else total


def read_penalties(graph: ir.Graph, penalty: Mapping[str, object] | None) -> dict[str, TensorPenalty]:
    """Return the penalty of each penalised tensor.

    Parameters
    ----------
    graph : ir.Graph
        Holds the tensors, as initializers or inputs of a real type.
    penalty : mapping or None
        ``{"l1": a, "l2": b}``, or b alone, or a :class:`~onnxsgd.penalties.Penalty`, for each tensor.

    Raises
    ------
    ParameterError
        If the graph lacks a tensor, or a coefficient is not finite, unknown, or none differs from 0, or an
        input has a penalty of the distance from its first value.
    ParameterTypeError
        If `penalty` is no mapping, or a coefficient no number.
    """
    if penalty is None:
        return {}
    if not isinstance(penalty, Mapping):
        raise ParameterTypeError(f"penalty={penalty!r} is not accepted: it must be a dict.")
    if not penalty:
        raise ParameterError("penalty={} is not accepted: it must name a tensor, or be None.")
    candidates = [*graph.initializers.values(), *graph.inputs]
    legal = sorted({str(value.name) for value in candidates if value.dtype in REAL_TYPES})
    for name in penalty:
        if name not in legal:
            raise ParameterError(
                f"penalty names {name!r}: of the scored output, the initializers and inputs of a real type "
                f"are {legal}."
            )
    return {
        name: TensorPenalty(
            *_coefficients(name, given), _start(graph, name, given), *_groups(graph, name, given)
        )
        for name, given in penalty.items()
    }


def _start(graph: ir.Graph, name: str, penalty: object) -> np.ndarray | None:
    """Return the values that a tensor is counted from: those of the graph."""
    if not isinstance(penalty, Penalty) or not penalty.from_start:
        return None
    if name not in graph.initializers:
        raise ParameterError(
            f"The penalty {penalty!r} of {name!r} is not accepted: an input has no first value."
        )
    return content(graph.initializers[name]).numpy()


def _groups(graph: ir.Graph, name: str, penalty: object) -> tuple[tuple[int, ...], float]:
    """Return the axes that groups of the coefficients of one input span, and the root of their size."""
    if not isinstance(penalty, Penalty) or not penalty.groups:
        return (), 1.0
    tensor = value_named(graph, name)
    shape, axis = tensor.shape, input_axis(tensor)
    axes = tuple(i for i in range(0 if shape is None else len(shape)) if i != axis)
    sizes = [None if shape is None else shape[i] for i in axes]
    if shape is None or not all(isinstance(size, int) for size in sizes):
        raise ParameterError(f"The penalty {penalty!r} of {name!r} needs a tensor of known shape: {shape}.")
    return axes, math.sqrt(math.prod(size for size in sizes if isinstance(size, int)))


def _coefficients(name: str, penalty: object) -> tuple[float, float]:
    if isinstance(penalty, Penalty):
        # that of an estimator has half the squared norm
        given: Mapping[str, object] = {"l1": penalty.l1, "l2": (penalty.l2 or 0.0) / 2}
    else:
        given = penalty if isinstance(penalty, Mapping) else {"l2": penalty}
    unknown = [key for key in given if key not in ("l1", "l2")]
    if unknown:
        raise ParameterError(
            f"The penalty of tensor {name!r} has keys {unknown}: it may have 'l1' and 'l2', or be a Penalty, "
            "such as Penalty(l1=0.1, groups=True)."
        )
    l1, l2 = (_coefficient(name, key, given.get(key)) for key in ("l1", "l2"))
    if l1 == 0 and l2 == 0:
        raise ParameterError(
            f"The coefficients of the penalty of tensor {name!r} are 0: l1 or l2 must differ from 0."
        )
    return l1, l2


def _coefficient(name: str, key: str, value: object) -> float:
    if value is None:
        return 0.0
    if not isinstance(value, Real):
        raise ParameterTypeError(
            f"The {key} penalty of tensor {name!r} is {value!r}: it must be a number; others are objects, "
            "such as Penalty(l1=0.1, groups=True)."
        )
    if not math.isfinite(value):
        raise ParameterError(f"The {key} penalty of tensor {name!r} is {value!r}: it must be finite.")
    return float(value)


def _real_type(dtype: DTypeLike | int) -> ir.DataType:
    legal = "float16, float32 or float64, as a numpy dtype or a TensorProto type"
    try:
        found = (
            ir.DataType(int(dtype))
            if isinstance(dtype, int | np.integer)
            else ir.DataType.from_numpy(np.dtype(dtype))
        )
    except (TypeError, ValueError):
        raise ParameterTypeError(f"dtype={dtype!r} is not accepted: it must be {legal}.") from None
    if found not in REAL_TYPES:
        raise ParameterError(f"dtype={dtype!r} is not accepted: it must be {legal}.")
    return found
