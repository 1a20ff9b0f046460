"""Fitted scikit-learn estimators in, graphs out; the conversion itself is skl2onnx's."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import IdentityEliminationPass
from sklearn.base import is_classifier, is_regressor
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.validation import check_is_fitted

from onnxsgd.exceptions import ParameterError, UnsupportedError
from onnxsgd.graph.head import ScoredGraph, find_score
from onnxsgd.graph.model import FROZEN, graph_names, to_ir, to_proto, unique_name
from onnxsgd.graph.polynomial import convert_polynomial, infer_polynomial_shape
from onnxsgd.graph.prepare import final_estimator, prepare, split_target_transformer

__all__ = ["convert_estimator", "estimator_to_onnx"]

#: What the converters are asked for: versions they are tested with, and that every runtime here reads.
_TARGET_OPSET = {"": 18, "ai.onnx.ml": 3}
_IR_VERSION = 9


def convert_estimator(
    estimator: Any, X: Any = None, task: str | None = None, output: str | int | None = None
) -> ScoredGraph:
    """Convert a fitted estimator and find its raw score.

    Parameters
    ----------
    estimator : estimator
        Fitted; a Pipeline, a FrozenEstimator or a search over parameters as well. It is not changed.
    X : array-like, data frame, or None
        Samples like those it was fitted on; one is enough. None: one float32 input with as many columns as
        the estimator was fitted on.
    task : {"regression", "classification", None}
        What the scores are for; None: what the estimator is.
    output : str, int or None
        See :func:`~onnxsgd.graph.head.find_score`.

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
    scored = find_score(to_ir(estimator_to_onnx(estimator, X)), task, output)
    classes = getattr(estimator, "classes_", None) if is_classifier(estimator) else None
    return scored if classes is None else replace(scored, classes=np.asarray(classes))


def estimator_to_onnx(estimator: Any, X: Any = None) -> onnx.ModelProto:
    """Convert a fitted estimator to ONNX.

    All features are one float32 input ``X``, of shape [N, n_features]; for a data frame with columns that
    are no numbers, each column is an input of its own, under its name, of shape [N, 1]. Constants of
    transformers, which are fitted without the target, are marked as frozen.

    Parameters
    ----------
    estimator, X : objects
        As in :func:`convert_estimator`.
    """
    check_is_fitted(estimator)
    if isinstance(getattr(estimator, "classes_", None), list):
        raise UnsupportedError(
            f"{type(estimator).__name__} predicts several targets, each with classes of its own: "
            "train one model for each of them."
        )
    _refuse(final_estimator(estimator))
    columns = _input_columns(X)
    with warnings.catch_warnings():
        # about things the user did not do: copying what is deprecated, and inside the converters
        warnings.simplefilter("ignore")
        prepared = prepare(estimator, by_position=columns is None)
        prepared, target_transformer = split_target_transformer(prepared)
        types = _float_matrix(estimator, X) if columns is None else columns
        proto, topology = _convert(prepared, types)
    model = to_ir(proto)
    _freeze_transformers(model, topology)
    _repair_width(model, final_estimator(prepared))
    _make_column(model, final_estimator(prepared))
    _name_parameters(model)
    for value, (name, _) in zip(model.graph.inputs, types, strict=True):
        # the converters replace characters that no identifier may hold
        value.name = name
    IdentityEliminationPass()(model)
    if target_transformer is not None:
        from onnxsgd.graph.target import add_inverse_transform

        add_inverse_transform(model, target_transformer)
    for value in model.graph.outputs:
        # some converters declare the width of the input, or of another output; it is inferred later
        value.shape = ir.Shape([None] * len(value.shape or ()))
    # the converters write for the version they are asked for, and declare the oldest one that would do
    model.graph.opset_imports.update(_TARGET_OPSET)
    model.ir_version = _IR_VERSION
    return to_proto(model)


def _refuse(estimator: Any) -> None:
    """Refuse what could be converted, and has no score that gradients reach."""
    name = type(estimator).__name__
    for names, applies, reason in _REFUSED:
        if name in names and applies(estimator):
            raise UnsupportedError(f"{name} {reason}.")


_SVC = ("NuSVC", "SVC")
_PAIRS = "lets pairs of classes vote, which has no gradient: take OneVsRestClassifier, around it or instead of it"
#: Estimators by name, when they are refused, and why.
_REFUSED: list[tuple[tuple[str, ...], Callable[[Any], bool], str]] = [
    (_SVC, lambda e: len(e.classes_) > 2, _PAIRS),
    (("OneVsOneClassifier",), lambda e: True, _PAIRS),
    (
        _SVC,
        lambda e: e.probability is True,
        "with probability=True is no function of its scores: take probability=False",
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
]


def _input_columns(X: Any) -> list[tuple[str, Any]] | None:
    """Return a name and a type for each column of a frame that is not all numbers; None for anything else."""
    if not hasattr(X, "columns"):
        return None
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    first = X[:1]
    kinds = {str(name): np.asarray(first[name]).dtype.kind for name in X.columns}
    if all(kind in "biuf" for kind in kinds.values()):
        return None
    strange = [name for name, kind in kinds.items() if kind not in "biufOUT"]
    if strange:
        raise UnsupportedError(f"Column {strange[0]!r} holds neither numbers nor strings: convert it first.")
    return [
        (name, (FloatTensorType if kind in "biuf" else StringTensorType)([None, 1]))
        for name, kind in kinds.items()
    ]


def _float_matrix(estimator: Any, X: Any) -> list[tuple[str, Any]]:
    from skl2onnx.common.data_types import FloatTensorType

    width = getattr(estimator, "n_features_in_", None) if X is None else np.shape(X)[1]
    if width is None:
        raise ParameterError(f"{type(estimator).__name__} does not tell how many features it takes: give X.")
    return [("X", FloatTensorType([None, int(width)]))]


def _convert(estimator: Any, types: list[tuple[str, Any]]) -> tuple[onnx.ModelProto, Any]:
    """Call the converter; return what it makes and its own account of which step made what."""
    from skl2onnx import convert_sklearn

    options = {}
    final = final_estimator(estimator)
    if is_classifier(final) and not hasattr(final, "predict_proba") and type(final).__name__ in _RAW_SCORES:
        options[id(final)] = {"raw_scores": True}
    try:
        return convert_sklearn(
            estimator,
            name=type(estimator).__name__,
            initial_types=types,
            target_opset=_TARGET_OPSET,
            custom_conversion_functions={PolynomialFeatures: convert_polynomial},
            custom_shape_calculators={PolynomialFeatures: infer_polynomial_shape},
            options=options,
            intermediate=True,
        )
    except Exception as error:
        # the converters raise errors of many types, for reasons of their own
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedError(
            f"{type(estimator).__name__} cannot be converted to ONNX ({type(error).__name__}: {reason}). "
            "An ONNX model of it that another tool makes can be given instead."
        ) from error


#: Estimators whose converters give something else than the decision function unless they are told to.
_RAW_SCORES = frozenset({"NuSVC", "OneVsRestClassifier", "SVC"})


def _freeze_transformers(model: ir.Model, topology: Any) -> None:
    """Mark the initializers between the inputs and the outputs of each step that does not predict."""
    values = ir.convenience.create_value_mapping(model.graph)
    for operator in topology.scope.operators.values():
        step = operator.raw_operator
        if step is None or is_classifier(step) or is_regressor(step):
            continue
        stop = {variable.onnx_name for variable in operator.inputs}
        waiting = [values[v.onnx_name] for v in operator.outputs if v.onnx_name in values]
        while waiting:
            value = waiting.pop()
            if value.is_initializer():
                value.metadata_props[FROZEN] = f"constant of {type(step).__name__}"
            elif value.name not in stop and (node := value.producer()) is not None:
                waiting.extend(entry for entry in node.inputs if entry is not None)


def _repair_width(model: ir.Model, estimator: Any) -> None:
    """Let a multilayer perceptron with several targets return a column for each.

    skl2onnx 1.20 puts them all into one column; this can go when it does not.
    """
    width = getattr(estimator, "n_outputs_", 1)
    if type(estimator).__name__ != "MLPRegressor" or width == 1:
        return
    (output,) = model.graph.outputs
    reshape = output.producer()
    if reshape is not None and reshape.op_type == "Reshape":
        shape = ir.Value(name="n_outputs", const_value=ir.tensor(np.array([-1, width])))
        model.graph.register_initializer(shape)
        reshape.replace_input_with(1, shape)


def _make_column(model: ir.Model, estimator: Any) -> None:
    """Give generalised linear models, whose converters write a vector of coefficients, a column of them."""
    if type(estimator).__name__ not in ("GammaRegressor", "PoissonRegressor", "TweedieRegressor"):
        return
    for node in model.graph:
        coef = node.inputs[1] if node.op_type == "MatMul" else None
        if coef is not None and coef.const_value is not None and len(coef.const_value.shape) == 1:
            column = coef.const_value.numpy().reshape(-1, 1)
            coef.const_value, coef.shape = ir.tensor(column, name=coef.name), ir.Shape(column.shape)


#: What parameters are called by the converters, and here, after scikit-learn's attributes.
_NAMES = {
    "Ad_Addcst": "intercept",
    "Ma_MatMulcst": "coef",
    "Su_Subcst": "mean",
    "coefficient": "coefs",
    "intercepts": "intercepts",
}


def _name_parameters(model: ir.Model) -> None:
    """Give readable names to parameters, numbered as the layers are."""
    names = graph_names(model.graph)
    for name, value in list(model.graph.initializers.items()):
        match = re.fullmatch(r"([A-Za-z_]*[A-Za-z])(\d*)", name)
        if match is not None and match[1] in _NAMES and FROZEN not in value.metadata_props:
            base = _NAMES[match[1]]
            new = unique_name(f"{base}_{match[2] or 0}" if base.endswith("s") else base, names)
            ir.convenience.rename_values(value, new)
