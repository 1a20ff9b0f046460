"""The claims, tried with river, which learns row by row."""

from __future__ import annotations

from typing import Any

from claims import data

PACKAGES = ["river"]
IMPORT = "from river import linear_model"


def continue_linear() -> str:
    return _continue("linear")


def continue_mlp() -> str:
    return _continue("mlp")


def _continue(last: str) -> str:
    from river.compat import convert_sklearn_to_river
    from river.stream import iter_array

    pipeline = data.fitted_pipeline(last)
    before = data.fitted_pipeline(last)

    def learn(X, y):
        # a pipeline is refused: its last step learns alone
        scaled = pipeline[:-1].transform(X)
        learner = convert_sklearn_to_river(pipeline[-1], classes=list(range(10)))
        for row, label in iter_array(scaled, y):
            learner.learn_one(row, label)
        return lambda X: [learner.predict_one(row) for row, _ in iter_array(pipeline[:-1].transform(X))]

    return data.check_improved(before, learn)


def grid_search() -> str:
    from river.compat import convert_river_to_sklearn

    return data.check_grid(convert_river_to_sklearn(_model()), "river_estimator", [_model(), _model(l2=0.1)])


def raw_data() -> str:
    from river.compat import convert_river_to_sklearn

    return data.raw_score(convert_river_to_sklearn(_model()))


def sample_weights() -> str:
    from river.stream import iter_array

    def fit(X, y, weights):
        model = _model()
        for (row, label), weight in zip(iter_array(X, y), weights, strict=True):
            model.learn_one(row, label, w=weight)
        return lambda X: [model.predict_one(row) for row, _ in iter_array(X)]

    return data.check_weights(fit)


def sparse_data() -> str:
    X, y = data.sparse_rows()
    model = _model()
    for row, label in zip(X, y, strict=True):
        model.learn_one(dict(zip(row.indices, row.data, strict=True)), label)
    return "rows as dictionaries"


def stream() -> str:
    from river.stream import iter_array

    model = _model()

    def learn(X, y):
        for row, label in iter_array(X, y):
            model.learn_one(row, label)

    return data.check_stream(learn, lambda X: [model.predict_one(row) for row, _ in iter_array(X)])


def _model(l2: float = 0.0) -> Any:
    from river.linear_model import LogisticRegression

    return LogisticRegression(l2=l2)
