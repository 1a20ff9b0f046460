"""Signs of a momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from onnxsgd.optimizers._optimizer import Optimizer, check_shares

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = ["Lion"]


@dataclass(frozen=True)
class Lion(Optimizer):
    """Steps of one size, in the direction of the sign of a momentum; the l2 penalty is decoupled.

    ::

        c = beta_1 m + (1 - beta_1) gradient
        w = (1 - eta l2) w - eta sign(c)
        m = beta_2 m + (1 - beta_2) gradient

    Every weight moves by `eta` at each update: take a tenth to a third of Adam's rate. Keeps one tensor for
    each weight, half of Adam's.

    Parameters
    ----------
    beta_1, beta_2 : float, default=0.9, 0.99
        The share of the momentum in the direction, and its decay rate, in [0, 1).

    References
    ----------
    X. Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023.
    """

    beta_1: float = 0.9
    beta_2: float = 0.99

    def __post_init__(self) -> None:
        check_shares(self, "beta_1", "beta_2")

    @property
    def averaged_updates(self) -> float:
        return 1.0 / (1.0 - self.beta_2)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum",)

    @property
    def structure(self) -> tuple[Any, ...]:
        return (Lion,) if type(self) is Lion else super().structure

    def scalars(self, t: np.ndarray, eta: np.ndarray, l2: float) -> dict[str, ArrayLike]:
        return {
            "step_size": eta,
            "beta_1": self.beta_1,
            "rest_1": 1.0 - self.beta_1,
            "beta_2": self.beta_2,
            "rest_2": 1.0 - self.beta_2,
            "decay": np.minimum(1.0, eta * l2),
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
        direction = op.Add(op.Mul(slots[0], scalars["beta_1"]), op.Mul(gradient, scalars["rest_1"]))
        momentum = op.Add(op.Mul(slots[0], scalars["beta_2"]), op.Mul(gradient, scalars["rest_2"]))
        if penalised:
            weight = op.Sub(weight, op.Mul(weight, scalars["decay"]))
        return op.Sub(weight, op.Mul(op.Sign(direction), scalars["step_size"])), (momentum,)
