"""The saved form of a fitted estimator: bytes, arrays, numbers and names, under a format number.

Files outlive classes. The saved form therefore holds no object of this package: it is a dictionary with a
format number, and every format ever written stays readable; ``tests/data`` keeps a file of each.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxsgd._declared_types import Count, Finite, check_attributes
from onnxsgd._version import __version__
from onnxsgd.data.generators import restored
from onnxsgd.data.moments import Moments
from onnxsgd.data.text import TextPart
from onnxsgd.exceptions import ParameterError
from onnxsgd.graph.adapting.branches import Adapter
from onnxsgd.learner.learner import Learner
from onnxsgd.learner.model_source import LARGEST_CACHED
from onnxsgd.persistence.saved_graphs import Base, Graphs
from onnxsgd.runtime.cache import cached
from onnxsgd.training.state import FitState

__all__ = ["FORMAT", "check_format", "pack", "unpack"]

#: Attributes of the state, with their first values: owners of slots and rates, and the updates that these
#: begin with.
_OWNERS = {
    "optimizer": None, "slots_from": 0, "averages_from": 0, "schedule": None, "n_rows": 0, "mean_weight": 0.0,
    "forgotten_at": 0, "judged_from": 0,
}  # fmt: skip
#: Attributes of the state that ``fit`` sets.
_LENGTHS = ("n_updates", "epoch_updates")

#: The number of the format written.
FORMAT = 3
#: The types of the entries of both formats.
_TYPES: dict[str, object] = {
    "model": bytes, "score_model": bytes | None, "half_precision": dict, "link": str, "weights": list[str],
    "intercepts": list[str], "linear": list[str | None] | None, "classes": np.ndarray | None,
    "exported_for": int | None, "dropouts": list[str], "statistics": list[str], "tensors": list[list[Any]],
    "random_state": list, "eta": Finite, "t": Count, "loss_curve": list[float],
    "validation_scores": list[float], "l1_total": Finite, "l1_totals": dict[str, Finite],
    "learning_rates": list[float], "owners": dict[str, Any], "update_norms": list[float],
    "missed": dict[str, Count], "n_updates": Count | None, "rate_memory": list[float],
    "epoch_updates": Count | None, "moments": list[list[Any]], "shared": list, "adapters": list[list[Any]],
    "text": list, "is_trained": bool,
}  # fmt: skip


def pack(
    learner: Learner, state: FitState, text: TextPart | None = None, model: object = None
) -> dict[str, Any]:
    """Return a learner, the state of its fit, and the vectorizers before it, in their saved form.

    Tensors of `model`, the parameter of the estimator, are left out, and numbers are saved once.

    It holds bytes, arrays, numbers, names, and lists of these.

    Format 3::

        format           3
        version          of this package, for the reader of an error message
        model            bytes of the graph, without nodes and tensors of the parameter `model` or of
                         `half_precision` (see ``graph_differences``), without shapes that inference gives;
                         compressed by zlib with a dictionary of usual words, from 4,096 bytes on by columns
                         (see ``packed_graphs``); whole in format 2, and up to 65,536 compressed without a
                         dictionary; in format 1 not compressed
        score_model      bytes of the graph of raw scores, likewise; None: the same; without nodes and tensors
                         of `model`, but not in formats 1 and 2
        half_precision   only of a graph with tensors of 16 bits: both, as the user gave them
        link, weights, intercepts, linear, classes, exported_for
                         the attributes of the learner; sets and tuples as lists
        dropouts         only where Dropout acts in training: an attribute of the learner
        statistics       only where training updates running statistics: an attribute of the learner
        tensors          a list of [weight, kind, array]
        random_state     the result of ``numpy.random.RandomState.get_state``, as a list
        eta, t, loss_curve, validation_scores
                         the other attributes of the state
        l1_total         the l1 penalty so far; the largest of `l1_totals`
        l1_totals        only if weights differ in it: a dictionary
        learning_rates   an attribute of the state; older files lack it
        owners           a dictionary of further ones; those at their first values are left out, but not in
                         format 2; older files lack it
        update_norms     only where they were recorded: an attribute of the state
        missed           only where weights were frozen: a dictionary of updates by weight
        n_updates        only after ``fit``: the largest number of its updates
        rate_memory      only of a schedule that follows the losses: an attribute of the state, as a list
        epoch_updates    only after ``fit``: the updates of its epochs; older files lack it
        moments          only with ``learning_rate="auto"``: a list of [feature, count, mean, squares, total],
                         of some columns with [..., columns, number of all], but not in formats 1 and 2
        shared           the tensors that have no numbers in `model`, as the parameter `model` of the
                         estimator holds them, and those in `score_model`: [name, path of an array, form] if
                         that parameter is an estimator, not in formats 1 and 2, which have the names of those
                         of a graph; in format 1 only with adapters
        is_trained       whether the numbers of weights are in `tensors` alone, as without adapters; format 1
                         lacks it
        adapters         only with adapters: a list of [weight, A, B, scale, whether it is transposed, kind]
        text             only with vectorizers of text: [transformer of scikit-learn, sample]
    """
    # files of adapters are over a base with the first weights
    trained, base = () if learner.adapters else learner.learned, Base.of(model)
    graphs = Graphs.of(learner, trained)
    half = None if learner.half_precision is None else Graphs.of(learner.half_precision, trained)
    n_bytes, digest = graphs.nbytes + state.nbytes, graphs.digest()
    entries = graphs.saved(base, half)
    halves = {} if half is None else {"half_precision": half.saved(base)}
    saved_text = {}
    if text is not None:
        text = text.in_short()
        saved_text = {"text": [text.transformer, text.sample]}
    lengths = {name: getattr(state, name) for name in _LENGTHS if getattr(state, name) is not None}
    statistics = {"statistics": list(learner.statistics)} if learner.statistics else {}
    dropouts = {"dropouts": list(learner.dropouts)} if learner.dropouts else {}
    norms = {"update_norms": list(state.update_norms)} if state.update_norms else {}
    moments = [
        [name, m.count, m.mean, m.squares, m.total, *(m.columns or ())] for name, m in state.moments.items()
    ]
    totals = {"l1_totals": dict(state.l1_totals)} if len(set(state.l1_totals.values())) > 1 else {}
    saved = {
        **saved_text,
        **totals,
        **lengths,
        **({"rate_memory": list(state.rate_memory)} if state.rate_memory else {}),
        **statistics,
        **dropouts,
        **norms,
        **({"moments": moments} if moments else {}),
        **({"missed": dict(state.missed)} if state.missed else {}),
        **halves,
        **({"adapters": [list(astuple(a)) for a in learner.adapters]} if learner.adapters else {}),
        "format": FORMAT,
        "version": __version__,
        **entries,
        "link": learner.link,
        "weights": list(learner.weights),
        "intercepts": sorted(learner.intercepts),
        "linear": None if learner.linear is None else list(learner.linear),
        "classes": learner.classes,
        "exported_for": learner.exported_for,
        "tensors": [[name, kind, array] for (name, kind), array in state.tensors.items()],
        "random_state": list(state.random_state.get_state(legacy=True)),
        "eta": state.eta,
        "t": state.t,
        "l1_total": max(state.l1_totals.values(), default=0.0),
        "loss_curve": list(state.loss_curve),
        "validation_scores": list(state.validation_scores),
        "learning_rates": list(state.learning_rates),
        "owners": {
            name: getattr(state, name) for name, first in _OWNERS.items() if getattr(state, name) != first
        },
        "is_trained": bool(trained),
    }
    cached(_key(saved, state, digest, n_bytes), lambda: learner, n_bytes)
    return saved


def check_format(saved: Mapping[str, Any]) -> None:
    """Refuse a format that is unknown.

    Raises
    ------
    ParameterError
        If a newer version has written it.
    """
    if saved["format"] not in range(1, FORMAT + 1):
        raise ParameterError(
            f"The estimator was saved in format {saved['format']} by onnxsgd {saved['version']}; onnxsgd "
            f"{__version__} reads formats up to {FORMAT}: install that version, or a newer one."
        )


def unpack(
    saved: dict[str, Any], model: object = None, *, check: bool = False
) -> tuple[Learner, FitState, TextPart | None]:
    """Return the learner, the state and the vectorizers that :func:`pack` saved, with the same `model`.

    `check` : whether graphs are checked as a user's model is, at half the time of reading them.

    Raises
    ------
    GraphError
        If a graph is too large; with `check`, if it is not valid.
    ParameterError
        If the format is unknown, because a newer version has written it.
    """
    check_format(saved)
    check_attributes(saved, _TYPES)
    state = FitState(
        tensors={(name, kind): np.array(array) for name, kind, array in saved["tensors"]},
        eta=saved["eta"],
        random_state=restored(saved["random_state"]),
        t=saved["t"],
        l1_totals=saved.get("l1_totals", dict.fromkeys(saved["weights"], saved["l1_total"])),
        **saved.get("owners", {}),
        loss_curve=list(saved["loss_curve"]),
        validation_scores=list(saved["validation_scores"]),
        learning_rates=list(saved.get("learning_rates", [math.nan] * len(saved["loss_curve"]))),
        update_norms=list(saved.get("update_norms", [])),
        n_updates=saved.get("n_updates"),
        epoch_updates=saved.get("epoch_updates"),
        rate_memory=tuple(saved.get("rate_memory", ())),
        moments={
            # of dense data both counts are one object
            name: Moments(
                count, mean, squares, count if np.array_equal(count, total) else total, tuple(columns) or None
            )
            for name, count, mean, squares, total, *columns in saved.get("moments", [])
        },
        missed=dict(saved.get("missed", {})),
    )
    weights, base = state.weights() if saved.get("is_trained") else {}, Base.of(model)
    half = None
    if "half_precision" in saved:
        half = Graphs.read(saved["half_precision"], base, weights)
    read, made = functools.cache(lambda: Graphs.read(saved, base, weights, half)), list[Learner]()

    def make() -> Learner:
        learner = _read_learner(saved, *read().models(weights, check=check))
        if half is not None:
            whole, score = half.models(weights, check=check)
            as_given = replace(learner, model=whole, score_model=score)
            learner = replace(learner, half_precision=as_given)
        made.append(learner)
        return learner

    of_graphs = None if half is not None else Graphs.key(saved, base, weights)
    key = None if of_graphs is None else ("digest of saved graphs", of_graphs)
    digest, n_bytes = cached(key, lambda: (read().digest(), read().nbytes))
    n_bytes += state.nbytes
    known = cached(_key(saved, state, digest, n_bytes), make, n_bytes)
    learner = known if made else _with_numbers(known, saved, state)
    return learner, state, TextPart(*saved["text"]) if "text" in saved else None


def _key(saved: Mapping[str, Any], state: FitState, digest: str | None, n_bytes: int) -> Hashable | None:
    """Return everything that a learner follows from, but its numbers; None: it is made anew.

    Learners of one structure share the parts of their graphs.
    """
    has_others = any(name in saved for name in ("half_precision", "adapters"))
    if digest is None or not saved.get("is_trained") or has_others or n_bytes > LARGEST_CACHED:
        return None
    kinds = [(name, array.shape, array.dtype.str) for name, array in state.weights().items()]
    names = [saved[name] for name in ("weights", "intercepts", "linear", "link", "exported_for")]
    names += [saved.get(name) for name in ("statistics", "dropouts")]
    return "saved learner", digest, repr(names), repr(kinds)


def _with_numbers(learner: Learner, saved: Mapping[str, Any], state: FitState) -> Learner:
    """Return a learner of the same structure with the numbers of another file."""
    weights = state.weights()
    own = {name: weights[name].astype(learner.initial(name).dtype) for name in learner.learned}
    numbers = {**learner.numbers, **own}
    return replace(learner, classes=saved["classes"], numbers=numbers, template=learner.template or learner)


def _read_learner(saved: Mapping[str, Any], whole: ir.Model, score: ir.Model) -> Learner:
    """Return the learner of a file."""
    learner = Learner(
        model=whole,
        score_model=score,
        link=saved["link"],
        classes=saved["classes"],
        weights=tuple(saved["weights"]),
        intercepts=frozenset(saved["intercepts"]),
        linear=None if saved["linear"] is None else tuple(saved["linear"]),
        exported_for=saved["exported_for"],
        adapters=tuple(Adapter(*entry) for entry in saved.get("adapters", [])),
        statistics=tuple(saved.get("statistics", ())),
        dropouts=tuple(saved.get("dropouts", ())),
    )
    unknown = set(filter(None, learner.linear or ())) - set(learner.model.graph.initializers)
    if unknown:
        raise ValueError(f"linear names {sorted(unknown)}, which its graph lacks")
    return learner
