"""The format of images, and the numbers of their preprocessing: checked settings of the nodes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxsgd.exceptions import ParameterError, ParameterTypeError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

__all__ = ["INTERPOLATIONS", "LAYOUTS", "ImageFormat", "Pixels", "Sizes", "read_format", "read_pixels"]

#: The axes of the channels, of the height and of the width of each layout; None: there are no channels.
LAYOUTS: dict[str, tuple[int | None, int, int]] = {
    "NHWC": (3, 1, 2),
    "NCHW": (1, 2, 3),
    "NHW": (None, 1, 2),
}
#: The default scale of each type: integers become numbers from 0 to 1.
_SCALES = {"uint8": 1 / 255, "uint16": 1 / 65535, "float32": 1.0}
#: The modes of Resize of each interpolation.
INTERPOLATIONS = {"bilinear": "linear", "bicubic": "cubic"}


@dataclass(frozen=True)
class Sizes:
    """The change of the height and the width.

    Attributes
    ----------
    resize : int, (int, int) or None
        The length of the shorter side, or height and width.
    crop : (int, int) or None
        The height and the width of the part from the centre.
    interpolation : {"bilinear", "bicubic"}
        The interpolation of a resize.
    antialias : bool
        Whether it averages over the pixels that it leaves out.
    """

    resize: int | tuple[int, int] | None
    crop: tuple[int, int] | None
    interpolation: str
    antialias: bool

    @property
    def result(self) -> tuple[int, int] | None:
        """Height and width afterwards, if the settings determine them."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    @property
    def keeps(self) -> bool:
        """True if the sizes stay as they are."""
        return self.resize is None and self.crop is None


@dataclass(frozen=True)
class ImageFormat:
    """The type and the layout of the images, and the change of their sizes.

    Attributes
    ----------
    dtype : str
        The element type.
    layout : {"NHWC", "NCHW", "NHW"}
        The meaning of the axes.
    sizes : Sizes
        The change of the sizes.
    """

    dtype: str
    layout: str
    sizes: Sizes


@dataclass(frozen=True)
class Pixels:
    """The map of the values of pixels: ``value * factor - offset``, with numbers for each channel.

    Attributes
    ----------
    factor, offset : ndarray of shape [n_channels] or [1]
        In float64.
    """

    factor: np.ndarray
    offset: np.ndarray


def read_format(
    dtype: DTypeLike, layout: str, resize: Any, crop: Any, interpolation: str, antialias: bool
) -> ImageFormat:
    """Return the checked settings that do not depend on the network.

    Raises
    ------
    ParameterError, ParameterTypeError
        If a value is not accepted.
    """
    if not isinstance(antialias, bool | np.bool_):
        raise ParameterTypeError(f"antialias={antialias!r} is not accepted: it must be True or False.")
    sizes = Sizes(
        _read_resize(resize),
        None if crop is None else _pair("crop", crop),
        _one_of("interpolation", interpolation, INTERPOLATIONS),
        bool(antialias),
    )
    _check_fit(sizes)
    return ImageFormat(_read_dtype(dtype), _one_of("layout", layout, LAYOUTS), sizes)


def read_pixels(
    dtype: str, scale: float | None, mean: ArrayLike | None, std: ArrayLike | None, n_channels: int | None
) -> Pixels:
    """Return the map of the values of pixels.

    Parameters
    ----------
    dtype : str
        The type of the images.
    scale, mean, std : float, array-like, array-like
        The parameters of the user.
    n_channels : int or None
        The channels of the network; None: unknown.

    Raises
    ------
    ParameterError, ParameterTypeError
        If a value is not accepted.
    """
    if scale is None:
        scale = _SCALES[dtype]
    if isinstance(scale, bool | np.bool_) or not isinstance(scale, Real):
        raise ParameterTypeError(f"scale={scale!r} is not accepted: it must be a number, or None.")
    if not np.isfinite(float(scale)) or not scale:
        raise ParameterError(f"scale={scale!r} is not accepted: it must be finite, and not 0.")
    centre = _channels("mean", 0.0 if mean is None else mean, n_channels)
    deviation = _channels("std", 1.0 if std is None else std, n_channels)
    if (deviation <= 0).any():
        raise ParameterError(f"std={std!r} is not accepted: each must be > 0.")
    return Pixels(float(scale) / deviation, centre / deviation)


def _channels(name: str, given: ArrayLike, n_channels: int | None) -> np.ndarray:
    """Return one number, or one for each channel."""
    try:
        numbers = np.atleast_1d(np.asarray(given))
    except ValueError:
        numbers = np.empty(0, object)
    if numbers.dtype.kind not in "iuf" or numbers.ndim > 1:
        raise ParameterTypeError(
            f"{name}={given!r} is not accepted: it must be a number, or one for each channel."
        )
    if not np.isfinite(numbers).all():
        raise ParameterError(f"{name}={given!r} is not accepted: numbers must be finite.")
    if len(numbers) not in (1, n_channels or len(numbers)) or not len(numbers):
        raise ParameterError(
            f"{name}={given!r} has {len(numbers)} numbers, and the network takes images of {n_channels} "
            "channels: give one number, or one for each channel."
        )
    return numbers.astype(np.float64)


def _read_dtype(dtype: DTypeLike) -> str:
    name: object = dtype
    # numpy reads None as float64
    if dtype is not None:
        with suppress(TypeError):
            name = np.dtype(dtype).name
    return _one_of("dtype", name, _SCALES)


def _one_of(parameter: str, value: object, legal: Sequence[str] | dict[str, Any]) -> str:
    if isinstance(value, str) and value in legal:
        return value
    accepted = ", ".join(map(repr, legal))
    close = difflib.get_close_matches(str(value).lower(), [name.lower() for name in legal], n=1)
    nearest = "" if not close else next(f" Did you mean {n!r}?" for n in legal if n.lower() == close[0])
    raise ParameterError(f"{parameter}={value!r} is not accepted: it must be one of {accepted}.{nearest}")


def _read_resize(resize: Any) -> int | tuple[int, int] | None:
    if resize is None:
        return None
    height, width = _pair("resize", resize)
    return height if isinstance(resize, Integral) else (height, width)


def _pair(parameter: str, value: Any) -> tuple[int, int]:
    """Return height and width; a number stands for both."""
    both = (value, value) if isinstance(value, Integral) else value
    is_pair = isinstance(both, tuple | list) and len(both) == 2
    if not is_pair or not all(
        isinstance(size, Integral) and not isinstance(size, bool) and int(size) > 0 for size in both
    ):
        raise ParameterError(
            f"{parameter}={value!r} is not accepted: it must be a whole number > 0, or two of them: the "
            "height and the width."
        )
    return int(both[0]), int(both[1])


def _check_fit(sizes: Sizes) -> None:
    """Refuse a part that is larger than the resized image."""
    if sizes.resize is None or sizes.crop is None:
        return
    height, width = sizes.resize if isinstance(sizes.resize, tuple) else (sizes.resize, sizes.resize)
    if sizes.crop[0] > height or sizes.crop[1] > width:
        raise ParameterError(
            f"crop={sizes.crop} is larger than the images that resize={sizes.resize} makes: lower crop, or "
            "raise resize."
        )
