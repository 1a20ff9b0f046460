"""The recipes of CONTRIBUTING.md, followed in a copy of the repository, lead to rows that work."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
COPIED = ("onnxsgd", "tests", "docs", "examples", "CONTRIBUTING.md", "README.md", "pyproject.toml")


def recipe(title):
    """Return the blocks of a recipe: the file, the lines to find, the lines to put in their place."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition(f"\n### {title}\n")[2]
    section = re.split(r"\n##+ ", section)[0]
    blocks = []
    for block in re.findall(r"   ```diff\n(.*?)   ```\n", section, re.DOTALL):
        file, *lines = textwrap.dedent(block).splitlines()
        old = [line[1:] for line in lines if line[:1] in (" ", "-")]
        new = [line[1:] for line in lines if line[:1] in (" ", "+")]
        blocks.append((file, "\n".join(old), "\n".join(new)))
    return blocks


def follow(title, folder):
    """Apply a recipe to a copy of the repository."""
    for name in COPIED:
        ignored = shutil.ignore_patterns("__pycache__", "generated", "_build")
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name, **({"ignore": ignored} if copy is shutil.copytree else {}))
    blocks = recipe(title)
    assert blocks
    for file, old, new in blocks:
        path = folder / file
        text = path.read_text(encoding="utf-8")
        assert text.count(f"{old}\n") == 1, f"{file} holds these lines {text.count(old)} times:\n{old}"
        path.write_text(text.replace(f"{old}\n", f"{new}\n"), encoding="utf-8")


def python(folder, *arguments):
    """Run Python on the copy; return its output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_tests(folder, *arguments):
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return python(folder, *options, *arguments)


#: Checks that an addition is accepted by its name, documented, trained and exported.
TRAIN = """
import inspect, re, json, numpy as np
import onnxsgd
from onnxsgd import OnnxSGDRegressor
assert onnxsgd.__file__.startswith({folder!r}), onnxsgd.__file__
X = np.random.default_rng(0).normal(size=(60, 3))
y = X @ [1.0, -2.0, 0.5]
try:
    OnnxSGDRegressor({parameter}={name!r} + "x").fit(X, y)
except ValueError as error:
    assert {name!r} in str(error) and {name!r} + "x" in str(error), error
else:
    raise AssertionError("a misspelt name is accepted")
docstring = inspect.getdoc(OnnxSGDRegressor)  # Python 3.13 removes the indentation
braces = re.search(r"^{parameter} : {{(.*?)}}", docstring, re.DOTALL | re.MULTILINE)[1]
assert '"{name}"' in braces
settings = {{"learning_rate": "constant", "eta0": 0.05, {parameter!r}: {name!r}}}
estimator = OnnxSGDRegressor(**settings, max_iter=200, tol=None, random_state=0).fit(X, y)
assert estimator.loss_curve_[-1] < 0.1 * estimator.loss_curve_[0], estimator.loss_curve_
assert estimator.score(X, y) > 0.9
manifest = json.loads(estimator.export_training_step({folder!r} + "/step.onnx").read_text())
assert all(number["formula"] for number in manifest["numbers"]), manifest["numbers"]
print("numbers", [number["formula"] for number in manifest["numbers"]])
"""

TRAINING = "tests/training/test_named_rows.py"
NAMED = {
    "A loss": (
        "loss",
        "cauchy",
        ["tests/test_losses.py", "tests/objective/test_attach.py::test_every_score_has_a_case"],
    ),
    "An optimizer": (
        "optimizer",
        "signum",
        ["tests/test_optimizers.py", "tests/training/test_named_rows.py"],
    ),
    "A schedule": (
        "learning_rate",
        "hyperbolic",
        ["tests/test_schedules.py", "tests/training/test_named_rows.py"],
    ),
}


@pytest.mark.parametrize("title", NAMED)
def test_a_named_row(title, tmp_path):
    parameter, name, tests = NAMED[title]
    follow(title, tmp_path)
    python(tmp_path, "docs/make_lists.py")
    assert f"`{name}`" in (tmp_path / "README.md").read_text(encoding="utf-8")
    python(tmp_path, "-c", TRAIN.format(folder=str(tmp_path), parameter=parameter, name=name))
    told = run_tests(tmp_path, *tests, "tests/test_lists.py", "-vv")
    assert f"{name}]" in told or f"{name}-" in told or f"-{name}" in told


def test_a_named_row_without_its_case_or_lists_fails(tmp_path):
    follow("A loss", tmp_path)
    shutil.copy(ROOT / "tests" / "test_losses.py", tmp_path / "tests")
    with pytest.raises(AssertionError, match="test_every_loss_has_a_case"):
        run_tests(tmp_path, "tests/test_losses.py", "-k", "has_a_case")
    with pytest.raises(AssertionError, match="test_lists_are_those_of_the_tables"):
        run_tests(tmp_path, "tests/test_lists.py")


def test_a_gradient_rule(tmp_path):
    follow("A gradient rule", tmp_path)
    run_tests(tmp_path, "tests/gradient/portable/rules/test_table.py")
    judge = """
import sys
sys.path.insert(0, "tests/backend")
import judge
verdicts = {test.name: judge.judge(test) for test in judge.node_tests() if "maxunpool" in test.name}
assert verdicts["test_maxunpool_export_without_output_shape"].status == judge.RIGHT, verdicts
assert judge.WRONG not in {verdict.status for verdict in verdicts.values()}, verdicts
"""
    python(tmp_path, "-c", judge)
    train = """
import numpy as np, onnx.parser
from onnxsgd import OnnxSGDRegressor
model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    g (float[N, 16] x) => (float[N, 1] y)
    <float[1, 1, 2, 2] w = {0.1, 0.2, 0.3, 0.4}, int64[1, 1, 2, 2] places = {0, 3, 9, 14},
     int64[2] column = {16, 1}>
    { c = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(w, places)
      d = Reshape(c, column)  y = MatMul(x, d) }''')
X = np.random.default_rng(0).normal(size=(80, 16)).astype(np.float32)
estimator = OnnxSGDRegressor(
    model, learning_rate="constant", eta0=0.1, max_iter=50, tol=None, trainable=["w"], penalty=None
).fit(X, X[:, [0, 3, 9, 14]] @ np.array([2.0, 1.0, -1.0, 3.0], np.float32))
np.testing.assert_allclose(estimator.get_weights()["w"].ravel(), [2, 1, -1, 3], atol=1e-3)
"""
    python(tmp_path, "-c", train)
