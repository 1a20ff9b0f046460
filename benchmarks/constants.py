"""Measured constants: the time with each choice, on both sides of a limit.

``python benchmarks/constants.py --constant NAME`` prints, for each size of the work and each value of the
constant, the best time, and its ratio to that with the first value; without a name, all of them. A limit is
set to its extremes, so that either choice is made at every size; the size at which the ratio crosses 1 is the
limit. Processor time of one thread by default, which other processes on the machine disturb little.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx.parser
from measure import interleave

__all__ = ["CONSTANTS", "Constant"]

_NEVER, _ALWAYS = 0, 10**9
_ROUNDS, _SECONDS = 9, 0.1
_RNG = np.random.default_rng(0)

#: A number no two fits share: equal structures would reuse compiled steps.
_fresh = itertools.count(5)


@dataclass(frozen=True)
class Constant:
    """A constant of a module, the values to compare, and the work.

    Attributes
    ----------
    module : str
        The module, below ``onnxsgd``.
    values : sequence
        The values of the constant; the first is compared with the others.
    sizes : sequence of int
        The sizes of the work.
    work : callable
        From a size to a function without arguments, the unit of work; called under each value.
    clock : {"cpu", "wall"}
        The clock.
    """

    module: str
    values: Sequence[int]
    sizes: Sequence[int]
    work: Callable[[int], Callable[[], object]]
    clock: str = "cpu"

    def measure(self, name: str) -> None:
        """Print a row for each size."""
        module = importlib.import_module(f"onnxsgd.{self.module}")
        print(f"{self.module}.{name} = {getattr(module, name)!r}")
        for size in self.sizes:
            blocks = {str(value): self._block(module, name, value, size) for value in self.values}
            samples = interleave(blocks, _ROUNDS, _SECONDS, self.clock)
            first = samples[str(self.values[0])]
            cells = (
                f"{value}: {1e6 * found.best:.0f} us (x {found.ratio_to(first):.2f})"
                for value, found in samples.items()
            )
            print(f"  size {size:>9}:  " + "   ".join(cells), flush=True)

    def _block(self, module: Any, name: str, value: int, size: int) -> Callable[[int], None]:
        with patch.object(module, name, value):
            unit = self.work(size)
        unit()

        def block(units: int) -> None:
            with patch.object(module, name, value):
                for _ in range(units):
                    unit()

        return block


def _session(model: onnx.ModelProto, n_threads: int = 1) -> Callable[[], object]:
    """Return a run of a model on random inputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {
        value.name: _RNG.normal(size=[size if isinstance(size, int) else 1 for size in value.shape])
        for value in session.get_inputs()
    }
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    return lambda: session.run(None, feeds)


def _gradient(
    node: str, x: Sequence[int], w: Sequence[int] | None, wrt: str, n_threads: int = 1
) -> Callable[[], object]:
    """Return a run of the gradient with respect to an operand, or to both."""
    from onnxsgd.gradient.derivative import onnx_derivative

    tensors = {"X": x, **({"W": w} if w else {})}
    inputs = ", ".join(f"float[{', '.join(map(str, shape))}] {name}" for name, shape in tensors.items())
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => (float[A] Y) {{ {node} }}'
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return _session(onnx_derivative(model, inputs=list(wrt), engine="portable"), n_threads)


def _conv_weight(x: Sequence[int], w: Sequence[int], attributes: str = "") -> Callable[[], object]:
    kernel = w[2:]
    pads = [k // 2 for k in kernel] * 2 if "strides" not in attributes else [0] * 2 * len(kernel)
    return _gradient(f"Y = Conv<pads={pads}{attributes}>(X, W)", x, w, "W")


def _conv_image(x: Sequence[int], w: Sequence[int]) -> Callable[[], object]:
    pads = [k // 2 for k in w[2:]] * 2
    return _gradient(f"Y = Conv<pads={pads}>(X, W)", x, w, "X")


def _few_results(m: int, times: int = 4, n: int = 8) -> Callable[[], object]:
    """Return a convolution of 3 x 3 taps of images with so many times the channels of the result."""
    from onnxsgd.graph.lowering.forms import FEW_CHANNEL_FORMS, write_out
    from onnxsgd.graph.model import to_ir, to_proto

    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[{n}, {m * times}, 16, 16] X, '
        f"float[{m}, {m * times}, 3, 3] W) => (float[{n}, {m}, 16, 16] Y)"
        "{ Y = Conv<pads = [1, 1, 1, 1]>(X, W) }"
    )
    written = to_ir(model)
    write_out(written, FEW_CHANNEL_FORMS)
    return _session(to_proto(written))


def _recurrent_weights(hidden: int, inputs: int = 16, directions: int = 2) -> Callable[[], object]:
    """Return a run of the gradients of the weights of an LSTM, for 8 samples of 20 steps."""
    from onnxsgd.gradient.derivative import onnx_derivative

    kind = "bidirectional" if directions == 2 else "forward"
    shapes = {
        "X": (20, 8, inputs),
        "W": (directions, 4 * hidden, inputs),
        "R": (directions, 4 * hidden, hidden),
        "B": (directions, 8 * hidden),
    }
    operands = ", ".join(f"float[{', '.join(map(str, shape))}] {name}" for name, shape in shapes.items())
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g ({operands}) => (float[20, {directions}, 8, {hidden}] Y)'
        f'{{ Y = LSTM<hidden_size = {hidden}, direction = "{kind}">(X, W, R, B) }}'
    )
    return _session(onnx_derivative(model, inputs=["W", "R", "B"], engine="portable"))


def _patches(size: int) -> Callable[[], object]:
    return _conv_weight((8, 3, 8 * size, 8 * size), (32, 3, size, size), f", strides=[{size}, {size}]")


def _pool(kernel: int, size: int) -> Callable[[], object]:
    shape = f"kernel_shape=[{kernel}, {kernel}], strides=[{kernel}, {kernel}]"
    return _gradient(f"Y = MaxPool<{shape}>(X)", (16, 8, size, size), None, "X")


def _large_pool(size: int) -> Callable[[], object]:
    """Return a run of a pool of 8 rectified images of 16 channels, and of its gradient, as in a step."""
    import onnx_ir as ir

    from onnxsgd.gradient.derivative import forward_backward_model
    from onnxsgd.graph.lowering.forms import COMPARED_POOL_FORMS, POOL_FORMS, write_out

    text = f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[8, 16, {size}, {size}] X) => (float[8, 16, {size // 2}, {size // 2}] Y)
        {{ R = Relu(X) Y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(R) }}"""
    forward = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    write_out(forward, POOL_FORMS)
    both = forward_backward_model(forward, [], ["X"], "portable")
    write_out(both, COMPARED_POOL_FORMS)
    both.graph.sort()
    return _session(ir.to_proto(both))


def _depthwise(channels: int, size: int, kernel: int = 3) -> Callable[[], object]:
    return _conv_weight((8, channels, size, size), (channels, 1, kernel, kernel), f", group={channels}")


def _small_images(n: int, channels: int, size: int, kernel: int = 3, group: int = 1) -> Callable[[], object]:
    """Return an update of the weight of a convolution of small squares, with the gradient of its image."""
    image, weight = (n, channels, size, size), (channels, channels // group, kernel, kernel)
    return _update(f"group = {group}, pads = {4 * [kernel // 2]}", image, weight, image, {})


def _update(
    moves: str, image: Sequence[int], weight: Sequence[int], result: Sequence[int], forms: Mapping[Any, Any]
) -> Callable[[], object]:
    """Return an update of the weight of a convolution, with the gradient of its image.

    `forms` are those of graphs with their gradients.
    """
    import onnx_ir as ir

    from onnxsgd.engine.step.fuse import fuse
    from onnxsgd.gradient.derivative import forward_backward_model
    from onnxsgd.graph.append import appending
    from onnxsgd.graph.lowering.forms import SMALL_IMAGE_FORMS, write_out

    text = f"""<ir_version: 9, opset_import: ["": 18]>
        g (float{list(image)} X, float{list(weight)} W) => (float{list(result)} Y)
        {{ Y = Conv<{moves}>(X, W) }}"""
    forward = ir.from_proto(onnx.parser.parse_model(text))
    write_out(forward, SMALL_IMAGE_FORMS)
    both = forward_backward_model(forward, [], ["X", "W"], "portable")
    values = {value.name: value for value in (*both.graph.inputs, *both.graph.outputs)}
    with appending(both.graph) as op:
        new = op.Add(values["W"], values["W_grad"])
    new.name, new.type, new.shape = "W_new", values["W"].type, values["W"].shape
    both.graph.outputs[:] = [values["Y"], values["X_grad"], new]
    write_out(both, forms)
    both.graph.sort()
    fuse(both)
    return _session(ir.to_proto(both))


def _sequences(
    channels: int, length: int, kernel: int, stride: int = 1, group: int = 1
) -> Callable[[], object]:
    """Return an update of the weight of a convolution of 8 sequences, with the gradient of its input."""
    from onnxsgd.graph.lowering.forms import SEQUENCE_FORMS

    pad = kernel // 2 if stride == 1 else 0
    places = (length + 2 * pad - kernel) // stride + 1
    return _update(
        f"strides = [{stride}], group = {group}, pads = [{pad}, {pad}]",
        (8, channels, length),
        (channels, channels // group, kernel),
        (8, channels, places),
        SEQUENCE_FORMS,
    )


def _standardized(channels: int, taps: int, stride: int, length: int = 1024) -> Callable[[], object]:
    """Return an update of the weights of a convolution of 8 sequences whose result is standardized."""
    import onnx_ir as ir

    from onnxsgd.gradient.derivative import forward_backward_model
    from onnxsgd.graph.lowering.forms import standardized_window_forms, write_out

    places, weights = (length - taps) // stride + 1, ["W", "S", "B"]
    text = f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[8, 1, {length}] X, float[{channels}, 1, {taps}] W, float[{channels}] S, float[{channels}] B)
        => (float[8, {channels}, {places}] Y)
        {{ C = Conv<strides = [{stride}]>(X, W) N = InstanceNormalization(C, S, B) Y = Tanh(N) }}"""
    forward = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    write_out(forward, standardized_window_forms(weights))
    return _session(ir.to_proto(forward_backward_model(forward, [], weights, "portable")))


def _rows_of_patches(size: int, image: int) -> Callable[[], object]:
    """Return an update of the weights of an embedding of patches of 8 images, in rows."""
    import onnx_ir as ir

    from onnxsgd.gradient.derivative import forward_backward_model
    from onnxsgd.graph.lowering.forms import PATCH_FORMS, write_out

    text = f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[8, 3, {image}, {image}] X, float[64, 3, {size}, {size}] W, float[64] B)
        => (float[8, {(image // size) ** 2}, 64] Y)
        <int64[3] sizes = {{8, 64, {(image // size) ** 2}}}>
        {{ C = Conv<strides = [{size}, {size}]>(X, W, B) R = Reshape(C, sizes)
           T = Transpose<perm = [0, 2, 1]>(R) Y = Tanh(T) }}"""
    forward = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    write_out(forward, PATCH_FORMS)
    return _session(ir.to_proto(forward_backward_model(forward, [], ["W", "B"], "portable")))


def _number_beside_a_column(rows: int) -> Callable[[], object]:
    """Return the fused form of a weighted residual: a column times a number that is fed."""
    import onnx_ir as ir

    from onnxsgd.engine.step.fuse import fuse

    text = f"""<ir_version: 9, opset_import: ["": 18]> g (float[{rows}, 1] x, float[{rows}, 1] z, float[1] s)
        => (float[{rows}, 1] y) {{ d = Sub(x, z) e = Mul(d, s) f = Add(e, s) y = Mul(f, d) }}"""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    fuse(model)
    return _session(ir.to_proto(model))


def _fit_from_scratch(n_steps: int) -> Callable[[], object]:
    """Return a fit of five epochs that compiles its step."""
    from onnxsgd import OnnxSGDRegressor

    def fit() -> object:
        X = _RNG.normal(size=(2 * n_steps, next(_fresh))).astype(np.float32)
        estimator = OnnxSGDRegressor(
            max_iter=5, tol=None, batch_size=10, learning_rate="invscaling", eta0=1e-4
        )
        return estimator.fit(X, X[:, 0])

    return fit


def _network_fit(n_steps: int, *, again: bool = False) -> Callable[[], object]:
    """Return a fit of one epoch of a network, whose structure is new in each fit, or the same `again`."""
    from trainers.ours import make_graph
    from workloads import Workload, make_task

    from onnxsgd import OnnxSGDRegressor

    def prepare(width: int) -> tuple[Any, ...]:
        workload = Workload("mlp", (20, width, 50, 1), "regression", max_updates=n_steps)
        task = make_task(workload, 32, 1)
        return make_graph(workload, task.initial), task.X[: 32 * n_steps], task.y[: 32 * n_steps]

    def fit() -> object:
        graph, X, y = same if again else prepare(100 + next(_fresh))
        return OnnxSGDRegressor(graph, max_iter=1, tol=None, learning_rate="constant", eta0=1e-3).fit(X, y)

    same = prepare(100 + next(_fresh))
    return fit


def _wide_batches(batch_size: int) -> Callable[[], object]:
    """Return a fit of a network, of a structure of its own, that is compiled already."""
    return _network_fit((20 + next(_fresh), 100, 50, 1), batch_size, 100)


def _few_inputs(n_inputs: int) -> Callable[[], object]:
    """Return a fit of a network of so many inputs, of a structure of its own, that is compiled already."""
    return _network_fit((n_inputs, 100, 50 + next(_fresh), 1), 32, 200)


def _few_rows(batch_size: int) -> Callable[[], object]:
    """Return a fit of a network in batches of so many rows, of a structure of its own, that is compiled."""
    return _network_fit((20, 100, 44 + next(_fresh), 1), batch_size, 400)


def _even_rows(batch_size: int) -> Callable[[], object]:
    """Return the same of so many batches that their loop may have weights in other units."""
    return _network_fit((20, 100, 44 + next(_fresh), 1), batch_size, 1024)


def _network_fit(sizes: tuple[int, ...], batch_size: int, max_updates: int) -> Callable[[], object]:
    """Return a fit of a network of these layers by plain SGD, that is compiled already."""
    from trainers.ours import make_graph
    from workloads import Workload, make_task

    from onnxsgd import OnnxSGDRegressor

    workload = Workload("mlp", sizes, "regression", max_updates=max_updates)
    task = make_task(workload, batch_size, 1)
    estimator = OnnxSGDRegressor(
        make_graph(workload, task.initial), batch_size=batch_size, max_iter=4, tol=None, n_threads=1,
        learning_rate="constant", eta0=1e-3, penalty=None,
    )  # fmt: skip
    estimator.fit(task.X, task.y)
    return lambda: estimator.fit(task.X, task.y)


def _wide_layer(n_units: int) -> Callable[[], object]:
    """Return a fit of a network, whose first layer has 128 inputs and so many units, that is compiled."""
    return _network_fit((128, n_units, 43 + next(_fresh), 1), 8, 400)


def _classifier(n_inputs: int) -> Callable[[], object]:
    """Return a fit of a network whose last layer has so many inputs, and 10 outputs, that is compiled."""
    from trainers.ours import make_graph
    from workloads import Workload

    from onnxsgd import OnnxSGDClassifier

    sizes = (20 + next(_fresh), n_inputs, 10)
    layers = [
        (0.1 * _RNG.normal(size=shape).astype(np.float32), np.zeros(shape[1], np.float32))
        for shape in itertools.pairwise(sizes)
    ]
    X, y = _RNG.normal(size=(6_400, sizes[0])).astype(np.float32), np.arange(6_400) % 10
    estimator = OnnxSGDClassifier(
        make_graph(Workload("mlp", sizes, "multiclass"), layers), batch_size=32, max_iter=4, tol=None,
        n_threads=1, learning_rate="constant", eta0=1e-3,
    )  # fmt: skip
    estimator.fit(X, y)
    return lambda: estimator.fit(X, y)


def _epochs(n_features: int) -> Callable[[], object]:
    """Return an epoch of a network, of names of its own, over more data than a cache holds."""
    from trainers.ours import make_graph
    from workloads import Workload, make_task

    from onnxsgd import OnnxSGDRegressor

    workload = Workload(
        "mlp", (n_features, 50, 1), "regression", max_rows=2_000_000 // n_features, max_updates=1_000_000
    )
    task = make_task(workload, 32, 1)
    graph = make_graph(workload, task.initial)
    for node in graph.graph.node:
        node.name = f"node{next(_fresh)}"
    estimator = OnnxSGDRegressor(
        graph, batch_size=32, max_iter=1, tol=None, n_threads=1,
        learning_rate="constant", eta0=1e-3, penalty=None,
    )  # fmt: skip
    return lambda: estimator.fit(task.X, task.y)


def _orders(n_samples: int) -> Callable[[], object]:
    """Return the order of an epoch."""
    from onnxsgd.data.random_order import shuffled

    random_state = np.random.RandomState(0)
    return lambda: shuffled((1, n_samples), random_state)


def _linear_epochs(
    batch_size: int, n_features: int = 20, optimizer: str | None = None
) -> Callable[[], object]:
    """Return two epochs of a linear classifier, under plain SGD if no optimizer is named."""
    from onnxsgd import OnnxSGDClassifier

    n_rows = 4_000 * min(batch_size, 8)
    X = _RNG.normal(size=(n_rows, n_features)).astype(np.float32)
    y = X[:, 0] > 0
    estimator = OnnxSGDClassifier(
        batch_size=batch_size, learning_rate="constant", eta0=0.01, max_iter=2, tol=None, random_state=0,
        optimizer=optimizer,
    )  # fmt: skip
    return lambda: estimator.fit(X, y)


def _predictions(n_features: int) -> Callable[[], object]:
    from sklearn.neural_network import MLPRegressor

    from onnxsgd import OnnxSGDRegressor

    X = _RNG.normal(size=(100_000, n_features)).astype(np.float32)
    network = MLPRegressor(hidden_layer_sizes=(32,), solver="lbfgs", max_iter=50).fit(X[:200], X[:200, 0])
    estimator = OnnxSGDRegressor(network, max_iter=1, tol=None).partial_fit(X[:200], X[:200, 0])
    return lambda: estimator.predict(X)


def _sparse_predictions(n_features: int) -> Callable[[], object]:
    from scipy import sparse

    from onnxsgd import OnnxSGDRegressor

    X = sparse.random(20_000, n_features, 0.01, "csr", np.float32, random_state=0)
    estimator = OnnxSGDRegressor(max_iter=1, tol=None).partial_fit(X[:200], np.arange(200.0))
    return lambda: estimator.predict(X)


def _ranges(n_features: int) -> Callable[[], object]:
    """Return the search for the extremes of each column."""
    from onnxsgd.learner.dtype_choice import _bounds

    X = _RNG.normal(size=(4_000_000 // n_features, n_features))
    return lambda: _bounds(X)


def _perceptron(width: int, n_threads: int) -> Callable[[], object]:
    """Return three products of 64 rows by a square matrix: forward, and both gradients."""
    return _gradient("Y = MatMul(X, W)", (64, width), (width, width), "XW", n_threads)


def _threads(width: int) -> None:
    """Print the times of one thread and of two, for the multiplications of a step."""
    blocks = {str(n): _repeat(_perceptron(width, n)) for n in (1, 2)}
    samples = interleave(blocks, _ROUNDS, _SECONDS, "wall")
    work = 3 * 64 * width**2
    ratio = samples["2"].ratio_to(samples["1"])
    cells = (f"{n} threads: {1e6 * found.best:.0f} us" for n, found in samples.items())
    print(f"  size {work:>9}:  " + "   ".join(cells) + f" (x {ratio:.2f})", flush=True)


def _repeat(unit: Callable[[], object]) -> Callable[[int], None]:
    def block(units: int) -> None:
        for _ in range(units):
            unit()

    return block


_RULES, _FORMS = "gradient.portable.rules", "graph.lowering.forms"

#: The constants by name; one name may belong to several modules.
CONSTANTS: dict[str, list[Constant]] = {
    "ENOUGH": [
        Constant(f"{_RULES}.tap_weight", (_NEVER, _ALWAYS), (49, 100, 196, 400, 784),
                 lambda places: _conv_weight((16, 16, *2 * [math.isqrt(places)]), (16, 16, 3, 3))),
    ],
    "_LANES": [
        Constant(f"{_RULES}.tap_weight", (_NEVER, _ALWAYS), (4, 8, 16, 32),
                 lambda channels: _conv_weight((8, channels, 14, 14), (32, channels, 3, 3))),
    ],
    "_TAPS": [
        Constant(f"{_RULES}.tap_weight", (_NEVER, _ALWAYS), (9, 25, 49, 81, 121),
                 lambda taps: _conv_weight((8, 16, 24, 24), (16, 16, math.isqrt(taps), math.isqrt(taps)))),
        Constant(f"{_RULES}.patch_weight", (_ALWAYS, _NEVER), (2, 4, 8), _patches),
        Constant(f"{_RULES}.max_pool", (_NEVER, _ALWAYS), (2, 4), lambda kernel: _pool(kernel, 32)),
        Constant(f"{_FORMS}.patches", (_ALWAYS, 1), (4, 8), lambda size: _rows_of_patches(size, 32)),
        Constant(f"{_FORMS}.patches", (_ALWAYS, 1), (16,), lambda size: _rows_of_patches(size, 224)),
    ],
    "_MOST_WINDOWS": [
        Constant(f"{_FORMS}.patches", (_NEVER, _ALWAYS), (4, 8), lambda size: _rows_of_patches(size, 224)),
    ],
    "_GROUPED_TAPS": [
        Constant(f"{_RULES}.tap_weight", (_NEVER, _ALWAYS), (3, 5, 9, 16, 32, 128),
                 lambda taps: _conv_weight((8, 64, 24), (64, 8, taps), ", group=8")),
        Constant(f"{_RULES}.tap_weight", (_NEVER, _ALWAYS), (24, 100, 400),
                 lambda length: _conv_weight((8, 64, length), (64, 8, 16), ", group=8")),
    ],
    "_CONNECTED": [
        Constant(f"{_FORMS}.small_images", (_NEVER, _ALWAYS), (2, 3, 4, 5, 6, 8),
                 lambda size: _small_images(8, 128, size)),
        Constant(f"{_FORMS}.small_images", (_NEVER, _ALWAYS), (2, 4, 5),
                 lambda size: _small_images(64, 64, size)),
    ],
    "_ONE_TAP": [
        Constant(f"{_FORMS}.small_images", (_NEVER, _ALWAYS), (1, 2, 3, 4, 8),
                 lambda size: _small_images(8, 256, size, 1)),
    ],
    "_RATIO": [
        Constant(f"{_RULES}.tap_weight", (_ALWAYS, 1), (8, 16, 32, 64),
                 lambda channels: _conv_weight((8, channels, 16, 16), (8, channels, 3, 3))),
        Constant(f"{_RULES}.tap_weight", (_ALWAYS, 2), (7, 14, 28),
                 lambda size: _conv_weight((8, 128, size, size), (64, 128, 3, 3))),
        Constant(f"{_FORMS}.standardized_windows", (_ALWAYS, 1), (8, 10, 16),
                 lambda taps: _standardized(32, taps, taps // 2)),
    ],
    "_TERMS": [
        Constant("engine.step.widened_factors", (_NEVER, _ALWAYS), (2, 8, 16, 32, 64),
                 lambda n: _small_images(n, 512, 1)),
    ],
    "_SINGLE": [
        Constant(f"{_FORMS}.small_images", (_NEVER, _ALWAYS), (1, 2, 4, 8, 10, 12),
                 lambda size: _small_images(8, 192, size, 3, 192)),
    ],
    "_ROW": [
        Constant(f"{_RULES}.channels_last_weight", (_NEVER, _ALWAYS), (25, 100, 400),
                 lambda length: _conv_weight((8, 32, length), (32, 32, 3))),
    ],
    "_LEAST": [
        Constant(f"{_RULES}.sequence_windows", (_ALWAYS, 1), (4, 8, 16, 32, 64, 128),
                 lambda channels: _sequences(channels, 99, 3, 2)),
        Constant(f"{_RULES}.sequence_windows", (_ALWAYS, 1), (9, 25, 49, 199, 400, 1600),
                 lambda length: _sequences(32, length, 3, 2)),
        Constant(f"{_FORMS}.standardized_windows", (_ALWAYS, 1), (24, 32, 64, 256),
                 lambda channels: _standardized(channels, 8, 4)),
    ],
    "_SHORT": [
        Constant(f"{_FORMS}.sequence_convolutions", (-1, _ALWAYS), (8, 24, 48, 100),
                 lambda length: _sequences(64, length, 3, 1, 8)),
        Constant(f"{_FORMS}.sequence_convolutions", (-1, _ALWAYS), (100, 200),
                 lambda length: _sequences(64, length, 7, 1, 8)),
    ],
    "_MANY": [
        Constant(f"{_FORMS}.sequence_convolutions", (_ALWAYS, 1), (100, 200, 400),
                 lambda length: _sequences(64, length, 16, 1, 8)),
    ],
    "_MOST": [
        Constant(f"{_RULES}.sequence_windows", (_NEVER, _ALWAYS), (64, 128, 256, 512),
                 lambda channels: _sequences(channels, 99, 3, 2)),
        Constant(f"{_FORMS}.few_channels", (_NEVER, _ALWAYS), (4, 8, 16, 32, 64), _few_results),
        Constant(f"{_FORMS}.few_channels", (_NEVER, _ALWAYS), (4, 8, 16, 32),
                 lambda m: _few_results(m, n=1)),
    ],
    "_TIMES": [
        Constant(f"{_FORMS}.few_channels", (_ALWAYS, 1), (1, 2, 4, 8),
                 lambda times: _few_results(8, times)),
    ],
    "_ROWS": [
        Constant(f"{_RULES}.recurrent", (_NEVER, _ALWAYS), (8, 16, 32, 48, 64, 96, 128), _recurrent_weights),
        Constant(f"{_RULES}.recurrent", (_NEVER, _ALWAYS), (32, 48, 64, 96, 128),
                 lambda hidden: _recurrent_weights(hidden, 64)),
        Constant(f"{_RULES}.recurrent", (_NEVER, _ALWAYS), (16, 32, 64, 96, 128),
                 lambda hidden: _recurrent_weights(hidden, 16, 1)),
    ],
    "_PLACES": [
        Constant(f"{_RULES}.channels_last_weight", (_NEVER, _ALWAYS), (4, 8, 14, 28, 56),
                 lambda size: _conv_weight((8, 64, size, size), (64, 64, 3, 3))),
        Constant(f"{_RULES}.max_pool", (_NEVER, _ALWAYS), (8, 16, 32, 56), lambda size: _pool(2, size)),
        Constant(f"{_FORMS}.max_pools", (_ALWAYS, 1024), (48, 64, 112, 224), _large_pool),
    ],
    "_WEIGHTS_PER_ELEMENT": [
        Constant(f"{_RULES}.convolution_image", (_NEVER, _ALWAYS), (8, 16, 24, 32),
                 lambda size: _conv_image((1, 128, size, size), (128, 128, 3, 3))),
    ],
    "_MATRIX": [
        Constant(f"{_RULES}.convolution_image", (_NEVER, _ALWAYS), (3, 5, 7, 9, 11),
                 lambda size: _conv_image((4, 16, 24, 24), (16, 16, size, size))),
    ],
    "_BLOCK": [
        Constant(f"{_RULES}.depthwise_weight", (16, 8, 32), (56, 112), lambda size: _depthwise(32, size)),
        Constant("engine.predict", (16_384, 1_024, 4_096, 65_536), (8, 64), _predictions),
        Constant("learner.dtype_choice", (1 << 16, 1 << 13, 1 << 19, 1 << 22), (8, 100), _ranges),
    ],
    "_NARROW": [
        Constant(f"{_RULES}.depthwise_weight", (_NEVER, _ALWAYS), (16, 24, 32, 48, 64, 112),
                 lambda size: _depthwise(32, size)),
    ],
    "_COPY": [
        Constant(f"{_RULES}.depthwise_weight", (14, _NEVER, _ALWAYS), (4, 7, 14, 28),
                 lambda size: _depthwise(64, size)),
    ],
    "_LONG": [
        Constant("engine.step.fuse", (_NEVER, _ALWAYS), (16, 64, 256, 4_096), _number_beside_a_column),
        Constant("learner.dtype_choice", (512, 1, 64, 4_096), (8, 100, 400), _ranges),
        Constant("data.random_order", (_ALWAYS, _NEVER), (100, 500, 1_000, 2_000, 10_000, 100_000), _orders),
    ],
    "_MANY_BATCHES": [
        Constant("training.program", (_NEVER, _ALWAYS), (8, 16, 32, 64, 128, 256, 512), _network_fit),
        Constant("training.program", (_NEVER, _ALWAYS), (8, 32, 64, 128), partial(_network_fit, again=True)),
    ],
    "_MANY_STEPS": [
        Constant("training.program", (_NEVER, _ALWAYS), (100, 250, 500, 1_000, 4_000), _fit_from_scratch),
    ],
    "_MOST_NUMBERS": [
        Constant("training.linear_runner", (_NEVER, _ALWAYS), (1, 4, 8, 16, 32, 64), _linear_epochs),
    ],
    "_MOST_NUMBERS_OF_BLOCKS": [
        Constant("training.linear_runner", (_NEVER, _ALWAYS), (20, 64, 100, 150, 200, 300),
                 lambda n_features: _linear_epochs(32, n_features, "block_adam")),
    ],
    "_FEWEST_ROWS": [
        Constant("engine.step.transposed_tables", (_ALWAYS, _NEVER), (16, 32, 64, 128, 256), _wide_batches),
    ],
    "_MOST_INPUTS": [
        Constant(
            "engine.step.joined_intercepts", (_NEVER, _ALWAYS), (5, 8, 20, 31, 41, 60, 100), _few_inputs,
        ),
    ],
    "_MOST_ROWS": [
        Constant("engine.step.constant_units", (_NEVER, _ALWAYS), (1, 4, 10, 16, 24, 31), _few_rows),
    ],
    "MOST_ROWS": [
        Constant("engine.step.scan_epoch", (0, 1_000), (4, 10, 16, 32, 64), _even_rows),
    ],
    "_LEAST_DIFFERENCE": [
        Constant(
            "engine.step.transposed_tables", (-_ALWAYS, _ALWAYS), (5, 8, 20, 32, 64, 128, 512), _classifier,
        ),
    ],
    "_PAGE": [
        Constant("engine.step.transposed_tables", (_ALWAYS, 4096), (1000, 1024, 2048), _wide_layer),
    ],
    "_BLOCK_BYTES": [
        Constant("engine.step.scan_epoch", (2_500_000, 900_000, 250_000, 16_000_000), (10, 100), _epochs),
    ],
    "_DENSE_BLOCK": [
        Constant("engine.predict", (4_000_000, 500_000, 32_000_000), (1_000, 10_000), _sparse_predictions),
    ],
}  # fmt: skip


def main() -> None:
    """Measure the constants that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--constant", choices=[*CONSTANTS, "_SINGLE_THREAD_WORK"])
    chosen = parser.parse_args().constant
    for name, entries in CONSTANTS.items():
        for entry in entries if chosen in (None, name) else ():
            entry.measure(name)
    if chosen in (None, "_SINGLE_THREAD_WORK"):
        print("runtime.sessions._SINGLE_THREAD_WORK")
        for width in (128, 256, 512, 1024):
            _threads(width)


if __name__ == "__main__":
    main()
