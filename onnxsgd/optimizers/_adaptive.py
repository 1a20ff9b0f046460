"""Gradients divided by the root of their squares, without momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from onnxsgd._settable import check_number
from onnxsgd.optimizers._optimizer import Optimizer, check_shares

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = ["Adagrad", "RMSProp"]


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """Gradients divided by a running root mean square; the l2 penalty is part of the gradient.

    ::

        g = gradient + l2 w
        v = rho v + (1 - rho) g^2
        w = w - eta g / (sqrt(v) + epsilon)

    Parameters
    ----------
    rho : float, default=0.99
        The decay rate of the mean square, in [0, 1).
    epsilon : float, default=1e-8
        Keeps the division finite, > 0.

    References
    ----------
    T. Tieleman, G. Hinton, "Lecture 6.5 - RMSProp", COURSERA: Neural Networks for Machine Learning, 2012.
    """

    rho: float = 0.99
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        check_shares(self, "rho")
        check_number("epsilon", self.epsilon, above=0)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("mean_square",)

    @property
    def structure(self) -> tuple[Any, ...]:
        return (RMSProp,) if type(self) is RMSProp else super().structure

    def scalars(self, t: np.ndarray, eta: np.ndarray, l2: float) -> dict[str, ArrayLike]:
        numbers = {"rho": self.rho, "rest": 1.0 - self.rho, "epsilon": self.epsilon, "decay": l2}
        return {"step_size": eta, **numbers}

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
            gradient = op.Add(gradient, op.Mul(weight, scalars["decay"]))
        square = op.Mul(op.Mul(gradient, gradient), scalars["rest"])
        mean = op.Add(op.Mul(slots[0], scalars["rho"]), square)
        size = op.Add(op.Sqrt(mean), scalars["epsilon"])
        return op.Sub(weight, op.Mul(op.Div(gradient, size), scalars["step_size"])), (mean,)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Gradients divided by the root of the sum of all squares: rates fall where gradients were large.

    ::

        g = gradient + l2 w
        v = v + g^2
        w = w - eta g / (sqrt(v) + epsilon)

    For rare features, which keep a high rate. In long streams rates vanish: take another rule there.

    Parameters
    ----------
    epsilon : float, default=1e-10
        Keeps the division finite, > 0.

    References
    ----------
    J. Duchi, E. Hazan, Y. Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization", Journal of Machine Learning Research 12, 2011.
    """

    epsilon: float = 1e-10

    def __post_init__(self) -> None:
        check_number("epsilon", self.epsilon, above=0)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("sum_of_squares",)

    @property
    def structure(self) -> tuple[Any, ...]:
        return (Adagrad,) if type(self) is Adagrad else super().structure

    def scalars(self, t: np.ndarray, eta: np.ndarray, l2: float) -> dict[str, ArrayLike]:
        return {"step_size": eta, "epsilon": self.epsilon, "decay": l2}

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
            gradient = op.Add(gradient, op.Mul(weight, scalars["decay"]))
        total = op.Add(slots[0], op.Mul(gradient, gradient))
        size = op.Add(op.Sqrt(total), scalars["epsilon"])
        return op.Sub(weight, op.Mul(op.Div(gradient, size), scalars["step_size"])), (total,)
