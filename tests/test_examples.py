"""The examples run and print the promised output."""

import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, folder):
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def numbers(text):
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def test_fine_tune_mlp(tmp_path):
    output = run("fine_tune_mlp.py", tmp_path)
    before, after = numbers(output.splitlines()[0])
    assert after > before + 0.1
    onnx.checker.check_model(onnx.load(tmp_path / "fine_tuned_mlp.onnx"))
    readme = (EXAMPLES.parent / "README.md").read_text()
    assert output.strip().splitlines()[1] in readme


def test_diabetes_regression(tmp_path):
    before, after = numbers(run("diabetes_regression.py", tmp_path))
    assert after < 0.8 * before


def test_digits_adaptation(tmp_path):
    before, after = numbers(run("digits_adaptation.py", tmp_path))
    assert after > before + 0.05


def test_breast_cancer_partial_fit(tmp_path):
    losses = numbers(run("breast_cancer_partial_fit.py", tmp_path))
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_has_a_docstring(path):
    assert path.read_text().startswith('"""\n')
