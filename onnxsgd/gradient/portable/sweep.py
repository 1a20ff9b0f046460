"""The backward sweep: from the last node to the first, gradients of outputs become gradients of inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import NotTrainableError, OnnxSGDError
from onnxsgd.gradient.portable.rules.control import CONTROL
from onnxsgd.gradient.portable.rules.gelu_nodes import find_gelus, gelu_gradient
from onnxsgd.gradient.portable.rules.quantization import READ_QUANTIZED, is_quantized
from onnxsgd.gradient.portable.rules.split_reads import find_partitions
from onnxsgd.gradient.portable.rules.table import (
    NO_GRADIENT,
    RULES,
    reason_against,
)
from onnxsgd.gradient.portable.writing.call import Call, Rule, place
from onnxsgd.gradient.portable.writing.emitter import Emitter
from onnxsgd.gradient.portable.writing.tensor import Tensor
from onnxsgd.graph.nodes import QUANTIZERS, qualified_operator, standard_operator
from onnxsgd.graph.operators import TYPE_ONLY, Fact, having

__all__ = ["dependents", "sweep"]

_COMMUTATIVE = having(Fact.COMMUTATIVE)


def sweep(
    emitter: Emitter,
    nodes: Sequence[ir.Node],
    sources: Iterable[ir.Value],
    seeds: Iterable[tuple[ir.Value, Tensor]],
) -> dict[ir.Value, Tensor]:
    """Differentiate the nodes of a graph, from the last to the first.

    Parameters
    ----------
    emitter : Emitter
        Receives the nodes that compute gradients.
    nodes : sequence of ir.Node
        The forward graph, sorted.
    sources : iterable of ir.Value
        Values to differentiate with respect to; only the gradients that they need are computed.
    seeds : iterable of (ir.Value, Tensor)
        Values, and the gradients with respect to them from outside.

    Returns
    -------
    dict
        The gradient that reached each value.
    """
    active = dependents(nodes, sources)
    gradients: dict[ir.Value, Tensor] = {}
    for target, seed in seeds:
        _accumulate(gradients, target, seed)
    partitions, gelus = find_partitions(nodes, emitter), find_gelus(nodes, emitter)
    for node in reversed(nodes):
        partition = partitions.get(node)
        if partition is not None:
            reached_it = any(part.outputs[0] in gradients for part in partition.nodes)
            if node is partition.first and partition.whole in active and reached_it:
                _accumulate(gradients, partition.whole, partition.gradient(emitter, gradients))
        elif node in gelus and gelus[node].x in active:
            if node.outputs[0] in gradients:
                _accumulate(gradients, gelus[node].x, gelu_gradient(gelus[node], emitter, gradients))
        elif any(value in active and value in gradients for value in node.outputs):
            reached = [gradients.get(value) for value in node.outputs]
            for value, gradient in _apply(emitter, node, reached, active):
                _accumulate(gradients, value, gradient)
    return gradients


def dependents(nodes: Iterable[ir.Node], sources: Iterable[ir.Value]) -> set[ir.Value]:
    """Return the values that depend on `sources` in a differentiable way."""
    found = set(sources)
    for node in nodes:
        if standard_operator(node) in NO_GRADIENT:
            continue
        read = [value for value in _operands(node) if value in found]
        if read:
            # Quantized numbers represent real ones: their path is followed until it ends, or is refused, as
            # operators of other domains are.
            follows = node.op_type in QUANTIZERS or any(is_quantized(value) for value in read)
            # beside its levels, scale and zero point of a dynamic quantization count as constants
            is_levels = node.op_type in QUANTIZERS and node.outputs[0].uses()
            outputs = node.outputs[:1] if is_levels else node.outputs
            found.update(v for v in outputs if follows or v.dtype is None or v.dtype.is_floating_point())
    return found


def _operands(node: ir.Node) -> Iterable[ir.Value | None]:
    """Yield the values that a node reads, also in its subgraphs."""
    yield from node.inputs[: TYPE_ONLY.get(node.op_type)]
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield from attribute.value.outputs
            for inner in attribute.value:
                yield from _operands(inner)


def _apply(
    emitter: Emitter, node: ir.Node, reached: list[Tensor | None], active: set[ir.Value]
) -> list[tuple[ir.Value, Tensor]]:
    """Return the gradients of one node with respect to the active values that it reads."""
    against = reason_against(node)
    if against is not None:
        raise NotTrainableError(f"{place(node)}: {against}")
    if node.op_type in CONTROL:
        read = dict.fromkeys(value for value in _operands(node) if value is not None and value in active)
        return CONTROL[node.op_type](Call(emitter, node, reached), list(read), sweep)
    quantized = [value for value in node.inputs if value in active and is_quantized(value)]
    if quantized and node.op_type not in READ_QUANTIZED:
        raise NotTrainableError(
            f"{place(node)} reads the quantized tensor {quantized[0].name!r}, whose gradient passes only "
            f"{', '.join(sorted(READ_QUANTIZED))}"
        )
    operands = node.inputs[: TYPE_ONLY.get(node.op_type)]
    wanted = [(index, value) for index, value in enumerate(operands) if value is not None and value in active]
    if wanted and node.op_type in _COMMUTATIVE and len(set(operands)) == 1:
        # x * x: all inputs have the same gradient, the first one's times their number.
        reached, wanted = [None if g is None else g * len(wanted) for g in reached], wanted[:1]
    call = Call(emitter, node, reached)
    try:
        found = [
            (value, _rule(call, index)(call).known_as(emitter.tensor(value).dims)) for index, value in wanted
        ]
    except OnnxSGDError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # no checker compares all ranks and attributes of a node with those that its operator accepts
        raise NotTrainableError(
            f"{place(node)}: the gradient rule cannot read its operands and attributes ({reason(error)})"
        ) from error
    call.check_all_read()
    return found


def _rule(call: Call, index: int) -> Rule:
    """Return the rule for one input of a node."""
    rules = RULES[qualified_operator(call.node)]
    if callable(rules):
        return lambda n: rules(n, index)
    rule = rules[index] if index < len(rules) else None
    if rule is None:
        name = call.input(index).value.name
        raise call.refuse(f"has no gradient with respect to its input {index} ({name!r})")
    return rule


def _accumulate(gradients: dict[ir.Value, Tensor], value: ir.Value, gradient: Tensor) -> None:
    gradients[value] = gradients[value] + gradient if value in gradients else gradient
