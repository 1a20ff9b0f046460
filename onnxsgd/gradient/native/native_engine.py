"""The engine "onnxruntime-training": gradients by its builder, merged into the forward graph.

The builder receives only the nodes that gradients flow through; all others stay in place, of any operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from onnxsgd.exceptions import EngineError
from onnxsgd.gradient.native.builder import NativeGradient, build_gradient_model, check_path
from onnxsgd.gradient.native.coverage import passes_gradient
from onnxsgd.gradient.native.isolate import Isolated, isolate
from onnxsgd.gradient.native.lowering import lower_path
from onnxsgd.gradient.native.standardize import standardize
from onnxsgd.graph.gradient_path import find_path
from onnxsgd.graph.model import graph_names, to_proto, unique_name
from onnxsgd.graph.named_shapes import infer_shapes
from onnxsgd.graph.nodes import maker, operands
from onnxsgd.graph.writing import add_initializer, computed, copy_node

__all__ = ["differentiate", "differentiate_with_native"]

#: The suffix that the builder adds to a name for its gradient.
_SUFFIX = "_grad"

_MICROSOFT = "com.microsoft"


def differentiate(model: ir.Model, outputs: Sequence[str], wrt: Sequence[str]) -> ir.Model:
    """Return `model` with a backward pass; see :class:`~onnxsgd.gradient.engines.Engine` for the contract.

    Raises
    ------
    NotTrainableError
        If a node on the path has no gradient, or no path leads from one of `wrt` to `outputs`.
    MissingRuntimeError
        If the runtime cannot train.
    """
    return differentiate_with_native(model, outputs, wrt)[0]


def differentiate_with_native(
    model: ir.Model, outputs: Sequence[str], wrt: Sequence[str], memory_efficient: bool = False
) -> tuple[ir.Model, NativeGradient | None]:
    """Return `model` with a backward pass, and the builder's result.

    Parameters
    ----------
    model, outputs, wrt
        As for :func:`differentiate`.
    memory_efficient : bool
        Passed on to the builder.

    Returns
    -------
    model : ir.Model
        As from :func:`differentiate`.
    native : NativeGradient or None
        The builder's result for the nodes on the path; None if there are none.
    """
    result = model.clone()
    graph = result.graph
    declared = {value.name: value.shape for value in (*graph.inputs, *graph.outputs)}
    infer_shapes(result)
    lower_path(result, outputs, wrt)
    by_name = {value.name: value for value in _values(graph)}
    targets, sources = [by_name[name] for name in outputs], [by_name[name] for name in wrt]
    seeds = {y: ir.Value(name=f"{y.name}{_SUFFIX}", type=y.type, shape=y.shape) for y in targets}
    graph.inputs.extend(seeds.values())
    gradients, native = _add_backward(result, sources, seeds, memory_efficient)
    found = _name_results(graph, sources, gradients)
    graph.outputs[:] = [*targets, *found]
    graph.sort()
    for node in graph:
        if node.domain == _MICROSOFT:
            graph.opset_imports.setdefault(_MICROSOFT, 1)
    for name, shape in declared.items():
        by_name[name].shape = shape or by_name[name].shape
    for given, derived in (*seeds.items(), *zip(sources, found, strict=True)):
        derived.type, derived.shape = given.type, given.shape
    return result, native


def _name_results(
    graph: ir.Graph, sources: Sequence[ir.Value], gradients: Mapping[ir.Value, ir.Value]
) -> list[ir.Value]:
    """Return the gradient of each source under its name, each computed by a separate node."""
    results: list[ir.Value] = []
    for source in sources:
        result = gradients[source]
        if result in results or result.producer() is None:
            result = computed("Identity", [result])
            graph.append(maker(result))
        result.name = f"{source.name}{_SUFFIX}"
        results.append(result)
    return results


def _add_backward(
    model: ir.Model, wrt: Sequence[ir.Value], seeds: Mapping[ir.Value, ir.Value], memory_efficient: bool
) -> tuple[dict[ir.Value, ir.Value], NativeGradient | None]:
    """Add the backward pass to `model`, in place; return the gradients that its nodes compute."""
    path = find_path(model.graph, wrt, list(seeds), passes_gradient)
    check_path(model.graph, path, wrt, list(seeds))
    if not path.nodes:
        return {}, None
    isolated = isolate(model, path, _SUFFIX)
    sources = [value for value in wrt if value in isolated.names]
    names = [isolated.names[value] for value in sources]
    native = build_gradient_model(to_proto(isolated.model), [], names, memory_efficient)
    backward = _Backward(native, isolated, sources, seeds)
    standardize(backward.graph, backward.nodes())
    return backward.move_into(model.graph), native


class _Backward:
    """The graph that the builder returned, to be merged into the graph it was built for."""

    def __init__(
        self,
        native: NativeGradient,
        isolated: Isolated,
        sources: Sequence[ir.Value],
        seeds: Mapping[ir.Value, ir.Value],
    ) -> None:
        self.graph = ir.from_proto(native.model).graph
        built = {str(value.name): value for value in _values(self.graph)}
        #: The values of the other graph, by their counterparts here.
        self.images = {built[name]: value for name, value in isolated.origins.items() if name in built}
        for original in _values(isolated.model.graph):
            # the builder does not repeat types and shapes that are known here
            for name in (original.name, f"{original.name}{_SUFFIX}"):
                if name in built:
                    built[name].type, built[name].shape = original.type, original.shape
        self.sources = sources
        self.graph.outputs[:] = [built[isolated.names[value] + _SUFFIX] for value in sources]
        self._remove_yield({isolated.names[y]: seed for y, seed in seeds.items() if y in isolated.names})

    def nodes(self) -> list[ir.Node]:
        """Return the nodes of the backward pass: those that compute no value of the other graph."""
        return [node for node in self.graph if self.images.keys().isdisjoint(node.outputs)]

    def move_into(self, graph: ir.Graph) -> dict[ir.Value, ir.Value]:
        """Copy the backward pass into the other graph and return its gradients there."""
        self._remove_unused()
        self._add_forward_outputs()
        names = graph_names(graph)
        images = dict(self.images)
        for value in self.graph.initializers.values():
            if value not in images and value.uses() and value.const_value is not None:
                name = unique_name(str(value.name), names)
                images[value] = add_initializer(graph, name, value.const_value.numpy())
        nodes = self.nodes()
        for node in nodes:
            for value in node.outputs:
                if value.name or value.uses() or value.is_graph_output():
                    name = unique_name(value.name or f"{node.op_type}{_SUFFIX}", names)
                    images[value] = ir.Value(name=name, type=value.type, shape=value.shape)
        taken = {str(node.name) for node in graph}
        for node in nodes:
            inputs = [None if value is None else images[value] for value in node.inputs]
            copy = copy_node(node, inputs, [images.get(value) or ir.Value(name="") for value in node.outputs])
            copy.name = unique_name(node.name or node.op_type, taken)
            graph.append(copy)
        return {source: images[value] for source, value in zip(self.sources, self.graph.outputs, strict=True)}

    def _remove_yield(self, seeds: Mapping[str, ir.Value]) -> None:
        """Replace the results of ``YieldOp`` for outputs by the seeds; drop its other results."""
        node = next(node for node in self.graph if node.op_type == "YieldOp")
        for value, returned in zip(operands(node), node.outputs, strict=True):
            if str(value.name) in seeds:
                seed = ir.Value(name=returned.name, type=returned.type, shape=value.shape)
                self.images[seed] = seeds[str(value.name)]
                ir.convenience.replace_all_uses_with(returned, seed, replace_graph_outputs=True)
            else:
                self._neutralise(returned, value, node)
        self.graph.remove(node, safe=True)

    def _neutralise(self, returned: ir.Value, value: ir.Value, node: ir.Node) -> None:
        """Replace the gradient `returned` from outside by zero, as none comes from there."""
        for user in list(returned.consumers()):
            if user.op_type == "Add":
                (other,) = (operand for operand in operands(user) if operand is not returned)
                ir.convenience.replace_all_uses_with(user.outputs[0], other, replace_graph_outputs=True)
                self.graph.remove(user, safe=True)
        if returned.uses():
            shape = computed("Shape", [value])
            zero = ir.tensor([0], dtype=value.dtype)
            zeros = computed("ConstantOfShape", [shape], {"value": zero}, like=value)
            self.graph.insert_before(node, [maker(shape), maker(zeros)])
            ir.convenience.replace_all_uses_with(returned, zeros)

    def _remove_unused(self) -> None:
        # RemoveUnusedNodesPass of onnx_ir would also remove the forward nodes, which have other readers
        for node in reversed(self.nodes()):
            if not any(value.uses() or value.is_graph_output() for value in node.outputs):
                self.graph.remove(node, safe=True)

    def _add_forward_outputs(self) -> None:
        """Add the builder's extra outputs that the backward pass reads to nodes of the other graph."""
        for node in self.graph:
            images = [self.images[value] for value in node.outputs if value in self.images]
            missing = [value for value in node.outputs if value.uses() and value not in self.images]
            if not images or not missing:
                continue
            original = images[0].producer()
            if original is None or original.op_type != node.op_type:
                raise EngineError(
                    f"onnxruntime-training replaced the operator {original and original.op_type!r} by "
                    f"{node.op_type!r}, which cannot be merged into the graph."
                )
            original.resize_outputs(len(node.outputs))
            for value, counterpart in zip(node.outputs, original.outputs, strict=True):
                if value not in self.images:
                    counterpart.name = counterpart.name or f"{original.outputs[0].name}_{value.name}"
                    counterpart.type, counterpart.shape = value.type, value.shape
                    self.images[value] = counterpart


def _values(graph: ir.Graph) -> Iterable[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
