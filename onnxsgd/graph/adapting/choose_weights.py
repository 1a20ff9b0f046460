"""Choice of the weights that get an adapter."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

import onnx_ir as ir

from onnxsgd.adapters import LoRA
from onnxsgd.exceptions import NotTrainableError, ParameterError
from onnxsgd.graph.adapting.adapted_nodes import EMBEDDING, AdaptedNode, adapted_nodes
from onnxsgd.graph.gradient_path import values_upstream
from onnxsgd.graph.model import REAL_TYPES
from onnxsgd.graph.nodes import maker
from onnxsgd.graph.parameter_roles.roles import Role, find_roles
from onnxsgd.graph.reading.trainable import GradientFlow, initializers_in_use

__all__ = ["choose_weights"]

#: The characters of patterns.
_WILD = frozenset("*?[")


def choose_weights(
    model: ir.Model, adapter: LoRA, flow: GradientFlow, trained: Collection[str] = ()
) -> list[str]:
    """Return the names of the weights to adapt, in the order in which nodes read them.

    Parameters
    ----------
    model : ir.Model
        Lowered, with the score as its only output.
    adapter : LoRA
        Its `targets` choose.
    flow : GradientFlow
        The gradients from the score back.
    trained : collection of str
        The initializers that are trained themselves: they have no adapter.

    Raises
    ------
    NotTrainableError
        The graph has no weight that can be adapted, or gradients do not reach a named one.
    ParameterError
        A name that is no initializer, or is trained itself; a pattern or a callable that selects nothing.
    """
    known = {str(value.name): value for value in initializers_in_use(model.graph)}
    complaints = {name: _complaint(value, flow) for name, value in known.items()}
    fitting = [name for name, reason in complaints.items() if reason is None and name not in trained]
    names = adapter.target_names
    if names is not None:
        return _named(names, known, complaints, fitting, trained)
    if callable(adapter.targets):
        chosen = [name for name in fitting if adapter.targets(name)]
        if not chosen:
            raise ParameterError(f"targets selects none of the weights {_quoted(fitting)}.")
        return chosen
    roles = find_roles(model.graph)
    found = [name for name in fitting if _is_layer(known[name], roles)]
    if not found:
        raise NotTrainableError(_NOTHING)
    last = _output_layer(model.graph, [known[name] for name in found])
    return [name for name in found if name != last] or found


def _is_layer(value: ir.Value, roles: Mapping[ir.Value, Role]) -> bool:
    """Tell whether a weight is a parameter, or quantized, and more than a table of embeddings."""
    nodes = adapted_nodes(value)
    is_parameter = value.dtype not in REAL_TYPES or roles[value].kind == "weight"
    return is_parameter and any(entry.kind != EMBEDDING for entry in nodes if isinstance(entry, AdaptedNode))


def _complaint(value: ir.Value, flow: GradientFlow) -> str | None:
    """Return the reason why a value has no adapter, as a phrase about "it"; None if it can have one."""
    nodes = adapted_nodes(value)
    if isinstance(nodes, str):
        return nodes
    reasons = [flow.complaint(adapted.result) for adapted in nodes]
    return None if None in reasons else reasons[0]


def _named(
    names: tuple[str, ...],
    known: Mapping[str, ir.Value],
    complaints: Mapping[str, str | None],
    fitting: list[str],
    trained: Collection[str],
) -> list[str]:
    chosen: set[str] = set()
    for name in names:
        if name in trained:
            raise ParameterError(
                f"targets names {name!r}, which trainable= trains itself: name it in one of them."
            )
        if name in known:
            if (reason := complaints[name]) is not None:
                raise NotTrainableError(
                    f"targets names {name!r}, which has no place for an adapter: {reason}."
                )
            chosen.add(name)
            continue
        matched = [entry for entry in fitting if fnmatchcase(entry, name)] if _WILD & set(name) else []
        if not matched:
            close = difflib.get_close_matches(name, fitting, n=8) or fitting[:8]
            what = "no weight matches it" if _WILD & set(name) else "the graph has no weight of this name"
            among = f"; it could be, among others, {_quoted(close)}" if close else f". {_NOTHING}"
            raise ParameterError(f"targets={name!r} is not accepted: {what}{among.rstrip('.')}.")
        chosen.update(matched)
    return [name for name in known if name in chosen]


def _output_layer(graph: ir.Graph, weights: Iterable[ir.Value]) -> str | None:
    """Return the weight that every path of gradients to the score leads through, if it is one.

    It is that of the last layer: without it, no other weight reaches the score.
    """
    readers: dict[ir.Node, ir.Value] = {}
    for weight in weights:
        nodes = adapted_nodes(weight)
        readers.update({maker(entry.result): weight for entry in nodes if isinstance(entry, AdaptedNode)})
    upstream = values_upstream(graph, graph.outputs, lambda node, index: node not in readers)
    last = {weight for node, weight in readers.items() if not upstream.isdisjoint(node.outputs)}
    return str(last.pop().name) if len(last) == 1 else None


_NOTHING = (
    "The graph has no weight that an adapter could stand beside: it needs a MatMul, a Gemm or a Conv of one "
    "group with a constant second operand, on the path of gradients to the score."
)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "(none)"
