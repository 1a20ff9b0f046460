"""Sphinx configuration."""

import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
# The documentation describes the package beside it, installed or not.
sys.path.insert(0, str(FOLDER.parent))

import numpydoc.xref
from sphinx_gallery.sorting import ExplicitOrder

import onnxsgd

project = "onnxsgd"
author = "The onnxsgd developers"
release = onnxsgd.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "**/*.inc"]
templates_path = ["_templates"]


def _script(name):
    """Return the names that a script of this folder defines."""
    return runpy.run_path(str(FOLDER / f"{name}.py"))


autosummary_generate = True
autosummary_context = {"public_methods": _script("make_tables")["public_methods"]()}
autodoc_typehints = "none"
toc_object_entries_show_parents = "hide"
# Types such as int stay plain words: links to Python's own are noise.
numpydoc.xref.DEFAULT_LINKS.clear()
numpydoc_show_class_members = False
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"
numpydoc_xref_aliases = {
    "ndarray": "numpy.ndarray",
    "RandomState": "numpy.random.RandomState",
    "Loss": "onnxsgd.losses.Loss",
    "Optimizer": "onnxsgd.optimizers.Optimizer",
    "Schedule": "onnxsgd.schedules.Schedule",
}

# The script writes both inventories from the names in use: a build reads no network.
intersphinx_mapping = _script("make_inventories")["written"](numpydoc_xref_aliases.values())

html_theme = "pydata_sphinx_theme"
html_title = "onnxsgd"
html_static_path = ["_static"]
html_css_files = ["onnxsgd.css"]
html_show_sourcelink = False
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "header_links_before_dropdown": 7,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "secondary_sidebar_items": ["page-toc"],
}
html_sidebars = {
    page: [] for page in ("index", "install", "getting_started", "how_it_works", "faq", "coming_from")
}
html_math_renderer = "mathml"
copybutton_exclude = ".linenos, .gp, .go"

gallery = _script("gallery")
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/plot_",
    # Scripts with other names are run by hand, or by tests: they are no cards.
    "ignore_pattern": r"^(?!plot_)",
    "within_subsection_order": ExplicitOrder([f"{name}.py" for name in gallery["EXAMPLES"]]),
    "download_all_examples": False,
    "show_signature": False,
    # that page loads scripts over the network
    "write_computation_times": False,
    "reference_url": {"onnxsgd": None},
    "doc_module": "onnxsgd",
    "backreferences_dir": "generated/backreferences",
}


def setup(app):
    """Write the generated pages, tables and pictures, and register the renderer of formulas."""
    architecture = _script("make_architecture")
    (FOLDER / "architecture.rst").write_text(architecture["page"](), encoding="utf-8")
    architecture["draw"](FOLDER / "architecture.svg")
    _script("make_tables")["write"]()
    _script("draw_pictures")["draw"]()
    # later than the gallery is made
    app.connect("builder-inited", gallery["crop_thumbnails"], priority=900)
    mathml = _script("mathml")
    app.add_html_math_renderer("mathml", (mathml["visit_inline"], None), (mathml["visit_block"], None))
