"""The engines that differentiate, and the choice between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.exceptions import NotTrainableError, ParameterError
from onnxsgd.gradient import native, orttraining

__all__ = ["ENGINES", "Engine", "differentiable", "resolve_engine"]

#: The first choice, then the second.
_NATIVE, _PORTABLE = "onnxruntime-training", "portable"


@dataclass(frozen=True)
class Engine:
    """One way to differentiate.

    Attributes
    ----------
    differentiate : callable
        Takes a model whose weights are inputs, the outputs to differentiate and the inputs to
        differentiate for, by name. Returns a model of its own that has one input ``<output>_grad`` for each
        of these outputs behind its inputs, and returns these outputs, then one gradient for each of the
        inputs.
    reason_against : callable
        Takes a node; returns why no gradient passes it, or None if one does.
    """

    differentiate: Callable[[ir.Model, Sequence[str], Sequence[str]], ir.Model]
    reason_against: Callable[[ir.Node], str | None]


def _portable_differentiate(model: ir.Model, outputs: Sequence[str], wrt: Sequence[str]) -> ir.Model:
    from onnxsgd.gradient import portable

    return portable.differentiate(model, outputs, wrt)


def _portable_reason(node: ir.Node) -> str | None:
    from onnxsgd.gradient import portable

    return portable.differentiable(node)


#: Every engine by name, in the order in which "auto" prefers them.
ENGINES: Mapping[str, Engine] = {
    _NATIVE: Engine(native.differentiate, orttraining.differentiable),
    _PORTABLE: Engine(_portable_differentiate, _portable_reason),
}


def resolve_engine(engine: str, model: ir.Model, weights: Sequence[str], inputs: Sequence[str] = ()) -> str:
    """Return the name of the engine to use.

    Parameters
    ----------
    engine : {"auto", "onnxruntime-training", "portable"}
        "auto" is onnxruntime-training where it is installed and can differentiate `model`, and the portable
        engine otherwise.
    model : ir.Model
        The graph to differentiate, all of its outputs.
    weights, inputs : sequence of str
        What to differentiate for.

    Raises
    ------
    ParameterError
        If there is no engine of that name.
    MissingRuntimeError
        If onnxruntime-training is asked for and is not installed.
    """
    if engine != "auto":
        if engine == _NATIVE:
            orttraining.bindings()
        _check_name(engine)
        return engine
    if not orttraining.is_available():
        return _PORTABLE
    try:
        orttraining.check_differentiable(model, weights, inputs)
    except NotTrainableError:
        return _PORTABLE
    return _NATIVE


def differentiable(engine: str) -> Callable[[ir.Node], str | None]:
    """Return the function that tells why an engine cannot differentiate a node.

    Parameters
    ----------
    engine : {"auto", "onnxruntime-training", "portable"}
        With "auto", a reason is one against every engine that could be used.
    """
    if engine != "auto":
        _check_name(engine)
        return ENGINES[engine].reason_against

    def reason_against(node: ir.Node) -> str | None:
        if orttraining.is_available() and ENGINES[_NATIVE].reason_against(node) is None:
            return None
        return ENGINES[_PORTABLE].reason_against(node)

    return reason_against


def _check_name(engine: str) -> None:
    if engine not in ENGINES:
        raise ParameterError(f"engine={engine!r} is not accepted: it must be one of {['auto', *ENGINES]}.")
