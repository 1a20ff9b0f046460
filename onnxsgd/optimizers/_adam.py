"""Adaptive moment estimation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from onnxsgd._settable import check_flag, check_number
from onnxsgd.optimizers._optimizer import Optimizer, check_shares

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = ["Adam", "AdamW"]


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adaptive moment estimation; the l2 penalty is part of the gradient.

    ::

        g = gradient + l2 w
        m = beta_1 m + (1 - beta_1) g
        v = beta_2 v + (1 - beta_2) g^2
        w = w - eta / (1 - beta_1^t) m / (sqrt(v / (1 - beta_2^t)) + epsilon)

    Parameters
    ----------
    beta_1, beta_2 : float, default=0.9, 0.999
        Decay rates of the first and second moments, in [0, 1).
    epsilon : float, default=1e-8
        Keeps the division finite, > 0.
    amsgrad : bool, default=False
        Divide by the largest v so far, so that no rate grows again.

    References
    ----------
    D. P. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015. S. J. Reddi, S. Kale, S.
    Kumar, "On the Convergence of Adam and Beyond", ICLR 2018, has `amsgrad`.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    amsgrad: bool = False

    def __post_init__(self) -> None:
        check_shares(self, "beta_1", "beta_2")
        check_number("epsilon", self.epsilon, above=0)
        check_flag("amsgrad", self.amsgrad)

    @property
    def averaged_updates(self) -> float:
        return 1.0 / (1.0 - self.beta_1)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("first_moment", "second_moment", *(("largest_second_moment",) if self.amsgrad else ()))

    @property
    def structure(self) -> tuple[Any, ...]:
        return (type(self), bool(self.amsgrad)) if type(self) in (Adam, AdamW) else super().structure

    def scalars(self, t: np.ndarray, eta: np.ndarray, l2: float) -> dict[str, ArrayLike]:
        return {
            "step_size": eta / (1.0 - self.beta_1**t),
            "scale": 1.0 / np.sqrt(1.0 - self.beta_2**t),
            "beta_1": self.beta_1,
            "rest_1": 1.0 - self.beta_1,
            "beta_2": self.beta_2,
            "rest_2": 1.0 - self.beta_2,
            "epsilon": self.epsilon,
            "decay": self._decay(eta, l2),
        }

    def update(
        self,
        op: Builder,
        weight: ir.Value,
        gradient: ir.Value,
        slots: tuple[ir.Value, ...],
        scalars: Mapping[str, ir.Value],
        penalised: bool,
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        if penalised:
            weight, gradient = self._penalise(op, weight, gradient, scalars["decay"])
        first = op.Add(op.Mul(slots[0], scalars["beta_1"]), op.Mul(gradient, scalars["rest_1"]))
        square = op.Mul(gradient, gradient)
        second = op.Add(op.Mul(slots[1], scalars["beta_2"]), op.Mul(square, scalars["rest_2"]))
        new_slots: tuple[ir.Value, ...] = (first, second)
        if self.amsgrad:
            new_slots += (op.Max(slots[2], second),)
        size = op.Add(op.Mul(op.Sqrt(new_slots[-1]), scalars["scale"]), scalars["epsilon"])
        return op.Sub(weight, op.Mul(op.Div(first, size), scalars["step_size"])), new_slots

    def _decay(self, eta: np.ndarray, l2: float) -> ArrayLike:
        return l2

    def _penalise(
        self, op: Builder, weight: ir.Value, gradient: ir.Value, decay: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        return weight, op.Add(gradient, op.Mul(weight, decay))


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: the l2 penalty is not in the moments.

    ::

        w = (1 - eta l2) w,  then as Adam with g = gradient

    The strength of the decay is the penalty's: `alpha`, times ``1 - l1_ratio`` for "elasticnet".

    Parameters
    ----------
    beta_1, beta_2 : float, default=0.9, 0.999
        Decay rates of the first and second moments, in [0, 1).
    epsilon : float, default=1e-8
        Keeps the division finite, > 0.
    amsgrad : bool, default=False
        Divide by the largest v so far, so that no rate grows again.

    References
    ----------
    I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
    """

    def _decay(self, eta: np.ndarray, l2: float) -> ArrayLike:
        return np.minimum(1.0, eta * l2)

    def _penalise(
        self, op: Builder, weight: ir.Value, gradient: ir.Value, decay: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        return op.Sub(weight, op.Mul(weight, decay)), gradient
