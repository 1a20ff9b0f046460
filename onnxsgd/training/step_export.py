"""Export of the training step of a fitted estimator to files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from onnxsgd.engine.export.manifest import Training
from onnxsgd.engine.export.step_file import write_training_step
from onnxsgd.training.fit_plan import FitPlan
from onnxsgd.training.state import FitState

__all__ = ["export_step"]


def export_step(
    path: str | os.PathLike[str], plan: FitPlan, state: FitState, classes: Iterable[object] | None
) -> Path:
    """Write the training step of a plan; see :func:`onnxsgd.engine.export.step_file.write_training_step`.

    The graph includes the frozen part, so that it takes the same features as the estimator. The portable
    engine always makes it: gradients of the other engine run only in its own edition of the runtime.

    Parameters
    ----------
    path : str or path-like
        The file of the graph.
    plan : FitPlan
        The plan of the next updates.
    state : FitState
        The present state.
    classes : iterable of labels or None
        The label of each column of a classifier.
    """
    recipe = plan.recipe
    training = Training(
        schedule=recipe.schedule, penalty=recipe.penalty, average_from=recipe.average_from,
        classes=None if classes is None else [_plain(label) for label in classes],
        tensors=state.tensors, t=state.t, eta=state.eta, l1_total=state.l1_total,
    )  # fmt: skip
    spec = replace(plan, engine="portable").step_spec
    return write_training_step(path, plan.learner.undivided.split.tail, spec, training)


def _plain(label: object) -> object:
    """Return a label as a JSON value."""
    plain = label.item() if isinstance(label, np.generic) else label
    return plain if isinstance(plain, str | bool | int | float) else str(plain)
