"""Label encoding and decoding, single- and multi-label."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from scipy.special import expit, softmax
from sklearn.metrics import accuracy_score
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit

from onnxsgd.data.dense_targets import ElementAxes, element_weights
from onnxsgd.data.held_out import hold_out_rows
from onnxsgd.data.row_tables import are_many
from onnxsgd.data.targets import (
    balanced_indicators,
    balanced_soft_weights,
    balanced_weights,
    check_sample_weight,
    class_weights,
    counted_labels,
    encode_indicators,
    encode_labels,
    label_columns,
    soft_class_weights,
)
from onnxsgd.exceptions import ParameterError
from onnxsgd.losses import DenseLoss, Loss

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "ClassWeights",
    "DenseLabels",
    "Labelling",
    "OneLabel",
    "SeveralLabels",
    "SoftLabels",
    "UnknownClassesError",
]


#: Weights of the classes; of tables of labels, those of the values of each column.
ClassWeights = dict[Any, float] | list[dict[Any, float]]


class UnknownClassesError(ParameterError):
    """The first part of the data may lack classes, and nothing names them all."""

    def __init__(self) -> None:
        super().__init__(
            "classes must be passed on the first call to partial_fit, as y may lack some, and for batches of "
            "an iterator, which is read once: give all labels with classes=, there or in the constructor, or "
            "a fitted model that holds them."
        )


@dataclass(frozen=True)
class Labelling(ABC):
    """The meaning of the columns of raw scores.

    Attributes
    ----------
    classes : ndarray of shape [n_classes]
        The labels.
    ignored : int, str or None
        The label that counts nothing, if any.
    """

    classes: np.ndarray
    ignored: int | str | None = None

    @abstractmethod
    def encode(self, y: np.ndarray, n_outputs: int, loss: Loss) -> np.ndarray:
        """Return the target as the table that the loss takes."""

    @abstractmethod
    def decision(self, raw: np.ndarray) -> np.ndarray:
        """Return raw scores in the shape of ``decision_function``."""

    @abstractmethod
    def predict(self, raw: np.ndarray) -> np.ndarray:
        """Return the labels."""

    @abstractmethod
    def probabilities(self, raw: np.ndarray, kind: str) -> np.ndarray:
        """Return the probability of each label; `kind` is the attribute `probabilities` of a loss."""

    @abstractmethod
    def finish(self, graph: ir.Model, kind: str | None, names: tuple[str, str]) -> ir.Model:
        """Return a graph of raw scores with outputs for labels and for probabilities."""

    @abstractmethod
    def split(
        self, y: np.ndarray, fraction: float, random_state: int | np.random.RandomState | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows to train on and those to validate on."""

    def score(self, raw: np.ndarray, y: np.ndarray, sample_weight: ArrayLike | None) -> float:
        """Return the accuracy of the labels of raw scores."""
        return float(accuracy_score(y, self.predict(raw), sample_weight=sample_weight))

    def sample_weight(self, class_weight: object, y: np.ndarray) -> np.ndarray:
        """Return the weight of each sample by the weights of the classes."""
        return class_weights(class_weight, self.classes, y)

    def balanced(self, y: np.ndarray) -> ClassWeights:
        """Return the weights of the classes that "balanced" stands for, by all labels that count."""
        return balanced_weights(y[counted_labels(y, self.ignored)])


class OneLabel(Labelling):
    """Single-label data: each sample has one class; a single column of scores encodes two classes."""

    def encode(self, y: np.ndarray, n_outputs: int, loss: Loss) -> np.ndarray:
        return encode_labels(y, self.classes, n_outputs, loss, self.ignored)

    def decision(self, raw: np.ndarray) -> np.ndarray:
        if raw.shape[1] == 2 and len(self.classes) == 2:
            return raw[:, 1] - raw[:, 0]
        return raw.ravel() if raw.shape[1] == 1 else raw

    def predict(self, raw: np.ndarray) -> np.ndarray:
        winner = (raw[:, 0] > 0).astype(int) if raw.shape[1] == 1 else raw.argmax(axis=1)
        return self.classes[winner]

    def probabilities(self, raw: np.ndarray, kind: str) -> np.ndarray:
        if kind == "softmax":
            return softmax(raw, axis=1)
        return _complete(_ELEMENTWISE[kind](raw))

    def score(self, raw: np.ndarray, y: np.ndarray, sample_weight: ArrayLike | None) -> float:
        """Return the accuracy over the labels that count."""
        if self.ignored is None:
            return super().score(raw, y, sample_weight)
        rows = np.flatnonzero(counted_labels(y, self.ignored))
        weight = None if sample_weight is None else np.asarray(sample_weight)[rows]
        return super().score(raw[rows], y[rows], weight)

    def finish(self, graph: ir.Model, kind: str | None, names: tuple[str, str]) -> ir.Model:
        from onnxsgd.graph.reading.postprocessing import add_classifier_tail

        return add_classifier_tail(graph, self.classes, kind, names)

    def split(
        self, y: np.ndarray, fraction: float, random_state: int | np.random.RandomState | None
    ) -> tuple[np.ndarray, np.ndarray]:
        if are_many(y) and isinstance(random_state, np.random.RandomState):
            columns = label_columns(y, self.classes, self.ignored)
            return hold_out_rows(len(y), fraction, random_state, columns)
        splitter = StratifiedShuffleSplit(1, test_size=fraction, random_state=random_state)
        return next(splitter.split(y, y))


class SoftLabels(OneLabel):
    """Single-label data whose targets are probabilities of the classes, a row for each sample."""

    def encode(self, y: np.ndarray, n_outputs: int, loss: Loss) -> np.ndarray:
        return y

    def split(
        self, y: np.ndarray, fraction: float, random_state: int | np.random.RandomState | None
    ) -> tuple[np.ndarray, np.ndarray]:
        return next(ShuffleSplit(1, test_size=fraction, random_state=random_state).split(y))

    def score(self, raw: np.ndarray, y: np.ndarray, sample_weight: ArrayLike | None) -> float:
        """Return the accuracy for the most probable labels."""
        return super().score(raw, self.classes[y.argmax(axis=1)], sample_weight)

    def sample_weight(self, class_weight: object, y: np.ndarray) -> np.ndarray:
        return soft_class_weights(class_weight, self.classes, y)

    def balanced(self, y: np.ndarray) -> ClassWeights:
        return balanced_soft_weights(self.classes, y)


class SeveralLabels(Labelling):
    """Multi-label data: a column of scores for each label, positive where the sample has it."""

    def encode(self, y: np.ndarray, n_outputs: int, loss: Loss) -> np.ndarray:
        return encode_indicators(y, loss)

    def balanced(self, y: np.ndarray) -> ClassWeights:
        return balanced_indicators(y)

    def decision(self, raw: np.ndarray) -> np.ndarray:
        return raw

    def predict(self, raw: np.ndarray) -> np.ndarray:
        return (raw > 0).astype(np.int64)

    def probabilities(self, raw: np.ndarray, kind: str) -> np.ndarray:
        return _ELEMENTWISE[kind](raw)

    def finish(self, graph: ir.Model, kind: str | None, names: tuple[str, str]) -> ir.Model:
        from onnxsgd.graph.reading.postprocessing import add_multilabel_tail

        return add_multilabel_tail(graph, kind, names)

    def split(
        self, y: np.ndarray, fraction: float, random_state: int | np.random.RandomState | None
    ) -> tuple[np.ndarray, np.ndarray]:
        return next(ShuffleSplit(1, test_size=fraction, random_state=random_state).split(y))


@dataclass(frozen=True)
class DenseLabels(Labelling):
    """A class for each element of a sample, such as pixels; raw scores have the axes of the graph's output.

    Attributes
    ----------
    class_axis : int or None
        The axis of the classes among those of the scores of a sample, the first or the last; None: one score
        for each element.
    class_weight : dict, "balanced" or None
        Weights of the classes.
    """

    class_axis: int | None = None
    class_weight: object = None

    @property
    def _of_element(self) -> OneLabel:
        return OneLabel(self.classes)

    def _axes(self, raw: np.ndarray) -> ElementAxes:
        return ElementAxes(raw.shape[1:], self.class_axis)

    def _shaped(self, rows: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Return results of elements, one in each row, with the axes of samples and elements."""
        return rows.reshape(len(raw), *self._axes(raw).elements, *rows.shape[1:])

    def encode(self, y: np.ndarray, n_outputs: int, loss: Loss) -> np.ndarray:
        index, weight = element_weights(y, self.classes, self.class_weight, self.ignored)
        table = index.reshape(len(y), -1).astype(np.float64)
        is_weighted = isinstance(loss, DenseLoss) and loss.is_weighted
        return np.hstack([table, weight.reshape(len(y), -1)]) if is_weighted else table

    def decision(self, raw: np.ndarray) -> np.ndarray:
        return self._shaped(self._of_element.decision(self._axes(raw).rows(raw)), raw)

    def predict(self, raw: np.ndarray) -> np.ndarray:
        return self._shaped(self._of_element.predict(self._axes(raw).rows(raw)), raw)

    def probabilities(self, raw: np.ndarray, kind: str) -> np.ndarray:
        return self._shaped(self._of_element.probabilities(self._axes(raw).rows(raw), kind), raw)

    def score(self, raw: np.ndarray, y: np.ndarray, sample_weight: ArrayLike | None) -> float:
        """Return the accuracy over the elements that count."""
        return self._share(*self._count_right(raw, y), sample_weight)

    def score_list(
        self, raw: Sequence[np.ndarray], y: Sequence[np.ndarray], sample_weight: ArrayLike | None
    ) -> float:
        """Return the same for lists of samples, whose elements differ in number."""
        if len(raw) != len(y):
            raise ParameterError(f"X has {len(raw)} samples and y has {len(y)}.")
        pairs = zip(raw, y, strict=True)
        found = [self._count_right(scores[None], labels[None]) for scores, labels in pairs]
        right, counted = (np.concatenate(entries) for entries in zip(*found, strict=True))
        return self._share(right, counted, sample_weight)

    def _share(self, right: np.ndarray, counted: np.ndarray, sample_weight: ArrayLike | None) -> float:
        """Return the share of right labels, given their numbers and those of all that count."""
        weight = check_sample_weight(sample_weight, right)
        total = float(weight @ counted)
        if total == 0:
            raise ParameterError(
                f"All labels of samples with a positive weight are {self.ignored!r}, which is ignored."
            )
        return float(weight @ right) / total

    def _count_right(self, raw: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of elements of each sample whose label is right, and of those that count."""
        labels = self.predict(raw)
        if y.shape != labels.shape:
            raise ParameterError(f"y has shape {y.shape} and the predictions {labels.shape}.")
        counts = counted_labels(y, self.ignored).reshape(len(y), -1)
        right = (labels == y).reshape(len(y), -1)
        return (right & counts).sum(axis=1), counts.sum(axis=1)

    def finish(self, graph: ir.Model, kind: str | None, names: tuple[str, str]) -> ir.Model:
        from onnxsgd.graph.reading.postprocessing import add_dense_tail

        return add_dense_tail(graph, self.classes, kind, names, self.class_axis)

    def split(
        self, y: np.ndarray, fraction: float, random_state: int | np.random.RandomState | None
    ) -> tuple[np.ndarray, np.ndarray]:
        return next(ShuffleSplit(1, test_size=fraction, random_state=random_state).split(y))

    def sample_weight(self, class_weight: object, y: np.ndarray) -> np.ndarray:
        """Return the mean weight of the elements of each sample that count; 0 if none does."""
        counts = counted_labels(y, self.ignored).reshape(len(y), -1).sum(axis=1)
        totals = self._weights(class_weight, y)
        return np.divide(totals, counts, out=np.zeros(len(y)), where=counts > 0)

    def shares(self, class_weight: object, y: np.ndarray) -> np.ndarray:
        """Return the mean weight of all elements of each sample, where those that do not count have none."""
        return self._weights(class_weight, y) / np.prod(y.shape[1:])

    def _weights(self, class_weight: object, y: np.ndarray) -> np.ndarray:
        _, weight = element_weights(y, self.classes, class_weight, self.ignored)
        total: np.ndarray = weight.reshape(len(y), -1).sum(axis=1)
        return total


def _half(raw: np.ndarray) -> np.ndarray:
    return (np.clip(raw, -1, 1) + 1) / 2


def _complete(probability: np.ndarray) -> np.ndarray:
    """Turn one probability for each output into a distribution over the classes."""
    if probability.shape[1] == 1:
        return np.hstack([1 - probability, probability])
    # A row of zeros becomes the uniform distribution, as in scikit-learn.
    probability = probability + (probability.sum(axis=1, keepdims=True) == 0)
    return probability / probability.sum(axis=1, keepdims=True)


#: Functions from scores to independent probabilities.
_ELEMENTWISE = {"sigmoid": expit, "modified_huber": _half}
