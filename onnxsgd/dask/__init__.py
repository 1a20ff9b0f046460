"""Estimators that train on the arrays and frames of Dask, where their partitions lie."""

try:
    import dask.base
    import distributed
except ImportError as error:
    raise ImportError(
        "onnxsgd.dask trains on the workers of Dask: install them with pip install 'onnxsgd[dask]'."
    ) from error

from onnxsgd.dask.dask_estimators import DaskOnnxSGDClassifier, DaskOnnxSGDRegressor

__all__ = ["DaskOnnxSGDClassifier", "DaskOnnxSGDRegressor"]

del dask, distributed
