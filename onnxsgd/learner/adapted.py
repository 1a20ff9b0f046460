"""Graphs with adapters beside frozen weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxsgd.adapters import LoRA
from onnxsgd.gradient.engines import PORTABLE, differentiable
from onnxsgd.graph.adapting.branches import Adapter, add_branches
from onnxsgd.graph.adapting.choose_weights import choose_weights
from onnxsgd.graph.cut import cut_at
from onnxsgd.graph.reading.trainable import select_trainable, trace_gradients

if TYPE_CHECKING:
    from onnxsgd.graph.reading.trainable import Trainable

__all__ = ["with_adapters"]


def with_adapters(
    model: ir.Model, score: str, adapter: LoRA, trainable: Trainable
) -> tuple[ir.Model, tuple[Adapter, ...], list[str]]:
    """Return a graph with adapters, the adapters, and the names of all trained initializers.

    Parameters
    ----------
    model : ir.Model
        Lowered. It is not changed.
    score : str
        The tensor of raw predictions.
    adapter : LoRA
        The kind of adapter, and its targets.
    trainable : None, str, sequence of str, or callable
        The initializers that are trained themselves; None: none of them.
    """
    reference = differentiable(PORTABLE)
    cut = cut_at(model, score)
    own = [] if trainable is None else select_trainable(cut, score, trainable, reference)
    targets = choose_weights(cut, adapter, trace_gradients(cut, score, reference), own)
    adapted, adapters = add_branches(model, targets, int(adapter.rank), adapter.scale)
    return adapted, adapters, [*own, *(name for made in adapters for name in made.names)]
