"""Low-rank adapters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsgd._settable import Settable, check_count, check_number
from onnxsgd.exceptions import ParameterTypeError

__all__ = ["LoRA"]

#: The largest rank: beyond, the matrices are larger than any weight of a common size, and would be allocated.
LARGEST_RANK = 65_536


@dataclass(frozen=True)
class LoRA(Settable):
    """Low-rank adaptation: the product of two narrow matrices is learned beside each frozen weight.

    Choose it to adapt a large network with few trained numbers: several small adapters share one base. ::

        y = x W + (alpha / rank) (x A) B                        MatMul, Gemm
        y = conv(x, W) + (alpha / rank) conv(conv(x, A), B)     Conv of one group
        y = W[i] + (alpha / rank) A[i] B                        Gather of rows

    `W` may be quantized: behind a DequantizeLinear, in the integer products of dynamic quantization, or in
    MatMulNBits.

    `A` has `rank` columns and `B` as many rows; of a convolution `A` has `rank` kernels of the size of those
    of `W`, and `B` kernels of size 1. `A` starts at random, uniformly in ``[-1 / sqrt(n), 1 / sqrt(n)]`` for
    `n` numbers that a column or a kernel reads, and `B` at zero, so that training starts at the function of
    the model. Of a Gather, `A` starts at zero and `B` at standard normal numbers. This is the start of peft,
    and that of the paper's code.

    Parameters
    ----------
    rank : int, default=8
        The columns of `A`, from 1 to 65,536.
    alpha : float, default=16
        The numerator of the factor ``alpha / rank``, > 0.
    targets : None, str, sequence of str, or callable, default=None
        The adapted weights. None: those of layers that training would change without an adapter, the output
        layer excepted (as "all-linear" in peft), unless it is the only one; no tables of a Gather. Names of
        initializers, or patterns such as ``"*q_proj*"``; a callable is called with the name of each weight
        that can be adapted, and returns True for those to adapt.

    References
    ----------
    E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.neural_network import MLPRegressor
    >>> from onnxsgd import OnnxSGDRegressor
    >>> from onnxsgd.adapters import LoRA
    >>> X, y = load_diabetes(return_X_y=True)
    >>> network = MLPRegressor(hidden_layer_sizes=(20, 20), tol=10.0, max_iter=1000, random_state=0)
    >>> network = network.fit(X[:200], y[:200])
    >>> adapted = OnnxSGDRegressor(network, adapter=LoRA(rank=2), random_state=0).fit(X[200:], y[200:])
    >>> {name: array.shape for name, array in adapted.get_weights().items()}  # doctest: +NORMALIZE_WHITESPACE
    {'coefs_0.lora_A': (10, 2), 'coefs_0.lora_B': (2, 20),
     'coefs_1.lora_A': (20, 2), 'coefs_1.lora_B': (2, 20)}
    """

    rank: int = 8
    alpha: float = 16
    targets: str | Sequence[str] | Callable[[str], bool] | None = None

    def __post_init__(self) -> None:
        check_count("rank", self.rank, most=LARGEST_RANK)
        check_number("alpha", self.alpha, above=0)
        names: Any = self.target_names
        if names is not None and not (names and all(isinstance(name, str) for name in names)):
            raise ParameterTypeError(
                f"targets={self.targets!r} is not accepted: it must be None, names of weights, patterns such "
                "as '*q_proj*', or a callable on names."
            )

    @property
    def scale(self) -> float:
        """The factor of the product, ``alpha / rank``, as a number of float32.

        In graphs of float64, newer versions of onnxruntime fuse it into an attribute of that type.
        """
        return float(np.float32(float(self.alpha) / int(self.rank)))

    @property
    def target_names(self) -> tuple[str, ...] | None:
        """The names and patterns in `targets`; None: there are none."""
        targets: Any = self.targets
        if targets is None or callable(targets):
            return None
        if isinstance(targets, str):
            return (targets,)
        # an iterator would be empty the second time; an array without axes calls itself a collection
        is_several = isinstance(targets, Collection) and getattr(targets, "ndim", 1) > 0
        return tuple(targets) if is_several else ()

    @property
    def key(self) -> Hashable | None:
        """The cache key; None if there is none, as with a function for `targets`."""
        if callable(self.targets):
            return None
        return (int(self.rank), float(self.alpha), self.target_names)
