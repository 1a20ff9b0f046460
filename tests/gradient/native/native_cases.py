"""Cases of the sweep of onnxruntime-training's gradient builder, beside those of ``test_builder.py``.

Every operator at each rank that networks use, and the forms that failed before.
"""

from __future__ import annotations

import itertools

import numpy as np
from native_windows import windows
from test_builder import CASES, Case, ints

__all__ = ["swept_cases"]

#: The sizes of the axes of a tensor of rank 6; one of lower rank has the first of them.
SHAPE = (2, 3, 4, 2, 3, 2)

RANKS = range(len(SHAPE) + 1)

#: Functions of each element by itself, at every rank from 0 on.
ELEMENTWISE = {
    **{
        name: f"Y = {name}(X)"
        for name in (
            "Abs",
            "Cos",
            "Erf",
            "Exp",
            "Identity",
            "LeakyRelu",
            "Neg",
            "Relu",
            "Sigmoid",
            "Sin",
            "Tanh",
        )
    },
    **{name: f"Y = {name}(P)" for name in ("Log", "Reciprocal", "Sqrt")},
    "Cast": "Z = Cast<to=1>(X)\n V = Tanh(Z)\n Y = CastLike(V, X)",
    "CastLike": "Z = Cast<to=1>(X)\n V = Tanh(Z)\n Y = CastLike(V, X)",
    "Clip": "Y = Clip(X, low, high)",
    "Clip above": "Y = Clip(X, , high)",
    "Clip below": "Y = Clip(X, low)",
    "Dropout": "Y, m = Dropout(X, ratio, training)",
    "Pow": "Y = Pow(P, exponent)",
}

#: Constants that these functions read. The ratio is 0, as others draw at random.
CONSTANTS = {"low": -0.5, "high": 0.5, "ratio": 0.0, "training": np.array(True), "exponent": 2.5}

REDUCTIONS = ("ReduceL2", "ReduceLogSumExp", "ReduceMean", "ReduceSum")


def swept_cases() -> dict[str, Case]:
    """Return all cases by name; the first word of a name is the operator of the case."""
    found = dict(CASES)
    for cases in (windows, elementwise, products, along_axes, indexing, shaping, others):
        found.update(cases())
    return found


def elementwise():
    """Return functions of one element, and of two that broadcast, at each rank."""
    found = {}
    for rank, (name, body) in itertools.product(RANKS, ELEMENTWISE.items()):
        source = "P" if "(P" in body else "X"
        constants = {key: number for key, number in CONSTANTS.items() if f", {key}" in body}
        found[f"{name} of rank {rank}"] = Case(body, {source: SHAPE[:rank]}, constants)
    for rank, name in itertools.product(RANKS, ("Add", "Sub", "Mul", "Div", "Max", "Min")):
        shape = SHAPE[:rank]
        others = {
            "alike": shape,
            "scalar": (),
            "row": shape[-1:],
            "column": (*shape[:-1], 1),
            "first": shape[:1],
        }
        others["first"] += (1,) * (rank - 1)
        for kind, other in others.items():
            if rank or kind == "alike":
                body = f"Y = {name}(X, P)"
                found[f"{name} of rank {rank} {kind}"] = Case(body, {"X": shape, "P": other})
        for left, right in [("N", "K"), ("K", "N")] if rank > 1 else []:
            # one row at run time, by two names
            inputs = {"X": (left, *shape[1:]), "P": (right, *shape[1:])}
            found[f"{name} of rank {rank} {left} {right}"] = Case(f"Y = {name}(X, P)", inputs)
    for rank in RANKS:
        shape = SHAPE[:rank]
        chosen = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 3 == 0
        body = "Y = Where(c, X, W)"
        found[f"Where of rank {rank}"] = Case(body, {"X": shape, "W": shape}, {"c": chosen})
    return found


def products():
    """Return products of vectors, matrices and stacks of these."""
    shapes = [((3,), (3,)), ((3,), (3, 2)), ((3,), (4, 3, 2)), ((2, 3), (3,)), ((4, 2, 3), (3,))]
    for rank in range(2, len(SHAPE) + 1):
        stack = SHAPE[: rank - 2]
        left, right = (*stack, 3, 4), (*stack, 4, 2)
        shapes += [(left, right), (left, (4, 2)), ((3, 4), right), ((*(1,) * len(stack), 3, 4), right)]
    found = {
        f"MatMul {left} {right}": Case("Y = MatMul(X, W)", {"X": left, "W": right}) for left, right in shapes
    }
    for left, right in [("N", "K"), ("K", "N")]:
        inputs = {"X": (left, 3, 4), "W": (right, 4, 2)}
        found[f"MatMul one matrix {left} {right}"] = Case("Y = MatMul(X, W)", inputs)
    return found


def along_axes():
    """Return operators that have an axis, along the first, one in the middle and the last."""
    found = {}
    for rank in RANKS[1:]:
        shape = SHAPE[:rank]
        for axis in {0, rank // 2, -1}:
            size = shape[axis]
            end = {"a": ints(axis), "s": ints(1), "e": ints(1000), "t": ints(2), "p": ints(1, size - 1)}
            for name, body in {
                "Concat": f"Y = Concat<axis={axis}>(X, W, X)",
                "Flatten": f"Y = Flatten<axis={axis}>(X)",
                "Gather": f"Y = Gather<axis={axis}>(X, s)",
                "LogSoftmax": f"Y = LogSoftmax<axis={axis}>(X)",
                "Slice": "Y = Slice(X, s, e, a)",
                "Slice steps": "Y = Slice(X, zero, e, a, t)",
                "Softmax": f"Y = Softmax<axis={axis}>(X)",
                "Split": f"Y, Z = Split<axis={axis}>(X, p)",
                "Split last part": f"Z, Y = Split<axis={axis}>(X, p)",
                "TopK": f"Y, i = TopK<axis={axis}>(X, s)",
                "TopK smallest": f"Y, i = TopK<axis={axis}, largest=0>(X, s)",
            }.items():
                used = {**end, "zero": ints(0)}
                used = {key: used[key] for key in used if f", {key}" in body}
                inputs = {"X": shape, "W": shape} if name == "Concat" else {"X": shape}
                found[f"{name} of rank {rank} {axis}"] = Case(body, inputs, used)
            for name, keep in itertools.product(REDUCTIONS, (0, 1)):
                body = f"Y = {name}<keepdims={keep}>(X, a)"
                found[f"{name} of rank {rank} {axis} {keep}"] = Case(body, {"X": shape}, {"a": ints(axis)})
            scale = shape[axis % rank :]
            found[f"LayerNormalization of rank {rank} {axis}"] = Case(
                f"Y = LayerNormalization<axis={axis}>(X, W, b)", {"X": shape, "W": scale, "b": scale}
            )
        for name, keep in itertools.product(REDUCTIONS, (0, 1)):
            found[f"{name} of rank {rank} all {keep}"] = Case(f"Y = {name}<keepdims={keep}>(X)", {"X": shape})
    return found


def indexing():
    """Return operators that take numbers of elements, rows or classes."""
    found = {}
    for rank in RANKS[1:]:
        shape = SHAPE[:rank]
        for axis, numbers in itertools.product(
            {0, rank // 2, -1},
            (np.array(1), np.array([0, 1, -1]), np.array([[0, 1], [1, 0]]), np.zeros((1, 2, 1))),
        ):
            name = f"Gather of rank {rank} {axis} {numbers.ndim}"
            body = f"Y = Gather<axis={axis}>(X, i)"
            found[name] = Case(body, {"X": shape}, {"i": numbers.astype(np.int64)})
        for axis in {0, rank // 2, -1}:
            few = list(shape)
            few[axis] = 1
            numbers = {"i": np.ones(few, np.int64)}
            body = f"Y = GatherElements<axis={axis}>(X, i)"
            found[f"GatherElements of rank {rank} {axis}"] = Case(body, {"X": shape}, numbers)
            body = f"Y = ScatterElements<axis={axis}>(X, i, W)"
            found[f"ScatterElements of rank {rank} {axis}"] = Case(body, {"X": shape, "W": few}, numbers)
        for depth in range(1, rank + 1):
            numbers = {"i": np.array([[0] * depth, [1] * depth])}
            found[f"GatherND of rank {rank} {depth}"] = Case("Y = GatherND(X, i)", {"X": shape}, numbers)
            inputs = {"X": shape, "W": (2, *shape[depth:])}
            found[f"ScatterND of rank {rank} {depth}"] = Case("Y = ScatterND(X, i, W)", inputs, numbers)
        if rank > 1:
            body = "Y = GatherND<batch_dims=1>(X, i)"
            found[f"GatherND of rank {rank} by batch"] = Case(body, {"X": shape}, {"i": np.array([[1], [0]])})
    for rank, more in itertools.product(
        (2, 3, 4), ("", '<reduction="sum">', '<reduction="none">', "<ignore_index=1>")
    ):
        shape = (3, 4, 2, 3)[:rank]
        labels = {"l": np.arange(np.prod(shape) // 4).reshape(shape[:1] + shape[2:]) % 4}
        body = f"Y = SoftmaxCrossEntropyLoss{more}(X, l)"
        found[f"SoftmaxCrossEntropyLoss of rank {rank} {more}"] = Case(body, {"X": shape}, labels)
        body = f"A, B = SoftmaxCrossEntropyLoss{more}(X, l)\n C = ReduceSum<keepdims=0>(B)\n Y = Add(A, C)"
        found[f"SoftmaxCrossEntropyLoss log_prob of rank {rank} {more}"] = Case(body, {"X": shape}, labels)
    return found


def shaping():
    """Return operators that move elements, or repeat them, by constant sizes and by computed ones."""
    found = {}
    for rank in RANKS:
        shape, size = SHAPE[:rank], int(np.prod(SHAPE[:rank]))
        axes = sorted({0, rank // 2, rank})
        for axis in axes:
            wide = (*shape[:axis], 1, *shape[axis:])
            found |= {
                f"Squeeze of rank {rank} {axis}": Case("Y = Squeeze(X, a)", {"X": wide}, {"a": ints(axis)}),
                f"Unsqueeze of rank {rank} {axis}": Case(
                    "Y = Unsqueeze(X, a)", {"X": shape}, {"a": ints(axis)}
                ),
                f"Reshape of rank {rank} {axis}": Case("Y = Reshape(X, s)", {"X": shape}, {"s": ints(*wide)}),
                f"Expand of rank {rank} {axis}": Case(
                    "Y = Expand(X, s)", {"X": wide}, {"s": ints(*shape[:axis], 2, *shape[axis:])}
                ),
            }
        found |= {
            f"Squeeze of rank {rank} all": Case("Y = Squeeze(X)", {"X": (1, *shape)}),
            f"Reshape of rank {rank} flat": Case("Y = Reshape(X, s)", {"X": shape}, {"s": ints(-1)}),
            f"Expand of rank {rank} more": Case("Y = Expand(X, s)", {"X": shape}, {"s": ints(2, *shape)}),
            f"Reshape of rank {rank} computed": Case(
                "z = Shape(W)\n Z = Reshape(X, z)\n Y = Mul(Z, W)", {"X": shape, "W": (size, 1)}
            ),
            f"Expand of rank {rank} computed": Case(
                "z = Shape(W)\n Z = Expand(X, z)\n Y = Mul(Z, W)", {"X": shape, "W": (2, *shape)}
            ),
        }
        if rank == 0:
            continue
        row = ("K", *shape[1:])
        pads, repeats = ints(*range(rank), *reversed(range(rank))), ints(*[2, 1] * 3)[:rank]
        found |= {
            f"Reshape of rank {rank} rows": Case(
                "Y = Reshape(X, s)", {"X": ("N", *SHAPE[1:rank])}, {"s": ints(0, -1)}
            ),
            f"Pad of rank {rank}": Case("Y = Pad(X, p)", {"X": shape}, {"p": pads}),
            f"Tile of rank {rank}": Case("Y = Tile(X, r)", {"X": shape}, {"r": repeats}),
            f"Transpose of rank {rank}": Case("Y = Transpose(X)", {"X": shape}),
            f"Slice of rank {rank} computed": Case(
                "z = Shape<end=1>(W)\n Z = Slice(X, n, z, n)\n Y = Add(Z, W)",
                {"X": shape, "W": (1, *shape[1:])}, {"n": ints(0)},
            ),
            f"Expand of rank {rank} one row": Case("Y = Expand(X, s)", {"X": row}, {"s": ints(*shape)}),
            f"Expand of rank {rank} one row longer": Case(
                "Y = Expand(X, s)", {"X": (*row, 1)}, {"s": ints(*shape, 2)}
            ),
            f"Expand of rank {rank} one row computed": Case(
                "z = Shape(W)\n Z = Expand(X, z)\n Y = Mul(Z, W)", {"X": row, "W": shape}
            ),
        }  # fmt: skip
        if rank > 1:
            found[f"Slice of rank {rank} computed second"] = Case(
                "z = Shape<start=1, end=2>(W)\n Z = Slice(X, n, z, o)\n Y = Add(Z, W)",
                {"X": shape, "W": (shape[0], 2, *shape[2:])},
                {"n": ints(0), "o": ints(1)},
            )
            for offset in (-1, 0, 1):
                name = f"Trilu of rank {rank} {offset}"
                found[name] = Case("Y = Trilu(X, k)", {"X": shape}, {"k": np.array(offset)})
            for first, second in itertools.combinations(range(rank), 2):
                perm = list(range(rank))
                perm[first], perm[second] = second, first
                name = f"Transpose of rank {rank} {first} {second}"
                found[name] = Case(f"Y = Transpose<perm={perm}>(X)", {"X": shape})
    return found


def others():
    """Return graphs whose gradients failed in networks."""
    positions = "n = Shape<start=1, end=2>(X)\n Z = Slice(W, zero, n, one)\n Y = Add(X, Z)"
    tokens = "A = Gather<axis=1>(X, i)\n B = Gather<axis=1>(X, j)\n Y = Mul(A, B)"
    return {
        "Add of positions": Case(
            positions, {"X": ("N", "L", 4), "W": (1, 8, 4)}, {"zero": ints(0), "one": ints(1)}
        ),
        "Gather of two tokens": Case(tokens, {"X": (2, 3, 4)}, {"i": np.array(0), "j": np.array(1)}),
        "Gather of one token twice": Case(tokens, {"X": (2, 3, 4)}, {"i": np.array(0), "j": np.array(0)}),
        "Gather of queries and keys": Case(
            "A = Gather<axis=0>(X, i)\n B = Gather<axis=0>(X, j)\n C = Gather<axis=0>(X, k)\n"
            "D = Mul(A, B)\n Y = Mul(D, C)",
            {"X": (3, 2, 4, 2)},
            {"i": np.array(0), "j": np.array(1), "k": np.array(2)},
        ),
        "MaxPool of VGG": Case(
            "C = Mul(X, W)\n R = Relu(C)\n"
            "Q = MaxPool<kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1>(R)\n"
            "Y = MaxPool<kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1>(Q)",
            {"X": ("N", 2, 7, 6), "W": (2, 1, 1)},
        ),
        "Gemm of rank 2": Case("Y = Gemm(X, W, b)", {"X": ("N", 4), "W": (4, 3), "b": ("K", 3)}),
    }
