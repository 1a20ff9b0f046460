"""Convolutions and pools of the sweep, in one to three dimensions of space."""

from __future__ import annotations

import itertools

from test_builder import Case

__all__ = ["windows"]


def windows():
    """Return convolutions and pools in one to three dimensions of space."""
    found = {}
    more_of_conv = ("", "strides", "dilations", "pads", 'auto_pad="SAME_UPPER"')
    for space, group, n_in, n_out, size in itertools.product((1, 2, 3), (1, 2, 4), (1, 3), (1, 2), (7, 16)):
        if (space == 3 and size == 16) or (n_in, n_out) == (1, 2):
            continue
        for kernel, more in itertools.product((1, 3), more_of_conv):
            text = ", ".join(word for word in (f"group={group}", attribute(more, space)) if word)
            shapes = {"X": (2, n_in * group, *[size] * space), "W": (n_out * group, n_in, *[kernel] * space)}
            name = f"Conv {space} {group} {n_in} {n_out} {size} {kernel} {more}"
            found[name] = Case(f"Y = Conv<{text}>(X, W, b)", {**shapes, "b": (n_out * group,)})
    for space, op_type in itertools.product((1, 2, 3), ("AveragePool", "MaxPool")):
        options = ["", "strides", "dilations", "pads", "ends", 'auto_pad="SAME_UPPER"', "ceil_mode=1"]
        options += ["count_include_pad=1"] if op_type == "AveragePool" else ["storage_order=1"]
        for kernel, size, more in itertools.product((2, 3), (5, 8), options):
            text = f"kernel_shape=[{row(kernel, space)}], {attribute(more, space)}".rstrip(", ")
            if "ceil" in more or "count" in more:
                # as in VGG: windows that reach beyond the end, and sizes where none does
                text += f", strides=[{row(2, space)}]"
            if "count" in more or (kernel, more) == (3, "ceil_mode=1"):
                text += f", pads=[{row(1, 2 * space)}]"
            opset = 19 if op_type == "AveragePool" and more == "dilations" else 18
            name = f"{op_type} {space} {kernel} {size} {more}"
            found[name] = Case(f"Y = {op_type}<{text}>(X)", {"X": (2, 3, *[size] * space)}, {}, (opset,))
    for space in (1, 2, 3):
        found[f"GlobalAveragePool {space}"] = Case("Y = GlobalAveragePool(X)", {"X": (2, 3, *[4] * space)})
    return found


def row(value, count):
    """Return the text of a list of equal values."""
    return ", ".join([str(value)] * count)


def attribute(more, space):
    """Return the text of an attribute, which may be named without its values."""
    texts = {
        "strides": f"strides=[{row(2, space)}]",
        "dilations": f"dilations=[{row(2, space)}]",
        "pads": f"pads=[{row(1, 2 * space)}]",
        "ends": f"pads=[{row(0, space)}, {row(1, space)}]",
    }
    return texts.get(more, more)
