"""Optimizers: update rules of weights, as short ONNX formulas.

An optimizer is a small frozen object. For each weight it keeps the tensors named in `slots`, by default of
the weight's shape, initially zero. `update` builds the new weight and the new slots; `scalars` gives the
numbers of one step, which enter the graph as inputs, so that a search over them recompiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.optimizers._adam import Adam, AdamW
from onnxsgd.optimizers._adaptive import Adagrad, RMSProp
from onnxsgd.optimizers._block_adam import LEAST_FACTOR as LEAST_FACTOR
from onnxsgd.optimizers._block_adam import LOG_FACTOR as LOG_FACTOR
from onnxsgd.optimizers._block_adam import MOST_SIZE as MOST_SIZE
from onnxsgd.optimizers._block_adam import MOST_STRENGTH as MOST_STRENGTH
from onnxsgd.optimizers._block_adam import REST as REST
from onnxsgd.optimizers._block_adam import BlockAdam
from onnxsgd.optimizers._block_adam import bound_of_pull as bound_of_pull
from onnxsgd.optimizers._block_adam import least_divisor as least_divisor
from onnxsgd.optimizers._block_adam import most_factor as most_factor
from onnxsgd.optimizers._block_adam import sized as sized
from onnxsgd.optimizers._block_adam import steered as steered
from onnxsgd.optimizers._group_steps import TINY as TINY
from onnxsgd.optimizers._lion import Lion
from onnxsgd.optimizers._optimizer import DECAY as DECAY
from onnxsgd.optimizers._optimizer import L1_STRENGTH as L1_STRENGTH
from onnxsgd.optimizers._optimizer import RATE as RATE
from onnxsgd.optimizers._optimizer import Optimizer
from onnxsgd.optimizers._sgd import SGD

__all__ = [
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "BlockAdam",
    "Lion",
    "Optimizer",
    "RMSProp",
    "make_optimizer",
]

#: The constructor of each named optimizer, from the parameters `momentum` and `nesterov`.
OPTIMIZERS: dict[str, Callable[[float, bool], Optimizer]] = {
    "sgd": lambda momentum, nesterov: SGD(momentum, nesterov),
    "adam": lambda momentum, nesterov: Adam(),
    "adamw": lambda momentum, nesterov: AdamW(),
    "block_adam": lambda momentum, nesterov: BlockAdam(),
    "rmsprop": lambda momentum, nesterov: RMSProp(),
    "adagrad": lambda momentum, nesterov: Adagrad(),
    "lion": lambda momentum, nesterov: Lion(),
}


def make_optimizer(optimizer: str | Optimizer, momentum: float, nesterov: bool) -> Optimizer:
    """Return `optimizer` as an object.

    Parameters
    ----------
    optimizer : {"sgd", "adam", "adamw", "block_adam", "rmsprop", "adagrad", "lion"} or Optimizer
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
    made = optimizer if isinstance(optimizer, Optimizer) else OPTIMIZERS[optimizer](momentum, nesterov)
    if isinstance(made, SGD) and made.nesterov and made.momentum == 0:
        raise ParameterError("nesterov=True has no effect without momentum: set momentum in (0, 1).")
    return made
