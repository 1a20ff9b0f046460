"""Training on sequences of different lengths."""

import pickle

import numpy as np
import pytest
from onnx import TensorProto
from sequence_graphs import pooled, pooling, recurrent, tagged, tagger
from sklearn.base import clone
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.class_weight import compute_sample_weight

import onnxsgd
from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, losses, optimizers
from onnxsgd.exceptions import GraphError, ParameterError

rng = np.random.default_rng(0)
LENGTHS = rng.integers(2, 9, 60)
X = [rng.normal(size=(length, 3)).astype(np.float32) for length in LENGTHS]
Y = np.array([x.mean(axis=0) @ [1.0, -2.0, 0.5] for x in X])
LABEL = np.array(["a", "b", "c"])[np.digitize(Y, [-0.5, 0.5])]
WEIGHT = rng.uniform(0.5, 2.0, 60)
NAMED = {"learning_rate": "constant", "eta0": 0.05, "tol": None, "penalty": None}
GRAPHS = {
    "pooling": pooling(), "pooling, no mask": pooling(None), "LSTM": recurrent(), "GRU": recurrent("GRU"),
    "LSTM, no mask": recurrent(masked=False),
}  # fmt: skip


def padded(rows, length=None):
    """Return arrays as a user would pad them."""
    size = length or LENGTHS[rows].max()
    table, mask = np.zeros((len(rows), size, 3), np.float32), np.zeros((len(rows), size), np.float32)
    for place, row in enumerate(rows):
        table[place, : LENGTHS[row]], mask[place, : LENGTHS[row]] = X[row], 1
    return {"X": table, "mask": mask}


def compare(found, expected, tolerance=2e-6):
    for name, array in expected.get_weights().items():
        np.testing.assert_allclose(found.get_weights()[name], array, atol=tolerance)


def error_of_samples(w, rows, sample_weight):
    errors = [(pooled(w, X[row])[0] - Y[row]) ** 2 / 2 for row in rows]
    return np.average(errors, weights=None if sample_weight is None else sample_weight[rows])


def descended(weights, batches, eta, sample_weight=None, error=error_of_samples):
    """Return the weights after a gradient step for each batch, by central differences in float64."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    for rows in batches:

        def loss(w=w, rows=rows):
            return error(w, rows, sample_weight)

        gradients = {}
        for name, array in w.items():
            gradients[name] = np.zeros_like(array)
            for place in np.ndindex(array.shape):
                before, sides = array[place], []
                for step in (1e-5, -1e-5):
                    array[place] = before + step
                    sides.append(loss())
                array[place] = before
                gradients[name][place] = (sides[0] - sides[1]) / 2e-5
        for name, gradient in gradients.items():
            w[name] -= eta * gradient
    return w


@pytest.mark.parametrize("sample_weight", [None, WEIGHT], ids=["", "weights"])
@pytest.mark.parametrize("mask", ["mask", None])
def test_updates_are_those_of_the_sequences_alone(mask, sample_weight):
    """Finite differences of a formula without padding: batches of neighbours, or of one length."""
    ours = OnnxSGDRegressor(pooling(mask), batch_size=6, shuffle=False, max_iter=1, **NAMED)
    first, known = ours.get_weights(), LENGTHS[:20]
    ours.fit(X[:20], Y[:20], None if sample_weight is None else sample_weight[:20])
    if mask:
        batches = np.split(np.arange(20), [6, 12, 18])
    else:
        groups = [np.flatnonzero(length == known) for length in np.unique(known)]
        batches = sorted((g[i : i + 6] for g in groups for i in range(0, len(g), 6)), key=lambda g: g[-1])
    assert ours.t_ == len(batches)
    expected = descended(first, batches, 0.05, sample_weight)
    for name, array in ours.get_weights().items():
        np.testing.assert_allclose(array, expected[name], atol=2e-6)


class Endless:
    """A sequence that claims to have very many elements."""

    def __len__(self):
        return 2**62

    def __getitem__(self, index):
        raise IndexError(index)


def test_targets_that_cannot_be_read_are_refused():
    with pytest.raises(ParameterError, match="^y "):
        OnnxSGDRegressor(pooling(), **NAMED).fit(X, Endless())


@pytest.mark.parametrize("model", [pooling(), recurrent(), recurrent("GRU")], ids=["pooling", "LSTM", "GRU"])
def test_padding_changes_nothing(model):
    """Nor does more of it: the loss and the weights are those of longer padding."""
    parts = [np.arange(start, start + 15) for start in range(0, 60, 15)]
    ours = OnnxSGDRegressor(model, batch_size=15, shuffle=False, max_iter=3, optimizer="adam", **NAMED).fit(
        X, Y
    )
    longer = clone(ours).set_params(batch_size=None).fit([(padded(rows, 20), Y[rows]) for rows in parts])
    assert ours.t_ == longer.t_ == 12
    compare(ours, longer)
    np.testing.assert_allclose(ours.loss_curve_, longer.loss_curve_, rtol=1e-5)


@pytest.mark.parametrize("kind", [TensorProto.BOOL, TensorProto.INT64, TensorProto.DOUBLE])
def test_masks_have_the_type_of_the_graph(kind):
    ours = OnnxSGDRegressor(pooling(mask_type=kind), random_state=0, max_iter=2, **NAMED).fit(X, Y)
    compare(ours, OnnxSGDRegressor(pooling(), random_state=0, max_iter=2, **NAMED).fit(X, Y))


@pytest.mark.parametrize("settings", [{}, {"early_stopping": True}, {"average": True}, {"batch_size": 8}])
@pytest.mark.parametrize("name", ["pooling", "LSTM", "pooling, no mask"])
def test_it_learns_with_a_rate_that_is_found(name, settings):
    ours = OnnxSGDRegressor(GRAPHS[name], max_iter=10, tol=None, random_state=0, **settings).fit(X, Y)
    assert ours.n_iter_ == len(ours.loss_curve_) == 10
    assert ours.loss_curve_[-1] < 0.8 * ours.loss_curve_[0]
    assert len(ours.validation_scores_ or ()) == (10 if settings.get("early_stopping") else 0)
    repeated = clone(ours).fit(X, Y)
    np.testing.assert_array_equal(repeated.predict(X), ours.predict(X))
    loaded = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(loaded.predict(X), ours.predict(X))


@pytest.mark.parametrize("name", GRAPHS)
def test_predictions_keep_the_order_and_do_not_depend_on_others(name):
    ours = OnnxSGDRegressor(GRAPHS[name], random_state=0, max_iter=2, **NAMED).fit(X, Y)
    expected = [ours.predict(x[None])[0] for x in X]
    np.testing.assert_allclose(ours.predict(X), expected, atol=1e-6)
    np.testing.assert_allclose(ours.predict(tuple(x.tolist() for x in X)), expected, atol=1e-6)
    np.testing.assert_allclose(ours.predict(np.array(X, object)), expected, atol=1e-6)
    assert ours.score(X, Y) == pytest.approx(1 - np.mean((expected - Y) ** 2) / np.var(Y), abs=1e-6)


def test_a_mask_of_the_user_is_respected():
    """The last step of each sequence is masked."""
    mask = [np.arange(length) < length - 1 for length in LENGTHS]
    model = OnnxSGDRegressor(pooling(), random_state=0, max_iter=3, **NAMED)
    masked = clone(model).fit({"X": X, "mask": mask}, Y)
    shorter = clone(model).fit([x[:-1] for x in X], Y)
    assert masked.t_ == shorter.t_
    compare(masked, shorter)
    np.testing.assert_allclose(
        masked.predict({"X": X, "mask": mask}), masked.predict([x[:-1] for x in X]), atol=1e-6
    )


def test_lists_of_one_length_are_arrays():
    images = [x[:2] for x in X]
    for name in ("pooling, no mask", "pooling"):
        model = OnnxSGDRegressor(GRAPHS[name], random_state=0, max_iter=3, tol=None)
        compare(clone(model).fit(images, Y), clone(model).fit(np.stack(images), Y), 0)


def test_arrays_of_another_length_are_predicted():
    table = rng.normal(size=(20, 5, 3)).astype(np.float32)
    ours = OnnxSGDRegressor(pooling(None), random_state=0, max_iter=2, **NAMED).fit(table, Y[:20])
    longer = rng.normal(size=(4, 7, 3)).astype(np.float32)
    expected = [pooled(ours.get_weights(), x)[0] for x in longer]
    np.testing.assert_allclose(ours.predict(longer), expected, atol=1e-6)
    np.testing.assert_allclose(ours.predict(list(longer)), expected, atol=1e-6)
    assert ours.predict(longer).dtype == np.float32
    assert ours.partial_fit(longer, Y[:4]).t_ == 3
    with pytest.raises(GraphError, match=r"takes \('any', 'any', 3\)"):
        ours.predict(longer[..., :2])


def test_a_table_of_another_width_is_refused():
    """The width of a product is open in its graph, and its weights fix it."""
    from onnx import helper

    model = OnnxSGDRegressor(max_iter=1, **NAMED).fit(np.eye(4), range(4)).to_onnx()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "columns"
    model = helper.make_model(model.graph, opset_imports=model.opset_import, ir_version=10)
    ours = OnnxSGDRegressor(model, max_iter=1, **NAMED).fit(np.eye(4), np.arange(4))
    with pytest.raises(ValueError, match="X has 5 features, but OnnxSGDRegressor is expecting 4"):
        ours.predict(np.eye(5))


@pytest.mark.filterwarnings(
    "ignore:(Training raised the score|No epoch scored better):sklearn.exceptions.ConvergenceWarning"
)
@pytest.mark.parametrize("mask", ["attention_mask", None])
def test_classification(mask):
    model = pooling(mask, n_outputs=3)
    ours = OnnxSGDClassifier(model, max_iter=20, tol=None, random_state=0, early_stopping=True).fit(X, LABEL)
    assert ours.classes_.tolist() == ["a", "b", "c"]
    assert len(ours.validation_scores_) == 20
    assert ours.score(X, LABEL) > 0.5
    assert set(ours.predict(X)) <= {"a", "b", "c"}
    probability = ours.predict_proba(X)
    assert probability.shape == ours.decision_function(X).shape == (60, 3)
    np.testing.assert_allclose(probability.sum(axis=1), 1, atol=1e-6)
    parts = OnnxSGDClassifier(model, random_state=0).partial_fit(X, LABEL, classes=["a", "b", "c"])
    parts.partial_fit(X[:10], LABEL[:10])
    assert parts.n_iter_ == 2
    assert len(parts.loss_curve_) == 2
    weighted = clone(ours).set_params(class_weight={"a": 1.0, "b": 1e-6, "c": 1e-6}).fit(X, LABEL)
    assert np.mean(weighted.predict(X) == "a") > np.mean(ours.predict(X) == "a")
    longer = clone(ours).set_params(max_iter=60, early_stopping=False)
    assert cross_val_score(longer, np.array(X, object), LABEL, cv=2).max() > 0.6


@pytest.mark.parametrize("masked", [True, False])
def test_partial_fit_asks_for_the_classes(masked):
    for model, y in ((pooling("mask" if masked else None, n_outputs=3), LABEL), (tagger(masked), TAGS)):
        given = IDS if y is TAGS else X
        with pytest.raises(ParameterError, match="classes must be passed on the first call to partial_fit"):
            OnnxSGDClassifier(model, **NAMED).partial_fit(given, y)


def test_partial_fit_is_an_epoch():
    whole = OnnxSGDRegressor(pooling(), batch_size=16, random_state=0, max_iter=2, **NAMED).fit(X, Y)
    parts = OnnxSGDRegressor(pooling(), batch_size=16, random_state=0, **NAMED)
    for _ in range(2):
        parts.partial_fit(X, Y)
    assert parts.n_iter_ == whole.n_iter_
    assert parts.t_ == whole.t_ == 8
    compare(parts, whole, 0)
    resumed = clone(whole).set_params(warm_start=True, max_iter=1).fit(X, Y)
    assert resumed.fit(X, Y).n_iter_ == 1


def test_validation_data_and_weights_of_zero():
    ours = OnnxSGDRegressor(pooling(), random_state=0, max_iter=4, **NAMED)
    ours.fit(X[:40], Y[:40], X_val=X[40:], y_val=Y[40:])
    assert ours.validation_scores_[-1] == pytest.approx(ours.score(X[40:], Y[40:]), abs=1e-5)
    weight = np.repeat([1.0, 0.0], [40, 20])
    compare(clone(ours).fit(X, Y, weight), clone(ours).fit(X[:40], Y[:40]), 0)


def test_accumulated_gradients():
    halves = OnnxSGDRegressor(pooling(), batch_size=15, shuffle=False, max_iter=2, **NAMED)
    halves.set_params(gradient_accumulation_steps=2, optimizer=optimizers.SGD(momentum=0.9)).fit(X, Y)
    whole = clone(halves).set_params(batch_size=30, gradient_accumulation_steps=1).fit(X, Y)
    assert halves.t_ == whole.t_ == 4
    compare(halves, whole)


def test_a_model_predicts_before_its_first_fit():
    ours = OnnxSGDRegressor(pooling(None))
    np.testing.assert_allclose(ours.predict(X), [pooled(ours.get_weights(), x)[0] for x in X], atol=1e-6)


def test_batches_of_an_iterable_may_be_lists():
    rows = np.split(np.arange(60), 4)
    model = OnnxSGDRegressor(pooling(), random_state=0, max_iter=2, **NAMED)
    lists = clone(model).fit([([X[i] for i in part], Y[part]) for part in rows])
    compare(lists, clone(model).fit([(padded(part), Y[part]) for part in rows]), 0)
    with pytest.raises(
        ParameterError, match="A batch has sequences of 2 to 8 elements, and the graph has no"
    ):
        OnnxSGDRegressor(pooling(None), **NAMED).fit([([X[i] for i in part], Y[part]) for part in rows])


@pytest.mark.parametrize(
    ("model", "given", "error", "message"),
    [
        (None, (X, Y), GraphError, "X holds sequences of different lengths, which only a graph takes"),
        (LinearRegression(), (X, Y), GraphError, "which only a graph takes"),
        (pooling(), (X, Y[:50]), ParameterError, "X has 60 samples and y has 50"),
        (pooling(), (X,), ParameterError, "requires y to be passed"),
        (pooling(), (X, X), GraphError, r"the graph predicts \(n_samples, 1\) and y has \(n_samples, "),
        (pooling(), (X, [x[1:] for x in X]), ParameterError, r"y\[0\] has \d elements and X\[0\] \d: a list"),
        (pooling(), (X, Y, -WEIGHT), ParameterError, "weights must be >= 0"),
        (pooling(), (X, Y, None, X, Y[:5]), ParameterError, "X_val has 60 samples and y_val has 5"),
    ],
    ids=["linear", "estimator", "counts", "no targets", "targets", "lengths", "weights", "validation"],
)
def test_data_that_do_not_fit_are_refused(model, given, error, message):
    with pytest.raises(error, match=message):
        OnnxSGDRegressor(model, max_iter=1).fit(*given)


@pytest.mark.parametrize("documents", [[["a", "b"], ["c"], ["a", "c", "d"]], [[1, 2], [3], [1, 3, 4]]])
def test_documents_of_a_vectorizer_may_be_lists(documents):
    model = make_pipeline(CountVectorizer(analyzer=list), LogisticRegression())
    ours = OnnxSGDClassifier(model, max_iter=2, tol=None, random_state=0).fit(documents, [0, 1, 0])
    ours.partial_fit(documents, [0, 1, 0])
    scores = CountVectorizer(analyzer=list).fit_transform(documents) @ ours.coef_[0] + ours.intercept_
    np.testing.assert_allclose(ours.decision_function(documents), scores, atol=1e-6)


def balanced(labels):
    """Return n / (n_classes * count) for each label."""
    names, counts = np.unique(labels, return_counts=True)
    return dict(zip(names.tolist(), len(labels) / (len(names) * counts), strict=True))


@pytest.mark.parametrize("weight", [None, np.repeat([1.0, 0.0], [50, 10])], ids=["", "zeros"])
@pytest.mark.parametrize("mask", ["mask", None])
def test_balanced_weights_count_the_labels_of_all_sequences(mask, weight):
    known = LABEL if weight is None else LABEL[:50]
    ours = OnnxSGDClassifier(pooling(mask, n_outputs=3), max_iter=2, random_state=0, **NAMED)
    expected = clone(ours).set_params(class_weight=balanced(known)).fit(X, LABEL, weight)
    ours.set_params(class_weight="balanced").fit(X, LABEL, weight)
    compare(ours, expected, 0)
    assert ours.class_weight == "balanced"
    with pytest.raises(ParameterError, match="not supported for partial_fit and for batches of an iterable"):
        ours.partial_fit(X, LABEL)
    # arrays of one length have weights of their own
    ours.set_params(warm_start=True).fit([x[:2] for x in X], np.repeat(["a", "b"], [10, 50]))
    again = clone(ours).set_params(class_weight=balanced(np.repeat(["a", "b"], [10, 50])), classes=[*"abc"])
    again.fit(X, LABEL).set_weights(expected.get_weights())
    compare(ours, again.fit([x[:2] for x in X], np.repeat(["a", "b"], [10, 50])))


def test_balanced_weights_of_several_and_of_uncertain_labels(tmp_path):
    table = np.c_[Y > 0, Y > 0.7].astype(int)
    ours = OnnxSGDClassifier(pooling(n_outputs=2), max_iter=1, random_state=0, **NAMED)
    ours.set_params(class_weight="balanced").fit(X, table)
    by_hand = (
        clone(ours).set_params(class_weight=None).fit(X, table, compute_sample_weight("balanced", table))
    )
    compare(ours, by_hand)
    ours.save(tmp_path / "saved.onnxsgd")
    np.testing.assert_array_equal(onnxsgd.load(tmp_path / "saved.onnxsgd").predict(X), ours.predict(X))
    soft = np.c_[table[:, :1] * 0.8 + 0.1, 0.9 - table[:, :1] * 0.8]
    loss = losses.CrossEntropy(soft=True)
    ours.set_params(loss=loss)
    weights = dict(enumerate(60 / (2 * soft.sum(axis=0))))
    compare(ours.fit(X, soft), clone(ours).set_params(class_weight=weights).fit(X, soft), 0)


@pytest.mark.parametrize("masked", [True, False])
def test_balanced_weights_of_steps(masked):
    """Neither padding nor the label that is ignored counts."""
    loss = losses.CrossEntropy(ignore_index="b")
    ours = OnnxSGDClassifier(tagger(masked, n_outputs=2), loss=loss, max_iter=2, random_state=0, **NAMED)
    ours.set_params(class_weight="balanced").fit(IDS, TAGS)
    tags = np.concatenate(TAGS)
    weights = balanced(tags[tags != "b"])
    assert sorted(weights) == ["a", "c"]
    compare(ours, clone(ours).set_params(class_weight=weights).fit(IDS, TAGS), 0)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_with_a_column_of_sequences(library):
    frames = pytest.importorskip(library)
    column, masks = [x.tolist() for x in X], [[1.0] * (length - 1) + [0.0] for length in LENGTHS]
    ours = OnnxSGDRegressor(pooling(), random_state=0, max_iter=2, **NAMED)
    compare(clone(ours).fit(frames.DataFrame({"any": column}), Y), clone(ours).fit(X, Y), 0)
    both = clone(ours).fit(frames.DataFrame({"X": column, "mask": masks}), Y)
    expected = clone(ours).fit({"X": X, "mask": [np.array(mask) for mask in masks]}, Y)
    compare(both, expected, 0)
    frame = frames.DataFrame({"X": column, "mask": masks})
    np.testing.assert_array_equal(both.predict(frame), expected.predict({"X": X, "mask": masks}))
    with pytest.raises(GraphError, match="X holds sequences of different lengths, which only a graph takes"):
        OnnxSGDRegressor().fit(frames.DataFrame({"X": column, "size": LENGTHS}), Y)


MISTYPED = {"X": np.stack([x[:2] for x in X]), "msak": np.ones((60, 2))}


@pytest.mark.parametrize(
    "call",
    [
        lambda ours: clone(ours).fit(MISTYPED, Y),
        lambda ours: clone(ours).fit({"X": X, "msak": X}, Y),
        lambda ours: ours.predict(MISTYPED),
        lambda ours: ours.score(MISTYPED, Y),
        lambda ours: ours.partial_fit(MISTYPED, Y),
        lambda ours: clone(ours).fit(X, Y, X_val=MISTYPED, y_val=Y),
        lambda ours: clone(ours).fit([(MISTYPED, Y)]),
        lambda ours: clone(ours).fit([{**MISTYPED, "y": Y}]),
        lambda ours: clone(ours).predict(MISTYPED),
    ],
)
def test_a_mistyped_mask_is_refused(call):
    ours = OnnxSGDRegressor(pooling(), max_iter=1, **NAMED).fit(X, Y)
    with pytest.raises(
        GraphError, match=r"\['msak'\], which no input .* \['X', 'mask'\]. Did you mean 'mask'"
    ):
        call(ours)


IDS = [rng.integers(0, 7, length) for length in LENGTHS]
TAGS = [np.array(["a", "b", "c"])[np.where(ids > 3, ids % 2, 2)] for ids in IDS]
STEPS = [np.c_[ids / 3.0, ids > 3] for ids in IDS]
GROUPS = sorted(
    (group[i : i + 6] for length in np.unique(LENGTHS[:20])
     for group in [np.flatnonzero(LENGTHS[:20] == length)] for i in range(0, len(group), 6)),
    key=lambda rows: rows[-1],
)  # fmt: skip


def entropy_of_tokens(w, rows, sample_weight, class_weight=(1.0, 1.0, 1.0)):
    """Return the mean cross-entropy over all tokens of some sequences, by the weights of both."""
    losses, weights = [], []
    for row in rows:
        scores, index = tagged(w, IDS[row]), np.searchsorted(["a", "b", "c"], TAGS[row])
        logarithms = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        losses.append(-logarithms[np.arange(len(index)), index])
        weights.append(np.array(class_weight)[index] * (1 if sample_weight is None else sample_weight[row]))
    return np.average(np.concatenate(losses), weights=np.concatenate(weights))


def error_of_steps(w, rows, sample_weight):
    """Return the mean over samples of half the sum of the squares of all outputs."""
    errors = [((tagged(w, IDS[row]) - STEPS[row]) ** 2).sum() / 2 for row in rows]
    return np.average(errors, weights=None if sample_weight is None else sample_weight[rows])


@pytest.mark.parametrize("settings", [{}, {"class_weight": {"a": 1.0, "b": 2.0, "c": 5.0}}])
@pytest.mark.parametrize("sample_weight", [None, WEIGHT[:20]], ids=["", "weights"])
@pytest.mark.parametrize("masked", [True, False])
def test_labels_of_padding_count_nothing(masked, sample_weight, settings):
    """With a mask tokens of several lengths share a batch, and the loss is the mean over the real ones."""
    ours = OnnxSGDClassifier(
        tagger(masked), classes=["a", "b", "c"], batch_size=6, shuffle=False, max_iter=1, **NAMED, **settings
    )
    first = ours.get_weights()
    ours.fit(IDS[:20], TAGS[:20], sample_weight)
    batches = np.split(np.arange(20), [6, 12, 18]) if masked else GROUPS
    classes = tuple(settings.get("class_weight", dict.fromkeys("abc", 1.0)).values())

    def error(w, rows, sample_weight):
        return entropy_of_tokens(w, rows, sample_weight, classes)

    expected = descended(first, batches, 0.05, sample_weight, error)
    assert ours.t_ == len(batches)
    for name, array in ours.get_weights().items():
        np.testing.assert_allclose(array, expected[name], atol=2e-6)
    still = clone(ours).set_params(eta0=1e-9).fit(IDS[:20], TAGS[:20], sample_weight)
    assert still.loss_curve_[0] == pytest.approx(error(first, range(20), sample_weight), rel=1e-5)


def test_numbers_of_steps():
    ours = OnnxSGDRegressor(tagger(n_outputs=2), batch_size=6, shuffle=False, max_iter=1, **NAMED)
    first = ours.get_weights()
    ours.fit(IDS[:20], STEPS[:20], WEIGHT[:20])
    expected = descended(first, GROUPS, 0.05, WEIGHT[:20], error_of_steps)
    for name, array in ours.get_weights().items():
        np.testing.assert_allclose(array, expected[name], atol=2e-6)
    found = ours.predict(IDS)
    for row, ids in enumerate(IDS):
        np.testing.assert_allclose(found[row], tagged(ours.get_weights(), ids), atol=1e-6)
    target, raw = np.concatenate(STEPS), np.concatenate(found)
    r2 = 1 - ((target - raw) ** 2).sum(axis=0) / ((target - target.mean(axis=0)) ** 2).sum(axis=0)
    assert ours.score(IDS, STEPS) == pytest.approx(r2.mean())
    flat = OnnxSGDRegressor(tagger(n_outputs=1, is_flat=True), max_iter=2, **NAMED)
    flat.fit(IDS, [row[:, 0] for row in STEPS])
    assert [row.shape for row in flat.predict(IDS)] == [ids.shape for ids in IDS]


@pytest.mark.parametrize("masked", [True, False])
def test_labels_of_tokens(masked):
    ours = OnnxSGDClassifier(tagger(masked), random_state=0, early_stopping=True, max_iter=10, tol=None)
    ours.fit(IDS, TAGS)
    assert ours.classes_.tolist() == ["a", "b", "c"]
    assert len(ours.validation_scores_) == 10
    labels = ours.predict(IDS)
    assert ours.score(IDS, TAGS) == np.mean(np.concatenate(labels) == np.concatenate(TAGS))
    assert ours.score(IDS, TAGS, WEIGHT) == pytest.approx(
        np.average(np.concatenate(labels) == np.concatenate(TAGS), weights=np.repeat(WEIGHT, LENGTHS))
    )
    for row, ids in enumerate(IDS):
        scores = tagged(ours.get_weights(), ids)
        np.testing.assert_allclose(ours.decision_function(IDS)[row], scores, atol=1e-5)
        shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(ours.predict_proba(IDS)[row], shares, atol=1e-5)
        np.testing.assert_allclose(np.exp(ours.predict_log_proba(IDS)[row]), shares, atol=1e-5)
        break
    loaded = pickle.loads(pickle.dumps(ours))
    assert loaded.score(IDS, TAGS) == ours.score(IDS, TAGS)
    given = clone(ours).fit(IDS[:40], TAGS[:40], X_val=IDS[40:], y_val=TAGS[40:])
    assert given.validation_scores_[-1] <= 1
    assert given.score(IDS[40:], TAGS[40:]) in given.validation_scores_


@pytest.mark.parametrize("masked", [True, False])
def test_ignored_labels_and_parts(masked):
    loss = losses.CrossEntropy(ignore_index=-5)
    numbers = [np.where(ids == 0, -5, ids % 3) for ids in IDS]
    ours = OnnxSGDClassifier(tagger(masked), loss=loss, classes=[0, 1, 2], random_state=0, **NAMED)
    for _ in range(2):
        ours.partial_fit(IDS, numbers)
    whole = clone(ours).set_params(max_iter=2).fit(IDS, numbers)
    compare(ours, whole, 0)
    plain = np.concatenate([label[label != -5] for label in numbers])
    found = np.concatenate([p[y != -5] for p, y in zip(ours.predict(IDS), numbers, strict=True)])
    assert ours.score(IDS, numbers) == pytest.approx(np.mean(plain == found))
    # arrays of any length follow
    ours.partial_fit(np.stack([IDS[0][:2], IDS[1][:2]]), np.array([[0, 1], [2, 0]]))
    assert ours.n_iter_ == 3


def test_the_label_of_padding_is_no_label():
    ours = OnnxSGDClassifier(tagger(), classes=[0, 1, 2], **NAMED)
    ours.partial_fit(IDS, [ids % 3 for ids in IDS])
    with pytest.raises(ParameterError, match="y holds -1, which stands for padding since the first call"):
        ours.partial_fit(IDS, [ids % 3 - 1 for ids in IDS])
    with pytest.raises(ParameterError, match=r"contains the labels \[7\], which are not among the classes"):
        ours.partial_fit(IDS, [np.where(ids > 3, 7, 0) for ids in IDS])


def test_arrays_need_no_search_for_vectorizers(monkeypatch):
    X, y = np.eye(8, 4, dtype=np.float32), np.arange(8) % 2
    model = OnnxSGDClassifier(LogisticRegression().fit(X, y)).partial_fit(X, y)

    def has_text(model):
        pytest.fail(f"{model} was searched for vectorizers.")

    monkeypatch.setattr("onnxsgd.estimators.training_data.has_text", has_text)
    assert model.partial_fit(X, y).predict(X).shape == (8,)
