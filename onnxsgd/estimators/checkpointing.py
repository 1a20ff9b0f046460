"""The checkpoints of an estimator: where they lie, what they belong to, how a fit continues from one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from scipy import sparse
from sklearn.utils import _safe_indexing

from onnxsgd._files import path_of
from onnxsgd.data.batch_source import is_batch_source
from onnxsgd.data.generators import copied
from onnxsgd.data.refusals import check_indices, naming
from onnxsgd.estimators.fitted import TrainedModel
from onnxsgd.estimators.saving import content_of, load_checkpoint, read_progress, refuse_own_class
from onnxsgd.exceptions import ParameterError
from onnxsgd.persistence.checkpoint_folder import last_files, next_file, read_last, remove_older
from onnxsgd.persistence.saved_file import write_file
from onnxsgd.runtime.events import decided
from onnxsgd.runtime.stages import stage
from onnxsgd.training.checkpoints import Checkpoints, Every, Progress
from onnxsgd.training.state import FitState

__all__ = ["FitCheckpoints", "digest_of_data", "fingerprint"]

#: Parameters that may differ when a fit continues: they change no update.
_FREE = frozenset({"checkpoint", "checkpoint_every", "verbose", "n_threads", "n_jobs", "warm_start"})
#: Rows of the data that are compared, evenly spaced.
_ROWS = 1000
#: Formats of sparse matrices whose rows can be taken.
_WITH_ROWS = frozenset({"csr", "csc", "lil", "dok"})


def fingerprint(estimator: TrainedModel, **data: object) -> dict[str, str]:
    """Return digests of the parameters that decide the updates, and of the data."""
    parameters = estimator.get_params(deep=False)
    model = parameters["model"]
    if isinstance(model, str | os.PathLike) and Path(model).is_file():
        # the file may have changed
        parameters["model"] = Path(model).read_bytes()
    found = {name: _digest(value) for name, value in parameters.items() if name not in _FREE}
    return found | {name: naming(name)(digest_of_data)(part, name) for name, part in data.items()}


def _digest(value: object) -> str:
    """Return a digest of a parameter; of one that cannot be pickled, that of its type."""
    if isinstance(value, np.random.RandomState):
        # its draws go on; the checkpoint has the generator
        value = "a generator"
    try:
        return str(joblib.hash(value))
    except Exception:
        # objects of users raise any error when they are pickled
        return f"{type(value).__module__}.{type(value).__qualname__}"


def digest_of_data(given: object, name: str) -> str:
    """Return a digest of the shape of data, and of some of their rows."""
    """Return a digest of the shape of data, and of some of their rows."""
    part: Any = given
    if sparse.issparse(part):
        check_indices(part, name)
        # other formats have no rows that can be taken
        part = part if part.format in _WITH_ROWS else part.tocsr()
    elif isinstance(part, Mapping):
        return str(joblib.hash([[key, digest_of_data(array, name)] for key, array in part.items()]))
    if part is None:
        return ""
    if is_batch_source(part):
        # to read a batch may change what is read next
        return f"batches of {type(part).__qualname__}"
    shape = getattr(part, "shape", None)
    if shape == () or (shape is None and not hasattr(part, "__len__")):
        # one weight for all samples, or data that the fit refuses
        return _digest(part)
    if not hasattr(part, "__getitem__"):
        part = np.asarray(part)
    n_rows = part.shape[0] if hasattr(part, "shape") else len(part)
    rows = np.unique(np.linspace(0, max(n_rows - 1, 0), min(n_rows, _ROWS)).astype(int))
    some = _safe_indexing(part, rows)
    some = np.array(some) if isinstance(some, np.ndarray) else some
    return str(joblib.hash([n_rows, str(getattr(part, "dtype", "")), some]))


class FitCheckpoints:
    """The checkpoints of one fit of an estimator.

    Parameters
    ----------
    estimator : OnnxSGDRegressor or OnnxSGDClassifier
        The estimator; `checkpoint` names the folder. Clones write to folders inside, one for each value of
        the parameters and the data.
    identity : dict of str
        The fingerprint of the fit.
    every : Every
        The distance between two checkpoints.
    resume : bool
        Whether the fit continues from the last checkpoint, if there is one.
    """

    def __init__(self, estimator: Any, identity: Mapping[str, str], every: Every, resume: bool) -> None:
        refuse_own_class(estimator._saved())
        self._every = every
        if self._every.is_within_epochs and estimator.record_update_norms:
            raise ParameterError(
                f"checkpoint_every={estimator.checkpoint_every!r} writes inside epochs, where the weights at "
                "their beginning, which record_update_norms=True needs, are not known: count epochs."
            )
        # what cannot be saved is refused before training
        content_of(estimator._saved())
        self._estimator, self._identity = estimator, dict(identity)
        # absolute: the working directory may change during the fit
        folder = path_of(estimator.checkpoint, "checkpoint").absolute()
        self._folder = folder / str(joblib.hash(self._identity)) if estimator._is_clone else folder
        self._start: tuple[FitState, Progress] | None = None
        self._begun: Any = None
        self._has_written = self._has_failed = self._is_shared = False
        # the files of this fit, and those that it has found
        self._known = set[Path]()
        try:
            self._known.update(last_files(self._folder))
        except OSError:
            # without resume, a warning where the first file is written
            if resume:
                raise
            return
        if resume:
            self._find()
        else:
            self._refuse_unfinished()

    @property
    def continues(self) -> bool:
        """True if the fit continues from a checkpoint."""
        return self._start is not None

    @property
    def has_ended(self) -> bool:
        """True if that fit has ended."""
        return self._start is not None and bool(self._start[1]["has_ended"])

    def restore(self) -> None:
        """Give the estimator the graph and the attributes of the checkpoint."""
        state = "has ended" if self.has_ended else f"continues after update {self._loaded._state.t}"
        decided("checkpoint", "%s: the fit %s", os.fspath(self._file), state)
        kept = {name: value for name, value in vars(self._loaded).items() if name != "_metadata_request"}
        vars(self._estimator).update(kept)

    def begin(self, state: FitState, *, has_all_data: bool) -> Checkpoints:
        """Return the checkpoints as training sees them; `state`: that before the first draw of the fit."""
        if self._start is not None:
            state.random_state.set_state(self._start[1]["begun"].get_state())
        self._begun = copied(state.random_state)
        file = "" if self._start is None else os.fspath(self._file)
        return Checkpoints(self._every, self._write, self._start, file=file, has_all_data=has_all_data)

    def _find(self) -> None:
        found = load_checkpoint(self._folder, self._estimator._saved(), self._refuse_other_fit)
        if found is not None:
            self._loaded, progress, self._file = found
            self._start = self._loaded._state, progress

    def _refuse_other_fit(self, progress: Mapping[str, Any], file: Path) -> None:
        names = dict.fromkeys([*self._identity, *progress["identity"]])
        changed = [name for name in names if self._identity.get(name) != progress["identity"].get(name)]
        if changed:
            raise ParameterError(
                f"The checkpoint {os.fspath(file)!r} belongs to a fit with other values of "
                f"{', '.join(changed)}: a fit continues with the same parameters and data. Name another "
                "folder as checkpoint, or leave out resume=True."
            )

    def _refuse_unfinished(self) -> None:
        """Refuse to replace the checkpoints of a fit that has not ended."""
        progress = read_last(self._folder, read_progress)
        if progress is not None and not progress["has_ended"]:
            loop = progress["loop"]
            if loop["n_epochs"] or progress["position"] is not None:
                raise ParameterError(
                    f"checkpoint={os.fspath(self._folder)!r} holds checkpoints of a fit that has not ended, "
                    f"after {loop['n_epochs']} epochs: continue it by fit(..., resume=True), remove them, or "
                    "name another folder."
                )

    @stage("checkpoint").of
    def _write(self, state: FitState, progress: Progress) -> None:
        """Write a checkpoint; the first failure is a warning."""
        if self._is_shared:
            return
        stopped = copy(self._estimator)
        vars(stopped).update(self._estimator._attributes_at(state))
        content = content_of(stopped._saved(), progress | {"identity": self._identity, "begun": self._begun})
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not self._known.issuperset(last_files(self._folder)):
                self._is_shared = True
                warnings.warn(
                    f"Another fit writes checkpoints to {os.fspath(self._folder)!r} too: this one writes no "
                    "more, and removes none. Give each fit a folder of its own.",
                    stacklevel=3,
                )
                return
            path = next_file(self._folder)
            # it may be there although an error says that it is not
            self._known.add(path)
            write_file(path, *content)
            decided("checkpoint", "%s: written after update %d", os.fspath(path), state.t)
            # those of an earlier fit that has ended go with the first one
            remove_older(self._folder, 2 if self._has_written or self.continues else 1)
            self._has_written = True
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                warnings.warn(f"A checkpoint cannot be written, training goes on: {error}", stacklevel=3)
