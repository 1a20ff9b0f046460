"""X, y and weights of every kind and container, through all methods of both estimators."""

import copy
import tempfile
from pathlib import Path

import numpy as np
from odd_arrays import ARRAYS, LARGE, NUMBERS, TARGETS, WEIGHTS
from rules import Trial, faults
from seed_models import TEXTS, _model

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

#: The words one of which is in a message about data.
_WORDS = (
    "X", "y", "sample_weight", "sample_weights", "X_val", "y_val", "classes", "classes_", "samples", "sample", "labels", "label",
    "Sample", "batch", "batches", "features", "feature", "Feature", "graph", "loss", "input", "array", "target", "targets", "y_true", "data",
)  # fmt: skip
_N = 40


def prepare():
    """Return estimators, fitted and not, with their data."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(_N, 4)).astype(np.float32)
    y = table @ np.array([1.0, -2.0, 0.5, 1.0])
    labels, three = (y > 0).astype(int), np.digitize(y, [-1, 1])
    images, y2 = rng.normal(size=(_N, 1, 6, 6)).astype(np.float32), np.c_[y, -y]
    tokens = rng.integers(0, 10, size=(_N, 3))
    mlp, convolution, embedding = (_model(*TEXTS[name]) for name in ("mlp", "convolution", "embedding"))
    common = {"random_state": 0, "max_iter": 2, "tol": None, "n_threads": 1}
    linear = {"learning_rate": "constant", "eta0": 0.01}
    made = {
        "linear regressor": (OnnxSGDRegressor(**common), table, y),
        "regressor at a named rate": (OnnxSGDRegressor(**common, **linear, average=True), table, y),
        "regressor of counts": (OnnxSGDRegressor(loss="poisson", **common), table, np.abs(y)),
        "linear classifier": (OnnxSGDClassifier(**common), table, labels),
        "classifier of three": (OnnxSGDClassifier(**common, class_weight="balanced"), table, three),
        "hinge": (OnnxSGDClassifier(loss="hinge", **common, **linear), table, labels),
        "float64": (OnnxSGDRegressor(dtype="float64", **common), table.astype(np.float64), y),
        "early stopping": (OnnxSGDClassifier(early_stopping=True, **common), table, labels),
        "network": (OnnxSGDRegressor(mlp, **common), table, y2),
        "network classifier": (OnnxSGDClassifier(mlp, **common), table, np.where(labels, "b", "a")),
        "convolution": (OnnxSGDRegressor(convolution, **common, **linear), images, y2),
        "embedding": (OnnxSGDRegressor(embedding, **common), tokens, y2),
    }
    found = {
        name: (estimator, copy.deepcopy(estimator).fit(X, y), X, y)
        for name, (estimator, X, y) in made.items()
    }
    return found, tempfile.TemporaryDirectory()


def run(number, rng, prepared):
    """Yield the faults of one case."""
    found, folder = prepared
    name = sorted(found)[number % len(found)]
    fresh, fitted, X, y = found[name]
    odd, words = (
        {"X": "itself", "y": "itself", "sample_weight": "None"},
        {"X": ARRAYS, "y": TARGETS, "sample_weight": WEIGHTS},
    )
    for part in rng.permutation(list(odd))[: int(rng.choice([1, 1, 1, 2, 3]))]:
        odd[str(part)] = str(rng.choice(list(words[part])))
    makers = {part: words[part][text] for part, text in odd.items()}
    context = {"folder": Path(folder.name), "rng": rng}
    values = {"X": makers["X"](X.copy(), context), "y": makers["y"](y.copy(), context)}
    values["sample_weight"] = makers["sample_weight"](np.ones(len(y)), context)
    is_finite = all(text in NUMBERS for text in odd.values())
    # weights after two updates on larger numbers may give infinite predictions
    is_moderate = is_finite and not set(odd.values()) & LARGE
    shown = ", ".join(
        f"{part}: {text}" for part, text in odd.items() if text not in ("itself", "None") or part == "X"
    )
    model = fresh.model
    calls = _calls(fresh, fitted, values)
    for method in _chosen(rng, odd):
        estimator, call = calls[method]()
        given = [v for v in (*values.values(), model) if v is not None and not hasattr(v, "__next__")]
        title = f"{name}.{method} of {shown}"
        # a network's results of numbers at the end of float32 may be beyond it
        is_result = is_moderate if method in ("predict", "predict_proba") else is_finite
        trial = Trial(
            title, call, given=tuple(given), estimator=estimator, names=_WORDS, is_finite=is_result, seconds=20.0
        )  # fmt: skip
        yield from faults(trial)
        if not trial.was_refused and method in ("fit", "partial_fit", "fit again"):
            for then, arguments in {"predict": (X,), "to_onnx": ()}.items():
                after = getattr(estimator, then)
                yield from faults(
                    Trial(f"{title}, then {then}", lambda after=after, arguments=arguments: after(*arguments), is_finite=is_moderate)
                )  # fmt: skip


def _chosen(rng, odd):
    """Return the methods of a case: those that its odd arguments reach."""
    methods = ["fit", "partial_fit", "fit again", "validation", "score"]
    if odd["X"] != "itself":
        methods += ["predict", "predict_proba"] * 2
    return [str(m) for m in rng.choice(methods, 2, replace=False)]


def _calls(fresh, fitted, values):
    X, y, weight = values["X"], values["y"], values["sample_weight"]

    def new():
        estimator = copy.deepcopy(fresh)
        return estimator, lambda: estimator.fit(X, y, sample_weight=weight)

    def again():
        estimator = copy.deepcopy(fitted)
        return estimator, lambda: estimator.fit(X, y, sample_weight=weight)

    def part():
        estimator = copy.deepcopy(fitted)
        return estimator, lambda: estimator.partial_fit(X, y, sample_weight=weight)

    def validation():
        estimator = copy.deepcopy(fitted).set_params(early_stopping=True)
        return estimator, lambda: estimator.fit(X, y, X_val=X, y_val=y)

    def predict():
        return fitted, lambda: fitted.predict(X)

    def predict_proba():
        return fitted, lambda: fitted.predict_proba(X)

    def score():
        return fitted, lambda: fitted.score(X, y, sample_weight=weight)

    return {
        "fit": new, "fit again": again, "partial_fit": part, "validation": validation, "predict": predict,
        "predict_proba": predict_proba, "score": score,
    }  # fmt: skip
