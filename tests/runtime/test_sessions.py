"""Sessions of the runtime: threads, faulty graph optimizers."""

import numpy as np
import pytest
from onnx.parser import parse_model
from scipy.special import expit

from onnxsgd.exceptions import EngineError, ParameterError
from onnxsgd.runtime.sessions import make_session, resolve_threads


def test_threads_follow_the_work_and_the_limit_of_joblib(monkeypatch):
    assert resolve_threads(3, 1) == 3
    assert resolve_threads(None, 1_000) == 1
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert resolve_threads(None, 10**9) == 8
    for limit, n_threads in (("2", 2), ("3,1", 3), ("99", 8), ("0", 1), ("many", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", limit)
        assert resolve_threads(None, 10**9) == n_threads


@pytest.mark.parametrize("n_threads", [3000, 0, -1, 2.0, float("nan"), "two", []])
def test_other_numbers_of_threads_are_refused(n_threads):
    """Also those of a loaded estimator, which no fit has checked: the runtime does not answer for 3,000."""
    with pytest.raises(ParameterError, match="n_threads=.* is not accepted: it must be a whole number"):
        resolve_threads(n_threads, 1)


def test_a_worker_of_multiprocessing_has_one_thread(monkeypatch):
    """The number of the other workers is unknown; a pool has one for each core."""
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    monkeypatch.setattr("multiprocessing.parent_process", object)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert resolve_threads(None, 10**9) == 1
    assert resolve_threads(4, 10**9) == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert resolve_threads(None, 10**9) == 3


def test_a_task_of_dask_has_one_thread(monkeypatch):
    """A worker without a nanny, or in threads of the client, took all cores for each of its tasks."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    options = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    with (
        distributed.LocalCluster(processes=False, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert client.submit(resolve_threads, None, 10**9).result(timeout=60) == 1
        assert resolve_threads(None, 10**9) == 8
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        assert client.submit(resolve_threads, None, 10**9, pure=False).result(timeout=60) == 3


def test_a_quantized_bias_passes_a_reshape():
    """An optimizer of onnxruntime 1.19 makes a QuantizeLinear to int32 of it, which is invalid."""
    model = parse_model("""
<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] X) => (float[2, 3] Y)
<int32[3, 1] bias = {10, 20, 30}, float scale = {0.5}, int32 zero = {0}, int64[2] shape = {1, 3}> {
    D = DequantizeLinear(bias, scale, zero)
    R = Reshape(D, shape)
    Y = Add(X, R)
}""")
    session = make_session(model.SerializeToString(), 1)
    (y,) = session.run(None, {"X": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(y, [[6, 11, 16]] * 2)


NORMAL = """
    M = ReduceMean <axes = [-1]> (X)
    D = Sub(X, M)
    S = Pow(D, two)
    V = ReduceMean <axes = [-1]> (S)
    E = Add(V, small)
    R = Sqrt(E)
    N = Div(D, R)
    G = Mul(N, scale)
    Y = Add(G, bias)"""
ROOT_MEAN_SQUARE = """
    S = Pow(X, two)
    V = ReduceMean <axes = [-1]> (S)
    E = Add(V, small)
    R = Sqrt(E)
    N = Div(X, R)
    Y = Mul(N, scale)"""
SCALE, BIAS = np.array([1.0, 2.0, 3.0]), np.array([-1.0, 0.5, 1.0])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("S = Sigmoid(X) Y = Mul(X, S)", lambda x: x * expit(x)),
        ("Z = Mul(X, two) S = Sigmoid(Z) Y = Mul(X, S)", lambda x: x * expit(2 * x)),
        (NORMAL, lambda x: (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True) * SCALE + BIAS),
        (ROOT_MEAN_SQUARE, lambda x: x / np.sqrt((x**2).mean(1, keepdims=True)) * SCALE),
    ],
    ids=["silu", "quick gelu", "layer normalization", "root mean square"],
)
def test_float64_graphs_are_not_fused_to_operators_without_a_kernel(body, expected):
    """Optimizers of onnxruntime up to 1.24 make such operators, or one that fails when it runs."""
    model = parse_model(f"""
<ir_version: 8, opset_import: ["" : 17]>
g (double[N, 3] X) => (double[N, 3] Y)
<double two = {{2.0}}, double small = {{1e-14}}, double[3] scale = {{1.0, 2.0, 3.0}},
 double[3] bias = {{-1.0, 0.5, 1.0}}> {{ {body} }}""")
    session = make_session(model.SerializeToString(), 1)
    x = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_allclose(session.run(None, {"X": x})[0], expected(x), rtol=1e-10)


def test_an_error_that_no_optimizer_makes_is_raised():
    """A node that is invalid by itself ends the attempts."""
    model = parse_model("""
<ir_version: 8, opset_import: ["" : 17]>
g (float[2] X) => (int8[2] Y) <float scale = {0.5}, int32 zero = {0}> { Y = QuantizeLinear(X, scale, zero) }
""")
    with pytest.raises(EngineError, match="QuantizeLinear"):
        make_session(model.SerializeToString(), 1)


def test_errors_are_raised_and_not_printed_too(capfd):
    """A machine without the locale of a text part printed an error for each `to_onnx` that succeeded."""
    broken = parse_model(
        """<ir_version: 9, opset_import: ["" : 18]> agraph (string[N] x) => (string[N] y)
        { y = StringNormalizer <locale = "nowhere", case_change_action = "LOWER"> (x) }"""
    )
    with pytest.raises(EngineError, match="locale"):
        make_session(broken.SerializeToString(), 1)
    gather = parse_model(
        """<ir_version: 9, opset_import: ["" : 18]> agraph (float[N] x, int64[M] i) => (float[M] y)
        { y = Gather(x, i) }"""
    )
    with pytest.raises(Exception, match="out of data bounds"):
        make_session(gather.SerializeToString(), 1).run(
            None, {"x": np.zeros(2, np.float32), "i": np.array([9])}
        )
    assert capfd.readouterr() == ("", "")
