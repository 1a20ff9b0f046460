"""The first weights: of a line, whose loss is computed in numpy."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.graph.reading.first_layers import FirstLayer
from onnxsgd.graph.reading.output_layer import NO_LAYER, OutputLayer, OutputWeight
from onnxsgd.losses import (
    CrossEntropy,
    Focal,
    GaussianNLL,
    Hinge,
    LogLoss,
    ModifiedHuber,
    MulticlassHinge,
    MultinomialFocal,
    Perceptron,
    Poisson,
    SquaredError,
    SquaredHinge,
)
from onnxsgd.training.start import (
    LEAST_SHARE,
    NoiseFinder,
    Objective,
    StartFinder,
    best_constant,
    is_due,
    share_of_calls,
)  # fmt: skip
from onnxsgd.training.state import FitState

RNG = np.random.RandomState(0)
X = RNG.normal(size=(200, 3))
Y = X @ np.array([[1.0], [-2.0], [0.5]]) + 7.0 + 0.1 * RNG.normal(size=(200, 1))
WEIGHT_OF_ROWS = RNG.uniform(0.5, 2.0, 200)


def layer_of(factor):
    """Return the last layer of factor (x w + b)."""
    of_output = np.zeros(1, int), np.array([factor])
    parts = [
        OutputWeight(name, *of_output, shape, np.zeros(1, int))
        for name, shape in [("b", (1,)), ("w", (1, 1))]
    ]
    return OutputLayer(tuple(parts), (0.0,))


LAYER = layer_of(1.0)


def test_the_best_constant_of_means_and_variances():
    found = best_constant(GaussianNLL(), np.hstack([Y, Y]), WEIGHT_OF_ROWS)
    mean = np.average(Y[:, 0], weights=WEIGHT_OF_ROWS)
    np.testing.assert_allclose(found, [mean, np.log(np.cov(Y.T, aweights=WEIGHT_OF_ROWS, ddof=0))])
    # of a constant target: the least logarithm
    np.testing.assert_allclose(best_constant(GaussianNLL(), np.full((9, 2), 3.0), np.ones(9)), [3, -60])


def test_the_best_constant_of_large_weights_and_targets():
    """Their products have no number."""
    target, weight = np.array([[3e18], [9e18], [0.0]]), np.array([1e300, 1e300, 1.0])
    np.testing.assert_allclose(best_constant(SquaredError(), target, weight), [6e18])


def test_the_best_constant_of_a_logarithm():
    np.testing.assert_allclose(best_constant(Poisson(), Y, np.ones(200)), np.log(Y.mean(axis=0)))
    np.testing.assert_allclose(best_constant(Poisson(), np.zeros((10, 1)), np.ones(10)), [np.log(0.05)])


@pytest.mark.parametrize(
    ("loss", "low", "want"),
    [
        (LogLoss(), 0.0, [math.log(0.2 / 0.8), math.log(0.5 / 0.5)]),
        (Focal(gamma=0.0), -1.0, [math.log(0.2 / 0.8), math.log(0.5 / 0.5)]),
        (ModifiedHuber(), -1.0, [-0.6, 0.0]),
        (Hinge(), -1.0, [-0.6, 0.0]),
        (SquaredHinge(), -1.0, [-0.6, 0.0]),
        (Perceptron(), -1.0, [-0.6, 0.0]),
        (MulticlassHinge(), 0.0, [-0.15, 0.15]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_best_constant_of_labels(loss, low, want):
    """Weights of samples count; a tenth of the rows is repeated by them."""
    weight = np.array([2.0, *np.ones(8)])
    target = np.full((9, 2), low)
    target[0, 0] = target[:4, 1] = 1.0
    np.testing.assert_allclose(best_constant(loss, target, weight), want, atol=1e-15)


def test_the_best_constant_of_classes():
    """A class without a sample has half of one; rows of zeros, whose labels are ignored, count nothing."""
    target = np.zeros((12, 3))
    target[:8, 0] = target[8:10, 1] = 1.0
    scores = best_constant(CrossEntropy(), target, np.ones(12))
    shares = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(shares[:2], np.array([0.8, 0.2]) / (1 + 0.5 / 12))
    np.testing.assert_allclose(shares[2] / shares[0], 0.5 / 12 / 0.8)
    np.testing.assert_allclose(scores.sum(), 0, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_best_constant_of_smoothed_classes(smoothing):
    target = np.eye(3)[[0] * 8 + [1] * 2]
    scores = best_constant(CrossEntropy(label_smoothing=smoothing), target, np.ones(10))
    shares = np.exp(scores) / np.exp(scores).sum()
    want = (1 - smoothing) * np.array([0.8, 0.2, 0.0]) + smoothing / 3
    np.testing.assert_allclose(shares, want, atol=0 if smoothing else 0.05, rtol=1e-12)


@pytest.mark.parametrize("share", [0.02, 0.2, 0.6])
def test_the_best_constant_of_a_focal_loss(share):
    """The minimum over scores, found by scipy; two classes of softmax have half of the score each."""

    def loss(z):
        p = 1 / (1 + np.exp(-z))
        return -share * (1 - p) ** 2 * np.log(p) - (1 - share) * p**2 * np.log(1 - p)

    best = minimize_scalar(loss, bounds=(-5, 5), method="bounded").x
    target = (np.arange(1000) < 1000 * share).astype(float)[:, None]
    step = abs(math.log(share / (1 - share))) / 64
    (found,) = best_constant(Focal(), 2 * target - 1, np.ones(1000))
    assert abs(found - best) <= step
    first, second = best_constant(MultinomialFocal(), np.hstack([1 - target, target]), np.ones(1000))
    assert abs(second - first - best) <= step


class Line:
    """z = factor (x w + b) with a loss of z and y."""

    def __init__(self, w, b, loss="squares", factor=1.0, layer=LAYER, is_linear=True, rows=200):
        self.state = FitState(
            {("w", WEIGHT): np.array(w, float).reshape(3, 1), ("b", WEIGHT): np.array([b], float)},
            eta=0.05, random_state=RNG,
        )  # fmt: skip
        self.loss, self.factor, self.rows = loss, factor, rows
        is_scaled = loss == "squares"
        self.finder = StartFinder(
            layer, {"b"}, is_linear,
            best_constant(SquaredError(), Y[:rows], WEIGHT_OF_ROWS[:rows]) if is_scaled else np.zeros(1),
            Y[:rows] if is_scaled else None, WEIGHT_OF_ROWS[:rows],
            self.objective, self.raw,
        )  # fmt: skip

    def raw(self, weights):
        return self.factor * (X[: self.rows] @ weights["w"] + weights["b"])

    def objective(self):
        z, y = self.raw(self.state.weights()), Y[: self.rows]
        sign = np.where(y > 7, 1.0, -1.0)
        losses = {
            "squares": (z - y) ** 2 / 2,
            "log": np.logaddexp(0, -sign * z),
            "perceptron": np.maximum(0, -sign * z),
        }[self.loss]
        mean = float(np.average(losses, axis=0, weights=WEIGHT_OF_ROWS[: self.rows]).item())
        return Objective(mean, 1e-4 * float((self.state.tensors["w", WEIGHT] ** 2).sum()))

    def find(self):
        return self.finder.find(self.state)

    @property
    def w(self):
        return self.state.tensors["w", WEIGHT].ravel()

    @property
    def b(self):
        return self.state.tensors["b", WEIGHT].item()


MEAN = float(np.average(Y.ravel(), weights=WEIGHT_OF_ROWS))
VARIANCE = float(np.average((Y.ravel() - MEAN) ** 2, weights=WEIGHT_OF_ROWS))


def test_zeros_start_at_the_mean():
    line = Line([0, 0, 0], 0.0, factor=4.0, layer=layer_of(4.0))
    start = line.find()
    assert 4 * line.b == pytest.approx(MEAN)
    assert start[:4] == pytest.approx((VARIANCE / 2, VARIANCE / 2, 1.0, False))
    assert start[4:] == (-math.inf, math.inf)


def test_good_weights_are_kept_and_have_a_small_share_of_the_rate():
    line = Line([1, -2, 0.5], 7.0)
    start = line.find()
    np.testing.assert_array_equal(line.w, [1, -2, 0.5])
    assert start.objective == pytest.approx(line.objective().total)
    assert start.unit == pytest.approx(VARIANCE / 2)
    assert start.share == pytest.approx(max(LEAST_SHARE, math.sqrt(line.objective().loss / start.unit)))
    assert 0.03 <= start.share < 0.1


def test_fair_weights_have_a_larger_share():
    assert 0.5 < Line([0.5, -1, 0], 7.0).find().share < 0.7


@pytest.mark.parametrize("scale", [1e-6, -3.0, 1e6])
def test_a_linear_model_of_the_wrong_scale_is_fitted_to_the_target(scale):
    """Least squares of one factor and one shift find the true weights here."""
    line = Line(scale * np.array([1.0, -2.0, 0.5]), 1000.0)
    start = line.find()
    # 1e-6 times the true weights with a wrong intercept are worse than a constant, too
    np.testing.assert_allclose(line.w, [1, -2, 0.5], rtol=0.02)
    assert line.b == pytest.approx(7.0, abs=0.1)
    assert start.objective == pytest.approx(line.objective().total)
    assert start.share < 0.1


def test_a_linear_model_that_knows_nothing_starts_at_the_constant():
    line = Line([0, 0, 1e-9], 50.0)
    line.find()
    assert line.objective().loss <= VARIANCE / 2 * (1 + 1e-12)


def test_a_network_is_shifted_and_keeps_its_coefficients():
    line = Line([1, -2, 0.4], 1000.0, is_linear=False)
    line.find()
    np.testing.assert_array_equal(line.w, [1, -2, 0.4])
    assert line.b == pytest.approx(7.0, abs=0.1)


@pytest.mark.parametrize(("times", "kept"), [(3.0, True), (100.0, False)])
def test_a_network_much_wider_than_the_target_gets_its_deviation(times, kept):
    w = np.array([1.0, 2.0, 0.4])
    deviation = np.sqrt(np.cov((X @ w), aweights=WEIGHT_OF_ROWS, ddof=0))
    line = Line(times * np.sqrt(VARIANCE) / deviation * w, 1000.0, is_linear=False)
    line.find()
    np.testing.assert_allclose(line.w * deviation / np.sqrt(VARIANCE), (times if kept else 1.0) * w)


def test_scores_of_a_linear_classifier_shrink_to_one():
    line = Line([-1e4, 1e3, 1e4], 0.0, loss="log")
    start = line.find()
    assert np.mean(line.raw(line.state.weights()) ** 2) == pytest.approx(1.0) or not line.w.any()
    assert start.objective < 1.0
    assert start.unit == pytest.approx(math.log(2))


def test_a_perceptron_has_no_objective_before_it_learns():
    assert Line([0, 0, 0], 0.0, loss="perceptron").find()[:4] == (math.inf, 0.0, 1.0, False)


@pytest.mark.parametrize(("constant", "has_scale"), [(0.0, True), (-0.6, False)])
def test_a_fitted_perceptron_is_kept(constant, has_scale):
    """The constant has a loss of 0, or one that grows with its size, which is no reason to take it."""
    line = Line([1, -2, 0.4], 0.1, loss="perceptron")
    line.finder = replace(line.finder, constant=np.array([constant]), has_scale=has_scale)
    start = line.find()
    np.testing.assert_array_equal(line.w, [1, -2, 0.4])
    assert start.objective == pytest.approx(line.objective().total)
    assert start.share == 1.0


def test_an_unknown_last_layer_is_kept():
    line = Line([1, -2, 0.4], 900.0, layer=NO_LAYER)
    start = line.find()
    assert line.b == 900.0
    assert start.share == 1.0
    assert start.unit == pytest.approx(line.objective().loss)


def test_a_last_layer_beside_frozen_terms_is_no_constant():
    line = Line([0, 0, 0], 0.0, layer=OutputLayer(LAYER.weights, None))
    line.find()
    assert line.b == 0.0


@pytest.mark.parametrize(("w", "share"), [([1, -2, 0.5], LEAST_SHARE), ([-1, 2, 0], 1.0), ([0, 0, 0], 1.0)])
def test_the_first_part_of_a_stream_keeps_given_weights(w, share):
    line = Line(w, 7.0)
    assert line.finder.find_in_part(line.state) == pytest.approx(share)
    np.testing.assert_array_equal(line.w, w)


@pytest.mark.parametrize(
    ("mean", "spread", "is_small"),
    [
        (None, 0.0, True),  # unknown
        (0.0, 1.0, True),  # losses as expected
        (0.05, 1.0, True),  # beyond them within two errors
        (600.0, 0.0, False),
        (-600.0, 0.0, False),
    ],
)
def test_a_stream_of_a_given_model_begins_with_a_small_rate(mean, spread, is_small):
    """It may be the best for its rows, unless its losses are others than it expects."""
    line, constant = Line([0.2, -0.1, 0.0], 7.0), Line([0, 0, 0], 0.0)
    constant.finder.find_in_part(constant.state)
    ratio = line.objective().loss / constant.objective().loss
    assert 0.5 < ratio < 1.0
    signs = np.where(np.arange(len(line.finder.sample_weight)) % 2, 1.0, -1.0)
    surprise = None if mean is None else lambda raw: mean + spread * signs
    found = line.finder.find_in_part(line.state, surprise)
    assert found == pytest.approx(0.07 if is_small else ratio)
    assert line.finder.find_in_part(line.state, surprise, is_sparse=True) == pytest.approx(ratio)


@pytest.mark.parametrize(("w", "is_small"), [([-0.3, 0.6, 0], True), ([-0.5, 1.0, 0], False)])
def test_a_given_model_is_wrong_if_its_loss_is_twice_a_constant_s(w, is_small):
    line, constant = Line(w, 7.0), Line([0, 0, 0], 0.0)
    constant.finder.find_in_part(constant.state)
    ratio = line.objective().total / constant.objective().total
    assert (1.2 < ratio < 2.0) if is_small else (2.0 < ratio < 2.6)
    assert line.finder.find_in_part(line.state) == pytest.approx(0.07 if is_small else 1.0)


def test_surprise_is_a_share_of_the_expected_gain():
    """Beyond two errors, of unequal weights; a stream that goes on does not ask."""
    line, constant = Line([0.2, -0.1, 0.0], 7.0), Line([0, 0, 0], 0.0)
    constant.finder.find_in_part(constant.state)
    weight = line.finder.sample_weight / line.finder.sample_weight.sum()
    of_rows = 0.3 * constant.objective().loss * np.random.default_rng(0).uniform(0.5, 1.5, len(weight))
    mean = weight @ of_rows
    error = math.sqrt(weight**2 @ (of_rows - mean) ** 2)
    gain = constant.objective().loss - line.objective().loss + mean
    found = line.finder.find_in_part(line.state, lambda raw: of_rows)
    assert 0.07 < found < 0.9
    assert found == pytest.approx((mean - 2 * error) / gain)
    line.state.t = line.state.forgotten_at = 64
    assert line.finder.find_in_part(line.state, lambda raw: 0.0 * of_rows) > 0.5


@pytest.mark.parametrize(("w", "divisor"), [([1000.0, -2000.0, 500.0], 1000.0), ([1.0, -2.0, 0.5], 1.0)])
def test_the_first_part_of_a_stream_leaves_bad_weights_of_a_network(w, divisor):
    line = Line(w, 7.0, is_linear=False)

    def divided(tensors):
        return {(n, k): array / 1000.0 if n == "w" else array for (n, k), array in tensors.items()}

    line.finder = replace(line.finder, for_standard_data=divided)
    assert line.finder.find_in_part(line.state) == LEAST_SHARE
    np.testing.assert_allclose(line.w, np.array(w) / divisor)


def test_weights_of_data_that_changed_are_fitted_to_the_target():
    """The line of data a hundred times as large, or of a target shifted by 1,000."""
    for w, b in (([100, -200, 50], 700.0), ([1, -2, 0.5], 1007.0)):
        line = Line(w, b)
        line.state.t = line.state.forgotten_at = 64
        assert line.finder.find_in_part(line.state) == LEAST_SHARE
        np.testing.assert_allclose(line.w, [1, -2, 0.5], rtol=0.02)
        assert line.b == pytest.approx(7.0, abs=0.1)


def after_fit(line, known):
    """Return the share of a stream after a fit that ended at this objective."""
    line.state.t, line.state.loss_curve = 64, [900.0, known]
    before = line.w.copy(), line.b

    def losses(raw):
        return ((raw - Y[: line.rows]) ** 2 / 2).ravel()

    share = line.finder.share_after_fit(line.state, losses)
    np.testing.assert_array_equal(line.w, before[0])
    assert line.b == before[1]
    return share


def test_a_stream_after_a_fit_begins_at_the_gain_that_is_left():
    """Not at the loss that was left then: beyond three errors, without the four worst of 200 rows."""
    line, constant = Line([0.5, -1.5, 0], 7.0), Line([0, 0, 0], 0.0)
    constant.finder.find_in_part(constant.state)
    of_rows = ((line.raw({"w": line.w[:, None], "b": line.b}) - Y) ** 2 / 2).ravel()
    kept = np.argsort(of_rows)[:-4]
    weight = WEIGHT_OF_ROWS[kept]
    mean = np.average(of_rows[kept], weights=weight) + line.objective().penalty
    error = 0.1 * math.sqrt(2 * (weight**2).sum()) / weight.sum()
    share = (mean - 0.1 - 3 * error) / (constant.objective().total - 0.1)
    assert 2 * LEAST_SHARE < share < 1
    assert after_fit(line, 0.1) == pytest.approx(share)
    # the same loss as at the end of the fit, and the same data
    assert after_fit(line, mean) == LEAST_SHARE
    assert after_fit(Line([1, -2, 0.5], 7.0), 0.006) == LEAST_SHARE
    # a fit that was no better than a constant on this part, few rows, and no fit
    assert after_fit(line, 1e6) == LEAST_SHARE
    assert after_fit(Line([0.5, -1.5, 0], 7.0, rows=31), 0.1) == LEAST_SHARE
    line.state.loss_curve = []
    assert line.finder.share_after_fit(line.state, lambda raw: raw[:, 0]) == LEAST_SHARE


@pytest.mark.parametrize(("n_extreme", "is_least"), [(1, True), (4, True), (5, False)])
def test_a_few_extreme_rows_are_no_change_of_the_data(n_extreme, is_least):
    """One row of 50."""
    line = Line([1, -2, 0.5], 7.0)
    line.state.t, line.state.loss_curve = 64, [900.0, 0.006]
    losses = np.where(np.arange(200) < n_extreme, 1e6, 0.005)
    assert (line.finder.share_after_fit(line.state, lambda raw: losses) == LEAST_SHARE) == is_least


def test_a_loss_without_a_least_value_does_not_tell_that_data_changed():
    line = Line([-1, 2, 0], 7.0)
    line.finder = replace(line.finder, unit=1.0)
    assert after_fit(line, 0.005) == LEAST_SHARE


@pytest.mark.parametrize(("n_rows", "n_calls"), [(1, 32), (10, 4), (31, 2)])
def test_calls_of_few_rows_after_a_fit_are_judged_together(n_rows, n_calls):
    """The worst one does not count."""
    state = Line([0, 0, 0], 0.0).state
    state.loss_curve, state.judged_from = [9.0, 0.1, *[0.4] * (n_calls - 1)], 2
    assert not is_due(state, n_rows)
    state.loss_curve.append(1e6)
    assert is_due(state, n_rows)
    error = 0.1 * math.sqrt(2 / (n_rows * (n_calls - 1)))
    assert share_of_calls(state, n_rows) == pytest.approx((0.4 - 0.1 - 3 * error) / 0.4)
    state.loss_curve = [9.0, 0.1, *[0.1] * n_calls]
    assert share_of_calls(state, n_rows) == LEAST_SHARE
    state.loss_curve = [9.0, 0.0, *[0.0] * n_calls]
    assert share_of_calls(state, n_rows) == LEAST_SHARE
    state.judged_from = 0
    assert not is_due(state, n_rows)


def test_a_stream_of_worse_rows_than_a_constant_has_the_whole_rate():
    assert after_fit(Line([-1, 2, 0], 7.0), 0.005) == 1.0


def test_a_stream_without_a_constant_to_compare_begins_anew_at_the_least_rate():
    line = Line([1, -2, 0.4], 0.1, loss="perceptron")
    assert line.finder.find_in_part(line.state) == 1.0
    line.state.t = line.state.forgotten_at = 64
    assert line.finder.find_in_part(line.state) == LEAST_SHARE


def test_few_rows_do_not_judge_weights():
    line = Line([-1, 2, 0], 7.0, rows=5)
    assert line.finder.find_in_part(line.state) == LEAST_SHARE
    line = Line([0, 0, 0], 0.0, rows=5)
    assert line.finder.find_in_part(line.state) == 1.0
    assert line.b == pytest.approx(np.average(Y[:5].ravel(), weights=WEIGHT_OF_ROWS[:5]))


@pytest.mark.parametrize("loss", ["squares", "log"])
def test_a_network_with_weights_for_standard_data_gets_them(loss):
    """Random weights on data times 1,000: those for standardised data are chosen, if they are better."""
    line = Line([1000.0, -2000.0, 500.0], 7.0 if loss == "squares" else 0.0, loss, is_linear=False)

    def divided(tensors):
        return {(n, k): array / 1000.0 if n == "w" else array for (n, k), array in tensors.items()}

    line.finder = replace(line.finder, for_standard_data=divided)
    line.find()
    np.testing.assert_allclose(line.w, [1.0, -2.0, 0.5])
    good = Line([1.0, -2.0, 0.5], 7.0 if loss == "squares" else 0.0, loss, is_linear=False)
    good.finder = replace(good.finder, for_standard_data=divided)
    good.find()
    np.testing.assert_array_equal(good.w, [1.0, -2.0, 0.5])


@pytest.mark.parametrize(("share", "kept"), [(0.02, False), (0.3, True)])
def test_a_small_correlation_is_no_reason_to_keep_weights_of_raw_data(share, kept):
    """Predictions of this share of the target, shifted to it, have 1 - (1 - share)^2 less of its variance."""
    given = share * np.array([1.0, -2.0, 0.5])
    line = Line(given, 0.0, is_linear=False)

    def divided(tensors):
        return {(n, k): array / 1000.0 if n == "w" else array for (n, k), array in tensors.items()}

    line.finder = replace(line.finder, for_standard_data=divided)
    line.find()
    np.testing.assert_allclose(line.w, given if kept else given / 1000.0)
    assert line.raw(line.state.weights()).mean() == pytest.approx(Y.mean(), abs=0.1)


@pytest.mark.parametrize(("w", "share"), [([-1, 2, 0], 0.1), ([1, -2, 0.5], 0.04)])
def test_the_share_has_a_bound(w, share):
    line = Line(w, 7.0)
    line.finder = replace(line.finder, most=0.1)
    assert line.find().share == pytest.approx(share, abs=0.01)


def test_given_weights_are_kept_where_no_others_are_better():
    """A shift helps those of raw data a little; those of standardised data are worse than the given."""
    line = Line([-0.1, 0.2, -0.05], 6.9, is_linear=False)

    def multiplied(tensors):
        return {(n, k): 3.0 * array for (n, k), array in tensors.items()}

    first = line.objective().total
    line.finder = replace(line.finder, for_standard_data=multiplied)
    assert line.find().objective <= first
    np.testing.assert_array_equal(line.w, [-0.1, 0.2, -0.05])


@pytest.mark.parametrize("shift", [-1e3, 0.0, 1e3])
def test_losses_without_a_least_value_are_compared_by_differences(shift):
    """Half the logarithm of a squared error, less 2: the share is the root of the ratio of squared errors."""
    line = Line([0.0, -2.0, 0.5], 7.0)
    squared = line.objective().loss
    line.objective = lambda: Objective(math.log(Line.objective(line).loss) / 2 + shift, 0.0)
    finder = replace(line.finder, unit=0.5, objective=lambda: line.objective())
    start = finder.find(line.state)
    constant = np.cov(Y.T, aweights=WEIGHT_OF_ROWS, ddof=0) / 2
    assert start.share == pytest.approx(math.sqrt(squared / constant.item()))
    assert start.unit == 0.5
    assert start.objective == pytest.approx(math.log(squared) / 2 + shift)
    zeros = Line([0.0, 0.0, 0.0], 0.0)
    start = replace(zeros.finder, unit=0.5, objective=lambda: Objective(-3.0, 0.0)).find(zeros.state)
    assert (start.objective, start.unit, start.share) == (-3.0, 0.5, 1.0)


class NoisyLine(Line):
    """z = x w + b in standard units, of data whose ridge regression has these coefficients."""

    def __init__(self, coefficients, penalty, ratio=1.0, offset=0.0):
        super().__init__([0, 0, 0], 0.0)
        self.penalty = penalty
        found = SimpleNamespace(
            ratio=ratio,
            deviations=Y.std(axis=0),
            coefficients=lambda: np.reshape(coefficients, (3, 1)) / Y.std(),
            offsets=lambda coefficients: np.full(1, offset),
        )
        noise = NoiseFinder(FirstLayer("x", "w", "b", is_transposed=False), lambda: [found], None)
        self.finder = replace(self.finder, for_standard_data=dict, noise=noise)

    def objective(self):
        given = super().objective()
        return given._replace(penalty=self.penalty * float(np.abs(self.w).sum()))


def test_training_ends_at_the_objective_of_the_ridge_regression():
    line = NoisyLine([0.5, -1, 0.25], 1e-4)
    start = line.find()
    np.testing.assert_array_equal(line.w, 0)
    line.state.tensors = {**line.state.tensors, ("w", WEIGHT): np.array([[0.5], [-1], [0.25]])}
    assert start.level == pytest.approx(line.objective().total)
    assert start.level < VARIANCE / 2
    assert start.length == pytest.approx(np.sqrt((0.25 + 1 + 0.0625) / 3) / Y.std())


def test_the_mean_prediction_of_columns_that_are_not_centred_is_left_to_the_intercept():
    line = NoisyLine([0.5, -1, 0.25], 1e-4, offset=0.3)
    level = line.find().level
    intercept = line.state.tensors["b", WEIGHT]
    line.state.tensors = {
        ("w", WEIGHT): np.array([[0.5], [-1], [0.25]]),
        ("b", WEIGHT): intercept - 0.3,
    }
    assert level == pytest.approx(line.objective().total)


@pytest.mark.parametrize("quantile", [0.5, 0.9])
@pytest.mark.parametrize("in_part", [False, True])
def test_a_loss_of_sizes_begins_at_its_quantile(quantile, in_part):
    """With the weights of rows, also in a stream; the pinball loss there is the least of all intercepts."""
    line = Line([0, 0, 0], 0.0)

    def pinball():
        residual = Y[:, 0] - line.b
        losses = np.where(residual > 0, quantile, quantile - 1) * residual
        return Objective(float(np.average(losses, weights=WEIGHT_OF_ROWS)), 0.0)

    line.finder = replace(line.finder, quantile=quantile, objective=pinball)
    line.finder.find_in_part(line.state) if in_part else line.finder.find(line.state)
    passed = WEIGHT_OF_ROWS[np.argsort(Y[:, 0])].cumsum()
    at = np.sort(Y[:, 0])[np.searchsorted(passed, passed[-1] * quantile)]
    assert line.b == pytest.approx(at)


@pytest.mark.parametrize("penalty", [0.3, 10.0])
def test_a_penalty_that_decides_has_its_own_end(penalty):
    """The minimum of loss and penalty is below their sum for coefficients that know no penalty."""
    assert NoisyLine([0.5, -1, 0.25], penalty).find()[4:] == (-math.inf, math.inf)


@pytest.mark.parametrize("penalty", [0.05, 0.2])
@pytest.mark.parametrize(("has_l1", "quantile"), [(False, None), (True, None), (False, 0.5)])
def test_a_penalty_decides_sooner_with_an_l1_part_and_for_a_loss_of_sizes(penalty, has_l1, quantile):
    line = NoisyLine([0.5, -1, 0.25], penalty)
    noise = line.finder.noise._replace(has_l1=has_l1)
    line.finder = replace(line.finder, noise=noise, quantile=quantile)
    is_usual = not has_l1 and quantile is None
    assert (line.find().level > -math.inf) == (penalty < 0.1 or is_usual)


@pytest.mark.parametrize("penalty", [0.0, 1e-4, 10.0])
def test_coefficients_without_evidence_are_not_supported(penalty):
    assert NoisyLine([0, 0, 0], penalty, ratio=0.0).find()[4:] == (math.inf, 0.0)


def test_coefficients_worse_than_none_tell_nothing():
    """As scores of a rare class, which a margin does not reward."""
    assert NoisyLine([-0.5, 1, -0.25], 0.0).find()[4:] == (-math.inf, math.inf)


@pytest.mark.filterwarnings("ignore:overflow")
def test_an_infinite_loss_tells_nothing():
    assert NoisyLine([1e200, 0, 0], 1e-4).find()[4:] == (-math.inf, math.inf)
