"""Central differences in float64: the independent source that every gradient rule is compared with."""

import itertools
import math
import zlib
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxsgd.checking.reference_cells import CELLS
from onnxsgd.checking.reference_scan import Scan
from onnxsgd.gradient.portable import differentiate

STEP = 1e-3


# Operators that onnx's evaluator lacks, computes in single precision, or gets wrong (groups, broadcast means,
# a normalization over the batch instead of the channels, places of maxima, short indices), written from the
# standard.


def _pads(sizes, extent, strides, auto_pad, pads):
    if auto_pad in ("NOTSET", None, b"NOTSET"):
        pads = pads or [0] * (2 * len(sizes))
        return list(zip(pads[: len(sizes)], pads[len(sizes) :], strict=True))
    if auto_pad == "VALID":
        return [(0, 0)] * len(sizes)
    totals = [max((-(-n // s) - 1) * s + e - n, 0) for n, s, e in zip(sizes, strides, extent, strict=True)]
    low = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in totals]
    return [(a, t - a) for a, t in zip(low, totals, strict=True)]


def _windows(x, kernel, strides, dilations, pads, fill=0.0):
    """Return (batch, channels, output sizes, kernel sizes)."""
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    x = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=fill)
    axes = tuple(range(2, x.ndim))
    views = np.lib.stride_tricks.sliding_window_view(x, extent, axes)
    steps = [slice(None, None, step) for step in (1, 1, *strides, *dilations)]
    return views[tuple(steps)]


def _steps(given, rank):
    return given.get("strides") or [1] * rank, given.get("dilations") or [1] * rank


class Conv(OpRun):
    op_domain = ""

    def _run(self, x, w, b=None, group=1, auto_pad=None, pads=None, **given):
        rank = x.ndim - 2
        strides, dilations = _steps(given, rank)
        extent = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
        around = _pads(x.shape[2:], extent, strides, auto_pad, pads)
        views = _windows(x, w.shape[2:], strides, dilations, around)
        inner = list(range(2 + rank, 2 + 2 * rank))
        parts = [
            np.tensordot(v, u, ([1, *inner], [1, *range(2, 2 + rank)]))
            for v, u in zip(np.split(views, group, 1), np.split(w, group, 0), strict=True)
        ]
        y = np.moveaxis(np.concatenate(parts, -1), -1, 1)
        return (y if b is None else y + b.reshape(-1, *[1] * rank),)


class ConvTranspose(OpRun):
    op_domain = ""

    def _run(self, x, w, b=None, group=1, auto_pad=None, output_padding=None, pads=None, **given):
        rank = x.ndim - 2
        strides, dilations = _steps(given, rank)
        pads, over = pads or [0] * 2 * rank, output_padding or [0] * rank
        full = [
            s * (n - 1) + o + (k - 1) * d + 1
            for n, s, o, k, d in zip(x.shape[2:], strides, over, w.shape[2:], dilations, strict=True)
        ]
        shape = given.get("output_shape")
        if shape is None and (auto_pad or "").startswith("SAME"):
            shape = [min(n * s, size) for n, s, size in zip(x.shape[2:], strides, full, strict=True)]
        if shape is None:
            low = pads[:rank]
            shape = [size - a - b for size, a, b in zip(full, low, pads[rank:], strict=True)]
        else:
            spare = [max(size - out, 0) for size, out in zip(full, shape, strict=True)]
            low = [total // 2 if auto_pad == "SAME_UPPER" else -(-total // 2) for total in spare]
            full = [max(size, a + out) for size, a, out in zip(full, low, shape, strict=True)]
        y = np.zeros((x.shape[0], w.shape[1] * group, *full), dtype=x.dtype)
        for place in np.ndindex(*w.shape[2:]):
            where = tuple(
                slice(p * d, p * d + s * (n - 1) + 1, s)
                for p, d, s, n in zip(place, dilations, strides, x.shape[2:], strict=True)
            )
            parts = zip(np.split(x, group, 1), np.split(w[(..., *place)], group, 0), strict=True)
            y[(..., *where)] += np.concatenate([np.einsum("nc...,cm->nm...", u, v) for u, v in parts], 1)
        cut = [slice(a, a + out) for a, out in zip(low, shape, strict=True)]
        y = y[(..., *cut)]
        return (y if b is None else y + b.reshape(-1, *[1] * rank),)


class MaxPool(OpRun):
    op_domain = ""

    def _run(self, x, kernel_shape=None, ceil_mode=0, auto_pad=None, pads=None, **given):
        rank = x.ndim - 2
        strides, dilations = _steps(given, rank)
        extent = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilations, strict=True)]
        around = _pads(x.shape[2:], extent, strides, auto_pad, pads)
        if ceil_mode:
            around = [
                (a, b + (-(n + a + b - e)) % s)
                for (a, b), n, e, s in zip(around, x.shape[2:], extent, strides, strict=True)
            ]
        values = _windows(x, kernel_shape, strides, dilations, around, -np.inf)
        where = np.arange(x.size).reshape(x.shape)
        if given.get("storage_order"):
            where = where.reshape(*x.shape[:2], *x.shape[:1:-1]).transpose(0, 1, *range(2, x.ndim)[::-1])
        places = _windows(where, kernel_shape, strides, dilations, around)
        shape = values.shape[: 2 + rank]
        values, places = values.reshape(*shape, -1), places.reshape(*shape, -1)
        best = values.argmax(-1)[..., None]
        found = [np.take_along_axis(t, best, -1)[..., 0] for t in (values, places)]
        return tuple(found[: len(self.onnx_node.output)])


class GatherElements(OpRun):
    op_domain = ""

    def _run(self, x, indices, axis=0):
        places = list(np.indices(indices.shape))
        places[axis] = indices
        return (x[tuple(places)],)


def _keys(d, a=-0.75):
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


_READS = {
    "nearest": ([0], lambda d: 1.0),
    "linear": ([0, 1], lambda d: 1 - d),
    "cubic": ([-1, 0, 1, 2], _keys),
}


class GridSample(OpRun):
    """In double precision, where the evaluator of onnx has single; a border is repeated, as in torch."""

    op_domain = ""

    def _run(self, x, grid, align_corners=0, mode="linear", padding_mode="zeros"):
        kind = mode.removeprefix("bi")
        y = np.zeros((*x.shape[:2], *grid.shape[1:-1]), dtype=x.dtype)
        for n, *where in np.ndindex(*grid.shape[:-1]):
            pairs = zip(grid[(n, *where)][::-1], x.shape[2:], strict=True)
            taps = [self.taps(c, size, kind, padding_mode, align_corners) for c, size in pairs]
            for chosen in itertools.product(*taps):
                weight = math.prod(w for _, w in chosen)
                y[(n, slice(None), *where)] += weight * x[(n, slice(None), *(i for i, _ in chosen))]
        return (y,)

    def taps(self, coordinate, size, kind, padding, aligned):
        """Return the pixels that a coordinate reads along one axis, with their weights."""
        low, high = (0, size - 1) if aligned else (-0.5, size - 0.5)

        def folded(p):
            if padding == "border":
                return min(max(p, 0), size - 1)
            while padding == "reflection" and low < high and not low <= p <= high:
                p = 2 * (low if p < low else high) - p
            return min(max(p, 0), size - 1) if low == high else p

        place = low + (coordinate + 1) / 2 * (high - low)
        place = np.rint(place) if kind == "nearest" else place
        reach, kernel = _READS[kind]
        pixels = [int(np.floor(place)) + t for t in reach]
        found = [(p if padding == "zeros" else int(folded(p)), kernel(abs(place - p))) for p in pixels]
        return [(p, weight) for p, weight in found if 0 <= p < size]


class LRN(OpRun):
    op_domain = ""

    def _run(self, x, alpha=None, beta=None, bias=None, size=None):
        padded = np.pad(x * x, [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * (x.ndim - 2)])
        total = sum(padded[:, k : k + x.shape[1]] for k in range(size))
        return (x / (bias + alpha / size * total) ** beta,)


class Erf(OpRun):
    op_domain = ""

    def _run(self, x):
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


class GlobalLpPool(OpRun):
    op_domain = ""

    def _run(self, x, p=2):
        return ((np.abs(x) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p),)


class LpNormalization(OpRun):
    op_domain = ""

    def _run(self, x, axis=-1, p=2):
        return (x / (np.abs(x) ** p).sum(axis=axis, keepdims=True) ** (1 / p),)


class Mean(OpRun):
    op_domain = ""

    def _run(self, *operands):
        return (np.asarray(sum(operands) / len(operands)),)


class MeanVarianceNormalization(OpRun):
    op_domain = ""

    def _run(self, x, axes=(0, 2, 3)):
        axes = tuple(axes or (0, 2, 3))
        return ((x - x.mean(axes, keepdims=True)) / (x.std(axes, keepdims=True) + 1e-9),)


class Pad(OpRun):
    op_domain = ""

    def _run(self, x, pads, value=None, axes=None, mode="constant"):
        axes = range(x.ndim) if axes is None else axes
        widths, cut = [(0, 0)] * x.ndim, [slice(None)] * x.ndim
        for axis, low, high in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
            cut[axis] = slice(max(-low, 0), x.shape[axis] - max(-high, 0))
            widths[axis] = (max(low, 0), max(high, 0))
        fill = {"constant_values": 0.0 if value is None else value} if mode == "constant" else {}
        return (np.pad(x[tuple(cut)], widths, mode=mode, **fill),)


KERNELS = [
    Conv,
    ConvTranspose,
    MaxPool,
    GatherElements,
    GridSample,
    LRN,
    Erf,
    GlobalLpPool,
    LpNormalization,
    Mean,
    MeanVarianceNormalization,
    Pad,
    Scan,
    *CELLS,
]


NEWEST = onnx.defs.onnx_opset_version()
FORMS = (("known", 13), ("hidden", 18), ("known", 21), ("hidden", NEWEST))


def pytest_generate_tests(metafunc):
    """Run each of a module's CASES with known and hidden sizes, over the opsets.

    The option `since` names the first opset that has the case, `opset` the only one to try.
    """
    if "case" not in metafunc.fixturenames:
        return
    found = []
    for text, operands, given in metafunc.module.CASES:
        options = dict(given)
        since, only = options.pop("since", 13), options.pop("opset", None)
        forms = FORMS if only is None else [("known", only), ("hidden", only)]
        for dims, opset in forms:
            if opset >= since:
                found.append(
                    pytest.param((text, operands, dims, {**options, "opset": opset}), id=f"{text}-{opset}")
                )
    metafunc.parametrize("case", found)


@dataclass(frozen=True)
class Case:
    """A few nodes in ONNX text that compute ``Y``, and their operands.

    A shape denotes random numbers, an array of reals itself: both are differentiated. Integers, booleans
    and `constants` are initializers that stay. `known` names the operands, and
    `known_axes` the axes, whose sizes stay known where other sizes are hidden. A smaller `step` keeps the
    differences on one side of kinks.
    """

    text: str
    operands: dict
    constants: dict = field(default_factory=dict)
    opset: int = 18
    outputs: tuple = ("Y",)
    known: tuple = ()
    known_axes: tuple = ()
    single: bool = False
    rtol: float = 1e-7
    step: float = STEP

    def arrays(self):
        rng = np.random.default_rng(zlib.crc32(self.text.encode()))
        return {k: v if isinstance(v, np.ndarray) else rng.normal(size=v) for k, v in self.operands.items()}

    def sizes(self, name, shape, dims):
        hidden = dims == "hidden" and name not in self.known
        return [None if hidden and axis not in self.known_axes else n for axis, n in enumerate(shape)]


def evaluate(model, feeds, outputs=None):
    """Evaluate a model in the precision of its feeds."""
    return ReferenceEvaluator(model, new_ops=KERNELS).run(outputs, feeds)


def build(case, dims="known"):
    """Return the model of a case, with known or with hidden sizes, and its real operands."""
    element = TensorProto.FLOAT if case.single else TensorProto.DOUBLE
    nodes = onnx.parser.parse_graph("g () => () {" + case.text + "}").node
    arrays = case.arrays()
    real = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    held = {**{name: array for name, array in arrays.items() if array.dtype.kind != "f"}, **case.constants}
    inputs = [
        helper.make_tensor_value_info(name, element, case.sizes(name, a.shape, dims))
        for name, a in real.items()
    ]
    outputs = [helper.make_tensor_value_info(name, element, None) for name in case.outputs]
    initializers = [
        numpy_helper.from_array(a.astype(np.float32) if case.single and a.dtype.kind == "f" else a, name)
        for name, a in held.items()
    ]
    graph = helper.make_graph(nodes, "case", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", case.opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets))
    for output, result in zip(model.graph.output, evaluate(model, real), strict=True):
        output.CopyFrom(helper.make_tensor_value_info(output.name, element, [None] * np.ndim(result)))
    onnx.checker.check_model(model)
    return model, real


def numeric(function, feeds, name, direction, step=STEP):
    """Return the derivative of a function of `feeds` along a direction, by a difference of order h^4."""

    def value(steps):
        return function({**feeds, name: feeds[name] + steps * step * direction})

    return (8 * (value(1) - value(-1)) - (value(2) - value(-2))) / (12 * step)


def compare(model, feeds, outputs, wrt, dtype=np.float64, rtol=1e-7, step=STEP):
    """Compare the gradients of `outputs` with differences along random directions; return their graph."""
    rng = np.random.default_rng(0)
    gradient = ir.to_proto(differentiate(ir.from_proto(model), outputs, wrt))
    onnx.checker.check_model(gradient, full_check=True)
    assert {node.domain for node in gradient.graph.node} <= {""}
    results = evaluate(model, feeds, outputs)
    seeds = [rng.normal(size=np.shape(y)) for y in results]
    added = [value.name for value in gradient.graph.input][-len(seeds) :]
    given = {
        name: np.asarray(a, dtype=dtype)
        for name, a in {**feeds, **dict(zip(added, seeds, strict=True))}.items()
    }
    found = evaluate(gradient, given)[len(outputs) :]
    for name, dx in zip(wrt, found, strict=True):
        assert dx.shape == feeds[name].shape
        assert dx.dtype == dtype
        for _ in range(2):
            direction = rng.normal(size=dx.shape)
            expected = numeric(
                lambda f: weighted(evaluate(model, f, outputs), seeds), feeds, name, direction, step
            )
            np.testing.assert_allclose((dx * direction).sum(), expected, rtol=rtol, atol=rtol / 10)
    return gradient


def weighted(results, seeds):
    return sum((seed * y).sum() for seed, y in zip(seeds, results, strict=True))


def _check(text, operands, dims="known", options=None, **given):
    case = Case(text, operands, **(options or {}), **given)
    model, feeds = build(case, dims)
    dtype = np.float32 if case.single else np.float64
    return compare(model, feeds, case.outputs, list(feeds), dtype, case.rtol, case.step)


def _check_twice(text, operands, rtol=1e-6, **options):
    case = Case(text, operands, **options)
    model, feeds = build(case)
    first = ir.to_proto(differentiate(ir.from_proto(model), case.outputs, list(feeds)))
    rng = np.random.default_rng(1)
    results = evaluate(model, feeds)
    seeds = {
        f"{name}_grad": rng.normal(size=np.shape(y)) for name, y in zip(case.outputs, results, strict=True)
    }
    return compare(
        first, {**feeds, **seeds}, [f"{name}_grad" for name in feeds], list({**feeds, **seeds}), rtol=rtol
    )


def _gradients(text, opset=18, **arrays):
    """Return the gradients of the sum of Y with respect to the real arrays."""
    model, real = build(Case(text, arrays, opset=opset))
    gradient = ir.to_proto(differentiate(ir.from_proto(model), ["Y"], list(real)))
    return evaluate(gradient, {**real, "Y_grad": np.ones_like(evaluate(model, real)[0])})[1:]


def _check_runtime(text, operands, dims="known", rtol=1e-4, **options):
    """Compare the gradients that onnxruntime computes in float32 with those of the evaluator in float64."""
    runtime = pytest.importorskip("onnxruntime")
    found = []
    for single in (True, False):
        model, real = build(Case(text, operands, single=single, **options), dims)
        gradient = ir.to_proto(differentiate(ir.from_proto(model), ["Y"], list(real)))
        rng = np.random.default_rng(0)
        feeds = {**real, "Y_grad": rng.normal(size=np.shape(evaluate(model, real)[0]))}
        if single:
            threads = runtime.SessionOptions()
            threads.intra_op_num_threads = 1
            session = runtime.InferenceSession(
                gradient.SerializeToString(), threads, ["CPUExecutionProvider"]
            )
            found.append(session.run(None, {k: np.asarray(v, dtype=np.float32) for k, v in feeds.items()}))
        else:
            found.append(evaluate(gradient, feeds))
    for ours, exact in zip(*found, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=rtol, atol=rtol * max(np.abs(exact).max(), 1))


@pytest.fixture(name="compare")
def compare_fixture():
    """Return the function that compares the gradients of a model with central differences."""
    return compare


@pytest.fixture(name="evaluate")
def evaluate_fixture():
    """Return the function that evaluates a model in the precision of its feeds."""
    return evaluate


@pytest.fixture
def check():
    """Return the function that compares the gradients of a few nodes with central differences."""
    return _check


@pytest.fixture
def check_twice():
    """Return the function that compares the gradients of the gradients with central differences."""
    return _check_twice


@pytest.fixture
def gradients():
    """Return the function that computes the gradients of the sum of Y, from a few nodes."""
    return _gradients


@pytest.fixture
def check_runtime():
    """Return the function that compares onnxruntime's gradients in float32 with the evaluator's."""
    return _check_runtime
