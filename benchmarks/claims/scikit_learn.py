"""The claims, tried with the estimators of scikit-learn that have ``partial_fit``."""

from __future__ import annotations

from claims import data

PACKAGES = ["scikit-learn"]
IMPORT = "from sklearn.neural_network import MLPClassifier"


def continue_linear() -> str:
    pipeline = data.fitted_pipeline("linear")

    def learn(X, y):
        pipeline[-1].partial_fit(pipeline[:-1].transform(X), y)
        return pipeline.predict

    return data.check_improved(pipeline, learn)


def continue_mlp() -> str:
    pipeline, learned = data.fitted_pipeline("mlp"), data.fitted_pipeline("mlp")

    def learn(X, y):
        # a pipeline has no partial_fit: its last step learns alone, two updates a call
        for _ in range(20):
            learned[-1].partial_fit(learned[:-1].transform(X), y)
        return learned.predict

    return data.check_improved(pipeline, learn)


def return_onnx() -> str:
    from skl2onnx import to_onnx
    from sklearn.linear_model import SGDClassifier

    X, y = data.scaled_rows()
    learner = SGDClassifier(random_state=0).fit(X, y)
    data.check_onnx(to_onnx(learner, X[:1], target_opset=18), X, learner.predict(X))
    return "by skl2onnx"


def grid_search() -> str:
    from sklearn.linear_model import SGDClassifier

    return data.check_grid(SGDClassifier(random_state=0), "alpha", [1e-4, 1e-2])


def raw_data() -> str:
    from sklearn.linear_model import SGDClassifier
    from sklearn.neural_network import MLPClassifier

    scores = (data.raw_score(cls(random_state=0)) for cls in (SGDClassifier, MLPClassifier))
    return "SGDClassifier {}, MLPClassifier {}".format(*scores)


def sample_weights() -> str:
    from sklearn.neural_network import MLPClassifier

    return data.check_weights(
        lambda X, y, w: MLPClassifier((10,), random_state=0).fit(X, y, sample_weight=w).predict
    )


def sparse_data() -> str:
    from sklearn.linear_model import SGDClassifier
    from sklearn.neural_network import MLPClassifier

    X, y = data.sparse_rows()
    SGDClassifier(random_state=0, max_iter=2, tol=None).fit(X, y)
    MLPClassifier((5,), random_state=0, max_iter=2).fit(X, y)
    return ""


def stream() -> str:
    from sklearn.linear_model import SGDClassifier

    learner = SGDClassifier(random_state=0)
    return data.check_stream(lambda X, y: learner.partial_fit(X, y, classes=[0, 1]), learner.predict)
