"""Forward and backward pass of a graph, run one after the other by onnxruntime."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onnxsgd.engine.forward_backward.executors import Executor
from onnxsgd.engine.forward_backward.fallback import TrialExecutor
from onnxsgd.engine.forward_backward.function_base import OrtGradientForwardBackwardFunction
from onnxsgd.engine.forward_backward.function_class import make_function_class
from onnxsgd.engine.forward_backward.runtime_options import copy_options, read_options
from onnxsgd.engine.forward_backward.training_graphs import TrainingGraphs, build_training_graphs
from onnxsgd.exceptions import EngineError, ParameterError, ParameterTypeError, UnsupportedError
from onnxsgd.gradient.engines import NATIVE, PORTABLE
from onnxsgd.gradient.native.builder import bindings
from onnxsgd.graph.loading.load import check_proto
from onnxsgd.runtime.bindings import runtime_bindings
from onnxsgd.runtime.editions import load_runtime
from onnxsgd.runtime.providers import Placement, resolve_placement

__all__ = ["OrtGradientForwardBackward", "OrtGradientForwardBackwardFunction"]


class OrtGradientForwardBackward:
    """Build forward and backward pass from one graph.

    Use it to write a custom training loop with the runtime's tensors. The gradients that
    :meth:`OrtGradientForwardBackwardFunction.backward` returns are, for outputs ``y`` and their gradients
    ``y_grad`` ::

        x_grad = sum over the outputs y of  (dy / dx)^T y_grad

    With the training edition of onnxruntime, its agent runs one graph, which waits in the middle for
    ``y_grad``. With any edition, two sessions can run a graph of standard operators: the first runs the
    forward pass and returns the outputs and the fewest possible saved tensors, the second runs the backward
    pass. Both engines give the same numbers.

    Parameters
    ----------
    onnx_model : onnx.ModelProto
        The graph, of opset 13 to 21. It is not changed. Operators without a gradient that have an exact
        equivalent are rewritten.
    weights_to_train : list of str or None, default=None
        The initializers to train, in any order. None: all floating-point ones that a gradient reaches.
    input_names : list of str or None, default=None
        The inputs to differentiate for. None: all floating-point ones that a gradient reaches.
    output_names : list of str or None, default=None
        The outputs to compute. None: all.
    class_name : str or None, default=None
        The name of the generated class; None for a unique one.
    sess_options : onnxruntime.SessionOptions or None, default=None
        Options of all sessions.
    providers : str, list of str or of (str, dict), or None, default=None
        Execution providers, or "cpu", "cuda", "cuda:1"; None for the CPU.
    provider_options : list of dict or None, default=None
        Options of each of `providers`.
    run_options : onnxruntime.RunOptions or None, default=None
        Options of each run of a session. The agent of onnxruntime-training takes none: with it they apply
        only to forward passes without training.
    graph_builder_config : OrtModuleGraphBuilderConfiguration or None, default=None
        A configuration of the gradient builder of onnxruntime-training, which is then the engine.
        ``initializer_names_to_train`` and ``input_names_require_grad`` apply where `weights_to_train` and
        `input_names` are None, and ``use_memory_efficient_gradient`` is passed on.
    device_index : int, default=0
        The number of the GPU, >= 0.
    enable_logging : bool, default=False
        Whether the logger "onnxsgd" reports builds and runs.
    debug : bool, default=False
        Whether each call checks that tensors are on the right device.
    engine : {"auto", "onnxruntime-training", "portable"}, default="auto"
        The gradient engine. "auto": onnxruntime-training where it is installed and proven right for each
        form of operator on the gradient's path; otherwise, or if the first run of that engine fails, the
        portable engine. The logger "onnxsgd" gives the reason.

    Attributes
    ----------
    cls_type_ : type
        The generated class, a subclass of :class:`OrtGradientForwardBackwardFunction`.
    engine_ : str
        The engine in use.

    Raises
    ------
    ParameterError
        If a name is unknown or repeated, a provider is not available, or there is no such engine.
    GraphError
        If the model is not valid.
    NotTrainableError
        If nothing can be trained, or an operator on the gradient's path has no gradient.
    MissingRuntimeError
        If no onnxruntime is installed, or an argument requires its training edition and another is installed.

    Examples
    --------
    >>> import numpy as np, onnx
    >>> from onnxsgd import OrtGradientForwardBackward
    >>> onx = onnx.parser.parse_model('''<ir_version: 9, opset_import: ["" : 18]>
    ... g (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] W = {1, 2}> { Y = MatMul(X, W) }''')
    >>> function = OrtGradientForwardBackward(onx).new_instance()
    >>> X, W = np.array([[3, 4]], np.float32), np.array([[1], [2]], np.float32)
    >>> function.forward([X, W], training=True)[0].numpy()
    array([[11.]], dtype=float32)
    >>> [gradient.numpy().tolist() for gradient in function.backward([np.ones((1, 1), np.float32)])]
    [[[1.0, 2.0]], [[3.0], [4.0]]]
    """

    cls_type_: type[OrtGradientForwardBackwardFunction]
    engine_: str

    def __init__(
        self,
        onnx_model: onnx.ModelProto,
        weights_to_train: Sequence[str] | None = None,
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
        class_name: str | None = None,
        sess_options: object = None,
        providers: str | Sequence[str | tuple[str, Mapping[str, object]]] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
        run_options: object = None,
        graph_builder_config: Any = None,
        device_index: int = 0,
        enable_logging: bool = False,
        debug: bool = False,
        engine: str = "auto",
    ) -> None:
        check_proto(onnx_model, "onnx_model")
        self.onnx_model = onnx_model
        self.weights_to_train = weights_to_train
        self.input_names = input_names
        self.output_names = output_names
        self.class_name = class_name or f"{OrtGradientForwardBackwardFunction.__name__}_{id(self)}"
        self.sess_options = sess_options
        self.providers = providers
        self.provider_options = provider_options
        self.run_options = run_options
        self.graph_builder_config = graph_builder_config
        self.device_index = device_index
        self.enable_logging = enable_logging
        self.debug = debug
        self.engine = engine
        available = runtime_bindings().get_available_providers()
        placement = resolve_placement(providers, provider_options, device_index, available)
        try:
            self.cls_type_ = self._make_class(engine, placement)
        except EngineError as error:
            if engine != "auto" or graph_builder_config is not None:
                raise
            self.cls_type_ = self._make_portable_class(error, placement)
        if engine == "auto" and graph_builder_config is None and self.engine_ == NATIVE:
            self.cls_type_._executor = TrialExecutor(
                self.cls_type_._executor, lambda error: self._replace(error, placement)
            )
        logger = logging.getLogger("onnxsgd") if enable_logging else None
        if logger is not None:
            self._report(logger, placement)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._arguments())

    def new_instance(self) -> OrtGradientForwardBackwardFunction:
        """Return an object that runs forward and backward; use one for each thread."""
        return self.cls_type_()

    def get_initializer(self, name: str, exc: bool = True) -> np.ndarray | None:
        """Return the value of an initializer.

        Parameters
        ----------
        name : str
            Its name.
        exc : bool, default=True
            Whether to raise if no initializer has that name.

        Returns
        -------
        np.ndarray or None
            A copy of it; None if none has that name and `exc` is false.

        Raises
        ------
        EngineError
            If none has that name and `exc` is true.
        """
        if name in self._initial_values:
            return self._initial_values[name].numpy().copy()
        if exc:
            raise EngineError(f"There is no initializer {name!r}: there are {sorted(self._initial_values)}.")
        return None

    def _make_class(self, engine: str, placement: Placement) -> type[OrtGradientForwardBackwardFunction]:
        """Build the graphs by `engine` and return the class that runs them."""
        graphs = self._build_graphs(engine)
        self.engine_ = graphs.engine
        if graphs.reason is not None:
            _say_why(graphs.reason)
        logger = logging.getLogger("onnxsgd") if self.enable_logging else None
        kind = make_function_class(
            self.class_name,
            graphs,
            placement,
            self.sess_options,
            self.run_options,
            logger,
            bool(self.debug),
        )
        self.weights_to_train, self.input_names = graphs.sources.weights, graphs.sources.inputs
        self.output_names = graphs.outputs
        self._initial_values = graphs.initial_values
        return kind

    def _make_portable_class(
        self, error: EngineError, placement: Placement
    ) -> type[OrtGradientForwardBackwardFunction]:
        _say_why(str(error))
        return self._make_class(PORTABLE, placement)

    def _replace(self, error: EngineError, placement: Placement) -> Executor:
        """Switch the class to the graphs of the portable engine; return their executor."""
        other, kind = self._make_portable_class(error, placement), self.cls_type_
        for name, value in vars(other).items():
            if not name.startswith("__") and name != "_executor":
                setattr(kind, name, value)
        return other._executor

    def _build_graphs(self, engine: str) -> TrainingGraphs:
        config = self.graph_builder_config
        weights, inputs = self.weights_to_train, self.input_names
        if config is not None:
            engine = _check_config(config, engine)
            weights = weights if weights is not None else config.initializer_names_to_train or None
            inputs = inputs if inputs is not None else config.input_names_require_grad or None
        efficient = config is not None and config.use_memory_efficient_gradient
        return build_training_graphs(self.onnx_model, weights, inputs, self.output_names, engine, efficient)

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor as plain data."""
        return {
            "onnx_model": self.onnx_model.SerializeToString(),
            "weights_to_train": self.weights_to_train,
            "input_names": self.input_names,
            "output_names": self.output_names,
            "class_name": self.class_name,
            "sess_options": read_options(self.sess_options),
            "providers": self.providers,
            "provider_options": self.provider_options,
            "run_options": read_options(self.run_options),
            "graph_builder_config": read_options(self.graph_builder_config),
            "device_index": self.device_index,
            "enable_logging": self.enable_logging,
            "debug": self.debug,
            "engine": self.engine,
        }

    def _report(self, logger: logging.Logger, placement: Placement) -> None:
        kind = self.cls_type_
        report = {
            "input_names": kind._input_names,
            "output_names": kind._output_names,
            "weights_to_train": kind._weights_to_train,
            "grad_input_names": kind._grad_input_names,
            "bw_fetches_names": kind._bw_fetches_names,
            "providers": placement.providers,
            "device_index": placement.index,
            "class_name": self.class_name,
            "engine": self.engine_,
        }
        for name, value in report.items():
            logger.info("[%s] %s=%r", type(self).__name__, name, value)


def _say_why(reason: str) -> None:
    logging.getLogger("onnxsgd").info("engine='auto' is the portable engine here: %s", reason)


def _check_config(config: object, engine: str) -> str:
    """Check a configuration of the gradient builder; return the name of the builder's engine."""
    if engine == "portable":
        raise ParameterError(
            "graph_builder_config configures the gradient builder of onnxruntime-training, which "
            "engine='portable' does not use: give weights_to_train and input_names instead."
        )
    kind = bindings().OrtModuleGraphBuilderConfiguration
    if not isinstance(config, kind):
        raise ParameterTypeError(
            f"graph_builder_config must be an {kind.__name__}, not {type(config).__name__}."
        )
    if config.enable_caching:
        raise UnsupportedError("graph_builder_config.enable_caching=True is not supported.")
    return "onnxruntime-training" if engine == "auto" else engine


def _rebuild(kind: type[OrtGradientForwardBackward], arguments: dict[str, Any]) -> OrtGradientForwardBackward:
    """Make an object from the arguments that :meth:`OrtGradientForwardBackward.__reduce__` returned."""
    onnxruntime = load_runtime()
    arguments = dict(arguments)
    arguments["onnx_model"] = onnx.load_from_string(arguments["onnx_model"])
    arguments["sess_options"] = copy_options(onnxruntime.SessionOptions, arguments["sess_options"])
    arguments["run_options"] = copy_options(onnxruntime.RunOptions, arguments["run_options"])
    if arguments["graph_builder_config"] is not None:
        config = bindings().OrtModuleGraphBuilderConfiguration
        arguments["graph_builder_config"] = copy_options(config, arguments["graph_builder_config"])
    return kind(**arguments)
