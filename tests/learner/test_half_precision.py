"""Graphs in float16 and bfloat16: weights in float32 while training, 16 bits in files."""

import pickle

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, describe_trainable

ELEMENT = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}
NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float": np.float32}
NAMED = {"learning_rate": "constant", "eta0": 0.05, "max_iter": 5, "tol": None, "shuffle": False}
rng = np.random.RandomState(0)
X = rng.randn(150, 4)
Y = np.sin(X[:, 0]) + X[:, 1]
LABEL = (Y > 0).astype(int)


def graph(dtype, body="Y = Gemm(H, V, c)"):
    onx = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({dtype}[N, 4] X) => ({dtype}[N, 1] Y) {{ Z = Gemm(X, W, b)  H = Tanh(Z)  {body} }}""")
    draw = np.random.RandomState(1)
    for name, shape in (("W", (4, 8)), ("b", (8,)), ("V", (8, 1)), ("c", (1,))):
        # numbers of 8 bits: every type holds them
        array = (draw.randn(*shape) * 0.5).astype(ml_dtypes.bfloat16).astype(NUMPY[dtype])
        onx.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for node in (node for node in onx.graph.node if node.op_type == "Constant"):
        value = onnx.numpy_helper.from_array(np.array(node.attribute[0].f, NUMPY[dtype]))
        node.attribute[0].CopyFrom(onnx.helper.make_attribute("value", value))
    return onx


def types_of(onx):
    values = [value.type.tensor_type.elem_type for value in (*onx.graph.input, *onx.graph.output)]
    return {tensor.data_type for tensor in onx.graph.initializer}, set(values)


@pytest.mark.parametrize("settings", [NAMED, {}, {**NAMED, "learning_rate": "auto", "eta0": None}])
@pytest.mark.parametrize("dtype", ELEMENT)
def test_training_is_that_of_the_same_graph_in_float32(dtype, settings):
    """Bit for bit: float16 has steps of 1e-3 of a weight, in which small updates would be lost."""
    half, single = (
        OnnxSGDRegressor(graph(kind), random_state=0, **settings).fit(X, Y) for kind in (dtype, "float")
    )
    for name, array in half.get_weights().items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, single.get_weights()[name])
    np.testing.assert_array_equal(half.predict(X), single.predict(X))


@pytest.mark.parametrize("dtype", ELEMENT)
def test_training_is_that_of_torch(dtype):
    torch = pytest.importorskip("torch")
    onx = graph(dtype)
    start = {t.name: onnx.numpy_helper.to_array(t).astype(np.float32) for t in onx.graph.initializer}
    weights = {name: torch.tensor(array, requires_grad=True) for name, array in start.items()}
    optimizer = torch.optim.SGD(weights.values(), lr=0.05)
    inputs, target = torch.tensor(X, dtype=torch.float32), torch.tensor(Y[:, None], dtype=torch.float32)
    for _ in range(5):
        for first in range(0, len(X), 30):
            rows = slice(first, first + 30)
            hidden = torch.tanh(inputs[rows] @ weights["W"] + weights["b"])
            loss = ((hidden @ weights["V"] + weights["c"] - target[rows]) ** 2).mean() / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ours = OnnxSGDRegressor(onx, penalty=None, batch_size=30, **NAMED).fit(X, Y).get_weights()
    for name, tensor in weights.items():
        np.testing.assert_allclose(ours[name], tensor.detach().numpy(), rtol=0, atol=1e-5)
    # in units in the last place of 16 bits, training moved the weights by thousands
    assert max(np.abs(ours[name] - start[name]).max() for name in start) > 0.05


@pytest.mark.parametrize("dtype", ELEMENT)
def test_files_have_the_types_of_the_given_graph(dtype):
    model = OnnxSGDRegressor(graph(dtype), random_state=0, **NAMED).fit(X, Y)
    onx = model.to_onnx()
    assert types_of(onx) == ({ELEMENT[dtype]}, {ELEMENT[dtype]})
    for tensor in onx.graph.initializer:
        expected = model.get_weights()[tensor.name].astype(NUMPY[dtype])
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor).astype(NUMPY[dtype]), expected)
    if dtype == "float16":
        session = onnxruntime.InferenceSession(onx.SerializeToString(), providers=["CPUExecutionProvider"])
        found = session.run(None, {"X": X.astype(np.float16)})[0].ravel()
        np.testing.assert_allclose(found, model.predict(X), rtol=0, atol=5e-3)
    # a graph that continues from the file
    again = OnnxSGDRegressor(onx, random_state=0, **NAMED).fit(X, Y)
    assert again.loss_curve_[0] < model.loss_curve_[0]


@pytest.mark.parametrize("dtype", ELEMENT)
def test_a_pickle_holds_both(dtype):
    model = OnnxSGDRegressor(graph(dtype), random_state=0, **NAMED).fit(X, Y)
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded.to_onnx() == model.to_onnx()
    for each in (model, loaded):
        each.partial_fit(X, Y)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.get_weights()["W"].dtype == np.float32


@pytest.mark.parametrize("dtype", ELEMENT)
def test_a_new_layer_has_the_type_of_the_graph_in_files(dtype):
    model = OnnxSGDClassifier(graph(dtype), output="H", head="linear", random_state=0).fit(X, LABEL)
    assert model.score(X, LABEL) > 0.9
    assert {array.dtype.name for array in model.get_weights().values()} == {"float32"}
    kinds = {tensor.name: tensor.data_type for tensor in model.to_onnx().graph.initializer}
    assert kinds["W"] == kinds["coef"] == kinds["intercept"] == ELEMENT[dtype]
    output = model.to_onnx().graph.output[1]
    assert (output.name, output.type.tensor_type.elem_type) == ("probabilities", ELEMENT[dtype])


@pytest.mark.parametrize("body", [
    "S = Cast<to = 1>(H)  T = Mul(S, S)  U = Cast<to = 10>(T)  Y = Gemm(U, V, c)",
    "K = Constant<value_float = 2.0>()  T = Mul(H, K)  Y = Gemm(T, V, c)",
    "T = Elu(H)  Y = Gemm(T, V, c)",
])  # fmt: skip
def test_graphs_of_several_types(body):
    """Parts in float32 behind casts, constants, other operators."""
    model = OnnxSGDRegressor(graph("float16", body), random_state=0, **NAMED).fit(X, Y)
    plain = body.replace("float16", "float").replace("to = 10", "to = 1")
    single = OnnxSGDRegressor(graph("float", plain), random_state=0, **NAMED).fit(X, Y)
    np.testing.assert_array_equal(model.predict(X), single.predict(X))
    onx = model.to_onnx()
    assert types_of(onx)[1] == {ELEMENT["float16"]}
    session = onnxruntime.InferenceSession(onx.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"X": X.astype(np.float16)})[0].ravel()
    np.testing.assert_allclose(found, model.predict(X), rtol=0, atol=1e-2)


def test_dtype_names_another_type():
    model = OnnxSGDRegressor(graph("bfloat16"), dtype="float32", random_state=0, **NAMED).fit(X, Y)
    assert types_of(model.to_onnx()) == ({onnx.TensorProto.FLOAT}, {onnx.TensorProto.FLOAT})


def test_numbers_beyond_float16_are_written_as_the_largest():
    model = OnnxSGDRegressor(graph("float16"), random_state=0, **NAMED).fit(X, Y)
    model.set_weights({"c": np.array([-1e6])})
    with pytest.warns(UserWarning, match="'c' exceed 65504.*dtype='float32'") as caught:
        onx = model.to_onnx()
    assert caught[0].filename == __file__
    (tensor,) = (tensor for tensor in onx.graph.initializer if tensor.name == "c")
    assert onnx.numpy_helper.to_array(tensor) == [-65504]
    assert model.get_weights()["c"] == [-1e6]


@pytest.mark.parametrize("dtype", ELEMENT)
def test_before_the_first_fit(dtype):
    model = OnnxSGDRegressor(graph(dtype))
    single = OnnxSGDRegressor(graph("float"))
    np.testing.assert_array_equal(model.predict(X), single.predict(X))
    assert types_of(model.to_onnx()) == ({ELEMENT[dtype]}, {ELEMENT[dtype]})
    assert describe_trainable(graph(dtype)).trained == ["W", "b", "V", "c"]
