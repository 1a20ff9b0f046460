"""Preprocessing of images as the first nodes of a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from onnxsgd.exceptions import GraphError, ParameterError
from onnxsgd.graph.append import graft
from onnxsgd.graph.loading.load import load_model
from onnxsgd.graph.model import REAL_TYPES, graph_names, to_ir, to_proto, unique_name
from onnxsgd.graph.nodes import element_type, shape_of
from onnxsgd.graph.opsets.versions import in_opset
from onnxsgd.graph.preprocessing.image_format import LAYOUTS, ImageFormat, read_format, read_pixels
from onnxsgd.graph.preprocessing.image_nodes import image_nodes, pixel_constants

if TYPE_CHECKING:
    import os

    from numpy.typing import ArrayLike, DTypeLike

__all__ = ["add_preprocessing"]

#: The first opset whose Resize averages over the pixels that it leaves out.
_RESIZE_OPSET = 18
#: The element types of images.
_TYPES = {"uint8": ir.DataType.UINT8, "uint16": ir.DataType.UINT16, "float32": ir.DataType.FLOAT}


def add_preprocessing(
    model: onnx.ModelProto | bytes | str | os.PathLike[str],
    *,
    dtype: DTypeLike = "uint8",
    layout: str = "NHWC",
    scale: float | None = None,
    mean: ArrayLike | None = None,
    std: ArrayLike | None = None,
    resize: int | Sequence[int] | None = None,
    crop: int | Sequence[int] | None = None,
    interpolation: str = "bilinear",
    antialias: bool = True,
    input_name: str | None = None,
) -> onnx.ModelProto:
    """Return a copy of a network that takes images as they are stored, such as 8 bits for each color.

    The preprocessing is part of the graph: training, predictions and the exported file contain it. The images
    stay as they are in memory; batches of them are converted. The values of a channel become ::

        (value * scale - mean) / std

    after the resize and the crop, in this order, computed in float32.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, str or path-like
        The network, with an input of shape [n_samples, n_channels, height, width] of real numbers, as torch
        exports it. It is not changed.
    dtype : {"uint8", "uint16", "float32"}, default="uint8"
        The type of the images.
    layout : {"NHWC", "NCHW", "NHW"}, default="NHWC"
        The axes of the images: samples, height, width and channels. "NHW" are images of one channel, without
        an axis for it.
    scale : float or None, default=None
        The factor of the values. None: 1/255 for uint8, 1/65535 for uint16, 1 for float32.
    mean, std : float, or array-like of shape (n_channels,), default=None
        Mean and standard deviation of the scaled values, the latter > 0; None: 0 and 1. Those of ImageNet are
        ``[0.485, 0.456, 0.406]`` and ``[0.229, 0.224, 0.225]``.
    resize : int or (int, int) or None, default=None
        The height and the width to interpolate to; one number is the length of the shorter side, and the
        other one keeps the proportion, rounded down.
    crop : int or (int, int) or None, default=None
        The height and the width of the part that is taken from the centre; one number stands for both.
    interpolation : {"bilinear", "bicubic"}, default="bilinear"
        The interpolation of `resize`; pixels are squares (``align_corners=False`` in torch).
    antialias : bool, default=True
        Whether a resize to fewer pixels averages over those that it leaves out, as Pillow and torchvision do.
    input_name : str or None, default=None
        The input that takes images; not needed if the network has one input.

    Returns
    -------
    onnx.ModelProto
        The network with the same names of inputs and outputs. With `resize`, in opset 18 at least. Factors
        and offsets of pixels are initializers that training does not change.

    Raises
    ------
    ParameterError
        A ValueError: a parameter out of range, numbers that do not match the channels, or sizes that do not
        match those of the network.
    ParameterTypeError
        A TypeError: an argument of the wrong type.
    GraphError
        A ValueError: a model that is not valid, or without an input for images.

    Notes
    -----
    `resize`, `crop`, `interpolation` and `antialias` mean the same as in ``torchvision.transforms.v2`` for
    tensors of float32: pixels are not rounded to 8 bits after the resize.

    Examples
    --------
    >>> import numpy as np, onnx.parser
    >>> from onnxsgd import OnnxSGDClassifier, add_preprocessing
    >>> network = onnx.parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["": 18]>
    ...     net (float[N, 3, 4, 4] x) => (float[N, 2] scores)
    ...     <float[48, 2] coef = {1%s}> { flat = Flatten(x)  scores = MatMul(flat, coef) }''' % (", 0" * 95))
    >>> model = add_preprocessing(network, mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    >>> images = np.random.default_rng(0).integers(0, 256, (100, 4, 4, 3), dtype=np.uint8)
    >>> learner = OnnxSGDClassifier(model, random_state=0).fit(images, images[:, 0, 0, 0] > 127)
    >>> learner.to_onnx().graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
    True
    """
    form = read_format(dtype, layout, resize, crop, interpolation, antialias)
    loaded = load_model(model)
    if form.sizes.resize is not None:
        loaded = _in_opset_of_resize(loaded)
    changed = to_ir(loaded)
    graph = changed.graph
    replaced = _find_input(graph, input_name)
    _check_network(replaced, form)
    n_channels = 1 if form.layout == "NHW" else _axes(replaced)[1]
    pixels = read_pixels(form.dtype, scale, mean, std, n_channels if isinstance(n_channels, int) else None)
    names = graph_names(graph)
    constants = pixel_constants(graph, names, pixels)
    images = ir.Value(
        name=replaced.name,
        type=ir.TensorType(_TYPES[form.dtype]),
        shape=_shape_of_images(replaced, form, names),
    )
    target = element_type(replaced)
    result = graft(graph, names, "preprocessing", lambda op: image_nodes(op, images, form, constants, target))
    _replace_input(graph, replaced, images, result)
    return to_proto(changed)


def _in_opset_of_resize(model: onnx.ModelProto) -> onnx.ModelProto:
    entry = next(entry for entry in model.opset_import if entry.domain == "")
    if entry.version >= _RESIZE_OPSET:
        return model
    newer = in_opset(model, _RESIZE_OPSET)
    next(entry for entry in newer.opset_import if entry.domain == "").version = _RESIZE_OPSET
    return newer


def _find_input(graph: ir.Graph, name: str | None) -> ir.Value:
    """Return the input for images, of four axes and of real numbers."""
    present = [str(value.name) for value in graph.inputs]
    if name is not None and name not in present:
        raise ParameterError(f"input_name={name!r} is not accepted: the inputs of the network are {present}.")
    if name is None and len(present) != 1:
        raise ParameterError(
            f"The network has {len(present)} inputs, {present}: name the one for images with input_name=."
        )
    value = graph.inputs[present.index(name) if name is not None else 0]
    if value.dtype not in REAL_TYPES or value.shape is None or len(value.shape) != 4:
        shape = "unknown" if value.shape is None else f"({_shown(value.shape)})"
        raise GraphError(
            f"Input {value.name!r} of the network is of {value.dtype} and of shape {shape}: images need an "
            "input of real numbers, of shape (n_samples, n_channels, height, width)."
        )
    return value


def _shown(shape: ir.Shape) -> str:
    return ", ".join(str(size) if isinstance(size, int) else "any" for size in shape)


def _axes(value: ir.Value) -> list[int | ir.SymbolicDim]:
    """Return the sizes of an input of four axes."""
    return list(shape_of(value))


def _check_network(value: ir.Value, form: ImageFormat) -> None:
    """Refuse sizes and channels that are not those of the network."""
    _, channels, *wanted = _axes(value)
    if LAYOUTS[form.layout][0] is None and isinstance(channels, int) and channels != 1:
        raise ParameterError(
            f"layout={form.layout!r} is of images of one channel, and the network takes {channels}: give "
            "images with an axis of channels, and layout='NHWC' or 'NCHW'."
        )
    if form.sizes.keeps or not all(isinstance(size, int) for size in wanted):
        return
    if form.sizes.result is None:
        raise ParameterError(
            f"resize={form.sizes.resize} is the length of the shorter side, and the network takes images of "
            f"{wanted[0]} x {wanted[1]}: add crop={tuple(wanted)}, or give resize={tuple(wanted)}."
        )
    if form.sizes.result != tuple(wanted):
        name = "resize" if form.sizes.crop is None else "crop"
        raise ParameterError(
            f"{name}={form.sizes.result} is not the size of the images that the network takes, "
            f"{tuple(wanted)}."
        )


def _shape_of_images(value: ir.Value, form: ImageFormat, names: set[str]) -> ir.Shape:
    samples, channels, height, width = _axes(value)
    if not form.sizes.keeps:
        height, width = (ir.SymbolicDim(unique_name(name, names)) for name in ("height", "width"))
    pairs = zip(LAYOUTS[form.layout], (channels, height, width), strict=True)
    sizes = {axis: size for axis, size in pairs if axis is not None}
    return ir.Shape([samples, *(sizes[axis] for axis in sorted(sizes))])


def _replace_input(graph: ir.Graph, old: ir.Value, images: ir.Value, result: ir.Value) -> None:
    """Let `images` take the place of an input, and `result` its uses."""
    result.type, result.shape = old.type, old.shape
    graph.inputs[graph.inputs.index(old)] = images
    ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
    # the new nodes were appended
    graph.sort()
