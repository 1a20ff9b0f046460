"""The limit of the machine: the rate of a large float32 product, in every installed library."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

__all__ = ["sgemm_rate"]

_SIZE, _RUNS = 1024, 7


def sgemm_rate(n_threads: int, clock: str) -> float:
    """Return floating-point operations per second of the fastest product, the best of a few runs.

    Parameters
    ----------
    n_threads : int
        Threads that the product may use.
    clock : {"wall", "cpu"}
        The clock, see :func:`measure.interleave`.
    """
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(_SIZE, _SIZE)).astype(np.float32) for _ in range(2))
    now = time.perf_counter if clock == "wall" else time.process_time
    best = np.inf
    for product in _products(a, b, n_threads):
        product()
        for _ in range(_RUNS):
            start = now()
            product()
            best = min(best, now() - start)
    return float(2.0 * _SIZE**3 / best)


def _products(a: Any, b: Any, n_threads: int) -> Iterator[Callable[[], object]]:
    out = np.empty_like(a)
    yield lambda: np.matmul(a, b, out=out)
    session = _make_session(n_threads)
    yield lambda: session.run(None, {"a": a, "b": b})
    try:
        import torch
    except ImportError:
        return
    x, y, z = (torch.from_numpy(array) for array in (a, b, out))
    yield lambda: torch.mm(x, y, out=z)


def _make_session(n_threads: int) -> Any:
    import onnxruntime
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [_SIZE, _SIZE]) for name in "abc"]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"])], "product", values[:2], values[2:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
