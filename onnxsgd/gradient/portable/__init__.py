"""The portable engine: gradients of ONNX graphs in standard ONNX operators."""

from .differentiate import differentiable, differentiate

__all__ = ["differentiable", "differentiate"]
