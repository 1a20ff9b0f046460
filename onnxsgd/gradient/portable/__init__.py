"""The portable engine: gradients of ONNX graphs in standard ONNX operators.

:func:`differentiate` traverses a graph backwards. At each node it looks up one rule in the tables
(``elementwise``, ``reductions``, ``products``, ``movement``, ``indexing``, ``scattering``, ``convolution``,
``pooling``, ``normalization``, ``neural``, ``recurrent``, ``resize``, ``sampling``, ``quantization``,
``control``; ``table`` joins them and lists the operators through which no gradient flows). A rule is a
formula in tensors: its evaluation appends nodes to the graph. ::

    "Tanh": (lambda n: n.g * (1 - n.y * n.y),)

A table gives a tuple for each operator, one rule for each input, None where an input has no gradient; or one
function of the call and the index of the input. The values taken at kinks are stated beside the rules:
``elementwise``, ``reductions``, ``scattering``, ``pooling``, ``sampling``, ``quantization``.
"""

from onnxsgd.gradient.portable.differentiate import differentiable, differentiate
from onnxsgd.gradient.portable.rules.table import passes_gradient

__all__ = ["differentiable", "differentiate", "passes_gradient"]
