"""Export of the training step of a fitted estimator to files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from onnxsgd.engine.export.manifest import Training
from onnxsgd.engine.export.step_file import write_training_step
from onnxsgd.graph.reading.frozen_split import undivided
from onnxsgd.learner.learner import Learner
from onnxsgd.losses import Loss
from onnxsgd.training.loop import FitState, Recipe
from onnxsgd.training.program import step_spec

__all__ = ["export_step"]


def export_step(
    path: str | os.PathLike[str],
    learner: Learner,
    recipe: Recipe,
    loss: Loss,
    n_outputs: int,
    batch_size: int,
    state: FitState,
) -> Path:
    """Write the training step of a learner; see :func:`onnxsgd.engine.export.step_file.write_training_step`.

    The graph includes the frozen part, so that it takes the same features as the estimator. The portable
    engine always makes it: gradients of the other engine run only in its own edition of the runtime.
    """
    spec = step_spec(learner, recipe, loss, "portable", n_outputs, batch_size)
    classes = None if learner.classes is None else [_plain(label) for label in learner.classes]
    training = Training(
        schedule=recipe.schedule, penalty=recipe.penalty, average_from=recipe.average_from, classes=classes,
        tensors=state.tensors, t=state.t, eta=state.eta, l1_total=state.l1_total,
    )  # fmt: skip
    return write_training_step(path, undivided(learner.score_model).tail, spec, training)


def _plain(label: object) -> object:
    """Return a label as a JSON value."""
    plain = label.item() if isinstance(label, np.generic) else label
    return plain if isinstance(plain, str | bool | int | float) else str(plain)
