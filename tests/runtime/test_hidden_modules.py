"""The training edition of the runtime imports torch if it finds it, which takes two seconds."""

import subprocess
import sys
import threading

import pytest

from onnxsgd.runtime.hidden_torch import hidden_torch


@pytest.fixture(name="torch")
def _torch(tmp_path, monkeypatch):
    """A package torch that says when it is imported, in a folder that comes first."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('torch is imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return tmp_path


def test_training_and_prediction_import_no_torch(torch):
    """A user can import it afterwards."""
    code = f"""
import sys
sys.path.insert(0, {str(torch)!r})
import numpy as np
from onnxsgd import OnnxSGDRegressor
X = np.eye(4)
OnnxSGDRegressor(max_iter=1, tol=None).fit(X, X[:, 0]).predict(X)
assert "torch" not in sys.modules
try:
    import torch
except SystemExit as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "torch is imported", done.stderr


def test_only_one_thread_finds_none(torch):
    """Another thread may be importing torch at the same time."""
    found = []

    def load():
        try:
            __import__("torch")
        except SystemExit as error:
            found.append(str(error))

    with hidden_torch():
        with pytest.raises(ModuleNotFoundError, match="torch is hidden"):
            __import__("torch")
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
    assert found == ["torch is imported"]
    with pytest.raises(SystemExit, match="torch is imported"):
        __import__("torch")
