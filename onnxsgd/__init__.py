"""Keep training a model that already works, and get ONNX back."""

from onnxsgd._version import __version__

__all__ = ["__version__"]
