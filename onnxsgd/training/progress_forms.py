"""The progress of a fit as a checkpoint holds it: its form, and the refusal of one that no fit wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import numpy as np

from onnxsgd._declared_types import Count, Finite, check_table
from onnxsgd.engine.step.buffers import Tensors
from onnxsgd.engine.step.mixed_precision import GOOD_UPDATES, LOSS_SCALE, SCALER
from onnxsgd.engine.step.update import AVERAGE, WEIGHT

__all__ = [
    "BatchesBegun", "EpochBegun", "Moved", "ProgressError", "WindowBegun", "check_form", "check_losses",
    "check_orders", "check_tensors", "require",
]  # fmt: skip


class ProgressError(ValueError):
    """A progress that no fit wrote; it names the entry."""


class Moved(TypedDict):
    """The numbers of the state that an epoch moves."""

    t: Count
    eta: Finite
    l1_totals: dict[str, Finite]
    missed: dict[str, Count]


class EpochBegun(TypedDict):
    """The beginning of an epoch: orders that are drawn, but not used yet, numbers, the next draw."""

    ahead: np.ndarray
    state: Moved
    generator: np.random.RandomState


class WindowBegun(EpochBegun):
    """The same of a long epoch, and of a window: first batch, weight and losses before it, the next draw."""

    window: tuple[Count, Finite, Finite]
    draws: np.random.RandomState


class BatchesBegun(TypedDict):
    """The beginning of an epoch over the batches of an iterable, and the weights of those so far."""

    generator: np.random.RandomState
    t: Count
    weights: list[Finite]
    rate: float


def require(is_right: bool, entry: str, accepted: str) -> None:
    """Refuse an entry of a progress unless it is right; `accepted` names what is.

    Raises
    ------
    ProgressError
        If it is wrong.
    """
    if not is_right:
        raise ProgressError(f"{entry} is not {accepted}")


def check_form(values: object, form: type, entry: str) -> None:
    """Refuse an entry of a progress that has another form.

    Raises
    ------
    ProgressError
        It names the entry inside that differs.
    """
    try:
        check_table(values, form, entry)
    except TypeError as error:
        raise ProgressError(str(error)) from None


def check_orders(ahead: np.ndarray, n_samples: int, entry: str) -> None:
    """Refuse orders of samples that are none: the rows of the data would be read outside of them.

    Raises
    ------
    ProgressError
        If a row is no permutation of the numbers below `n_samples`.
    """
    is_table = ahead.ndim == 2 and ahead.shape[1] == n_samples and ahead.dtype.kind in "iu"
    is_right = is_table and bool((np.sort(ahead, axis=1) == np.arange(n_samples)).all())
    require(is_right, entry, f"a table whose rows are orders of {n_samples} samples")


def check_losses(losses: np.ndarray, entry: str) -> int:
    """Return the number of the losses; refuse an array of other values.

    Raises
    ------
    ProgressError
        If it is no vector of finite floats.
    """
    is_vector = losses.ndim == 1 and losses.dtype.kind == "f" and bool(np.isfinite(losses).all())
    require(is_vector, entry, "a vector of finite floats")
    return len(losses)


def check_tensors(
    tensors: Tensors, weights: Mapping[str, np.ndarray], optimizer: str | None, entry: str
) -> None:
    """Refuse weights and states of other names, shapes and kinds than those of a fit of these weights.

    Parameters
    ----------
    tensors : dict of ndarray
        The weights and their states.
    weights : mapping of str to ndarray
        Weights of the same shapes.
    optimizer : str or None
        The owner of the states; those of an optimizer of the user have any shapes.
    entry : str
        The name of `tensors` in an error.

    Raises
    ------
    ProgressError
        It names the tensor.
    """
    found = {name: array for (name, kind), array in tensors.items() if kind == WEIGHT}
    require(set(found) == set(weights), entry, f"a table with the weights {sorted(weights)}")
    averaged = {name for name, kind in tensors if kind == AVERAGE}
    require(
        not averaged or averaged == set(weights), entry, "a table with the averages of all weights, or none"
    )
    for name, array in found.items():
        shape = weights[name].shape
        is_right = array.shape == shape and array.dtype.kind == "f"
        require(is_right, f"{entry}: the weight {name!r}", f"an array of floats of shape {shape}")
    is_own = optimizer is None or optimizer.startswith("onnxsgd.optimizers.")
    for (name, kind), array in tensors.items():
        shown = f"{entry}: the tensor {kind!r} of {name!r}"
        is_of_scale = name == SCALER and kind in (LOSS_SCALE, GOOD_UPDATES) and array.shape == ()
        require(is_of_scale or name in weights, shown, "one of a weight")
        require(np.issubdtype(array.dtype, np.number), shown, "an array of numbers")
        if is_own and not is_of_scale:
            require(
                _is_state_of(array, weights[name]), shown, "an array with the axes of its weight, or size 1"
            )


def _is_state_of(array: np.ndarray, weight: np.ndarray) -> bool:
    """Tell whether a tensor has an element for each of a weight, or for some of its axes."""
    return array.ndim == weight.ndim and all(
        size in (1, whole) for size, whole in zip(array.shape, weight.shape, strict=True)
    )
