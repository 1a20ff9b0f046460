"""Sphinx configuration."""

import importlib.metadata

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
