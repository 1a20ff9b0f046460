"""Cut the part of a graph that gradients flow through out of it, and put another part in its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.builder_form import complete
from onnxsgd.gradient.path import Path, is_real
from onnxsgd.gradient.shapes import named_dims
from onnxsgd.graph.model import REAL_TYPES, unique_name

__all__ = ["Isolated", "copy_nodes", "isolate"]

#: Constants of other types than this go into the isolated graph with their value: shapes, axes, indices.
_MAX_CONSTANT_SIZE = 4096

#: A version that the builder reads; nothing in the isolated graph depends on it.
_IR_VERSION = 9


@dataclass(frozen=True)
class Isolated:
    """The nodes of a path as a graph of their own.

    Attributes
    ----------
    model : ir.Model
        Inputs: what the path reads from outside. Outputs: every value of the path that a node of it
        makes, and the other outputs of nodes that return several real tensors.
    names : dict
        For each value of the original graph that is there, its name in `model`.
    """

    model: ir.Model
    names: dict[ir.Value, str]


def isolate(source: ir.Model, path: Path, marker: str) -> Isolated:
    """Return the nodes of `path`, and nothing else, as a model.

    Weights and other real tensors become inputs, so that the model is small; integer constants stay.

    Parameters
    ----------
    source : ir.Model
        The model that `path` belongs to, with the types of its values inferred.
    path : Path
        What to cut out.
    marker : str
        A piece of text that no name may contain: names that do are replaced.

    Raises
    ------
    NotTrainableError
        If the type of a value is unknown.
    """
    taken: set[str] = set()
    values: dict[ir.Value, ir.Value] = {}
    inputs: list[ir.Value] = []
    constants: list[ir.Value] = []
    made = {value for node in path.nodes for value in node.outputs}

    def name_of(value: ir.Value) -> str:
        return unique_name("renamed" if marker in str(value.name).lower() else str(value.name), taken)

    for node in path.nodes:
        for value in node.inputs:
            if value is None or value in values or value in made:
                continue
            values[value] = copy = _copy_value(value, name_of(value), node)
            (constants if copy.const_value is not None else inputs).append(copy)
    for value in made:
        if value.name:
            values[value] = _copy_value(value, name_of(value), value.producer())
    nodes = copy_nodes(path.nodes, values)
    outputs = [values[value] for node in path.nodes for value in node.outputs if _is_yielded(value, path)]
    opsets = {"": source.graph.opset_imports[""]}
    graph = ir.Graph(inputs, outputs, nodes=nodes, initializers=constants, opset_imports=opsets, name="path")
    complete(graph, taken)
    model = ir.Model(graph, ir_version=_IR_VERSION)
    return Isolated(model, {value: str(copy.name) for value, copy in values.items()})


def copy_nodes(nodes: Iterable[ir.Node], values: Mapping[ir.Value, ir.Value]) -> list[ir.Node]:
    """Return copies of `nodes` that read and make the images of their values under `values`.

    Outputs without an image become absent outputs. The nodes have no subgraphs.
    """
    copies = []
    for node in nodes:
        copies.append(
            ir.Node(
                node.domain,
                node.op_type,
                [None if value is None else values[value] for value in node.inputs],
                node.attributes.values(),
                outputs=[values.get(value) or ir.Value(name="") for value in node.outputs],
                name=node.name,
            )
        )
    return copies


def _is_yielded(value: ir.Value, path: Path) -> bool:
    """Return whether `value` is an output of the isolated graph.

    An output cannot be fused away, so the forward nodes come back as they are. Operators such as Split
    need a gradient for each of their results, also for those that nothing is made of.
    """
    producer = value.producer()
    return bool(value.name) and (
        value in path.values or (producer is not None and producer.op_type == "Split" and is_real(value))
    )


def _copy_value(value: ir.Value, name: str, node: ir.Node | None) -> ir.Value:
    if value.dtype is None:
        where = "" if node is None else f" (operator {node.op_type!r}, node {node.name!r})"
        raise NotTrainableError(
            f"The type of the tensor {value.name!r}{where} is unknown and cannot be inferred: "
            f"declare it in the graph's value_info."
        )
    constant = ir.convenience.get_const_tensor(value)
    small = constant is not None and constant.size <= _MAX_CONSTANT_SIZE and value.dtype not in REAL_TYPES
    return ir.Value(
        name=name,
        type=ir.TensorType(value.dtype),
        shape=named_dims(value.shape, name),
        const_value=ir.Tensor(constant.numpy(), name=name) if constant is not None and small else None,
    )
