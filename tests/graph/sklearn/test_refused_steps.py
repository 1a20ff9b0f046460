"""Steps that the converters get wrong are refused, with the step to take instead."""

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import BaggingRegressor, StackingClassifier, StackingRegressor, VotingRegressor
from sklearn.feature_selection import RFE, RFECV
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder
from sklearn.svm import LinearSVC

from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.sklearn.convert import convert_estimator
from onnxsgd.graph.sklearn.refused_steps import _OBJECTIONS

RNG = np.random.default_rng(0)
CANCER = load_breast_cancer(return_X_y=True)
LABELS = RNG.integers(0, 2, 60)
GAPS = np.where(RNG.random((60, 3)) < 0.2, np.nan, RNG.normal(size=(60, 3)))
CODES = RNG.choice([100_000_001, 100_000_002, 3], (60, 1))
FEW = RNG.choice(6, (60, 1))

CASES = {
    "neighbours": (KNNImputer(), GAPS, "has a converter whose graph is not valid: take SimpleImputer"),
    "missing values": (SimpleImputer(missing_values=pd.NA), GAPS, "for missing_values=pd.NA: take numpy.nan"),
    "indicator": (SimpleImputer(add_indicator=True), GAPS, "columns of add_indicator=True"),
    "codes": (OrdinalEncoder(), CODES, "has the category 100000001, .* as float32"),
    "codes and targets": (TargetEncoder(), CODES, "has the category 100000001, .* take OneHotEncoder"),
    "larger codes": (OneHotEncoder(), 2**60 + CODES % 7, "float64 holds integers up to 2\\*\\*53"),
    "infrequent": (OrdinalEncoder(max_categories=3), FEW, r"infrequent categories \(max_categories=3"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_steps_are_refused_in_pipelines(name):
    step, X, message = CASES[name]
    pipeline = make_pipeline(step, LogisticRegression()).fit(X, LABELS)
    with pytest.raises(UnsupportedError, match=f"{type(step).__name__} .*{message}"):
        convert_estimator(pipeline, X)


STACKS = {
    "labels": ([("a", LogisticRegression())], "predict", "takes 'predict' of its member 'a'"),
    "scores": (
        [("a", LogisticRegression()), ("b", LinearSVC())],
        "auto",
        "'decision_function' of its member 'b'",
    ),
    "after a dropped member": ([("a", "drop"), ("b", LinearSVC())], "auto", "of its member 'b'"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STACKS)
def test_stacks_without_probabilities_are_refused(name):
    members, method, message = STACKS[name]
    X, y = CANCER
    stack = StackingClassifier(members, stack_method=method, cv=2).fit(X[:, :4], y)
    with pytest.raises(UnsupportedError, match=f"StackingClassifier .*{message}"):
        convert_estimator(stack, X[:, :4])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_gaussian_processes_are_refused(n_classes):
    X = np.random.default_rng(0).normal(size=(30, 2))
    y = np.digitize(X[:, 0], [0.0, 0.5][: n_classes - 1])
    for scaler in (StandardScaler(), "passthrough"):
        pipeline = make_pipeline(scaler, GaussianProcessClassifier()).fit(X, y)
        with pytest.raises(UnsupportedError, match="GaussianProcessClassifier has a .* take Logistic"):
            convert_estimator(pipeline, X)


ENSEMBLES = {
    "vote": VotingRegressor([("a", RFE(Ridge(), n_features_to_select=1)), ("b", Ridge())]),
    "pipeline in a stack": StackingRegressor([("a", make_pipeline(StandardScaler(), RFECV(Ridge())))]),
    "target": TransformedTargetRegressor(RFE(Ridge())),
    "bag": BaggingRegressor(RFE(Ridge()), 2),
}


@pytest.mark.parametrize("name", ENSEMBLES)
def test_eliminations_are_refused_as_members(name):
    """The selection alone has a converter: of one column it would be the prediction."""
    X = np.random.default_rng(0).normal(size=(40, 4))
    ensemble = ENSEMBLES[name].fit(X, X[:, 0] - X[:, 1])
    with pytest.raises(UnsupportedError, match=f"{type(ensemble).__name__} has RFE(CV)? as a member"):
        convert_estimator(ensemble, X)


def test_calibrated_eliminations_are_refused():
    X, y = CANCER
    model = CalibratedClassifierCV(RFE(LogisticRegression()), cv=2).fit(X[:, :4] / 100, y)
    with pytest.raises(UnsupportedError, match="has RFE as a member"):
        convert_estimator(model, X[:, :4])


def test_steps_that_are_converted_are_not_refused():
    """Without a missing value there is no indicator; integers below 2**24 are exact."""
    X = np.where(np.isnan(GAPS), 0.0, GAPS)
    convert_estimator(
        make_pipeline(SimpleImputer(add_indicator=True), LogisticRegression()).fit(X, LABELS), X
    )
    X = np.where(CODES > 3, 2**24, CODES)
    convert_estimator(make_pipeline(OrdinalEncoder(), LogisticRegression()).fit(X, LABELS), X)


def test_every_objection_has_a_case():
    others = {StackingClassifier, GaussianProcessClassifier}
    assert set(_OBJECTIONS) == {type(step) for step, _, _ in CASES.values()} | others
