"""The ridge regression of the greatest evidence, and predictions of rows from the others."""

import tracemalloc

import numpy as np
import pytest
from scipy import sparse, stats
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal
from sklearn.linear_model import Ridge

from onnxsgd.data import evidence, standard_rows
from onnxsgd.data.evidence import (
    EvidenceRidge,
    QuadratureRidge,
    noisy_ridge,
    noisy_ridges,
    normal_ridges,
    tells_rare_classes,
)

RNG = np.random.default_rng(0)
N = 60
WEIGHT = RNG.uniform(0.5, 2.0, N)


def data(n_columns, noise=1.0, n_targets=1):
    table = 3.0 + RNG.normal(size=(N, n_columns)) * RNG.uniform(0.5, 2.0, n_columns)
    target = (table - 3.0) @ RNG.normal(size=(n_columns, n_targets))
    target = target / target.std(axis=0) + noise * RNG.normal(size=(N, n_targets))
    return table, 5.0 * target + 1.0


def arguments(table, target, weight=None):
    weight = np.ones(len(table)) if weight is None else weight
    shift = np.average(table, axis=0, weights=weight)
    scale = np.sqrt(np.average((table - shift) ** 2, axis=0, weights=weight))
    return table, target, weight, shift, 1.0 / scale


def ridge(table, target, weight=None):
    return EvidenceRidge(*arguments(table, target, weight), are_labels=False)


def noisy(*given, are_labels=False):
    return noisy_ridge(*given, are_labels=are_labels)


def standard(table, target, weight):
    """Return columns and targets, standardised, with rows times the root of their share."""
    share = weight / weight.sum()
    columns = (table - share @ table) / np.sqrt(share @ (table - share @ table) ** 2)
    wanted = (target - share @ target) / np.sqrt(share @ (target - share @ target) ** 2)
    return np.sqrt(share)[:, None] * columns, np.sqrt(share)[:, None] * wanted


@pytest.mark.parametrize("n_columns", [40, 100], ids=["fewer columns", "more columns"])
def test_the_ratio_has_the_greatest_evidence(n_columns):
    """That is the density of the targets, of a normal distribution whose scale is the most likely one."""
    table, target = data(n_columns)
    ratio = ridge(table, target).ratio
    columns, wanted = standard(table, target, np.ones(N))
    # the mean takes one of the rows
    basis = np.linalg.svd(np.ones((1, N)))[2][1:]
    columns, wanted = basis @ columns, basis @ wanted[:, 0]

    def negative_log(log_ratio):
        covariance = np.eye(N - 1) + np.exp(log_ratio) * columns @ columns.T
        scale = wanted @ np.linalg.solve(covariance, wanted) / (N - 1)
        return -multivariate_normal(cov=scale * covariance).logpdf(wanted)

    best = minimize_scalar(negative_log, bounds=(-5, 20), method="bounded").x
    # the grid has eight ratios for each factor of ten
    assert abs(np.log(ratio) - best) < np.log(10) / 8


@pytest.mark.parametrize("n_columns", [40, 100])
@pytest.mark.parametrize("n_targets", [1, 3])
def test_coefficients_are_those_of_ridge_regression(n_columns, n_targets):
    table, target = data(n_columns, n_targets=n_targets)
    found = ridge(table, target, WEIGHT)
    columns, wanted = standard(table, target, WEIGHT)
    expected = Ridge(alpha=1.0 / found.ratio, fit_intercept=False, solver="svd").fit(columns, wanted)
    np.testing.assert_allclose(found.coefficients(), expected.coef_.reshape(n_targets, -1).T, rtol=1e-6)
    share = WEIGHT / WEIGHT.sum()
    np.testing.assert_allclose(found.deviations, np.sqrt(share @ (target - share @ target) ** 2))


@pytest.mark.parametrize("n_columns", [40, 100])
@pytest.mark.parametrize("row", [0, 17])
def test_rows_are_predicted_from_all_others(n_columns, row):
    """The same penalty of the sum of squares, without the row: its centre and its scales stay."""
    table, target = data(n_columns)
    found = ridge(table, target, WEIGHT)
    share = WEIGHT / WEIGHT.sum()
    centre = share @ table
    columns = (table - centre) / np.sqrt(share @ (table - centre) ** 2)
    wanted = (target[:, 0] - share @ target[:, 0]) / found.deviations[0]
    others = np.arange(N) != row
    # an intercept without a penalty, and rows by their share
    model = Ridge(alpha=1.0 / found.ratio, solver="svd").fit(columns[others], wanted[others], share[others])
    assert found.from_others()[row, 0] == pytest.approx(model.predict(columns[row][None])[0], rel=1e-6)


@pytest.mark.parametrize("n_columns", [30, 200])
@pytest.mark.parametrize("ratio", [0.1, 1e3, 1e9])
def test_a_large_ratio_predicts_rows_from_the_others_too(n_columns, ratio):
    """Numbers of single precision that were centred in it have other means than zero.

    Where all rows interpolate the targets, little is left for the others.
    """
    table, target = data(n_columns)
    given = [np.asarray(array, np.float32) for array in arguments(table, target)]
    found = EvidenceRidge(*given, are_labels=False).from_others(ratio)[:, 0]
    columns, wanted = standard(np.float64(given[0]), np.float64(given[1]), np.ones(N))
    for row in range(0, N, 7):
        others = np.arange(N) != row
        middle, mean = columns[others].mean(axis=0), wanted[others, 0].mean()
        within = columns[others] - middle
        dual = np.linalg.solve(within @ within.T + np.eye(N - 1) / ratio, wanted[others, 0] - mean)
        expected = mean + (columns[row] - middle) @ within.T @ dual
        assert found[row] == pytest.approx(np.sqrt(N) * expected, rel=1e-4, abs=1e-4)


def test_columns_are_centred_by_all_rows_whatever_the_standardisation_is():
    table, target = data(40)
    given = arguments(table, target)
    moved = given[3] + np.linspace(-1.0, 1.0, 40)
    found, expected = (
        EvidenceRidge(*given[:3], shift, given[4], are_labels=False) for shift in (moved, given[3])
    )
    assert found.ratio == expected.ratio
    np.testing.assert_allclose(found.coefficients(), expected.coefficients(), rtol=1e-6)
    offsets = (given[3] - moved) * given[4] @ expected.coefficients()
    np.testing.assert_allclose(found.offsets(found.coefficients()), offsets)


def test_rows_without_weight_are_predicted_and_count_nothing():
    table, target = data(40)
    weight = (np.arange(N) < 50).astype(float)
    found = ridge(table, target, weight)
    alone = ridge(table[:50], target[:50])
    assert found.ratio == alone.ratio
    np.testing.assert_allclose(found.coefficients(), alone.coefficients(), rtol=1e-9)
    np.testing.assert_allclose(found.from_others()[:50], alone.from_others(), rtol=1e-9)
    assert np.isfinite(found.from_others()).all()


def test_noise_alone_has_no_coefficients():
    table = RNG.normal(size=(200, 100))
    found = noisy(*arguments(table, RNG.normal(size=(200, 1))))
    assert np.linalg.norm(found.coefficients()) < 0.2
    small = noisy(*arguments(table, np.sign(table[:, :1]) * table[:, 1:2] * table[:, 2:3]))
    assert np.linalg.norm(small.coefficients()) < 0.2


@pytest.mark.parametrize(
    ("table", "target"),
    [
        data(5),
        data(40, noise=0.01),
        data(100, noise=0.0),
        (RNG.normal(size=(2, 5)), RNG.normal(size=(2, 1))),
        (RNG.normal(size=(N, 40)), np.ones((N, 1))),
    ],
    ids=["few columns", "little noise", "no noise", "two rows", "constant"],
)
def test_others_have_none(table, target):
    assert noisy(*arguments(table, target)) is None


def test_directions_of_small_variance_are_no_noise():
    """Evidence takes the target for noise, and rows left out tell that it is none."""
    rng = np.random.default_rng(1)
    factors = rng.normal(size=(80, 30)) * np.geomspace(1.0, 1e-3, 30)
    table = factors @ np.linalg.qr(rng.normal(size=(30, 30)))[0]
    target = factors[:, -3:] / factors[:, -3:].std(axis=0) @ np.ones((3, 1)) + 0.3 * rng.normal(size=(80, 1))
    found = ridge(table, target)
    assert found.ratio is not None
    assert np.linalg.norm(found.from_others() - target / target.std()) > 0.9 * np.sqrt(80)
    assert not found.is_borne_out
    assert noisy(*arguments(table, target)) is None
    labels = (target > 0).astype(float)
    assert noisy(*arguments(table, labels), are_labels=True) is None
    assert noisy(*arguments(table, np.hstack([labels, 1 - labels])), are_labels=True) is None


def test_several_classes_are_told_by_half_of_the_errors_of_a_constant():
    """Of two, the loss of scores decides."""
    rng = np.random.default_rng(3)
    table = rng.normal(size=(160, 30))
    scores = table @ rng.normal(size=(30, 4)) / 5.0
    for noise, expected in ((0.0, True), (1.0, False)):
        labels = (scores + noise * rng.normal(size=scores.shape)).argmax(axis=1)
        found = EvidenceRidge(*arguments(table, np.eye(4)[labels]), are_labels=True)
        vars(found)["ratio"] = 5.0
        of_constant = (labels != np.bincount(labels).argmax()).mean()
        assert found._error(0.0) == pytest.approx(of_constant)
        assert found.tells_classes == (found._error(found.ratio) < 0.5 * of_constant) == expected
    two = EvidenceRidge(*arguments(table, (table[:, :1] > 0) * 1.0), are_labels=True)
    vars(two)["ratio"] = 5.0
    assert two._error(5.0) < 0.5 * two._error(0.0)
    assert not two.tells_classes


def of_classes(n_classes, n_rows, distance):
    """Return the arguments for classes of some rows each, around means."""
    rng = np.random.default_rng(4)
    labels = np.repeat(np.arange(n_classes), n_rows)
    table = distance * rng.normal(size=(n_classes, 20))[labels] + rng.normal(size=(len(labels), 20))
    return arguments(table, np.eye(n_classes)[labels])


def test_rare_classes_are_many_of_few_rows_that_the_columns_know():
    assert tells_rare_classes(*of_classes(30, 4, 2.0))
    assert not tells_rare_classes(*of_classes(30, 4, 0.3))
    assert tells_rare_classes(*of_classes(10, 9, 2.0))
    assert not tells_rare_classes(*of_classes(9, 9, 2.0))
    assert not tells_rare_classes(*of_classes(10, 10, 2.0))
    table, *others = of_classes(30, 4, 2.0)
    assert not tells_rare_classes(sparse.csr_array(table), *others)
    table[3, 2] = 1e300
    assert not tells_rare_classes(table, *others)


@pytest.mark.parametrize("code", [0.0, -1.0])
def test_errors_of_labels_are_those_of_rows_left_out(code):
    table, target = data(40)
    first = (target[:, 0] > 1.0).astype(int)
    several = np.digitize(target[:, 0], [-3.0, 5.0])
    one = EvidenceRidge(*arguments(table, np.where(first, 1.0, code)[:, None]), are_labels=True)
    mean = np.where(first, 1.0, code).mean()
    predicted = one.from_others(5.0)[:, 0] * one.deviations[0] + mean > (1.0 + code) / 2
    assert one._error(5.0) == pytest.approx((predicted != first).mean())
    codes = np.where(np.eye(3)[several] > 0, 1.0, code)
    three = EvidenceRidge(*arguments(table, codes), are_labels=True)
    predicted = (three.from_others(5.0) * three.deviations + codes.mean(axis=0)).argmax(axis=1)
    assert three._error(5.0) == pytest.approx((predicted != several).mean())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [1e300, 1e-300, np.nan, np.inf])
def test_numbers_out_of_range_are_no_reason_to_fail(number):
    table, target = data(40)
    given = arguments(table, target)
    changed = table.copy()
    changed[3, 2] = number
    for found in (noisy(changed, *given[1:]), noisy(table, number * target, *given[2:])):
        assert found is None or np.isfinite(found.coefficients()).all()


@pytest.mark.parametrize("number", [0.0, 0.1, 1e6 + 0.1])
def test_a_constant_target_tells_nothing(number):
    """The mean of 0.1 is none of its values, by rounding."""
    table, target = data(40)
    both = ridge(table, np.c_[target, np.full(N, number)], WEIGHT)
    alone = ridge(table, target, WEIGHT)
    assert both.ratio == alone.ratio > 0
    assert both.deviations[1] == 0
    np.testing.assert_array_equal(both.coefficients()[:, 1], 0)
    np.testing.assert_allclose(both.coefficients()[:, :1], alone.coefficients(), rtol=1e-9)


def test_many_columns_are_converted_in_parts(monkeypatch):
    table, target = data(100)
    expected = ridge(table, target, WEIGHT)
    monkeypatch.setattr(standard_rows, "_BLOCK", 7 * N)
    found = ridge(table, target, WEIGHT)
    assert found.ratio == expected.ratio
    np.testing.assert_allclose(found.coefficients(), expected.coefficients(), rtol=1e-9)
    np.testing.assert_allclose(found.from_others(), expected.from_others(), rtol=1e-9)


def test_the_memory_is_no_copy_of_many_columns():
    table = RNG.normal(size=(20, 400_000)).astype(np.float32)
    given = table, RNG.normal(size=(20, 1)), np.ones(20), np.zeros(400_000), np.ones(400_000)
    tracemalloc.start()
    try:
        EvidenceRidge(*given, are_labels=False).coefficients()
        # parts of 32 MB, twice, and the coefficients
        assert tracemalloc.get_traced_memory()[1] < 80e6
    finally:
        tracemalloc.stop()


def words(n_rows, n_columns, noise, seed=0, n_targets=1):
    """Return counts of words of Zipf's law, and targets of a third of them."""
    rng = np.random.default_rng(seed)
    shares = 1.0 / np.arange(1, n_columns + 1)
    drawn = rng.choice(n_columns, (n_rows, 20), p=shares / shares.sum())
    table = sparse.csr_array((np.ones(drawn.size), drawn.ravel(), np.arange(0, drawn.size + 1, 20)))
    table.resize(n_rows, n_columns)
    table.sum_duplicates()
    weights = rng.normal(size=(n_columns, n_targets)) * (rng.random((n_columns, n_targets)) < 0.3)
    signal = table @ weights
    target = signal / signal.std(axis=0) + noise * rng.normal(size=signal.shape)
    return table, target


def sparse_arguments(table, target, weight=None):
    """Return the arguments with the centre of columns with entries in half of the rows."""
    weight = np.ones(len(target)) if weight is None else weight
    dense = table.toarray()
    is_dense = np.count_nonzero(dense, axis=0) > len(target) / 2
    shift = np.where(is_dense, np.average(dense, axis=0, weights=weight), 0.0)
    size = np.sqrt(np.average((dense - shift) ** 2, axis=0, weights=weight))
    return table, target, weight, shift, 1.0 / np.where(size > 0, size, 1.0)


@pytest.mark.parametrize("noise", [0.5, 1.0])
@pytest.mark.parametrize("shape", [(500, 300), (300, 900)], ids=["fewer columns", "more columns"])
@pytest.mark.parametrize("is_sparse", [True, False], ids=["sparse", "dense"])
def test_a_quadrature_has_nearly_the_greatest_evidence(shape, noise, is_sparse):
    table, *others = sparse_arguments(*words(*shape, noise, n_targets=2))
    given = table if is_sparse else table.toarray()
    exact = EvidenceRidge(given, *others, are_labels=False)
    found = QuadratureRidge(given, *others)
    assert others[2].any()
    assert 0.4 < found.ratio / exact.ratio < 2.5
    assert found.is_borne_out
    np.testing.assert_array_equal(found.deviations, exact.deviations)


@pytest.mark.parametrize("are_labels", [False, True])
def test_sparse_columns_are_centred(are_labels):
    """The intercept, which has no penalty, is beside them, whatever the standardisation subtracts."""
    table, target = words(90, 120, 1.0)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, 90)
    target = (target > 0).astype(float) if are_labels else target
    *_, shift, factor = sparse_arguments(table, target, weight)
    dense, share = table.toarray(), weight / weight.sum()
    mean = share @ dense
    found = EvidenceRidge(table, target, weight, shift, factor, are_labels=are_labels)
    expected = EvidenceRidge(dense, target, weight, mean, factor, are_labels=are_labels)
    assert found.ratio == expected.ratio
    np.testing.assert_allclose(found.coefficients(), expected.coefficients(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.from_others(), expected.from_others(), rtol=1e-9, atol=1e-12)
    offsets = (mean - shift) * factor @ expected.coefficients()
    np.testing.assert_allclose(found.offsets(found.coefficients()), offsets)
    np.testing.assert_array_equal(expected.offsets(expected.coefficients()), 0.0)


@pytest.mark.parametrize("is_sparse", [True, False], ids=["sparse", "dense"])
def test_coefficients_of_a_quadrature_are_those_of_ridge_regression(is_sparse):
    table, target = words(200, 300, 1.0, n_targets=3)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, 200)
    table, target, weight, shift, factor = sparse_arguments(table, target, weight)
    given = table if is_sparse else table.toarray()
    found = QuadratureRidge(given, target, weight, shift, factor)
    share = weight / weight.sum()
    wanted = np.sqrt(share)[:, None] * (target - share @ target) / found.deviations
    dense = table.toarray()
    mean = share @ dense
    if not is_sparse:
        given, shift = dense, mean
    found = QuadratureRidge(given, target, weight, shift, factor)
    columns = np.sqrt(share)[:, None] * (dense - mean) * factor
    expected = Ridge(alpha=1.0 / found.ratio, fit_intercept=False, solver="svd").fit(columns, wanted).coef_.T
    np.testing.assert_allclose(found.offsets(expected), (mean - shift) * factor @ expected, atol=1e-9)
    assert (np.abs(found.offsets(expected)) > 0.01).any() == is_sparse
    assert np.linalg.norm(found.coefficients() - expected) < 0.02 * np.linalg.norm(expected)


def test_small_penalties_have_their_coefficients_too():
    """Up to some 100 steps of the least squares."""
    table, *others = sparse_arguments(*words(400, 300, 0.1))
    found = QuadratureRidge(table, *others)
    vars(found)["ratio"] = 3e3
    target, _, shift, factor = others
    columns = (table.toarray() - shift) * factor / 20.0
    wanted = (target - target.mean()) / found.deviations / 20.0
    expected = Ridge(alpha=1.0 / found.ratio, fit_intercept=False, solver="svd").fit(columns, wanted).coef_
    error = np.linalg.norm(found.coefficients()[:, 0] - np.ravel(expected))
    assert error < 0.05 * np.linalg.norm(expected)


@pytest.mark.parametrize(("n_rows", "n_signs"), [(999, 2), (1000, 1)])
def test_few_rows_have_two_vectors_of_signs(n_rows, n_signs):
    found = QuadratureRidge(*sparse_arguments(*words(n_rows, 600, 1.0)))
    assert found._signs.shape == (n_signs, n_rows)
    np.testing.assert_array_equal(np.abs(found._signs), 1.0)


def test_ratios_that_the_steps_do_not_resolve_are_not_compared():
    found = QuadratureRidge(*sparse_arguments(*words(700, 600, 1.0)))
    found._error = lambda ratios: np.where(ratios > 1e3, 0.0, 1.0)
    assert found.is_borne_out
    found._error = lambda ratios: np.where(ratios > 500, 0.0, 1.0)
    assert not found.is_borne_out


def test_many_rows_and_columns_have_a_quadrature():
    """Of numbers, sparse or up to 2^24 of them; labels have the evidence alone."""
    table, target = words(700, 600, 1.0)
    given = sparse_arguments(table, target)
    dense = given[0].toarray()
    assert type(noisy(*given)) is QuadratureRidge
    assert type(noisy(dense, *given[1:])) is QuadratureRidge
    assert noisy(*given, are_labels=True) is None
    assert noisy(dense, *given[1:], are_labels=True) is None
    few = sparse_arguments(*words(700, 40, 3.0))
    assert type(noisy(*few)) is QuadratureRidge
    assert noisy(few[0].toarray(), *few[1:]) is None
    assert noisy(*sparse_arguments(*words(700, 20, 3.0))) is None
    wide = words(700, 20, 3.0)
    wide[0].resize(700, 5000)
    assert noisy(*sparse_arguments(*wide)) is None


def test_unequal_weights_bear_out_as_equal_ones_do():
    weight = np.random.default_rng(2).exponential(size=900)
    found = noisy(*sparse_arguments(*words(900, 600, 1.0), weight))
    assert 0.3 < found.ratio < 30


def test_few_rows_of_sparse_data_have_the_evidence():
    assert type(noisy(*sparse_arguments(*words(100, 60, 2.0)))) is EvidenceRidge
    assert type(noisy(*sparse_arguments(*words(101, 60, 2.0)))) is QuadratureRidge


@pytest.mark.parametrize("kind", ["exact", "dense", "sparse"])
def test_columns_with_a_factor_of_zero_are_left_out(kind):
    table, target = words(90, 600, 1.0) if kind == "exact" else words(700, 900, 1.0)
    given = sparse_arguments(table, target)
    dense = kind != "sparse"
    factor = given[4].copy()
    factor[::3] = 0.0
    kept = factor > 0
    found = noisy(given[0].toarray() if dense else given[0], *given[1:4], factor)
    some = sparse_arguments(table[:, np.flatnonzero(kept)], target)
    expected = noisy(some[0].toarray() if dense else some[0], *some[1:])
    assert type(found) is (EvidenceRidge if kind == "exact" else QuadratureRidge)
    assert found.ratio == expected.ratio > 0
    np.testing.assert_allclose(found.coefficients()[kept], expected.coefficients(), atol=1e-4)
    np.testing.assert_array_equal(found.coefficients()[~kept], 0.0)


def test_columns_left_out_are_no_columns_that_fit_noise():
    table, *others, factor = arguments(*data(40))
    assert noisy(table, *others, factor) is not None
    factor[5:] = 0.0
    assert noisy(table, *others, factor) is None


def clipped(numbers, most):
    """Return the columns within so many deviations of a normal distribution around their medians."""
    median = np.median(numbers, axis=0)
    spread = most / stats.norm.ppf(0.75) * np.median(np.abs(numbers - median), axis=0)
    return np.where(spread > 0, np.clip(numbers, median - spread, median + spread), numbers)


def test_outliers_among_many_rows_are_at_the_end_of_the_usual_range():
    """Three deviations of a normal distribution around the median."""
    table, target = words(300, 400, 1.0, n_targets=2)
    target[:4] += 1e4
    target[:, 1] = np.where(np.arange(300) < 200, 2.0, target[:, 1])
    given = sparse_arguments(table, target)
    plain, found = noisy_ridges(*given, are_labels=False, is_robust=True)
    assert type(found) is QuadratureRidge
    usual = clipped(target, 3.0)
    assert (usual != target).any(axis=0).tolist() == [True, False]
    expected = QuadratureRidge(table, usual, *given[2:])
    np.testing.assert_allclose(found.deviations, expected.deviations)
    assert found.ratio == expected.ratio
    np.testing.assert_allclose(plain.deviations, target.std(axis=0))
    (only,) = noisy_ridges(*given, are_labels=False)
    np.testing.assert_array_equal(only.deviations, plain.deviations)


def test_outliers_are_those_of_residuals():
    """A regression of targets within one deviation tells them; predictions are those from other rows."""
    table, target = data(40, n_targets=2)
    target[:4] += 1e4
    target[:, 1] = np.where(np.arange(N) < 40, 2.0, target[:, 1])
    plain, found = noisy_ridges(*arguments(table, target), are_labels=False, is_robust=True)
    usual = clipped(target, 1.0)
    for most in (2.0, 2.0, 2.0, 2.0, 3.0):
        near = ridge(table, usual)
        predicted = usual.mean(axis=0) + usual.std(axis=0) * near.from_others()
        usual = predicted + clipped(target - predicted, most)
    assert (usual != target)[:4, 0].all()
    expected = ridge(table, usual)
    np.testing.assert_allclose(found.deviations, usual.std(axis=0))
    assert found.ratio == expected.ratio
    np.testing.assert_allclose(found.coefficients(), expected.coefficients())
    np.testing.assert_allclose(plain.deviations, target.std(axis=0))


@pytest.mark.parametrize("seed", range(3))
def test_outliers_hide_no_signal(seed, monkeypatch):
    """A fifth of the targets is ten deviations too large: those within three are not small enough."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(150, 15))
    weights = rng.normal(size=(15, 1)) / 15**0.5
    target = table @ weights + 0.3 * rng.normal(size=(150, 1))
    target[:30] += rng.normal(10.0, 2.0, (30, 1))

    def error(found):
        raw = found.coefficients() * found.deviations / table.std(axis=0)[:, None]
        return np.linalg.norm(raw - weights) / np.linalg.norm(weights)

    given = arguments(table, target)
    # all is to be learned
    assert noisy_ridges(*given, are_labels=False, is_robust=True) is None
    monkeypatch.setattr(evidence, "_OF_OTHERS", evidence._NO_BOUNDS)
    _, others = noisy_ridges(*given, are_labels=False, is_robust=True)
    of_usual_targets = error(ridge(table, clipped(target, 3.0)))
    assert of_usual_targets > 0.4
    assert error(others) < 0.5 * of_usual_targets


def test_without_outliers_one_ridge_is_enough():
    table, target = data(40)
    (found,) = noisy_ridges(*arguments(table, np.sign(target)), are_labels=False, is_robust=True)
    assert found.ratio == ridge(table, np.sign(target)).ratio


def test_losses_of_the_sizes_of_residuals_fit_noise_of_fewer_columns():
    """The residuals of ridge are 1.03 times those of least squares, 1.1 times for squared losses."""
    rng = np.random.default_rng(1)
    table = rng.normal(size=(1000, 150))
    signal = table @ rng.normal(size=(150, 1))
    target = signal / signal.std() + rng.uniform(-2.0, 2.0, (1000, 1))
    assert noisy_ridges(*arguments(table, target), are_labels=False) is None
    assert noisy_ridges(*arguments(table, target), are_labels=False, is_robust=True) is not None


@pytest.mark.parametrize(("n_rows", "n_columns", "seed"), [(60, 400, 8), (60, 400, 9), (100, 500, 9)])
def test_outliers_alone_are_noise_where_all_others_are_signal(n_rows, n_columns, seed):
    """More columns than rows would fit them; the largest ratio has no larger one to be compared with."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(n_rows, n_columns))
    target = table @ rng.normal(size=(n_columns, 1)) / n_columns**0.5
    target[:3] += 30.0 * rng.normal(size=(3, 1))
    given = arguments(table, target)
    plain, others = noisy_ridges(*given, are_labels=False, is_robust=True)
    assert plain.ratio < 1 < 1e5 < others.ratio
    # all but the outliers are learned
    predicted = (table - given[3]) * given[4] @ others.coefficients() * others.deviations
    residual = target - predicted
    residual -= np.median(residual)
    assert np.abs(residual[3:]).max() < 0.1 < 1 < np.abs(residual[:3]).max()


def test_too_many_targets_have_none():
    given = sparse_arguments(*words(700, 600, 1.0, n_targets=17))
    assert noisy(*given) is None
    assert noisy(given[0], given[1][:, :16], *given[2:]) is not None


def test_few_words_of_many_stay_sparse(monkeypatch):
    """Columns without an entry count in memory alone."""
    table, target = words(100, 50, 3.0)
    table.resize(100, 100_000)
    given = sparse_arguments(table, (target > 0).astype(float))
    monkeypatch.setattr(type(given[0]), "toarray", lambda table: pytest.fail("made dense"))
    assert noisy(*given, are_labels=True) is None


def test_too_many_dense_numbers_have_none(monkeypatch):
    given = sparse_arguments(*words(700, 600, 1.0))
    monkeypatch.setattr(evidence, "_MOST_ENTRIES", 700 * 600 - 1)
    assert noisy(given[0].toarray(), *given[1:]) is None
    assert noisy(*given) is not None


def test_noise_alone_has_no_coefficients_by_quadrature():
    table, _ = words(2000, 800, 1.0)
    given = sparse_arguments(table, np.random.default_rng(5).normal(size=(2000, 1)))
    found = noisy(*given)
    assert np.linalg.norm(found.coefficients()) < 0.2
    both = noisy(given[0], np.c_[given[1], np.ones(2000)], *given[2:])
    np.testing.assert_array_equal(both.coefficients()[:, 1], 0)


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_little_noise_has_no_quadrature(noise):
    assert noisy(*sparse_arguments(*words(400, 800, noise))) is None


@pytest.mark.parametrize("is_sparse", [True, False], ids=["sparse", "dense"])
def test_cross_validation_contradicts_a_ratio_that_is_too_small(is_sparse):
    table, *others = sparse_arguments(*words(900, 600, 0.3))
    found = QuadratureRidge(table if is_sparse else table.toarray(), *others)
    assert found.is_borne_out
    vars(found)["ratio"] = found.ratio / 100.0
    assert not found.is_borne_out
    vars(found)["ratio"] = 0.0
    assert not found.is_borne_out


def test_unequal_weights_count_between_the_rows_and_as_many_equal_ones():
    table, target = data(40)
    weight = np.random.default_rng(2).exponential(size=N) ** 2
    weight[:20] = 0.0
    share = weight / weight.sum()
    assert ridge(table, target, weight)._n_rows == pytest.approx(np.sqrt(40 / (share @ share)) - 1)
    assert ridge(table, target)._n_rows == pytest.approx(N - 1)


@pytest.mark.parametrize("ratio", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("power", [0, 1])
def test_the_error_is_that_of_generalised_cross_validation(ratio, power):
    weight = np.random.default_rng(4).exponential(size=1200) ** power
    table, *others = sparse_arguments(*words(1200, 900, 1.0, n_targets=2), weight)
    found = QuadratureRidge(table, *others)
    share, dense, factor = weight / weight.sum(), table.toarray(), others[3]
    wanted = np.sqrt(share)[:, None] * (others[0] - share @ others[0]) / found.deviations
    columns = np.sqrt(share)[:, None] * (dense - share @ dense) * factor
    left = np.linalg.inv(np.eye(1200) + ratio * columns @ columns.T)
    # the mean takes one of the directions
    left -= np.sqrt(np.outer(share, share))
    mean = share @ np.diag(left) / (1.0 - share @ share)
    expected = (np.linalg.norm(left @ wanted, axis=0) ** 2 / mean**2).mean()
    # by two vectors of random signs
    assert found._error(np.array([ratio]))[0] == pytest.approx(expected, rel=0.1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [1e300, 1e-300, np.nan, np.inf])
def test_numbers_out_of_range_are_no_reason_to_fail_by_quadrature(number):
    table, *others = sparse_arguments(*words(700, 600, 1.0))
    changed = table.copy()
    changed.data[7] = number
    for data_ in (changed, changed.toarray()):
        found = noisy(data_, *others)
        assert found is None or np.isfinite(found.coefficients()).all()
    found = noisy(table, number * others[0], *others[1:])
    assert found is None or np.isfinite(found.coefficients()).all()


def with_variances(n_rows, n_columns, slope, seed=0):
    """Return columns, targets, and the logarithms of the variances of their noise."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(n_rows, n_columns))
    logarithm = slope * table[:, :1]
    target = 5.0 + table @ rng.normal(size=(n_columns, 1))
    return table, target + np.exp(logarithm / 2.0) * rng.normal(size=(n_rows, 1)), logarithm


def predicted(found, table, target):
    """Return the means and the logarithms of the variances of the rows."""
    standard = (table - table.mean(axis=0)) / table.std(axis=0)
    coefficients = found.coefficients() * found.deviations
    constant = np.concatenate([target.mean(axis=0), np.log(target.var(axis=0))])
    raw = constant + standard @ coefficients - found.offsets(coefficients)
    return np.split(raw, 2, axis=1)


@pytest.mark.parametrize("n_columns", [3, 20])
def test_variances_are_those_of_rows_left_out(n_columns):
    """Of a ridge regression of the ratio of the greatest evidence; there are no slopes of constant ones."""
    table, target, _ = with_variances(40, n_columns, 0.0)
    (found,) = normal_ridges(*arguments(table, target))
    means, logarithms = predicted(found, table, target)
    assert found.ratio > 0
    columns, wanted = standard(table, target, np.ones(40))
    alpha = 1.0 / EvidenceRidge(*arguments(table, target), are_labels=False, bounds=evidence._NO_BOUNDS).ratio
    hat = columns @ np.linalg.solve(columns.T @ columns + alpha * np.eye(n_columns), columns.T)
    residuals = (target[:, 0] - target.mean()) - target.std() * np.sqrt(40) * (hat @ wanted)[:, 0]
    left_out = residuals / (1.0 - np.diag(hat) - 1.0 / 40)
    np.testing.assert_allclose(means[:, 0], target[:, 0] - residuals)
    # squares below 1e-4 of the mean one count as much
    np.testing.assert_allclose(logarithms, np.log(np.mean(left_out**2)), atol=1e-4)


def test_slopes_of_variances_are_found():
    table, target, logarithm = with_variances(400, 15, 1.5)
    (found,) = normal_ridges(*arguments(table, target))
    _, logarithms = predicted(found, table, target)
    assert np.corrcoef(logarithms[:, 0], logarithm[:, 0])[0, 1] > 0.95
    # of rows left out too: no smaller than those of the noise
    assert np.mean(np.exp(logarithm - logarithms)) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_small_variance_count_more(seed):
    """Means are nearer to the true ones than those of equal weights."""
    table, target, _ = with_variances(300, 10, 2.5, seed)
    weights = np.random.default_rng(seed)
    weights.normal(size=table.shape)
    truth = 5.0 + table @ weights.normal(size=(10, 1))
    (found,) = normal_ridges(*arguments(table, target))
    means, _ = predicted(found, table, target)
    plain = Ridge(alpha=1.0).fit(table, target).predict(table).reshape(-1, 1)
    assert np.mean((means - truth) ** 2) < 0.5 * np.mean((plain - truth) ** 2)


def test_sparse_data_and_few_columns_have_no_ridge_of_variances():
    table, target, _ = with_variances(200, 5, 0.0)
    assert normal_ridges(*arguments(table, target)) is None
    assert normal_ridges(*arguments(table[:100], target[:100])) is not None
    assert normal_ridges(*arguments(table[:5], target[:5])) is None
    given = arguments(table[:100], target[:100])
    assert normal_ridges(sparse.csr_array(given[0]), *given[1:]) is None


@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_rows_with_columns_of_their_own_have_finite_variances(scale):
    """From the others they have no prediction; nor do targets at the ends of the range of numbers harm."""
    table, target, _ = with_variances(60, 8, 2.0)
    table = np.c_[table, np.eye(60)[:, :12]]
    found = normal_ridges(*arguments(table, scale * target))
    means, logarithms = predicted(found[0], table, scale * target)
    assert np.isfinite(means).all()
    assert np.isfinite(logarithms).all()
