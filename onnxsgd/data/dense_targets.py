"""Targets of several axes: the axes of scores, and labels of the elements of a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import assert_all_finite
from sklearn.utils.class_weight import compute_class_weight

from onnxsgd.data.targets import counted_labels, label_columns
from onnxsgd.exceptions import GraphError, ParameterError

__all__ = ["ElementAxes", "check_dense_labels", "element_weights", "find_axes", "shape_of_samples"]


@dataclass(frozen=True)
class ElementAxes:
    """The axes of the scores of a sample: that of the classes, and those of the elements.

    Attributes
    ----------
    sizes : tuple of int
        The size of each axis.
    class_axis : int or None
        The axis of the classes, the first or the last; None: one score for each element.
    """

    sizes: tuple[int, ...]
    class_axis: int | None

    @property
    def elements(self) -> tuple[int, ...]:
        """The sizes of the axes of the elements."""
        if self.class_axis is None:
            return self.sizes
        return self.sizes[1:] if self.class_axis == 0 else self.sizes[:-1]

    @property
    def n_scores(self) -> int:
        """The number of scores of an element."""
        return 1 if self.class_axis is None else self.sizes[self.class_axis]

    def rows(self, raw: np.ndarray) -> np.ndarray:
        """Return raw scores [n_samples, *sizes] with a row for each element of each sample."""
        if self.class_axis == 0:
            raw = np.moveaxis(raw, 1, -1)
        return raw.reshape(-1, self.n_scores)


def find_axes(sizes: tuple[int, ...], target: tuple[int, ...], preferred: int | None) -> ElementAxes:
    """Return the axes of scores for a target.

    Parameters
    ----------
    sizes : tuple of int
        The shape of the scores of a sample.
    target : tuple of int
        The shape of the target of a sample.
    preferred : int or None
        The axis of the classes after the graph, which decides where the shapes leave both open.

    Raises
    ------
    GraphError
        If the shapes do not fit, or fit in two ways.
    """
    if sizes == target:
        return ElementAxes(sizes, None)
    last = len(sizes) - 1
    found = [axis for axis in (0, last) if sizes[:axis] + sizes[axis + 1 :] == target]
    if len(found) == 2 and preferred is not None:
        found = [preferred]
    shapes = f"the graph gives scores of shape {shape_of_samples(sizes)} and y has {shape_of_samples(target)}"
    if not found:
        raise GraphError(
            f"{shapes}: y must have the axes of the scores without that of the classes, which is the first "
            "or the last one of a sample. Choose another tensor with output=, or reshape y."
        )
    if len(found) == 2:
        raise GraphError(
            f"{shapes}, so that the axis of the classes may be 1 or {last + 1}, and the graph does not end "
            "in a convolution or a product, which would tell: choose another tensor with output=."
        )
    return ElementAxes(sizes, found[0])


def shape_of_samples(sizes: tuple[int, ...]) -> str:
    """Return a shape for messages, with the axis of the samples."""
    return f"({', '.join(['n_samples', *map(str, sizes)])})" if sizes else "(n_samples,)"


def check_dense_labels(y: Any) -> np.ndarray:
    """Return labels of the elements of samples, an array of two axes at least."""
    labels = np.asarray(y)
    assert_all_finite(labels, input_name="y")
    if labels.dtype.kind == "f" and (labels != np.floor(labels)).any():
        value = labels[labels != np.floor(labels)][0]
        raise ParameterError(f"y holds {value:g}, which is no label: labels are whole numbers or strings.")
    if labels.dtype.kind not in "biufOUS":
        raise ParameterError(f"y holds {labels.dtype}, which are no labels: give whole numbers or strings.")
    return labels


def element_weights(
    y: np.ndarray, classes: np.ndarray, class_weight: object, ignored: object
) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of the class and the weight of each element, both of the shape of `y`.

    Elements of the label `ignored` have class 0 and weight 0.
    """
    index = label_columns(y, classes, ignored)
    counts = counted_labels(y, ignored)
    weight = counts.astype(np.float64)
    if class_weight is not None and counts.any():
        present = np.unique(index[counts])
        known = classes[present] if class_weight == "balanced" else classes
        by_class = np.zeros(len(classes))
        found = compute_class_weight(class_weight, classes=known, y=classes[index[counts]])
        by_class[present if class_weight == "balanced" else slice(None)] = found
        weight *= by_class[index]
    return np.maximum(index, 0), weight
