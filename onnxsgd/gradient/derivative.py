"""The gradient of a graph as a graph: the public function and its options."""

from onnxsgd.gradient.forward_backward import forward_backward_model

__all__ = ["forward_backward_model"]
