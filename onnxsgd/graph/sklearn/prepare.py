"""Fitted estimators in the form that the converters take, with the same predictions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import FastICA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import VotingClassifier, VotingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import RFE
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, LogisticRegressionCV, SGDClassifier
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, TunedThresholdClassifierCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer, KBinsDiscretizer
from sklearn.random_projection import SparseRandomProjection
from sklearn.svm import SVC, SVR, LinearSVC, NuSVC, NuSVR
from sklearn.utils.validation import check_is_fitted

from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.sklearn.projections import (
    as_dense_projection,
    as_unmixing,
    project_discriminants,
    projected,
)
from onnxsgd.graph.sklearn.refused_steps import refuse_step

__all__ = [
    "final_estimator", "gives_probabilities", "prepare", "selections", "split_target_transformer",
]  # fmt: skip


def prepare(estimator: BaseEstimator, *, by_position: bool, predicts: bool = True) -> Any:
    """Return a copy of a fitted estimator in a form that the converters take.

    Parameters
    ----------
    estimator : estimator
        Fitted.
    by_position : bool
        Select the columns of a ColumnTransformer by position instead of by name, for a graph with all
        features in one input.
    predicts : bool
        Whether it predicts; False: it transforms, and a recursive feature elimination is a selection.
    """
    own = copy.deepcopy(estimator)
    if predicts:
        return _with_selected(_rebuild(own, by_position))
    return _rebuild(projected(own), by_position)


def _with_selected(estimator: Any) -> Any:
    """Return an estimator whose last step, if it is a recursive feature elimination, is that and a predictor.

    The converter writes the selection alone.
    """
    if not isinstance(final_estimator(estimator), RFE):
        return estimator
    if isinstance(estimator, Pipeline):
        name, last = estimator.steps[-1]
        return Pipeline([*estimator.steps[:-1], (name, _with_selected(last))])
    return Pipeline([("selection", estimator), ("estimator", _with_selected(estimator.estimator_))])


def split_target_transformer(estimator: BaseEstimator) -> tuple[Any, Any]:
    """Return the estimator without a final TransformedTargetRegressor, and the transformer of that.

    A multilayer perceptron for the Poisson loss predicts logarithms, in the same way: the converter has no
    exponential at its end.

    Parameters
    ----------
    estimator : estimator
        A copy from :func:`prepare`.
    """
    if isinstance(estimator, TransformedTargetRegressor):
        return estimator.regressor_, estimator.transformer_
    if isinstance(estimator, MLPRegressor) and estimator.out_activation_ == "exp":
        estimator.out_activation_ = "identity"
        return estimator, FunctionTransformer(np.log, np.exp)
    if isinstance(estimator, Pipeline):
        last, transformer = split_target_transformer(estimator.steps[-1][1])
        if transformer is not None:
            return Pipeline([*estimator.steps[:-1], (estimator.steps[-1][0], last)]), transformer
    return estimator, None


def final_estimator(estimator: BaseEstimator) -> Any:
    """Return the last step of a Pipeline, in a Pipeline as well, or the estimator itself."""
    while isinstance(estimator, Pipeline):
        estimator = estimator.steps[-1][1]
    return estimator


def gives_probabilities(machine: SVC | NuSVC) -> bool:
    """Tell whether a support vector machine has the probabilities of its own calibration."""
    return isinstance(machine.probability, bool | np.bool_) and bool(machine.probability)


def selections(estimator: BaseEstimator) -> list[RFE]:
    """Return the recursive feature eliminations among the steps of a Pipeline, in a Pipeline as well."""
    if isinstance(estimator, Pipeline):
        return [found for _, step in estimator.steps for found in selections(step)]
    return [estimator] if isinstance(estimator, RFE) else []


def _rebuild(value: object, by_position: bool) -> Any:
    """Adapt `value` and all its parts to the converters, in place if the object is kept."""
    if isinstance(value, FrozenEstimator):
        return _rebuild(value.estimator, by_position)
    if isinstance(value, GridSearchCV | RandomizedSearchCV) and _is_fitted(value):
        return _rebuild(value.best_estimator_, by_position)
    is_calibrated = type(value).__name__ == "_CalibratedClassifier"
    if is_calibrated or isinstance(value, BaseEstimator):
        _refuse_members(value)
        project_discriminants(value)
        for name, entry in vars(value).items():
            setattr(value, name, _rebuild(entry, by_position))
        if is_calibrated:
            vars(value)["estimator"] = _with_linear_scores(vars(value)["estimator"])
            return value
        refuse_step(value)
        adapt = _ADAPTATIONS.get(type(value))
        # the unfitted template of an ensemble is not converted
        return value if adapt is None or not _is_fitted(value) else adapt(value, by_position)
    if isinstance(value, list):
        return [_rebuild(entry, by_position) for entry in value]
    if type(value) is tuple:
        return tuple(_rebuild(entry, by_position) for entry in value)
    return value


#: Attributes with the fitted members of an ensemble.
_MEMBERS = ("estimators_", "final_estimator_", "regressor_", "estimator")


def _refuse_members(ensemble: object) -> None:
    """Refuse recursive feature eliminations among the members of an ensemble: the selection is converted.

    Raises
    ------
    UnsupportedError
        It names the ensemble and the member.
    """
    if isinstance(ensemble, Pipeline | RFE):
        return
    for name in _MEMBERS:
        found = vars(ensemble).get(name)
        found = found.ravel().tolist() if isinstance(found, np.ndarray) else found
        for member in found if isinstance(found, list) else (found,):
            last = final_estimator(member)
            if isinstance(last, RFE) and hasattr(last, "estimator_"):
                raise UnsupportedError(
                    f"{type(ensemble).__name__} has {type(last).__name__} as a member, of which only the "
                    "selection has a converter: take a pipeline of SelectFromModel and the estimator."
                )


def _is_fitted(estimator: BaseEstimator) -> bool:
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    return True


def _without_idle_steps(pipeline: Pipeline, by_position: bool) -> Pipeline:
    """Drop the steps that do nothing, which the converter refuses, and join the steps of pipelines inside."""
    steps = [
        (f"{name}__{inner}", entry)
        for name, step in pipeline.steps
        for inner, entry in (step.steps if isinstance(step, Pipeline) else [("", step)])
        if entry is not None and entry != "passthrough"
    ]
    pipeline.steps = steps or pipeline.steps
    return pipeline


def _as_hinge(classifier: LinearSVC, by_position: bool) -> SGDClassifier:
    """Return the linear classifier with the same scores, whose converter takes the options of members."""
    linear = _linear("hinge", classifier.coef_, np.atleast_1d(classifier.intercept_), classifier.classes_)
    # on which the threshold of SelectFromModel depends
    return linear.set_params(penalty=classifier.penalty)


def _with_dense_codes(discretizer: KBinsDiscretizer, by_position: bool) -> KBinsDiscretizer:
    """Let indicators of bins be a dense table: ONNX has no sparse ones, which the converter refuses."""
    if discretizer.encode == "onehot":
        discretizer.encode = "onehot-dense"
    return discretizer


def _with_missing_texts(imputer: SimpleImputer, by_position: bool) -> SimpleImputer:
    """Let the missing values among texts be the text that they are in an input of a graph."""
    if any(isinstance(number, str) for number in imputer.statistics_):
        imputer.missing_values = str(imputer.missing_values)
    return imputer


def _as_converted(
    voting: VotingClassifier | VotingRegressor, by_position: bool
) -> VotingClassifier | VotingRegressor:
    """Unset a parameter that affects only ``transform``, and let weights be an array: one for each member."""
    if isinstance(voting, VotingClassifier):
        voting.flatten_transform = False
    if voting.weights is not None:
        pairs = zip(voting.estimators, voting.weights, strict=True)
        voting.weights = np.array([weight for (_, member), weight in pairs if member != "drop"], np.float64)
    return voting


def _as_logistic(discriminant: LinearDiscriminantAnalysis, by_position: bool) -> LogisticRegression:
    """Return the logistic regression with the same scores and probabilities.

    The converter of skl2onnx 1.20 doubles the score of two classes; this can go when that is mended.
    """
    logistic = LogisticRegression()
    logistic.coef_, logistic.intercept_ = discriminant.coef_, discriminant.intercept_
    logistic.classes_, logistic.n_features_in_ = discriminant.classes_, discriminant.n_features_in_
    return logistic


def _as_linear(machine: Any, by_position: bool) -> Any:
    """Return the linear model with the same predictions as a support vector machine with a linear kernel.

    The converter writes support vectors in float32, whose products with their coefficients cancel. Several
    classes, which vote in pairs, and probabilities are left alone.
    """
    if machine.kernel != "linear":
        return machine
    coef = machine.coef_
    coef = np.asarray(coef.todense() if sparse.issparse(coef) else coef)
    if isinstance(machine, SVC | NuSVC):
        if len(machine.classes_) > 2 or gives_probabilities(machine):
            return machine
        return _linear("hinge", coef, machine.intercept_, machine.classes_)
    linear = LinearRegression()
    linear.coef_, linear.intercept_ = coef[0], float(machine.intercept_[0])
    linear.n_features_in_ = coef.shape[1]
    return linear


def _as_one_layer(one_vs_rest: OneVsRestClassifier, by_position: bool) -> OneVsRestClassifier | SGDClassifier:
    """Return the equivalent linear classifier with a row of coefficients for each class.

    One layer trains faster than one for each class, and skl2onnx 1.20 cannot convert members without
    probabilities. Nonlinear members and multilabel targets are left alone.
    """
    members = one_vs_rest.estimators_
    losses = {_loss_of(member) for member in members}
    if one_vs_rest.multilabel_ or len(losses) > 1 or None in losses:
        return one_vs_rest
    coef = np.vstack([member.coef_ for member in members])
    intercept = np.hstack([np.broadcast_to(member.intercept_, 1) for member in members])
    return _linear(str(losses.pop()), coef, intercept, one_vs_rest.classes_)


def _with_linear_scores(estimator: Any) -> Any:
    """Return a pipeline that ends in a linear classifier without probabilities, with the same scores.

    Others are returned as they are, or refused. skl2onnx 1.20 calibrates the probabilities of a pipeline in
    place of its scores, and converts no LinearSVC there; this can go when that is mended.
    """
    if not isinstance(estimator, Pipeline):
        if isinstance(estimator, _WITHOUT_SCORES):
            raise _without_scores(estimator)
        return estimator
    name, last = estimator.steps[-1]
    # the coefficients of an SVC are those of pairs of classes
    if hasattr(last, "coef_") and hasattr(last, "decision_function") and not isinstance(last, SVC | NuSVC):
        last = _linear("hinge", np.atleast_2d(last.coef_), np.atleast_1d(last.intercept_), last.classes_)
    elif hasattr(last, "decision_function") and not isinstance(last, Pipeline):
        raise _without_scores(last)
    return Pipeline([*estimator.steps[:-1], (name, _with_linear_scores(last))])


def _without_scores(estimator: Any) -> UnsupportedError:
    """Return the error of a classifier whose scores are calibrated, and whose converter has none."""
    return UnsupportedError(
        f"CalibratedClassifierCV calibrates the scores of {type(estimator).__name__}, and its converter has "
        "probabilities alone: calibrate a linear classifier, in a pipeline or not."
    )


#: Classifiers whose scores are calibrated, and whose converters have none.
_WITHOUT_SCORES = (QuadraticDiscriminantAnalysis, OneVsRestClassifier, TunedThresholdClassifierCV)


def _linear(loss: str, coef: np.ndarray, intercept: np.ndarray, classes: np.ndarray) -> SGDClassifier:
    """Return a fitted linear classifier."""
    linear = SGDClassifier(loss=loss)
    linear.coef_, linear.intercept_ = coef, intercept
    linear.classes_, linear.n_features_in_ = classes, coef.shape[1]
    return linear


def _loss_of(member: BaseEstimator) -> str | None:
    """Return the loss of the SGDClassifier with the same link; None if there is none."""
    if not hasattr(member, "coef_"):
        return None
    if isinstance(member, SGDClassifier):
        return str(member.loss)
    if isinstance(member, LogisticRegression | LogisticRegressionCV):
        return "log_loss"
    return None if hasattr(member, "predict_proba") else "hinge"


def _with_columns(transformer: ColumnTransformer, by_position: bool) -> ColumnTransformer:
    """Select columns by position, of a matrix, or by name: masks and slices have no converter."""
    positions = transformer._transformer_to_input_indices
    names: Any = getattr(transformer, "feature_names_in_", None)
    if not by_position and names is None:
        return transformer

    def selected(name: str, columns: Any) -> Any:
        if by_position:
            return [int(i) for i in positions[name]]
        # a name alone selects a series, as of texts
        return columns if isinstance(columns, str) else [str(names[i]) for i in positions[name]]

    transformer.transformers_ = [
        (name, step, selected(name, columns)) for name, step, columns in transformer.transformers_
    ]
    return transformer


def _without_dropped(union: FeatureUnion, by_position: bool) -> FeatureUnion:
    """Drop the transformers of a union that are dropped, whose name the converter refuses."""
    union.transformer_list = [(name, part) for name, part in union.transformer_list if part != "drop"]
    return union


_ADAPTATIONS: dict[type, Callable[[Any, bool], Any]] = {
    ColumnTransformer: _with_columns,
    FastICA: as_unmixing,
    FeatureUnion: _without_dropped,
    KBinsDiscretizer: _with_dense_codes,
    LinearDiscriminantAnalysis: _as_logistic,
    LinearSVC: _as_hinge,
    NuSVC: _as_linear,
    NuSVR: _as_linear,
    OneVsRestClassifier: _as_one_layer,
    Pipeline: _without_idle_steps,
    SVC: _as_linear,
    SimpleImputer: _with_missing_texts,
    SVR: _as_linear,
    SparseRandomProjection: as_dense_projection,
    VotingClassifier: _as_converted,
    VotingRegressor: _as_converted,
}
