"""
Training without this package
=============================

``export_training_step`` writes the training step of an estimator as a standard ONNX file, with a manifest
that describes its inputs. This script trains from these files with nothing but numpy and a plain
onnxruntime, and gets the losses of the estimator.

Without an argument it makes the files first, for which it needs onnxsgd. With the name of a folder that
holds them it does not: ``python train_without_onnxsgd.py folder``.
"""

import json
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

N_EPOCHS = 10


# %%
# A training step, as any program can use it: the manifest names and describes the inputs.
class TrainingStep:
    """The files that ``export_training_step`` wrote, ready to train."""

    def __init__(self, manifest_file, seed=0):
        self.generator = np.random.default_rng(seed)
        manifest_file = Path(manifest_file)
        self.manifest = json.loads(manifest_file.read_text(encoding="utf-8"))
        if self.manifest["format_version"] != 1:
            raise ValueError(f"format {self.manifest['format_version']} of a training step is not known here")
        folder = manifest_file.parent
        self.session = onnxruntime.InferenceSession(
            str(folder / self.manifest["model"]), providers=["CPUExecutionProvider"]
        )
        values = (folder / self.manifest["values"]["file"]).read_bytes()
        self.tensors = {tensor["input"]: _read(values, tensor) for tensor in self.manifest["tensors"]}
        self.numbers = {n["name"]: n["start"] for n in self.manifest["numbers"] if "start" in n}
        self.outputs = [value.name for value in self.session.get_outputs()]
        self.types = {value.name: _TYPES[value.type] for value in self.session.get_inputs()}

    def epoch(self, features, target, order, sample_weight=None):
        """Make one update for each batch of the samples, taken in the given order; return the mean loss."""
        size = self.manifest["batch_size"]
        if sample_weight is None:
            sample_weight = np.ones(len(target))
        total, count = 0.0, -(-len(order) // size)
        if self.manifest["has_even_batches"]:
            batches = np.array_split(order, count)
        else:
            batches = [order[i * size : (i + 1) * size] for i in range(count)]
        for rows in batches:
            weight = np.zeros(size)
            weight[: len(rows)] = sample_weight[rows]
            rows = np.resize(rows, size)  # a short batch is padded with rows of weight zero
            batch = {name: array[rows] for name, array in features.items()}
            total += self.update(batch, target[rows], weight)
        return total / sample_weight[order].sum()

    def update(self, batch, target, weight):
        """Make one update; return the weighted sum of the losses of the batch before it."""
        manifest = self.manifest
        for number in manifest["numbers"]:
            if "random" in number:  # the masks of dropout follow from two of these
                self.numbers[number["name"]] = self.generator.integers(number["below"])
            else:
                self.numbers[number["name"]] = _evaluate(number["formula"], self.numbers)
        known = {**self.numbers, "w": weight, "total": weight.sum(), "rows": np.count_nonzero(weight)}
        for name in ("sample_weight", "gradient_weight"):
            known[name] = _evaluate(manifest[name]["formula"], known)
        feeds = {
            manifest["target"]["input"]: target,
            manifest["sample_weight"]["input"]: known["sample_weight"][:, None],
            manifest["gradient_weight"]["input"]: known["gradient_weight"][:, None],
            **batch,
            **{n["input"]: known[n["name"]] for n in manifest["numbers"] if "input" in n},
        }
        feeds = {name: np.asarray(array, self.types[name]) for name, array in feeds.items()}
        outputs = self.session.run(self.outputs, {**feeds, **self.tensors})
        outputs = dict(zip(self.outputs, outputs, strict=True))
        self.tensors = {tensor["input"]: outputs[tensor["output"]] for tensor in manifest["tensors"]}
        loss = float(outputs[manifest["loss"]["output"]][0, 0])
        return loss * weight.sum() / known["sample_weight"].sum()

    def penalty(self):
        """Return the penalty on the present weights."""
        total, weights = 0.0, self.weights()
        for penalty in self.manifest["penalties"]:
            for name in penalty["of"]:
                weight = weights[name].astype(np.float64)
                if penalty["from_start"]:
                    weight -= self.states("start")[name]
                total += penalty["l2"] / 2 * np.square(weight).sum()
                if penalty["groups"] is None:
                    total += penalty["l1"] * np.abs(weight).sum()
                else:
                    groups = np.moveaxis(weight, penalty["groups"][name], 0)
                    groups = groups.reshape(len(groups), -1)
                    norms = np.sqrt(groups.shape[1] * np.square(groups).sum(axis=1))
                    total += penalty["l1"] * norms.sum()
        return float(total)

    def states(self, kind):
        """Return the present states of one kind, under the names of their weights."""
        return {t["of"]: self.tensors[t["input"]] for t in self.manifest["tensors"] if t.get("kind") == kind}

    def weights(self):
        """Return the present weights, under their names in the graph for predictions."""
        return {
            t["name"]: self.tensors[t["input"]] for t in self.manifest["tensors"] if t["role"] == "weight"
        }

    def encode(self, labels):
        """Return the target for some labels."""
        target = self.manifest["target"]
        columns = target["classes"][1:] if target["shape"][1] == 1 else target["classes"]
        is_class = np.array([[label == column for column in columns] for label in labels])
        return np.where(is_class, target["high"], target["low"])


_TYPES = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(uint8)": np.uint8,
}  # fmt: skip


def _read(values, tensor):
    """Return the first value of a tensor."""
    dtype = np.dtype(tensor["dtype"]).newbyteorder("<")
    count = tensor["bytes"] // dtype.itemsize
    flat = np.frombuffer(values, dtype, count, tensor["offset"])
    return flat.astype(tensor["dtype"]).reshape(tensor["shape"])


def _evaluate(formula, known):
    """Return the value of a formula of the manifest, which has Python's names and operators."""
    if formula is None:
        raise ValueError("the learning rate has no formula: compute it here")
    return eval(formula, {"__builtins__": {}}, {**_WORDS, **known})


_WORDS = {
    "min": min, "max": max, "floor": math.floor, "sqrt": math.sqrt, "exp": math.exp, "log": math.log,
    "cos": math.cos,
}  # fmt: skip


# %%
# The files, and the losses to compare with: an MLP fitted on half of the digits is trained on the other half.
def make_files(folder):
    import warnings

    from sklearn.datasets import load_digits
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    from onnxsgd import OnnxSGDClassifier

    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    first, second = slice(None, 900), slice(900, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network = MLPClassifier((64,), max_iter=20, random_state=0).fit(X[first], y[first])
    estimator = OnnxSGDClassifier(
        network, learning_rate="invscaling", momentum=0.9, eta0=0.05, shuffle=False, random_state=0
    )
    estimator.partial_fit(X[second], y[second])
    estimator.export_training_step(folder / "step.onnx")
    for _ in range(N_EPOCHS):
        estimator.partial_fit(X[second], y[second])
    np.savez(folder / "data.npz", X=X[second], y=y[second], losses=estimator.loss_curve_[-N_EPOCHS:])


def main(folder):
    data = np.load(folder / "data.npz")
    step = TrainingStep(folder / "step.json")
    (feature,) = step.manifest["features"]
    target, order = step.encode(data["y"].tolist()), np.arange(len(data["y"]))
    for epoch, expected in enumerate(data["losses"], start=1):
        loss = step.epoch({feature["input"]: data["X"]}, target, order) + step.penalty()
        print(f"epoch {epoch:2d}: loss {loss:.6f}, the estimator's {expected:.6f}")
        assert abs(loss - expected) < 1e-4, "the losses differ"
    print(f"the same losses, with numpy and onnxruntime {onnxruntime.__version__} alone")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            make_files(Path(name))
            main(Path(name))
