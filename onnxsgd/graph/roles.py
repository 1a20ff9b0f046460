"""What an initializer is in its graph: a weight, an intercept, or no parameter of a layer at all."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.graph.model import FROZEN, PARAMETER, REAL_TYPES
from onnxsgd.graph.patterns import FORM, behind_form, made_by
from onnxsgd.graph.rewriting import first, operands

__all__ = ["Role", "find_role"]

_WEIGHT, _INTERCEPT = "weight", "intercept"

#: The inputs of layers that are learned.
_LAYERS: dict[str, dict[int, str]] = {
    "BatchNormalization": {1: _WEIGHT, 2: _INTERCEPT},
    "Conv": {1: _WEIGHT, 2: _INTERCEPT},
    "ConvTranspose": {1: _WEIGHT, 2: _INTERCEPT},
    "Einsum": {0: _WEIGHT, 1: _WEIGHT, 2: _WEIGHT},
    "GRU": {1: _WEIGHT, 2: _WEIGHT, 3: _INTERCEPT},
    "Gather": {0: _WEIGHT},
    "Gemm": {0: _WEIGHT, 1: _WEIGHT, 2: _INTERCEPT},
    "GroupNormalization": {1: _WEIGHT, 2: _INTERCEPT},
    "InstanceNormalization": {1: _WEIGHT, 2: _INTERCEPT},
    "LSTM": {1: _WEIGHT, 2: _WEIGHT, 3: _INTERCEPT},
    "LayerNormalization": {1: _WEIGHT, 2: _INTERCEPT},
    "MatMul": {0: _WEIGHT, 1: _WEIGHT},
    "PRelu": {1: _WEIGHT},
    "RNN": {1: _WEIGHT, 2: _WEIGHT, 3: _INTERCEPT},
}

#: Layers whose result a vector that is added to is the intercept of.
_LINEAR = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})


@dataclass(frozen=True)
class Role:
    """What an initializer is.

    Attributes
    ----------
    kind : {"weight", "intercept", None}
        None: no parameter of a layer.
    reason : str
        Why, as a phrase.
    """

    kind: str | None
    reason: str


def find_role(value: ir.Value) -> Role:
    """Return what the initializer `value` is in its graph.

    Cases, the first that holds:

    - it is marked as frozen (a constant of a scaler, say) or as a parameter, by conversion or by lowering;
    - it holds no real numbers;
    - it is what a layer learns, also behind a Transpose, a Cast and the like: the matrix of a product, the
      kernel of a convolution, the scale of a normalisation, the table that a computed index is looked up in;
    - it is a vector that is added to a linear layer, or to a scaled normalisation: an intercept;
    - anything else is a constant.
    """
    if reason := value.metadata_props.get(FROZEN):
        return Role(None, reason)
    if kind := value.metadata_props.get(PARAMETER):
        return Role(kind, f"{kind} of a layer that was rewritten")
    if value.dtype not in REAL_TYPES:
        return Role(None, f"holds {value.dtype}, no real numbers")
    found = [role for use in value.uses() if (role := _role_in(value, use.node, use.idx)) is not None]
    found.sort(key=lambda role: role.kind != _WEIGHT)
    if found:
        return found[0]
    users = ", ".join(sorted({use.node.op_type for use in value.uses()}))
    return Role(None, f"constant, read by {users}" if users else "not used")


def _role_in(value: ir.Value, node: ir.Node, index: int) -> Role | None:
    """Return what `value` is for one of the nodes that read it."""
    if node.domain != "":
        return None
    if node.op_type in FORM:
        result = node.outputs[0]
        roles = (_role_in(result, use.node, use.idx) for use in result.uses())
        return next((role for role in roles if role is not None), None) if index == 0 else None
    kind = _LAYERS.get(node.op_type, {}).get(index)
    if kind is not None and _is_looked_up(node):
        return Role(kind, f"{kind} of {node.op_type}")
    if not _is_vector(value) or node.op_type not in ("Add", "Mul"):
        return None
    other = _layer_behind(operands(node)[1 - index])
    if node.op_type == "Mul":
        return Role(_WEIGHT, "scale of a normalisation") if _is_normalised(other) else None
    if other is None:
        return None
    if _is_linear(other):
        return Role(_INTERCEPT, f"added to {other.op_type}")
    if other.op_type == "Mul" and _is_normalised(other):
        return Role(_INTERCEPT, "shift of a normalisation")
    return None


def _is_looked_up(node: ir.Node) -> bool:
    """Return whether an index, if the node is a Gather, depends on data: else it only picks a constant."""
    return node.op_type != "Gather" or not operands(node)[1].is_initializer()


def _is_vector(value: ir.Value) -> bool:
    return value.shape is not None and len(value.shape) > 0


def _layer_behind(value: ir.Value) -> ir.Node | None:
    """Return the node that `value` comes from, behind changes of form and slices of its result."""
    while node := made_by(value, *FORM, "Slice"):
        value = first(node)
    return value.producer()


def _is_linear(node: ir.Node) -> bool:
    """Return whether `node` is a linear layer, that is, one of its inputs is an initializer."""
    return node.op_type in _LINEAR and any(behind_form(value).is_initializer() for value in operands(node))


def _is_normalised(node: ir.Node | None) -> bool:
    """Return whether `node` divides by a square root, as a normalisation written out in operators does.

    Cases: ``x / sqrt(v)``, ``1 / sqrt(v)``, and the product of one of these with anything.
    """
    if node is None or node.op_type not in ("Div", "Mul", "Reciprocal"):
        return False
    if node.op_type == "Mul":
        return any(_is_normalised(behind_form(value).producer()) for value in operands(node))
    return made_by(behind_form(operands(node)[-1]), "Sqrt") is not None
