"""Lowering: the same function in a form for the choice of weights and for gradients.

Each rule of a table replaces one operator; the other modules of this folder hold the rules. Operators
without a rule are unchanged: the choice of the weights decides later if they matter. Operators with a
gradient in an engine need no rule here: each engine has its own lowering.
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

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import GraphError
from onnxsgd.graph.integer_folding import fold_integers
from onnxsgd.graph.lowering.ai_onnx_ml import ML_RULES
from onnxsgd.graph.lowering.constant_branches import take_constant_branches
from onnxsgd.graph.lowering.loop_sequences import stack_sequences
from onnxsgd.graph.lowering.missing_kernels import write_out_missing_kernels
from onnxsgd.graph.lowering.split_sequences import split_sequences
from onnxsgd.graph.lowering.stable_formulas import STANDARD_RULES
from onnxsgd.graph.rewriting import Table, rewrite
from onnxsgd.graph.shape_inference import ShapeInferencePass
from onnxsgd.graph.sizes import has_unknown_sizes

__all__ = ["RULES", "lower_for_training"]

#: The rules of every rewritten operator, by domain and name.
RULES: Table = {**ML_RULES, **STANDARD_RULES}

#: The opset of lowered graphs that import no standard operators.
_DEFAULT_OPSET = 18


def lower_for_training(model: ir.Model) -> ir.Model:
    """Return an equivalent model whose coefficients are all initializers.

    Precondition: a valid model, opset 13 to 21. Result:

    - weights in Constant nodes are initializers, under the name of the node's output;
    - coefficients in attributes of ``ai.onnx.ml`` operators are initializers, named ``coef`` and
      ``intercept`` (with a number appended if the name is taken);
    - an If with a constant condition is replaced by the nodes of its branch;
    - sequences that a loop fills are tensors that it collects (:mod:`onnxsgd.graph.lowering.loop_sequences`);
    - parts read from a sequence are those of a Split (:mod:`onnxsgd.graph.lowering.split_sequences`);
    - integers computed from constants alone are initializers;
    - every operator with a rule in :data:`RULES` is replaced if the rule's precondition holds, and so is
      one without a kernel in its type;
    - tensors that are still computed keep their names, inputs and outputs their names and their order.

    Outputs agree with those of `model` to float32 rounding. Lowering is idempotent.

    Parameters
    ----------
    model : ir.Model
        It is not changed.

    Returns
    -------
    ir.Model
        A new model; large tensors are shared with `model`.

    Raises
    ------
    GraphError
        An output of a subgraph is made by no node.
    """
    try:
        lowered = model.clone()
    except RuntimeError as error:
        # of each graph around it
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise GraphError(f"A subgraph of the model is not valid: {reason(cause)}.") from error
    lowered.graph.opset_imports.setdefault("", _DEFAULT_OPSET)
    InlinePass()(lowered)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(lowered)
    take_constant_branches(lowered)
    RemoveUnusedNodesPass()(lowered)
    _name_unknown_sizes(lowered.graph)
    ShapeInferencePass(strict_mode=False)(lowered)
    stack_sequences(lowered)
    while any([fold_integers(lowered), split_sequences(lowered)]) and has_unknown_sizes(lowered.graph):
        # those that depend on the folded ones and on the parts are known then
        ShapeInferencePass(strict_mode=False)(lowered)
    # types after ai.onnx.ml operators are inferred only once those have become standard ones
    while rewrite(lowered, RULES):
        ShapeInferencePass(strict_mode=False)(lowered)
    write_out_missing_kernels(lowered)
    RemoveUnusedNodesPass()(lowered)
    RemoveUnusedOpsetsPass()(lowered)
    return lowered


def _name_unknown_sizes(graph: ir.Graph) -> None:
    """Name the unnamed sizes of inputs: shapes computed from them are then known to be equal.

    Exporters write an unknown size as nothing, as "?", or as -1. In computed values these are removed.
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
    """Return `shape` with unknown sizes replaced by the elements of `unknown`."""
    known = [size if isinstance(size, int) else size.value for size in shape]
    return ir.Shape([size if _is_size(size) else other for size, other in zip(known, unknown, strict=True)])


def _is_size(size: int | str | None) -> bool:
    return size >= 0 if isinstance(size, int) else size not in (None, "", "?")
