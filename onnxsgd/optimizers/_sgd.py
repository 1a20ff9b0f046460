"""Stochastic gradient descent, plain or with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from onnxsgd._settable import check_flag
from onnxsgd.exceptions import ParameterError
from onnxsgd.optimizers._optimizer import Optimizer, check_shares

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = ["SGD"]


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, plain or with momentum.

    ::

        v = momentum v - eta gradient - decay w,  decay = min(1, eta l2)
        w = w + v                                     plain and momentum
        w = w + momentum v - eta gradient - decay w   Nesterov

    With ``convention="torch"`` the velocity is a sum of gradients, and the rate of the present update
    multiplies all of it::

        g = gradient + l2 w
        v = momentum v + g
        w = w - eta v                                 plain and momentum
        w = w - eta (g + momentum v)                  Nesterov

    At a constant rate both are the same. Under a falling rate scikit-learn's velocity keeps the rates of
    the updates that it comes from. After one to five epochs with momentum 0.9 and the rate "invscaling",
    coefficients of linear models on four data sets differed by 2 to 43 %.

    Parameters
    ----------
    momentum : float, default=0.0
        The share of the last step that is kept, 0 <= momentum < 1.
    nesterov : bool, default=False
        Look ahead along the momentum. An estimator refuses it without momentum.
    convention : {"sklearn", "torch"}, default="sklearn"
        The velocity: of steps, as in scikit-learn's ``MLPClassifier``, or of gradients, as in torch.

    References
    ----------
    I. Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.
    """

    momentum: float = 0.0
    nesterov: bool = False
    convention: str = "sklearn"

    def __post_init__(self) -> None:
        check_shares(self, "momentum")
        check_flag("nesterov", self.nesterov)
        if not isinstance(self.convention, str) or self.convention not in ("sklearn", "torch"):
            raise ParameterError(
                f"convention={self.convention!r} is not accepted: it must be 'sklearn' or 'torch'."
            )

    @property
    def averaged_updates(self) -> float:
        return 1.0 / (1.0 - self.momentum)

    @property
    def slots(self) -> tuple[str, ...]:
        if self._sums_gradients:
            return ("sum_of_gradients",)
        return ("velocity",) if self.momentum > 0 else ()

    @property
    def structure(self) -> tuple[Any, ...]:
        if type(self) is not SGD:
            return super().structure
        return (SGD, self.momentum > 0, self.momentum > 0 and self.nesterov, self._sums_gradients)

    @property
    def takes_scaled_gradient(self) -> bool:
        return not self._sums_gradients

    @property
    def _sums_gradients(self) -> bool:
        return self.momentum > 0 and self.convention == "torch"

    def scalars(self, t: np.ndarray, eta: np.ndarray, l2: float) -> dict[str, ArrayLike]:
        if self._sums_gradients:
            return {"step_size": eta, "decay": l2, "momentum": self.momentum}
        scalars: dict[str, ArrayLike] = {"decay": np.minimum(1.0, eta * l2)}
        return scalars | {"momentum": self.momentum} if self.momentum > 0 else scalars

    def update(
        self,
        op: Builder,
        weight: ir.Value,
        gradient: ir.Value,
        slots: tuple[ir.Value, ...],
        scalars: Mapping[str, ir.Value],
        penalised: bool,
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        if self._sums_gradients:
            return self._update_by_gradients(op, weight, gradient, slots[0], scalars, penalised)
        # The gradient, already multiplied by minus the rate, is added to terms that do not depend on it, so
        # that one product can compute and add it.
        if not slots:
            rest = op.Sub(weight, op.Mul(weight, scalars["decay"])) if penalised else weight
            return op.Add(rest, gradient), ()
        kept = op.Mul(slots[0], scalars["momentum"])
        rest = op.Sub(kept, op.Mul(weight, scalars["decay"])) if penalised else kept
        velocity = op.Add(rest, gradient)
        if not self.nesterov:
            return op.Add(weight, velocity), (velocity,)
        # momentum v - eta gradient - decay w = momentum v + (v - momentum v_old)
        ahead = op.Add(op.Mul(velocity, scalars["momentum"]), op.Sub(velocity, kept))
        return op.Add(weight, ahead), (velocity,)

    def _update_by_gradients(
        self,
        op: Builder,
        weight: ir.Value,
        gradient: ir.Value,
        velocity: ir.Value,
        scalars: Mapping[str, ir.Value],
        penalised: bool,
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        if penalised:
            gradient = op.Add(gradient, op.Mul(weight, scalars["decay"]))
        velocity = op.Add(op.Mul(velocity, scalars["momentum"]), gradient)
        step = op.Add(gradient, op.Mul(velocity, scalars["momentum"])) if self.nesterov else velocity
        return op.Sub(weight, op.Mul(step, scalars["step_size"])), (velocity,)
