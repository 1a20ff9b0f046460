"""Graphs exported by others can be trained, or are refused with a reason."""

import importlib
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from onnxsgd import OnnxSGDClassifier, describe_trainable
from onnxsgd.gradient.native import builder as orttraining
from onnxsgd.testing import check_gradients

EXAMPLES = Path(__file__).parents[2] / "examples"
WITH_IF = ["silero_vad.onnx", "silero_vad_16k_op15.onnx"]
WITHOUT_IF = ["silero_vad_16k_sequence.onnx", "silero_vad_openvino_16k.onnx"]
#: The first keeps its weights inside the branches of an If: by its inputs alone.
RIGHT_GRADIENTS = {"silero_vad.onnx", "silero_vad_op18_ifless.onnx", *WITHOUT_IF}
OTHERS = ["silero_vad_half.onnx", "silero_vad_op18_ifless.onnx"]


@pytest.fixture(params=["onnxruntime-training", "portable"])
def engine(request):
    if request.param == "onnxruntime-training" and not orttraining.is_available():
        pytest.skip("the installed onnxruntime cannot train")
    return request.param


@pytest.fixture(scope="module")
def examples():
    """Import the examples, which hold the synthetic data and the paths of the graphs."""
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module
    sys.path.remove(str(EXAMPLES))


def fetch(examples, package, member):
    try:
        return examples("wheels").file_of_wheel(package, member)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the package index does not give {package}: {error}")


@pytest.fixture(scope="module")
def magika(examples):
    example = examples("adapt_magika")
    fetch(examples, example.PACKAGE, f"{example.FOLDER}/model.onnx")
    return example


@pytest.fixture(scope="module")
def text_direction(examples):
    example = examples("adapt_text_direction")
    fetch(examples, example.PACKAGE, example.MEMBER)
    return example


# Magika: integers in, 214 classes out, a softmax and normalisations written out in small operators.


def test_magika_is_described(magika):
    """Its softmax and its normalisations are recognised, its constants are not trained."""
    report = describe_trainable(magika.read_network()[0])
    assert report.link == "softmax"
    assert report.problem is None
    reasons = {row.reason.split()[0]: row.trained for row in report.tensors}
    assert reasons == {
        "weight": True, "scale": True, "shift": True, "added": True, "constant,": False,
    }  # fmt: skip
    assert len(report.trained) == 10
    assert all(row.engines == ("onnxruntime-training", "portable") for row in report.operators)
    assert len(str(report).splitlines()) < 50


def test_magika_learns_types_it_does_not_know(magika, engine):
    """A new layer on the frozen network learns the right answer."""
    path, features, _ = magika.read_network()
    X, y = magika.make_new_files(40, seed=0)
    head = OnnxSGDClassifier(
        path,
        output=features,
        head="linear",
        engine=engine,
        learning_rate="invscaling",
        eta0=0.1,
        max_iter=20,
        tol=None,
        random_state=0,
    ).fit(X, y)
    assert list(head.get_weights()) == ["coef", "intercept"]
    assert head.score(*magika.make_new_files(40, seed=1)) > 0.95
    session = onnxruntime.InferenceSession(head.to_onnx().SerializeToString())
    np.testing.assert_array_equal(session.run(["label"], {"bytes": X[:8]})[0], head.predict(X[:8]))


@pytest.mark.slow
def test_magika_learns_in_all_its_weights(magika, engine):
    """The snippets that it gets wrong, it gets right; the other columns stay."""
    path, _, labels = magika.read_network()
    X, y = magika.make_snippets(64, seed=0)
    before = np.mean(magika.ask(path, labels, X) == y)
    tuned = OnnxSGDClassifier(
        path, classes=labels, engine=engine, optimizer="adam", learning_rate="constant", eta0=1e-3,
        batch_size=16, max_iter=2, tol=None, random_state=0,
    ).fit(X, y)  # fmt: skip
    assert len(tuned.get_weights()) == 10
    assert before < 0.8 < 0.95 < tuned.score(X, y)
    (probabilities,) = onnxruntime.InferenceSession(tuned.to_onnx().SerializeToString()).run(
        None, {"bytes": X[:4]}
    )
    np.testing.assert_allclose(probabilities, tuned.predict_proba(X[:4]), atol=1e-5)


# Text direction: a convolutional network, all of its weights in Constant nodes, of opset 11, of open size.


def test_text_direction_is_described(text_direction):
    """Weights in Constant nodes are found; the statistics of its batch normalisations stay."""
    report = describe_trainable(text_direction.file_of_wheel(text_direction.PACKAGE, text_direction.MEMBER))
    assert report.link == "softmax"
    assert {"conv1_weights", "conv1_bn_scale", "conv1_bn_offset", "fc_0.w_0", "fc_0.b_0"} <= set(
        report.trained
    )
    kept = [row for row in report.tensors if row.shape and not row.trained]
    assert {row.reason for row in kept} == {"statistics of a batch normalisation"}
    assert all(row.engines == ("onnxruntime-training", "portable") for row in report.operators)


def test_text_direction_learns_a_third_class(text_direction, engine):
    """A new layer on the pooled features, which no output of the graph shows."""
    path = text_direction.file_of_wheel(text_direction.PACKAGE, text_direction.MEMBER)
    X, y = text_direction.make_lines(120, text_direction.DIGITS[:1200], ["0", "180", "mirrored"], seed=0)
    head = OnnxSGDClassifier(
        path, output=text_direction.FEATURES, head="linear", engine=engine, optimizer="adam",
        learning_rate="constant", eta0=0.01, max_iter=80, tol=None, random_state=0,
    ).fit(X, y)  # fmt: skip
    assert head.score(X, y) > 0.9


@pytest.mark.slow
def test_text_direction_learns_handwriting(text_direction, engine):
    """All weights are trained, through batch normalisations with fixed statistics."""
    path = text_direction.file_of_wheel(text_direction.PACKAGE, text_direction.MEMBER)
    X, y = text_direction.make_lines(160, text_direction.DIGITS[:1200], ["0", "180"], seed=0)
    X_test, y_test = text_direction.make_lines(100, text_direction.DIGITS[1200:], ["0", "180"], seed=1)
    (answer,) = onnxruntime.InferenceSession(path).run(None, {"x": X_test})
    before = np.mean(np.array(["0", "180"])[answer.argmax(axis=1)] == y_test)
    tuned = OnnxSGDClassifier(
        path, classes=["0", "180"], engine=engine, optimizer="adam", learning_rate="constant", eta0=1e-3,
        batch_size=16, max_iter=2, tol=None, random_state=0,
    ).fit(X, y)  # fmt: skip
    assert before < 0.7 < 0.9 < tuned.score(X_test, y_test)


@pytest.mark.slow
def test_engines_agree_on_a_real_network(text_direction):
    """The same fit gives the same losses, through 53 convolutions."""
    if not orttraining.is_available():
        pytest.skip("the installed onnxruntime cannot train")
    path = text_direction.file_of_wheel(text_direction.PACKAGE, text_direction.MEMBER)
    X, y = text_direction.make_lines(32, text_direction.DIGITS, ["0", "180"], seed=0)
    curves = [
        OnnxSGDClassifier(
            path,
            classes=["0", "180"],
            engine=name,
            learning_rate="invscaling",
            eta0=1e-4,
            batch_size=16,
            max_iter=3,
            tol=None,
            random_state=0,
        )
        .fit(X, y)
        .loss_curve_
        for name in ("onnxruntime-training", "portable")
    ]
    np.testing.assert_allclose(*curves, rtol=1e-5)


# Silero: states that samples have in common, If, LSTM, reflected borders.

REFUSE = textwrap.dedent(
    """
    import sys
    import numpy as np, onnx
    from onnxsgd import OnnxSGDClassifier, OrtGradientForwardBackward, describe_trainable, onnx_derivative
    from onnxsgd.exceptions import OnnxSGDError

    def attempt(name, action):
        try:
            action()
            print(name, "works")
        except OnnxSGDError as error:
            print(name, "refused:", error)

    for path in sys.argv[1:]:
        model = onnx.load(path)
        output = model.graph.output[0].name
        X = {value.name: np.zeros((4, 576), np.float32) for value in model.graph.input}
        for engine in ("auto", "onnxruntime-training", "portable"):
            estimator = OnnxSGDClassifier(path, output=output, engine=engine, max_iter=1)
            attempt("fit", lambda: estimator.fit(X, [0, 1, 0, 1]))
            attempt("head", lambda: estimator.set_params(head="linear").fit(X, [0, 1, 0, 1]))
        attempt("derivative", lambda: onnx_derivative(model))
        attempt("forward-backward", lambda: OrtGradientForwardBackward(model))
        str(describe_trainable(path, output=output))
    print("survived")
    """
)


@pytest.mark.parametrize("names", [WITH_IF, pytest.param(WITHOUT_IF + OTHERS, marks=pytest.mark.slow)])
def test_silero_is_refused_and_nothing_aborts(names, examples):
    """The native builder crashes the interpreter on this network: it is refused first, with a reason."""
    if not orttraining.is_available():
        pytest.skip("the installed onnxruntime cannot train")
    paths = [fetch(examples, "silero-vad==6.2.3", f"silero_vad/data/{name}") for name in names]
    command = [sys.executable, "-c", REFUSE, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines[-1] == "survived"
    for line in lines[:-1]:
        # there may be a gradient, though no input with a row for each sample
        works = line in ("derivative works", "forward-backward works")
        assert works or re.search(r"refused: .{40,400}$", line), line
    assert lines.count("derivative works") == len(set(names) & RIGHT_GRADIENTS)
    assert lines.count("forward-backward works") == len(set(names) & (RIGHT_GRADIENTS - set(WITH_IF)))
    if names == WITH_IF:
        reasons = "\n".join(lines)
        assert "has shape (2, 'any', 128): each input must have one row for each sample" in reasons
        assert "the If '/model/If' that computes '/model/If_output_0', and If has no gradient" in reasons


def test_silero_has_right_gradients(examples):
    """Reflected borders, convolutions and an LSTM of a real network, against differences."""
    path = fetch(examples, "silero-vad==6.2.3", "silero_vad/data/silero_vad_16k_sequence.onnx")
    sound = 0.1 * np.random.default_rng(0).normal(size=(4, 576))
    state = np.zeros((1, 1, 128))
    report = check_gradients(
        onnx.load(path), output="speech_probs", inputs=["input"],
        weights=["stft.forward_basis_buffer", "encoder.1.weight", "onnx::LSTM_209", "onnx::LSTM_211"],
        feeds={"input": sound, "h": state, "c": state}, max_elements=5,
    )  # fmt: skip
    assert report.n_checked == 25


@pytest.mark.parametrize("name", ["silero_vad.onnx", "silero_vad_op18_ifless.onnx"])
def test_silero_has_right_gradients_through_branches(examples, name):
    """An If in an If around convolutions and an LSTM, and the same without branches, against differences."""
    path = fetch(examples, "silero-vad==6.2.3", f"silero_vad/data/{name}")
    rng = np.random.default_rng(0)
    sound, state = 0.1 * rng.normal(size=(1, 576)), 0.1 * rng.normal(size=(2, 1, 128))
    report = check_gradients(
        onnx.load(path), output="output", inputs=["input", "state"], weights=[],
        feeds={"input": sound, "state": state, "sr": np.array(16_000)}, max_elements=6,
    )  # fmt: skip
    assert report.n_checked == 12


# The networks that come with the onnx package: of opset 9, IR version 3, for one picture at a time.


def randomised(name):
    """Return one of them with random weights in the place of the ones that it computes."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    model = onnx.load(folder / f"light_{name}.onnx")
    graph, rng = model.graph, np.random.default_rng(0)
    shapes = {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "ConstantOfShape"]:
        shape = shapes[node.input[0]]
        spread = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.1
        array = (rng.normal(size=shape) * spread + (len(shape) == 1)).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
        graph.input.append(onnx.helper.make_tensor_value_info(node.output[0], 1, shape))
        graph.node.remove(node)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shufflenet", "squeezenet"])
def test_a_network_for_one_picture_takes_several(name, engine):
    """A batch size of 1 in the file, and in its Reshape nodes, is no obstacle to training."""
    model = randomised(name)
    pooled = next(node for node in reversed(model.graph.node) if "AveragePool" in node.op_type)
    X = np.random.default_rng(0).normal(size=(4, 3, 224, 224)).astype(np.float32)
    head = OnnxSGDClassifier(
        model, output=pooled.output[0], head="linear", engine=engine, trainable=lambda name: True,
        learning_rate="invscaling", eta0=1e-4,
        batch_size=2, max_iter=1, tol=None, random_state=0,
    ).fit(X, [0, 1, 1, 0])  # fmt: skip
    assert len(head.get_weights()) > 50
    alone = np.concatenate([head.decision_function(row[None]) for row in X])
    np.testing.assert_allclose(head.decision_function(X), alone, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adapt_magika", "adapt_text_direction"])
def test_the_examples_show_progress(name, request):
    """Each line of scores ends higher than it begins."""
    request.getfixturevalue(name.removeprefix("adapt_"))
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    scores = re.findall(r"accuracy (\d\.\d+) before, (\d\.\d+)", done.stdout)
    assert len(scores) == 2
    assert all(float(before) + 0.1 < float(after) for before, after in scores)
