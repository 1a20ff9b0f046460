"""Report of the trained tensors of a graph, and of the operators that gradients pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import onnx_ir as ir

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.graph.cut import cut_at
from onnxsgd.graph.model import REAL_TYPES
from onnxsgd.graph.nodes import qualified_operator
from onnxsgd.graph.parameter_roles.roles import Role, find_roles
from onnxsgd.graph.reading.batch_statistics import without_statistics
from onnxsgd.graph.reading.head import ScoredGraph
from onnxsgd.graph.reading.trainable import (
    Differentiable,
    GradientFlow,
    Trainable,
    describe_node,
    initializers_in_use,
    select_trainable,
    trace_gradients,
)

__all__ = ["OperatorRow", "TensorRow", "TrainingReport", "describe"]


@dataclass(frozen=True)
class TensorRow:
    """One initializer of real numbers.

    Attributes
    ----------
    name : str
        Its name.
    shape : tuple of int
        Its shape.
    trained : bool
        True if it is trained.
    reason : str
        Its role; of a parameter that is not trained also the reason.
    """

    name: str
    shape: tuple[int, ...]
    trained: bool
    reason: str


@dataclass(frozen=True)
class OperatorRow:
    """One operator between the trained tensors and the score.

    Attributes
    ----------
    operator : str
        Its name, with a prefix for a domain other than the standard one.
    count : int
        The number of its nodes.
    engines : tuple of str
        The engines that differentiate all of them.
    reason : str
        The reason if there is no such engine.
    """

    operator: str
    count: int
    engines: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class TrainingReport:
    """Trained tensors and differentiated operators of a graph, printed as two tables.

    Attributes
    ----------
    score : str
        The tensor of raw predictions.
    link : str
        The link from scores to probabilities, see :class:`onnxsgd.graph.reading.head.ScoredGraph`.
    tensors : tuple of TensorRow
        The initializers of real numbers, in the order in which nodes read them.
    operators : tuple of OperatorRow
        The operators from the first trained tensor to the score.
    problem : str or None
        The reason if nothing can be trained.
    """

    score: str
    link: str
    tensors: tuple[TensorRow, ...]
    operators: tuple[OperatorRow, ...]
    problem: str | None

    @property
    def trained(self) -> list[str]:
        """The names of the trained tensors."""
        return [row.name for row in self.tensors if row.trained]

    def __str__(self) -> str:
        return "\n\n".join([self._summary(), *(_as_text(table) for table in self._tables())])

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._summary())}</p>" + "".join(_as_html(table) for table in self._tables())

    def _summary(self) -> str:
        sizes = {row.trained: 0 for row in self.tensors} | {True: 0}
        for row in self.tensors:
            sizes[row.trained] += int(np.prod(row.shape))
        trained, total = len(self.trained), len(self.tensors)
        line = (
            f"score {self.score!r}, link {self.link}: {trained} of {total} tensors are trained, "
            f"{sizes[True]} of {sum(sizes.values())} numbers"
        )
        return line if self.problem is None else f"{line}\n{self.problem}"

    def _tables(self) -> list[list[Sequence[str]]]:
        tensors: list[Sequence[str]] = [("tensor", "shape", "trained", "role")]
        numbers = [row for row in self.tensors if not row.shape and not row.trained]
        for row in self.tensors:
            if row not in numbers:
                shape = " x ".join(map(str, row.shape)) or "scalar"
                tensors.append((row.name, shape, "yes" if row.trained else "no", row.reason))
        if numbers:
            tensors.append((f"and {len(numbers)} more", "scalar", "no", "constants in formulas"))
        operators: list[Sequence[str]] = [("operator", "count", "gradient")]
        for entry in self.operators:
            gradient = ", ".join(entry.engines) or f"none: {entry.reason}"
            operators.append((entry.operator, str(entry.count), gradient))
        return [table for table in (tensors, operators) if len(table) > 1]


#: The role of a running statistic that training updates.
_STATISTIC = Role(None, "running statistic, updated without a gradient")


def describe(
    scored: ScoredGraph,
    trainable: Trainable,
    engines: Mapping[str, Differentiable],
    reference: Differentiable,
    chosen: Differentiable,
    statistics: Collection[str] = (),
) -> TrainingReport:
    """Describe the effect of training on a graph.

    Parameters
    ----------
    scored : ScoredGraph
        The graph.
    trainable : None, str, sequence of str, or callable
        As in :func:`onnxsgd.graph.reading.trainable.select_trainable`.
    engines : mapping of str to callable
        For each engine, a function that returns the reason why it cannot differentiate a node, or None.
    reference, chosen : callable
        The same for the engine that decides which tensors are trained, and for the one that would train.
    statistics : collection of str
        The running statistics that training updates without a gradient.
    """
    model = cut_at(scored.model, scored.score)
    flow = trace_gradients(model, scored.score, chosen)
    problem = None
    try:
        selected = select_trainable(model, scored.score, trainable, reference, chosen)
        names = without_statistics(selected, trainable, statistics)
    except NotTrainableError as error:
        names, statistics, problem = (), (), str(error)
    roles = find_roles(model.graph)
    values = [value for value in initializers_in_use(model.graph) if value.dtype in REAL_TYPES]
    trained = {*names, *statistics}
    return TrainingReport(
        score=scored.score,
        link=scored.link,
        tensors=tuple(
            _describe_tensor(value, _STATISTIC if value.name in statistics else roles[value], trained, flow)
            for value in values
        ),
        operators=_describe_operators(_between(model, names, flow), engines),
        problem=problem,
    )


def _describe_tensor(value: ir.Value, role: Role, names: Collection[str], flow: GradientFlow) -> TensorRow:
    reason = role.reason
    if role.kind is not None and value not in flow.obstacles:
        reason += ", without a path to the score"
    elif role.kind is not None and (node := flow.obstacles[value]) is not None:
        reason += f", before {describe_node(node)}"
    shape = () if value.const_value is None else value.const_value.numpy().shape
    return TensorRow(str(value.name), shape, value.name in names, reason)


def _between(model: ir.Model, names: Sequence[str], flow: GradientFlow) -> list[ir.Node]:
    """Return the nodes from the tensors `names` to the score; without names, all nodes before the score."""
    if not names:
        return list(flow.nodes)
    reached = {model.graph.initializers[name] for name in names}
    nodes = []
    for node in flow.nodes:
        if any(value in reached for value in node.inputs):
            nodes.append(node)
            reached.update(node.outputs)
    return nodes


def _describe_operators(
    nodes: Sequence[ir.Node], engines: Mapping[str, Differentiable]
) -> tuple[OperatorRow, ...]:
    kinds: dict[str, list[ir.Node]] = {}
    for node in nodes:
        kinds.setdefault(qualified_operator(node), []).append(node)
    rows = []
    for operator, members in kinds.items():
        against = {
            name: next((reason for node in members if (reason := refuses(node))), None)
            for name, refuses in engines.items()
        }
        able = tuple(name for name, reason in against.items() if reason is None)
        reason = "" if able else "; ".join(str(reason).rstrip(".") for reason in against.values())
        rows.append(OperatorRow(operator, len(members), able, reason))
    return tuple(rows)


def _as_text(table: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return "\n".join(line.rstrip() for line in lines)


def _as_html(table: Sequence[Sequence[str]]) -> str:
    head, *body = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in table]
    return f"<table><thead><tr>{head}</tr></thead>" + "".join(f"<tr>{row}</tr>" for row in body) + "</table>"
