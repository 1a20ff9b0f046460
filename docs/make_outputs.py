"""Run the Python blocks of the README and of the pages, and write the output below each.

A page is one program: its blocks share their names. A block of the class ``illustration`` is not run. The
block that directly follows one, in the language ``text``, is its output. Names of pages may be given:
``python docs/make_outputs.py docs/guide/losses.rst``. ``tests/test_pages.py`` compares the outputs.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_RST = re.compile(
    r"^\.\. code-block:: python\n((?:   :.*\n)*)\n((?:   .*\n|\n)+?)(?=^\S|\Z)"
    r"(?:^\.\. code-block:: text\n((?:   :.*\n)*)\n((?:   .*\n|\n)+?)(?=^\S|\Z))?",
    re.MULTILINE,
)
_MARKDOWN = re.compile(r"^```python\n()((?:.*\n)*?)```\n(?:\n```text\n()((?:.*\n)*?)```\n)?", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code, the line it starts on, and the text and the place of its output, if any."""

    code: str
    line: int
    output: str | None
    place: tuple[int, int]


def pages():
    """Return the files with blocks of code."""
    found = [ROOT / "README.md", *ROOT.glob("docs/*.rst"), *ROOT.glob("docs/guide/*.rst")]
    return sorted(path for path in found if blocks(path.read_text(encoding="utf-8"), path.suffix))


def blocks(text, suffix):
    """Return the blocks of a page that are run."""
    found = []
    for match in (_MARKDOWN if suffix == ".md" else _RST).finditer(text):
        if "illustration" not in match[1]:
            line = text.count("\n", 0, match.start(2)) + 1
            output = None if match[4] is None else textwrap.dedent(match[4]).strip()
            found.append(Block(textwrap.dedent(match[2]), line, output, match.span(4)))
    return found


def run(path):
    """Yield each block of a page with the text that it prints."""
    names = {"__name__": "__main__"}
    for block in blocks(path.read_text(encoding="utf-8"), path.suffix):
        printed = io.StringIO()
        # lines of a traceback are those of the page
        code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        yield block, printed.getvalue().strip()


def write(path):
    """Write the outputs into a page."""
    text = path.read_text(encoding="utf-8")
    for block, printed in reversed(list(run(path))):
        if block.output is not None:
            start, end = block.place
            body = printed if path.suffix == ".md" else textwrap.indent(printed, "   ")
            tail = re.search(r"\n*\Z", text[start:end])[0] if path.suffix != ".md" else "\n"
            text = text[:start] + body + tail + text[end:]
        elif printed:
            print(f"{path}, line {block.line}: prints, but no output follows:\n{printed}")
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or pages()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for page in chosen:
            write(page)
