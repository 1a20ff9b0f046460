"""Import path of pickles of format 1; it goes when that format is no longer read."""

from onnxsgd.estimators.regressor import OnnxSGDRegressor

__all__ = ["OnnxSGDRegressor"]
