"""The head of a graph: the tensor of raw predictions, its link to probabilities, and the labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxsgd.exceptions import NotTrainableError, ParameterError, ParameterTypeError
from onnxsgd.graph.cut import cut_at, tensor_named
from onnxsgd.graph.lowering.class_labels import Lookup, find_lookup
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import LINK, SCORE, find_value
from onnxsgd.graph.nodes import attribute, first, is_real
from onnxsgd.graph.parameter_roles.patterns import made_by, strip
from onnxsgd.graph.reading.output_chain import Link, holds_probabilities, read_link
from onnxsgd.graph.rewriting import Writer, extend

__all__ = ["ScoredGraph", "find_score"]


@dataclass(frozen=True)
class ScoredGraph:
    """A graph with known raw predictions.

    Attributes
    ----------
    model : ir.Model
        The lowered inference graph, with all outputs of the original; cut at the score if that is an inner
        tensor.
    score : str
        The tensor of raw predictions, of shape [n_samples, k] or [n_samples].
    link : str
        The link from scores z to probabilities, or predictions, p:

        - "identity": no probabilities, or a regression;
        - "exp": a regression whose loss has a logarithmic link, p = exp(z);
        - "sigmoid": p = [1 - s(z), s(z)] for one column z, p = s(z) for each label of several;
        - "softmax": p = softmax(z);
        - "ovr": p = s(z), divided by the sum over the row;
        - "modified_huber": p = clip((z + 1) / 2, 0, 1), as [1 - p, p] or divided by the sum over the row;
        - "log": any other function; z is log(p), so that p = softmax(z).
    classes : ndarray or None
        The labels of the columns, if the graph holds them.
    label_output, proba_output : str or None
        The outputs of the graph with labels and with probabilities.
    """

    model: ir.Model
    score: str
    link: str
    classes: np.ndarray | None = None
    label_output: str | None = None
    proba_output: str | None = None

    @property
    def below_head(self) -> str:
        """The tensor that a new layer is put on: the score, but probabilities in place of their logarithms.

        A forest whose trees agree gives probabilities of zero; their logarithms, of -87, hide all others.
        """
        return self.proba_output if self.link == "log" and self.proba_output else self.score


def find_score(
    model: ir.Model,
    task: str,
    output: str | int | None = None,
    link: str = "identity",
    *,
    are_probabilities: bool = False,
) -> ScoredGraph:
    """Find the raw prediction of a graph.

    Training needs raw predictions: losses on them are stable, and gradients do not vanish in a saturated
    sigmoid. Cases:

    - the only real output of a regression is its score; for a logarithmic link, an exponential is followed
      back to its argument;
    - a regression that this package has exported names its score, if several numbers predict a target;
    - the only real output of a classification is followed back to the score, see
      :func:`onnxsgd.graph.reading.output_chain.read_link`; probabilities with an unknown link get a new
      tensor log(clip(p)); any other output is taken for scores;
    - `output` names another output, treated likewise, or an inner tensor, which is the score.

    Parameters
    ----------
    model : ir.Model
        Lowered or not. It is not changed.
    task : {"regression", "classification"}
        The purpose of the scores.
    output : str, int or None
        The tensor of predictions: a name, or the number of an output.
    link : {"identity", "log", "normal", "sorted"}
        The link of the loss of a regression.
    are_probabilities : bool
        Whether the real output of a classification is known to hold probabilities.

    Raises
    ------
    ParameterError
        `output` matches no tensor, or the graph has several real outputs and `output` is None.
    ParameterTypeError
        `output` is of another type.
    NotTrainableError
        The graph, or the named output, holds labels only.
    """
    lowered = lower_for_training(model)
    graph = lowered.graph
    noted = _noted_score(lowered) if output is None else None
    if task == "regression" and noted is not None and noted[1] == link in _OF_SEVERAL_SCORES:
        name = str(noted[0].name)
        return ScoredGraph(cut_at(lowered, name), name, "own")
    value = _find_output(graph, output)
    if not value.is_graph_output():
        return ScoredGraph(cut_at(lowered, str(value.name)), str(value.name), "identity")
    if task == "regression":
        exponential = made_by(strip(value), "Exp") if link == "log" else None
        if exponential is None:
            return ScoredGraph(lowered, str(value.name), "identity")
        return ScoredGraph(lowered, str(first(exponential).name), "exp")
    found = read_link(value)
    score, kind = noted or _make_score(graph, value, found, are_probabilities)
    if score.producer() is None:
        raise NotTrainableError(f"Output {value.name!r} is the input {score.name!r}: nothing to train.")
    label = next((out for out in graph.outputs if not is_real(out)), None)
    label_name = None if label is None else str(label.name)
    lookup = None if label is None else find_lookup(label)
    if (
        noted is None
        and lookup is not None
        and lookup.largest_of is not None
        and found == read_link(lookup.largest_of)
    ):
        _pick_by_score(lowered, lookup, score)
    return ScoredGraph(
        model=lowered,
        score=str(score.name),
        link=kind,
        classes=None if lookup is None else lookup.labels,
        label_output=label_name,
        proba_output=str(value.name) if kind != "identity" else None,
    )


#: The links between several raw predictions and one target.
_OF_SEVERAL_SCORES = ("normal", "sorted")


def _noted_score(model: ir.Model) -> tuple[ir.Value, str] | None:
    """Return the score and the link in the metadata of an exported graph, if they still hold."""
    name, link = (model.metadata_props.get(key) for key in (SCORE, LINK))
    value = None if name is None else find_value(model.graph, name)
    return None if value is None or link is None or value.producer() is None else (value, link)


def _find_output(graph: ir.Graph, output: str | int | None) -> ir.Value:
    if output is None:
        return _only_real_output(graph)
    if isinstance(output, bool) or not isinstance(output, str | int):
        raise ParameterTypeError(f"output={output!r} is not accepted: it must be a name, a number or None.")
    if isinstance(output, str):
        value = next((out for out in graph.outputs if out.name == output), None)
        value = tensor_named(graph, output) if value is None else value
    elif -len(graph.outputs) <= output < len(graph.outputs):
        value = graph.outputs[output]
    else:
        raise ParameterError(f"output={output} is not accepted: the graph has {len(graph.outputs)} outputs.")
    if not is_real(value):
        raise NotTrainableError(
            f"{value.name!r} holds {value.type}, which has no gradient: output must name real numbers, "
            f"among the outputs {_names(graph)}, or inside the graph."
        )
    return value


def _only_real_output(graph: ir.Graph) -> ir.Value:
    found = [value for value in graph.outputs if is_real(value)]
    if not found:
        raise NotTrainableError(
            f"No output of the graph holds real numbers, only {_names(graph)}: labels have no gradient. "
            "Give output= the name of the scores inside the graph."
        )
    if len(found) > 1:
        names = ", ".join(repr(value.name) for value in found)
        raise ParameterError(f"The graph has several real outputs, {names}: output= must name one.")
    return found[0]


def _names(graph: ir.Graph) -> str:
    return ", ".join(f"{value.name!r} of {value.type}" for value in graph.outputs)


def _make_score(
    graph: ir.Graph, value: ir.Value, link: Link | None, are_probabilities: bool
) -> tuple[ir.Value, str]:
    """Return the score behind `value` and its link; add nodes to `graph` if it has no such tensor."""
    if link is None:
        if (rearranged := _rearranged_sigmoids(graph, value)) is not None:
            return rearranged, "sigmoid"
        if not (are_probabilities or holds_probabilities(value)):
            return value, "identity"
        tiny = float(np.finfo((value.dtype or ir.DataType.FLOAT).numpy()).tiny)
        return extend(graph, _NAME, lambda w: w.op.Log(w.op.Clip(value, tiny, 1.0))), "log"
    score = link.scores[0]
    if len(link.scores) > 1:
        score = extend(graph, _NAME, lambda w: w.op.Concat(*link.scores, axis=1))
    return extend(graph, _NAME, lambda w: w.op.Neg(score)) if link.negated else score, link.kind


_NAME = "raw_score"


def _rearranged_sigmoids(graph: ir.Graph, value: ir.Value) -> ir.Value | None:
    """Return the scores of sigmoids with other axes, rearranged alike; None if `value` is no such tensor."""
    forms, source = [], strip(value)
    while node := made_by(source, "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"):
        forms.append(node)
        source = strip(first(node))
    sigmoid = made_by(source, "Sigmoid")
    if sigmoid is None or not forms:
        return None

    def write(w: Writer) -> ir.Value:
        score = first(sigmoid)
        for form in reversed(forms):
            attributes = {name: attribute(form, name) for name in form.attributes}
            score = getattr(w.op, form.op_type)(score, *form.inputs[1:], **attributes)
        return score

    return extend(graph, _NAME, write)


def _pick_by_score(model: ir.Model, lookup: Lookup, score: ir.Value) -> None:
    """Take the label of the largest score instead of the largest probability.

    Far from the decision boundary, different scores have equal probabilities; scikit-learn compares scores.
    """
    label = lookup.output

    def write(w: Writer) -> ir.Value:
        if score.shape is not None and score.shape[-1] == 1:
            winner = w.op.Cast(w.op.Greater(w.op.Reshape(score, [-1]), 0.0), to=ir.DataType.INT64)
        else:
            winner = w.op.ArgMax(score, axis=1, keepdims=0)
        picked = w.op.Gather(lookup.table, winner)
        return picked if picked.dtype == label.dtype else w.op.Cast(picked, to=label.dtype)

    index = list(model.graph.outputs).index(label)
    name, label.name = str(label.name), f"{label.name}_replaced"
    model.graph.outputs[index] = extend(model.graph, name, write)
    RemoveUnusedNodesPass()(model)
