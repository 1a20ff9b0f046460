"""Standardised coordinates describe the same functions, and change no number that others see."""

import numpy as np
import onnx
import onnx.reference
import pytest
from scipy import sparse

from onnxsgd.data.moments import Moments
from onnxsgd.engine.step.buffers import Buffers
from onnxsgd.engine.step.update import AVERAGE, PENALTY_SCALE, RATE_SCALE, START, WEIGHT
from onnxsgd.graph.reading.first_layers import FirstLayer
from onnxsgd.training.coordinates import BuffersInPlace, Coordinates, StandardisedBuffers, make_coordinates

RNG = np.random.default_rng(0)
X = RNG.normal([3.0, -200.0, 0.1], [1e-3, 50.0, 1.0], (40, 3))
W, B = RNG.normal(size=(3, 2)), RNG.normal(size=2)


def coordinates(layer, table=X):
    return make_coordinates((layer,), {"x": table}, {"x": Moments.of(table, np.ones(len(X)))}, 1.0)


def standard_data(changed):
    rows = X.copy()
    changed.standards["x"].apply(rows)
    return rows


@pytest.mark.parametrize("most", [8192, 2])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_the_layer_is_the_same_function(is_transposed, most, monkeypatch):
    """Products of many numbers are made in parts."""
    monkeypatch.setattr("onnxsgd.data.one_thread.MOST_OF_ONE_THREAD", most)
    layer = FirstLayer("x", "w", "b", is_transposed)
    changed = coordinates(layer)
    given = W.T.copy() if is_transposed else W
    tensors = changed.standardised({("w", WEIGHT): given, ("b", WEIGHT): B[None]})
    rows = standard_data(changed)
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(rows.std(axis=0), 1, rtol=1e-9)
    weight = tensors["w", WEIGHT].T if is_transposed else tensors["w", WEIGHT]
    np.testing.assert_allclose(rows @ weight + tensors["b", WEIGHT], X @ W + B, rtol=1e-9, atol=1e-11)
    back = changed.raw(tensors)
    np.testing.assert_allclose(back["w", WEIGHT], given, rtol=1e-12)
    np.testing.assert_allclose(back["b", WEIGHT], B[None], rtol=1e-9)


def test_layers_that_share_an_intercept_shift_it_together():
    layers = (FirstLayer("x", "w", "b", False), FirstLayer("x", "u", "b", False))
    changed = make_coordinates(layers, {"x": X}, {"x": Moments.of(X, np.ones(40))}, 1.0)
    given = {("w", WEIGHT): W, ("u", WEIGHT): -2.0 * W, ("b", WEIGHT): B}
    there = changed.standardised(given)
    standard = standard_data(changed)
    scores = standard @ there["w", WEIGHT] + standard @ there["u", WEIGHT] + there["b", WEIGHT]
    np.testing.assert_allclose(scores, B - X @ W, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(changed.raw(there)["b", WEIGHT], B, rtol=1e-9)


def test_without_intercept_columns_are_scaled_only():
    changed = coordinates(FirstLayer("x", "w", None, False))
    rows = standard_data(changed)
    np.testing.assert_allclose((rows**2).mean(axis=0), 1, rtol=1e-12)
    np.testing.assert_allclose(
        rows @ changed.standardised({("w", WEIGHT): W})["w", WEIGHT], X @ W, rtol=1e-12
    )


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("n_axes", [1, 2])
def test_channels_of_a_convolution_are_scaled(groups, n_axes):
    """The same function, whatever the padding: numbers of onnx's reference evaluator."""
    images = RNG.normal(size=(5, 4, *(6,) * n_axes)) * np.reshape([1e-3, 1.0, 50.0, 1e4], (4, *(1,) * n_axes))
    filters = RNG.normal(size=(6, 4 // groups, *(3,) * n_axes))
    layer = FirstLayer("x", "w", None, False, groups)
    known = Moments.of(images, np.ones(5), layer.column_axis)
    changed = make_coordinates((layer,), {"x": images}, {"x": known}, 1.0)
    rows = images.copy()
    changed.standards["x"].apply(rows)
    np.testing.assert_allclose((rows**2).mean(axis=(0, *range(2, rows.ndim))), 1, rtol=1e-12)
    converted = changed.standardised({("w", WEIGHT): filters})
    run = onnx.reference.ReferenceEvaluator(
        onnx.helper.make_node("Conv", ["x", "w"], ["y"], group=groups, pads=[1] * 2 * n_axes)
    ).run
    (expected,), (found,) = (
        run(None, {"x": x, "w": w}) for x, w in ((images, filters), (rows, converted["w", WEIGHT]))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    np.testing.assert_allclose(changed.raw(converted)["w", WEIGHT], filters, rtol=1e-12)
    scale = changed.constants({("w", WEIGHT): filters})["w", PENALTY_SCALE]
    np.testing.assert_allclose((scale * converted["w", WEIGHT] ** 2).sum(), (filters**2).sum(), rtol=1e-12)


def test_sparse_columns_are_scaled_only():
    table = X * (RNG.random(X.shape) < [0.3, 0.7, 1.0])
    changed = coordinates(FirstLayer("x", "w", "b", False), sparse.csr_matrix(table))
    np.testing.assert_allclose(changed.standards["x"].shift, [0, 0, table[:, 2].mean()], rtol=1e-12)


def test_averages_are_weights_and_moments_are_not():
    changed = coordinates(FirstLayer("x", "w", "b", False))
    tensors = {(name, kind): value for name, value in (("w", W), ("b", B)) for kind in (WEIGHT, AVERAGE)}
    tensors["w", "first_moment"] = W
    new = changed.standardised(tensors)
    np.testing.assert_array_equal(new["w", AVERAGE], new["w", WEIGHT])
    np.testing.assert_array_equal(new["b", AVERAGE], new["b", WEIGHT])
    assert new["w", "first_moment"] is W


def test_the_penalty_of_raw_weights_has_a_factor_for_each_column():
    changed = coordinates(FirstLayer("x", "w", "b", False))
    tensors = {("w", WEIGHT): W, ("b", WEIGHT): B}
    weight = changed.standardised(tensors)["w", WEIGHT]
    scale = changed.constants(tensors)["w", PENALTY_SCALE]
    np.testing.assert_allclose((scale * weight**2).sum(), (W**2).sum(), rtol=1e-12)


def test_numbers_beyond_the_type_become_its_largest_ones():
    """In float32 the factor 1 / s^2 of a column of 1e-21 is 1e42; a weight that diverged still shows it."""
    table = (X[:, [0]] - 3.0).astype(np.float32) * np.float32(1e-25)
    layer = FirstLayer("x", "w", None, False)
    changed = make_coordinates((layer,), {"x": table}, {"x": Moments.of(table, np.ones(40))}, 1.0)
    weight = np.float32([[1.0, -1e30, np.inf]])
    with np.errstate(all="raise"):
        scale = changed.constants({("w", WEIGHT): weight})["w", PENALTY_SCALE]
        raw = changed.raw({("w", WEIGHT): weight})["w", WEIGHT]
    largest = np.finfo(np.float32).max
    np.testing.assert_array_equal(scale, largest)
    np.testing.assert_array_equal(raw[0, 1:], [-largest, np.inf])
    assert 1e27 < raw[0, 0] < 1e29


def test_columns_whose_squares_overflow_have_finite_scales():
    table = np.array([[1e300], [-1e300]] * 20)
    layer = FirstLayer("x", "w", None, False)
    changed = make_coordinates((layer,), {"x": table}, {"x": Moments.of(table, np.ones(40))}, 1.0)
    weight = np.array([[1e-300]])
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        assert changed.constants({("w", WEIGHT): weight})["w", PENALTY_SCALE] == 0
        there = changed.standardised({("w", WEIGHT): weight})
        np.testing.assert_allclose(changed.raw(there)["w", WEIGHT], weight, rtol=1e-12)


class _Recorder:
    def load(self, tensors):
        self.tensors = dict(tensors)

    def snapshot(self):
        return dict(self.tensors)


def test_buffers_show_weights_of_raw_data():
    inner = _Recorder()
    buffers = StandardisedBuffers(inner, coordinates(FirstLayer("x", "w", "b", False)))
    tensors = {("w", WEIGHT): W, ("b", WEIGHT): B}
    buffers.load(tensors)
    assert ("w", PENALTY_SCALE) in inner.tensors
    assert not np.allclose(inner.tensors["w", WEIGHT], W)
    seen = buffers.snapshot()
    assert set(seen) == set(tensors)
    np.testing.assert_allclose(seen["w", WEIGHT], W, rtol=1e-12)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_weights_that_are_converted_in_place_have_the_same_bytes(is_transposed):
    """A part of a stream that repeats an earlier one has the numbers of the general way."""
    table = X.astype(np.float32)
    layer = FirstLayer("x", "w", "b", is_transposed)
    given = (W.T if is_transposed else W).astype(np.float32)
    standards = make_coordinates((layer,), {"x": table}, {"x": Moments.of(table, np.ones(40))}, 1.0).standards
    changed = Coordinates((layer,), standards, {"w": np.full((1, 1), 0.3)})
    tensors = {("w", WEIGHT): given, ("b", WEIGHT): B.astype(np.float32)[None]}
    tensors |= {
        ("w", AVERAGE): given * 2,
        ("b", AVERAGE): B.astype(np.float32)[None] * 3,
        ("w", START): given / 3,
    }
    constants = changed.constants(tensors)
    general = StandardisedBuffers(Buffers(tensors | constants), changed)
    quick = BuffersInPlace(Buffers(tensors | constants), changed, changed.constant_keys())
    assert changed.constant_keys() == tuple(constants) == (("w", PENALTY_SCALE), ("w", RATE_SCALE))
    for _ in range(2):
        general.load(tensors)
        quick.load(tensors)
        np.testing.assert_equal(quick._buffers.present, general.held.present)
        seen, tensors = general.snapshot(), quick.finite_snapshot()
        np.testing.assert_equal(tensors, seen)
        np.testing.assert_array_equal(tensors["w", START], given / 3)


def test_no_weight_is_converted_where_it_was_given():
    changed = coordinates(FirstLayer("x", "w", "b", False))
    tensors = {("w", WEIGHT): W.copy(), ("b", WEIGHT): B.copy()}
    changed.raw(tensors)
    changed.standardised(tensors)
    np.testing.assert_equal(tensors, {("w", WEIGHT): W, ("b", WEIGHT): B})
