"""Nodes that turn images into the input of a network."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd._builder import Builder
from onnxsgd.graph.model import FROZEN, unique_name
from onnxsgd.graph.preprocessing.image_format import INTERPOLATIONS, LAYOUTS, ImageFormat, Pixels
from onnxsgd.graph.writing import add_initializer

__all__ = ["image_nodes", "pixel_constants"]

#: The parameter of cubic kernels: of Pillow's with antialiasing, as in torch, and the usual one without.
_CUBIC, _CUBIC_ANTIALIASED = -0.75, -0.5


def pixel_constants(
    graph: ir.Graph, names: set[str], pixels: Pixels
) -> tuple[ir.Value | None, ir.Value | None]:
    """Add factor and offset of the pixels to a graph as frozen initializers; None where they do nothing."""
    made: list[ir.Value | None] = []
    for name, numbers, neutral in (("factor", pixels.factor, 1.0), ("offset", pixels.offset, 0.0)):
        if (numbers == neutral).all():
            made.append(None)
            continue
        # one number for all channels needs no axes
        array = numbers.reshape(()) if len(numbers) == 1 else numbers.reshape(-1, 1, 1)
        value = add_initializer(graph, unique_name(f"pixel_{name}", names), array.astype(np.float32))
        value.metadata_props[FROZEN] = f"{name} of the pixels of images"
        made.append(value)
    return made[0], made[1]


def image_nodes(
    op: Builder,
    images: ir.Value,
    form: ImageFormat,
    constants: tuple[ir.Value | None, ir.Value | None],
    dtype: ir.DataType,
) -> ir.Value:
    """Write the nodes of the preprocessing.

    Axes are moved while elements are small; sizes change in float32, and so do the values of pixels.

    Parameters
    ----------
    op : builder
        Writes the nodes.
    images : ir.Value
        The images.
    form : ImageFormat
        Their format, and the change of their sizes.
    constants : (ir.Value or None, ir.Value or None)
        The factor and the offset of the pixels; None: 1 and 0.
    dtype : ir.DataType
        The type of the network's input.

    Returns
    -------
    ir.Value
        Of shape [n_samples, n_channels, height, width].
    """
    made = images
    channels, height, width = LAYOUTS[form.layout]
    if channels is None:
        made = op.Unsqueeze(made, [1])
    elif channels != 1:
        made = op.Transpose(made, perm=[0, channels, height, width])
    sizes = form.sizes
    if sizes.crop is not None and sizes.resize is None:
        # of the elements as they are stored: fewer are converted
        made = _cropped(op, made, sizes.crop)
    if form.dtype != "float32":
        made = op.Cast(made, to=ir.DataType.FLOAT)
    if sizes.resize is not None:
        made = _resized(op, made, form)
        if sizes.crop is not None:
            made = _cropped(op, made, sizes.crop)
    factor, offset = constants
    made = made if factor is None else op.Mul(made, factor)
    made = made if offset is None else op.Sub(made, offset)
    return made if dtype == ir.DataType.FLOAT else op.Cast(made, to=dtype)


def _resized(op: Builder, images: ir.Value, form: ImageFormat) -> ir.Value:
    """Interpolate, pixels being squares whose centres have the coordinates: ``align_corners=False``."""
    resize, antialias = form.sizes.resize, form.sizes.antialias
    if isinstance(resize, int):
        present = _height_and_width(op, images)
        shorter = op.Min(op.Slice(present, [0], [1]), op.Slice(present, [1], [2]))
        # integers, rounded towards zero
        wanted = op.Div(op.Mul(present, [resize]), shorter)
    else:
        wanted = op.Constant(value_ints=list(resize or ()))
    return op.Resize(
        images, None, None, wanted, axes=[2, 3],
        mode=INTERPOLATIONS[form.sizes.interpolation], coordinate_transformation_mode="half_pixel",
        cubic_coeff_a=_CUBIC_ANTIALIASED if antialias else _CUBIC,
        # as torch and Pillow do: otherwise pixels at the border count several times
        antialias=int(antialias), exclude_outside=int(antialias),
    )  # fmt: skip


def _cropped(op: Builder, images: ir.Value, crop: tuple[int, int]) -> ir.Value:
    """Take a part from the centre; images that are smaller fail in the Reshape."""
    wanted = op.Constant(value_ints=list(crop))
    spare = op.Sub(_height_and_width(op, images), wanted)
    # half of an odd number is rounded to an even one, as Python does
    start = op.Cast(op.Round(op.Mul(op.Cast(spare, to=ir.DataType.FLOAT), 0.5)), to=ir.DataType.INT64)
    part = op.Slice(images, start, op.Add(start, wanted), [2, 3])
    return op.Reshape(part, [0, 0, *crop])


def _height_and_width(op: Builder, images: ir.Value) -> ir.Value:
    return op.Slice(op.Shape(images), [2], [4])
