"""Every public function that takes a model, called as a user would call it."""

import tempfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

import onnxsgd
from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, OrtGradientForwardBackward
from onnxsgd.exceptions import GraphError
from onnxsgd.testing import check_gradients

N_SAMPLES = 4


def _loss(model):
    onnxsgd.add_loss_output(model, output_index=0, weight_name="sample_weight_", label_name="label_")


def _log_loss(model):
    onnxsgd.add_loss_output(model, "log", output_index=-1, penalty=None)


def _forward_backward(engine):
    def call(model):
        function = OrtGradientForwardBackward(model, engine=engine)
        instance = function.new_instance()
        names = instance._grad_input_names
        feed = onnxsgd.random_feed(model, batch=2)
        tensors = [feed[name] if name in feed else function.get_initializer(name) for name in names]
        outputs = instance.forward(tensors, training=True)
        instance.backward(
            [np.ones(outputs[i].shape(), outputs[i].numpy().dtype) for i in instance._grad_positions]
        )

    return call


def _file(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(content)
        onnxsgd.describe_trainable(path)


def _plot(content):
    plot = onnxsgd.plot_graph(content, max_nodes=12)
    ElementTree.fromstring(plot.svg)
    assert str(plot)


def _regressor(content):
    X, n_columns = _samples(content)
    y = np.arange(N_SAMPLES * n_columns, dtype=np.float32).reshape(N_SAMPLES, n_columns)
    _fit(OnnxSGDRegressor(content, random_state=0), X, y[:, 0] if n_columns == 1 else y)


def _classifier(content):
    X, n_columns = _samples(content)
    _fit(OnnxSGDClassifier(content, random_state=0), X, np.arange(N_SAMPLES) % max(2, min(n_columns, 4)))


def _fit(estimator, X, y):
    estimator.set_params(max_iter=1, tol=None).fit(X, y)
    estimator.predict(X)
    estimator.to_onnx()


def _samples(content):
    """Return samples of the shape that the graph declares, and the number of columns of its first output."""
    from onnxsgd.graph.loading.load import load_model

    graph = load_model(content).graph
    feed = onnxsgd.random_feed(graph.input, batch=N_SAMPLES)
    sizes = [d.dim_value for d in graph.output[0].type.tensor_type.shape.dim] if graph.output else []
    n_columns = min(sizes[-1], 10) if len(sizes) > 1 and sizes[-1] > 0 else 1
    for array in feed.values():
        if array.ndim < 2 or len(array) != N_SAMPLES or not array.size or array.dtype.kind not in "fiu":
            raise GraphError("The graph takes no samples.")
    X = feed if len(feed) != 1 else next(iter(feed.values()))
    return X, n_columns


#: Each function, and True if it takes a message rather than bytes.
CALLS = {
    "get_train_initializer": (onnxsgd.get_train_initializer, True),
    "random_feed": (onnxsgd.random_feed, True),
    "describe_trainable": (onnxsgd.describe_trainable, False),
    "describe_trainable of a file": (_file, False),
    "plot_graph": (_plot, False),
    "add_loss_output": (_loss, True),
    "add_loss_output log": (_log_loss, True),
    "onnx_derivative": (onnxsgd.onnx_derivative, True),
    "portable forward and backward": (_forward_backward("portable"), True),
    "forward and backward": (_forward_backward("auto"), True),
    "check_gradients": (
        lambda model: check_gradients(model, output=0, n_samples=2, max_elements=1, rtol=1e6, atol=1e6),
        True,
    ),
    "regressor": (_regressor, False),
    "classifier": (_classifier, False),
}
