"""Roles of initializers: a weight, an intercept, or no parameter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import ADAPTER, FROZEN, PARAMETER, REAL_TYPES
from onnxsgd.graph.nodes import content, first, is_empty, operands, standard_operator
from onnxsgd.graph.operators import Fact, having
from onnxsgd.graph.parameter_roles.constant_arrays import find_waves, is_geometric, is_grid
from onnxsgd.graph.parameter_roles.origins import Origins, Use, trace_origins, uses_of
from onnxsgd.graph.parameter_roles.patterns import FORM, behind_form, made_by

__all__ = ["Role", "find_roles"]

_WEIGHT, _INTERCEPT = "weight", "intercept"

#: The learned inputs of layers in any position.
_LAYERS: dict[str, dict[int, str]] = {
    "BatchNormalization": {1: _WEIGHT, 2: _INTERCEPT},
    "Conv": {1: _WEIGHT, 2: _INTERCEPT},
    "ConvTranspose": {1: _WEIGHT, 2: _INTERCEPT},
    "DeformConv": {1: _WEIGHT, 3: _INTERCEPT},
    "Einsum": {0: _WEIGHT, 1: _WEIGHT, 2: _WEIGHT},
    "GRU": {1: _WEIGHT, 2: _WEIGHT, 3: _INTERCEPT, 5: _WEIGHT},
    "Gather": {0: _WEIGHT},
    "GatherElements": {0: _WEIGHT},
    "GatherND": {0: _WEIGHT},
    "Gemm": {0: _WEIGHT, 1: _WEIGHT, 2: _INTERCEPT},
    "GroupNormalization": {1: _WEIGHT, 2: _INTERCEPT},
    "InstanceNormalization": {1: _WEIGHT, 2: _INTERCEPT},
    "LSTM": {1: _WEIGHT, 2: _WEIGHT, 3: _INTERCEPT, 5: _WEIGHT, 6: _WEIGHT, 7: _WEIGHT},
    "LayerNormalization": {1: _WEIGHT, 2: _INTERCEPT},
    "MatMul": {0: _WEIGHT, 1: _WEIGHT},
    "PRelu": {1: _WEIGHT},
    "RMSNormalization": {1: _WEIGHT},
    "RNN": {1: _WEIGHT, 2: _WEIGHT, 3: _INTERCEPT, 5: _WEIGHT},
}

#: Positions of the initial states of recurrent layers: zeros are no parameters.
_STATES = (5, 6)

#: Layers whose result may have an intercept added, even a single number.
_LINEAR = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})

#: Operators in which a tensor that meets the results of layers is a parameter.
_ARITHMETIC = frozenset({"Add", "Concat", "Div", "Mean", "Mul", "Sub", "Sum", "Where"})

#: Operators that a parameter passes without becoming a formula: they keep or pick elements.
_FORM = frozenset({*FORM, "Gather", "Slice", "Split", "Concat", "Tile"})


@dataclass(frozen=True)
class Role:
    """Role of an initializer.

    Attributes
    ----------
    kind : {"weight", "intercept", None}
        None: no parameter.
    reason : str
        The reason, as a phrase.
    """

    kind: str | None
    reason: str


def find_roles(graph: ir.Graph) -> dict[ir.Value, Role]:
    """Return the role of each initializer of `graph`.

    Every tensor of real numbers that meets data is a parameter, directly or in a formula that reads no data
    (a Slice of it, a product with a constant), except these constants, in this order:

    - it is marked as one by conversion or by lowering (a constant of a scaler, say);
    - it has no elements;
    - it is a table of sines and cosines, or holds their frequencies;
    - it only configures an operator: a bound, an exponent, the statistics of a batch normalisation;
    - it is a single number, unless it is the parameter of a layer, or added to a linear one;
    - it is a mask or a grid of whole and half numbers, or a geometric series, with the same exceptions;
    - it shifts or scales raw data, before the first layer: a mean of pixels. A product that expands a number
      to several, and a table that is added to a row of vectors, are no scaling and no shift.

    Parameters of layers are recognised by their position. Of the others, those that are added, and differ
    along one axis at most, are intercepts.
    """
    origins = trace_origins(graph, _is_layer)
    waves = find_waves(graph.initializers.values())
    return {value: _find_role(value, origins, waves) for value in graph.initializers.values()}


def _find_role(value: ir.Value, origins: Origins, waves: set[ir.Value]) -> Role:
    if reason := value.metadata_props.get(FROZEN):
        return Role(None, reason)
    if kind := value.metadata_props.get(PARAMETER):
        return Role(kind, f"{kind} of a layer that was rewritten")
    if weight := value.metadata_props.get(ADAPTER):
        return Role(_WEIGHT, f"adapter of {weight}")
    if value.dtype not in REAL_TYPES:
        return Role(None, f"holds {value.dtype}, no real numbers")
    if is_empty(value):
        return Role(None, "has no elements")
    uses = list(uses_of(value, origins, _FORM))
    if value in waves or (uses and all(_is_frequency(use, origins) for use in uses)):
        return Role(None, "table of sines and cosines")
    found = [_role_in(value, use, origins) for use in uses]
    # a weight before an intercept before a constant: tied tensors have several roles
    found.sort(key=lambda role: (role.kind is None, role.kind != _WEIGHT))
    if found:
        return found[0]
    users = ", ".join(sorted({use.node.op_type for use in value.uses()}))
    return Role(None, f"constant, read by {users}" if users else "not used")


def _is_layer(node: ir.Node, tuned: set[ir.Value]) -> bool:
    """Return whether `node` has a learned input, or normalises, and so may be the first layer."""
    operator = standard_operator(node)
    if not operator:
        return False
    learns = _LAYERS.get(operator, ())
    return _is_normalised(node) or any(
        value in tuned and (index in learns or (operator == "Mul" and _spreads(node, index)))
        for index, value in enumerate(node.inputs)
    )


def _is_normalised(node: ir.Node | None) -> bool:
    """Return whether `node` divides by a square root, as in a normalisation written out in operators.

    Cases: ``x / sqrt(v)``, ``1 / sqrt(v)``, and the product of one of these with any value.
    """
    waiting, known = [node], {node}
    while waiting:
        node = waiting.pop()
        if node is None or standard_operator(node) not in ("Div", "Mul", "Reciprocal"):
            continue
        if node.op_type != "Mul" and made_by(behind_form(operands(node)[-1]), "Sqrt") is not None:
            return True
        if node.op_type == "Mul":
            factors = {behind_form(value).producer() for value in operands(node)} - known
            known |= factors
            waiting.extend(factors)
    return False


def _spreads(node: ir.Node, index: int) -> bool:
    """Return whether a factor expands each number to several, as in an embedding of numbers."""
    factor, other = node.inputs[index], node.inputs[1 - index]
    if factor is None or other is None or factor.shape is None or other.shape is None:
        return False
    pairs = zip(reversed(list(factor.shape)), reversed(list(other.shape)), strict=False)
    return any(isinstance(size, int) and size > 1 and width == 1 for size, width in pairs)


def _role_in(value: ir.Value, use: Use, origins: Origins) -> Role:
    """Return the role of `value` in one of its uses with data."""
    node, operator = use.node, standard_operator(use.node)
    array = _numbers(value)
    if not operator or (array.size == 1 and use.formula):
        return _constant(use)
    if (kind := _LAYERS.get(operator, {}).get(use.index)) is not None:
        if operator in having(Fact.RECURRENT) and use.index in _STATES and not array.any():
            return Role(None, f"initial state of {operator}, zeros")
        if _is_regrouped(node) and np.all(array == array.flat[0]):
            return Role(None, f"constant of a {operator} of groups")
        return Role(kind, f"{kind} of {operator}")
    if operator not in _ARITHMETIC:
        return _constant(use)
    if (layer := _linear_behind(_others(use)[0])) is not None and operator == "Add" and _is_row(array):
        return Role(_INTERCEPT, f"added to {layer.op_type}") if array.ndim else _constant(use)
    if array.size == 1:
        return _constant(use)
    if reason := _reason_against(use, array, origins):
        return Role(None, reason)
    is_normalised = _is_normalised(behind_form(_others(use)[0]).producer())
    if operator not in ("Add", "Sub", "Sum") or not _is_row(array):
        is_scale = operator == "Mul" and is_normalised
        return Role(_WEIGHT, "scale of a normalisation" if is_scale else f"weight, read by {operator}")
    return Role(_INTERCEPT, "shift of a normalisation" if is_normalised else f"intercept, read by {operator}")


def _is_regrouped(node: ir.Node) -> bool:
    """Return whether `node` is between two Reshapes, as in a group normalisation built on it.

    Its scale and its shift are then ones and zeros; those of the layer follow.
    """
    readers = {standard_operator(reader) for reader, _ in node.outputs[0].uses()}
    return (
        node.op_type == "InstanceNormalization"
        and "Reshape" in readers
        and made_by(first(node), "Reshape") is not None
    )


def _numbers(value: ir.Value) -> np.ndarray:
    return content(value).numpy()


def _constant(use: Use) -> Role:
    if use.node.op_type == "BatchNormalization":
        return Role(None, "statistics of a batch normalisation")
    return Role(None, f"constant, read by {use.node.op_type}")


def _reason_against(use: Use, array: np.ndarray, origins: Origins) -> str | None:
    """Return the reason why a tensor that meets data in arithmetic is no parameter, None if it is one."""
    if is_grid(array):
        return "mask or grid"
    if is_geometric(array):
        return "geometric series"
    if "Sqrt" in use.formula or _is_centre(use, origins):
        return "statistics of a normalisation"
    if not origins.learned.isdisjoint(_others(use)):
        return None
    operator = standard_operator(use.node)
    embeds = _spreads(use.node, use.index) if operator == "Mul" else operator == "Add" and not _is_row(array)
    return None if embeds else f"constant before the first layer, read by {operator}"


def _others(use: Use) -> list[ir.Value]:
    return [value for i, value in enumerate(use.node.inputs) if i != use.index and value is not None]


def _is_row(array: np.ndarray) -> bool:
    """Return whether `array` differs along one axis at most."""
    return max(array.shape, default=1) == array.size


def _is_frequency(use: Use, origins: Origins) -> bool:
    """Return whether a use is a product with a count, read only by sines and cosines.

    Cases: positions that the graph counts, and positions that are inputs.
    """
    if use.formula & {"Cos", "Sin"}:
        return bool(use.formula & _PRODUCTS)
    if standard_operator(use.node) not in _PRODUCTS or any(
        _is_real_data(value, origins) for value in _others(use)
    ):
        return False
    ends = {standard_operator(node) for node in _readers(use.node)}
    return bool(ends) and ends <= {"Cos", "Sin"}


#: Products of positions and frequencies.
_PRODUCTS = frozenset({"Einsum", "MatMul", "Mul"})


def _is_real_data(value: ir.Value, origins: Origins) -> bool:
    """Return whether `value` holds data other than counts."""
    source = behind_form(value)
    return source in origins.data and source.dtype in REAL_TYPES


def _readers(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes that read the results of `node`, after changes of their form."""
    for value in node.outputs:
        for reader, _ in value.uses():
            if standard_operator(reader) in _FORM:
                yield from _readers(reader)
            else:
                yield reader


def _is_centre(use: Use, origins: Origins) -> bool:
    """Return whether a vector is subtracted before a division by the root of another constant."""
    if standard_operator(use.node) != "Sub" or use.index != 1:
        return False
    factors = [
        value
        for reader in _readers(use.node)
        if standard_operator(reader) in ("Div", "Mul")
        for value in operands(reader)
        if value not in origins.data
    ]
    return any(_takes_root(value) for value in factors)


def _takes_root(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and (standard_operator(node) == "Sqrt" or any(map(_takes_root, operands(node))))


def _linear_behind(value: ir.Value) -> ir.Node | None:
    """Return the linear layer that computes `value`, before changes of form and slices of its result.

    Of a sum of branches, all of which are linear layers, the first one.
    """
    while node := made_by(value, *FORM, "Slice"):
        value = first(node)
    node = value.producer()
    if node is not None and standard_operator(node) in ("Add", "Sum"):
        branches = [_linear_behind(entry) for entry in operands(node)]
        return branches[0] if all(branches) else None
    if node is None or standard_operator(node) not in _LINEAR:
        return None
    return node if any(behind_form(entry).is_initializer() for entry in operands(node)) else None
