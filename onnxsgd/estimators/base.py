"""The base class of the estimators: parameters, and the steps of a fit."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.utils._param_validation import InvalidParameterError
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from onnxsgd.data.features import check_strings, check_X, n_rows, takes_strings
from onnxsgd.data.samples import Samples
from onnxsgd.data.targets import check_sample_weight
from onnxsgd.data.text import check_texts, has_text, split_text
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.estimators.callbacks import CallbackSupportMixin, FitCallbacks, with_callbacks
from onnxsgd.estimators.fitted import TrainedModel
from onnxsgd.estimators.inner_model import fitted, inner_routing
from onnxsgd.estimators.parameters import CONSTRAINTS
from onnxsgd.estimators.progress import Progress
from onnxsgd.estimators.tags import follow_estimator, follow_graph
from onnxsgd.exceptions import ParameterError
from onnxsgd.learner.dtype_choice import Prepared, choose_precision
from onnxsgd.learner.learner import Learner, ModelOptions, TrainingData, make_learner
from onnxsgd.learner.model_source import GraphSource, read_source
from onnxsgd.learner.score_check import check_inputs, count_scores
from onnxsgd.losses import Loss
from onnxsgd.optimizers import make_optimizer
from onnxsgd.penalties import make_penalty
from onnxsgd.runtime.sessions import check_device
from onnxsgd.schedules import make_schedule
from onnxsgd.training.loop import FitState, Observer, Recipe, adapt_state, fresh_generator, train

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from onnxsgd.training.program import Program

__all__ = ["BaseOnnxSGD", "learns_in_parts"]


def _learns_in_parts(self: BaseOnnxSGD) -> bool:
    if self.early_stopping:
        raise AttributeError(
            "partial_fit is not available with early_stopping=True: it sees one part of the data at a time, "
            "and no validation data."
        )
    return True


#: Decorator of ``partial_fit``, which an estimator with early stopping does not have.
learns_in_parts = available_if(_learns_in_parts)


class BaseOnnxSGD(CallbackSupportMixin, TrainedModel):
    """Base class of the estimators."""

    _parameter_constraints: ClassVar[dict[str, Any]] = CONSTRAINTS

    @with_callbacks
    def fit(
        self,
        X: object,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        X_val: object = None,
        y_val: ArrayLike | None = None,
    ) -> Self:
        """Train the weights, from those of `model`, or from the present ones with ``warm_start=True``.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, or dict of arrays
            The training data: one array, or one for each input of the graph.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            The targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples, >= 0; None: 1 for each. A scikit-learn model that is fitted first gets
            them too, if it supports them.
        X_val, y_val : like X and y, default=None
            Validation data, scored after each epoch. With ``early_stopping=True`` they replace the share
            `validation_fraction` of the training data.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ConvergenceError
            If the loss or a weight is no longer finite. The estimator keeps the last finite weights.
        MissingRuntimeError
            If `device` names a GPU that the installed onnxruntime cannot use.
        EngineError
            If the memory of the GPU does not hold the data.
        """
        self._check_parameters()
        resuming = bool(self.warm_start) and hasattr(self, "_state")
        with self._unchanged_by_errors():
            samples = self._read_samples(X, y, sample_weight, resuming=resuming)
            validation = self._read_validation(X_val, y_val)
            initial = self._state.weights() if resuming else self._learner.initial_weights()
            self._state = self._fresh_state(initial)
            if self.early_stopping and validation is None:
                samples, validation = self._hold_out(samples)
        self.n_iter_ = 0
        callbacks = FitCallbacks(self, self.max_iter, X, y, sample_weight)
        callbacks.fit_begins()
        self._train(samples, validation, self.max_iter, self.tol, callbacks, is_fit=True)
        callbacks.fit_ends()
        return self

    def _partial_fit(
        self, X: object, y: ArrayLike, sample_weight: ArrayLike | None, classes: ArrayLike | None = None
    ) -> Self:
        self._check_parameters()
        resuming = hasattr(self, "_state")
        with self._unchanged_by_errors():
            samples = self._read_samples(X, y, sample_weight, resuming=resuming, classes=classes)
            if not resuming:
                self._state = self._fresh_state(self._learner.initial_weights())
                self.n_iter_ = 0
            # a schedule that needs the number of updates is refused before anything changes
            self._make_recipe(frozenset()).for_updates(self._state.n_updates)
        self._train(samples, None, 1, None)
        return self

    def export_training_step(self, path: str | os.PathLike[str]) -> Path:
        """Write the training step as a standard ONNX file, for training with any runtime, in any language.

        One run of the graph is one update: forward pass, loss, backward pass, penalty, optimizer. Training
        continues from the state of this estimator, and with the same batches gives the same losses.

        Parameters
        ----------
        path : str or path-like
            The file of the graph, which ends in ``.onnx``. Beside it are written a manifest, which ends in
            ``.json`` and describes each input, with a formula for each number that changes from update to
            update, and the present values of weights and states, in ``.bin``.

        Returns
        -------
        pathlib.Path
            The path of the manifest.

        Raises
        ------
        ParameterError
            If `path` has another suffix.
        NotTrainableError
            If the portable engine, which alone writes standard operators, cannot differentiate the graph.
        UnsupportedError
            If the graph holds operators that are not standard ones, or if the rate of the schedule has no
            formula.

        Notes
        -----
        Batches have `batch_size` rows; with vectorizers of text, rows of their features. Trained weights can
        be put into the graph of :meth:`to_onnx`, or into this estimator with :meth:`set_weights`, under their
        names.
        """
        check_is_fitted(self)
        from onnxsgd.training.step_export import export_step

        recipe = self._make_recipe(frozenset(self._learner.weights) - self._learner.intercepts)
        recipe = recipe.for_updates(self._state.n_updates)
        return export_step(
            path, self._learner, recipe, self._make_loss(), self._n_outputs, self.batch_size, self._state
        )

    def get_metadata_routing(self) -> Any:
        """Return the routing of metadata to this estimator and to the scikit-learn model inside it.

        Returns
        -------
        MetadataRequest or MetadataRouter
            See the user guide of scikit-learn, "Metadata Routing".
        """
        return inner_routing(self) if hasattr(self.model, "fit") else super().get_metadata_routing()

    def _with_tags_inside(self, tags: Any) -> Any:
        """Return scikit-learn's tags, those of the model inside as far as they are known."""
        if hasattr(self.model, "__sklearn_tags__"):
            followed = follow_estimator(tags, self.model)
            # pipelines do not declare that they take text
            followed.input_tags.string |= has_text(self.model)
            return followed
        return follow_graph(tags, self._learner) if hasattr(self, "_learner") else tags

    # Methods that differ between the two estimators.

    @abstractmethod
    def _read_target(self, y: ArrayLike, resuming: bool, classes: ArrayLike | None) -> tuple[np.ndarray, int]:
        """Check `y`; return it as a table, or as labels, and the number of outputs of a new layer."""

    @abstractmethod
    def _accept_learner(self, learner: Learner, y: np.ndarray, n_outputs: int) -> Learner:
        """Check that a learner of `n_outputs` outputs fits `y`."""

    @abstractmethod
    def _encode(self, y: np.ndarray) -> np.ndarray:
        """Return the target as the table that the loss takes."""

    @abstractmethod
    def _make_loss(self) -> Loss:
        """Return the loss as an object."""

    @abstractmethod
    def _score_raw(self, raw: np.ndarray, y: np.ndarray, sample_weight: np.ndarray) -> float:
        """Return the score of raw predictions, the higher the better."""

    @abstractmethod
    def _check_scorable(self, y: np.ndarray, name: str) -> None:
        """Refuse validation targets without a score; `name` is their source."""

    @abstractmethod
    def _split(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows to train on and those to validate on."""

    # The steps of a fit.

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        """Restore the estimator if its data or its model are refused."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _check_parameters(self) -> None:
        try:
            self._validate_params()
        except InvalidParameterError as error:
            raise ParameterError(str(error)) from None
        check_device(self.device)
        self._make_recipe(frozenset())

    def _read_samples(
        self,
        X: object,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        *,
        resuming: bool,
        classes: ArrayLike | None = None,
    ) -> Samples:
        """Check the training data, and make the learner unless training resumes; drop rows of weight zero."""
        if y is None:
            raise ParameterError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y is None."
            )
        source = None if resuming else read_source(self.model)
        if resuming:
            checked = self._check_again(X)
        elif has_text(source):
            X = checked = check_texts(self, X, model=source, reset=True)
        elif isinstance(source, GraphSource) and takes_strings(source.model.graph.inputs):
            checked = check_strings(self, X, reset=True)
        else:
            # support for NaN as missing value is known only after the conversion
            checked = check_X(self, X, reset=True, allow_nan=self.model is not None)
        target, n_outputs = self._read_target(y, resuming, classes)
        if not isinstance(checked, dict):
            check_consistent_length(target, checked)
        weight = check_sample_weight(sample_weight, target)
        if not resuming:
            given_weight = None if sample_weight is None else weight
            checked = self._make_learner(source, X, checked, y, target, n_outputs, given_weight)
        features = self._learner.read(X, checked)
        if len(target) != n_rows(features):
            raise ParameterError(f"X has {n_rows(features)} samples and y has {len(target)}.")
        return Samples(features, target, weight).without_zeros()

    def _make_learner(
        self,
        source: object,
        X: object,
        checked: object,
        y: ArrayLike,
        target: np.ndarray,
        n_outputs: int,
        sample_weight: np.ndarray | None,
    ) -> Any:
        """Make the learner; return the data for its graph: of texts, the features."""
        if hasattr(source, "fit"):
            source = fitted(source, X, y, sample_weight, self)
        text = None
        if has_text(source):
            text, source = split_text(source, X)
            checked = text.features(X)

        def prepare(dtype: str | None) -> Prepared:
            options = ModelOptions(self._task, self.output, self.head, self.trainable, self.engine, dtype)
            learner = make_learner(source, TrainingData(checked), n_outputs, options)
            graph = self._make_score_graph(learner)
            check_inputs(learner)
            features = learner.read(X, checked)
            return Prepared(learner, graph, features, count_scores(graph, learner, features))

        prepared = choose_precision(self.dtype, source, checked, prepare)
        self._score_graph, self._n_outputs = prepared.graph, prepared.n_outputs
        learner = self._accept_learner(prepared.learner, target, self._n_outputs)
        self._learner = learner if text is None else replace(learner, text=text)
        return checked

    def _engine_in_use(self) -> str:
        from onnxsgd.gradient.engines import resolve_engine

        return resolve_engine(self.engine)

    def _fresh_state(self, weights: dict[str, np.ndarray]) -> FitState:
        schedule = self._make_recipe(frozenset()).schedule
        tensors = {(name, WEIGHT): np.array(array) for name, array in weights.items()}
        return FitState(tensors, eta=schedule.initial, random_state=fresh_generator(self.random_state))

    def _make_recipe(self, penalised: frozenset[str]) -> Recipe:
        return Recipe(
            optimizer=make_optimizer(self.optimizer, self.momentum, self.nesterov),
            schedule=make_schedule(self.learning_rate, self.eta0, self.power_t, self.alpha),
            penalty=make_penalty(self.penalty, self.alpha, self.l1_ratio),
            average_from=int(self.average),
            shuffle=bool(self.shuffle),
            penalised=penalised,
        )

    def _read_validation(self, X_val: object, y_val: ArrayLike | None) -> Samples | None:
        if (X_val is None) != (y_val is None):
            raise ParameterError("X_val and y_val go together: one of them is None.")
        if y_val is None:
            return None
        checked = self._check_again(X_val)
        target, _ = self._read_target(y_val, True, None)
        features = self._learner.read(X_val, checked)
        if len(target) != n_rows(features):
            raise ParameterError(f"X_val has {n_rows(features)} samples and y_val has {len(target)}.")
        self._check_scorable(target, "y_val")
        return Samples(features, target, np.ones(len(target)))

    def _hold_out(self, samples: Samples) -> tuple[Samples, Samples]:
        """Return the samples to train on, in their original order, and those to validate on."""
        share = f"validation_fraction={self.validation_fraction!r} of {len(samples.target)} samples"
        try:
            rows, held_out = self._split(samples.target)
        except ValueError as error:
            raise ParameterError(
                f"{share} cannot be held out: {error} Give X_val and y_val, or another fraction."
            ) from None
        validation = samples.take(held_out)
        self._check_scorable(validation.target, share)
        return samples.take(np.sort(rows)), validation

    def _train(
        self,
        samples: Samples,
        validation: Samples | None,
        max_iter: int,
        tol: float | None,
        *observers: Observer,
        is_fit: bool = False,
    ) -> None:
        from onnxsgd.training.program import make_program

        # resolved at each call: an estimator may come from a machine with another runtime
        self.engine_ = self._engine_in_use()
        samples = samples.weighted_by(self._extra_weight(samples.target)).without_zeros()
        learner = self._learner
        recipe = self._make_recipe(frozenset(learner.weights) - learner.intercepts)
        program = make_program(
            learner, recipe, self._make_loss(), self.engine_, self._n_outputs, self.batch_size,
            self.n_threads, samples.features, check_device(self.device),
        )  # fmt: skip
        adapt_state(self._state, recipe)
        batches = program.batches(samples.features, self._encode(samples.target), samples.weight)
        if is_fit:
            self._state.n_updates = max_iter * batches.n_batches
        recipe = recipe.for_updates(self._state.n_updates)
        runners = program.runners(self._state.tensors, batches, max_iter)
        progress = Progress(int(self.verbose), max_iter)
        try:
            self.n_iter_ += train(
                runners, batches, recipe, self._state, max_iter=max_iter, tol=tol,
                n_iter_no_change=self.n_iter_no_change, score=self._scorer(program, validation),
                stop_on_score=bool(self.early_stopping), observers=(*observers, progress),
            )  # fmt: skip
        finally:
            progress.close()
            self._publish()

    def _extra_weight(self, target: np.ndarray) -> np.ndarray:
        return np.ones(len(target))

    def _scorer(self, program: Program, validation: Samples | None) -> Any:
        if validation is None:
            return None
        features = program.tail_features(validation.features)
        return lambda weights: self._score_raw(
            self._table(program.tail.run(features, weights)), validation.target, validation.weight
        )
