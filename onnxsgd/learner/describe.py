"""The public report on the trainable tensors of a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
import onnx
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from onnxsgd.adapters import LoRA
from onnxsgd.data.columns import with_numbers
from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.gradient.engines import ENGINES, PORTABLE, differentiable
from onnxsgd.graph.cut import cut_at
from onnxsgd.graph.dropout import acting_dropouts, mark_dropouts, refuse_without_dropout
from onnxsgd.graph.reading.batch_statistics import find_statistics
from onnxsgd.graph.reading.head import ScoredGraph
from onnxsgd.graph.reading.report import TrainingReport, describe
from onnxsgd.graph.reading.trainable import Trainable, but_dropouts, with_head
from onnxsgd.learner.adapted import with_adapters
from onnxsgd.learner.model_source import refuse_circle

__all__ = ["describe_trainable"]


def describe_trainable(
    model: object,
    X: object = None,
    *,
    output: str | int | None = None,
    head: str | None = None,
    trainable: Trainable = None,
    adapter: LoRA | None = None,
    batch_norm: str | None = None,
    dropout: float | None = None,
    engine: str = "auto",
) -> TrainingReport:
    """Describe the tensors that a fit with these parameters would train, and the operators behind them.

    Use it before a fit, to see which tensors are parameters, their names, and why a model cannot be trained.

    Parameters
    ----------
    model : fitted estimator, ModelProto, bytes, str or path-like
        As the parameter `model` of :class:`onnxsgd.OnnxSGDRegressor` and
        :class:`onnxsgd.OnnxSGDClassifier`.
    X : array-like or data frame, default=None
        Samples like those an estimator was fitted on; needed for columns that are not numeric (not for texts
        that a vectorizer reads), and for a new layer on a graph of dynamic sizes.
    output : str, int or None, default=None
        As in the estimators.
    head : {"linear", None}, default=None
        As in the estimators. Its tensors are called ``coef`` and ``intercept``, with a number appended where
        the graph has tensors of these names; their width, which follows from `y` in a fit, is 1 here.
    trainable : None, str, sequence of str, or callable, default=None
        As in the estimators.
    adapter : LoRA or None, default=None
        As in the estimators.
    batch_norm : {"frozen", "train", None}, default=None
        As in the estimators. Running statistics that a fit updates are among the trained tensors.
    dropout : float or None, default=None
        As in the estimators; it changes no tensor.
    engine : {"auto", "onnxruntime-training", "portable"}, default="auto"
        As in the estimators.

    Returns
    -------
    TrainingReport
        Print it; its attributes `tensors`, `operators`, `trained` and `problem` hold the same.

    Raises
    ------
    ParameterTypeError
        If `model` is of another type.
    ParameterError
        If another parameter has a value that is not accepted.
    GraphError
        If the model cannot be read, or the size of a new layer does not follow from it: give `X`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from onnxsgd import describe_trainable
    >>> X, y = load_iris(return_X_y=True)
    >>> report = describe_trainable(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y))
    >>> report.trained
    ['coef', 'intercept']
    >>> print(report)  # doctest: +ELLIPSIS
    score ... link softmax: 2 of 4 tensors are trained, 15 of 23 numbers
    <BLANKLINE>
    tensor     shape  trained  role
    offset     4      no       constant of a scaler
    scale      4      no       constant of a scaler
    coef       4 x 3  yes      weight of Gemm
    intercept  3      yes      intercept of Gemm
    <BLANKLINE>
    operator  count  gradient
    Gemm      1      onnxruntime-training, portable
    """
    if head not in (None, "linear"):
        raise ParameterError(f"head={head!r} is not accepted: it must be 'linear' or None.")
    if adapter is not None and not isinstance(adapter, LoRA):
        raise ParameterTypeError(f"adapter={adapter!r} is not accepted: it must be a LoRA or None.")
    if batch_norm not in (None, "frozen", "train"):
        raise ParameterError(
            f"batch_norm={batch_norm!r} is not accepted: it must be 'frozen', 'train' or None."
        )
    if dropout is not None and (
        isinstance(dropout, bool) or not isinstance(dropout, Real) or not 0 <= dropout < 1
    ):
        raise ParameterError(
            f"dropout={dropout!r} is not accepted: it must be a number from 0 to below 1, or None."
        )
    if hasattr(model, "fit"):
        refuse_circle(model)
        model, X = _behind_text(model, X)
    scored, training = _score(model, X, output, dropout)
    cut = cut_at(scored.model, scored.score if head is None else scored.below_head)
    statistics = find_statistics(cut, batch_norm, training)
    if dropout and not any(acting_dropouts(cut.graph)):
        refuse_without_dropout(dropout)
    if head is not None:
        scored, names = _with_new_layer(scored, X)
        trainable = with_head(trainable, names)
    if adapter is not None:
        adapted, _, trainable = with_adapters(scored.model, scored.score, adapter, trainable)
        scored = replace(scored, model=adapted)
    # the training step has a product in the place of a Dropout that acts
    engines = {name: but_dropouts(entry.reason_against) for name, entry in ENGINES.items()}
    reference, chosen = (but_dropouts(differentiable(name)) for name in (PORTABLE, engine))
    return describe(scored, trainable, engines, reference, chosen, statistics)


def _behind_text(model: object, X: object) -> tuple[Any, Any]:
    """Return the part of an estimator that a fit converts, all but vectorizers, and its features."""
    # imported on use: it loads the text tools of scikit-learn
    from onnxsgd.data.text import check_texts, has_text, split_text

    if not has_text(model):
        return model, X
    check_is_fitted(model)
    text, behind = split_text(model, None)
    if X is None:
        return behind, None
    # a temporary estimator keeps the names of columns
    return behind, text.features(check_texts(BaseEstimator(), X, model=model, reset=True))


def _score(
    model: object, X: object, output: str | int | None, dropout: float | None
) -> tuple[ScoredGraph, Sequence[str]]:
    """Return the graph as a fit reads it, and the outputs of BatchNormalization that it would train."""
    if hasattr(model, "fit"):
        from onnxsgd.graph.sklearn.convert import convert_estimator

        return convert_estimator(model, with_numbers(X), output=output), ()
    if not isinstance(model, onnx.ModelProto | bytes | bytearray | memoryview | str | os.PathLike):
        raise ParameterTypeError(
            f"model={model!r} is not accepted: it must be a fitted scikit-learn estimator, an "
            "onnx.ModelProto, bytes, or the path of an ONNX file."
        )
    from onnxsgd.graph.loading.load import load_model
    from onnxsgd.graph.lowering.dropout_ratio import with_dropout
    from onnxsgd.graph.lowering.inference_mode import inference_form
    from onnxsgd.graph.lowering.precision import without_half_precision
    from onnxsgd.graph.lowering.running_statistics import with_own_statistics
    from onnxsgd.graph.model import to_ir
    from onnxsgd.graph.reading.head import find_score

    # a regression has no link to invert, so that this serves both
    graph, switched = inference_form(to_ir(load_model(model)))
    mark_dropouts(graph.graph)
    scored = find_score(graph, "classification", output)
    trained = with_dropout(with_own_statistics(scored.model), dropout)
    return replace(scored, model=without_half_precision(trained)), switched.get("BatchNormalization", ())


def _with_new_layer(scored: ScoredGraph, X: Any) -> tuple[ScoredGraph, tuple[str, str]]:
    """Return the graph with a linear layer on top, and the names of the layer's tensors."""
    from onnxsgd.graph.reading.linear import add_linear_layer

    backbone = cut_at(scored.model, scored.below_head)
    inputs = [str(value.name) for value in backbone.graph.inputs]
    given = X if isinstance(X, Mapping) else dict.fromkeys(inputs, X) if X is not None else {}
    row_shapes = {name: np.shape(given[name])[1:] for name in inputs if name in given}
    model, names = add_linear_layer(backbone, 1, row_shapes)
    score = str(model.graph.outputs[0].name)
    return replace(scored, model=model, score=score, link="identity", label_output=None), names
