"""Repair of converted graphs: names, shapes, and marks of constants."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import IdentityEliminationPass
from sklearn.base import BaseEstimator, is_classifier, is_regressor

from onnxsgd.graph.model import FROZEN, graph_names, unique_name
from onnxsgd.graph.nodes import attribute, maker, required
from onnxsgd.graph.writing import add_initializer, computed, replace_output

if TYPE_CHECKING:
    from skl2onnx.common._topology import Topology

__all__ = ["freeze_transformers", "has_several_labels", "repair"]


def freeze_transformers(model: ir.Model, topology: Topology) -> None:
    """Mark the initializers of each step that does not predict as frozen."""
    values = ir.convenience.create_value_mapping(model.graph)
    for operator in topology.scope.operators.values():
        step = operator.raw_operator
        if step is None or is_classifier(step) or is_regressor(step):
            continue
        stop = {variable.onnx_name for variable in operator.inputs}
        waiting = [values[v.onnx_name] for v in operator.outputs if v.onnx_name in values]
        seen = set[ir.Value]()
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            if value.is_initializer():
                value.metadata_props[FROZEN] = f"constant of {type(step).__name__}"
            elif value.name not in stop and (node := value.producer()) is not None:
                waiting.extend(entry for entry in node.inputs if entry is not None)


def repair(model: ir.Model, estimator: BaseEstimator, inputs: Sequence[str]) -> None:
    """Repair a converted graph in place.

    Parameters
    ----------
    model : ir.Model
        The converted graph.
    estimator : estimator
        The last step.
    inputs : sequence of str
        The names of the inputs: the converters replace characters that identifiers may not hold.
    """
    _repair_width(model, estimator, inputs)
    _repair_labels(model, estimator)
    _widen_labels(model, estimator, inputs)
    _flatten_labels(model, estimator, inputs)
    _repair_largest_norms(model, inputs)
    _repair_selections(model, inputs)
    _make_column(model, estimator)
    _name_parameters(model)
    for value, name in zip(model.graph.inputs, inputs, strict=True):
        value.name = name
    IdentityEliminationPass()(model)
    for value in model.graph.outputs:
        # some outputs declare the width of the input, or of another output; it is inferred later
        value.shape = ir.Shape([None] * len(value.shape or ()))


def _add_constant(model: ir.Model, name: str, numbers: np.ndarray, inputs: Sequence[str]) -> ir.Value:
    """Add an initializer whose name is free, also once the inputs have theirs."""
    return add_initializer(model.graph, unique_name(name, graph_names(model.graph) | set(inputs)), numbers)


def _repair_width(model: ir.Model, estimator: BaseEstimator, inputs: Sequence[str]) -> None:
    """Reshape the result of a multilayer perceptron with several targets to a column for each.

    skl2onnx 1.20 puts them all into one column; this can go when that is mended.
    """
    width = getattr(estimator, "n_outputs_", 1)
    if type(estimator).__name__ != "MLPRegressor" or width == 1:
        return
    (output,) = model.graph.outputs
    reshape = output.producer()
    if reshape is not None and reshape.op_type == "Reshape":
        reshape.replace_input_with(1, _add_constant(model, "n_outputs", np.array([-1, width]), inputs))


def _repair_labels(model: ir.Model, estimator: BaseEstimator) -> None:
    """Declare both axes of tables of labels, and keep only the probability of each label.

    skl2onnx 1.20 declares one axis, and puts the probabilities of the absence of two labels of a multilayer
    perceptron before them; this can go when that is mended.
    """
    if not has_several_labels(estimator):
        return
    for output in model.graph.outputs:
        output.shape = ir.Shape([None, len(estimator._label_binarizer.classes_)])
        # a ZipMap of the converter is an Identity
        identity = output.producer()
        if identity is None or identity.op_type != "Identity":
            continue
        concat = required(identity, 0).producer()
        if concat is not None and concat.op_type == "Concat" and len(concat.inputs) == 2:
            identity.replace_input_with(0, required(concat, 1))


#: Integers that float32 has without rounding.
_EXACT_IN_FLOAT = 2**24


def _widen_labels(model: ir.Model, estimator: BaseEstimator, inputs: Sequence[str]) -> None:
    """Keep the labels as int64 from the table of classes to the output.

    skl2onnx 1.20 writes the table as int32, and some converters pass labels through float32; this can go when
    that is mended. Converters of linear classifiers have them as an attribute of int64.
    """
    classes = getattr(estimator, "classes_", None)
    if not isinstance(classes, np.ndarray) or classes.dtype.kind not in "iu":
        return
    if np.abs(classes.astype(np.float64)).max() <= _EXACT_IN_FLOAT:
        return
    node = model.graph.outputs[0].producer()
    while node is not None and node.op_type in ("ArrayFeatureExtractor", "Cast", "Identity", "Reshape"):
        if node.op_type == "ArrayFeatureExtractor":
            if required(node, 0).dtype == ir.DataType.INT64:
                return
            node.replace_input_with(0, _add_constant(model, "labels", classes.astype(np.int64), inputs))
            return
        if node.op_type == "Cast":
            node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.INT64))
        node = required(node, 0).producer()


def _flatten_labels(model: ir.Model, estimator: BaseEstimator, inputs: Sequence[str]) -> None:
    """Give the labels of a quadratic discriminant analysis one axis.

    skl2onnx 1.20 returns one row of them; this can go when that is mended.
    """
    if type(estimator).__name__ != "QuadraticDiscriminantAnalysis":
        return
    cast = model.graph.outputs[0].producer()
    if cast is not None and cast.op_type == "Cast":
        one_axis = _add_constant(model, "one_axis", np.array([-1]), inputs)
        flat = computed("Reshape", [required(cast, 0), one_axis])
        model.graph.insert_before(cast, maker(flat))
        cast.replace_input_with(0, flat)
        model.graph.outputs[0].shape = ir.Shape([None])


def _repair_largest_norms(model: ir.Model, inputs: Sequence[str]) -> None:
    """Divide rows by their largest absolute value: the operator of ONNX takes their largest value."""
    for node in [node for node in model.graph if node.op_type == "Normalizer"]:
        if attribute(node, "norm", "MAX") != "MAX":
            continue
        axis = _add_constant(model, "columns", np.array([1]), inputs)
        least = _add_constant(model, "least_norm", np.array(np.finfo(np.float32).tiny, np.float32), inputs)
        least.metadata_props[FROZEN] = "constant of Normalizer"
        sizes = computed("Abs", [required(node, 0)])
        largest = computed("ReduceMax", [sizes, axis])
        # a row of zeros stays
        norm = computed("Max", [largest, least])
        scaled = computed("Div", [required(node, 0), norm])
        model.graph.insert_before(node, [maker(value) for value in (sizes, largest, norm, scaled)])
        replace_output(node.outputs[0], scaled)
        model.graph.remove(node, safe=True)


#: Operators that compute shapes.
_OF_SHAPES = ("Add", "Cast", "Concat", "Gather", "Mul", "Reshape", "Shape", "Slice", "Squeeze", "Unsqueeze")


def _repair_selections(model: ir.Model, inputs: Sequence[str]) -> None:
    """Select the first column where that is the only one.

    skl2onnx 1.20 writes an operator that takes the table for a shape; this can go when that is mended.
    """
    for node in [node for node in model.graph if node.op_type == "ConstantOfShape"]:
        table = required(node, 0)
        source = table.producer()
        is_shape = source is not None and source.op_type in _OF_SHAPES
        if table.const_value is not None or table.dtype == ir.DataType.INT64 or is_shape:
            continue
        column = computed(
            "Gather", [table, _add_constant(model, "column", np.array([0]), inputs)], {"axis": 1}
        )
        model.graph.insert_before(node, maker(column))
        replace_output(node.outputs[0], column)
        model.graph.remove(node, safe=True)


def has_several_labels(estimator: BaseEstimator) -> bool:
    """Tell whether a classifier that binarizes its labels was fitted on a table of them."""
    binarizer = getattr(estimator, "_label_binarizer", None)
    return str(getattr(binarizer, "y_type_", "")).startswith("multilabel")


def _make_column(model: ir.Model, estimator: BaseEstimator) -> None:
    """Reshape the coefficients of generalised linear models from a vector to a column."""
    if type(estimator).__name__ not in ("GammaRegressor", "PoissonRegressor", "TweedieRegressor"):
        return
    for node in model.graph:
        coef = node.inputs[1] if node.op_type == "MatMul" else None
        if coef is not None and coef.const_value is not None and len(coef.const_value.shape) == 1:
            column = coef.const_value.numpy().reshape(-1, 1)
            coef.const_value, coef.shape = ir.tensor(column, name=coef.name), ir.Shape(column.shape)


#: The converters' names of parameters, and ours, after scikit-learn's attributes.
_NAMES = {
    "Ad_Addcst": "intercept",
    "Ma_MatMulcst": "coef",
    "Su_Subcst": "mean",
    "coefficient": "coefs",
    "intercepts": "intercepts",
}


def _name_parameters(model: ir.Model) -> None:
    """Give readable names to parameters, numbered by layer."""
    names = graph_names(model.graph)
    for name, value in list(model.graph.initializers.items()):
        match = re.fullmatch(r"([A-Za-z_]*[A-Za-z])(\d*)", name)
        if match is not None and match[1] in _NAMES and FROZEN not in value.metadata_props:
            base = _NAMES[match[1]]
            new = unique_name(f"{base}_{match[2] or 0}" if base.endswith("s") else base, names)
            ir.convenience.rename_values(value, new)
