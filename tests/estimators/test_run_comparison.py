"""Plots of several trainings: a curve for each, and axes that do not overlap."""

import matplotlib
import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, TrainingDisplay
from onnxsgd.exceptions import ParameterError, ParameterTypeError

matplotlib.use("Agg")
pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def fits():
    X, y = load_iris(return_X_y=True)
    names = {"short": 4, "long": 9}
    fits = {
        name: OnnxSGDClassifier(max_iter=epochs, tol=None, random_state=0, early_stopping=True)
        for name, epochs in names.items()
    }
    return {name: make_pipeline(StandardScaler(), est).fit(X, y) for name, est in fits.items()}


@pytest.fixture(scope="module")
def plain():
    X, y = load_iris(return_X_y=True)
    return OnnxSGDClassifier(max_iter=3, tol=None, random_state=0).fit(X, y)


def test_each_fit_has_its_curves(fits):
    display = TrainingDisplay.from_estimators(fits)
    assert list(display.loss_lines_) == list(display.score_lines_) == ["short", "long"]
    for name, pipeline in fits.items():
        est = pipeline[-1]
        epochs = np.arange(1, est.n_iter_ + 1)
        np.testing.assert_array_equal(display.loss_lines_[name].get_xydata(), np.c_[epochs, est.loss_curve_])
        np.testing.assert_array_equal(
            display.score_lines_[name].get_xydata(), np.c_[epochs, est.validation_scores_]
        )
    assert [text.get_text() for text in display.loss_ax_.get_legend().get_texts()] == ["short", "long"]
    styles = {(line.get_color(), line.get_linestyle()) for line in display.loss_lines_.values()}
    assert len(styles) == 2
    assert display.score_ax_.get_ylabel() == "accuracy on validation data"


def test_fits_without_scores_need_one_panel(plain):
    display = TrainingDisplay.from_estimators({"plain": plain})
    assert display.score_ax_ is None
    assert len(display.figure_.axes) == 1


def test_a_fit_without_scores_is_missing_among_the_scores(fits, plain):
    display = TrainingDisplay.from_estimators({**fits, "plain": plain})
    assert set(display.score_lines_) == set(fits)
    assert set(display.loss_lines_) == {*fits, "plain"}


def test_it_draws_on_the_given_axes(fits):
    figure, axes = pyplot.subplots(2, 1)
    display = TrainingDisplay.from_estimators(fits, axes)
    assert (display.loss_ax_, display.score_ax_) == tuple(axes)
    assert display.figure_ is figure


def test_bad_arguments_are_named(fits, plain):
    with pytest.raises(ParameterTypeError, match="not list"):
        TrainingDisplay.from_estimators([plain])
    with pytest.raises(ParameterError, match="empty"):
        TrainingDisplay.from_estimators({})
    with pytest.raises(NotFittedError):
        TrainingDisplay.from_estimators({"a": OnnxSGDClassifier()})
    with pytest.raises(ParameterError, match="3 axes; these fits are drawn on 2"):
        TrainingDisplay.from_estimators(fits, pyplot.subplots(1, 3)[1])
