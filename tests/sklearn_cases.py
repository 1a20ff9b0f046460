"""The scikit-learn estimators that tests convert: construction, data, and expected results.

A test that takes the argument ``sklearn_case`` runs once for each of them (see ``conftest.py``).
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_transformer
from sklearn.cross_decomposition import PLSRegression
from sklearn.decomposition import PCA, FastICA, IncrementalPCA, TruncatedSVD
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.feature_selection import RFE, SelectFromModel, SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import (
    ARDRegression,
    BayesianRidge,
    ElasticNet,
    GammaRegressor,
    HuberRegressor,
    Lars,
    Lasso,
    LassoLars,
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    MultiTaskLasso,
    OrthogonalMatchingPursuit,
    PassiveAggressiveClassifier,
    PassiveAggressiveRegressor,
    Perceptron,
    PoissonRegressor,
    QuantileRegressor,
    RANSACRegressor,
    Ridge,
    RidgeClassifier,
    RidgeClassifierCV,
    RidgeCV,
    SGDClassifier,
    SGDRegressor,
    TheilSenRegressor,
    TweedieRegressor,
)
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import FeatureUnion, make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    PowerTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
)
from sklearn.random_projection import SparseRandomProjection
from sklearn.svm import SVC, SVR, LinearSVC, LinearSVR, NuSVC, NuSVR
from sklearn.tree import DecisionTreeClassifier

__all__ = ["CASES", "SklearnCase"]


@dataclass(frozen=True)
class SklearnCase:
    """One estimator.

    Attributes
    ----------
    name : str
        The name of the case.
    make : callable
        Returns the estimator, not fitted.
    data : str
        The data it is fitted on, a key of ``DATA``.
    link : str
        How its graph makes probabilities of scores.
    n_parameters : callable
        Takes the fitted estimator; returns how many numbers scikit-learn learned from the target.
    """

    name: str
    make: Callable[[], Any]
    data: str
    link: str
    n_parameters: Callable[[Any], int]

    def load(self) -> tuple[Any, np.ndarray]:
        """Return X and y; the numbers in X are exact in float32."""
        return DATA[self.data]()

    def fit(self) -> Any:
        """Return the fitted estimator, always the same object: do not change it."""
        return _fit(self)


@cache
def _fit(case: SklearnCase) -> Any:
    with warnings.catch_warnings():
        # a few iterations are enough to convert, and scikit-learn deprecates some of these
        warnings.simplefilter("ignore")
        return case.make().fit(*case.load())


def _exact(X: np.ndarray) -> np.ndarray:
    return X.astype(np.float32).astype(np.float64)


@cache
def _diabetes() -> tuple[np.ndarray, np.ndarray]:
    X, y = datasets.load_diabetes(return_X_y=True)
    return _exact(X[:150]), y[:150]


def _two_targets() -> tuple[np.ndarray, np.ndarray]:
    X, y = _diabetes()
    return X, np.column_stack([y, 100 * X[:, 0] + y / 3])


def _small_targets() -> tuple[np.ndarray, np.ndarray]:
    X, y = _diabetes()
    return X, (y - y.mean()) / y.std()


@cache
def _iris() -> tuple[np.ndarray, np.ndarray]:
    X, y = datasets.load_iris(return_X_y=True)
    return _exact(StandardScaler().fit_transform(X)), y


def _names() -> tuple[np.ndarray, np.ndarray]:
    X, y = _iris()
    return X, np.array(["setosa", "versicolor", "virginica"])[y]


@cache
def _cancer() -> tuple[np.ndarray, np.ndarray]:
    X, y = datasets.load_breast_cancer(return_X_y=True)
    return _exact(StandardScaler().fit_transform(X[:200, :8])), y[:200]


def _gaps() -> tuple[np.ndarray, np.ndarray]:
    X, y = _diabetes()
    X = X.copy()
    X[::7, 2] = np.nan
    return X, y


def _numbers_frame() -> tuple[pd.DataFrame, np.ndarray]:
    X, y = _diabetes()
    return pd.DataFrame(X[:, :4], columns=["age", "sex", "bmi", "blood pressure"]), y


@cache
def _mixed_frame() -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    n = 120
    frame = pd.DataFrame(
        {
            "size": _exact(rng.normal(size=n)),
            "floor level": rng.integers(0, 4, n),
            "town": rng.choice(["Aach", "Bonn", "Celle"], n),
            "age": _exact(rng.normal(size=n)),
        }
    )
    frame.loc[3, "age"] = np.nan
    return frame, np.where(frame["size"] + (frame["town"] == "Bonn") > 0.4, "dear", "cheap")


@cache
def _texts_with_gaps() -> tuple[pd.DataFrame, np.ndarray]:
    frame, y = _mixed_frame()
    frame = frame.assign(town=frame["town"].astype(object), street=frame["town"].astype(object))
    frame.loc[::7, "town"] = np.nan
    frame.loc[::5, "street"] = None
    return frame, y


DATA: dict[str, Callable[[], tuple[Any, np.ndarray]]] = {
    "cancer": _cancer,
    "diabetes": _diabetes,
    "gaps": _gaps,
    "iris": _iris,
    "mixed frame": _mixed_frame,
    "names": _names,
    "numbers frame": _numbers_frame,
    "texts with gaps": _texts_with_gaps,
    "small targets": _small_targets,
    "two targets": _two_targets,
}


def _linear(estimator: Any) -> int:
    """Count coefficients and intercepts."""
    return np.size(estimator.coef_) + np.size(estimator.intercept_)


def _layers(estimator: Any) -> int:
    return sum(np.size(array) for array in (*estimator.coefs_, *estimator.intercepts_))


def _last(count: Callable[[Any], int] = _linear) -> Callable[[Any], int]:
    return lambda pipeline: count(pipeline[-1])


def _members(estimator: Any) -> int:
    return sum(
        _layers(member) if hasattr(member, "coefs_") else _linear(member) for member in estimator.estimators_
    )


def _stacked(estimator: Any) -> int:
    return _members(estimator) + _linear(estimator.final_estimator_)


def _calibrated(estimator: Any) -> int:
    return sum(_linear(member.estimator) for member in estimator.calibrated_classifiers_)


def _kernel(estimator: Any) -> int:
    return np.size(estimator.dual_coef_) + np.size(estimator.intercept_)


def _inner(name: str, count: Callable[[Any], int] = _linear) -> Callable[[Any], int]:
    return lambda estimator: count(getattr(estimator, name))


def _regression(
    name: str, make: Callable[[], Any], n_parameters: Callable[[Any], int] = _linear, data: str = "diabetes"
) -> SklearnCase:
    return SklearnCase(name, make, data, "identity", n_parameters)


def _mlp(make: type, **parameters: Any) -> Any:
    return make(hidden_layer_sizes=(6, 4), max_iter=60, random_state=0, **parameters)


_REGRESSORS = [
    _regression("ARDRegression", ARDRegression),
    _regression("BayesianRidge", BayesianRidge),
    _regression("ElasticNet", lambda: ElasticNet(alpha=0.01)),
    _regression("GammaRegressor", GammaRegressor),
    _regression("HuberRegressor", lambda: HuberRegressor(max_iter=1000)),
    _regression("Lars", Lars),
    _regression("Lasso", Lasso),
    _regression("LassoLars", lambda: LassoLars(alpha=0.1)),
    _regression("LinearRegression", LinearRegression),
    _regression("LinearRegression, two targets", LinearRegression, data="two targets"),
    _regression("LinearSVR", lambda: LinearSVR(random_state=0)),
    _regression("MultiTaskLasso", MultiTaskLasso, data="two targets"),
    _regression("OrthogonalMatchingPursuit", OrthogonalMatchingPursuit),
    _regression("PLSRegression", PLSRegression),
    _regression("PLSRegression, two targets", PLSRegression, data="two targets"),
    _regression("PassiveAggressiveRegressor", lambda: PassiveAggressiveRegressor(random_state=0)),
    _regression("PoissonRegressor", PoissonRegressor),
    _regression("QuantileRegressor", QuantileRegressor),
    _regression("RANSACRegressor", lambda: RANSACRegressor(random_state=0), _inner("estimator_")),
    _regression("Ridge", Ridge),
    _regression("RidgeCV", RidgeCV),
    _regression("SGDRegressor", lambda: SGDRegressor(random_state=0)),
    _regression("TheilSenRegressor", lambda: TheilSenRegressor(random_state=0, max_subpopulation=200)),
    _regression("TweedieRegressor", lambda: TweedieRegressor(power=0)),
    _regression("TweedieRegressor, power 1.5", lambda: TweedieRegressor(power=1.5)),
    _regression("MLPRegressor", lambda: _mlp(MLPRegressor), _layers, "small targets"),
    _regression(
        "MLPRegressor, tanh", lambda: _mlp(MLPRegressor, activation="tanh"), _layers, "small targets"
    ),
    _regression("MLPRegressor, logistic", lambda: _mlp(MLPRegressor, activation="logistic"), _layers),
    _regression("MLPRegressor, identity", lambda: _mlp(MLPRegressor, activation="identity"), _layers),
    _regression("MLPRegressor, two targets", lambda: _mlp(MLPRegressor), _layers, "two targets"),
    _regression("SVR, rbf", SVR, _kernel),
    _regression("SVR, linear", lambda: SVR(kernel="linear")),
    _regression("NuSVR, linear", lambda: NuSVR(kernel="linear")),
    _regression("SVR, poly", lambda: SVR(kernel="poly", degree=2, coef0=0.5), _kernel),
    _regression("SVR, sigmoid", lambda: SVR(kernel="sigmoid"), _kernel),
    _regression("FrozenEstimator", lambda: FrozenEstimator(Ridge().fit(*_diabetes())), _inner("estimator")),
    _regression(
        "GridSearchCV", lambda: GridSearchCV(Ridge(), {"alpha": [0.1, 1]}), _inner("best_estimator_")
    ),
    _regression("BaggingRegressor", lambda: BaggingRegressor(Ridge(), 2, random_state=0), _members),
    _regression("MultiOutputRegressor", lambda: MultiOutputRegressor(Ridge()), _members, "two targets"),
    _regression("StackingRegressor", lambda: StackingRegressor([("a", Ridge()), ("b", Lasso())]), _stacked),
    _regression(
        "TransformedTargetRegressor, log",
        lambda: TransformedTargetRegressor(Ridge(), func=np.log1p, inverse_func=np.expm1),
        _inner("regressor_"),
    ),
    _regression(
        "TransformedTargetRegressor, scaler",
        lambda: TransformedTargetRegressor(Ridge(), transformer=StandardScaler()),
        _inner("regressor_"),
    ),
    _regression(
        "VotingRegressor", lambda: VotingRegressor([("a", Ridge()), ("b", SGDRegressor())]), _members
    ),
    _regression(
        "VotingRegressor, weights",
        lambda: VotingRegressor(
            [("a", Ridge()), ("no", "drop"), ("b", SGDRegressor(random_state=0))], weights=[1, 5, 3]
        ),
        _members,
    ),
]

_PIPELINES = [
    _regression(
        "ColumnTransformer, numbers", lambda: make_pipeline(_numbers(), Ridge()), _last(), "numbers frame"
    ),
    _regression(
        "FeatureUnion", lambda: make_pipeline(make_union(PCA(2), StandardScaler()), Ridge()), _last()
    ),
    _regression("FastICA", lambda: make_pipeline(FastICA(3, random_state=0), Ridge()), _last()),
    _regression(
        "FunctionTransformer", lambda: make_pipeline(FunctionTransformer(np.square), Ridge()), _last()
    ),
    _regression("IncrementalPCA", lambda: make_pipeline(IncrementalPCA(3), Ridge()), _last()),
    _regression(
        "KBinsDiscretizer", lambda: make_pipeline(KBinsDiscretizer(3, strategy="uniform"), Ridge()), _last()
    ),
    _regression("MaxAbsScaler", lambda: make_pipeline(MaxAbsScaler(), Ridge()), _last()),
    _regression("MinMaxScaler", lambda: make_pipeline(MinMaxScaler(), Ridge()), _last()),
    _regression("Normalizer", lambda: make_pipeline(Normalizer(), Ridge()), _last()),
    _regression("Normalizer, max", lambda: make_pipeline(Normalizer("max"), Ridge()), _last()),
    _regression("RFE", lambda: RFE(Ridge(), n_features_to_select=4), _inner("estimator_")),
    _regression(
        "RFE, nested",
        lambda: make_pipeline(
            StandardScaler(), RFE(RFE(Ridge(), n_features_to_select=3), importance_getter="estimator_.coef_")
        ),
        _last(_inner("estimator_", _inner("estimator_"))),
    ),
    _regression(
        "FeatureUnion, dropped",
        lambda: make_pipeline(FeatureUnion([("a", PCA(2)), ("b", "drop"), ("c", "passthrough")]), Ridge()),
        _last(),
    ),
    _regression(
        "ColumnTransformer, mask",
        lambda: make_pipeline(
            make_column_transformer((StandardScaler(), np.arange(10) < 4), (PCA(1), [-1, -3])), Ridge()
        ),
        _last(),
    ),
    _regression("PCA", lambda: make_pipeline(StandardScaler(), PCA(3), Ridge()), _last()),
    _regression("PolynomialFeatures", lambda: make_pipeline(PolynomialFeatures(3), Ridge()), _last()),
    _regression(
        "PolynomialFeatures, products",
        lambda: make_pipeline(PolynomialFeatures((2, 3), interaction_only=True, include_bias=False), Ridge()),
        _last(),
    ),
    _regression("PowerTransformer", lambda: make_pipeline(PowerTransformer(), Ridge()), _last()),
    _regression(
        "Pipeline, idle steps",
        lambda: make_pipeline("passthrough", StandardScaler(), None, make_pipeline("passthrough", Ridge())),
        _last(_last()),
    ),
    _regression("RBFSampler", lambda: make_pipeline(RBFSampler(random_state=0), Ridge()), _last()),
    _regression("RobustScaler", lambda: make_pipeline(RobustScaler(), Ridge()), _last()),
    _regression("SelectKBest", lambda: make_pipeline(SelectKBest(k=3), Ridge()), _last()),
    _regression("SimpleImputer", lambda: make_pipeline(SimpleImputer(), Ridge()), _last(), "gaps"),
    _regression(
        "SparseRandomProjection",
        lambda: make_pipeline(SparseRandomProjection(6, random_state=0), Ridge()),
        _last(),
    ),
    _regression("SplineTransformer", lambda: make_pipeline(SplineTransformer(), Ridge()), _last()),
    _regression("TruncatedSVD", lambda: make_pipeline(TruncatedSVD(3), SVR(kernel="linear")), _last()),
    _regression(
        "Pipeline in TransformedTargetRegressor",
        lambda: make_pipeline(
            StandardScaler(),
            TransformedTargetRegressor(_mlp(MLPRegressor), transformer=MinMaxScaler()),
        ),
        _last(_inner("regressor_", _layers)),
    ),
    SklearnCase(
        "ColumnTransformer, mixed",
        lambda: make_pipeline(_mixed(), LogisticRegression()),
        "mixed frame",
        "sigmoid",
        _last(),
    ),
    SklearnCase(
        "String labels",
        lambda: make_pipeline(StandardScaler(), LogisticRegression()),
        "names",
        "softmax",
        _last(),
    ),
    SklearnCase(
        "ColumnTransformer, slice and mask of a frame",
        lambda: make_pipeline(
            make_column_transformer(
                (OneHotEncoder(), slice("floor level", "town")),
                (StandardScaler(), [True, False, False, False]),
            ),
            LogisticRegression(),
        ),
        "mixed frame",
        "sigmoid",
        _last(),
    ),
    SklearnCase(
        "ColumnTransformer, one column of a frame",
        lambda: make_pipeline(make_column_transformer((OneHotEncoder(), ["town"])), LogisticRegression()),
        "mixed frame",
        "sigmoid",
        _last(),
    ),
    SklearnCase(
        "SimpleImputer of texts",
        lambda: make_pipeline(
            make_column_transformer(
                (StandardScaler(), ["size"]),
                (make_pipeline(_most_frequent(np.nan), _codes()), ["town"]),
                (make_pipeline(_most_frequent(None), _codes()), ["street"]),
            ),
            LogisticRegression(),
        ),
        "texts with gaps",
        "sigmoid",
        _last(),
    ),
    SklearnCase(
        "SimpleImputer of texts, a constant",
        lambda: make_pipeline(
            make_column_transformer(
                (make_pipeline(SimpleImputer(strategy="constant", fill_value="none"), _codes()), ["town"])
            ),
            LogisticRegression(),
        ),
        "texts with gaps",
        "sigmoid",
        _last(),
    ),
    SklearnCase(
        "SelectFromModel of LinearSVC",
        lambda: make_pipeline(
            StandardScaler(),
            SelectFromModel(LinearSVC(C=0.01, penalty="l1", dual=False, random_state=0)),
            LogisticRegression(),
        ),
        "cancer",
        "sigmoid",
        _last(),
    ),
    SklearnCase(
        "Pipelines that do nothing",
        lambda: make_pipeline(
            make_pipeline("passthrough"), make_pipeline("passthrough", StandardScaler()), LogisticRegression()
        ),
        "cancer",
        "sigmoid",
        _last(),
    ),
    SklearnCase(
        "RFE of a classifier", lambda: RFE(LogisticRegression()), "cancer", "sigmoid", _inner("estimator_")
    ),
    SklearnCase(
        "Voting with a tree",
        lambda: VotingClassifier(
            [("a", LogisticRegression()), ("b", DecisionTreeClassifier(max_depth=2, random_state=0))],
            voting="soft",
        ),
        "iris",
        "log",
        lambda voting: _linear(voting.estimators_[0]),
    ),
    SklearnCase(
        "SelectKBest, first column",
        lambda: make_pipeline(SelectKBest(_first, k=1), LogisticRegression()),
        "iris",
        "softmax",
        _last(),
    ),
    SklearnCase(
        "Voting with LDA",
        lambda: VotingClassifier(
            [("a", LogisticRegression()), ("b", LinearDiscriminantAnalysis())], voting="soft"
        ),
        "cancer",
        "log",
        _members,
    ),
    SklearnCase(
        "LDA as a projection",
        lambda: make_pipeline(LinearDiscriminantAnalysis(), LogisticRegression()),
        "iris",
        "softmax",
        _last(),
    ),
    SklearnCase(
        "MLP in a Pipeline",
        lambda: make_pipeline(PCA(3), _mlp(MLPClassifier)),
        "names",
        "softmax",
        _last(_layers),
    ),
]


def _first(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return scores of columns of which the first has the highest."""
    return -np.arange(X.shape[1], dtype=np.float64)


def _numbers() -> ColumnTransformer:
    return ColumnTransformer(
        [("scaled", StandardScaler(), ["bmi", "age"]), ("dropped", "drop", ["sex"])], remainder="passthrough"
    )


def _most_frequent(missing: float | None) -> SimpleImputer:
    return SimpleImputer(missing_values=missing, strategy="most_frequent")


def _codes() -> OneHotEncoder:
    return OneHotEncoder(handle_unknown="ignore")


def _mixed() -> ColumnTransformer:
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    return ColumnTransformer(
        [
            ("numbers", numbers, ["size", "age"]),
            ("town", OneHotEncoder(handle_unknown="ignore"), ["town"]),
            ("floor", OneHotEncoder(), ["floor level"]),
        ]
    )


#: Each on two classes and on three: name, constructor, link for two and for three classes, parameters.
_CLASSIFIERS: list[tuple[str, Callable[[], Any], str, str, Callable[[Any], int]]] = [
    ("LogisticRegression", LogisticRegression, "sigmoid", "softmax", _linear),
    ("LogisticRegressionCV", lambda: LogisticRegressionCV(Cs=2), "sigmoid", "softmax", _linear),
    ("SGDClassifier, hinge", lambda: SGDClassifier(random_state=0), "identity", "identity", _linear),
    ("SGDClassifier, log_loss", lambda: SGDClassifier("log_loss", random_state=0), "sigmoid", "ovr", _linear),
    (
        "SGDClassifier, modified_huber",
        lambda: SGDClassifier("modified_huber", random_state=0),
        "modified_huber",
        "modified_huber",
        _linear,
    ),
    ("Perceptron", Perceptron, "identity", "identity", _linear),
    ("PassiveAggressiveClassifier", PassiveAggressiveClassifier, "identity", "identity", _linear),
    ("LinearSVC", LinearSVC, "identity", "identity", _linear),
    (
        "LinearSVC behind a scaler",
        lambda: make_pipeline(MaxAbsScaler(), LinearSVC()),
        "identity",
        "identity",
        lambda e: _linear(e[-1]),
    ),
    (
        "LinearSVC in a pipeline in a pipeline",
        lambda: make_pipeline(make_pipeline(MaxAbsScaler(), LinearSVC())),
        "identity",
        "identity",
        lambda e: _linear(e[-1][-1]),
    ),
    (
        "OneVsRest(scaler and LinearSVC)",
        lambda: OneVsRestClassifier(make_pipeline(MaxAbsScaler(), LinearSVC())),
        "identity",
        "identity",
        lambda e: sum(_linear(member[-1]) for member in e.estimators_),
    ),
    ("RidgeClassifier", RidgeClassifier, "identity", "identity", _linear),
    ("RidgeClassifierCV", RidgeClassifierCV, "identity", "identity", _linear),
    ("LinearDiscriminantAnalysis", LinearDiscriminantAnalysis, "sigmoid", "softmax", _linear),
    ("MLPClassifier", lambda: _mlp(MLPClassifier), "sigmoid", "softmax", _layers),
    (
        "OneVsRest(LogisticRegression)",
        lambda: OneVsRestClassifier(LogisticRegression()),
        "sigmoid",
        "ovr",
        _members,
    ),
    ("OneVsRest(LinearSVC)", lambda: OneVsRestClassifier(LinearSVC()), "identity", "identity", _members),
    (
        "OneVsRest(SVC)",
        lambda: OneVsRestClassifier(SVC()),
        "identity",
        "identity",
        lambda e: sum(map(_kernel, e.estimators_)),
    ),
    (
        "VotingClassifier",
        lambda: VotingClassifier([("a", LogisticRegression()), ("b", _mlp(MLPClassifier))], voting="soft"),
        "log",
        "log",
        _members,
    ),
    (
        "VotingClassifier, weights",
        lambda: VotingClassifier(
            [("a", LogisticRegression()), ("b", _mlp(MLPClassifier))], voting="soft", weights=[1, 3]
        ),
        "log",
        "log",
        _members,
    ),
    (
        "CalibratedClassifierCV",
        lambda: CalibratedClassifierCV(LogisticRegression(), cv=2),
        "log",
        "log",
        _calibrated,
    ),
    (
        "CalibratedClassifierCV, one model",
        lambda: CalibratedClassifierCV(LinearSVC(), cv=2, ensemble=False),
        "sigmoid",
        "ovr",
        _calibrated,
    ),
    (
        "StackingClassifier",
        lambda: StackingClassifier([("a", LogisticRegression())]),
        "sigmoid",
        "softmax",
        _stacked,
    ),
    (
        "BaggingClassifier",
        lambda: BaggingClassifier(LogisticRegression(), 2, random_state=0),
        "log",
        "log",
        _members,
    ),
]

CASES = [
    *_REGRESSORS,
    *_PIPELINES,
    SklearnCase("SVC", SVC, "cancer", "identity", _kernel),
    SklearnCase("SVC, linear", lambda: SVC(kernel="linear"), "cancer", "identity", _linear),
    SklearnCase("NuSVC, linear", lambda: NuSVC(kernel="linear"), "cancer", "identity", _linear),
    *(SklearnCase(f"{name}, 2 classes", make, "cancer", two, n) for name, make, two, _, n in _CLASSIFIERS),
    *(SklearnCase(f"{name}, 3 classes", make, "iris", three, n) for name, make, _, three, n in _CLASSIFIERS),
]
