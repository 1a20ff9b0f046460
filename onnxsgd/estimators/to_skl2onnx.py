"""Converters for skl2onnx, for pipelines that contain our estimators.

The trained graph is embedded in the converter's graph, with the converter's names and types of labels and
probabilities: integers for integers, booleans and whole numbers, strings for strings; a pair of scores
[-s, s] for two classes without probabilities.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, compose, defs

from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.model import to_proto

if TYPE_CHECKING:
    from skl2onnx.common._container import ModelComponentContainer
    from skl2onnx.common._topology import Operator, Scope, Variable
    from sklearn.base import BaseEstimator

__all__ = ["register_classifier", "register_regressor"]


def register_regressor(cls: type) -> None:
    """Register the converter of the regressor; called when skl2onnx is imported."""
    from skl2onnx import update_registered_converter

    update_registered_converter(cls, cls.__name__, _regressor_types, _convert_regressor)


def register_classifier(cls: type) -> None:
    """Register the converter of the classifier; called when skl2onnx is imported."""
    from skl2onnx import update_registered_converter

    options = {
        "nocl": [False, True],
        "zipmap": [True, False, "columns"],
        "raw_scores": [False, True],
        "output_class_labels": [False, True],
    }
    update_registered_converter(
        cls, cls.__name__, _classifier_types, _convert_classifier, parser=_parse_classifier, options=options
    )


def _parse_classifier(scope: Scope, model: BaseEstimator, inputs: Any, custom_parsers: Any = None) -> Any:
    """Return the outputs; multi-label data have no dictionary of probabilities."""
    from skl2onnx import _parse

    parse = (
        _parse._parse_sklearn_simple_model
        if model._trained()._has_several_labels
        else _parse._parse_sklearn_classifier
    )
    return parse(scope, model, inputs, custom_parsers=custom_parsers)


def _regressor_types(operator: Operator) -> None:
    from skl2onnx.common.data_types import guess_tensor_type

    model, source = operator.raw_operator._trained(), operator.inputs[0]
    _refuse_text(model)
    _refuse_axes(model)
    rows = source.get_first_dimension()
    operator.outputs[0].type = type(guess_tensor_type(source.type))([rows, model._n_predictions])


def _classifier_types(operator: Operator) -> None:
    from skl2onnx.common.data_types import Int64TensorType, StringTensorType, guess_tensor_type
    from skl2onnx.common.utils_classifier import get_label_classes

    model, source = operator.raw_operator._trained(), operator.inputs[0]
    _refuse_text(model)
    _refuse_axes(model)
    rows, n_classes = source.get_first_dimension(), len(model.classes_)
    # options are kept by the identity of the operator
    classes = np.asarray(get_label_classes(operator.scope_inst, operator.raw_operator))
    label = StringTensorType if isinstance(classes[0], str) else Int64TensorType
    if classes.dtype == np.uint64 and classes.max() > np.iinfo(np.int64).max:
        raise UnsupportedError(
            f"Labels up to {classes.max()} do not fit into int64, which classifiers of skl2onnx return: take "
            "to_onnx() of the estimator, or train it on labels below 2**63."
        )
    operator.outputs[0].type = label([rows, n_classes] if model._has_several_labels else [rows])
    operator.outputs[1].type = type(guess_tensor_type(source.type))([rows, n_classes])


def _refuse_axes(model: Any) -> None:
    """Refuse predictions of several axes, which operators of skl2onnx do not have."""
    if model._is_dense:
        raise UnsupportedError(
            "The predictions of a sample have several axes, and skl2onnx takes tables: take to_onnx() of the "
            "estimator."
        )


def _convert_regressor(scope: Scope, operator: Operator, container: ModelComponentContainer) -> None:
    model = operator.raw_operator._trained()
    # the mean of a normal distribution, without its standard deviation
    graph = _merged(model, model._prediction_graph("prediction"))
    prediction, *_ = _embed(graph, scope, operator, container)
    shape = scope.get_unique_variable_name("shape")
    container.add_initializer(shape, TensorProto.INT64, [2], [-1, model._n_predictions])
    column = scope.get_unique_variable_name("column")
    container.add_node("Reshape", [prediction, shape], column, name=scope.get_unique_operator_name("Reshape"))
    _finish(column, operator.outputs[0], scope, container)


def _convert_classifier(scope: Scope, operator: Operator, container: ModelComponentContainer) -> None:
    from skl2onnx.common.utils_classifier import get_label_classes

    model = copy(operator.raw_operator._trained())
    model.classes_ = np.asarray(get_label_classes(scope, operator.raw_operator))
    raw_scores = container.get_options(operator.raw_operator, {"raw_scores": False})["raw_scores"]
    graph = _merged(model, model._labelled_graph("label", "second", raw_scores=raw_scores))
    label, second = _embed(graph, scope, operator, container)
    gives_scores = raw_scores or not hasattr(model, "predict_proba")
    if gives_scores and len(model.classes_) == 2 and model._n_outputs == 1:
        second = _pair(second, scope, container)
    _finish(label, operator.outputs[0], scope, container)
    _finish(second, operator.outputs[1], scope, container)


def _merged(model: Any, graph: Any) -> Any:
    """Return the graph with its adapters merged, as to_onnx() writes it."""
    # imported on use: it loads onnxscript
    from onnxsgd.graph.adapting.merge_adapters import merge_adapters

    return merge_adapters(graph, model._learner.adapters)


def _pair(score: str, scope: Scope, container: ModelComponentContainer) -> str:
    """Return [-s, s], the scores of two classes."""
    negative, pair = (scope.get_unique_variable_name(name) for name in ("negative", "pair"))
    container.add_node("Neg", [score], negative, name=scope.get_unique_operator_name("Neg"))
    container.add_node(
        "Concat", [negative, score], pair, axis=1, name=scope.get_unique_operator_name("Concat")
    )
    return pair


def _finish(name: str, variable: Variable, scope: Scope, container: ModelComponentContainer) -> None:
    """Return a tensor as an output, cast to its declared type."""
    from skl2onnx.common.data_types import guess_proto_type

    _cast(name, variable.full_name, guess_proto_type(variable.type), scope, container)


def _cast(source: str, result: str, to: int, scope: Scope, container: ModelComponentContainer) -> None:
    container.add_node("Cast", [source], result, to=to, name=scope.get_unique_operator_name("Cast"))


def _refuse_text(model: BaseEstimator) -> None:
    if model._text is not None:
        raise UnsupportedError(
            f"{type(model).__name__} begins with vectorizers of text, which a converter of a step cannot "
            "write: take to_onnx() of the estimator."
        )


def _embed(
    model: BaseEstimator, scope: Scope, operator: Operator, container: ModelComponentContainer
) -> list[str]:
    """Add a graph to the container, under unique names; return the names of its outputs."""
    # imported on use: it loads onnxscript
    from onnxsgd.graph.opsets.versions import in_opset

    proto = in_opset(to_proto(model), container.target_opset_any_domain(""))
    prefix = scope.get_unique_operator_name("OnnxSGD") + "/"
    graph = compose.add_prefix(proto, prefix).graph
    sources = _sources(proto.graph.input, operator.inputs, scope, container)
    for value, source in zip(graph.input, sources, strict=True):
        _cast(source, value.name, value.type.tensor_type.elem_type, scope, container)
    container.initializers.extend(graph.initializer)
    opsets = {
        entry.domain: min(entry.version, container.target_opset_any_domain(entry.domain))
        for entry in proto.opset_import
    }
    for node in graph.node:
        container.nodes.append(node)
        version = opsets[node.domain]
        if defs.has(node.op_type, node.domain):
            version = defs.get_schema(node.op_type, version, node.domain).since_version
        container.node_domain_version_pair_sets.add((node.domain, version))
    return [value.name for value in graph.output]


def _sources(inputs: Any, variables: Any, scope: Scope, container: ModelComponentContainer) -> list[str]:
    """Return the source of each input of our graph: the joined columns, or the variables of these names."""
    names = [value.name for value in inputs]
    if len(names) > 1:
        known = {variable.raw_name: variable.full_name for variable in variables}
        missing = [name for name in names if name not in known]
        if missing:
            raise UnsupportedError(
                f"The graph inside has the inputs {names}; the converter is given {sorted(known)}, without "
                f"{missing}: give each of them a type in initial_types, under its name."
            )
        return [known[name] for name in names]
    if len(variables) == 1:
        return [variables[0].full_name]
    columns = [scope.get_unique_variable_name("real") for _ in variables]
    for variable, column in zip(variables, columns, strict=True):
        _cast(variable.full_name, column, inputs[0].type.tensor_type.elem_type, scope, container)
    whole = scope.get_unique_variable_name("features")
    container.add_node("Concat", columns, whole, axis=1, name=scope.get_unique_operator_name("Concat"))
    return [whole]
