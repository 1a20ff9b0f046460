"""Updates of single rows: whole fits of linear models beside the floor of the runtime and scikit-learn.

``python benchmarks/single_rows.py`` prints, for each case, microseconds for an update of 20 features: of an
empty loop in the runtime; of the floor, the smallest loop that makes the update, a Scan whose body has a
product for the raw prediction, the gradient of the loss, and a product for the new weights, and with an l1
penalty the truncation; of a fit with ``batch_size=1``; of scikit-learn. The loops do not shuffle, copy, or
compute losses, nor averages, which can follow after them. Processor time of one thread, the best of several
interleaved runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from measure import interleave
from onnx import TensorProto, helper

__all__ = ["main"]

_ROWS, _FEATURES, _EPOCHS = 20_000, 20, 5
_ROUNDS, _SECONDS = 9, 0.2
#: The gradient of the loss by the raw prediction z, as nodes that end in e. Half the squared error has the
#: target among the columns of the data.
_GRADIENTS: dict[str, list[tuple[str, list[str], str]]] = {
    "squared_error": [],
    "huber": [("Sub", ["z", "y"], "d"), ("Min", ["d", "high"], "m"), ("Max", ["m", "low"], "e")],
    "log_loss": [("Sigmoid", ["z"], "p"), ("Sub", ["p", "y"], "e")],
}
#: The cases: a loss, and further parameters.
_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "squared error": ("squared_error", {}),
    "Huber": ("huber", {}),
    "log loss": ("log_loss", {}),
    "squared error, averages": ("squared_error", {"average": True}),
    "log loss, averages": ("log_loss", {"average": True}),
    "squared error, l1": ("squared_error", {"penalty": "l1"}),
    "squared error, elasticnet": ("squared_error", {"penalty": "elasticnet"}),
    "log loss, elasticnet": ("log_loss", {"penalty": "elasticnet"}),
}
#: The nodes that truncate the weights under an l1 penalty, and those of a decay beside it.
_TRUNCATION = [("Clip", ["W", "low", "high"], "c"), ("Sub", ["W", "c"], "w")]
_DECAY = [("Mul", ["c", "high"], "d"), ("Add", ["W", "d"], "v")]


def main() -> None:
    """Measure and print."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(_ROWS, _FEATURES)).astype(np.float32)
    y = (X @ rng.normal(size=_FEATURES) + 0.1 * rng.normal(size=_ROWS)).astype(np.float32)
    print("| case | empty loop | floor | fit | fit / floor | scikit-learn |\n|---|---|---|---|---|---|")
    for name, (loss, further) in _CASES.items():
        settings = _settings(loss) | further
        blocks = {
            "empty": _repeat(_loop([("Identity", ["W"], "W_new")], ["y"], False)),
            "floor": _repeat(_loop(*_smallest(loss, further.get("penalty")))),
            "fit": _repeat(_fit(X, y, settings)),
            "scikit-learn": _repeat(_peer(X, y, settings)),
        }
        samples = interleave(blocks, _ROUNDS, _SECONDS, "cpu")
        updates = {each: _ROWS * (_EPOCHS if each in ("fit", "scikit-learn") else 1) for each in blocks}
        times = {each: 1e6 * samples[each].best / count for each, count in updates.items()}
        ratio = times["fit"] / times["floor"]
        cells = (f"{times[each]:.2f} us" for each in ("empty", "floor", "fit"))
        print(f"| {name} | {' | '.join(cells)} | {ratio:.2f} | {times['scikit-learn']:.2f} us |", flush=True)


def _smallest(loss: str, penalty: str | None) -> tuple[list[Any], list[str], bool]:
    """Return the nodes of the smallest body, its scanned inputs, and True: it returns scores."""
    nodes = _GRADIENTS[loss]
    slope = nodes[-1][2] if nodes else "z"
    truncation = {"l1": _TRUNCATION, "elasticnet": [*_TRUNCATION, *_DECAY]}.get(str(penalty), [])
    present, kept = ("w" if truncation else "W"), ("v" if penalty == "elasticnet" else "W")
    body = [*truncation, ("Gemm", ["x", present], "z"), *nodes, ("Gemm", [slope, "g", kept], "W_new")]
    return body, ["x", "g", *(["y"] if nodes else [])], True


def _loop(nodes: list[Any], scanned: list[str], returns_scores: bool) -> Callable[[], object]:
    """Return a run of the loop over all rows."""
    width = _FEATURES + 2
    shapes = {"W": [1, width], "x": [1, width], "g": [1, width], "y": [1, 1], "z": [1, 1]}

    def value(name: str, prefix: str = "", *, stacked: bool = False) -> Any:
        shape = shapes[name.removesuffix("_new")]
        return helper.make_tensor_value_info(prefix + name, TensorProto.FLOAT, [*([_ROWS] * stacked), *shape])

    made = [
        helper.make_node(kind, inputs, [output], **({"transB": 1} if output == "z" else {}))
        for kind, inputs, output in nodes
    ]
    scores = ["z"] * returns_scores
    bounds = [
        helper.make_tensor(name, TensorProto.FLOAT, [], [b]) for name, b in (("low", -0.1), ("high", 0.1))
    ]
    body = helper.make_graph(
        made,
        "body",
        [value(name) for name in ("W", *scanned)],
        [value(name) for name in ("W_new", *scores)],
        bounds,
    )
    scan = helper.make_node(
        "Scan", ["W", *(f"all_{name}" for name in scanned)],
        ["last_W_new", *(f"all_{name}" for name in scores)],
        body=body, num_scan_inputs=len(scanned),
    )  # fmt: skip
    stacked = [value(name, "all_", stacked=True) for name in scanned]
    outputs = [value("W_new", "last_"), *(value(name, "all_", stacked=True) for name in scores)]
    graph = helper.make_graph([scan], "loop", [value("W"), *stacked], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return _run(model.SerializeToString())


def _run(model: bytes) -> Callable[[], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {
        value.name: 1e-2 * rng.normal(size=value.shape).astype(np.float32) for value in session.get_inputs()
    }
    return lambda: session.run(None, feeds)


def _fit(X: np.ndarray, y: np.ndarray, settings: dict[str, Any]) -> Callable[[], object]:
    from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

    is_class = settings["loss"] == "log_loss"
    cls: Any = OnnxSGDClassifier if is_class else OnnxSGDRegressor
    target = y > 0 if is_class else y
    estimator = cls(batch_size=1, **settings)
    return lambda: estimator.fit(X, target)


def _peer(X: np.ndarray, y: np.ndarray, settings: dict[str, Any]) -> Callable[[], object]:
    from sklearn.linear_model import SGDClassifier, SGDRegressor

    is_class = settings["loss"] == "log_loss"
    cls = SGDClassifier if is_class else SGDRegressor
    target = y > 0 if is_class else y
    estimator = cls(**settings)
    return lambda: estimator.fit(X, target)


def _settings(loss: str) -> dict[str, Any]:
    return {
        "loss": loss, "learning_rate": "constant", "eta0": 1e-3, "max_iter": _EPOCHS, "tol": None,
        "random_state": 0,
    }  # fmt: skip


def _repeat(unit: Callable[[], object]) -> Callable[[int], None]:
    def block(units: int) -> None:
        for _ in range(units):
            unit()

    return block


if __name__ == "__main__":
    main()
