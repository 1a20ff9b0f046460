"""The fitted half of the base class: weights, a graph, predictions."""

from __future__ import annotations

import os
import reprlib
from abc import abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.utils.validation import check_is_fitted

from onnxsgd.data.columns import column_names
from onnxsgd.data.features import check_axes, check_strings, check_X, takes_strings
from onnxsgd.data.generators import copied
from onnxsgd.data.refusals import refuse_mask
from onnxsgd.data.sequences import Sequences, is_one_array, read_sequences
from onnxsgd.data.text import TextPart, check_texts
from onnxsgd.engine.step.update import AVERAGE, WEIGHT
from onnxsgd.estimators.between_calls import SEEN, Given, has_new_graph, read_graph_parameters
from onnxsgd.estimators.fit_report import FitReport
from onnxsgd.estimators.html_display import HtmlDisplay
from onnxsgd.estimators.inner_model import holds_weights
from onnxsgd.estimators.parameters import read_average
from onnxsgd.estimators.shared import at_once, in_turn, own_histories, refuse_inside, settled_attributes
from onnxsgd.exceptions import GraphError, OnnxSGDError, ParameterError, ParameterTypeError
from onnxsgd.graph.adapting.adapter_inputs import adapter_values, with_adapter_inputs
from onnxsgd.graph.adapting.merge_adapters import merge_adapters
from onnxsgd.graph.batch_normalization import running_variances
from onnxsgd.graph.model import to_proto
from onnxsgd.learner.learner import Learner
from onnxsgd.learner.score_check import shape_of_scores
from onnxsgd.persistence.saved_form import pack, unpack
from onnxsgd.persistence.small_form import from_small_form, to_small_form
from onnxsgd.runtime.adapter_file import write_adapter
from onnxsgd.runtime.stages import Numbers
from onnxsgd.training.state import FitState

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["TrainedModel"]

#: Attributes that a fitted model inside has before the first fit.
_BEFORE_FIT = frozenset({"classes_", "coef_", "intercept_", "n_features_in_"})
#: In a pickle, in place of parameters of the graph that are the present ones.
_SAME = "same"
#: Attributes that follow from the weights of a linear model.
_OF_WEIGHTS = ("coef_", "intercept_")
#: Parameters that estimators saved by older versions lack, with their defaults.
_LATER_PARAMETERS = {
    "dtype": None, "record_update_norms": False, "max_grad_norm": None, "max_grad_value": None,
    "adapter": None, "learning_rate_multipliers": None, "batch_norm": None,
    "gradient_accumulation_steps": 1, "dropout": None, "steps_per_epoch": None,
    "checkpoint": None, "checkpoint_every": 1, "n_jobs": None,
}  # fmt: skip


class TrainedModel(HtmlDisplay):
    """The half of the base class that works on the results of training.

    They are the learner, a graph; the state of the fit, arrays and numbers; the number of scores; and the
    vectorizers of text before the graph, if any.
    """

    _task: ClassVar[str]
    #: The function of the prediction that is the raw prediction, in a regression.
    _link: str = "identity"
    _learner: Learner
    _state: FitState
    _n_outputs: int
    #: The shape of the raw predictions of a sample; None in estimators saved without it: a row of numbers.
    _score_shape: tuple[int, ...] | None = None
    #: The shape of a row of each input of the graph; empty in estimators saved without it.
    _row_shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    #: Whether samples of several lengths have targets for their elements: the two are those of the last ones.
    _follows_lengths: bool = False
    _text: TextPart | None = None
    #: A copy with the weights of the fitted model inside, which serves all calls before the first fit.
    _start: Self | None = None
    #: The parameters of the graph in the first call; None in estimators saved without them.
    _given: Given | None = None
    #: Weights that were set before the first fit.
    _set_before: Mapping[str, np.ndarray] = MappingProxyType({})
    #: The numbers of the report of the last call of ``fit`` or ``partial_fit``.
    _record: Numbers | None = None
    average: bool | float
    model: Any

    @classmethod
    @lru_cache(maxsize=64)
    def _get_param_names(cls) -> list[str]:
        # scikit-learn reads the signature in each call of get_params, set_params and clone: 0.1 ms
        names: list[str] = super()._get_param_names()
        return names

    n_threads: int | None
    n_jobs: int | None

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_state") or holds_weights(self)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that a fitted model inside has before the first fit."""
        if name in _BEFORE_FIT and "_state" not in self.__dict__ and holds_weights(self):
            try:
                learned = vars(self._trained())
            except OnnxSGDError as error:
                raise AttributeError(f"{type(self).__name__} has no {name} before its first fit.") from error
            if name in learned:
                return learned[name]
        for cls in type(self).__mro__:
            if name in vars(cls):
                # a property, or a method for some parameters, whose own error tells more
                return vars(cls)[name].__get__(self, type(self))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _trained(self, X: object = None) -> Self:
        """Return the estimator; before its first fit, a copy with the weights of the fitted model inside.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            If that is not fitted either.
        """
        settled = self._with(settled_attributes(self))
        if "_state" in settled.__dict__:
            return settled
        check_is_fitted(settled)
        start = settled._before_fit(X)

        def keep() -> None:
            # not in the place of one with weights that were set meanwhile
            if self._set_before is settled._set_before:
                self._start = start

        at_once(self, keep)
        return start

    def _with(self, attributes: dict[str, Any]) -> Self:
        """Return an estimator of this class with the given attributes."""
        duplicate = type(self).__new__(type(self))
        duplicate.__dict__ = attributes
        return duplicate

    @abstractmethod
    def _before_fit(self, X: object) -> Self:
        """Return a copy with the weights of the fitted model inside; `X`: samples, if any are given."""

    def _duplicate(self) -> Self:
        """Return a copy with histories of its own, which shares the random numbers."""
        duplicate = self._with(own_histories(self))
        duplicate.__dict__.pop("_start", None)
        return duplicate

    def __copy__(self) -> Self:
        duplicate = self._duplicate()
        state = duplicate.__dict__.get("_state")
        if state is not None:
            # training one of them would change what the other draws
            duplicate._state = state.copy()
            duplicate._state.random_state = copied(state.random_state)
        return duplicate

    def __getstate__(self) -> dict[str, Any]:
        state = self._attributes(self.model)
        given = state.get("_given")
        if given is not None and not has_new_graph(self, given):
            state["_given"] = _SAME
        return to_small_form(state) if "_saved" in state else state

    def _attributes(self, model: object) -> dict[str, Any]:
        """Return the attributes as they are saved, with a `model` whose tensors are left out."""
        state = dict(super(TrainedModel, self._duplicate()).__getstate__())
        state.pop("_known_plan", None)
        state.pop(SEEN, None)
        if "_state" in state:
            learner, fit, text = state.pop("_learner"), state.pop("_state"), state.pop("_text", None)
            state["_saved"] = pack(learner, fit, text, model)
            # they follow from the weights
            for name in _OF_WEIGHTS:
                state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._restore(state)

    def _restore(self, state: dict[str, Any], *, check: bool = False) -> None:
        """Set the attributes that were saved; `check`: whether the graph may be one of a stranger."""
        state = from_small_form(state)
        saved = state.pop("_saved", None)
        super().__setstate__({**_LATER_PARAMETERS, **state})
        if self.__dict__.get("_given") == _SAME:
            self._given = read_graph_parameters(self)
        if saved is not None:
            self._learner, self._state, self._text = unpack(saved, self.model, check=check)
            learned = self._learned_attributes()
            self.__dict__.update({name: learned[name] for name in _OF_WEIGHTS if name in learned})

    def _saved(self) -> TrainedModel:
        """Return the estimator that files hold in the place of this one."""
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the estimator to a file that holds no code; :func:`onnxsgd.load` reads it.

        The file has the format of safetensors: arrays, and in its header JSON with the parameters and what is
        learned. It is written whole or not at all: an earlier file of this name stays until then. Objects of
        your own, such as losses, functions and callbacks, are not in it; ``load`` takes them again.

        Parameters
        ----------
        path : str or path-like
            The file; by custom its name ends in ``.onnxsgd``.

        Raises
        ------
        OSError
            If the file cannot be written.
        ParameterError
            If an attribute of the estimator is an object of your own, or parameters of the graph changed
            since the last call.
        ParameterTypeError
            If the class of the estimator is not one of this package.
        ImportError
            If it holds estimators of scikit-learn and skops is not installed.
        """
        from onnxsgd.estimators.saving import save

        save(self, path)

    def get_weights(self) -> dict[str, np.ndarray]:
        """Return a copy of the trained weights, under their names in the graph."""
        return {name: np.array(array) for name, array in self._trained()._weights().items()}

    @in_turn
    def set_weights(self, weights: dict[str, np.ndarray]) -> Self:
        """Replace trained weights; the state of the optimizer is kept.

        Before the first fit they replace those of `model`, for predictions, ``partial_fit`` and a fit with
        ``warm_start=True``.

        Parameters
        ----------
        weights : dict of array-like
            New values, under the names that :meth:`get_weights` returns. Weights that are missing are kept.

        Returns
        -------
        self : object
            The estimator.

        Raises
        ------
        ParameterError
            If a name is unknown, a shape is wrong, a value is not finite, or a running variance is below 0.
        ParameterTypeError
            If `weights` is no dictionary, or a value is no array of real numbers.
        """
        refuse_inside(self)
        is_trained = "_state" in self.__dict__
        trained = self if is_trained else self._trained()
        if not isinstance(weights, Mapping):
            raise ParameterTypeError(
                f"weights is of type {type(weights).__name__}: it must be a dictionary of arrays, such as "
                "get_weights() returns."
            )
        present = trained._state.weights()
        fresh = {name: _check_weight(name, array, present) for name, array in weights.items()}
        trained._check_variances(fresh)
        if trained is self:
            self._put_weights(fresh)
            return self
        start = copy(trained)
        start._put_weights(fresh)
        # at once, whatever interrupts
        self.__dict__.update(_start=start, _set_before={**self._set_before, **fresh}, _given=trained._given)
        return self

    def _check_variances(self, weights: Mapping[str, np.ndarray]) -> None:
        """Refuse running variances below 0, of which the graph takes the root."""
        for name in running_variances(self._learner.score_model.graph):
            if name in weights and (weights[name] < 0).any():
                raise ParameterError(
                    f"weight {name!r} is a running variance of BatchNormalization and has the value "
                    f"{weights[name].min():g}: it must be >= 0."
                )

    def _put_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        changed = self._duplicate()
        state = changed._state = self._state.copy()
        for name, array in weights.items():
            for key in state.tensors:
                if key in ((name, WEIGHT), (name, AVERAGE)):
                    state.tensors[key] = array.astype(state.tensors[key].dtype)
        self.__dict__.update(changed._learned_attributes(), _state=state)

    @property
    def onnx_model_(self) -> onnx.ModelProto:
        """The trained graph."""
        if not self.__sklearn_is_fitted__():
            raise AttributeError(f"This {type(self).__name__} instance is not fitted yet.")
        return self.to_onnx()

    def to_onnx(self, *, adapter: str = "merged", text: bool = True) -> onnx.ModelProto:
        """Return the trained graph, which runs in any ONNX runtime.

        Parameters
        ----------
        adapter : {"merged", "inputs"}, default="merged"
            The form of adapters, if there are any: merged into their weights, or the base, in which they and
            the other trained weights are optional inputs, fed from a file of :meth:`export_adapter`.
        text : bool, default=True
            Whether the graph includes the vectorizers of text that `model` begins with, if any. False: it
            takes their features, as a matrix of real numbers.

        Returns
        -------
        onnx.ModelProto
            The graph. It has the inputs and outputs of `model`, if that was an ONNX graph or was converted;
            otherwise a classifier has the outputs ``label`` and ``probabilities`` (``scores`` if the loss
            gives no probabilities), a regressor ``variable``.

        Raises
        ------
        ParameterError
            If `adapter` is "inputs", and the estimator has no adapters, or trains running statistics of
            BatchNormalization.
        UnsupportedError
            If vectorizers of text cannot be converted, or their converted form gives other features of the
            first 100 training samples than scikit-learn.
        """
        trained = self._trained()
        learner, graph = trained._learner, trained._finished_graph()
        if adapter == "inputs":
            trained._check_adapters("to_onnx(adapter='inputs')")
            graph = with_adapter_inputs(graph, learner.adapters, learner.without_adapters())
        elif adapter == "merged":
            graph = merge_adapters(graph, learner.adapters)
        else:
            raise ParameterError(f"adapter={adapter!r} is not accepted: it must be 'merged' or 'inputs'.")
        proto = to_proto(graph)
        if trained._text is None or not text:
            return proto
        from onnxsgd.estimators.text_graph import with_text_part

        return with_text_part(proto, trained._text.transformer, trained._text.data())

    def export_adapter(self, path: str | os.PathLike[str]) -> Path:
        """Write the trained weights into a file that onnxruntime, from 1.20 on, feeds to the base.

        The base is the graph of ``to_onnx(adapter="inputs")``. It is the same for all estimators with this
        `model`, targets of the adapter, `trainable` and `head`, of any rank and any data, so that one session
        runs several adapters::

            adapter = onnxruntime.LoraAdapter()
            adapter.Load(path)
            options = onnxruntime.RunOptions()
            options.add_active_adapter(adapter)
            session.run(None, {"X": X}, options)

        Parameters
        ----------
        path : str or path-like
            The file.

        Returns
        -------
        pathlib.Path
            Its path.

        Raises
        ------
        ParameterError
            If the estimator has no adapters, or trains running statistics of BatchNormalization.
        MissingRuntimeError
            If the installed onnxruntime has no such files.
        OSError
            If the file cannot be written. An earlier one stays.
        """
        trained = self._trained()
        trained._check_adapters("export_adapter")
        learner = trained._learner
        graph = learner.exported(trained._weights())
        tensors = adapter_values(graph, learner.adapters, list(learner.without_adapters()))
        write_adapter(path, {name: (tensor.numpy(), int(tensor.dtype)) for name, tensor in tensors.items()})
        return Path(path)

    def _check_adapters(self, caller: str) -> None:
        if not self._learner.adapters:
            raise ParameterError(f"{caller} needs adapters: give adapter=LoRA(...), and fit.")
        if self._learner.statistics:
            raise ParameterError(
                f"{caller} needs a base that no fit changes, and this one trains the running statistics of "
                f"BatchNormalization, such as {self._learner.statistics[0]!r}: keep them with "
                "batch_norm='frozen', or write one merged graph with to_onnx()."
            )

    @abstractmethod
    def _finished_graph(self) -> Any:
        """Return the trained graph with the outputs that users get."""

    def _attributes_at(self, state: FitState) -> dict[str, Any]:
        """Return the attributes of an estimator stopped at `state`, which later epochs change."""
        fixed = replace(
            state,
            loss_curve=list(state.loss_curve),
            learning_rates=list(state.learning_rates),
            validation_scores=list(state.validation_scores),
            update_norms=list(state.update_norms),
        )
        stopped = self._duplicate()
        stopped._state = fixed
        return {"_state": fixed, **stopped._learned_attributes()}

    @property
    def _takes_integers(self) -> bool:
        """True if the graph has one input, of integers."""
        inputs = self._trained()._learner.score_model.graph.inputs
        return len(inputs) == 1 and inputs[0].dtype is not None and inputs[0].dtype.is_integer()

    def _score_model_now(self) -> ir.Model:
        """Return the graph of raw scores with the present weights."""
        return self._learner.exported(self._weights(), score_only=True)

    # Of long histories, copies at each call of ``partial_fit`` would take longer than the call.

    @property
    def loss_curve_(self) -> list[float]:
        """The objective of each epoch."""
        return list(self._history.loss_curve)

    @property
    def best_loss_(self) -> float | None:
        """The lowest of them."""
        return min(self._history.loss_curve, default=None)

    @property
    def learning_rates_(self) -> np.ndarray:
        """The learning rate of the last update of each epoch."""
        return np.array(self._history.learning_rates, np.float64)

    @property
    def validation_scores_(self) -> list[float] | None:
        """The score of each epoch on the validation data, if any."""
        return list(self._history.validation_scores) or None

    @property
    def update_norms_(self) -> np.ndarray | None:
        """The norm of the change of the trained weights over each epoch, where it was recorded."""
        norms, n_epochs = self._history.update_norms, len(self._history.loss_curve)
        return np.array([*norms, *[np.nan] * (n_epochs - len(norms))]) if norms else None

    @property
    def fit_report_(self) -> FitReport:
        """The times of the last call of ``fit`` or ``partial_fit``, its peak memory, its use of the cache."""
        if self._record is None:
            raise AttributeError("There is no report of a fit: no fit, or it was made before a save.")
        return FitReport.of(self._record)

    @property
    def _history(self) -> FitState:
        state: FitState | None = settled_attributes(self).get("_state")
        if state is None:
            raise AttributeError("There is no history before the first fit.")
        return state

    def _publish(self) -> None:
        """Set the learned attributes."""
        self.__dict__.update(self._learned_attributes())

    def _learned_attributes(self) -> dict[str, Any]:
        """Return the public attributes of the present state."""
        state = self._state
        learned: dict[str, Any] = {"t_": state.t, "n_iter_": len(state.loss_curve)}
        if self._learner.linear is not None:
            learned["coef_"], learned["intercept_"] = self._linear_attributes(*self._learner.linear)
        return learned

    def _linear_attributes(self, coef: str, intercept: str | None) -> tuple[np.ndarray, np.ndarray]:
        present = self._weights()

        table = self._learner.current(coef, present).reshape(-1, self._n_outputs).T
        intercepts = np.zeros(self._n_outputs, table.dtype)
        if intercept is not None:
            # one number may be that of all outputs
            intercepts[...] = self._learner.current(intercept, present).ravel()
        return table.copy(), intercepts

    def _weights(self) -> dict[str, np.ndarray]:
        return self._state.weights(read_average(self.average)[0])

    def _raw_predictions(self, X: object) -> np.ndarray | list[np.ndarray]:
        """Return the result of :meth:`_table`, in float32 for float32 data and in float64 otherwise.

        Sequences of each length are predicted together: results do not depend on longer ones. Where their
        elements have predictions, it is a list of those of each sample.
        """
        if self._text is None:
            X = read_sequences(X, self._learner.inputs)
        if not isinstance(X, Sequences):
            return self._raw_of(X)
        groups = X.groups()
        parts = [self._raw_of(X.arrays(rows)) for rows in groups]
        if self._is_dense:
            found = {row: raw for rows, part in zip(groups, parts, strict=True)
                     for row, raw in zip(rows.tolist(), part, strict=True)}  # fmt: skip
            return [found[row] for row in range(len(X))]
        raw = np.empty((len(X), *parts[0].shape[1:]), parts[0].dtype)
        for rows, part in zip(groups, parts, strict=True):
            raw[rows] = part
        return raw

    def _raw_of(self, X: object) -> np.ndarray:
        checked = self._check_again(X)
        features = self._learner.read(X, checked)
        scores = self._learner.scores(features, self._weights(), self.n_threads)
        raw = self._table(scores)
        return raw if getattr(checked, "dtype", None) == np.float32 else raw.astype(np.float64)

    def _check_again(self, X: object) -> Any:
        """Return `X` checked against the training data; of texts, the features."""
        if self._text is not None:
            texts = check_texts(self, X, model=self._text.transformer, reset=False)
            return self._text.features(texts)
        inputs = self._learner.inputs
        by_name = len(inputs) > 1
        if takes_strings(inputs):
            return check_strings(self, X, reset=False, by_name=by_name)
        allow_nan = self._learner.fills_gaps
        if self._has_other_length(cast("ArrayLike", X)):
            checked = check_X(self, X, reset=False, allow_nan=allow_nan, any_length=True)
            if self._takes(checked):
                return checked
        check_axes(X, inputs)
        is_graph = self.model is not None and not hasattr(self.model, "fit")
        of_graph = inputs if is_graph else None
        return check_X(self, X, reset=False, by_name=by_name, allow_nan=allow_nan, inputs=of_graph)

    def _has_other_length(self, X: ArrayLike) -> bool:
        """Tell whether `X` differs from the training data in an axis that the graph leaves open."""
        known = vars(self).get("n_features_in_")
        if known is None or (is_one_array(X) and X.shape[1:2] == (known,)):
            return False
        shapes = [value.shape for value in self._learner.inputs]
        shape = shapes[0] if len(shapes) == 1 else None
        if shape is None or len(shape) < 2 or isinstance(shape[1], int) or column_names(X) is not None:
            return False
        return np.ndim(X) == len(shape) and np.shape(X)[1] != known

    def _takes(self, checked: np.ndarray) -> bool:
        """Tell whether the graph makes raw predictions of samples of another length."""
        features = self._learner.read(checked, checked)
        try:
            shape = shape_of_scores(self._learner, features, self.n_threads)
        except GraphError:
            return False
        return self._is_dense or shape == (self._score_shape or (self._n_outputs,))

    @property
    def _is_dense(self) -> bool:
        """True if the raw predictions of a sample have several axes."""
        return len(self._score_shape or ()) > 1 or self._follows_lengths

    def _table(self, raw: np.ndarray) -> np.ndarray:
        """Return raw predictions as a table, or as they are where those of a sample have several axes."""
        if self._is_dense:
            return raw
        if raw.size != len(raw) * self._n_outputs:
            raise GraphError(
                f"The graph gives {raw.size // max(1, len(raw))} numbers for a sample, and gave "
                f"{self._n_outputs} in the first call: the samples have another length."
            )
        return raw.reshape(-1, self._n_outputs)


def _check_weight(name: str, array: ArrayLike, present: dict[str, np.ndarray]) -> np.ndarray:
    """Return the new value of a weight in its type."""
    if name not in present:
        raise ParameterError(f"{name!r} is not a trained weight: the trained weights are {sorted(present)}.")
    try:
        given = np.asarray(array)
    except ValueError:
        given = np.asarray(None)
    if given.dtype.kind not in "biuf":
        raise ParameterTypeError(
            f"weight {name!r} is {reprlib.repr(array)}: it must be an array of real numbers, of shape "
            f"{present[name].shape}."
        )
    refuse_mask(array, f"weight {name!r}")
    # before a copy: a view of one number may be larger than the memory
    if given.shape != present[name].shape:
        raise ParameterError(f"weight {name!r} has shape {present[name].shape}, not {given.shape}.")
    with np.errstate(over="ignore", under="ignore"):
        fresh = given.astype(present[name].dtype)
    if not np.isfinite(fresh).all():
        raise ParameterError(f"weight {name!r} has values that are not finite numbers of {fresh.dtype}.")
    return fresh
