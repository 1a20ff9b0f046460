"""Masks of Dropout in the training step: their numbers, their statistics, and their use."""

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from onnxsgd.engine.step.dropout_masks import KEY_RANGE, KEYS, draw_keys, with_masks
from onnxsgd.engine.step.step_spec import StepSpec
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.dropout import mark_dropouts
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.losses import SquaredError
from onnxsgd.optimizers import SGD
from onnxsgd.runtime.sessions import make_session

ROWS, COLUMNS, RATIO = 24, 500, 0.25


def read(body, inputs="float[N, 4] X", output="float[N, 4] Y", **tensors):
    text = f"""<ir_version: 9, opset_import: ["": 17]> g ({inputs}) => ({output})
    <float ratio = {{{RATIO}}}> {{ {body} }}"""
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in tensors.items())
    model = to_ir(onnx.shape_inference.infer_shapes(proto))
    mark_dropouts(model.graph)
    return model


@pytest.fixture(scope="module")
def run_masks():
    """Return a function from the keys of updates to the masks of two nodes."""
    inputs = f"float[{ROWS}, {COLUMNS}] X"
    model, keys = with_masks(read("Z = Dropout(X, ratio) Y = Dropout(Z, ratio) W = Identity(Z)", inputs))
    model.graph.outputs.append(next(v for node in model.graph for v in node.outputs if v.name == "W"))
    session = make_session(to_proto(model).SerializeToString(), 1)
    ones = np.ones((ROWS, COLUMNS), np.float32)

    def run(pair):
        given = {name: np.full((1, 1), key, np.int32) for name, key in zip(keys, pair, strict=True)}
        both, first = session.run(["Y", "W"], {"X": ones, **given})
        return first, both

    return run


@pytest.fixture(scope="module")
def kept(run_masks):
    """The kept elements of 300 updates, standardised."""
    drawn = draw_keys(np.random.RandomState(0), 300)
    masks = np.stack([run_masks(pair)[0] for pair in zip(*drawn.values(), strict=True)])
    assert set(np.unique(masks)) == {np.float32(0), np.float32(1 / (1 - RATIO))}
    return ((masks > 0) - (1 - RATIO)) / np.sqrt(RATIO * (1 - RATIO))


def correlations(rows):
    """Return the correlations of all pairs of rows, in units of their deviation for independent elements."""
    table = rows @ rows.T / np.sqrt(rows.shape[1])
    return table[np.triu_indices(len(rows), 1)]


def assert_normal(scores):
    """Assert that scores have mean 0 and deviation 1, and none is too large for as many of a normal law."""
    scores = np.asarray(scores)
    assert abs(scores.mean()) < 5 / np.sqrt(scores.size)
    assert 0.9 < scores.std() < 1.1
    assert np.abs(scores).max() < 1.5 * np.sqrt(2 * np.log(scores.size))


def test_the_share_of_each_update_and_of_each_element_is_the_ratio(kept):
    assert_normal(kept.sum(axis=(1, 2)) / np.sqrt(kept[0].size))
    assert_normal(kept.sum(axis=0).ravel() / np.sqrt(len(kept)))


def test_elements_are_independent_of_each_other(kept):
    assert_normal(np.concatenate([correlations(mask) for mask in kept[:100]]))
    assert_normal(np.concatenate([correlations(mask[:, :60].T) for mask in kept]))


def test_corners_of_rectangles_are_independent(kept):
    """The product of a number for each row and of one for each column alone would fail here."""
    rng, shape = np.random.default_rng(0), (len(kept), 500)
    r, c = rng.integers(ROWS, size=shape), rng.integers(COLUMNS, size=shape)
    s = (r + rng.integers(1, ROWS, size=shape)) % ROWS
    d = (c + rng.integers(1, COLUMNS, size=shape)) % COLUMNS
    n = np.arange(len(kept))[:, None]
    assert_normal((kept[n, r, c] * kept[n, r, d] * kept[n, s, c] * kept[n, s, d]).sum(axis=1) / np.sqrt(500))


def test_updates_and_nodes_are_independent_of_each_other(kept, run_masks):
    assert_normal(correlations(kept.reshape(len(kept), -1)[:, :4000]))
    assert_normal(correlations(kept[:, :, :20].reshape(len(kept), -1).T))
    first, both = run_masks((5, 7))
    second = both[first > 0] > 0
    assert abs(second.mean() - (1 - RATIO)) < 5 * np.sqrt(RATIO * (1 - RATIO) / second.size)


def test_keys_are_whole_numbers_that_the_generator_draws():
    drawn = draw_keys(np.random.RandomState(3), 1000)
    assert tuple(drawn) == KEYS
    again = draw_keys(np.random.RandomState(3), 1000)
    for name, numbers in drawn.items():
        np.testing.assert_array_equal(numbers, again[name])
        assert numbers.min() >= 0
        assert KEY_RANGE / 2 < numbers.max() < KEY_RANGE == np.float32(KEY_RANGE)
        assert np.array_equal(numbers, numbers.astype(np.float32).astype(int))


def mask_by_hand(number, keys, shape, ratio):
    """The formula with whole numbers of any size."""
    rng = np.random.default_rng(number)
    S = rng.integers(-(1 << 31), 1 << 31, (shape[0], 1), np.int64).astype(object)
    T = rng.integers(-(1 << 31), 1 << 31, (1, int(np.prod(shape[1:]))), np.int64).astype(object)
    a, b = (2 * int(key) + 1 for key in keys)
    product = (S // 2 * 2 * b + a) * (T * a + b * 0x5BD1E995)
    signed = (product + (1 << 31)) % (1 << 32)
    return np.where((signed < int(ratio * 2**32)).astype(bool), 0.0, 1 / (1 - ratio)).reshape(shape)


@pytest.mark.parametrize(
    "engine", ["portable", pytest.param("onnxruntime-training", marks=pytest.mark.native)]
)
@pytest.mark.parametrize("evaluator", ["onnxruntime", "onnx"])
def test_an_update_uses_one_mask_in_both_passes(engine, evaluator):
    """Of y = mask2 (mask1 x W), with the penalty-free step of plain SGD, against numpy."""
    rng = np.random.default_rng(0)
    W, X, y = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 3), (8, 4), (8, 3)))
    body = "Z = Dropout(X, ratio) H = MatMul(Z, W) Y = Dropout<seed = 3>(H)"
    model = read(body, output="float[N, 3] Y", W=W)
    spec = StepSpec(
        weights=("W",), penalised=frozenset(), loss=SquaredError(), optimizer=SGD(), l1=False, l2=False,
        average=False, batch_size=8, n_outputs=3, engine=engine, draws=True,
    )  # fmt: skip
    step = build_step(model, spec, with_rows=False)
    keys = (123456, 16_000_001)
    share = np.full((8, 1), 1 / 8, np.float32)
    feeds = {"X": X, step.target: y, step.sample_weight: share, step.gradient_weight: -0.1 * share, "W": W}
    feeds |= {name: np.zeros((), np.float32) for name in step.scalars.values()}
    feeds |= {step.scalars[n]: np.array(key, np.float32) for n, key in zip(KEYS, keys, strict=True)}
    name = step.tensors["W", WEIGHT][1]
    if evaluator == "onnx":
        (found,) = ReferenceEvaluator(onnx.load_from_string(step.model)).run([name], feeds)
    else:
        (found,) = make_session(step.model, 1).run([name], feeds)
    inner, outer = mask_by_hand(0, keys, (8, 4), RATIO), mask_by_hand(1, keys, (8, 3), 0.5)
    slope = (outer * ((inner * X) @ W) - y) / 8
    expected = W - 0.1 * (inner * X).T @ (outer * slope)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(found - W).max() > 1e-2


@pytest.mark.parametrize("sizes", ["1", "5, 1", "2, 3, 4, 5", "7"])
def test_masks_have_the_shape_of_the_data(sizes):
    model, keys = with_masks(
        read("Y, M = Dropout(X, ratio)", f"float[{sizes}] X", f"float[{sizes}] Y, bool[{sizes}] M")
    )
    X = np.ones([int(size) for size in sizes.split(",")], np.float32)
    given = {name: np.full((1, 1), 9, np.int32) for name in keys}
    Y, M = make_session(to_proto(model).SerializeToString(), 1).run(None, {"X": X, **given})
    np.testing.assert_array_equal(M, Y > 0)
    assert Y.shape == X.shape


def test_unknown_sizes_are_refused():
    with pytest.raises(UnsupportedError, match="'Y' cannot act: its input has the shape .*dropout=0.0"):
        with_masks(read("Y = Dropout(X, ratio)"))
