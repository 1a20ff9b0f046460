"""Training on sparse data equals that on dense data, and touches the entries of the data only."""

import pickle
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import onnx
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.engine.step.single_step import StepRunner
from onnxsgd.engine.step.sparse_step import SparseStepRunner
from onnxsgd.exceptions import ConvergenceError
from onnxsgd.optimizers import SGD, Adagrad, Adam, AdamW, BlockAdam, Lion, RMSProp
from onnxsgd.training import sparse_runners

RNG = np.random.default_rng(0)
N, D = 203, 40
#: Rows without entries, columns without entries, columns with many.
DENSE = RNG.normal(size=(N, D)) * (RNG.random((N, D)) < np.linspace(0, 0.4, D))
DENSE[17] = 0
WEIGHT = RNG.uniform(0.1, 2, N)
CLASS = (DENSE @ RNG.normal(size=(D, 3))).argmax(axis=1)
REAL = DENSE @ RNG.normal(size=(D, 2)) + 0.5

#: All in float64, where dense and sparse sums differ by rounding alone.
NETWORKS = {
    "linear": "y = Gemm (x, v, c)",
    "no intercept": "y = MatMul (x, v)",
    "hidden layer": "p = MatMul (x, w)  s = Add (p, b)  h = Tanh (s)  y = Gemm (h, u, c)",
    "transposed": "s = Gemm <transB = 1> (x, t, b)  h = Relu (s)  y = Gemm (h, u, c)",
    "two": "p = MatMul (x, w)  q = Gemm <transB = 1> (x, t, b)  h = Mul (p, q)  y = Gemm (h, u, c)",
}
SHAPES = {"v": (D, 2), "c": (2,), "w": (D, 6), "b": (6,), "u": (6, 2), "t": (6, D)}
PENALTIES = [None, "l2", "l1", "elasticnet"]


def network(body):
    text = f'<ir_version: 8, opset_import: ["" : 18]> g (double[N, {D}] x) => (double[N, 2] y) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(1)
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(rng.normal(0, 0.3, shape), name)
        for name, shape in SHAPES.items()
        if f"{name})" in body or f" {name}," in body
    )
    return proto


def fitted(X, y, model=None, estimator=OnnxSGDRegressor, sample_weight=WEIGHT, **settings):
    defaults = {"learning_rate": "invscaling", "eta0": 0.05, "max_iter": 4, "tol": None, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator(model, **defaults | settings).fit(X, y, sample_weight=sample_weight)


def assert_equal(sparse_one, dense_one, rtol=1e-9):
    weights = dense_one.get_weights()
    assert list(sparse_one.get_weights()) == list(weights)
    for name, array in sparse_one.get_weights().items():
        np.testing.assert_allclose(array, weights[name], rtol=rtol, atol=rtol)
    np.testing.assert_allclose(sparse_one.loss_curve_, dense_one.loss_curve_, rtol=rtol)


@pytest.fixture
def runners(monkeypatch):
    """The classes of the runners of each fit."""
    used = []
    for cls in (StepRunner, SparseStepRunner):
        monkeypatch.setattr(
            cls, "run", lambda self, *args, run=cls.run: used.append(type(self)) or run(self, *args)
        )
    return used


@pytest.mark.parametrize("body", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_sgd_equals_that_on_dense_data(body, penalty):
    settings = {"model": network(body), "penalty": penalty, "alpha": 0.02, "batch_size": 16}
    assert_equal(fitted(sparse.csr_matrix(DENSE), REAL, **settings), fitted(DENSE, REAL, **settings))


def _in_each_batch(X):
    """Each column has an entry in each row, some of them too small to matter."""
    return sparse.csr_matrix(np.where(X == 0, 1e-300, X))


class OwnRule(SGD):
    """A user's rule: whether it may be applied to some rows is unknown."""


OPTIMIZERS = {
    "momentum": SGD(0.9), "nesterov": SGD(0.9, nesterov=True), "adam": Adam(), "adamw": AdamW(),
    "block adam": BlockAdam(), "rmsprop": RMSProp(), "adagrad": Adagrad(), "lion": Lion(),
    "torch momentum": SGD(0.9, convention="torch"), "amsgrad": Adam(amsgrad=True),
}  # fmt: skip


@pytest.mark.parametrize("body", [NETWORKS["linear"], NETWORKS["transposed"]], ids=["linear", "transposed"])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_states_of_columns_in_each_batch_are_those_of_dense_data(optimizer, penalty, body, runners):
    settings = {"optimizer": optimizer, "penalty": penalty, "alpha": 0.02, "model": network(body)}
    X = _in_each_batch(DENSE)
    assert_equal(fitted(X, REAL, **settings), fitted(X.toarray(), REAL, **settings))
    is_elastic = penalty == "elasticnet" and not optimizer.is_proximal
    assert (SparseStepRunner in runners) != is_elastic


@pytest.mark.parametrize("optimizer", [BlockAdam(), BlockAdam(steering=0.1)], ids=["constant", "steered"])
@pytest.mark.parametrize("penalty", [None, "l2"])
@pytest.mark.parametrize("body", NETWORKS.values(), ids=NETWORKS)
def test_block_adam_equals_that_on_dense_data(body, penalty, optimizer):
    """Columns that batches lack included."""
    settings = {"model": network(body), "penalty": penalty, "alpha": 0.02, "optimizer": optimizer}
    assert_equal(fitted(sparse.csr_matrix(DENSE), REAL, **settings), fitted(DENSE, REAL, **settings), 1e-7)


def test_batches_of_default_fits_are_larger():
    """A batch size that is named counts; named rates and streams have 32 rows."""
    X, y = sparse.csr_matrix(np.tile(DENSE, (2, 1))), np.tile(CLASS, 2)
    one = {"max_iter": 1, "tol": None}
    for settings, n_updates in [
        ({}, 4), ({"batch_size": 32}, 13), ({"learning_rate": "constant"}, 13),
    ]:  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            assert OnnxSGDClassifier(**one, **settings).fit(X, y).t_ == n_updates
    assert OnnxSGDClassifier().partial_fit(X, y, classes=np.unique(y)).t_ == 13


@pytest.mark.parametrize(
    ("n_rows", "n_updates"), [(3071, 24), (3072, 12), (6143, 24), (6144, 12), (20_000, 40)]
)
def test_many_rows_have_larger_batches(n_rows, n_updates):
    """From 3,072 rows on an epoch has at least 12 updates, of 256 rows or of 512."""
    X, y = sparse.csr_matrix(np.resize(DENSE[:, -3:], (n_rows, 3))), np.resize(CLASS, n_rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert OnnxSGDClassifier(max_iter=1, tol=None).fit(X, y).t_ == n_updates


def test_neighbouring_rows_need_no_copy(monkeypatch):
    """Batches are neighbours in one order of the rows, the first of which follow the last; one is short."""
    settings = {"batch_size": 16, "random_state": 0, "max_iter": 20}
    X, gathered = sparse.csr_matrix(DENSE), []
    gather = SparseStepRunner._gathered
    monkeypatch.setattr(
        SparseStepRunner, "_gathered", lambda self, rows: gathered.extend(rows) or gather(self, rows)
    )
    ours = OnnxSGDClassifier(**settings).fit(X, CLASS)
    assert not gathered
    monkeypatch.setattr(SparseStepRunner, "_split", SparseStepRunner._gathered)
    np.testing.assert_array_equal(OnnxSGDClassifier(**settings).fit(X, CLASS).coef_, ours.coef_)
    assert len(gathered) == ours.t_


@pytest.mark.parametrize("n_columns", [20, 4000], ids=["few columns", "many columns"])
@pytest.mark.parametrize("model", ["linear", "several classes", "hidden layer"])
@pytest.mark.parametrize("is_copied", [False, True], ids=["neighbours", "gathered"])
def test_centred_products_are_those_of_centred_columns(n_columns, model, is_copied, monkeypatch):
    """With an entry in each row the same updates are made, in as much time as dense ones take."""
    rng = np.random.default_rng(0)
    table = sparse.random_array((200, n_columns), density=8 / n_columns, format="csr", rng=rng)
    # a column with an entry in each row
    table = sparse.csr_array(sparse.hstack([table, np.ones((200, 1)) + rng.random((200, 1))]))
    edges = [5.0, 6.0] if model == "several classes" else [5.5]
    y = np.digitize(table.sum(axis=1) + rng.normal(size=200), edges)
    settings = {"dtype": "float64", "max_iter": 6, "tol": None, "random_state": 0, "batch_size": 16}
    if model == "hidden layer":
        settings["model"] = MLPClassifier((5,), random_state=0).partial_fit(table, y, classes=np.unique(y))
    tables, runs = [], []
    if is_copied:
        monkeypatch.setattr(SparseStepRunner, "_split", SparseStepRunner._gathered)

    def fitted_and_told():
        def run(self, *args):
            tables.append(self._table)
            return original(self, *args)

        original = SparseStepRunner.run
        with monkeypatch.context() as patched:
            patched.setattr(SparseStepRunner, "run", run)
            runs.append(OnnxSGDClassifier(**settings).fit(table, y))

    fitted_and_told()
    assert max(found.nnz for found in tables) < table.nnz + 16 * 40 + 200
    n_before = len(tables)
    monkeypatch.setattr(sparse_runners, "centres_products", lambda *given: False)
    fitted_and_told()
    assert max(found.nnz for found in tables[n_before:]) >= 200 * len(np.unique(table.indices))
    for name, array in runs[0].get_weights().items():
        np.testing.assert_allclose(array, runs[1].get_weights()[name], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(runs[0].loss_curve_, runs[1].loss_curve_, rtol=1e-7)


def test_columns_without_entries_do_not_matter():
    """The rate of a first layer was the larger, the more columns the table had."""
    X = sparse.csr_matrix(DENSE)
    wide = sparse.hstack([X, sparse.csr_matrix((N, 5000))]).tocsr()
    ours, want = (OnnxSGDClassifier(random_state=0, alpha=0).fit(data, CLASS) for data in (wide, X))
    np.testing.assert_allclose(ours.coef_[:, :D], want.coef_, rtol=1e-3, atol=1e-3)


def by_hand(optimizer, X, y, rate, l1, l2, size):
    """One epoch of single rows in numpy: states of columns that a row lacks wait."""
    w, m, v, waited = np.zeros(D), np.zeros(D), 0.0, np.zeros(D)
    for t, (row, target) in enumerate(zip(X, y, strict=True), start=1):
        own, waited = row != 0, waited + 1
        g = (row @ w - target) * row[own]
        if optimizer == "sgd":
            m[own] = 0.9 * m[own] - rate * g - rate * l2 * w[own]
            w[own] += m[own]
        else:
            m[own] = 0.9 * m[own] + 0.1 * g
            v = 0.999 * v + 0.001 * (g**2).sum() / size
            k = rate / (np.sqrt(v / (1 - 0.999**t)) + 1e-300)
            w[own] -= k / (1 - 0.9**t) * m[own]
            w[own] = np.sign(w[own]) * np.maximum(abs(w[own]) - k * l1 * waited[own], 0)
            w[own] /= 1 + k * l2 * waited[own]
        waited[own] = 0
    return w


@pytest.mark.parametrize("optimizer", ["sgd", "block_adam"])
def test_states_wait(optimizer):
    """The proximal penalty is made up for with the next update of the column."""
    proto = network("y = MatMul (x, v)")
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros((D, 2)), "v"))
    y = REAL - 0.5
    more = {"momentum": 0.9} if optimizer == "sgd" else {"penalty": "elasticnet", "l1_ratio": 0.25}
    estimator = OnnxSGDRegressor(
        proto, optimizer=optimizer, learning_rate="constant", eta0=0.01, alpha=0.02, batch_size=1, max_iter=1,
        tol=None, shuffle=False, **more,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(sparse.csr_matrix(DENSE), np.stack([y[:, 0], np.zeros(N)], axis=1))
    l1, l2 = (0.005, 0.015) if optimizer == "block_adam" else (0.0, 0.02)
    scale = D if optimizer == "sgd" else 2 * D
    want = by_hand(optimizer, DENSE, y[:, 0], 0.01, l1, l2, scale)
    np.testing.assert_allclose(estimator.get_weights()["v"][:, 0], want, rtol=1e-9, atol=1e-12)


def test_the_default_learns_from_sparse_data_as_from_dense(runners):
    ours, dense = (OnnxSGDClassifier(random_state=0).fit(X, CLASS) for X in (sparse.csr_matrix(DENSE), DENSE))
    assert SparseStepRunner in runners
    assert ours.score(DENSE, CLASS) > dense.score(DENSE, CLASS) - 0.02 > 0.9


@pytest.mark.parametrize("average", [False, True, 20])
@pytest.mark.parametrize("alpha", [1e-3, 5.0, 40.0])
def test_decay_and_averages(average, alpha):
    """The middle strength makes factors small; the largest makes them zero, and weights restart from zero."""
    settings = {"model": network(NETWORKS["linear"]), "average": average, "alpha": alpha, "batch_size": 4}
    assert_equal(fitted(sparse.csr_matrix(DENSE), REAL, **settings), fitted(DENSE, REAL, **settings))


@pytest.mark.parametrize("penalty", PENALTIES)
def test_calls_with_parts_of_the_data(penalty):
    ours = []
    for X in (sparse.csr_matrix(DENSE), DENSE):
        estimator = OnnxSGDRegressor(
            network(NETWORKS["hidden layer"]), learning_rate="constant", penalty=penalty, average=True,
            alpha=0.02, random_state=0,
        )  # fmt: skip
        for start in range(0, N, 50):
            rows = slice(start, start + 50)
            estimator.partial_fit(X[rows], REAL[rows], sample_weight=WEIGHT[rows])
        estimator.partial_fit(DENSE[:30], REAL[:30])
        ours.append(pickle.loads(pickle.dumps(estimator)).partial_fit(X[:1], REAL[:1]))
    assert_equal(*ours)


def _in_parts(X):
    """Entries in two parts, which are added, and zeros that are stored."""
    X = sparse.coo_matrix(X)
    data = np.concatenate([0.25 * X.data, 0.75 * X.data, np.zeros(3)])
    rows, columns = (np.concatenate([index, index, [0, 1, 2]]) for index in (X.row, X.col))
    order = np.argsort(rows, kind="stable")
    indptr = np.searchsorted(rows[order], np.arange(X.shape[0] + 1))
    return sparse.csr_matrix((data[order], columns[order], indptr), shape=X.shape)


def _wide(X):
    X = sparse.csr_matrix(X)
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return X


FORMS = {
    "csc": sparse.csc_matrix, "coo": sparse.coo_array, "csr_array": sparse.csr_array, "64 bit": _wide,
    "duplicates": _in_parts,
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms_of_sparse_data(form, runners):
    settings = {"estimator": OnnxSGDClassifier, "loss": "log_loss"}
    ours, dense = (fitted(X, CLASS, **settings) for X in (form(DENSE), DENSE))
    assert_equal(ours, dense, rtol=1e-5)
    assert set(runners[: ours.n_iter_]) == {SparseStepRunner}
    np.testing.assert_allclose(ours.predict_proba(form(DENSE)), dense.predict_proba(DENSE), atol=1e-5)


@pytest.mark.parametrize("engine", ["portable", "onnxruntime-training"])
@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_both_engines_and_one_column(engine, loss):
    settings = {"estimator": OnnxSGDClassifier, "loss": loss, "engine": engine, "batch_size": 8}
    ours, dense = (fitted(X, CLASS == 1, **settings) for X in (sparse.csr_matrix(DENSE), DENSE))
    assert_equal(ours, dense, rtol=1e-5)


@pytest.mark.parametrize("penalty", [None, "l2"])
@pytest.mark.parametrize("average", [False, True])
def test_single_rows_follow_scikit_learn(penalty, average):
    """Its rate of intercepts is a hundredth on sparse data. With l1 it may leave penalties pending."""
    X = sparse.csr_matrix(DENSE)
    settings = {"penalty": penalty, "average": average, "max_iter": 3, "tol": None, "shuffle": False}
    for ours, reference, y, loss in [
        (OnnxSGDClassifier, SGDClassifier, CLASS, "log_loss"),
        (OnnxSGDRegressor, SGDRegressor, REAL[:, 0], "squared_error"),
    ]:
        more = {"learning_rate": "constant", "eta0": 0.02, "alpha": 0.01, "loss": loss}
        theirs = reference(**settings | more).fit(X, y, sample_weight=WEIGHT)
        got = ours(batch_size=1, **settings | more).fit(X, y, sample_weight=WEIGHT)
        np.testing.assert_allclose(got.coef_, theirs.coef_, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(got.intercept_, theirs.intercept_, rtol=1e-4, atol=1e-7)


def test_a_diverging_fit_keeps_the_last_finite_weights():
    estimator = OnnxSGDRegressor(learning_rate="constant", eta0=1e6, penalty=None, max_iter=50)
    with pytest.raises(ConvergenceError, match="no longer finite at update"):
        estimator.fit(sparse.csr_matrix(DENSE), REAL[:, 0])
    assert np.isfinite(estimator.coef_).all()
    assert np.abs(estimator.coef_).max() > 1


PIPELINES = {
    "network": MLPClassifier((6,), max_iter=2, random_state=0),
    "scaled": make_pipeline(MaxAbsScaler(), LogisticRegression()),
    "scaled network": make_pipeline(
        StandardScaler(with_mean=False), MLPClassifier((6,), max_iter=2, random_state=0)
    ),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("model", PIPELINES.values(), ids=PIPELINES)
def test_estimators_of_scikit_learn(model, runners):
    """Steps that scale columns keep data sparse."""
    X = sparse.csr_matrix(DENSE)
    model = clone(model).fit(X, CLASS)
    settings = {"estimator": OnnxSGDClassifier, "model": model, "dtype": "float64"}
    ours, dense = (fitted(data, CLASS, **settings) for data in (X, DENSE))
    assert_equal(ours, dense, rtol=1e-6)
    assert SparseStepRunner in runners
    np.testing.assert_allclose(ours.predict_proba(X), dense.predict_proba(DENSE), rtol=1e-5)


def test_optimizers_of_users_work_on_dense_batches(runners):
    settings = {"model": network(NETWORKS["linear"]), "optimizer": OwnRule(0.5)}
    assert_equal(fitted(sparse.csr_matrix(DENSE), REAL, **settings), fitted(DENSE, REAL, **settings))
    assert SparseStepRunner not in runners


def test_other_readers_of_the_data_train_on_dense_batches(runners):
    body = "p = MatMul (x, v)  s = ReduceSum <keepdims = 1> (x, axis)  y = Add (p, s)"
    proto = network(body)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "axis"))
    assert_equal(fitted(sparse.csr_matrix(DENSE), REAL, proto), fitted(DENSE, REAL, proto))
    assert SparseStepRunner not in runners


def test_the_training_step_of_sparse_data_is_exported(tmp_path):
    ours = [fitted(X, CLASS, estimator=OnnxSGDClassifier) for X in (sparse.csr_matrix(DENSE), DENSE)]
    files = [tmp_path / "sparse.onnx", tmp_path / "dense.onnx"]
    for each, file in zip(ours, files, strict=True):
        each.export_training_step(file)
    first, second = (onnx.load(file).graph for file in files)
    assert [node.op_type for node in first.node] == [node.op_type for node in second.node]


_SCRIPT = """
    import resource
    import numpy as np
    from scipy import sparse
    from onnxsgd import OnnxSGDClassifier

    rng = np.random.default_rng(0)
    n, d = 10_000, 1_000_000
    X = sparse.csr_matrix(
        (rng.random(n * 80, np.float32), rng.integers(0, d, n * 80, np.int32), np.arange(0, n * 80 + 1, 80)),
        shape=(n, d),
    )
    y = rng.integers(0, 2, n)
    warm = OnnxSGDClassifier({settings}).fit(X[:64, :9].tocsr(), y[:64])
    before = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (before + 400_000_000,) * 2)
    model = OnnxSGDClassifier({settings}).fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.decision_function(X).shape == (n,)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the address space from /proc")
@pytest.mark.parametrize(
    "settings", ["learning_rate='constant', eta0=1.0, max_iter=5, tol=None", "max_iter=6, tol=None"]
)
def test_memory_is_of_the_order_of_the_entries(settings):
    """A million columns of 10,000 rows, 40 GB as a dense table, train in 400 MB."""
    script = textwrap.dedent(_SCRIPT.format(settings=settings))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("n_rows", range(2, 10))
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_default_fits_of_few_rows(n_rows):
    """A batch may have more rows than the table, and the same one several times."""
    X = sparse.csr_matrix(np.eye(n_rows, 12) + 0.1)
    y = np.arange(n_rows) % 2
    model = OnnxSGDClassifier(random_state=0).fit(X, y)
    assert model.score(X, y) == 1.0
    assert np.isfinite(OnnxSGDRegressor(random_state=0).fit(X, y).coef_).all()
