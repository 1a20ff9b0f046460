"""Progress on a terminal, in a notebook and in a file."""

import os
import re
import subprocess
import sys
import types

import pytest

from onnxsgd import OnnxSGDRegressor
from onnxsgd.estimators import progress


def regressor(**more):
    return OnnxSGDRegressor(**{"max_iter": 5, "tol": None, "random_state": 0} | more)


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of eighty columns, on which every epoch is shown."""
    monkeypatch.setattr(progress, "_choose_place", progress._TerminalLine)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))
    monkeypatch.setattr(progress, "_INTERVAL", 0.0)


@pytest.fixture
def notebook(monkeypatch):
    """The displays of a notebook's kernel; each is the list of its contents."""
    outputs = []

    class Handle:
        def __init__(self, data):
            self.contents = [data]
            outputs.append(self.contents)

        def update(self, data, raw):
            assert raw
            self.contents.append(data)

    def display(data, raw, display_id):
        assert raw
        assert display_id
        return Handle(data)

    kernel = types.SimpleNamespace(kernel=object())
    package = types.ModuleType("IPython")
    package.get_ipython = lambda: kernel
    package.display = types.ModuleType("IPython.display")
    package.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", package.display)
    monkeypatch.setattr(progress, "_INTERVAL", 0.0)
    return outputs


def test_nothing_is_printed_by_default(diabetes, capsys, notebook):
    regressor().fit(*diabetes).partial_fit(*diabetes)
    assert capsys.readouterr() == ("", "")
    assert notebook == []


def test_verbose_prints_a_line_for_each_epoch_into_a_file(diabetes, capsys):
    X, y = diabetes
    model = regressor(verbose=1, early_stopping=True).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[2].startswith(f"Epoch 3/5, loss {model.loss_curve_[2]:.6g}, learning rate ")
    assert f"validation score {model.validation_scores_[2]:.6g}" in lines[2]


def test_a_terminal_has_one_line_that_the_last_one_replaces(diabetes, capsys, terminal):
    model = regressor(verbose=1, early_stopping=True).fit(*diabetes)
    shown = capsys.readouterr().out
    assert shown.count("\n") == 1
    _, *epochs, last = shown.split("\r")
    assert [text[:12] for text in epochs] == [f"[{'##' * n:.<10}]" for n in range(1, 6)]
    loss, score = model.loss_curve_[1], model.validation_scores_[1]
    assert f"] Epoch 2/5, loss {loss:.4g}, score {score:.4g}, 0 s left" in epochs[1]
    assert not [text for text in epochs if len(text.rstrip()) > 79]
    assert re.match(rf"Epoch 5/5, loss {model.loss_curve_[-1]:.6g}, learning rate .* s *\n", last)


def test_fast_epochs_are_not_all_shown(diabetes, capsys, terminal, monkeypatch):
    monkeypatch.setattr(progress, "_INTERVAL", 1000.0)
    regressor(verbose=1).fit(*diabetes)
    assert capsys.readouterr().out.count("\r") == 2


def test_lines_are_printed_everywhere_on_demand(diabetes, capsys, terminal, notebook):
    regressor(verbose=2).fit(*diabetes)
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert notebook == []


@pytest.mark.parametrize("tol", [None, 1e-3])
def test_the_time_left_is_a_bound_where_training_may_stop(diabetes, capsys, terminal, tol):
    model = OnnxSGDRegressor(tol=tol, max_iter=100, random_state=0, verbose=1).fit(*diabetes)
    lines = capsys.readouterr().out.split("\r")[1:]
    assert "left" not in lines[0]
    assert all(("at most " in line) is (tol is not None) for line in lines[1:-2])
    assert all(re.search(r"\d s left", line) for line in lines[1:-2])
    assert lines[-1].startswith(f"Epoch {model.n_iter_}/100, ")
    assert (model.n_iter_ < 100) is (tol is not None)


def test_a_narrow_terminal_shows_less(diabetes, capsys, terminal, monkeypatch):
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((40, 24)))
    regressor(verbose=1, early_stopping=True).fit(*diabetes)
    lines = capsys.readouterr().out.split("\r")[1:-1]
    assert len(lines) == 5
    assert all(len(line) <= 39 and "Epoch" in line for line in lines)
    assert all("loss" in line and "score" not in line for line in lines)


def test_a_notebook_has_one_output_that_is_updated(diabetes, capsys, notebook):
    model = regressor(verbose=1, early_stopping=True).fit(*diabetes)
    assert capsys.readouterr() == ("", "")
    (contents,) = notebook
    assert len(contents) == 6
    loss, score = model.loss_curve_[1], model.validation_scores_[1]
    line = f"Epoch 2/5, loss {loss:.4g}, score {score:.4g}, 0 s left, learning rate "
    assert contents[1]["text/plain"].startswith(line)
    assert '<progress value="2" max="5"></progress>' in contents[1]["text/html"]
    assert contents[-1]["text/plain"].startswith("Epoch 5/5, ")
    assert "<progress" not in contents[-1]["text/html"]
    model.fit(*diabetes)
    assert len(notebook) == 2


def test_an_error_leaves_a_whole_line(diabetes, capsys, terminal):
    def rate(t):
        if t > 2 * 14:
            raise RuntimeError("no rate")
        return 0.01

    with pytest.raises(RuntimeError, match="no rate"):
        regressor(verbose=1, learning_rate=rate).fit(*diabetes)
    assert re.search(r"\rEpoch 2/5, loss [^\r]*\n$", capsys.readouterr().out)


def test_an_interruption_ends_the_line_before_the_warning(diabetes, capsys, terminal, monkeypatch):
    def rate(t):
        if t > 2 * 14:
            raise KeyboardInterrupt
        return 0.01

    monkeypatch.setattr("warnings.warn", lambda message, *args, **more: print(f"warned: {message}"))
    model = regressor(verbose=1, learning_rate=rate).fit(*diabetes)
    assert re.search(r"\rEpoch 2/5, [^\r\n]* s *\nwarned: Training interrupted", capsys.readouterr().out)
    assert model.n_iter_ == 2
    regressor(verbose=1, tol=1e-9).fit(*diabetes)
    assert re.search(r"\rEpoch 5/5, [^\r\n]* s *\nwarned: Maximum number", capsys.readouterr().out)


@pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")
def test_interrupting_a_real_terminal():
    """Ctrl-C on a pseudo-terminal: the line is whole, and the estimator usable."""
    import pty

    code = (
        "import signal\nimport numpy as np\nfrom onnxsgd import OnnxSGDRegressor\n"
        # background jobs of a shell inherit that the signal is ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "X = np.random.RandomState(0).randn(200, 3)\n"
        "model = OnnxSGDRegressor(max_iter=10**7, tol=None, verbose=1).fit(X, X[:, 0])\n"
        "print('predicts', model.predict(X[:1]).shape)\n"
    )
    ours, theirs = pty.openpty()
    child = subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while b"left" not in shown:
            shown += os.read(ours, 4096)
        child.send_signal(2)
        while b"predicts" not in shown:
            shown += os.read(ours, 4096)
        child.wait(30)
    finally:
        child.kill()
        os.close(ours)
    lines = shown.decode().replace("\r\n", "\n").split("\n")
    bar = next(number for number, line in enumerate(lines) if "left" in line)
    assert re.match(r"Epoch \d+/10000000, loss ", lines[bar].split("\r")[-1])
    assert "Training interrupted by user" in lines[bar + 1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations(seconds, text):
    assert progress._duration(seconds) == text
