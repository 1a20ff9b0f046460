"""The estimators whose data are collections of Dask."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dask.base import is_dask_collection
from distributed import Client, default_client
from sklearn.utils._param_validation import Interval
from sklearn.utils.metaestimators import available_if

from onnxsgd.dask.dask_collections import Block, Collection, lazily, sharded_data
from onnxsgd.estimators.base import BaseOnnxSGD, learns_in_parts
from onnxsgd.estimators.classifier import OnnxSGDClassifier
from onnxsgd.estimators.fit_report import RecordedFit
from onnxsgd.estimators.regressor import OnnxSGDRegressor
from onnxsgd.estimators.sharded_fit import ShardedData, ShardedTraining
from onnxsgd.estimators.shared import in_turn
from onnxsgd.exceptions import ParameterError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

__all__ = ["DaskOnnxSGDClassifier", "DaskOnnxSGDRegressor"]

#: The parameters beside those of the estimators without Dask.
_OWN = {
    "client": [Client, None],
    "n_shards": [Interval(Integral, 1, None, closed="left"), None],
    "sync_every": [Interval(Integral, 1, None, closed="left"), None],
}


def _has_method(name: str) -> Any:
    """Return a check of whether the estimator without Dask has a method, which raises its error."""

    def check(self: DaskTraining) -> bool:
        getattr(self.to_local(), name)
        return True

    return check


def _result(method: str, estimator: BaseOnnxSGD, X: Block) -> np.ndarray:
    """Return the result of a method."""
    found: np.ndarray = getattr(estimator, method)(X)
    return found


def _result_with_std(number: int, estimator: OnnxSGDRegressor, X: Block) -> np.ndarray:
    """Return the predictions, or their standard deviations."""
    return estimator.predict(X, return_std=True)[number]


class DaskTraining(ShardedTraining):
    """The methods of both estimators that take collections of Dask."""

    client: Client | None
    n_shards: int | None
    sync_every: int | None

    @in_turn
    def fit(
        self,
        X: object,
        y: Collection = None,
        sample_weight: Collection = None,
        X_val: object = None,
        y_val: Collection = None,
        resume: bool = False,
    ) -> Self:
        """Train the weights on the partitions of the data, which stay on the workers.

        Parameters
        ----------
        X : dask array or data frame of shape (n_samples, n_features), or (n_samples, ...)
            The training data. Chunks of any number of rows, of unknown sizes too; an array with several
            chunks of columns is rechunked. Chunks may be sparse matrices of scipy.
        y : dask array, column or data frame of shape (n_samples,) or (n_samples, n_outputs)
            The targets, in the partitions of `X`.
        sample_weight : dask array or column of shape (n_samples,), default=None
            Weights of the samples, >= 0; None: 1 for each.
        X_val, y_val : like X and y, or arrays in memory, default=None
            Validation data, scored after each epoch, on the workers if they are collections. With
            ``early_stopping=True`` they replace the share `validation_fraction` of the rows of each shard.
        resume : bool, default=False
            Whether to continue from the last file in the folder `checkpoint`, a folder of the client.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        WorkersLostError
            If there is no worker for ``onnxsgd.workers-timeout`` of Dask's configuration, 60 seconds unless
            it is set. The estimator keeps the last whole state.
        ConvergenceError
            If the loss or a weight is no longer finite. The estimator keeps the last finite weights.
        """
        client = self._present_client()
        data = self._sharded(client, X, y, sample_weight)
        if is_dask_collection(X_val) and y_val is not None:
            X_val = y_val = sharded_data(client, X_val, y_val, names=("X_val", "y_val"))
        return self._fit_sharded(data, X_val, y_val, resume)

    def _partial_fit_sharded(
        self, X: object, y: object, classes: ArrayLike | None, sample_weight: object
    ) -> Self:
        data: Any = self._sharded(self._present_client(), X, y, sample_weight)
        try:
            return RecordedFit(self, is_part=True).run(self._partial_fit, data, data, None, classes)
        finally:
            self.__dict__.pop("_label_counts", None)

    def _sharded(self, client: Client, X: object, y: object, sample_weight: object) -> ShardedData:
        """Return the training data as pieces."""
        if y is None:
            raise ParameterError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y is None."
            )
        data = sharded_data(client, X, y, sample_weight)
        return replace(data, n_shards=self.n_shards, sync_every=self.sync_every)

    def _present_client(self) -> Client:
        """Return the client of the parameter, or the present one.

        Raises
        ------
        ParameterError
            If there is none.
        """
        self._check_parameters()
        if self.client is not None and self.client.asynchronous:
            raise ParameterError(
                "client is asynchronous, and a fit waits for its tasks: give one that is not, such as "
                "distributed.Client()."
            )
        if self.client is not None:
            return self.client
        try:
            return default_client()
        except ValueError:
            raise ParameterError(
                "client=None takes the present client of Dask, and there is none: make one, such as "
                "distributed.Client(), or give it as client."
            ) from None

    def _lazily(self, method: str, X: object) -> Any:
        """Return the results of a method on a collection, computed on demand, or on data in memory."""
        local = self.to_local()
        if is_dask_collection(X):
            return lazily(local, partial(_result, method), X)
        return getattr(local, method)(X)

    def score(self, X: object, y: Collection, sample_weight: Collection = None) -> float:
        """Return the score of the given samples: R2 of a regressor, the accuracy of a classifier.

        Parameters
        ----------
        X, y, sample_weight : dask collections as in ``fit``, or data in memory
            The samples.

        Returns
        -------
        float
            The score, computed where the partitions lie.
        """
        if not is_dask_collection(X):
            return float(self.to_local().score(X, y, sample_weight))
        data = sharded_data(self._present_client(), X, y, sample_weight)
        return self._score_sharded(data)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "client": None}

    def __sklearn_clone__(self) -> Self:
        """Return a clone with the same client."""
        client, plain = self.client, self.__class__(**{**self.get_params(deep=False), "client": None})
        for name in ("_metadata_request", "_skl_callbacks"):
            if name in vars(self):
                setattr(plain, name, getattr(self, name))
        duplicate: Self = super(DaskTraining, plain).__sklearn_clone__()
        duplicate.client = client
        return duplicate


class DaskOnnxSGDClassifier(DaskTraining, OnnxSGDClassifier):
    """A classifier that continues the training of an ONNX graph on collections of Dask.

    Each partition is a shard of the data. Training is a sequence of rounds: each shard makes some updates of
    its own, from the same weights, and the mean of its change and those of the others moves the weights; or,
    with ``sync_every=1``, the gradients of the shards are averaged at each update. The result depends on the
    shards, not on the number of workers, their speed or their loss.

    Parameters
    ----------
    model : object, default=None
        As in :class:`~onnxsgd.OnnxSGDClassifier`; a model of scikit-learn must be fitted.
    client : distributed.Client, default=None
        The client of Dask; None: the present one. It is not pickled.
    n_shards : int, default=None
        The number of shards, of equal size and of neighbouring rows; None: one for each partition with rows.
    sync_every : int, default=None
        Updates of the largest shard in a round. 1: the weights are those of one machine on the same batches,
        but for rounding. Larger numbers take fewer rounds, whose scheduling takes some 40 ms each, and are
        approximate; shards whose classes or targets differ are mixed first. None: 16, or less for fits of
        fewer than 40 such rounds. A round ends with the epoch.
    **parameters : objects
        The parameters of :class:`~onnxsgd.OnnxSGDClassifier`, but for ``device`` and ``n_jobs``.

    Attributes
    ----------
    classes_, coef_, intercept_, loss_curve_, n_iter_, t_ : objects
        As in :class:`~onnxsgd.OnnxSGDClassifier`. With `sync_every` above 1, the losses of an epoch are those
        of the shards on their own weights, and `t_` counts the updates of the largest shard.

    See Also
    --------
    onnxsgd.OnnxSGDClassifier : The same on data in memory or in files.

    Examples
    --------
    ::

        import dask.array as da
        from dask.distributed import Client
        from sklearn.datasets import load_digits
        from onnxsgd.dask import DaskOnnxSGDClassifier

        client = Client()
        X, y = load_digits(return_X_y=True)
        X, y = da.from_array(X, chunks=(450, -1)), da.from_array(y, chunks=450)
        model = DaskOnnxSGDClassifier(random_state=0).fit(X, y)
        model.predict(X).compute()
    """

    _local_class = OnnxSGDClassifier
    _parameter_constraints: ClassVar[dict[str, Any]] = OnnxSGDClassifier._parameter_constraints | _OWN

    def __init__(
        self,
        model: object = None,
        *,
        client: Client | None = None,
        n_shards: int | None = None,
        sync_every: int | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__(model, **parameters)
        self.client, self.n_shards, self.sync_every = client, n_shards, sync_every

    @learns_in_parts
    def partial_fit(
        self, X: object, y: Collection = None, classes: ArrayLike | None = None, sample_weight: object = None
    ) -> Self:
        """Train for one epoch on the given collections, continuing from the last call.

        Parameters
        ----------
        X, y, sample_weight : dask collections
            The samples, as in ``fit``.
        classes : array-like of shape (n_classes,), default=None
            All labels. None: those of the first call, or of the model.

        Returns
        -------
        self : object
            The estimator.
        """
        return self._partial_fit_sharded(X, y, classes, sample_weight)

    def predict(self, X: object) -> Any:
        """Predict labels.

        Parameters
        ----------
        X : dask array or data frame, or data in memory
            The data.

        Returns
        -------
        dask array, or ndarray for data in memory
            The labels; of a collection they are computed on demand, with the present weights.
        """
        return self._lazily("predict", X)

    @available_if(_has_method("predict_proba"))
    def predict_proba(self, X: object) -> Any:
        """Predict the probability of each class, as :meth:`predict` does the labels."""
        return self._lazily("predict_proba", X)

    @available_if(_has_method("predict_log_proba"))
    def predict_log_proba(self, X: object) -> Any:
        """Predict the logarithm of the probability of each class, as :meth:`predict` does the labels."""
        return self._lazily("predict_log_proba", X)

    def decision_function(self, X: object) -> Any:
        """Return the scores of the classes, as :meth:`predict` does the labels."""
        return self._lazily("decision_function", X)


class DaskOnnxSGDRegressor(DaskTraining, OnnxSGDRegressor):
    """A regressor that continues the training of an ONNX graph on collections of Dask.

    See :class:`DaskOnnxSGDClassifier` for the rounds of training, and for what they cost.

    Parameters
    ----------
    model : object, default=None
        As in :class:`~onnxsgd.OnnxSGDRegressor`; a model of scikit-learn must be fitted.
    client : distributed.Client, default=None
        The client of Dask; None: the present one. It is not pickled.
    n_shards : int, default=None
        The number of shards, of equal size and of neighbouring rows; None: one for each partition with rows.
    sync_every : int, default=None
        Updates of the largest shard in a round; see :class:`DaskOnnxSGDClassifier`.
    **parameters : objects
        The parameters of :class:`~onnxsgd.OnnxSGDRegressor`, but for ``device`` and ``n_jobs``.

    Attributes
    ----------
    coef_, intercept_, loss_curve_, n_iter_, t_ : objects
        As in :class:`~onnxsgd.OnnxSGDRegressor`.

    See Also
    --------
    onnxsgd.OnnxSGDRegressor : The same on data in memory or in files.
    """

    _local_class = OnnxSGDRegressor
    _parameter_constraints: ClassVar[dict[str, Any]] = OnnxSGDRegressor._parameter_constraints | _OWN

    def __init__(
        self,
        model: object = None,
        *,
        client: Client | None = None,
        n_shards: int | None = None,
        sync_every: int | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__(model, **parameters)
        self.client, self.n_shards, self.sync_every = client, n_shards, sync_every

    @learns_in_parts
    def partial_fit(self, X: object, y: Collection = None, sample_weight: object = None) -> Self:
        """Train for one epoch on the given collections, continuing from the last call.

        Parameters
        ----------
        X, y, sample_weight : dask collections
            The samples, as in ``fit``.

        Returns
        -------
        self : object
            The estimator.
        """
        return self._partial_fit_sharded(X, y, None, sample_weight)

    def predict(self, X: object, return_std: bool = False) -> Any:
        """Predict targets.

        Parameters
        ----------
        X : dask array or data frame, or data in memory
            The data.
        return_std : bool, default=False
            Whether to return the standard deviation too; for ``loss="gaussian_nll"``.

        Returns
        -------
        dask array, or ndarray for data in memory, or a tuple of two
            The predictions, and their standard deviations; of a collection they are computed on demand, with
            the present weights.
        """
        if not return_std:
            return self._lazily("predict", X)
        local = self.to_local()
        if is_dask_collection(X):
            return tuple(lazily(local, partial(_result_with_std, number), X) for number in range(2))
        return local.predict(X, return_std=True)


def _with_parameters_of(cls: type, local: type) -> None:
    """Give the constructor of a class the parameters of the estimator without Dask, for scikit-learn."""
    own, known = inspect.signature(cls.__init__), inspect.signature(local.__init__)  # type: ignore[misc]
    named = {name: p for name, p in own.parameters.items() if p.kind is not p.VAR_KEYWORD}
    parameters = list({**known.parameters, **named}.values())
    cls.__init__.__signature__ = known.replace(parameters=parameters)  # type: ignore[misc]


_with_parameters_of(DaskOnnxSGDClassifier, OnnxSGDClassifier)
_with_parameters_of(DaskOnnxSGDRegressor, OnnxSGDRegressor)
