"""Base class of the optimizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from onnxsgd._cache_keys import cache_key
from onnxsgd._settable import Settable, check_number
from onnxsgd.exceptions import UnsupportedError

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = ["DECAY", "L1_STRENGTH", "RATE", "Optimizer", "check_shares"]

#: The scalars of proximal optimizers that hold the strengths of the l1 and l2 penalties, and the scalar to
#: which the change of a weight is proportional.
L1_STRENGTH, DECAY, RATE = "l1", "decay", "rate"


class Optimizer(Settable, ABC):
    """Base class of the optimizers."""

    @property
    def averaged_updates(self) -> float:
        """The updates over which the step averages gradients: 1 / (1 - momentum); 1 without momentum."""
        return 1.0

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the tensors kept for each weight."""
        return ()

    def slot_shape(self, slot: str, shape: tuple[int, ...], rates: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a slot of a weight of the given shape; `rates`: that of its rates.

        Both have as many dimensions. Rates of shape (1, ...) are one rate for all elements.
        """
        return shape

    @property
    def is_proximal(self) -> bool:
        """True if `update` applies the l1 penalty too, whose strength is then the scalar "l1".

        By default the step applies it after the update, cumulatively.
        """
        return False

    @property
    def structure(self) -> tuple[Any, ...]:
        """The cache key of the formula: steps of equal structure are compiled once.

        By default the class with all attributes. An optimizer whose numbers enter only as scalars may leave
        them out, so that a search over them recompiles nothing.
        """
        return (cache_key(self),)

    @property
    def takes_scaled_gradient(self) -> bool:
        """True if `update` receives the gradient multiplied by minus the learning rate.

        For an update that is linear in the gradient, the sample weights can include the rate: one small
        product, instead of one for each weight.
        """
        return False

    @abstractmethod
    def scalars(self, t: np.ndarray, eta: np.ndarray, l2: float) -> dict[str, ArrayLike]:
        """Return the numbers of updates `t` (1, 2, ...) at rates `eta` under an l2 penalty of strength `l2`.

        `t` and `eta` are vectors; a constant may stay a number. The names, and their order, are always the
        same.
        """

    @abstractmethod
    def update(
        self,
        op: Builder,
        weight: ir.Value,
        gradient: ir.Value,
        slots: tuple[ir.Value, ...],
        scalars: Mapping[str, ir.Value],
        penalised: bool,
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Build the new weight and the new slots; `penalised`: the l2 penalty applies to this weight."""

    def update_groups(
        self,
        op: Builder,
        weight: ir.Value,
        gradient: ir.Value,
        slots: tuple[ir.Value, ...],
        scalars: Mapping[str, ir.Value],
        penalised: bool,
        axes: tuple[int, ...],
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Build the same where the l1 penalty is of the norms of groups, for proximal optimizers.

        `axes` are the axes within a group; the scalar "l1" includes the root of the size of a group.
        """
        raise UnsupportedError(
            f"{type(self).__name__} applies the l1 penalty itself, and has no update_groups for penalties of "
            "groups: write one, or use an optimizer of the package."
        )


def check_shares(optimizer: Optimizer, *names: str) -> None:
    """Check that parameters of an optimizer, such as decay rates, are in [0, 1)."""
    for name in names:
        check_number(name, getattr(optimizer, name), least=0, below=1)
