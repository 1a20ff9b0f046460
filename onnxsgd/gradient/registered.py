"""What the gradient builder of onnxruntime-training 1.19.2 can differentiate, as tables.

The builder raises for an operator without gradient, returns wrong gradients in a few corners, and ends
the interpreter on some graphs. These tables are asked before it is called. The tests check each line of
them against central differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from onnxsgd.gradient.dimensions import broadcast_axes, same_shape

__all__ = [
    "DIFFERENTIABLE",
    "REFUSALS",
    "UNUSED_INPUTS",
    "ZERO_GRADIENT",
    "blocks_gradient",
    "has_zero_gradient",
    "passes_gradient",
    "why_not",
]

#: The operators with a gradient, and the inputs that it flows to: their numbers, or None for all of them.
DIFFERENTIABLE: Mapping[str, tuple[int, ...] | None] = {
    "Abs": None,
    "Add": None,
    "AveragePool": None,
    "Cast": None,
    "CastLike": (0,),
    "Clip": (0,),
    "Concat": None,
    "Conv": None,
    "Cos": None,
    "Div": None,
    "Dropout": (0,),
    "Erf": None,
    "Exp": None,
    "Expand": (0,),
    "Flatten": None,
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Gelu": None,
    "Gemm": None,
    "GlobalAveragePool": None,
    "Identity": None,
    "LayerNormalization": None,
    "LeakyRelu": None,
    "Log": None,
    "LogSoftmax": None,
    "MatMul": None,
    "Max": None,
    "MaxPool": None,
    "Min": None,
    "Mul": None,
    "Neg": None,
    "Pad": (0,),
    "Pow": (0,),
    "Reciprocal": None,
    "ReduceL2": (0,),
    "ReduceLogSumExp": (0,),
    "ReduceMean": (0,),
    "ReduceSum": (0,),
    "Relu": None,
    "Reshape": (0,),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Sigmoid": None,
    "Sin": None,
    "Slice": (0,),
    "Softmax": None,
    "SoftmaxCrossEntropyLoss": (0,),
    "Split": (0,),
    "Sqrt": None,
    "Squeeze": (0,),
    "Sub": None,
    "Tanh": None,
    "Tile": (0,),
    "TopK": (0,),
    "Transpose": None,
    "Trilu": (0,),
    "Unsqueeze": (0,),
    "Where": (1, 2),
}

#: Operators whose results do not change with a small change of their inputs: no gradient flows back.
ZERO_GRADIENT = frozenset(
    [
        "And",
        "ArgMax",
        "ArgMin",
        "Ceil",
        "ConstantOfShape",
        "Equal",
        "Floor",
        "Greater",
        "GreaterOrEqual",
        "IsInf",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "NonZero",
        "Not",
        "Or",
        "RandomNormalLike",
        "RandomUniformLike",
        "Round",
        "Shape",
        "Sign",
        "Size",
        "Xor",
    ]
)


#: Inputs that do not change a result, beside shapes and indices: their numbers, by operator.
UNUSED_INPUTS: Mapping[str, tuple[int, ...]] = {"CastLike": (1,)}


def has_zero_gradient(node: ir.Node) -> bool:
    """Return whether the results of `node` do not change with a small change of its inputs."""
    return node.domain == "" and node.op_type in ZERO_GRADIENT


def passes_gradient(node: ir.Node, index: int | None) -> bool:
    """Return whether a gradient flows from the outputs of `node` to its input number `index`.

    True for operators that cannot be differentiated as well: on a path, they are to be found and refused.
    """
    if has_zero_gradient(node):
        return False
    inputs = DIFFERENTIABLE.get(node.op_type) if node.domain == "" else None
    return inputs is None or index in inputs


def blocks_gradient(node: ir.Node, index: int) -> bool:
    """Return whether results of `node` depend on its input number `index`, but no gradient flows there."""
    if passes_gradient(node, index) or has_zero_gradient(node):
        return False
    return index not in UNUSED_INPUTS.get(node.op_type, ())


def why_not(node: ir.Node) -> str | None:
    """Return why no gradient passes `node`, as a phrase; None if one does, or is zero."""
    if has_zero_gradient(node):
        return None
    if node.domain != "" or node.op_type not in DIFFERENTIABLE:
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        return f"{name} has no gradient in onnxruntime-training"
    refuse = REFUSALS.get(node.op_type)
    reason = refuse(node) if refuse is not None else None
    return f"{node.op_type} {reason} has no gradient in onnxruntime-training" if reason else None


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    found = node.attributes.get(name)
    return default if found is None else found.value


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _array(value: ir.Value | None) -> Any:
    """Return the elements of a constant; None for anything that is computed or fed."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else tensor.numpy()


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def _conv(node: ir.Node) -> str | None:
    return "with auto_pad" if _attribute(node, "auto_pad", "NOTSET").startswith("SAME") else None


def _dropout(node: ir.Node) -> str | None:
    training = _array(_input(node, 2))
    return None if training is not None and training else "outside training mode"


def _gelu(node: ir.Node) -> str | None:
    approximate = _attribute(node, "approximate", "none")
    return None if approximate == "none" else f"with approximate={approximate!r}"


def _layer_normalization(node: ir.Node) -> str | None:
    scale = _input(node, 1)
    known = scale is not None and scale.shape is not None and scale.shape.is_static()
    return None if _input(node, 2) is not None or known else "without bias, its scale of unknown shape,"


def _matmul(node: ir.Node) -> str | None:
    left, right = (_rank(value) for value in node.inputs)
    return "with a vector on the right" if right == 1 or (left == 1 and right is None) else None


def _max_pool(node: ir.Node) -> str | None:
    if _attribute(node, "storage_order", 0):
        return "with storage_order=1"
    return None


def _pad(node: ir.Node) -> str | None:
    if _attribute(node, "mode", "constant") != "constant":
        return f"with mode={_attribute(node, 'mode', 'constant')!r}"
    return "with an input 'axes'" if _input(node, 3) is not None else None


def _pow(node: ir.Node) -> str | None:
    base, exponent = node.inputs
    assert base is not None
    assert exponent is not None
    if base.dtype != exponent.dtype:
        return f"with an exponent of type {exponent.dtype}"
    return None if _rank(exponent) == 0 or broadcast_axes(base.shape, exponent.shape) == [] else _SHAPES


def _reduction(node: ir.Node) -> str | None:
    """Before opset 18, the builder writes Unsqueeze in a form that opset 13 ended."""
    return (
        None
        if _attribute(node, "keepdims", 1) or "axes" not in node.attributes
        else "with keepdims=0 before opset 18"
    )


def _noop(node: ir.Node) -> str | None:
    none = _attribute(node, "noop_with_empty_axes", 0) and _array(_input(node, 1)) is None
    return "with noop_with_empty_axes=1 and axes that are not constant" if none else None


def _scatter(node: ir.Node) -> str | None:
    data = _input(node, 0)
    if data is not None and data.dtype not in (None, ir.DataType.FLOAT):
        return f"of type {data.dtype}"
    reduction = _attribute(node, "reduction", "none")
    return None if reduction == "none" else f"with reduction={reduction!r}"


def _slice(node: ir.Node) -> str | None:
    steps = _array(_input(node, 4))
    fine = _input(node, 4) is None or (steps is not None and (steps > 0).all())
    return None if fine else "with steps that are not constant and positive"


def _transpose(node: ir.Node) -> str | None:
    known = "perm" in node.attributes or _rank(_input(node, 0)) is not None
    return None if known else "without perm, of a tensor of unknown rank,"


def _where(node: ir.Node) -> str | None:
    chosen = [value for value in node.inputs[1:] if _array(value) is None]
    return (
        None if all(same_shape(value.shape, node.outputs[0].shape) for value in chosen if value) else _SHAPES
    )


_SHAPES = "of operands whose shapes differ or are unknown"

#: In which form an operator of :data:`DIFFERENTIABLE` has no gradient after all, or a wrong one.
REFUSALS: Mapping[str, Callable[[ir.Node], str | None]] = {
    "AveragePool": _conv,
    "Conv": _conv,
    "Dropout": _dropout,
    "Gelu": _gelu,
    "LayerNormalization": _layer_normalization,
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "Pad": _pad,
    "Pow": _pow,
    "ReduceL2": _reduction,
    "ReduceLogSumExp": _reduction,
    "ReduceMean": _noop,
    "ReduceSum": _noop,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "Slice": _slice,
    "Transpose": _transpose,
    "Where": _where,
}
