"""Forward and backward pass as two graphs: the same numbers as one graph, nothing twice, little saved."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.joint_graph import forward_backward_model
from onnxsgd.gradient.separate_graphs import split

#: Graphs with weights W, V and u, and the tensors to be saved beside inputs and outputs: types and shapes.
CASES = {
    "products": (
        "g (real[N, 4] X) => (real[N, 2] Y) { H = MatMul(X, W) Y = MatMul(H, V) }",
        ["DOUBLE [N,3]"],
    ),
    # of the activation's input only the sign is needed, an eighth of its bytes
    "a mask": (
        "g (real[N, 4] X) => (real[N, 2] Y) { A = MatMul(X, W) H = LeakyRelu(A) Y = MatMul(H, V) }",
        ["BOOL [N,3]", "DOUBLE [N,3]"],
    ),
    # the activation's result is needed for the product: a mask computed from it costs nothing
    "no mask": (
        "g (real[N, 4] X) => (real[N, 2] Y) { A = MatMul(X, W) H = Relu(A) Y = MatMul(H, V) }",
        ["DOUBLE [N,3]"],
    ),
    # the number of averaged elements, not the elements
    "a number": (
        "g (real[N, M] X) => (real Y) { A = Mul(X, u) B = Tanh(A) C = Neg(B) Y = ReduceMean<keepdims=0>(C) }",
        ["DOUBLE [N,M]", "INT64 []"],
    ),
    "an output": ("g (real[N, 4] X) => (real[N, 3] Y) { A = MatMul(X, W) Y = Tanh(A) }", []),
    "two outputs": (
        "g (real[N, 4] X) => (real[N, 3] H, real[N, 2] Y) { H = MatMul(X, W) T = Tanh(H) Y = MatMul(T, V) }",
        ["DOUBLE [N,3]"],
    ),
    "nothing": ("g (real[N, 4] X) => (real[N, 4] Y) { A = Mul(X, u) Y = Add(A, u) }", []),
    # the places of the maxima, and the shape that they are places in
    "places": (
        "g (real[N, 4] X) => (real[N, 2] Y) { Z = MatMul(X, W) Y, I = TopK(Z, two) }",
        ["INT64 [2]", "INT64 [N,2]"],
    ),
    "a branch": (
        """g (real[N, 4] X, bool c) => (real[N, 4] Y) {
            A = Mul(X, u)
            B = If (c) <then_branch = a () => (real[N, 4] P) { P = Tanh(A) },
                        else_branch = b () => (real[N, 4] Q) { Q = Mul(A, X) }>
            Y = Exp(B)
        }""",
        ["DOUBLE [N,4]"],
    ),
}


@pytest.fixture
def model(parse, request):
    proto = parse(CASES[request.param][0], real="double")
    rng = np.random.default_rng(0)
    constants = {"W": rng.normal(size=(4, 3)), "V": rng.normal(size=(3, 2)), "u": np.array([1.5]),
                 "two": np.array([2])}  # fmt: skip
    read = {name for node in proto.graph.node for name in node.input}
    for name, array in constants.items():
        if name in read:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def differentiated(proto):
    weights = [tensor.name for tensor in proto.graph.initializer if tensor.name != "two"]
    both = forward_backward_model(ir.from_proto(proto), weights, ["X"], engine="portable")
    names = [str(value.name) for value in both.graph.outputs]
    gradients = [name for name in names if name.endswith("_grad")]
    outputs = [name for name in names if name not in gradients]
    seeds = [str(value.name) for value in both.graph.inputs if str(value.name).endswith("_grad")]
    return both, outputs, seeds, gradients


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("model", CASES, indirect=True)
def test_two_graphs_compute_the_results_of_one(model, rows, execute):
    both, outputs, seeds, gradients = differentiated(model)
    halves = split(both, outputs, seeds, gradients)
    rng = np.random.default_rng(1)
    feeds = {"X": rng.normal(size=(rows, 4)), "c": np.array(True), **values_of(model)}
    returned = execute(ir.to_proto(halves.forward), feeds)
    feeds |= {name: rng.normal(size=returned[name.removesuffix("_grad")].shape) for name in seeds}
    expected = execute(ir.to_proto(both), feeds)
    found = execute(ir.to_proto(halves.backward), {**feeds, **returned})
    for name in outputs:
        np.testing.assert_array_equal(returned[name], expected[name])
    for name in gradients:
        # an optimizer may fuse one graph in another way than two
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-13, atol=1e-14)


def values_of(proto):
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


@pytest.mark.parametrize("model", CASES, indirect=True)
def test_nothing_is_computed_twice_and_nothing_is_left_out(model):
    both, outputs, seeds, gradients = differentiated(model)
    halves = split(both, outputs, seeds, gradients)
    first, second = (list(part.graph) for part in (halves.forward, halves.backward))
    names = [[str(value.name) for node in part for value in node.outputs] for part in (first, second)]
    assert not set(names[0]) & set(names[1])
    assert sum(node.op_type == "MatMul" for node in first) == sum(
        n.op_type == "MatMul" for n in model.graph.node
    )
    taken = [str(value.name) for value in halves.forward.graph.inputs]
    assert taken == [str(value.name) for value in both.graph.inputs][: len(taken)]
    assert [str(value.name) for value in halves.backward.graph.outputs] == gradients
    assert [str(value.name) for value in halves.backward.graph.inputs][-len(seeds) :] == seeds
    for part in (halves.forward, halves.backward):
        onnx.checker.check_model(ir.to_proto(part), full_check=True)


@pytest.mark.parametrize("model", CASES, indirect=True)
def test_little_is_saved(model, request):
    both, outputs, seeds, gradients = differentiated(model)
    saved = split(both, outputs, seeds, gradients).forward.graph.outputs[len(outputs) :]
    expected = CASES[request.node.callspec.params["model"]][1]
    assert sorted(f"{value.dtype.name} {value.shape}" for value in saved) == expected


def test_initializers_stay_in_order(parse):
    """The bytes of a graph are the key of its session: two splits must give the same."""
    sums = " ".join(f"A{i + 1} = Add(A{i}, C{i})" for i in range(9))
    proto = parse(f"g (real[N, 4] X) => (real[N, 4] Y) {{ A0 = Mul(X, u) {sums} Y = Mul(A9, u) }}")
    names = ["u", *(f"C{i}" for i in range(9))]
    for name in names:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), name))
    both = forward_backward_model(ir.from_proto(proto), ["u"], engine="portable")
    halves = split(both, ["Y"], ["Y_grad"], ["u_grad"])
    assert list(halves.forward.graph.initializers)[-9:] == names[1:]


@pytest.mark.parametrize("model", ["products"], indirect=True)
def test_the_split_graph_is_not_changed(model):
    both, outputs, seeds, gradients = differentiated(model)
    before = ir.to_proto(both).SerializeToString()
    split(both, outputs, seeds, gradients)
    assert ir.to_proto(both).SerializeToString() == before


def test_a_tensor_of_unknown_type_is_refused_with_the_remedy(parse):
    # no operator determines the type of F, which is read by the backward pass
    proto = parse("""g (float[N, 4] X, float[N, 4] s) => (float[N, 4] Y, float[N, 4] G) {
        F = my.domain.Unknown(X)
        Y = my.domain.Known(F)
        G = my.domain.Gradient(F, s)
    }""")
    with pytest.raises(NotTrainableError, match="type of the tensor 'F'.*unknown.*value_info"):
        split(ir.from_proto(proto), ["Y"], ["s"], ["G"])
