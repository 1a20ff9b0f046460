"""The public names, and the cost of the import."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import onnxsgd

PUBLIC = {
    "DerivativeOptions", "OnnxSGDClassifier", "OnnxSGDRegressor", "OrtGradientForwardBackward",
    "OrtGradientForwardBackwardFunction", "TrainingDisplay", "__version__", "adapters", "add_loss_output",
    "add_preprocessing", "describe_trainable", "exceptions", "get_train_initializer", "load", "losses",
    "onnx_derivative", "optimizers", "penalties", "penalty_loss_onnx", "plot_graph", "random_feed",
    "schedules", "testing",
}  # fmt: skip


def test_nothing_is_public_by_accident():
    assert set(onnxsgd.__all__) == PUBLIC
    assert set(dir(onnxsgd)) == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_exists_and_is_documented(name):
    thing = getattr(onnxsgd, name)
    assert getattr(thing, "__name__", name).split(".")[-1] == name
    if name != "__version__":
        assert len(thing.__doc__) > 20


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'OnnxSGD'"):
        _ = onnxsgd.OnnxSGD


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_importing_loads_no_runtime_and_no_converter():
    code = """
import sys, onnxsgd
from onnxsgd import OnnxSGDRegressor
heavy = ("onnxruntime", "onnxscript", "skl2onnx", "torch", "matplotlib", "igraph")
print([m for m in heavy if m in sys.modules])
"""
    assert python(code).stdout.strip() == "[]"


def test_a_runtime_that_cannot_train_is_explained_in_one_sentence():
    code = """
import sys, types
sys.modules["onnxruntime"] = types.ModuleType("onnxruntime")
sys.modules["onnxruntime.capi"] = types.ModuleType("onnxruntime.capi")
sys.modules["onnxruntime.capi._pybind_state"] = types.ModuleType("onnxruntime.capi._pybind_state")
sys.modules["onnxruntime"].__version__ = "1.99"
sys.modules["onnxruntime"].InferenceSession = None
import onnxsgd
from onnxsgd.gradient.native.builder import bindings
try:
    bindings()
except ImportError as error:
    print(type(error).__name__, error)
"""
    output = python(code).stdout
    assert output.startswith("MissingRuntimeError")
    assert "1.99" in output
    assert "onnxruntime-training-cpu==1.19.2" in output


def test_citation_and_changelog_name_the_version():
    root = Path(__file__).parents[1]
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {onnxsgd.__version__}\n" in citation
    assert re.search(r"^## \[(.*)\]", changelog, re.MULTILINE)[1] == onnxsgd.__version__
