"""Losses that are given as an ONNX graph, or as a function of onnxscript."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.numpy_helper

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import GraphError, ParameterTypeError
from onnxsgd.losses._base import Link, Loss, Targets, check_choices

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = ["FromONNX"]

_INPUTS = ("y_true", "raw_prediction")
_REAL = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
#: The least opset: older ones have reductions and slices in other forms.
_LEAST_OPSET = 13
#: Rows of the trial, and its columns where the graph leaves them open.
_ROWS, _COLUMNS = 5, 3
#: Operators whose results have no derivative: sizes and comparisons.
_WITHOUT_DERIVATIVE = frozenset(
    {"Shape", "Size", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "ArgMax", "ArgMin"}
)
_OPTIONS = ("targets", "link", "probabilities")


@dataclass(frozen=True, repr=False)
class FromONNX(Loss):
    """A loss that is an ONNX graph, or a function of onnxscript; the engine differentiates it.

    The graph has the inputs ``y_true`` and ``raw_prediction``, tables of shape [n_samples, n_outputs] and of
    one real type, and one output, the loss of each element, or of each sample, which is not summed over the
    samples. It is made of standard operators without subgraphs. It is checked here; operators without a
    gradient are refused where it is trained. Real constants get the type of the training.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, or onnxscript function
        The graph, of opset 13 or later, kept as bytes.
    targets : {"real", "non-negative", "positive", "sign", "indicator"}, default="real"
        The values of `y_true`; for a classifier "sign", -1 and +1, or "indicator", 0 and 1.
    link : {"identity", "log"}, default="identity"
        Of a regression, the function of the prediction that is the raw prediction.
    probabilities : {None, "sigmoid", "softmax", "modified_huber"}, default=None
        Of a classification, the function from raw predictions to probabilities. With "softmax" the raw
        predictions of the classes are compared with each other.

    Raises
    ------
    GraphError
        If the graph is not of this form.
    ParameterError
        If another parameter has an unknown value.
    ParameterTypeError
        If `model` is of another type.

    Examples
    --------
    >>> import onnx.parser
    >>> from onnxsgd import losses, testing
    >>> graph = onnx.parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["": 18]>
    ...     cauchy (float[N, K] y_true, float[N, K] raw_prediction) => (float[N, K] loss)
    ...     <float one = {1}>
    ...     { r = Sub(raw_prediction, y_true)  s = Mul(r, r)  t = Add(s, one)  loss = Log(t) }''')
    >>> testing.check_gradients(losses.FromONNX(graph)).n_checked
    15
    """

    model: Any
    targets: Targets = "real"  # type: ignore[misc]
    link: Link = "identity"  # type: ignore[misc]
    probabilities: str | None = None  # type: ignore[misc]
    is_joint: bool = field(init=False, compare=False)  # type: ignore[misc]

    def __post_init__(self) -> None:
        check_choices(self)
        content = self.model if isinstance(self.model, bytes) else _serialized(self.model)
        object.__setattr__(self, "model", content)
        object.__setattr__(self, "is_joint", self.probabilities == "softmax")
        _check(content)

    def __repr__(self) -> str:
        graph = _parsed(self.model)[0].graph
        options = [f", {name}={getattr(self, name)!r}" for name in _OPTIONS if self._is_set(name)]
        return f"FromONNX(<{graph.name or 'graph'}, {len(graph.node)} nodes>{''.join(options)})"

    def _is_set(self, name: str) -> bool:
        return bool(getattr(self, name) != getattr(Loss, name))

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        model, is_vector = _parsed(self.model)
        found = _write(op, model.graph, dict(zip(_INPUTS, (y_true, raw_prediction), strict=True)))
        return op.Reshape(found, [-1, 1]) if is_vector else found


def _serialized(model: Any) -> bytes:
    """Return the graph of a model, or of an onnxscript function, as bytes."""
    if hasattr(model, "to_model_proto"):
        from onnxscript import FLOAT

        proto = model.to_model_proto()
        if any(not value.HasField("type") for value in proto.graph.input):
            # the declared shape of the output may be wrong then, and is not used
            proto = model.to_model_proto(io_types=FLOAT["N", "K"])
        model = proto
    if not isinstance(model, onnx.ModelProto):
        raise ParameterTypeError(
            f"model={model!r} is not accepted: it must be an onnx.ModelProto, its bytes, or a function of "
            "onnxscript."
        )
    return bytes(model.SerializeToString())


@lru_cache(maxsize=64)
def _parsed(content: bytes) -> tuple[onnx.ModelProto, bool]:
    """Return a graph without calls of its functions, and whether its output is a vector."""
    try:
        model = _without_functions(content)
    except Exception as error:
        # protobuf, the checker and the inliner raise all kinds of errors
        message = reason(error, n_lines=1)
        raise GraphError(f"The graph of a loss must be a valid ONNX model: {message}.") from error
    _check_form(model)
    is_vector = _try(model).ndim == 1
    if not _follows_prediction(model.graph):
        raise GraphError(
            f"The graph of a loss must depend on {_INPUTS[1]}; {model.graph.output[0].name!r} has no "
            "derivative by it."
        )
    return model, is_vector


def _without_functions(content: bytes) -> onnx.ModelProto:
    """Return a valid graph in which calls of its functions are written out."""
    import onnx.inliner

    model = onnx.inliner.inline_local_functions(onnx.load_from_string(content))
    onnx.checker.check_model(model)
    return model


def _check(content: bytes) -> None:
    """Refuse a graph that is no loss."""
    _parsed(content)


def _check_form(model: onnx.ModelProto) -> None:
    graph = model.graph
    constants = {entry.name for entry in graph.initializer}
    names = [value.name for value in graph.input if value.name not in constants]
    if set(names) != set(_INPUTS) or len(graph.output) != 1:
        raise GraphError(
            f"The graph of a loss must have the inputs {list(_INPUTS)} and one output; it has {names} and "
            f"{[value.name for value in graph.output]}."
        )
    types = {value.type.tensor_type.elem_type for value in graph.input if value.name in names}
    if len(types) > 1 or not types <= set(_REAL):
        raise GraphError("The inputs of the graph of a loss must both be of type float, or both of double.")
    opset = next((entry.version for entry in model.opset_import if entry.domain == ""), 0)
    if opset < _LEAST_OPSET:
        raise GraphError(f"The graph of a loss must have opset {_LEAST_OPSET} or later, not {opset}.")
    for node in graph.node:
        if node.domain not in ("", "ai.onnx"):
            raise GraphError(
                f"The graph of a loss must have standard operators; {node.op_type} is one of {node.domain!r}."
            )
        kinds = {attribute.type for attribute in node.attribute}
        if kinds & {onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS}:
            raise GraphError(f"The graph of a loss must have no subgraphs, as {node.op_type} has.")


def _follows_prediction(graph: onnx.GraphProto) -> bool:
    """Tell whether a way leads from the raw predictions to the output, without sizes and comparisons."""
    reached = {_INPUTS[1]}
    for node in graph.node:
        if node.op_type not in _WITHOUT_DERIVATIVE and reached.intersection(node.input):
            reached.update(node.output)
    return graph.output[0].name in reached


def _try(model: onnx.ModelProto) -> np.ndarray:
    """Return the losses of a few random samples; refuse results of another shape."""
    from onnx.reference import ReferenceEvaluator

    raw = next(value for value in model.graph.input if value.name == _INPUTS[1])
    dims = raw.type.tensor_type.shape.dim
    width = dims[1].dim_value if len(dims) == 2 and dims[1].HasField("dim_value") else _COLUMNS
    dtype = onnx.helper.tensor_dtype_to_np_dtype(raw.type.tensor_type.elem_type)
    table = np.random.RandomState(0).uniform(0.1, 0.9, (_ROWS, width)).astype(dtype)
    try:
        (found,) = ReferenceEvaluator(model).run(None, dict.fromkeys(_INPUTS, table))
    except Exception as error:
        # operators in Python, which raise all kinds of errors
        raise GraphError(f"The graph of a loss fails on tables of shape {table.shape}: {error}") from error
    accepted = {table.shape, (_ROWS, 1), (_ROWS,)}
    if np.shape(found) not in accepted or np.asarray(found).dtype != dtype:
        raise GraphError(
            f"The graph of a loss must return one {dtype} for each element, or for each sample, of shape "
            f"{table.shape}, {(_ROWS, 1)} or {(_ROWS,)} for tables of shape {table.shape}; it returns "
            f"{np.asarray(found).dtype} of shape {np.shape(found)}."
        )
    return np.asarray(found)


def _write(op: Builder, graph: onnx.GraphProto, values: dict[str, Any]) -> ir.Value:
    """Write the nodes of a graph, with constants in the type of the raw predictions; return its output."""
    like = values[_INPUTS[1]]
    constants = {entry.name: onnx.numpy_helper.to_array(entry) for entry in graph.initializer}
    for node in graph.node:
        attributes = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
        if node.op_type == "Constant":
            constants[node.output[0]] = _constant(attributes)
            continue
        if node.op_type == "CastLike" and node.input[0] in constants:
            constants[node.output[0]] = constants[node.input[0]]
            continue
        if node.op_type == "Cast" and attributes["to"] in _REAL:
            attributes["to"] = like.dtype
        if node.op_type.startswith("Reduce") and len(node.input) > 1 and node.input[1] in constants:
            # an attribute in older opsets; the builder puts it where it belongs
            attributes["axes"] = constants[node.input[1]].ravel().tolist()
        names = node.input[:1] if "axes" in attributes else node.input
        inputs = [_operand(op, name, values, constants, like) for name in names]
        count = len(node.output)
        made = getattr(op, node.op_type)(*inputs, **attributes, **({"_outputs": count} if count > 1 else {}))
        values.update(zip(node.output, made if count > 1 else [made], strict=True))
    found: ir.Value = _operand(op, graph.output[0].name, values, constants, like)
    return found


def _operand(
    op: Builder, name: str, values: Mapping[str, Any], constants: Mapping[str, np.ndarray], like: ir.Value
) -> Any:
    """Return a value, a constant as a new one, or None for an absent input."""
    import onnx_ir as ir

    if name not in constants:
        return values[name] if name else None
    array = constants[name]
    if array.dtype.kind == "f" and like.dtype is not None:
        array = array.astype(like.dtype.numpy())
    return op.Constant(value=ir.tensor(array))


def _constant(attributes: Mapping[str, Any]) -> np.ndarray:
    """Return the array of a Constant."""
    ((name, value),) = attributes.items()
    if name == "value":
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value, np.float32 if "float" in name else np.int64)
