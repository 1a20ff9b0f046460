"""The object that :func:`onnxsgd.plot_graph` returns."""

from __future__ import annotations

import os
from html import escape
from importlib.util import find_spec
from pathlib import Path

from onnxsgd._cached_property import cached_property
from onnxsgd._files import path_of, write_whole
from onnxsgd.drawing.diagram import Diagram
from onnxsgd.drawing.listing import write_text
from onnxsgd.drawing.svg import write_svg
from onnxsgd.exceptions import ParameterError

__all__ = ["GraphPlot"]


class GraphPlot:
    """A drawn graph, which notebooks show as a picture, and consoles as text.

    Without igraph, notebooks show the text.

    Parameters
    ----------
    diagram : Diagram
        The boxes and edges.
    """

    def __init__(self, diagram: Diagram) -> None:
        self.diagram = diagram

    @cached_property
    def svg(self) -> str:
        """The picture, the text of an SVG file.

        Raises
        ------
        MissingRuntimeError
            If igraph is not installed.
        """
        return write_svg(self.diagram)

    @cached_property
    def text(self) -> str:
        """The text: a line for each box, with the numbers of those that it reads."""
        return write_text(self.diagram)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture, or the text, to a file.

        Parameters
        ----------
        path : str or path-like
            A file name that ends in ``.svg`` or ``.txt``.

        Returns
        -------
        pathlib.Path
            The path.

        Raises
        ------
        ParameterError
            If it ends otherwise, is empty, or holds a zero byte.
        ParameterTypeError
            If it is no str or path-like.
        OSError
            If the file cannot be written. An earlier one stays.
        MissingRuntimeError
            For ``.svg``, if igraph is not installed.
        """
        file = path_of(path)
        if file.suffix not in (".svg", ".txt"):
            raise ParameterError(
                f"path={os.fspath(path)!r} is not accepted: it must end in '.svg' or '.txt'."
            )
        content = self.svg if file.suffix == ".svg" else self.text + "\n"
        write_whole({file: lambda name: Path(name).write_text(content, encoding="utf-8")})
        return file

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        diagram = self.diagram
        return f"<GraphPlot: {diagram.title}; {len(diagram.boxes)} boxes, {len(diagram.edges)} edges>"

    def _repr_svg_(self) -> str | None:
        return self.svg if find_spec("igraph") else None

    def _repr_html_(self) -> str:
        if not find_spec("igraph"):
            return f"<pre>{escape(self.text)}</pre>"
        return f'<div style="overflow:auto;max-height:900px">{self.svg}</div>'

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return the forms that a notebook chooses from."""
        bundle = {"text/plain": self.text, "text/html": self._repr_html_()}
        picture = self._repr_svg_()
        return bundle if picture is None else {**bundle, "image/svg+xml": picture}
