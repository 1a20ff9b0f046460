"""Continued training of models that already work, with ONNX as result."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from onnxsgd._version import __version__

if TYPE_CHECKING:
    from onnxsgd import adapters, exceptions, losses, optimizers, penalties, schedules, testing
    from onnxsgd.engine.forward_backward.forward_backward import OrtGradientForwardBackward
    from onnxsgd.engine.forward_backward.function_base import OrtGradientForwardBackwardFunction
    from onnxsgd.estimators.classifier import OnnxSGDClassifier
    from onnxsgd.estimators.display import TrainingDisplay
    from onnxsgd.estimators.plot_graph import plot_graph
    from onnxsgd.estimators.regressor import OnnxSGDRegressor
    from onnxsgd.estimators.saving import load
    from onnxsgd.gradient.derivative import onnx_derivative
    from onnxsgd.gradient.derivative_options import DerivativeOptions
    from onnxsgd.graph.loading.initializers import get_train_initializer
    from onnxsgd.graph.loading.random_inputs import random_feed
    from onnxsgd.graph.preprocessing.add_preprocessing import add_preprocessing
    from onnxsgd.learner.describe import describe_trainable
    from onnxsgd.objective.attach import add_loss_output
    from onnxsgd.objective.penalty_nodes import penalty_loss_onnx

__all__ = [
    "DerivativeOptions",
    "OnnxSGDClassifier",
    "OnnxSGDRegressor",
    "OrtGradientForwardBackward",
    "OrtGradientForwardBackwardFunction",
    "TrainingDisplay",
    "__version__",
    "adapters",
    "add_loss_output",
    "add_preprocessing",
    "describe_trainable",
    "exceptions",
    "get_train_initializer",
    "load",
    "losses",
    "onnx_derivative",
    "optimizers",
    "penalties",
    "penalty_loss_onnx",
    "plot_graph",
    "random_feed",
    "schedules",
    "testing",
]

#: The module of each public name, imported on first use: the libraries behind some load slowly.
_HOMES = {
    "DerivativeOptions": "onnxsgd.gradient.derivative_options",
    "OnnxSGDClassifier": "onnxsgd.estimators.classifier",
    "OnnxSGDRegressor": "onnxsgd.estimators.regressor",
    "OrtGradientForwardBackward": "onnxsgd.engine.forward_backward.forward_backward",
    "OrtGradientForwardBackwardFunction": "onnxsgd.engine.forward_backward.function_base",
    "TrainingDisplay": "onnxsgd.estimators.display",
    "add_loss_output": "onnxsgd.objective.attach",
    "add_preprocessing": "onnxsgd.graph.preprocessing.add_preprocessing",
    "describe_trainable": "onnxsgd.learner.describe",
    "get_train_initializer": "onnxsgd.graph.loading.initializers",
    "load": "onnxsgd.estimators.saving",
    "onnx_derivative": "onnxsgd.gradient.derivative",
    "penalty_loss_onnx": "onnxsgd.objective.penalty_nodes",
    "plot_graph": "onnxsgd.estimators.plot_graph",
    "random_feed": "onnxsgd.graph.loading.random_inputs",
}
_MODULES = frozenset({"adapters", "exceptions", "losses", "optimizers", "penalties", "schedules", "testing"})


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"onnxsgd.{name}")
    raise AttributeError(f"module 'onnxsgd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
