"""Training mode of networks, from outside: statistics of BatchNormalization, and dropout."""

import importlib.util
import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.adapters import LoRA
from onnxsgd.exceptions import ParameterError, ParameterTypeError, UnsupportedError
from onnxsgd.runtime.device import Device

#: Numbers of float32: the attributes of an operator are no others.
EPSILON, MOMENTUM = 2.0**-10, 0.75
NETWORK = """
<ir_version: 9, opset_import: ["" : 17]>
network (float[N, 6] X) => (float[N, 3] Y) {
    a = Gemm(X, W1, b1)
    b = BatchNormalization<epsilon = EPS, momentum = MOM, training_mode = MODE>(a, s1, t1, m1, v1)
    c = Relu(b)
    d = Gemm(c, W2, b2)
    e = BatchNormalization<epsilon = EPS, momentum = MOM, training_mode = MODE>(d, s2, t2, m2, v2)
    Y = Gemm(e, W3, b3)
}
""".replace("EPS", str(EPSILON)).replace("MOM", str(MOMENTUM))
SHAPES = {
    "W1": (6, 8), "b1": (8,), "s1": (8,), "t1": (8,), "m1": (8,), "v1": (8,), "W2": (8, 5), "b2": (5,),
    "s2": (5,), "t2": (5,), "m2": (5,), "v2": (5,), "W3": (5, 3), "b3": (3,),
}  # fmt: skip
STATISTICS = ["m1", "m2", "v1", "v2"]
RNG = np.random.default_rng(0)
TENSORS = {name: RNG.normal(0, 0.5, shape).astype(np.float32) for name, shape in SHAPES.items()}
#: Variances and scales are positive.
TENSORS |= {name: 0.5 + np.abs(TENSORS[name]) for name in ("v1", "v2", "s1", "s2")}
X = RNG.normal(size=(64, 6)).astype(np.float32) + 0.5
Y = (X @ RNG.normal(size=(6, 3))).argmax(axis=1)
#: The last batch of an epoch has four rows, so that it is filled up.
NAMED = {
    "learning_rate": "constant", "eta0": 0.1, "penalty": None, "shuffle": False, "batch_size": 5,
    "max_iter": 10, "tol": None, "random_state": 0,
}  # fmt: skip


def network(mode=0, text=NETWORK):
    outputs = ", q{0}, r{0} = Batch" if mode else " = Batch"
    for number, name in enumerate("be"):
        text = text.replace(f"{name} = Batch", name + outputs.format(number))
    model = parser.parse_model(text.replace("MODE", str(mode)))
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in TENSORS.items())
    return model


def classifier(mode=0, batch_norm="train", **more):
    settings = {**NAMED, "classes": [0, 1, 2], "batch_norm": batch_norm} | more
    return OnnxSGDClassifier(network(mode), **settings)


def assert_equal_weights(one, other, **tolerances):
    first, second = one.get_weights(), other.get_weights()
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_allclose(array, second[name], **tolerances)


@pytest.fixture(scope="module")
def torch_weights():
    """Tensors after 30 updates of torch on 14 rows, in float64."""
    torch = pytest.importorskip("torch", reason="the comparison with torch needs torch")
    found = {n: torch.tensor(a).double().requires_grad_(n not in STATISTICS) for n, a in TENSORS.items()}
    optimizer = torch.optim.SGD([found[name] for name in found if name not in STATISTICS], lr=0.1)

    def norm(x, number):
        names = (f"{letter}{number}" for letter in "mvst")
        tensors = [found[name] for name in names]
        return torch.nn.functional.batch_norm(x, *tensors, True, 1 - MOMENTUM, EPSILON)

    for update in range(30):
        rows = slice(5 * (update % 3), 5 * (update % 3) + 5)
        x, y = torch.tensor(X[:14][rows]).double(), torch.tensor(Y[:14][rows])
        hidden = torch.relu(norm(x @ found["W1"] + found["b1"], 1))
        scores = norm(hidden @ found["W2"] + found["b2"], 2) @ found["W3"] + found["b3"]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(scores, y).backward()
        optimizer.step()
    return {name: value.detach().numpy() for name, value in found.items()}


@pytest.mark.parametrize(
    "engine", ["portable", pytest.param("onnxruntime-training", marks=pytest.mark.native)]
)
def test_weights_and_statistics_are_those_of_torch(engine, torch_weights):
    model = classifier(dtype="float64", engine=engine).fit(X[:14], Y[:14])
    assert sorted(set(model.get_weights()) & set(STATISTICS)) == STATISTICS
    for name, array in model.get_weights().items():
        np.testing.assert_allclose(array, torch_weights[name], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("mode", [0, 1])
def test_none_follows_the_graph(mode):
    """A graph that was exported for training trains its statistics, one for inference keeps them."""
    model = classifier(mode, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, Y)
    assert_equal_weights(model, classifier(0, "train" if mode else "frozen").fit(X, Y), rtol=0)


def test_frozen_statistics_stay():
    model = classifier(1, "frozen").fit(X, Y)
    assert not set(STATISTICS) & set(model.get_weights())
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.to_onnx().graph.initializer}
    for name in STATISTICS:
        np.testing.assert_array_equal(held[name], TENSORS[name])


def test_predictions_use_the_running_statistics():
    model = classifier().fit(X, Y)
    scores = model.decision_function(X)
    np.testing.assert_allclose(model.decision_function(X[:1]), scores[:1], rtol=1e-5)
    session = onnxruntime.InferenceSession(
        model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    np.testing.assert_allclose(session.run(None, {"X": X})[0], scores, rtol=1e-5, atol=1e-6)
    w = {name: array.astype(np.float64) for name, array in model.get_weights().items()}
    z = X.astype(np.float64)
    for i in (1, 2):
        z = z @ w[f"W{i}"] + w[f"b{i}"]
        z = (z - w[f"m{i}"]) / np.sqrt(w[f"v{i}"] + EPSILON) * w[f"s{i}"] + w[f"t{i}"]
        z = np.maximum(z, 0) if i == 1 else z
    np.testing.assert_allclose(scores, z @ w["W3"] + w["b3"], rtol=1e-4, atol=1e-4)


def test_the_loop_inside_the_runtime_makes_the_same_updates():
    """600 updates are made by the loop, and one epoch of 13 by single steps.

    Such updates multiply an error of rounding by 1e5.
    """
    looped = classifier(max_iter=50, dtype="float64").fit(X, Y)
    single = classifier(dtype="float64")
    for _ in range(50):
        single.partial_fit(X, Y)
    assert_equal_weights(looped, single, rtol=1e-8, atol=1e-8)
    assert_equal_weights(classifier(max_iter=3).fit(X, Y), _parts(3), rtol=1e-5, atol=1e-6)


def _parts(count):
    model = classifier()
    for _ in range(count):
        model.partial_fit(X, Y)
    return model


def test_resident_data_give_the_same(monkeypatch):
    expected = classifier(max_iter=3).fit(X, Y)
    monkeypatch.setattr(Device, "keeps_data", True)
    assert_equal_weights(classifier(max_iter=3).fit(X, Y), expected, rtol=1e-4, atol=1e-5)


def test_sparse_data_give_the_same():
    dense = np.where(np.abs(X) > 1, X, 0)
    expected = classifier(max_iter=3).fit(dense, Y)
    assert_equal_weights(
        classifier(max_iter=3).fit(sparse.csr_array(dense), Y), expected, rtol=1e-4, atol=1e-5
    )


def test_the_best_weights_of_early_stopping_come_with_their_statistics():
    model = classifier(early_stopping=True, max_iter=30, tol=1e-4, eta0=0.5)
    model.fit(X[:40], Y[:40], X_val=X[40:], y_val=Y[40:])
    assert model.score(X[40:], Y[40:]) == max(model.validation_scores_)
    assert np.argmax(model.validation_scores_) < model.n_iter_ - 1


@pytest.mark.parametrize("average", [False, True])
def test_a_pickle_continues(average):
    model = classifier(average=average).partial_fit(X, Y)
    copy = pickle.loads(pickle.dumps(model))
    assert_equal_weights(copy, model, rtol=0)
    assert_equal_weights(copy.partial_fit(X, Y), model.partial_fit(X, Y), rtol=0)


def test_a_clone_and_a_search_take_the_parameter():
    assert clone(classifier(batch_norm="frozen")).batch_norm == "frozen"
    search = GridSearchCV(classifier(max_iter=2), {"batch_norm": [None, "frozen", "train"]}, cv=2).fit(X, Y)
    assert search.cv_results_["mean_test_score"].shape == (3,)


def test_averages_of_statistics_predict():
    """The average from the first update on is the mean of the weights after each."""
    model, plain, seen = classifier(average=True), classifier(), []
    for start in range(0, 20, 5):
        rows = slice(start, start + 5)
        model.partial_fit(X[rows], Y[rows])
        seen.append(plain.partial_fit(X[rows], Y[rows]).get_weights())
    for name, array in model.get_weights().items():
        np.testing.assert_allclose(array, np.mean([w[name] for w in seen], axis=0), rtol=1e-4, atol=1e-5)


def test_set_weights_sets_statistics():
    model, other = classifier().fit(X, Y), classifier(max_iter=1).fit(X, Y)
    other.set_weights(model.get_weights())
    np.testing.assert_array_equal(other.decision_function(X), model.decision_function(X))


def test_norms_of_updates_leave_statistics_out():
    model = classifier(max_iter=1, record_update_norms=True).fit(X, Y)
    changes = [a - TENSORS[name] for name, a in model.get_weights().items() if name not in STATISTICS]
    expected = np.linalg.norm(np.concatenate([change.ravel() for change in changes]))
    np.testing.assert_allclose(model.update_norms_, [expected], rtol=1e-5)


def test_an_exported_step_updates_statistics(tmp_path):
    model = classifier(shuffle=False).fit(X, Y)
    model.export_training_step(tmp_path / "step.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "step.onnx"), providers=["CPUExecutionProvider"])
    weights = model.get_weights()
    model.partial_fit(X[:4], Y[:4])
    share = np.array([[0.25]] * 4 + [[0]], np.float32)
    data = {"X": X[:5], "y_true": np.eye(3, dtype=np.float32)[Y[:5]], "sample_weight": share}
    names = [value.name for value in session.get_inputs()]
    feeds = {name: (data | weights | {"gradient_weight": -0.1 * share}).get(name) for name in names}
    found = dict(zip([v.name for v in session.get_outputs()], session.run(None, feeds), strict=True))
    for name, array in model.get_weights().items():
        np.testing.assert_allclose(found[f"{name}_new"], array, rtol=1e-4, atol=1e-5)


def test_training_that_finds_its_rate_learns_statistics():
    """The objective of the result is that of predictions, by running statistics."""
    rows = {"X": np.tile(X, (8, 1)), "y": np.tile(Y, 8)}
    model = OnnxSGDClassifier(network(), classes=[0, 1, 2], batch_norm="train", random_state=0, alpha=0.0)
    model.fit(**rows)
    assert model.score(X, Y) > 0.95
    stream = OnnxSGDClassifier(network(), classes=[0, 1, 2], batch_norm="train", random_state=0)
    for _ in range(20):
        stream.partial_fit(**rows)
    assert stream.score(X, Y) > 0.9
    for fitted in (model, stream):
        assert np.abs(fitted.get_weights()["m1"] - TENSORS["m1"]).max() > 0.1


@pytest.mark.parametrize("batch_norm", [None, "train"])
def test_layers_of_a_frozen_network_train_if_they_are_told_to(batch_norm):
    model = classifier(batch_norm=batch_norm, trainable=["W3", "b3"], max_iter=2).fit(X, Y)
    expected = ["W3", "b3"] + (STATISTICS if batch_norm else [])
    assert sorted(model.get_weights()) == sorted(expected)
    topped = OnnxSGDClassifier(network(), head="linear", batch_norm=batch_norm, **_auto())
    expected = ["coef", "intercept"] + (STATISTICS if batch_norm else [])
    assert sorted(topped.fit(X, Y).get_weights()) == sorted(expected)


def _auto():
    return {"tol": None, "random_state": 0, "max_iter": 10}


def test_one_row_in_a_stream_keeps_the_statistics():
    model = classifier().fit(X, Y)
    before = model.get_weights()
    after = model.partial_fit(X[:1], Y[:1]).get_weights()
    for name in STATISTICS:
        np.testing.assert_array_equal(after[name], before[name])
    assert np.abs(after["W1"] - before["W1"]).max() > 0


ERRORS = {
    "no layer": (
        lambda: OnnxSGDClassifier(LogisticRegression().fit(X, Y), batch_norm="train"),
        ParameterError, "the model has none.*optimize=False",
    ),
    "no model": (lambda: OnnxSGDClassifier(batch_norm="train"), ParameterError, "the model has none"),
    "cut": (
        lambda: OnnxSGDClassifier(network(), output="a", head="linear", batch_norm="train"),
        ParameterError, "the model has none",
    ),
    "single rows": (lambda: classifier(batch_size=1), ParameterError, "batch_size=1 has no effect"),
    "named": (
        lambda: classifier(trainable=["W1", "m1"]), ParameterError, "'m1', a running statistic.*'frozen'",
    ),
    "value": (lambda: classifier(batch_norm="eval"), ParameterError, "'batch_norm' parameter.*'eval'"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_misuse_is_refused(case):
    make, error, message = ERRORS[case]
    with pytest.raises(error, match=message):
        make().fit(X, Y)


def test_a_function_for_trainable_need_not_leave_statistics_out():
    model = classifier(trainable=lambda name: True, max_iter=1).fit(X, Y)
    assert sorted(model.get_weights()) == sorted(SHAPES)
    assert_equal_weights(model, classifier(max_iter=1).fit(X, Y), rtol=0)


def test_a_base_for_several_adapters_has_no_statistics_of_one_fit(tmp_path):
    adapted = {"adapter": LoRA(2, targets=["W1"]), "max_iter": 1}
    trained = classifier(**adapted).fit(X, Y)
    for call in (lambda: trained.to_onnx(adapter="inputs"), lambda: trained.export_adapter(tmp_path / "a")):
        with pytest.raises(ParameterError, match="running statistics .*'m1'.*batch_norm='frozen'"):
            call()
    assert not (tmp_path / "a").exists()
    merged = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in trained.to_onnx().graph.initializer
    }
    np.testing.assert_allclose(merged["m1"], trained.get_weights()["m1"])
    bases = [
        classifier(batch_norm="frozen", **adapted).fit(s * X, Y).to_onnx(adapter="inputs") for s in (1, 3)
    ]
    first, second = (base.SerializeToString(deterministic=True) for base in bases)
    assert first == second


def test_mixed_samples_are_refused():
    mixed = "u = ReduceMean<axes = [0]>(c) q = Add(c, u) d = Gemm(q, W2, b2)"
    text = NETWORK.replace("d = Gemm(c, W2, b2)", mixed)
    model = OnnxSGDRegressor(network(text=text), batch_norm="train", **NAMED)
    with pytest.raises(UnsupportedError, match="'e' cannot train: the first axis .*batch_norm='frozen'"):
        model.fit(X, X[:, :3])


# Dropout.

DROPOUT = """
<ir_version: 9, opset_import: ["" : 17]>
network (float[N, 6] X) => (float[N, 3] Y) <float r = {0.25}, bool on = {ON}> {
    x = Dropout(X, r, on)
    a = Gemm(x, W1, b1)
    b = Relu(a)
    c = Dropout(b, r, on)
    d = Gemm(c, W2, b2)
    e = Relu(d)
    Y = Gemm(e, W3, b3)
}
"""
PLAIN = DROPOUT.replace("Dropout(X, r, on)", "Identity(X)").replace("Dropout(b, r, on)", "Identity(b)")
#: Rows that are no multiple of a batch.
BATCH = {"batch_size": 7}


def dropping(text=DROPOUT, on=0, model=None, **more):
    if model is None:
        model = parser.parse_model(text.replace("ON", str(on)))
        read = [name for name in TENSORS if name[0] in "Wb"]
        model.graph.initializer.extend(onnx.numpy_helper.from_array(TENSORS[n], n) for n in read)
    return OnnxSGDClassifier(model, **{**NAMED, "classes": [0, 1, 2], "max_iter": 3, **BATCH} | more)


@pytest.mark.parametrize("on", [0, 1])
def test_dropout_acts_however_the_graph_was_exported(on):
    model = dropping(on=on)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, Y)
    assert_equal_weights(model, dropping(on=1 - on).fit(X, Y), rtol=0)
    without = dropping(PLAIN).fit(X, Y)
    assert np.abs(model.get_weights()["W1"] - without.get_weights()["W1"]).max() > 1e-3


def test_dropout_can_be_switched_off():
    assert_equal_weights(dropping(dropout=0.0).fit(X, Y), dropping(PLAIN).fit(X, Y), rtol=1e-6)
    assert_equal_weights(dropping(PLAIN, dropout=0.0).fit(X, Y), dropping(PLAIN).fit(X, Y), rtol=0)


def test_a_ratio_takes_the_place_of_that_of_the_graph():
    expected = dropping(DROPOUT.replace("0.25", "0.5")).fit(X, Y)
    assert_equal_weights(dropping(dropout=0.5).fit(X, Y), expected, rtol=0)


def test_predictions_and_scores_drop_nothing():
    model = dropping().fit(X, Y, X_val=X[:20], y_val=Y[:20])
    plain = dropping(PLAIN).fit(X, Y).set_weights(model.get_weights())
    np.testing.assert_allclose(model.decision_function(X), plain.decision_function(X), rtol=1e-5, atol=1e-6)
    assert model.validation_scores_[-1] == plain.score(X[:20], Y[:20])
    session = onnxruntime.InferenceSession(
        model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found = session.run(None, {"X": X})[0]
    np.testing.assert_allclose(found, model.decision_function(X), rtol=1e-5, atol=1e-6)


def test_masks_follow_the_random_state():
    model = dropping().fit(X, Y)
    first = model.get_weights()
    assert_equal_weights(model.fit(X, Y), dropping().fit(X, Y), rtol=0)
    np.testing.assert_array_equal(model.get_weights()["W1"], first["W1"])
    other = dropping(random_state=1).fit(X, Y)
    assert np.abs(other.get_weights()["W1"] - first["W1"]).max() > 1e-3


def test_parts_continue_the_masks():
    parts = dropping()
    for _ in range(3):
        parts.partial_fit(X, Y)
    assert_equal_weights(parts, dropping().fit(X, Y), rtol=1e-6, atol=1e-7)
    copy = pickle.loads(pickle.dumps(parts))
    assert_equal_weights(copy.partial_fit(X, Y), parts.partial_fit(X, Y), rtol=0)
    once = dropping(max_iter=1).fit(X, Y)
    again = dropping(model=once.to_onnx(), max_iter=1).fit(X, Y)
    # the same seed on other weights; masks that were drawn once would give the same in both epochs
    twice = pickle.loads(pickle.dumps(once)).partial_fit(X, Y)
    assert np.abs(again.get_weights()["W1"] - twice.get_weights()["W1"]).max() > 1e-4


def test_the_loop_inside_the_runtime_draws_the_same_masks():
    """500 updates are made by the loop, ten by single steps."""
    looped, single = dropping(max_iter=50).fit(X, Y), dropping()
    for _ in range(50):
        single.partial_fit(X, Y)
    assert_equal_weights(looped, single, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "engine", ["portable", pytest.param("onnxruntime-training", marks=pytest.mark.native)]
)
@pytest.mark.parametrize("dtype", [None, "float64"])
def test_engines_and_types_draw_the_same_masks(engine, dtype):
    model = dropping(engine=engine, dtype=dtype).fit(X, Y)
    assert_equal_weights(model, dropping().fit(X, Y), rtol=1e-3, atol=1e-4)


def test_resident_and_sparse_data_draw_the_same_masks(monkeypatch):
    data = np.where(np.abs(X) > 1, X, 0)
    expected = dropping().fit(data, Y)
    assert_equal_weights(dropping().fit(sparse.csr_array(data), Y), expected, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(Device, "keeps_data", True)
    assert_equal_weights(dropping().fit(data, Y), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Training raised the objective:sklearn.exceptions.ConvergenceWarning")
def test_dropout_in_a_frozen_network_acts_too():
    """As after torch's ``model.train()``: features before the first node are computed once."""
    model = dropping(trainable=["W3", "b3"]).fit(X, Y)
    plain = dropping(PLAIN, trainable=["W3", "b3"]).fit(X, Y)
    assert np.abs(model.get_weights()["W3"] - plain.get_weights()["W3"]).max() > 1e-3
    text = DROPOUT.replace("x = Dropout(X, r, on)", "x = Identity(X)")
    later = dropping(text, trainable=["W3", "b3"]).fit(X, Y)
    assert later._learner.divided.split.features == ("b",)


def test_trained_graphs_keep_their_dropout():
    again = dropping(model=dropping().fit(X, Y).to_onnx())
    nodes = [node.op_type for node in again.fit(X, Y).to_onnx().graph.node]
    assert nodes.count("Dropout") == 2


def test_an_old_form_of_the_operator_acts():
    """Up to opset 11 the ratio is an attribute."""
    old = "x = Dropout<ratio = 0.25>(X)", "c = Dropout<ratio = 0.25>(b)"
    text = DROPOUT.replace('"" : 17', '"" : 11')
    text = text.replace("x = Dropout(X, r, on)", old[0]).replace("c = Dropout(b, r, on)", old[1])
    assert_equal_weights(dropping(text).fit(X, Y), dropping().fit(X, Y), rtol=1e-5, atol=1e-6)


def test_an_exported_step_takes_the_keys_of_its_masks(tmp_path):
    model = dropping().fit(X, Y)
    model.export_training_step(tmp_path / "step.onnx")
    numbers = json.loads((tmp_path / "step.json").read_text())["numbers"]
    keys = [number for number in numbers if "random" in number]
    assert [number["name"] for number in keys] == ["mask_key_1", "mask_key_2"]
    assert {number["below"] for number in keys} == {1 << 24}
    session = onnxruntime.InferenceSession(str(tmp_path / "step.onnx"), providers=["CPUExecutionProvider"])
    share = np.full((7, 1), 1 / 7, np.float32)
    data = {"X": X[:7], "y_true": np.eye(3, dtype=np.float32)[Y[:7]], "sample_weight": share}
    data |= model.get_weights() | {"gradient_weight": -0.1 * share}
    drawn = model._state.random_state.get_state()
    generator = np.random.RandomState()
    generator.set_state(drawn)
    pair = generator.randint(0, 1 << 24, (1, 2))[0]
    data |= {number["input"]: np.array(key, np.float32) for number, key in zip(keys, pair, strict=True)}
    data |= {v.name: np.zeros((), np.float32) for v in session.get_inputs() if v.name not in data}
    model.partial_fit(X[:7], Y[:7])
    for name, array in model.get_weights().items():
        (found,) = session.run([f"{name}_new"], data)
        np.testing.assert_allclose(found, array, rtol=1e-4, atol=1e-5)


def test_the_example_of_training_elsewhere_draws_masks(tmp_path):
    file = Path(__file__).parents[2] / "examples" / "train_without_onnxsgd.py"
    spec = importlib.util.spec_from_file_location("train_without_onnxsgd", file)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    manifest = dropping(max_iter=1).fit(X, Y).export_training_step(tmp_path / "step.onnx")

    def losses(seed):
        step = example.TrainingStep(manifest, seed)
        target = np.eye(3, dtype=np.float32)[Y]
        return [step.epoch({"X": X}, target, np.arange(len(X))) for _ in range(30)]

    first = losses(0)
    assert np.mean(first[-5:]) < 0.8 * first[0]
    assert first == losses(0) != losses(1)


def test_training_that_finds_its_rate_learns_with_dropout():
    rows = {"X": np.tile(X, (8, 1)), "y": np.tile(Y, 8)}
    settings = {"learning_rate": "auto", "eta0": None, "shuffle": True, "batch_size": None, "tol": 1e-3}
    model = dropping(max_iter=300, **settings).fit(**rows)
    assert model.score(X, Y) > 0.85
    # losses of updates are those with dropout; the result is judged without
    assert model.loss_curve_[-1] > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dropping(PLAIN, dropout=0.3), "dropout=0.3 needs a Dropout .*module.train()"),
        (lambda: OnnxSGDClassifier(dropout=0.3), "the model has none"),
        (lambda: dropping(dropout=1.0), "'dropout' parameter .* 1.0"),
        (lambda: dropping(dropout=-0.1), "'dropout' parameter .* -0.1"),
    ],
)
def test_misuse_of_dropout_is_refused(make, message):
    with pytest.raises(ParameterError, match=message):
        make().fit(X, Y)


# Several batches of one update.


def test_each_batch_of_an_update_has_masks_and_statistics_of_its_own():
    """Rows that are repeated in both batches of an update would otherwise give the update of one batch."""
    twice, labels = np.tile(X[:7], (2, 1)), np.tile(Y[:7], 2)
    settings = {"gradient_accumulation_steps": 2, "max_iter": 1}
    both = dropping(**settings).fit(twice, labels).get_weights()
    single = dropping(max_iter=1).fit(X[:7], Y[:7]).get_weights()
    assert np.abs(both["W1"] - single["W1"]).max() > 1e-4
    one = classifier(batch_size=7, **settings).fit(twice, labels).get_weights()
    plain = classifier(batch_size=7, max_iter=1).fit(X[:7], Y[:7]).get_weights()
    np.testing.assert_allclose(one["W1"], plain["W1"], rtol=1e-4, atol=1e-5)
    # the statistics move with each batch, as torch's do
    of_batch = (plain["m1"] - MOMENTUM * TENSORS["m1"]) / (1 - MOMENTUM)
    expected = MOMENTUM * plain["m1"] + (1 - MOMENTUM) * of_batch
    np.testing.assert_allclose(one["m1"], expected, rtol=1e-4, atol=1e-5)


SET_WRONGLY = {
    "variance": ({"v1": [-1.0] + [1.0] * 7}, ParameterError, "running variance .* -1: it must be >= 0"),
    "no dictionary": ([1.0], ParameterTypeError, "weights is of type list: it must be a dictionary"),
    "none": (None, ParameterTypeError, "weights is of type NoneType"),
    "no array": ({"v1": None}, ParameterTypeError, r"weight 'v1' is None: it must be an array of real"),
    "ragged": ({"v1": [[1.0], [1.0, 2.0]]}, ParameterTypeError, "must be an array of real numbers"),
    "complex": ({"v1": np.ones(8) * 1j}, ParameterTypeError, "must be an array of real numbers"),
    "text": ({"v1": ["a"] * 8}, ParameterTypeError, "must be an array of real numbers"),
    "not finite": ({"v1": [np.nan] + [1.0] * 7}, ParameterError, "values that are not finite"),
    "shape": ({"v1": [1.0]}, ParameterError, "has shape"),
}


@pytest.mark.parametrize("case", SET_WRONGLY)
def test_weights_that_are_none_are_refused(case):
    weights, error, message = SET_WRONGLY[case]
    model = classifier().fit(X, Y)
    before = model.get_weights()
    with pytest.raises(error, match=message):
        model.set_weights(weights)
    for name, array in model.get_weights().items():
        np.testing.assert_array_equal(array, before[name])
