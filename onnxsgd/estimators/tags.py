"""Tags of an estimator derived from the model inside."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator
    from sklearn.utils import Tags

    from onnxsgd.learner.learner import Learner

__all__ = ["follow_estimator", "follow_graph"]


def follow_estimator(tags: Tags, model: BaseEstimator) -> Any:
    """Return `tags` with those of the scikit-learn model inside, which is fitted on the same data.

    The model determines the kinds of input, support for several outputs or labels, and the need for positive
    targets.
    """
    inner = model.__sklearn_tags__()
    target = replace(
        tags.target_tags,
        multi_output=inner.target_tags.multi_output,
        single_output=inner.target_tags.single_output,
        positive_only=inner.target_tags.positive_only,
    )
    classifier = tags.classifier_tags
    if classifier is not None and inner.classifier_tags is not None:
        classifier = replace(
            classifier,
            multi_class=inner.classifier_tags.multi_class,
            multi_label=inner.classifier_tags.multi_label,
        )
    return replace(tags, input_tags=replace(inner.input_tags), target_tags=target, classifier_tags=classifier)


def follow_graph(tags: Tags, learner: Learner) -> Any:
    """Return `tags` with the kinds of input that a trained graph takes."""
    inputs = learner.inputs
    ranks = {len(value.shape) for value in inputs if value.shape is not None}
    inner = replace(
        tags.input_tags,
        allow_nan=learner.fills_gaps,
        string=any(value.dtype == ir.DataType.STRING for value in inputs),
        dict=len(inputs) > 1,
        two_d_array=bool({1, 2} & ranks) or not ranks,
        three_d_array=3 in ranks,
        sparse=len(inputs) == 1 and ranks == {2},
    )
    return replace(tags, input_tags=inner)
