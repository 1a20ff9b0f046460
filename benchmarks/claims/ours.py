"""The claims, tried with onnxsgd."""

from __future__ import annotations

from claims import data

PACKAGES = ["onnxsgd"]
IMPORT = "from onnxsgd import OnnxSGDClassifier"


def continue_linear() -> str:
    from onnxsgd import OnnxSGDClassifier

    pipeline = data.fitted_pipeline("linear")
    return data.check_improved(
        pipeline, lambda X, y: OnnxSGDClassifier(pipeline, random_state=0).partial_fit(X, y).predict
    )


def continue_mlp() -> str:
    from onnxsgd import OnnxSGDClassifier

    pipeline = data.fitted_pipeline("mlp")
    return data.check_improved(
        pipeline, lambda X, y: OnnxSGDClassifier(pipeline, random_state=0).partial_fit(X, y).predict
    )


def train_network(network: data.Network) -> float:
    from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

    settings = {
        "penalty": None, "learning_rate": "constant", "eta0": network.rate, "batch_size": len(network.y),
        "max_iter": 10, "tol": None,
        "output": network.output if len(network.model.graph.output) > 1 else None,
    }  # fmt: skip
    if network.n_classes:
        learner = OnnxSGDClassifier(network.model, classes=list(range(network.n_classes)), **settings)
        return network.loss(learner.fit(network.X, network.y).decision_function(network.X))
    learner = OnnxSGDRegressor(network.model, **settings)
    return network.loss(learner.fit(network.X, network.y).predict(network.X))


def return_onnx() -> str:
    from onnxsgd import OnnxSGDClassifier

    X, y = data.scaled_rows()
    learner = OnnxSGDClassifier(random_state=0).fit(X, y)
    data.check_onnx(learner.to_onnx(), X, learner.predict(X))
    return ""


def grid_search() -> str:
    from onnxsgd import OnnxSGDClassifier

    return data.check_grid(OnnxSGDClassifier(random_state=0), "alpha", [1e-4, 1e-2])


def raw_data() -> str:
    from onnxsgd import OnnxSGDClassifier

    return data.raw_score(OnnxSGDClassifier(random_state=0))


def sample_weights() -> str:
    from onnxsgd import OnnxSGDClassifier

    return data.check_weights(lambda X, y, w: OnnxSGDClassifier(random_state=0).fit(X, y, w).predict)


def sparse_data() -> str:
    from onnxsgd import OnnxSGDClassifier

    X, y = data.sparse_rows()
    OnnxSGDClassifier(random_state=0, max_iter=2, tol=None).fit(X, y)
    return ""


def stream() -> str:
    from onnxsgd import OnnxSGDClassifier

    learner = OnnxSGDClassifier(random_state=0)
    return data.check_stream(lambda X, y: learner.partial_fit(X, y, classes=[0, 1]), learner.predict)
