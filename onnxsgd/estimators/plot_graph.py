"""The public function that draws graphs."""

from __future__ import annotations

import os
from copy import copy
from typing import TYPE_CHECKING

import onnx
from sklearn.base import BaseEstimator, is_classifier, is_regressor
from sklearn.utils.validation import check_is_fitted

from onnxsgd.drawing.graph_plot import GraphPlot
from onnxsgd.drawing.marks import MarkedGraph, mark_by_names, mark_tensors
from onnxsgd.exceptions import OnnxSGDError, ParameterError, ParameterTypeError

if TYPE_CHECKING:
    from onnxsgd.estimators.base import BaseOnnxSGD

__all__ = ["plot_graph"]

#: The smallest number of boxes: every part of a step, an input and an output.
_FEWEST = 8


def plot_graph(model: object, *, stage: str = "model", max_nodes: int = 60) -> GraphPlot:
    """Draw the graph of a model: its operators, its trained and frozen tensors, its loss and its gradient.

    Use it in a notebook, to see the graph that a fit trains, and the training step that is made from it; or
    save the picture as SVG. The layout needs igraph, which ``pip install 'onnxsgd[plot]'`` installs; without
    it the graph is shown as text.

    Parameters
    ----------
    model : estimator, ModelProto, bytes, str or path-like
        An :class:`OnnxSGDRegressor` or :class:`OnnxSGDClassifier`, a fitted predictor of scikit-learn, which
        is converted as in an estimator, a pipeline that ends in one of these, or an ONNX graph. An estimator
        that is not fitted must have a `model` that is.
    stage : {"model", "loss", "gradient", "step"}, default="model"
        The graph as given; with its loss; with its loss and its gradient; or the whole training step, in
        which gradient and update are fused. An ONNX graph has the first stage only.
    max_nodes : int, default=60
        The largest number of boxes, at least 8. Larger graphs are folded, see Notes.

    Returns
    -------
    GraphPlot
        Notebooks show it. Its attribute `svg` is the picture, ``str`` of it the text, and ``save(path)``
        writes either.

    Raises
    ------
    ParameterTypeError
        If `model` is of another type.
    ParameterError
        If another parameter has a value that is not accepted, or `stage` needs an estimator, or, for "step",
        inputs of fixed sizes.
    GraphError
        If the graph cannot be read.
    sklearn.exceptions.NotFittedError
        If neither the estimator nor the model inside is fitted.

    Notes
    -----
    Trained are the tensors that a fit with the parameters of the estimator would train, for other models
    that of an estimator with default parameters. In a graph of :func:`onnx_derivative` or
    :func:`add_loss_output`, nodes that only outputs ``<name>_grad`` depend on are drawn as gradient, and
    those that only the output ``loss`` depends on as loss.

    With more than `max_nodes` boxes, runs of consecutive nodes become blocks. Of these ways the first one
    that suffices is taken: scopes that an exporter wrote into the names of nodes, from the innermost;
    sequences of operators that repeat at once, first a block for each, then one for all; runs that few
    tensors pass between. Many inputs or outputs become one box.

    The stages of training show batches of `batch_size` rows and the portable engine. With
    ``learning_rate="auto"`` a fit adds constants to the step, the units of columns and targets, which depend
    on the data, and computes the frozen part only once.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from onnxsgd import plot_graph
    >>> X, y = load_iris(return_X_y=True)
    >>> plot = plot_graph(LogisticRegression(max_iter=500).fit(X, y), stage="gradient")
    >>> print(plot)  # doctest: +ELLIPSIS
    LogisticRegression: the graph with its loss and its gradient
    ...
    >>> plot.save("graph.svg")  # doctest: +SKIP
    """
    # imported on use: they load the libraries of graphs
    from onnxsgd.drawing.diagram import make_diagram
    from onnxsgd.estimators.graph_stages import STAGES

    if not isinstance(stage, str) or stage not in STAGES:
        raise ParameterError(
            f"stage={stage!r} is not accepted: it must be one of {', '.join(map(repr, STAGES))}."
        )
    if not isinstance(max_nodes, int) or isinstance(max_nodes, bool) or max_nodes < _FEWEST:
        raise ParameterError(f"max_nodes={max_nodes!r} is not accepted: it must be an integer >= {_FEWEST}.")
    if hasattr(model, "fit"):
        marked = _of_estimator(model, stage)
    elif isinstance(model, onnx.ModelProto | bytes | bytearray | memoryview | str | os.PathLike):
        if stage != "model":
            raise ParameterError(
                f"stage={stage!r} needs an estimator, which knows the loss: give OnnxSGDRegressor(model) or "
                "OnnxSGDClassifier(model)."
            )
        marked = _of_graph(model)
    else:
        raise ParameterTypeError(
            f"model must be an estimator, an onnx.ModelProto, bytes, or the path of an ONNX file, not "
            f"{type(model).__name__}."
        )
    return GraphPlot(make_diagram(marked, max_nodes))


def _of_estimator(model: BaseEstimator, stage: str) -> MarkedGraph:
    from onnxsgd.estimators.base import BaseOnnxSGD
    from onnxsgd.estimators.graph_stages import STAGES, model_stage, stage_of_training
    from onnxsgd.graph.model import to_proto

    final = model.steps[-1][1] if hasattr(model, "steps") else model
    # a picture needs neither the device of the fit nor, once the trained tensors are known, its engine
    estimator = copy(final) if isinstance(final, BaseOnnxSGD) else _around(model)
    estimator.device = "cpu"
    title = f"{type(final).__name__}: {STAGES[stage]}"
    recipe = estimator._check_parameters()
    trained = copy(estimator._trained())
    learner = trained._learner
    if stage == "model":
        # with the branches of adapters
        return model_stage(to_proto(trained._finished_graph()), learner.weights, title)
    trained.engine = "portable"
    return stage_of_training(learner.undivided.split.tail, trained._make_plan(recipe).step_spec, stage, title)


def _around(model: BaseEstimator) -> BaseOnnxSGD:
    """Return an estimator with default parameters around a predictor of scikit-learn."""
    from onnxsgd.data.text import has_text, split_text
    from onnxsgd.estimators.classifier import OnnxSGDClassifier
    from onnxsgd.estimators.regressor import OnnxSGDRegressor

    check_is_fitted(model)
    # as in a fit, vectorizers of text stand before the graph
    model = split_text(model, None)[1] if has_text(model) else model
    if is_classifier(model):
        return OnnxSGDClassifier(model)
    if is_regressor(model):
        return OnnxSGDRegressor(model)
    raise ParameterTypeError(
        f"{type(model).__name__} is not accepted: it must be a classifier or a regressor."
    )


def _of_graph(
    model: onnx.ModelProto | bytes | bytearray | memoryview | str | os.PathLike[str],
) -> MarkedGraph:
    from onnxsgd.estimators.graph_stages import STAGES, graph_with_shapes
    from onnxsgd.graph.loading.load import load_model

    proto = load_model(model)
    graph = graph_with_shapes(proto)
    parts, results = mark_by_names(graph)
    title = f"{graph.name or 'graph'}: {STAGES['model']}"
    trained = [] if results else _trained_names(proto)
    return MarkedGraph(graph, title, parts, mark_tensors(graph, trained), results)


def _trained_names(proto: onnx.ModelProto) -> list[str]:
    """Return the tensors that an estimator with default parameters trains; none if it refuses the graph."""
    from onnxsgd.learner.describe import describe_trainable

    try:
        return describe_trainable(proto).trained
    except OnnxSGDError:
        return []
