"""The events of the logger: one for each decision, quiet by default."""

import logging
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from scipy import sparse
from serial_executor import SerialExecutor, pieces_of
from sklearn.datasets import load_diabetes, load_digits
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, losses
from onnxsgd.distributed import fit_shards
from onnxsgd.runtime import events
from onnxsgd.runtime.cache import cache
from onnxsgd.runtime.events import SUBJECTS, decided
from onnxsgd.runtime.stages import Recording
from onnxsgd.training import program

X, Y = load_digits(return_X_y=True)
X_REAL, Y_REAL = (np.asarray(part, np.float32) for part in load_diabetes(return_X_y=True))
SHORT = {"random_state": 0, "max_iter": 2, "tol": None}
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "watching.rst"
MLP = MLPClassifier((5,), max_iter=2, random_state=0)


def linear(X=X, y=Y, **parameters):
    return OnnxSGDClassifier(**{**SHORT, **parameters}).fit(X, y)


def real(X=X_REAL, y=Y_REAL, **parameters):
    return OnnxSGDRegressor(**{**SHORT, **parameters}).fit(X, y)


def averaged(X):
    return linear(X, average=True, optimizer="adam", learning_rate="constant")


def half_square(y_true, raw_prediction):
    residual = raw_prediction - y_true
    return residual**2 / 2, residual


def batches(n_rows):
    return [(X[i : i + n_rows], Y[i : i + n_rows]) for i in range(0, 1700, n_rows)]


def large_map(folder):
    """Fit a memory map that counts as large; smaller ones are converted to arrays in memory."""
    rows = np.lib.format.open_memmap(folder / "X.npy", "w+", np.float32, (40 * len(X), X.shape[1]))
    rows[:] = np.tile(X, (40, 1))
    with patch.object(program, "_LARGE_MAP", rows.nbytes):
        linear(rows, np.tile(Y, 40))


def on_eight_cores():
    with patch("joblib.cpu_count", lambda: 8):
        linear(n_jobs=2)


def large_offset():
    return X_REAL.astype(np.float64) + 1e9


def sharded(sync_every, order=slice(None)):
    executor = SerialExecutor()
    pieces = [executor.source(part) for part in pieces_of(X[order], Y[order])]
    return fit_shards(OnnxSGDClassifier(**SHORT), pieces, executor, sync_every=sync_every)


#: A call and its event, for each subject.
CASES = {
    "model": [
        (real, "linear model: 2 trained tensors"),
        (lambda folder: real(model=Ridge()), "Ridge: 2 trained tensors"),
        (lambda folder: real(model=real().to_onnx()), "ONNX graph: 2 trained tensors"),
    ],
    "precision": [
        (real, "float32: keeps data and raw scores to 1e-3 of their spread"),
        (lambda folder: real(dtype="float64"), "float64: named"),
        (lambda folder: real(dtype="float32"), "float32: named"),
        (lambda folder: real(model=real(dtype="float64").to_onnx()), "float64: that of the graph"),
        (
            lambda folder: real(large_offset()),
            "float64: casting X to float32 changes a column by more than 1e-3 of its spread",
        ),
    ],
    "engine": [
        (real, "portable on cpu: 'auto' takes it for all graphs, onnxruntime-training by name alone"),
        (lambda folder: real(engine="portable"), "portable on cpu: named"),
    ],
    "batches": [
        (lambda folder: linear(batch_size=17), "17 rows an update: by batch_size"),
        (
            lambda folder: linear(sparse.csr_matrix(X)),
            "128 rows an update: by the kind of model and the number of samples",
        ),
    ],
    "shuffle": [
        (lambda folder: linear(shuffle="blocks"), "by blocks: named"),
        (large_map, "by blocks: the memory map has 2 GiB or more"),
    ],
    "shards": [
        (lambda folder: sharded(1), "4, whose gradients are averaged at each update"),
        (lambda folder: sharded(2), "4, rounds of 2 updates of the largest"),
        (
            lambda folder: sharded(2, np.argsort(Y, kind="stable")),
            "they differ in their targets: rows are dealt anew among 4",
        ),
    ],
    "path": [
        (lambda folder: linear(sparse.csr_matrix(X)), "sparse: updates of the columns of each batch"),
        (lambda folder: averaged(sparse.csr_matrix(X)), "dense: one update in a call: sparse data"),
        (lambda folder: linear(), "dense: one update in a call: few updates"),
        (lambda folder: linear(max_iter=40), "dense: the updates of an epoch of a linear model in a call"),
        (lambda folder: linear(model=MLP), "dense: the updates of an epoch in a call"),
        (
            lambda folder: real(loss=losses.FromCallable(half_square)),
            "dense: one update in a call, with the gradient of a function",
        ),
    ],
    "frozen": [
        (lambda folder: linear(model=MLP, trainable=lambda name: name.endswith("1")),
         "computed once: 1 tensors for each sample"),
    ],
    "threads": [
        (lambda folder: linear(n_threads=2), "2: named"),
        (lambda folder: linear(), "1: a run is short"),
    ],
    "processes": [
        (lambda folder: on_eight_cores(), "1: an update is short"),
        (
            lambda folder: OnnxSGDClassifier(n_jobs=2).partial_fit(X, Y, np.unique(Y)),
            "1: only fits on all of the data have several",
        ),
    ],
    "cache": [(lambda folder: linear(), "step: made"), (lambda folder: [linear(), linear()], "step: found")],
    "start": [
        (lambda folder: linear(), "first weights: zeros, begin as the best constant"),
        (lambda folder: linear(model=LogisticRegression(max_iter=30)), "first weights: those of the model"),
        (
            lambda folder: real(model=Ridge(alpha=1e-9).fit(X_REAL, 1e6 * X_REAL[:, 0])),
            "first weights: worse than a constant, replaced",
        ),
    ],
    "rate": [
        (lambda folder: linear(), "found: training begins with 0.025, objective 3.25071"),
        (lambda folder: OnnxSGDRegressor().partial_fit(X_REAL, Y_REAL), "found: the stream begins with 0.05"),
    ],
    "checkpoint": [
        (
            lambda folder: linear(checkpoint=folder),
            "{folder}/checkpoint-000002.onnxsgd: written after update 57",
        ),
        (
            lambda folder: [
                linear(checkpoint=folder),
                OnnxSGDClassifier(**SHORT, checkpoint=folder).fit(X, Y, resume=True),
            ],
            "{folder}/checkpoint-000004.onnxsgd: the fit has ended",
        ),
    ],
}  # fmt: skip


def messages(caplog, subject=""):
    """Return the messages of a subject, or of all."""
    return [record.getMessage() for record in caplog.records if record.name.startswith(f"onnxsgd.{subject}")]


@pytest.fixture
def watched(caplog):
    with caplog.at_level(logging.INFO, "onnxsgd"):
        yield caplog


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("subject", "call", "message"), [(subject, *case) for subject, found in CASES.items() for case in found]
)
def test_a_decision_is_an_event(subject, call, message, watched, tmp_path):
    cache.clear()
    call(*[tmp_path] if call is not real else [])
    found = messages(watched, subject)
    assert message.format(folder=tmp_path) in found
    if call is real:
        # of one fit: no decision is reported twice
        assert len(found) == len(set(found))


def test_every_subject_has_a_case_and_a_row_in_the_guide():
    assert set(CASES) == set(SUBJECTS)
    guide = GUIDE.read_text(encoding="utf-8")
    for subject in SUBJECTS:
        assert f"``onnxsgd.{subject}``" in guide


def test_a_rate_that_is_cut_and_the_end_are_events(watched):
    """Random targets: no rate gains."""
    rng = np.random.default_rng(0)
    model = MLPClassifier((50,), max_iter=1, random_state=0)
    with pytest.warns(UserWarning, match="."):
        OnnxSGDClassifier(model, random_state=0, max_iter=60).fit(X[:400], rng.integers(0, 2, 400))
    found = messages(watched, "rate")
    assert found[0].startswith("found: training begins with ")
    assert any("the rate is cut to" in text for text in found)
    assert any("the rate falls from" in text for text in found)
    assert "training ends: " in found[-1]


@pytest.mark.parametrize(
    ("rate", "message"),
    [("adaptive", "no more gain, the rate is lowered to 0.002"), ("constant", "no more gain, training ends")],
)
def test_a_plateau_is_an_event(rate, message, watched):
    OnnxSGDRegressor(learning_rate=rate, eta0=0.01, random_state=0, n_iter_no_change=2, tol=1e6).fit(
        X_REAL, Y_REAL
    )
    assert any(message in text for text in messages(watched, "rate"))


def test_batches_of_an_iterable_repeat_no_event(watched):
    OnnxSGDClassifier(**SHORT).fit(batches(100))
    found = messages(watched)
    assert "onnxsgd.path" in {record.name for record in watched.records}
    assert len(found) == len(set(found))


def test_later_parts_of_a_stream_are_details(caplog):
    model = OnnxSGDClassifier(random_state=0)
    with caplog.at_level(logging.INFO, "onnxsgd"):
        model.partial_fit(X, Y, classes=range(10))
        assert messages(caplog, "engine")
        caplog.clear()
        model.partial_fit(X, Y)
        model.predict(X)
        assert messages(caplog) == []
        # a new plan decides anew
        model.set_params(engine="portable").partial_fit(X, Y)
        assert messages(caplog, "engine") == ["portable on cpu: named"]
    with caplog.at_level(logging.DEBUG, "onnxsgd"):
        caplog.clear()
        model.partial_fit(X, Y)
        assert {record.levelno for record in caplog.records} == {logging.DEBUG}
        assert "step: found" in messages(caplog, "cache")
        caplog.clear()
        model.predict(X)
        assert "predictions: found" in messages(caplog, "cache")


def test_one_subject_can_be_watched_alone(caplog):
    with caplog.at_level(logging.INFO, "onnxsgd.threads"):
        linear()
    assert {record.name for record in caplog.records} == {"onnxsgd.threads"}


def test_an_event_names_the_place_that_decided(watched):
    linear()
    places = {record.name: record.filename for record in watched.records}
    assert places["onnxsgd.engine"] == "base.py"
    assert places["onnxsgd.rate"] == "rules.py"


def test_nobody_watches_nothing_is_kept(caplog):
    with caplog.at_level(logging.WARNING, "onnxsgd"), Recording() as recording:
        decided("rate", "found: %d", 3)
    assert recording.decisions is None
    assert caplog.records == []


def test_a_decision_is_reported_once_in_a_fit(watched):
    for _ in range(2):
        with Recording():
            for number in (1, 1, 2):
                decided("rate", "found: %d", number)
    assert messages(watched) == ["found: 1", "found: 2"] * 2


def test_an_unknown_subject_is_an_error():
    with pytest.raises(KeyError):
        decided("rates", "found")


def test_the_logger_is_quiet_by_default():
    code = """
from sklearn.datasets import load_diabetes
from onnxsgd import OnnxSGDRegressor
OnnxSGDRegressor(random_state=0).fit(*load_diabetes(return_X_y=True))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("", "")
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("onnxsgd").handlers)
    assert events._LOGGERS["rate"].level == logging.NOTSET
