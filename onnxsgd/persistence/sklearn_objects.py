"""Estimators of scikit-learn as bytes without code, by skops, which is imported on use."""

from __future__ import annotations

from typing import Any

from onnxsgd.exceptions import ParameterError

__all__ = ["from_bytes", "to_bytes"]


def to_bytes(estimator: object) -> bytes:
    """Return an estimator of scikit-learn as bytes.

    Raises
    ------
    ImportError
        If skops is not installed.
    """
    return bytes(_skops().dumps(estimator))


def from_bytes(content: bytes) -> Any:
    """Return the estimator of these bytes.

    Raises
    ------
    ParameterError
        If it holds types that skops does not know as safe.
    """
    skops = _skops()
    unknown = skops.get_untrusted_types(data=content)
    if unknown:
        raise ParameterError(f"it holds objects of {unknown}, which skops does not know as safe")
    return skops.loads(content)


def _skops() -> Any:
    try:
        import skops.io
    except ImportError as error:
        raise ImportError(
            "Estimators of scikit-learn are saved without code by skops, which is not installed: "
            "pip install 'onnxsgd[save]'."
        ) from error
    return skops.io
