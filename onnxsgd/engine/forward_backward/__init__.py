"""``OrtGradientForwardBackward`` and the classes that it generates."""
