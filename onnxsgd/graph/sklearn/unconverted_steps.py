"""Steps of estimators that have no converter: their place, and the error that names them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sklearn.base import BaseEstimator, is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.feature_selection import RFE
from sklearn.pipeline import FeatureUnion, Pipeline

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.sklearn.converters import is_registered

__all__ = ["conversion_error", "refuse_predictors", "unconverted"]


@dataclass(frozen=True)
class _Part:
    """A part of an estimator that a converter writes.

    Attributes
    ----------
    estimator : estimator
        The part.
    path : tuple of str
        The names of the steps that lead to it.
    owner : str
        The class of the ensemble that it is a member of; empty: of none.
    transforms : bool
        Whether its features are used, not its predictions.
    """

    estimator: Any
    path: tuple[str, ...]
    owner: str
    transforms: bool

    def __str__(self) -> str:
        name = type(self.estimator).__name__ + (f" in {self.owner}" if self.owner else "")
        return f"Step {'__'.join(self.path)!r} ({name})" if self.path else name


def refuse_predictors(prepared: BaseEstimator, given: BaseEstimator) -> None:
    """Refuse estimators of scikit-learn that predict and are used as transformers.

    Their converters write predictions, and later steps would take labels for features.

    Parameters
    ----------
    prepared : estimator
        From :func:`~onnxsgd.graph.sklearn.prepare.prepare`.
    given : estimator
        That of the user.
    """
    for part in _parts(prepared):
        step = part.estimator
        # converters of other classes are users' own
        is_known = type(step).__module__.startswith("sklearn.") and hasattr(step, "n_features_in_")
        is_known = is_known and not isinstance(step, RFE) and not is_registered(type(step))
        if part.transforms and is_known and hasattr(step, "predict"):
            raise UnsupportedError(
                f"{part} has no converter of its transform to ONNX. {_advice(part, prepared, given)}"
            )


def conversion_error(
    error: Exception, prepared: BaseEstimator, given: BaseEstimator, *, is_known: bool
) -> UnsupportedError:
    """Return the error of a conversion that failed, with the step and a remedy.

    Parameters
    ----------
    error : Exception
        That of skl2onnx, as it was caught.
    prepared, given : estimators
        As in :func:`refuse_predictors`.
    is_known : bool
        Whether the types of columns are those of data, not assumed.
    """
    advice = _advice(_place(error, prepared), prepared, given)
    if not is_known and hasattr(given, "feature_names_in_"):
        advice = f"Without samples, all columns are taken for numbers: give some as X. {advice}"
    return UnsupportedError(f"{unconverted(error, prepared)} {advice}")


def unconverted(error: Exception, estimator: BaseEstimator) -> str:
    """Return a sentence that names the part of an estimator that is not converted, and the reason."""
    from skl2onnx.common.exceptions import MissingConverter, MissingShapeCalculator

    part = _place(error, estimator)
    name = type(estimator).__name__ if part is None else str(part)
    if part is not None and isinstance(error, MissingConverter | MissingShapeCalculator):
        return f"{name} has no converter to ONNX."
    cause = reason(error, n_lines=1)
    if not isinstance(error, UnsupportedError):
        # the converters raise errors of many types
        cause = f"{type(error).__name__}: {cause}"
    return f"{name} cannot be converted to ONNX ({cause})."


def _advice(part: _Part | None, prepared: BaseEstimator, given: BaseEstimator) -> str:
    """Return the remedy: a step before the last one can stay in scikit-learn."""
    if part is None or not part.path or not isinstance(prepared, Pipeline):
        return _OTHER_TOOL
    if part.path[0] == _names(prepared.steps[-1][0])[0]:
        return _OTHER_TOOL
    ours = "OnnxSGDClassifier" if is_classifier(prepared) else "OnnxSGDRegressor"
    names = [name for name, _ in given.steps] if isinstance(given, Pipeline) else []
    if part.path[0] not in names:
        return f"Put it before {ours} in a pipeline of scikit-learn: steps there need no converter."
    # from the end: a text part before these steps is not among them
    n_later = len(names) - names.index(part.path[0]) - 1
    return (
        f"Keep it in scikit-learn: make_pipeline(FrozenEstimator(model[:-{n_later}]), "
        f"{ours}(model[-{n_later}:])), where model is this pipeline, fitted."
    )


_OTHER_TOOL = "An ONNX model of it by another tool can be given instead."


def _place(error: Exception, estimator: BaseEstimator) -> _Part | None:
    """Return the part that skl2onnx was working on: an argument of the innermost call that has one."""
    parts = {id(part.estimator): part for part in _parts(estimator)}
    place, found = error.__traceback__, None
    while place is not None:
        frame = place.tb_frame
        for name in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
            value = frame.f_locals.get(name)
            # an operator of skl2onnx holds the part
            found = parts.get(id(getattr(value, "raw_operator", value)), found)
        place = place.tb_next
    return found


def _parts(
    value: object, path: tuple[str, ...] = (), owner: str = "", transforms: bool = False
) -> Iterator[_Part]:
    """Yield the parts of an estimator, and of its members."""
    if isinstance(value, Pipeline):
        last = len(value.steps) - 1
        for number, (name, step) in enumerate(value.steps):
            yield from _parts(step, (*path, *_names(name)), owner, transforms or number < last)
    elif isinstance(value, FeatureUnion):
        for name, step in value.transformer_list:
            yield from _parts(step, (*path, name), owner, True)
    elif isinstance(value, ColumnTransformer):
        for name, step, _ in getattr(value, "transformers_", ()):
            yield from _parts(step, (*path, name), owner, True)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _parts(entry, path, owner, transforms)
    elif isinstance(value, BaseEstimator) or type(value).__name__ == "_CalibratedClassifier":
        yield _Part(value, path, owner, transforms)
        for entry in vars(value).values():
            yield from _parts(entry, path, type(value).__name__)


def _names(name: str) -> list[str]:
    """Return the names of the steps in the name of a step that was in a pipeline in a pipeline."""
    return [part for part in name.split("__") if part]
