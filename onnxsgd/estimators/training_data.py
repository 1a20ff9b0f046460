"""The half of the base class that reads training data, and makes the learner for them."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_consistent_length, validate_data

from onnxsgd.data.columns import NUMBERS, column_kinds, column_names, is_mapping, with_numbers
from onnxsgd.data.dense_targets import shape_of_samples
from onnxsgd.data.features import Features, check_strings, check_X, n_rows, takes_strings
from onnxsgd.data.refusals import check_lengths, naming_validation
from onnxsgd.data.row_tables import are_many, evenly
from onnxsgd.data.samples import Samples
from onnxsgd.data.sequences import Ragged, Sequences, check_targets, gather, is_one_array, read_sequences
from onnxsgd.data.targets import check_sample_weight
from onnxsgd.data.text import check_texts, has_text, split_text
from onnxsgd.estimators.between_calls import read_graph_parameters, refuse_new_graph
from onnxsgd.estimators.fitted import TrainedModel
from onnxsgd.estimators.inner_model import fitted, is_fitted
from onnxsgd.exceptions import GraphError, ParameterError
from onnxsgd.learner.build import ModelOptions
from onnxsgd.learner.dtype_choice import prepare_learner
from onnxsgd.learner.model_source import GraphSource, read_source
from onnxsgd.learner.score_check import shape_of_scores
from onnxsgd.runtime.events import decided
from onnxsgd.runtime.stages import stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir
    from numpy.typing import ArrayLike

    from onnxsgd.adapters import LoRA
    from onnxsgd.graph.reading.trainable import Trainable

__all__ = ["TrainingDataReader"]


class TrainingDataReader(TrainedModel):
    """The half of the base class that works before training."""

    output: str | int | None
    head: str | None
    trainable: Trainable
    adapter: LoRA | None
    engine: str
    dtype: str | None
    batch_norm: str | None
    dropout: float | None

    # Methods that differ between the two estimators.

    @abstractmethod
    def _read_target(
        self, y: ArrayLike, resuming: bool, classes: ArrayLike | None, in_parts: bool = False
    ) -> tuple[np.ndarray, int]:
        """Check `y`; return it as a table, or as labels, and the number of outputs of a new layer."""

    @abstractmethod
    def _read_plain_target(self, y: np.ndarray, classes: ArrayLike | None) -> np.ndarray | None:
        """Return the targets of a later call if few looks find no fault, and all count; else None."""

    @abstractmethod
    def _check_learner(self, y: np.ndarray, in_parts: bool) -> None:
        """Check that the new learner fits `y`, which may be a part of the data."""

    @abstractmethod
    def _check_scorable(self, y: np.ndarray, name: str) -> None:
        """Refuse validation targets without a score; `name` is their source."""

    @abstractmethod
    def _split(self, y: np.ndarray, random_state: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows to train on and those to validate on."""

    def _read_samples(
        self,
        X: object,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None,
        *,
        resuming: bool,
        classes: ArrayLike | None = None,
        in_parts: bool = False,
        held_out_by: np.random.RandomState | None = None,
    ) -> Samples:
        """Check the training data, and make the learner unless training resumes; drop rows of weight zero.

        A model inside that is not fitted is fitted on them, without the rows that the generator `held_out_by`
        chooses, if there is one, as :meth:`_hold_out` will.
        """
        y = self._require_target(X, y)
        if (resuming or self._set_before) and self._given is not None:
            refuse_new_graph(self, self._given)
        source = None if resuming else self._read_source()
        features = self._read_table(X) if resuming else None
        if features is not None and isinstance(X, np.ndarray):
            if sample_weight is None and type(y) is np.ndarray and y.shape[:1] == X.shape[:1]:
                known = self._read_plain_target(y, classes)
                if known is not None:
                    return Samples(features, known, evenly(1.0, len(known)))
            checked = X
        else:
            X = self._of_one_length(X, source, resuming)
            checked = self._check_again(X) if resuming else self._check_first(X, source)
            if resuming and self._follows_lengths:
                self._resize(self._learner.read(X, checked))
        check_lengths(checked, y)
        target, n_outputs = self._read_target(y, resuming, classes, in_parts)
        if not isinstance(checked, dict) and not (
            isinstance(checked, np.ndarray) and len(checked) == len(target)
        ):
            check_consistent_length(target, checked)
        weight = check_sample_weight(sample_weight, target)
        if resuming:
            if features is None:
                features = self._learner.read(X, checked)
                self._check_sizes(features, "X")
        else:
            data = checked if has_text(source) else X
            if hasattr(source, "fit"):
                weight = self._without_ignored(weight, target, in_parts)
                plain = sample_weight is None and bool(weight.all())
                rows = None
                if held_out_by is not None:
                    counting = np.flatnonzero(weight)
                    kept = np.sort(self._split_rows(target[counting], held_out_by)[0])
                    rows = self._with_all_classes(counting[kept], counting, self._inner_target(y, target))
                with stage("inner fit"):
                    source = fitted(
                        source, data, self._inner_target(y, target), None if plain else weight, self, rows
                    )
            features = self._make_learner(source, data, checked, n_outputs, target)
            self._add_scores(features, target, weight)
            target = self._settle_target(y, target)
            self._check_learner(target, in_parts)
            self._given = read_graph_parameters(self)
            self._start = None
        if len(target) != n_rows(features):
            raise ParameterError(f"X has {n_rows(features)} samples and y has {len(target)}.")
        counting = self._without_ignored(weight, target, in_parts)
        samples = Samples(features, target, counting)
        return samples if sample_weight is None and counting is weight else samples.without_zeros()

    def _read_table(self, X: object) -> Features | None:
        """Return the data of a later call for the graph: one look for the common case; else None.

        The case: a table of numbers, finite in the type of the only input of the graph, which takes tables,
        with the columns of the first call, and without names of columns. All checks then pass.
        """
        if type(X) is not np.ndarray or X.ndim != 2 or self._text is not None or self._is_dense:
            return None
        known, table_input = self.__dict__, self._learner.table_input
        if table_input is None or "feature_names_in_" in known or known.get("n_features_in_") != X.shape[1]:
            return None
        table = table_input.read(X)
        return None if table is None else {table_input.name: table}

    def _read_source(self) -> Any:
        with stage("convert"):
            return read_source(self.model)

    def _require_target(self, X: object, y: ArrayLike | None) -> ArrayLike:
        """Return the targets; refuse a call without, and say what the entries of a dictionary are."""
        if y is not None:
            return y
        message = f"This {type(self).__name__} estimator requires y to be passed, but the target y is None"
        if not is_mapping(X):
            raise ParameterError(f"{message}.")
        source = read_source(self.model)
        inputs = [str(v.name) for v in source.model.graph.inputs] if isinstance(source, GraphSource) else []
        taken = f", {inputs}," if inputs else ""
        raise ParameterError(
            f"{message}. X is a dictionary of {column_names(X)}: it holds an array for each input of the "
            f"graph{taken} and no targets. Give them as y, or X as a list of such dictionaries, batches with "
            "their targets under 'y'."
        )

    def _settle_target(self, y: ArrayLike, target: np.ndarray) -> np.ndarray:
        """Return the checked target once the shape of raw predictions is known."""
        return target

    def _counted(self, target: np.ndarray) -> np.ndarray | None:
        """Tell of each sample whether anything of its target counts; None if all do."""
        return None

    def _with_all_classes(self, rows: np.ndarray, all_rows: np.ndarray, y: ArrayLike) -> np.ndarray:
        """Return the rows for the fit of a model inside, which must know each class."""
        return rows

    def _inner_target(self, y: ArrayLike, target: np.ndarray) -> ArrayLike:
        """Return the target of the first fit of a model inside."""
        return y

    def _without_ignored(self, weight: np.ndarray, target: np.ndarray, in_parts: bool) -> np.ndarray:
        """Return the weights of the samples, 0 where nothing of the target counts.

        A part of a stream in which nothing counts keeps them: nothing is learned from it.
        """
        counted = self._counted(target)
        if counted is None:
            return weight
        counting: np.ndarray = weight * counted
        if counting.any():
            return counting
        if in_parts:
            return weight
        raise ParameterError(
            "Nothing of y counts in the loss: all labels of samples with a positive weight are its "
            "ignore_index."
        )

    def _check_first(self, X: object, source: Any, reset: bool = True) -> Any:
        """Return the checked data of a first call."""
        if has_text(source):
            return check_texts(self, X, model=source, reset=True)
        if isinstance(source, GraphSource) and takes_strings(source.model.graph.inputs):
            return check_strings(self, X, reset=True)
        if reset:
            _check_names(source, X)
        # support for NaN as missing value is known only after the conversion
        inputs = source.model.graph.inputs if isinstance(source, GraphSource) else None
        return check_X(self, X, reset=reset, allow_nan=self.model is not None, inputs=inputs)

    def _make_learner(
        self, source: Any, X: object, checked: Any, n_outputs: int, target: np.ndarray | None = None
    ) -> Features:
        """Make the learner; return the data for its graph. There is no target before predictions alone."""
        self._text = None
        if has_text(source):
            self._text, source = split_text(source, X)
            checked = self._text.features(X)
        options = ModelOptions(
            task=self._task, output=self.output, head=self.head, trainable=self.trainable,
            engine=self.engine, dtype=self.dtype, link=self._link, adapter=self.adapter,
            batch_norm=self.batch_norm, dropout=self.dropout,
        )  # fmt: skip
        numbers = target if self._task == "regression" else None
        with stage("convert"):
            prepared = prepare_learner(source, X, checked, n_outputs, options, self.n_threads, numbers)
        if (earlier := self.__dict__.get("_learner")) is not None and earlier is not prepared.learner:
            earlier.forget()
        self._learner, self._n_outputs = prepared.learner, prepared.n_outputs
        kind = "ONNX graph" if isinstance(source, GraphSource) else type(source).__name__
        n_trained = len(self._learner.weights)
        decided("model", "%s: %d trained tensors", "linear model" if source is None else kind, n_trained)
        self._score_shape = prepared.score_shape
        self._row_shapes = _row_shapes(prepared.features)
        return prepared.features

    def _check_sizes(self, features: Features, name: str) -> None:
        """Refuse samples whose raw predictions have other sizes than those of the first call."""
        if not self._is_dense or self._row_shapes == _row_shapes(features):
            return
        shape, known = shape_of_scores(self._learner, features, self.n_threads), self._score_shape or ()
        if shape != known:
            raise GraphError(
                f"The graph turns {name} into raw predictions of shape {shape_of_samples(shape)}, and the "
                f"data of the first call into {shape_of_samples(known)}: training needs samples of one size. "
                "Predictions may have any."
            )

    def _add_scores(self, features: Features, target: np.ndarray, weight: np.ndarray) -> None:
        """Give the new learner further scores, if the loss needs more than the model has."""

    def _gathered(self, X: object) -> Any:
        """Return lists of arrays as arrays or as sequences; documents of a vectorizer may be lists too."""
        # the common case: one look
        return X if is_one_array(X) or self._may_hold_texts(X) else gather(X)

    def _may_hold_texts(self, X: object) -> bool:
        """Tell whether lists in `X` may be documents of a vectorizer."""
        # the search of a model for vectorizers takes as long as the checks of a short call
        return not is_one_array(X) and hasattr(self.model, "fit") and has_text(self.model)

    def _sequences_of(self, X: object, source: object = None, resuming: bool = True) -> Any:
        """Return the result of :func:`read_sequences` for the graph, if documents are none of its data."""
        if self._may_hold_texts(X):
            return X
        return read_sequences(X, self._graph_inputs(source, resuming))

    def _graph_inputs(self, source: object, resuming: bool = True) -> Sequence[ir.Value] | None:
        """Return the inputs of the graph that takes the data; None: vectorizers, or a model, take them."""
        if resuming:
            return None if self._text is not None else self._learner.inputs
        return list(source.model.graph.inputs) if isinstance(source, GraphSource) else None

    def _of_one_length(self, X: object, source: object, resuming: bool) -> Any:
        """Return lists of arrays as arrays, with a mask where the graph has one that is not given."""
        found = self._sequences_of(X, source, resuming)
        if not isinstance(found, Sequences):
            return found
        if not found.is_padded and np.ptp(found.lengths, axis=0).any():
            raise ParameterError(
                f"A batch has sequences of {found.lengths.min()} to {found.lengths.max()} elements, and the "
                "graph has no input 'mask' that tells padding: batches of an iterable have one length there."
            )
        return found.arrays(np.arange(len(found)))

    def _read_validation(self, X_val: object, y_val: ArrayLike | None) -> tuple[Samples, ...]:
        """Check validation data; return those of each length; none if they are not given."""
        if (X_val is None) != (y_val is None):
            raise ParameterError("X_val and y_val go together: one of them is None.")
        if y_val is None:
            return ()
        with naming_validation():
            found = self._sequences_of(X_val)
            if isinstance(found, Sequences):
                targets = gather(y_val, "y_val", "biufUOS")
                targets = targets if isinstance(targets, Ragged) else np.asarray(targets)
                check_targets(found, targets, "X_val", "y_val")
                return self._read_groups(found, targets, None, "y_val")
            checked = self._check_again(found)
            target, _ = self._read_target(y_val, True, None)
            features = self._learner.read(found, checked)
        self._check_sizes(features, "X_val")
        if len(target) != n_rows(features):
            raise ParameterError(f"X_val has {n_rows(features)} samples and y_val has {len(target)}.")
        self._check_scorable(target, "y_val")
        return (Samples(features, target, np.ones(len(target))),)

    def _read_groups(
        self, sequences: Sequences, y: np.ndarray | Ragged, sample_weight: np.ndarray | None, name: str
    ) -> tuple[Samples, ...]:
        """Return checked validation data of each length; `name` is the source of the targets."""
        weight, groups = np.ones(len(y)) if sample_weight is None else sample_weight, []
        for rows in sequences.groups():
            arrays = sequences.arrays(rows)
            features = self._learner.read(arrays, self._check_again(arrays))
            if self._follows_lengths:
                self._resize(features)
            part = y.take(rows, axis=0)
            table = part.padded(int(part.lengths[0])) if isinstance(part, Ragged) else part
            groups.append(Samples(features, self._read_target(table, True, None)[0], weight[rows]))
        targets = [part.target for part in groups]
        is_even = len({target.shape[1:] for target in targets}) == 1
        joined = np.concatenate(targets if is_even else [target.reshape(-1) for target in targets])
        self._check_scorable(joined, name)
        return tuple(groups)

    def _resize(self, features: Features) -> None:
        """Take over the sizes of samples of another length, whose elements have targets."""
        if self._is_dense and self._row_shapes != (shapes := _row_shapes(features)):
            shape = shape_of_scores(self._learner, features, self.n_threads)
            self._score_shape, self._n_outputs, self._row_shapes = shape, math.prod(shape), shapes

    def _hold_out(self, samples: Samples) -> tuple[Samples, tuple[Samples]]:
        """Return the samples to train on, in their original order, and those to validate on."""
        rows, held_out, share = self._split_rows(samples.target, self._state.random_state)
        if are_many(samples.target):
            # read in the order of the file
            held_out.sort()
        validation = samples.take(held_out)
        self._check_scorable(validation.target, share)
        rows.sort()
        return samples.take(rows), (validation,)

    def _split_rows(
        self, target: np.ndarray, random_state: np.random.RandomState
    ) -> tuple[np.ndarray, np.ndarray, str]:
        """Return the rows to train on, those to validate on, and the name of their share."""
        share = f"validation_fraction={self.validation_fraction!r} of {len(target)} samples"
        try:
            rows, held_out = self._split(target, random_state)
        except ValueError as error:
            raise ParameterError(
                f"{share} cannot be held out: {error} Give X_val and y_val, or another fraction."
            ) from None
        return rows, held_out, share


def _check_names(model: Any, X: object) -> None:
    """Refuse a frame of numbers with other columns, or another order, than a fitted model was trained on.

    Columns of other frames are found by their names.
    """
    if not hasattr(model, "feature_names_in_") or is_mapping(X):
        return
    if column_names(X) is None:
        # a table of pyarrow has names for scikit-learn alone
        are_numbers = hasattr(X, "column_names")
    else:
        are_numbers = NUMBERS.issuperset(column_kinds(with_numbers(X)).values())
    if are_numbers and is_fitted(model):
        validate_data(model, X, reset=False, skip_check_array=True)


def _row_shapes(features: Features) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape[1:]) for name, array in features.items()}
