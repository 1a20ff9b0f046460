"""The classifier."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_consistent_length

from onnxsgd.adapters import LoRA
from onnxsgd.data.dense_targets import ElementAxes, check_dense_labels, find_axes, shape_of_samples
from onnxsgd.data.refusals import check_lengths, naming, number_of_axes
from onnxsgd.data.sequences import Ragged, for_each, gather
from onnxsgd.data.targets import (
    are_plain_labels,
    are_same_classes,
    check_classes,
    check_known_labels,
    check_label_loss,
    check_labels,
    check_sample_weight,
    check_soft_labels,
    counted_labels,
    present_labels,
)
from onnxsgd.estimators.base import BaseOnnxSGD, learns_in_parts
from onnxsgd.estimators.file_data import reads_files
from onnxsgd.estimators.fit_report import RecordedFit
from onnxsgd.estimators.import_hook import when_imported
from onnxsgd.estimators.inner_model import has_own_fit
from onnxsgd.estimators.labels import (
    ClassWeights,
    DenseLabels,
    Labelling,
    OneLabel,
    SeveralLabels,
    SoftLabels,
    UnknownClassesError,
)  # fmt: skip
from onnxsgd.estimators.to_skl2onnx import register_classifier
from onnxsgd.exceptions import GraphError, ParameterError
from onnxsgd.graph.class_axis import class_axis
from onnxsgd.graph.model import REAL_TYPES
from onnxsgd.learner.learner import Learner
from onnxsgd.losses import CLASSIFICATION_LOSSES, MULTINOMIAL_LOSSES, DenseLoss, Loss, make_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import ArrayLike

    from onnxsgd.data.batch_source import Batch
    from onnxsgd.graph.reading.trainable import Trainable
    from onnxsgd.optimizers import Optimizer
    from onnxsgd.penalties import Penalty
    from onnxsgd.schedules import Schedule
    from onnxsgd.training.rate_multipliers import Multipliers

__all__ = ["OnnxSGDClassifier"]

#: Links of graphs for which the logarithmic loss is the multinomial one.
_MULTINOMIAL = frozenset({"softmax", "log", "identity"})

#: The function from scores to probabilities of each link, under its name in the losses.
_PROBABILITIES_OF_LINK = {
    "sigmoid": "sigmoid", "ovr": "sigmoid", "softmax": "softmax", "log": "softmax",
    "modified_huber": "modified_huber",
}  # fmt: skip
#: Links of graphs with independent columns.
_ONE_BY_ONE = frozenset({"own", "sigmoid", "identity"})


def _gives_probabilities(self: OnnxSGDClassifier) -> bool:
    if self._loss_class.probabilities is None:
        raise AttributeError(f"probability estimates are not available for loss={self.loss!r}")
    return True


def _one_class(classes: np.ndarray) -> ParameterError:
    return ParameterError(
        f"The number of classes has to be greater than one; got 1 class: {classes.tolist()}. Give samples of "
        "another class, or name all labels with classes=."
    )


def _listed(classes: ArrayLike | None) -> np.ndarray | None:
    """Return labels that are given, if any; see :func:`check_classes`."""
    return None if classes is None else check_classes(classes)


def _refuse_contradiction(name: str, given: np.ndarray, other: str, known: np.ndarray) -> None:
    """Refuse labels that are not those that another source has, in any order."""
    if not np.array_equal(np.unique(given), np.unique(known)):
        raise ParameterError(
            f"{name}={given[:20].tolist()} contradicts {other}, which has the labels {known[:20].tolist()}."
        )


#: Labels of several types are refused by scikit-learn.
_accuracy = naming("y")(accuracy_score)


class OnnxSGDClassifier(ClassifierMixin, BaseOnnxSGD):
    """Train the weights of a model for classification by stochastic gradient descent.

    Training works on raw scores, with formulas that are stable for scores of any size; the trained graph
    returns probabilities again.

    Parameters
    ----------
    model : None, estimator, onnx.ModelProto, bytes or path, default=None
        The model to train. None: a linear model that starts at zero. A fitted scikit-learn estimator or
        pipeline is converted and training starts from its weights; one that is not fitted yet is fitted on
        the training data first. (``clone`` un-fits an estimator: in a grid search wrap it in
        ``sklearn.frozen.FrozenEstimator`` to keep its weights.) An ONNX graph keeps its weights; a
        file may have external data beside it. A fitted model predicts, is exported, and shows its weights
        before the first fit too.
    loss : {"log_loss", "hinge", "squared_hinge", "modified_huber", "perceptron", "multiclass_hinge", \
            "focal", "squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive"} or \
            Loss, default="log_loss"
        The loss to minimise, see :mod:`onnxsgd.losses`. "multiclass_hinge" compares the scores of the
        classes, and takes one label for each sample; "log_loss" and "focal" do so for graphs that end in
        softmax or in scores of several classes; the others are one class against the rest.
    epsilon : float, default=0.1
        The threshold of "huber", "epsilon_insensitive" and "squared_epsilon_insensitive", on targets -1
        and +1, up to 1e18. Ignored by other losses, and by objects, which have their own.
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
        These rows are drawn at random, in the proportions of the classes, also with
        ``shuffle=False``, as scikit-learn's SGD estimators draw them; the others keep their order.
    batch_size : int or None, default=None
        Samples of an update. With "auto" the most, as those of an epoch may be divided evenly, and at most
        half of the data, unless that is below 8. None: 32; in ``fit`` with "auto" 128 to 512 on data that
        train sparse, and 64 or 128 for linear models on 4,096 or 8,192 rows and more. The loss of a batch is
        the weighted mean over its samples, and with "auto" batches of heavy samples count more. With
        ``batch_size=1`` it is the weighted loss of the sample, and
        the weights follow those of ``SGDClassifier``.
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
        the first fit: other values of `model`, `output`, `head`, `trainable`, `adapter`, `classes`, `dtype`,
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
        since 1970; the spread of a single row counts as 1), or if computing in float32 changes the raw scores
        of a scikit-learn model by more than 1e-3 of theirs. Later calls use the type of the first. "float64"
        needs operators that the runtime supports in float64; convolutions are not among them.
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
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, by which the weights of the samples are multiplied, in the problems of all
        classes; scikit-learn's `SGDClassifier` weights a sample in the problem of its own class alone.
        "balanced": ``n_labels / (n_classes * np.bincount(y))``, by all labels that count in the training
        data; of elements of samples, such as pixels and steps of sequences, by those of all elements.
    classes : array-like or None, default=None
        The labels of the graph's output columns, in order, for a graph that does not hold them, or that
        has more classes than `y` contains.

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
        The score on the validation data after each epoch.
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
        Coefficients and intercepts, where the model is linear, of shape (1, n_features) and (1,) for two
        classes, or (n_classes, n_features) and (n_classes,).
    classes_ : ndarray of shape (n_classes,)
        The labels. For multi-label data, where `y` is a table of 0 and 1, the numbers of its columns.

    See Also
    --------
    OnnxSGDRegressor : The same for regression.
    sklearn.linear_model.SGDClassifier : Linear models, with the same hyper-parameters.

    Notes
    -----
    With more than two classes, "log_loss" follows the model: it is the multinomial cross-entropy for a graph
    that ends in softmax, or in scores; one class against the rest, as in ``SGDClassifier``, for a graph whose
    columns end in sigmoids, and for ``model=None``. The other losses are one against the rest.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from onnxsgd import OnnxSGDClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MLPClassifier((10,), solver="lbfgs", random_state=0).fit(X[::5], y[::5])
    >>> tuned = OnnxSGDClassifier(model, random_state=0).fit(X, y)
    >>> tuned.predict(X[:3])
    array([0, 0, 0])
    >>> [output.name for output in tuned.to_onnx().graph.output]
    ['label', 'probabilities']

    A search clones its estimator, and ``clone`` un-fits the model inside: it is fitted on the training part
    of each fold first, so that no test data leak into it. A frozen model keeps its weights, including those
    learned from test data:

    >>> from sklearn.frozen import FrozenEstimator
    >>> from sklearn.model_selection import cross_val_score
    >>> fresh = OnnxSGDClassifier(model, max_iter=30, tol=None, random_state=0)
    >>> scores = cross_val_score(fresh, X, y)
    >>> frozen = OnnxSGDClassifier(FrozenEstimator(model), max_iter=30, tol=None, random_state=0)
    >>> scores = cross_val_score(frozen, X, y)
    """

    _task = "classification"
    _labels_are_unknown: bool = False
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **BaseOnnxSGD._parameter_constraints,
        "loss": [StrOptions(set(CLASSIFICATION_LOSSES)), Loss],
        "class_weight": [StrOptions({"balanced"}), dict, None],
        "classes": ["array-like", None],
    }

    def __init__(
        self,
        model: object = None,
        *,
        loss: str | Loss = "log_loss",
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
        class_weight: str | Mapping[object, float] | None = None,
        classes: ArrayLike | None = None,
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
        self.class_weight = class_weight
        self.classes = classes

    @learns_in_parts
    def partial_fit(
        self,
        X: object,
        y: ArrayLike | None = None,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train for one epoch on the given samples, continuing from the last call.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, list or dict of arrays
            Some of the data; sequences of different lengths, and files, as in ``fit``. Or an iterable of
            batches as there: each is trained as in a call of its own.
        y : array-like of shape (n_samples,), (n_samples, n_classes) or (n_samples, ...), or str or list of \
                str, default=None
            Their labels, a table of 0 and 1 where a sample may have several, or rows of probabilities for
            a loss with ``soft=True``. Of several axes where the graph gives scores for each element. For
            files also names of columns. None for an iterable of batches.
        classes : array-like of shape (n_classes,), default=None
            All labels. The first call needs them, unless the parameter `classes` or the model has them: a
            fitted model, or a graph with labels. They must not contradict it.
        sample_weight : array-like of shape (n_samples,) or str, default=None
            Weights of the samples, >= 0; None: 1 for each. For files also the name of a column.

        Returns
        -------
        self : object
            The estimator.
        """
        return RecordedFit(self, is_part=True).run(self._partial_fit, X, y, sample_weight, classes)

    def _check_parts(self) -> None:
        if self.class_weight == "balanced":
            raise ParameterError(
                "class_weight 'balanced' is not supported for partial_fit and for batches of an iterable, "
                "which do not see all labels: give the weights of enough labels y, dict(zip(classes, "
                "compute_class_weight('balanced', classes=classes, y=y))), a function of "
                "sklearn.utils.class_weight."
            )

    def _balance(self, y: np.ndarray | Ragged | None) -> None:
        self.__dict__.pop("_balanced", None)
        if y is None or self.class_weight != "balanced":
            return
        if isinstance(y, Ragged):
            labels = np.concatenate([array.reshape(-1) for array in y.arrays])
        else:
            labels = self._check_target(y)
        self._balanced = self._labelling.balanced(labels)

    #: The weights of the classes that "balanced" stands for, where no batch sees all labels.
    _balanced: ClassWeights | None = None

    @property
    def _weights_of_classes(self) -> object:
        """The parameter `class_weight`, with numbers for "balanced" where batches need them."""
        return self.class_weight if self._balanced is None else self._balanced

    def _labels_of(self, batches: Iterable[Batch]) -> np.ndarray:
        return np.unique(np.concatenate([self._present(self._check_target(batch.y)) for batch in batches]))

    @reads_files
    def decision_function(self, X: object) -> np.ndarray:
        """Return the raw scores.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, list or dict of arrays
            The data; or files as in ``fit``, of which the columns of the training data are taken.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            One score for two classes, positive for the second; one score for each class otherwise, and for
            each label where a sample has several. Where elements of a sample have labels, their axes come
            between, and the classes are on the last one.
        """
        trained = self._trained(X)
        return for_each(trained._labelling.decision, trained._raw_predictions(X))

    @reads_files
    def predict(self, X: object) -> np.ndarray:
        """Predict labels.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, list or dict of arrays
            The data; or files as in ``fit``, of which the columns of the training data are taken.

        Returns
        -------
        ndarray of shape (n_samples,), (n_samples, n_classes) or (n_samples, ...)
            Labels, of the type and with the axes that `y` had in training; a table of 0 and 1 where a sample
            has several. A list of arrays for sequences of different lengths whose elements have labels.
        """
        trained = self._trained(X)
        if trained._labels_are_unknown:
            raise ParameterError(
                "The graph holds no labels: name them with classes=, in the order of its columns, or call "
                "fit or partial_fit. decision_function and predict_proba need none."
            )
        return for_each(trained._labelling.predict, trained._raw_predictions(X))

    @reads_files
    def score(self, X: object, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy on the given samples, over the labels that count.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, list or dict of arrays
            The data; or files as in ``fit``, of which the columns of the training data are taken.
        y : array-like of shape (n_samples,), (n_samples, n_classes) or (n_samples, ...), or str
            Their labels; a table of 0 and 1 where a sample has several, of which all must be right. For a
            loss with ``soft=True`` also rows of probabilities, whose largest one is the label. For files also
            the name of their column.
        sample_weight : array-like of shape (n_samples,) or str, default=None
            Weights of the samples, or the name of their column.

        Returns
        -------
        float
            The share of right labels, of samples or of their elements. Those with the label `ignore_index` of
            the loss do not count.
        """
        trained = self._trained(X)
        if trained._is_dense:
            return trained._score_elements(X, y, sample_weight)
        if self._ignored is None and not self._takes_soft_labels:
            predicted = self.predict(X)
            check_lengths(predicted, y)
            labels = check_labels(y)
            weight = None if sample_weight is None else check_sample_weight(sample_weight, labels)
            return float(_accuracy(labels, predicted, sample_weight=weight))
        raw = np.asarray(trained._raw_predictions(X))
        check_lengths(raw, y)
        labels = trained._check_target(y) if number_of_axes(y) == 2 else check_labels(y)
        labelling = trained._labelling if labels.ndim == 2 else OneLabel(trained.classes_, trained._ignored)
        trained._check_scorable(labels, "y")
        if labels.ndim == 2:
            trained._check_soft_columns(labels)
        check_consistent_length(raw, labels)
        return labelling.score(raw, labels, sample_weight)

    def _score_elements(self, X: object, y: ArrayLike, sample_weight: ArrayLike | None) -> float:
        raw = self._raw_predictions(X)
        check_lengths(np.empty(len(raw)), y)
        target = gather(y, "y", "biufUOS")
        if isinstance(raw, list):
            given = target.arrays if isinstance(target, Ragged) else np.asarray(target)
            rows = [check_dense_labels(row[None])[0] for row in given]
            self._check_scorable(np.concatenate([row.reshape(-1) for row in rows]), "y")
            return self._score_raw(raw, rows, sample_weight)
        labels = check_dense_labels(target)
        self._check_scorable(labels, "y")
        return self._labelling.score(raw, labels, sample_weight)

    @available_if(_gives_probabilities)
    @reads_files
    def predict_proba(self, X: object) -> np.ndarray:
        """Predict the probability of each class; for losses that give probabilities.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, list or dict of arrays
            The data; or files as in ``fit``, of which the columns of the training data are taken.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Probabilities, in the order of `classes_`. Those of several labels of a sample do not sum to 1.
            Where elements of a sample have labels, their axes come between.
        """
        trained = self._trained(X)
        trained._check_loss()
        labelling, kind = trained._labelling, str(trained._make_loss().probabilities)
        return for_each(lambda raw: labelling.probabilities(raw, kind), trained._raw_predictions(X))

    @available_if(_gives_probabilities)
    def predict_log_proba(self, X: object) -> np.ndarray:
        """Predict the logarithm of the probability of each class.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), data frame, list or dict of arrays
            The data; or files as in ``fit``, of which the columns of the training data are taken.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Logarithms of probabilities, in the order of `classes_`.
        """
        with np.errstate(divide="ignore"):
            return for_each(np.log, self.predict_proba(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return self._with_tags_inside(tags)

    @property
    def _labelling(self) -> Labelling:
        classes = np.arange(max(2, self._n_scores)) if self._labels_are_unknown else self.classes_
        if self._is_dense:
            return DenseLabels(classes, self._ignored, self._class_axis, self._weights_of_classes)
        if self._has_several_labels:
            return SeveralLabels(classes)
        return (SoftLabels if self._takes_soft_labels else OneLabel)(classes, self._ignored)

    #: The axis of the classes among those of the scores of a sample, where elements have labels.
    _class_axis: int | None = None

    @property
    def _n_scores(self) -> int:
        """The number of scores of a sample, or of an element where elements have labels."""
        if not self._is_dense:
            return self._n_outputs
        return ElementAxes(self._score_shape or (), self._class_axis).n_scores

    @property
    def _takes_soft_labels(self) -> bool:
        """True if the loss takes rows of probabilities for `y`."""
        # a loss by name has no options
        return bool(getattr(self.loss, "soft", False))

    @property
    def _ignored(self) -> int | str | None:
        """The label that counts nothing, if the loss names one, or sequences of labels were padded."""
        label: int | str | None = getattr(self.loss, "ignore_index", None)
        return self._padded_with if label is None else label

    #: The label of padding, if the loss has none that counts nothing.
    _padded_with: int | str | None = None

    def _padding_label(self, y: Ragged) -> int | str | None:
        is_text, ignored = y.dtype.kind in "US", getattr(self.loss, "ignore_index", None)
        if y.dtype.kind not in "iufUS" or (ignored is not None and isinstance(ignored, str) != is_text):
            return None
        if ignored is None:
            if self._padded_with is None:
                lowest = 0 if is_text else min(0, *(np.floor(array.min()) for array in y.arrays))
                self._padded_with = "" if is_text else int(lowest) - 1
            if any((array == self._padded_with).any() for array in y.arrays):
                raise ParameterError(
                    f"y holds {self._padded_with!r}, which stands for padding since the first call: it is no "
                    "label."
                )
        return self._ignored

    def _check_target(self, y: ArrayLike, n_classes: int | None = None) -> np.ndarray:
        if self._takes_soft_labels and not self._is_dense:
            return check_soft_labels(y)
        labels = check_dense_labels(y) if self._is_dense else check_labels(y, n_classes)
        ignored = getattr(self.loss, "ignore_index", None)
        if ignored is not None and labels.size:
            is_text = isinstance(labels.flat[0], str)
            if isinstance(ignored, str) != is_text:
                kind = "text" if is_text else "numbers"
                raise ParameterError(
                    f"ignore_index={ignored!r} is no label of y: these are {kind}. Give it the same type."
                )
        return labels

    def _may_be_dense(self, y: ArrayLike) -> bool:
        """Tell whether elements of samples may have labels: a graph decides by the shape of its scores."""
        is_graph = self.model is not None and self.head is None and not hasattr(self.model, "fit")
        return is_graph and not self._takes_soft_labels and not issparse(y) and number_of_axes(y) > 1

    def _settle_target(self, y: ArrayLike, target: np.ndarray) -> np.ndarray:
        if not self._is_dense:
            return self._read_labels(y)[0] if self._may_be_dense(y) else target
        if self._takes_soft_labels:
            raise ParameterError(
                f"loss={self.loss!r} takes a row of probabilities for each sample, and the graph gives "
                f"scores of shape {shape_of_samples(self._score_shape or ())}: give labels, with soft=False."
            )
        labels = check_dense_labels(y)
        preferred = class_axis(self._learner.score_model.graph.outputs[0])
        axes = find_axes(
            self._score_shape or (), labels.shape[1:], None if preferred is None else preferred - 1
        )
        self._class_axis, self._has_several_labels = axes.class_axis, False
        return labels

    def _counted(self, target: np.ndarray) -> np.ndarray | None:
        if self._ignored is None or self._has_several_labels:
            return None
        counts = counted_labels(target, self._ignored)
        return np.asarray(counts.reshape(len(counts), -1).any(axis=1))

    def _with_all_classes(self, rows: np.ndarray, all_rows: np.ndarray, y: ArrayLike) -> np.ndarray:
        """Add the first row of each class whose rows are all held out."""
        labels = np.asarray(y)
        if labels.ndim != 1:
            return rows
        classes, first = np.unique(labels[all_rows], return_index=True)
        missing = ~np.isin(classes, labels[rows])
        return np.sort(np.concatenate([rows, all_rows[first[missing]]])) if missing.any() else rows

    def _inner_target(self, y: ArrayLike, target: np.ndarray) -> ArrayLike:
        if not self._takes_soft_labels:
            return y
        given = np.arange(target.shape[1]) if self._given_classes is None else self._given_classes
        return given[target.argmax(axis=1)]

    def _present(self, labels: np.ndarray) -> np.ndarray:
        """Return the labels that occur, without the one that counts nothing."""
        return present_labels(labels, self._ignored)

    def _read_target(
        self, y: ArrayLike, resuming: bool, classes: ArrayLike | None, in_parts: bool = False
    ) -> tuple[np.ndarray, int]:
        # an abstract class takes ten times as long to tell
        if not isinstance(self.loss, str) and isinstance(self.loss, Loss):
            check_label_loss(self.loss)
        if resuming:
            labels = self._check_target(y, len(self.classes_))
            self._check_same_labels(labels, classes)
            return labels, self._n_outputs
        own, given = _listed(self.classes), _listed(classes)
        if own is not None and given is not None:
            _refuse_contradiction("classes of partial_fit", given, "the parameter classes", own)
        self._given_classes = own if given is None else given
        self._score_shape = None
        if self._may_be_dense(y):
            # the shape of the scores decides what they are
            return np.asarray(y), 1
        return self._read_labels(y, in_parts)

    def _read_plain_target(self, y: np.ndarray, classes: ArrayLike | None) -> np.ndarray | None:
        # losses by name take labels, of which all count
        if not isinstance(self.loss, str) or self._padded_with is not None or self._has_several_labels:
            return None
        known = self.classes_
        if not are_plain_labels(y, len(known)) or not (classes is None or are_same_classes(classes, known)):
            return None
        self._check_loss()
        return y

    def _read_labels(self, y: ArrayLike, in_parts: bool = False) -> tuple[np.ndarray, int]:
        """Check labels, or tables, of samples; return them, and the number of outputs of a new layer."""
        labels = self._check_target(y)
        self._has_several_labels = labels.ndim == 2 and not self._takes_soft_labels
        if self._has_several_labels:
            return labels, labels.shape[1]
        if self._given_classes is not None:
            known = np.unique(self._given_classes)
        else:
            known = np.arange(labels.shape[1]) if labels.ndim == 2 else self._present(labels)
        if not self._model_may_know_classes():
            if in_parts and self._given_classes is None and labels.ndim == 1:
                raise UnknownClassesError
            if len(known) < 2:
                raise _one_class(known)
        return labels, 1 if len(known) == 2 and not self._loss_class.is_joint else len(known)

    def _model_may_know_classes(self) -> bool:
        """Tell whether the model may have classes that `y` lacks: a graph, a fitted estimator."""
        return self.model is not None and self.head is None and not has_own_fit(self.model)

    def _check_same_labels(self, y: np.ndarray, classes: ArrayLike | None) -> None:
        """Check that `y` and `classes` agree with the first call."""
        known = self.classes_
        if classes is not None and not are_same_classes(classes, known):
            raise ParameterError(
                f"classes={classes!r} is not the same as on the first call to partial_fit, which had "
                f"{self.classes_.tolist()}."
            )
        is_soft = self._takes_soft_labels
        if is_soft:
            self._check_soft_columns(y)
        is_table = self._has_several_labels or is_soft
        wanted: tuple[int, ...] = (len(self.classes_),) if is_table else ()
        if self._is_dense:
            wanted = ElementAxes(self._score_shape or (), self._class_axis).elements
        if y.shape[1:] != wanted:
            raise ParameterError(
                f"y has shape {y.shape}; in the first call it had shape {('n_samples', *wanted)}, which "
                "validation data, partial_fit and warm_start=True keep: take a new estimator, or "
                "warm_start=False."
            )
        self._check_loss()

    def _check_loss(self) -> None:
        """Refuse a loss over the classes for scores that are no such."""
        if not self._loss_class.is_joint:
            return
        if self._has_several_labels:
            raise ParameterError(
                f"y gives several labels to a sample, and loss={self.loss!r} takes one: take 'log_loss', "
                "'focal' or 'hinge'."
            )
        if self._n_scores == 1:
            raise GraphError(
                f"loss={self.loss!r} compares the scores of the classes, and the graph gives one score for "
                "two classes: take 'log_loss', 'focal' or 'hinge', or put a new layer on top with "
                "head='linear'."
            )

    @property
    def _loss_class(self) -> Any:
        """The loss, or its class."""
        return CLASSIFICATION_LOSSES.get(self.loss, Loss) if isinstance(self.loss, str) else self.loss

    def _check_learner(self, y: np.ndarray, in_parts: bool) -> None:
        learner, n_outputs = self._learner, self._n_outputs
        if self._has_several_labels:
            self._check_columns(learner, y, n_outputs)
        classes = self._find_classes(learner)
        is_table = self._has_several_labels or self._takes_soft_labels
        if classes is None and in_parts and not is_table:
            raise UnknownClassesError
        if classes is None:
            classes = np.arange(y.shape[1]) if is_table else self._present(y)
        self._set_classes(classes)
        if self._takes_soft_labels:
            self._check_soft_columns(y)
        self._check_loss()

    def _check_soft_columns(self, y: np.ndarray) -> None:
        """Refuse rows of probabilities over another number of classes."""
        if y.shape[1] != len(self.classes_):
            raise ParameterError(
                f"y has {y.shape[1]} columns of probabilities and there are {len(self.classes_)} classes, "
                f"{self.classes_[:20].tolist()}: a row holds a probability for each, in this order."
            )

    def _settle_outputs(self) -> None:
        # a graph whose probabilities do not sum to 1 gives several labels to a sample
        if self._is_dense:
            self._settle_axes()
            return
        is_one_by_one = self._n_outputs > 1 and (
            self._learner.link == "sigmoid" or self._learner.predicts_tables
        )
        self._has_several_labels = is_one_by_one and self.classes is None
        self._given_classes = _listed(self.classes)
        classes = self._find_classes(self._learner)
        if classes is None and self._has_several_labels:
            classes = np.arange(self._n_outputs)
        self._labels_are_unknown = classes is None
        if classes is not None:
            self._set_classes(classes)

    def _settle_axes(self) -> None:
        """Find the axis of the classes without labels: by the graph, or by the number of classes."""
        sizes, self._has_several_labels = self._score_shape or (), False
        self._given_classes = _listed(self.classes)
        classes, found = (
            self._find_classes(self._learner),
            class_axis(self._learner.score_model.graph.outputs[0]),
        )
        if found is not None:
            self._class_axis = found - 1
        elif classes is not None and (sizes[0] == len(classes)) != (sizes[-1] == len(classes)):
            self._class_axis = 0 if sizes[0] == len(classes) else len(sizes) - 1
        else:
            raise ParameterError(
                f"The graph gives scores of shape {shape_of_samples(sizes)}, and the axis of the classes is "
                "not known before the first fit: name as many classes=, or call fit or partial_fit."
            )
        self._labels_are_unknown = classes is None
        if classes is not None:
            self._set_classes(classes)

    def _set_classes(self, classes: np.ndarray) -> None:
        """Set the labels of the columns; refuse another number of them."""
        n_outputs = self._n_scores
        if len(classes) < 2:
            raise _one_class(classes)
        wanted = {1, 2} if len(classes) == 2 and not self._has_several_labels else {len(classes)}
        if n_outputs not in wanted:
            raise GraphError(
                f"the graph gives {n_outputs} score(s) for each {self._unit} and there are {len(classes)} "
                f"classes, {classes[:20].tolist()}: name the labels of its columns with classes=, choose a "
                "tensor of that width with output=, or put a new layer on top with head='linear'."
            )
        self.classes_ = classes

    @property
    def _unit(self) -> str:
        """The thing that has a label."""
        return "element" if self._is_dense else "sample"

    def _find_classes(self, learner: Learner) -> np.ndarray | None:
        """Return the labels of the columns: those of the graph, or those that are given, if any."""
        if learner.classes is not None:
            if self._given_classes is not None:
                _refuse_contradiction("classes", self._given_classes, "the model", learner.classes)
                if self._takes_soft_labels and not np.array_equal(self._given_classes, learner.classes):
                    raise ParameterError(
                        f"classes={self._given_classes[:20].tolist()} has another order than the "
                        f"model, {learner.classes[:20].tolist()}, and with soft=True the columns of y have "
                        "that of the model."
                    )
            return learner.classes
        if self._given_classes is not None:
            given = self._given_classes
            if len(np.unique(given)) < len(given) and (learner.link != "own" or self._takes_soft_labels):
                raise ParameterError(
                    f"classes={given.tolist()} names a label twice: each column has its own."
                )
            if learner.link == "own" and not self._takes_soft_labels:
                return np.unique(given)
            return given
        return None

    def _check_columns(self, learner: Learner, y: np.ndarray, n_outputs: int) -> None:
        """Check that a graph can give several labels to a sample."""
        if y.shape[1] != n_outputs:
            raise GraphError(
                f"the graph gives {n_outputs} score(s) for each sample and y has {y.shape[1]} columns: "
                "choose a tensor of that width with output=, or put a new layer on top with head='linear'."
            )
        if learner.link not in _ONE_BY_ONE:
            raise GraphError(
                f"y gives several labels to a sample, and the probabilities of the graph ({learner.link}) "
                "sum to 1: choose a tensor before that with output=, or put a new layer on top with "
                "head='linear'."
            )

    def _extra_weight(self, target: np.ndarray) -> np.ndarray | None:
        if self.class_weight is None and self._ignored is None and not self._is_dense:
            return None
        is_weighed = self._weighs_elements
        counts = self._counted(target)
        if counts is not None and not counts.any():
            return None
        labelling = self._labelling if is_weighed else None
        if isinstance(labelling, DenseLabels) and self.batch_size != 1:
            # a batch is the mean over its elements, of which samples have different numbers
            shares = labelling.shares(self._weights_of_classes, target)
            # of batches of several lengths, each element counts the same
            return shares * (np.prod(target.shape[1:]) if self._follows_lengths else 1)
        if self._is_dense and self._follows_lengths and self.batch_size != 1:
            return np.full(len(target), float(np.prod(target.shape[1:])))
        if self.class_weight is None:
            return None
        return self._labelling.sample_weight(self._weights_of_classes, target)

    def _encode(self, y: np.ndarray, loss: Loss) -> np.ndarray:
        return self._labelling.encode(y, self._n_outputs, loss)

    def _make_loss(self) -> Loss:
        loss = make_loss(self.loss, CLASSIFICATION_LOSSES, self.epsilon)
        is_multinomial = (
            self._n_scores > 1 and self._learner.link in _MULTINOMIAL and not self._has_several_labels
        )
        is_named = isinstance(self.loss, str) and self.loss in MULTINOMIAL_LOSSES
        loss = MULTINOMIAL_LOSSES[str(self.loss)]() if is_named and is_multinomial else loss
        if not self._is_dense:
            return loss
        return DenseLoss(loss, self._score_shape or (), self._class_axis, self._weighs_elements)

    @property
    def _weighs_elements(self) -> bool:
        """True if elements of a sample count differently."""
        return self.class_weight is not None or self._ignored is not None

    def _score_raw(
        self,
        raw: np.ndarray | list[np.ndarray],
        y: np.ndarray | list[np.ndarray],
        sample_weight: ArrayLike | None,
    ) -> float:
        labelling = self._labelling
        if isinstance(raw, list) and isinstance(labelling, DenseLabels):
            return labelling.score_list(raw, list(y), sample_weight)
        return labelling.score(np.asarray(raw), np.asarray(y), sample_weight)

    def _check_scorable(self, y: np.ndarray, name: str) -> None:
        if self._has_several_labels or (self._takes_soft_labels and y.ndim == 2):
            return
        if self._ignored is None:
            check_known_labels(y, self.classes_, name)
            return
        counts = counted_labels(y, self._ignored)
        if not counts.any():
            raise ParameterError(
                f"{name} has no label but ignore_index={self._ignored!r}: nothing can be scored."
            )
        check_known_labels(y[counts], self.classes_, name)

    def _split(self, y: np.ndarray, random_state: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        if self._is_dense:
            labelling = self._labelling
        elif y.ndim == 1:
            # those of the rows, before a first fit has all
            labelling = OneLabel(self._present(y), self._ignored)
        else:
            labelling = (SoftLabels if self._takes_soft_labels else SeveralLabels)(np.arange(y.shape[1]))
        return labelling.split(y, self.validation_fraction, random_state)

    def _finished_graph(self) -> Any:
        self._check_loss()
        learner, kind = self._learner, self._make_loss().probabilities
        outputs = {value.dtype in REAL_TYPES: str(value.name) for value in learner.model.graph.outputs}
        # those of a classifier without probabilities, which the loss has
        are_scores = learner.link == "identity" and False in outputs and outputs.get(True) == "scores"
        if learner.link == "own" or (are_scores and kind is not None):
            return self._labelled_graph("label", "scores" if kind is None else "probabilities")
        if kind is None or kind == _PROBABILITIES_OF_LINK.get(learner.link, kind):
            return learner.exported(self._weights())
        # The loss gives scores another meaning than the graph's link: its outputs must agree with ours.
        finished = self._labelled_graph(outputs.get(False, "label"), outputs[True])
        if False not in outputs:
            finished.graph.outputs[:] = [finished.graph.outputs[1]]
        return finished

    def _labelled_graph(self, label: str, second: str, *, raw_scores: bool = False) -> Any:
        """Return the score graph with outputs `label` for labels and `second` for probabilities or scores."""
        kind = None if raw_scores else self._make_loss().probabilities
        return self._labelling.finish(self._score_model_now(), kind, (label, second))


when_imported("skl2onnx", partial(register_classifier, OnnxSGDClassifier))
