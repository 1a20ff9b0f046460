"""Conversion of fitted scikit-learn estimators to graphs, by skl2onnx."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils.validation import check_is_fitted

from onnxsgd.data.columns import NUMBERS, column_kinds, column_names, is_mapping
from onnxsgd.exceptions import ParameterError, UnsupportedError
from onnxsgd.graph.model import find_value, graph_names, to_ir, to_proto, unique_name
from onnxsgd.graph.reading.head import ScoredGraph, find_score
from onnxsgd.graph.sklearn.converters import own_converters
from onnxsgd.graph.sklearn.operator_checks import check_operators_once
from onnxsgd.graph.sklearn.prepare import (
    final_estimator,
    gives_probabilities,
    prepare,
    selections,
    split_target_transformer,
)
from onnxsgd.graph.sklearn.repair import freeze_transformers, has_several_labels, repair
from onnxsgd.graph.sklearn.unconverted_steps import conversion_error, refuse_predictors

__all__ = ["convert_estimator", "estimator_to_onnx", "input_columns", "registered_converters"]

#: The target versions of the converters: tested by them, and read by every supported runtime.
_TARGET_OPSET = {"": 18, "ai.onnx.ml": 3}
_IR_VERSION = 9


def convert_estimator(
    estimator: BaseEstimator,
    X: object = None,
    task: str | None = None,
    output: str | int | None = None,
    link: str = "identity",
) -> ScoredGraph:
    """Convert a fitted estimator and find its raw prediction.

    Parameters
    ----------
    estimator : estimator
        Fitted; a Pipeline, a FrozenEstimator or a search over parameters as well. It is not changed.
    X : array-like, data frame, or None
        Samples like those it was fitted on; one is enough. None: one float32 input with as many columns as
        the estimator was fitted on.
    task : {"regression", "classification", None}
        The purpose of the scores; None: that of the estimator.
    output : str, int or None
    link : {"identity", "log"}
        See :func:`~onnxsgd.graph.reading.head.find_score`.

    Returns
    -------
    ScoredGraph
        Its `classes` are those of the estimator.

    Raises
    ------
    UnsupportedError
        There is no converter for the estimator or a part of it.
    sklearn.exceptions.NotFittedError
        The estimator is not fitted.
    """
    if task is None:
        task = "classification" if is_classifier(estimator) else "regression"
    has_probabilities = output is None and is_classifier(estimator) and hasattr(estimator, "predict_proba")
    model = to_ir(estimator_to_onnx(estimator, X))
    scored = find_score(model, task, output, link, are_probabilities=has_probabilities)
    classes = getattr(estimator, "classes_", None) if is_classifier(estimator) else None
    return scored if classes is None else replace(scored, classes=np.asarray(classes))


#: The converters' names of the outputs of a classifier that ends in a ZipMap, and ours.
_OUTPUT_NAMES = {"output_label": "label", "output_probability": "probabilities"}


def estimator_to_onnx(estimator: BaseEstimator, X: object = None) -> onnx.ModelProto:
    """Convert a fitted estimator to ONNX.

    All features are one float32 input ``X``, of shape [N, n_features], or an int64 one of an estimator around
    a graph that takes integers; for a data frame with non-numeric columns, each column is a separate input,
    under its name, of shape [N, 1]. Constants of transformers, which are fitted without the target, are
    marked as frozen.

    Parameters
    ----------
    estimator, X : objects
        As in :func:`convert_estimator`.
    """
    check_is_fitted(estimator)
    if isinstance(getattr(estimator, "classes_", None), list):
        raise UnsupportedError(
            f"{type(estimator).__name__} predicts several targets, each with its own classes: "
            "train one model for each of them."
        )
    with warnings.catch_warnings():
        # not caused by the user: copies of deprecated attributes, and the converters
        warnings.simplefilter("ignore")
        columns = input_columns(X)
        prepared = prepare(estimator, by_position=columns is None)
        refuse_predictors(prepared, estimator)
        prepared, target_transformer = split_target_transformer(prepared)
        final = final_estimator(prepared)
        _refuse(final)
        # an attribute of the estimators of this package
        holds_integers = getattr(prepared, "_takes_integers", False)
        types = _matrix(estimator, X, holds_integers) if columns is None else columns
        proto, topology = _convert(prepared, estimator, types, is_known=X is not None)
    model = to_ir(proto)
    freeze_transformers(model, topology)
    repair(model, final, [name for name, _ in types])
    if target_transformer is not None:
        from onnxsgd.graph.sklearn.target_transform import add_inverse_transform

        add_inverse_transform(model, target_transformer)
    _name_outputs(model.graph, has_scores=is_classifier(final) and not hasattr(final, "predict_proba"))
    # the converters write for the target version, and declare the oldest sufficient one
    model.graph.opset_imports.update(_TARGET_OPSET)
    model.ir_version = _IR_VERSION
    return to_proto(model)


def _refuse(estimator: BaseEstimator) -> None:
    """Refuse estimators whose score gradients do not reach, or whose labels ONNX lacks."""
    name = type(estimator).__name__
    classes = getattr(estimator, "classes_", None)
    if isinstance(classes, np.ndarray) and classes.dtype == np.uint64 and classes.max() >= 2**63:
        raise UnsupportedError(
            f"{name} has labels up to {classes.max()}; ONNX classifiers hold int64, so labels must be below "
            "2**63: train it on other labels."
        )
    for names, applies, objection in _REFUSED:
        if name in names and applies(estimator):
            raise UnsupportedError(f"{name} {objection}.")


_SVC = ("NuSVC", "SVC")
_PAIRS = (
    "lets pairs of classes vote, which has no gradient: take OneVsRestClassifier, around it or instead of it"
)
#: Refused estimators by name, with the condition and the reason.
_REFUSED: list[tuple[tuple[str, ...], Callable[[Any], bool], str]] = [
    (_SVC, lambda e: len(e.classes_) > 2, _PAIRS),
    (("OneVsOneClassifier",), lambda e: True, _PAIRS),
    (
        _SVC,
        gives_probabilities,
        "with probability=True is no function of its scores: take probability=False",
    ),
    (
        ("OneVsRestClassifier",),
        lambda e: e.multilabel_ and not hasattr(e, "predict_proba"),
        "for several labels of a sample needs members with probabilities",
    ),
    (
        ("RidgeClassifier", "RidgeClassifierCV"),
        # skl2onnx 1.20 converts them as two classes; this can go when that is mended
        lambda e: has_several_labels(e) and len(e.coef_) == 2,
        "for two labels of a sample has no converter: take OneVsRestClassifier(LogisticRegression())",
    ),
    (
        ("VotingClassifier",),
        lambda e: e.voting == "hard",
        "with voting='hard' counts votes, which has no gradient: take voting='soft'",
    ),
    (
        ("CalibratedClassifierCV",),
        lambda e: e.method == "isotonic",
        "with method='isotonic' is a step function, which has no gradient: take method='sigmoid'",
    ),
    (
        ("CalibratedClassifierCV",),
        lambda e: e.method != "sigmoid",
        "has a converter for method='sigmoid' alone",
    ),
    (
        ("FixedThresholdClassifier",),
        lambda e: True,
        "has a threshold that no converter knows: give its estimator_, and compare predict_proba with "
        "the threshold",
    ),
    (
        ("TunedThresholdClassifierCV",),
        lambda e: True,
        "has a threshold that its converter drops: give its estimator_, and compare predict_proba with "
        "best_threshold_",
    ),
]


def _name_outputs(graph: ir.Graph, *, has_scores: bool) -> None:
    """Name labels and probabilities as without a ZipMap; rename other values of these names.

    The converters of some classifiers without probabilities give that name to their scores, `has_scores`.
    """
    names = graph_names(graph)
    for value in graph.outputs:
        name = str(value.name)
        wanted = _OUTPUT_NAMES.get(name, name)
        if wanted == "probabilities" and has_scores:
            wanted = "scores"
        if wanted != name:
            if (other := find_value(graph, wanted)) is not None:
                other.name = unique_name(wanted, names)
            value.name = wanted


def input_columns(X: object) -> list[tuple[str, Any]] | None:
    """Return a name and a type for each column that is a separate input; None if all are one matrix.

    These are the columns of a frame with non-numeric ones, and the arrays of a dictionary.
    """
    if column_names(X) is None:
        return None
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    kinds = column_kinds(X)
    if not is_mapping(X) and NUMBERS.issuperset(kinds.values()):
        return None
    strange = [name for name, kind in kinds.items() if kind not in NUMBERS | set("OUT")]
    if strange:
        raise UnsupportedError(f"Column {strange[0]!r} holds neither numbers nor strings: convert it first.")
    return [
        (name, (FloatTensorType if kind in NUMBERS else StringTensorType)([None, 1]))
        for name, kind in kinds.items()
    ]


def _matrix(estimator: BaseEstimator, X: Any, holds_integers: bool) -> list[tuple[str, Any]]:
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType

    width = getattr(estimator, "n_features_in_", None)
    if width is None and np.ndim(X) == 2:
        width = np.shape(X)[1]
    if width is None:
        raise ParameterError(f"{type(estimator).__name__} has no n_features_in_: give X.")
    kind = Int64TensorType if holds_integers else FloatTensorType
    return [("X", kind([None, int(width)]))]


def _convert(
    estimator: BaseEstimator, given: BaseEstimator, types: list[tuple[str, Any]], *, is_known: bool
) -> tuple[onnx.ModelProto, Any]:
    """Call the converter; return the converted model and its topology of steps.

    `given`: that of the user. `is_known`: the types are those of data, not assumed.
    """
    from skl2onnx import convert_sklearn

    final = final_estimator(estimator)
    check_operators_once()
    # skl2onnx 1.20 gives the option zipmap, which selectors refuse, to steps of a pipeline without an entry
    options: dict[int, dict[str, bool]] = {id(final): {}} if is_classifier(final) else {}
    options |= {id(step): {} for step in selections(estimator)}
    if is_classifier(final) and not hasattr(final, "predict_proba") and type(final).__name__ in _RAW_SCORES:
        options[id(final)] = {"raw_scores": True}
    try:
        return convert_sklearn(
            estimator,
            name=type(estimator).__name__,
            initial_types=types,
            target_opset=_TARGET_OPSET,
            options=options,
            intermediate=True,
            **own_converters(),
        )
    except Exception as error:
        # the converters raise errors of many types
        raise conversion_error(error, estimator, given, is_known=is_known) from error


#: Estimators whose converters return the decision function only with the option raw_scores.
_RAW_SCORES = frozenset({"NuSVC", "OneVsRestClassifier", "SVC"})


def registered_converters() -> Hashable:
    """Return the converters, shape functions and parsers that are registered: users may replace them."""
    from skl2onnx import _parse
    from skl2onnx.common import _registration

    pools = (_registration._converter_pool, _registration._shape_calculator_pool, _parse.sklearn_parsers_map)
    return tuple(tuple(pool.values()) for pool in pools)
