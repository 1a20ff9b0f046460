"""Graphs with adapters beside frozen weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxsgd.adapters import LoRA
from onnxsgd.exceptions import ParameterError
from onnxsgd.gradient.engines import PORTABLE, differentiable
from onnxsgd.graph.adapting.branches import Adapter, add_branches
from onnxsgd.graph.adapting.choose_weights import choose_weights
from onnxsgd.graph.cut import cut_at
from onnxsgd.graph.model import ADAPTER, FROZEN
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

    Raises
    ------
    ParameterError
        The graph has adapters already.
    """
    _refuse_adapters(model)
    reference = differentiable(PORTABLE)
    cut = cut_at(model, score)
    own = [] if trainable is None else select_trainable(cut, score, trainable, reference)
    targets = choose_weights(cut, adapter, trace_gradients(cut, score, reference), own)
    adapted, adapters = add_branches(model, targets, int(adapter.rank), adapter.scale)
    return adapted, adapters, [*own, *(name for made in adapters for name in made.names)]


def _refuse_adapters(model: ir.Model) -> None:
    """Refuse a graph that has adapters: theirs would get adapters in turn."""
    for name, value in model.graph.initializers.items():
        owner = value.metadata_props.get(ADAPTER)
        if owner is not None:
            # of an exported base only the factors are marked, with the name of their matrix
            matrix = owner if FROZEN in value.metadata_props else name
            raise ParameterError(
                f"The model has adapters already, such as {matrix!r}: train these with adapter=None and "
                "trainable=, or give the merged graph, to_onnx(), or the one before."
            )
