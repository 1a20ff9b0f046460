"""Attributes of a trained estimator for pickles, where each name and array would take tens of bytes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from onnxsgd.persistence.compression import compressed, decompressed
from onnxsgd.persistence.saved_form import check_format
from onnxsgd.persistence.value_tree import TreeReader, TreeWriter, UnknownValueError

__all__ = ["from_small_form", "to_small_form"]

#: The fewest bytes of arrays that stay arrays: memory maps and buffers of pickles hold their numbers.
_LARGE = 4096
#: Entries of the saved form that stay as they are: for the reader of an error message; estimators.
_KEPT = frozenset({"format", "version", "text"})
#: Attributes that stay as they are: `model` shares its arrays and names with others.
_NAMES = "feature_names_in_"
_OUTSIDE = frozenset({"model", _NAMES})
#: Types of plain attributes.
_PLAIN = frozenset({bool, int, float, str, type(None)})


def to_small_form(attributes: Mapping[str, object]) -> dict[str, Any]:
    """Return attributes with plain ones, and all but large arrays of ``_saved``, in two strings of bytes.

    ``_saved`` then has the entries::

        tree    compressed JSON: the values of ``_saved``; plain attributes; the names of attributes that are
                its array `classes`; the names, types and shapes of small arrays; the names of large ones
        small   the bytes of small arrays
        large   a list of the large arrays

    and those that have no other form. The attribute `model` stays as it is; names of columns are its own, if
    it has the same.
    """
    rest, writer, values, kept = dict[str, Any](attributes), TreeWriter(), {}, {}
    names, known = rest.get(_NAMES), _names_of(rest.get("model"))
    if names is not None and known is not None and np.array_equal(names, known):
        # a pickle has an object once
        rest[_NAMES] = known
    saved = rest.pop("_saved")
    for number, (name, value) in enumerate(saved.items()):
        try:
            if name in _KEPT:
                raise UnknownValueError
            values[name] = writer.write(value, str(number))
        except UnknownValueError:
            kept[name] = value
    # in one order, whichever attribute was set first: joblib.Memory compares the bytes
    ordered = sorted((name, value) for name, value in rest.items() if name not in _OUTSIDE)
    classes = [name for name, value in ordered if value is not None and value is saved["classes"]]
    plain = {
        name: writer.write(value, name) for name, value in ordered if name not in classes and _is_plain(value)
    }
    small = {name: array for name, array in writer.tensors.items() if array.nbytes < _LARGE}
    large = {name: array for name, array in writer.tensors.items() if name not in small}
    table = [[name, array.dtype.str, array.shape] for name, array in small.items()]
    tree = json.dumps([values, plain, classes, table, list(large)], separators=(",", ":"))
    return {
        **{name: value for name, value in rest.items() if name not in plain and name not in classes},
        "_saved": {
            **kept,
            "tree": compressed(tree.encode()),
            "small": b"".join(array.tobytes() for array in small.values()),
            # with numpy's own object of each type, which a pickle then has once
            "large": [array.view(array.dtype.str) for array in large.values()],
        },
    }


def from_small_form(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that :func:`to_small_form` was given; those of older versions as they are."""
    if "tree" not in attributes.get("_saved", {}):
        return attributes
    check_format(attributes["_saved"])
    kept = dict(attributes["_saved"])
    tree = decompressed(kept.pop("tree"), most=sys.maxsize - 1)
    values, plain, classes, table, names = json.loads(tree)
    small, tensors, start = kept.pop("small"), dict(zip(names, kept.pop("large"), strict=True)), 0
    for name, dtype, shape in table:
        tensors[name] = np.ndarray(shape, dtype, small, start)
        start += tensors[name].nbytes
    reader = TreeReader(tensors)
    saved = {**kept, **{name: reader.read(tree) for name, tree in values.items()}}
    plain = {name: reader.read(tree) for name, tree in plain.items()}
    return {**attributes, **plain, **dict.fromkeys(classes, saved["classes"]), "_saved": saved}


def _names_of(model: object) -> np.ndarray | None:
    """Return the names of columns that an estimator holds, if any."""
    names = getattr(model, _NAMES, None) if isinstance(model, BaseEstimator) else None
    return names if type(names) is np.ndarray else None


def _is_plain(value: object) -> bool:
    """Tell whether a value consists of numbers and strings: alone, in arrays, lists, tuples, dictionaries."""
    if isinstance(value, np.ndarray):
        return type(value) is np.ndarray and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8
    if isinstance(value, dict):
        return type(value) is dict and all(map(_is_plain, [*value, *value.values()]))
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple) and all(map(_is_plain, value))
    return type(value) in _PLAIN
