"""Folding: few blocks, in an order without circles, by scopes, repetitions and narrow places."""

import itertools
import random

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsgd.drawing.folding import fold, scope


def chain(operators, names=None):
    """Return nodes of which each reads the one before."""
    value, nodes = ir.Value(name="x"), []
    for number, operator in enumerate(operators):
        name = names[number] if names else None
        node = ir.node(operator, [value], name=name)
        nodes.append(node)
        value = node.outputs[0]
    return nodes


def sizes(blocks):
    return [len(block.nodes) for block in blocks]


def whole(nodes):
    return "part"


def test_small_graphs_are_not_folded():
    nodes = chain(["Relu"] * 10)
    assert sizes(fold(nodes, whole, 10)) == [1] * 10


def test_the_innermost_scopes_that_suffice_are_taken():
    names = [f"/net/layer{i}/{part}/op" for i in range(3) for part in ("a", "a", "b", "b")]
    nodes = chain(["Relu"] * 12, names)
    inner = fold(nodes, whole, 6)
    assert [block.name for block in inner][:2] == ["net/layer0/a", "net/layer0/b"]
    outer = fold(nodes, whole, 5)
    assert [block.name for block in outer] == ["net/layer0", "net/layer1", "net/layer2"]
    assert [block.name for block in fold(nodes, whole, 2)] == ["net"]


def test_scopes_in_metadata():
    node = chain(["Relu"])[0]
    node.metadata_props["pkg.torch.onnx.name_scopes"] = "['', 'layers.0', 'layers.0.conv', 'relu']"
    assert scope(node) == ("layers", "0", "conv")
    for broken in ("[", "['a']", "7", "[" * 500, "[[]]"):
        node.metadata_props["pkg.torch.onnx.name_scopes"] = broken
        assert scope(node) == ()


def test_repetitions_are_a_block_each_and_then_one():
    nodes = chain(["Cast", *["MatMul", "Add", "Relu", "Mul"] * 6, "Softmax"])
    each = fold(nodes, whole, 8)
    assert sizes(each) == [1, *[4] * 6, 1]
    assert each[1].name == "block 1 of 6"
    once = fold(nodes, whole, 7)
    assert sizes(once) == [1, 24, 1]
    assert once[1].name == "6 times a block"


def test_the_longest_repetition_wins_over_the_first():
    nodes = chain([*["Cast", "Neg", "Exp"] * 2, *["MatMul", "Add", "Relu"] * 20])
    assert fold(nodes, whole, 22)[-1].name == "block 20 of 20"


def test_borders_without_repetitions_are_narrow_places():
    """Two diamonds of different operators: the border that one tensor passes stays."""
    x = ir.Value(name="x")
    nodes = []

    def diamond(value, operators):
        arms = [ir.node(operator, [value]) for operator in operators]
        last = ir.node("Sum", [arm.outputs[0] for arm in arms])
        nodes.extend([*arms, last])
        return last.outputs[0]

    diamond(diamond(x, ["Sin", "Cos", "Tan", "Exp"]), ["Abs", "Neg", "Erf", "Log"])
    assert sizes(fold(nodes, whole, 4)) == [5, 5]


def test_parts_are_not_mixed():
    nodes = chain(["Relu"] * 30)
    part_of = {node: "a" if place < 7 else "b" for place, node in enumerate(nodes)}.get
    for limit in (2, 3, 5, 10):
        blocks = fold(nodes, part_of, limit)
        assert len(blocks) <= limit
        assert all(len({part_of(node) for node in block.nodes}) == 1 for block in blocks)


@settings(max_examples=60, deadline=None)
@given(
    reads=st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=3), min_size=1, max_size=90),
    limit=st.integers(4, 40),
    seed=st.randoms(use_true_random=False),
)
def test_blocks_keep_all_nodes_in_order_and_make_no_circle(reads, limit, seed):
    values, nodes = [ir.Value(name="x")], []
    for number, places in enumerate(reads):
        inputs = [values[place % len(values)] for place in places]
        name = f"/s{seed.randrange(3)}/t{seed.randrange(2)}/n{number}" if seed.random() < 0.7 else ""
        node = ir.node(seed.choice(["Sum", "Max"]), inputs, name=name)
        nodes.append(node)
        values.append(node.outputs[0])
    blocks = fold(nodes, whole, limit)
    assert len(blocks) <= limit
    assert list(itertools.chain.from_iterable(block.nodes for block in blocks)) == nodes
    place = {node: number for number, block in enumerate(blocks) for node in block.nodes}
    for node in nodes:
        for value in node.inputs:
            assert value.producer() is None or place[value.producer()] <= place[node]


@pytest.mark.parametrize("operators", ["ab", "abcdefghijklmnop"])
def test_large_graphs_are_folded_in_bounded_steps(operators):
    """Thousands of short repetitions by chance neither exhaust the stack nor take minutes."""
    rng = random.Random(0)
    nodes = chain([rng.choice(operators) for _ in range(6000)])
    assert len(fold(nodes, whole, 30)) <= 30
