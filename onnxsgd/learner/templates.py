"""Learners as templates: the graph of a structure, with places for the numbers.

A conversion of an estimator takes 10 to 30 ms, the preparation of a network of 44 MB 0.1 s and several copies
of it, and a search over parameters needs many of models that differ in nothing but their numbers, or not even
in them. The second preparation of a structure is repeated with random numbers, of an estimator that has no
attribute beside its structure. If both graphs are the same but for initializers, and each initializer that
differs is a known function of one array in both, later models of the structure get a copy of the graph with
their own numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxsgd.engine.predict import weights_as_inputs
from onnxsgd.exceptions import OnnxSGDError
from onnxsgd.graph.model import FROZEN, to_proto
from onnxsgd.graph.nodes import content, is_real
from onnxsgd.graph.parameter_roles.constant_arrays import are_ordinary
from onnxsgd.learner.large_tensors import blank, filled
from onnxsgd.learner.learner import Learner
from onnxsgd.learner.model_source import LARGEST_CACHED
from onnxsgd.runtime.cache import cached

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

__all__ = ["learner_of_estimator", "learner_of_structure"]

#: The first numbers of an array, which tell most arrays apart.
_HEAD = slice(0, 16)

#: Prepares the learner of a model, or of its structure with other arrays.
Prepare = Callable[[], Learner]
PrepareOther = Callable[[Sequence[np.ndarray]], Learner]

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


def learner_of_estimator(estimator: BaseEstimator, key: Hashable | None, convert: Convert) -> Learner:
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
    from onnxsgd.graph.sklearn.structure import read_structure, with_arrays

    structure = None if key is None else read_structure(estimator)
    if structure is None or sum(array.nbytes for array in structure.arrays) > LARGEST_CACHED:
        return convert(estimator)
    whole = (key, structure.key, registered_converters())
    return learner_of_structure(
        whole,
        structure.arrays,
        lambda: convert(estimator),
        lambda arrays: convert(with_arrays(estimator, iter(arrays))),
    )


def learner_of_structure(
    key: Hashable, arrays: Sequence[np.ndarray], prepare: Prepare, prepare_other: PrepareOther
) -> Learner:
    """Return the learner of a model: prepared, or made from the template of its structure.

    Parameters
    ----------
    key : hashable
        The structure of the model, and everything else that its learner depends on beside the arrays.
    arrays : sequence of ndarray
        The numbers of the model that the structure lacks.
    prepare : callable
        Prepares the learner of the model.
    prepare_other : callable
        Prepares that of a model of the structure with other arrays.
    """
    template = cached(("template", key), _Template)
    return template.learner(arrays, prepare, prepare_other)


class _Template:
    """The learner of a structure, proven at its second use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_uses = 0
        self._proven: _Proven | None = None

    def learner(self, arrays: Sequence[np.ndarray], prepare: Prepare, prepare_other: PrepareOther) -> Learner:
        """Return the learner of a model of this structure."""
        made = None if self._proven is None else self._proven.filled(arrays)
        if made is not None:
            return made
        prepared = prepare()
        with self._lock:
            if self._n_uses == 1:
                self._proven = _prove(arrays, prepared, prepare_other)
            self._n_uses += 1
        return prepared


@dataclass(frozen=True)
class _Place:
    """The origin of an initializer: the number of an array, and the function that is applied to it."""

    array: int
    form: Callable[[np.ndarray], np.ndarray]

    def value(self, arrays: Sequence[np.ndarray], like: np.ndarray) -> np.ndarray:
        """Return the initializer, of the type and the shape of `like`, which has the size of the array.

        It is no copy of an array that nobody can change.
        """
        with np.errstate(over="ignore", divide="ignore"):
            made = self.form(arrays[self.array])
            made = np.array(made, like.dtype, copy=True if made.flags.writeable else None)
        return made.reshape(like.shape)

    def explains(self, arrays: Sequence[np.ndarray], initializer: np.ndarray) -> bool:
        """Tell whether this is the origin of an initializer."""
        array = arrays[self.array]
        if array.size != initializer.size:
            return False
        head = np.array(self.form(array).flat[_HEAD], initializer.dtype)
        # most are told apart by it
        if not np.array_equal(head, initializer.flat[_HEAD]):
            return False
        return np.array_equal(self.value(arrays, initializer), initializer)


@dataclass(frozen=True)
class _Proven:
    """A learner whose initializers are known functions of arrays.

    Attributes
    ----------
    learner : Learner
        The learner of one model, less the numbers.
    places : dict of (_Place, ndarray)
        The origins of its numbers, with arrays of NaN of their types and shapes.
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
        if not all(map(_surely_finite, numbers.values())):
            return None
        if not are_ordinary(numbers.values(), self.others):
            return None
        classes = None if template.classes is None else template.classes.copy()
        return replace(template, classes=classes, numbers=numbers, template=template)


def _surely_finite(array: np.ndarray) -> bool:
    """Tell whether the sum is finite: of numbers that are not, it never is."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum()))


def _prove(arrays: Sequence[np.ndarray], prepared: Learner, prepare_other: PrepareOther) -> _Proven | None:
    """Return the template of a structure, if it is proven by a second model with random numbers."""
    if prepared.half_precision is not None or prepared.adapters:
        # each has initializers of its own
        return None
    rng = np.random.default_rng(0)
    numbers = [_random(rng, array) for array in arrays]
    try:
        other = prepare_other(numbers)
    except (OnnxSGDError, AttributeError, TypeError, ValueError):
        # the preparation reads more than the structure
        return None
    pairs = ((prepared.model, other.model), (prepared.score_model, other.score_model))
    if _settings(prepared) != _settings(other) or not all(_same_but_numbers(*pair) for pair in pairs):
        return None
    return _find_places(prepared, other, arrays, numbers)


def _random(rng: np.random.Generator, like: np.ndarray) -> np.ndarray:
    """Return random numbers from 1.25 to 3 of the type and the shape of an array."""
    dtype = np.float64 if like.dtype == np.float64 else np.float32
    return (1.25 + 1.75 * rng.random(like.shape, dtype)).astype(like.dtype)


def _settings(learner: Learner) -> tuple[Any, ...]:
    classes = (
        None if learner.classes is None else (learner.classes.dtype.str, tuple(learner.classes.tolist()))
    )
    return (
        learner.link, classes, learner.weights, learner.intercepts, learner.linear, learner.exported_for,
        learner.statistics, learner.dropouts, learner.model is learner.score_model,
    )  # fmt: skip


def _same_but_numbers(one: ir.Model, other: ir.Model) -> bool:
    """Tell whether two graphs are equal but for the numbers of real initializers."""
    return _without_numbers(one) == _without_numbers(other)


def _without_numbers(model: ir.Model) -> tuple[list[Any], bytes]:
    """Return the real initializers without their numbers, and the graph with them as inputs."""
    real = {name: value for name, value in model.graph.initializers.items() if is_real(value)}
    declared = [
        (name, value.dtype, content(value).shape, sorted(value.metadata_props.items()))
        for name, value in real.items()
    ]
    rest = to_proto(weights_as_inputs(model, list(real)))
    return declared, bytes(rest.SerializeToString(deterministic=True))


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
            places[name] = place, blank(array)
        elif not np.array_equal(array, random[name]):
            return None
    template = _without_values(mine, {name: empty for name, (_, empty) in places.items()})
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


def _without_values(learner: Learner, empty: dict[str, np.ndarray]) -> Learner:
    """Return a learner with numbers apart from its graphs, which have NaN in their place."""
    score_model = filled(learner.score_model, empty)
    is_whole = learner.model is learner.score_model
    model = score_model if is_whole else filled(learner.model, empty)
    return replace(learner, model=model, score_model=score_model, numbers=empty)
