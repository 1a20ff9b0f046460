"""Errors of the libraries below: short, with their cause, and caught where one call is made."""

import ast
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import onnxsgd
from onnxsgd import OnnxSGDRegressor
from onnxsgd._library_errors import INDEX, guard_name, reason, run_error
from onnxsgd.exceptions import EngineError

#: Handlers that continue: user-defined classes and functions may raise any exception; a display raises none;
#: a size that cannot be computed stays unknown; a worker process sends any error to the process of the fit.
GO_ON = {
    "checkpointing.py",
    "_cache_keys.py",
    "constant_sizes.py",
    "formulas.py",
    "html_display.py",
    "shape_inference.py",
    "worker_process.py",
}


def broad_handlers():
    """Yield each ``except`` of this package that catches any error, with its ``try``."""
    root = Path(onnxsgd.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for attempt in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for handler in getattr(attempt, "handlers", []):
                caught = {getattr(node, "id", "") for node in ast.walk(handler.type)}
                if caught & {"Exception", "BaseException"}:
                    yield pytest.param(path.name, attempt, handler, id=f"{path.name}-{handler.lineno}")


@pytest.mark.parametrize(("name", "attempt", "handler"), list(broad_handlers()))
def test_any_error_is_caught_around_one_call_and_kept_as_the_cause(name, attempt, handler):
    """A wider handler would catch, and rename, errors of this package's code."""
    assert len(attempt.body) == 1
    raised = [node for node in ast.walk(handler) if isinstance(node, ast.Raise)]
    assert raised or name in GO_ON
    for node in raised:
        assert node.exc is None or getattr(node.cause, "id", None) == handler.name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[ONNXRuntimeError] : 1 : FAIL : no kernel.", "no kernel"),
        ("/src/core/session.cc:12 onnxruntime::Run(int) const no kernel\n", "no kernel"),
        ("[ShapeInferenceError] (op_type:Add): wrong", "(op_type:Add): wrong"),
        ("first\n\n  second", "first second"),
        ("", "ValueError"),
        ("x" * 5000, "x" * 300 + " ..."),
        (
            "status code returned while running Loop node. Name:'l' Status Message: Non-zero status code "
            "returned while running Expand node. Name:'e' Status Message: bfc_arena.cc:360 "
            "Failed to allocate memory for requested buffer of size 34359738368",
            "Expand 'e' needs 34,359,738,368 bytes, more memory than is left",
        ),
        (
            "Error in execution: status code returned while running Resize node. Name:'r' Status Message: "
            "std::bad_alloc",
            "Resize 'r' needs more memory than is left",
        ),
        (
            f"running Gather node. Name:'{guard_name(f'Tile t makes {INDEX} elements')}' Status Message: "
            "indices element out of data bounds, idx=8589934592 must be within the inclusive range [-1,0]",
            "Tile t makes 8,589,934,592 elements",
        ),
    ],
)
def test_messages_become_one_short_line(text, expected):
    assert reason(ValueError(text)) == expected
    assert isinstance(run_error(ValueError(text)), EngineError)


class TimeIsUp(Exception):
    """The error of a user's handler of signals."""


def _caught(raise_error):
    try:
        raise_error()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_errors_of_code_that_runs_meanwhile_are_raised_as_they_are():
    def handler():
        raise TimeIsUp

    with pytest.raises(TimeIsUp):
        run_error(_caught(handler))
    inside = {"__name__": "onnxruntime.capi.session", "TimeIsUp": TimeIsUp}
    exec("def run():\n    raise TimeIsUp('no kernel')", inside)
    assert str(run_error(_caught(inside["run"]))) == "onnxruntime cannot run the graph: no kernel."


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers")
def test_the_error_of_a_handler_of_signals_ends_a_fit():
    """It was an EngineError, onnxruntime cannot run the graph, where the signal came during an update."""
    X = np.random.default_rng(0).normal(size=(200, 3))
    learner = OnnxSGDRegressor(learning_rate="constant", max_iter=10, tol=None, random_state=0)
    learner.fit(X, X[:, 0]).set_params(max_iter=10**6)

    def handler(number, frame):
        # code that the runtime calls: its frames are below that of the handler
        if any("onnxruntime" in entry.f_globals["__name__"] for entry in _frames(frame)):
            raise TimeIsUp

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.001)
        with pytest.raises(TimeIsUp):
            learner.fit(X, X[:, 0])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert learner.predict(X).shape == (200,)


def _frames(frame):
    while frame is not None:
        yield frame
        frame = frame.f_back


def test_lines_that_count():
    assert reason(ValueError("\nno converter\nsee the list:\na\nb"), n_lines=1) == "no converter"


def test_a_message_of_millions_of_characters_takes_no_time():
    """A name in a model may be as long; a search in all of it would take minutes."""
    begin = time.process_time()
    text = reason(ValueError("No such operator: " + "o" * 1_000_000))
    assert time.process_time() - begin < 5
    assert text.startswith("No such operator: ooo")
    assert len(text) < 400
