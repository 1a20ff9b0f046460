"""Dropout in training: masks computed from two random numbers of each update.

An operator that draws has a state in its session, which fits share. Here a mask is a function of the numbers
of the update, which the generator of the fit draws, in integer arithmetic of standard operators: the same
numbers give the same mask, in any runtime, and an update can be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.dropout import acting_dropouts, ratio_of
from onnxsgd.graph.model import graph_names, unique_name, value_named
from onnxsgd.graph.nodes import element_type, first
from onnxsgd.graph.shape_inference import ShapeInferencePass
from onnxsgd.graph.writing import replace_input, replace_output

if TYPE_CHECKING:
    from onnxsgd._builder import Builder

__all__ = ["KEYS", "KEY_RANGE", "compute_keys", "draw_keys", "with_masks"]

#: The two numbers of an update that its masks are computed from.
KEYS = ("mask_key_1", "mask_key_2")
#: Keys are whole numbers below this: float32 distinguishes as many.
KEY_RANGE = 1 << 24
#: An odd number of many bits, the constant of MurmurHash2.
_ODD = 0x5BD1E995


def draw_keys(random_state: np.random.RandomState, n_updates: int) -> dict[str, np.ndarray]:
    """Return the numbers of the next updates."""
    drawn = random_state.randint(0, KEY_RANGE, (n_updates, len(KEYS)))
    return dict(zip(KEYS, drawn.T, strict=True))


def with_masks(model: ir.Model) -> tuple[ir.Model, tuple[str, ...]]:
    """Return `model` with Dropout nodes in training: ``y = x mask``, with 0 or 1 / (1 - ratio) in the mask.

    Parameters
    ----------
    model : ir.Model
        A graph of fixed sizes, which is changed.

    Returns
    -------
    model : ir.Model
        The same graph.
    keys : tuple of str
        The names of two new inputs [1, 1] of type int32, for the numbers of the update.
    """
    graph = model.graph
    names = graph_names(graph)
    keys = []
    for name in KEYS:
        type_, shape = ir.TensorType(ir.DataType.INT32), ir.Shape([1, 1])
        keys.append(ir.Value(name=unique_name(f"{name}_as_integer", names), type=type_, shape=shape))
    graph.inputs.extend(keys)
    for number, node in enumerate(list(acting_dropouts(graph))):
        _write_out(graph, node, number, keys)
    graph.sort()
    ShapeInferencePass(strict_mode=False)(model)
    return model, tuple(str(key.name) for key in keys)


def compute_keys(graph: ir.Graph, keys: tuple[str, ...], scalars: Mapping[str, ir.Value]) -> None:
    """Compute the inputs of the masks from the scalars of the step."""
    # imported on use: it loads onnxscript
    from onnxsgd.graph.append import appending

    with appending(graph) as op:
        made = [op.Reshape(op.Cast(scalars[name], to=ir.DataType.INT32), [1, 1]) for name in KEYS]
    for name, value in zip(keys, made, strict=True):
        replace_input(graph, value_named(graph, name), value)


def _write_out(graph: ir.Graph, node: ir.Node, number: int, keys: list[ir.Value]) -> None:
    """Replace a Dropout by a product with its mask."""
    # imported on use: it loads onnxscript
    from onnxsgd.graph.append import appending

    x, ratio = first(node), ratio_of(node)
    sizes = [size for size in x.shape or () if isinstance(size, int)]
    if x.shape is None or len(sizes) < len(x.shape) or ratio is None:
        raise UnsupportedError(
            f"The Dropout that computes {node.outputs[0].name!r} cannot act: its input has the shape "
            f"{x.shape or 'unknown'}. Switch it off with dropout=0.0."
        )
    dtype = element_type(x).numpy()
    with appending(graph) as op:
        drops = op.Less(_random_integers(op, sizes, number, keys), int((ratio - 0.5) * 2**32))
        numbers = (np.array(value, dtype) for value in (0.0, 1.0 / (1.0 - ratio)))
        zero, factor = (op.initializer(ir.tensor(a), name=f"mask_value_{i}") for i, a in enumerate(numbers))
        mask = op.Reshape(op.Where(drops, zero, factor), sizes)
        results = [op.Mul(x, mask), op.Reshape(op.Not(drops), sizes)]
    for old, new in zip(node.outputs, results, strict=False):
        replace_output(old, new)
    graph.remove(node, safe=True)


def _random_integers(op: Builder, sizes: list[int], number: int, keys: list[ir.Value]) -> ir.Value:
    """Return a random number for each element: uniform integers of 32 bits, a row for each of the first axis.

    ::

        row r:     R_r = S_r b + a       S_r even, a and b odd: R_r is odd
        column c:  C_c = T_c a + b m
        element:   R_r C_c modulo 2^32

    S and T are constants of the node; a and b are made of the two numbers of the update. Products of int32
    keep the lower 32 bits.
    """
    n_rows = sizes[0] if sizes else 1
    generator = np.random.default_rng(number)
    S, T = (
        generator.integers(-(1 << 31), 1 << 31, shape, np.int64).astype(np.int32)
        for shape in ((n_rows, 1), (1, math.prod(sizes) // max(1, n_rows)))
    )
    S -= S % 2
    a, b = (op.Add(op.Mul(key, 2), 1) for key in keys)
    S_value, T_value = (op.initializer(ir.tensor(a), name=f"mask_{i}") for i, a in enumerate((S, T)))
    rows = op.Add(op.Mul(S_value, b), a)
    columns = op.Add(op.Mul(T_value, a), op.Mul(b, _ODD))
    return op.Mul(rows, columns)
