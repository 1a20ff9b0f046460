"""Files of estimators without code: ``est.save(path)`` and ``onnxsgd.load(path)``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sklearn
from sklearn.base import BaseEstimator

from onnxsgd._declared_types import check_attributes, check_fields, check_table
from onnxsgd._files import path_of
from onnxsgd.data.moments import Moments
from onnxsgd.estimators.between_calls import has_new_graph, read_graph_parameters
from onnxsgd.estimators.callbacks import OF_CALLBACKS
from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.learner.learner import Learner
from onnxsgd.learner.model_source import refuse_circle
from onnxsgd.persistence.checkpoint_folder import read_last
from onnxsgd.persistence.saved_file import read_file, write_file
from onnxsgd.persistence.value_tree import TreeReader, TreeWriter, UnknownValueError
from onnxsgd.training.checkpoints import Loop, Position, Progress
from onnxsgd.training.progress_forms import check_tensors
from onnxsgd.training.state import FitState

if TYPE_CHECKING:
    from onnxsgd.estimators.classifier import OnnxSGDClassifier
    from onnxsgd.estimators.fitted import TrainedModel
    from onnxsgd.estimators.regressor import OnnxSGDRegressor

__all__ = ["content_of", "load", "load_checkpoint", "read_progress", "refuse_own_class", "save"]

#: The types of learned attributes in a file.
_TYPES: dict[str, object] = {
    "n_iter_": int, "t_": int, "n_features_in_": int, "engine_": str, "feature_names_in_": np.ndarray,
    "coef_": np.ndarray, "intercept_": np.ndarray, "classes_": np.ndarray, "_n_outputs": int,
    "_score_shape": tuple[int, ...] | None, "_row_shapes": Mapping[str, tuple[int, ...]],
    "_y_shape": tuple[int, ...], "_y_is_vector": bool, "_has_several_labels": bool,
    "_set_before": Mapping[str, np.ndarray], "_seed": tuple[int | np.random.RandomState | None] | None,
    "_class_axis": int | None, "_follows_lengths": bool, "_is_clone": bool, "_has_seen_data": bool,
}  # fmt: skip
#: The learned attributes that a file of a trained estimator has.
_NEEDED = {
    "OnnxSGDClassifier": ("_n_outputs", "n_iter_", "classes_", "_has_several_labels"),
    "OnnxSGDRegressor": ("_n_outputs", "n_iter_", "_y_is_vector"),
}
#: Attributes that are not saved.
_LEFT_OUT = OF_CALLBACKS | {"_given", "_record", "_sklearn_version", "_metadata_request"}


def save(estimator: TrainedModel, path: str | os.PathLike[str]) -> None:
    """Write an estimator to a file; see its method ``save``."""
    estimator = estimator._saved()
    refuse_own_class(estimator)
    given = estimator.__dict__.get("_given")
    if given is not None and has_new_graph(estimator, given):
        raise ParameterError(
            "The graph of the estimator belongs to other parameters than the present ones: call fit, or set "
            "them back, before save."
        )
    write_file(path, *content_of(estimator))


def refuse_own_class(estimator: TrainedModel) -> None:
    """Refuse an estimator of a user's class.

    Raises
    ------
    ParameterTypeError
        If it is one.
    """
    name = type(estimator).__name__
    if type(estimator) is not _classes().get(name):
        raise ParameterTypeError(
            f"save writes {sorted(_classes())}, not {type(estimator).__module__}.{name}: a file without code "
            "cannot hold a class of yours."
        )


def content_of(
    estimator: TrainedModel, progress: Progress | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the JSON and the tensors of a file; `progress`: of the fit, for a checkpoint."""
    refuse_circle(estimator.model)
    name, given = type(estimator).__name__, estimator.__dict__.get("_given")
    writer, missing = TreeWriter(), {}
    # load may be given another estimator as model
    base = None if isinstance(estimator.model, BaseEstimator) else estimator.model
    attributes, parameters = estimator._attributes(base), {}
    for parameter in estimator.get_params(deep=False):
        value = attributes.pop(parameter)
        try:
            parameters[parameter] = writer.write(value, f"parameters/{parameter}")
        except UnknownValueError:
            missing[parameter] = f"{type(value).__module__}.{type(value).__qualname__}"
    kept = {key: value for key, value in attributes.items() if not _is_left_out(key, value)}
    saved: dict[str, Any] = kept.pop("_saved", {})
    content = {
        "class": name,
        "parameters": parameters,
        "missing": missing,
        "attributes": {key: _written(writer, key, value) for key, value in kept.items()},
        "learned": {key: _written(writer, key, value) for key, value in saved.items()},
        "requests": _requests(estimator),
        "has_given": given is not None,
    }
    if progress is not None:
        content["progress"] = writer.write(progress, "progress")
    return content, writer.tensors


def load(path: str | os.PathLike[str], **parameters: object) -> OnnxSGDRegressor | OnnxSGDClassifier:
    """Return the estimator that its method ``save`` wrote.

    No code of the file is run: it holds JSON and arrays, and names of classes of this package alone.

    Parameters
    ----------
    path : str or path-like
        The file; or a folder of checkpoints, of which the last whole one is read.
    **parameters : objects
        The parameters that the file does not hold: losses, schedules, optimizers, functions and models of
        your own. A scikit-learn `model` may be given too; it is then not read from the file.

    Returns
    -------
    OnnxSGDRegressor or OnnxSGDClassifier
        The estimator, which continues as if it had never been saved.

    Raises
    ------
    OSError
        If the file cannot be read.
    ParameterError
        If it is no such file, is damaged, or of a newer version of the package; if a parameter that it lacks
        is not given, or one that it holds is; if `path` is empty, or holds a zero byte.
    ParameterTypeError
        If `path` is no str or path-like.
    GraphError
        If the graph in it is not valid.
    ImportError
        If it holds estimators of scikit-learn and skops is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from sklearn.datasets import load_iris
    >>> import onnxsgd
    >>> X, y = load_iris(return_X_y=True)
    >>> learner = onnxsgd.OnnxSGDClassifier(random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "learner.onnxsgd"
    ...     learner.save(path)
    ...     again = onnxsgd.load(path)
    >>> bool((again.predict_proba(X) == learner.predict_proba(X)).all())
    True
    """

    def read(file: str | os.PathLike[str]) -> Any:
        return read_file(file, partial(_read, os.fspath(file), parameters))

    place = path_of(path)
    last = read_last(place, read) if place.is_dir() else None
    return read(place) if last is None else last


def load_checkpoint(
    folder: Path, estimator: TrainedModel, check: Callable[[dict[str, Any], Path], None]
) -> tuple[TrainedModel, dict[str, Any], Path] | None:
    """Return the estimator of the last checkpoint of a folder, its progress, and its file, if there is one.

    Its parameters are those of `estimator`. `check` is called with the progress and the file first: what is
    learned can only be read with the `model` that it was saved with.
    """

    def read(file: Path) -> tuple[TrainedModel, dict[str, Any], Path]:
        def read_both(content: dict[str, Any], tensors: Mapping[str, np.ndarray]) -> Any:
            own = estimator.get_params(deep=False)
            lacking = {**content, "parameters": {}, "missing": dict.fromkeys(own, "")}
            progress = _progress(content, tensors)
            check(progress, file)
            return _read(os.fspath(file), own, lacking, tensors), progress, file

        return read_file(file, read_both)

    return read_last(folder, read)


def read_progress(file: Path) -> dict[str, Any]:
    """Return the progress that a checkpoint holds."""
    return read_file(file, _progress)


def _progress(content: dict[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the progress in a checkpoint, whose entries are of their types."""
    progress: dict[str, Any] = TreeReader(tensors).read(content["progress"])
    _check_entries(progress, identity=dict[str, str], has_ended=bool, begun=np.random.RandomState)
    if not progress["has_ended"]:
        _check_entries(progress, loop=dict, position=dict | None)
        check_table(progress["loop"], Loop, "loop")
        if progress["position"] is not None:
            check_table(progress["position"], Position, "position")
    return progress


def _check_entries(values: object, **hints: object) -> None:
    """Refuse a progress that lacks an entry, or has one of another type."""
    if not isinstance(values, dict) or not hints.keys() <= values.keys():
        raise TypeError(f"its progress lacks one of {sorted(hints)}")
    check_attributes(values, hints)


def _classes() -> dict[str, type[Any]]:
    from onnxsgd.estimators.classifier import OnnxSGDClassifier
    from onnxsgd.estimators.regressor import OnnxSGDRegressor

    return {"OnnxSGDClassifier": OnnxSGDClassifier, "OnnxSGDRegressor": OnnxSGDRegressor}


def _is_left_out(name: str, value: object) -> bool:
    """Tell whether an attribute is not saved: made anew from the parameters, or of the calls of callbacks."""
    return name in _LEFT_OUT or type(value).__module__.startswith("sklearn.callback")


def _written(writer: TreeWriter, key: str, value: object) -> Any:
    try:
        return writer.write(value, key.lstrip("_"))
    except UnknownValueError as error:
        raise ParameterError(f"The attribute {key} cannot be saved: {error}") from error


def _requests(estimator: TrainedModel) -> dict[str, dict[str, Any]]:
    """Return the metadata that the user requested for each method."""
    request = vars(estimator).get("_metadata_request")
    methods = vars(request) if request is not None else {}
    return {name: dict(method.requests) for name, method in methods.items() if hasattr(method, "requests")}


def _put_requests(estimator: Any, requests: Mapping[str, Mapping[str, Any]]) -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        for method, wanted in requests.items():
            if wanted:
                getattr(estimator, f"set_{method}_request")(**wanted)


def _check_learned(learner: Learner, state: FitState) -> None:
    """Refuse weights that the graph does not have, and a state of other types."""
    for holder in (learner, state):
        check_fields(holder)
    for name, moments in state.moments.items():
        check_table(vars(moments), Moments, f"moments of {name!r:.60}")
        _check_columns(moments, f"moments of {name!r:.60}", state)
    if state.t < 0:
        raise ValueError(f"{state.t} updates")
    weights = state.weights()
    if set(weights) != set(learner.learned):
        raise ValueError(f"weights {sorted(weights)} for those of the graph, {sorted(learner.learned)}")
    for name, array in weights.items():
        initializer = learner.model.graph.initializers.get(name)
        value = None if initializer is None else initializer.const_value
        shape = None if value is None else tuple(value.shape.numpy())
        if array.shape != shape or array.dtype.kind != "f":
            raise ValueError(f"the weight {name!r} is {array.dtype} of shape {array.shape}, not {shape}")
    check_tensors(state.tensors, weights, state.optimizer, "tensors")


def _check_columns(moments: Moments, place: str, state: FitState) -> None:
    """Refuse moments that are not one for each column, or of columns that no weight has."""
    columns, n_columns = moments.columns or (np.arange(len(moments.count)), len(moments.count))
    shapes = {array.shape for array in (moments.count, moments.mean, moments.squares, moments.total)}
    if shapes != {columns.shape} or columns.ndim != 1:
        raise ValueError(f"{place} have the shapes {sorted(shapes)}, not one of {columns.shape}")
    if moments.columns is None:
        return
    largest = max(size for array in state.weights().values() for size in (1, *array.shape))
    is_ascending = columns.dtype.kind == "i" and bool(np.all(np.diff(columns, prepend=-1) > 0))
    if not is_ascending or not columns[-1:].max(initial=-1) < n_columns <= largest:
        raise ValueError(f"{place}: columns are not in ascending order, or not below {largest}")


def _read(
    path: str, given: Mapping[str, object], content: dict[str, Any], tensors: Mapping[str, np.ndarray]
) -> Any:
    cls, reader = _classes()[content["class"]], TreeReader(tensors)
    parameters, missing = dict(content["parameters"]), content["missing"]
    replaceable = {name for name, tree in parameters.items() if isinstance(tree, dict) and "sklearn" in tree}
    unknown = sorted(given.keys() - missing.keys() - replaceable)
    if unknown:
        accepted = sorted(missing.keys() | replaceable)
        can = f"it takes {accepted}" if accepted else "it lacks none"
        raise ParameterError(
            f"{unknown} are no parameters that the file {path!r} lacks: {can}. set_params changes the others "
            "after loading."
        )
    lacking = {name: kind for name, kind in missing.items() if name not in given}
    if lacking:
        objects = " and ".join(f"{name}, an object of {kind}" for name, kind in lacking.items())
        named = ", ".join(f"{name}=..." for name in lacking)
        raise ParameterError(f"The file {path!r} lacks {objects}: call load(path, {named}).")
    values = {name: reader.read(tree) for name, tree in parameters.items() if name not in given}
    estimator = cls(**{**values, **given})
    attributes = {name: reader.read(tree) for name, tree in content["attributes"].items()}
    learned = {name: reader.read(tree) for name, tree in content["learned"].items()}
    methods = [name for name in attributes if callable(getattr(cls, name, None))]
    if methods:
        raise ValueError(f"{methods} are methods, not attributes")
    lost = [name for name in _NEEDED[content["class"]] if learned and name not in attributes]
    if lost:
        raise ValueError(f"it lacks {lost}")
    check_attributes(attributes, _TYPES)
    own = {name: getattr(estimator, name) for name in estimator.get_params(deep=False)}
    estimator._restore({**own, **attributes, **({"_saved": learned} if learned else {})}, check=True)
    if learned:
        _check_learned(estimator._learner, estimator._state)
    if content["has_given"]:
        estimator._given = read_graph_parameters(estimator)
    _put_requests(estimator, content["requests"])
    return estimator
