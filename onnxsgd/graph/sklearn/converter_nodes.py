"""Operators of skl2onnx as functions of values and numbers, for converters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import onnx

if TYPE_CHECKING:
    from skl2onnx.algebra.onnx_operator import OnnxOperator
    from skl2onnx.common._container import ModelComponentContainer
    from skl2onnx.common._topology import Operator, Scope

__all__ = ["ConverterNodes"]


class ConverterNodes:
    """The operators that a converter writes: ``w.Add(x, 1)`` is an Add with a float32 constant.

    Parameters
    ----------
    operator : Operator
        The step, as skl2onnx knows it.
    opset : int
        The target version of the graph.
    """

    def __init__(self, operator: Operator, opset: int) -> None:
        self._operator, self._opset = operator, opset

    def __getattr__(self, name: str) -> Callable[..., OnnxOperator]:
        """Return the operator with that name."""
        from skl2onnx.algebra import onnx_ops

        def node(*values: object, **attributes: object) -> OnnxOperator:
            operands = [np.array([v], np.float32) if isinstance(v, int | float) else v for v in values]
            return getattr(onnx_ops, f"Onnx{name}")(*operands, op_version=self._opset, **attributes)

        return node

    def features(self) -> OnnxOperator:
        """Return the inputs of the step as one table of real numbers."""
        inputs = [self.Cast(variable, to=onnx.TensorProto.FLOAT) for variable in self._operator.inputs]
        return inputs[0] if len(inputs) == 1 else self.Concat(*inputs, axis=1)

    def finish(self, result: OnnxOperator, scope: Scope, container: ModelComponentContainer) -> None:
        """Add the nodes of a result, the output of the step."""
        name = self._operator.outputs[0].full_name
        self.Identity(result, output_names=[name]).add_to(scope, container)
