"""Gradients of If, Scan and Loop.

The gradient of a branch is a branch: the forward nodes are written once more in the gradient's own subgraph,
followed by the sweep back through them. The gradient of a loop is a Scan that runs backwards over the states
before each iteration, which the forward loop then returns too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import onnx_ir as ir

from onnxsgd.gradient.portable.rules.loop_gather import Picks, picked_tables
from onnxsgd.gradient.portable.rules.scan import scan
from onnxsgd.gradient.portable.writing.broadcasting import expand_to, zeros_like
from onnxsgd.gradient.portable.writing.call import Call
from onnxsgd.gradient.portable.writing.emitter import Emitter
from onnxsgd.gradient.portable.writing.known_shapes import UNNAMED, read_shape
from onnxsgd.gradient.portable.writing.tensor import Tensor, op
from onnxsgd.graph.model import nodes_within
from onnxsgd.graph.writing import new_node

__all__ = ["CONTROL"]

Sweep = Callable[
    [Emitter, Sequence[ir.Node], Iterable[ir.Value], Iterable[tuple[ir.Value, Tensor]]],
    dict[ir.Value, Tensor],
]

#: Maps a node with subgraphs, the values that it reads and that need gradients, and the sweep to use inside
#: to the gradients.
ControlRule = Callable[[Call, list[ir.Value], Sweep], list[tuple[ir.Value, Tensor]]]


def _branches(n: Call, wanted: list[ir.Value], sweep: Sweep) -> list[tuple[ir.Value, Tensor]]:
    """Return an If on the same condition whose branches are the gradients of the branches."""
    seeds = [n.gradient(index) for index in range(len(n.node.outputs))]
    graphs = {}
    for name in ("then_branch", "else_branch"):
        body = n.emitter.child()
        outputs = body.inline(n.node.attributes[name].as_graph(), [])
        results = _swept(body, sweep, wanted, outputs, seeds)
        graphs[name] = body.graph([], results)
    kinds = [(tensor.dtype, tensor.dims) for tensor in map(n.emitter.tensor, wanted)]
    return list(zip(wanted, n.emitter.append("If", [n.x.value], graphs, kinds), strict=True))


def _swept(
    body: Emitter,
    sweep: Sweep,
    sources: list[ir.Value],
    outputs: Sequence[ir.Value],
    seeds: Sequence[Tensor | None],
) -> list[Tensor]:
    """Return the gradients of the forward nodes in `body` with respect to `sources`, or zeros."""
    given = [(y, body.borrow(seed)) for y, seed in zip(outputs, seeds, strict=True) if seed is not None]
    wanted = set(sources)
    # The backward path ends at a source.
    nodes = [node for node in body.nodes if wanted.isdisjoint(node.outputs)]
    found = sweep(body, nodes, sources, given)
    tensors = [body.tensor(value) for value in sources]
    return [expand_to(found[x.value], x) if x.value in found else zeros_like(x) for x in tensors]


@dataclass
class _LoopParts:
    """The iterations of a loop: the inputs of its body, and the places of its states."""

    graph: ir.Graph  # the body
    elements: list[Tensor]  # each input of the body, stacked over the iterations
    states: int  # the number of states
    first: int  # the place of the first state among the inputs of the node and of the body
    skipped: int  # the number of outputs of the body before the states


def _scan(n: Call, wanted: list[ir.Value], sweep: Sweep) -> list[tuple[ir.Value, Tensor]]:
    """Return the gradients of a Scan over the first axis, forwards."""
    graph, inputs = n.node.attributes["body"].as_graph(), [t for t in n.inputs if t is not None]
    states = len(inputs) - n.attribute("num_scan_inputs")
    elements = [*_saved(n, graph, graph.inputs[:states]), *inputs[states:]]
    return _backwards(n, wanted, sweep, _LoopParts(graph, elements, states, 0, 0))


def _loop(n: Call, wanted: list[ir.Value], sweep: Sweep) -> list[tuple[ir.Value, Tensor]]:
    """Return the gradients of a Loop: those of a Scan over its iterations.

    No runtime scans an empty sequence: a branch skips the Scan where the trip count may be 0.
    """
    graph = n.node.attributes["body"].as_graph()
    elements = _saved(n, graph, graph.inputs)
    loop = _LoopParts(graph, elements, len(graph.inputs) - 2, 2, 1)
    if _iterates(n):
        return _backwards(n, wanted, sweep, loop)

    def made(inner: Call) -> list[tuple[ir.Value, Tensor]]:
        there = [inner.emitter.borrow(tensor) for tensor in elements]
        return _backwards(inner, wanted, sweep, replace(loop, elements=there))

    branches = {"then_branch": _branch(n, wanted, made), "else_branch": _branch(n, wanted, _passed)}
    kinds = [(tensor.dtype, tensor.dims) for tensor in map(n.emitter.tensor, wanted)]
    taken = op.Size(elements[0]).cast(ir.DataType.BOOL)
    return list(zip(wanted, n.emitter.append("If", [taken.value], branches, kinds), strict=True))


def _iterates(n: Call) -> bool:
    """Return whether a Loop runs at least one iteration, by its constant inputs."""
    limits, conditions = n.constant(0), n.constant(1)
    has_room = n.optional(0) is None or (limits is not None and bool((limits >= 1).all()))
    return has_room and (n.optional(1) is None or (conditions is not None and bool(conditions.all())))


def _branch(
    n: Call, wanted: list[ir.Value], find: Callable[[Call], list[tuple[ir.Value, Tensor]]]
) -> ir.Graph:
    """Return a branch of an If with the gradients that `find` returns, or zeros."""
    body = n.emitter.child()
    reached = [n.gradient(index) for index in range(len(n.node.outputs))]
    found = find(Call(body, n.node, [None if g is None else body.borrow(g) for g in reached]))
    results = []
    for x in map(body.tensor, wanted):
        parts = [gradient for value, gradient in found if value is x.value]
        results.append(expand_to(reduce(add, parts), x) if parts else zeros_like(x))
    return body.graph([], results)


def _passed(n: Call) -> list[tuple[ir.Value, Tensor]]:
    """Return the gradients of a Loop without iterations: those of its initial states."""
    reached = [(value, n.gradient(k)) for k, value in enumerate(n.node.inputs[2:])]
    return [(value, gradient) for value, gradient in reached if value is not None and gradient is not None]


def _saved(n: Call, graph: ir.Graph, inputs: Sequence[ir.Value]) -> list[Tensor]:
    """Make a loop also return the `inputs` of its body, stacked over the iterations."""
    start = len(n.node.outputs)
    n.node.resize_outputs(start + len(inputs))
    found = []
    for value, output in zip(inputs, n.node.outputs[start:], strict=True):
        copy = ir.Value(name=n.emitter.new_name(), type=value.type, shape=value.shape)
        graph.append(new_node("Identity", [value], [copy], name=copy.name))
        graph.outputs.append(copy)
        output.name, output.type = n.emitter.new_name(), value.type
        dims = read_shape(value.shape, value.name or "")
        found.append(n.emitter.tensor(output, None if dims is None else (f"{UNNAMED}{output.name}", *dims)))
    return found


def _backwards(
    n: Call, wanted: list[ir.Value], sweep: Sweep, loop: _LoopParts
) -> list[tuple[ir.Value, Tensor]]:
    """Run a Scan over the iterations, from the last to the first, that sweeps back through each.

    It carries the gradients of the states, and sums those of captured values; the gradients of the elements
    of sequences and of the rows picked from tables are stacked.
    """
    captured = [value for value in wanted if value not in n.node.inputs or _is_read(loop.graph, value)]
    picks = _picks(n, loop.graph, captured)
    captured = [value for value in captured if value not in picks.tables]
    real = [k for k in range(loop.states) if _is_floating(loop.graph.inputs[loop.first + k])]
    stacked = [
        k for k in range(loop.first + loop.states, len(loop.graph.inputs)) if n.node.inputs[k] in wanted
    ]
    count = len(loop.elements)
    reached = [n.gradient(k) for k in range(len(loop.graph.outputs) - loop.skipped)]
    collected = [k for k in range(loop.states, len(reached)) if reached[k] is not None]

    def step(body: Emitter, sums: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        outputs = body.inline(loop.graph, [tensor.value for tensor in now[:count]])[loop.skipped :]
        seeds: list[Tensor | None] = [None] * len(outputs)
        for k, seed in (*zip(real, sums, strict=False), *zip(collected, now[count:], strict=True)):
            seeds[k] = seed
        places = [now[loop.first + k].value for k in real] + [now[k].value for k in stacked]
        picking = picks.nodes(body.nodes)
        rows = [node.outputs[0] for node in picking]
        found = _swept(body, sweep, [*places, *captured, *rows], outputs, seeds)
        states, parts, added, picked = _cut(found, len(real), len(stacked), len(captured))
        after = [*states, *(a + b for a, b in zip(sums[len(real) :], added, strict=True))]
        return after, [*parts, *picks.stackable(picking, picked)]

    last = [reached[k] or zeros_like(n.emitter.tensor(n.node.outputs[k])) for k in real]
    sums = [*last, *(zeros_like(n.emitter.tensor(value)) for value in captured)]
    sequences = [*loop.elements, *(g for g in (reached[k] for k in collected) if g is not None)]
    totals, parts = scan(step, sums, sequences, backwards=True)
    places = [n.node.inputs[loop.first + k] for k in real] + captured
    found = [*zip(places, totals, strict=True)]
    found += [(n.node.inputs[k], t) for k, t in zip(stacked, parts, strict=False)]
    found += picks.gradients(picks.nodes(loop.graph), parts[len(stacked) :])
    return [(value, gradient) for value, gradient in found if value in wanted]


def _picks(n: Call, graph: ir.Graph, captured: list[ir.Value]) -> Picks:
    """Return the picks from tables in the body of a loop, which then also returns their numbers."""
    tables = picked_tables(n, graph, captured)
    return Picks.of(tables, _saved(n, graph, Picks.counted(graph, tables, n.emitter)))


def _cut(tensors: list[Tensor], *sizes: int) -> list[list[Tensor]]:
    """Return consecutive parts of `tensors`, and the rest."""
    ends = list(itertools.accumulate(sizes))
    return [tensors[a:b] for a, b in zip([0, *ends], [*ends, len(tensors)], strict=True)]


def _is_floating(value: ir.Value) -> bool:
    """Return whether a state has a gradient; a state in bfloat16 has one, too."""
    return value.dtype is not None and value.dtype.is_floating_point()


def _is_read(graph: ir.Graph, value: ir.Value) -> bool:
    """Return whether a graph reads a value from outside."""
    return value in graph.outputs or any(value in node.inputs for node in nodes_within(graph))


CONTROL: dict[str, ControlRule] = {"If": _branches, "Loop": _loop, "Scan": _scan}
