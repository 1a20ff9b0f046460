"""Functions and their claimed gradients, for :func:`onnxsgd.testing.check_gradients`."""
