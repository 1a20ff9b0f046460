"""Checkpoints: fits that continue as if nothing had interrupted them, failures, refusals."""

import errno
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import onnxsgd
from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, losses
from onnxsgd.adapters import LoRA
from onnxsgd.data import row_tables
from onnxsgd.engine.step import batches
from onnxsgd.estimators import checkpointing
from onnxsgd.exceptions import ParameterError
from onnxsgd.persistence import checkpoint_folder
from onnxsgd.persistence.checkpoint_folder import last_files, next_file
from onnxsgd.persistence.saved_file import DamagedFileError
from onnxsgd.persistence.value_tree import TreeReader, TreeWriter
from onnxsgd.training.checkpoints import Checkpoints

X, Y = (part[:600] for part in load_digits(return_X_y=True))
MLP = MLPClassifier((12,), max_iter=3, random_state=0)


class StopFit(Exception):
    """The interruption of a fit."""


class Loader:
    """Batches in an order of their own."""

    def __len__(self):
        return 9

    def __iter__(self):
        for rows in np.split(np.random.default_rng(0).permutation(585), 9):
            yield X[rows], Y[rows]


def fit(settings, folder, monkeypatch, *, data=(X, Y), stop_after=None, resume=False):
    """Return a fitted estimator and the checkpoints written; stop after so many of them."""
    written, save = [0], Checkpoints._save

    def count(self, *args):
        save(self, *args)
        written[0] += 1
        if written[0] == stop_after:
            raise StopFit

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "_save", count)
        learner = OnnxSGDClassifier(checkpoint=folder, **{"random_state": 0} | settings)
        try:
            learner.fit(*data, resume=resume)
        except StopFit:
            return None, written[0]
    return learner, written[0]


BATCHES = {"classes": range(10)}
SETTINGS = {
    "auto": ({}, (X, Y)),
    "auto, seconds": ({"checkpoint_every": {"seconds": 0.001}}, (X, Y)),
    "auto, updates": ({"checkpoint_every": {"updates": 17}, "max_iter": 12}, (X, Y)),
    "every third epoch": ({"checkpoint_every": 3, "max_iter": 20}, (X, Y)),
    "scores": ({"early_stopping": True, "average": 0.9}, (X, Y)),
    "adam": ({"learning_rate": "invscaling", "optimizer": "adam", "max_iter": 5}, (X, Y)),
    "l1, averages": (
        {"learning_rate": "optimal", "penalty": "l1", "average": True, "checkpoint_every": {"updates": 5},
         "max_iter": 3},
        (X, Y),
    ),
    "distance from the start": (
        {"learning_rate": "constant", "penalty": "l2_sp", "model": MLP, "checkpoint_every": {"updates": 11},
         "max_iter": 3},
        (X, Y),
    ),
    "accumulation, dropout": (
        {"learning_rate": "cosine", "model": MLP, "gradient_accumulation_steps": 3, "max_iter": 4,
         "checkpoint_every": {"updates": 4}},
        (X, Y),
    ),
    "adapter": ({"model": MLP, "adapter": LoRA(2), "max_iter": 8}, (X, Y)),
    "sparse": ({"max_iter": 10}, (sparse.csr_array(X * (X > 12)), Y)),
    "sparse, l1": (
        {"learning_rate": "optimal", "penalty": "l1", "max_iter": 4, "checkpoint_every": {"updates": 9}},
        (sparse.csr_array(X * (X > 12)), Y),
    ),
    "weights": ({"class_weight": "balanced", "max_iter": 6}, (X, Y, np.linspace(0, 1, 600))),
    "float64": ({"dtype": "float64", "max_iter": 6, "checkpoint_every": {"updates": 30}}, (X, Y)),
    "batches": ({"max_iter": 4, **BATCHES}, (Loader(),)),
    "batches, updates": (
        {"learning_rate": "cosine", "gradient_accumulation_steps": 4, "max_iter": 4,
         "checkpoint_every": {"updates": 2}, **BATCHES},
        (Loader(),),
    ),
    "batches, seconds": (
        {"learning_rate": "invscaling", "checkpoint_every": {"seconds": 0.001}, "batch_size": 10,
         "max_iter": 3, **BATCHES},
        (Loader(),),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", SETTINGS)
def test_a_resumed_fit_is_the_one_that_was_not_interrupted(name, tmp_path, monkeypatch):
    settings, data = SETTINGS[name]
    whole, n_written = fit(settings, tmp_path / "whole", monkeypatch, data=data)
    expected = whole.get_weights()
    stops = sorted({1, n_written // 2, n_written - 1, n_written})
    for stop_after in stops:
        folder = tmp_path / str(stop_after)
        ended, _ = fit(settings, folder, monkeypatch, data=data, stop_after=stop_after)
        if ended is not None and stop_after > 1 and "seconds" in str(settings):
            # the time decides how many there are
            continue
        assert ended is None
        learner, n_more = fit(settings, folder, monkeypatch, data=data, resume=True)
        if "seconds" not in str(settings):
            assert n_more == n_written - stop_after
        assert learner.loss_curve_ == whole.loss_curve_
        assert learner.validation_scores_ == whole.validation_scores_
        assert (learner.t_, learner.n_iter_) == (whole.t_, whole.n_iter_)
        for weight, array in learner.get_weights().items():
            np.testing.assert_array_equal(array, expected[weight])
        np.testing.assert_array_equal(learner.predict(data[0] if len(data) > 1 else X), whole.predict(
            data[0] if len(data) > 1 else X
        ))  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("every", [1, {"updates": 4}, {"updates": 10**6}, {"seconds": 60}], ids=str)
@pytest.mark.parametrize("are_many", [False, True])
@pytest.mark.parametrize("name", ["auto", "adam", "l1, averages", "sparse", "batches"])
def test_the_distance_may_change_inside_an_epoch(name, are_many, every, tmp_path, monkeypatch):
    settings, data = SETTINGS[name]
    settings = settings | {"max_iter": 3, "tol": None, "batch_size": 32, "checkpoint_every": {"updates": 7}}
    if are_many:
        # epochs in windows of ten updates, or of five
        monkeypatch.setattr(row_tables, "MANY_ROWS", 100)
        monkeypatch.setattr(batches, "_WINDOW_ROWS", 330 if isinstance(every, int) else 165)
    whole, _ = fit(settings, tmp_path / "whole", monkeypatch, data=data)
    stopped, n_written = fit(settings, tmp_path / "stopped", monkeypatch, data=data, stop_after=2)
    assert (stopped, n_written) == (None, 2)
    begun = onnxsgd.load(tmp_path / "stopped")
    # a batch of an iterable is divided into three updates
    assert (begun.t_, begun.n_iter_) == (9 if name == "batches" else 7, 0)
    changed = settings | {"checkpoint_every": every}
    resumed, _ = fit(changed, tmp_path / "stopped", monkeypatch, data=data, resume=True)
    assert (resumed.t_, resumed.n_iter_) == (whole.t_, 3)
    np.testing.assert_allclose(resumed.loss_curve_, whole.loss_curve_, rtol=1e-4)
    for key, array in whole.get_weights().items():
        np.testing.assert_allclose(resumed.get_weights()[key], array, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", [int, np.random.RandomState])
def test_a_loaded_checkpoint_goes_on_with_the_random_numbers_of_the_fit(kind, tmp_path, monkeypatch):
    """Its copy of a generator is no new seed."""
    settings = {"random_state": kind(3), "max_iter": 2, "tol": None, "learning_rate": "constant"}
    whole, _ = fit(settings, tmp_path / "whole", monkeypatch)
    whole.save(tmp_path / "saved")
    for again in (onnxsgd.load(tmp_path / "whole"), onnxsgd.load(tmp_path / "saved"), pickled(whole)):
        again.partial_fit(X, Y)
        np.testing.assert_array_equal(again.coef_, pickled(whole).partial_fit(X, Y).coef_)


def pickled(learner):
    return pickle.loads(pickle.dumps(learner))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_two_fits_do_not_remove_checkpoints_of_each_other(tmp_path, monkeypatch):
    settings = {"max_iter": 6, "tol": None, "learning_rate": "constant"}
    save, written = Checkpoints._save, []

    def save_and_begin(self, *args):
        save(self, *args)
        written.append(last_files(tmp_path)[0])
        if len(written) == 3:
            # another process, whose fit had begun too when this one wrote its first file
            second = next_file(tmp_path)
            shutil.copy(written[-1], second)
            written.append(second)

    monkeypatch.setattr(Checkpoints, "_save", save_and_begin)
    learner = OnnxSGDClassifier(checkpoint=tmp_path, random_state=0, **settings)
    with pytest.warns(UserWarning, match="Another fit writes.*folder of its own"):
        learner.fit(X, Y)
    # the last two of this fit, and that of the other
    assert last_files(tmp_path) == written[3:0:-1]
    assert learner.n_iter_ == 6


def test_checkpoints_change_weights_by_rounding_only(tmp_path):
    settings = {"random_state": 0, "max_iter": 10, "tol": None}
    plain = OnnxSGDClassifier(**settings).fit(X, Y)
    for every in (1, {"updates": 13}, {"seconds": 0.001}):
        kept = OnnxSGDClassifier(checkpoint=tmp_path / str(every), checkpoint_every=every, **settings)
        np.testing.assert_allclose(kept.fit(X, Y).coef_, plain.coef_, rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_pipelines_of_text_and_own_losses_resume(tmp_path, monkeypatch):
    pytest.importorskip("skops")
    texts, labels = ["a good day", "a bad day", "good", "bad, very bad"] * 5, [1, 0, 1, 0] * 5
    model = make_pipeline(TfidfVectorizer(), LogisticRegression())
    loss = losses.FromCallable(_logistic, targets="sign")
    settings = {"model": model, "max_iter": 6, "loss": loss, "learning_rate": "constant"}
    whole, _ = fit(settings, tmp_path / "whole", monkeypatch, data=(texts, labels))
    fit(settings, tmp_path / "part", monkeypatch, data=(texts, labels), stop_after=3)
    resumed, _ = fit(settings, tmp_path / "part", monkeypatch, data=(texts, labels), resume=True)
    np.testing.assert_array_equal(resumed.decision_function(texts), whole.decision_function(texts))


def _logistic(y_true, raw_prediction):
    """Return the logistic loss of labels -1 and 1, and its derivative."""
    product = y_true * raw_prediction
    return np.logaddexp(0, -product), -y_true / (1 + np.exp(product))


@pytest.mark.long
def test_fits_that_are_killed_end_as_others(tmp_path):
    script = Path(__file__).parents[1] / "hostile" / "killed_fits.py"
    done = subprocess.run(
        [sys.executable, str(script), "--kills", "10"], capture_output=True, text=True, timeout=900
    )
    assert "10 kills" in done.stdout, done.stderr


# Files.


def names(folder):
    return sorted(os.listdir(folder))


def test_the_last_two_are_kept_and_parts_removed(tmp_path):
    part = tmp_path / f".checkpoint-000001.onnxsgd.{'0' * 32}.part"
    part.mkdir()
    (part / "part").write_bytes(b"x")
    (tmp_path / "mine.txt").write_text("x")
    OnnxSGDClassifier(checkpoint=tmp_path, max_iter=4, tol=None).fit(X, Y)
    assert names(tmp_path) == ["checkpoint-000005.onnxsgd", "checkpoint-000006.onnxsgd", "mine.txt"]


def test_a_checkpoint_loads_as_an_estimator(tmp_path, monkeypatch):
    fit({"max_iter": 6}, tmp_path, monkeypatch, stop_after=4)
    for path in (tmp_path, tmp_path / names(tmp_path)[-1]):
        learner = onnxsgd.load(path)
        assert learner.n_iter_ == len(learner.loss_curve_) == 3
        assert learner.score(X, Y) > 0.9
        learner.partial_fit(X, Y)
        assert learner.n_iter_ == 4


def test_a_damaged_last_file_falls_back_to_the_one_before(tmp_path, monkeypatch):
    settings = {"max_iter": 6, "tol": None}
    whole, _ = fit(settings, tmp_path / "whole", monkeypatch)
    fit(settings, tmp_path / "part", monkeypatch, stop_after=4)
    last = tmp_path / "part" / names(tmp_path / "part")[-1]
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="damaged.*Training continues from the checkpoint before"):
        resumed, _ = fit(settings, tmp_path / "part", monkeypatch, resume=True)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    first, last = (tmp_path / "part" / name for name in names(tmp_path / "part"))
    first.unlink()
    last.write_bytes(b"nothing")
    with pytest.raises(ParameterError, match="damaged"):
        fit(settings, tmp_path / "part", monkeypatch, resume=True)


def test_a_last_file_that_cannot_be_read_falls_back_too(tmp_path, monkeypatch):
    """Such as one on a broken disk, or a link whose target is gone."""
    settings = {"max_iter": 6, "tol": None}
    whole, _ = fit(settings, tmp_path / "whole", monkeypatch)
    fit(settings, tmp_path / "part", monkeypatch, stop_after=4)
    last = tmp_path / "part" / names(tmp_path / "part")[-1]
    last.unlink()
    last.mkdir()
    with pytest.warns(UserWarning, match="no regular file.*Training continues from the checkpoint before"):
        resumed, _ = fit(settings, tmp_path / "part", monkeypatch, resume=True)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


def test_a_folder_that_cannot_be_listed_may_have_checkpoints(tmp_path, monkeypatch):
    """Such as one on a server that does not answer: training does not begin anew over its files."""
    settings = {"max_iter": 6, "tol": None}
    whole, _ = fit(settings, tmp_path / "whole", monkeypatch)
    fit(settings, tmp_path / "part", monkeypatch, stop_after=4)
    kept = names(tmp_path / "part")

    def fail(folder):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_folder.os, "listdir", fail)
        with pytest.raises(OSError, match="Input/output error"):
            fit(settings, tmp_path / "part", monkeypatch, resume=True)
        with pytest.warns(UserWarning, match="cannot be written, training goes on.*Input/output") as warned:
            fit(settings, tmp_path / "part", monkeypatch)
    assert len(warned) == 1
    assert names(tmp_path / "part") == kept
    resumed, _ = fit(settings, tmp_path / "part", monkeypatch, resume=True)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


def test_resuming_a_fit_that_has_ended_trains_no_more(tmp_path, monkeypatch):
    first, _ = fit({"max_iter": 4, "tol": None}, tmp_path, monkeypatch)
    again, n_written = fit({"max_iter": 4, "tol": None}, tmp_path, monkeypatch, resume=True)
    assert n_written == 0
    assert again.t_ == first.t_
    np.testing.assert_array_equal(again.coef_, first.coef_)


def test_a_fit_without_resume_replaces_one_that_has_ended(tmp_path, monkeypatch):
    fit({"max_iter": 3, "tol": None}, tmp_path, monkeypatch)
    fit({"max_iter": 5, "tol": None}, tmp_path, monkeypatch)
    assert onnxsgd.load(tmp_path).n_iter_ == 5


def test_a_fit_that_has_not_ended_is_not_replaced(tmp_path, monkeypatch):
    fit({"max_iter": 6}, tmp_path, monkeypatch, stop_after=4)
    before = names(tmp_path)
    with pytest.raises(ParameterError, match=r"a fit that has not ended, after 3 epochs: continue it by"):
        fit({"max_iter": 6}, tmp_path, monkeypatch)
    assert names(tmp_path) == before


@pytest.mark.parametrize("failing", ["write_file", "mkdir"])
def test_training_goes_on_where_writing_fails(failing, tmp_path, monkeypatch):
    n_calls, write = [0], checkpointing.write_file

    def fail(*args, **kwargs):
        n_calls[0] += 1
        if n_calls[0] > 2:
            raise OSError(28, "No space left on device")
        return write(*args, **kwargs)

    settings = {"max_iter": 5, "tol": None, "random_state": 0}
    learner = OnnxSGDClassifier(checkpoint=tmp_path / "kept", **settings)
    with monkeypatch.context() as patch:
        if failing == "write_file":
            patch.setattr(checkpointing, "write_file", fail)
        else:
            patch.setattr(Path, "mkdir", fail)
            n_calls[0] = 2
        with pytest.warns(UserWarning, match="cannot be written, training goes on") as warned:
            learner.fit(X, Y)
    assert len(warned) == 1
    plain = OnnxSGDClassifier(**settings).fit(X, Y)
    np.testing.assert_allclose(learner.coef_, plain.coef_, rtol=1e-3, atol=1e-5)
    if failing == "write_file":
        # the last good file stays
        assert onnxsgd.load(tmp_path / "kept").n_iter_ == 1


def test_a_folder_that_vanishes_is_made_again(tmp_path, monkeypatch):
    write = checkpointing.write_file

    def vanish(path, *args):
        write(path, *args)
        shutil.rmtree(path.parent)

    with monkeypatch.context() as patch:
        patch.setattr(checkpointing, "write_file", vanish)
        OnnxSGDClassifier(checkpoint=tmp_path / "kept", max_iter=3, tol=None).fit(X, Y)
    assert not (tmp_path / "kept").exists()


# Searches.


def test_a_relative_folder_stays_when_the_working_directory_changes(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)

    def rate(t):
        os.chdir(elsewhere)
        return 0.01

    OnnxSGDClassifier(checkpoint="folder", learning_rate=rate, max_iter=2, tol=None).fit(X, Y)
    assert list((tmp_path / "folder").iterdir())
    assert not list(elsewhere.iterdir())


def test_clones_write_to_folders_of_their_own(tmp_path):
    learner = OnnxSGDClassifier(checkpoint=tmp_path, max_iter=3, tol=None, random_state=0)
    search = GridSearchCV(learner, {"alpha": [1e-4, 1e-1]}, cv=2, n_jobs=2)
    first = search.fit(X, Y).cv_results_["mean_test_score"]
    # two folds of two values, and the last fit
    assert len(names(tmp_path)) == 5
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")}
    np.testing.assert_array_equal(search.fit(X, Y, resume=True).cv_results_["mean_test_score"], first)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")} == times


def test_a_clone_without_checkpoints_is_no_other(tmp_path):
    assert "_is_clone" not in vars(clone(OnnxSGDClassifier()))


# Refusals.


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"alpha": 0.5}, "alpha"),
        ({"max_iter": 7}, "max_iter"),
        ({"model": LogisticRegression()}, "model"),
        ({"X": X[:-1], "y": Y[:-1]}, "X, y"),
        ({"X": np.roll(X, 1, 0)}, "X"),
        ({"y": 9 - Y}, "y"),
    ],
)
def test_other_fits_are_refused(change, named, tmp_path, monkeypatch):
    fit({"max_iter": 6}, tmp_path, monkeypatch, stop_after=3)
    data = (change.pop("X", X), change.pop("y", Y))
    with pytest.raises(ParameterError, match=rf"belongs to a fit with other values of {named}: a fit"):
        fit({"max_iter": 6} | change, tmp_path, monkeypatch, data=data, resume=True)


@pytest.mark.parametrize("other", ["path", None])
def test_another_form_of_a_graph_is_refused_by_name(other, tmp_path, monkeypatch):
    """The checkpoint holds differences from the graph, which were read first."""
    graph = OnnxSGDClassifier(random_state=0, max_iter=1, tol=None).fit(X, Y).to_onnx()
    onnx.save(graph, tmp_path / "graph.onnx")
    fit({"max_iter": 6, "model": graph}, tmp_path / "kept", monkeypatch, stop_after=3)
    model = tmp_path / "graph.onnx" if other else None
    with pytest.raises(ParameterError, match="belongs to a fit with other values of model: a fit"):
        fit({"max_iter": 6, "model": model}, tmp_path / "kept", monkeypatch, resume=True)


@pytest.mark.parametrize("every", [0, True, 1.5, {"minutes": 1}, {"updates": 0.5}, {"seconds": -1}, {}, "x"])
def test_bad_distances_are_refused_also_without_a_folder(every):
    with pytest.raises(ParameterError, match="checkpoint_every"):
        OnnxSGDClassifier(checkpoint_every=every).fit(X, Y)


def test_resume_needs_a_folder(tmp_path):
    with pytest.raises(ParameterError, match="resume=True needs the folder"):
        OnnxSGDClassifier().fit(X, Y, resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ParameterError, match="is a file: it must name a folder"):
        OnnxSGDClassifier(checkpoint=tmp_path / "file").fit(X, Y)


def test_iterators_and_norms_inside_epochs_are_refused(tmp_path):
    with pytest.raises(ParameterError, match="needs batches that begin anew in each epoch"):
        OnnxSGDClassifier(checkpoint=tmp_path).fit(iter(Loader()))
    with pytest.raises(ParameterError, match="count epochs"):
        OnnxSGDClassifier(checkpoint=tmp_path, checkpoint_every={"updates": 3}, record_update_norms=True).fit(
            X, Y
        )


def test_what_cannot_be_saved_is_refused_before_training(tmp_path):
    class Mine(OnnxSGDRegressor):
        pass

    with pytest.raises(TypeError, match="a file without code"):
        Mine(checkpoint=tmp_path).fit(*load_diabetes(return_X_y=True))
    assert names(tmp_path) == []


def test_interrupts_leave_the_last_checkpoint(tmp_path, monkeypatch):
    settings = {"max_iter": 8, "tol": None, "model": make_pipeline(StandardScaler(), LogisticRegression())}
    whole, _ = fit(settings, tmp_path / "whole", monkeypatch)
    after = Checkpoints.after_epoch

    def interrupt(self, state, n_epochs, **how):
        after(self, state, n_epochs, **how)
        if n_epochs == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "after_epoch", interrupt)
        with pytest.warns(UserWarning, match="interrupted by user"):
            fit(settings, tmp_path / "part", monkeypatch)
    resumed, _ = fit(settings, tmp_path / "part", monkeypatch, resume=True)
    np.testing.assert_array_equal(resumed.predict_proba(X), whole.predict_proba(X))


def test_warm_starts_have_checkpoints_too(tmp_path, monkeypatch):
    with pytest.warns(ConvergenceWarning):
        learner = OnnxSGDClassifier(max_iter=2, random_state=0, warm_start=True).fit(X, Y)
    learner.set_params(checkpoint=tmp_path, max_iter=3, tol=None).fit(X, Y)
    again = OnnxSGDClassifier(max_iter=3, random_state=0, warm_start=True, tol=None, checkpoint=tmp_path).fit(
        X, Y, resume=True
    )
    np.testing.assert_array_equal(again.coef_, learner.coef_)


def test_one_weight_for_all_samples_is_told_from_another(tmp_path):
    learner = OnnxSGDClassifier(checkpoint=tmp_path, max_iter=2, tol=None, random_state=0)
    learner.fit(X, Y, sample_weight=2.0)
    assert learner.fit(X, Y, sample_weight=2.0, resume=True).n_iter_ == 2
    with pytest.raises(ParameterError, match="belongs to a fit with other values of sample_weight"):
        learner.fit(X, Y, sample_weight=3.0, resume=True)
    for given in (5, np.array(3.0)):
        with pytest.raises(ValueError, match="Expected 2D array, got scalar array"):
            learner.fit(given, Y)


def test_a_new_fit_with_another_graph_has_checkpoints(tmp_path):
    learner = OnnxSGDClassifier(checkpoint=tmp_path, max_iter=3, tol=None, random_state=0).fit(X, Y)
    learner.set_params(dtype="float64").fit(X, Y)
    assert onnxsgd.load(tmp_path).coef_.dtype == np.float64


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr", "coo", "lil", "dok", "dia"])
def test_sparse_data_of_all_formats_have_checkpoints(tmp_path, kind):
    """The rows of some formats cannot be taken."""
    table = sparse.csr_array(X * (X > 12))[:30]
    changed = table.copy()
    changed.data[0] += 1
    learner = OnnxSGDClassifier(checkpoint=tmp_path, max_iter=2, tol=None, random_state=0)
    coef = learner.fit(table.asformat(kind), Y[:30]).coef_
    again = learner.fit(table.asformat(kind), Y[:30], resume=True)
    np.testing.assert_array_equal(again.coef_, coef)
    with pytest.raises(ParameterError, match="other values of X"):
        learner.fit(changed.asformat(kind), Y[:30], resume=True)


class _OnlyAnArray:
    """Data that numpy reads, and whose rows cannot be taken."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def __array__(self, dtype=None, copy=None):
        return self.array.astype(dtype or float)


def test_data_that_are_only_arrays_have_checkpoints(tmp_path):
    learner = OnnxSGDClassifier(checkpoint=tmp_path, max_iter=2, tol=None, random_state=0)
    coef = learner.fit(_OnlyAnArray(X), Y).coef_
    np.testing.assert_array_equal(learner.fit(_OnlyAnArray(X), Y, resume=True).coef_, coef)
    with pytest.raises(ParameterError, match="other values of X"):
        learner.fit(_OnlyAnArray(X + 1), Y, resume=True)


def test_corrupt_sparse_data_are_refused_before_they_are_compared(tmp_path):
    table = sparse.csc_array(X)
    table.indices[3] = 10**9
    with pytest.raises(ParameterError, match="X is a sparse csc matrix of shape .* whose indices"):
        OnnxSGDClassifier(checkpoint=tmp_path).fit(table, Y)


def test_any_number_in_the_names_of_files_is_read(tmp_path):
    """Files that were renamed keep their order; names with other digits are those of no checkpoint."""
    names = [
        "checkpoint-999999999999.onnxsgd",
        "checkpoint-0000001.onnxsgd",
        "checkpoint-00000\u0663.onnxsgd",
    ]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in last_files(tmp_path)] == names[:2]
    new = next_file(tmp_path)
    assert new.name == "checkpoint-1000000000000.onnxsgd"
    new.touch()
    assert last_files(tmp_path)[0] == new


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("has_ended",), "no"),
        (("begun",), None),
        (("loop",), []),
        (("loop", "n_epochs"), "3"),
        (("loop", "stops"), None),
        (("position",), "x"),
        (("position",), {"n_batches": "3", "losses": np.ones(3), "begun": {}}),
    ],
    ids=str,
)
def test_a_progress_of_other_types_is_refused(tmp_path, monkeypatch, way, value):
    """It was a TypeError, or a KeyError, of the fit that continued."""
    settings = {"max_iter": 3, "tol": None, "learning_rate": "constant"}
    written = checkpointing.write_file

    def forge(path, content, tensors):
        writer = TreeWriter()
        progress = TreeReader(tensors).read(content["progress"])
        place = progress
        for key in way[:-1]:
            place = place[key]
        place[way[-1]] = value
        forged = {**content, "progress": writer.write(progress, "progress")}
        written(path, forged, tensors | writer.tensors)

    with monkeypatch.context() as patch:
        patch.setattr(checkpointing, "write_file", forge)
        fit(settings, tmp_path, monkeypatch, stop_after=1)
    with pytest.raises(DamagedFileError, match="no file of est.save, or a damaged one"):
        OnnxSGDClassifier(checkpoint=tmp_path, random_state=0, **settings).fit(X, Y, resume=True)
