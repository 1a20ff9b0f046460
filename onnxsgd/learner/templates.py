"""Learners of converted estimators as templates: the graph of a structure, with places for the numbers.

A conversion takes 10 to 30 ms, and a search over parameters makes many of models that differ in nothing but
their numbers. The second conversion of a structure is repeated with random numbers, on an estimator that has
no attribute beside its structure. If both graphs are the same but for initializers, and each initializer that
differs is a known function of one fitted array in both, later estimators of the structure get a copy of the
graph with their own numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxsgd.exceptions import OnnxSGDError
from onnxsgd.graph.model import FROZEN, to_proto
from onnxsgd.graph.nodes import content, is_real
from onnxsgd.graph.parameter_roles.constant_arrays import are_ordinary
from onnxsgd.learner.learner import Learner
from onnxsgd.learner.model_source import LARGEST_CACHED
from onnxsgd.runtime.cache import cached

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from onnxsgd.graph.sklearn.structure import Structure

__all__ = ["learner_of_structure"]

#: Converts an estimator.
Convert = Callable[["BaseEstimator"], Learner]

#: Functions from a fitted array to the initializer that a converter makes of it, less its type and shape.
_FORMS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda x: x,
    lambda x: x.T,
    lambda x: -x,
    lambda x: -x.T,
    lambda x: 1.0 / x,
)


def learner_of_structure(estimator: BaseEstimator, key: Hashable | None, convert: Convert) -> Learner:
    """Return the learner of a fitted estimator: converted, or made from the template of its structure.

    Parameters
    ----------
    estimator : estimator
        Fitted.
    key : hashable or None
        Everything that the conversion depends on beside the estimator; None: there is no template.
    convert : callable
        Converts the estimator.
    """
    from onnxsgd.graph.sklearn.convert import registered_converters
    from onnxsgd.graph.sklearn.structure import read_structure

    structure = None if key is None else read_structure(estimator)
    if structure is None or sum(array.nbytes for array in structure.arrays) > LARGEST_CACHED:
        return convert(estimator)
    whole = ("template", key, structure.key, registered_converters())
    template = cached(whole, _Template, 2 * sum(array.nbytes for array in structure.arrays))
    return template.learner(estimator, structure, convert)


class _Template:
    """The learner of a structure, proven at its second use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_uses = 0
        self._proven: _Proven | None = None

    def learner(self, estimator: BaseEstimator, structure: Structure, convert: Convert) -> Learner:
        """Return the learner of an estimator of this structure."""
        filled = None if self._proven is None else self._proven.filled(structure.arrays)
        if filled is not None:
            return filled
        converted = convert(estimator)
        with self._lock:
            if self._n_uses == 1:
                self._proven = _prove(estimator, structure, converted, convert)
            self._n_uses += 1
        return converted


@dataclass(frozen=True)
class _Place:
    """The origin of an initializer: the number of an array, and the function that is applied to it."""

    array: int
    form: Callable[[np.ndarray], np.ndarray]

    def value(self, arrays: Sequence[np.ndarray], like: np.ndarray) -> np.ndarray:
        """Return the initializer, of the type and the shape of `like`, which has the size of the array."""
        with np.errstate(over="ignore", divide="ignore"):
            made = np.array(self.form(arrays[self.array]), like.dtype)
        return made.reshape(like.shape)

    def explains(self, arrays: Sequence[np.ndarray], initializer: np.ndarray) -> bool:
        """Tell whether this is the origin of an initializer."""
        if arrays[self.array].size != initializer.size:
            return False
        return np.array_equal(self.value(arrays, initializer), initializer)


@dataclass(frozen=True)
class _Proven:
    """A learner whose initializers are known functions of fitted arrays.

    Attributes
    ----------
    learner : Learner
        The learner of one estimator, less the numbers.
    places : dict of (_Place, ndarray)
        The origins of its numbers, with arrays of their types and shapes.
    others : list of ndarray
        The other initializers of real numbers.
    """

    learner: Learner
    places: dict[str, tuple[_Place, np.ndarray]]
    others: list[np.ndarray]

    def filled(self, arrays: Sequence[np.ndarray]) -> Learner | None:
        """Return the learner of other arrays; None if the roles of initializers may differ."""
        template = self.learner
        numbers = {name: place.value(arrays, like) for name, (place, like) in self.places.items()}
        if not all(np.isfinite(array).all() for array in numbers.values()):
            return None
        if not are_ordinary([*numbers.values(), *self.others]):
            return None
        classes = None if template.classes is None else template.classes.copy()
        return replace(template, classes=classes, numbers=numbers, template=template)


def _prove(
    estimator: BaseEstimator, structure: Structure, converted: Learner, convert: Convert
) -> _Proven | None:
    """Return the template of a structure, if it is proven by a second estimator with random numbers."""
    from onnxsgd.graph.sklearn.structure import with_arrays

    rng = np.random.default_rng(0)
    numbers = [rng.uniform(1.25, 3.0, array.shape).astype(array.dtype) for array in structure.arrays]
    try:
        other = convert(with_arrays(estimator, iter(numbers)))
    except (OnnxSGDError, AttributeError, TypeError, ValueError):
        # the converter reads more than the structure
        return None
    pairs = ((converted.model, other.model), (converted.score_model, other.score_model))
    if _settings(converted) != _settings(other) or not all(_same_but_numbers(*pair) for pair in pairs):
        return None
    return _find_places(converted, other, structure.arrays, numbers)


def _settings(learner: Learner) -> tuple[Any, ...]:
    classes = (
        None if learner.classes is None else (learner.classes.dtype.str, tuple(learner.classes.tolist()))
    )
    return (
        learner.link, classes, learner.weights, learner.intercepts, learner.linear, learner.exported_for,
        learner.model is learner.score_model,
    )  # fmt: skip


def _same_but_numbers(one: ir.Model, other: ir.Model) -> bool:
    """Tell whether two graphs are equal but for the numbers of real initializers."""
    return _without_numbers(one) == _without_numbers(other)


def _without_numbers(model: ir.Model) -> bytes:
    proto = to_proto(model)
    for tensor in proto.graph.initializer:
        if ir.DataType(tensor.data_type).is_floating_point():
            for field in ("raw_data", "float_data", "double_data", "int32_data"):
                tensor.ClearField(field)
    return bytes(proto.SerializeToString(deterministic=True))


def _find_places(
    mine: Learner, its: Learner, arrays: Sequence[np.ndarray], numbers: Sequence[np.ndarray]
) -> _Proven | None:
    """Return the template, if each initializer that differs has a known origin."""
    present, random = _real_initializers(mine), _real_initializers(its)
    places = {}
    for name, array in present.items():
        candidates = (_Place(number, form) for number in range(len(arrays)) for form in _FORMS)
        place = next(
            (p for p in candidates if p.explains(numbers, random[name]) and p.explains(arrays, array)), None
        )
        if place is not None:
            places[name] = place, array
        elif not np.array_equal(array, random[name]):
            return None
    template = _without_values(mine, {name: array for name, (_, array) in places.items()})
    initializers = mine.score_model.graph.initializers
    frozen = [initializers[name] for name in places if name in initializers and name not in mine.weights]
    compiled_in = template.divided.split.tail.graph.initializers
    if any(FROZEN not in value.metadata_props or value.name in compiled_in for value in frozen):
        # only numbers of transformers, before the training step, may change in a compiled graph
        return None
    others = [array for name, array in present.items() if name not in places]
    return _Proven(template, places, others)


def _real_initializers(learner: Learner) -> dict[str, np.ndarray]:
    """Return the initializers of real numbers of both graphs, which agree where both have one."""
    graphs = (learner.score_model.graph, learner.model.graph)
    values = {name: value for graph in graphs for name, value in graph.initializers.items()}
    return {name: content(value).numpy() for name, value in values.items() if is_real(value)}


def _without_values(learner: Learner, numbers: dict[str, np.ndarray]) -> Learner:
    """Return a learner with numbers apart from its graphs, which have NaN in their place."""
    nans = {name: np.full_like(array, np.nan) for name, array in numbers.items()}
    score_model = learner.with_weights(nans, score_only=True)
    is_whole = learner.model is learner.score_model
    model = score_model if is_whole else learner.with_weights(nans)
    return replace(learner, model=model, score_model=score_model, numbers=numbers)
