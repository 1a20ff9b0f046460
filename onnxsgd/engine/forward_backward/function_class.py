"""The class that runs the graphs of one :class:`~onnxsgd.OrtGradientForwardBackward`."""

from __future__ import annotations

from logging import Logger
from typing import Any

import onnx

from onnxsgd._library_errors import run_error
from onnxsgd.engine.forward_backward.devices import make_device
from onnxsgd.engine.forward_backward.executors import AgentExecutor, Executor, SessionsExecutor, VectorSession
from onnxsgd.engine.forward_backward.function_base import OrtGradientForwardBackwardFunction
from onnxsgd.engine.forward_backward.training_graphs import TrainingGraphs
from onnxsgd.exceptions import EngineError
from onnxsgd.runtime.bindings import runtime_bindings
from onnxsgd.runtime.editions import load_runtime
from onnxsgd.runtime.providers import Placement
from onnxsgd.runtime.sessions import open_session

__all__ = ["make_function_class"]


def make_function_class(
    name: str,
    graphs: TrainingGraphs,
    placement: Placement,
    sess_options: object,
    run_options: object,
    logger: Logger | None,
    debug: bool,
) -> type[OrtGradientForwardBackwardFunction]:
    """Return a class whose instances run `graphs`; they share its sessions.

    Parameters
    ----------
    name : str
        The name of the class.
    graphs : TrainingGraphs
        The graphs.
    placement : Placement
        The execution providers.
    sess_options, run_options : SessionOptions or None, RunOptions or None
        Options of all sessions, and of their runs.
    logger : Logger or None
        The logger of its instances.
    debug : bool
        Whether its instances check the devices of tensors.

    Raises
    ------
    EngineError
        If the runtime cannot run the graphs, or not with these providers.
    """
    device = make_device(placement.device, placement.index)
    options = run_options if run_options is not None else _default_options()

    def start(model: onnx.ModelProto) -> VectorSession:
        return VectorSession(_make_session(model, sess_options, placement), device, options)

    evaluation = start(graphs.evaluation)
    executor: Executor
    if graphs.forward is None or graphs.backward is None:
        session = _make_session(graphs.training, sess_options, placement)
        executor = AgentExecutor(session, graphs.fetches, len(graphs.outputs), device, placement.index)
    else:
        executor = SessionsExecutor(start(graphs.forward), start(graphs.backward), len(graphs.outputs))
    names = evaluation.inputs
    outputs_on, fetches_on = [device] * len(graphs.outputs), [device] * len(graphs.fetches)
    attributes = {
        "__doc__": f"Forward and backward pass from {graphs.inputs} to {graphs.outputs}.",
        "__module__": OrtGradientForwardBackwardFunction.__module__,
        "_run_options": options,
        "_sess": executor.session,
        "_sess_eval": evaluation.session,
        "_training_agent": executor.agent,
        "_cache": executor.cache,
        "_logger": logger,
        "_debug": debug,
        "_input_names": graphs.inputs,
        "_grad_input_names": names,
        "_output_names": graphs.outputs,
        "_weights_to_train": graphs.sources.weights,
        "_bw_fetches_names": graphs.fetches,
        "_fw_outputs_device_info": outputs_on,
        "_bw_outputs_device_info": fetches_on,
        "_fw_no_grad_output_device_info": outputs_on,
        "_graph_info": None if graphs.native is None else graphs.native.info,
        "_graph_builder": None if graphs.native is None else graphs.native.builder,
        "_trained_onnx": graphs.training,
        "_forward_onnx": graphs.forward,
        "_backward_onnx": graphs.backward,
        "_optimized_pre_grad_model": graphs.evaluation,
        "_devices": [device] * len(names),
        "_onx_inp": names,
        "_onx_out": graphs.fetches,
        "_executor": executor,
        "_evaluation": evaluation,
        "_input_specs": graphs.input_specs,
        "_grad_specs": graphs.gradient_specs,
        "_grad_positions": graphs.gradient_positions,
        "_grad_devices": [device] * len(graphs.gradient_positions),
    }
    return type(name, (OrtGradientForwardBackwardFunction,), attributes)


def _make_session(model: onnx.ModelProto, options: Any, placement: Placement) -> Any:
    """Return a session; refuse one that fell back to another provider."""
    if options is None:
        options = load_runtime().SessionOptions()
        # Errors only: the optimiser warns about each constant it cannot fold.
        options.log_severity_level = 3
    try:
        session = open_session(
            model.SerializeToString(),
            options,
            providers=placement.providers,
            provider_options=placement.options,
        )
    except Exception as error:
        raise run_error(error) from error
    used = session.get_providers()
    if used[0] != placement.providers[0]:
        raise EngineError(f"onnxruntime could not start {placement.providers[0]!r} and fell back to {used}.")
    return session


def _default_options() -> Any:
    options = runtime_bindings().RunOptions()
    if hasattr(options, "training_mode"):
        # the training edition sets it
        options.training_mode = False
    return options
