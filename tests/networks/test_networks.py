"""Networks of torch's exporters: gradients, updates and predictions equal torch's.

The numbers are torch's, in float64, recorded by ``make.py``; no torch is needed here.
"""

import pickle
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from onnxsgd import (
    OnnxSGDClassifier,
    OnnxSGDRegressor,
    OrtGradientForwardBackward,
    describe_trainable,
    onnx_derivative,
)
from onnxsgd.graph.model import to_proto
from onnxsgd.runtime.cache import cache as cache_of_process

pytestmark = pytest.mark.networks

FILES = sorted(path.stem for path in Path(__file__).with_name("data").glob("*.npz"))


@pytest.fixture(name="network", params=FILES)
def _network(request):
    return Recorded(request.param)


class Recorded:
    """A network, its data, and torch's numbers.

    Attributes
    ----------
    model : ModelProto
        The file that torch wrote.
    X, y : dict of arrays, array
        The data.
    weights : dict of str to array
        The tensors that hold parameters, with their values.
    """

    def __init__(self, name):
        self.arrays = _read(name)
        self.model = onnx.load_from_string(self.arrays["model"].tobytes())
        self.X = {k.removeprefix("input "): v for k, v in self.arrays.items() if k.startswith("input ")}
        self.y = self.arrays["y"]
        tensors = {tensor.name: tensor for tensor in self.model.graph.initializer} | {
            node.output[0]: node.attribute[0].t
            for node in self.model.graph.node
            if node.op_type == "Constant" and node.attribute[0].name == "value"
        }
        self.weights = {
            name: numpy_helper.to_array(tensors[name]) for name in self.arrays["weights"].tolist()
        }

    def numbered(self, kind):
        """Return the arrays that are recorded for each output."""
        return [self.arrays[f"{kind} {i}"] for i in range(len(self.model.graph.output))]

    @property
    def gradients(self):
        """Return torch's gradients for the seeds."""
        return self._divided("gradient", self.weights)

    @property
    def trained(self):
        """The weights that 30 updates of torch change, after these."""
        return self._divided("trained", self.arrays["trained names"].tolist())

    def _divided(self, kind, names):
        sizes = [self.weights[name].size for name in names]
        parts = np.split(self.arrays[kind], np.cumsum(sizes)[:-1])
        return {name: part.reshape(self.weights[name].shape) for name, part in zip(names, parts, strict=True)}

    def estimator(self, **parameters):
        """Return an estimator that makes the recorded updates: 10 epochs of 3 batches, in order."""
        n_classes, output = int(self.arrays["classes"]), int(self.arrays["output"])
        settings = {
            "penalty": None, "learning_rate": "constant", "eta0": float(self.arrays["eta"]), "batch_size": 5,
            "shuffle": False, "max_iter": 10, "tol": None, "output": None if output < 0 else output,
        } | parameters  # fmt: skip
        if n_classes:
            return OnnxSGDClassifier(self.model, classes=list(range(n_classes)), **settings)
        return OnnxSGDRegressor(self.model, **settings)


@cache
def _read(name):
    with np.load(Path(__file__).with_name("data") / f"{name}.npz") as file:
        return dict(file)


def run(model, feeds, names=None):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(names, {value.name: feeds[value.name] for value in session.get_inputs()})


def assert_near(actual, expected, share):
    """Differences stay below a share of the largest of all the numbers, and of those of each tensor."""
    assert set(actual) == set(expected)
    largest = max(np.abs(array).max() for array in expected.values())
    for name, array in expected.items():
        limit = share * np.abs(array).max() + share / 100 * largest
        np.testing.assert_allclose(actual[name], array, rtol=0, atol=limit, err_msg=name)


def test_gradients(network):
    """The gradient of a weighted sum of all outputs, for every parameter, by the toolkit."""
    names = list(network.weights)
    gradient = onnx_derivative(network.model, weights=names, inputs=[])
    seeds = zip(network.model.graph.output, network.numbered("seed"), strict=True)
    feeds = network.X | network.weights | {f"{value.name}_grad": seed for value, seed in seeds}
    found = run(gradient, feeds, [f"{name}_grad" for name in names])
    assert_near(dict(zip(names, found, strict=True)), network.gradients, share=1e-4)


def test_forward_and_backward(network):
    """The same gradients in two passes: of the portable engine, and of the other one if it is chosen."""
    for owner in passes(network.model, list(network.weights)):
        function = owner.new_instance()
        outputs = function.forward([*network.X.values(), *network.weights.values()], training=True)
        results = [value.numpy().copy() for value in outputs]
        found = [value.numpy() for value in function.backward(network.numbered("seed"))]
        for result, expected in zip(results, network.numbered("result"), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
        assert_near(dict(zip(network.weights, found, strict=True)), network.gradients, share=1e-4)


def passes(model, weights):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    arguments = {"weights_to_train": weights, "input_names": [], "sess_options": options}
    yield (owner := OrtGradientForwardBackward(model, **arguments))
    if owner.engine_ != "portable":
        yield OrtGradientForwardBackward(model, engine="portable", **arguments)


def test_updates(network):
    """30 updates of a fit equal torch's in every tensor, and so do the predictions of its file."""
    estimator = network.estimator().fit(network.X, network.y)
    steps = {name: array - network.weights[name] for name, array in estimator.get_weights().items()}
    expected = {name: array - network.weights[name] for name, array in network.trained.items()}
    assert_near(steps, expected, share=5e-4)
    assert estimator.n_iter_ == 10
    raw = (estimator.decision_function if network.arrays["classes"] else estimator.predict)(network.X)
    expected = network.arrays["trained result"]
    # torch itself in float32 differs from float64 by 2e-5 of the largest score, with weights changed by 6e-8
    limit = 1e-4 * np.abs(expected).max()
    np.testing.assert_allclose(raw.reshape(expected.shape), expected, rtol=0, atol=limit)
    found = [array for array in run(estimator.to_onnx(), network.X) if array.dtype.kind == "f"]
    assert any(
        array.size == raw.size and np.allclose(array.reshape(raw.shape), raw, atol=1e-5) for array in found
    )


def test_a_new_head(network):
    """A linear layer on the last layer's input trains, and its file predicts the same."""
    last = network.model.graph.node[-1]
    source = next(n for n in network.model.graph.node if last.input[0] in n.output)
    y = np.arange(15) % 3
    head = OnnxSGDClassifier(
        network.model,
        output=source.output[0],
        head="linear",
        learning_rate="constant",
        eta0=0.01,
        penalty=None,
        max_iter=3,
        tol=None,
        random_state=0,
    ).fit(network.X, y)
    assert list(head.get_weights()) == ["coef", "intercept"]
    assert head.loss_curve_[-1] < head.loss_curve_[0]
    (probabilities,) = run(head.to_onnx(), network.X, ["probabilities"])
    np.testing.assert_allclose(probabilities, head.predict_proba(network.X), atol=1e-5)


@pytest.mark.parametrize("kind", [pytest.param("all weights", marks=pytest.mark.slow), "head"])
def test_a_pickle_has_two_kilobytes_of_its_own(network, kind):
    """Beside those of the graph, and 1.1 times weights and state; another process reads the same network."""
    X, parameters = network.X, {"penalty": None, "max_iter": 1, "tol": None, "random_state": 0}
    if kind == "head":
        last = network.model.graph.node[-1]
        source = next(n for n in network.model.graph.node if last.input[0] in n.output)
        estimator = OnnxSGDClassifier(network.model, output=source.output[0], head="linear", **parameters)
        estimator.fit(X, np.arange(15) % 3)
    else:
        estimator = network.estimator(learning_rate="auto", eta0=None, **parameters).fit(X, network.y)
    content, state = pickle.dumps(estimator), estimator._state
    moments = [part for m in state.moments.values() for part in (m.count, m.mean, m.squares, m.total)]
    learned = [*state.tensors.values(), state.random_state.get_state()[1], *moments]
    n_bytes = sum(np.asarray(array).nbytes for array in learned)
    assert len(content) - len(pickle.dumps(network.model)) - 1.1 * n_bytes <= 2048
    cache_of_process.clear()
    restored = pickle.loads(content)
    assert restored.to_onnx() == estimator.to_onnx()
    graphs = [to_proto(each._learner.with_weights(state.weights())) for each in (restored, estimator)]
    assert graphs[0] == graphs[1]


@pytest.mark.native
def test_both_engines_train_the_same(network):
    """The other engine trains the same tensors, or names the obstacle."""
    output = network.estimator().output
    expected = describe_trainable(network.model, output=output).trained
    report = describe_trainable(network.model, output=output, engine="onnxruntime-training")
    assert report.trained == expected or "lies before the" in str(report.problem)
