"""The tail of a graph: from raw predictions to labels and probabilities."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd._builder import Builder
from onnxsgd.exceptions import ParameterError
from onnxsgd.graph.append import appending
from onnxsgd.graph.model import LINK, SCORE, graph_names, unique_name
from onnxsgd.graph.nodes import element_type, maker, shape_of
from onnxsgd.graph.writing import add_initializer, computed
from onnxsgd.losses import LARGEST_LOG_VARIANCE

__all__ = ["add_classifier_tail", "add_dense_tail", "add_multilabel_tail", "add_regressor_tail"]


def add_regressor_tail(model: ir.Model, link: str, name: str, n_outputs: int = 1) -> ir.Model:
    """Return `model` with the predictions as its output, instead of its raw predictions.

    A normal distribution has a second output, ``std``.

    Parameters
    ----------
    model : ir.Model
        A graph whose only output is the score. It is not changed.
    link : {"identity", "log", "normal", "sorted"}
        The function of the prediction that is the score.
    name : str
        The name of the output.
    n_outputs : int
        The columns of the score, if `link` is "sorted".
    """
    copy = model.clone()
    graph = copy.graph
    score = graph.outputs[0]
    if score.name == name:
        score.name = unique_name(f"raw_{name}", graph_names(graph))
    # a graph that was cut at its score may have a tensor of this name before it
    if link in _TABLES:
        rows = score.shape[0] if score.shape else None
        with appending(graph) as op:
            outputs = _TABLES[link](op, score, n_outputs)
            for result, base in zip(outputs, (name, "std"), strict=False):
                result.name = unique_name(base, graph_names(graph))
                columns = n_outputs // len(outputs)
                result.type, result.shape = ir.TensorType(element_type(score)), ir.Shape([rows, columns])
        graph.outputs[:] = outputs
        _note(copy, score, link)
        return copy
    output = computed(_INVERSES[link], [score], name=unique_name(name, graph_names(graph)), like=score)
    graph.append(maker(output))
    graph.outputs[:] = [output]
    return copy


def add_classifier_tail(
    model: ir.Model, classes: np.ndarray, probabilities: str | None, names: tuple[str, str]
) -> ir.Model:
    """Return `model` with two outputs, the labels and the probabilities, instead of its raw predictions.

    Parameters
    ----------
    model : ir.Model
        A graph whose only output is the score, of shape [n_samples, n_outputs]; one output denotes two
        classes. It is not changed.
    classes : ndarray of shape [n_classes]
        The labels, in the order of the columns.
    probabilities : {"sigmoid", "softmax", "modified_huber", None}
        The link from scores to probabilities; None: the second output is the score itself.
    names : tuple of str
        The names of the two outputs.
    """
    copy = model.clone()
    graph = copy.graph
    score = graph.outputs[0]
    single = len(classes) == 2 and score.shape is not None and score.shape[-1] == 1
    labels = _add_labels(graph, classes)
    with appending(graph) as op:
        second = _PROBABILITIES[probabilities](op, score, single)
        label = op.Gather(labels, _winner(op, score, single))
        rows = score.shape[0] if score.shape else None
        label.name, label.type, label.shape = names[0], ir.TensorType(element_type(labels)), ir.Shape([rows])
        second.name, second.type = names[1], ir.TensorType(element_type(score))
        second.shape = ir.Shape([rows, 1 if single and probabilities is None else len(classes)])
    graph.outputs[:] = [label, second]
    many = probabilities == "sigmoid" and not single
    _note(copy, score, "ovr" if many else probabilities)
    return copy


def add_multilabel_tail(model: ir.Model, probabilities: str | None, names: tuple[str, str]) -> ir.Model:
    """Return `model` with the labels, a table of 0 and 1, and their probabilities as outputs.

    Parameters
    ----------
    model : ir.Model
        A graph whose only output is the score, of shape [n_samples, n_labels]. It is not changed.
    probabilities : {"sigmoid", "modified_huber", None}
        The link from a score to a probability; None: the second output is the score itself.
    names : tuple of str
        The names of the two outputs.
    """
    copy = model.clone()
    graph = copy.graph
    score = graph.outputs[0]
    with appending(graph) as op:
        second = _ONE_BY_ONE[probabilities](op, score)
        label = op.Cast(op.Greater(score, 0.0), to=ir.DataType.INT64)
        label.name, label.type, label.shape = names[0], ir.TensorType(ir.DataType.INT64), score.shape
        second.name, second.type, second.shape = names[1], ir.TensorType(element_type(score)), score.shape
    graph.outputs[:] = [label, second]
    _note(copy, score, probabilities)
    return copy


def add_dense_tail(
    model: ir.Model,
    classes: np.ndarray,
    probabilities: str | None,
    names: tuple[str, str],
    class_axis: int | None,
) -> ir.Model:
    """Return `model` with the labels of the elements of samples and their probabilities as outputs.

    Parameters
    ----------
    model : ir.Model
        A graph whose only output is the score, of three axes or more. It is not changed.
    classes : ndarray of shape [n_classes]
        The labels.
    probabilities : {"sigmoid", "softmax", "modified_huber", None}
        As in :func:`add_classifier_tail`.
    names : tuple of str
        The names of the two outputs: labels with the axes of samples and elements, and probabilities, whose
        last axis is that of the classes.
    class_axis : int or None
        The axis of the classes among those of a sample, the first or the last; None: one score for each
        element.
    """
    copy = model.clone()
    graph = copy.graph
    score = graph.outputs[0]
    n_axes = len(shape_of(score))
    order = list(range(n_axes))
    if class_axis is not None:
        order.append(order.pop(class_axis + 1))
    n_scores = None if class_axis is None else shape_of(score)[class_axis + 1]
    single = class_axis is None or n_scores == 1
    width = 1 if single and probabilities is None else len(classes)
    labels = _add_labels(graph, classes)
    with appending(graph) as op:
        last = score if class_axis is None else op.Transpose(score, perm=order)
        sizes = op.Shape(last)
        if class_axis is not None:
            sizes = op.Slice(sizes, [0], [n_axes - 1])
        rows = op.Reshape(last, [-1, 1 if single else len(classes)])
        rows.type, rows.shape = score.type, ir.Shape([None, 1 if single else len(classes)])
        second = op.Reshape(
            _PROBABILITIES[probabilities](op, rows, single), op.Concat(sizes, [width], axis=0)
        )
        label = op.Reshape(op.Gather(labels, _winner(op, rows, single)), sizes)
        kept = [shape_of(score)[axis] for axis in order[: n_axes if class_axis is None else n_axes - 1]]
        label.name, label.type, label.shape = names[0], ir.TensorType(element_type(labels)), ir.Shape(kept)
        second.name, second.type = names[1], ir.TensorType(element_type(score))
        second.shape = ir.Shape([*kept, width])
    graph.outputs[:] = [label, second]
    return copy


def _note(model: ir.Model, score: ir.Value, link: str | None) -> None:
    """Write score and link to the metadata, for later training: not every tail shows them."""
    model.metadata_props.update({SCORE: str(score.name), LINK: link or "identity"})


def _winner(op: Builder, score: ir.Value, single: bool) -> ir.Value:
    if single:
        return op.Cast(op.Greater(op.Squeeze(score, [1]), 0.0), to=ir.DataType.INT64)
    return op.ArgMax(score, axis=1, keepdims=0)


def _add_labels(graph: ir.Graph, classes: np.ndarray) -> ir.Value:
    name = unique_name("classes", graph_names(graph))
    tensor: ir.TensorProtocol
    if classes.dtype.kind in "iu":
        # int64 if it holds all labels, as other tools write them
        is_large = classes.size and classes.max() > np.iinfo(np.int64).max
        tensor = ir.tensor(classes.astype(np.uint64 if is_large else np.int64), name=name)
    elif classes.dtype.kind in "bf":
        # runtimes read neither the other byte order nor numbers of 16 bytes
        native = classes.astype(np.float64 if classes.itemsize > 8 else classes.dtype.newbyteorder("="))
        tensor = ir.tensor(native, name=name)
    else:
        encoded = [_encoded(str(label)) for label in classes]
        tensor = ir.StringTensor(encoded, shape=ir.Shape(classes.shape), name=name)
    return add_initializer(graph, name, tensor)


def _encoded(label: str) -> bytes:
    try:
        return label.encode()
    except UnicodeEncodeError as error:
        raise ParameterError(
            f"The label {label!r} cannot be written into an ONNX file: {error.reason}. Give labels of valid "
            "characters."
        ) from None


def _half(op: Builder, score: ir.Value) -> ir.Value:
    return op.Mul(op.Add(op.Min(op.Max(score, -1.0), 1.0), 1.0), 0.5)


def _complete(op: Builder, probability: ir.Value, single: bool, dtype: ir.DataType) -> ir.Value:
    """Turn one probability for each output into a distribution over the classes."""
    if single:
        return op.Concat(op.Sub(1.0, probability), probability, axis=1)
    # A row of zeros becomes the uniform distribution, as in scikit-learn.
    nothing = op.Cast(op.Equal(op.ReduceSum(probability, [1], keepdims=1), 0.0), to=dtype)
    filled = op.Add(probability, nothing)
    return op.Div(filled, op.ReduceSum(filled, [1], keepdims=1))


def _normal(op: Builder, score: ir.Value, n_outputs: int) -> list[ir.Value]:
    """Return means and standard deviations."""
    both = op.Reshape(score, [-1, 2, n_outputs // 2])
    bounded = op.Min(op.Max(op.Gather(both, 1, axis=1), -LARGEST_LOG_VARIANCE), LARGEST_LOG_VARIANCE)
    return [op.Gather(both, 0, axis=1), op.Exp(op.Mul(bounded, 0.5))]


def _sorted(op: Builder, score: ir.Value, n_outputs: int) -> list[ir.Value]:
    """Return the scores of each row in ascending order."""
    ascending, _ = op.TopK(score, [n_outputs], axis=-1, largest=0, sorted=1, _outputs=2)
    return [ascending]


#: Predictions from all raw predictions of a sample, by the link of the loss.
_TABLES = {"normal": _normal, "sorted": _sorted}
#: The operator that returns the prediction, by the link of the loss.
_INVERSES = {"identity": "Identity", "log": "Exp"}
#: Links of each score alone.
_ONE_BY_ONE = {
    None: lambda op, score: op.Identity(score),
    "sigmoid": lambda op, score: op.Sigmoid(score),
    "modified_huber": _half,
}
#: Links to a distribution over the classes.
_PROBABILITIES = {
    None: lambda op, score, single: op.Identity(score),
    "sigmoid": lambda op, score, single: _complete(op, op.Sigmoid(score), single, score.dtype),
    "softmax": lambda op, score, single: op.Softmax(score, axis=-1),
    "modified_huber": lambda op, score, single: _complete(op, _half(op, score), single, score.dtype),
}
