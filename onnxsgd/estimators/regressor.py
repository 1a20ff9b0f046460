"""The regressor."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.model_selection import ShuffleSplit
from sklearn.utils._param_validation import StrOptions

from onnxsgd.adapters import LoRA
from onnxsgd.data.dense_targets import shape_of_samples
from onnxsgd.data.features import is_plain_array, take_rows
from onnxsgd.data.held_out import hold_out_rows
from onnxsgd.data.moments import Moments
from onnxsgd.data.refusals import check_lengths
from onnxsgd.data.row_tables import Converted, are_many, some_rows
from onnxsgd.data.sequences import Ragged, for_each, gather
from onnxsgd.data.targets import (
    check_real_target,
    check_sample_weight,
    check_scorable_by_r2,
    check_target_range,
)
from onnxsgd.estimators.base import BaseOnnxSGD, learns_in_parts
from onnxsgd.estimators.between_calls import LINK
from onnxsgd.estimators.file_data import reads_files
from onnxsgd.estimators.fit_report import RecordedFit
from onnxsgd.estimators.import_hook import when_imported
from onnxsgd.estimators.likelihood_score import score_normal
from onnxsgd.estimators.quantile_score import score_quantiles
from onnxsgd.estimators.to_skl2onnx import register_regressor
from onnxsgd.exceptions import GraphError, ParameterError
from onnxsgd.learner.further_scores import with_further_scores
from onnxsgd.losses import LARGEST_LOG_VARIANCE, REGRESSION_LOSSES, Loss, Quantile, make_loss

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from onnxsgd.data.features import Features
    from onnxsgd.graph.reading.trainable import Trainable
    from onnxsgd.optimizers import Optimizer
    from onnxsgd.penalties import Penalty
    from onnxsgd.schedules import Schedule
    from onnxsgd.training.rate_multipliers import Multipliers

__all__ = ["OnnxSGDRegressor"]


class OnnxSGDRegressor(RegressorMixin, BaseOnnxSGD):
    """Train the weights of a model for regression by stochastic gradient descent.

    Parameters
    ----------
    model : None, estimator, onnx.ModelProto, bytes or path, default=None
        The model to train. None: a linear model that starts at zero. A fitted scikit-learn estimator or
        pipeline is converted and training starts from its weights; one that is not fitted yet is fitted on
        the training data first. (``clone`` un-fits an estimator: in a grid search wrap it in
        ``sklearn.frozen.FrozenEstimator`` to keep its weights.) An ONNX graph keeps its weights; a
        file may have external data beside it. A fitted model predicts, is exported, and shows its weights
        before the first fit too.
    loss : {"squared_error", "absolute_error", "elastic", "huber", "epsilon_insensitive", \
            "squared_epsilon_insensitive", "quantile", "log_cosh", "gaussian_nll", "poisson", "gamma", \
            "tweedie"} or Loss, default="squared_error"
        The loss to minimise, see :mod:`onnxsgd.losses`. "poisson", "gamma" and "tweedie" have a logarithmic
        link: predictions are exponentials of raw predictions. Targets are >= 0, for "gamma" > 0.
        "gaussian_nll" predicts the mean of each target and the logarithm of its variance. A graph has a
        column for each, all means first; a model that has the means alone, in a last linear layer, gets
        the logarithms as further columns of that layer, which start at the variance of its residuals.
        ``Quantile([0.1, 0.5, 0.9])`` predicts several quantiles of one target likewise, a column for each.
    epsilon : float, default=0.1
        The threshold of "huber", "epsilon_insensitive" and "squared_epsilon_insensitive", in the unit of y,
        up to 1e18. Ignored by other losses, and by objects, which have their own.
    penalty : {"l2", "l1", "elasticnet", "group_lasso", "l2_sp", None} or Penalty or dict, default="l2"
        The norms of the weights that are added to the mean loss, without intercepts. "l1" gives exact zeros,
        "group_lasso" whole columns of zeros; "l2_sp" is the distance from the first weights.
        An object of :mod:`onnxsgd.penalties` has strengths of its own. A dictionary has one of these, or a
        number, the strength l2, for names of weights or patterns such as "encoder.*"; the others have none.
    alpha : float, default=1e-4
        The strength of a named penalty, from 0 to 1e30:
        ``alpha ((1 - l1_ratio) / 2 ||w||_2^2 + l1_ratio ||w||_1)``.
        The schedule "optimal" uses it too.
    l1_ratio : float, default=0.15
        The share of the absolute norm in "elasticnet", from 0 to 1.
    optimizer : {"sgd", "adam", "adamw", "block_adam", "rmsprop", "adagrad", "lion"} or Optimizer or None, \
            default=None
        The update rule, see :mod:`onnxsgd.optimizers`. None: "block_adam" for ``learning_rate="auto"``,
        "sgd" for any other.
    momentum : float, default=0.0
        The share of the last step that "sgd" keeps, 0 <= momentum < 1.
    nesterov : bool, default=False
        Whether "sgd" looks ahead along the momentum.
    learning_rate : {"constant", "optimal", "invscaling", "adaptive", "step", "exponential", "polynomial", \
            "cosine", "cosine_restarts", "one_cycle", "reduce_on_plateau", "auto"}, Schedule or callable, \
            default="auto"
        The learning rate of each update, see :mod:`onnxsgd.schedules`:

        - "auto": training finds it, for data of any scale. Layers that read the data learn in coordinates
          where columns are standardised; the rate falls when the loss grows, or gains no more; in a stream
          it follows the gradients. A fit never returns weights with a higher objective than it started with;
        - "constant": ``eta0``;
        - "optimal": ``1 / (alpha (t0 + t - 1))``;
        - "invscaling": ``eta0 / t^power_t``;
        - "adaptive": ``eta0``, divided by 5 whenever the loss, or the score, stops improving;
        - "step": a constant rate, multiplied by a factor after every so many updates;
        - "exponential": a rate that falls by the same share at each update;
        - "polynomial": a fall with a power of the share of updates that is left, by default linear;
        - "cosine": half a cosine: a fall that is slow at first and at the end;
        - "cosine_restarts": half cosines that restart at the first rate, each longer than the one before;
        - "one_cycle": a rise to the largest rate and a fall to almost zero, each a half cosine;
        - "reduce_on_plateau": a constant rate, multiplied by a factor when epochs bring no new best loss;
        - a callable: a function of the number of the update, 1, 2, ...
    eta0 : float or None, default=None
        The first learning rate, that of "one_cycle" at its top, > 0 and <= 1e30. None: 0.01. Not for "auto",
        nor beside a `learning_rate` that is an object or a callable, and has rates of its own.
    power_t : float, default=0.25
        The exponent of "invscaling". Not for "auto".
    learning_rate_multipliers : dict, callable or None, default=None
        Factors of the learning rate, >= 0, by the name of a trained tensor or by a pattern of names, such as
        ``{"layer1.*": 0.1}`` (:mod:`fnmatch`). Names come before patterns, earlier patterns before later
        ones; the other tensors have 1. A callable receives each name and returns the factor. A mapping
        ``{"multiplier": 0.1, "from_epoch": 3}`` in place of a number freezes the tensor up to the third epoch
        (of ``fit``; calls of ``partial_fit`` count on), and a factor of 0 always: neither it nor its state
        in the optimizer moves, nor does the penalty act. "auto" takes factors > 0 without epochs.
    max_grad_norm : float or None, default=None
        The largest norm of the gradient of an update, over all trained tensors together, > 0, up to 1e30: a
        longer one is multiplied by ``max_grad_norm / (norm + 1e-6)``, as by torch's ``clip_grad_norm_``. It
        is the gradient of the mean loss of the batch, without the penalty. None: no limit. Not for "auto".
    max_grad_value : float or None, default=None
        The largest absolute value of each element of that gradient, > 0, up to 1e30; it applies before
        `max_grad_norm`. None: no limit. Not for "auto".
    max_iter : int, default=1000
        The largest number of epochs of a call to ``fit``.
    tol : float or None, default=1e-3
        Training stops when the loss (with ``early_stopping=True`` the score) did not improve by this much
        for `n_iter_no_change` epochs in a row; with "auto", by this share of the loss, for half of them
        and 2 windows of 12 to 16 updates, and after a decay of the rate. None: `max_iter` epochs. The loss
        does not end a schedule that lasts as long as the fit, such as "cosine". A fit that ends next to where
        it began warns.
    n_iter_no_change : int, default=5
        The number of epochs without improvement that make a plateau.
    early_stopping : bool, default=False
        Whether to stop by the score on validation data, and to end with the weights that scored best.
    validation_fraction : float, default=0.1
        The share of the training data that is held out for that, unless ``fit`` is given `X_val`, `y_val`.
        These rows are drawn at random, also with
        ``shuffle=False``, as scikit-learn's SGD estimators draw them; the others keep their order.
    batch_size : int or None, default=None
        Samples of an update. With "auto" the most, as those of an epoch may be divided evenly, and at most
        half of the data, unless that is below 8. None: 32; in ``fit`` with "auto" 128 to 512 on data that
        train sparse, and 64 or 128 for linear models on 4,096 or 8,192 rows and more. The loss of a batch is
        the weighted mean over its samples, and with "auto" batches of heavy samples count more. With
        ``batch_size=1`` it is the weighted loss of the sample, and
        the weights follow those of ``SGDRegressor``.
    gradient_accumulation_steps : int, default=1
        Batches of an update: their gradients are added before the weights move, which takes the memory of
        one batch. 8 gives the weights of a `batch_size` eight times as large, but for rounding; an
        update of few rows may have fewer. ``t_`` and schedules count updates.
    steps_per_epoch : int or None, default=None
        The number of batches of an epoch where ``fit`` is given an iterable of batches; None: all of them.
    shuffle : bool or "blocks", default=True
        Whether each epoch takes the samples in a new random order; batches of an
        iterable stay as they are. "blocks", for files larger than memory: blocks of up to
        128 kB are read in random order, and the rows of up to 128 of them at a time are mixed.
    random_state : int, RandomState or None, default=None
        Determines these orders and the validation data.
    average : bool, int or float, default=False
        Whether the result is the average of the weights over all updates, or over those from the given
        number on. A decay between 0 and 1, such as 0.999, makes it exponential: ``a = decay a + (1 - decay)
        w`` after each update, which begins with the weights of the first one, as torch's ``AveragedModel``.
    warm_start : bool, default=False
        Whether ``fit`` starts from the present weights, not from those of `model`. The graph is then that of
        the first fit: other values of `model`, `output`, `head`, `trainable`, `adapter`, `dtype`,
        `batch_norm` and `dropout` are refused, as between calls of ``partial_fit``; all other parameters may
        change.
    trainable : None, str, list of str or callable, default=None
        The weights to train: None for those recognised as parameters, a name or several, or a callable that
        is called with the name of every floating-point tensor and returns True for those to train. See
        :func:`onnxsgd.describe_trainable`.
    adapter : LoRA or None, default=None
        Adapters of :mod:`onnxsgd.adapters` beside frozen weights, which are trained in their place:
        ``LoRA(rank=8)``. With adapters, ``trainable=None`` trains nothing else but the layer of `head`.
    output : str, int or None, default=None
        The output of the graph that predicts; a tensor inside may be named too, where the graph is then cut.
    head : {"linear", None}, default=None
        "linear" puts a new linear layer on top of that tensor, starting at zero, and trains only that
        unless `trainable` adds others: transfer learning.
    engine : {"auto", "onnxruntime-training", "portable"}, default="auto"
        The engine that differentiates the graph. "auto" is the portable one, which runs on every
        onnxruntime.
    device : str, default="cpu"
        The device of training: "cpu", "cuda" for the first GPU, "cuda:1" for the second. A GPU needs
        onnxruntime-gpu, and dense data that fit into its memory: they, the weights and the state of the
        optimizer are resident there. A GPU that cannot be used is an error. Products of float32 are computed
        in float32 there too, not in TF32. Predictions are always computed on the CPU.
    dtype : {"float32", "float64", None}, default=None
        The floating-point type of the graph. None: an ONNX graph keeps its own (one with tensors of 16 bits
        has weights in float32 while it is trained, computes in 16 bits on a GPU alone, and gets its own types
        in :meth:`to_onnx`); other models are trained in float32, unless the data of the first call need
        float64. They do if casting `X` changes a column by more than 1e-3 of its spread (a time in seconds
        since 1970; the spread of a single row counts as 1), if squares of `y` exceed float32 (from 1e17 on,
        and below 1e-16; of a network, from 1e9 on, and below 1e-8), or if computing in float32 changes the
        raw scores of a scikit-learn model by more than 1e-3 of theirs. Later calls use the type of the first.
        "float64" needs operators that the runtime supports in float64; convolutions are not among them.
    batch_norm : {"frozen", "train", None}, default=None
        The statistics that BatchNormalization uses in training. "frozen": the running ones, which stay.
        "train": those of the batch, as after torch's ``model.train()``, in each such layer of the graph;
        running mean and variance are updated and returned with the weights. Weights of samples do not enter
        them. None: "train" for layers that were exported for training, "frozen" for the others. Predictions
        and validation scores always use the running statistics.
    dropout : float or None, default=None
        The ratio of the Dropout nodes of the graph, in [0, 1): they act in training, and not in predictions
        and validation scores. None: the ratio of each node. 0.0: no dropout. Masks are drawn by
        `random_state`, anew for each update.
    n_threads : int or None, default=None
        Threads of the runtime on the CPU, up to 1024. None: one for small steps, all cores for large ones.
    n_jobs : int or None, default=None
        The most processes of a call of ``fit`` on data in memory, each of which computes the gradient of a
        part of each batch; -1: one for each core. The weights are those of one process, but for rounding.
        Several are used where that is faster: see :doc:`/guide/jobs`. None: 1, or the number of
        ``joblib.parallel_config``.
    verbose : int, default=0
        0 prints nothing; 1 shows a bar with loss, score and time left on a terminal and in a notebook, and
        prints a line for each epoch into a file; 2 prints these lines everywhere. scikit-learn's callbacks
        (``set_callbacks``, from scikit-learn 1.9 on) are called at each epoch too.
    record_update_norms : bool, default=False
        Whether each call records `update_norms_`, for :class:`onnxsgd.TrainingDisplay`. Epochs are then made
        one at a time, which takes longer; the weights are the same, on sparse data up to rounding.
    checkpoint : str, path-like or None, default=None
        A folder for files from which ``fit(..., resume=True)`` continues an interrupted fit, with the weights
        of one that was not interrupted. The last two are kept; each is a file of :meth:`save`. Epochs are
        then made one at a time, and weights agree with those of a fit without checkpoints up to rounding.
        Clones write to folders inside, one for each value of parameters and data. ``partial_fit`` writes no
        files.
    checkpoint_every : int or dict, default=1
        The epochs between two checkpoints; or ``{"updates": 500}`` or ``{"seconds": 60}``, which also writes
        inside epochs.

    Attributes
    ----------
    onnx_model_ : onnx.ModelProto
        The trained graph.
    n_iter_ : int
        Epochs made.
    t_ : int
        Updates that the weights received; without those that "auto" undid.
    loss_curve_ : list of float
        Mean loss plus penalty of each epoch; infinite where training diverged, and "auto" went back.
    best_loss_ : float
        The lowest of these.
    learning_rates_ : ndarray of shape (n_epochs,)
        The learning rate of the last update of each epoch; in a stream the geometric mean over the tensors.
    validation_scores_ : list of float or None
        The score on the validation data after each epoch; with "gaussian_nll" the mean logarithm of the
        density, which decides early stopping then.
    update_norms_ : ndarray of shape (n_epochs,) or None
        The Euclidean norm of the change of all trained weights over each epoch,
        ``sqrt(sum((w_end - w_begin)^2))``: of the present weights, not of their average, and without changes
        that "auto" makes between epochs. Infinite where training diverged, NaN for epochs of calls without
        `record_update_norms`; None if no call recorded it.
    engine_ : str
        The engine in use.
    fit_report_ : FitReport
        The times of the last call of ``fit`` or ``partial_fit``, its peak memory and its use of the cache:
        see :class:`~onnxsgd.estimators.fit_report.FitReport`. Files of :meth:`save` hold none.
    n_features_in_ : int
        Number of features seen in ``fit``.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, where `X` has names.
    coef_, intercept_ : ndarray
        Coefficients and intercepts, where the model is linear, of shape (n_features,) and (1,), or
        (n_outputs, n_features) and (n_outputs,); with "gaussian_nll" those of the means, then those of the
        logarithms of the variances; with several quantiles those of each, of predictions before they are
        sorted.

    See Also
    --------
    OnnxSGDClassifier : The same for classification.
    sklearn.linear_model.SGDRegressor : Linear models, with the same hyper-parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from onnxsgd import OnnxSGDRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), Ridge()).fit(X[:100], y[:100])
    >>> tuned = OnnxSGDRegressor(model, random_state=0).fit(X[100:], y[100:])
    >>> bool(tuned.score(X, y) > model.score(X, y))
    True
    >>> [output.name for output in tuned.to_onnx().graph.output]
    ['variable']
    """

    _task = "regression"
    #: Whether this is a model before the first fit that predicts targets, not all numbers of the loss.
    _is_narrow = False
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **BaseOnnxSGD._parameter_constraints,
        "loss": [StrOptions(set(REGRESSION_LOSSES)), Loss],
    }

    def __init__(
        self,
        model: object = None,
        *,
        loss: str | Loss = "squared_error",
        epsilon: float = 0.1,
        penalty: str | Penalty | dict[str, Any] | None = "l2",
        alpha: float = 1e-4,
        l1_ratio: float = 0.15,
        optimizer: str | Optimizer | None = None,
        momentum: float = 0.0,
        nesterov: bool = False,
        learning_rate: str | Schedule | Callable[[int], float] = "auto",
        eta0: float | None = None,
        power_t: float = 0.25,
        learning_rate_multipliers: Multipliers = None,
        max_grad_norm: float | None = None,
        max_grad_value: float | None = None,
        max_iter: int = 1000,
        tol: float | None = 1e-3,
        n_iter_no_change: int = 5,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        batch_size: int | None = None,
        gradient_accumulation_steps: int = 1,
        steps_per_epoch: int | None = None,
        shuffle: bool | str = True,
        random_state: int | np.random.RandomState | None = None,
        average: bool | float = False,
        warm_start: bool = False,
        trainable: Trainable = None,
        adapter: LoRA | None = None,
        output: str | int | None = None,
        head: str | None = None,
        engine: str = "auto",
        device: str = "cpu",
        dtype: str | None = None,
        batch_norm: str | None = None,
        dropout: float | None = None,
        n_threads: int | None = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        record_update_norms: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int | dict[str, float] = 1,
    ) -> None:
        self.model = model
        self.loss = loss
        self.epsilon = epsilon
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.optimizer = optimizer
        self.momentum = momentum
        self.nesterov = nesterov
        self.learning_rate = learning_rate
        self.eta0 = eta0
        self.power_t = power_t
        self.learning_rate_multipliers = learning_rate_multipliers
        self.max_grad_norm = max_grad_norm
        self.max_grad_value = max_grad_value
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.batch_size = batch_size
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.steps_per_epoch = steps_per_epoch
        self.shuffle = shuffle
        self.random_state = random_state
        self.average = average
        self.warm_start = warm_start
        self.trainable = trainable
        self.adapter = adapter
        self.output = output
        self.head = head
        self.engine = engine
        self.device = device
        self.dtype = dtype
        self.batch_norm = batch_norm
        self.dropout = dropout
        self.n_threads = n_threads
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.record_update_norms = record_update_norms
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every

    @learns_in_parts
    def partial_fit(
        self, X: object, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Train for one epoch on the given samples, continuing from the last call.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, list or dict of arrays
            Some of the data; sequences of different lengths, and files, as in ``fit``. Or an iterable of
            batches as there: each is trained as in a call of its own.
        y : array-like of shape (n_samples,), (n_samples, n_outputs) or (n_samples, ...), or str or list of \
                str, default=None
            Their targets, of the shape of the predictions of the graph; for files also names of columns. None
            for an iterable of batches.
        sample_weight : array-like of shape (n_samples,) or str, default=None
            Weights of the samples, >= 0; None: 1 for each. For files also the name of a column.

        Returns
        -------
        self : object
            The estimator.
        """
        return RecordedFit(self, is_part=True).run(self._partial_fit, X, y, sample_weight)

    @overload
    def predict(self, X: object, return_std: Literal[False] = False) -> np.ndarray: ...

    @overload
    def predict(self, X: object, return_std: bool) -> np.ndarray | tuple[np.ndarray, np.ndarray]: ...

    @reads_files
    def predict(self, X: object, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predict targets.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, list or dict of arrays
            The data; or files as in ``fit``, of which the columns of the training data are taken.
        return_std : bool, default=False
            Whether to return the standard deviation too; for ``loss="gaussian_nll"``.

        Returns
        -------
        y_pred : ndarray of shape (n_samples,), (n_samples, n_outputs) or (n_samples, ...)
            Of the shape that `y` had in training, in float32 for float32 data and in float64 otherwise. With
            several quantiles, of shape (n_samples, n_quantiles), in ascending order. A list of arrays for
            sequences of different lengths whose elements have targets.
        y_std : ndarray of the same shape
            The standard deviations, only with ``return_std=True``.

        Raises
        ------
        ParameterError
            If `return_std` is True, and the loss, or the model before the first fit, predicts no deviation.
        """
        trained = self._trained(X)
        if return_std:
            trained._check_std()
        raw = trained._raw_predictions(X)
        prediction = for_each(lambda table: trained._as_target(trained._predictions(table)), raw)
        if not return_std:
            return prediction
        return prediction, for_each(lambda table: trained._as_target(trained._deviations(table)), raw)

    def _as_target(self, table: np.ndarray) -> np.ndarray:
        """Return a table of predictions in the shape that `y` had."""
        return table.ravel() if self._y_is_vector and table.shape[1] == 1 else table

    @reads_files
    def score(self, X: object, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the coefficient of determination R2 of the predictions.

        With several quantiles it is their mean D2, the share of the pinball loss of the quantiles of `y` that
        is explained, see :func:`sklearn.metrics.d2_pinball_score`.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, list or dict of arrays
            The data; or files as in ``fit``, of which the columns of the training data are taken.
        y : array-like of shape (n_samples,), (n_samples, n_outputs) or (n_samples, ...), or str
            The targets; for files also names of columns.
        sample_weight : array-like of shape (n_samples,) or str, default=None
            Weights of the samples, or the name of their column, >= 0; None: 1 for each.

        Returns
        -------
        float
            At most 1; 0 for the best constant prediction. Of several outputs of a sample, with any number of
            axes, the mean.
        """
        trained = self._trained(X)
        if trained._is_dense:
            raw = trained._raw_predictions(X)
            check_lengths(np.empty(len(raw)), y)
            if isinstance(raw, list):
                return trained._score_sequences(raw, y, sample_weight)
            prediction = trained._predictions(np.asarray(raw))
        else:
            prediction = self.predict(X)
            check_lengths(prediction, y)
        target = check_real_target(y)
        weight = None if sample_weight is None else check_sample_weight(sample_weight, target)
        if trained._levels is not None:
            return score_quantiles(target, _finite(prediction), trained._levels, weight)
        if not trained._is_dense and target.ndim < 3:
            return float(r2_score(target, _finite(prediction), sample_weight=weight))
        if target.shape != prediction.shape:
            raise ParameterError(f"y has shape {target.shape} and the predictions {prediction.shape}.")
        rows = (array.reshape(len(target), -1) for array in (target, _finite(prediction)))
        return float(r2_score(*rows, sample_weight=weight))

    @property
    def _levels(self) -> tuple[float, ...] | None:
        """The quantiles, where the graph predicts several of one target."""
        loss = self._make_loss()
        if self._is_narrow or not (isinstance(loss, Quantile) and isinstance(loss.quantile, Sequence)):
            return None
        return tuple(loss.quantile)

    def _check_std(self) -> None:
        """Refuse to predict standard deviations where the graph has none."""
        if self._link != "normal":
            raise ParameterError(
                f"return_std=True needs loss='gaussian_nll', which predicts standard deviations; the loss is "
                f"{self.loss!r}."
            )
        if self._is_narrow:
            raise ParameterError(
                f"return_std=True needs a fit: the model inside predicts {self._n_outputs} output(s), "
                "without standard deviations."
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.input_tags.sparse = True
        return self._with_tags_inside(tags)

    def _read_target(
        self, y: ArrayLike, resuming: bool, classes: ArrayLike | None, in_parts: bool = False
    ) -> tuple[np.ndarray, int]:
        y = check_real_target(y)
        check_target_range(y, self._make_loss())
        table, n_factors = y.reshape(len(y), -1), len(self._score_factors)
        if table.shape[1] != 1 and self._link == "sorted":
            raise ParameterError(
                f"y has {table.shape[1]} columns: several quantiles are predicted of one target, and "
                "MultiOutputRegressor of scikit-learn fits an estimator for each of several."
            )
        if not resuming:
            self._y_is_vector = y.ndim == 1
            self._y_shape = y.shape[1:]
        elif y.ndim > 2 or table.shape[1] * n_factors != self._n_outputs or self._is_dense:
            self._check_same_shape(y)
            self._check_shape(y.shape[1:])
        return table, table.shape[1] * n_factors

    def _read_plain_target(self, y: np.ndarray, classes: ArrayLike | None) -> np.ndarray | None:
        loss = self._make_loss()
        is_column = self._n_outputs == 1 and len(loss.score_factors) == 1
        if not is_column or are_many(y) or not is_plain_array(y, (1,)):
            return None
        check_target_range(y, loss)
        return y.astype(np.float64, copy=False).reshape(-1, 1)

    #: The shape of the target of a sample in the first call.
    _y_shape: tuple[int, ...] = ()

    def _settle_outputs(self) -> None:
        # an estimator predicts targets; a graph may have all numbers of the loss
        is_graph = not hasattr(self.model, "predict")
        count = len(self._score_factors)
        most = count if self._link == "sorted" else self._n_outputs
        has_all = is_graph and self._n_outputs % count == 0 and self._n_outputs <= most
        self._is_narrow = count > 1 and (self._is_dense or not has_all)
        width = 1 if self._is_narrow else count
        self._y_is_vector = self._n_outputs == width and not self._is_dense

    def _add_scores(self, features: Features, target: np.ndarray, weight: np.ndarray) -> None:
        loss, n_targets = self._make_loss(), target.shape[1]
        if len(loss.score_factors) == 1 or self._n_outputs != n_targets or self._is_dense:
            return
        weights = self._first_weights()
        rows = some_rows([*features.values(), target])
        features, target, weight = take_rows(features, rows), target[rows], weight[rows]
        raw = self._table(self._learner.scores(features, weights, self.n_threads)).astype(np.float64)
        offsets = loss.score_offsets(target - raw, weight)
        widened = with_further_scores(self._learner, weights, n_targets, loss.score_factors, offsets)
        if widened is not None:
            self._learner, self._n_outputs, self._set_before = widened, len(offsets), {}
            self._score_shape = (len(offsets),)

    def _check_learner(self, y: np.ndarray, in_parts: bool) -> None:
        self._check_shape(self._y_shape)

    def _check_same_shape(self, y: np.ndarray) -> None:
        """Refuse targets of another width than in the first call."""
        n_targets, rest = divmod(self._n_outputs, len(self._score_factors))
        if rest or self._is_dense or y.ndim > 2 or math.prod(y.shape[1:]) == n_targets:
            return
        known = ("n_samples",) if self._y_is_vector else ("n_samples", n_targets)
        raise ParameterError(
            f"y has shape {y.shape}; in the first call it had shape {known}, which validation data, "
            "partial_fit and warm_start=True keep: take a new estimator, or warm_start=False."
        )

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse targets of another shape than that of predictions; `shape` is that of a sample."""
        count = len(self._score_factors)
        if self._is_dense or len(shape) > 1:
            known = self._score_shape or (self._n_outputs,)
            if count > 1:
                raise GraphError(
                    f"loss={self.loss!r} needs tables, with {count} outputs of the graph for a target; the "
                    f"graph predicts {shape_of_samples(known)} and y has {shape_of_samples(shape)}: reshape "
                    "both."
                )
            if shape != known:
                raise GraphError(
                    f"the graph predicts {shape_of_samples(known)} and y has {shape_of_samples(shape)}: "
                    "choose another tensor with output=, or reshape y."
                )
            return
        n_targets = math.prod(shape)
        if n_targets * count == self._n_outputs:
            return
        several = f", each as {count} outputs of the graph" if count > 1 else ""
        raise GraphError(
            f"the graph predicts {self._n_outputs} output(s) and y has {n_targets}{several}: choose a "
            "tensor of that width with output=, put a new layer on top with head='linear', or use another "
            "model=."
        )

    def _encode(self, y: np.ndarray, loss: Loss) -> np.ndarray:
        count = len(self._score_factors)
        if count == 1:
            return y
        repeated: Any = Converted(y, y.dtype, count) if are_many(y) else np.tile(y, (1, count))
        return repeated

    def _make_loss(self) -> Loss:
        return make_loss(self.loss, REGRESSION_LOSSES, self.epsilon)

    @property
    def _link(self) -> str:  # type: ignore[override]
        loss = REGRESSION_LOSSES.get(self.loss, Loss) if isinstance(self.loss, str) else self.loss
        return str(getattr(loss, "link", "identity"))

    @property
    def _score_factors(self) -> tuple[float, ...]:
        """The factors of a prediction among the raw predictions of a target, one for each of them."""
        loss = REGRESSION_LOSSES.get(self.loss, Loss) if isinstance(self.loss, str) else self.loss
        return tuple(getattr(loss, "score_factors", (1.0,)))

    @property
    def _own_link(self) -> str:
        """The link of the loss, where the graph has all numbers of the loss."""
        return "identity" if self._is_narrow else self._link

    @property
    def _n_predictions(self) -> int:
        """The number of predictions of a sample, without standard deviations."""
        return self._n_outputs // 2 if self._own_link == "normal" else self._n_outputs

    def _predictions(self, raw: np.ndarray) -> np.ndarray:
        """Return the predictions of raw predictions."""
        self._check_link()
        if self._own_link == "sorted":
            return np.sort(raw, axis=1)
        if self._own_link == "log":
            with np.errstate(over="ignore"):
                return np.exp(raw)
        return raw if self._is_dense else raw[:, : self._n_predictions]

    def _check_link(self) -> None:
        """Refuse a loss that was set after the fit, and takes raw predictions for something else."""
        given = self._given or ()
        link, count = (
            next((entry[2] for entry in given if entry[0] == LINK), self._link),
            len(self._score_factors),
        )
        fits = self._n_outputs == count if self._link == "sorted" else self._n_outputs % count == 0
        if not self._is_narrow and (link != self._link or not fits):
            raise ParameterError(
                f"loss={self.loss!r} was set after the fit, and predicts other numbers than the graph, which "
                f"has {self._n_outputs} raw prediction(s) with the link {link!r}: call fit, or set the loss "
                "of the fit."
            )

    def _deviations(self, raw: np.ndarray) -> np.ndarray:
        """Return the standard deviations of raw predictions."""
        bound = LARGEST_LOG_VARIANCE
        return np.exp(np.clip(raw[:, self._n_predictions :], -bound, bound) / 2)

    def _score_sequences(self, raw: list[np.ndarray], y: ArrayLike, sample_weight: ArrayLike | None) -> float:
        """Return R2 of sequences of different lengths, given their targets as users give them."""
        given = gather(y, "y")
        targets = [check_real_target(row) for row in (given.arrays if isinstance(given, Ragged) else given)]
        weight = None if sample_weight is None else check_sample_weight(sample_weight, np.empty(len(raw)))
        return self._score_elements(raw, targets, weight)

    def _score_elements(
        self, raw: list[np.ndarray], y: Sequence[np.ndarray], sample_weight: ArrayLike | None
    ) -> float:
        """Return R2 over the steps of all samples, each of which has the weight of its sample."""
        if len(raw) != len(y):
            raise ParameterError(f"X has {len(raw)} samples and y has {len(y)}.")
        predictions = for_each(self._predictions, raw)
        for number, (row, prediction) in enumerate(zip(y, predictions, strict=True)):
            if row.size != prediction.size:
                raise ParameterError(
                    f"y[{number}] has shape {row.shape} and the prediction {prediction.shape}."
                )
        lengths = [len(row) for row in predictions]
        found = np.concatenate([row.reshape(len(row), -1) for row in predictions])
        target = np.concatenate([row.reshape(n, -1) for row, n in zip(y, lengths, strict=True)])
        weight = None if sample_weight is None else np.repeat(sample_weight, lengths)
        return float(r2_score(target, _finite(found), sample_weight=weight))

    def _score_raw(
        self,
        raw: np.ndarray | list[np.ndarray],
        y: np.ndarray | list[np.ndarray],
        sample_weight: ArrayLike | None,
    ) -> float:
        if isinstance(raw, list):
            return self._score_elements(raw, list(y), sample_weight)
        if (levels := self._levels) is not None:
            return score_quantiles(y, self._predictions(raw), levels, sample_weight)
        if self._own_link == "normal":
            # R2 of the means would not tell when the variances are right
            return score_normal(np.asarray(y), raw, sample_weight)
        predictions = self._predictions(raw).reshape(len(raw), -1)
        return float(r2_score(y, predictions, sample_weight=sample_weight))

    @property
    def _scores_in_blocks(self) -> bool:
        # the score of quantiles sorts all targets
        return super()._scores_in_blocks and self._levels is None

    def _score_part(self, raw: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Any:
        if self._own_link == "normal":
            return super()._score_part(raw, y, weight)
        errors = weight @ (y.astype(np.float64) - self._predictions(raw).reshape(len(raw), -1)) ** 2
        return errors, Moments.of(y, weight)

    def _joined_score(self, parts: Sequence[Any]) -> float:
        if self._own_link == "normal":
            return super()._joined_score(parts)
        errors = np.sum([of_part for of_part, _ in parts], axis=0)
        squares = reduce(Moments.merged, (moments for _, moments in parts)).squares
        # as scikit-learn scores a constant target
        share = np.divide(errors, squares, out=(errors > 0).astype(np.float64), where=squares > 0)
        return float((1.0 - share).mean())

    def _check_scorable(self, y: np.ndarray, name: str) -> None:
        check_scorable_by_r2(y, name)

    def _split(self, y: np.ndarray, random_state: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        if are_many(y):
            return hold_out_rows(len(y), self.validation_fraction, random_state)
        splitter = ShuffleSplit(1, test_size=self.validation_fraction, random_state=random_state)
        return next(splitter.split(y))

    def _finished_graph(self) -> Any:
        self._check_link()
        if self._learner.link == "own":
            return self._prediction_graph("variable")
        graph = self._learner.exported(self._weights())
        if self._learner.link == "exp" or self._own_link == "identity":
            return graph
        # the graph ends in its raw predictions
        name = str(graph.graph.outputs[0].name)
        return self._prediction_graph(name)

    def _prediction_graph(self, name: str) -> Any:
        """Return the graph of predictions alone, in an output `name`."""
        from onnxsgd.graph.reading.postprocessing import add_regressor_tail

        return add_regressor_tail(self._score_model_now(), self._own_link, name, self._n_outputs)

    def _linear_attributes(self, coef: str, intercept: str | None) -> tuple[np.ndarray, np.ndarray]:
        slopes, offsets = super()._linear_attributes(coef, intercept)
        return (slopes.ravel(), offsets) if self._y_is_vector and len(slopes) == 1 else (slopes, offsets)


when_imported("skl2onnx", partial(register_regressor, OnnxSGDRegressor))


def _finite(predictions: np.ndarray) -> np.ndarray:
    """Return the predictions; refuse to score those that are not finite, which no score is defined for."""
    finite = np.isfinite(predictions).reshape(len(predictions), -1).all(axis=1)
    if not finite.all():
        n_bad = int((~finite).sum())
        raise ParameterError(
            f"{n_bad} of {len(predictions)} predictions are not finite and have no score: the weights or the "
            "data are too large for the type of the graph."
        )
    return predictions
