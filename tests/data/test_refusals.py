"""Unusual data are refused in a sentence that names the argument."""

import numpy as np
import pytest
from scipy import sparse

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.data.refusals import check_indices, check_lengths, naming
from onnxsgd.exceptions import GraphError, ParameterError, ParameterTypeError
from onnxsgd.losses import CrossEntropy

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4))
Y = X @ [1.0, -2.0, 0.5, 1.0]


class Raising:
    """An object whose conversion to an array fails."""

    shape = (30, 4)

    def __len__(self):
        return 30

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("no array today")


def _far(table):
    table.indices[-1] = 10_000_000


def _negative(table):
    table.indices[0] = -5


def _long(table):
    table.indptr[-1] = 10_000_000


def _falling(table):
    table.indptr[1] = table.indptr[2] + 1


@pytest.mark.parametrize("change", [_far, _negative, _long, _falling])
@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_array, sparse.bsr_array])
def test_indices_outside_a_sparse_matrix_are_refused_before_anything_reads_them(kind, change):
    table = kind(np.ones((30, 4)))
    change(table)
    kept = table.indices.copy(), table.indptr.copy()
    for call in (OnnxSGDRegressor().fit, OnnxSGDRegressor(max_iter=2, tol=None).fit(X, Y).partial_fit):
        with pytest.raises(ParameterError, match=rf"X is a sparse {table.format} matrix of shape \(30, 4\)"):
            call(table, Y)
    np.testing.assert_array_equal(table.indices, kept[0])
    np.testing.assert_array_equal(table.indptr, kept[1])


def test_indices_outside_a_matrix_of_coordinates_and_of_labels_are_refused():
    table = sparse.coo_array(np.ones((30, 4)))
    table.coords[0][0] = 30
    with pytest.raises(ParameterError, match="X is a sparse coo matrix"):
        OnnxSGDRegressor().fit(table, Y)
    labels = sparse.csr_matrix(np.ones((30, 3)))
    labels.indices[0] = 3
    with pytest.raises(ParameterError, match="y is a sparse csr matrix"):
        OnnxSGDClassifier().fit(X, labels)


def _list_with(columns, values):
    table = sparse.lil_array(np.ones((30, 4)))
    table.rows[3], table.data[3] = columns, values
    return table


@pytest.mark.parametrize(
    "table",
    [
        _list_with([10**9], [1.0]),
        _list_with([-1], [1.0]),
        _list_with([10**30], [1.0]),
        _list_with(["a"], [1.0]),
        _list_with([0, 1], [1.0]),
    ],
    ids=["above", "below", "huge", "text", "lengths"],
)
def test_columns_outside_a_matrix_of_lists_are_refused(table):
    """The first one ended the process in the conversion of scipy."""
    for call in (OnnxSGDRegressor().fit, OnnxSGDRegressor(max_iter=2, tol=None).fit(X, Y).partial_fit):
        with pytest.raises(ParameterError, match=r"X is a sparse lil matrix of shape \(30, 4\)"):
            call(table, Y)


def test_entries_of_a_dictionary_are_named():
    with pytest.raises(ParameterError, match=r"X\['x'\] is sparse.*toarray"):
        OnnxSGDRegressor().fit({"x": sparse.csr_array(X)}, Y)
    with pytest.raises(ParameterError, match=r"X\['x'\] cannot be read as an array"):
        OnnxSGDRegressor().fit({"x": Raising()}, Y)


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr", "coo", "lil", "dok", "dia"])
def test_valid_indices_are_accepted(kind):
    table = sparse.csr_array(np.where(X > 0, X, 0)).asformat(kind)
    check_indices(table, "X")
    check_indices(sparse.csr_array((3, 0)).asformat(kind), "X")
    OnnxSGDRegressor(max_iter=2, tol=None).fit(table, Y)


@pytest.mark.parametrize(
    ("value", "error"),
    [({1.0}, ParameterTypeError), (np.array([*"abc"] * 10), ParameterError), (Raising(), ParameterError)],
)
def test_messages_name_the_argument(value, error):
    with pytest.raises(error, match=r"\bsample_weight\b"):
        OnnxSGDRegressor().fit(X, Y, sample_weight=value)
    with pytest.raises(error, match=r"\by\b"):
        OnnxSGDRegressor().fit(X, value)
    with pytest.raises((ValueError, TypeError), match=r"\bX\b"):
        OnnxSGDRegressor().fit(value, Y)


def test_a_message_without_the_argument_is_completed_and_a_clear_one_stays():
    @naming("weight")
    def read(error):
        raise error

    with pytest.raises(ParameterTypeError, match=r"^weight is not accepted: float\(\) takes no set\.$"):
        read(TypeError("float() takes no set"))
    with pytest.raises(
        ParameterError, match=r"^weight cannot be read as an array: OverflowError: too large\.$"
    ):
        read(OverflowError("too large"))
    for error in (ValueError("Input weight contains NaN."), ValueError("The feature names should match")):
        with pytest.raises(ValueError, match=str(error)) as caught:
            read(error)
        assert caught.value is error


def test_the_numbers_of_an_array_are_left_out():
    with pytest.raises(ParameterError) as caught:
        OnnxSGDRegressor().fit(Y, Y)
    assert "got 1D array instead. Reshape your data" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_lengths_are_compared_before_data_are_read():
    """Reading a view of 2^40 rows would take an hour."""
    y = np.broadcast_to(np.float64(1), (1 << 40,))
    for call in (OnnxSGDRegressor().fit, OnnxSGDRegressor(max_iter=1, tol=None).fit(X, Y).score):
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            call(X, y)
    check_lengths([1, 2], y)


def test_scores_compare_lengths_with_those_of_any_container():
    y = np.broadcast_to(np.float64(1), (1 << 40,))
    regressor = OnnxSGDRegressor(max_iter=1, tol=None).fit(X, Y)
    classifier = OnnxSGDClassifier(max_iter=1, tol=None).fit(X, Y > 0)
    ignoring = OnnxSGDClassifier(loss=CrossEntropy(ignore_index=7), max_iter=1, tol=None).fit(
        X, [0, 1, 2] * 10
    )
    for learner in (regressor, classifier, ignoring):
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            learner.score(X.tolist(), y)


@pytest.mark.parametrize("cls", [OnnxSGDRegressor, OnnxSGDClassifier])
def test_more_columns_than_a_file_holds_are_refused(cls):
    table = sparse.csr_matrix((np.ones(30), (np.arange(30), np.arange(30) * 2**35)), shape=(30, 2**40))
    with pytest.raises(GraphError, match="1099511627776 columns has coefficients of 4.4e[+]03 GB"):
        cls().fit(table, np.arange(30) % 2)


def test_memory_that_is_not_there_is_told():
    with pytest.raises(ParameterError, match="X cannot be read as an array: .*TiB"):
        OnnxSGDRegressor().fit(np.broadcast_to(np.float64(1), (1 << 40, 4)), Y)


def test_targets_that_the_type_of_the_graph_does_not_hold_are_refused():
    """And not trained on as infinity."""
    y, narrow = np.where(np.arange(30) == 4, -1e300, Y), X.astype(np.float32)
    learner = OnnxSGDRegressor(learning_rate="constant", batch_size=8).partial_fit(narrow, Y)
    with pytest.raises(ParameterError, match=r"y holds -1e\+300, and numbers of float32 end at 3.4e\+38"):
        learner.partial_fit(narrow, y)


def test_weights_of_samples_whose_sum_is_infinite_are_refused_without_a_warning():
    with pytest.raises(ParameterError, match="sum that is not finite"):
        OnnxSGDRegressor().fit(X, Y, sample_weight=np.full(30, 1e308))


@pytest.mark.parametrize("dtype", [">i4", ">f8", ">u2", "<i8", "g"])
def test_labels_of_any_byte_order_are_exported(dtype):
    import onnx.reference

    labels = (Y > 0).astype(dtype)
    learner = OnnxSGDClassifier(max_iter=2, tol=None, random_state=0).fit(X.astype(np.float32), labels)
    found = onnx.reference.ReferenceEvaluator(learner.to_onnx()).run(None, {"X": X.astype(np.float32)})
    np.testing.assert_array_equal(np.ravel(found[0]), learner.predict(X.astype(np.float32)))


@pytest.mark.parametrize("labels", [np.zeros(30, "datetime64[D]"), np.zeros(30, "timedelta64[s]")])
def test_labels_of_another_sort_are_told(labels):
    learner = OnnxSGDClassifier(max_iter=2, tol=None).fit(X, Y > 0)
    with pytest.raises((ValueError, TypeError), match=r"\by\b"):
        learner.partial_fit(X, labels)


@pytest.mark.parametrize("argument", ["X", "y", "sample_weight"])
@pytest.mark.parametrize("kind", [OnnxSGDRegressor, OnnxSGDClassifier])
def test_masked_data_are_refused(kind, argument):
    """The numbers under the mask were taken without a word."""
    rng = np.random.default_rng(0)
    given = {"X": rng.normal(size=(20, 2)), "y": np.arange(20) % 2, "sample_weight": np.ones(20)}
    mask = np.zeros(given[argument].shape, bool)
    mask[3] = True
    masked = np.ma.masked_array(given[argument], mask)
    for method in ("fit", "partial_fit"):
        classes = {"classes": [0, 1]} if method == "partial_fit" and kind is OnnxSGDClassifier else {}
        with pytest.raises(ParameterError, match=f"{argument} has masked elements"):
            getattr(kind(), method)(**given | {argument: masked}, **classes)
    # a mask of nothing hides nothing
    kind(random_state=0).fit(**given | {argument: np.ma.masked_array(given[argument], False)})


def test_masked_weights_are_refused_and_a_view_of_one_number_is_not_copied():
    learner = OnnxSGDRegressor(max_iter=2, tol=None).fit(X, Y)
    coef = np.ma.masked_array(np.ones((4, 1)), [[True], [False], [False], [False]])
    shape = learner.get_weights()["coef"].shape
    with pytest.raises(ParameterError, match="weight 'coef' has masked elements"):
        learner.set_weights({"coef": coef.reshape(shape)})
    with pytest.raises(ParameterError, match="weight 'coef' has shape"):
        learner.set_weights({"coef": np.broadcast_to(np.float32(1), (1 << 20, 1 << 20))})
    with pytest.raises(ParameterError, match="not finite numbers of float32"):
        learner.set_weights({"coef": np.full(shape, 1e300)})


@pytest.mark.parametrize("average", [object(), "yes", None, [1], 1j])
def test_a_wrong_average_set_after_a_fit_is_refused_by_its_name(average):
    learner = OnnxSGDRegressor(max_iter=2, tol=None).fit(X, Y).set_params(average=average)
    with pytest.raises(ParameterError, match="^average="):
        learner.get_weights()


def test_predictions_that_are_not_finite_have_no_score():
    X = np.linspace(-1.0, 1.0, 40, dtype=np.float32).reshape(20, 2)
    learner = OnnxSGDRegressor(max_iter=2, tol=None, random_state=0).fit(X, X[:, 0])
    learner.set_weights({name: np.full_like(w, 3e38) for name, w in learner.get_weights().items()})
    with pytest.raises(ParameterError, match="of 20 predictions are not finite"):
        learner.score(X * 10, X[:, 0])
