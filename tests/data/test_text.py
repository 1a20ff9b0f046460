"""Pipelines that begin with vectorizers of text."""

import pickle

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
from scipy import sparse
from skl2onnx import to_onnx
from skl2onnx.common.data_types import StringTensorType
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import TruncatedSVD
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.feature_selection import RFE, SelectFromModel
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, KBinsDiscretizer, MaxAbsScaler, StandardScaler
from sklearn.utils import get_tags

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, describe_trainable, load
from onnxsgd.exceptions import GraphError, ParameterError, UnsupportedError

rng = np.random.RandomState(0)
WORDS = ["Good", "good", "bad", "Bad", "film", "plot", "a", "of", "the", "poor", "great", "scene", "7"]
TEXTS = [" ".join(rng.choice(WORDS, 9)) for _ in range(150)]
GOOD = np.array([sum(word in ("good", "Good", "great") for word in text.split()) for text in TEXTS])
LABEL = np.where(GOOD > 2, "yes", "no")
NUMBERS = rng.randn(150, 2)
FRAME = pd.DataFrame({"text": TEXTS, "n": NUMBERS[:, 0], "k": NUMBERS[:, 1]})
STILL = {"eta0": 1e-20, "learning_rate": "constant", "penalty": None, "max_iter": 1, "tol": None}


def classifier(model, **more):
    return OnnxSGDClassifier(
        model,
        **{"max_iter": 4, "learning_rate": "invscaling", "eta0": 0.1, "tol": None, "random_state": 0} | more,
    )


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
    """Only the steps after the vectorizer are trained."""
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


@pytest.mark.filterwarnings(
    "ignore:(Training raised the score|No epoch scored better):sklearn.exceptions.ConvergenceWarning"
)
def test_scikit_learn_tools():
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


def test_a_pickle_continues_training():
    model = classifier(PIPELINES["steps between"]()).fit(TEXTS, LABEL)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(TEXTS), model.predict_proba(TEXTS))
    expected = model.partial_fit(TEXTS, LABEL).predict_proba(TEXTS)
    np.testing.assert_array_equal(again.partial_fit(TEXTS, LABEL).predict_proba(TEXTS), expected)


# Vectorizers inside other estimators.


def test_a_target_transformer_around_a_pipeline_of_texts():
    """It is split: vectorizers first, then the regressor of the transformed target."""
    y = np.exp(GOOD / 3.0)
    inner = TransformedTargetRegressor(
        make_pipeline(TfidfVectorizer(), Ridge()), func=np.log, inverse_func=np.exp
    )
    still = OnnxSGDRegressor(inner.fit(TEXTS, y), **STILL).fit(TEXTS, y)
    np.testing.assert_allclose(still.predict(TEXTS), inner.predict(TEXTS), rtol=1e-5)
    unfitted = OnnxSGDRegressor(
        clone(inner), max_iter=3, tol=None, learning_rate="invscaling", eta0=0.01
    ).fit(TEXTS, y)
    assert unfitted.score(TEXTS, y) > 0.5
    outer = make_pipeline(TfidfVectorizer(), clone(inner.set_params(regressor=Ridge())))
    np.testing.assert_allclose(
        OnnxSGDRegressor(outer, **STILL).fit(TEXTS, y).predict(TEXTS), inner.predict(TEXTS), rtol=1e-5
    )


@pytest.mark.parametrize("is_fitted", [False, True])
@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (lambda inner: CalibratedClassifierCV(inner, cv=2), "CalibratedClassifierCV"),
        (lambda inner: VotingClassifier([("a", inner)], voting="soft"), "VotingClassifier"),
        (lambda inner: StackingClassifier([("a", inner)], cv=2), "StackingClassifier"),
        (OneVsRestClassifier, "OneVsRestClassifier"),
        (lambda inner: make_pipeline(SelectFromModel(inner), LogisticRegression()), "SelectFromModel"),
        (lambda inner: GridSearchCV(OneVsRestClassifier(inner), {}, cv=2), "OneVsRestClassifier"),
    ],
    ids=["calibrated", "voting", "stacking", "one against the rest", "in a step", "in a search"],
)
def test_vectorizers_elsewhere_are_refused_by_name(wrap, name, is_fitted):
    model = wrap(PIPELINES["tfidf"]())
    if is_fitted and name != "SelectFromModel":
        model.fit(TEXTS, LABEL)
    with pytest.raises(UnsupportedError, match=rf"{name} holds a TfidfVectorizer: .*make_pipeline\(Tfidf"):
        classifier(model).fit(TEXTS, LABEL)


def test_a_vectorizer_alone_is_refused():
    with pytest.raises(UnsupportedError, match="CountVectorizer vectorizes text itself: put"):
        classifier(CountVectorizer()).fit(TEXTS, LABEL)


# The report of trainable tensors.


@pytest.mark.parametrize("name", PIPELINES)
def test_the_report_of_a_pipeline_agrees_with_its_fit(name):
    inner = PIPELINES[name]().fit(TEXTS, LABEL)
    trained = classifier(inner).fit(TEXTS, LABEL).get_weights()
    forms = (None, TEXTS, np.array(TEXTS), pd.Series(TEXTS), pd.DataFrame({"text": TEXTS}))
    for report in (describe_trainable(inner, X) for X in forms):
        assert report.trained == list(trained)
        shapes = {row.name: row.shape for row in report.tensors if row.trained}
        assert shapes == {key: array.shape for key, array in trained.items()}


def test_the_report_of_other_pipelines_of_texts():
    inner = make_pipeline(columns(), LogisticRegression()).fit(FRAME, LABEL)
    width = inner[0].transform(FRAME).shape[1]
    for X in (None, FRAME):
        (coef, _) = describe_trainable(inner, X).tensors
        assert (coef.shape, coef.trained) == ((width, 1), True)
    assert describe_trainable(inner, FRAME, head="linear").trained == ["coef_1", "intercept_1"]
    search = GridSearchCV(PIPELINES["tfidf"](), {}, cv=2).fit(TEXTS, LABEL)
    assert describe_trainable(search).trained == ["coef", "intercept"]
    with pytest.raises(NotFittedError):
        describe_trainable(PIPELINES["tfidf"]())
    with pytest.raises(ParameterError, match="must be a list"):
        describe_trainable(search, "a text")
    with pytest.raises(UnsupportedError, match="CalibratedClassifierCV holds"):
        describe_trainable(CalibratedClassifierCV(search, cv=2).fit(TEXTS, LABEL))


# Graphs that take strings.


def converted(rank):
    """A pipeline as a graph written by other tools: without lower case, which needs a locale."""
    inner = make_pipeline(TfidfVectorizer(lowercase=False), LogisticRegression()).fit(TEXTS, LABEL)
    types = [("X", StringTensorType([None, 1][:rank]))]
    return inner, to_onnx(inner, initial_types=types, options={"zipmap": False})


FORMS = {
    "list": list,
    "tuple": tuple,
    "array": np.array,
    "objects": lambda texts: np.array(texts, dtype=object),
    "column": lambda texts: np.array(texts, dtype=object).reshape(-1, 1),
    "rows": lambda texts: [[text] for text in texts],
    "series": pd.Series,
    "frame": lambda texts: pd.DataFrame({"any name": texts}),
    "dict": lambda texts: {"X": np.array(texts, dtype=object)},
    "polars series": lambda texts: pytest.importorskip("polars").Series("text", texts),
    "polars frame": lambda texts: pytest.importorskip("polars").DataFrame({"text": texts}),
}


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_a_graph_that_takes_strings(form, rank):
    """The runtime computes the features, once; the rest is trained as on scikit-learn's features."""
    inner, graph = converted(rank)
    X = FORMS[form](TEXTS)
    expected = classifier(inner).fit(TEXTS, LABEL)
    model = classifier(graph).fit(X, LABEL)
    for name, array in expected.get_weights().items():
        np.testing.assert_allclose(model.get_weights()[name], array, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model.predict(X), expected.predict(TEXTS))
    more = expected.partial_fit(TEXTS, LABEL).predict_proba(TEXTS)
    np.testing.assert_allclose(model.partial_fit(X, LABEL).predict_proba(X), more, rtol=0, atol=1e-5)
    texts = np.array(TEXTS, dtype=object).reshape([-1, 1][:rank])
    label, probability = run(model.to_onnx(), {"X": texts})
    np.testing.assert_array_equal(label, model.predict(X))
    np.testing.assert_allclose(probability, more, rtol=0, atol=1e-5)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), label)


WORDS_TO_ROWS = """<ir_version: 9, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
    g (string[N] X) => (float[N, 1] s) <float[4, 3] E, float[3, 1] W> {{
        n = StringNormalizer<locale = "C.UTF-8", case_change_action = "UPPER"{stop}>(X)
        k = ai.onnx.ml.LabelEncoder<keys_strings = ["A", "B", "C"], values_int64s = [1, 2, 3],
            default_int64 = 0>(n)
        e = Gather(E, k)
        t = Tanh(e)
        s = MatMul(t, W)
    }}"""


def embedding(stop=""):
    graph = onnx.parser.parse_model(WORDS_TO_ROWS.format(stop=stop))
    generator = np.random.RandomState(0)
    arrays = {"E": generator.randn(4, 3), "W": generator.randn(3, 1)}
    tensors = [onnx.numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()]
    del graph.graph.initializer[:]
    graph.graph.initializer.extend(tensors)
    return graph


def test_words_that_are_looked_up_in_a_trained_table():
    words = np.array(["a", "B", "c", "other"] * 12, dtype=object)
    y = np.tile([1.0, -1.0, 2.0, 0.5], 12)
    model = OnnxSGDRegressor(
        embedding(), max_iter=300, tol=None, learning_rate="invscaling", eta0=0.1, random_state=0
    ).fit(words, y)
    assert set(model.get_weights()) == {"E", "W"}
    np.testing.assert_allclose(model.predict(["A", "b", "C", "?"]), [1.0, -1.0, 2.0, 0.5], atol=0.05)


def test_strings_that_must_be_read_in_each_update_are_refused():
    """A dropped word shifts the others: rows are not proven to belong to one sample each."""
    graph = embedding(', stopwords = ["none of these"]')
    with pytest.raises(UnsupportedError, match="'X' holds strings, and its consumer StringNormalizer"):
        OnnxSGDRegressor(graph, max_iter=1).fit(["a", "b", "c"], [1.0, 2.0, 3.0])


def test_tokens_that_fill_up_rows_must_not_count():
    """A text is padded to the length of the longest one of its batch."""
    graph = converted(2)[1]
    (tokenizer,) = (node for node in graph.graph.node if node.op_type == "Tokenizer")
    (pad,) = (entry for entry in tokenizer.attribute if entry.name == "pad_value")
    pad.s = b"film"
    with pytest.raises(UnsupportedError, match="'X' holds strings, and its consumer Tokenizer"):
        classifier(graph).fit(TEXTS, LABEL)


def test_a_column_of_texts_for_a_graph_of_numbers_is_refused():
    inner = LogisticRegression().fit(NUMBERS, LABEL)
    graph = to_onnx(inner, NUMBERS[:1].astype(np.float32))
    for frame in (FRAME, pytest.importorskip("polars").DataFrame(FRAME.to_dict("list"))):
        with pytest.raises(ParameterError, match="X cannot be converted to"):
            classifier(graph).fit(frame[["text", "n"]], LABEL)


def test_data_other_than_strings_are_refused():
    model = classifier(converted(2)[1])
    for X in ("one text", sparse.eye(150, format="csr"), None):
        with pytest.raises(ParameterError, match="must be a list, an array or a frame|as a list of strings"):
            model.fit(X, LABEL)
    with pytest.raises(GraphError, match=r"shape \(150, 2\); input 'X' of the graph takes \('any', 1\)"):
        model.fit(np.array([TEXTS, TEXTS]).T, LABEL)
    for entry, shown in ((None, "None"), (np.nan, "nan"), (3, "3"), (b"text", "b'text'")):
        with pytest.raises(ParameterError, match=f"X holds {shown} in row 149, where"):
            model.fit([*TEXTS[:-1], entry], LABEL)
    with pytest.raises(GraphError, match=r"X has the entries \['Y'\], which no input"):
        model.fit({"Y": np.array(TEXTS)}, LABEL)
    assert not hasattr(model, "t_")


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
    "step",
    [
        ("numbers", StandardScaler(), [False, True, True]),
        ("numbers", StandardScaler(), [-1, -2]),
        ("bins", KBinsDiscretizer(3, strategy="uniform"), ["n"]),
        ("parts", FeatureUnion([("a", "drop"), ("b", StandardScaler())]), ["n"]),
    ],
    ids=["mask", "negative", "bins", "dropped"],
)
def test_steps_beside_texts_go_to_onnx(step):
    """They are adapted to the converters there too."""
    columns = ColumnTransformer([("text", TfidfVectorizer(), "text"), step])
    model = classifier(make_pipeline(columns, LogisticRegression())).fit(FRAME, LABEL)
    inputs = {"text": FRAME[["text"]].to_numpy(object)} | {
        name: FRAME[[name]].to_numpy(np.float32) for name in ("n", "k")
    }
    proto = model.to_onnx()
    feeds = {value.name: inputs[value.name] for value in proto.graph.input}
    np.testing.assert_allclose(run(proto, feeds)[1], model.predict_proba(FRAME), rtol=0, atol=1e-6)


@pytest.mark.parametrize("step", [FunctionTransformer(np.abs), LinearDiscriminantAnalysis()])
@pytest.mark.parametrize("is_last", [True, False])
def test_columns_beside_texts_are_those_of_the_converters_of_this_package(step, is_last):
    """The step transforms columns, or all features after the texts."""
    beside = "passthrough" if is_last else step
    parts = ColumnTransformer(
        [("text", TfidfVectorizer(), "text"), ("numbers", beside, ["n", "k"])], sparse_threshold=0
    )
    parts = make_pipeline(parts, step) if is_last else parts
    model = classifier(make_pipeline(parts, LogisticRegression())).fit(FRAME, LABEL)
    feeds = {name: FRAME[[name]].to_numpy(object if name == "text" else np.float32) for name in FRAME}
    np.testing.assert_allclose(run(model.to_onnx(), feeds)[1], model.predict_proba(FRAME), rtol=0, atol=1e-5)


def test_an_elimination_after_texts_is_a_selection():
    parts = make_pipeline(TfidfVectorizer(), RFE(LogisticRegression(), n_features_to_select=4))
    model = classifier(make_pipeline(parts, LogisticRegression())).fit(TEXTS, LABEL)
    texts = np.array(TEXTS, dtype=object).reshape(-1, 1)
    found = run(model.to_onnx(), {"X": texts})[1]
    np.testing.assert_allclose(found, model.predict_proba(TEXTS), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("vectorizer", "message"),
    [
        (TfidfVectorizer(tokenizer=tokens, token_pattern=None), "Custom tokenizer"),
        (HashingVectorizer(n_features=64), "HashingVectorizer.* has no converter"),
        # skl2onnx counts words of one letter as parts of pairs
        (CountVectorizer(ngram_range=(1, 2)), r"differ from scikit-learn's for \d+ of 100 samples"),
    ],
    ids=["a custom tokenizer", "hashing", "pairs of words"],
)
def test_features_that_onnx_does_not_make_are_refused(vectorizer, message):
    model = classifier(make_pipeline(vectorizer, LogisticRegression())).fit(TEXTS, LABEL)
    with pytest.raises(UnsupportedError, match=message + r"(.|\n)*to_onnx\(text=False\)"):
        model.to_onnx()
    features = model.model[0].fit(TEXTS).transform(TEXTS).toarray().astype(np.float32)
    label, probability = run(model.to_onnx(text=False), {"X": features})
    np.testing.assert_array_equal(label, model.predict(TEXTS))
    np.testing.assert_allclose(probability, model.predict_proba(TEXTS), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["list", "array", "series", "frame", "numbered frame", "polars"])
def test_files_have_the_beginnings_of_a_few_texts(kind):
    """A pickle had a hundred documents of the training data."""
    long = [text + " good" * 2000 for text in TEXTS]
    is_frame = kind not in ("list", "array", "series")
    pipeline = make_pipeline(columns() if is_frame else TfidfVectorizer(), LogisticRegression())
    frame = pd.DataFrame({"text": long, "n": NUMBERS[:, 0], "k": NUMBERS[:, 1]})
    X = {"list": long, "array": np.array(long), "series": frame["text"]}.get(kind, frame)
    if kind == "numbered frame":
        X = frame.set_axis(range(3), axis=1)
        vectorizer = ColumnTransformer([("text", TfidfVectorizer(), 0), ("numbers", "passthrough", [1, 2])])
        pipeline = make_pipeline(vectorizer, LogisticRegression())
    if kind == "polars":
        X = pytest.importorskip("polars").DataFrame(frame.to_dict("list"))
    model = classifier(pipeline.fit(X, LABEL)).fit(X, LABEL)
    content = pickle.dumps(model)
    n_numbers = sum(array.size for array in model._state.tensors.values())
    assert len(content) < len(pickle.dumps(model.model)) + 8 * n_numbers + 6000
    again = pickle.loads(content)
    assert len(model._text.sample) == 100
    rows = again._text.data()
    assert len(rows) == 8
    if is_frame:
        assert list(map(str, rows.dtypes)) == list(map(str, model._text.sample.dtypes))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    if not is_frame:
        np.testing.assert_array_equal(
            run(again.to_onnx(), {"X": np.array(X, object)[:, None]})[0], model.predict(X)
        )


@pytest.mark.parametrize("form", ["pickle", "file"])
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_files_hold_a_model_of_texts_in_a_frame(library, form, tmp_path):
    """The sample of a frame is none of the things that a file without code can hold."""
    frame = FRAME if library == "pandas" else pytest.importorskip("polars").DataFrame(FRAME.to_dict("list"))
    model = classifier(make_pipeline(columns(), LogisticRegression()).fit(frame, LABEL)).fit(frame, LABEL)
    again = model
    # what was read is written again
    for name in ("first.onnxsgd", "second.onnxsgd"):
        if form == "pickle":
            again = pickle.loads(pickle.dumps(again))
        else:
            again.save(tmp_path / name)
            again = load(tmp_path / name)
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    feeds = {name: FRAME[[name]].to_numpy(np.float32) for name in ("n", "k")}
    feeds["text"] = FRAME[["text"]].to_numpy(object)
    np.testing.assert_array_equal(run(again.to_onnx(), feeds)[0], model.predict(frame))
    again.partial_fit(frame, LABEL)


@pytest.mark.parametrize("name", ["tfidf", "union", "steps between"])
def test_two_calls_write_the_same_file(name):
    """The converter gave the text part a random name in each call."""
    model = classifier(PIPELINES[name]().fit(TEXTS, LABEL)).fit(TEXTS, LABEL)
    first, second = (model.to_onnx().SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_skl2onnx_refuses_text():
    from skl2onnx import convert_sklearn

    model = classifier(PIPELINES["counts"]()).fit(TEXTS, LABEL)
    with pytest.raises(UnsupportedError, match="begins with vectorizers"):
        convert_sklearn(Pipeline([("m", model)]), initial_types=[("X", StringTensorType([None, 1]))])


# Refusals.


def test_data_other_than_a_column_of_texts_are_refused():
    model = classifier(PIPELINES["tfidf"]())
    for X in ("one text", {"text": TEXTS}, FRAME, FRAME.to_numpy()):
        with pytest.raises(ParameterError, match=r"must be a list|takes one column|as a list of strings"):
            model.fit(X, LABEL)
    assert not hasattr(model, "classes_")
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(TEXTS, LABEL[1:])
