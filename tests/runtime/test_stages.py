"""The record of a fit: times of nested stages, threads, errors, memory."""

import threading

import numpy as np
import pytest

from onnxsgd.runtime import stages
from onnxsgd.runtime.stages import OTHER, STAGES, Recording, current, peak_memory, stage


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(stages, "perf_counter", made)
    return made


def test_the_time_of_an_inner_stage_is_its_own(clock):
    with Recording() as recording:
        clock.now += 1
        with stage("train"):
            clock.now += 10
            with stage("compile"):
                clock.now += 100
                with stage("differentiate"):
                    clock.now += 1000
            clock.now += 10_000
            with stage("compile"):
                clock.now += 100_000
        clock.now += 1_000_000
    found = {name: seconds for name, seconds in recording.seconds.items() if seconds}
    assert found == {
        OTHER: 1_000_001, "train": 10_010, "compile": 100_100, "differentiate": 1000,
    }  # fmt: skip


def test_a_stage_ends_with_an_error(clock):
    def fail():
        with stage("train"), stage("score"):
            clock.now += 1
            raise ValueError("no")

    with Recording() as recording:
        with pytest.raises(ValueError, match="no"):
            fail()
        clock.now += 2
    assert recording.seconds == {OTHER: 2, "train": 0, "score": 1}
    assert current() is None


def test_a_record_inside_another_one_has_its_own_time(clock):
    """A fit of ours inside a fit: the outer one counts all of it for the stage that it is in."""
    with Recording() as outer, stage("inner fit"):
        with Recording() as inner, stage("train"):
            clock.now += 5
            assert current() is inner
        clock.now += 1
        assert current() is outer
    assert outer.seconds["inner fit"] == 6
    assert inner.seconds["train"] == 5
    assert "train" not in outer.seconds


def test_a_stage_outside_a_fit_does_nothing():
    with stage("train"):
        assert current() is None


def test_a_decorated_function_is_a_stage(clock):
    @stage("compile").of
    def compiled(seconds):
        clock.now += seconds
        return seconds

    with Recording() as recording:
        assert compiled(3) == 3
    assert recording.seconds["compile"] == 3
    assert compiled(4) == 4


def test_a_decorated_function_ends_with_an_error(clock):
    @stage("compile").of
    def fail():
        clock.now += 1
        raise ValueError("no")

    with Recording() as recording:
        with pytest.raises(ValueError, match="no"):
            fail()
        clock.now += 2
    assert recording.seconds == {OTHER: 2, "compile": 1}


def test_a_later_part_of_a_stream_times_functions_alone(clock):
    @stage("compile").of
    def compiled():
        clock.now += 10

    with Recording() as outer, stage("score"):
        with Recording(is_part=True) as part, stage("read"):
            clock.now += 1
            compiled()
            assert current() is part
        assert current() is outer
        clock.now += 100
    assert part.numbers() == ({"train": 1, "compile": 10}, (None, None), (0, 0))
    assert outer.seconds == {OTHER: 0, "score": 111}
    assert current() is None


def test_threads_have_records_of_their_own(clock):
    seen = []

    def other():
        with stage("train"):
            seen.append(current())

    with Recording() as recording:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert current() is recording
    assert seen == [None]
    assert "train" not in recording.seconds


def test_an_unknown_stage_is_an_error():
    with pytest.raises(KeyError):
        stage("trian")
    assert OTHER not in STAGES


def test_the_peak_follows_the_memory_of_the_process():
    before = peak_memory()
    if before is None:
        pytest.skip("the system does not tell")
    with Recording() as recording:
        # more than the process has ever had, also where the system takes some pages back
        held = np.ones((before + 100_000_000) // 8)
    _, (first, last), _ = recording.numbers()
    assert first == before
    assert last - first > 5_000_000
    assert held.any()
    with Recording() as later:
        pass
    assert later.numbers()[1][1] >= last


@pytest.mark.parametrize(("resource", "expected"), [(None, None), (0, None), (7, 7 * stages._UNIT)])
def test_an_unknown_peak_is_none(resource, expected, monkeypatch):
    class Usage:
        RUSAGE_SELF = 0

        def getrusage(self, who):
            return type("usage", (), {"ru_maxrss": resource})

    monkeypatch.setattr(stages, "resource", None if resource is None else Usage())
    assert peak_memory() == expected


def test_an_interrupt_at_the_beginning_leaves_no_recording(monkeypatch):
    """Later fits would count in what is left of it."""

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stages, "peak_memory", interrupted)
        with pytest.raises(KeyboardInterrupt), Recording():
            pass
    assert current() is None


def test_an_interrupt_at_the_end_leaves_no_recording(clock, monkeypatch):
    def function(number, *, factor):
        clock.now += 3
        return number * factor

    recording = Recording()
    assert recording.run(function, 5, factor=2) == 10
    assert recording.seconds == {OTHER: 3}

    def interrupted():
        raise KeyboardInterrupt

    def last():
        monkeypatch.setattr(stages, "perf_counter", interrupted)

    with pytest.raises(KeyboardInterrupt):
        Recording().run(last)
    assert current() is None
