"""The border between forward and backward pass: checked against every other border of small graphs."""

from itertools import combinations

import numpy as np
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsgd.gradient.saved_tensors import forward_nodes


class Draft:
    """A graph drawn at random: a forward pass, a backward pass, and nodes that may run in either."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.input, self.weight, self.seed = (self.value(name) for name in ("X", "W", "Y_grad"))
        self.nodes = []
        forward = [self.add([self.input, self.weight]) for _ in range(self.rng.integers(1, 5))]
        forward.append(self.add(forward))
        self.outputs = [forward[-1]]
        either = []
        for _ in range(self.rng.integers(0, 8)):
            either.append(self.add([self.input, *forward, *either]))
        late = [self.seed]
        for _ in range(self.rng.integers(1, 5)):
            late.append(self.add([*forward, *either, *either, *late], also=late[-1]))
        self.gradients = [late[-1]]
        ends = [self.input, self.weight, self.seed], [*self.outputs, *self.gradients]
        self.graph = ir.Graph(*ends, nodes=self.nodes, opset_imports={"": 18})

    def value(self, name):
        shape = ir.Shape([int(self.rng.integers(1, 20))])
        dtype = (ir.DataType.FLOAT, ir.DataType.BOOL, ir.DataType.INT64)[self.rng.integers(3)]
        return ir.Value(name=name, shape=shape, type=ir.TensorType(dtype))

    def add(self, operands, also=None):
        count = min(len(operands), int(self.rng.integers(1, 4)))
        read = [operands[index] for index in self.rng.choice(len(operands), count, replace=False)]
        result = self.value(f"t{len(self.nodes)}")
        self.nodes.append(ir.Node("", "Any", [*read, *([] if also is None else [also])], outputs=[result]))
        return result

    def ancestors(self, values):
        made = {value.producer() for value in values} - {None}
        return made.union(*(self.ancestors(list(node.inputs)) for node in made))

    def cost(self, forward):
        """Return the number of saved bytes; None if a node of the forward pass reads the backward pass."""
        needed = self.ancestors(self.gradients) - forward
        if any(value.producer() not in forward | {None} for node in forward for value in node.inputs):
            return None
        read = {v for node in needed for v in node.inputs if v.producer() in forward} - set(self.outputs)
        return sum(value.dtype.itemsize * value.shape[0] for value in read)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_no_border_saves_fewer_bytes(seed):
    draft = Draft(seed)
    found = forward_nodes(draft.graph, draft.outputs, [draft.seed], draft.gradients)
    first = draft.ancestors(draft.outputs)
    waiting = {node for node in draft.nodes if draft.seed in node.inputs}
    while more := {n for n in draft.nodes if {v.producer() for v in n.inputs} & waiting} - waiting:
        waiting |= more
    assert first <= found
    assert not found & waiting
    free = [node for node in draft.nodes if node not in first and node not in waiting]
    borders = (first.union(chosen) for n in range(len(free) + 1) for chosen in combinations(free, n))
    costs = [cost for border in borders if (cost := draft.cost(border)) is not None]
    assert draft.cost(found) == min(costs)


def chain(*shapes):
    """Return the values of X -> A -> M -> X_grad, where Y = A and M is computed from A alone."""
    x, seed = (
        ir.Value(name=name, shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.FLOAT)) for name in "XS"
    )
    a, y, m, g = (
        ir.Value(name=name, shape=None if shape is None else ir.Shape(shape), type=ir.TensorType(kind))
        for name, shape, kind in zip(
            "AYMG", shapes, [ir.DataType.FLOAT] * 2 + [ir.DataType.BOOL] * 2, strict=True
        )
    )
    nodes = [
        ir.Node("", "Any", [read, *more], outputs=[made])
        for read, made, more in ((x, a, []), (a, y, []), (a, m, []), (m, g, [seed]))
    ]
    graph = ir.Graph([x, seed], [y, g], nodes=nodes, opset_imports={"": 18})
    return nodes, forward_nodes(graph, [y], [seed], [g])


def test_sizes_that_are_not_known_count_the_same():
    nodes, found = chain(["N", 3], [1], ["N", 3], [1])
    assert nodes[2] in found  # booleans are a quarter of the numbers they are computed from
    nodes, found = chain(["N"], [1], ["N", 100], [1])
    assert nodes[2] not in found
    nodes, found = chain(None, [1], None, [1])
    assert nodes[2] in found


def test_sizes_of_gigabytes_can_be_counted():
    nodes, found = chain([2**33], [1], [2**32], [1])
    assert nodes[2] in found
    nodes, found = chain([2**32], [1], [2**33 * 3], [1])
    assert nodes[2] not in found


def test_an_output_is_saved_anyway():
    x, seed, y, m, g = (
        ir.Value(name=name, shape=ir.Shape([size]), type=ir.TensorType(ir.DataType.FLOAT))
        for name, size in zip("XSYMG", (5, 5, 5, 1, 5), strict=True)
    )
    nodes = [ir.Node("", "Any", r, outputs=[w]) for r, w in (([x], y), ([y], m), ([m, seed], g))]
    graph = ir.Graph([x, seed], [y, g], nodes=nodes, opset_imports={"": 18})
    assert forward_nodes(graph, [y], [seed], [g]) == {nodes[0]}
