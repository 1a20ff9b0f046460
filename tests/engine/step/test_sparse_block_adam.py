"""Block Adam on sparse batches makes the updates of dense batches, in all columns."""

import numpy as np
import pytest
from numpy_training import PlainBlockAdam
from scipy import sparse

from onnxsgd.engine.sparse_products import SparseRows
from onnxsgd.engine.step import sparse_block_adam
from onnxsgd.engine.step.sparse_block_adam import SparseBlockAdam, WholeBlockAdam
from onnxsgd.engine.step.update import PENALTY_SCALE, RATE_SCALE, WEIGHT
from onnxsgd.optimizers import LOG_FACTOR, BlockAdam

RNG = np.random.default_rng(0)
D, B, N = 30, 4, 75
BATCHES = [sparse.random(B, D, 0.2, "csr", np.float64, RNG) for _ in range(N)]
GRADIENTS = RNG.normal(size=(N, B, 3)) + 0.5
#: Means of columns, of which some are zero.
CENTRE = RNG.uniform(0.0, 0.5, D) * (np.arange(D) % 3 > 0)


def by_hand(w, blocks, penalties, rate_scale, steering, steers, sizes, rest, inertia, l2, centre):
    """The formula of the docstring of BlockAdam, on dense data, in numpy."""
    m, v, factor, products = np.zeros_like(w), 0.0, 0.0, []
    axis = 0 if blocks[1] > 1 else None
    size, plain = w.size / np.prod(blocks), PlainBlockAdam(steering=steering)

    def total(table):
        return table.sum(axis=axis, keepdims=True)

    for t, (X, d) in enumerate(zip(BATCHES, GRADIENTS[:, :, : w.shape[1]], strict=True), start=1):
        X = X.toarray() - centre
        products.append(X @ w)
        G = X.T @ d
        v = 0.999 * v + 0.001 * total(G**2) / size
        rate = 0.05 * rate_scale / np.sqrt(v / (1 - 0.999**t))
        if steering:
            n = m * plain.n_gradients(t - 1) / plain.n_gradients(t)
            n = n + l2 * penalties * w if steers else n
            shares = 1 / (1 + rate * np.exp(factor) * l2 * penalties) if steers else 1.0
            lengths = np.sqrt(total(shares * n**2) * total(shares * G**2))
            cosine = total(shares * n * G) / np.maximum(lengths, 1e-30)
            counted = np.minimum(total(G**2) / size / v, 2.0) * steering if sizes else steering
            level = 0.02 if rest is None else np.minimum(rest, 1.5 * cosine**2)
            factor = np.clip(
                factor + counted * (cosine - level), np.log(0.03), np.log(10.0 if sizes else 4.0)
            )
        m = m + (G - m) / plain.n_gradients(t)
        rate = rate * np.exp(factor)
        share = inertia if steering else 1.0
        w = w - rate * ((1 - share) * G + share * m)
        w = w / (1 + rate * l2 * penalties)
    return w, products


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("n_blocks", [1, 3])
@pytest.mark.parametrize(
    ("steering", "steers", "sizes", "rest", "inertia"),
    [
        (0, 0, 0, None, None),
        (0.2, 0, 0, 0.2, None),
        (0.2, 1, 0, None, 0.0),
        (0.2, 1, 0, None, 0.3),
        (0.2, 1, 1, None, None),
    ],
)
@pytest.mark.parametrize("l2", [0.0, 0.01, 30.0])
@pytest.mark.parametrize("others", [[], [4, 29], [4, 11, 29]])
@pytest.mark.parametrize("form", ["sparse", "whole"])
@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize(("dtype", "rounding"), [(np.dtype(np.float64), 1e-7), (np.dtype(np.float32), 5e-4)])
def test_updates_are_those_of_dense_batches(
    n_outputs,
    n_blocks,
    steering,
    steers,
    sizes,
    rest,
    inertia,
    l2,
    others,
    form,
    is_centred,
    dtype,
    rounding,
    monkeypatch,
):
    """Over more updates than the tables hold at once; the strongest penalty makes the factor small."""
    # the last part of the tables is shorter
    monkeypatch.setattr(sparse_block_adam, "_FOLDED", 8)
    monkeypatch.setattr(sparse_block_adam, "_FEW_OTHERS", 2)
    blocks = (1, min(n_blocks, n_outputs))
    penalties, rate_scale = np.full((D, 1), 2.0), np.linspace(0.5, 2, blocks[1])[None]
    penalties[others] = RNG.uniform(0.1, 20, (len(others), 1))
    shapes = {
        WEIGHT: (D, n_outputs), "first_moment": (D, n_outputs), "second_moment": blocks, RATE_SCALE: blocks,
    }  # fmt: skip
    shapes |= {PENALTY_SCALE: (D, 1)} if l2 else {}
    shapes |= {LOG_FACTOR: blocks} if steering else {}
    centre = CENTRE.astype(dtype) if is_centred else None
    optimizer = BlockAdam(
        steering=steering, with_penalties=bool(steers), with_sizes=bool(sizes), rest=rest,
        square_rest=None if rest is None else 1.5, inertia=inertia,
    )  # fmt: skip
    if form == "sparse":
        updates = SparseBlockAdam(shapes, dtype, B, decays=l2 > 0, optimizer=optimizer, centre=centre)
    else:
        updates = WholeBlockAdam(shapes, dtype, decays=l2 > 0, optimizer=optimizer, centre=centre)
    start = RNG.normal(size=(D, n_outputs))
    values = {WEIGHT: start, PENALTY_SCALE: penalties, RATE_SCALE: rate_scale}
    for kind, array in updates.tensors.items():
        array[...] = values.get(kind, 0.0)
    updates.reset()
    products = []
    # a run ends, and another one begins, at any update
    for part in (range(40), range(40, N)):
        t = np.arange(part.start + 1.0, part.stop + 1)
        numbers = optimizer.scalars(t, np.full(len(t), 0.05), l2)
        updates.begin({name: np.broadcast_to(column, t.shape) for name, column in numbers.items()})
        for number, i in enumerate(part):
            X = BATCHES[i]
            offsets = None if centre is None else np.array([X @ CENTRE, np.ones(B)], dtype)
            rows = SparseRows(X.indptr, X.indices, X.data.astype(dtype), D, offsets)
            products.append(np.empty((B, n_outputs), dtype))
            updates.multiply(rows, products[-1])
            updates.update(number, rows, np.ascontiguousarray(GRADIENTS[i, :, :n_outputs], dtype))
        updates.end()
    given = start, blocks, penalties if l2 else 0.0, rate_scale, steering, steers, sizes, rest
    given = *given, 0.5 if inertia is None else inertia, l2
    want, want_products = by_hand(*given, CENTRE if is_centred else 0.0)
    np.testing.assert_allclose(products, want_products, rtol=rounding, atol=0.1 * rounding)
    np.testing.assert_allclose(updates.tensors[WEIGHT], want, rtol=rounding, atol=0.1 * rounding)
