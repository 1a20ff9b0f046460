"""The regressor."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.model_selection import ShuffleSplit
from sklearn.utils._param_validation import StrOptions

from onnxsgd._base import BaseOnnxSGD
from onnxsgd._learner import Learner
from onnxsgd._targets import check_real_target
from onnxsgd.exceptions import GraphError
from onnxsgd.losses import REGRESSION_LOSSES, EpsilonInsensitive, Huber, Loss, SquaredEpsilonInsensitive

__all__ = ["OnnxSGDRegressor"]


class OnnxSGDRegressor(RegressorMixin, BaseOnnxSGD):
    """Docstring."""

    _task = "regression"
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **BaseOnnxSGD._parameter_constraints,
        "loss": [StrOptions(set(REGRESSION_LOSSES)), Loss],
    }

    def __init__(
        self,
        model: Any = None,
        *,
        loss: str | Loss = "squared_error",
        epsilon: float = 0.1,
        penalty: str | None = "l2",
        alpha: float = 1e-4,
        l1_ratio: float = 0.15,
        optimizer: Any = "sgd",
        momentum: float = 0.0,
        nesterov: bool = False,
        learning_rate: Any = "invscaling",
        eta0: float = 0.01,
        power_t: float = 0.25,
        max_iter: int = 1000,
        tol: float | None = 1e-3,
        n_iter_no_change: int = 5,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        batch_size: int = 32,
        shuffle: bool = True,
        random_state: Any = None,
        average: bool | int = False,
        warm_start: bool = False,
        trainable: Any = None,
        output: str | int | None = None,
        head: str | None = None,
        engine: str = "auto",
        device: str = "cpu",
        n_threads: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.model = model
        self.loss = loss
        self.epsilon = epsilon
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.optimizer = optimizer
        self.momentum = momentum
        self.nesterov = nesterov
        self.learning_rate = learning_rate
        self.eta0 = eta0
        self.power_t = power_t
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.random_state = random_state
        self.average = average
        self.warm_start = warm_start
        self.trainable = trainable
        self.output = output
        self.head = head
        self.engine = engine
        self.device = device
        self.n_threads = n_threads
        self.verbose = verbose

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Go through the given samples once, from where the last call left off.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, or dict of arrays
            Some of the data.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples, >= 0; None: 1 for each.

        Returns
        -------
        self : object
            The estimator.
        """
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        """Predict targets.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, or dict of arrays
            The data.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Of the shape that `y` had in training, in float32 for float32 data and in float64 otherwise.
        """
        raw = self._raw_predictions(X)
        return raw.ravel() if self._y_is_vector else raw

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.input_tags.sparse = True
        return tags

    def _read_target(self, y: Any, going_on: bool, classes: Any) -> tuple[np.ndarray, int]:
        y = check_real_target(y)
        table = y.reshape(len(y), -1)
        if going_on:
            self._check_width(table)
        else:
            self._y_is_vector = y.ndim == 1
        return table, table.shape[1]

    def _accept_learner(self, learner: Learner, y: np.ndarray, n_outputs: int) -> Learner:
        self._check_width(y)
        return learner

    def _check_width(self, y: np.ndarray) -> None:
        if y.shape[1] != self._n_outputs:
            raise GraphError(
                f"the graph predicts {self._n_outputs} output(s) and y has {y.shape[1]}: choose a tensor of "
                "that width with output=, put a new layer on top with head='linear', or use another model=."
            )

    def _encode(self, y: np.ndarray) -> np.ndarray:
        return y

    def _make_loss(self) -> Loss:
        if isinstance(self.loss, Loss):
            return self.loss
        cls = REGRESSION_LOSSES[self.loss]
        takes_epsilon = issubclass(cls, Huber | EpsilonInsensitive | SquaredEpsilonInsensitive)
        return cls(epsilon=self.epsilon) if takes_epsilon else cls()  # type: ignore[call-arg]

    def _score_raw(self, raw: np.ndarray, y: np.ndarray) -> float:
        return float(r2_score(y, raw))

    def _split(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        splitter = ShuffleSplit(1, test_size=self.validation_fraction, random_state=self._state.random_state)
        return next(splitter.split(y))

    def _finished_graph(self) -> Any:
        from onnxsgd.graph.tail import name_output

        graph = self._learner.with_weights(self._weights())
        return name_output(graph, "variable") if self._learner.link == "own" else graph

    def _linear_attributes(self) -> tuple[np.ndarray, np.ndarray]:
        coef, intercept = super()._linear_attributes()
        return (coef.ravel(), intercept) if self._y_is_vector else (coef, intercept)
