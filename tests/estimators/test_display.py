"""Plots of a training: their curves and their axes."""

import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, TrainingDisplay

matplotlib.use("Agg")
pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.fixture(scope="module")
def stopped(iris):
    model = OnnxSGDClassifier(
        early_stopping=True, validation_fraction=0.3, batch_size=10, random_state=2, record_update_norms=True
    )
    model.fit(*iris)
    assert model.validation_scores_[0] < max(model.validation_scores_)
    return model


def test_the_curves_are_those_of_the_estimator(stopped):
    display = TrainingDisplay.from_estimator(stopped)
    epochs = np.arange(1, stopped.n_iter_ + 1)
    np.testing.assert_array_equal(display.loss_line_.get_xydata(), np.c_[epochs, stopped.loss_curve_])
    np.testing.assert_array_equal(display.score_line_.get_xydata(), np.c_[epochs, stopped.validation_scores_])
    best = int(np.argmax(stopped.validation_scores_))
    assert display.best_line_.get_xydata().tolist() == [[best + 1, stopped.validation_scores_[best]]]
    assert display.ax_.get_xlabel() == "epoch"
    assert display.score_ax_.get_ylabel() == "accuracy on validation data"
    assert display.ax_.get_title() == "OnnxSGDClassifier"
    texts = [text.get_text() for text in display.score_ax_.get_legend().get_texts()]
    score = f"{stopped.validation_scores_[best]:.3g}"
    assert texts == ["training loss", "accuracy on validation data", f"best: {score} at epoch {best + 1}"]


def test_without_validation_data_there_is_one_curve(iris):
    model = OnnxSGDRegressor(max_iter=3, tol=None).fit(*iris)
    display = TrainingDisplay.from_estimator(make_pipeline(model))
    assert display.score_ax_ is None
    assert display.score_line_ is None
    assert len(display.figure_.axes) == 1


def test_it_draws_on_the_given_axes(stopped):
    figure, axes = pyplot.subplots(1, 2)
    display = TrainingDisplay.from_estimator(stopped, ax=axes[1])
    assert display.ax_ is axes[1]
    assert display.figure_ is figure
    assert not axes[0].lines


@pytest.mark.parametrize(("shape", "width"), [((1, 3), 3), ((1, 3), 6.4), ((3, 1), 4), ((2, 2), 3)])
def test_plots_beside_each_other_do_not_overlap(stopped, shape, width):
    """Labels on the right, of scores, and below, of rates, keep clear of the axes there."""
    figure, axes = pyplot.subplots(*shape, figsize=(width * shape[1], 4.2 * shape[0]))
    shown = [TrainingDisplay.from_estimator(stopped, ax=ax, rate=True, update_norm=True) for ax in axes.flat]
    figure.draw_without_rendering()
    # a layout counts lines and ticks to within a pixel
    whole = figure.bbox.padded(2)
    for display in shown:
        parts = [display.ax_, display.score_ax_, display.rate_ax_, display.norm_ax_]
        assert all(whole.contains(*corner) for ax in parts for corner in ax.get_tightbbox().corners())
    boxes = [
        matplotlib.transforms.Bbox.union([display.ax_.get_tightbbox(), display.score_ax_.get_tightbbox()])
        for display in shown
    ]
    assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.shrunk(0.99, 0.99).overlaps(b)]


def test_the_rate_is_drawn_below_on_demand(stopped):
    assert TrainingDisplay.from_estimator(stopped).rate_ax_ is None
    display = TrainingDisplay.from_estimator(stopped, rate=True)
    epochs = np.arange(1, stopped.n_iter_ + 1)
    np.testing.assert_array_equal(display.rate_line_.get_xydata(), np.c_[epochs, stopped.learning_rates_])
    assert display.rate_ax_.get_xlabel() == "epoch"
    assert display.rate_ax_.get_xlim() == display.ax_.get_xlim()


@pytest.mark.parametrize("width", [2.5, 4, 6.4])
def test_the_legend_covers_neither_curves_nor_the_title(stopped, width):
    figure, ax = pyplot.subplots(figsize=(width, 4))
    display = TrainingDisplay.from_estimator(stopped, ax=ax, rate=True)
    figure.draw_without_rendering()
    legend = display.score_ax_.get_legend().get_window_extent()
    assert not legend.overlaps(ax.get_window_extent())
    assert not legend.overlaps(ax.title.get_window_extent())
    assert figure.bbox.padded(2).contains(*legend.min)
    assert figure.bbox.padded(2).contains(*legend.max)


def test_the_norm_of_updates_is_drawn_below_the_rate(stopped):
    assert TrainingDisplay.from_estimator(stopped).norm_ax_ is None
    display = TrainingDisplay.from_estimator(stopped, rate=True, update_norm=True)
    epochs = np.arange(1, stopped.n_iter_ + 1)
    np.testing.assert_array_equal(display.norm_line_.get_xydata(), np.c_[epochs, stopped.update_norms_])
    display.figure_.draw_without_rendering()
    boxes = [axes.get_window_extent() for axes in (display.ax_, display.rate_ax_, display.norm_ax_)]
    assert boxes[0].y0 > boxes[1].y1 > boxes[1].y0 > boxes[2].y1
    assert [axes.get_xlabel() for axes in (display.ax_, display.rate_ax_, display.norm_ax_)] == [
        "",
        "",
        "epoch",
    ]
    alone = TrainingDisplay.from_estimator(stopped, update_norm=True)
    assert alone.rate_ax_ is None
    assert alone.ax_.get_xlabel() == ""


def test_the_best_epoch_is_marked_on_all_axes(stopped):
    display = TrainingDisplay.from_estimator(stopped, rate=True, update_norm=True)
    best = int(np.argmax(stopped.validation_scores_)) + 1
    for axes in (display.ax_, display.rate_ax_, display.norm_ax_):
        assert [line.get_xdata() for line in axes.lines if line.get_linestyle() == ":"] == [[best, best]]


def test_norms_that_were_not_recorded_are_refused(iris):
    model = OnnxSGDClassifier(max_iter=3, tol=None).fit(*iris)
    with pytest.raises(ValueError, match="record_update_norms=True"):
        TrainingDisplay.from_estimator(model, update_norm=True)
    model.set_params(record_update_norms=True).partial_fit(*iris)
    display = TrainingDisplay.from_estimator(model, update_norm=True)
    np.testing.assert_array_equal(np.isnan(display.norm_line_.get_ydata()), [True, True, True, False])


def test_a_single_epoch_is_a_point():
    assert TrainingDisplay([1.0]).plot().loss_line_.get_marker() == "."
    assert TrainingDisplay([1.0, 0.5]).plot().loss_line_.get_marker() == "None"


def test_networks_of_scikit_learn_are_drawn_without_rates(iris):
    model = MLPClassifier(max_iter=300, tol=1e-2, random_state=0).fit(*iris)
    assert TrainingDisplay.from_estimator(model).score_ax_ is None
    with pytest.raises(TypeError, match="MLPClassifier keeps no learning_rates_"):
        TrainingDisplay.from_estimator(model, rate=True)
    with pytest.raises(TypeError, match="MLPClassifier keeps no update_norms_"):
        TrainingDisplay.from_estimator(model, update_norm=True)


def test_rates_of_several_magnitudes_are_logarithmic():
    display = TrainingDisplay([3.0, 2.0, 1.0], learning_rates=[1.0, 0.1, 0.01]).plot()
    assert display.rate_ax_.get_yscale() == "log"
    display = TrainingDisplay([3.0, 2.0, 1.0], learning_rates=[1.0, 0.5, 0.0]).plot()
    assert display.rate_ax_.get_yscale() == "linear"


def test_a_layout_that_the_user_chose_stays(stopped):
    figure, ax = pyplot.subplots(layout="tight")
    engine = figure.get_layout_engine()
    TrainingDisplay.from_estimator(stopped, ax=ax)
    assert figure.get_layout_engine() is engine


def test_estimators_without_a_curve_are_refused(iris):
    with pytest.raises(NotFittedError):
        TrainingDisplay.from_estimator(OnnxSGDClassifier())
    with pytest.raises(TypeError, match="Ridge keeps no loss_curve_"):
        TrainingDisplay.from_estimator(Ridge().fit(*iris))


def test_without_matplotlib_the_message_names_the_package():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from onnxsgd import TrainingDisplay\n"
        "TrainingDisplay([1.0, 0.5]).plot()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError" in done.stderr or "MissingRuntimeError" in done.stderr
    assert "onnxsgd[plot]" in done.stderr
