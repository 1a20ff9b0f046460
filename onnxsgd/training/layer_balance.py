"""Layers of a rectified network that pass on large numbers, which keep it from learning."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from onnxsgd._records import record
from onnxsgd.data.one_thread import one_thread
from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.buffers import Tensors
from onnxsgd.engine.step.update import AVERAGE, WEIGHT
from onnxsgd.graph.reading.rectified_layers import RectifiedLayer
from onnxsgd.runtime.events import decided
from onnxsgd.training.fit_plan import FitPlan
from onnxsgd.training.state import FitState

__all__ = ["LayerBalance", "RectifiedLayers"]

RectifiedLayers = Sequence[RectifiedLayer]

#: The root mean square up to which rectified values stay as they are.
_USUAL = 20.0
#: The root mean squares that they are given: the first one with which penalties raise the objective little.
#: ``benchmarks/raw_networks.py``, three seeds: with 1 alone R2 is 0.35 for one layer on `make_friedman3`,
#: 0.52 with 20; with 20 alone 0.74 for one on `make_friedman2`, 0.98 with 1.
_SIZES = (1.0, 5.0, 20.0)
#: The share of the objective, or of the loss of a constant, by which penalties may raise it: that of the last
#: layer is larger where a target is.
_CHANGED = 0.1
#: The most rows that they are computed from.
_ROWS = 256


@record
class LayerBalance:
    """The scales of the layers of a network with rectified values.

    A layer and the next one can be divided and multiplied by a number without a change of the function::

        W2 relu(W1 x + b1) = (c W2) relu((W1 x + b1) / c),   c > 0

    Networks that were fitted to raw columns pass on values of the size of these. A rate that suits the last
    layers then leaves the first ones as they are, and a rate that suits the first ones throws the last ones
    about. ``python benchmarks/raw_networks.py``: networks that scikit-learn has fitted to `make_friedman2`
    reach an R2 of 0.98 in place of 0.37.

    Parameters
    ----------
    layers : sequence of RectifiedLayer
        The layers.
    rows : ndarray of shape [n_rows, n_features]
        Some rows of the data.

    References
    ----------
    B. Neyshabur, R. Salakhutdinov, N. Srebro, "Path-SGD: Path-Normalized Optimization in Deep Neural
    Networks", 2015, has the invariance.
    """

    layers: RectifiedLayers
    rows: np.ndarray

    @classmethod
    def of(cls, layers: RectifiedLayers, batches: Batches, plan: FitPlan) -> LayerBalance | None:
        """Return that of a fit of these data; None: no two layers follow one another.

        Weights with rates of their own, or penalties of the distance from the first ones, keep their scale.
        """
        if not layers or plan.multipliers or plan.step_spec.from_start:
            return None
        table = batches.some().features[layers[0].layer.feature]
        if sparse.issparse(table) or len(table.shape) != 2:
            return None
        return cls(layers, table[:: -(-len(table) // _ROWS)])

    def apply(self, state: FitState, objective: Callable[[], float], unit: float) -> float | None:
        """Let rectified values have a root mean square of 1, 5 or 20, where it is above 20.

        Weights and their averages change; predictions do not, but for rounding.

        Parameters
        ----------
        state : FitState
            The state before the first update.
        objective : callable
            Returns the objective of the weights of the state.
        unit : float
            The loss of a constant.

        Returns
        -------
        float or None
            The objective then; None: nothing has changed, as no layer passes on large numbers, or penalties
            would raise the objective by more than a tenth of it, or of the unit.
        """
        given = state.tensors
        if any(kind not in (WEIGHT, AVERAGE) for _, kind in given):
            # moments of gradients belong to the present scale
            return None
        with np.errstate(all="ignore"), one_thread():
            found = self._sizes(state.weights())
        if not any(_USUAL < size < math.inf for size in found):
            return None
        before = objective()
        most = before + _CHANGED * min(abs(unit), abs(before))
        for size in _SIZES:
            factors = [size / known if _USUAL < known < math.inf else 1.0 for known in found]
            state.tensors = self._scaled(given, factors)
            after = objective()
            if after <= most:
                decided("start", "layers that pass on large numbers are balanced: objective %.6g", after)
                return after
        state.tensors = given
        return None

    def _sizes(self, weights: dict[str, np.ndarray]) -> list[float]:
        """Return the root mean square of the values between each two layers."""
        table, sizes = np.asarray(self.rows, np.float64), []
        for rectified in self.layers[:-1]:
            layer = rectified.layer
            weight = weights[layer.weight].astype(np.float64)
            table = table.dot(weight.T if layer.is_transposed else weight)
            if layer.intercept is not None:
                table += weights[layer.intercept].reshape(-1)
            table = np.where(table < 0.0, rectified.slope * table, table)
            sizes.append(math.sqrt(float(np.mean(table * table))))
        return sizes

    def _scaled(self, tensors: Tensors, factors: Sequence[float]) -> Tensors:
        """Return weights whose layers pass on values of these times their size."""
        scaled, before = dict(tensors), 1.0
        for rectified, factor in zip(self.layers, [*factors, 1.0], strict=True):
            layer = rectified.layer
            for kind in (WEIGHT, AVERAGE):
                for name, number in ((layer.weight, factor / before), (layer.intercept, factor)):
                    key: Any = name, kind
                    if key in tensors:
                        scaled[key] = (tensors[key] * number).astype(tensors[key].dtype)
            before = factor
        return scaled
