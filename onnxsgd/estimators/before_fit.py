"""The half of the base class that uses a fitted model before the first fit."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import Any, Self

import numpy as np

from onnxsgd.data.sequences import Sequences
from onnxsgd.data.text import has_text
from onnxsgd.estimators.between_calls import has_new_graph, read_graph_parameters, refuse_new_graph
from onnxsgd.estimators.training_data import TrainingDataReader
from onnxsgd.exceptions import OnnxSGDError, ParameterError
from onnxsgd.learner.model_source import example, read_source
from onnxsgd.training.state import fresh_state

__all__ = ["ModelBeforeFit"]


class ModelBeforeFit(TrainingDataReader):
    """The half of the base class that uses a fitted model before the first fit.

    Predictions, weights and graphs come from a copy of the estimator, so that they change nothing in a later
    fit.
    """

    _has_seen_data: bool = False
    random_state: Any

    @abstractmethod
    def _settle_outputs(self) -> None:
        """Find the meaning of the columns of raw predictions from the learner, without targets."""

    def _before_fit(self, X: object) -> Self:
        """Return a copy with the weights of the fitted model inside; `X`: samples, if any are given.

        The copy is kept until the parameters of the graph change, or the first samples are given: their
        precision may need another type of the graph. A later fit begins anew.
        """
        start = self._start
        if self._set_before:
            refuse_new_graph(self, self._given or [])
        if start is not None and has_new_graph(self, start._given or []):
            start = None
        if start is None or (X is not None and not start._has_seen_data):
            start = copy(self)
            # attributes of the model inside must not be looked for in the copy, which lacks them yet
            start._state = fresh_state({}, 0.0, 0)
            start._read_model(X)
            self._start = start
        start.__dict__.update({name: value for name, value in vars(self).items() if name[0] != "_"})
        return start

    def _read_model(self, X: object) -> None:
        """Make the learner of a fitted model, for samples `X`, or for a row of zeros if they are None."""
        source = read_source(self.model)
        self._has_seen_data = X is not None
        try:
            data = example(source) if X is None else self._some_of_one_length(X, source)
            checked = self._check_first(data, source, reset=not self._follow(source))
            self._make_learner(source, checked if has_text(source) else data, checked, 1)
        except OnnxSGDError as error:
            if X is not None:
                raise
            raise ParameterError(
                f"The model inside cannot be read without samples: call predict with some, or fit. ({error})"
            ) from error
        self._settle_outputs()
        self._given = read_graph_parameters(self)
        self._state = fresh_state(self._learner.initial_weights(), 0.0, 0)
        self._put_weights(self._set_before)

    def _some_of_one_length(self, X: object, source: object) -> Any:
        """Return samples; of sequences, those of the length of the first one."""
        found = self._sequences_of(X, source, resuming=False)
        return found.arrays(found.groups()[0]) if isinstance(found, Sequences) else found

    def _follow(self, source: Any) -> bool:
        """Take over number and names of the features of a fitted estimator; tell whether they are known."""
        names = ("n_features_in_", "feature_names_in_")
        known = {name: getattr(source, name) for name in names if hasattr(source, name)}
        self.__dict__.update(known)
        return bool(known) and not has_text(source)

    def _first_weights(self) -> dict[str, np.ndarray]:
        """Return the weights of the model, and those that were set instead."""
        present = self._learner.first_weights(self.random_state)
        given = {name: array.astype(present[name].dtype) for name, array in self._set_before.items()}
        return present | given
