"""The graph of the update of some rows of a weight: the optimizer's own formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxsgd.engine.step.fuse import widen_scalars
from onnxsgd.engine.step.update import WEIGHT, build_update
from onnxsgd.graph.append import appending
from onnxsgd.graph.model import to_proto
from onnxsgd.optimizers import DECAY, L1_STRENGTH

if TYPE_CHECKING:
    import numpy as np

    from onnxsgd._builder import Builder
    from onnxsgd.engine.step.step_spec import StepSpec

__all__ = ["GRADIENT", "WAITED", "RowUpdateGraph", "build_row_update"]

#: Inputs of the graph beside the weight, its states and the numbers of an update.
GRADIENT, WAITED = "gradient", "waited"
#: The numbers that apply once for each update that a row has waited, if the optimizer is proximal.
_STRENGTHS = (DECAY, L1_STRENGTH)


@dataclass(frozen=True)
class RowUpdateGraph:
    """The update of some rows of a weight.

    Attributes
    ----------
    model : bytes
        The graph, serialized. Inputs: weight and states under their kinds, ``gradient``, the numbers of an
        update, [1, 1], and for proximal optimizers ``waited`` [rows, 1], the updates since the last one of
        each row, this one included. Outputs: the weight and the states under their kinds with "_new".
    kinds : dict of bool
        The kinds of tensors; True: with a row for each row of the weight.
    numbers : tuple of str
        The names of the numbers.
    has_groups : bool
        Whether the l1 penalty is of the norms of rows.
    """

    model: bytes
    kinds: Mapping[str, bool]
    numbers: tuple[str, ...]
    has_groups: bool = False


def build_row_update(
    spec: StepSpec,
    weight: str,
    shapes: Mapping[str, tuple[int, int]],
    dtype: np.dtype,
    opsets: Mapping[str, int],
) -> RowUpdateGraph:
    """Build the update of rows of `weight`.

    Sums over all rows are those over the given ones, as the gradient of the others is zero; means divide by
    the number of all rows. The angle of a steered rate is that within the given rows.

    Parameters
    ----------
    spec : StepSpec
        The specification of the step.
    weight : str
        The weight.
    shapes : mapping of str to (int, int)
        The shape of the whole weight and of each of its states, by kind. Its rows come first.
    dtype : dtype
        The type of the weight.
    opsets : mapping of str to int
        The opsets of the step.
    """
    graph = ir.Graph([], [], nodes=[], opset_imports=dict(opsets), name="rows")
    type_ = ir.TensorType(ir.DataType.from_numpy(dtype))
    numbers = tuple(spec.numbers_of(weight, dict.fromkeys(spec.scalars)))
    n_rows, has_groups = shapes[WEIGHT][0], weight in dict(spec.norm_axes)
    sizes = dict(shapes) | {GRADIENT: shapes[WEIGHT]} | dict.fromkeys(numbers, (1, 1))
    if spec.optimizer.is_proximal:
        sizes[WAITED] = (n_rows, 1)
    inputs = {name: ir.Value(name=name, type=type_, shape=ir.Shape(shape)) for name, shape in sizes.items()}
    graph.inputs.extend(inputs.values())
    with appending(graph) as op:
        scalars = {name: inputs[name] for name in numbers}
        new_weight, states = build_update(
            op, spec.optimizer, inputs[WEIGHT], inputs[GRADIENT],
            {kind: inputs[kind] for kind in shapes if kind != WEIGHT}, _times_waited(op, scalars, inputs),
            l2=spec.l2 and weight in spec.penalised, norm_axes=(1,) if has_groups else (),
        )  # fmt: skip
        outputs = {WEIGHT: new_weight, **states}
    for node in list(graph):
        widen_scalars(graph, node)
    is_by_row = {kind: shape[0] == n_rows for kind, shape in shapes.items()}
    for kind, value in outputs.items():
        value.name, value.type, value.shape = f"{kind}_new", type_, ir.Shape(shapes[kind])
    graph.outputs.extend(outputs.values())
    _open_rows(graph, n_rows)
    model = ir.Model(graph, ir_version=10, producer_name="onnxsgd")
    return RowUpdateGraph(to_proto(model).SerializeToString(), is_by_row, numbers, has_groups)


def _times_waited(
    op: Builder, scalars: Mapping[str, ir.Value], inputs: Mapping[str, ir.Value]
) -> dict[str, ir.Value]:
    """Return the numbers with strengths of penalties multiplied by the updates that a row has waited."""
    if WAITED not in inputs:
        return dict(scalars)
    waited = {name: op.Mul(scalars[name], inputs[WAITED]) for name in _STRENGTHS if name in scalars}
    return {**scalars, **waited}


def _open_rows(graph: ir.Graph, n_rows: int) -> None:
    """Let the graph take any number of rows."""
    for node in graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None
    for value in (*graph.inputs, *graph.outputs):
        if value.shape is not None and value.shape[0] == n_rows:
            value.shape = ir.Shape(["rows", *value.shape[1:]])
