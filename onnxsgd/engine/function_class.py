"""The class that runs the graphs of one :class:`~onnxsgd.OrtGradientForwardBackward`."""

from __future__ import annotations

from logging import Logger
from typing import Any

import onnx

from onnxsgd.engine.devices import make_device
from onnxsgd.engine.forward_backward_function import OrtGradientForwardBackwardFunction
from onnxsgd.engine.providers import Placement
from onnxsgd.engine.training_graphs import TrainingGraphs
from onnxsgd.exceptions import EngineError
from onnxsgd.gradient.orttraining import bindings

__all__ = ["make_function_class"]


def make_function_class(
    name: str,
    graphs: TrainingGraphs,
    placement: Placement,
    sess_options: Any,
    run_options: Any,
    logger: Logger | None,
    debug: bool,
) -> type[OrtGradientForwardBackwardFunction]:
    """Return a class whose instances run `graphs`; they share its sessions.

    Parameters
    ----------
    name : str
        The name of the class.
    graphs : TrainingGraphs
        What it runs.
    placement : Placement
        Where.
    sess_options, run_options : SessionOptions or None, RunOptions or None
        Options of both sessions, and of forward passes without training.
    logger : Logger or None
        What its instances report to.
    debug : bool
        Whether its instances check where tensors are.

    Raises
    ------
    EngineError
        If the runtime cannot run the graphs, or not there.
    """
    native = bindings()
    names = [value.name for value in graphs.training.graph.input]
    device = make_device(placement.device, placement.index)
    session = _make_session(graphs.training, sess_options, placement)
    outputs_on, fetches_on = [device] * len(graphs.outputs), [device] * len(graphs.fetches)
    attributes = {
        "__doc__": f"Forward and backward pass from {graphs.inputs} to {graphs.outputs}.",
        "__module__": OrtGradientForwardBackwardFunction.__module__,
        "_run_options": run_options if run_options is not None else _evaluation_options(native),
        "_sess": session,
        "_sess_eval": _make_session(graphs.evaluation, sess_options, placement),
        "_training_agent": native.TrainingAgent(
            session._sess, names, outputs_on, graphs.fetches, fetches_on, placement.index
        ),
        "_cache": native.OrtValueCache(),
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
        "_optimized_pre_grad_model": graphs.evaluation,
        "_devices": [device] * len(names),
        "_onx_inp": names,
        "_onx_out": graphs.fetches,
        "_input_specs": graphs.input_specs,
        "_grad_specs": graphs.gradient_specs,
        "_grad_positions": graphs.gradient_positions,
        "_grad_devices": [device] * len(graphs.gradient_positions),
    }
    return type(name, (OrtGradientForwardBackwardFunction,), attributes)


def _make_session(model: onnx.ModelProto, options: Any, placement: Placement) -> Any:
    """Return a session; refuse one that fell back to another provider."""
    import onnxruntime

    if options is None:
        options = onnxruntime.SessionOptions()
        # Errors only: the optimiser warns about each constant it cannot fold.
        options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(),
            options,
            providers=placement.providers,
            provider_options=placement.options,
        )
    except Exception as error:
        raise EngineError(f"onnxruntime cannot run the graph: {error}") from error
    used = session.get_providers()
    if used[0] != placement.providers[0]:
        raise EngineError(f"onnxruntime could not start {placement.providers[0]!r} and fell back to {used}.")
    return session


def _evaluation_options(native: Any) -> Any:
    options = native.RunOptions()
    # the training edition sets it
    options.training_mode = False
    return options
