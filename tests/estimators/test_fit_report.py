"""The report of the last fit: its stages, its life between calls, copies and files."""

import json
import os
import pickle

import numpy as np
import pytest
from safetensors import safe_open
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor

import onnxsgd
from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.estimators.fit_report import FitReport, RecordedFit
from onnxsgd.exceptions import ConvergenceError
from onnxsgd.runtime import stages
from onnxsgd.runtime.cache import cache

REPORT = FitReport({"read": 0.25, "train": 1.5, "other": 0.25}, 300_000_000, 20_000_000, 3, 1)
SLOW = {"learning_rate": "constant", "max_iter": 2, "tol": None, "random_state": 0}


@pytest.fixture
def ticks(monkeypatch):
    """Each look at the clock takes a second; return the function that tells the looks so far."""
    looks = [0.0]

    def clock():
        looks[0] += 1
        return looks[0]

    monkeypatch.setattr(stages, "perf_counter", clock)
    return lambda: looks[0]


def test_the_times_sum_to_that_of_the_call(diabetes, ticks):
    model = OnnxSGDRegressor(early_stopping=True, **SLOW).fit(*diabetes)
    # the first look only begins
    assert model.fit_report_.total == ticks() - 1
    assert set(model.fit_report_.seconds) <= {*stages.STAGES, stages.OTHER}


def test_a_fit_names_the_stages_it_went_through(diabetes, tmp_path):
    X, y = diabetes
    cache.clear()
    network = MLPRegressor(hidden_layer_sizes=(5, 5), max_iter=3, random_state=0)
    with pytest.warns(ConvergenceWarning, match="Stochastic"):
        model = OnnxSGDRegressor(
            network,
            trainable=lambda name: name.endswith("2"),
            early_stopping=True,
            checkpoint=tmp_path,
            **SLOW,
        ).fit(X, y)
    assert {name for name, seconds in model.fit_report_.seconds.items() if seconds} == {
        *stages.STAGES, stages.OTHER,
    }  # fmt: skip
    assert all(seconds >= 0 for seconds in model.fit_report_.seconds.values())


def test_what_is_compiled_comes_from_the_cache_the_second_time(diabetes):
    cache.clear()
    model = OnnxSGDRegressor(**SLOW).fit(*diabetes)
    first = model.fit_report_
    second = model.fit(*diabetes).fit_report_
    assert first.cache_misses > 0 < first.seconds["differentiate"]
    assert (second.cache_misses, second.cache_hits) == (0, first.cache_hits + first.cache_misses)
    assert "differentiate" not in second.seconds


def test_batches_of_an_iterable_are_read_and_trained(diabetes):
    X, y = diabetes
    batches = [(X[i : i + 50], y[i : i + 50]) for i in range(0, 400, 50)]
    report = OnnxSGDRegressor(**SLOW).fit(batches).fit_report_
    assert min(report.seconds["read"], report.seconds["train"]) > 0


def test_there_is_none_before_a_fit_nor_in_a_clone(diabetes):
    assert not hasattr(OnnxSGDRegressor(), "fit_report_")
    assert not hasattr(clone(OnnxSGDRegressor(**SLOW).fit(*diabetes)), "fit_report_")


def test_each_call_has_its_own(diabetes, iris):
    X, y = diabetes
    model = OnnxSGDRegressor(**SLOW, warm_start=True).fit(X, y)
    found = [model.fit_report_, model.fit(X, y).fit_report_, model.partial_fit(X, y).fit_report_]
    assert len({report.total for report in found}) == 3
    assert OnnxSGDClassifier().partial_fit(*iris, classes=[0, 1, 2]).fit_report_.total > 0
    last = model.fit_report_
    model.predict(X)
    model.set_weights(model.get_weights())
    assert model.fit_report_ == last


def test_a_later_part_counts_as_training_but_for_what_it_compiles(diabetes):
    X, y = diabetes
    cache.clear()
    model = OnnxSGDRegressor(learning_rate="constant").partial_fit(X[:32], y[:32])
    first, second = model.fit_report_, model.partial_fit(X[:32], y[:32]).fit_report_
    assert {"read", "compile", "differentiate", "train"} <= set(first.seconds)
    assert set(second.seconds) == {"train"}
    assert (second.cache_misses, second.peak_memory, second.peak_memory_growth) == (0, None, None)
    # smaller batches need another step
    smaller = model.partial_fit(X[:5], y[:5]).fit_report_
    assert set(smaller.seconds) == {"train", "compile"}
    assert smaller.cache_misses == 1


def test_a_refused_call_leaves_the_last_report(diabetes):
    X, y = diabetes
    model = OnnxSGDRegressor(**SLOW)
    with pytest.raises(ValueError, match="samples"):
        model.fit(X, y[:-1])
    assert not hasattr(model, "fit_report_")
    report = model.fit(X, y).fit_report_
    for call in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match="samples"):
            call(X, y[:-1])
        assert model.fit_report_ == report
    assert stages.current() is None


def test_a_fit_that_diverges_has_a_report(diabetes):
    X, y = diabetes
    model = OnnxSGDRegressor(learning_rate="constant", eta0=1e30, random_state=0)
    with pytest.raises(ConvergenceError):
        model.fit(X, y)
    assert model.fit_report_.seconds["train"] > 0


def test_pickles_keep_it_as_plain_numbers(diabetes):
    model = OnnxSGDRegressor(**SLOW).fit(*diabetes)
    content = pickle.dumps(model)
    assert b"fit_report" not in content
    assert pickle.loads(content).fit_report_ == model.fit_report_


def digest(path):
    """Return the digest of the contents of a saved file."""
    with safe_open(path, framework="numpy") as opened:
        return opened.metadata()["sha256"]


def test_files_hold_none_and_are_the_same_for_the_same_fit(diabetes, tmp_path):
    model = OnnxSGDRegressor(**SLOW).fit(*diabetes)
    model.save(tmp_path / "first")
    model.fit(*diabetes).save(tmp_path / "second")
    assert digest(tmp_path / "first") == digest(tmp_path / "second")
    loaded = onnxsgd.load(tmp_path / "first")
    assert not hasattr(loaded, "fit_report_")
    assert loaded.partial_fit(*diabetes).fit_report_.total > 0


def test_a_resumed_fit_reports_its_own_part(diabetes, tmp_path):
    X, y = diabetes
    done = OnnxSGDRegressor(checkpoint=tmp_path, **SLOW).fit(X, y)
    again = OnnxSGDRegressor(checkpoint=tmp_path, **SLOW).fit(X, y, resume=True)
    assert "train" in done.fit_report_.seconds
    assert "train" not in again.fit_report_.seconds
    assert again.fit_report_.total > 0


def test_the_report_is_a_table_and_a_dictionary():
    assert str(REPORT) == (
        "read           0.250000 s  12.5 %\n"
        "train          1.500000 s  75.0 %\n"
        "other          0.250000 s  12.5 %\n"
        "total          2.000000 s\n"
        "peak memory  300 MB, 20.0 MB above the peak before\n"
        "cache        3 hits, 1 misses"
    )
    assert REPORT._repr_html_().count("<tr>") == 6
    found = json.loads(json.dumps(REPORT.to_dict()))
    assert found["seconds"] == {"read": 0.25, "train": 1.5, "other": 0.25}
    assert (found["total"], found["peak_memory"]) == (2.0, 300_000_000)
    assert FitReport(**{name: value for name, value in found.items() if name != "total"}) == REPORT


@pytest.mark.parametrize(
    ("peaks", "text"),
    [((None, None), "unknown"), ((8_000_000, 8_000_000), "at most 8 MB, the peak before")],
)
def test_memory_that_is_not_known_is_not_claimed(peaks, text):
    report = FitReport.of(({"train": 1.0}, peaks, (0, 0)))
    assert text in str(report)
    assert report.peak_memory == peaks[1]


def test_a_record_without_time_is_a_table_too():
    assert "0.0 %" in str(FitReport({"other": 0.0}, None, None, 0, 0))


def test_the_peak_is_that_of_the_system(diabetes):
    resource = pytest.importorskip("resource")
    unit = 1 if os.uname().sysname == "Darwin" else 1024
    report = OnnxSGDRegressor(**SLOW).fit(*diabetes).fit_report_
    assert 0 < report.peak_memory <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    assert 0 <= report.peak_memory_growth < report.peak_memory


def test_a_record_sees_progress_in_place():
    """Parts of a stream change the state that they continue."""

    class Estimator:
        _state = None

    def fail(moves):
        with RecordedFit(estimator):
            estimator._state.t += moves
            raise KeyError

    estimator = Estimator()
    estimator._state = type("state", (), {"t": 3})()
    for moves in (False, True):
        with pytest.raises(KeyError):
            fail(moves)
        assert ("_record" in vars(estimator)) == moves


def test_the_loss_is_the_same_with_and_without(diabetes, ticks):
    """Measuring changes no number of the fit."""
    model = OnnxSGDRegressor(random_state=0, max_iter=5, tol=None).fit(*diabetes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages.Recording, "__enter__", lambda self: self)
        patch.setattr(RecordedFit, "__exit__", lambda self, *error: None)
        plain = OnnxSGDRegressor(random_state=0, max_iter=5, tol=None).fit(*diabetes)
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    assert not hasattr(plain, "fit_report_")
