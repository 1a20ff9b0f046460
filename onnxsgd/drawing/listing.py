"""Diagrams as text."""

from __future__ import annotations

from onnxsgd.drawing.diagram import Box, Diagram

__all__ = ["write_text"]

#: Words behind tensors of these kinds.
_WORDS = {"trained": "trained", "frozen": "frozen", "state": "optimizer"}


def write_text(diagram: Diagram) -> str:
    """Return a diagram as text: a numbered line for each box, with the numbers of those that it reads.

    ::

         1  X                      input   float32  N x 4
         2  Gemm         < 1       model   coef  4 x 3 (trained), intercept  3 (trained); → N x 3
    """
    rows = [("", "box", "reads", "part", "tensors and sizes")]
    for number, box in enumerate(diagram.boxes):
        sources = [source + 1 for source, target in diagram.edges if target == number]
        rows.append((str(number + 1), box.title, ", ".join(map(str, sources)), box.kind, _content(box)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            [row[0].rjust(widths[0]), *(cell.ljust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    return _printable("\n".join([diagram.title, "", *(line.rstrip() for line in lines)]))


def _content(box: Box) -> str:
    return "; ".join(
        f"{line.text} ({_WORDS[line.kind]})"
        if line.kind in _WORDS
        else f"⇒ {line.text}"
        if line.kind == "result"
        else line.text
        for line in box.lines
    )


def _printable(text: str) -> str:
    """Return text without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
