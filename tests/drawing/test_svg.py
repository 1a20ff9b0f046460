"""Pictures: well-formed, escaped, with colours that differ in grey and for the colour-blind."""

import itertools
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from onnxsgd.drawing.diagram import Box, Diagram, Line
from onnxsgd.drawing.marks import Part, Role
from onnxsgd.drawing.svg import STYLES, write_svg

pytest.importorskip("igraph")

SPACE = "{http://www.w3.org/2000/svg}"
BOXES = [*map(str, Part)]


def draw(*boxes, edges=()):
    return ElementTree.fromstring(write_svg(Diagram("a title", boxes, tuple(edges))))


def classes(root, name):
    return [group for group in root.iter(f"{SPACE}g") if name in group.get("class", "").split()]


def test_each_box_each_edge_and_each_kind_is_drawn():
    boxes = [Box(kind, kind.upper(), (), "note", 1) for kind in BOXES]
    boxes[0] = Box("model", "MODEL", tuple(Line(str(role), str(role)) for role in Role), "note", 1)
    root = draw(*boxes, edges=[(0, 1), (0, 2), (2, 3)])
    assert [group.get("class") for group in classes(root, "box")] == [f"box {kind}" for kind in BOXES]
    assert len([path for path in root.iter(f"{SPACE}path") if path.get("class") == "e"]) == 3
    legend = [text.text for text in classes(root, "legend")[0].iter(f"{SPACE}text") if not text.get("class")]
    assert legend == [style.label for kind, style in STYLES.items() if kind not in ("input", "output")]


def test_every_kind_of_box_and_tensor_has_a_style():
    assert set(STYLES) == {"input", "output", *map(str, Part), *map(str, Role)}


def test_boxes_are_wide_enough_for_their_text():
    """Characters of the monospaced font are 0.602 em wide, those of titles about as much."""
    root = draw(Box("gradient", "ReduceSumSquare", (Line("x" * 40),), "", 1))
    (group,) = classes(root, "box")
    width = float(group.find(f"{SPACE}rect").get("width"))
    assert width > 40 * 0.602 * 11
    assert width > len("ReduceSumSquare") * 0.6 * 12.5 + len("gradient") * 0.55 * 10.5


@pytest.mark.parametrize(
    "name",
    [
        '<script>alert("x")</script>',
        "a & b",
        "]]>",
        "\x00\x1b[31m",
        "\ud800",
        "\u202egnp.exe",
        "名前",
        "'\"",
        "</style>",
    ],
    ids=ascii,
)
def test_hostile_names_are_text(name):
    root = draw(Box("model", name, (Line(name, "trained"),), name, 1), Box("output", name, (), name))
    assert {element.tag.removeprefix(SPACE) for element in root.iter()} == {
        "svg", "title", "style", "rect", "text", "g",
    }  # fmt: skip
    shown = [text.text for text in classes(root, "box")[0].iter(f"{SPACE}text")]
    clean = re.sub("[\x00\x1b\ud800\u202e]", "\ufffd", name)
    assert shown == [clean, f"● {clean}"]


def test_pictures_hold_no_identifiers_and_load_nothing():
    """Several pictures stand in one page; ids would collide, and a page must not load from elsewhere."""
    text = write_svg(Diagram("t", (Box("model", "Add", (), "", 1),), ()))
    assert not re.search(r"\bid=|href|url\(|@import|<script", text)


def linear(colour):
    values = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lightness(rgb):
    """Return CIE L* of linear RGB."""
    y = float(rgb @ [0.2126, 0.7152, 0.0722])
    return 116 * np.cbrt(y) - 16 if y > 0.008856 else 903.3 * y


#: Full deficiency, Machado, Oliveira and Fernandes (2009), on linear RGB.
BLINDNESS = {
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


@pytest.mark.parametrize("page", ["light", "dark"])
@pytest.mark.parametrize("sight", [None, *BLINDNESS])
@pytest.mark.parametrize("kinds", [BOXES, [str(role) for role in Role]], ids=["boxes", "tensors"])
def test_kinds_differ_in_grey(page, sight, kinds):
    """Differences of 5 in L* are seen side by side; neighbouring kinds differ by 7 at least."""
    matrix = np.eye(3) if sight is None else np.array(BLINDNESS[sight])
    found = [lightness(np.clip(matrix @ linear(getattr(STYLES[kind], page)), 0, 1)) for kind in kinds]
    assert min(abs(a - b) for a, b in itertools.combinations(found, 2)) > 7


@pytest.mark.parametrize(("page", "ink"), [("light", "#15191d"), ("dark", "#f1f3f5")])
@pytest.mark.parametrize("kind", STYLES)
def test_text_is_legible(page, ink, kind):
    """The contrast of the Web Content Accessibility Guidelines for text, level AA, is 4.5."""
    ink = "#15191d" if kind == "trained" else ink
    pair = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (ink, getattr(STYLES[kind], page)))
    assert (pair[1] + 0.05) / (pair[0] + 0.05) > 4.5


def test_borders_differ_from_part_to_part():
    borders = [(STYLES[kind].border, STYLES[kind].width) for kind in BOXES]
    assert len(set(borders)) == len(BOXES)
