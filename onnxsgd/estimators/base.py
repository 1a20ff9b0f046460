"""The base class of the estimators: parameters, and the steps of a fit."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from functools import cache, partial
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.utils.metaestimators import available_if

from onnxsgd._settable import RefusedChange, Settable
from onnxsgd.data.batch_source import BatchSource, is_batch_source
from onnxsgd.data.columns import column_names
from onnxsgd.data.features import Features, take_rows
from onnxsgd.data.generators import copied, make_generator
from onnxsgd.data.moments import quiet_squares
from onnxsgd.data.refusals import naming_validation
from onnxsgd.data.row_tables import are_many, row_blocks
from onnxsgd.data.samples import Samples
from onnxsgd.data.sequences import holds_sequences, is_one_array
from onnxsgd.data.text import has_text
from onnxsgd.estimators.attempt import Attempt
from onnxsgd.estimators.between_calls import is_same
from onnxsgd.estimators.callbacks import CallbackSupportMixin, FitCallbacks, with_callbacks
from onnxsgd.estimators.file_data import from_files, known_columns
from onnxsgd.estimators.fit_report import RecordedFit
from onnxsgd.estimators.inner_model import has_own_fit, inner_routing
from onnxsgd.estimators.labels import UnknownClassesError
from onnxsgd.estimators.parameters import (
    CONSTRAINTS,
    are_fixed,
    check_parameters,
    make_recipe,
    parameter_values,
    read_every,
    refuse_without_parameters,
    values_of_updates,
)
from onnxsgd.estimators.progress import Progress
from onnxsgd.estimators.sequence_fit import SequenceTraining
from onnxsgd.estimators.shared import in_turn, settled_attributes
from onnxsgd.estimators.tags import follow_estimator, follow_graph
from onnxsgd.exceptions import ParameterError
from onnxsgd.graph.reading.output_layer import NO_LAYER
from onnxsgd.learner.model_source import refuse_circle
from onnxsgd.runtime.cores import resolve_jobs
from onnxsgd.runtime.device import check_device
from onnxsgd.runtime.events import decide_anew, decided
from onnxsgd.runtime.stages import stage
from onnxsgd.training.fit_plan import DENSE_ROWS, FitPlan, Recipe
from onnxsgd.training.jumps import is_left_out, renew
from onnxsgd.training.loop import Observer, train
from onnxsgd.training.rate_multipliers import read_multipliers, refuse_freezing
from onnxsgd.training.state import adapt_state, fresh_state
from onnxsgd.training.stopping import Stopping
from onnxsgd.training.update_norms import UpdateNorms

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from onnxsgd.engine.step.batches import Batches
    from onnxsgd.estimators.checkpointing import FitCheckpoints
    from onnxsgd.losses import Loss
    from onnxsgd.runtime.device import Device
    from onnxsgd.training.checkpoints import Checkpoints
    from onnxsgd.training.epochs import Runners
    from onnxsgd.training.kept_state import KeptState
    from onnxsgd.training.program import Program

__all__ = ["BaseOnnxSGD", "learns_in_parts"]


def _learns_in_parts(self: BaseOnnxSGD) -> bool:
    if self.early_stopping:
        raise AttributeError(
            "partial_fit is not available with early_stopping=True: it sees one part of the data at a time, "
            "and no validation data."
        )
    return True


#: The most plans of a graph that are kept: a bound of memory.
_MOST_PLANS = 32
#: The end of a call of ``partial_fit``.
_ONE_PART = Stopping(max_iter=1, tol=None, in_parts=True)
#: Decorator of ``partial_fit``, which an estimator with early stopping does not have.
learns_in_parts = available_if(_learns_in_parts)


class BaseOnnxSGD(CallbackSupportMixin, SequenceTraining):
    """Base class of the estimators."""

    _parameter_constraints: ClassVar[dict[str, Any]] = CONSTRAINTS
    #: The seed of the present order of the samples, as a tuple; None in estimators saved without it.
    _seed: tuple[Any] | None = None
    #: The plan of the last call of ``partial_fit``, with the values of the parameters that it was made from.
    _known_plan: tuple[tuple[Any, ...], FitPlan] | None = None
    #: True of clones with checkpoints.
    _is_clone: bool = False

    @in_turn
    @with_callbacks
    def fit(
        self,
        X: object,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        X_val: object = None,
        y_val: ArrayLike | None = None,
        resume: bool = False,
    ) -> Self:
        """Train the weights, from those of `model`, or from the present ones with ``warm_start=True``.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, list or dict of arrays
            The training data: one array, or one for each input of the graph. A list of arrays, one for each
            sample, holds sequences if their first axes differ: batches are padded with 0 where the graph
            has an input for a mask, and have one length elsewhere. Or an iterable of batches
            ``(X, y)``, ``(X, y, sample_weight)`` or dictionaries: a list, a ``DataLoader`` of torch, a data
            set of Hugging Face, a generator. Each batch is an update (several with a smaller `batch_size`),
            as in ``partial_fit``, and each pass an epoch. Or files, whose rows are written once to a
            temporary file: the path of one or of a folder of them (Parquet, CSV with a line of names, Arrow),
            a ``pyarrow.dataset.Dataset`` or ``Scanner``, an array of HDF5 or Zarr. All columns but those of
            targets and weights are features, or those that a fitted `model` names.
        y : array-like of shape (n_samples,), (n_samples, n_outputs) or (n_samples, ...), or str or list of \
                str, default=None
            The targets; of several axes where the graph gives numbers, or scores, for each element of a
            sample, and a list of arrays where these differ in length. None for an iterable of batches. For
            files also the name of a column, or of several.
        sample_weight : array-like of shape (n_samples,) or str, default=None
            Weights of the samples, >= 0; None: 1 for each. For files also the name of a column. A
            scikit-learn model that is fitted first gets them too, if it supports them.
        X_val, y_val : like X and y, default=None
            Validation data, scored after each epoch. With ``early_stopping=True`` they replace the share
            `validation_fraction` of the training data.
        resume : bool, default=False
            Whether to continue from the last file in the folder `checkpoint`, which a fit with the same
            parameters and data has written; the fit begins where there is none.

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
        OSError
            If the folder for temporary files does not hold the rows of files.
        """
        recipe = self._check_parameters()
        return RecordedFit(self).run(self._fit_files, recipe, X, y, sample_weight, X_val, y_val, resume)

    def _fit_files(
        self,
        recipe: Recipe,
        X: object,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None,
        X_val: object,
        y_val: ArrayLike | None,
        resume: bool,
    ) -> Self:
        """Train on data of all kinds, files too."""
        with stage("read"):
            columns = known_columns(self.model)
            X, y, sample_weight = from_files(self, X, y, sample_weight, columns=columns)
            with naming_validation():
                X_val, y_val, _ = from_files(self, X_val, y_val, columns=column_names(X))
        return self._fit(recipe, X, y, sample_weight, X_val, y_val, resume)

    def _fit(
        self,
        recipe: Recipe,
        X: object,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None,
        X_val: object,
        y_val: ArrayLike | None,
        resume: bool,
    ) -> Self:
        """Train on data in memory, memory maps, or batches."""
        checkpoints = self._checkpoints(
            resume, X=X, y=y, sample_weight=sample_weight, X_val=X_val, y_val=y_val
        )
        source, batches = self._batch_source(X, y, sample_weight, X_val), None
        X = self._gathered(X) if source is None else X
        has_sequences = source is None and holds_sequences(X)
        if source is not None or has_sequences:
            recipe = recipe.for_parts()
        with Attempt(self) as kept_state:
            if checkpoints is not None and checkpoints.continues:
                checkpoints.restore()
                if checkpoints.has_ended:
                    return self
            continues = checkpoints is not None and checkpoints.continues
            resuming = (bool(self.warm_start) or continues) and hasattr(self, "_state")
            if not self.warm_start:
                self._set_before = {}
            if not resuming:
                self._forget_lengths()
            # a model inside that is fitted first must not see the rows that are held out
            generator = None
            if self.early_stopping and X_val is None and not resuming and has_own_fit(self.model):
                generator = make_generator(self.random_state)
            with stage("read"):
                if has_sequences:
                    batches = self._sequence_batches(X, y, sample_weight, resuming)
                    samples = self._read_first_sequences(batches, resuming)
                elif source is None:
                    samples = self._read_samples(
                        X, y, sample_weight, resuming=resuming,
                        held_out_by=None if generator is None else copied(generator),
                    )  # fmt: skip
                else:
                    samples = self._read_first_batch(source, resuming)
                validation = self._read_validation(X_val, y_val)
            initial = self._state.weights() if resuming else self._first_weights()
            self._set_before = {}
            seed = self.random_state if generator is None else 0
            self._state = fresh_state(initial, recipe.schedule.initial, seed)
            if generator is not None:
                self._state.random_state = generator
            kept_state = kept_state.of_fit(initial)
            self._seed = (self.random_state,)
            kept = (
                None
                if checkpoints is None
                else checkpoints.begin(self._state, has_all_data=source is None and batches is None)
            )
            holds_out = self.early_stopping and not validation
            if batches is not None:
                if holds_out:
                    batches, validation = self._hold_out_sequences(batches)
                source = self._sequence_source(batches)
            elif source is None and holds_out:
                samples, validation = self._hold_out(samples)
            if source is not None:
                self._count_updates(source, len(samples.target), recipe)
            self._balance(None if batches is None else batches.y)
            plan = self._make_plan(recipe)
            self.n_iter_ = 0
            # numbers of numpy have a largest value, which products exceed
            max_iter, n_idle = int(self.max_iter), int(self.n_iter_no_change)
            callbacks = FitCallbacks(self, max_iter, X, y, sample_weight)
            callbacks.fit_begins()
            stopping = Stopping(max_iter, self.tol, n_idle, bool(self.early_stopping))
            observers = self._observers(stopping, callbacks)
            if source is None:
                self._train(
                    plan, stopping, samples, validation, observers,
                    is_fit=True, kept=kept_state, checkpoints=kept,
                )  # fmt: skip
            else:
                n_rows = len(samples.target)
                self._train_on_batches(
                    source, plan, stopping, n_rows, validation, observers, kept_state, kept
                )
        callbacks.fit_ends()
        return self

    @in_turn
    def _partial_fit(
        self,
        X: object,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None,
        classes: ArrayLike | None = None,
    ) -> Self:
        if y is None and is_batch_source(X):
            return self._partial_fit_batches(self._new_source(X, sample_weight), classes)
        known = self._plan_as_before()
        recipe = self._check_parameters().for_parts() if known is None else known.recipe
        self._check_parts()
        if type(X) is not np.ndarray:
            with stage("read"):
                columns = known_columns(self, self.model)
                X, y, sample_weight = from_files(self, X, y, sample_weight, columns=columns)
        resuming, batches, has_sequences = hasattr(self, "_state"), None, False
        if not is_one_array(X):
            X = self._gathered(X)
            has_sequences = holds_sequences(X)
        with Attempt(self) as kept:
            if not resuming:
                self._forget_lengths()
            with stage("read"):
                if has_sequences:
                    batches = self._sequence_batches(X, y, sample_weight, resuming)
                    samples = self._read_first_sequences(batches, resuming, classes, in_parts=True)
                else:
                    samples = self._read_samples(
                        X, y, sample_weight, resuming=resuming, classes=classes, in_parts=True
                    )
            if not resuming:
                self._state = fresh_state(self._first_weights(), recipe.schedule.initial, self.random_state)
                self.n_iter_, self._set_before = 0, {}
            elif self._seed is not None and not is_same(self._seed[0], self.random_state):
                self._state.random_state = make_generator(self.random_state)
            self._seed = (self.random_state,)
            # a schedule without a length, or at its end, is refused before anything changes
            state = self._state
            if not recipe.is_endless:
                recipe.for_updates(state.n_updates, state.epoch_updates).check_rate(state.t + 1, state.eta)
            plan = known
            if plan is None or plan.n_outputs != self._n_outputs:
                plan = self._make_plan(recipe)
                self._known_plan = (parameter_values(self), plan) if are_fixed(self) else None
            stopping = _ONE_PART
            observers = self._observers(stopping)
            if batches is not None:
                source, n_rows = self._sequence_source(batches), len(samples.target)
                self._train_on_batches(source, plan, stopping, n_rows, (), observers, kept)
            elif self._counts_nothing(samples):
                # averages of gradients and penalties would move the weights
                self._publish()
            else:
                self._train(plan, stopping, samples, observers=observers, kept=kept)
        return self

    def _counts_nothing(self, samples: Samples) -> bool:
        """Tell whether no label of a part of a stream counts."""
        counted = self._counted(samples.target)
        return counted is not None and not counted.any()

    def _partial_fit_batches(self, source: BatchSource, classes: ArrayLike | None) -> Self:
        """Train on each batch as in a call of ``partial_fit``."""
        for number, batch in enumerate(source.epoch()):
            if batch.is_weightless:
                continue
            part = partial(self._partial_fit, batch.X, batch.y, batch.sample_weight)
            try:
                part(classes)
            except UnknownClassesError:
                if not source.is_repeatable:
                    raise
                classes = self._labels_of(source.aside())
                part(classes)
            except ValueError as error:
                error.add_note(f"This was batch {number} of the call, counted from 0.")
                source.advise(error)
                raise
        return self

    def __sklearn_clone__(self) -> Self:
        """Return a clone, which has a folder of its own for checkpoints: searches fit several at once."""
        duplicate: Self = super().__sklearn_clone__()
        if self.checkpoint is not None:
            duplicate._is_clone = True
        return duplicate

    def _checkpoints(self, resume: bool, **data: object) -> FitCheckpoints | None:
        """Return the checkpoints of a fit on these data; None: it has none."""
        every = read_every(self.checkpoint_every)
        if self.checkpoint is None:
            if resume:
                raise ParameterError(
                    f"resume={resume!r} needs the folder of the checkpoints: name it as checkpoint."
                )
            return None
        from onnxsgd.estimators.checkpointing import FitCheckpoints, fingerprint

        if data["y"] is None and (isinstance(data["X"], Iterator) or self.steps_per_epoch is not None):
            raise ParameterError(
                f"checkpoint={self.checkpoint!r} needs batches that begin anew in each epoch, such as a list "
                "or a DataLoader, all of them read: no iterator, and steps_per_epoch=None."
            )
        return FitCheckpoints(self, fingerprint(self, **data), every, bool(resume))

    def _plan_as_before(self) -> FitPlan | None:
        """Return the plan of the last call of ``partial_fit`` if nothing that it depends on has changed."""
        if self._known_plan is None:
            return None
        values, plan = self._known_plan
        is_same_graph = plan.learner is self._learner and plan.n_outputs == self._n_outputs
        if is_same_graph and not self._state.missed and all(map(is_, values, parameter_values(self))):
            return plan
        return None

    def _observers(self, stopping: Stopping, *callbacks: Observer) -> list[Observer]:
        """Return what is called at each epoch."""
        # the norms come first: callbacks see them
        observers: list[Observer] = []
        if self.record_update_norms:
            observers.append(UpdateNorms(True, self._learner.statistics))
        if callbacks:
            observers.extend(observer for observer in callbacks if observer.is_active)
        if self.verbose:
            observers.append(Progress(int(self.verbose), stopping.max_iter, stopping.tol is not None))
        return observers

    def export_training_step(self, path: str | os.PathLike[str]) -> Path:
        """Write the training step as a standard ONNX file, for training with any runtime, in any language.

        One run of the graph is one update: forward pass, loss, backward pass, penalty, optimizer. Training
        continues from the state of this estimator. At a named rate, the same batches give the same losses as
        ``partial_fit``. With ``learning_rate="auto"`` the graph keeps the present scales of columns and
        targets, and the manifest the rate, while ``partial_fit`` updates both: losses are the same where the
        scales are, and differ by about 1 % on further rows after 400 of a stationary stream. Export again
        where the data change.

        Parameters
        ----------
        path : str or path-like
            The file of the graph, which ends in ``.onnx``. Beside it are written a manifest, which ends in
            ``.json`` and describes each input, with a formula for each number that changes from update to
            update, and the present values of weights and states, in ``.bin``. The formula of a rate that
            follows the losses, or a function, is null: its reader computes it.

        Returns
        -------
        pathlib.Path
            The path of the manifest.

        Raises
        ------
        ParameterError
            If `path` has another suffix, or before the first fit with ``learning_rate="auto"``.
        OSError
            If a file cannot be written. Those of an earlier export stay.
        NotTrainableError
            If the portable engine, which alone writes standard operators, cannot differentiate the graph.
        UnsupportedError
            If the graph holds operators that are not standard ones, the rate of the schedule has no formula,
            an update has several batches, or a tensor begins to learn in a later epoch.

        Notes
        -----
        Batches have `batch_size` rows, also where "auto" makes smaller ones of a short call; with vectorizers
        of text, rows of their features. Trained weights can be put into the graph of :meth:`to_onnx`, or into
        this estimator with :meth:`set_weights`, under their names.
        """
        from onnxsgd.training.step_export import export_step

        trained, recipe = self._trained(), make_recipe(self).for_parts()
        is_trained = "_state" in settled_attributes(self)
        if recipe.is_auto and not is_trained:
            raise ParameterError(
                "learning_rate='auto' takes the scale of the data from the first fit, and has no training "
                "step before: name a learning_rate, such as 'constant', or call fit or partial_fit first."
            )
        state, plan = trained._state.copy(), trained._make_plan(recipe)
        # parameters that were changed since act as in the next call
        adapt_state(state, plan)
        plan = plan.for_updates(state.n_updates, state.epoch_updates)
        if not is_trained:
            state.eta = recipe.schedule.initial
        return export_step(path, plan, state, getattr(trained, "classes_", None), trained._row_shapes)

    @in_turn
    def set_params(self, /, **params: object) -> Self:
        """Set parameters, those of parameters too, such as ``loss__epsilon``.

        Parameters
        ----------
        **params : object
            The values by name.

        Returns
        -------
        self : object
            The estimator.

        Raises
        ------
        ParameterError
            If a name is one of a parameter of a parameter that has none. Values that a parameter does not
            accept are refused by ``fit``, as those of the estimator are: a search goes on with its other
            candidates.
        """
        inner: dict[str, dict[str, object]] = {}
        for key, value in params.items():
            name, separator, rest = key.partition("__")
            if separator and name in self._get_param_names():
                given = params.get(name, getattr(self, name))
                refuse_without_parameters(key, name, given)
                if isinstance(given, Settable):
                    inner.setdefault(name, {})[rest] = value
        own = {key: value for key, value in params.items() if key.partition("__")[0] not in inner}
        super().set_params(**own, **{name: params[name] for name in inner if name in params})
        for name, changes in inner.items():
            setattr(self, name, RefusedChange.changed(getattr(self, name), changes))
        return self

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
        if hasattr(self.model, "__sklearn_tags__") and not isinstance(self.model, type):
            refuse_circle(self.model)
            followed = follow_estimator(tags, self.model)
            # pipelines do not declare that they take text
            followed.input_tags.string |= has_text(self.model)
            return followed
        return follow_graph(tags, self._learner) if hasattr(self, "_learner") else tags

    # Methods that differ between the two estimators.

    @abstractmethod
    def _encode(self, y: np.ndarray, loss: Loss) -> np.ndarray:
        """Return the target as the table that `loss`, the one of the plan, takes."""

    @abstractmethod
    def _score_raw(
        self,
        raw: np.ndarray | list[np.ndarray],
        y: np.ndarray | list[np.ndarray],
        sample_weight: ArrayLike | None,
    ) -> float:
        """Return the score of raw predictions, the higher the better."""

    # The steps of a fit.

    def _check_parameters(self) -> Recipe:
        """Check the parameters; return those of the updates as objects."""
        check_parameters(self)
        if check_device(self.device).is_cuda and self.n_jobs not in (None, 1):
            raise ParameterError(
                f"n_jobs={self.n_jobs!r} is not accepted with device={self.device!r}: processes compute on "
                "the CPU. Leave it None."
            )
        return make_recipe(self)

    def _make_plan(self, recipe: Recipe) -> FitPlan:
        """Return the plan of the updates; refuse penalties and rates of weights that the graph lacks.

        Estimators of one graph with the same plain parameters share a plan, and all that follows from it.
        """
        from onnxsgd.gradient.engines import resolve_engine

        # resolved at each call: an estimator may come from a machine with another runtime
        engine, device, loss = resolve_engine(self.engine), check_device(self.device), self._make_loss()
        key = None
        if are_fixed(self) and not self._state.missed:
            values = values_of_updates(self)
            # types tell True from 1
            key = (
                type(self), recipe.in_parts, engine, device, loss, self._n_outputs, self._follows_lengths,
                values, tuple(map(type, values)),
            )  # fmt: skip
        plans = self._learner.plans
        plan = None if key is None else plans.get(key)
        if plan is None:
            plan = self._new_plan(recipe, engine, device, loss)
            if key is not None:
                # a list, as other threads may add to the dictionary meanwhile
                for oldest in list(plans)[: len(plans) + 1 - _MOST_PLANS]:
                    plans.pop(oldest, None)
                plans[key] = plan
        decide_anew()
        is_named = self.engine != "auto"
        reason = "named" if is_named else "'auto' takes it for all graphs, onnxruntime-training by name alone"
        decided("engine", "%s on %s: %s", plan.engine, str(plan.device), reason)
        return plan

    def _new_plan(self, recipe: Recipe, engine: str, device: Device, loss: Loss) -> FitPlan:
        """Return a new plan; see :meth:`_make_plan`."""
        learner = self._learner
        n_accumulated = int(self.gradient_accumulation_steps)
        multipliers = read_multipliers(self.learning_rate_multipliers, learner.weights)
        if recipe.is_auto:
            refuse_freezing(multipliers)
        plan = FitPlan(
            learner=learner,
            loss=loss,
            recipe=recipe,
            engine=engine,
            device=device,
            n_outputs=self._n_outputs,
            batch_size=int(self.batch_size or DENSE_ROWS),
            is_batch_named=self.batch_size is not None or n_accumulated > 1,
            n_threads=self.n_threads,
            # the outputs of samples of several lengths are those of no layer
            output_layer=NO_LAYER
            if self._follows_lengths or not recipe.is_auto
            else learner.output_layer(self._score_shape or (self._n_outputs,)),
            is_regression=self._task == "regression",
            multipliers=multipliers,
            missed=self._state.missed,
            n_accumulated=n_accumulated,
        )
        plan.check_penalties()
        return plan

    def _train(
        self,
        plan: FitPlan,
        stopping: Stopping,
        samples: Samples,
        validation: Sequence[Samples] = (),
        observers: Sequence[Observer] = (),
        *,
        is_fit: bool = False,
        kept: KeptState,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.engine_ = plan.engine
        extra = self._extra_weight(samples.target)
        samples = samples if extra is None else samples.weighted_by(extra).without_zeros()
        with stage("compile"):
            # the import on first use is a part of it
            program = _programs().make_program(plan, samples.features)
        adapt_state(self._state, plan)
        state, before, weight_unit = self._state, None, 1.0
        target = self._encode(samples.target, plan.loss)
        is_part = stopping.in_parts and not (stopping.in_epoch or observers)
        if is_part and program.learns_again(state, samples.features, target, samples.weight):
            self._publish()
            return
        with stage("read"):
            batches = program.batches(samples.features, target, samples.weight, state.random_state)
        if plan.recipe.is_auto:
            if stopping.in_parts and not stopping.in_epoch:
                renew(state, program, batches)
                before = state.copy()
            state.count_rows(samples.weight)
            weight_unit = (
                state.mean_weight if stopping.in_parts else float(samples.weight.mean(dtype=np.float64))
            )
        if is_fit:
            state.epoch_updates = batches.n_updates
            state.n_updates = stopping.max_iter * batches.n_updates
        plan = plan.for_updates(state.n_updates, state.epoch_updates)
        score = self._scorer(program, validation)
        used, all_columns = None, batches
        if not observers and score is None and checkpoints is None:
            used = program.used_columns(state, batches)
        if used is not None:
            batches, state.tensors, kept = used.batches, used.tensors, kept.within(used.widen)
        if plan.recipe.is_auto:
            with stage("read"), quiet_squares():
                program.add_target(state.moments, target, samples.weight, is_sparse=batches.is_sparse)
                batches = program.standardised(batches, state.moments, weight_unit)
        # a part of a stream has none, and few updates
        with ExitStack() if is_fit else nullcontext() as processes:
            with stage("compile"):
                runners = self._runners(program, batches, stopping.max_iter, processes)
            with stage("train"):
                train(
                    runners, batches, plan, stopping, state, observers, score,
                    model=program, checkpoints=checkpoints, kept=kept,
                )  # fmt: skip
            # not after an error, which may come at any moment
            if runners.give_back is not None:
                runners.give_back()
        if before is not None and is_left_out(before, state, program, all_columns):
            # with the moments of the data, of which the first part had none
            vars(state).update(vars(before))
        else:
            if used is not None:
                state.tensors = used.widen(state.tensors)
            if is_part:
                program.repeated(state, batches)
        if not stopping.in_epoch:
            self._publish()

    def _runners(
        self, program: Program, batches: Batches, max_iter: int, processes: ExitStack | None
    ) -> Runners:
        """Return the runners of the updates of a fit; those of `processes` end with it. None: of a part."""
        runners = None
        if processes is not None and (n_jobs := resolve_jobs(self.n_jobs)) > 1:
            # other fits import nothing of it
            from onnxsgd.sharding.process_rounds import runners_in_processes

            runners = runners_in_processes(n_jobs, program, batches, self._state, max_iter, processes)
        elif self.n_jobs not in (None, 1):
            is_part = processes is None
            reason = "only fits on all of the data have several" if is_part else "a worker, or one core"
            decided("processes", "1: %s", reason)
        return program.runners(self._state, batches, max_iter) if runners is None else runners

    def _extra_weight(self, target: np.ndarray) -> np.ndarray | None:
        """Return factors of the weights of the samples, if there are any."""
        return None

    def _scorer(self, program: Program, validation: Sequence[Samples]) -> Any:
        if not validation:
            return None
        parts = [program.tail_features(part.features) for part in validation]
        targets = [part.target for part in validation]
        weight = validation[0].weight if len(parts) == 1 else np.concatenate([p.weight for p in validation])
        if len(parts) == 1 and are_many(targets[0]) and self._scores_in_blocks:
            return partial(self._score_in_blocks, program, parts[0], targets[0], weight)

        def score(weights: dict[str, np.ndarray]) -> float:
            with stage("score"):
                raw = [self._table(program.raw_predictions(features, weights)) for features in parts]
                if self._follows_lengths:
                    return self._score_raw(_rows_of(raw), _rows_of(targets), weight)
                target = targets[0] if len(targets) == 1 else np.concatenate(targets)
                return self._score_raw(raw[0] if len(raw) == 1 else np.concatenate(raw), target, weight)

        return score

    @property
    def _scores_in_blocks(self) -> bool:
        """True if the score of many samples follows from those of blocks."""
        return not self._is_dense

    def _score_in_blocks(
        self,
        program: Program,
        features: Features,
        target: np.ndarray,
        weight: np.ndarray,
        weights: dict[str, np.ndarray],
    ) -> float:
        """Return the score of weights on many samples."""

        def blocks() -> Iterator[Block]:
            for rows in row_blocks(len(target)):
                raw = self._table(program.raw_predictions(take_rows(features, rows), weights))
                yield raw, target[rows], np.ascontiguousarray(weight[rows], np.float64)

        with stage("score"):
            return self._joined_score([self._score_part(*block) for block in blocks()])

    def _score_part(self, raw: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Any:
        """Return what some samples contribute to the score of many: their score, and its weight."""
        return self._score_raw(raw, y, weight), float(self._weight_of_score(y, weight))

    def _joined_score(self, parts: Sequence[Any]) -> float:
        """Return the score of all samples from the results of :meth:`_score_part`."""
        return float(np.average([score for score, _ in parts], weights=[weight for _, weight in parts]))

    def _weight_of_score(self, target: np.ndarray, weight: np.ndarray) -> float:
        """Return the weight of the samples that a score counts."""
        counts = self._counted(target)
        return float(weight.sum() if counts is None else weight[counts].sum())


@cache
def _programs() -> Any:
    """Return the module of programs, imported on first use: the statement takes 1 % of a warm call."""
    from onnxsgd.training import program

    return program


#: Raw predictions, targets and weights of some samples.
Block = tuple[np.ndarray, np.ndarray, np.ndarray]


def _rows_of(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the rows of several arrays."""
    return [row for part in parts for row in part]
