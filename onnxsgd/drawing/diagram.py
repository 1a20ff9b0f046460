"""Diagrams: the boxes of a picture and the edges between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import onnx_ir as ir

from onnxsgd.drawing.folding import Block, fold
from onnxsgd.drawing.marks import MarkedGraph, Part, Role
from onnxsgd.graph.nodes import bodies, constant, read_values

__all__ = ["Box", "Diagram", "Line", "make_diagram"]

#: Names are cut in the middle beyond this many characters, titles and lists of operators beyond more.
_LONGEST_NAME, _LONGEST_TITLE, _LONGEST_LIST, _LONGEST_NOTE, _LONGEST_SIZE = 22, 30, 34, 400, 12
#: Constants of up to this many elements are shown by their values.
_SHOWN_ELEMENTS = 4
#: Tensors of a node beyond this many are counted.
_MOST_LINES = 6
#: More inputs, or outputs, than this share of the boxes are drawn as one.
_SHARE_OF_DATA = 6
#: The names that numpy has for types of ONNX; other types have the same in lower case.
_TYPES = {"FLOAT": "float32", "DOUBLE": "float64"}
_INPUT, _OUTPUT, _CONSTANT, _RESULT, _PLAIN = "input", "output", "constant", "result", "plain"


@dataclass(frozen=True)
class Line:
    """A line of text in a box.

    Attributes
    ----------
    text : str
        The text.
    kind : str
        A role of a tensor, "constant", "result", an output named in the box, or "plain".
    """

    text: str
    kind: str = _PLAIN


@dataclass(frozen=True)
class Box:
    """A box.

    Attributes
    ----------
    kind : str
        "input", "output", or the part of a node.
    title : str
        The operator, the name of a tensor or of a block.
    lines : tuple of Line
        The text below it.
    note : str
        The full names, shown on hover.
    n_nodes : int
        The number of nodes inside.
    """

    kind: str
    title: str
    lines: tuple[Line, ...]
    note: str
    n_nodes: int = 0


@dataclass(frozen=True)
class Diagram:
    """Boxes in topological order, and the edges between them.

    Attributes
    ----------
    title : str
        The title.
    boxes : tuple of Box
        The boxes.
    edges : tuple of (int, int)
        Places of source and target, each pair once; the source is the lower one.
    """

    title: str
    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]

    @property
    def n_folded(self) -> int:
        """The number of nodes inside of blocks."""
        return sum(box.n_nodes for box in self.boxes if box.n_nodes > 1)


def make_diagram(marked: MarkedGraph, max_nodes: int) -> Diagram:
    """Return the diagram of a graph, with at most `max_nodes` boxes.

    Parameters
    ----------
    marked : MarkedGraph
        The graph.
    max_nodes : int
        The largest number of boxes; of a graph with more nodes, blocks of nodes are one box each.
    """
    graph = marked.graph
    read = {value for node in graph for _, value in read_values(node)}
    is_data = [value for value in graph.inputs if value not in marked.roles]
    inputs = _grouped([value for value in is_data if value in read or value in graph.outputs], max_nodes)
    outputs = _grouped([value for value in graph.outputs if value not in marked.results], max_nodes)
    order = list(Part)
    # parts depend on earlier ones only, so that this order is topological too
    nodes = sorted(
        (node for node in graph if not _is_constant(node)), key=lambda n: order.index(marked.part(n))
    )
    blocks = fold(nodes, marked.part, max_nodes - len(inputs) - len(outputs))
    boxes = [_data_box(_INPUT, group) for group in inputs]
    boxes += [_block_box(block, marked) for block in blocks]
    boxes += [_data_box(_OUTPUT, group) for group in outputs]
    return Diagram(marked.title, tuple(boxes), _edges(inputs, blocks, outputs))


def _edges(
    inputs: Sequence[Sequence[ir.Value]], blocks: Sequence[Block], outputs: Sequence[Sequence[ir.Value]]
) -> tuple[tuple[int, int], ...]:
    source = {value: place for place, group in enumerate(inputs) for value in group}
    edges: dict[tuple[int, int], None] = {}
    for place, block in enumerate(blocks, len(inputs)):
        values = [value for node in block.nodes for _, value in read_values(node)]
        edges.update(dict.fromkeys((source[value], place) for value in values if value in source))
        source.update({value: place for node in block.nodes for value in node.outputs})
    for place, group in enumerate(outputs, len(inputs) + len(blocks)):
        edges.update(dict.fromkeys((source[value], place) for value in group if value in source))
    return tuple(edge for edge in edges if edge[0] != edge[1])


def _grouped(values: list[ir.Value], max_nodes: int) -> list[list[ir.Value]]:
    """Return each value alone, or all together if they are too many."""
    return [values] if len(values) > max(1, max_nodes // _SHARE_OF_DATA) else [[value] for value in values]


def _data_box(kind: str, group: Sequence[ir.Value]) -> Box:
    note = "\n".join(f"{value.name}: {_type(value)}" for value in group)
    if len(group) > 1:
        names = shorten(", ".join(str(value.name) for value in group), _LONGEST_LIST)
        return Box(kind, f"{len(group)} {kind}s", (Line(names),), note)
    (value,) = group
    text = _type(value)
    return Box(kind, shorten(str(value.name), _LONGEST_TITLE), (Line(text),) if text else (), note)


def _block_box(block: Block, marked: MarkedGraph) -> Box:
    part, size = str(marked.part(block.nodes[0])), len(block.nodes)
    inside = set(block.nodes)
    made = [value for node in block.nodes for value in node.outputs]
    results = [name for value in made for name in marked.results.get(value, ())]
    leaving = [
        value
        for value in made
        if any(use.node not in inside for use in value.uses())
        or (value.is_graph_output() and value not in marked.results)
    ]
    lines = _tensor_lines(block.nodes, marked) if size == 1 else _summary_lines(block.nodes, marked)
    lines += [Line(shorten(name, _LONGEST_LIST), _RESULT) for name in results[:_MOST_LINES]]
    if len(results) > _MOST_LINES:
        lines.append(Line(f"and {len(results) - _MOST_LINES} more", _RESULT))
    shapes = [shape for value in leaving[:2] if (shape := _shape(value))]
    if shapes:
        lines.append(Line(f"→ {', '.join(shapes)}{' …' if len(leaving) > 2 else ''}"))
    title = block.nodes[0].op_type if size == 1 else block.name or _common_name(_tensors(block.nodes, marked))
    return Box(part, shorten(title, _LONGEST_TITLE), tuple(lines), _note(block), size)


def _tensor_lines(nodes: Sequence[ir.Node], marked: MarkedGraph) -> list[Line]:
    """Return a line for each tensor that a node reads and that is no data, and for its subgraphs."""
    (node,) = nodes
    lines = [_tensor_line(value, role) for value, role in _tensors(nodes, marked).items()]
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], Line(f"and {len(lines) - _MOST_LINES + 1} more tensors")]
    if node.domain not in ("", "ai.onnx.ml"):
        lines.insert(0, Line(shorten(node.domain, _LONGEST_NAME)))
    for body in bodies(node):
        lines.append(Line(f"body: {_operators(body, _LONGEST_NAME)}"))
    return lines


def _summary_lines(nodes: Sequence[ir.Node], marked: MarkedGraph) -> list[Line]:
    """Return lines for a block: its operators, and the sizes of its tensors."""
    lines = [Line(f"{len(nodes)} nodes"), Line(_operators(nodes, _LONGEST_LIST))]
    tensors = _tensors(nodes, marked)
    for role in Role:
        sizes = [_size(value) for value, kind in tensors.items() if kind == role]
        if sizes:
            what = "tensor" if len(sizes) == 1 else "tensors"
            lines.append(Line(f"{len(sizes)} {what}, {sum(sizes):,} numbers", str(role)))
    return lines


def _tensors(nodes: Iterable[ir.Node], marked: MarkedGraph) -> dict[ir.Value, str]:
    """Return the tensors that nodes read and that are no data, with their kinds."""
    found: dict[ir.Value, str] = {}
    for node in nodes:
        for _, value in read_values(node):
            if value in marked.roles:
                found[value] = str(marked.roles[value])
            elif constant(value) is not None:
                found[value] = _CONSTANT
    return found


def _tensor_line(value: ir.Value, kind: str) -> Line:
    array = constant(value)
    if kind == _CONSTANT and array is not None and array.size <= _SHOWN_ELEMENTS:
        return Line(shorten(_values(array), _LONGEST_NAME), kind)
    name = shorten(str(value.name), _LONGEST_NAME)
    shape = _shape(value) if array is None else " x ".join(map(str, array.shape))
    return Line(f"{name}  {shape or 'number'}", kind)


def _values(array: np.ndarray) -> str:
    numbers = [f"{x:.4g}" if array.dtype.kind == "f" else str(x) for x in array.reshape(-1).tolist()]
    return numbers[0] if array.ndim == 0 else f"[{', '.join(numbers)}]"


def _operators(nodes: Iterable[ir.Node], longest: int) -> str:
    """Return the operators of nodes, the most frequent first, as far as they fit."""
    counts = Counter(node.op_type for node in nodes).most_common()
    names = [name if count == 1 else f"{count} {name}" for name, count in counts]
    text = ""
    for name in names:
        longer = f"{text}, {name}" if text else shorten(name, longest)
        if len(longer) > longest:
            return f"{text}, …"
        text = longer
    return text


def _common_name(tensors: Iterable[ir.Value]) -> str:
    """Return the beginning that the names of tensors share, such as ``layers.0``; "block" if they do not."""
    scopes = [str(value.name).split(".")[:-1] for value in tensors if "." in str(value.name)]
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*scopes, strict=False))
    return ".".join(parts[0] for parts in shared) or "block"


def _note(block: Block) -> str:
    if len(block.nodes) > 1:
        return f"{block.name}\n{_operators(block.nodes, _LONGEST_NOTE)}".strip()
    (node,) = block.nodes
    read = ", ".join(str(value.name) for _, value in read_values(node))
    made = ", ".join(str(value.name) for value in node.outputs if value.name)
    return f"{node.op_type} {node.name or ''}\nreads {read}\nmakes {made}"


def _is_constant(node: ir.Node) -> bool:
    return node.op_type == "Constant" and node.domain == "" and not node.outputs[0].is_graph_output()


def _size(value: ir.Value) -> int:
    if (array := constant(value)) is not None:
        return int(array.size)
    return int(np.prod(value.shape.numpy())) if value.shape is not None and value.shape.is_static() else 0


def _shape(value: ir.Value) -> str:
    """Return a shape as text, ``N x 64``; empty if it is unknown or that of a number."""
    return "" if value.shape is None else " x ".join(map(_size_text, value.shape))


def _size_text(size: int | ir.SymbolicDim) -> str:
    if isinstance(size, int):
        return str(size)
    # the names that onnx invents during inference say nothing
    return "?" if size.value is None or size.value.startswith("unk__") else shorten(size.value, _LONGEST_SIZE)


def _type(value: ir.Value) -> str:
    name = "" if value.dtype is None else value.dtype.name
    return "  ".join(text for text in (_TYPES.get(name, name.lower()), _shape(value)) if text)


def shorten(text: str, longest: int) -> str:
    """Return `text`, without its middle if it is long."""
    if len(text) <= longest:
        return text
    tail = (longest - 1) * 3 // 5
    return f"{text[: longest - 1 - tail]}…{text[len(text) - tail :]}"
