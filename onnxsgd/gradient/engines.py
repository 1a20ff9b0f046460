"""The engines that differentiate, and the choice between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.exceptions import NotTrainableError, ParameterError
from onnxsgd.gradient.native import builder as orttraining
from onnxsgd.gradient.native import coverage as registered
from onnxsgd.gradient.native import native_engine as native

__all__ = ["ENGINES", "NATIVE", "PORTABLE", "Engine", "check_opset", "differentiable", "resolve_engine"]

#: The names of the engines.
NATIVE, PORTABLE = "onnxruntime-training", "portable"


@dataclass(frozen=True)
class Engine:
    """One way to differentiate.

    Attributes
    ----------
    differentiate : callable
        Takes a model whose weights are inputs, and the names of the outputs to differentiate and of the
        inputs to differentiate with respect to. Returns a new model, which has one more input
        ``<output>_grad`` for each of these outputs, and returns these outputs, then the gradients.
    reason_against : callable
        Takes a node; returns why no gradient passes it, or None if one does.
    passes_gradient : callable
        Takes a node and the index of an input, None for the values that its subgraphs capture; returns
        whether a gradient flows there. True for a node without a gradient: on a path, it must be refused.
    oldest_opset, newest_opset : int, int or None
        The versions of the standard operators that it takes; None: any.
    """

    differentiate: Callable[[ir.Model, Sequence[str], Sequence[str]], ir.Model]
    reason_against: Callable[[ir.Node], str | None]
    passes_gradient: Callable[[ir.Node, int | None], bool]
    oldest_opset: int
    newest_opset: int | None


def _portable_differentiate(model: ir.Model, outputs: Sequence[str], wrt: Sequence[str]) -> ir.Model:
    from onnxsgd.gradient import portable

    return portable.differentiate(model, outputs, wrt)


def _portable_reason(node: ir.Node) -> str | None:
    from onnxsgd.gradient import portable

    return portable.differentiable(node)


def _portable_passes(node: ir.Node, index: int | None) -> bool:
    from onnxsgd.gradient import portable

    return portable.passes_gradient(node, index)


#: Every engine by name.
ENGINES: Mapping[str, Engine] = {
    NATIVE: Engine(
        native.differentiate,
        orttraining.differentiable,
        registered.passes_gradient,
        orttraining.OLDEST_OPSET,
        orttraining.NEWEST_OPSET,
    ),
    PORTABLE: Engine(_portable_differentiate, _portable_reason, _portable_passes, 13, None),
}


def check_opset(model: ir.Model, engine: str) -> None:
    """Refuse a model whose standard operators are of a version that `engine` does not take.

    Raises
    ------
    NotTrainableError
        The message names the opset to convert the graph to.
    """
    chosen, opset = ENGINES[engine], model.graph.opset_imports.get("")
    oldest, newest = chosen.oldest_opset, chosen.newest_opset
    if opset is not None and opset >= oldest and (newest is None or opset <= newest):
        return
    legal = f"opset {oldest} or later" if newest is None else f"opsets {oldest} to {newest}"
    raise NotTrainableError(
        f"The graph uses opset {opset}: engine={engine!r} takes gradients of graphs of {legal}. Convert it "
        f"with onnx.version_converter.convert_version(model, {newest or oldest})."
    )


def resolve_engine(engine: str) -> str:
    """Return the name of the engine to use; "auto" is the portable one.

    Parameters
    ----------
    engine : {"auto", "onnxruntime-training", "portable"}
        The parameter of an estimator or of a function.

    Raises
    ------
    ParameterError
        If there is no engine of that name.
    MissingRuntimeError
        If onnxruntime-training is asked for and is not installed.
    """
    if engine == "auto":
        return PORTABLE
    if engine == NATIVE:
        orttraining.bindings()
    _check_name(engine)
    return engine


def differentiable(engine: str) -> Callable[[ir.Node], str | None]:
    """Return the function that returns why an engine cannot differentiate a node, or None if it can.

    Parameters
    ----------
    engine : {"auto", "onnxruntime-training", "portable"}
        The parameter of an estimator or of a function.
    """
    _check_name(engine)
    return ENGINES[PORTABLE if engine == "auto" else engine].reason_against


def _check_name(engine: str) -> None:
    if engine != "auto" and engine not in ENGINES:
        raise ParameterError(f"engine={engine!r} is not accepted: it must be one of {['auto', *ENGINES]}.")
