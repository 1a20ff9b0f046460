"""Inputs and outputs of a gradient graph."""

from __future__ import annotations

from enum import IntFlag

from onnxsgd.exceptions import ParameterError, ParameterTypeError

__all__ = ["DerivativeOptions", "check_options"]


class DerivativeOptions(IntFlag):
    """Inputs and outputs of the graph that :func:`~onnxsgd.onnx_derivative` returns.

    Attributes
    ----------
    Zero
        It takes the inputs of the graph, the trained weights, and one gradient for each output of real
        numbers. It returns the gradients of the inputs and of the weights.
    KeepYieldOp
        It takes the inputs and the trained weights. An operator ``com.microsoft.YieldOp`` in the middle takes
        the outputs and returns their gradients: the form that ``TrainingAgent`` runs. Excludes every other.
    KeepOutputs
        It also returns the original outputs, after the gradients.
    FillGrad
        It does not take the gradients of the outputs: they are 1. Only with ``KeepOutputs``.
    Loss
        The graph holds a loss, as :func:`~onnxsgd.add_loss_output` makes it. It returns the loss, then the
        gradients of the loss. Excludes every other.
    """

    Zero = 0
    KeepYieldOp = 1
    KeepOutputs = 2
    FillGrad = 4
    Loss = 5


#: The legal combinations.
_LEGAL = (
    DerivativeOptions.Zero,
    DerivativeOptions.KeepYieldOp,
    DerivativeOptions.KeepOutputs,
    DerivativeOptions.KeepOutputs | DerivativeOptions.FillGrad,
    DerivativeOptions.Loss,
)


def check_options(options: DerivativeOptions) -> None:
    """Refuse an illegal combination.

    Raises
    ------
    ParameterTypeError
        If `options` is not a :class:`DerivativeOptions`.
    ParameterError
        If it is none of the legal combinations.
    """
    if not isinstance(options, DerivativeOptions):
        raise ParameterTypeError(f"options must be a DerivativeOptions, not {type(options).__name__}.")
    if options == DerivativeOptions.FillGrad:
        raise ParameterError("FillGrad needs KeepOutputs: use DerivativeOptions.KeepOutputs | FillGrad.")
    if options not in _LEGAL:
        raise ParameterError(
            f"options={options!r} is not a legal combination: it must be Zero, KeepYieldOp, KeepOutputs, "
            f"KeepOutputs | FillGrad or Loss; KeepYieldOp and Loss exclude every other flag."
        )
