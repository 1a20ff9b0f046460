"""Keep training a model that already works, and get ONNX back."""

from onnxsgd._classifier import OnnxSGDClassifier
from onnxsgd._regressor import OnnxSGDRegressor
from onnxsgd._version import __version__

__all__ = ["OnnxSGDClassifier", "OnnxSGDRegressor", "__version__"]
