"""Sphinx configuration."""

import importlib.metadata
import runpy
from pathlib import Path

project = "onnxsgd"
author = "The onnxsgd developers"
release = importlib.metadata.version("onnxsgd")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
autosummary_generate = True
numpydoc_show_class_members = False
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"description": "A model that already works keeps learning"}

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/(fine_tune|diabetes|digits|breast)_",
    "ignore_pattern": r"node|adapt_|train_without",
    "download_all_examples": False,
}


def setup(app):
    """Write the page of the architecture, and draw its picture, from the imports of today."""
    folder = Path(app.confdir)
    script = runpy.run_path(str(folder / "make_architecture.py"))
    (folder / "architecture.rst").write_text(script["page"](), encoding="utf-8")
    script["draw"](folder / "architecture.svg")
