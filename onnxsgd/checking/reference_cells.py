"""RNN, GRU and LSTM for the reference evaluator of onnx, with all attributes of the standard.

Those of onnx 1.23 ignore the lengths of samples, ``activations``, ``clip`` and ``input_forget``. These are
written from the formulas of the standard, step by step in numpy, in the precision of the operands; they share
no code with the gradient rules that they verify. They can go when onnx's own support all of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from onnx.reference.op_run import OpRun

from onnxsgd.exceptions import UnsupportedError

__all__ = ["CELLS"]

_Array = np.ndarray
#: The activations that have a gradient rule; the others of the standard are refused.
_ACTIVATIONS: dict[str, Callable[[_Array], _Array]] = {
    "relu": lambda t: np.maximum(t, 0),
    "sigmoid": lambda t: (1 + np.tanh(t / 2)) / 2,
    "tanh": np.tanh,
}
#: The axis of the directions in the sequence, the hidden state and the cell state.
_AXES = (1, 0, 0)


class _Cell:
    """One direction of a recurrent operator: its weights and its activations.

    Parameters
    ----------
    w, r, b, p : ndarray
        Weights of the input, of the state, biases and peepholes of this direction.
    activations : list of str
        Their names.
    attributes : dict
        Those of the operator.
    """

    def __init__(
        self,
        w: _Array,
        r: _Array,
        b: _Array,
        p: _Array,
        activations: list[str],
        attributes: dict[str, Any],
    ) -> None:
        self.w, self.r, self.p = w, r, p
        self.w_bias, self.r_bias = np.split(b, 2)
        self._activations = [_activation(name) for name in activations]
        self._clip = attributes.get("clip") or np.inf
        self.linear_before_reset = bool(attributes.get("linear_before_reset"))
        self.input_forget = bool(attributes.get("input_forget"))

    def act(self, index: int, before: _Array) -> _Array:
        """Return an activation of a gate; its argument is clipped."""
        return self.last_act(index, np.clip(before, -self._clip, self._clip))

    def last_act(self, index: int, before: _Array) -> _Array:
        """Return an activation of a value that is not a gate, without clipping."""
        return self._activations[index](before)

    def gates(self, x: _Array, h: _Array, count: int) -> tuple[list[_Array], list[_Array]]:
        """Return the parts of the gates that come from the input and from the state."""
        from_x, from_h = x @ self.w.T + self.w_bias, h @ self.r.T + self.r_bias
        return np.split(from_x, count, -1), np.split(from_h, count, -1)


def _activation(name: str) -> Callable[[_Array], _Array]:
    if name.lower() not in _ACTIVATIONS:
        raise UnsupportedError(f"Activation {name} cannot be evaluated; {', '.join(_ACTIVATIONS)} can.")
    return _ACTIVATIONS[name.lower()]


class _Recurrent(OpRun):
    """A recurrent operator over samples of any lengths, in one or both directions of time."""

    op_domain = ""
    n_gates: ClassVar[int]
    n_states: ClassVar[int] = 1
    defaults: ClassVar[tuple[str, ...]]

    @abstractmethod
    def step(self, cell: _Cell, x: _Array, *states: _Array) -> tuple[_Array, ...]:
        """Return the states after one step, the hidden one first."""

    def _run(self, x: _Array, w: _Array, r: _Array, *optional: Any, **attributes: Any) -> tuple[_Array, ...]:
        b, lengths, *states, p = [*optional, *[None] * 5][: 3 + self.n_states]
        turned = bool(attributes.get("layout"))
        if turned:
            x = np.swapaxes(x, 0, 1)
            states = [None if t is None else np.swapaxes(t, 0, 1) for t in states]
        time, batch, _ = x.shape
        directions, hidden = w.shape[0], r.shape[-1]
        b = np.zeros((directions, 2 * self.n_gates * hidden), x.dtype) if b is None else b
        p = np.zeros((directions, 3 * hidden), x.dtype) if p is None else p
        states = [np.zeros((directions, batch, hidden), x.dtype) if s is None else s for s in states]
        lengths = np.full(batch, time) if lengths is None else lengths
        found = []
        for d in range(directions):
            cell = _Cell(w[d], r[d], b[d], p[d], self._names(d, attributes), attributes)
            back = d == 1 or attributes.get("direction") == "reverse"
            found.append(self._pass(cell, x, lengths, [s[d] for s in states], back))
        results = [
            np.stack(parts, axis) for parts, axis in zip(zip(*found, strict=True), _AXES, strict=False)
        ]
        if turned:
            results = [np.moveaxis(t, -2, 0) for t in results]
        return tuple(results[: len(self.onnx_node.output)])

    def _names(self, direction: int, attributes: dict[str, Any]) -> list[str]:
        """Return the activations of one direction."""
        names, size = attributes.get("activations") or self.defaults * 2, len(self.defaults)
        return list(names[direction * size : (direction + 1) * size])

    def _pass(
        self, cell: _Cell, x: _Array, lengths: _Array, states: list[_Array], back: bool
    ) -> list[_Array]:
        """Return all hidden states of one direction, zero after each sample's end, and the last states."""
        steps, samples = np.arange(len(x))[:, None], np.arange(x.shape[1])
        within = steps < lengths
        order = np.where(within & back, lengths - 1 - steps, steps)
        every = np.zeros((*x.shape[:2], states[0].shape[-1]), x.dtype)
        for t, now in enumerate(x[order, samples]):
            alive = within[t][:, None]
            states = [
                np.where(alive, new, old)
                for new, old in zip(self.step(cell, now, *states), states, strict=True)
            ]
            every[t] = np.where(alive, states[0], 0)
        began = (lengths > 0)[:, None]
        return [every[order, samples], *(np.where(began, state, 0) for state in states)]


class RNN(_Recurrent):
    """The operator RNN."""

    n_gates, defaults = 1, ("Tanh",)

    def step(self, cell: _Cell, x: _Array, *states: _Array) -> tuple[_Array, ...]:
        """Return the state after one step."""
        (from_x,), (from_h,) = cell.gates(x, states[0], 1)
        return (cell.act(0, from_x + from_h),)


class GRU(_Recurrent):
    """The operator GRU."""

    n_gates, defaults = 3, ("Sigmoid", "Tanh")

    def step(self, cell: _Cell, x: _Array, *states: _Array) -> tuple[_Array, ...]:
        """Return the state after one step."""
        (h,) = states
        (x_z, x_r, x_h), (h_z, h_r, h_h) = cell.gates(x, h, 3)
        z, r = cell.act(0, x_z + h_z), cell.act(0, x_r + h_r)
        if cell.linear_before_reset:
            added = r * h_h
        else:
            added = (r * h) @ np.split(cell.r, 3)[2].T + np.split(cell.r_bias, 3)[2]
        return ((1 - z) * cell.act(1, x_h + added) + z * h,)


class LSTM(_Recurrent):
    """The operator LSTM."""

    n_gates, n_states, defaults = 4, 2, ("Sigmoid", "Tanh", "Tanh")

    def step(self, cell: _Cell, x: _Array, *states: _Array) -> tuple[_Array, ...]:
        """Return the hidden and the cell state after one step."""
        h, c = states
        to_i, to_o, to_f, to_g = (a + b for a, b in zip(*cell.gates(x, h, 4), strict=True))
        p_i, p_o, p_f = np.split(cell.p, 3)
        i = cell.act(0, to_i + p_i * c)
        f = 1 - i if cell.input_forget else cell.act(0, to_f + p_f * c)
        c = f * c + i * cell.act(1, to_g)
        return cell.act(0, to_o + p_o * c) * cell.last_act(2, c), c


#: Operators that replace those of onnx's evaluator.
CELLS: list[type[OpRun]] = [GRU, LSTM, RNN]
