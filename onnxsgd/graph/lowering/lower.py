"""Lowering: the same function in the form that choosing weights and taking gradients start from.

A rule in a table says what replaces one operator; see the modules ``lower_*`` for them. What no rule
replaces stays as it is, and whether it matters is decided later, where the weights are chosen. An operator
that an engine has a gradient of is none of these: what one engine alone needs is its own lowering.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes.common import (
    InlinePass,
    LiftConstantsToInitializersPass,
    RemoveUnusedNodesPass,
    RemoveUnusedOpsetsPass,
)

from onnxsgd.graph.lowering.ai_onnx_ml import ML_RULES
from onnxsgd.graph.lowering.constant_branches import take_constant_branches
from onnxsgd.graph.lowering.integer_folding import fold_integers
from onnxsgd.graph.lowering.loop_sequences import stack_sequences
from onnxsgd.graph.lowering.missing_kernels import write_out_missing_kernels
from onnxsgd.graph.lowering.stable_formulas import STANDARD_RULES
from onnxsgd.graph.rewriting import Table, rewrite
from onnxsgd.graph.shape_inference import ShapeInferencePass

__all__ = ["RULES", "lower_for_training"]

#: Every operator that is rewritten, by domain and name.
RULES: Table = {**ML_RULES, **STANDARD_RULES}

#: The standard operators that a graph without any of its own is lowered to.
_DEFAULT_OPSET = 18


def lower_for_training(model: ir.Model) -> ir.Model:
    """Return a model that computes what `model` does, every coefficient of it an initializer.

    Precondition: a valid model, opset 13 to 21. Result:

    - weights in Constant nodes are initializers, under the name of the node's output;
    - coefficients in attributes of ``ai.onnx.ml`` operators are initializers, called ``coef`` and
      ``intercept`` (with a number behind where the name is taken);
    - an If with a constant condition is the nodes of its branch;
    - sequences that a loop fills are tensors that it collects (:mod:`onnxsgd.graph.lowering.loop_sequences`);
    - integers that follow from constants alone are initializers;
    - every operator with a rule in :data:`RULES` is replaced where the rule's precondition holds, and so is
      one that no runtime has a kernel for in its type;
    - tensors that are still computed keep their names, inputs and outputs theirs and their order.

    Outputs agree with those of `model` to float32 rounding. Lowering a lowered model changes nothing.

    Parameters
    ----------
    model : ir.Model
        It is not changed.

    Returns
    -------
    ir.Model
        A new model; large tensors are shared with `model`.
    """
    lowered = model.clone()
    lowered.graph.opset_imports.setdefault("", _DEFAULT_OPSET)
    InlinePass()(lowered)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(lowered)
    take_constant_branches(lowered)
    RemoveUnusedNodesPass()(lowered)
    _name_unknown_sizes(lowered.graph)
    ShapeInferencePass(strict_mode=False)(lowered)
    stack_sequences(lowered)
    fold_integers(lowered)
    # types behind ai.onnx.ml operators are inferred only once those have become standard ones
    while rewrite(lowered, RULES):
        ShapeInferencePass(strict_mode=False)(lowered)
    write_out_missing_kernels(lowered)
    RemoveUnusedNodesPass()(lowered)
    RemoveUnusedOpsetsPass()(lowered)
    return lowered


def _name_unknown_sizes(graph: ir.Graph) -> None:
    """Give sizes of inputs that have no name one: shapes made of them are then known to be equal.

    Exporters write an unknown size as nothing, as "?", or as -1. What they write so about computed values is
    no size, and no name for one, either.
    """
    for value in graph.inputs:
        if value.shape is not None:
            value.shape = _sizes(
                value.shape, [f"{value.name}_size_{axis}" for axis in range(len(value.shape))]
            )
    for value in (value for node in graph for value in node.outputs):
        if value.shape is not None:
            value.shape = _sizes(value.shape, [None] * len(value.shape))


def _sizes(shape: ir.Shape, unknown: Sequence[str | None]) -> ir.Shape:
    """Return `shape` with the elements of `unknown` in the place of sizes that are none."""
    known = [size if isinstance(size, int) else size.value for size in shape]
    return ir.Shape([size if _is_size(size) else other for size, other in zip(known, unknown, strict=True)])


def _is_size(size: int | str | None) -> bool:
    return size >= 0 if isinstance(size, int) else size not in (None, "", "?")
