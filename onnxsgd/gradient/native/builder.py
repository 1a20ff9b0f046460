"""The gradient builder of onnxruntime-training 1.19.2.

This is the only module that touches the private bindings of the training build. It does not need torch,
unlike ``import onnxruntime.training``.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
import onnx_ir as ir

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import EngineError, GraphError, MissingRuntimeError, NotTrainableError
from onnxsgd.gradient.native.coverage import blocks_gradient, why_not
from onnxsgd.gradient.native.lowering import is_lowered
from onnxsgd.gradient.native.proof import unproven
from onnxsgd.graph.gradient_path import Path
from onnxsgd.runtime.editions import install_command, load_runtime

__all__ = [
    "NEWEST_OPSET",
    "OLDEST_OPSET",
    "NativeGradient",
    "bindings",
    "build_gradient_model",
    "check_path",
    "differentiable",
    "is_available",
]

#: The versions of the standard operators that the gradient builder is trusted with.
OLDEST_OPSET, NEWEST_OPSET = 13, 21


@cache
def bindings() -> Any:
    """Return the module that holds the training bindings.

    Raises
    ------
    MissingRuntimeError
        If there is no onnxruntime, or one that cannot train.
    """
    runtime = load_runtime()
    module = importlib.import_module("onnxruntime.capi._pybind_state")
    if not hasattr(module, "OrtModuleGraphBuilder"):
        raise MissingRuntimeError(
            f"The installed onnxruntime {runtime.__version__} cannot build gradients. Use engine='portable', "
            f"or the training edition of onnxruntime, for Python < 3.13: {install_command('training')}."
        )
    return module


def is_available() -> bool:
    """Return whether the training edition of onnxruntime is installed."""
    try:
        bindings()
    except MissingRuntimeError:
        return False
    return True


def differentiable(node: ir.Node) -> str | None:
    """Return why no gradient passes `node` with this engine; None if one does, or is zero.

    Parameters
    ----------
    node : ir.Node
        A node of any graph, the types and shapes of its inputs as far as they are known.

    Returns
    -------
    str or None
        A phrase that starts with the name of the operator, such as "Loop has no gradient in
        onnxruntime-training".
    """
    return None if is_lowered(node) else why_not(node)


def check_path(graph: ir.Graph, path: Path, wrt: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> None:
    """Refuse a path that the gradient builder cannot follow.

    Raises
    ------
    NotTrainableError
        If a node on the path has no gradient. The message names the operator, the node and its output, and
        the remedies.
    """
    for node in path.nodes:
        reason = why_not(node) or unproven(node)
        if reason is not None:
            raise NotTrainableError(
                f"{reason} ({_place(node)}). Freeze every weight before it, cut the graph at an output "
                f"before it, or use engine='portable'."
            )
    differentiated = path.values.union(wrt)
    for node in graph:
        if path.upstream.isdisjoint(node.outputs):
            continue
        for index, value in enumerate(node.inputs):
            if value is not None and value in differentiated and blocks_gradient(node, index):
                raise NotTrainableError(
                    f"{node.op_type} has no gradient for its input {index}, {value.name!r}, in "
                    f"onnxruntime-training ({_place(node)}). Freeze the weights that {value.name!r} depends "
                    f"on, or use engine='portable'."
                )
    for value in wrt:
        if value not in path.values:
            readers = sorted({str(node.op_type) for node in value.consumers()}) or "nothing"
            raise NotTrainableError(
                f"No gradient can reach {value.name!r}: it is read by {readers}, and no differentiable path "
                f"leads from there to an output among {[output.name for output in outputs]}. Do not train it."
            )


def _place(node: ir.Node) -> str:
    name = f"node {node.name!r}, " if node.name else ""
    return f"{name}output {node.outputs[0].name!r}"


@dataclass(frozen=True)
class NativeGradient:
    """Result of the gradient builder.

    Attributes
    ----------
    model : onnx.ModelProto
        Forward and backward pass. An operator ``YieldOp`` separates them: it takes the outputs and returns
        their gradients.
    forward : onnx.ModelProto
        The forward pass the gradient was built from.
    info : object
        The names of inputs, outputs and gradients, as the builder reports them.
    builder : object
        The builder.
    """

    model: onnx.ModelProto
    forward: onnx.ModelProto
    info: Any
    builder: Any


def build_gradient_model(
    model: onnx.ModelProto,
    weights: Sequence[str],
    inputs: Sequence[str],
    memory_efficient: bool = False,
) -> NativeGradient:
    """Call the gradient builder.

    Parameters
    ----------
    model : onnx.ModelProto
        A graph of operators that :func:`check_path` accepts and no others: the builder ends the interpreter
        on some of them. All real initializers are in `weights`: a frozen scale of a normalisation outside of
        it fails to build.
    weights : sequence of str
        Names of the trained weights: initializers or inputs.
    inputs : sequence of str
        Names of the inputs to differentiate with respect to.
    memory_efficient : bool
        Whether gradients are computed from the results of operators rather than from their inputs, where
        the builder can.

    Raises
    ------
    GraphError
        If the graph is not valid.
    EngineError
        If the builder fails.
    MissingRuntimeError
        If the runtime cannot train.
    """
    native = bindings()
    config = native.OrtModuleGraphBuilderConfiguration()
    # These initializers become inputs; the others keep their values, so that shapes are known while the
    # gradient is built.
    config.initializer_names = list(weights)
    config.initializer_names_to_train = list(weights)
    config.input_names_require_grad = list(inputs)
    config.build_gradient_graph = True
    config.use_memory_efficient_gradient = memory_efficient
    builder = native.OrtModuleGraphBuilder()
    try:
        builder.initialize(model.SerializeToString(), config)
    except Exception as error:
        raise GraphError(f"onnxruntime refuses the graph: {reason(error)}.") from error
    try:
        # Reading a result after a failed build would end the interpreter.
        builder.build(native.TrainingGraphTransformerConfiguration())
    except Exception as error:
        raise EngineError(f"The gradient builder of onnxruntime-training failed: {reason(error)}.") from error
    return NativeGradient(
        onnx.load_from_string(builder.get_gradient_model()),
        onnx.load_from_string(builder.get_forward_model()),
        builder.get_graph_info(),
        builder,
    )
