"""Attachment of a loss to a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.append import graft
from onnxsgd.graph.class_axis import class_axis
from onnxsgd.graph.loading.load import check_proto
from onnxsgd.graph.model import find_value, to_ir, to_proto
from onnxsgd.graph.opsets.versions import bring_into_range
from onnxsgd.objective.names import claim_names
from onnxsgd.objective.penalty_nodes import TensorPenalty, read_penalties
from onnxsgd.objective.score_table import ProbabilityLogLoss, make_score, weighted_loss
from onnxsgd.objective.scored_output import check_scored, dtype_and_shape, find_output

if TYPE_CHECKING:
    from onnxsgd._builder import Builder
    from onnxsgd.losses import Loss

__all__ = ["add_loss_output", "weighted_loss"]


def add_loss_output(
    onx: onnx.ModelProto,
    score_name: str | Loss = "squared_error",
    loss_name: str = "loss",
    label_name: str = "label",
    weight_name: str | None = None,
    penalty: Mapping[str, object] | None = None,
    output_index: int | str | None = None,
    **kwargs: Any,
) -> onnx.ModelProto:
    """Return a copy of a model with a loss on one of its outputs.

    Its outputs are the loss, of shape [1, 1], and the scored output; the other outputs, and the nodes that
    only they need, are left out. Its inputs are those of `onx`, then the label, then the sample weights.
    Operators without a gradient that have an exact equivalent are rewritten.

    The scores, where f(x) is the scored output, y the label and w the sample weights (1 without
    `weight_name`), summed over samples and outputs::

        squared_error, l2    sum w (f(x) - y)^2
        absolute_error, l1   sum w |f(x) - y|
        elastic              sum w (l1_weight |f(x) - y| + l2_weight (f(x) - y)^2)
        log                  sum w (-(1 - y) log(1 - p) - y log(p)) / sum w

    For "log" the scored output holds two columns of probabilities. They are clipped to [eps, 1 - eps] and
    divided by their sum; p is the second. It is a mean, in which a sample of weight 2 counts twice, and is
    NaN if all weights are 0. The losses of :mod:`onnxsgd.losses` are accepted by name too (huber,
    epsilon_insensitive, squared_epsilon_insensitive, quantile, log_cosh, hinge, squared_hinge,
    modified_huber, perceptron, multiclass_hinge, log_loss, focal; poisson, gamma and tweedie, of which f(x)
    is the logarithm of the prediction; gaussian_nll, of which f(x) is the means and then the logarithms of
    the variances, in twice the columns of the label); their fields are keyword arguments, and they are
    summed like squared_error.
    At a kink the derivative is the one that :mod:`onnxsgd.losses` states. Of scores of several axes, losses
    that compare classes, such as multiclass_hinge, compare those of each element, and are summed over the
    elements; the axis of the classes is that of the convolution or the product before the output.

    Parameters
    ----------
    onx : onnx.ModelProto
        The model. It is not changed.
    score_name : str or Loss, default="squared_error"
        One of the above, case-sensitive, or a loss object.
    loss_name : str, default="loss"
        Name of the loss. Its type is that of the scored output; float32 if that is float16.
    label_name : str, default="label"
        Name of the label: an input of the shape and type of the scored output; for "log" int64, 0 or 1, of
        shape [N, 1]; for losses that predict several numbers of a target, with one column for each target.
    weight_name : str, optional
        Name of the sample weights: an input of shape [N] and the type of the scored output. A sample of
        weight w counts w times.
    penalty : dict, optional
        Penalties on initializers or inputs, by name: ``{"l1": a, "l2": b}``, or b alone, adds
        ``a sum |t| + b sum t^2`` over the elements of the tensor. A :class:`~onnxsgd.penalties.Penalty` adds
        its value, in which the squared norm is halved; with ``from_start=True`` that of the distance of an
        initializer from its values in `onx`.
    output_index : int or str, optional
        The output to score, by position or name; not needed if there is only one.
    **kwargs
        `l1_weight` and `l2_weight` of "elastic", 0.5 each by default; `eps` of "log", 1e-6 by default; the
        fields of other losses.

    Returns
    -------
    onnx.ModelProto
        With the metadata, producer, domain and documentation of `onx`, and with its IR version and opsets;
        if the IR version is not within 4 to 10 or the opset not within 13 to 21, with those that it was
        converted to.

    Raises
    ------
    ParameterError
        A ValueError: an unknown score, output or penalised tensor, a penalty that is 0, a parameter out of
        range, or a name that the model has for an input, an output or an initializer.
    ParameterTypeError
        A TypeError: an argument of the wrong type, or an unknown keyword argument.
    GraphError
        A ValueError: a model that is not valid, or an output that cannot be scored.
    UnsupportedError
        A NotImplementedError: an opset that cannot be converted.

    Examples
    --------
    >>> import numpy as np, onnx.parser
    >>> from onnxsgd import add_loss_output
    >>> model = onnx.parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["": 17]>
    ...     line (float[N, 2] x) => (float[N, 1] y)
    ...     <float[2, 1] coef = {1, 2}> { y = MatMul(x, coef) }''')
    >>> with_loss = add_loss_output(model, "absolute_error", weight_name="weight", penalty={"coef": 0.1})
    >>> [value.name for value in with_loss.graph.input], [value.name for value in with_loss.graph.output]
    (['x', 'label', 'weight'], ['loss', 'y'])
    """
    loss = make_score(score_name, kwargs)
    check_proto(onx, "onx")
    source = to_ir(bring_into_range(onx))
    source.graph.outputs[:] = [find_output(source.graph, output_index)]
    model = _lower(source)
    graph = model.graph
    if isinstance(loss, ProbabilityLogLoss) and graph.outputs[0].shape is None:
        # the only shape that this score takes
        graph.outputs[0].shape = ir.Shape([f"{graph.outputs[0].name}_rows", 2])
    check_scored(graph.outputs[0])
    penalties = read_penalties(graph, penalty)
    wanted = {"loss_name": loss_name, "label_name": label_name}
    if weight_name is not None:
        wanted["weight_name"] = weight_name
    names = claim_names(graph, wanted)
    data = _add_inputs(graph, loss, label_name, weight_name)
    total = graft(graph, names, loss_name, lambda op: _total(op, graph, loss, data, penalties))
    total.name, total.shape, total.dtype = loss_name, ir.Shape([1, 1]), _loss_type(data.scored)
    graph.outputs.insert(0, total)
    return to_proto(model)


def _lower(source: ir.Model) -> ir.Model:
    from onnxsgd.graph.lowering.lower import lower_for_training

    model = lower_for_training(source)
    imports = {**source.opset_imports, **model.opset_imports}
    model.opset_imports.clear()
    model.opset_imports.update(imports)
    return model


@dataclass(frozen=True)
class _Data:
    """Operands of a loss."""

    scored: ir.Value
    label: ir.Value
    weight: ir.Value | None


def _add_inputs(graph: ir.Graph, loss: Loss, label_name: str, weight_name: str | None) -> _Data:
    scored = graph.outputs[0]
    dtype, shape = dtype_and_shape(scored)
    label_dtype, label_shape = dtype, shape.copy()
    if isinstance(loss, ProbabilityLogLoss):
        _check_probabilities(scored.name, shape)
        label_dtype, label_shape = ir.DataType.INT64, ir.Shape([shape[0], 1])
    if (count := len(loss.score_factors)) > 1:
        label_shape = _label_shape(loss, scored.name, shape, count)
    label = ir.Value(name=label_name, type=ir.TensorType(label_dtype), shape=label_shape)
    graph.inputs.append(label)
    weight = None
    if weight_name is not None:
        weight = ir.Value(name=weight_name, type=ir.TensorType(dtype), shape=ir.Shape([shape[0]]))
        graph.inputs.append(weight)
    return _Data(scored, label, weight)


def _label_shape(loss: Loss, name: str | None, shape: ir.Shape, count: int) -> ir.Shape:
    """Return the shape of the targets, each of which has so many columns of the scored output."""
    width = shape[1] if len(shape) == 2 else 1
    most = count if loss.link == "sorted" else width
    if isinstance(width, int) and (width % count or width != most):
        each = "" if loss.link == "sorted" else " for each target"
        raise GraphError(
            f"Output {name!r} has shape {shape}: {loss!r} takes a table of {count} columns{each}."
        )
    return ir.Shape([shape[0], width // count if isinstance(width, int) else None])


def _check_probabilities(name: str | None, shape: ir.Shape) -> None:
    if len(shape) != 2 or (isinstance(shape[1], int) and shape[1] != 2):
        raise GraphError(
            f"Output {name!r} has shape {shape}: score 'log' needs two columns of probabilities; "
            "'log_loss' takes raw predictions of any shape."
        )


def _total(
    op: Builder, graph: ir.Graph, loss: Loss, data: _Data, penalties: Mapping[str, TensorPenalty]
) -> ir.Value:
    """Build the loss and the penalties, of shape [1, 1]."""
    _, shape = dtype_and_shape(data.scored)
    dtype = _loss_type(data.scored)
    if loss.is_joint and len(shape) > 2:
        raw_prediction, label, weight = _as_elements(op, data, dtype, _find_class_axis(data.scored, loss))
    else:
        raw_prediction, label, weight = _as_tables(op, data, dtype, len(shape))
    if len(loss.score_factors) > 1:
        label = op.Concat(*[label] * len(loss.score_factors), axis=1)
    if isinstance(loss, ProbabilityLogLoss):
        y_true = op.Concat(op.Sub(1.0, label), label, axis=1)
        total = weighted_loss(op, loss, y_true, raw_prediction, weight)
        count = op.Cast(op.Size(label), to=dtype) if weight is None else op.ReduceSum(weight, keepdims=1)
        total = op.Div(total, count)
    else:
        total = weighted_loss(op, loss, label, raw_prediction, weight)
    for name, penalty in penalties.items():
        total = op.Add(total, penalty.build(op, _cast(op, find_value(graph, name), dtype)))
    return total


def _loss_type(scored: ir.Value) -> ir.DataType:
    # The sum over a batch soon exceeds float16's largest number, 65504.
    return ir.DataType.DOUBLE if scored.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT


def _as_tables(
    op: Builder, data: _Data, dtype: ir.DataType, rank: int
) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """Reshape the scored output and the label to [n_samples, n_outputs], the weights to [n_samples, 1]."""
    raw_prediction, label = _cast(op, data.scored, dtype), _cast(op, data.label, dtype)
    if rank != 2:
        raw_prediction = op.Flatten(raw_prediction, axis=1)
    if data.label.shape is not None and len(data.label.shape) != 2:
        label = op.Flatten(label, axis=1)
    weight = None if data.weight is None else op.Reshape(_cast(op, data.weight, dtype), [-1, 1])
    return raw_prediction, label, weight


def _find_class_axis(scored: ir.Value, loss: Loss) -> int:
    """Return the axis of the classes of scores with several axes."""
    axis = class_axis(scored)
    if axis is None:
        raise GraphError(
            f"Output {scored.name!r} has shape {scored.shape}, and the axis of the classes, whose scores the "
            f"loss {loss!r} compares, is not known: it is that of a convolution or a product before the "
            "output. Score such an output, or put the classes on the second of two axes."
        )
    return axis


def _as_elements(
    op: Builder, data: _Data, dtype: ir.DataType, axis: int
) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """Return scores and label, [n_elements, n_classes], and weights, [n_elements, 1]."""
    n_axes = len(dtype_and_shape(data.scored)[1])
    order = [*(other for other in range(n_axes) if other != axis), axis]
    made = []
    for value in (data.scored, data.label):
        table = op.Transpose(_cast(op, value, dtype), perm=order)
        sizes = op.Shape(table)
        rows = op.Reshape(table, op.Concat([-1], op.Slice(sizes, [n_axes - 1], [n_axes]), axis=0))
        rows.type = ir.TensorType(dtype)
        made.append(rows)
    if data.weight is None:
        return made[0], made[1], None
    weight = op.Reshape(_cast(op, data.weight, dtype), [-1] + [1] * (n_axes - 1))
    of_elements = op.Concat(op.Slice(sizes, [0], [n_axes - 1]), [1], axis=0)
    return made[0], made[1], op.Reshape(op.Expand(weight, of_elements), [-1, 1])


def _cast(op: Builder, value: Any, dtype: ir.DataType) -> ir.Value:
    return value if value.dtype == dtype else op.Cast(value, to=dtype)
