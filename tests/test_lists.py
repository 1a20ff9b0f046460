"""Lists of names in docstrings, the README and the reference follow the tables and ``__all__``."""

import importlib
import inspect
import re
import runpy
from pathlib import Path

import pytest

import onnxsgd
from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, add_preprocessing
from onnxsgd.data.text import _SAMPLE
from onnxsgd.distributed import fit_shards
from onnxsgd.graph.opsets.transformer.contrib import CONTRIB_RULES
from onnxsgd.graph.opsets.versions import OPSET_RANGES
from onnxsgd.learner.dtype_choice import _ROWS, _TOLERANCE

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "make_lists.py"))
REFERENCE = (ROOT / "docs" / "api.rst").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs" / "guide").glob("*.rst"))
GUIDE = " ".join(" ".join(path.read_text(encoding="utf-8") for path in PAGES).split())
METHODS = runpy.run_path(str(ROOT / "docs" / "make_tables.py"))["public_methods"]()
MODULES = ["adapters", "losses", "optimizers", "schedules", "penalties", "testing", "exceptions"]


@pytest.mark.parametrize("path", SCRIPT["written"](), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_lists_are_those_of_the_tables(path):
    """Run ``python docs/make_lists.py`` after a row was added. Where lines are wrapped does not matter."""
    assert path.read_text(encoding="utf-8").split() == SCRIPT["written"]()[path].split()


@pytest.mark.parametrize("estimator", [OnnxSGDRegressor, OnnxSGDClassifier])
def test_documented_names_are_those_accepted(estimator):
    """The names in braces are the strings that validation accepts, by both estimators."""
    for parameter in ("loss", "penalty", "optimizer", "learning_rate"):
        docstring = inspect.getdoc(estimator)  # Python 3.13 removes the indentation
        braces = re.search(rf"^{parameter} : {{(.*?)}}", docstring, re.DOTALL | re.MULTILINE)
        options = estimator._parameter_constraints[parameter][0].options
        assert set(re.findall(r'"(\w+)"', braces[1])) == options


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_shows_every_public_name_of_a_module(module):
    """Members follow ``__all__``: none is listed by hand, and those left out are tables and makers."""
    options = re.search(rf"^\.\. automodule:: onnxsgd\.{module}\n((?:   :.*\n?)+)", REFERENCE, re.MULTILINE)
    assert re.search(r":members:$", options[1], re.MULTILINE)
    excluded = set(re.findall(r"\w+", options[1].partition(":exclude-members:")[2]))
    module = importlib.import_module(f"onnxsgd.{module}")
    assert not [name for name in excluded & set(module.__all__) if isinstance(getattr(module, name), type)]


def test_the_reference_shows_every_public_name():
    blocks = re.findall(r"\.\. autosummary::\n   :toctree: generated/\n\n((?:   \w+\n)+)", REFERENCE)
    shown = set("".join(blocks).split())
    assert shown == set(onnxsgd.__all__) - {*MODULES, "__version__"}


@pytest.mark.parametrize("name", METHODS)
def test_the_reference_describes_every_parameter_of_a_method(name):
    """The page of a class shows its methods with their docstrings."""
    cls = getattr(onnxsgd, name.removeprefix("onnxsgd."))
    for method in METHODS[name]:
        docstring = inspect.getdoc(getattr(cls, method))
        items = re.findall(r"^\**(\w[\w, ]*) : ", docstring, re.MULTILINE)
        described = set(re.findall(r"\w+", " ".join(items)))
        parameters = set(inspect.signature(getattr(cls, method)).parameters) - {"self", "cls"}
        assert parameters <= described, method


def test_the_guide_lists_the_expanded_operators_of_transformers():
    """LayerNormalization is in the standard, and TransposeMatMul the old name of FusedMatMul."""
    listed = re.search(r"to_onnx\(\)`` returns: (.*?)\. Weights", GUIDE)[1]
    names = set(re.split(r", | and ", listed))
    assert names | {"LayerNormalization", "TransposeMatMul"} == {name for _, name in CONTRIB_RULES}


def test_the_guide_gives_the_numbers_of_the_code():
    low, high = OPSET_RANGES[""]
    assert f"Graphs of opsets {low} to {high} are not converted" in GUIDE
    assert f"Swish and the like) into those of opset {high}" in GUIDE
    assert f"the same features of the first {_SAMPLE} training samples" in GUIDE
    assert _TOLERANCE == 1 / 1000
    assert f"more than a thousandth of theirs (compared on up to {_ROWS} rows" in GUIDE


@pytest.mark.parametrize("call", re.findall(r"OnnxSGD(?:Regressor|Classifier)\(([^()]*)\)", GUIDE))
def test_the_guide_uses_parameters_that_exist(call):
    used = set(re.findall(r"(\w+)=", call))
    assert used <= set(OnnxSGDClassifier().get_params())


def test_the_guide_names_parameters_that_exist():
    """In the form ``name=``, of an estimator or of the functions shown beside it."""
    used = set(re.findall(r"``(\w+)=", GUIDE))
    methods = [getattr(OnnxSGDClassifier, name) for name in ("fit", "partial_fit", "to_onnx")]
    methods += [add_preprocessing, fit_shards]
    known = {name for method in methods for name in inspect.signature(method).parameters}
    assert used <= {*OnnxSGDClassifier().get_params(), *known}
