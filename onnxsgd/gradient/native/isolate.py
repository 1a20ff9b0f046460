"""Isolation of the nodes that gradients flow through, as a model for the gradient builder."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.native.builder_forms import complete
from onnxsgd.graph.gradient_path import Path
from onnxsgd.graph.model import REAL_TYPES, unique_name
from onnxsgd.graph.named_shapes import named_dims
from onnxsgd.graph.nodes import carries_gradient, standard_operator
from onnxsgd.graph.writing import copy_node

__all__ = ["Isolated", "isolate"]

#: Largest size of a constant of no real type (shapes, axes, indices) whose value the isolated graph holds.
_MAX_CONSTANT_SIZE = 4096

#: A version that the builder reads; nothing in the isolated graph depends on it.
_IR_VERSION = 9


@dataclass(frozen=True)
class Isolated:
    """The nodes of a path as a separate graph.

    Attributes
    ----------
    model : ir.Model
        Inputs: the values that the path reads from outside. Outputs: every value of the path that its nodes
        compute, and the other outputs of nodes that return several real tensors.
    names : dict
        The name in `model` of each value that the path computes or is differentiated with respect to.
    origins : dict
        The value of the original graph for each name in `model`.
    """

    model: ir.Model
    names: dict[ir.Value, str]
    origins: dict[str, ir.Value]


def isolate(source: ir.Model, path: Path, marker: str) -> Isolated:
    """Return the nodes of `path`, and nothing else, as a model.

    Weights and other real tensors become inputs, so that the model is small; integer constants stay.

    Parameters
    ----------
    source : ir.Model
        The model that `path` belongs to, with the types of its values inferred.
    path : Path
        The nodes to isolate.
    marker : str
        A text that no name may contain: names with it are replaced.

    Raises
    ------
    NotTrainableError
        If the type of a value is unknown.
    """
    return _Isolation(path, marker).run(source)


class _Isolation:
    def __init__(self, path: Path, marker: str) -> None:
        self.path = path
        self.marker = marker
        self.names: set[str] = set()
        #: The copies of the values that the path computes or is differentiated with respect to.
        self.values: dict[ir.Value, ir.Value] = {}
        self.origins: dict[str, ir.Value] = {}
        self.inputs: list[ir.Value] = []
        self.constants: list[ir.Value] = []

    def run(self, source: ir.Model) -> Isolated:
        nodes = self.path.nodes
        made = [value for node in nodes for value in node.outputs if value.name]
        for node in nodes:
            for value in node.inputs:
                if value in self.path.values and value not in made:
                    self._add_source(value, node)
        sources = list(self.inputs)
        for value in made:
            self.values[value] = self._copy(value, value.producer())
        copies = [self._copy_node(node) for node in nodes]
        outputs = [self.values[value] for value in made if _is_yielded(value, self.path)]
        graph = ir.Graph(
            self.inputs,
            outputs,
            nodes=copies,
            initializers=self.constants,
            opset_imports={"": source.graph.opset_imports[""]},
            name="path",
        )
        complete(graph, sources, self.names)
        names = {value: str(copy.name) for value, copy in self.values.items()}
        return Isolated(ir.Model(graph, ir_version=_IR_VERSION), names, self.origins)

    def _add_source(self, value: ir.Value, node: ir.Node) -> None:
        if value not in self.values:
            self.values[value] = self._copy(value, node)
            self.inputs.append(self.values[value])

    def _copy_node(self, node: ir.Node) -> ir.Node:
        return copy_node(
            node,
            [
                None if value is None else self.values.get(value) or self._copy_frozen(value, node)
                for value in node.inputs
            ],
            [self.values.get(value) or ir.Value(name="") for value in node.outputs],
        )

    def _copy_frozen(self, value: ir.Value, node: ir.Node) -> ir.Value:
        """Return an input or a constant in place of `value`, for this node only.

        Some gradients come with those of frozen inputs: a second reader would define these a second time.
        """
        copy = self._copy(value, node)
        constant = ir.convenience.get_const_tensor(value)
        if constant is None or constant.size > _MAX_CONSTANT_SIZE or value.dtype in REAL_TYPES:
            self.inputs.append(copy)
        else:
            copy.const_value = ir.Tensor(constant.numpy(), name=copy.name)
            self.constants.append(copy)
        return copy

    def _copy(self, value: ir.Value, node: ir.Node | None) -> ir.Value:
        if value.dtype is None:
            where = "" if node is None else f" (operator {node.op_type!r}, node {node.name!r})"
            raise NotTrainableError(
                f"The type of the tensor {value.name!r}{where} is unknown and cannot be inferred: declare it "
                f"in the graph's value_info."
            )
        base = "renamed" if self.marker in str(value.name).lower() else str(value.name)
        name = unique_name(base, self.names)
        self.origins[name] = value
        return ir.Value(name=name, type=ir.TensorType(value.dtype), shape=named_dims(value.shape, base))


def _is_yielded(value: ir.Value, path: Path) -> bool:
    """Return whether `value` is an output of the isolated graph.

    An output cannot be fused away, so the forward nodes come back unchanged. Operators such as Split need a
    gradient for each of their results, even for unused ones.
    """
    producer = value.producer()
    return bool(value.name) and (
        value in path.values
        or (producer is not None and standard_operator(producer) == "Split" and carries_gradient(value))
    )
