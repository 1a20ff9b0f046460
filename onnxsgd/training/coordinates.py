"""Training in standardised coordinates: first layers of centred and scaled data.

A layer z = x W + b of raw data x is the layer z = x' W' + b' of standardised data::

    x' = (x - m) / s,   W' = s W,   b' = b + m W

The functions are the same; gradients of W' have one scale for all columns. Weights are converted on the way
into the buffers of the training step and back, so that all other code sees those of raw data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsgd.data.moments import Moments
from onnxsgd.engine.step.batches import Standard
from onnxsgd.engine.step.buffers import Tensors
from onnxsgd.engine.step.update import AVERAGE, PENALTY_SCALE, WEIGHT
from onnxsgd.graph.reading.end_layers import FirstLayer

__all__ = ["Coordinates", "StandardisedBuffers", "make_coordinates"]


@dataclass(frozen=True)
class Coordinates:
    """The change of coordinates of the first layers.

    Attributes
    ----------
    layers : tuple of FirstLayer
        The layers.
    standards : dict of Standard
        The shift and the scale of the columns of each of their inputs.
    """

    layers: tuple[FirstLayer, ...]
    standards: Mapping[str, Standard]

    def penalty_scales(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> dict[str, np.ndarray]:
        """Return the factors 1 / s^2 of the l2 penalty of each weight W', for W' / s = W."""
        return {
            layer.weight: (self._scale(layer) ** -2.0).astype(tensors[layer.weight, WEIGHT].dtype)
            for layer in self.layers
        }

    def standardised(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> Tensors:
        """Return weights of raw data, and averages of them, for standardised data; other tensors as given."""
        converted = dict(tensors)
        for layer, kind in self._pairs(tensors):
            weight = np.asarray(tensors[layer.weight, kind], np.float64)
            self._put(converted, layer, kind, weight * self._scale(layer), self._shifted(layer, weight))
        return converted

    def raw(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> Tensors:
        """Return weights of standardised data, and averages of them, for raw data; the inverse."""
        converted = dict(tensors)
        for layer, kind in self._pairs(tensors):
            weight = np.asarray(tensors[layer.weight, kind], np.float64) / self._scale(layer)
            self._put(converted, layer, kind, weight, -self._shifted(layer, weight))
        return converted

    def _pairs(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> list[tuple[FirstLayer, str]]:
        return [
            (layer, kind)
            for layer in self.layers
            for kind in (WEIGHT, AVERAGE)
            if (layer.weight, kind) in tensors
        ]

    def _scale(self, layer: FirstLayer) -> np.ndarray:
        """Return the scales in a shape that multiplies the coefficients."""
        scale = 1.0 / self.standards[layer.feature].factor.astype(np.float64)
        return scale[None, :] if layer.is_transposed else scale[:, None]

    def _shifted(self, layer: FirstLayer, weight: np.ndarray) -> np.ndarray:
        """Return m W."""
        shift = self.standards[layer.feature].shift.astype(np.float64)
        return weight @ shift if layer.is_transposed else shift @ weight

    def _put(
        self, tensors: Tensors, layer: FirstLayer, kind: str, weight: np.ndarray, step: np.ndarray
    ) -> None:
        tensors[layer.weight, kind] = weight.astype(tensors[layer.weight, kind].dtype)
        if layer.intercept is not None:
            intercept = tensors[layer.intercept, kind]
            moved = np.asarray(intercept, np.float64) + step.reshape(intercept.shape)
            tensors[layer.intercept, kind] = moved.astype(intercept.dtype)


def make_coordinates(
    layers: tuple[FirstLayer, ...], features: Mapping[str, Any], moments: Mapping[str, Moments]
) -> Coordinates:
    """Return the coordinates in which the columns of the first layers' inputs are standardised.

    Columns are not centred where that is impossible: where a layer has no trained intercept, or the data are
    sparse, whose moments have means of zero. They then have root mean squares of 1.
    """
    standards = {}
    for name in dict.fromkeys(layer.feature for layer in layers):
        dtype = features[name].dtype
        is_centred = all(layer.intercept is not None for layer in layers if layer.feature == name)
        known = moments[name]
        scale = known.deviation(dtype) if is_centred else known.size
        shift = known.mean if is_centred else np.zeros_like(known.mean)
        standards[name] = Standard(shift.astype(dtype), (1.0 / scale).astype(dtype))
    return Coordinates(layers, standards)


class StandardisedBuffers:
    """Buffers of the training step, seen as weights of raw data.

    Parameters
    ----------
    buffers : Buffers
        The buffers of weights of standardised data.
    coordinates : Coordinates
        The coordinates.
    """

    def __init__(self, buffers: Any, coordinates: Coordinates) -> None:
        self._buffers = buffers
        self._coordinates = coordinates

    def load(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> None:
        """Copy these values into the buffers."""
        scales = self._coordinates.penalty_scales(tensors)
        further = {(name, PENALTY_SCALE): scale for name, scale in scales.items()}
        self._buffers.load(self._coordinates.standardised(tensors) | further)

    def snapshot(self) -> Tensors:
        """Return a copy of the present values."""
        tensors = self._coordinates.raw(self._buffers.snapshot())
        return {(name, kind): array for (name, kind), array in tensors.items() if kind != PENALTY_SCALE}
