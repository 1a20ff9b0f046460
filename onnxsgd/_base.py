"""What both estimators share: parameters, the life of a fit, predictions, persistence."""

from __future__ import annotations

from abc import abstractmethod
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import onnx
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from onnxsgd._fit import FitState, Recipe, fresh_generator, train
from onnxsgd._inputs import Features, check_X, n_rows, read_features, take_rows
from onnxsgd._learner import Learner, ModelOptions, make_learner, read_source
from onnxsgd._targets import check_sample_weight
from onnxsgd.engine.inference import InferenceGraph
from onnxsgd.engine.sessions import check_device
from onnxsgd.engine.update import WEIGHT
from onnxsgd.exceptions import GraphError, ParameterError
from onnxsgd.graph.model import to_proto
from onnxsgd.losses import Loss
from onnxsgd.optimizers import OPTIMIZERS, Optimizer, make_optimizer
from onnxsgd.penalties import PENALTIES, make_penalty
from onnxsgd.schedules import SCHEDULES, Schedule, make_schedule

if TYPE_CHECKING:
    from onnxsgd._program import Program

__all__ = ["BaseOnnxSGD"]

_POSITIVE = Interval(Real, 0, None, closed="neither")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
_COUNT = Interval(Integral, 1, None, closed="left")


class BaseOnnxSGD(BaseEstimator):
    """Base class of the estimators."""

    _task: ClassVar[str]

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "epsilon": [_NOT_NEGATIVE],
        "penalty": [StrOptions({name for name in PENALTIES if name}), None],
        "alpha": [_NOT_NEGATIVE],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
        "optimizer": [StrOptions(set(OPTIMIZERS)), Optimizer],
        "momentum": [Interval(Real, 0, 1, closed="left")],
        "nesterov": ["boolean"],
        "learning_rate": [StrOptions(set(SCHEDULES)), Schedule, callable],
        "eta0": [_POSITIVE],
        "power_t": [Interval(Real, None, None, closed="neither")],
        "max_iter": [_COUNT],
        "tol": [_NOT_NEGATIVE, None],
        "n_iter_no_change": [_COUNT],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "batch_size": [_COUNT],
        "shuffle": ["boolean"],
        "random_state": ["random_state"],
        "average": ["boolean", Interval(Integral, 0, None, closed="left")],
        "warm_start": ["boolean"],
        "trainable": ["array-like", callable, None],
        "output": [str, Integral, None],
        "head": [StrOptions({"linear"}), None],
        "engine": [StrOptions({"auto", "onnxruntime-training", "portable"})],
        "device": [str],
        "n_threads": [_COUNT, None],
        "verbose": ["verbose"],
    }

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        X_val: Any = None,
        y_val: Any = None,
    ) -> Self:
        """Train the weights, from those of `model`, or from the present ones with ``warm_start=True``.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, or dict of arrays
            The training data: one array, or one for each input of the graph.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            The targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples, >= 0; None: 1 for each.
        X_val, y_val : like X and y, default=None
            Validation data, scored after each epoch. With ``early_stopping=True`` they take the place of
            the share `validation_fraction` of the training data.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ConvergenceError
            If the loss or a weight is no longer finite. The estimator keeps the last finite weights.
        """
        self._check_parameters()
        going_on = bool(self.warm_start) and hasattr(self, "_state")
        target, features, weight = self._read_data(X, y, sample_weight, going_on=going_on)
        initial = self._state.weights() if going_on else self._learner.initial_weights()
        self._state = self._fresh_state(initial)
        validation = self._validation_data(X_val, y_val)
        if self.early_stopping and validation is None:
            rows, held_out = self._split(target)
            validation = (take_rows(features, held_out), target[held_out])
            features, target, weight = take_rows(features, rows), target[rows], weight[rows]
        self.n_iter_ = 0
        return self._train(features, target, weight, validation, self.max_iter, self.tol)

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:
        self._check_parameters()
        if self.early_stopping:
            raise ParameterError(
                "early_stopping=True cannot work with partial_fit, which sees one part of the data at a "
                "time: set early_stopping=False."
            )
        going_on = hasattr(self, "_state")
        target, features, weight = self._read_data(X, y, sample_weight, going_on=going_on, classes=classes)
        if not going_on:
            self._state = self._fresh_state(self._learner.initial_weights())
            self.n_iter_ = 0
        return self._train(features, target, weight, None, 1, None)

    def get_weights(self) -> dict[str, np.ndarray]:
        """Return a copy of the trained weights, under their names in the graph."""
        check_is_fitted(self)
        return {name: np.array(array) for name, array in self._weights().items()}

    def set_weights(self, weights: dict[str, np.ndarray]) -> Self:
        """Replace trained weights; the state of the optimizer is kept.

        Parameters
        ----------
        weights : dict of array-like
            New values, under the names that :meth:`get_weights` returns. What is missing stays.

        Returns
        -------
        self : object
            The estimator.

        Raises
        ------
        ParameterError
            If a name is unknown, a shape is wrong, or a value is not finite.
        """
        check_is_fitted(self)
        present = self._state.weights()
        fresh = {name: _check_weight(name, array, present) for name, array in weights.items()}
        for name, array in fresh.items():
            for key in self._state.tensors:
                if key in ((name, WEIGHT), (name, "average")):
                    self._state.tensors[key] = array.copy()
        self._publish()
        return self

    @property
    def onnx_model_(self) -> onnx.ModelProto:
        """The trained graph."""
        if not hasattr(self, "_state"):
            raise AttributeError(f"This {type(self).__name__} instance is not fitted yet.")
        return self.to_onnx()

    def to_onnx(self) -> onnx.ModelProto:
        """Return the trained graph, which runs in any ONNX runtime.

        Returns
        -------
        onnx.ModelProto
            The graph. It has the inputs and outputs of `model`, if that was an ONNX graph or was converted;
            a classifier of our own has the outputs ``label`` and ``probabilities`` (``scores`` if the loss
            gives no probabilities), a regressor ``variable``.
        """
        check_is_fitted(self)
        return to_proto(self._finished_graph())

    # What the two estimators do differently.

    @abstractmethod
    def _read_target(self, y: Any, going_on: bool, classes: Any) -> tuple[np.ndarray, int]:
        """Check `y`; return it as a table, or as labels, and how many outputs a new layer needs."""

    @abstractmethod
    def _accept_learner(self, learner: Learner, y: np.ndarray, n_outputs: int) -> Learner:
        """Check that a learner of that many outputs fits `y`."""

    @abstractmethod
    def _encode(self, y: np.ndarray) -> np.ndarray:
        """Return the target as the table that the loss takes."""

    @abstractmethod
    def _make_loss(self) -> Loss:
        """Return the loss as an object."""

    @abstractmethod
    def _score_raw(self, raw: np.ndarray, y: np.ndarray) -> float:
        """Return the score of raw predictions, the higher the better."""

    @abstractmethod
    def _split(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows to train on and those to validate on."""

    @abstractmethod
    def _finished_graph(self) -> Any:
        """Return the trained graph with the outputs that users get."""

    # The steps of a fit.

    def _check_parameters(self) -> None:
        try:
            self._validate_params()
        except InvalidParameterError as error:
            raise ParameterError(str(error)) from None
        check_device(self.device)
        self._make_recipe(frozenset())

    def _read_data(
        self, X: Any, y: Any, sample_weight: Any, *, going_on: bool, classes: Any = None
    ) -> tuple[np.ndarray, Features, np.ndarray]:
        """Return the target, the features and the weights of the samples; make the learner if need be."""
        if y is None:
            raise ParameterError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y is None."
            )
        source = None if going_on else read_source(self.model)
        checked = check_X(self, X, reset=not going_on)
        target, n_outputs = self._read_target(y, going_on, classes)
        if not going_on:
            self._make_learner(source, X, checked, y, target, n_outputs)
        features = read_features(X, checked, self._learner.inputs)
        check_consistent_length(target, *([] if isinstance(checked, dict) else [checked]))
        if len(target) != n_rows(features):
            raise ParameterError(f"X has {n_rows(features)} samples and y has {len(target)}.")
        return target, features, check_sample_weight(sample_weight, checked, len(target))

    def _make_learner(
        self, source: Any, X: Any, checked: Any, y: Any, target: np.ndarray, n_outputs: int
    ) -> None:
        options = ModelOptions(self._task, self.output, self.head, self.trainable, self.engine)
        n_features = checked.shape[1] if getattr(checked, "ndim", 0) == 2 else None
        learner = make_learner(source, X, y, n_features, n_outputs, options)
        self._score_graph = InferenceGraph(
            learner.score_model, learner.score, learner.weights, self.n_threads
        )
        row = take_rows(read_features(X, checked, learner.inputs), slice(0, 1))
        raw = self._score_graph.run(row, learner.initial_weights())
        if raw.ndim > 2 or len(raw) != 1:
            raise GraphError(
                f"the graph turns 1 sample into raw predictions {learner.score!r} of shape {raw.shape}; "
                "they must have shape [n_samples] or [n_samples, n_outputs]. Name another tensor with "
                "output=, or put a new layer on top with head='linear'."
            )
        self._n_outputs = raw.reshape(1, -1).shape[1]
        self._learner = self._accept_learner(learner, target, self._n_outputs)
        self.engine_ = self._engine_in_use()

    def _engine_in_use(self) -> str:
        from onnxsgd.gradient.engines import resolve_engine

        return resolve_engine(self.engine, self._learner.score_model, self._learner.weights)

    def _fresh_state(self, weights: dict[str, np.ndarray]) -> FitState:
        schedule = self._make_recipe(frozenset()).schedule
        tensors = {(name, WEIGHT): np.array(array) for name, array in weights.items()}
        return FitState(tensors, eta=schedule.initial, random_state=fresh_generator(self.random_state))

    def _make_recipe(self, penalised: frozenset[str]) -> Recipe:
        return Recipe(
            optimizer=make_optimizer(self.optimizer, self.momentum, self.nesterov),
            schedule=make_schedule(self.learning_rate, self.eta0, self.power_t, self.alpha),
            penalty=make_penalty(self.penalty, self.alpha, self.l1_ratio),
            average_from=int(self.average),
            shuffle=bool(self.shuffle),
            penalised=penalised,
        )

    def _validation_data(self, X_val: Any, y_val: Any) -> tuple[Features, np.ndarray] | None:
        if (X_val is None) != (y_val is None):
            raise ParameterError("X_val and y_val go together: one of them is None.")
        if X_val is None:
            return None
        checked = check_X(self, X_val, reset=False)
        target, _ = self._read_target(y_val, True, None)
        return read_features(X_val, checked, self._learner.inputs), target

    def _train(
        self,
        features: Features,
        target: np.ndarray,
        weight: np.ndarray,
        validation: tuple[Features, np.ndarray] | None,
        max_iter: int,
        tol: float | None,
    ) -> Self:
        from onnxsgd._program import make_program

        weight = weight * self._extra_weight(target)
        kept = np.flatnonzero(weight)
        if len(kept) < len(weight):
            features, target, weight = take_rows(features, kept), target[kept], weight[kept]
        learner = self._learner
        recipe = self._make_recipe(frozenset(learner.weights) - learner.intercepts)
        program = make_program(
            learner, recipe, self._make_loss(), self.engine_, self._n_outputs, self.batch_size,
            self.n_threads, is_sparse=any(sparse.issparse(array) for array in features.values()),
        )  # fmt: skip
        batches = program.batches(features, self._encode(target), weight)
        runners = program.runners(self._state.tensors, batches, max_iter)
        try:
            self.n_iter_ += train(
                runners, batches, recipe, self._state, max_iter=max_iter, tol=tol,
                n_iter_no_change=self.n_iter_no_change, score=self._scorer(program, validation),
                stop_on_score=bool(self.early_stopping), verbose=int(self.verbose),
            )  # fmt: skip
        finally:
            self._publish()
        return self

    def _extra_weight(self, target: np.ndarray) -> np.ndarray:
        return np.ones(len(target))

    def _scorer(self, program: Program, validation: tuple[Features, np.ndarray] | None) -> Any:
        if validation is None:
            return None
        features, target = program.tail_features(validation[0]), validation[1]
        return lambda weights: self._score_raw(self._table(program.tail.run(features, weights)), target)

    def _publish(self) -> None:
        """Set the learned attributes."""
        state = self._state
        self.t_ = state.t
        self.loss_curve_ = list(state.loss_curve)
        self.best_loss_ = min(state.loss_curve, default=None)
        self.validation_scores_ = list(state.validation_scores) or None
        if self._learner.linear is not None:
            self.coef_, self.intercept_ = self._linear_attributes()

    def _linear_attributes(self) -> tuple[np.ndarray, np.ndarray]:
        assert self._learner.linear is not None
        coef, intercept = self._learner.linear
        graph = self._learner.with_weights(self._weights(), score_only=True).graph

        def value(name: str) -> np.ndarray:
            tensor = graph.initializers[name].const_value
            assert tensor is not None
            return np.array(tensor.numpy())

        table = value(coef).reshape(-1, self._n_outputs).T
        zeros = np.zeros(self._n_outputs, table.dtype)
        return table.copy(), zeros if intercept is None else zeros + value(intercept).ravel()

    # Predictions.

    def _weights(self) -> dict[str, np.ndarray]:
        return self._state.weights(int(self.average))

    def _raw_predictions(self, X: Any) -> np.ndarray:
        """Return raw predictions as a table, in float32 for float32 data and in float64 otherwise."""
        check_is_fitted(self)
        checked = check_X(self, X, reset=False)
        features = read_features(X, checked, self._learner.inputs)
        raw = self._table(self._score_graph.run(features, self._weights()))
        return raw if getattr(checked, "dtype", None) == np.float32 else raw.astype(np.float64)

    def _table(self, raw: np.ndarray) -> np.ndarray:
        return raw.reshape(-1, self._n_outputs)


def _check_weight(name: str, array: Any, present: dict[str, np.ndarray]) -> np.ndarray:
    if name not in present:
        raise ParameterError(f"{name!r} is no trained weight; those are {sorted(present)}.")
    fresh = np.array(array, dtype=present[name].dtype)
    if fresh.shape != present[name].shape:
        raise ParameterError(f"weight {name!r} has shape {present[name].shape}, not {fresh.shape}.")
    if not np.isfinite(fresh).all():
        raise ParameterError(f"weight {name!r} has values that are not finite.")
    return fresh
