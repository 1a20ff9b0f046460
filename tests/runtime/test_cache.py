"""The cache of a process: equal keys are built once, the oldest entries go."""

import os
import pickle
import subprocess
import sys
import threading
import weakref

import pytest

from onnxsgd.runtime.cache import Cache, KnownEntry, Limit, cache, cached


def test_a_cache_builds_once_and_drops_the_oldest():
    cache = Cache({"cpu": Limit(2)})
    assert [cache.get(key, lambda key=key: key.upper()) for key in "abab"] == ["A", "B", "A", "B"]
    assert cache.n_built == 2
    assert (cache.find("a"), cache.find("b"), cache.find("c")) == ("A", "B", None)
    cache.get("c", lambda: "C")
    cache.get("a", lambda: "A again")
    assert cache.n_built == 4
    assert cache.get("a", lambda: "never") == "A again"
    # the entry used last is kept: "c" is dropped, not "a"
    cache.get("d", lambda: "D")
    assert cache.get("a", lambda: "never") == "A again"
    assert cache.get("c", lambda: "C again") == "C again"


def test_a_cache_drops_large_entries_earlier():
    cache = Cache({"cpu": Limit(100, 1000)})
    for number in range(20):
        cache.get(number, lambda number=number: number, 100)
    assert cache.get(10, lambda: "anew", 100) == 10
    assert cache.get(9, lambda: "anew", 100) == "anew"
    # one that is larger than all that is allowed leaves room for the last few
    cache.get("large", lambda: "large", 10_000)
    assert cache.get("large", lambda: "anew", 10_000) == "large"
    assert cache.get(19, lambda: "anew", 100) == 19
    assert cache.get(12, lambda: "anew", 100) == "anew"


def test_a_cache_bounds_the_threads_of_its_sessions():
    """Each session has threads of its own, and on 64 cores 144 sessions would have 9,000."""
    one = Cache({"cpu": Limit(100, n_threads=70)})
    for number in range(20):
        one.get(number, object, n_threads=8)
        one.get(f"single {number}", object)
    assert sum(1 for _, _, n_threads in one._entries["cpu"].values() if n_threads) == 10
    built = one.n_built
    for number in (19, 10):
        one.get(number, object, n_threads=8)
    for number in range(20):
        one.get(f"single {number}", object)
    assert one.n_built == built
    # a fit needs several at a time
    for number in range(20):
        one.get(f"wide {number}", object, n_threads=64)
    assert sum(1 for _, _, n_threads in one._entries["cpu"].values() if n_threads) == 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_sessions_with_threads_are_left_alone_in_a_child_process():
    """Destroying them in a process without their threads crashed the interpreter."""
    code = """
import os, sys
import numpy as np
from onnxsgd import OnnxSGDRegressor
X = np.random.RandomState(0).normal(size=(50, 3)).astype(np.float32)
def fit(n_threads, batch_size):
    OnnxSGDRegressor(max_iter=2, tol=None, n_threads=n_threads, batch_size=batch_size).fit(X, X[:, 0])
for n_threads in (2, 3, 4, 8):
    for batch_size in (4, 8, 16, 32):
        fit(n_threads, batch_size)
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
fit(1, 2)
from onnxsgd.runtime.cache import cache
cache.clear()
os._exit(0)
"""
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr


def test_kinds_of_devices_have_separate_bounds():
    """Many sessions on the CPU do not drop those on a GPU, and the other way about."""
    both = Cache({"cpu": Limit(3), "cuda": Limit(1)})
    both.get("a", lambda: "on a GPU", kind="cuda")
    for number in range(5):
        both.get(number, lambda number=number: number)
    assert both.get("a", lambda: "anew", kind="cuda") == "on a GPU"
    both.get("b", lambda: "on a GPU", kind="cuda")
    assert both.get("a", lambda: "anew", kind="cuda") == "anew"
    assert both.get(4, lambda: "anew") == 4


def test_threads_build_one_key_once_and_other_keys_do_not_wait():
    """A model that takes seconds to convert does not delay predictions in other threads."""
    one, started, go = Cache({"cpu": Limit(9)}), threading.Event(), threading.Event()

    def build():
        started.set()
        assert go.wait(10)
        return object()

    found = []
    threads = [threading.Thread(target=lambda: found.append(one.get("slow", build))) for _ in range(3)]
    threads[0].start()
    assert started.wait(10)
    for thread in threads[1:]:
        thread.start()
    assert one.get("other", lambda: "at once") == "at once"
    assert not found
    go.set()
    for thread in threads:
        thread.join(10)
    assert len(found) == 3
    assert len(set(map(id, found))) == 1
    assert one.n_built == 2


def test_a_build_that_fails_leaves_no_entry():
    one = Cache({"cpu": Limit(9)})
    with pytest.raises(ZeroDivisionError):
        one.get("a", lambda: 1 / 0)
    assert one.get("a", lambda: "built") == "built"


def test_an_entry_without_a_key_is_not_cached():
    before = cache.n_built
    assert cached(None, object) is not cached(None, object)
    assert cache.n_built == before


class _Entry:
    """An entry of the cache: it can have weak references."""


def test_a_known_entry_is_found_without_its_key_while_the_cache_has_it():
    """One that the cache has dropped, or that is of another process, is not used further."""
    asked = []

    def ask():
        asked.append(cached("known entry", _Entry))
        return asked.pop()

    known, calls = KnownEntry(), []

    def noted():
        calls.append(1)
        return ask()

    first = known.find(noted)
    assert known.find(noted) is first
    assert len(calls) == 1
    assert pickle.loads(pickle.dumps(known))._known[1]() is None
    cache.clear()
    # held by someone else, as by the parent of a fork
    second = known.find(noted)
    assert second is not first
    assert len(calls) == 2
    address = weakref.ref(second)
    del first, second
    with cache._lock:
        del cache._entries["cpu"]["known entry"]
    assert address() is None
    assert isinstance(known.find(noted), _Entry)
    assert len(calls) == 3
    cache.clear()
