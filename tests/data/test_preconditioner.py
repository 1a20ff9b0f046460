"""Directions of small variance get longer steps where the target depends on them."""

import numpy as np
import pytest
from scipy import linalg

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.data.preconditioner import preconditioner

N, D = 600, 12
RNG = np.random.default_rng(0)
FACTORS = RNG.normal(size=(N, D))
#: Sums of factors, with variances of directions between 20 and 1e-3.
SUMS = FACTORS @ RNG.normal(size=(D, D))
WANTED = FACTORS @ RNG.normal(size=D)


def found(table, target, weight=None, penalty=0.0):
    weight = np.ones(len(table)) if weight is None else weight
    centre = np.average(table, axis=0, weights=weight)
    scale = np.sqrt(np.average((table - centre) ** 2, axis=0, weights=weight))
    target = target.reshape(len(table), -1)
    return preconditioner(table, target, weight, centre, np.where(scale > 0, scale, 1.0), penalty)


def likely_power(table, target):
    """Return the power of the greatest likelihood on a finer grid of sizes, one number after another."""
    correlation = np.corrcoef(table.T)
    variances, directions = linalg.eigh(correlation)
    standard = (table - table.mean(axis=0)) / table.std(axis=0) @ directions
    r = [np.corrcoef(column, target)[0, 1] ** 2 for column in standard.T]
    # least squares leave the noise
    noise = max(0.01, (1 - sum(r)) / (1 - len(r) / len(table)))
    best = {}
    for power in (0.0, 0.25, 0.5, 0.75, 1.0):
        logs = []
        for size in np.geomspace(0.01 / len(table), 1.0, 200):
            v = [size * (x / variances.mean()) ** power + noise / len(table) for x in variances]
            logs.append(-sum(np.log(a) + b / a for a, b in zip(v, r, strict=True)) / 2)
        best[power] = max(logs)
    return max(best, key=best.get)


def test_coefficients_of_factors_get_the_inverse_correlations():
    """The target is a sum of factors, each as wide as the others."""
    assert likely_power(SUMS, WANTED) == 0.0
    np.testing.assert_allclose(found(SUMS, WANTED), linalg.inv(np.corrcoef(SUMS.T)), rtol=1e-6)


def test_powers_between_give_that_power_of_the_correlations():
    variances, directions = linalg.eigh(np.corrcoef(SUMS.T))
    standard = (SUMS - SUMS.mean(axis=0)) / SUMS.std(axis=0) @ directions
    signs = np.where(np.arange(D) % 2, 1.0, -1.0)
    target = standard @ (signs * variances**-0.375) + 0.1 * RNG.normal(size=N)
    assert likely_power(SUMS, target) == 0.25
    expected = directions @ np.diag(variances**-0.75) @ directions.T
    expected *= D / np.trace(expected @ np.corrcoef(SUMS.T))
    np.testing.assert_allclose(found(SUMS, target), expected, rtol=1e-6)


def test_few_rows_with_little_noise_tell_directions_of_small_variance():
    """Products and squares of uniform columns. With a share of noise of 1 the powers are alike."""
    x = np.random.default_rng(1).uniform(size=(200, 5))
    products = [x[:, i] * x[:, j] for i in range(5) for j in range(i, 5)]
    table = np.column_stack([x, *products])
    target = np.sin(np.pi * x[:, 0] * x[:, 1]) + 2 * (x[:, 2] - 0.5) ** 2 + x[:, 3] + 0.5 * x[:, 4]
    noise = 0.1 * np.random.default_rng(2).normal(size=200)
    assert found(table, target + noise) is not None
    assert found(table, target + 15 * noise) is None


def test_labels_of_several_classes_are_targets_together():
    labels = np.digitize(WANTED, np.quantile(WANTED, [0.3, 0.7]))
    assert found(SUMS, np.eye(3)[labels]) is not None
    assert found(SUMS, np.eye(3)[RNG.permutation(labels)]) is None


@pytest.mark.parametrize(
    ("table", "target"),
    [
        (FACTORS, WANTED),
        (SUMS, SUMS.sum(axis=1)),
        (SUMS, RNG.normal(size=N)),
        (SUMS, np.ones(N)),
        (np.ones((N, D)), WANTED),
        (SUMS[:, :1], WANTED),
        (SUMS[:D], WANTED[:D]),
        (np.tile(SUMS, 22), WANTED),
    ],
    ids=["independent", "wide", "noise", "constant", "no column", "one column", "few rows", "many columns"],
)
def test_others_have_none(table, target):
    assert found(table, target) is None


def test_it_is_the_same_in_other_units():
    units = np.geomspace(1e-6, 1e6, D)
    expected = found(SUMS, WANTED)
    np.testing.assert_allclose(found(units * SUMS - 1e3 * units, 1e5 * WANTED + 7.0), expected, rtol=1e-5)


def test_weights_count_rows():
    """Rows of weight zero have no part in it."""
    weight = (np.arange(2 * N) < N).astype(float)
    table, target = np.r_[SUMS, RNG.normal(size=(N, D))], np.r_[WANTED, np.zeros(N)]
    np.testing.assert_allclose(found(table, target, 3.0 * weight), found(SUMS, WANTED), rtol=1e-9)


def test_a_penalty_is_a_part_of_the_curvature():
    """The matrix is the inverse of C + l2 / s^2, with the penalty of a column in units of it."""
    penalty, scale = 1e-3, SUMS.std(axis=0)
    curvature = np.corrcoef(SUMS.T) + np.diag(penalty / scale**2)
    np.testing.assert_allclose(found(SUMS, WANTED, penalty=penalty), linalg.inv(curvature), rtol=1e-6)
    # where it decides, directions are alike
    assert found(SUMS, WANTED, penalty=1e6) is None


def test_equal_columns_keep_it_positive():
    """Their difference has no variance, and float32 holds the matrix."""
    matrix = found(np.c_[SUMS, SUMS[:, :3]], WANTED)
    assert np.linalg.eigvalsh(matrix.astype(np.float32)).min() > 0
    nearly = SUMS[:, :3] + 1e-5 * RNG.normal(size=(N, 3))
    assert np.linalg.eigvalsh(found(np.c_[SUMS, nearly], WANTED).astype(np.float32)).min() > 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [1e300, 1e-300, np.nan, np.inf])
def test_numbers_out_of_range_are_no_reason_to_fail(number):
    """Rows far from all others, and targets whose squares overflow or vanish."""
    table = SUMS.copy()
    table[3, 2] = number
    weight, centre, scale = np.ones(N), SUMS.mean(axis=0), SUMS.std(axis=0)
    assert preconditioner(table, WANTED[:, None], weight, centre, scale, 1e-4) is None or number == 1e-300
    matrix = preconditioner(SUMS, number * WANTED[:, None], weight, centre, scale, 1e-4)
    assert matrix is None or np.isfinite(matrix).all()
    tiny = preconditioner(1e-300 * SUMS, WANTED[:, None], weight, 1e-300 * centre, 1e-300 * scale, 1e-4)
    assert tiny is None or np.isfinite(tiny).all()


def test_some_rows_of_many_are_enough():
    rows = np.tile(np.arange(N), 20)
    rng = np.random.default_rng(1)
    table = SUMS[rows] + 1e-3 * rng.normal(size=(len(rows), D))
    np.testing.assert_allclose(found(table, WANTED[rows]), found(SUMS, WANTED), rtol=0.5, atol=2.0)


@pytest.mark.parametrize("number", [0.0, 0.1, 1e6 + 0.1])
def test_a_constant_target_tells_nothing(number):
    """The mean of 0.1 is none of its values, by rounding."""
    weight = np.random.default_rng(1).uniform(0.5, 2.0, N)
    target = WANTED + 10.0 * np.random.default_rng(2).normal(size=N)
    both = found(SUMS, np.c_[target, np.full(N, number)], weight)
    np.testing.assert_allclose(both, found(SUMS, target, weight), rtol=1e-9)
    assert found(SUMS, np.full(N, number), weight) is None


def narrow(n_rows, n_columns=60, n_factors=8, size=0.5, seed=0):
    """Columns that share factors, and the coordinate in a direction of small variance."""
    rng = np.random.default_rng(seed)
    loadings, along = rng.normal(size=(n_factors, n_columns)), rng.normal(size=n_columns)
    along -= along @ np.linalg.pinv(loadings) @ loadings
    factors, wanted = rng.normal(size=(n_rows, n_factors)), rng.normal(size=n_rows)
    table = factors @ loadings + 0.1 * rng.normal(size=(n_rows, n_columns))
    return table + size * np.outer(wanted, along / np.linalg.norm(along)), wanted, factors


def ridge_of_evidence(table, target):
    """The eigenvalues, the directions and n t of the ridge regression with p = 1, from rows by rows."""
    standard = (table - table.mean(axis=0)) / table.std(axis=0)
    wanted = (target - target.mean()) / target.std()
    variances, directions = linalg.eigh(standard.T @ standard / len(table))
    logs = []
    sizes = np.logspace(-4, 4, 33)
    for size in sizes:
        # the rows are normal with this covariance, in units of the noise, but for their mean
        covariance = np.eye(len(table)) + size / len(table) * standard @ standard.T / variances.mean()
        misfit = wanted @ linalg.solve(covariance, wanted, assume_a="pos") / len(table)
        logs.append(-0.5 * np.linalg.slogdet(covariance)[1] - 0.5 * (len(table) - 1) * np.log(misfit))
    return variances, directions, sizes[int(np.argmax(logs))]


def test_directions_that_descent_reaches_late_have_the_speeds_of_a_ridge_regression():
    """With two rows for each column, and the target in the direction of small variance."""
    table, wanted, _ = narrow(130)
    target = wanted + 0.1 * np.random.default_rng(1).normal(size=130)
    variances, directions, size = ridge_of_evidence(table, target)
    shares = size * variances / variances.mean() / (1 + size * variances / variances.mean())
    assert shares.min() < 0.9 < shares.max()
    expected = directions @ np.diag(shares / variances) @ directions.T
    expected *= len(variances) / shares.sum()
    np.testing.assert_allclose(found(table, target), expected, rtol=1e-6, atol=1e-8 * abs(expected).max())


@pytest.mark.parametrize("n_rows", [130, 400])
def test_descent_is_not_late_for_factors_nor_for_noise(n_rows):
    table, wanted, factors = narrow(n_rows)
    rng = np.random.default_rng(1)
    assert found(table, wanted + 0.1 * rng.normal(size=n_rows)) is not None
    assert found(table, factors @ rng.normal(size=8) + rng.normal(size=n_rows)) is None
    assert found(table, rng.normal(size=n_rows)) is None


def test_a_few_rows_beside_the_directions_tell_the_noise():
    for n_rows, is_told in ((60 + 15, False), (60 + 30, True)):
        table, wanted, _ = narrow(n_rows)
        assert (found(table, wanted) is not None) == is_told


@pytest.mark.parametrize("n_rows", [400, 600])
def test_default_fits_learn_directions_of_small_variance(n_rows):
    """Of 150 columns that share 20 factors; training ended at the accuracy of a constant before."""
    table, wanted, _ = narrow(n_rows + 500, 150, 20)
    rows, rest = slice(n_rows), slice(n_rows, None)
    noise = 0.1 * np.random.default_rng(1).normal(size=len(wanted))
    scaled = (table - table[rows].mean(axis=0)) / table[rows].std(axis=0)
    for loss in ("log_loss", "hinge"):
        classifier = OnnxSGDClassifier(loss=loss, random_state=0).fit(scaled[rows], wanted[rows] > 0)
        assert classifier.score(scaled[rest], wanted[rest] > 0) > 0.85
    regressor = OnnxSGDRegressor(random_state=0).fit(scaled[rows], (wanted + noise)[rows])
    assert regressor.score(scaled[rest], (wanted + noise)[rest]) > 0.85
