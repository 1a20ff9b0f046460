"""The notebooks of the gallery run from top to bottom, and their pages are whole in a headless browser.

Without a browser, a notebook runs, and its test is skipped at the page.
"""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
from headless import look_at

EXAMPLES = Path(__file__).parent.parent / "examples"
#: Of the extra "docs": the converter of the gallery, the one to pages, and the kernel.
PACKAGES = ("sphinx_gallery", "nbconvert", "ipykernel")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
WIDTHS = (390, 1280)
#: Roles, directives, literals, links and substitutions of reStructuredText, as a reader would see them.
_RST = re.compile(r":[a-z]+:\S|\.\. [\w-]+::|``|`_|\|\w+\||\\begin\{")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    # those of the converters; the kernel is another process, whose warnings are in the notebook
    pytest.mark.filterwarnings("ignore"),
]


def run_notebook(name, folder):
    """Return the notebook that the gallery offers, with the outputs of a fresh kernel."""
    import nbformat
    from nbconvert.preprocessors import ExecutePreprocessor
    from sphinx_gallery.notebook import python_to_jupyter_cli

    shutil.copy(EXAMPLES / f"{name}.py", folder)
    python_to_jupyter_cli([str(folder / f"{name}.py")])
    notebook = nbformat.read(folder / f"{name}.ipynb", as_version=4)
    # raises at a cell with an error
    ExecutePreprocessor(timeout=300).preprocess(notebook, {"metadata": {"path": str(folder)}})
    return notebook


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("plot_*.py")))
def test_a_notebook_runs_and_is_a_whole_page(name, tmp_path, monkeypatch):
    from nbconvert import HTMLExporter

    # with a backend of its own, matplotlib shows nothing in a notebook
    monkeypatch.delenv("MPLBACKEND", raising=False)
    notebook = run_notebook(name, tmp_path)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    assert pictures > 0
    page = tmp_path / f"{name}.html"
    page.write_text(HTMLExporter().from_notebook_node(notebook)[0], encoding="utf-8")
    for width, seen in zip(WIDTHS, look_at(page, ".jp-MarkdownCell", WIDTHS, tmp_path), strict=True):
        assert seen["width"] <= width
        assert len(seen["images"]) >= pictures
        assert all(natural > 0 and shown <= width for natural, shown in seen["images"])
        assert seen["text"].strip()
        assert _RST.findall(seen["text"]) == []
