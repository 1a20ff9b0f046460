"""One-line summaries of graphs, for displays of parameters."""

from __future__ import annotations

import html
import math
import reprlib
from collections import Counter
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

__all__ = ["ModelSummary", "show_in_full", "summarize", "summarize_operators"]

#: Operators and inputs beyond this many are counted, not listed.
_LISTED = 4


class ModelSummary:
    """Text shown in place of a model."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def summarize(model: object) -> Any:
    """Return the display form of the parameter `model`: a summary of a graph, any other object unchanged."""
    if isinstance(model, onnx.ModelProto):
        return ModelSummary(_describe(model))
    if isinstance(model, bytes | bytearray):
        parsed = _parse(model)
        return ModelSummary(f"<{len(model):,} bytes>" if parsed is None else _describe(parsed))
    return model


def show_in_full(params: Any, summary: ModelSummary) -> Any:
    """Show the whole summary in scikit-learn's table of parameters, a ``ParamsDict``.

    The table cuts every value to thirty characters, and has no option for more (scikit-learn 1.9).
    """
    cut, full = html.escape(reprlib.repr(summary)), html.escape(repr(summary))
    table = params._repr_html_inner()
    params._html_repr = lambda: table.replace(cut, full)
    return params


def summarize_operators(model: object, counts: bool = True) -> str:
    """Return the operators of a graph, and its size: ``ONNX graph of Gemm x 2, Relu; 12,902 numbers``.

    Raises
    ------
    ValueError
        If `model` is no graph.
    """
    graph = _parse(model) if isinstance(model, bytes | bytearray) else model
    if not isinstance(graph, onnx.ModelProto):
        raise ValueError(f"{type(model).__name__} is no graph.")
    size = f"; {_n_numbers(graph):,} numbers" if counts else ""
    return f"ONNX graph of {_operators(graph)}{size}"


def _parse(content: bytes | bytearray) -> onnx.ModelProto | None:
    parsed = onnx.ModelProto()
    try:
        parsed.ParseFromString(bytes(content))
    except DecodeError:
        return None
    return parsed


def _describe(model: onnx.ModelProto) -> str:
    """Describe a graph: ``<ONNX: Gemm x 2, Relu; 4 weights, 12,902 numbers; X>``."""
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in weights]
    parts = [
        _operators(model),
        f"{len(graph.initializer)} initializers, {_n_numbers(model):,} numbers",
        f"inputs {_enumerate(inputs)}",
    ]
    return f"<ONNX: {'; '.join(parts)}>"


def _operators(model: onnx.ModelProto) -> str:
    counts = Counter(node.op_type for node in model.graph.node).most_common()
    return _enumerate([name if count == 1 else f"{name} x {count}" for name, count in counts])


def _n_numbers(model: onnx.ModelProto) -> int:
    return sum(math.prod(tensor.dims) for tensor in model.graph.initializer)


def _enumerate(names: list[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join([*names[:_LISTED], *([f"{more} more"] if more > 0 else [])]) or "none"
