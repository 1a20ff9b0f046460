"""Facts about BatchNormalization."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, required, standard_operator

__all__ = ["STATISTICS", "batch_normalizations", "momentum_of", "running_variances"]

#: The inputs of a BatchNormalization that are running statistics, with the names that torch gives them.
STATISTICS = {3: "running_mean", 4: "running_var"}


def batch_normalizations(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the BatchNormalization nodes of `graph`, without those in subgraphs."""
    return (node for node in graph if standard_operator(node) == "BatchNormalization")


def running_variances(graph: ir.Graph) -> list[str]:
    """Return the names of the initializers that are running variances."""
    values = [required(node, 4) for node in batch_normalizations(graph)]
    return [str(value.name) for value in values if value.is_initializer()]


def momentum_of(node: ir.Node) -> float:
    """Return the share of a running statistic that an update keeps: the decimal number of the exporter.

    An attribute is float32, and 0.9 in float32 is not 0.9 in float64.
    """
    return float(f"{attribute(node, 'momentum', 0.9):.7g}")
