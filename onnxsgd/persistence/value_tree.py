"""Values as JSON beside tensors, and back: what a file can hold without code.

A value is written as JSON where JSON has it; as an object of one key, the name of its kind, where it has
not; and its numbers as a tensor, whose name the JSON holds. Reading makes values of the kinds in this module
alone: it imports nothing by a name from a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import onnx
from sklearn.base import BaseEstimator

from onnxsgd._settable import Settable
from onnxsgd.data.generators import restored
from onnxsgd.exceptions import ParameterError
from onnxsgd.persistence import sklearn_objects
from onnxsgd.persistence.known_classes import class_of, name_of

__all__ = ["TreeReader", "TreeWriter", "UnknownValueError"]

#: The kinds of numbers of a tensor in a file.
_NUMERIC = "?biuf"
#: The deepest nesting of values.
_DEEPEST = 100
#: The most elements of a table of strings, or of a range.
_MOST = 100_000_000
#: The bytes of values for each byte of the tensors of a file, and further ones: a tensor may be named often.
_PER_BYTE, _FURTHER = 16, 1 << 24


class UnknownValueError(ParameterError):
    """A value that a file without code cannot hold."""


class TreeWriter:
    """Writes values as JSON and tensors.

    Attributes
    ----------
    tensors : dict of ndarray
        The tensors of the values written so far, by the names that the JSON has.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self._places: dict[int, str] = {}

    def write(self, value: object, place: str) -> Any:
        """Return a value as JSON; `place`: a name of it, with which those of its tensors begin.

        Raises
        ------
        UnknownValueError
            If the value, or one inside it, is of another kind.
        """
        if place.count("/") > _DEEPEST:
            raise UnknownValueError(f"Values nested {_DEEPEST} deep cannot be saved.")
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        for kind, types, write in self._ways():
            if isinstance(value, types):
                return {kind: write(value, place)}
        if type(value) is list:
            return self._all(value, place)
        raise UnknownValueError(f"{_type_name(value)} is of a kind that a file without code cannot hold.")

    def _ways(self) -> list[tuple[str, Any, Callable[[Any, str], Any]]]:
        return [
            ("array", np.ndarray, self._array),
            ("scalar", np.generic, lambda value, place: self._array(np.asarray(value), place)),
            ("bytes", bytes, lambda value, place: self._bytes(value, place)),
            ("model", onnx.ModelProto, lambda value, place: self._bytes(value.SerializeToString(), place)),
            ("path", PurePath, lambda value, place: str(value)),
            ("tuple", tuple, self._all),
            ("set", set | frozenset, lambda value, place: self._all(sorted(value, key=repr), place)),
            ("range", range, lambda value, place: [value.start, value.stop, value.step]),
            ("dict", Mapping, self._items),
            ("generator", np.random.RandomState, self._generator),
            ("object", Settable, self._object),
            ("sklearn", BaseEstimator, lambda v, place: self._bytes(sklearn_objects.to_bytes(v), place)),
        ]

    def _all(self, values: Iterable[object], place: str) -> list[Any]:
        return [self.write(value, f"{place}/{number}") for number, value in enumerate(values)]

    def _items(self, value: Mapping[Any, Any], place: str) -> list[Any]:
        return [
            [self.write(key, f"{place}/key {number}"), self.write(item, f"{place}/{_short(key, number)}")]
            for number, (key, item) in enumerate(value.items())
        ]

    def _array(self, array: np.ndarray, place: str) -> Any:
        if array.dtype.kind in _NUMERIC and array.dtype.itemsize <= 8:
            native = array.astype(array.dtype.newbyteorder("="), copy=False)
            return self._tensor(native, place)
        if array.dtype.kind in "UO":
            values = [self.write(value, f"{place}/{k}") for k, value in enumerate(array.ravel().tolist())]
            return {"dtype": array.dtype.newbyteorder("=").str[1:], "shape": array.shape, "values": values}
        raise UnknownValueError(f"An array of type {array.dtype} is of a kind that a file cannot hold.")

    def _tensor(self, array: np.ndarray, place: str) -> str:
        known = self._places.get(id(array))
        if known is not None:
            return known
        self.tensors[place] = array
        self._places[id(array)] = place
        return place

    def _bytes(self, content: bytes, place: str) -> str:
        return self._tensor(np.frombuffer(content, np.uint8), place)

    def _generator(self, value: np.random.RandomState, place: str) -> Any:
        if value.get_state(legacy=False)["bit_generator"] != "MT19937":
            raise UnknownValueError(
                "random numbers of other generators than numpy's MT19937 cannot be held: give random_state a "
                "number, or RandomState(number)."
            )
        return self._all(value.get_state(legacy=True), place)

    def _object(self, value: Settable, place: str) -> Any:
        name = name_of(type(value))
        if name is None:
            raise UnknownValueError(f"{_type_name(value)} is no class of onnxsgd.")
        return {"class": name, "parameters": self._items(value.get_params(deep=False), place)}


class TreeReader:
    """Reads values that :class:`TreeWriter` wrote.

    Parameters
    ----------
    tensors : mapping of str to ndarray
        The tensors of the file.

    Notes
    -----
    A damaged file raises errors of many kinds: KeyError, TypeError, ValueError and others. The caller names
    the file in one error.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        self._tensors = tensors
        self._bytes_left = _FURTHER + _PER_BYTE * sum(array.nbytes for array in tensors.values())

    def read(self, tree: object) -> Any:
        """Return the value of a tree of JSON."""
        if isinstance(tree, list):
            return [self.read(entry) for entry in tree]
        if not isinstance(tree, dict):
            return tree
        ((kind, content),) = tree.items()
        return self._ways()[kind](content)

    def _ways(self) -> dict[str, Callable[[Any], Any]]:
        return {
            "float": float,
            "array": self._array,
            "scalar": lambda content: self._array(content)[()],
            "bytes": self._bytes,
            "model": lambda content: onnx.load_from_string(self._bytes(content)),
            "path": str,
            "tuple": lambda content: tuple(self.read(content)),
            "set": lambda content: frozenset(self.read(content)),
            "range": lambda content: range(*content),
            "dict": self.read_items,
            "generator": self._generator,
            "object": self._object,
            "sklearn": lambda content: sklearn_objects.from_bytes(self._bytes(content)),
        }

    def read_items(self, items: list[Any]) -> dict[Any, Any]:
        """Return the dictionary of a list of keys and values."""
        return {self.read(key): self.read(value) for key, value in items}

    def _array(self, content: str | dict[str, Any]) -> np.ndarray:
        if isinstance(content, str):
            return np.array(self._tensor(content))
        dtype = np.dtype(content["dtype"])
        if dtype.kind not in "UO" or dtype.itemsize * max(len(content["values"]), 1) > _MOST:
            raise ValueError(f"an array of strings of type {dtype}")
        flat = np.empty(len(content["values"]), dtype)
        flat[:] = self.read(content["values"])
        return flat.reshape([int(size) for size in content["shape"]])

    def _bytes(self, content: str) -> bytes:
        return bytes(self._tensor(content).astype(np.uint8, casting="no").tobytes())

    def _tensor(self, name: str) -> np.ndarray:
        """Return a tensor of which a copy is made."""
        array = self._tensors[name]
        self._bytes_left -= array.nbytes
        if self._bytes_left < 0:
            raise ValueError(f"its values name the same tensors too often, {name!r:.60} for one")
        return array

    def _generator(self, content: list[Any]) -> np.random.RandomState:
        return restored(self.read(content))

    def _object(self, content: dict[str, Any]) -> Any:
        parameters = self.read_items(content["parameters"])
        return class_of(content["class"])(**parameters)


def _short(key: object, number: int) -> str:
    """Return the part of a tensor's name for an entry of a dictionary."""
    return key if isinstance(key, str) and "/" not in key else str(number)


def _type_name(value: object) -> str:
    cls = type(value)
    return f"An object of {cls.__module__}.{cls.__qualname__}"
