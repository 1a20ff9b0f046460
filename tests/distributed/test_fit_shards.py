"""The public function for fits over any engine: what it accepts, and what it leaves behind.

The numbers of such fits are tested in tests/estimators/test_sharded_fit.py.
"""

import copy
import pickle

import numpy as np
import pytest
from scipy import sparse
from serial_executor import SerialExecutor, pieces_of
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.distributed import Executor, fit_shards
from onnxsgd.exceptions import ParameterError, ParameterTypeError

X, Y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)[:400]
Y = Y[:400]
NAMED = {"learning_rate": "constant", "eta0": 0.05, "max_iter": 2, "tol": None, "random_state": 0}


def handles(executor, pieces):
    return [executor.source(piece) for piece in pieces]


def test_pieces_with_and_without_weights():
    executor: Executor = SerialExecutor()
    given = [(X[:150], Y[:150]), (X[150:], Y[150:], None)]
    many = fit_shards(OnnxSGDClassifier(**NAMED), handles(executor, given), executor, sync_every=1)
    one = OnnxSGDClassifier(**NAMED).fit(X, Y)
    np.testing.assert_allclose(many.coef_, one.coef_, rtol=0, atol=1e-5)


def test_the_estimator_stays_of_its_class():
    found = []

    class Watching(SerialExecutor):
        def results(self, handles):
            copies = [copy.copy(estimator), copy.deepcopy(estimator), pickle.loads(pickle.dumps(estimator))]
            assert type(clone(estimator)) is OnnxSGDClassifier
            found.extend(copies)
            with pytest.raises(ParameterError, match="The estimator is being trained"):
                fit_shards(estimator, pieces, self)
            return super().results(handles)

    estimator = OnnxSGDClassifier(**NAMED).fit(X, Y)
    before = estimator.coef_.copy()
    executor = Watching()
    pieces = handles(executor, pieces_of(X, Y))
    assert fit_shards(estimator, pieces, executor) is estimator
    assert type(estimator) is OnnxSGDClassifier
    assert all(type(seen) is OnnxSGDClassifier and seen.predict(X).shape == Y.shape for seen in found)
    assert (found[0].coef_ == before).all()


def test_lists_and_sparse_matrices_of_any_format():
    executor = SerialExecutor()
    given = [(X[:150].tolist(), Y[:150].tolist()), (X[150:], Y[150:])]
    many = fit_shards(OnnxSGDClassifier(**NAMED), handles(executor, given), executor, sync_every=1)
    np.testing.assert_allclose(many.coef_, OnnxSGDClassifier(**NAMED).fit(X, Y).coef_, rtol=0, atol=1e-5)
    table = [(sparse.coo_matrix(X), Y)]
    cut = fit_shards(OnnxSGDClassifier(**NAMED), handles(executor, table), executor, n_shards=3, sync_every=1)
    np.testing.assert_allclose(cut.coef_, many.coef_, rtol=0, atol=1e-5)


@pytest.mark.parametrize("loss", ["hinge", "perceptron"])
def test_intercepts_of_sparse_classes_move(loss):
    """Each shard has the factors of rates that the client determines, and none of its own rows."""
    table = sparse.random(600, 2000, 0.01, "csr", random_state=0)
    table.data[:] = 1.0
    labels, executor = np.arange(600) % 3, SerialExecutor()
    pieces = handles(executor, [(table[:300], labels[:300]), (table[300:], labels[300:])])
    model = fit_shards(OnnxSGDClassifier(loss=loss, random_state=0), pieces, executor)
    # they begin at -1/3
    assert np.abs(model.intercept_ + 1 / 3).max() > 0.01


@pytest.mark.parametrize("options", [{}, {"early_stopping": True}])
def test_each_handle_is_released_once_but_those_of_the_caller(options):
    class Counting(SerialExecutor):
        def __init__(self):
            super().__init__()
            self.live = {}

        def _kept(self, value):
            result = super()._kept(value)
            self.live[id(result)] = result
            return result

        def release(self, handles):
            for handle in handles:
                del self.live[id(handle)]

    executor = Counting()
    pieces, values = (handles(executor, pieces_of(X, Y)) for _ in range(2))
    pieces_val = None if options else values
    model = OnnxSGDClassifier(**NAMED, **options)
    for _ in range(2):
        fit_shards(model, pieces, executor, pieces_val=pieces_val)
        assert set(executor.live) == set(map(id, [*pieces, *values]))


@pytest.mark.parametrize(
    ("pieces", "options", "error", "message"),
    [
        ([], {}, ParameterError, "pieces is empty"),
        ([(X, Y)], {"pieces_val": []}, ParameterError, "pieces_val is empty"),
        ([X], {}, ParameterError, r"Piece 0 is of type ndarray: .* must be a tuple \(X, y\)"),
        ([(X, Y), (X,)], {}, ParameterError, "Piece 1 is a tuple of 1"),
        ([(X, None)], {}, ParameterError, "Piece 0 has no y for each row: got None"),
        ([(X, Y, 2.0)], {}, ParameterError, "Piece 0 has no sample_weight for each row: got .*2.0"),
        ([(X, Y[:-1])], {}, ParameterError, "400 rows of X, 399 rows of y"),
        ([(X, Y)], {"n_shards": 0}, ParameterError, "n_shards"),
        ([(X, Y)], {"sync_every": 1.5}, ParameterError, "sync_every"),
        ([(X, Y)], {"resume": "yes"}, ParameterError, "resume"),
        ([(X, Y)], {"resume": True}, ParameterError, "checkpoint"),
    ],
)
def test_misuse(pieces, options, error, message):
    executor, estimator = SerialExecutor(), OnnxSGDClassifier(**NAMED)
    with pytest.raises(error, match=message):
        fit_shards(estimator, handles(executor, pieces), executor, **options)
    assert type(estimator) is OnnxSGDClassifier
    assert not hasattr(estimator, "coef_")


class Own(OnnxSGDRegressor):
    """A class of a user."""


@pytest.mark.parametrize("estimator", [LogisticRegression(), Own(), OnnxSGDClassifier])
def test_other_estimators_are_refused(estimator):
    with pytest.raises(ParameterTypeError, match="it must be an OnnxSGDClassifier or an OnnxSGDRegressor"):
        fit_shards(estimator, [], SerialExecutor())
