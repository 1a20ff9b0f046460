"""The classifier."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if

from onnxsgd._base import BaseOnnxSGD
from onnxsgd._learner import Learner
from onnxsgd._targets import check_labels, class_weights, encode_labels
from onnxsgd.exceptions import GraphError, ParameterError
from onnxsgd.losses import CLASSIFICATION_LOSSES, CrossEntropy, LogLoss, Loss

__all__ = ["OnnxSGDClassifier"]

#: Links of graphs for which the logarithmic loss is the multinomial one.
_MULTINOMIAL = frozenset({"softmax", "log", "identity"})


def _gives_probabilities(self: OnnxSGDClassifier) -> bool:
    loss = CLASSIFICATION_LOSSES[self.loss] if isinstance(self.loss, str) else self.loss
    if loss.probabilities is None:
        raise AttributeError(f"probability estimates are not available for loss={self.loss!r}")
    return True


class OnnxSGDClassifier(ClassifierMixin, BaseOnnxSGD):
    """Docstring."""

    _task = "classification"
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **BaseOnnxSGD._parameter_constraints,
        "loss": [StrOptions(set(CLASSIFICATION_LOSSES)), Loss],
        "class_weight": [StrOptions({"balanced"}), dict, None],
        "classes": ["array-like", None],
    }

    def __init__(
        self,
        model: Any = None,
        *,
        loss: str | Loss = "log_loss",
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
        class_weight: Any = None,
        classes: Any = None,
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
        self.class_weight = class_weight
        self.classes = classes

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Go through the given samples once, from where the last call left off.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, or dict of arrays
            Some of the data.
        y : array-like of shape (n_samples,)
            Their labels.
        classes : array-like of shape (n_classes,), default=None
            All labels there are. The first call needs them unless the model knows them, or `y` shows all.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples, >= 0; None: 1 for each.

        Returns
        -------
        self : object
            The estimator.
        """
        if self.class_weight == "balanced":
            raise ParameterError(
                "class_weight 'balanced' is not supported for partial_fit, which does not see all labels: "
                "compute the weights with sklearn.utils.class_weight.compute_class_weight and give a dict."
            )
        return self._partial_fit(X, y, sample_weight, classes)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the raw scores.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, or dict of arrays
            The data.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            One score for two classes, positive for the second; one score for each class otherwise.
        """
        raw = self._raw_predictions(X)
        if raw.shape[1] == 2 and len(self.classes_) == 2:
            return raw[:, 1] - raw[:, 0]
        return raw.ravel() if raw.shape[1] == 1 else raw

    def predict(self, X: Any) -> np.ndarray:
        """Predict labels.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, or dict of arrays
            The data.

        Returns
        -------
        ndarray of shape (n_samples,)
            Labels, of the type that `y` had in training.
        """
        return self._labels(self._raw_predictions(X))

    @available_if(_gives_probabilities)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict the probability of each class; for losses that give probabilities.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, or dict of arrays
            The data.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Probabilities, in the order of `classes_`.
        """
        raw = self._raw_predictions(X)
        return _PROBABILITIES[str(self._make_loss().probabilities)](raw)

    @available_if(_gives_probabilities)
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Predict the logarithm of the probability of each class.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, or dict of arrays
            The data.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Logarithms of probabilities, in the order of `classes_`.
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _read_target(self, y: Any, going_on: bool, classes: Any) -> tuple[np.ndarray, int]:
        labels = check_labels(y)
        if going_on:
            if classes is not None and not np.array_equal(np.unique(classes), np.unique(self.classes_)):
                raise ParameterError(
                    f"classes={classes!r} is not the same as on the first call to partial_fit, which had "
                    f"{self.classes_.tolist()}."
                )
            return labels, self._n_outputs
        self._given_classes = self.classes if classes is None else classes
        known = np.unique(labels) if self._given_classes is None else np.asarray(self._given_classes)
        if len(known) < 2:
            raise ParameterError(
                f"The number of classes has to be greater than one; got {len(known)} class: {known.tolist()}."
            )
        return labels, 1 if len(known) == 2 else len(known)

    def _accept_learner(self, learner: Learner, y: np.ndarray, n_outputs: int) -> Learner:
        classes = learner.classes if self._given_classes is None else np.asarray(self._given_classes)
        if self._given_classes is not None and learner.link == "own":
            classes = np.unique(classes)
        classes = np.unique(y) if classes is None else classes
        wanted = {1, 2} if len(classes) == 2 else {len(classes)}
        if n_outputs not in wanted:
            raise GraphError(
                f"the graph gives {n_outputs} score(s) for each sample and there are {len(classes)} "
                f"classes, {classes[:20].tolist()}: name the labels of its columns with classes=, choose a "
                "tensor of that width with output=, or put a new layer on top with head='linear'."
            )
        self.classes_ = classes
        return learner.with_classes(classes)

    def _extra_weight(self, target: np.ndarray) -> np.ndarray:
        return class_weights(self.class_weight, self.classes_, target)

    def _encode(self, y: np.ndarray) -> np.ndarray:
        return encode_labels(y, self.classes_, self._n_outputs, self._make_loss())

    def _make_loss(self) -> Loss:
        if isinstance(self.loss, Loss):
            return self.loss
        cls = CLASSIFICATION_LOSSES[self.loss]
        if cls is LogLoss and self._n_outputs > 1 and self._learner.link in _MULTINOMIAL:
            return CrossEntropy()
        return cls()

    def _labels(self, raw: np.ndarray) -> np.ndarray:
        winner = (raw[:, 0] > 0).astype(int) if raw.shape[1] == 1 else raw.argmax(axis=1)
        return self.classes_[winner]

    def _score_raw(self, raw: np.ndarray, y: np.ndarray) -> float:
        return float(accuracy_score(y, self._labels(raw)))

    def _split(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        splitter = StratifiedShuffleSplit(
            1, test_size=self.validation_fraction, random_state=self._state.random_state
        )
        return next(splitter.split(y, y))

    def _finished_graph(self) -> Any:
        learner = self._learner
        probabilities = self._make_loss().probabilities
        if learner.link != "own":
            return learner.with_weights(self._weights())
        from onnxsgd.graph.tail import add_classifier_tail

        names = ("label", "scores" if probabilities is None else "probabilities")
        graph = learner.with_weights(self._weights(), score_only=True)
        return add_classifier_tail(graph, self.classes_, probabilities, names)


def _sigmoid(raw: np.ndarray) -> np.ndarray:
    return _complete(expit(raw))


def _modified_huber(raw: np.ndarray) -> np.ndarray:
    return _complete((np.clip(raw, -1, 1) + 1) / 2)


def _complete(probability: np.ndarray) -> np.ndarray:
    """Turn one probability for each output into a distribution over the classes."""
    if probability.shape[1] == 1:
        return np.hstack([1 - probability, probability])
    # A row of zeros becomes the uniform distribution, as in scikit-learn.
    probability = probability + (probability.sum(axis=1, keepdims=True) == 0)
    return probability / probability.sum(axis=1, keepdims=True)


_PROBABILITIES = {
    "sigmoid": _sigmoid,
    "softmax": lambda raw: softmax(raw, axis=1),
    "modified_huber": _modified_huber,
}
