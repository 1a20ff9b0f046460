"""Estimators of scikit-learn as bytes without code, by skops, which is imported on use."""

from __future__ import annotations

from typing import Any

from onnxsgd.exceptions import ParameterError

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
    found = skops.get_untrusted_types(data=content)
    unknown = sorted(set(found) - _SAFE)
    if unknown:
        raise ParameterError(
            f"The file holds objects of {unknown}, which are not known as safe to load: give the parameter "
            "that holds them, as in load(path, model=...)."
        )
    return skops.loads(content, trusted=found)


def _skops() -> Any:
    try:
        import skops.io
    except ImportError as error:
        raise ImportError(
            "Estimators of scikit-learn are saved without code by skops, which is not installed: "
            "pip install 'onnxsgd[save]'."
        ) from error
    return skops.io
