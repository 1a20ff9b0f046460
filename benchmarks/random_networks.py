"""Random networks with default settings and with Adam: ``python benchmarks/random_networks.py``.

Convolutions and layers of ReLUs with He's random weights, times a scale, learn 1,000 digits, some at random
places in a picture, and 1,500 rows of Friedman's regression. The columns are 0 to 1, 16 or 255. Adam has a
constant rate of 1e-3 and 30 epochs. Scores are accuracy and R2 on other rows, for each seed.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits, make_friedman1

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

__all__ = ["ROWS", "Network", "Row"]

#: The score below Adam's that counts.
_WORSE = 0.04
_ADAM = {"optimizer": "adam", "learning_rate": "constant", "eta0": 1e-3, "max_iter": 30, "tol": None}


class Network:
    """A graph of random layers.

    Parameters
    ----------
    shape : tuple of int
        The shape of a sample.
    scale : float
        The deviation of the weights in units of He's.
    seed : int
        Draws the weights.
    normalises : bool
        Whether each layer but the last has a BatchNormalization with the statistics 0 and 1.
    """

    def __init__(self, shape: tuple[int, ...], scale: float, seed: int, normalises: bool = False) -> None:
        self._shape, self._scale, self._normalises = shape, scale, normalises
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []
        self._last = "X"

    def node(self, operator: str, *weights: np.ndarray, **attributes: Any) -> None:
        """Append an operator on the last value, and these weights."""
        number = len(self._nodes)
        names = [f"weight{number}_{index}" for index in range(len(weights))]
        self._tensors += [
            numpy_helper.from_array(np.float32(w), n) for w, n in zip(weights, names, strict=True)
        ]
        self._nodes.append(helper.make_node(operator, [self._last, *names], [f"value{number}"], **attributes))
        self._last = f"value{number}"

    def layer(self, *shape: int, activation: str = "Relu", **attributes: Any) -> None:
        """Append a layer whose weight has this shape, outputs first: a convolution if it has four axes."""
        deviation = self._scale * np.sqrt(2 / np.prod(shape[1:]))
        weight, zeros = self._rng.normal(scale=deviation, size=shape), np.zeros(shape[0])
        if len(shape) == 4:
            self.node("Conv", weight, zeros, **attributes)
        else:
            self.node("Gemm", weight, zeros, transB=1)
        if activation and self._normalises:
            self.node("BatchNormalization", zeros + 1, zeros, zeros, zeros + 1)
        if activation:
            self.node(activation)

    def model(self, n_outputs: int) -> onnx.ModelProto:
        """Return the graph."""
        X = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n", *self._shape])
        scores = helper.make_tensor_value_info(self._last, TensorProto.FLOAT, ["n", n_outputs])
        graph = helper.make_graph(self._nodes, "random", [X], [scores], self._tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@dataclass(frozen=True)
class Row:
    """A kind of random network, and the data that it learns.

    Attributes
    ----------
    unit : float
        The largest number of a column.
    hidden : tuple of int
        The units of the hidden layers; none: two convolutions and a layer of 64 units.
    scale : float
        The deviation of the weights in units of He's.
    activation : str
        The operator behind each hidden layer.
    normalises : bool
        Whether hidden layers have a BatchNormalization.
    target_unit : float or None
        The unit of the target of a regression; None: digits.
    """

    unit: float
    hidden: tuple[int, ...] = ()
    scale: float = 1.0
    activation: str = "Relu"
    normalises: bool = False
    target_unit: float | None = None

    def score(self, seed: int, **params: Any) -> float:
        """Return the score of a fit on rows that it has not seen."""
        X, y = self._data(np.random.default_rng(100 + seed), seed)
        n_outputs = 10 if self.target_unit is None else 1
        network = Network(X.shape[1:], self.scale, seed, self.normalises)
        if self.hidden:
            sizes = (X.shape[1], *self.hidden)
            for n_inputs, n_units in pairwise(sizes):
                network.layer(n_units, n_inputs, activation=self.activation)
            n_features = sizes[-1]
        else:
            network.layer(8, 1, 3, 3)
            network.layer(16, 8, 3, 3, strides=[2, 2])
            network.node("Flatten")
            network.layer(64, 144)
            n_features = 64
        network.layer(n_outputs, n_features, activation="")
        model, n_train = network.model(n_outputs), 1000 if self.target_unit is None else 1500
        if self.target_unit is None:
            learner = OnnxSGDClassifier(model, classes=range(10), random_state=seed, **params)
        else:
            learner = OnnxSGDRegressor(model, random_state=seed, **params)
        return float(learner.fit(X[:n_train], y[:n_train]).score(X[n_train:], y[n_train:]))

    def _data(self, rng: np.random.Generator, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows in random order."""
        if self.target_unit is not None:
            X, y = make_friedman1(2000, noise=1.0, random_state=seed)
            return np.float32(self.unit * X), self.target_unit * y
        X, y = load_digits(return_X_y=True)
        if not self.hidden:
            canvas = np.zeros((len(X), 1, 10, 10))
            for row, image in enumerate(X.reshape(-1, 8, 8)):
                top, left = rng.integers(0, 3, 2)
                canvas[row, 0, top : top + 8, left : left + 8] = image
            X = canvas
        order = rng.permutation(len(y))
        return np.float32(X[order] * self.unit / 16), y[order]


ROWS: dict[str, Row] = {
    "convolutions, 0..1": Row(1),
    "convolutions, 0..16": Row(16),
    "convolutions, 0..255": Row(255),
    "convolutions, 0.3 He": Row(1, scale=0.3),
    "convolutions, 3 He": Row(1, scale=3.0),
    "convolutions, normalised, 0..1": Row(1, normalises=True),
    "convolutions, normalised, 0..16": Row(16, normalises=True),
    "2 x 64, 0..16": Row(16, (64,) * 2),
    "2 x 64, 0..255": Row(255, (64,) * 2),
    "4 x 128, 0..16": Row(16, (128,) * 4),
    "6 x 64, 0..1": Row(1, (64,) * 6),
    "6 x 64, 0..255": Row(255, (64,) * 6),
    "6 x 256, 0..16": Row(16, (256,) * 6),
    "6 x 16, 0..16": Row(16, (16,) * 6),
    "3 x 32, 3 He, 0..16": Row(16, (32,) * 3, scale=3.0),
    "6 x 64, 3 He, 0..1": Row(1, (64,) * 6, scale=3.0),
    "4 x 64, 0.1 He, 0..16": Row(16, (64,) * 4, scale=0.1),
    "3 x 64, 0.3 He, 0..1": Row(1, (64,) * 3, scale=0.3),
    "3 x 64, normalised, 0..16": Row(16, (64,) * 3, normalises=True),
    "3 x 64, tanh, 0..16": Row(16, (64,) * 3, activation="Tanh"),
    "regression, 3 x 64, 0..1": Row(1, (64,) * 3, target_unit=1),
    "regression, 3 x 64, 0..255": Row(255, (64,) * 3, target_unit=1000),
    "regression, 6 x 32, 0..1": Row(1, (32,) * 6, target_unit=1),
}


def _scores(fit: Callable[[int], float], n_seeds: int) -> tuple[list[float], float]:
    """Return the score of each seed, and the mean processor time of a fit."""
    start = time.process_time()
    scores = [fit(seed) for seed in range(n_seeds)]
    return scores, (time.process_time() - start) / n_seeds


def main() -> None:
    """Parse the command line, fit, print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="parts of names of rows")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="random networks of each row")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    n_worse = 0
    print(f"{'network':32}{'default':24}{'s':>5}  {'Adam':24}{'s':>5}")
    for name, row in ROWS.items():
        if arguments.only and not any(word in name for word in arguments.only):
            continue
        ours, seconds = _scores(row.score, arguments.seeds)
        others, other_seconds = _scores(lambda seed, row=row: row.score(seed, **_ADAM), arguments.seeds)
        n_worse += sum(a < b - _WORSE for a, b in zip(ours, others, strict=True))
        texts = (" ".join(f"{score:.3f}" for score in scores) for scores in (ours, others))
        print(f"{name:32}{next(texts):24}{seconds:5.1f}  {next(texts):24}{other_seconds:5.1f}", flush=True)
    print(f"{n_worse} fits below Adam's score by more than {_WORSE}")


if __name__ == "__main__":
    main()
