"""A step without a converter is named, with the call that keeps it in scikit-learn."""

import re

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import NMF, PCA
from sklearn.ensemble import RandomTreesEmbedding, StackingRegressor, VotingRegressor
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_selection import SequentialFeatureSelector
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.semi_supervised import LabelSpreading

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.sklearn.convert import convert_estimator

X, LABELS = load_breast_cancer(return_X_y=True)
X, LABELS = X[:200, :6], LABELS[:200]
TARGET = X[:, 0] - X[:, 3] / 100
WAVES = Nystroem(gamma=1e-6, n_components=12, random_state=0)
SELECTOR = SequentialFeatureSelector(Ridge(), n_features_to_select=2, cv=2)

#: Pipelines, the part that the message names, and the number of steps that stay.
PIPELINES = {
    "a class without a converter": (
        make_pipeline(WAVES, Ridge()),
        "'nystroem' (Nystroem) has no converter",
        1,
    ),
    "the second step": (
        make_pipeline(MinMaxScaler(), "passthrough", NMF(2, random_state=0), Ridge()),
        "'nmf' (NMF) has no converter",
        3,
    ),
    "a pipeline in a pipeline": (
        make_pipeline(StandardScaler(), make_pipeline(StandardScaler(), SELECTOR), Ridge()),
        "'pipeline__sequentialfeatureselector' (SequentialFeatureSelector) has no converter",
        2,
    ),
    "a union": (
        make_pipeline(make_union(PCA(2), WAVES), Ridge()),
        "'featureunion__nystroem' (Nystroem) has no converter",
        1,
    ),
    "columns": (
        make_pipeline(make_column_transformer((WAVES, [0, 1]), remainder="passthrough"), Ridge()),
        "'columntransformer__nystroem' (Nystroem) has no converter",
        1,
    ),
    "a converter that refuses": (
        make_pipeline(RandomTreesEmbedding(2, max_depth=2, random_state=0), Ridge()),
        "'randomtreesembedding' (RandomTreesEmbedding) cannot be converted to ONNX (RuntimeError: The",
        1,
    ),
    "a clustering": (
        make_pipeline(StandardScaler(), KMeans(3, n_init=1, random_state=0), Ridge()),
        "'kmeans' (KMeans) has no converter of its transform",
        2,
    ),
    "a clustering in a union": (
        make_pipeline(make_union(KMeans(3, n_init=1, random_state=0), PCA(2)), Ridge()),
        "'featureunion__kmeans' (KMeans) has no converter of its transform",
        1,
    ),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", PIPELINES)
def test_the_call_in_the_message_trains(name):
    """It is taken from the message and run: the pipeline predicts as before, and learns."""
    pipeline, part, n_steps = PIPELINES[name]
    model = clone(pipeline).fit(X, TARGET)
    with pytest.raises(UnsupportedError) as caught:
        OnnxSGDRegressor(model).fit(X, TARGET)
    message = str(caught.value)
    assert message.startswith(f"Step {part}")
    assert "\n" not in message
    assert len(message) < 320
    call = re.search(r"make_pipeline\(.*\)\)", message)[0]
    n_later = len(model) - n_steps
    assert f"model[:-{n_later}]" in call
    assert f"model[-{n_later}:]" in call
    names = {"make_pipeline": make_pipeline, "FrozenEstimator": FrozenEstimator, "model": model}
    learner = eval(call, names | {"OnnxSGDRegressor": OnnxSGDRegressor})
    np.testing.assert_allclose(learner.predict(X), model.predict(X), atol=1e-4 * TARGET.std())
    learner[-1].set_params(max_iter=5, random_state=0)
    assert learner.fit(X, TARGET).score(X, TARGET) > model.score(X, TARGET) - 1e-4


def test_a_classifier_is_called_one():
    model = make_pipeline(WAVES, LogisticRegression()).fit(X, LABELS)
    with pytest.raises(UnsupportedError, match=r"OnnxSGDClassifier\(model\[-1:\]\)"):
        OnnxSGDClassifier(model).predict(X)


def test_the_call_counts_a_text_part():
    texts = ["one two", "two three", "one", "three two"] * 10
    model = make_pipeline(CountVectorizer(), NMF(2, random_state=0), Ridge()).fit(texts, np.arange(40.0))
    with pytest.raises(UnsupportedError, match=r"model\[:-1\]\), OnnxSGDRegressor\(model\[-1:\]\)"):
        OnnxSGDRegressor(model).fit(texts, np.arange(40.0))
    learner = make_pipeline(FrozenEstimator(model[:-1]), OnnxSGDRegressor(model[-1:]))
    np.testing.assert_allclose(learner.predict(texts), model.predict(texts), atol=1e-4)


OTHERS = {
    "a search": (
        GridSearchCV(make_pipeline(WAVES, Ridge()), {"ridge__alpha": [1.0]}, cv=2),
        r"Step 'nystroem' \(Nystroem\) has no converter",
        "Put it before OnnxSGDRegressor in a pipeline of scikit-learn",
    ),
    "a member of an ensemble": (
        VotingRegressor([("a", make_pipeline(WAVES, Ridge())), ("b", Ridge())]),
        r"Step 'nystroem' \(Nystroem in VotingRegressor\) has no converter",
        "by another tool",
    ),
    "a stack in a pipeline": (
        make_pipeline(StandardScaler(), StackingRegressor([("a", make_pipeline(WAVES, Ridge()))], cv=2)),
        r"Step 'stackingregressor__nystroem' \(Nystroem in StackingRegressor\)",
        "by another tool",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_places_are_named(name):
    """A step of a search can be put before it; a part of the predictor itself stays unknown to ONNX."""
    estimator, part, advice = OTHERS[name]
    with pytest.raises(UnsupportedError, match=f"^{part}.*{advice}"):
        convert_estimator(clone(estimator).fit(X, TARGET), X)


def test_a_predictor_without_a_converter():
    model = make_pipeline(StandardScaler(), LabelSpreading()).fit(X, LABELS)
    message = r"^Step 'labelspreading' \(LabelSpreading\) has no converter to ONNX. An ONNX model of it by"
    with pytest.raises(UnsupportedError, match=message):
        convert_estimator(model, X)
    with pytest.raises(UnsupportedError, match="^LabelSpreading has no converter to ONNX. An ONNX model"):
        convert_estimator(model[-1], X)


def test_a_calibrated_member_is_named():
    pipeline = make_pipeline(WAVES, LogisticRegression())
    model = CalibratedClassifierCV(pipeline, cv=2).fit(X, LABELS)
    with pytest.raises(UnsupportedError, match=r"^Step 'nystroem' \(Nystroem in _CalibratedClassifier\)"):
        convert_estimator(model, X)
