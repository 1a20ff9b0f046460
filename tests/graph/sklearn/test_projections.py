"""Linear transformers are projections with the same features, in each place of a pipeline."""

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA, FastICA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import VotingRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import StandardScaler
from sklearn.random_projection import SparseRandomProjection

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

X, Y = load_wine(return_X_y=True)
EIGEN = LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.1)

STEPS = {
    "discriminants": LinearDiscriminantAnalysis(),
    "fewer discriminants": LinearDiscriminantAnalysis(n_components=1),
    "discriminants without a mean": EIGEN,
    "components": FastICA(4, random_state=0),
    "components without a mean": make_pipeline(
        PCA(4, whiten=True), FastICA(whiten=False, max_iter=9, random_state=0)
    ),
    "random": SparseRandomProjection(5, random_state=0),
    "dense": SparseRandomProjection(5, density=1, random_state=0),
    "in a pipeline": make_pipeline(StandardScaler(), LinearDiscriminantAnalysis()),
    "frozen": FrozenEstimator(LinearDiscriminantAnalysis().fit(X, Y)),
    "found by a search": GridSearchCV(LinearDiscriminantAnalysis(), {"n_components": [1, 2]}, cv=2),
    "in a union": make_union(LinearDiscriminantAnalysis(), PCA(2)),
    "of columns": make_column_transformer((LinearDiscriminantAnalysis(), [0, 2, 5]), remainder="passthrough"),
    "before a step": make_pipeline(LinearDiscriminantAnalysis(), StandardScaler()),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("offset", [0.0, 1e5])
@pytest.mark.parametrize("name", STEPS)
def test_features_of_projections(name, offset):
    """Of raw columns, and of some far from 0, in relation to the spread of the predictions."""
    table = X + offset
    model = make_pipeline(STEPS[name], Ridge())
    if name == "frozen":
        model = make_pipeline(FrozenEstimator(LinearDiscriminantAnalysis().fit(table, Y)), Ridge())
    model.fit(table, Y)
    expected = model.predict(table)
    found = OnnxSGDRegressor(model).predict(table)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * expected.std())
    exact = OnnxSGDRegressor(model, dtype="float64").predict(table)
    np.testing.assert_allclose(exact, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


def test_a_discriminant_analysis_that_predicts_stays_one():
    model = make_pipeline(StandardScaler(), LinearDiscriminantAnalysis()).fit(X, Y)
    found = OnnxSGDClassifier(model).predict_proba(X)
    np.testing.assert_allclose(found, model.predict_proba(X), atol=1e-5)


def test_members_of_ensembles_begin_with_projections():
    member = make_pipeline(LinearDiscriminantAnalysis(), Ridge())
    model = VotingRegressor([("a", member), ("b", Ridge())]).fit(X, Y)
    np.testing.assert_allclose(OnnxSGDRegressor(model).predict(X), model.predict(X), atol=1e-4)


def test_projections_stay_and_what_follows_learns():
    model = make_pipeline(StandardScaler(), LinearDiscriminantAnalysis(), LogisticRegression(C=1e-4)).fit(
        X, Y
    )
    learner = OnnxSGDClassifier(model, random_state=0).fit(X, Y)
    assert model.score(X, Y) < 0.95 < learner.score(X, Y)
    assert sorted(learner.get_weights()) == ["coef", "intercept"]
    assert isinstance(model[1], LinearDiscriminantAnalysis)
