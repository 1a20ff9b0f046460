"""Libraries import frameworks if they find them, which takes two seconds in each process."""

import pickle
import subprocess
import sys
import threading

import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier
from onnxsgd.runtime.hidden_modules import hidden_modules


@pytest.fixture(name="torch")
def _torch(tmp_path, monkeypatch):
    """A package torch that says when it is imported, in a folder that comes first."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('torch is imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    # set before it is removed: the end of the test then also removes its own imports
    for name in ("torch", "torch.part", "torch_more"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
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


def test_only_these_modules_and_those_inside_are_hidden(torch):
    (torch / "torch" / "__init__.py").write_text("")
    for name in ("torch_more", "torch/part"):
        (torch / f"{name}.py").write_text("")
    with hidden_modules("torch"):
        __import__("torch_more")
    with hidden_modules("torch.part"):
        __import__("torch")
        with pytest.raises(ModuleNotFoundError, match=r"torch\.part is hidden"):
            __import__("torch.part")
    __import__("torch.part")


#: Frameworks, and libraries as large: a worker that predicts needs none.
FRAMEWORKS = ["torch", "tensorflow", "jax", "cupy", "dask", "distributed", "ray", "skl2onnx", "matplotlib"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["pickle", "save"])
@pytest.mark.parametrize("kind", ["linear", "network", "pipeline"])
def test_a_worker_that_loads_and_predicts_imports_no_framework(kind, way, tmp_path):
    """Loading imported torch and dask where `model` is of scikit-learn: skops imports all modules of that."""
    X, y = load_iris(return_X_y=True)
    model = {
        "linear": None,
        "network": MLPClassifier((4,), max_iter=2).fit(X, y),
        "pipeline": make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y),
    }[kind]
    learner = OnnxSGDClassifier(model, max_iter=2).fit(X, y)
    if way == "pickle":
        (tmp_path / "learner").write_bytes(pickle.dumps(learner))
        load = "import pickle; learner = pickle.loads(open('learner', 'rb').read())"
    else:
        pytest.importorskip("skops")
        learner.save(tmp_path / "learner")
        load = "import onnxsgd; learner = onnxsgd.load('learner')"
    code = f"""
import sys
{load}
learner.predict([[1.0, 2.0, 3.0, 4.0]])
print(set(sys.modules) & set({FRAMEWORKS}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.stdout.strip() == "set()", done.stderr


def test_only_one_thread_finds_none(torch):
    """Another thread may be importing torch at the same time."""
    found = []

    def load():
        try:
            __import__("torch")
        except SystemExit as error:
            found.append(str(error))

    with hidden_modules("torch"):
        with pytest.raises(ModuleNotFoundError, match="torch is hidden"):
            __import__("torch")
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
    assert found == ["torch is imported"]
    with pytest.raises(SystemExit, match="torch is imported"):
        __import__("torch")
