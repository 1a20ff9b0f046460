"""Training on resident data gives the numbers of single steps; here the device is the CPU."""

import pickle

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser
from scipy import sparse
from sklearn.datasets import load_diabetes, load_iris
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.data import row_tables
from onnxsgd.engine.step import batches
from onnxsgd.engine.step import cuda_blocks as blocks
from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.cuda_blocks import Block, BlockSession, BoundBlock, block_sizes
from onnxsgd.engine.step.device_loop import ResidentRunner, check_data
from onnxsgd.engine.step.single_step import StepRunner, make_buffers
from onnxsgd.engine.step.step_spec import StepSpec
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.engine.step.unrolled import ROWS
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.exceptions import ConvergenceError, MissingRuntimeError, UnsupportedError
from onnxsgd.graph.model import to_ir
from onnxsgd.losses import CrossEntropy, SquaredError
from onnxsgd.optimizers import SGD, Adam
from onnxsgd.runtime.cache import cache
from onnxsgd.runtime.device import HOST, Device
from onnxsgd.runtime.sessions import make_session
from onnxsgd.training import loop

MLP = """
<ir_version: 9, opset_import: ["" : 18]>
mlp (float[N,5] X) => (float[N,3] Y) {
    a = MatMul(X, W1)
    b = Add(a, b1)
    h = Relu(b)
    Y = Gemm(h, W2, b2)
}
"""
SHAPES = {"W1": (5, 12), "b1": (12,), "W2": (12, 3), "b2": (3,)}
GPU = Device("cuda")


def normal(*shape, seed=0, scale=0.5):
    return np.random.RandomState(seed).normal(0, scale, shape).astype(np.float32)


def graph(text, **initializers):
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in initializers.items())
    return onnx.shape_inference.infer_shapes(proto)


@pytest.fixture(scope="module")
def weights():
    return {name: normal(*shape, seed=len(name)) for name, shape in SHAPES.items()}


@pytest.fixture(scope="module")
def model(weights):
    return to_ir(graph(MLP, **weights))


@pytest.fixture
def data():
    rng = np.random.RandomState(1)
    y = np.eye(3, dtype=np.float32)[rng.randint(0, 3, 53)]
    return Batches({"X": normal(53, 5, scale=1.0)}, y, rng.uniform(0.5, 2, 53), 8, True)


@pytest.fixture
def staying(monkeypatch):
    """Keep the data of every fit resident on the CPU, as on a GPU."""
    monkeypatch.setattr(Device, "keeps_data", True)


def make_spec(**more):
    settings = {
        "weights": tuple(SHAPES), "penalised": frozenset({"W1", "W2"}), "loss": CrossEntropy(),
        "optimizer": SGD(), "l1": False, "l2": True, "average": False, "batch_size": 8, "n_outputs": 3,
        "engine": "portable",
    }  # fmt: skip
    return StepSpec(**settings | more)


def numbers(spec, count, start=0):
    t = np.arange(start + 1.0, start + count + 1)
    rates = 0.1 / np.sqrt(t)
    columns = [np.broadcast_to(c, count) for c in spec.optimizer.scalars(t, rates, 0.01).values()]
    columns += [np.cumsum(rates * 0.001)] if spec.l1 else []
    columns += [1 / t] if spec.average else []
    return np.stack(columns, axis=1), rates


def runners(model, spec, weights, data, sizes=(4, 1)):
    """Return a runner of single steps, its buffers, and a runner on resident data."""
    step = build_step(model, spec)
    session = make_session(step.model, 1)
    buffers = make_buffers(spec, weights)
    made = {size: Block(step, spec.loss, size, HOST) for size in sizes}
    resident = ResidentRunner(made, step, data, HOST, 1)
    for each in (buffers, resident.buffers):
        each.load({(name, WEIGHT): array for name, array in weights.items()})
    return StepRunner(session, step, buffers, data), buffers, resident


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        np.testing.assert_array_equal(found[key], array, err_msg=str(key))


@pytest.mark.parametrize("sizes", [(1,), (4, 1)], ids=["one", "four"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"l2": False},
        {"optimizer": SGD(0.9, True), "l1": True, "average": True},
        {"optimizer": Adam(), "loss": SquaredError()},
    ],
    ids=["sgd", "no-penalty", "nesterov-l1-average", "adam"],
)
def test_weights_and_states_are_those_of_single_steps_to_the_last_bit(model, weights, data, options, sizes):
    """Seven batches, the last of them short: one block of four steps and three of one."""
    spec = make_spec(**options)
    one, buffers, resident = runners(model, spec, weights, data, sizes)
    before = resident.buffers.snapshot()
    for epoch in range(3):
        table, rates = numbers(spec, data.n_batches, epoch * data.n_batches)
        plan = data.plan(np.random.RandomState(epoch).permutation(53))
        if spec.optimizer.takes_scaled_gradient:
            plan = plan.descending(rates)
        wanted, found = np.zeros(7), np.zeros(7)
        one.run(plan, table, wanted)
        resident.run(plan, table, found)
        assert resident.n_done == 7
        # summed in another order
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert_same(resident.buffers.snapshot(), buffers.snapshot())
    assert not np.array_equal(before["W1", WEIGHT], resident.buffers.snapshot()["W1", WEIGHT])


def test_a_part_of_an_epoch_can_be_run(model, weights, data):
    """Recovery of the last finite weights runs one batch at a time."""
    spec = make_spec()
    one, buffers, resident = runners(model, spec, weights, data)
    table, rates = numbers(spec, 7)
    plan = data.plan(np.arange(53)).descending(rates)
    start = resident.buffers.snapshot()
    whole = np.zeros(7)
    resident.run(plan, table, whole)
    resident.buffers.load(start)
    for part in (slice(0, 1), slice(1, 6), slice(6, 7)):
        found = np.zeros(part.stop - part.start)
        resident.run(plan.part(part), table[part], found)
        assert resident.n_done == len(found)
        np.testing.assert_allclose(found, whole[part], rtol=1e-6)
    one.run(plan, table, whole)
    assert_same(resident.buffers.snapshot(), buffers.snapshot())


def test_several_epochs_are_run_one_after_another(model, weights, data):
    """The inputs on the device have room for one."""
    spec = make_spec()
    one, buffers, resident = runners(model, spec, weights, data)
    table, rates = numbers(spec, 21)
    orders = np.stack([np.random.RandomState(epoch).permutation(53) for epoch in range(3)])
    plan = data.plan(orders).descending(rates)
    wanted, found = np.zeros(21), np.zeros(21)
    one.run(plan, table, wanted)
    resident.run(plan, table, found)
    assert resident.n_done == 21
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert_same(resident.buffers.snapshot(), buffers.snapshot())


def test_even_weights_of_several_epochs_are_sent_once(model, weights, data):
    spec = make_spec(optimizer=Adam())
    data = Batches(data.features, data.target, np.ones(53), 8, True)
    _, _, resident = runners(model, spec, weights, data)
    sent = []

    class Sent:
        def __init__(self, name, value):
            self.name, self.value = name, value

        def update_inplace(self, array):
            sent.append(self.name)
            self.value.update_inplace(array)

    held = resident._plan.sent
    resident._plan.sent = {name: Sent(name, value) for name, value in held.items()}
    resident.run(data.plan(np.tile(np.arange(53), (3, 1))), numbers(spec, 21)[0], np.zeros(21))
    of_weights = resident._plan._names_of_weights
    assert [sent.count(name) for name in of_weights] == [1, 1]
    assert sent.count(ROWS) == 3


def test_even_weights_that_were_sent_are_sent_again_after_others(model, weights, data):
    spec = make_spec()
    data = Batches(data.features, data.target, np.ones(53), 8, True)
    one, buffers, resident = runners(model, spec, weights, data)
    table, rates = numbers(spec, 7)
    plan = data.plan(np.arange(53)).descending(rates)
    losses = []
    for runner in (one, resident):
        for part in (slice(7), slice(6, 7), slice(7)):
            losses.append(np.zeros(part.stop - (part.start or 0)))
            # a slice of all would be another array
            runner.run(plan if part.start is None else plan.part(part), table[part], losses[-1])
    for wanted, found in zip(losses[:3], losses[3:], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert_same(resident.buffers.snapshot(), buffers.snapshot())


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_an_interrupt_leaves_whole_blocks(model, weights, data, calls, monkeypatch):
    spec = make_spec()
    one, buffers, resident = runners(model, spec, weights, data)
    table, rates = numbers(spec, 7)
    plan = data.plan(np.arange(53)).descending(rates)
    made, run = [], BoundBlock.run

    def interrupted(self, *, wait):
        if len(made) == calls:
            raise KeyboardInterrupt
        made.append(run(self, wait=wait))

    monkeypatch.setattr(BoundBlock, "run", interrupted)
    losses, wanted = np.full(7, np.nan), np.zeros(7)
    with pytest.raises(KeyboardInterrupt):
        resident.run(plan, table, losses)
    done = {0: 0, 1: 4, 3: 6}[calls]
    assert resident.n_done == done
    one.run(plan.part(slice(done)), table[:done], wanted[:done])
    np.testing.assert_allclose(losses[:done], wanted[:done], rtol=1e-6)
    assert np.isnan(losses[done:]).all()
    assert_same(resident.buffers.snapshot(), buffers.snapshot())


def test_data_are_neither_copied_nor_changed(model, weights, data):
    data.target.setflags(write=False)
    data.features["X"].setflags(write=False)
    _, _, resident = runners(model, make_spec(), weights, data)
    at = {name: value.data_ptr() for name, value in resident._data.items()}
    assert at == {"step/X": data.features["X"].ctypes.data, "step/y_true": data.target.ctypes.data}
    table, rates = numbers(make_spec(), 7)
    resident.run(data.plan(np.arange(53)).descending(rates), table, np.zeros(7))


def test_blocks_are_smaller_for_large_steps_and_large_batches(model):
    step = build_step(model, make_spec())
    n_operators = len(onnx.load_from_string(step.model).graph.node)
    assert 16 < n_operators <= 32

    def sizes(n_samples, n_features=5):
        X = np.broadcast_to(np.float32(0), (n_samples, n_features))
        y = np.broadcast_to(np.float32(0), (n_samples, 3))
        return block_sizes(step, Batches({"X": X}, y, np.ones(n_samples), 8, True))

    assert sizes(8000) == (16, 1)
    assert sizes(8 * 5) == (4, 1)
    assert sizes(8) == (1,)
    assert sizes(8000, 400_000) == (4, 1)
    assert sizes(8000, 5_000_000) == (1,)


def test_many_operators_make_small_blocks(model):
    step = build_step(model, make_spec(optimizer=Adam(), l1=True, average=True))
    n_operators = len(onnx.load_from_string(step.model).graph.node)
    data = Batches({"X": normal(800, 5)}, normal(800, 3), np.ones(800), 8, True)
    size, one = block_sizes(step, data)
    assert one == 1
    assert size * n_operators <= 512 < 2 * size * n_operators


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"X": sparse.eye(4, format="csr")}, "device='cuda:0' takes dense data"),
        ({"X": np.array([["a"]] * 4)}, "'X' has elements of type <U1"),
        (
            {"X": np.broadcast_to(np.float32(0), (4, 2**29))},
            "2,147,483,647 numbers, and 'X' has 2,147,483,648",
        ),
    ],
    ids=["sparse", "strings", "too many"],
)
def test_data_that_cannot_stay_are_refused(features, message):
    """Beyond 2^31 numbers the runtime's gathering on GPUs would read elsewhere without an error."""
    with pytest.raises(UnsupportedError, match=message):
        check_data(Batches(features, np.zeros((4, 1), np.float32), np.ones(4), 2, True), GPU)


class _FakeSession:
    """A stub of a session: its inputs and its runs."""

    def __init__(self):
        self.runs, self.bindings = [], 0

    def get_inputs(self):
        return []

    def io_binding(self):
        self.bindings += 1
        return self

    def synchronize_outputs(self):
        self.runs.append("wait")

    def run_with_iobinding(self, binding, options):
        self.runs.append(options)


@pytest.fixture
def made_for_gpu(monkeypatch, model):
    """Blocks for a GPU whose sessions are fakes, of the mode that the test sets."""
    spec, step, mode, sessions = make_spec(), build_step(model, make_spec()), ["recorded"], []

    def fake(model, index, *, recordable):
        sessions.append(_FakeSession())
        return sessions[-1], mode[0] if recordable else "stepwise"

    monkeypatch.setattr(blocks, "make_step_session", fake)
    return lambda: Block(step, spec.loss, 2, GPU), mode, sessions


def entries(options, key):
    return options.get_run_config_entry(key)


def test_each_set_of_buffers_is_recorded_for_itself(made_for_gpu, monkeypatch):
    """A recording holds addresses: replayed for other buffers it would change the wrong ones."""
    make, _, _ = made_for_gpu
    written = []

    class Options:
        def add_run_config_entry(self, key, value):
            written.append((key, value))

    monkeypatch.setattr(blocks, "load_runtime", lambda: type("Runtime", (), {"RunOptions": Options}))
    block = make()
    for _ in range(2):
        session = BlockSession(block, GPU, n_calls=1000)
        session.options()
        session.options()
    recordings = [value for key, value in written if key == "gpu_graph_id"]
    # with and without waiting, the same recording; four sets of buffers, four of them
    assert recordings[::2] == recordings[1::2]
    assert len(set(recordings)) == 4
    assert all(int(number) > 0 for number in recordings)
    assert written.count(("disable_synchronize_execution_providers", "1")) == 4
    written.clear()
    BlockSession(block, GPU, n_calls=15).options()
    assert ("gpu_graph_id", "-1") in written


def test_sessions_are_renewed_when_much_is_recorded(made_for_gpu):
    """Recordings are freed with their session: a loop over partial_fit must not fill the GPU."""
    make, _, sessions = made_for_gpu
    block = make()
    for _ in range(32):
        BlockSession(block, GPU, n_calls=1000)
    assert len(sessions) == 1
    for _ in range(100):
        BlockSession(block, GPU, n_calls=3)
    assert len(sessions) == 1
    assert BlockSession(block, GPU, n_calls=1000).session is sessions[1]


def test_inputs_that_the_host_reads_are_bound_for_each_run(made_for_gpu):
    """The runtime copies them to the host when they are bound, and never again."""
    make, mode, sessions = made_for_gpu
    for mode[0], bindings in (("recorded", 1), ("stepwise", 1), ("mixed", 4)):
        bound = BoundBlock(BlockSession(make(), GPU, 1000), {}, {})
        for _ in range(3):
            bound.run(wait=False)
        assert sessions[-1].bindings == bindings


def test_a_block_that_cannot_be_recorded_is_launched(made_for_gpu, monkeypatch):
    """Work of another library on the GPU ends a recording; the weights are those of before the block."""
    make, _, sessions = made_for_gpu
    bound = BoundBlock(BlockSession(make(), GPU, 1000), {}, {})
    ran = []

    def run(binding, options):
        ran.append(entries(options, "gpu_graph_id"))
        if ran[-1] != "-1":
            raise RuntimeError("CUDA failure 901: operation failed due to a previous error during capture")

    monkeypatch.setattr(sessions[-1], "run_with_iobinding", run, raising=False)
    with pytest.warns(UserWarning, match="not recorded on the GPU.*CUDA failure 901"):
        bound.run(wait=False)
    bound.run(wait=True)
    assert int(ran[0]) > 0
    assert ran[1:] == ["-1", "-1"]


def test_an_error_of_a_block_that_is_not_recorded_is_raised(made_for_gpu, monkeypatch):
    make, mode, sessions = made_for_gpu
    mode[0] = "stepwise"
    bound = BoundBlock(BlockSession(make(), GPU, 1000), {}, {})

    def run(binding, options):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(sessions[-1], "run_with_iobinding", run, raising=False)
    with pytest.raises(RuntimeError, match="no kernel"):
        bound.run(wait=True)


# Whole fits.


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return StandardScaler().fit_transform(X).astype(np.float32), ((y - y.mean()) / y.std()).astype(np.float32)


def both_ways(estimator, monkeypatch, *args, **more):
    """Return the estimator fitted by default, and fitted on resident data."""
    usual = estimator().fit(*args, **more)
    monkeypatch.setattr(Device, "keeps_data", True)
    before = cache.n_built
    staying = estimator().fit(*args, **more)
    # otherwise the test would compare a fit with itself
    assert cache.n_built > before
    return usual, staying


@pytest.mark.parametrize(
    "params",
    [
        {"learning_rate": "invscaling"},
        {"learning_rate": "invscaling", "optimizer": "adam", "early_stopping": True},
        {
            "learning_rate": "invscaling",
            "momentum": 0.9,
            "nesterov": True,
            "average": 5,
            "penalty": "elasticnet",
        },
        # the short loops of linear models round in another order, which shows in float32
        {"learning_rate": "invscaling", "batch_size": 1, "max_iter": 2, "dtype": "float64"},
        {"learning_rate": "invscaling", "batch_size": 1000},
        {"loss": "huber", "learning_rate": "adaptive", "shuffle": False},
        {},
        # windows of three epochs
        {"penalty": "elasticnet", "max_iter": 12, "average": 5},
        {"early_stopping": True, "max_iter": 12, "batch_size": 16},
        {"batch_size": 1, "max_iter": 3, "dtype": "float64"},
    ],
    ids=str,
)
def test_a_fit_is_the_same_on_resident_data(diabetes, params, monkeypatch):
    def estimator():
        settings = {"max_iter": 5, "tol": None, "random_state": 0, "engine": "portable"} | params
        return OnnxSGDRegressor(**settings)

    weight = np.random.RandomState(0).uniform(0.1, 2, len(diabetes[0]))
    usual, staying = both_ways(estimator, monkeypatch, *diabetes, sample_weight=weight)
    for name, array in usual.get_weights().items():
        np.testing.assert_allclose(staying.get_weights()[name], array, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(staying.loss_curve_, usual.loss_curve_, rtol=1e-5)
    assert staying.t_ == usual.t_
    if params.get("early_stopping"):
        np.testing.assert_allclose(staying.validation_scores_, usual.validation_scores_, rtol=1e-5)


def test_tables_of_many_rows_are_converted_as_a_whole(diabetes, monkeypatch):
    """On the CPU their rows are converted when they are taken."""
    monkeypatch.setattr(row_tables, "MANY_ROWS", 100)
    X, y = diabetes[0].astype(np.float64), diabetes[1].astype(np.float64)

    def estimator():
        return OnnxSGDRegressor(
            learning_rate="invscaling", max_iter=3, batch_size=7, tol=None, random_state=0
        )

    usual, staying = both_ways(estimator, monkeypatch, X, y)
    np.testing.assert_allclose(staying.coef_, usual.coef_, rtol=1e-5)


def test_many_batches_are_not_made_together(diabetes, staying, monkeypatch):
    """Their numbers take more memory than their rows, if a batch is one of them."""
    run, counts = ResidentRunner.run, []

    def counting(self, plan, scalars, losses):
        counts.append(len(losses))
        run(self, plan, scalars, losses)

    monkeypatch.setattr(ResidentRunner, "run", counting)
    monkeypatch.setattr(loop, "_BATCHES_ON_DEVICE", 150)
    X, y = diabetes[0][:50], diabetes[1][:50]
    OnnxSGDRegressor(
        learning_rate="constant", penalty=None, batch_size=1, max_iter=5, tol=None, engine="portable"
    ).fit(X, y)
    assert counts == [150, 100]


def test_weights_of_many_epochs_are_not_kept_between_fits():
    batches._even_weights_of_few.cache_clear()
    kept = batches._even_weights_of_few.cache_info
    for n_epochs, n_more in ((5, 1), (5, 0), (3000, 0)):
        before = kept().currsize
        data = Batches({"X": normal(97, 2)}, normal(97, 1), np.ones(97), 8, True)
        assert len(data.plan_of_drawn(lambda: np.arange(97)[None], n_epochs).totals) == 13 * n_epochs
        assert kept().currsize == before + n_more


def test_a_comparison_with_the_limit_may_fall_into_a_later_epoch(monkeypatch):
    """Rates are found in windows of two epochs of six updates, of 500 batches each, and parts of 4,096."""
    X = np.random.RandomState(0).normal(size=(3000, 3))

    def estimator():
        return OnnxSGDRegressor(
            batch_size=1, gradient_accumulation_steps=500, max_iter=12, tol=None, random_state=0,
            engine="portable",
        )  # fmt: skip

    usual, staying = both_ways(estimator, monkeypatch, X, X.sum(axis=1))
    np.testing.assert_allclose(staying.coef_, usual.coef_, rtol=1e-5)
    assert staying.t_ == usual.t_


@pytest.mark.parametrize("learning_rate", ["invscaling", "auto"])
def test_a_classifier_with_a_frozen_part_is_the_same(learning_rate, monkeypatch):
    X, y = load_iris(return_X_y=True)
    X = X.astype(np.float32)
    model = graph(
        """<ir_version: 9, opset_import: ["" : 18]> g (float[N, 4] X) => (float[N, 3] Y) {
        f = MatMul(X, F) h = Tanh(f) a = MatMul(h, W) r = Relu(a) Y = Gemm(r, V, b) }""",
        F=normal(4, 6), W=normal(6, 8, seed=1), V=normal(8, 3, seed=2), b=normal(3),
    )  # fmt: skip

    def estimator():
        return OnnxSGDClassifier(
            model, trainable=["W", "V", "b"], max_iter=10, tol=None, random_state=0, engine="portable",
            class_weight="balanced", learning_rate=learning_rate,
        )  # fmt: skip

    usual, staying = both_ways(estimator, monkeypatch, X, y)
    np.testing.assert_allclose(staying.predict_proba(X), usual.predict_proba(X), rtol=1e-5)


def test_training_continues(diabetes, monkeypatch):
    X, y = diabetes
    ways = []
    for keeps in (False, True):
        monkeypatch.setattr(Device, "keeps_data", keeps)
        model = OnnxSGDRegressor(
            learning_rate="invscaling",
            optimizer="adam",
            max_iter=2,
            tol=None,
            random_state=0,
            warm_start=True,
        )
        ways.append(model.fit(X, y).partial_fit(X[:50], y[:50]).fit(X, y))
    assert ways[0].t_ == ways[1].t_
    np.testing.assert_allclose(ways[1].coef_, ways[0].coef_, rtol=1e-5)


def test_a_loss_that_is_not_finite_leaves_the_last_finite_weights(diabetes, monkeypatch):
    X, y = diabetes
    left = []
    for keeps in (False, True):
        monkeypatch.setattr(Device, "keeps_data", keeps)
        model = OnnxSGDRegressor(
            learning_rate="constant", eta0=1e3, random_state=0, max_iter=50, engine="portable"
        )
        with pytest.raises(ConvergenceError, match="no longer finite at update") as caught:
            model.fit(X, y)
        left.append((str(caught.value), model.t_, model.coef_))
    assert left[0][:2] == left[1][:2]
    np.testing.assert_array_equal(left[0][2], left[1][2])


def test_an_interrupted_fit_is_usable(diabetes, staying, monkeypatch):
    X, y = diabetes
    runs, run = [], BoundBlock.run

    def interrupted(self, *, wait):
        runs.append(wait)
        if len(runs) == 6:
            raise KeyboardInterrupt
        run(self, wait=wait)

    monkeypatch.setattr(BoundBlock, "run", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        model = OnnxSGDRegressor(max_iter=10, engine="portable", learning_rate="invscaling").fit(X, y)
    # 14 batches: a block of eight and six of one
    assert model.t_ == 8 + 4
    assert np.abs(model.coef_).max() > 0
    assert np.isfinite(model.predict(X)).all()


def test_the_host_waits_once_for_each_kind_of_block(diabetes, staying, monkeypatch):
    """Two sessions do not wait for each other on a GPU: the last call of each must."""
    runs, run = [], BoundBlock.run
    monkeypatch.setattr(BoundBlock, "run", lambda self, *, wait: runs.append(wait) or run(self, wait=wait))
    model = OnnxSGDRegressor(
        max_iter=1, tol=None, batch_size=8, engine="portable", learning_rate="invscaling"
    )
    model.fit(*diabetes)
    # 56 batches: three blocks of sixteen and eight of one
    assert runs == [False, False, True, *[False] * 7, True]


def test_a_second_fit_of_equal_structure_compiles_nothing(diabetes, staying):
    X, y = diabetes

    def fit(n_samples, **params):
        OnnxSGDRegressor(max_iter=1, tol=None, engine="portable", **params).fit(X[:n_samples], y[:n_samples])

    fit(400)
    before = cache.n_built
    fit(400, alpha=0.5)
    fit(431)
    assert cache.n_built == before


def test_an_estimator_of_a_gpu_works_on_a_machine_without(diabetes, monkeypatch):
    X, y = diabetes
    with monkeypatch.context() as machine:
        machine.setattr("onnxsgd.estimators.base.check_device", lambda device: HOST)
        model = OnnxSGDRegressor(device="cuda:99", max_iter=2, tol=None).fit(X, y)
    # not the engine installed here: operators of onnxruntime-training have no kernels on current GPUs
    assert model.engine_ == "portable"
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.device == "cuda:99"
    with pytest.raises(MissingRuntimeError, match="device='cuda"):
        again.partial_fit(X, y)
    assert again.set_params(device="cpu").partial_fit(X, y).t_ == 3 * 14


def test_sparse_data_are_refused(diabetes, staying):
    with pytest.raises(UnsupportedError, match=r"X\.toarray\(\)"):
        OnnxSGDRegressor(engine="portable").fit(sparse.csr_matrix(diabetes[0]), diabetes[1])


def test_strings_that_the_frozen_part_reads_are_fine(staying):
    """The trained part reads numbers; the strings never reach the device."""
    model = graph(
        """<ir_version: 9, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
        g (string[N, 1] city, float[N, 1] age) => (float[N, 1] Y) {
        e = ai.onnx.ml.OneHotEncoder <cats_strings = ["a", "b"], zeros = 1> (city)
        f = Reshape(e, shape) c = Concat <axis = 1> (f, age) Y = MatMul(c, W) }""",
        W=np.zeros((3, 1), np.float32), shape=np.array([-1, 2]),
    )  # fmt: skip
    X = {"city": np.array(["a", "b"] * 20, dtype=object), "age": normal(40)}
    y = np.array([1.0, -1.0] * 20)
    estimator = OnnxSGDRegressor(
        model,
        trainable=["W"],
        max_iter=50,
        tol=None,
        learning_rate="invscaling",
        eta0=0.1,
        penalty=None,
        engine="portable",
    )
    np.testing.assert_allclose(estimator.fit(X, y).predict(X), y, atol=0.4)


def test_subgraphs_are_fine(staying):
    """The gradient of a recurrent layer over many steps is a loop, which cannot be repeated in a block."""
    model = graph(
        """<ir_version: 9, opset_import: ["" : 18]> g (float[N, 12, 2] X) => (float[N, 1] Y) {
        t = Transpose <perm = [1, 0, 2]> (X) a, h = LSTM <hidden_size = 3> (t, W, R)
        s = Squeeze(h, zero) Y = MatMul(s, V) }""",
        W=normal(1, 12, 2), R=normal(1, 12, 3), V=normal(3, 1), zero=np.array([0]),
    )  # fmt: skip
    X, y = normal(40, 12, 2), normal(40)
    fitted = OnnxSGDRegressor(
        model, max_iter=30, tol=None, engine="portable", learning_rate="invscaling", eta0=0.1
    ).fit(X, y)
    assert fitted.loss_curve_[-1] < fitted.loss_curve_[0]


def test_results_without_names_are_fine(staying):
    """Blocks repeat the outputs that nobody reads, which have no names."""
    model = graph(
        """<ir_version: 9, opset_import: ["" : 18]> g (float[N, 4] X) => (float[N, 1] Y) {
        a = MatMul(X, U) u = Unsqueeze(a, zero) "", g = LSTM <hidden_size = 3> (u, W, R)
        "", h = RNN <hidden_size = 4> (g, P, Q) i = ArgMax <axis = 2> (h) j = Squeeze(i, zero)
        b = GatherElements <axis = 1> (a, j) Y = Mul(b, v) }""",
        U=normal(4, 4), W=normal(1, 12, 4), R=normal(1, 12, 3), P=normal(1, 4, 3), Q=normal(1, 4, 4),
        v=normal(1), zero=np.array([0]),
    )  # fmt: skip
    X, y = normal(64, 4), normal(64)
    fitted = OnnxSGDRegressor(
        model, trainable=["U", "v"], batch_size=8, max_iter=30, tol=None, engine="portable",
        learning_rate="constant", eta0=0.05,
    ).fit(X, y)  # fmt: skip
    assert fitted.loss_curve_[-1] < fitted.loss_curve_[0]


@pytest.mark.native
def test_operators_of_the_training_runtime_are_refused(staying):
    model = graph(
        """<ir_version: 9, opset_import: ["" : 18]> g (float[N, 4] X) => (float[N, 1] Y) {
        a = MatMul(X, W) h = Tanh(a) Y = MatMul(h, V) }""",
        W=normal(4, 3), V=normal(3, 1),
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="use engine='portable'"):
        OnnxSGDRegressor(model, engine="onnxruntime-training").fit(normal(40, 4), normal(40))


def test_tensors_may_have_the_names_of_a_block(staying):
    model = graph(
        """<ir_version: 9, opset_import: ["" : 18]> g (float[N, 3] "epoch/rows") => (float[N, 1] Y) {
        "step0/a" = MatMul("epoch/rows", "new/W") "epoch/losses" = Add("step0/a", "step/c")
        Y = MatMul("epoch/losses", "step/epoch/rows") }""",
        **{"new/W": normal(3, 2), "step/c": normal(2), "step/epoch/rows": normal(2, 1)},
    )
    fitted = OnnxSGDRegressor(
        model, trainable=["new/W", "step/c"], max_iter=2, tol=None, engine="portable",
        learning_rate="invscaling",
    ).fit(normal(64, 3), normal(64))  # fmt: skip
    assert fitted.t_ == 4
    assert ir.from_proto(fitted.to_onnx()).graph.initializers.keys() >= {"new/W", "step/c", "step/epoch/rows"}
