"""The inference form of a graph exported for training: a function of its inputs alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.model import graph_names, nodes_within, unique_name
from onnxsgd.graph.nodes import attribute, constant, graph_of, maker, standard_operator
from onnxsgd.graph.operators import Fact, having
from onnxsgd.graph.writing import computed, replace_output

__all__ = ["RANDOM", "inference_form"]

#: Operators whose result is drawn anew at each run.
RANDOM = having(Fact.RANDOM)


def inference_form(model: ir.Model) -> tuple[ir.Model, dict[str, tuple[str, ...]]]:
    """Return `model` without its training behaviour, and the switched nodes.

    Cases, in subgraphs too:

    - BatchNormalization with ``training_mode=1``, or with outputs for running statistics, normalizes with the
      running statistics in its inputs, and returns these unchanged;
    - Dropout loses its input ``training_mode``, unless that is the constant False;
    - RandomNormal, RandomUniform and their ``Like`` forms become their mean.

    Parameters
    ----------
    model : ir.Model
        It is not changed. Functions are inlined.

    Returns
    -------
    model : ir.Model
        A new model, or `model` itself if there is nothing to switch.
    switched : dict of tuple of str
        The operators in alphabetical order, with the first output of each of their nodes.

    Raises
    ------
    UnsupportedError
        If the graph has a Bernoulli or Multinomial, whose mean is none of their values.
    """
    if not any(_trains(node) for node in nodes_within(model.graph)):
        return model, {}
    result = model.clone()
    names = graph_names(result.graph)
    nodes = [node for node in nodes_within(result.graph) if _trains(node)]
    switched = [(str(node.op_type), str(node.outputs[0].name)) for node in nodes]
    read = {value for value in result.graph.inputs if value.uses()}
    for node in nodes:
        _SWITCHES[node.op_type](node, names)
    # an input for the training mode now has no reader
    result.graph.inputs[:] = [value for value in result.graph.inputs if value.uses() or value not in read]
    operators = sorted({operator for operator, _ in switched})
    return result, {
        operator: tuple(name for other, name in switched if other == operator) for operator in operators
    }


def _trains(node: ir.Node) -> bool:
    """Return whether `node` is in training mode or random."""
    operator = standard_operator(node)
    if operator == "BatchNormalization":
        return bool(attribute(node, "training_mode", 0)) or len(node.outputs) > 1
    if operator == "Dropout":
        training = node.inputs[2] if len(node.inputs) > 2 else None
        value = constant(training)
        return training is not None and (value is None or bool(value))
    return operator in RANDOM


def _freeze_statistics(node: ir.Node, names: set[str]) -> None:
    node.attributes.pop("training_mode", None)
    for index, output in list(enumerate(node.outputs))[1:]:
        if output.uses() or output.is_graph_output():
            statistic = computed("Identity", [node.inputs[3 if index % 2 else 4]])
            replace_output(output, statistic)
            graph_of(node).insert_before(node, maker(statistic))
    node.resize_outputs(1)


def _stop_dropout(node: ir.Node, names: set[str]) -> None:
    node.replace_input_with(2, None)


def _take_mean(node: ir.Node, names: set[str]) -> None:
    """Replace random numbers by their mean, in the same shape."""
    mean = attribute(node, "mean", 0.0)
    if "Uniform" in node.op_type:
        mean = (attribute(node, "low", 0.0) + attribute(node, "high", 1.0)) / 2
    like = node.inputs[0] if node.inputs else None
    if like is None:
        dtype = ir.DataType(attribute(node, "dtype", ir.DataType.FLOAT))
        shape = computed("Constant", [], {"value": ir.tensor(np.array(attribute(node, "shape"), np.int64))})
    else:
        dtype = ir.DataType(attribute(node, "dtype", like.dtype or ir.DataType.FLOAT))
        shape = computed("Shape", [like])
    number = computed("Constant", [], {"value": ir.tensor(np.array(mean, dtype.numpy()))})
    for value in (number, shape):
        value.name = unique_name(f"{node.outputs[0].name}_mean", names)
    expanded = computed("Expand", [number, shape])
    replace_output(node.outputs[0], expanded)
    graph_of(node).insert_before(node, [maker(value) for value in (number, shape, expanded)])
    graph_of(node).remove(node, safe=True)


def _refuse(node: ir.Node, names: set[str]) -> None:
    raise UnsupportedError(
        f"The graph holds {node.op_type} (output {node.outputs[0].name!r}), which draws at random: its "
        "predictions are no function of its inputs. Export the model for inference."
    )


#: The inference form of each operator that trains or draws.
_SWITCHES: dict[str, Callable[[ir.Node, set[str]], None]] = {
    "BatchNormalization": _freeze_statistics,
    "Bernoulli": _refuse,
    "Dropout": _stop_dropout,
    "Multinomial": _refuse,
    "RandomNormal": _take_mean,
    "RandomNormalLike": _take_mean,
    "RandomUniform": _take_mean,
    "RandomUniformLike": _take_mean,
}
