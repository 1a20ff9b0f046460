"""A GPU that cannot be used is an error with a reason, never a silent fallback to the CPU."""

import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from onnxsgd import OnnxSGDClassifier
from onnxsgd.exceptions import EngineError, MissingRuntimeError, ParameterError
from onnxsgd.runtime import cuda, sessions
from onnxsgd.runtime.bindings import runtime_bindings
from onnxsgd.runtime.device import HOST, Device, check_device, hold
from onnxsgd.runtime.providers import CPU, CUDA


class Options:
    """Options of a session that record their values."""

    def __init__(self):
        self.entries = {}

    def add_session_config_entry(self, key, value):
        self.entries[key] = value


class Runtime:
    """A fake runtime for GPUs: `make` makes its sessions, and it records their arguments."""

    __file__ = __file__
    __version__ = "9.9"
    SessionOptions = Options

    def __init__(self, make=None, available=(CUDA, CPU)):
        self.make, self.available, self.asked = make, list(available), []

    def get_available_providers(self):
        return self.available

    def preload_dlls(self):
        print("a line that nobody should see")

    def InferenceSession(self, model, options, providers, enable_fallback):
        settings = dict(providers[0][1], **options.entries, log=options.log_severity_level)
        settings["cpu"] = CPU in providers
        assert providers[0][0] == CUDA
        assert enable_fallback == 0
        self.asked.append(settings)
        session = self.make(settings) if self.make else None
        return session or Session()


class Session:
    """A session on the requested device."""

    def __init__(self, providers=(CUDA, CPU), inputs=("Cuda",), on_host=()):
        self.providers, self.inputs, self.on_host, self.falls_back = list(providers), inputs, on_host, True

    def get_providers(self):
        return self.providers

    def disable_fallback(self):
        self.falls_back = False

    def run(self, names, feeds):
        return [-feeds["x"]]

    def get_input_memory_infos(self):
        return [SimpleNamespace(name=name) for name in self.inputs]

    def get_provider_graph_assignment_info(self):
        nodes = [SimpleNamespace(op_type=name) for name in self.on_host]
        return [
            SimpleNamespace(ep_name=CUDA, get_nodes=lambda: [SimpleNamespace(op_type="Gemm")]),
            SimpleNamespace(ep_name=CPU, get_nodes=lambda: nodes),
        ]


@pytest.fixture
def use(monkeypatch):
    def use(runtime):
        monkeypatch.setattr(cuda, "load_runtime", lambda: runtime)
        cuda._reason_against.cache_clear()
        return runtime

    yield use
    cuda._reason_against.cache_clear()


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:a", "CUDA", "cuda:1 ", "", 0, None])
def test_names_of_devices_are_few(name):
    with pytest.raises(ParameterError, match=r"must be 'cpu', 'cuda', or 'cuda:1'"):
        check_device(name)


def test_a_device_knows_its_kind(use):
    use(Runtime())
    assert check_device("cpu") == HOST
    assert check_device("cuda") == check_device("cuda:0") == Device("cuda", 0)
    assert [str(check_device(name)) for name in ("cpu", "cuda", "cuda:3")] == ["cpu", "cuda:0", "cuda:3"]
    assert not HOST.keeps_data
    assert check_device("cuda").keeps_data


def test_a_runtime_for_the_cpu_names_the_one_for_gpus(use):
    use(Runtime(available=[CPU]))
    with pytest.raises(MissingRuntimeError, match=r'pip install "onnxruntime-gpu\[cuda,cudnn\]"'):
        OnnxSGDClassifier(device="cuda").fit(np.eye(4), [0, 1, 0, 1])


def test_a_gpu_is_tried_once(use, capsys):
    runtime = use(Runtime())
    for _ in range(3):
        check_device("cuda")
        check_device("cuda:1")
    assert [settings["device_id"] for settings in runtime.asked] == ["0", "1"]
    # messages of the runtime about libraries are not printed
    assert capsys.readouterr().out == ""


def test_a_silent_fallback_to_the_cpu_is_an_error_with_the_reason(use, capsys):
    """onnxruntime falls back if a library or the driver is missing."""
    use(Runtime(lambda settings: Session([CPU])))
    with pytest.raises(MissingRuntimeError, match="did not start on it") as caught:
        check_device("cuda:1")
    # no such library exists beside this file
    assert "cannot open shared object file" in str(caught.value) or "not find" in str(caught.value)
    assert "device='cuda:1'" in str(caught.value)
    assert capsys.readouterr().out == ""


def test_a_gpu_that_does_not_exist_is_an_error_with_the_reason(use):
    def fail(settings):
        raise RuntimeError("CUDA failure 101: invalid device ordinal ; GPU=0 ;\n")

    use(Runtime(fail))
    with pytest.raises(MissingRuntimeError, match="CUDA failure 101: invalid device ordinal"):
        check_device("cuda:7")


def test_the_message_of_old_versions_is_the_reason(use, monkeypatch):
    """They catch the error, print it in a frame, and use the CPU."""

    def make(settings):
        print("*************** EP Error ***************\nno CUDA-capable device is detected\n**********\n")
        return Session([CPU])

    monkeypatch.setattr(cuda, "_library_problem", lambda: None)
    use(Runtime(make))
    with pytest.raises(MissingRuntimeError, match=r"\(no CUDA-capable device is detected\)"):
        check_device("cuda")


def test_the_providers_of_every_session_are_checked(use):
    runtime = use(Runtime(lambda settings: Session([CPU])))
    with pytest.raises(EngineError, match="and not on the GPU"):
        sessions.make_session(b"", 1, Device("cuda"))
    with pytest.raises(EngineError, match="and not on the GPU"):
        cuda.make_step_session(b"", 0, recordable=True)
    runtime.make = None
    assert not sessions.make_session(b"", 1, Device("cuda", 2)).falls_back
    assert runtime.asked[-1]["device_id"] == "2"
    assert runtime.asked[-1]["use_tf32"] == "0"


def refusing(**conditions):
    """Return a factory that refuses sessions with these settings."""

    def make(settings):
        if all(settings.get(name) == value for name, value in conditions.items()):
            raise runtime_bindings().Fail("this session cannot do that")
        return Session()

    return make


def test_a_step_is_recorded_where_it_can_be(use):
    runtime = use(Runtime())
    assert cuda.make_step_session(b"", 0, recordable=True)[1] == "recorded"
    assert cuda.make_step_session(b"", 0, recordable=False)[1] == "stepwise"
    recorded, stepwise = runtime.asked
    assert recorded["enable_cuda_graph"] == recorded["use_ep_level_unified_stream"] == "1"
    assert stepwise["enable_cuda_graph"] == "0"
    assert stepwise["session.disable_cpu_ep_fallback"] == "1"
    assert not stepwise["cpu"]


def test_a_step_that_cannot_be_recorded_still_runs_on_the_gpu_alone(use):
    use(Runtime(refusing(enable_cuda_graph="1")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cuda.make_step_session(b"", 0, recordable=True)[1] == "stepwise"


def test_operators_on_the_cpu_are_reported(use):
    def make(settings):
        if settings["enable_cuda_graph"] == "1" or "session.disable_cpu_ep_fallback" in settings:
            raise runtime_bindings().Fail("this session cannot do that")
        return Session(on_host=["Mish", "Celu", "Mish"])

    runtime = use(Runtime(make))
    with pytest.warns(UserWarning, match=r"runs on the CPU, .* on the GPU: Celu, Mish\. Each step waits"):
        assert cuda.make_step_session(b"", 0, recordable=True)[1] == "mixed"
    assert [settings["log"] for settings in runtime.asked] == [4, 4, 3]


@pytest.mark.parametrize("name", ["Cpu", "CudaPinned", "CUDA_CPU"])
def test_inputs_that_the_host_reads_are_never_recorded(use, name):
    """A replay would read the weights copied to the host for the recording, not the present ones."""
    use(Runtime(lambda settings: Session(inputs=["Cuda", name])))
    with pytest.warns(UserWarning, match="runs on the CPU"):
        assert cuda.make_step_session(b"", 0, recordable=True)[1] == "mixed"


def test_a_step_that_fails_in_every_mode_is_an_error(use):
    def fail(settings):
        raise runtime_bindings().InvalidGraph("no such operator")

    use(Runtime(fail))
    with pytest.raises(EngineError, match="cuda:3, with the training step: no such operator"):
        cuda.make_step_session(b"", 3, recordable=True)


@pytest.mark.parametrize(
    "text",
    [
        "Failed to allocate memory for requested buffer of size 8589934592",
        "CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc((void**)&p, size);",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0",
    ],
)
def test_missing_memory_names_the_data(text):
    with (
        pytest.raises(
            EngineError, match=r"cuda:0 does not hold the data \(80 bytes\).*partial_fit.*" + text[:9]
        ),
        cuda.explained("cuda:0", "the data (80 bytes)"),
    ):
        raise runtime_bindings().RuntimeException(text)


def test_errors_of_ours_are_explained_once():
    with pytest.raises(EngineError, match="^once$"), cuda.explained("cuda:0", "the data"):
        raise EngineError("once")
    with pytest.raises(KeyboardInterrupt), cuda.explained("cuda:0", "the data"):
        raise KeyboardInterrupt


def test_one_thread_at_a_time_works_on_a_gpu():
    """Work of another thread would invalidate a recording."""
    entered = threading.Event()

    def other():
        with hold(Device("cuda", 1)):
            entered.set()

    with hold(Device("cuda")), hold(Device("cuda")):
        thread = threading.Thread(target=other)
        thread.start()
        assert not entered.wait(0.05)
    thread.join(5)
    assert entered.is_set()
    with hold(HOST):
        assert not cuda.LOCK._is_owned()
