"""A training step as two graphs: the gradient of some rows, and the update that follows a gradient.

Rows of one batch may lie in several places. Each place computes the gradient of its rows; the update takes
the sum of these gradients, and is then that of the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from onnxsgd._library_errors import run_error
from onnxsgd.engine.step.buffers import Buffers, Tensors
from onnxsgd.engine.step.fuse import fuse
from onnxsgd.engine.step.step_spec import StepSpec
from onnxsgd.engine.step.training_step import add_updates
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.model import to_proto
from onnxsgd.optimizers import Optimizer
from onnxsgd.runtime.stages import stage

if TYPE_CHECKING:
    from onnxsgd._builder import Builder

__all__ = ["GRADIENT", "GradientOfRows", "UpdateGraph", "UpdateRunner", "build_update_graph", "of_rows"]

#: The kind of the tensor that holds the gradient of a weight.
GRADIENT = "gradient"


@dataclass(frozen=True)
class GradientOfRows(Optimizer):
    """The place of the optimizer in a step that leaves the weights, and adds up their gradients."""

    @property
    def slots(self) -> tuple[str, ...]:
        """The sum of the gradients so far."""
        return (GRADIENT,)

    def scalars(self, t: np.ndarray, eta: np.ndarray, l2: float) -> dict[str, ArrayLike]:
        """Return no numbers: a gradient has none of its own."""
        return {}

    def update(
        self,
        op: Builder,
        weight: ir.Value,
        gradient: ir.Value,
        slots: tuple[ir.Value, ...],
        scalars: Mapping[str, ir.Value],
        penalised: bool,
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Build the same weight, and the sum of the gradients."""
        return op.Identity(weight), (op.Add(slots[0], gradient),)


def of_rows(spec: StepSpec, n_rows: int) -> StepSpec:
    """Return the specification of the gradient of so many rows of a batch of a step.

    Raises
    ------
    UnsupportedError
        If the step normalises by statistics of the batch, which its rows alone do not have.
    """
    if spec.statistics:
        raise UnsupportedError(
            "batch_norm='train' normalises by the statistics of a batch, and the rows of one lie in several "
            "shards here: freeze them with batch_norm='frozen', or give sync_every a number above 1, for "
            "batches within a shard."
        )
    return replace(
        spec, optimizer=GradientOfRows(), penalised=frozenset(), l1=False, l2=False, average=False,
        batch_size=n_rows, output_weights=frozenset(), rate_scales=(), penalty_scales=(), preconditioned=(),
        gradient_factors=(), limits=(), groups=(), from_start=frozenset(), norm_axes=(), accumulates=False,
    )  # fmt: skip


@dataclass(frozen=True)
class UpdateGraph:
    """The update that follows a gradient.

    Attributes
    ----------
    model : bytes
        The graph, serialized.
    gradients : dict of str
        The input of the gradient of each weight.
    scalars : tuple of str
        The inputs of the numbers of an update, in the order of those of the step.
    tensors : dict
        (input name, output name) of each weight, under (weight, "weight"), and of its states.
    """

    model: bytes
    gradients: Mapping[str, str]
    scalars: tuple[str, ...]
    tensors: Mapping[tuple[str, str], tuple[str, str]]


@stage("compile").of
def build_update_graph(spec: StepSpec, weights: Mapping[str, np.ndarray], opset: int) -> UpdateGraph:
    """Return the update of weights like the given ones by a gradient."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="update")

    def add(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> ir.Value:
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(dtype)), shape=ir.Shape(shape))
        graph.inputs.append(value)
        return value

    gradients = {}
    for number, name in enumerate(spec.weights):
        like = weights[name]
        add(name, like.dtype, like.shape)
        gradients[name] = add(f"gradient {number}", like.dtype, like.shape)
    dtype = weights[spec.weights[0]].dtype
    scalars = {name: add(f"number {name}", dtype, ()) for name in spec.scalars}
    tensors, updated = add_updates(graph, gradients, scalars, spec)
    graph.outputs.extend(updated)
    graph.sort()
    model = ir.Model(graph, ir_version=10, producer_name="onnxsgd")
    fuse(model)
    return UpdateGraph(
        model=to_proto(model).SerializeToString(),
        gradients={name: str(value.name) for name, value in gradients.items()},
        scalars=tuple(str(value.name) for value in scalars.values()),
        tensors=tensors,
    )


class UpdateRunner:
    """The update that follows a gradient, on buffers.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        The session of ``graph.model``.
    graph : UpdateGraph
        The names of its inputs and outputs.
    buffers : Buffers
        Weights and their states.
    """

    def __init__(self, session: Any, graph: UpdateGraph, buffers: Buffers) -> None:
        self._session, self._graph, self.buffers = session, graph, buffers
        self._read = {value.name for value in session.get_inputs()}

    def update(self, gradients: Tensors, numbers: np.ndarray) -> None:
        """Make the update of a gradient, under (weight, "gradient"), with these numbers."""
        graph, buffers = self._graph, self.buffers
        present, following = buffers.sets[buffers.current], buffers.following
        feeds = {graph.tensors[key][0]: array for key, array in present.items()}
        for name, input_name in graph.gradients.items():
            feeds[input_name] = gradients[name, GRADIENT].reshape(present[name, WEIGHT].shape)
        dtype = next(iter(present.values())).dtype
        feeds |= {name: np.array(x, dtype) for name, x in zip(graph.scalars, numbers, strict=True)}
        keys = list(graph.tensors)
        try:
            found = self._session.run(
                [graph.tensors[key][1] for key in keys],
                {name: array for name, array in feeds.items() if name in self._read},
            )
        except Exception as error:
            raise run_error(error) from error
        for key, array in zip(keys, found, strict=True):
            following[key][...] = array
        buffers.flip()
