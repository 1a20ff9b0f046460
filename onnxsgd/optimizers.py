"""Optimizers: update rules of weights, as short ONNX formulas.

An optimizer is a small frozen object. For each weight it keeps the tensors named in `slots`, by default of
the weight's shape, initially zero. `update` builds the new weight and the new slots; `scalars` gives the
numbers of one step, which enter the graph as inputs, so that a search over them recompiles nothing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from onnxsgd._cache_keys import cache_key
from onnxsgd._settable import Settable
from onnxsgd.exceptions import ParameterError, ParameterTypeError

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = ["OPTIMIZERS", "SGD", "Adam", "AdamW", "BlockAdam", "Optimizer", "make_optimizer"]

#: The scalars of proximal optimizers that hold the strengths of the l1 and l2 penalties, and the scalar to
#: which the change of a weight is proportional.
L1_STRENGTH, DECAY, RATE = "l1", "decay", "rate"


class Optimizer(Settable, ABC):
    """Base class of the optimizers."""

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


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, plain or with momentum.

    ::

        v = momentum v - eta gradient - decay w,  decay = min(1, eta l2)
        w = w + v                                     plain and momentum
        w = w + momentum v - eta gradient - decay w   Nesterov

    Parameters
    ----------
    momentum : float, default=0.0
        The share of the last step that is kept, 0 <= momentum < 1.
    nesterov : bool, default=False
        Look ahead along the momentum.

    References
    ----------
    I. Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.
    """

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ParameterError(
                f"momentum={self.momentum!r} is not accepted: it must be a number in [0, 1)."
            )

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum > 0 else ()

    @property
    def structure(self) -> tuple[Any, ...]:
        if type(self) is not SGD:
            return super().structure
        return (SGD, self.momentum > 0, self.momentum > 0 and self.nesterov)

    @property
    def takes_scaled_gradient(self) -> bool:
        return True

    def scalars(self, t: np.ndarray, eta: np.ndarray, l2: float) -> dict[str, ArrayLike]:
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

    References
    ----------
    D. P. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _check_decay_rates(self)
        if not self.epsilon > 0:
            raise ParameterError(f"epsilon={self.epsilon!r} is not accepted: it must be a number > 0.")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("first_moment", "second_moment")

    @property
    def structure(self) -> tuple[Any, ...]:
        return (type(self),) if type(self) in (Adam, AdamW) else super().structure

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
        size = op.Add(op.Mul(op.Sqrt(second), scalars["scale"]), scalars["epsilon"])
        return op.Sub(weight, op.Mul(op.Div(first, size), scalars["step_size"])), (first, second)

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


@dataclass(frozen=True)
class BlockAdam(Optimizer):
    """Adam with one second moment for each tensor, or output; penalties are proximal steps.

    ::

        m = beta_1 m + (1 - beta_1) gradient
        v = beta_2 v + (1 - beta_2) mean(gradient^2)
        k = eta / sqrt(v / (1 - beta_2^t)), and 0 for v = 0
        w = w - k / (1 - beta_1^t) m
        w = sign(w) max(|w| - k l1, 0) / (1 + k l2)

    All elements of a tensor have the same rate, as in SGD: directions are kept, and columns that outnumber
    the rows do no harm. In the last layer of a model of several targets the mean is over the elements of one
    of them, and k has a factor for each. The default of ``learning_rate="auto"``.

    With `steering`, each tensor multiplies the rate by a factor f of its own, at first 1, which follows the
    angle between the gradient and the moment before it::

        f = f exp(steering (cos(gradient, m) - 0.03)), at least 0.03, at most 4
        k = f eta / sqrt(v / (1 - beta_2^t))

    Gradients that keep their direction make the steps longer, and gradients that turn, or of which noise is
    left, make them shorter: a stream that drifts is followed, and good weights are kept.

    Parameters
    ----------
    beta_1, beta_2 : float, default=0.9, 0.999
        Decay rates of the first and second moments, in [0, 1).
    steering : float, default=0.0
        The largest change of the logarithm of the factor in one update, >= 0; 0: no factor.

    References
    ----------
    Y. Zhang et al., "Adam-mini: Use Fewer Learning Rates To Gain More", ICLR 2025, has one second moment for
    each block too. N. Parikh, S. Boyd, "Proximal Algorithms", 2014, section 6.5.2, has the penalties. A. G.
    Baydin et al., "Online Learning Rate Adaptation with Hypergradient Descent", ICLR 2018, has the angle.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    steering: float = 0.0

    def __post_init__(self) -> None:
        _check_decay_rates(self)
        if not 0 <= self.steering < math.inf:
            raise ParameterError(f"steering={self.steering!r} is not accepted: it must be a number >= 0.")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("first_moment", "second_moment", *((LOG_FACTOR,) if self.steering else ()))

    def slot_shape(self, slot: str, shape: tuple[int, ...], rates: tuple[int, ...]) -> tuple[int, ...]:
        return shape if slot == "first_moment" else rates

    @property
    def is_proximal(self) -> bool:
        return True

    @property
    def structure(self) -> tuple[Any, ...]:
        return (BlockAdam, self.steering > 0) if type(self) is BlockAdam else super().structure

    def scalars(self, t: np.ndarray, eta: np.ndarray, l2: float) -> dict[str, ArrayLike]:
        # the slots hold sums without the factors 1 - beta: these, and the corrections of both, are here
        numbers: dict[str, ArrayLike] = {
            RATE: eta * np.sqrt((1.0 - self.beta_2**t) / (1.0 - self.beta_2)),
            "momentum_rate": (1.0 - self.beta_1) / (1.0 - self.beta_1**t),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            DECAY: l2,
        }
        return numbers | {"steering": self.steering} if self.steering else numbers

    def update(
        self,
        op: Builder,
        weight: ir.Value,
        gradient: ir.Value,
        slots: tuple[ir.Value, ...],
        scalars: Mapping[str, ir.Value],
        penalised: bool,
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        sizes, blocks = (value.shape.numpy() for value in (weight, slots[1]))  # type: ignore[union-attr]
        axes = [axis for axis, size in enumerate(blocks) if size == 1]
        first = op.Add(op.Mul(slots[0], scalars["beta_1"]), gradient)
        square = op.ReduceSumSquare(gradient, axes, keepdims=1) if axes else op.Mul(gradient, gradient)
        mean = op.Mul(square, math.prod(blocks) / math.prod(sizes))
        second = op.Add(op.Mul(slots[1], scalars["beta_2"]), mean)
        # 1 / sqrt(v), and 0 for v = 0: without a gradient the penalties move nothing either
        inverse = op.Div(op.Sqrt(second), op.Add(second, TINY))
        rate = op.Mul(scalars[RATE], inverse)
        new_slots: tuple[ir.Value, ...] = (first, second)
        if self.steering:
            factor = self._steered(op, slots, gradient, square, axes, scalars["steering"])
            rate = op.Mul(rate, op.Exp(factor))
            new_slots += (factor,)
        weight = op.Sub(weight, op.Mul(first, op.Mul(rate, scalars["momentum_rate"])))
        if L1_STRENGTH in scalars:
            most = op.Mul(rate, scalars[L1_STRENGTH])
            weight = op.Sub(weight, op.Max(op.Min(weight, most), op.Neg(most)))
        if penalised:
            weight = op.Div(weight, op.Add(op.Mul(rate, scalars[DECAY]), 1.0))
        return weight, new_slots

    def _steered(
        self,
        op: Builder,
        slots: tuple[ir.Value, ...],
        gradient: ir.Value,
        square: ir.Value,
        axes: list[int],
        steering: ir.Value,
    ) -> ir.Value:
        """Return the new logarithm of the factor, given the sum of squares of the gradient over some axes."""
        moment, _, factor = slots
        product, moment_square = op.Mul(moment, gradient), op.Mul(moment, moment)
        if axes:
            product = op.ReduceSum(product, axes, keepdims=1)
            moment_square = op.ReduceSumSquare(moment, axes, keepdims=1)
        # the roots apart: the product of the sums of squares may overflow
        sizes = op.Mul(op.Sqrt(moment_square), op.Sqrt(square))
        cosine = op.Div(product, op.Add(sizes, TINY))
        moved = op.Add(factor, op.Mul(op.Sub(cosine, REST), steering))
        return op.Min(op.Max(moved, math.log(LEAST_FACTOR)), math.log(MOST_FACTOR))


#: The slot of the logarithm of the factor of a steered rate, and the bounds of the factor.
LOG_FACTOR = "log_factor"
LEAST_FACTOR, MOST_FACTOR = 0.03, 4.0
#: The cosine that leaves the factor as it is: noise, of cosines around zero, lowers the rate.
REST = 0.03
#: Keeps quotients of zeros finite; normal in float32.
TINY = 1e-37


def _check_decay_rates(optimizer: Adam | BlockAdam) -> None:
    for name in ("beta_1", "beta_2"):
        if not 0 <= getattr(optimizer, name) < 1:
            raise ParameterError(
                f"{name}={getattr(optimizer, name)!r} is not accepted: it must be a number in [0, 1)."
            )


#: The constructor of each named optimizer, from the parameters `momentum` and `nesterov`.
OPTIMIZERS: dict[str, Callable[[float, bool], Optimizer]] = {
    "sgd": lambda momentum, nesterov: SGD(momentum, nesterov),
    "adam": lambda momentum, nesterov: Adam(),
    "adamw": lambda momentum, nesterov: AdamW(),
    "block_adam": lambda momentum, nesterov: BlockAdam(),
}


def make_optimizer(optimizer: str | Optimizer, momentum: float, nesterov: bool) -> Optimizer:
    """Return `optimizer` as an object.

    Parameters
    ----------
    optimizer : {"sgd", "adam", "adamw", "block_adam"} or Optimizer
        A name or an object.
    momentum, nesterov : float, bool
        Parameters of "sgd". Every other optimizer refuses them.

    Raises
    ------
    ParameterError
        If the name is unknown, or if `momentum` or `nesterov` would have no effect.
    ParameterTypeError
        If `optimizer` is neither a name nor an optimizer.
    """
    legal = f"it must be one of {sorted(OPTIMIZERS)} or an Optimizer"
    if not isinstance(optimizer, str | Optimizer):
        raise ParameterTypeError(f"optimizer={optimizer!r} is not accepted: {legal}.")
    if isinstance(optimizer, str) and optimizer not in OPTIMIZERS:
        raise ParameterError(f"optimizer={optimizer!r} is not accepted: {legal}.")
    if optimizer != "sgd" and (momentum != 0 or nesterov):
        raise ParameterError(
            f"momentum={momentum!r}, nesterov={nesterov!r} have no effect on optimizer={optimizer!r}: "
            "use optimizer='sgd', or set them on the optimizer object."
        )
    if optimizer == "sgd" and nesterov and momentum == 0:
        raise ParameterError("nesterov=True has no effect without momentum: set momentum in (0, 1).")
    return optimizer if isinstance(optimizer, Optimizer) else OPTIMIZERS[optimizer](momentum, nesterov)
