"""Every gradient rule, and the operators through which no gradient flows."""

from __future__ import annotations

import onnx_ir as ir

from .call import Rules
from .convolution import CONVOLUTION
from .elementwise import ELEMENTWISE
from .indexing import INDEXING
from .movement import MOVEMENT
from .neural import NEURAL
from .normalization import NORMALIZATION
from .pooling import POOLING
from .products import PRODUCTS
from .recurrent import RECURRENT
from .reductions import REDUCTIONS
from .resize import RESIZE

__all__ = ["NO_GRADIENT", "RULES", "SYMMETRIC", "reason_against"]

#: One rule for each standard operator: for each input the gradient, or None where an input has none.
RULES: Rules = {
    **ELEMENTWISE,
    **REDUCTIONS,
    **PRODUCTS,
    **MOVEMENT,
    **INDEXING,
    **CONVOLUTION,
    **POOLING,
    **NORMALIZATION,
    **NEURAL,
    **RESIZE,
    **RECURRENT,
}

#: Operators whose result does not depend on the order of their inputs.
SYMMETRIC = frozenset({"Add", "Max", "Mean", "Min", "Mul", "Sum"})

#: Operators whose result does not change when the elements of a real input change a little.
NO_GRADIENT = frozenset(
    {
        "And",
        "ArgMax",
        "ArgMin",
        "Bernoulli",
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "Ceil",
        "Constant",
        "ConstantOfShape",
        "Equal",
        "EyeLike",
        "Floor",
        "Greater",
        "GreaterOrEqual",
        "Hardmax",
        "IsInf",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "Multinomial",
        "NonMaxSuppression",
        "NonZero",
        "Not",
        "Or",
        "QuantizeLinear",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Round",
        "Shape",
        "Sign",
        "Size",
        "Xor",
    }
)


def reason_against(node: ir.Node) -> str | None:
    """Return why no gradient can pass through a node, or None if it has a rule or needs none."""
    if node.domain not in ("", "ai.onnx"):
        return f"operator {node.domain}.{node.op_type} is not a standard operator and has no gradient rule"
    if node.op_type in NO_GRADIENT or node.op_type in RULES:
        return None
    return f"operator {node.op_type} has no gradient rule"
