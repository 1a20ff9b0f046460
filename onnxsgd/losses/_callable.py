"""Losses that Python computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import ParameterError, ParameterTypeError, UnsupportedError
from onnxsgd.losses._base import Link, Loss, Targets, check_choices

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = ["FromCallable"]


@dataclass(frozen=True)
class FromCallable(Loss):
    """A loss that a Python function computes, with its gradient; slower than a formula.

    Each update runs the forward pass, calls the function, and runs forward and backward pass with the
    gradient that it returned. An epoch takes 2 to 6 times as long as with a formula, the longer the smaller
    model and batches are (``benchmarks/callable_loss.py``), that of a linear model 3 to 20 times. There is no
    graph of the loss: ``add_loss_output``, ``export_training_step``, labels of several axes and a GPU need a
    formula, as :class:`Loss` and :class:`FromONNX` have.

    Parameters
    ----------
    function : callable
        Called with `y_true` and `raw_prediction`, arrays of shape (n_samples, n_outputs) in the type of the
        training, of one batch or of all samples. It returns the losses, of shape (n_samples,),
        (n_samples, 1) or (n_samples, n_outputs), and their derivatives by `raw_prediction`, of shape
        (n_samples, n_outputs), without weights of samples, neither summed nor averaged. Its exceptions end
        the fit; the estimator keeps the weights of the update before. An estimator with a function that is
        not importable, such as a lambda, cannot be pickled.
    targets : {"real", "non-negative", "positive", "sign", "indicator"}, default="real"
        The values of `y_true`; for a classifier "sign", -1 and +1, or "indicator", 0 and 1.
    link : {"identity", "log"}, default="identity"
        Of a regression, the function of the prediction that is the raw prediction.
    probabilities : {None, "sigmoid", "softmax", "modified_huber"}, default=None
        Of a classification, the function from raw predictions to probabilities. With "softmax" the raw
        predictions of the classes are compared with each other.

    Raises
    ------
    ParameterTypeError
        If `function` is not callable.
    ParameterError
        If another parameter has an unknown value.

    Examples
    --------
    >>> import numpy as np
    >>> from onnxsgd import OnnxSGDRegressor, losses
    >>> def squares(y_true, raw_prediction):
    ...     residual = raw_prediction - y_true
    ...     return residual**2 / 2, residual
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> model = OnnxSGDRegressor(loss=losses.FromCallable(squares), random_state=0).fit(X, 3 * X[:, 0])
    >>> bool(model.score(X, 3 * X[:, 0]) > 0.99)
    True
    """

    function: Callable[[np.ndarray, np.ndarray], Any]
    targets: Targets = "real"  # type: ignore[misc]
    link: Link = "identity"  # type: ignore[misc]
    probabilities: str | None = None  # type: ignore[misc]
    is_joint: bool = field(init=False, compare=False, repr=False)  # type: ignore[misc]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ParameterTypeError(
                f"function={self.function!r} is not accepted: it must be a callable that returns losses and "
                "their gradient."
            )
        check_choices(self)
        object.__setattr__(self, "is_joint", self.probabilities == "softmax")

    @property
    def is_formula(self) -> bool:
        """False: Python computes the loss."""
        return False

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        raise UnsupportedError(
            f"The loss {self!r} is computed by Python: without a formula it cannot be part of a graph, of an "
            "exported training step, or of the training on a GPU. Write it as a Loss, or give it as FromONNX."
        )

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value | None:
        return self.value(op, y_true, raw_prediction)

    def evaluate(self, y_true: np.ndarray, raw_prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the loss of each sample, and the gradient; infinite losses where scores are not finite.

        Parameters
        ----------
        y_true, raw_prediction : ndarray of shape (n_samples, n_outputs)
            Targets and raw predictions.

        Returns
        -------
        losses : ndarray of shape (n_samples,)
            The losses.
        gradient : ndarray of shape (n_samples, n_outputs)
            Their derivatives; zeros where a loss is infinite.

        Raises
        ------
        ParameterError
            If the function returns something else.
        """
        if not np.isfinite(raw_prediction).all():
            return np.full(len(y_true), np.inf), np.zeros_like(raw_prediction)
        returned = self.function(y_true, raw_prediction)
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise ParameterError(
                f"The loss {self!r} returned {type(returned).__name__}: it must return a tuple of losses and "
                "their gradient."
            )
        try:
            values, gradient = (np.asarray(part, raw_prediction.dtype) for part in returned)
        except (TypeError, ValueError) as error:
            raise ParameterError(
                f"The loss {self!r} returned something else than arrays of numbers ({reason(error)}): it "
                "must return losses and their gradient."
            ) from error
        n_samples, shape = len(y_true), raw_prediction.shape
        self._check_shape("losses", values, {(n_samples,), (n_samples, 1), shape})
        self._check_shape("a gradient", gradient, {shape})
        losses = values.reshape(n_samples, -1).sum(axis=1)
        if np.isposinf(losses).any():
            return losses, np.zeros_like(raw_prediction)
        for name, found in (("losses", losses), ("gradients", gradient)):
            if not np.isfinite(found).all():
                rows = np.flatnonzero(~np.isfinite(found.reshape(n_samples, -1)).all(axis=1))
                row = int(rows[0])
                raise ParameterError(
                    f"The loss {self!r} returned {name} that are not finite, such as {found[row]} for y_true="
                    f"{y_true[row]} and raw_prediction={raw_prediction[row]}."
                )
        return losses, gradient

    def _check_shape(self, name: str, found: np.ndarray, accepted: set[tuple[int, ...]]) -> None:
        if found.shape not in accepted:
            legal = " or ".join(map(str, sorted(accepted)))
            raise ParameterError(
                f"The loss {self!r} returned {name} of shape {found.shape}: it must be {legal}."
            )
