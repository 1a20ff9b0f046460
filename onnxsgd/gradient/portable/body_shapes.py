"""Shapes inside of loops and branches, as far as they follow from outside.

onnx infers the shapes of a body without those of the states of a Loop, which may change between iterations.
States whose gradient is taken may not: they are stacked over the iterations.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxsgd.graph.nodes import bodies, standard_operator

__all__ = ["shape_loops"]


def shape_loops(graph: ir.Graph) -> bool:
    """Set the shapes of states in the bodies of Loops, and of the results of Loops, in place.

    Returns
    -------
    bool
        Whether a shape was found, from which others may follow.
    """
    found = False
    for node in graph:
        for body in bodies(node):
            if standard_operator(node) == "Loop":
                found |= _shape_states(node, body)
            found |= shape_loops(body)
    return found


def _shape_states(node: ir.Node, body: ir.Graph) -> bool:
    found = False
    states = len(node.inputs) - 2
    for first, inside in zip(node.inputs[2:], body.inputs[2:], strict=True):
        if first is not None and inside.shape is None and first.shape is not None:
            inside.shape, found = first.shape.copy(), True
    for first, after, result in zip(node.inputs[2:], body.outputs[1:], node.outputs[:states], strict=False):
        if first is not None and result.shape is None and after.shape is not None:
            result.shape, found = _common(first.shape, after.shape), True
    for each, stacked in zip(body.outputs[1 + states :], node.outputs[states:], strict=False):
        if stacked.shape is None and each.shape is not None:
            stacked.shape, found = ir.Shape([None, *each.shape]), True
    return found


def _common(first: ir.Shape | None, after: ir.Shape) -> ir.Shape:
    """Return the shape of a state before and after an iteration; sizes that differ are not known."""
    if first is None or len(first) != len(after):
        return after.copy()
    return ir.Shape([a if a == b else None for a, b in zip(first, after, strict=True)])
