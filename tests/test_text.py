"""Pipelines that begin with vectorizers of text."""

import pickle

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler
from sklearn.utils import get_tags

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.exceptions import ParameterError, UnsupportedError

rng = np.random.RandomState(0)
WORDS = ["Good", "good", "bad", "Bad", "film", "plot", "a", "of", "the", "poor", "great", "scene", "7"]
TEXTS = [" ".join(rng.choice(WORDS, 9)) for _ in range(150)]
GOOD = np.array([sum(word in ("good", "Good", "great") for word in text.split()) for text in TEXTS])
LABEL = np.where(GOOD > 2, "yes", "no")
NUMBERS = rng.randn(150, 2)
FRAME = pd.DataFrame({"text": TEXTS, "n": NUMBERS[:, 0], "k": NUMBERS[:, 1]})
STILL = {"eta0": 1e-20, "learning_rate": "constant", "penalty": None, "max_iter": 1, "tol": None}


def classifier(model, **more):
    return OnnxSGDClassifier(model, **{"max_iter": 4, "eta0": 0.1, "tol": None, "random_state": 0} | more)


def columns(vectorizer=None):
    vectorizer = vectorizer or TfidfVectorizer(lowercase=False)
    return ColumnTransformer([("text", vectorizer, "text"), ("numbers", StandardScaler(), ["n", "k"])])


def run(onx, feeds):
    session = onnxruntime.InferenceSession(onx.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def tokens(text):
    return text.split()


PIPELINES = {
    "tfidf": lambda: make_pipeline(TfidfVectorizer(), LogisticRegression()),
    "counts": lambda: make_pipeline(CountVectorizer(ngram_range=(1, 2)), LogisticRegression()),
    "hashes": lambda: make_pipeline(HashingVectorizer(n_features=64), LogisticRegression()),
    "a callable": lambda: make_pipeline(
        TfidfVectorizer(tokenizer=tokens, token_pattern=None), LogisticRegression()
    ),
    "steps between": lambda: make_pipeline(
        TfidfVectorizer(), TruncatedSVD(5, random_state=0), StandardScaler(), LogisticRegression()
    ),
    "nested": lambda: make_pipeline(TfidfVectorizer(), make_pipeline(MaxAbsScaler(), LogisticRegression())),
    "union": lambda: make_pipeline(
        FeatureUnion([("w", TfidfVectorizer()), ("c", CountVectorizer(analyzer="char"))]),
        LogisticRegression(),
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_training_begins_where_the_pipeline_ended(name):
    inner = PIPELINES[name]().fit(TEXTS, LABEL)
    model = classifier(inner, **STILL).fit(TEXTS, LABEL)
    np.testing.assert_allclose(model.predict_proba(TEXTS), inner.predict_proba(TEXTS), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(model.predict(TEXTS), inner.predict(TEXTS))
    trained = classifier(inner, penalty=None).fit(TEXTS, LABEL)
    assert trained.loss_curve_[-1] < model.loss_curve_[0]


def test_the_tail_learns_as_on_the_features_themselves():
    """Only what stands behind the vectorizer is trained."""
    vectorizer, last = TfidfVectorizer(), LogisticRegression()
    features = vectorizer.fit_transform(TEXTS)
    whole = classifier(make_pipeline(vectorizer, last)).fit(TEXTS, LABEL)
    tail = classifier(last).fit(features, LABEL)
    np.testing.assert_array_equal(whole.coef_, tail.coef_)
    parts = classifier(make_pipeline(vectorizer, last).fit(TEXTS, LABEL), shuffle=False)
    parts.partial_fit(TEXTS[:64], LABEL[:64]).partial_fit(TEXTS[64:], LABEL[64:])
    fitted = last.fit(features, LABEL)
    by_hand = classifier(fitted, shuffle=False)
    by_hand.partial_fit(features[:64], LABEL[:64]).partial_fit(features[64:], LABEL[64:])
    np.testing.assert_array_equal(parts.coef_, by_hand.coef_)


@pytest.mark.parametrize(
    "form",
    [
        lambda texts: np.array(texts),
        lambda texts: np.array(texts, dtype=object),
        lambda texts: np.array(texts, dtype=object).reshape(-1, 1),
        tuple,
        pd.Series,
        lambda texts: pd.DataFrame({"text": texts}),
        lambda texts: pytest.importorskip("polars").Series("text", texts),
        lambda texts: pytest.importorskip("polars").DataFrame({"text": texts}),
    ],
    ids=["array", "objects", "column", "tuple", "series", "frame", "polars series", "polars frame"],
)
def test_texts_in_other_forms(form):
    expected = classifier(PIPELINES["tfidf"]()).fit(TEXTS, LABEL)
    model = classifier(PIPELINES["tfidf"]()).fit(form(TEXTS), LABEL)
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    np.testing.assert_array_equal(model.predict(form(TEXTS)), expected.predict(TEXTS))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_column_of_text_beside_numbers(library):
    frame = FRAME if library == "pandas" else pytest.importorskip("polars").DataFrame(FRAME.to_dict("list"))
    inner = make_pipeline(columns(), LogisticRegression()).fit(frame, LABEL)
    model = classifier(inner, **STILL).fit(frame, LABEL)
    np.testing.assert_allclose(model.predict_proba(frame), inner.predict_proba(frame), rtol=0, atol=1e-6)
    assert model.feature_names_in_.tolist() == ["text", "n", "k"]
    feeds = {name: FRAME[[name]].to_numpy(np.float32) for name in ("n", "k")}
    feeds["text"] = FRAME[["text"]].to_numpy(object)
    label, probability = run(model.to_onnx(), feeds)
    np.testing.assert_array_equal(label, model.predict(frame))
    np.testing.assert_allclose(probability, model.predict_proba(frame), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["text", "n"]])


def test_tools_of_scikit_learn():
    model = classifier(PIPELINES["tfidf"](), early_stopping=True, validation_fraction=0.3)
    assert get_tags(model).input_tags.string
    search = GridSearchCV(
        clone(model), {"alpha": [1e-4, 1e-2], "model__tfidfvectorizer__min_df": [1, 9]}, cv=3
    ).fit(TEXTS, LABEL)
    assert search.best_score_ > 0.6
    weight = (np.arange(150) % 2).astype(float)
    weighted = model.fit(TEXTS, LABEL, sample_weight=weight).coef_
    np.testing.assert_array_equal(weighted, model.fit(TEXTS[1::2], LABEL[1::2]).coef_)
    model.fit(TEXTS, LABEL, X_val=TEXTS[:30], y_val=LABEL[:30])
    assert max(model.validation_scores_) == pytest.approx(model.score(TEXTS[:30], LABEL[:30]))
    frozen = FrozenEstimator(PIPELINES["tfidf"]().fit(TEXTS, LABEL))
    assert classifier(frozen).fit(TEXTS, LABEL).score(TEXTS, LABEL) > 0.7
    regressor = OnnxSGDRegressor(make_pipeline(TfidfVectorizer(), Ridge()), max_iter=3, tol=None)
    assert regressor.fit(TEXTS, GOOD).score(TEXTS, GOOD) > 0.5


def test_a_pickle_goes_on():
    model = classifier(PIPELINES["steps between"]()).fit(TEXTS, LABEL)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(TEXTS), model.predict_proba(TEXTS))
    expected = model.partial_fit(TEXTS, LABEL).predict_proba(TEXTS)
    np.testing.assert_array_equal(again.partial_fit(TEXTS, LABEL).predict_proba(TEXTS), expected)


# To ONNX.


@pytest.mark.parametrize("dtype", [None, "float64"])
@pytest.mark.parametrize(
    "vectorizer",
    [
        CountVectorizer(),
        CountVectorizer(lowercase=False),
        TfidfVectorizer(),
        TfidfVectorizer(token_pattern="[a-zA-Z]+", ngram_range=(1, 2)),
        TfidfVectorizer(analyzer="char"),
    ],
    ids=str,
)
def test_the_whole_pipeline_goes_to_onnx(vectorizer, dtype):
    model = classifier(make_pipeline(vectorizer, LogisticRegression()), dtype=dtype).fit(TEXTS, LABEL)
    texts = np.array(TEXTS, dtype=object).reshape(-1, 1)
    label, probability = run(model.to_onnx(), {"X": texts})
    np.testing.assert_array_equal(label, model.predict(TEXTS))
    np.testing.assert_allclose(probability, model.predict_proba(TEXTS), rtol=0, atol=1e-6)
    again = pickle.loads(pickle.dumps(model)).to_onnx()
    np.testing.assert_array_equal(run(again, {"X": texts})[0], label)


@pytest.mark.parametrize(
    ("vectorizer", "message"),
    [
        (TfidfVectorizer(tokenizer=tokens, token_pattern=None), "Custom tokenizer"),
        (HashingVectorizer(n_features=64), "HashingVectorizer cannot be converted"),
        # skl2onnx counts words of one letter as parts of pairs
        (CountVectorizer(ngram_range=(1, 2)), r"other features than scikit-learn of \d+ of 100 samples"),
    ],
    ids=["a tokenizer of its own", "hashing", "pairs of words"],
)
def test_features_that_onnx_does_not_make_are_refused(vectorizer, message):
    model = classifier(make_pipeline(vectorizer, LogisticRegression())).fit(TEXTS, LABEL)
    with pytest.raises(UnsupportedError, match=message + r"(.|\n)*to_onnx\(text=False\)"):
        model.to_onnx()
    features = model.model[0].fit(TEXTS).transform(TEXTS).toarray().astype(np.float32)
    label, probability = run(model.to_onnx(text=False), {"X": features})
    np.testing.assert_array_equal(label, model.predict(TEXTS))
    np.testing.assert_allclose(probability, model.predict_proba(TEXTS), rtol=0, atol=1e-6)


def test_skl2onnx_is_told_to_leave_it():
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import StringTensorType

    model = classifier(PIPELINES["counts"]()).fit(TEXTS, LABEL)
    with pytest.raises(UnsupportedError, match="begins with vectorizers"):
        convert_sklearn(Pipeline([("m", model)]), initial_types=[("X", StringTensorType([None, 1]))])


# Refusals.


def test_what_is_no_column_of_texts_is_refused():
    model = classifier(PIPELINES["tfidf"]())
    for X in ("one text", {"text": TEXTS}, FRAME, FRAME.to_numpy()):
        with pytest.raises(ParameterError, match=r"must be a list|takes one column"):
            model.fit(X, LABEL)
    assert not hasattr(model, "classes_")
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(TEXTS, LABEL[1:])
