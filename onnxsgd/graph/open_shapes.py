"""Shapes that the inference of onnx leaves open."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, constant
from onnxsgd.graph.operators import Fact, having_in_ml

__all__ = ["fill_open_shapes"]

#: Operators of ai.onnx.ml whose result has the shape of their first operand, and those of them whose result
#: is float32 whatever the operand is.
_ALWAYS_FLOAT = frozenset({"Normalizer", "Scaler"})
_SHAPE_KEEPING = having_in_ml(Fact.ELEMENTWISE) | _ALWAYS_FLOAT
_FLOAT = ir.TensorType(ir.DataType.FLOAT)


def fill_open_shapes(graph: ir.Graph) -> bool:
    """Set shapes of `graph` that the inference of onnx leaves open.

    Returns
    -------
    bool
        Whether any was set: inference can then reach the operators behind it.
    """
    changed = False
    for node in graph:
        output, source = node.outputs[0], node.inputs[0] if node.inputs else None
        find = _SHAPES.get((node.domain, node.op_type))
        shape = find(node, source) if find is not None and source is not None else None
        if shape is None or not _tells_more(shape, output.shape):
            continue
        output.shape = shape
        if output.type is None and source is not None and node.op_type != "LabelEncoder":
            output.type = _FLOAT if node.op_type in _ALWAYS_FLOAT else source.type
        changed = True
    return changed


def _tells_more(shape: ir.Shape, present: ir.Shape | None) -> bool:
    """Tell whether a shape has another rank than the present one, or a size or name that this one lacks."""
    if present is None or len(present) != len(shape):
        return True
    return any(_knowledge(new) > _knowledge(old) for new, old in zip(shape, present, strict=True))


def _knowledge(size: int | ir.SymbolicDim) -> int:
    """Return 2 for a number, 1 for a name, and 0 for neither; inference makes up names of its own."""
    if isinstance(size, int):
        return 2
    return int(size.value is not None and not str(size.value).startswith("unk__"))


def _same(node: ir.Node, source: ir.Value) -> ir.Shape | None:
    return source.shape if node.outputs[0].shape is None else None


def _same_unless_dropped(node: ir.Node, source: ir.Value) -> ir.Shape | None:
    """StringNormalizer: inference assumes dropped words even without stop words."""
    return None if node.attributes.get("stopwords") else source.shape


def _other_axes(node: ir.Node, axes: Sequence[int], source: ir.Value) -> ir.Shape | None:
    """Return the shape of `source` with open sizes along `axes`, where inference leaves others open too."""
    known, present = source.shape, node.outputs[0].shape
    if known is None or not len(known):
        return None
    named = {axis % len(known) for axis in axes}
    sizes = [None if axis in named else size for axis, size in enumerate(known)]
    if present is None or len(present) != len(known):
        return ir.Shape(sizes)
    lacks = any(
        not isinstance(old, int) and isinstance(new, int) for old, new in zip(present, sizes, strict=True)
    )
    pairs = zip(present, sizes, strict=True)
    return ir.Shape([old if isinstance(old, int) else new for old, new in pairs]) if lacks else None


def _resized(node: ir.Node, source: ir.Value) -> ir.Shape | None:
    """Resize to computed sizes: the axes that it does not name keep theirs."""
    axes = attribute(node, "axes")
    return None if axes is None else _other_axes(node, axes, source)


def _sliced(node: ir.Node, source: ir.Value) -> ir.Shape | None:
    """Slice from computed starts: the axes that it does not name keep their sizes."""
    axes = constant(node.inputs[3]) if len(node.inputs) > 3 else None
    return None if axes is None else _other_axes(node, axes.reshape(-1).tolist(), source)


def _tokens(node: ir.Node, source: ir.Value) -> ir.Shape | None:
    """Tokenizer: one more axis, of the length of the longest text of a batch."""
    known = source.shape is not None and node.outputs[0].shape is None
    return ir.Shape([*source.shape, None]) if known and source.shape is not None else None


#: The shape of the result of operators for which the standard's inference leaves it open.
_SHAPES: dict[tuple[str, str], Callable[[ir.Node, ir.Value], ir.Shape | None]] = {
    **{("ai.onnx.ml", name): _same for name in _SHAPE_KEEPING},
    ("", "Resize"): _resized,
    ("", "Slice"): _sliced,
    ("", "StringNormalizer"): _same_unless_dropped,
    ("com.microsoft", "Tokenizer"): _tokens,
}
