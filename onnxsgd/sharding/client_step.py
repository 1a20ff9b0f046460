"""The update on the client, which follows a gradient that tasks have computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxsgd.engine.step.batches import Batches, Standard
from onnxsgd.engine.step.buffers import Buffers
from onnxsgd.engine.step.divided_step import UpdateRunner, build_update_graph
from onnxsgd.engine.step.single_step import make_buffers
from onnxsgd.engine.step.step_spec import StepSpec
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.runtime.cache import cached
from onnxsgd.runtime.sessions import make_session
from onnxsgd.training.coordinates import Coordinates, StandardisedBuffers
from onnxsgd.training.program import Program
from onnxsgd.training.sparse_runners import intercept_factors
from onnxsgd.training.state import FitState, rate_scales

__all__ = ["ClientStep", "client_step"]


@dataclass(frozen=True)
class ClientStep:
    """The step of the updates of a fit.

    Attributes
    ----------
    spec : StepSpec
        Its specification.
    coordinates : Coordinates or None
        The coordinates of the updates, if they are others than those of the data.
    weights : dict of ndarray
        Arrays like the weights.
    opset : int
        The opset of the graph.
    is_loaded : bool
        Whether the buffers begin with the state; fits that find the rate choose the first weights.
    """

    spec: StepSpec
    coordinates: Coordinates | None
    weights: Mapping[str, np.ndarray]
    opset: int
    is_loaded: bool

    def buffers(self) -> Buffers:
        """Return buffers for weights and their states."""
        return make_buffers(self.spec, self.weights)

    def update_runner(self) -> UpdateRunner:
        """Return the runner of updates that follow a gradient, whose sessions fits share."""
        shapes = tuple((name, array.shape, array.dtype.str) for name, array in self.weights.items())

        def build() -> Any:
            graph = build_update_graph(self.spec, self.weights, self.opset)
            return make_session(graph.model, 1), graph

        nbytes = sum(array.nbytes for array in self.weights.values())
        session, graph = cached(("update", self.spec.key, shapes, self.opset), build, nbytes)
        return UpdateRunner(session, graph, self.buffers())

    def loaded(self, held: Any, state: FitState) -> Any:
        """Return buffers as the training loop takes them, with the state if they begin with it."""
        buffers = held if self.coordinates is None else StandardisedBuffers(held, self.coordinates)
        if self.is_loaded:
            buffers.load(state.tensors)
        return buffers


def client_step(
    program: Program, rows: Batches, standards: Mapping[str, Standard], state: FitState
) -> ClientStep:
    """Return the step of a fit.

    Parameters
    ----------
    program : Program
        The graph, and the settings of the fit.
    rows : Batches
        Rows of the data.
    standards : dict of Standard
        The standardisation of features.
    state : FitState
        The state.
    """
    plan, recipe = program.plan, program.plan.recipe
    layers = program.first_layers if standards else ()
    coordinates = Coordinates(layers, standards, rate_scales(plan, state, layers))
    constants = coordinates.constants(state.tensors)
    shapes = tuple((name, tuple(array.shape[1:])) for name, array in rows.features.items())
    factors = intercept_factors(plan) if rows.is_sparse else ()
    n_rows = plan.batch_size * plan.n_accumulated
    optimizer = plan.optimizer_of(n_rows, is_linear=program.is_linear, n_sparse_columns=rows.n_sparse_columns)
    spec = replace(plan.step_spec, row_shapes=shapes, gradient_factors=factors, optimizer=optimizer)
    return ClientStep(
        coordinates.spec(spec, constants) if constants else spec,
        coordinates if constants else None,
        {name: array for (name, kind), array in state.tensors.items() if kind == WEIGHT},
        program.parts.split.tail.graph.opset_imports[""],
        not recipe.is_auto or recipe.in_parts,
    )
