"""Values of files against the types that the code declares for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import pytest

from onnxsgd._declared_types import Count, Finite, check_attributes, check_fields, check_table


@dataclass
class Held:
    count: int
    rates: list[float]
    pair: tuple[str, str | None] | None = None


@pytest.mark.parametrize(
    ("hint", "right", "wrong"),
    [
        (int, [0, -3, np.int64(2)], [True, 1.0, "1", None, 10**30, np.bool_(True)]),
        (float, [0.5, 1, np.float32(2), float("nan")], [True, "0.5", None, [0.5]]),
        (bool, [True, np.bool_(False)], [0, 1, "True", None]),
        (str, ["", "a"], [b"a", 1, None]),
        (np.ndarray, [np.ones(2)], [[1.0], 1.0, None]),
        (int | None, [None, 3], ["x", 1.5]),
        (list[float], [[], [1.0, 2]], [(1.0,), ["x"], [1.0, "x"], [[1.0]], {}]),
        (tuple[int, ...], [(), (1, 2)], [[1], ("x",), (None,)]),
        (
            tuple[str, str | None] | None,
            [None, ("a", None), ("a", "b")],
            [("a",), "ab", ["a", "b"], (None, "a")],
        ),
        (frozenset[str], [frozenset("ab")], [{"a": 1}, frozenset([1]), ["a"]]),
        (Mapping[str, tuple[int, ...]], [{}, {"a": (1,)}], [{1: (1,)}, {"a": [1]}, [("a", (1,))]]),
        (Any, [None, 1, "x"], []),
        (Count, [0, 3], [-1, 1.0, True, None]),
        (Finite, [-1.5, 2], [float("nan"), float("inf"), "1"]),
        (dict[str, Count], [{}, {"a": 0}], [{"a": -1}, {1: 1}]),
    ],
    ids=lambda value: str(value) if not isinstance(value, list) else "",
)
def test_values_are_compared(hint, right, wrong):
    for value in right:
        check_attributes({"a": value}, {"a": hint})
    for value in wrong:
        with pytest.raises(TypeError, match="^a is .*, not (of type|a) "):
            check_attributes({"a": value}, {"a": hint})
    check_attributes({"b": wrong}, {"a": hint})


def test_fields_of_a_dataclass_are_compared():
    check_fields(Held(1, [0.5], ("a", None)))
    for held in (Held("1", [0.5]), Held(1, ["x"]), Held(1, [], ("a",))):
        with pytest.raises(TypeError, match="not of type"):
            check_fields(held)


class Table(TypedDict):
    held: Held
    other: Held | None
    n: Count


def test_tables_have_the_entries_of_their_form():
    """Entries of a dataclass that have a default may be missing."""
    held = {"count": 1, "rates": [0.5]}
    check_table({"held": held, "other": None, "n": 1}, Table, "t")
    check_table({"held": {**held, "pair": ("a", None)}, "other": held, "n": 1}, Table, "t")
    for values, said in (
        ([], "t is [], not a table"),
        ({"held": held, "n": 1}, "t lacks ['other']: its entries are ['held', 'n', 'other']"),
        ({"held": held, "other": None, "n": 1, 2: 3}, "t has ['2']: its entries are"),
        ({"held": held, "other": None, "n": -1}, "t.n is -1, not a count"),
        ({"held": None, "other": None, "n": 1}, "t.held is None, not a table"),
        ({"held": held, "other": {**held, "count": "x"}, "n": 1}, "t.other.count is 'x', not of type int"),
    ):
        with pytest.raises(TypeError, match=f"^{re.escape(said)}"):
            check_table(values, Table, "t")


def test_long_values_are_shortened():
    with pytest.raises(TypeError) as error:
        check_attributes({"a": "x" * 10_000}, {"a": int})
    assert len(str(error.value)) < 200
    with pytest.raises(TypeError) as error:
        check_attributes({"a": np.zeros((3, 3))}, {"a": int})
    assert "\n" not in str(error.value)
