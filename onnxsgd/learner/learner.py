"""The learner: a trainable graph and its parts."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from scipy import sparse

from onnxsgd._cached_property import cached_property
from onnxsgd.data.columns import is_mapping, refuse_unknown
from onnxsgd.data.features import Features, TableInput, fills_gaps, read_features
from onnxsgd.data.generators import make_generator
from onnxsgd.engine.predict import InferenceGraph
from onnxsgd.graph.adapting.branches import Adapter
from onnxsgd.graph.adapting.merge_adapters import merged_weight
from onnxsgd.graph.model import nodes_within
from onnxsgd.graph.nodes import content, element_type
from onnxsgd.graph.reading.column_multiples import ColumnMultiple, column_multiple, copied_input
from onnxsgd.graph.reading.first_layers import FirstLayer, first_layers
from onnxsgd.graph.reading.frozen_split import SplitGraph, split_frozen, undivided
from onnxsgd.graph.reading.output_layer import OutputLayer, output_layer
from onnxsgd.graph.reading.rectified_layers import RectifiedLayer, rectified_layers

__all__ = ["Learner", "Parts"]


@dataclass(frozen=True)
class Parts:
    """The graph of raw scores in two parts.

    Attributes
    ----------
    split : SplitGraph
        The two parts.
    frozen : dict of InferenceGraph
        The graph of each feature of the tail that the frozen part computes.
    tail : InferenceGraph
        Raw scores from these features.
    """

    split: SplitGraph
    frozen: Mapping[str, InferenceGraph]
    tail: InferenceGraph

    @cached_property
    def first_layers(self) -> tuple[FirstLayer, ...]:
        """The trained linear layers that read the inputs of the tail."""
        return first_layers(self.split.tail, self.tail.weights)

    @cached_property
    def rectified_layers(self) -> tuple[RectifiedLayer, ...]:
        """The trained layers from the only input of the tail on, with rectified values between them."""
        return rectified_layers(self.split.tail, self.tail.weights)


@dataclass(frozen=True, eq=False)
class Learner:
    """A trainable graph. Its parts are made on first use; equal models share one learner.

    Attributes
    ----------
    model : ir.Model
        The whole graph, with the outputs of the user's model; for a generated graph, the score alone.
    score_model : ir.Model
        The same with the raw score as its only output.
    link : str
        The graph's function from scores to probabilities; "own": it has none, and ours is used.
    classes : ndarray or None
        The labels of the columns, if the graph contains them.
    weights : tuple of str
        The initializers to train.
    intercepts : frozenset of str
        Those of them without penalty.
    statistics : tuple of str
        The running statistics of BatchNormalization that training updates without a gradient.
    dropouts : tuple of str
        The outputs of Dropout nodes, which act in training.
    linear : tuple of (str, str or None), or None
        Coefficients and intercepts, where the score is a linear function of the only input.
    exported_for : int or None
        The fixed batch size that the user's graph was exported for, if any.
    numbers : mapping of str to ndarray
        Initializers whose values are not in the two models, which learners of one structure share: there
        they are NaN. Compiled graphs take them as inputs; those that are not trained are not in the tail.
    template : Learner or None
        The learner that this one shares compiled graphs with; only the numbers differ.
    half_precision : Learner or None
        The same graph with tensors of 16 bits, as the user gave it: training keeps weights in float32, and
        files get these types. None: the graph has none.
    adapters : tuple of Adapter
        The adapters in both models.
    """

    model: ir.Model
    score_model: ir.Model
    link: str
    classes: np.ndarray | None
    weights: tuple[str, ...]
    intercepts: frozenset[str]
    linear: tuple[str, str | None] | None
    exported_for: int | None = None
    numbers: Mapping[str, np.ndarray] = field(default_factory=dict)
    template: Learner | None = None
    half_precision: Learner | None = None
    adapters: tuple[Adapter, ...] = ()
    statistics: tuple[str, ...] = ()
    dropouts: tuple[str, ...] = ()

    @property
    def learned(self) -> tuple[str, ...]:
        """The initializers that training changes: weights and running statistics."""
        return (*self.weights, *self.statistics)

    @property
    def score(self) -> str:
        """The name of the raw score."""
        return str(self.score_model.graph.outputs[0].name)

    @property
    def inputs(self) -> list[ir.Value]:
        """The data inputs."""
        return list(self.score_model.graph.inputs)

    def read(self, X: object, checked: object) -> Features:
        """Return one array for each data input; see :func:`onnxsgd.data.features.read_features`."""
        if is_mapping(checked):
            # of the whole graph: the score may need less
            refuse_unknown(checked, self.model.graph.inputs)
        if type(checked) is np.ndarray and checked.ndim == 2 and self.table_input is not None:
            table = self.table_input.read(checked)
            if table is not None:
                return {self.table_input.name: table}
        return read_features(X, checked, self.inputs, allow_nan=self.fills_gaps)

    @cached_property
    def table_input(self) -> TableInput | None:
        """The only data input, if it takes a table of real numbers."""
        return TableInput.of(self.inputs)

    @cached_property
    def fills_gaps(self) -> bool:
        """True if the data may have NaN for missing values."""
        return fills_gaps(self.score_model.graph)

    @cached_property
    def half_type(self) -> str | None:
        """The type of 16 bits in the graph of scores, "float16" or "bfloat16", the one of less range if both.

        None: it has neither.
        """
        if self.half_precision is None:
            return None
        graph = self.half_precision.score_model.graph
        of_nodes = (value for node in nodes_within(graph) for value in node.outputs)
        found = {value.dtype for value in (*graph.inputs, *graph.initializers.values(), *of_nodes)}
        half = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
        return next((kind.name.lower() for kind in half if kind in found), None)

    @property
    def _constants(self) -> dict[str, np.ndarray]:
        return {name: array for name, array in self.numbers.items() if name not in self.learned}

    @cached_property
    def score_graph(self) -> InferenceGraph:
        """The raw scores, as a function of data and weights."""
        if self.template is not None:
            return self.template.score_graph.with_constants(self._constants)
        return InferenceGraph(self.score_model, self.score, self.learned, self._constants)

    @cached_property
    def divided(self) -> Parts:
        """The frozen part, and the rest."""
        if self.template is not None:
            parts = self.template.divided
            constants = self._constants
            return replace(
                parts, frozen={name: graph.with_constants(constants) for name, graph in parts.frozen.items()}
            )
        split = split_frozen(self.score_model, self.learned, self.dropouts)
        given = {str(value.name) for value in self.inputs}
        made = [name for name in split.features if name not in given]
        frozen = {name: InferenceGraph(self.score_model, name, (), self._constants) for name in made}
        return Parts(split, frozen, InferenceGraph(split.tail, self.score, self.learned))

    @cached_property
    def multiples(self) -> dict[str, ColumnMultiple]:
        """The features that the frozen part computes, if all are multiples of columns; else none."""
        model = self.with_weights({}, score_only=True) if self.numbers else self.score_model
        found = {name: column_multiple(model, name) for name in self.divided.frozen}
        known = {name: multiple for name, multiple in found.items() if multiple is not None}
        return known if len(known) == len(found) else {}

    @cached_property
    def copies(self) -> dict[str, str]:
        """The data inputs of which features of the frozen part are copies, such as casts to the same type."""
        found = {name: copied_input(self.score_model, name) for name in self.divided.frozen}
        return {name: source for name, source in found.items() if source is not None}

    def sparse_parts(self) -> Parts:
        """Return the parts for sparse data: a frozen part only where its results stay sparse.

        Beside adapters it computes the products with frozen weights.
        """
        return self.divided if self.multiples or self.adapters else self.undivided

    def sparse_features(self, features: Features) -> Features:
        """Return the inputs of the tail of :meth:`sparse_parts` from sparse data."""
        made = {name: multiple.of(features[multiple.feature]) for name, multiple in self.multiples.items()}
        names = self.sparse_parts().split.features
        return {name: made[name] if name in made else features[name] for name in names}

    def scores(
        self, features: Features, weights: Mapping[str, np.ndarray], n_threads: int | None
    ) -> np.ndarray:
        """Return the raw scores of data."""
        if all(sparse.issparse(table) for table in features.values()) and self.multiples:
            return self.divided.tail.run(self.sparse_features(features), weights, n_threads)
        return self.score_graph.run(features, weights, n_threads)

    @cached_property
    def undivided(self) -> Parts:
        """The whole graph as the tail, without a frozen part."""
        split = undivided(self.with_weights({}, score_only=True) if self.numbers else self.score_model)
        return Parts(split, {}, InferenceGraph(split.tail, self.score, self.learned))

    def output_layer(self, sizes: tuple[int, ...]) -> OutputLayer:
        """Return the last layer of the graph, which has scores of these sizes for a sample."""
        if sizes not in self._output_layers:
            self._output_layers[sizes] = output_layer(self.score_model, self.weights, sizes)
        return self._output_layers[sizes]

    @cached_property
    def _output_layers(self) -> dict[tuple[int, ...], OutputLayer]:
        return {}

    @cached_property
    def plans(self) -> dict[Hashable, Any]:
        """The plans of fits of this graph so far, under the settings that they follow from."""
        return {}

    def forget(self) -> None:
        """Drop the plans, and their programs, of a learner that no later fit gets.

        Each holds the others: the weights would stay in memory until the next collection. Learners in the
        cache keep theirs.
        """
        if self.template is not None:
            for plan in self.plans.values():
                plan.programs.clear()
            self.plans.clear()

    @cached_property
    def shapes_of_scores(self) -> dict[Hashable, tuple[int, ...]]:
        """The shape of the raw scores of samples of each kind that was tried."""
        return {}

    @property
    def predicts_tables(self) -> bool:
        """True if a converted classifier predicts a table of labels, with a column for each class.

        The number of its columns is known: that of quadratic discriminant analysis is a row of the labels of
        all samples.
        """
        outputs = () if self.classes is None else self.model.graph.outputs
        return any(
            value.dtype == ir.DataType.INT64
            and value.shape is not None
            and len(value.shape) == 2
            and isinstance(value.shape[1], int)
            for value in outputs
        )

    @cached_property
    def dtype(self) -> np.dtype[np.generic]:
        """The element type of the raw score."""
        return element_type(self.score_model.graph.outputs[0]).numpy()

    def initial_weights(self) -> dict[str, np.ndarray]:
        """Return the weights, and the running statistics that training updates, of the user's model.

        They are not to be changed.
        """
        return {name: self.initial(name) for name in self.learned}

    def first_weights(self, seed: int | np.random.RandomState | None) -> dict[str, np.ndarray]:
        """Return the weights that a fit starts with: those of the user's model, and new ones of adapters."""
        weights = self.initial_weights()
        if not self.adapters:
            return weights
        generator = make_generator(seed)
        for adapter in self.adapters:
            shapes = {name: weights[name].shape for name in adapter.names}
            drawn = adapter.first_values(shapes, generator)
            weights |= {name: array.astype(weights[name].dtype) for name, array in drawn.items()}
        return weights

    def without_adapters(self) -> dict[str, np.ndarray]:
        """Return the weights of the user's model that are trained themselves."""
        of_adapters = {name for adapter in self.adapters for name in adapter.names}
        return {name: self.initial(name) for name in self.weights if name not in of_adapters}

    def current(self, name: str, weights: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return an initializer of the graph of scores under trained weights, with its adapter, if any."""
        array = weights[name] if name in weights else self.initial(name)
        for adapter in self.adapters:
            if adapter.weight == name:
                return merged_weight(adapter, array, *(weights[entry] for entry in adapter.names))
        return array

    def initial(self, name: str) -> np.ndarray:
        """Return an initializer of the graph of scores, as in the user's model; not to be changed."""
        if name in self.numbers:
            return self.numbers[name]
        if name not in self._initial:
            self._initial[name] = content(self.score_model.graph.initializers[name]).numpy()
        return self._initial[name]

    @cached_property
    def _initial(self) -> dict[str, np.ndarray]:
        return {}

    def with_weights(self, weights: Mapping[str, np.ndarray], *, score_only: bool = False) -> ir.Model:
        """Return the graph with these weights in it."""
        copy = (self.score_model if score_only else self.model).clone()
        for name, array in {**self.numbers, **weights}.items():
            if name in copy.graph.initializers:
                value = copy.graph.initializers[name]
                value.const_value = _replaced(content(value), _rounded(name, array, element_type(value)))
        return copy

    def exported(self, weights: Mapping[str, np.ndarray], *, score_only: bool = False) -> ir.Model:
        """Return the graph with these weights in it, in the types that files get."""
        return (self.half_precision or self).with_weights(weights, score_only=score_only)


def _replaced(tensor: ir.TensorProtocol, array: np.ndarray) -> ir.TensorProtocol:
    """Return a tensor with other numbers; its documentation and metadata stay."""
    made = ir.tensor(array, name=tensor.name, doc_string=tensor.doc_string)
    made.metadata_props.update(tensor.metadata_props)
    return made


def _rounded(name: str, array: np.ndarray, dtype: ir.DataType) -> np.ndarray:
    """Return a copy of an array in the type of its initializer; too large numbers become the largest one."""
    if dtype.numpy() == array.dtype:
        return np.array(array)
    largest = float(dtype.max)
    if np.abs(array).max(initial=0.0) > largest:
        warnings.warn(
            f"Numbers of {name!r} exceed {largest:g}, the largest of {dtype.name}: they are written as "
            "that. dtype='float32' keeps them.",
            stacklevel=6,
        )
    return array.clip(-largest, largest).astype(dtype.numpy())
