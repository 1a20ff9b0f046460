"""Making of a learner from a fitted estimator, a graph, or nothing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from sklearn.base import BaseEstimator

from onnxsgd.data.columns import NUMBERS, column_kinds, column_names
from onnxsgd.exceptions import ParameterError
from onnxsgd.graph.adapting.branches import Adapter
from onnxsgd.graph.cut import cut_at
from onnxsgd.graph.dropout import acting_dropouts, refuse_without_dropout
from onnxsgd.graph.reading.batch_statistics import (
    find_statistics,
    refuse_without_statistics,
    without_statistics,
)
from onnxsgd.graph.reading.linear import add_linear_layer, linear_graph, linear_parameters
from onnxsgd.learner.learner import Learner
from onnxsgd.learner.model_source import LARGEST_CACHED, GraphSource
from onnxsgd.learner.templates import learner_of_estimator, learner_of_structure
from onnxsgd.runtime.cache import cached

if TYPE_CHECKING:
    from onnxsgd.adapters import LoRA
    from onnxsgd.graph.reading.head import ScoredGraph
    from onnxsgd.graph.reading.trainable import Trainable

__all__ = ["ModelOptions", "TrainingData", "make_learner"]


@dataclass(frozen=True)
class ModelOptions:
    """The parameters of an estimator that determine the use of its model.

    Attributes
    ----------
    task : {"regression", "classification"}
        The task.
    output : str, int or None
        The tensor that predicts.
    head : {"linear", None}
        The new layer on top of it.
    trainable : sequence of str, callable or None
        The weights to train.
    engine : str
        The gradient engine.
    dtype : {"float32", "float64", None}
        The type of the graph; None: its own, but float32 in training for one of half precision, and float32
        for converted estimators and linear models.
    link : {"identity", "log", "normal", "sorted"}
        The link of the loss of a regression.
    adapter : LoRA or None
        The adapters beside frozen weights.
    batch_norm : {"frozen", "train", None}
        The statistics of BatchNormalization in training; None: as in the graph.
    dropout : float or None
        The ratio of Dropout nodes in training; None: that of each node.
    """

    task: str
    output: str | int | None
    head: str | None
    trainable: Trainable
    engine: str
    dtype: str | None = None
    link: str = "identity"
    adapter: LoRA | None = None
    batch_norm: str | None = None
    dropout: float | None = None

    @property
    def key(self) -> Hashable | None:
        """The cache key of the options; None if they have none, as with a function for `trainable`."""
        trainable: Any = self.trainable
        if trainable is not None and not isinstance(trainable, str):
            names = None if callable(trainable) else list(trainable)
            if names is None or not all(isinstance(name, str) for name in names):
                return None
            trainable = tuple(names)
        adapter = None if self.adapter is None else self.adapter.key
        if adapter is None and self.adapter is not None:
            return None
        # the type tells True from 1
        output = (type(self.output), self.output)
        return (
            self.task, *output, self.head, trainable, self.engine, self.dtype, self.link, adapter,
            self.batch_norm, self.dropout,
        )  # fmt: skip


@dataclass(frozen=True)
class TrainingData:
    """The data that a model is made for.

    Attributes
    ----------
    checked : object
        `X` from :func:`onnxsgd.data.features.check_X`.
    """

    checked: Any

    @property
    def n_features(self) -> int | None:
        """The number of columns, if this is one table."""
        return self.checked.shape[1] if getattr(self.checked, "ndim", 0) == 2 else None

    def row_shapes(self, inputs: Sequence[ir.Value]) -> dict[str, tuple[int, ...]]:
        """Return the shape of a row of each input of a graph, as far as the data determine it."""
        if isinstance(self.checked, dict):
            return {name: tuple(array.shape[1:]) for name, array in self.checked.items()}
        if len(inputs) == 1 and hasattr(self.checked, "ndim"):
            return {str(inputs[0].name): tuple(self.checked.shape[1:])}
        return {}


def make_learner(
    source: BaseEstimator | GraphSource | None, data: TrainingData, n_outputs: int, options: ModelOptions
) -> Learner:
    """Return the learner of `source` for these data.

    Equal graphs with equal options share one learner: a grid search prepares its model once.

    Parameters
    ----------
    source : estimator, GraphSource or None
        The result of :func:`~onnxsgd.learner.model_source.read_source`; an estimator is fitted.
    data : TrainingData
        The training data.
    n_outputs : int
        The width of a linear model, or of a new layer.
    options : ModelOptions
        The rest.
    """
    if not isinstance(source, GraphSource) and options.batch_norm == "train":
        refuse_without_statistics()
    if not isinstance(source, GraphSource) and options.dropout:
        refuse_without_dropout(options.dropout)
    if source is None:
        return _linear_learner(data, n_outputs, options)
    if not isinstance(source, GraphSource):
        convert = partial(_converted_learner, data=data, n_outputs=n_outputs, options=options)
        return learner_of_estimator(source, _template_key(data, options), convert)
    inputs = source.model.graph.inputs
    new_layer = (n_outputs, *data.row_shapes(inputs).items()) if options.head is not None else None
    is_known = source.digest is not None and options.key is not None
    key = ("learner", source.digest, options.key, new_layer) if is_known else None
    if not source.numbers:
        return cached(key, lambda: _graph_learner(source, data, n_outputs, options), source.nbytes)
    arrays = tuple(source.numbers.values())

    def prepare(arrays: Sequence[np.ndarray]) -> Learner:
        return _graph_learner(source.with_numbers(arrays), data, n_outputs, options)

    if key is None:
        return prepare(arrays)
    return learner_of_structure(key, arrays, partial(prepare, arrays), prepare)


def _converted_learner(
    source: BaseEstimator, data: TrainingData, n_outputs: int, options: ModelOptions
) -> Learner:
    from onnxsgd.graph.sklearn.convert import convert_estimator

    scored = convert_estimator(source, data.checked, options.task, options.output, options.link)
    if options.link == "log" and scored.link != "exp" and options.head is None and options.output is None:
        raise ParameterError(
            f"{type(source).__name__} predicts the target, and the loss has a logarithmic link: its raw "
            "predictions are logarithms. Give a model with this link, such as PoissonRegressor, an ONNX "
            "graph, model=None, or head='linear'."
        )
    scored = _in_precision(scored, options.dtype)
    if options.dtype == "float64":
        from onnxsgd.graph.lowering.precision import restore_digits

        restore_digits(scored.model, source)
    return _make_learner(scored, None, data, n_outputs, options)


def _template_key(data: TrainingData, options: ModelOptions) -> Hashable | None:
    """Return all that a converted learner depends on beside its estimator; None where that is too much."""
    is_plain = data.n_features is not None and column_names(data.checked) is None
    is_plain = is_plain and options.head is None and options.adapter is None
    if not is_plain or options.dtype == "float64" or options.key is None:
        return None
    return (data.n_features, options.key)


def _graph_learner(source: GraphSource, data: TrainingData, n_outputs: int, options: ModelOptions) -> Learner:
    from onnxsgd.gradient.engines import PORTABLE
    from onnxsgd.graph.batch_size import fixed_batch_size, free_batch_size
    from onnxsgd.graph.lowering.dropout_ratio import with_dropout
    from onnxsgd.graph.lowering.precision import without_half_precision
    from onnxsgd.graph.lowering.running_statistics import with_own_statistics
    from onnxsgd.graph.reading.head import find_score

    scored = find_score(source.model, options.task, options.output, options.link)
    exported_for = fixed_batch_size(scored.model)
    scored = replace(scored, model=free_batch_size(scored.model))
    scored = _in_precision(scored, options.dtype)
    scored = replace(scored, model=with_dropout(with_own_statistics(scored.model), options.dropout))
    training = source.switched.get("BatchNormalization", ())
    wide = without_half_precision(scored.model)
    learner = _make_learner(replace(scored, model=wide), exported_for, data, n_outputs, options, training)
    if wide is scored.model:
        return learner
    same = replace(_same_weights(options, learner), engine=PORTABLE)
    half = _make_learner(scored, exported_for, data, n_outputs, same, training)
    return replace(learner, half_precision=half)


def _same_weights(options: ModelOptions, learner: Learner) -> ModelOptions:
    """Return options that train the same weights, and adapt the same ones, in another type."""
    if options.adapter is None:
        return replace(options, trainable=learner.weights)
    of_adapters = {name for adapter in learner.adapters for name in adapter.names}
    own = [name for name in learner.weights if name not in of_adapters]
    targets = [adapter.weight for adapter in learner.adapters]
    return replace(options, trainable=own or None, adapter=replace(options.adapter, targets=targets))


def _in_precision(scored: ScoredGraph, dtype: str | None) -> ScoredGraph:
    if dtype is None:
        return scored
    from onnxsgd.graph.lowering.precision import with_precision

    return replace(scored, model=with_precision(scored.model, _REAL_TYPES[dtype]))


#: Types of graphs by name.
_REAL_TYPES = {"float32": ir.DataType.FLOAT, "float64": ir.DataType.DOUBLE}


def _make_learner(
    scored: ScoredGraph,
    exported_for: int | None,
    data: TrainingData,
    n_outputs: int,
    options: ModelOptions,
    training: Sequence[str] = (),
) -> Learner:
    """Return the learner of a scored graph; `training`: outputs of its BatchNormalization that train."""
    cut = cut_at(scored.model, scored.score if options.head is None else scored.below_head)
    statistics = find_statistics(cut, options.batch_norm, training)
    dropouts = tuple(str(node.outputs[0].name) for node in acting_dropouts(cut.graph))
    if options.dropout and not dropouts:
        refuse_without_dropout(options.dropout)
    if options.head is not None:
        learner = _transfer_learner(cut, n_outputs, options, data.row_shapes(cut.graph.inputs), statistics)
        return replace(learner, exported_for=exported_for, dropouts=dropouts)
    model, adapted, adapters = scored.model, cut, tuple[Adapter, ...]()
    if options.adapter is None:
        weights = _select(cut, options, statistics)
    else:
        model, adapted, adapters, weights = _adapt(
            scored.model, scored.score, options, options.adapter, statistics
        )
    return Learner(
        model=model, score_model=adapted, link=scored.link, classes=scored.classes, weights=weights,
        intercepts=_intercepts(adapted, weights), linear=linear_parameters(cut), exported_for=exported_for,
        adapters=adapters, statistics=statistics, dropouts=dropouts,
    )  # fmt: skip


def _refuse_columns(data: TrainingData) -> None:
    """Refuse columns of a frame that hold no numbers."""
    if column_names(data.checked) is None:
        return
    others = [name for name, kind in column_kinds(data.checked).items() if kind not in NUMBERS]
    if others:
        raise ParameterError(
            f"X has columns that hold no numbers, {others}, and model=None makes a linear model of numbers: "
            "drop them, or give model= a pipeline that encodes them, with OneHotEncoder for example."
        )


def _linear_learner(data: TrainingData, n_outputs: int, options: ModelOptions) -> Learner:
    n_features = data.n_features
    for name in ("output", "head", "adapter"):
        if getattr(options, name) is not None:
            raise ParameterError(f"{name}={getattr(options, name)!r} needs a model; model is None.")
    _refuse_columns(data)
    if n_features is None:
        raise ParameterError("model=None makes a linear model, which takes one numeric array or frame as X.")
    nbytes = 4 * n_features * n_outputs
    is_known = nbytes <= LARGEST_CACHED and options.key is not None
    key = ("learner", n_features, n_outputs, options.key) if is_known else None

    def make() -> Learner:
        dtype = _REAL_TYPES[options.dtype or "float32"]
        graph, (coef, intercept) = linear_graph(n_features, n_outputs, dtype)
        weights = _select(graph, options) if options.trainable is not None else (coef, intercept)
        return Learner(
            model=graph, score_model=graph, link="own", classes=None, weights=weights,
            intercepts=frozenset({intercept}), linear=(coef, intercept),
        )  # fmt: skip

    return cached(key, make, nbytes)


def _transfer_learner(
    backbone: ir.Model,
    n_outputs: int,
    options: ModelOptions,
    row_shapes: dict[str, tuple[int, ...]],
    statistics: tuple[str, ...],
) -> Learner:
    from onnxsgd.graph.reading.trainable import with_head

    graph, (coef, intercept) = add_linear_layer(backbone, n_outputs, row_shapes)
    linear, adapters = linear_parameters(graph), tuple[Adapter, ...]()
    options = replace(options, trainable=with_head(options.trainable, (coef, intercept)))
    if options.adapter is None:
        weights = _select(graph, options, statistics)
    else:
        score = str(graph.graph.outputs[0].name)
        _, graph, adapters, weights = _adapt(graph, score, options, options.adapter, statistics)
    return Learner(
        model=graph, score_model=graph, link="own", classes=None, weights=weights,
        intercepts=_intercepts(graph, weights), linear=linear, adapters=adapters,
        statistics=statistics,
    )  # fmt: skip


def _adapt(
    model: ir.Model, score: str, options: ModelOptions, adapter: LoRA, statistics: Sequence[str]
) -> tuple[ir.Model, ir.Model, tuple[Adapter, ...], tuple[str, ...]]:
    """Return a graph with adapters, the same with the score alone, the adapters and the trained weights."""
    from onnxsgd.learner.adapted import with_adapters

    adapted, adapters, names = with_adapters(model, score, adapter, options.trainable)
    cut = cut_at(adapted, score)
    return adapted, cut, adapters, _select(cut, replace(options, trainable=names), statistics)


def _select(model: ir.Model, options: ModelOptions, statistics: Sequence[str] = ()) -> tuple[str, ...]:
    from onnxsgd.gradient.engines import PORTABLE, differentiable
    from onnxsgd.graph.reading.trainable import but_dropouts, select_trainable

    score = str(model.graph.outputs[0].name)
    # the training step has a product in the place of a Dropout that acts
    portable, named = (but_dropouts(differentiable(name)) for name in (PORTABLE, options.engine))
    selected = select_trainable(model, score, options.trainable, portable, named)
    return without_statistics(selected, options.trainable, statistics)


def _intercepts(model: ir.Model, weights: tuple[str, ...]) -> frozenset[str]:
    from onnxsgd.graph.reading.trainable import intercept_names

    return frozenset(intercept_names(model, weights))
