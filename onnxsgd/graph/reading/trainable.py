"""Selection of the trained initializers of a graph."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.exceptions import NotTrainableError, ParameterError, ParameterTypeError
from onnxsgd.graph.cut import tensor_named
from onnxsgd.graph.dropout import acts
from onnxsgd.graph.model import REAL_TYPES
from onnxsgd.graph.nodes import is_empty, qualified_operator, read_values, represents_reals, standard_operator
from onnxsgd.graph.operators import Fact, having
from onnxsgd.graph.parameter_roles.roles import Role, find_roles

__all__ = [
    "Differentiable",
    "GradientFlow",
    "but_dropouts",
    "initializers_in_use",
    "intercept_names",
    "select_trainable",
    "trace_gradients",
    "with_head",
]

#: Returns the reason why no gradient passes a node, as a phrase, or None if one does.
Differentiable = Callable[[ir.Node], str | None]
Trainable = str | Sequence[str] | Callable[[str], bool] | None


#: Operators at which a gradient path ends silently; a Hardmax is reported to the user.
_STEPS = having(Fact.FLAT) - {"Hardmax"}


@dataclass(frozen=True)
class GradientFlow:
    """Gradient flow from a score back through the graph.

    Attributes
    ----------
    nodes : tuple of ir.Node
        The nodes between any initializer or input and the score, in order.
    obstacles : dict of ir.Value to (ir.Node or None)
        For each tensor from which a path leads to the score: the node on it, nearest to the score, that
        gradients do not pass, if any.
    reasons : dict of ir.Node to str
        The reasons of these nodes.
    """

    nodes: tuple[ir.Node, ...]
    obstacles: dict[ir.Value, ir.Node | None]
    reasons: dict[ir.Node, str]

    def complaint(self, value: ir.Value) -> str | None:
        """Return the reason why no gradient reaches `value`, called "it", as a sentence; None if one does."""
        if value not in self.obstacles:
            return "no path of real numbers leads from it to the score"
        node = self.obstacles[value]
        if node is None:
            return None
        return f"it lies before {describe_node(node)}, and {self.reasons[node].rstrip('.')}"


def trace_gradients(model: ir.Model, score: str, differentiable: Differentiable) -> GradientFlow:
    """Follow gradients from the tensor `score` back through the graph.

    A path ends at a node that computes integers, booleans or step functions of real numbers: these are
    piecewise constant.
    """
    graph = model.graph
    obstacles: dict[ir.Value, ir.Node | None] = {tensor_named(graph, score): None}
    reasons: dict[ir.Node, str] = {}
    nodes = []
    for node in reversed(graph):
        reached = [value for value in node.outputs if value in obstacles]
        if not reached or standard_operator(node) in _STEPS:
            continue
        nodes.append(node)
        obstacle = next((obstacles[value] for value in reached if obstacles[value] is not None), None)
        if (reason := differentiable(node)) is not None:
            reasons[node] = reason
            obstacle = obstacle or node
        for index, value in read_values(node):
            # which the native engine drops with the node
            is_ratio = standard_operator(node) == "Dropout" and index != 0
            if represents_reals(value) and not is_ratio:
                obstacles[value] = obstacles.get(value) or obstacle
    return GradientFlow(tuple(reversed(nodes)), obstacles, reasons)


def select_trainable(
    model: ir.Model,
    score: str,
    trainable: Trainable,
    differentiable: Differentiable,
    engine: Differentiable | None = None,
) -> list[str]:
    """Return the names of the initializers to train, in the order in which nodes read them.

    Parameters
    ----------
    model : ir.Model
        Lowered.
    score : str
        The tensor of raw predictions.
    trainable : None, str, sequence of str, or callable
        None: the parameters (see :func:`onnxsgd.graph.parameter_roles.roles.find_roles`) that gradients
        reach. Names: these, of any role, if they hold real numbers and gradients reach them. A callable
        receives the name of every tensor of real numbers that nodes read, constants too; those that it
        chooses and that gradients reach are trained.
    differentiable : callable
        Returns the reason why no gradient passes a node, None if one does.
    engine : callable or None
        The same for the engine that would train, if that is another one: it trains the same tensors, or
        none.

    Raises
    ------
    ParameterError
        A name that is repeated or is no initializer of the graph.
    ParameterTypeError
        `trainable` is of another type.
    NotTrainableError
        Nothing to train, or gradients do not reach a named tensor or, with `engine`, a chosen one.
    """
    names = _select(model, trainable, trace_gradients(model, score, differentiable))
    if engine is not None:
        flow = trace_gradients(model, score, engine)
        for name in names:
            if (complaint := flow.complaint(model.graph.initializers[name])) is not None:
                raise NotTrainableError(
                    f"{name!r} cannot be trained by this engine: {complaint}. Use engine='portable', or name "
                    f"only tensors behind that node in trainable=."
                )
    return names


def _select(model: ir.Model, trainable: Trainable, flow: GradientFlow) -> list[str]:
    initializers = {str(value.name): value for value in initializers_in_use(model.graph)}
    if trainable is None:
        return _parameters(model, initializers, flow)
    if callable(trainable):
        return _chosen(trainable, initializers, flow)
    names = _check_names(trainable, model.graph.initializers)
    for name in names:
        if (complaint := _complaint(model.graph.initializers[name], flow)) is not None:
            raise NotTrainableError(f"trainable names {name!r}, which cannot be trained: {complaint}.")
    return [name for name in initializers if name in names]


def _parameters(model: ir.Model, initializers: Mapping[str, ir.Value], flow: GradientFlow) -> list[str]:
    roles = find_roles(model.graph)
    found = [name for name, value in initializers.items() if roles[value].kind and not flow.complaint(value)]
    if not found:
        raise NotTrainableError(_nothing_to_train(roles, flow))
    return found


def _chosen(
    trainable: Callable[[str], bool], initializers: Mapping[str, ir.Value], flow: GradientFlow
) -> list[str]:
    real = {name: value for name, value in initializers.items() if value.dtype in REAL_TYPES}
    chosen = [name for name in real if trainable(name)]
    if not chosen:
        raise NotTrainableError(f"trainable selects none of {_quoted(real)}: nothing to train.")
    complaints = {name: _complaint(real[name], flow) for name in chosen}
    if all(complaints.values()):
        name = chosen[0]
        raise NotTrainableError(
            f"trainable selects tensors that cannot be trained, such as {name!r}: {complaints[name]}."
        )
    return [name for name in chosen if complaints[name] is None]


def but_dropouts(differentiable: Differentiable) -> Differentiable:
    """Return the same function, without a reason against Dropout nodes that act."""
    return lambda node: None if acts(node) else differentiable(node)


def with_head(trainable: Trainable, head: Sequence[str]) -> Trainable:
    """Return `trainable` for a graph with a new layer `head`, whose tensors are always trained.

    None: those alone. A callable does not receive them.
    """
    if trainable is None:
        return list(head)
    if callable(trainable):
        choose = trainable
        return lambda name: name in head or choose(name)
    names = [trainable] if isinstance(trainable, str) else trainable
    if not isinstance(names, Iterable):
        return names  # refused where names are checked
    names = list(names)
    return [*names, *(name for name in head if name not in names)]


def intercept_names(model: ir.Model, names: Iterable[str]) -> set[str]:
    """Return the intercepts among the initializers `names`; penalties do not apply to them."""
    roles = find_roles(model.graph)
    return {name for name in names if roles[model.graph.initializers[name]].kind == "intercept"}


def initializers_in_use(graph: ir.Graph) -> list[ir.Value]:
    """Return the initializers that nodes of the main graph read, in reading order."""
    read = (value for node in graph for _, value in read_values(node))
    return list(dict.fromkeys(value for value in read if value.is_initializer()))


def describe_node(node: ir.Node) -> str:
    """Return the operator of `node` and its place, as a phrase."""
    name = f" {node.name!r}" if node.name else ""
    result = next((value for value in node.outputs if value.dtype in REAL_TYPES), node.outputs[0])
    return f"the {qualified_operator(node)}{name} that computes {result.name!r}"


def _check_names(trainable: str | Sequence[str], initializers: Iterable[str]) -> set[str]:
    given = [trainable] if isinstance(trainable, str) else trainable
    names = list(given) if isinstance(given, Iterable) else []
    if not isinstance(given, Iterable) or not all(isinstance(name, str) for name in names):
        raise ParameterTypeError(
            f"trainable={trainable!r} is not accepted: it must be None, names of tensors, or a callable on "
            "names."
        )
    if not names:
        raise ParameterError("trainable names no tensor: nothing to train.")
    known = list(initializers)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=8) or known[:8]
            raise ParameterError(f"trainable names {name!r}; the graph has, among others, {_quoted(close)}.")
        if names.count(name) > 1:
            raise ParameterError(f"trainable names {name!r} more than once.")
    return set(names)


def _complaint(value: ir.Value, flow: GradientFlow) -> str | None:
    if value.dtype not in REAL_TYPES:
        return f"it holds {value.dtype}, no real numbers"
    if is_empty(value):
        return "it has no elements"
    return flow.complaint(value)


def _nothing_to_train(roles: Mapping[ir.Value, Role], flow: GradientFlow) -> str:
    """Return the first reason why no weight can be trained."""
    weights = [value for value, role in roles.items() if role.kind is not None]
    blocked = [value for value in weights if value in flow.obstacles]
    named = blocked or weights
    if named and (blocked or not flow.reasons):
        name, reason = named[0].name, flow.complaint(named[0])
        return f"The graph has weights, such as {name!r}, and none can be trained: {reason}. {_WAY_OUT}"
    if flow.reasons:
        node, reason = next(iter(flow.reasons.items()))
        place = describe_node(node)
        return (
            f"The graph has no weights that can be trained. It holds {place}, and {reason.rstrip('.')}. "
            f"{_WAY_OUT}"
        )
    return (
        f"The graph has no real weights: nothing to train. {_WAY_OUT} Quantized weights learn through "
        "adapters beside them: adapter=LoRA(...)."
    )


_WAY_OUT = "A new layer on top of it (head='linear') can be trained."


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
