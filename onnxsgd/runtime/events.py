"""The logger ``onnxsgd``: one event for each decision of a fit, quiet unless the user configures it."""

from __future__ import annotations

import logging

from onnxsgd.runtime.stages import current

__all__ = ["SUBJECTS", "are_detailed", "decide_anew", "decided"]

#: The subjects of the events, each with a logger of its own, such as ``onnxsgd.rate``.
SUBJECTS = {
    "model": "kind of model, trained tensors",
    "precision": "type of the graph, and the reason",
    "engine": "engine that differentiates, device, and the reason",
    "batches": "rows of an update",
    "shuffle": "rows taken by blocks, and the reason",
    "shards": "shards whose rows are dealt anew, and the updates of a round",
    "path": "kind of updates: sparse or dense, one call of the runtime for one update or for many",
    "frozen": "frozen part computed once, for each batch, or in each update",
    "threads": "number of threads, and the reason",
    "processes": "processes of a fit with n_jobs, and the reason",
    "cache": "entries found in the cache of the process, or made",
    "start": "first weights: given ones, a constant, or rescaled ones",
    "rate": "rates found, cut, lowered, and the end of training",
    "checkpoint": "checkpoints found and written",
}

_LOGGERS = {subject: logging.getLogger(f"onnxsgd.{subject}") for subject in SUBJECTS}
# without a handler of the application nothing is printed
logging.getLogger("onnxsgd").addHandler(logging.NullHandler())


def decide_anew() -> None:
    """Report the further decisions of this call at INFO: they need not be those of an earlier one."""
    recording = current()
    if recording is not None:
        recording.is_detail = False


def decided(subject: str, message: str, *values: object) -> None:
    """Report a decision, once in a fit.

    The level is INFO in a fit and in the first call of ``partial_fit``. Later calls, which decide the same,
    and calls outside a fit, such as predictions, report at DEBUG.

    Parameters
    ----------
    subject : str
        One of :data:`SUBJECTS`.
    message : str
        The message, with a place for each value, as in :mod:`logging`.
    *values : objects
        Numbers and strings.
    """
    logger = _LOGGERS[subject]
    if not logger.isEnabledFor(logging.INFO):
        return
    recording = current()
    level = logging.DEBUG if recording is None or recording.is_detail else logging.INFO
    if not logger.isEnabledFor(level):
        return
    if recording is not None:
        if recording.decisions is None:
            recording.decisions = set()
        event = (subject, message, values)
        if event in recording.decisions:
            return
        recording.decisions.add(event)
    logger.log(level, message, *values, stacklevel=2)


def are_detailed(*subjects: str) -> bool:
    """Tell whether decisions of one of some subjects are reported in later calls of ``partial_fit``."""
    return any(_LOGGERS[subject].isEnabledFor(logging.DEBUG) for subject in subjects)
