"""The gradient of a graph as a graph: the function that users call."""

from __future__ import annotations

import os
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from onnxsgd.exceptions import ParameterError
from onnxsgd.gradient.derivative_options import DerivativeOptions, check_options
from onnxsgd.gradient.engines import ENGINES, resolve_engine
from onnxsgd.gradient.joint_graph import forward_backward_model
from onnxsgd.gradient.output_gradients import fill_seeds, find_seeds, yield_seeds
from onnxsgd.gradient.with_respect_to import Sources, select_sources
from onnxsgd.graph.loading.load import check_proto
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import graph_names, to_ir, to_proto, unique_name
from onnxsgd.graph.opsets.versions import bring_into_range

__all__ = ["DerivativeOptions", "forward_backward_model", "onnx_derivative"]


def onnx_derivative(
    onx: onnx.ModelProto,
    weights: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    options: DerivativeOptions = DerivativeOptions.Zero,
    loss: str | None = None,
    label: str | Sequence[str] | None = None,
    path_name: str | os.PathLike[str] | None = None,
    verbose: int = 0,
    engine: str = "auto",
) -> onnx.ModelProto:
    """Return the gradient of a graph as a graph.

    For outputs ``y``, and gradients ``y_grad`` that are fed for them, it computes for each weight or input
    ``x`` ::

        x_grad = sum over the outputs y of  (dy / dx)^T y_grad

    Parameters
    ----------
    onx : onnx.ModelProto
        The graph. It is not changed.
    weights : list of str or None, default=None
        The initializers to differentiate with respect to. None: all of real numbers (float16, float32,
        float64) that a gradient reaches. They become inputs of the result; the others stay.
    inputs : list of str or None, default=None
        The inputs to differentiate with respect to. None: all of real numbers that a gradient reaches. With
        the option ``Loss``, all inputs or initializers to differentiate with respect to, beside `weights`.
    options : DerivativeOptions, default=DerivativeOptions.Zero
        The inputs and outputs of the result.
    loss : str or None, default=None
        With the option ``Loss``, the name of the output that is the loss.
    label : str, list of str or None, default=None
        With the option ``Loss``, the inputs that are not features: no gradient is computed for them.
    path_name : str, path or None, default=None
        The file in which the result is also saved.
    verbose : int, default=0
        Above 0, a summary of the result is printed in one line.
    engine : {"auto", "onnxruntime-training", "portable"}, default="auto"
        The engine that differentiates; "auto" is the portable one, whose result holds standard operators
        only.

    Returns
    -------
    onnx.ModelProto
        It has the metadata, IR version and opsets of `onx`; an IR version outside 4 to 10 or an opset outside
        13 to 21 is converted. The gradient of ``x`` is called ``x_grad``.
        The gradients of the inputs come first, then those of the weights; with the option ``Loss``, the loss
        comes first, then the gradients of the weights, then those of the inputs.

    Raises
    ------
    ParameterError
        If a name is unknown, repeated or not that of real numbers, or options cannot be combined.
    ParameterTypeError
        If an argument is of another type.
    GraphError
        If the model is not valid.
    MissingRuntimeError
        If onnxruntime-training is named and not installed.
    NotTrainableError
        If an operator on a path from the weights or inputs to the outputs has no gradient.
    UnsupportedError
        If the opset of `onx` cannot be converted.

    Examples
    --------
    >>> import onnx
    >>> from onnxsgd import onnx_derivative
    >>> onx = onnx.parser.parse_model('''<ir_version: 9, opset_import: ["" : 18]>
    ... g (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] W = {1, 2}> { Y = MatMul(X, W) }''')
    >>> gradient = onnx_derivative(onx)
    >>> [value.name for value in gradient.graph.input]
    ['X', 'W', 'Y_grad']
    >>> [value.name for value in gradient.graph.output]
    ['X_grad', 'W_grad']
    """
    check_options(options)
    check_proto(onx, "onx")
    engine = resolve_engine(engine)
    model = to_ir(bring_into_range(onx))
    labels = _check_loss(model, options, loss, label)
    lowered = lower_for_training(model)
    if options == DerivativeOptions.Loss:
        lowered.graph.outputs[:] = [value for value in lowered.graph.outputs if value.name == loss]
    passes = ENGINES[engine].passes_gradient
    mixed = options == DerivativeOptions.Loss
    sources = select_sources(model, lowered, weights, inputs, passes, labels, mixed)
    returned = options not in (DerivativeOptions.Zero, DerivativeOptions.KeepYieldOp)
    hidden = {} if returned else _hide_outputs(lowered.graph, sources)
    both = forward_backward_model(lowered, sources.weights, sources.inputs, engine)
    _arrange(both.graph, len(lowered.graph.outputs), sources, options)
    for value in both.graph.inputs:
        value.name = hidden.get(str(value.name), value.name)
    _remove_dead_nodes(both.graph)
    result = to_proto(both)
    if path_name is not None:
        onnx.save(result, os.fspath(path_name))
    if verbose > 0:
        print(_summary(result, sources))
    return result


def _check_loss(
    model: ir.Model, options: DerivativeOptions, loss: str | None, label: str | Sequence[str] | None
) -> list[str]:
    """Check the arguments of the option Loss; return the names of the labels."""
    if options != DerivativeOptions.Loss:
        if loss is not None or label is not None:
            raise ParameterError("loss and label are only for options=DerivativeOptions.Loss.")
        return []
    if loss is None or label is None:
        raise ParameterError(
            "options=DerivativeOptions.Loss needs loss, the name of an output, and label, the name of an "
            "input or several."
        )
    labels = [label] if isinstance(label, str) else list(label)
    outputs = [str(value.name) for value in model.graph.outputs]
    inputs = [str(value.name) for value in model.graph.inputs]
    if loss not in outputs:
        raise ParameterError(f"loss={loss!r} is not an output of the graph: it has {outputs}.")
    for name in labels:
        if name not in inputs:
            raise ParameterError(f"label: {name!r} is not an input of the graph: it has {inputs}.")
    return labels


def _hide_outputs(graph: ir.Graph, sources: Sources) -> dict[str, str]:
    """Rename outputs that occupy the name of a gradient, in place, as in a gradient differentiated again.

    They are not outputs of the result. Returns the required name of each fed gradient by its new name.
    """
    names = graph_names(graph)
    wanted = {f"{name}_grad" for name in (*sources.weights, *sources.inputs)}
    renamed = {}
    for value in graph.outputs:
        if value.name in wanted and value.producer() is not None:
            name = str(value.name)
            value.name = unique_name(f"{name}_output", names)
            renamed[f"{value.name}_grad"] = f"{name}_grad"
    return renamed


def _arrange(graph: ir.Graph, n_outputs: int, sources: Sources, options: DerivativeOptions) -> None:
    """Reduce the inputs and outputs of `graph`, all there can be, to those of `options`, in place."""
    outputs, gradients = list(graph.outputs[:n_outputs]), list(graph.outputs[n_outputs:])
    n_weights = len(sources.weights)
    of_weights, of_inputs = gradients[:n_weights], gradients[n_weights:]
    seeds = find_seeds(graph, outputs)
    if options == DerivativeOptions.Loss:
        graph.outputs[:] = [*outputs, *of_weights, *of_inputs]
        fill_seeds(graph, seeds)
    elif options == DerivativeOptions.KeepYieldOp:
        graph.outputs[:] = [*of_inputs, *of_weights]
        yield_seeds(graph, outputs, seeds)
    elif DerivativeOptions.KeepOutputs in options:
        graph.outputs[:] = [*of_inputs, *of_weights, *outputs]
        if DerivativeOptions.FillGrad in options:
            fill_seeds(graph, seeds)
    else:
        graph.outputs[:] = [*of_inputs, *of_weights]


def _remove_dead_nodes(graph: ir.Graph) -> None:
    """Remove the nodes that no output depends on. Initializers stay, used or not."""
    for node in reversed(graph):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)


def _summary(result: onnx.ModelProto, sources: Sources) -> str:
    outputs = [value.name for value in result.graph.output]
    return (
        f"[onnx_derivative] {len(sources.weights)} weights, {len(sources.inputs)} inputs, "
        f"{len(result.graph.node)} nodes, outputs {outputs}"
    )
