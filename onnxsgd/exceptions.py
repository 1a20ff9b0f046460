"""The exceptions that this package raises on purpose.

Each class derives from :class:`OnnxSGDError`, so that one ``except`` catches them all, and from the
builtin that a user would expect, so that code unaware of this package works too.
"""

__all__ = [
    "ConvergenceError",
    "EngineError",
    "GradientError",
    "GraphError",
    "MissingRuntimeError",
    "NotTrainableError",
    "OnnxSGDError",
    "ParameterError",
    "ParameterTypeError",
    "UnsupportedError",
    "WorkersLostError",
]


#: The characters that a long message keeps at both ends: values of users may be long.
_BEGINNING, _END = 600, 500


class OnnxSGDError(Exception):
    """Base class of the exceptions that this package raises on purpose."""

    def __str__(self) -> str:
        text = super().__str__()
        is_short = len(text) <= _BEGINNING + _END
        return text if is_short else f"{text[:_BEGINNING]} [...] {text[-_END:]}"


class ParameterError(OnnxSGDError, ValueError):
    """An argument has the right type and a value that is not accepted."""


class ParameterTypeError(OnnxSGDError, TypeError):
    """An argument has a type that is not accepted."""


class GraphError(OnnxSGDError, ValueError):
    """A model cannot be read, is not valid ONNX, or does not fit the data."""


class NotTrainableError(GraphError):
    """A model has a node that gradients cannot pass, or nothing to train."""


class UnsupportedError(OnnxSGDError, NotImplementedError):
    """The request is legal, but not implemented."""


class EngineError(OnnxSGDError, RuntimeError):
    """The gradient engine or the runtime failed, or received calls out of order."""


class GradientError(OnnxSGDError, AssertionError):
    """A checked gradient does not agree with finite differences, or is not finite."""


class MissingRuntimeError(OnnxSGDError, ImportError):
    """The runtime that a request needs is not installed, or the wrong one is."""


class ConvergenceError(OnnxSGDError, RuntimeError):
    """The loss or the weights are no longer finite."""


class WorkersLostError(OnnxSGDError, RuntimeError):
    """No worker of a distributed engine is left to run the tasks of a fit."""
