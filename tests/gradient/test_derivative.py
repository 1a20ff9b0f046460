"""onnx_derivative: inputs and outputs for each option, numbers, refusals."""

from itertools import pairwise

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from onnxsgd.exceptions import GraphError, NotTrainableError, ParameterError, ParameterTypeError
from onnxsgd.gradient.derivative import DerivativeOptions, onnx_derivative
from onnxsgd.gradient.engines import differentiable, resolve_engine
from onnxsgd.gradient.joint_graph import forward_backward_model

#: Every legal combination.
LEGAL = (
    DerivativeOptions.Zero,
    DerivativeOptions.KeepYieldOp,
    DerivativeOptions.KeepOutputs,
    DerivativeOptions.KeepOutputs | DerivativeOptions.FillGrad,
    DerivativeOptions.Loss,
)

NETWORK = """g (real[N, 4] X) => (real[N, 3] P, int64[N] L, real[N, 5] H) {
    A = MatMul(X, W)
    B = Add(A, b)
    S = Mul(B, scale)
    H = Relu(S)
    D = Gemm(H, V, c)
    P = Softmax(D)
    L = ArgMax<axis=1, keepdims=0>(D)
}"""
SHAPES = {"W": (4, 5), "b": (5,), "V": (5, 3), "c": (3,), "scale": (5,)}


@pytest.fixture
def network(parse):
    """Return a function that makes a network with one hidden layer, three outputs, one of them integers."""

    def make(opset=18, real="float", ir_version=9):
        rng = np.random.default_rng(0)
        model = parse(NETWORK, opset, real, ir_version)
        dtype = {"float": np.float32, "double": np.float64}[real]
        for name, shape in SHAPES.items():
            model.graph.initializer.append(
                numpy_helper.from_array(rng.normal(size=shape).astype(dtype), name)
            )
        return model

    return make


def values_of(model, dtype=np.float64):
    return {tensor.name: numpy_helper.to_array(tensor).astype(dtype) for tensor in model.graph.initializer}


def with_inputs(model, names):
    """Return a copy of `model` in which the initializers `names` are inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in model.graph.initializer:
        if tensor.name in names:
            copy.graph.initializer.remove(tensor)
            copy.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return copy


def names(values):
    return [value.name for value in values]


def features(n_rows=6, dtype=np.float64):
    return np.random.default_rng(5).normal(size=(n_rows, 4)).astype(dtype)


def seeds_for(n_rows=6):
    rng = np.random.default_rng(7)
    return rng.normal(size=(n_rows, 3)), rng.normal(size=(n_rows, 5))


def expected_gradients(network, differences, wrt, opset=18, seeds=None):
    exact = with_inputs(network(opset, "double"), SHAPES)
    feeds = {"X": features(), **values_of(network(opset, "double"))}
    p, h = seeds if seeds is not None else seeds_for()
    return dict(zip(wrt, differences(exact, feeds, [p, None, h], wrt), strict=True))


ALL = ["X", "W", "b", "V", "c", "scale"]


@pytest.mark.parametrize("opset", range(13, 22))
def test_gradients_of_several_outputs_equal_central_differences(opset, network, differences, execute):
    model = network(opset)
    gradient = onnx_derivative(model)
    assert names(gradient.graph.input) == ["X", "W", "b", "V", "c", "scale", "P_grad", "H_grad"]
    assert names(gradient.graph.output) == [f"{name}_grad" for name in ALL]
    assert [imported.version for imported in gradient.opset_import if imported.domain == ""] == [opset]
    p, h = (seed.astype(np.float32) for seed in seeds_for())
    feeds = {"X": features(dtype=np.float32), **values_of(model, np.float32), "P_grad": p, "H_grad": h}
    found = execute(gradient, feeds)
    for name, expected in expected_gradients(network, differences, ALL, opset).items():
        np.testing.assert_allclose(found[f"{name}_grad"], expected, rtol=1e-4, atol=1e-4)


def test_float64_has_its_precision(network, differences, execute):
    model = network(real="double")
    p, h = seeds_for()
    found = execute(onnx_derivative(model), {"X": features(), **values_of(model), "P_grad": p, "H_grad": h})
    for name, expected in expected_gradients(network, differences, ALL).items():
        # the error of central differences
        np.testing.assert_allclose(found[f"{name}_grad"], expected, rtol=1e-7, atol=1e-8)


def test_keep_outputs_returns_them_after_the_gradients(network, evaluate, execute):
    model = network()
    gradient = onnx_derivative(model, options=DerivativeOptions.KeepOutputs)
    assert names(gradient.graph.input) == ["X", "W", "b", "V", "c", "scale", "P_grad", "H_grad"]
    assert names(gradient.graph.output) == [*(f"{name}_grad" for name in ALL), "P", "L", "H"]
    p, h = (seed.astype(np.float32) for seed in seeds_for())
    x = features(dtype=np.float32)
    found = execute(gradient, {"X": x, **values_of(model, np.float32), "P_grad": p, "H_grad": h})
    for name, expected in zip(("P", "L", "H"), evaluate(model, {"X": x}), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)


def test_fill_grad_takes_ones(network, differences, execute):
    model = network()
    gradient = onnx_derivative(model, options=DerivativeOptions.KeepOutputs | DerivativeOptions.FillGrad)
    assert names(gradient.graph.input) == ["X", "W", "b", "V", "c", "scale"]
    found = execute(gradient, {"X": features(dtype=np.float32), **values_of(model, np.float32)})
    ones = np.ones((6, 3)), np.ones((6, 5))
    for name, expected in expected_gradients(network, differences, ALL, seeds=ones).items():
        np.testing.assert_allclose(found[f"{name}_grad"], expected, rtol=1e-4, atol=1e-4)


def test_keep_yield_op_leaves_one_that_takes_all_outputs(network):
    gradient = onnx_derivative(network(), options=DerivativeOptions.KeepYieldOp)
    assert names(gradient.graph.input) == ["X", "W", "b", "V", "c", "scale"]
    assert names(gradient.graph.output) == [f"{name}_grad" for name in ALL]
    (node,) = [node for node in gradient.graph.node if node.op_type == "YieldOp"]
    assert (node.domain, list(node.input), list(node.output)) == (
        "com.microsoft",
        ["P", "L", "H"],
        ["P_grad", "H_grad"],
    )
    attributes = {attribute.name: list(attribute.ints) for attribute in node.attribute}
    assert attributes == {"full_shape_outputs": [0, 1, 2], "non_differentiable_outputs": [1]}


LOSS = """g (real[N, 4] X, real[N, 1] y, real[N] w) => (real[N, 1] Y, real[1, 1] loss)
  <real[4, 1] W = {0.5, -1, 2, 0.25}, real[1] b = {0.1}> {
    A = MatMul(X, W)
    Y = Add(A, b)
    R = Sub(Y, y)
    Q = Mul(R, R)
    s = Constant<value = int64[2] {-1, 1}>()
    t = Reshape(w, s)
    T = Mul(Q, t)
    loss = ReduceSum(T)
}"""


def loss_case():
    rng = np.random.default_rng(3)
    feeds = {
        "X": rng.normal(size=(6, 4)),
        "y": rng.normal(size=(6, 1)),
        "w": rng.uniform(1, 2, size=6),
        "W": np.array([[0.5], [-1], [2], [0.25]]),
        "b": np.array([0.1]),
    }
    residual = feeds["X"] @ feeds["W"] + feeds["b"] - feeds["y"]
    weight = feeds["w"][:, None]
    expected = {
        "loss": [[(weight * residual**2).sum()]],
        "W_grad": 2 * feeds["X"].T @ (weight * residual),
        "b_grad": 2 * (weight * residual).sum(axis=0),
        "X_grad": 2 * weight * residual @ feeds["W"].T,
        "w_grad": residual[:, 0] ** 2,
        "y_grad": -2 * weight * residual,
    }
    return feeds, expected


def loss_derivative(parse, real="float", **options):
    given = {"label": "y", "loss": "loss", **options}
    return onnx_derivative(parse(LOSS, real=real), options=DerivativeOptions.Loss, **given)


@pytest.mark.parametrize(
    ("options", "outputs"),
    [
        ({}, ["loss", "W_grad", "b_grad", "X_grad", "w_grad"]),
        ({"label": ["y", "w"]}, ["loss", "W_grad", "b_grad", "X_grad"]),
        ({"inputs": ["b", "X"]}, ["loss", "b_grad", "X_grad"]),
        ({"inputs": ["W"]}, ["loss", "W_grad"]),
        ({"weights": ["b"]}, ["loss", "b_grad", "X_grad", "w_grad"]),
        ({"weights": [], "inputs": ["X"]}, ["loss", "X_grad"]),
        ({"weights": ["b"], "inputs": ["X", "W"]}, ["loss", "b_grad", "W_grad", "X_grad"]),
    ],
)
@pytest.mark.parametrize("real", ["float", "double"])
def test_a_loss_and_its_gradients(options, outputs, real, parse, execute):
    gradient = loss_derivative(parse, real, **options)
    assert names(gradient.graph.output) == outputs
    trained = [name.removesuffix("_grad") for name in outputs if name in ("W_grad", "b_grad")]
    assert names(gradient.graph.input) == ["X", "y", "w", *trained]
    assert set(names(gradient.graph.initializer)) >= {"W", "b"} - set(trained)
    dtype, tolerance = {"float": (np.float32, 1e-5), "double": (np.float64, 1e-13)}[real]
    feeds, expected = loss_case()
    found = execute(gradient, {name: value.astype(dtype) for name, value in feeds.items()})
    for name in outputs:
        np.testing.assert_allclose(found[name], expected[name], rtol=tolerance, atol=tolerance)


def test_explicit_weights_and_inputs_are_honoured_also_empty_ones(network):
    def outputs(**options):
        return names(onnx_derivative(network(), **options).graph.output)

    assert outputs(weights=[]) == ["X_grad"]
    assert outputs(inputs=[]) == ["W_grad", "b_grad", "V_grad", "c_grad", "scale_grad"]
    assert outputs(weights=["c", "W"], inputs=[]) == ["c_grad", "W_grad"]
    assert outputs(weights=["c", "W"], inputs=["X"]) == ["X_grad", "c_grad", "W_grad"]


def test_frozen_initializers_stay_and_trained_ones_become_inputs(network):
    gradient = onnx_derivative(network(), weights=["c", "W"])
    assert names(gradient.graph.input) == ["X", "c", "W", "P_grad", "H_grad"]
    assert {"b", "V", "scale"} <= set(names(gradient.graph.initializer))
    assert not {"c", "W"} & set(names(gradient.graph.initializer))


def test_a_weight_read_twice_gets_the_sum(parse, execute):
    # the layers of an auto-encoder share a weight
    text = """g (real[N, 3] X) => (real[N, 3] Y) <real[3, 3] W = {1, 2, 3, 4, 5, 6, 7, 8, 10}> {
        H = MatMul(X, W)
        Y = MatMul(H, W)
    }"""
    model = parse(text, real="double")
    x, seed = np.random.default_rng(0).normal(size=(2, 5, 3))
    weight = values_of(model)["W"]
    found = execute(onnx_derivative(model), {"X": x, "W": weight, "Y_grad": seed})
    expected = x.T @ seed @ weight.T + (x @ weight).T @ seed
    np.testing.assert_allclose(found["W_grad"], expected, rtol=1e-12)


def test_a_frozen_scale_of_a_normalisation_stays_frozen(parse, differences, execute):
    text = """g (real[N, 3] X) => (real[N, 3] Y)
        <real[3] s = {1, 2, 3}, real[3] b = {0, 1, 0}, real[3] W = {1, -1, 2}> {
        H = LayerNormalization(X, s, b)
        Y = Mul(H, W)
    }"""
    x, seed = np.random.default_rng(0).normal(size=(2, 5, 3))
    gradient = onnx_derivative(parse(text, real="double"), weights=["W"])
    found = execute(gradient, {"X": x, "W": np.array([1.0, -1.0, 2.0]), "Y_grad": seed})
    (expected,) = differences(parse(text, real="double"), {"X": x}, [seed], ["X"])
    np.testing.assert_allclose(found["X_grad"], expected, rtol=1e-6, atol=1e-8)
    assert set(names(gradient.graph.initializer)) >= {"s", "b"}


@pytest.mark.parametrize(
    ("engine", "found"),
    [
        ("portable", ["X_grad", "low_grad", "e_grad", "W_grad"]),
        pytest.param("onnxruntime-training", ["X_grad", "W_grad"], marks=pytest.mark.native),
    ],
)
def test_all_that_a_gradient_of_the_engine_reaches_is_in_the_result(engine, found, parse):
    model = parse("""g (real[N, 3] X, real[N, 3] unused) => (real[N, 3] Y)
        <real low = {0}, real e = {3}, real[3] W = {1, 2, 3}> {
        A = Mul(X, W)
        B = Clip(A, low)
        Y = Pow(B, e)
    }""")
    assert names(onnx_derivative(model, engine=engine).graph.output) == found


def test_weights_in_constants_and_attributes_count_where_there_is_no_initializer(parse):
    model = parse("""g (real[N, 2] X) => (real[N, 1] Y) {
        Y = ai.onnx.ml.LinearRegressor<coefficients = [1.0, 2.0], intercepts = [3.0]>(X)
    }""")
    assert names(onnx_derivative(model).graph.output) == ["X_grad", "coef_grad", "intercept_grad"]


def test_operators_without_gradient_are_rewritten_or_given_to_the_other_engine(parse, differences, execute):
    # Softplus has an exact equivalent, CumSum only a rule of the portable engine
    text = "g (real[N, 3] X, int64 axis) => (real[N, 3] Y) { A = Softplus(X)\n Y = CumSum(A, axis) }"
    x, seed = np.random.default_rng(0).normal(size=(2, 5, 3))
    feeds = {"X": x, "axis": np.array(1)}
    found = execute(onnx_derivative(parse(text, real="double")), {**feeds, "Y_grad": seed})
    (expected,) = differences(parse(text, real="double"), feeds, [seed], ["X"])
    np.testing.assert_allclose(found["X_grad"], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("options", LEGAL)
def test_the_source_is_not_changed_and_its_metadata_is_kept(options, parse, network):
    model = parse(LOSS) if options == DerivativeOptions.Loss else network(ir_version=8)
    model.producer_name, model.producer_version, model.domain = "maker", "1.2", "org.example"
    model.model_version, model.doc_string = 7, "a description"
    model.metadata_props.add(key="author", value="somebody")
    before = model.SerializeToString(deterministic=True)
    extra = {"loss": "loss", "label": "y"} if options == DerivativeOptions.Loss else {}
    gradient = onnx_derivative(model, options=options, **extra)
    assert model.SerializeToString(deterministic=True) == before
    for field in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(gradient, field) == getattr(model, field)
    assert ("author", "somebody") in [(entry.key, entry.value) for entry in gradient.metadata_props]
    assert {(i.domain, i.version) for i in model.opset_import} <= {
        (i.domain, i.version) for i in gradient.opset_import
    }
    onnx.checker.check_model(gradient)


def test_the_gradient_is_saved_and_reported(tmp_path, parse, capsys):
    path = tmp_path / "gradient.onnx"
    gradient = loss_derivative(parse, path_name=path, verbose=1)
    assert onnx.load(path) == gradient
    assert "2 weights, 2 inputs" in capsys.readouterr().out
    loss_derivative(parse)
    assert capsys.readouterr().out == ""


def test_a_gradient_can_be_differentiated_again(parse, execute):
    model = parse(
        "g (real[N, 3] X) => (real[N, 3] Y) { A = Mul(X, X)\n B = Mul(A, X)\n Y = Neg(B) }", real="double"
    )
    once = onnx_derivative(model)
    twice = onnx_derivative(once, inputs=["X"])
    assert names(twice.graph.input) == ["X", "Y_grad", "X_grad_grad"]
    assert names(twice.graph.output) == ["X_grad"]
    x, seed, outer = np.random.default_rng(0).normal(size=(3, 5, 3))
    found = execute(twice, {"X": x, "Y_grad": seed, "X_grad_grad": outer})
    np.testing.assert_allclose(found["X_grad"], -6 * x * seed * outer, rtol=1e-12)


def test_names_of_the_graph_never_collide(parse, execute):
    # inner tensors have names of gradients, and names that the builder uses
    text = """g (real[N, 3] X) => (real[N, 3] Y) <real[3] W = {1, 2, 3}> {
        W_grad = Mul(X, W)
        X_grad = Neg(W_grad)
        Y_grad_external = Mul(X_grad, W_grad)
        Y = Add(Y_grad_external, X_grad)
    }"""
    model = parse(text, real="double")
    gradient = onnx_derivative(model, options=DerivativeOptions.KeepOutputs)
    assert names(gradient.graph.output) == ["X_grad", "W_grad", "Y"]
    x, seed = np.random.default_rng(0).normal(size=(2, 5, 3))
    weight = np.array([1.0, 2.0, 3.0])
    found = execute(gradient, {"X": x, "W": weight, "Y_grad": seed})
    # Y = -(X W)^2 - X W
    np.testing.assert_allclose(found["W_grad"], (seed * (-2 * x * x * weight - x)).sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found["X_grad"], seed * (-2 * x * weight**2 - weight), rtol=1e-12)


def test_a_visible_name_that_a_gradient_needs_is_refused(parse):
    model = parse("g (real[N, 3] X, real[N, 3] X_grad) => (real[N, 3] Y) { Y = Mul(X, X_grad) }")
    with pytest.raises(GraphError, match=r"called 'X_grad'.*rename"):
        onnx_derivative(model)


def test_a_returned_input_takes_no_gradient(parse):
    model = parse("g (real[N, 3] X) => (real[N, 3] Y, real[N, 3] X) { Y = Neg(X) }")
    assert names(onnx_derivative(model).graph.input) == ["X", "Y_grad"]


@pytest.mark.parametrize("number", [value for value in range(8) if value not in [int(o) for o in LEGAL]])
def test_illegal_combinations_are_refused(number, network):
    with pytest.raises(ParameterError, match=r"FillGrad needs KeepOutputs|not a legal combination"):
        onnx_derivative(network(), options=DerivativeOptions(number))


def test_loss_is_five():
    assert DerivativeOptions.Loss == 5
    assert [int(option) for option in LEGAL] == [0, 1, 2, 6, 5]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"options": 0}, ParameterTypeError, "must be a DerivativeOptions, not int"),
        ({"weights": "W"}, ParameterTypeError, "weights must be a list of names"),
        ({"inputs": [1]}, ParameterTypeError, "inputs must be a list of names"),
        ({"weights": ["Z"]}, ParameterError, r"weights: 'Z' is not an initializer.*'W'"),
        ({"weights": ["W", "W"]}, ParameterError, r"weights names \['W'\] more than once"),
        ({"inputs": ["Z"]}, ParameterError, r"inputs: 'Z' is not an input.*'X'"),
        ({"weights": [], "inputs": []}, NotTrainableError, "nothing to differentiate for"),
        ({"loss": "P"}, ParameterError, "only for options=DerivativeOptions.Loss"),
        ({"label": "X"}, ParameterError, "only for options=DerivativeOptions.Loss"),
    ],
)
def test_wrong_arguments_are_refused(options, error, message, network):
    with pytest.raises(error, match=message):
        onnx_derivative(network(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": None}, "needs loss"),
        ({"label": None}, "needs loss"),
        ({"loss": "T"}, r"loss='T' is not an output.*'loss'"),
        ({"label": "z"}, r"label: 'z' is not an input.*'y'"),
        ({"label": ["y", "z"]}, "label: 'z' is not an input"),
        ({"inputs": ["y"]}, "'y' is a label"),
        ({"inputs": ["Z"]}, "'Z' is not an input"),
        ({"weights": ["X"]}, "'X' is not an initializer"),
    ],
)
def test_a_wrong_loss_is_refused(options, message, parse):
    with pytest.raises(ParameterError, match=message):
        loss_derivative(parse, **options)


def test_an_argument_of_another_type_is_refused():
    with pytest.raises(ParameterTypeError, match="onnx.ModelProto, not bytes"):
        onnx_derivative(b"model")


def test_an_integer_input_cannot_be_differentiated_for(parse):
    model = parse(
        "g (int64[N, 3] X) => (float[N, 3] Y) <float[3] W = {1, 2, 3}> { Z = Cast<to=1>(X)\n Y = Mul(Z, W) }"
    )
    assert names(onnx_derivative(model).graph.output) == ["W_grad"]
    with pytest.raises(ParameterError, match="elements of type INT64"):
        onnx_derivative(model, inputs=["X"])


def test_integer_outputs_alone_cannot_be_differentiated(parse):
    model = parse("g (real[N, 3] X) => (int64[N, 1] Y) { Y = ArgMax<axis=1>(X) }")
    with pytest.raises(NotTrainableError, match="nothing to differentiate for"):
        onnx_derivative(model)


def test_a_weight_that_nothing_depends_on_cannot_be_trained(parse):
    model = parse(
        "g (real[N, 2] X) => (real[N, 2] Y) <real[2] s = {1, 2}, real[2] m = {0, 0}> { Y = Mul(X, s) }"
    )
    assert names(onnx_derivative(model).graph.output) == ["X_grad", "s_grad"]
    with pytest.raises(NotTrainableError, match="'m' cannot be trained"):
        onnx_derivative(model, weights=["m"])


@pytest.mark.parametrize(
    "engine", ["portable", pytest.param("onnxruntime-training", marks=pytest.mark.native)]
)
def test_batch_normalisation_uses_its_statistics_not_those_of_the_batch(engine, parse, execute):
    text = """g (real[N, 2] X) => (real[N, 2] Y)
        <real[2] s = {1, 2}, real[2] b = {0, 1}, real[2] m = {1, 2}, real[2] v = {4, 9}> {
        Y = BatchNormalization<epsilon=0.0>(X, s, b, m, v)
    }"""
    model = parse(text, real="double")
    x, seed = np.random.default_rng(0).normal(size=(2, 5, 2))
    feeds = {"X": x, "s": np.array([1.0, 2.0]), "b": np.array([0.0, 1.0]), "Y_grad": seed}
    feeds |= {"m": np.array([1.0, 2.0]), "v": np.array([4.0, 9.0])}
    found = execute(onnx_derivative(model, engine=engine), feeds)
    np.testing.assert_allclose(found["m_grad"], -(seed * [1 / 2, 2 / 3]).sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found["s_grad"], (seed * (x - [1, 2]) / [2, 3]).sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found["X_grad"], seed * feeds["s"] / [2, 3], rtol=1e-12)


@given(
    rows=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    activations=st.lists(
        st.sampled_from(["Relu", "Tanh", "Sigmoid", "Softmax", "Identity"]), min_size=4, max_size=4
    ),
    opset=st.integers(13, 21),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_networks_of_any_shape(rows, sizes, activations, opset, seed, parse, differences, execute):
    rng = np.random.default_rng(seed)
    lines, feeds, declared, last = [], {"X": rng.normal(size=(rows, sizes[0]))}, [], "X"
    for index, (n_in, n_out) in enumerate(pairwise(sizes)):
        feeds[f"W{index}"], feeds[f"b{index}"] = rng.normal(size=(n_in, n_out)), rng.normal(size=n_out)
        declared += [f"double[{n_in}, {n_out}] W{index}", f"double[{n_out}] b{index}"]
        out = "Y" if index == len(sizes) - 2 else f"H{index}"
        lines += [f"M{index} = MatMul({last}, W{index})", f"A{index} = Add(M{index}, b{index})"]
        lines.append(f"{out} = {activations[index]}(A{index})")
        last = out
    signature = f"double[N, {sizes[0]}] X, {', '.join(declared)}"
    model = parse(f"g ({signature}) => (double[N, {sizes[-1]}] Y) {{ {' '.join(lines)} }}", opset)
    outer = rng.normal(size=(rows, sizes[-1]))
    found = execute(onnx_derivative(model), {**feeds, "Y_grad": outer})
    for name, expected in zip(feeds, differences(model, feeds, [outer], list(feeds)), strict=True):
        # a step of 1e-6 across the kink of Relu moves a difference
        np.testing.assert_allclose(found[f"{name}_grad"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ["onnxruntime-training", "portable", "auto"])
def test_engines_give_the_same_numbers(engine, network, differences, execute):
    model = network(real="double")
    both = ir.to_proto(forward_backward_model(ir.from_proto(model), ["V", "W"], ["X"], engine=engine))
    assert names(both.graph.input) == ["X", "V", "W", "P_grad", "H_grad"]
    assert names(both.graph.output) == ["P", "L", "H", "V_grad", "W_grad", "X_grad"]
    p, h = seeds_for()
    found = execute(both, {"X": features(), **values_of(model), "P_grad": p, "H_grad": h})
    for name, expected in expected_gradients(network, differences, ["V", "W", "X"]).items():
        np.testing.assert_allclose(found[f"{name}_grad"], expected, rtol=1e-7, atol=1e-8)


def test_auto_is_the_portable_engine_everywhere():
    assert resolve_engine("auto") == resolve_engine("portable") == "portable"


def test_an_unknown_engine_is_refused_with_the_list(parse):
    model = ir.from_proto(parse("g (real[N, 3] X) => (real[N, 3] Y) { Y = Tanh(X) }"))
    with pytest.raises(ParameterError, match=r"engine='torch'.*'auto', 'onnxruntime-training', 'portable'"):
        forward_backward_model(model, [], ["X"], engine="torch")
    with pytest.raises(ParameterError, match="engine='torch'"):
        differentiable("torch")


def test_a_reason_against_an_operator_is_that_of_the_engine():
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, 3]))
    assert differentiable("onnxruntime-training")(ir.node("Atan", [x])) is not None
    assert differentiable("auto")(ir.node("Atan", [x])) is None
    assert "Unknown" in differentiable("auto")(ir.node("Unknown", [x], domain="my.domain"))


@pytest.mark.native
def test_known_shapes_leave_no_plumbing(network):
    # the graph of a compiled step must not compute shapes at run time
    both = forward_backward_model(
        ir.from_proto(network()), ["W", "b", "V", "c"], engine="onnxruntime-training"
    )
    used = {node.op_type for node in both.graph}
    assert used <= {
        "MatMul",
        "Add",
        "Mul",
        "Relu",
        "Gemm",
        "Softmax",
        "ArgMax",
        "Cast",
        "ReduceSum",
        "SoftmaxGrad_13",
    }


def test_weights_keep_the_order_of_the_graph_where_operators_are_rewritten(parse):
    # lowering makes new initializers, in another order
    text = """g (real[N, 3] X) => (real[N, 3] Y)
        <real[3] c = {1, 2, 3}, real[3, 3] B = {1, 0, 0, 0, 1, 0, 0, 0, 1}, real[3] a = {1, 2, 3}> {
        S = Softplus(X)
        Z = Sum(S, a, c)
        Y = MatMul(Z, B)
    }"""
    assert names(onnx_derivative(parse(text), inputs=[]).graph.output) == ["c_grad", "B_grad", "a_grad"]
