"""Sizes of the tensors that a graph computes from constants alone.

Runtimes compute such tensors when they load a graph, and inference of shapes writes some of them down. Here
only a few small ones are computed, those that decide the sizes of others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.model import subgraphs

__all__ = ["MOST_CONSTANT", "MOST_NUMBERS", "SHARE_OF_STORED", "check_constants"]

#: The most elements of all tensors together that are computed from constants alone: 512 MiB of float32, two
#: masks of 8,192 x 8,192. Casts, transposes and scales of stored tensors come on top of it.
MOST_CONSTANT = 2**27

#: The number of computed elements for each stored one that is added to the limit.
SHARE_OF_STORED = 16

#: The most numbers of a constant Range: inference that follows shapes writes down each of them.
MOST_NUMBERS = 2**22

#: The most elements of a tensor that is computed here; sizes have a few.
_MOST_COMPUTED = 4096

#: The most nodes that are computed here, in about a millisecond each.
_MOST_NODES = 2_000

#: Operators of sizes, which take as long as their operands and results are.
_ARITHMETIC = frozenset(
    {
        "Abs", "Add", "And", "Cast", "Ceil", "Concat", "Constant", "ConstantOfShape", "Div", "Equal",
        "Expand", "Flatten", "Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less",
        "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Range", "ReduceMax", "ReduceMin",
        "ReduceProd", "ReduceSum", "Reshape", "Round", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile",
        "Transpose", "Unsqueeze", "Where",
    }
)  # fmt: skip

#: Operators whose result has as many elements as values of an operand say.
_GROWING = frozenset(
    {
        "CenterCropPad", "Col2Im", "ConstantOfShape", "Expand", "Loop", "OneHot", "Pad", "Range",
        "Resize", "Scan", "Tile", "Upsample", "BlackmanWindow", "HannWindow", "HammingWindow",
        "MelWeightMatrix", "DFT", "STFT", "AffineGrid", "MaxUnpool",
    }
)  # fmt: skip

#: Operators of several operands whose result may have more elements than all of them together.
_MULTIPLYING = frozenset(
    {
        "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Conv", "ConvTranspose",
        "ConvInteger", "Div", "Einsum", "Equal", "Gather", "GatherElements", "GatherND", "Gemm",
        "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "MatMul", "MatMulInteger", "Max", "Mean",
        "Min", "Mod", "Mul", "Or", "Pow", "PRelu", "QLinearConv", "QLinearMatMul", "Sub", "Sum", "Where",
        "Xor",
    }
)  # fmt: skip

_Kinds = Mapping[str, onnx.TypeProto]


def check_constants(
    graph: onnx.GraphProto, stored: Iterable[onnx.TensorProto], opsets: Iterable[onnx.OperatorSetIdProto]
) -> None:
    """Refuse a graph that computes too many elements from constants, or an unknown number; subgraphs too.

    Parameters
    ----------
    graph : GraphProto
        A graph with the inferred shapes of its tensors.
    stored : iterable of TensorProto
        The initializers of the model.
    opsets : iterable of OperatorSetIdProto
        The versions of its operators.

    Raises
    ------
    GraphError
        A Range makes more than :data:`MOST_NUMBERS` numbers; all computed tensors together have more than
        :data:`MOST_CONSTANT` elements; or their number cannot be told.
    """
    tensors = {tensor.name: tensor for tensor in stored}
    limit = MOST_CONSTANT + SHARE_OF_STORED * sum(math.prod(tensor.dims) for tensor in tensors.values())
    _Count(limit, opsets).add(graph, {}, {}, tensors)


class _Count:
    """The number of computed elements of the graphs so far."""

    def __init__(self, limit: int, opsets: Iterable[onnx.OperatorSetIdProto]) -> None:
        self.limit, self.n_elements, self.n_computed = limit, 0, 0
        self.opsets = list(opsets)

    def add(
        self,
        graph: onnx.GraphProto,
        outer: _Kinds,
        bounds: Mapping[str, int],
        known: Mapping[str, onnx.TensorProto],
    ) -> None:
        """Add the elements of one graph, given the types, the sizes of constants and the values outside."""
        kinds = {**outer, **_kinds(graph)}
        known = {**known, **{tensor.name: tensor for tensor in graph.initializer}}
        bounds = {**bounds, **{name: math.prod(tensor.dims) for name, tensor in known.items()}}
        found = [node for node in graph.node if _is_constant(node, bounds, kinds)]
        read = {name for node in found for name in node.input if name in known}
        kinds |= {name: _kind(known[name]) for name in read if name not in kinds}
        unknown = [node for node in found if any(_n_elements(kinds, name) is None for name in node.output)]
        needed = _ancestors(found, unknown)
        for node in found:
            if id(node) in needed:
                self._compute(node, kinds, known)
            for name in node.output:
                bounds[name] = self._bound(node, _n_elements(kinds, name), bounds)
                if node.op_type != "Constant":
                    self._count(node, bounds[name])
        for node in graph.node:
            for subgraph in subgraphs([node]):
                self.add(subgraph, kinds, bounds, known)

    def _count(self, node: onnx.NodeProto, n_elements: int) -> None:
        if node.op_type == "Range" and n_elements > MOST_NUMBERS:
            raise GraphError(
                f"Range {node.name!r} makes {n_elements:,} numbers: up to {MOST_NUMBERS:,} are accepted."
            )
        self.n_elements += n_elements
        if self.n_elements > self.limit:
            raise GraphError(
                f"The graph computes {self.n_elements:,} elements of constants alone, {n_elements:,} of them "
                f"by {node.op_type} {node.name!r}: up to {self.limit:,} are accepted with its weights."
            )

    def _bound(self, node: onnx.NodeProto, n_elements: int | None, bounds: Mapping[str, int]) -> int:
        """Return the number of elements of a result, or a bound of it."""
        if n_elements is not None:
            return n_elements
        if node.op_type in _GROWING:
            raise GraphError(
                f"{node.op_type} {node.name!r} makes a tensor of constants alone, and its size cannot be "
                "told: store the tensor in place of the node."
            )
        given = [bounds[name] for name in node.input if name]
        # an index for each axis
        several = len(given) > 1 and node.op_type in _MULTIPLYING
        return math.prod(given) if several else sum(given) * (8 if node.op_type == "NonZero" else 1)

    def _compute(
        self, node: onnx.NodeProto, kinds: dict[str, onnx.TypeProto], known: dict[str, onnx.TensorProto]
    ) -> None:
        """Complete the types of the results of a node, and their values if they are few."""
        if node.op_type in ("Shape", "Size") and None not in _read_sizes(node, kinds):
            known[node.output[0]] = onnx.numpy_helper.from_array(_of_shape(node, kinds), node.output[0])
        elif node.op_type == "If":
            self._compute_branch(node, kinds, known)
        else:
            kinds.update(_inferred(node, kinds, known, self.opsets))
            is_small = all(_is_few(_n_elements(kinds, name)) for name in node.output)
            has_all = all(name in known or not name for name in node.input)
            if is_small and has_all and node.op_type in _ARITHMETIC and self.n_computed < _MOST_NODES:
                self.n_computed += 1
                known.update(_values(node, known, self.opsets))
        kinds.update({name: _kind(known[name]) for name in node.output if name in known})

    def _compute_branch(
        self, node: onnx.NodeProto, kinds: dict[str, onnx.TypeProto], known: dict[str, onnx.TensorProto]
    ) -> None:
        """Complete the values of the results of an If whose condition is known."""
        branches = {attribute.name: attribute.g for attribute in node.attribute}
        if node.input[0] not in known or self.n_computed >= _MOST_NODES:
            return
        self.n_computed += 1
        is_true = onnx.numpy_helper.to_array(known[node.input[0]]).any()
        branch = branches["then_branch" if is_true else "else_branch"]
        inner = {**known, **{tensor.name: tensor for tensor in branch.initializer}}
        inner_kinds = {**kinds, **{tensor.name: _kind(tensor) for tensor in inner.values()}, **_kinds(branch)}
        for each in branch.node:
            self._compute(each, inner_kinds, inner)
        for name, value in zip(node.output, branch.output, strict=False):
            if value.name in inner:
                known[name] = inner[value.name]


def _is_constant(node: onnx.NodeProto, bounds: dict[str, int], kinds: _Kinds) -> bool:
    """Return whether a node computes from constants alone; if so, add its results to `bounds`."""
    if node.op_type in ("Shape", "Size"):
        is_constant = node.input[0] in bounds or None not in _read_sizes(node, kinds)
    elif node.op_type == "If":
        # one branch may become part of the graph
        is_constant = node.input[0] in bounds and any(_reads_only(g, bounds) for g in subgraphs([node]))
    else:
        is_constant = all(name in bounds or not name for name in node.input) and not any(subgraphs([node]))
    if is_constant:
        bounds.update(dict.fromkeys(node.output, 0))
    return is_constant


def _reads_only(graph: onnx.GraphProto, given: Mapping[str, int]) -> bool:
    """Return whether a subgraph reads nothing but the tensors of `given`."""
    made = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        made.update(node.output)
    return all(name in given or name in made for node in graph.node for name in _read(node)) and all(
        value.name in given or value.name in made for value in graph.output
    )


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of the operands of a node, and of those in its subgraphs, without their own results."""
    yield from filter(None, node.input)
    for graph in subgraphs([node]):
        made = {name for inner in graph.node for name in inner.output}
        made |= {value.name for value in (*graph.input, *graph.initializer)}
        for inner in graph.node:
            yield from (name for name in _read(inner) if name not in made)


def _kinds(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """Return the types of the tensors of a graph."""
    return {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}


def _kind(tensor: onnx.TensorProto) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)


def _is_few(n_elements: int | None) -> bool:
    return n_elements is not None and n_elements <= _MOST_COMPUTED


def _n_elements(kinds: _Kinds, name: str) -> int | None:
    """Return the number of elements of a tensor, None if it is unknown; an omitted result has none."""
    if not name:
        return 0
    if name not in kinds or not kinds[name].tensor_type.HasField("shape"):
        return None
    dims = kinds[name].tensor_type.shape.dim
    return (
        math.prod(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None
    )


def _ancestors(nodes: list[onnx.NodeProto], last: list[onnx.NodeProto]) -> set[int]:
    """Return the identities of `last` and of the nodes that they depend on; `nodes` are in order."""
    if not last:
        return set()
    found = {id(node) for node in last}
    wanted = {name for node in last for name in _read(node)}
    for node in reversed(nodes):
        if id(node) in found or not wanted.isdisjoint(node.output):
            found.add(id(node))
            wanted.update(_read(node))
    return found


def _read_sizes(node: onnx.NodeProto, kinds: _Kinds) -> list[int | None]:
    """Return the sizes that a Shape or a Size reads, None for unknown ones."""
    kind = kinds.get(node.input[0])
    if kind is None or not kind.tensor_type.HasField("shape"):
        return [None]
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.tensor_type.shape.dim]
    limits = {attribute.name: attribute.i for attribute in node.attribute}
    return sizes[limits.get("start") : limits.get("end")]


def _of_shape(node: onnx.NodeProto, kinds: _Kinds) -> np.ndarray:
    """Return the result of a Shape or a Size of known sizes."""
    sizes = np.array([size or 0 for size in _read_sizes(node, kinds)], np.int64)
    return sizes if node.op_type == "Shape" else np.array(math.prod(sizes.tolist()), np.int64)


def _inferred(
    node: onnx.NodeProto,
    kinds: _Kinds,
    known: Mapping[str, onnx.TensorProto],
    opsets: list[onnx.OperatorSetIdProto],
) -> dict[str, onnx.TypeProto]:
    """Return the types of the results of one node, inferred with the values of its operands."""
    given = {name: kinds[name] for name in node.input if name in kinds}
    # inference of a large value would read all of it
    data = {name: known[name] for name in given if name in known and _is_few(_n_elements(kinds, name))}
    version = next((opset.version for opset in opsets if opset.domain == node.domain), 1)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        return dict(onnx.shape_inference.infer_node_outputs(schema, node, given, data, opset_imports=opsets))
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        # the size stays unknown
        return {}


def _values(
    node: onnx.NodeProto, known: Mapping[str, onnx.TensorProto], opsets: list[onnx.OperatorSetIdProto]
) -> dict[str, onnx.TensorProto]:
    """Return the results of one node of small constants; none if it cannot be computed."""
    # lazy: a slow import that few graphs need
    from onnx.reference import ReferenceEvaluator

    graph = onnx.helper.make_graph(
        [node], "sizes", [], [onnx.ValueInfoProto(name=name) for name in node.output if name]
    )
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    feeds = {name: onnx.numpy_helper.to_array(known[name]) for name in node.input if name}
    try:
        results = ReferenceEvaluator(model).run(None, feeds)
    except Exception:
        # operators in Python, which raise any exception; the size stays unknown
        return {}
    names = [name for name in node.output if name]
    return {
        name: onnx.numpy_helper.from_array(np.asarray(array), name)
        for name, array in zip(names, results, strict=True)
    }
