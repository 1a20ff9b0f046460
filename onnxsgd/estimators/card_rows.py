"""Facts about an estimator for its card: model, trained tensors, loss, rate, result, runtime.

Nothing is converted, loaded or compiled for them: a card is shown whenever a cell of a notebook ends in an
estimator.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxsgd.estimators.inner_model import is_fitted
from onnxsgd.estimators.summary import summarize_operators

__all__ = ["Card", "Row", "Tensor", "read_card"]

#: Attributes of fitted models of scikit-learn that hold their parameters.
_PARAMETERS = ("coef_", "intercept_", "coefs_", "intercepts_")


@dataclass(frozen=True)
class Tensor:
    """The name and the shape of a tensor."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of its elements."""
        return int(np.prod(self.shape))


@dataclass(frozen=True)
class Row:
    """A line of a card.

    Attributes
    ----------
    label, text : str
        Its two columns.
    tensors : sequence of Tensor
        Tensors to list below the text.
    are_trained : bool
        Whether these are trained tensors.
    """

    label: str
    text: str
    tensors: Sequence[Tensor] = ()
    are_trained: bool = False


@dataclass(frozen=True)
class Card:
    """The facts about an estimator.

    Attributes
    ----------
    title, status : str
        The class of the estimator, and whether it is trained.
    rows : sequence of Row
        The facts.
    """

    title: str
    status: str
    rows: Sequence[Row]


def read_card(est: Any) -> Card:
    """Return the facts about an estimator, fitted or not.

    Raises
    ------
    Exception
        Of any kind, if a parameter has a value that ``fit`` would refuse.
    """
    is_trained = hasattr(est, "_state")
    # before the first fit, the copy that has served predictions knows the tensors
    known = est if is_trained else est._start
    rows = [Row("model", _describe_model(est, known))]
    verb = "trained" if is_trained else "trains"
    rows += [Row(verb, _describe_choice(est))] if known is None else _tensor_rows(known, verb)
    rows += [Row("loss", f"{_name(est.loss)}, {_describe_penalty(est)}"), Row("rate", _describe_rate(est))]
    if is_trained and est.loss_curve_:
        rows.append(Row("result", _describe_result(est)))
    rows.append(Row("runs on", _describe_runtime(est, known)))
    return Card(type(est).__name__, _describe_status(est, is_trained), rows)


def _describe_status(est: Any, is_trained: bool) -> str:
    if is_trained:
        return f"trained, {_count(est.n_iter_, 'epoch')}, {_count(est.t_, 'update')}"
    return (
        "not trained, predicts with the weights of its model"
        if est.__sklearn_is_fitted__()
        else "not trained"
    )


def _describe_model(est: Any, known: Any) -> str:
    parts = [_describe_source(est.model, counts=known is None)]
    if est.head is not None:
        parts.append("with a new linear layer")
    if est.output is not None:
        parts.append(f"output {est.output!r}")
    if est.batch_norm is not None:
        parts.append(f"batch_norm={est.batch_norm!r}")
    if est.dropout is not None:
        parts.append(f"dropout={est.dropout:g}")
    if known is not None:
        sizes = [tensor.size for tensor in _tensors(known)]
        parts.append(_count(sum(sizes), "parameter"))
        n_features = getattr(known, "n_features_in_", None)
        inputs = "" if n_features is None else f"{_count(n_features, 'feature')} → "
        parts.append(f"{inputs}{_count(known._n_outputs, 'score')}")
    return ", ".join(parts)


def _describe_source(model: Any, counts: bool) -> str:
    """Describe the parameter `model`, with a count of the numbers that it shows itself."""
    if model is None:
        return "linear model"
    if hasattr(model, "fit"):
        return _describe_inner(model, counts)
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        size = f"{path.stat().st_size / 1e6:,.2f} MB" if path.is_file() else "not found"
        return f"ONNX file {path.name}, {size}"
    return summarize_operators(model, counts)


def _describe_inner(model: Any, counts: bool) -> str:
    inner = getattr(model, "estimator", model) if type(model).__name__ == "FrozenEstimator" else model
    steps = [type(step).__name__ for _, step in inner.steps] if hasattr(inner, "steps") else []
    name = f"{type(inner).__name__} of {', '.join(steps)}" if steps else type(inner).__name__
    if not is_fitted(inner):
        return f"{name}, which fit will fit first"
    final = inner.steps[-1][1] if steps else inner
    held = [getattr(final, attribute) for attribute in _PARAMETERS if hasattr(final, attribute)]
    sizes = [np.size(array) for group in held for array in (group if isinstance(group, list) else [group])]
    return f"fitted {name}" + (f", {_count(sum(sizes), 'parameter')}" if sizes and counts else "")


def _describe_choice(est: Any) -> str:
    """Describe the tensors to train, before the graph is known."""
    chosen = est.trainable
    if est.adapter is not None:
        beside = [] if est.head is None else ["the new linear layer"]
        beside += [] if chosen is None else ["those of trainable="]
        return " and ".join([f"adapters of rank {est.adapter.rank}", *beside])
    if callable(chosen):
        return f"the tensors that {_name(chosen)} chooses"
    if chosen is not None:
        return ", ".join([*map(str, chosen)])
    if est.head is not None:
        return "the new linear layer alone"
    if est.model is None:
        return "all of it"
    return "the parameters of the graph, as describe_trainable(model) lists them"


def _tensor_rows(known: Any, verb: str) -> list[Row]:
    trained = set(known._learner.weights)
    rows = []
    for label, are_trained in ((verb, True), ("frozen", False)):
        group = [tensor for tensor in _tensors(known) if (tensor.name in trained) is are_trained]
        if group:
            text = f"{_count(len(group), 'tensor')}, {_count(sum(t.size for t in group), 'number')}"
            rows.append(Row(label, text, group, are_trained))
    return rows


def _tensors(known: Any) -> list[Tensor]:
    """Return the tensors of real numbers in the order in which nodes read them.

    Single numbers are constants in formulas, unless they are trained.
    """
    # imported on use: a fit of a linear model does without it
    from onnxsgd.graph.reading.trainable import initializers_in_use

    found = []
    for value in initializers_in_use(known._learner.score_model.graph):
        shape = () if value.const_value is None else tuple(value.const_value.shape.numpy())
        is_real = value.dtype is not None and value.dtype.is_floating_point()
        if value.name in known._learner.weights or (is_real and shape):
            found.append(Tensor(str(value.name), shape))
    return found


def _describe_penalty(est: Any) -> str:
    if est.penalty is None:
        return "no penalty"
    if not isinstance(est.penalty, str):
        return f"penalty {est.penalty!r}"
    ratio = f", l1_ratio={est.l1_ratio:g}" if est.penalty == "elasticnet" else ""
    return f"penalty {est.penalty} (alpha={est.alpha:g}{ratio})"


def _describe_rate(est: Any) -> str:
    is_auto = est.learning_rate == "auto" if isinstance(est.learning_rate, str) else False
    optimizer = est.optimizer or ("block_adam" if is_auto else "sgd")
    text = f"{_name(est.learning_rate)}, optimizer {_name(optimizer)}"
    for name in ("eta0", "max_grad_norm", "max_grad_value"):
        if (value := getattr(est, name)) is not None:
            text += f", {name}={value:g}"
    if est.learning_rate_multipliers is not None:
        text += f", learning_rate_multipliers={_names_of(est.learning_rate_multipliers)}"
    if est.gradient_accumulation_steps != 1:
        text += f", gradient_accumulation_steps={est.gradient_accumulation_steps}"
    if not hasattr(est, "_state") or not len(est.learning_rates_):
        return text
    rates = np.asarray(est.learning_rates_)
    used = f"{rates[0]:.3g}" if rates.min() == rates.max() else f"{rates[0]:.3g} → {rates[-1]:.3g}"
    highest = f", at most {rates.max():.3g}" if rates.max() > max(rates[0], rates[-1]) else ""
    return f"{text}; used: {used}{highest}"


def _describe_result(est: Any) -> str:
    losses, scores = est.loss_curve_, est.validation_scores_
    text = f"loss {losses[0]:.4g}" + (f" → {losses[-1]:.4g}" if len(losses) > 1 else "")
    if est.best_loss_ < losses[-1]:
        text += f" (lowest {est.best_loss_:.4g})"
    if not scores:
        return text
    best = int(np.argmax(scores))
    return f"{text}; best validation score {scores[best]:.4g}, epoch {best + 1}"


def _describe_runtime(est: Any, known: Any) -> str:
    dtype = est.dtype if known is None else np.dtype(known._learner.dtype).name
    parts = [est.device, f"engine {getattr(est, 'engine_', est.engine)}", *([dtype] if dtype else [])]
    return ", ".join(parts if est.n_threads is None else [*parts, _count(est.n_threads, "thread")])


def _name(value: Any) -> str:
    """Return the name of a loss, an optimizer, a schedule or a function."""
    if isinstance(value, str):
        return value
    return str(getattr(value, "__name__", None) or reprlib.repr(value))


def _names_of(multipliers: Any) -> str:
    """Return the names, or patterns, of a dictionary of multipliers, or the name of a function."""
    return reprlib.repr(dict(multipliers)) if isinstance(multipliers, Mapping) else _name(multipliers)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
