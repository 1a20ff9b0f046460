"""Every gradient rule, and the operators through which no gradient flows."""

from __future__ import annotations

import onnx_ir as ir

from onnxsgd.gradient.portable.rules.control import CONTROL
from onnxsgd.gradient.portable.rules.convolution import CONVOLUTION
from onnxsgd.gradient.portable.rules.elementwise import ELEMENTWISE
from onnxsgd.gradient.portable.rules.indexing import INDEXING
from onnxsgd.gradient.portable.rules.integer_products import INTEGER_PRODUCTS
from onnxsgd.gradient.portable.rules.movement import MOVEMENT
from onnxsgd.gradient.portable.rules.neural import NEURAL
from onnxsgd.gradient.portable.rules.normalization import NORMALIZATION
from onnxsgd.gradient.portable.rules.packed_products import PACKED_PRODUCTS
from onnxsgd.gradient.portable.rules.pooling import POOLING
from onnxsgd.gradient.portable.rules.products import PRODUCTS
from onnxsgd.gradient.portable.rules.quantization import QUANTIZATION
from onnxsgd.gradient.portable.rules.recurrent import RECURRENT
from onnxsgd.gradient.portable.rules.reductions import REDUCTIONS
from onnxsgd.gradient.portable.rules.resize import RESIZE
from onnxsgd.gradient.portable.rules.sampling import GRID_SAMPLE
from onnxsgd.gradient.portable.rules.scattering import SCATTERING
from onnxsgd.gradient.portable.writing.call import Rules
from onnxsgd.graph.nodes import attribute, qualified_operator, standard_operator
from onnxsgd.graph.operators import TYPE_ONLY, Fact, having
from onnxsgd.graph.opsets.function_bodies import is_function
from onnxsgd.graph.opsets.transformer.refusal import refused_form

__all__ = [
    "KNOWN",
    "NO_GRADIENT",
    "RULES",
    "passes_gradient",
    "reason_against",
]

#: One rule for each operator, those of other domains with their domain: for each input the gradient, or None
#: where an input has none.
RULES: Rules = {
    **ELEMENTWISE,
    **REDUCTIONS,
    **PRODUCTS,
    **MOVEMENT,
    **INDEXING,
    **SCATTERING,
    **CONVOLUTION,
    **POOLING,
    **NORMALIZATION,
    **NEURAL,
    **RESIZE,
    **GRID_SAMPLE,
    **QUANTIZATION,
    **INTEGER_PRODUCTS,
    **PACKED_PRODUCTS,
    **RECURRENT,
}


#: Operators whose result does not change when the elements of a real input change a little.
NO_GRADIENT = having(Fact.FLAT)


#: Operators with a rule, or without a gradient by definition.
KNOWN = frozenset(RULES) | frozenset(CONTROL) | NO_GRADIENT


def reason_against(node: ir.Node) -> str | None:
    """Return why no gradient can pass a node; None if it has a rule or a definition, or needs none."""
    if qualified_operator(node) in RULES:
        return None
    if not standard_operator(node):
        form = refused_form(node)
        reason = f"operator {qualified_operator(node)} is not a standard operator and has no gradient rule"
        return reason if form is None else f"{reason} in this form: {form}"
    if node.op_type in KNOWN or is_function(node.op_type):
        return None
    return f"operator {node.op_type} has no gradient rule"


def passes_gradient(node: ir.Node, index: int | None) -> bool:
    """Return whether a gradient flows from the outputs of a node to its input at `index`.

    None denotes the values that the subgraphs of the node capture. True for an operator without a rule: on a
    path, it must be found and refused.
    """
    operator = qualified_operator(node)
    if not standard_operator(node) and operator not in RULES:
        return True
    if operator in NO_GRADIENT or index == TYPE_ONLY.get(operator, -1):
        return False
    rules = RULES.get(operator)
    if index is None or rules is None or callable(rules):
        return True
    training: int = attribute(node, "training_mode", 0)
    if operator == "BatchNormalization" and training:
        return index in _READ_IN_TRAINING
    return index < len(rules) and rules[index] is not None


#: The inputs of a BatchNormalization in training mode that its result depends on.
_READ_IN_TRAINING = (0, 1, 2)
