"""Consistency of types and shapes in a whole graph, and limits on the inferred sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import onnx

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import GraphError
from onnxsgd.graph.loading.constant_sizes import check_constants
from onnxsgd.graph.loading.loop_trips import check_trips
from onnxsgd.graph.loading.size_limits import check_shapes
from onnxsgd.graph.model import subgraphs
from onnxsgd.graph.operators import Fact, having
from onnxsgd.graph.opsets.transformer.contrib import give_domain

__all__ = ["check_consistency"]

#: Valid operators that inference refuses with onnx 1.23: it expands their definition and does not fill in
#: the defaults of attributes. No inference passes them here.
_MISJUDGED = frozenset({"MeanVarianceNormalization"})

#: Operators whose inference ends the interpreter, with onnx 1.23, if the type of their operand is unknown.
_NEED_TYPES = frozenset({"DictVectorizer", "LabelEncoder"})

#: The number of leading operands that are single numbers, read before execution.
_N_CONDITIONS = {"If": 1, "Loop": 2}

#: The ranks of operands, by position, for kernels that crash on others.
_RANKS = {
    **{name: {0: 3, 1: 3, 2: 3, 3: 2, 4: 1, 5: 3, 6: 3, 7: 2} for name in having(Fact.RECURRENT)},
    "Resize": {1: 1, 2: 1, 3: 1},
    "Upsample": {1: 1},
}

#: The first IR version in which an initializer need not be an input.
_IR_OF_INITIALIZERS = 4

#: The most bytes of an initializer that holds a shape, an axis, a bound; inference reads no larger ones.
_SMALL = 4096


def check_consistency(model: onnx.ModelProto) -> None:
    """Refuse a model with a node that does not fit its operands, or whose result is too large.

    Runtimes refuse such graphs when loading; rules of lowering and of gradients rely on the check. Declared
    inner shapes are ignored: converters get them wrong.

    Parameters
    ----------
    model : ModelProto
        A valid model of sane declared sizes; it is not changed.

    Raises
    ------
    GraphError
        Types or shapes do not fit together; a tensor is too large.
    """
    outline = _outline(model)
    try:
        # without data propagation: it writes down each element of a Range
        inferred = onnx.shape_inference.infer_shapes(outline, check_type=True, strict_mode=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        raise GraphError(f"The model is not consistent: {reason(error)}.") from error
    except (RuntimeError, ValueError) as error:
        raise GraphError(f"Types and shapes of the model cannot be inferred: {reason(error)}.") from error
    _check_inferred([inferred.graph])
    check_constants(inferred.graph, model.graph.initializer, outline.opset_import)
    _check_known_types(model, inferred.graph)
    _check_operands(inferred.graph, {})
    check_trips(inferred.graph, {})
    _check_fed_ranks(inferred.graph)


def _check_known_types(model: onnx.ModelProto, inferred: onnx.GraphProto) -> None:
    """Refuse an operator whose inference crashes without the type of its operand."""
    declared = (*model.graph.input, *model.graph.value_info, *inferred.value_info)
    known = {value.name for value in declared if value.type.WhichOneof("value")}
    known.update(tensor.name for tensor in model.graph.initializer)
    for node in model.graph.node:
        if node.op_type in _NEED_TYPES and node.input[0] not in known:
            raise GraphError(
                f"{node.op_type} {node.name!r} reads {node.input[0]!r}, whose element type is unknown: "
                "declare it in value_info."
            )


def _outline(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of the same types, without large weights and declared shapes of results."""
    # before version 4, inference knows only initializers that are inputs too
    outline = onnx.ModelProto(ir_version=max(model.ir_version, _IR_OF_INITIALIZERS))
    outline.opset_import.extend([*model.opset_import, onnx.helper.make_opsetid("unknown", 1)])
    outline.functions.extend(model.functions)
    graph = outline.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    give_domain(outline)
    for node in graph.node:
        if node.op_type in _MISJUDGED | _NEED_TYPES:
            node.domain = "unknown"
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    inputs = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= _SMALL:
            graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    _forget_shapes(graph)
    return outline


def _forget_shapes(graph: onnx.GraphProto) -> None:
    """Remove declared shapes of results, in subgraphs too."""
    del graph.value_info[:]
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    for subgraph in subgraphs(graph.node):
        _forget_shapes(subgraph)


def _check_inferred(graphs: Iterable[onnx.GraphProto]) -> None:
    for graph in graphs:
        check_shapes((*graph.value_info, *graph.output))
        _check_inferred(subgraphs(graph.node))


#: The size of each axis, None if unknown, by the name of a tensor.
_Shapes = Mapping[str, tuple[int | None, ...]]


def _check_operands(graph: onnx.GraphProto, outer: _Shapes) -> None:
    """Refuse operands that inference does not check and runtimes crash on, in subgraphs too."""
    shapes = {**outer, **_shapes(graph)}
    for node in graph.node:
        _check_conditions(node, shapes)
        _check_ranks(node, shapes)
        _check_normalized_axis(node, shapes)
        for subgraph in subgraphs([node]):
            _check_operands(subgraph, shapes)


def _shapes(graph: onnx.GraphProto) -> _Shapes:
    """Return the known shapes of the tensors of one graph."""
    found: dict[str, tuple[int | None, ...]] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            found[value.name] = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)
    return found | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}


def _check_conditions(node: onnx.NodeProto, shapes: _Shapes) -> None:
    """Refuse a trip count or a condition that is not one number: runtimes read the first one unchecked."""
    for name in node.input[: _N_CONDITIONS.get(node.op_type, 0)]:
        known = [size for size in shapes.get(name, ()) if size is not None]
        if len(known) == len(shapes.get(name, ())) and math.prod(known) != 1:
            raise GraphError(
                f"{node.op_type} {node.name!r} reads {name!r}, of {math.prod(known)} elements, as a number: "
                "it must have one element."
            )


def _check_ranks(node: onnx.NodeProto, shapes: _Shapes) -> None:
    """Refuse operands of a rank that their operator does not take."""
    for index, rank in _RANKS.get(node.op_type, {}).items():
        name = node.input[index] if index < len(node.input) else ""
        if name in shapes and len(shapes[name]) != rank:
            raise GraphError(
                f"{node.op_type} {node.name!r} reads {name!r}, of {len(shapes[name])} axes: it must have "
                f"{rank}."
            )


def _check_fed_ranks(graph: onnx.GraphProto) -> None:
    """Refuse inputs of undeclared shape for operators that take one rank and crash on others."""
    unknown = {value.name for value in graph.input if not value.type.tensor_type.HasField("shape")}
    for node in graph.node:
        for index, rank in _RANKS.get(node.op_type, {}).items():
            if index < len(node.input) and node.input[index] in unknown:
                raise GraphError(
                    f"{node.op_type} {node.name!r} reads the input {node.input[index]!r}, whose shape is not "
                    f"declared: declare one of {rank} axes."
                )


def _check_normalized_axis(node: onnx.NodeProto, shapes: _Shapes) -> None:
    """Refuse a LayerNormalization whose axis its input does not have."""
    if node.op_type != "LayerNormalization" or node.input[0] not in shapes:
        return
    rank = len(shapes[node.input[0]])
    for axis in (attribute.i for attribute in node.attribute if attribute.name == "axis"):
        if not -rank <= axis < rank:
            raise GraphError(
                f"LayerNormalization {node.name!r} has axis={axis}: its input has {rank} axes, so that "
                f"it must be in {-rank} to {rank - 1}."
            )
