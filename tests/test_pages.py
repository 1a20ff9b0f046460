"""The code on the pages runs, and prints the output that stands below it."""

import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from onnxsgd import losses
from onnxsgd.schedules import SCHEDULES

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "make_outputs.py"))

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")
#: Runtimes round differently: units of the last digit by which a number with a fraction may differ.
_UNITS = 3.01


def assert_same_output(printed, expected):
    """Compare texts: words and whole numbers are equal, other numbers nearly so; spaces do not matter."""
    assert _NUMBER.sub("#", printed).split() == _NUMBER.sub("#", expected).split(), printed
    for given, wanted in zip(_NUMBER.findall(printed), _NUMBER.findall(expected), strict=True):
        fraction = re.search(r"\.(\d+)(?:e([+-]?\d+))?", wanted)
        unit = 10.0 ** (int(fraction[2] or 0) - len(fraction[1])) if fraction else 0.0
        assert abs(float(given) - float(wanted)) <= _UNITS * unit, printed


@pytest.mark.parametrize("page", SCRIPT["pages"](), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_blocks_run(page, tmp_path, monkeypatch):
    """Run ``python docs/make_outputs.py`` after a page or the behaviour that it shows was changed."""
    monkeypatch.chdir(tmp_path)
    for block, printed in SCRIPT["run"](page):
        assert_same_output(printed, block.output or "")


def test_tables_are_made():
    """The build makes them, in part of tables of the README."""
    tables = runpy.run_path(str(ROOT / "docs" / "make_tables.py"))["tables"]()
    assert ':class:`"huber" <onnxsgd.losses.Huber>`' in tables["classification_losses"]
    assert "gradient = sign(raw_prediction - y_true), 0 at 0" in tables["regression_losses"]
    assert all(table.count("   * - ") + table.count(":class:") > 3 for table in tables.values())


def test_pictures_of_losses_are_those_of_their_formulas():
    curves = runpy.run_path(str(ROOT / "docs" / "draw_pictures.py"))["loss_curves"]
    at = np.array([-2.0, -0.05, 0.5])
    value, gradient = curves(losses.Huber(), at, 0.0)
    assert value == pytest.approx([0.195, 0.00125, 0.045])
    assert gradient == pytest.approx([-0.1, -0.05, 0.1])
    value, gradient = curves(losses.LogLoss(), at, 1.0)
    assert value == pytest.approx(np.log1p(np.exp(-at)))
    assert gradient == pytest.approx(-1 / (1 + np.exp(at)))
    value, _ = curves(losses.Hinge(), at, 1.0)
    assert value == pytest.approx([3, 1.05, 0.5])
    # the lead over the other class
    value, gradient = curves(losses.MulticlassHinge(), at, 1.0)
    assert value == pytest.approx([3, 1.05, 0.5])
    assert gradient == pytest.approx([-1, -1, -1])


def test_every_loss_has_a_picture():
    """It is drawn for light and for dark pages, under the name that the table of the page refers to."""
    tables = runpy.run_path(str(ROOT / "docs" / "make_tables.py"))["tables"]()
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_pictures.py"))
    for kind, (names, *_) in drawn["LOSSES"].items():
        shown = re.findall(r"image:: \.\./pictures/(\S+)\.svg", tables[f"{kind}_shapes"])
        assert shown == [f"{kind}_{name}_{theme}" for name in names for theme in drawn["THEMES"]]


def test_every_schedule_has_a_picture():
    """Drawn, and shown on the page, in one order; "auto" follows no formula."""
    tables = runpy.run_path(str(ROOT / "docs" / "make_tables.py"))["tables"]()
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_pictures.py"))
    shown = re.findall(r"image:: \.\./pictures/(\S+)\.svg", tables["schedule_shapes"])
    curves = drawn["schedule_curves"]()
    assert shown == [f"schedule_{name}_{theme}" for name in curves for theme in drawn["THEMES"]]
    assert {*curves, "auto"} == set(SCHEDULES)
    assert curves["cosine"][::100] == pytest.approx(np.cos(np.pi / 8 * np.arange(4)) ** 2)
    # lowered after epochs 4 and 7
    assert curves["adaptive"][[159, 160, 279, 280]] == pytest.approx([1, 0.2, 0.2, 0.04])
    assert curves["reduce_on_plateau"][[159, 160, 279, 280]] == pytest.approx([1, 0.5, 0.5, 0.25])


@pytest.fixture
def drift():
    """The script that draws the picture of the README."""
    pytest.importorskip("matplotlib")
    return runpy.run_path(str(ROOT / "docs" / "draw_drift.py"))


def words_of(picture):
    """Return the texts of a picture, its description first."""
    root = ET.parse(picture).getroot()
    return [element.text for element in root.iter() if element.tag.endswith(("}description", "}text"))]


def test_the_picture_of_the_readme_is_small_and_states_its_numbers(drift):
    picture = drift["PICTURE"]
    summary, *words = words_of(picture)
    assert picture.stat().st_size < 60_000
    assert "prefers-color-scheme:dark" in picture.read_text(encoding="utf-8")
    fixed, learns = (f"{float(number):.0%} right" for number in _NUMBER.findall(summary)[-2:])
    assert {f"as it was fitted: {fixed}", f"partial_fit on each batch: {learns}"} <= set(words)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"({picture.relative_to(ROOT).as_posix()})" in readme
    assert fixed.split()[0] in readme
    assert learns.split()[0] in readme


def test_a_picture_leaves_no_open_figure(tmp_path):
    """The first example of the gallery would show it."""
    plt = pytest.importorskip("matplotlib.pyplot")
    script = runpy.run_path(str(ROOT / "docs" / "draw_pictures.py"))
    before = plt.get_fignums()
    script["draw_training"](tmp_path / "training.svg", tmp_path / "card.html")
    assert plt.get_fignums() == before


def test_the_graph_of_the_readme_is_of_today(tmp_path):
    """Run ``python docs/draw_pictures.py`` after the conversion of a pipeline or the picture was changed."""
    pytest.importorskip("igraph")
    script = runpy.run_path(str(ROOT / "docs" / "draw_pictures.py"))
    script["draw_readme_graph"](tmp_path / "pipeline.svg")
    drawn, kept = (
        "".join(ET.parse(file).getroot().itertext())
        for file in (tmp_path / "pipeline.svg", script["README_GRAPH"])
    )
    assert drawn == kept
    assert "coef  30 x 1" in kept
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f'"{script["README_GRAPH"].relative_to(ROOT).as_posix()}"' in readme


@pytest.mark.slow
def test_the_picture_of_the_readme_is_of_today(drift, tmp_path):
    """Run ``python docs/draw_drift.py`` after the behaviour that it shows was changed."""
    stream = drift["follow"]()
    assert_same_output(stream.summary, words_of(drift["PICTURE"])[0])
    drift["draw"](stream, tmp_path / "drift.svg")
    drawn, kept = words_of(tmp_path / "drift.svg"), words_of(drift["PICTURE"])
    assert len(drawn) == len(kept)


def test_names_of_other_libraries_are_in_an_inventory():
    script = runpy.run_path(str(ROOT / "docs" / "make_inventories.py"))
    lines = list(script["entries"]("sklearn", script["names"]()))
    assert (
        "sklearn.frozen.FrozenEstimator py:class 1 "
        "modules/generated/sklearn.frozen.FrozenEstimator.html#sklearn.frozen.FrozenEstimator -"
    ) in lines
    assert script["kind_and_page"]("sklearn.base.BaseEstimator.get_params") == (
        "method",
        "sklearn.base.BaseEstimator",
    )
    assert script["kind_and_page"]("sklearn.no_such_module") is None


def test_pages_are_found():
    names = {page.name for page in SCRIPT["pages"]()}
    assert {"README.md", "getting_started.rst", "losses.rst"} <= names


@pytest.mark.parametrize(
    ("printed", "same"),
    [("R2 0.426", True), ("R2 0.424", True), ("R2 0.430", False), ("r2 0.426", False), ("R2 1", False)],
)
def test_outputs_differ_only_by_rounding(printed, same):
    if same:
        assert_same_output(printed, "R2 0.426")
    else:
        with pytest.raises(AssertionError):
            assert_same_output(printed, "R2 0.426")


def test_whole_numbers_are_equal():
    with pytest.raises(AssertionError):
        assert_same_output("7 rows", "8 rows")


def test_blocks_of_both_formats():
    code = ".. code-block:: python\n\n   print(1)\n\n   print(2)\n\n"
    rst = f"{code}.. code-block:: text\n\n   1\n   2\n\nText.\n"
    (block,) = SCRIPT["blocks"](rst, ".rst")
    assert (block.code, block.output, block.line) == ("print(1)\n\nprint(2)\n\n", "1\n2", 3)
    markdown = "Text.\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n"
    (block,) = SCRIPT["blocks"](markdown, ".md")
    assert (block.code, block.output) == ("print(1)\n", "1")
    assert rst[slice(*SCRIPT["blocks"](rst, ".rst")[0].place)].startswith("   1\n")
    illustrated = rst.replace("python\n", "python\n   :class: illustration\n", 1)
    assert SCRIPT["blocks"](illustrated, ".rst") == []
