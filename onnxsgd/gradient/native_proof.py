"""Forms of operators, and those whose gradient by onnxruntime-training is proven right.

The table is the result of a sweep, ``python tests/gradient/native_sweep.py``: a form that is not in it is
refused, because the builder's gradients of some forms are wrong, and others end the interpreter.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxsgd.gradient.native_table import PROVEN
from onnxsgd.graph.model import REAL_TYPES
from onnxsgd.graph.nodes import attribute

__all__ = ["form_of", "unproven"]

#: The operators whose gradient depends on the number of axes of space.
_WINDOWED = frozenset({"AveragePool", "Conv", "GlobalAveragePool", "MaxPool"})

#: Attributes that make another form, with the values that do not.
_DEFAULTS: dict[str, tuple[object, ...]] = {
    "auto_pad": ("NOTSET", "VALID"),
    "batch_dims": (0,),
    "ceil_mode": (0,),
    "count_include_pad": (0,),
    "group": (1,),
    "reduction": ("none", "mean", "sum"),
    "storage_order": (0,),
}

#: The operators whose other outputs make another form where something reads them.
_WITH_MORE_OUTPUTS = frozenset({"Dropout", "LayerNormalization", "SoftmaxCrossEntropyLoss"})


def form_of(node: ir.Node) -> str:
    """Return the operator of a node, its element type, whether sizes are open, and its form, as words."""
    real = [value for value in node.inputs if value is not None and value.dtype in REAL_TYPES]
    dtype = real[0].dtype if real else None
    is_open = any(value.shape is None or not value.shape.is_static() for value in real)
    words = [node.op_type, "untyped" if dtype is None else dtype.name, "open" if is_open else "fixed"]
    if node.op_type in _WINDOWED:
        shape = node.inputs[0].shape if node.inputs[0] is not None else None
        words.append("unknown rank" if shape is None else f"{len(shape) - 2}-D")
        if any(size != 1 for size in attribute(node, "dilations", ())):
            words.append("dilations")
    for name, defaults in _DEFAULTS.items():
        if attribute(node, name, defaults[0]) not in defaults:
            words.append(name)
    if node.op_type in _WITH_MORE_OUTPUTS and any(_is_read(value) for value in node.outputs[1:]):
        words.append("outputs")
    return " ".join(words)


def unproven(node: ir.Node) -> str | None:
    """Return why the gradient of a node is not trusted, as a phrase; None if its form was found right."""
    form = form_of(node)
    return None if form in PROVEN else f"{form} has no gradient in onnxruntime-training that is proven right"


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
