"""Attributes of trained estimators in pickles, and the size of these."""

import pickle
from functools import cache

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import TensorProto, numpy_helper
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    Binarizer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, optimizers
from onnxsgd.exceptions import ParameterError
from onnxsgd.persistence.saved_form import FORMAT
from onnxsgd.persistence.small_form import from_small_form, to_small_form
from onnxsgd.runtime.cache import cache as entries

CLASSES = np.array(["a", "b"])
LARGE = np.arange(1000.0)
ODD = np.array([(1, 2.0)], dtype=[("a", int), ("b", float)])
SAVED = {
    "format": FORMAT, "version": "0.1.0", "classes": CLASSES, "numbers": [np.float32([[1], [2]]), LARGE],
    "empty": np.empty(0), "names": [None, True, 0.1, "é"], "bytes": b"123", "odd": ODD,
}  # fmt: skip
ATTRIBUTES = {
    "classes_": CLASSES, "model": None, "alpha": 0.1, "loss": "log_loss", "_saved": SAVED, "own": {1: 2},
    "set": {1}, "number": np.float64(3.0), "nan": float("nan"), "table": {"x": (1, [2.5])},
    "levels": np.array([0.25, 0.75]), "texts": np.array(["a", 1], object), "feature_names_in_": CLASSES[:1],
    "mask": np.ma.array([1, 2], mask=[0, 1]),
}  # fmt: skip


def test_attributes_return_as_they_were():
    small = to_small_form(ATTRIBUTES)
    assert set(small) == {"model", "_saved", "set", "number", "texts", "feature_names_in_", "mask"}
    assert set(small["_saved"]) == {"format", "version", "odd", "tree", "small", "large"}
    assert [array.nbytes for array in small["_saved"]["large"]] == [LARGE.nbytes]
    restored = from_small_form(small)
    assert restored["classes_"] is restored["_saved"]["classes"]
    np.testing.assert_equal(restored, ATTRIBUTES)
    assert type(restored["number"]) is np.float64
    assert type(restored["table"]["x"]) is tuple
    restored["levels"][0] = 0.5  # they are no views of the bytes
    assert restored["_saved"]["numbers"][0].dtype == np.float32


def test_the_order_of_attributes_does_not_matter():
    reverse = {name: ATTRIBUTES[name] for name in reversed(ATTRIBUTES)}
    assert to_small_form(reverse)["_saved"]["tree"] == to_small_form(ATTRIBUTES)["_saved"]["tree"]


def test_attributes_of_older_versions_stay_as_they_are():
    assert from_small_form(ATTRIBUTES) is ATTRIBUTES
    unfitted = {"alpha": 0.1}
    assert from_small_form(unfitted) is unfitted


def test_a_tree_of_a_newer_version_is_not_read():
    small = to_small_form(ATTRIBUTES)
    small["_saved"].update(format=FORMAT + 1, version="9.9", tree=b"")
    with pytest.raises(ParameterError, match=r"by onnxsgd 9\.9"):
        from_small_form(small)


# Sizes of pickles.

#: 64 columns, and ten classes.
DIGITS = (load_digits().data[:400] / 16, load_digits().target[:400])
RNG = np.random.default_rng(0)
#: Columns of numbers and texts, and three classes.
CITIES = (
    pd.DataFrame(
        {
            "age": RNG.normal(40, 10, 400), "income": RNG.normal(3e4, 1e4, 400),
            "city": RNG.choice(["Bern", "Basel", "Genf", "Zug"], 400), "plan": RNG.choice(["a", "b"], 400),
        }
    ),
    np.arange(400) % 3,
)  # fmt: skip


def columns(last):
    """Return columns that are scaled or encoded, before a model."""
    encoder = OneHotEncoder(handle_unknown="ignore")
    return make_pipeline(
        make_column_transformer((StandardScaler(), ["age", "income"]), (encoder, ["city", "plan"])), last
    )


def halves(last):
    """Return two halves of the columns, of which one has gaps, before a model."""
    gaps = make_pipeline(SimpleImputer(), MinMaxScaler())
    return make_pipeline(
        make_column_transformer((StandardScaler(), list(range(32))), (gaps, list(range(32, 64)))), last
    )


LINEAR = LogisticRegression(max_iter=20)
NETWORK = MLPClassifier((20,), max_iter=3, random_state=0)
SIZES = {
    "coefficients": (LINEAR, DIGITS),
    "mlp": (NETWORK, DIGITS),
    "scaled coefficients": (make_pipeline(StandardScaler(), LINEAR), DIGITS),
    "scaled mlp": (make_pipeline(StandardScaler(), NETWORK), DIGITS),
    "components": (make_pipeline(StandardScaler(), PCA(20), LINEAR), DIGITS),
    "columns": (columns(LINEAR), CITIES),
    "columns of mlp": (columns(NETWORK), CITIES),
    "halves": (halves(LINEAR), DIGITS),
    "regression": (
        make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(20,), max_iter=3, random_state=0)),
        DIGITS,
    ),
}
CONSTANT = {"learning_rate": "constant", "eta0": 1e-3}
TRAINED = {
    "auto": {},
    "named rate": {"learning_rate": "invscaling", "eta0": 1e-3},
    "momentum": {**CONSTANT, "optimizer": optimizers.SGD(momentum=0.9)},
    "adam": {**CONSTANT, "optimizer": "adam", "penalty": "l1"},
    "averages": {**CONSTANT, "average": True},
    "auto with averages": {"average": True},
    "warm start": {"warm_start": True},
    "early stopping": {"early_stopping": True},
}


@cache
def fitted(kind):
    """Return a fitted copy of a model."""
    model, (X, y) = SIZES[kind]
    return clone(model).fit(X, y)


@cache
def graph_of(kind):
    return next(estimators_of(kind, fitted(kind))).to_onnx()


#: The forms of the parameter `model`.
FORMS = {
    "unfitted": lambda kind: clone(SIZES[kind][0]),
    "fitted": fitted,
    "graph": graph_of,
    "bytes": lambda kind: graph_of(kind).SerializeToString(),
}


def estimators_of(kind, model, **parameters):
    """Yield an estimator after fit, after one more call of partial_fit, and another after that alone."""
    X, y = SIZES[kind][1]
    make = OnnxSGDRegressor if kind == "regression" else OnnxSGDClassifier
    learner = make(model, random_state=0, **{"max_iter": 2, **parameters}).fit(X, y)
    yield learner
    if "early_stopping" not in parameters:
        yield learner.partial_fit(X[:200], y[:200])
        classes = {} if kind == "regression" else {"classes": np.unique(y)}
        yield make(model, random_state=0, **parameters).partial_fit(X[:200], y[:200], **classes)


def rest_of(learner, model, frozen=()):
    """Return the bytes of a pickle beside those of `model`, and 1.1 times those of weights and state."""
    state = learner._state
    moments = [part for m in state.moments.values() for part in (m.count, m.mean, m.squares, m.total)]
    learned = [*state.tensors.values(), state.random_state.get_state()[1], *moments, *frozen]
    n_numbers = len(state.loss_curve) + len(state.validation_scores) + len(state.learning_rates)
    n_bytes = sum(np.asarray(array).nbytes for array in learned) + 9 * n_numbers
    return len(pickle.dumps(learner)) - len(pickle.dumps(model)) - 1.1 * n_bytes


def frozen_weights(learner):
    """Return the numbers of a graph that are not trained."""
    trained, real = learner._state.weights(), (TensorProto.FLOAT, TensorProto.DOUBLE)
    tensors = [t for t in learner.to_onnx().graph.initializer if t.name not in trained]
    return [numpy_helper.to_array(tensor) for tensor in tensors if tensor.data_type in real]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", TRAINED)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SIZES)
def test_a_pickle_has_two_kilobytes_of_its_own(kind, form, training):
    """As much as the model, 1.1 times weights and state, and 2 kB, which the names of a graph are among."""
    model = FORMS[form](kind)
    for learner in estimators_of(kind, model, **TRAINED[training]):
        # its constants are in the graph alone
        frozen = frozen_weights(learner) if form == "unfitted" else ()
        assert rest_of(learner, model, frozen) <= 2048


WIDE = RNG.normal(size=(300, 60))
WORDS = ["".join(RNG.choice(list("abcdefghij"), 8)) for _ in range(80)]
TABLE = pd.DataFrame({f"word{k}": RNG.choice(WORDS, 300) for k in range(10)})
#: Pipelines of up to 250 nodes, or with many numbers or texts, and their columns.
PIPELINES = {
    "scalers": (
        make_column_transformer(
            *[(make_pipeline(SimpleImputer(), StandardScaler()), [k]) for k in range(60)]
        ),
        WIDE,
    ),
    "quantiles": (QuantileTransformer(n_quantiles=200), WIDE[:, :30]),
    "powers": (make_pipeline(PowerTransformer(), MinMaxScaler()), WIDE),
    "bins": (KBinsDiscretizer(encode="onehot-dense"), WIDE[:, :20]),
    "union": (make_union(PCA(5), StandardScaler(), QuantileTransformer(n_quantiles=50)), WIDE[:, :20]),
    "polynomials": (make_pipeline(PolynomialFeatures(3), StandardScaler()), WIDE[:, :12]),
    "ordinals": (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), TABLE),
    "indicators": (OneHotEncoder(handle_unknown="ignore"), TABLE),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_fitted", [True, False], ids=["fitted", "unfitted"])
@pytest.mark.parametrize("name", PIPELINES)
def test_so_has_that_of_a_large_pipeline(name, is_fitted):
    transformer, X = PIPELINES[name]
    model, y = make_pipeline(clone(transformer), clone(LINEAR)), np.arange(300) % 3
    if is_fitted:
        model.fit(X, y)
    learner = OnnxSGDClassifier(model, max_iter=1, random_state=0).fit(X, y)
    frozen = () if is_fitted else [*frozen_weights(learner), *texts_of(learner)]
    assert rest_of(learner, model, frozen) <= 2048
    content = pickle.dumps(learner)
    entries.clear()
    restored = pickle.loads(content)
    assert nodes_of(restored) == nodes_of(learner)
    np.testing.assert_array_equal(restored.predict_proba(X), learner.predict_proba(X))


def nodes_of(learner):
    return [node.SerializeToString() for node in learner.to_onnx().graph.node]


@pytest.mark.filterwarnings("ignore")
def test_names_of_columns_are_those_of_the_model():
    """They took as many bytes again."""
    X, y = (
        pd.DataFrame(WIDE, columns=[f"a column of a long name, {k}" for k in range(60)]),
        np.arange(300) % 3,
    )
    model = make_pipeline(StandardScaler(), clone(LINEAR)).fit(X, y)
    learner = OnnxSGDClassifier(model, max_iter=1, random_state=0).fit(X, y)
    assert rest_of(learner, model) <= 1000
    restored = pickle.loads(pickle.dumps(learner))
    assert restored.feature_names_in_ is restored.model.feature_names_in_
    np.testing.assert_array_equal(restored.feature_names_in_, X.columns)
    # other names are kept
    learner = OnnxSGDClassifier(model, max_iter=1).fit(X.to_numpy(), y)
    model.fit(X.rename(columns=str.upper), y)
    assert not hasattr(pickle.loads(pickle.dumps(learner)), "feature_names_in_")
    learner = OnnxSGDClassifier(model, max_iter=1).fit(X.rename(columns=str.upper), y)
    model.fit(X, y)
    assert pickle.loads(pickle.dumps(learner)).feature_names_in_[0] == "A COLUMN OF A LONG NAME, 0"


@pytest.mark.filterwarnings("ignore")
def test_so_has_that_of_many_kinds_of_transformers():
    """With their constants, which are frozen weights: 260 nodes with little in common are written."""
    kinds = [
        SimpleImputer(), StandardScaler(), MinMaxScaler(), MaxAbsScaler(), RobustScaler(), PowerTransformer(),
        QuantileTransformer(n_quantiles=30), Binarizer(), KBinsDiscretizer(3, encode="onehot-dense"),
        PolynomialFeatures(3), make_pipeline(SimpleImputer(), PolynomialFeatures(2), StandardScaler()),
    ]  # fmt: skip
    model = make_pipeline(
        make_column_transformer(*[(kind, [place]) for place, kind in enumerate(kinds)]),
        make_union(PCA(3), StandardScaler(), Normalizer()),
        MLPClassifier((8,), max_iter=2),
    )
    y = np.arange(300) % 3
    learner = OnnxSGDClassifier(model.fit(WIDE, y), max_iter=1, random_state=0).fit(WIDE, y)
    assert len(learner.to_onnx().graph.node) > 230
    assert rest_of(learner, model, frozen_weights(learner)) <= 2048


def texts_of(learner):
    """Return the texts of encoders in a graph, each once."""
    texts = {
        text for node in learner.to_onnx().graph.node for entry in node.attribute for text in entry.strings
    }
    return [np.frombuffer(b"".join(sorted(texts)), np.uint8)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", TRAINED)
@pytest.mark.parametrize("make", [OnnxSGDClassifier, OnnxSGDRegressor])
def test_so_has_that_of_a_linear_model(make, training):
    X, y = DIGITS
    for rows in (slice(2), slice(64)):
        learner = make(max_iter=2, random_state=0, **TRAINED[training]).fit(X[:, rows], y)
        assert rest_of(learner, None) <= 2048


@pytest.mark.filterwarnings("ignore")
def test_so_has_that_of_a_long_history():
    learner = OnnxSGDClassifier(max_iter=1500, tol=None, early_stopping=True, **CONSTANT)
    learner.fit(DIGITS[0][:40, :3], DIGITS[1][:40] > 4)
    assert len(learner.loss_curve_) == 1500
    assert rest_of(learner, None) <= 2048


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["graph", "path", "mlp"])
def test_so_has_that_of_a_head(kind, tmp_path):
    """The frozen layer is no part of weights or state, except in a file, which may change."""
    model, graph = fitted("mlp"), graph_of("mlp")
    names = ["coefs_1", "intercepts_1"]
    if kind != "mlp":
        model = graph
        names = [tensor.name for tensor in graph.graph.initializer if [*tensor.dims] == [20, 10]]
    if kind == "path":
        model = str(tmp_path / "model.onnx")
        onnx.save(graph, model)
    for learner in estimators_of("mlp", model, trainable=names):
        assert rest_of(learner, model, frozen_weights(learner) if kind == "path" else ()) <= 2048
