"""Sizes of inputs that a graph leaves open, and the shapes inferred from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from onnxsgd.graph.integer_folding import fold_integers
from onnxsgd.graph.nodes import attribute, constant
from onnxsgd.graph.operators import Fact, having_in_ml
from onnxsgd.graph.shape_inference import ShapeInferencePass

__all__ = ["fix_sizes", "has_unknown_sizes", "infer_sizes"]

#: Operators of ai.onnx.ml whose result has the shape of their first operand; inference lacks this.
_SHAPE_KEEPING = having_in_ml(Fact.ELEMENTWISE) | {"Normalizer"}


def fix_sizes(
    model: ir.Model, batch_size: int | str, row_shapes: Mapping[str, tuple[int | str, ...]] | None = None
) -> ir.Model:
    """Return a copy of `model` for batches of one size, or of any; inner shapes are inferred anew.

    Parameters
    ----------
    model : ir.Model
        It is not changed.
    batch_size : int or str
        The first size of each input that has a shape, or a symbol for it.
    row_shapes : mapping of str to tuple of int or str, or None
        The other sizes of inputs, or symbols for them, needed if the graph leaves them open.
    """
    fixed = model.clone()
    for value in fixed.graph.inputs:
        row_shape = (row_shapes or {}).get(str(value.name))
        if row_shape is not None:
            value.shape = ir.Shape([batch_size, *row_shape])
        elif value.shape is not None and len(value.shape):
            value.shape = ir.Shape([batch_size, *value.shape[1:]])
    for node in fixed.graph:
        for value in node.outputs:
            value.shape = None
    fixed = infer_sizes(fixed)
    # as a rule inference follows sizes that nodes compute
    while has_unknown_sizes(fixed.graph) and fold_integers(fixed, with_samples=isinstance(batch_size, int)):
        fixed = infer_sizes(fixed)
    return fixed


def has_unknown_sizes(graph: ir.Graph) -> bool:
    """Tell whether inference has left sizes unknown that are not those of inputs."""
    shapes = [value.shape for node in graph for value in node.outputs]
    return any(shape is None or any(map(_is_unknown, shape)) for shape in shapes)


def _is_unknown(size: int | ir.SymbolicDim) -> bool:
    return not isinstance(size, int) and (size.value is None or str(size.value).startswith("unk__"))


def infer_sizes(model: ir.Model) -> ir.Model:
    """Infer the inner shapes of `model` in place, and return it."""
    inferred = ShapeInferencePass(strict_mode=False)(model).model
    # each round reaches the operators after those of the last one
    while _keep_shapes(inferred.graph):
        inferred = ShapeInferencePass(strict_mode=False)(inferred).model
    return inferred


def _keep_shapes(graph: ir.Graph) -> bool:
    """Set shapes that the standard's inference leaves open; return whether any was set."""
    changed = False
    for node in graph:
        output, source = node.outputs[0], node.inputs[0] if node.inputs else None
        find = _SHAPES.get((node.domain, node.op_type))
        shape = find(node, source) if find is not None and source is not None else None
        if shape is None or output.shape == shape:
            continue
        output.shape = shape
        if output.type is None and source is not None and node.op_type != "LabelEncoder":
            output.type = source.type
        changed = True
    return changed


def _same(node: ir.Node, source: ir.Value) -> ir.Shape | None:
    return source.shape if node.outputs[0].shape is None else None


def _same_unless_dropped(node: ir.Node, source: ir.Value) -> ir.Shape | None:
    """StringNormalizer: inference assumes dropped words even without stop words."""
    return None if node.attributes.get("stopwords") else source.shape


def _other_axes(node: ir.Node, axes: Sequence[int], source: ir.Value) -> ir.Shape | None:
    """Return the shape of `source` with open sizes along `axes`, where inference leaves others open too."""
    known, present = source.shape, node.outputs[0].shape
    if known is None:
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
