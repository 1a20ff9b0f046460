"""Diagrams as SVG.

Colours, borders and words each tell the kinds apart: a picture is read in grey and by the colour-blind too.
The colours are tints of the palette of Okabe and Ito, whose lightness differs from kind to kind. The picture
has its own background, so that it is legible on pages of any colour, and is dark where the reader prefers
that.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from onnxsgd.drawing.diagram import Box, Diagram
from onnxsgd.drawing.layout import lay_out
from onnxsgd.drawing.marks import Part, Role

__all__ = ["STYLES", "Style", "write_svg"]


@dataclass(frozen=True)
class Style:
    """The look of a kind of boxes or lines.

    Attributes
    ----------
    label : str
        Its name in the legend.
    light, dark : str
        The colours of its fill on light and on dark pages.
    border : str
        The dashes of its border, as in SVG; empty for a solid one.
    width : float
        The width of its border.
    """

    label: str
    light: str
    dark: str
    border: str = ""
    width: float = 1.2


#: The look of each kind of boxes, then of lines.
STYLES = {
    "input": Style("input", "#ffffff", "#0d1013", "", 2.4),
    "output": Style("output", "#ffffff", "#0d1013", "", 2.4),
    str(Part.MODEL): Style("model", "#eef1f4", "#1f2428"),
    str(Part.LOSS): Style("loss", "#e7cbd9", "#542f43", "", 3.0),
    str(Part.GRADIENT): Style("gradient", "#5cb6e9", "#285b77", "6 3", 1.6),
    str(Part.UPDATE): Style("update", "#32a27b", "#007d5a", "1.5 2.5", 1.8),
    str(Role.TRAINED): Style("trained tensor", "#f0a818", "#f0a818"),
    str(Role.FROZEN): Style("frozen tensor", "#d3d8dc", "#4d5660", "4 2", 1.0),
    str(Role.STATE): Style("state or number of the optimizer", "#ffffff", "#0d1013", "1 2", 1.0),
}

#: The marks at the beginning of lines.
_SIGNS = {str(Role.TRAINED): "●", str(Role.FROZEN): "○", str(Role.STATE): "◇", "result": "⇒"}

#: Widths of characters, sizes and distances in pixels.
_WIDE, _NARROW, _LINE, _TITLE, _MARGIN, _PAD, _LEGEND = 8.2, 6.65, 17.0, 20.0, 18.0, 9.0, 24.0
_SMALLEST = 46.0

_CSS = """
.onnxsgd-graph text{{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}}
.onnxsgd-graph text{{white-space:pre}}
.onnxsgd-graph .t{{font:600 12.5px system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}}
.onnxsgd-graph .h{{font:600 14px system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}}
.onnxsgd-graph .g{{font:italic 10.5px system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}}
.onnxsgd-graph .e{{fill:none;stroke-width:1.3}}
{light}
@media screen and (prefers-color-scheme:dark){{
{dark}
}}
"""
#: Ink and paper on light and dark pages, and the ink of edges.
_LIGHT, _DARK = ("#15191d", "#ffffff", "#5b6670"), ("#f1f3f5", "#171b1f", "#9aa5b0")
#: The ink on fills that are equally light on both pages.
_BLACK_ON = str(Role.TRAINED)


def write_svg(diagram: Diagram) -> str:
    """Return a diagram as the text of an SVG file.

    Raises
    ------
    MissingRuntimeError
        If igraph is not installed.
    """
    sizes = [_size(box) for box in diagram.boxes]
    layout = lay_out(sizes, diagram.edges)
    header = _header(diagram)
    legend, legend_width = _legend(diagram, max(layout.width, 420.0))
    width = max(layout.width, legend_width, len(header) * _WIDE) + 2 * _MARGIN
    left = (width - layout.width) / 2
    top = _MARGIN + 24.0
    legend_top = top + layout.height + 26.0
    height = legend_top + legend[-1][1] + _LEGEND + _MARGIN / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="onnxsgd-graph" role="img" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{_text(header)}</title>",
        f"<style>{_css()}</style>",
        f'<rect class="p" width="{width:.0f}" height="{height:.0f}" rx="6"/>',
        f'<text class="h" x="{_MARGIN}" y="{_MARGIN + 8}">{_text(header)}</text>',
        f'<g transform="translate({left:.1f} {top:.1f})">',
        *(_edge(points) for points in layout.edges),
        *(_box(*item) for item in zip(diagram.boxes, layout.boxes, sizes, strict=True)),
        "</g>",
        f'<g class="legend" transform="translate({_MARGIN} {legend_top:.1f})">',
        *(_legend_entry(kind, x, y) for kind, y, x in legend),
        "</g></svg>",
    ]
    return "\n".join(parts)


def _header(diagram: Diagram) -> str:
    folded = diagram.n_folded
    return f"{diagram.title}, {folded} nodes in blocks" if folded else diagram.title


def _css() -> str:
    light = [_colours(_LIGHT), *(f".onnxsgd-graph .{kind} rect{{{_look(kind)}}}" for kind in STYLES)]
    light += [f".onnxsgd-graph rect.{kind}{{{_look(kind)}}}" for kind in STYLES]
    light.append(f".onnxsgd-graph text.{_BLACK_ON}{{fill:#15191d}}")
    dark = [_colours(_DARK)]
    for kind, style in STYLES.items():
        dark.append(f".onnxsgd-graph .{kind}>rect,.onnxsgd-graph rect.{kind}{{fill:{style.dark}}}")
    dark.append(f".onnxsgd-graph text.{_BLACK_ON}{{fill:#15191d}}")
    return _CSS.format(light="\n".join(light), dark="\n".join(dark))


def _colours(colours: tuple[str, str, str]) -> str:
    ink, paper, edge = colours
    return (
        f".onnxsgd-graph text{{fill:{ink}}}.onnxsgd-graph .p{{fill:{paper}}}"
        f".onnxsgd-graph rect{{stroke:{edge}}}"
        f".onnxsgd-graph .p{{stroke:none}}.onnxsgd-graph .e{{stroke:{edge}}}.onnxsgd-graph .a{{fill:{edge}}}"
    )


def _look(kind: str) -> str:
    style = STYLES[kind]
    return f"fill:{style.light};stroke-width:{style.width};stroke-dasharray:{style.border or 'none'}"


def _size(box: Box) -> tuple[float, float]:
    tag = _measure(_tag(box), _NARROW) + 12.0 if _tag(box) else 0.0
    widths = [_measure(box.title, _WIDE) + tag]
    widths += [_measure(_line(line.text, line.kind), _NARROW) + 6.0 for line in box.lines]
    height = _TITLE + _LINE * len(box.lines) + 8.0
    return max(_SMALLEST, max(widths) + 2 * _PAD), height


def _tag(box: Box) -> str:
    """Return the word beside the title of all boxes but the model's."""
    return "" if box.kind == Part.MODEL else STYLES[box.kind].label


def _line(text: str, kind: str) -> str:
    return f"{_SIGNS[kind]} {text}" if kind in _SIGNS else text


def _box(box: Box, corner: tuple[float, float], size: tuple[float, float]) -> str:
    (x, y), (width, height) = corner, size
    is_data = box.kind in ("input", "output")
    parts = [f'<g class="box {box.kind}"><title>{_text(box.note)}</title>']
    if box.n_nodes > 1:
        # the edge of a second sheet behind a block
        parts.append(_rectangle(x + 4, y + 4, width, height, 5))
    parts.append(_rectangle(x, y, width, height, 14 if is_data else 5))
    parts.append(f'<text class="t" x="{x + _PAD:.1f}" y="{y + 17:.1f}">{_text(box.title)}</text>')
    if tag := _tag(box):
        place = f'text-anchor="end" x="{x + width - _PAD:.1f}" y="{y + 16.5:.1f}"'
        parts.append(f'<text class="g" {place}>{_text(tag)}</text>')
    for number, line in enumerate(box.lines):
        top = y + _TITLE + 4.0 + _LINE * number
        if line.kind in STYLES:
            parts.append(_rectangle(x + 4, top, width - 8, _LINE - 2, 2, line.kind))
        text = _text(_line(line.text, line.kind))
        parts.append(f'<text class="{line.kind}" x="{x + _PAD:.1f}" y="{top + 11.5:.1f}">{text}</text>')
    return "".join([*parts, "</g>"])


def _rectangle(x: float, y: float, width: float, height: float, corners: int, kind: str = "") -> str:
    name = f'class="{kind}" ' if kind else ""
    return f'<rect {name}x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{corners}"/>'


def _edge(points: Sequence[tuple[float, float]]) -> str:
    """Return a curve through points, vertical at both ends of each piece, with an arrowhead."""
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x, y), (x2, y2) in pairwise(points):
        middle = (y + y2) / 2
        straight = abs(x - x2) < 0.5
        path += f"V{y2:.1f}" if straight else f"C{x:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"
    x, y = points[-1]
    head = f"M{x:.1f} {y:.1f}l-4 -7h8z"
    return f'<path class="e" d="{path}"/><path class="a" d="{head}"/>'


def _legend(diagram: Diagram, width: float) -> tuple[list[tuple[str, float, float]], float]:
    """Return (kind, y, x) of each entry of the legend, and its width."""
    shown = {box.kind for box in diagram.boxes} | {line.kind for box in diagram.boxes for line in box.lines}
    entries, x, y, widest = [], 0.0, 0.0, 0.0
    for kind, style in STYLES.items():
        # inputs and outputs are named in their boxes
        if kind not in shown or kind in ("input", "output"):
            continue
        size = 34.0 + _measure(style.label, _NARROW) + 16.0
        if x and x + size > width:
            x, y = 0.0, y + _LEGEND
        entries.append((kind, y, x))
        x += size
        widest = max(widest, x)
    return entries, widest


def _legend_entry(kind: str, x: float, y: float) -> str:
    sign = f'<text class="{kind}" x="{x + 9:.1f}" y="{y + 12:.1f}">{_SIGNS.get(kind, "")}</text>'
    return (
        f"{_rectangle(x, y, 26, 16, 3, kind)}{sign}"
        f'<text x="{x + 33:.1f}" y="{y + 12:.1f}">{_text(STYLES[kind].label)}</text>'
    )


def _measure(text: str, width: float) -> float:
    return width * sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _text(text: str) -> str:
    """Return text for XML: escaped, without characters that XML cannot hold."""
    return escape("".join(_legal(text)))


def _legal(text: str) -> Iterator[str]:
    for character in text:
        yield "\ufffd" if _ILLEGAL.match(character) else character


#: Characters that XML 1.0 excludes, and those that turn the direction of text.
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]")
