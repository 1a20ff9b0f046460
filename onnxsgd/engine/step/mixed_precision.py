"""Steps that compute in 16 bits: weights in float32, casts, and the dynamic scale of the loss.

Forward and backward pass have the types of the graph; weights, their states, the loss and the update have
float32. Gradients of float16 are computed from a scaled loss, as small ones would be zero, and divided by the
scale in float32. The scale is a state of the step, with the rule of torch's ``GradScaler``: halved after an
update whose gradients are not finite, which is not made, and doubled after 2,000 updates in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxsgd.graph.model import HALF_TYPES, graph_names, nodes_within, unique_name
from onnxsgd.graph.nodes import bodies, graph_of, maker
from onnxsgd.graph.writing import computed

if TYPE_CHECKING:
    from onnxsgd._builder import Builder

__all__ = [
    "FIRST_SCALE", "GOOD_UPDATES", "LEAST_SCALE", "LOSS_SCALE", "SCALER", "SKIPPED", "LossScale",
    "all_finite", "narrowed", "widen_inputs", "widen_missing", "widened",
]  # fmt: skip

#: The owner of the states of the loss scale, in the place of a weight: no tensor has an empty name.
SCALER = ""
#: These states: the scale, the updates since it changed, and the skipped updates of a call.
LOSS_SCALE, GOOD_UPDATES, SKIPPED = "loss_scale", "good_updates", "skipped"
#: The rule of ``torch.amp.GradScaler``.
FIRST_SCALE, _GROWTH, _BACKOFF, _INTERVAL = 65536.0, 2.0, 0.5, 2000.0
#: The largest power of two of float32: a scale that would be infinite stays.
_LARGEST_SCALE = 2.0**127
#: The smallest positive number of float16. Gradients that still overflow with a scale below it are not finite
#: themselves: no update would be made again.
LEAST_SCALE = 2.0**-24
#: Standard operators with a kernel for bfloat16 on a GPU, in onnxruntime 1.31: those for which a session that
#: must not use the CPU is made.
_BFLOAT16_KERNELS = frozenset({
    "Abs", "Add", "AveragePool", "Cast", "Concat", "Conv", "Cos", "Div", "Erf", "Exp", "Expand", "Flatten",
    "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "HardSigmoid", "HardSwish", "Identity",
    "LayerNormalization", "LpNormalization", "MatMul", "Max", "Min", "Mish", "Mod", "Mul", "Neg", "Pow",
    "ReduceL1", "ReduceMean", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "ScatterElements",
    "ScatterND", "Shape", "Sigmoid", "Sign", "Sin", "Slice", "Softmax", "Softplus", "Softsign", "Split",
    "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Tile", "Transpose", "Unsqueeze", "Where",
})  # fmt: skip


@dataclass(frozen=True)
class LossScale:
    """The states of the loss scale, inputs of a step.

    Attributes
    ----------
    scale, good_updates : ir.Value of shape [] and type float32
        The factor of the loss, and the number of updates since it changed.
    skipped : ir.Value of shape [1] and type int64
        The number of updates that were not made.
    """

    scale: ir.Value
    good_updates: ir.Value
    skipped: ir.Value

    @classmethod
    def of_graph(cls, graph: ir.Graph) -> LossScale:
        """Add the states to the inputs of a graph."""
        names, made = graph_names(graph), []
        for name, dtype, shape in (
            (LOSS_SCALE, ir.DataType.FLOAT, []),
            (GOOD_UPDATES, ir.DataType.FLOAT, []),
            (SKIPPED, ir.DataType.INT64, [1]),
        ):
            type_ = ir.TensorType(dtype)
            made.append(ir.Value(name=unique_name(name, names), type=type_, shape=ir.Shape(shape)))
        graph.inputs.extend(made)
        return cls(*made)

    def found_in(self, inputs: Mapping[str | None, ir.Value]) -> LossScale:
        """Return the same states in a copy of the graph."""
        return LossScale(*(inputs[value.name] for value in (self.scale, self.good_updates, self.skipped)))

    @property
    def tensors(self) -> dict[tuple[str, str], ir.Value]:
        """The states under (owner, kind)."""
        return {
            (SCALER, LOSS_SCALE): self.scale,
            (SCALER, GOOD_UPDATES): self.good_updates,
            (SCALER, SKIPPED): self.skipped,
        }

    def unscaled(self, op: Builder, gradient: ir.Value) -> ir.Value:
        """Return a gradient of the scaled loss, in float32, as that of the loss."""
        result = op.Div(gradient, self.scale)
        result.type, result.shape = gradient.type, gradient.shape
        return result

    def updated(
        self, op: Builder, is_finite: ir.Value, is_last: ir.Value | None
    ) -> dict[tuple[str, str], ir.Value]:
        """Return the new states.

        Parameters
        ----------
        op : Builder
            The builder of the step.
        is_finite : ir.Value
            Whether the update is made.
        is_last : ir.Value or None
            Whether the batch is the last one of an update, bool; None: each batch is.
        """
        count = op.Add(self.good_updates, 1.0)
        grows = op.GreaterOrEqual(count, _INTERVAL)
        grown = op.Min(op.Mul(self.scale, _GROWTH), _LARGEST_SCALE)
        scale = op.Where(is_finite, op.Where(grows, grown, self.scale), op.Mul(self.scale, _BACKOFF))
        zero = op.Mul(count, 0.0)
        good = op.Where(is_finite, op.Where(grows, zero, count), zero)
        skipped = op.Add(self.skipped, op.Reshape(op.Cast(op.Not(is_finite), to=ir.DataType.INT64), [1]))
        new = dict(zip(self.tensors, (scale, good, skipped), strict=True))
        if is_last is None:
            return new
        return {key: op.Where(is_last, value, self.tensors[key]) for key, value in new.items()}


def all_finite(op: Builder, gradients: Mapping[str, ir.Value], active: Mapping[str, ir.Value]) -> ir.Value:
    """Return whether all gradients are finite, without those of weights that are frozen in this update.

    A finite number times zero is zero, every other one is not, and no reduction loses that.
    """
    parts = []
    for name, gradient in gradients.items():
        part = op.ReduceSum(op.Mul(gradient, 0.0), keepdims=0)
        if name in active:
            part = op.Where(op.Greater(active[name], 0.0), part, 0.0)
        parts.append(part)
    total, *others = parts
    for part in others:
        total = op.Add(total, part)
    return op.Equal(total, 0.0)


def widened(op: Builder, value: ir.Value) -> ir.Value:
    """Return a tensor of 16 bits in float32; others as given."""
    if value.dtype not in HALF_TYPES:
        return value
    wide = op.Cast(value, to=ir.DataType.FLOAT)
    wide.type, wide.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
    return wide


def narrowed(op: Builder, value: ir.Value, like: ir.Value) -> ir.Value:
    """Return a tensor in the type of another, if that has 16 bits; otherwise as given."""
    return op.Cast(value, to=like.dtype) if like.dtype in HALF_TYPES else value


def widen_inputs(graph: ir.Graph) -> None:
    """Let the inputs of 16 bits be float32, and cast them inside, in place."""
    names = graph_names(graph)
    # it loads onnxscript, and estimators import this module
    from onnxsgd.graph.append import appending

    with appending(graph) as op:
        for index, value in enumerate(list(graph.inputs)):
            if value.dtype not in HALF_TYPES:
                continue
            name = str(value.name)
            wide = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=value.shape)
            half = op.Cast(wide, to=value.dtype)
            half.type, half.shape = value.type, value.shape
            ir.convenience.replace_all_uses_with(value, half, replace_graph_outputs=True)
            value.name = unique_name(f"{name}_given", names)
            graph.inputs[index] = wide


def widen_missing(graph: ir.Graph) -> None:
    """Let operators that lack a kernel for bfloat16 on a GPU compute in float32, in place.

    Their results are rounded to bfloat16, as torch rounds those that it computes in float32. Shapes and types
    of all tensors are known. Operators with subgraphs keep the types of these, whose operators are changed.
    """
    names = graph_names(graph)
    for node in list(nodes_within(graph)):
        if node.domain or node.op_type in _BFLOAT16_KERNELS or list(bodies(node)):
            continue
        narrow = [value for value in node.inputs if value is not None and value.dtype == ir.DataType.BFLOAT16]
        if not narrow:
            continue
        around = graph_of(node)
        for index, value in enumerate(node.inputs):
            if value is not None and value in narrow:
                name = unique_name(f"{value.name}_wide", names)
                wide = computed("Cast", [value], {"to": ir.DataType.FLOAT}, name=name)
                wide.type, wide.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
                around.insert_before(node, maker(wide))
                node.replace_input_with(index, wide)
        for result in node.outputs:
            if result.dtype != ir.DataType.BFLOAT16:
                continue
            rounded = computed("Cast", [result], {"to": ir.DataType.BFLOAT16}, name=result.name, like=result)
            result.name = unique_name(f"{result.name}_wide", names)
            result.type = ir.TensorType(ir.DataType.FLOAT)
            ir.convenience.replace_all_uses_with(result, rounded, replace_graph_outputs=True)
            maker(rounded).replace_input_with(0, result)
            around.insert_after(node, maker(rounded))
