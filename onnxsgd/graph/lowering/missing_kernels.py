"""Operators without a kernel in some types, written out in operators that have one."""

from __future__ import annotations

import onnx_ir as ir

from onnxsgd.graph.lowering.forms import FORMS, write_out
from onnxsgd.graph.model import PARAMETER
from onnxsgd.graph.nodes import operands, standard_operator
from onnxsgd.graph.parameter_roles.roles import find_roles
from onnxsgd.graph.rewriting import Rule, Table

__all__ = ["write_out_missing_kernels"]

#: Standard operators without a CPU kernel in onnxruntime 1.19 to 1.31, by element type.
_MISSING = {
    ir.DataType.DOUBLE: (
        *("Celu", "Cosh", "Elu", "Gelu", "GlobalMaxPool", "HardSigmoid", "HardSwish"),
        *("InstanceNormalization", "Mean", "Mish", "PRelu", "ReduceProd", "Selu", "Sinh", "Softplus"),
        *("Softsign", "Tan", "ThresholdedRelu"),
    ),
    ir.DataType.FLOAT16: ("Celu",),
}


def write_out_missing_kernels(model: ir.Model) -> None:
    """Replace, in place, the operators of the main graph without a kernel in their type.

    Parameters of a replaced layer are marked as such: the operators written for it do not show them.
    """
    missing = [node for node in model.graph if _is_missing(node)]
    if not missing:
        return
    roles = find_roles(model.graph)
    for value in (value for node in missing for value in operands(node)):
        if value in roles and (kind := roles[value].kind) is not None:
            value.metadata_props[PARAMETER] = kind
    write_out(model, _FORMS)


def _is_missing(node: ir.Node) -> bool:
    dtype = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
    return dtype is not None and standard_operator(node) in _MISSING.get(dtype, ())


def _where_missing(rule: Rule) -> Rule:
    return lambda w, node: rule(w, node) if _is_missing(node) else None


_FORMS: Table = {
    ("", op_type): _where_missing(FORMS["", op_type]) for missing in _MISSING.values() for op_type in missing
}
