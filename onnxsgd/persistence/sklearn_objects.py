"""Estimators of scikit-learn as bytes without code, by skops, which is imported on use."""

from __future__ import annotations

import io
import pickle
import zipfile
import zlib
from typing import Any

import numpy as np

from onnxsgd.data.generators import restored
from onnxsgd.exceptions import ParameterError
from onnxsgd.runtime.hidden_modules import hidden_modules

__all__ = ["from_bytes", "to_bytes"]

#: Types that skops leaves to its callers, and that hold numbers alone. Trees and neighbours are not among
#: them: their memory, as a file gives it, is read without checks.
_SAFE = frozenset(
    {
        "numpy.dtype",
        "sklearn._loss.loss.HalfGammaLoss",
        "sklearn._loss.loss.HalfPoissonLoss",
        "sklearn._loss.loss.HalfSquaredError",
        "sklearn._loss.loss.HalfTweedieLoss",
        "sklearn._loss.loss.HalfTweedieLossIdentity",
        "sklearn.calibration._CalibratedClassifier",
        "sklearn.calibration._SigmoidCalibration",
        "sklearn.feature_selection._univariate_selection.chi2",
        "sklearn.feature_selection._univariate_selection.f_classif",
        "sklearn.feature_selection._univariate_selection.f_regression",
        "sklearn.gaussian_process.kernels.ConstantKernel",
        "sklearn.gaussian_process.kernels.Product",
        "sklearn.gaussian_process.kernels.RBF",
        "sklearn.gaussian_process.kernels.Sum",
        "sklearn.gaussian_process.kernels.WhiteKernel",
        "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
        "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    }
)


#: Modules of scikit-learn that import a framework, and hold no estimators. skops imports all modules.
_WITH_FRAMEWORKS = tuple(
    f"sklearn.externals.array_api_compat.{framework}" for framework in ("cupy", "dask", "torch")
)
#: The bytes of the parts of an archive for each byte of it, and further ones: zeros pack a thousand to one.
_PER_BYTE, _FURTHER = 100, 1 << 26
#: The first bytes of an archive, which the parts of one may be too.
_ARCHIVE = b"PK"


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
    try:
        _check_archive(content, _FURTHER + _PER_BYTE * len(content))
        found = skops.get_untrusted_types(data=content)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise ValueError(f"its part of skops is damaged: {error}") from error
    unknown = sorted(set(found) - _SAFE)
    if unknown:
        raise ParameterError(
            f"The file holds objects of {unknown}, which are not known as safe to load: give the parameter "
            "that holds them, as in load(path, model=...)."
        )
    estimator = skops.loads(content, trusted=found)
    _GeneratorCheck(io.BytesIO()).dump(estimator)
    return estimator


class _GeneratorCheck(pickle.Pickler):
    """Visits all objects of an estimator, and refuses generators that would read foreign memory."""

    def persistent_id(self, value: object) -> None:
        if isinstance(value, np.random.RandomState):
            state = value.get_state(legacy=False)
            if state["bit_generator"] == "MT19937":
                words = state["state"]
                restored(["MT19937", words["key"], words["pos"], 0, 0.0])


def _check_archive(content: bytes, n_bytes: int) -> int:
    """Refuse an archive that unpacks to more bytes, archives in it included; return those left."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = archive.infolist()
        n_bytes -= sum(part.file_size for part in parts)
        if n_bytes < 0:
            raise ValueError("the parts of its estimator of scikit-learn unpack to too many bytes")
        for part in parts:
            with archive.open(part) as opened:
                if opened.read(len(_ARCHIVE)) == _ARCHIVE:
                    n_bytes = _check_archive(_ARCHIVE + opened.read(), n_bytes)
    return n_bytes


def _skops() -> Any:
    try:
        with hidden_modules(*_WITH_FRAMEWORKS):
            import skops.io
    except ImportError as error:
        raise ImportError(
            "Estimators of scikit-learn are saved without code by skops, which is not installed: "
            "pip install 'onnxsgd[save]'."
        ) from error
    return skops.io
