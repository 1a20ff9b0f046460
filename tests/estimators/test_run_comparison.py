"""Plots of several trainings: a curve for each, and axes that do not overlap."""

import matplotlib
import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.neural_network import MLPClassifier
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
    assert [text.get_text() for text in display.score_ax_.get_legend().get_texts()] == ["short", "long"]
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


def test_rates_and_norms_are_compared_on_demand(fits):
    X, y = load_iris(return_X_y=True)
    both = {
        name: OnnxSGDClassifier(max_iter=4, tol=None, random_state=0, record_update_norms=True, **more).fit(
            X, y
        )
        for name, more in {"auto": {}, "constant": {"learning_rate": "constant"}}.items()
    }
    display = TrainingDisplay.from_estimators({**both, **fits}, rate=True, update_norm=True)
    assert list(display.rate_lines_) == ["auto", "constant", "short", "long"]
    assert list(display.norm_lines_) == ["auto", "constant"]
    for name, est in both.items():
        np.testing.assert_array_equal(display.rate_lines_[name].get_ydata(), est.learning_rates_)
        np.testing.assert_array_equal(display.norm_lines_[name].get_ydata(), est.update_norms_)
    colors = {line.get_color() for line in (display.loss_lines_["auto"], display.norm_lines_["auto"])}
    assert len(colors) == 1
    assert len(display.figure_.axes) == 4
    assert TrainingDisplay.from_estimators(both, rate=True).score_ax_ is None


@pytest.mark.parametrize("width", [4, 6, 12])
def test_the_legend_covers_no_curve(fits, width):
    figure, axes = pyplot.subplots(1, 2, figsize=(width, 3))
    display = TrainingDisplay.from_estimators(fits, axes)
    figure.draw_without_rendering()
    legend = display.score_ax_.get_legend().get_window_extent()
    assert not [ax for ax in axes if legend.overlaps(ax.get_window_extent())]
    assert figure.bbox.padded(2).contains(*legend.max)


def test_bad_arguments_are_named(fits, plain):
    with pytest.raises(ParameterTypeError, match="not list"):
        TrainingDisplay.from_estimators([plain])
    with pytest.raises(ParameterError, match="empty"):
        TrainingDisplay.from_estimators({})
    with pytest.raises(NotFittedError):
        TrainingDisplay.from_estimators({"a": OnnxSGDClassifier()})
    with pytest.raises(ParameterError, match="3 axes; these fits are drawn on 2"):
        TrainingDisplay.from_estimators(fits, pyplot.subplots(1, 3)[1])
    with pytest.raises(ParameterError, match="record_update_norms=True"):
        TrainingDisplay.from_estimators(fits, update_norm=True)
    network = MLPClassifier(max_iter=300, tol=1e-2, random_state=0).fit(*load_iris(return_X_y=True))
    with pytest.raises(ParameterError, match="learning_rates_"):
        TrainingDisplay.from_estimators({"network": network}, rate=True)
