"""Verdicts on the gradients of onnx's backend node tests.

Every node test goes through the public function, and each returned gradient is compared with
differences along a random direction, taken in float64 by onnx's reference evaluator. ``python
tests/backend/judge.py`` writes the verdicts to ``nodes.csv``, which the test compares exactly.
"""

from __future__ import annotations

import csv
import importlib.util
import re
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxsgd import onnx_derivative
from onnxsgd.exceptions import OnnxSGDError

__all__ = [
    "RIGHT",
    "WRONG",
    "NodeTest",
    "Verdict",
    "judge",
    "main",
    "node_tests",
    "operator_of",
    "read_table",
]

TABLE = Path(__file__).with_name("nodes.csv")

RIGHT, WRONG, REFUSED = "right", "wrong", "refused"
CONSTANT, NOT_REAL, UNJUDGED = "constant", "not real", "unjudged"

#: Element types that have gradients, and the relative tolerance of a model that holds such constants.
REAL = {TensorProto.DOUBLE: 1e-5, TensorProto.FLOAT: 1e-5, TensorProto.FLOAT16: 2e-3}

#: Operators that the evaluator computes in single precision: their definition is evaluated instead.
SINGLE = frozenset({"CausalConvWithState", "GroupNormalization", "LinearAttention"})

#: Operators that draw their outputs at random: two evaluations differ by more than a small step changes.
RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)

#: Steps of the differences: small ones stay on one side of a kink, large ones drown single precision.
STEPS = (1e-6, 1e-5, 1e-4, 1e-3)

#: Points that are tried, around that of the test, until differences settle.
TRIES = 5


@dataclass(frozen=True)
class Verdict:
    """One row of the table."""

    test: str
    operator: str
    status: str
    reason: str = ""


class Undecided(Exception):
    """No verdict is possible."""


@dataclass(frozen=True)
class NodeTest:
    """One of onnx's node tests, with the model evaluated for the differences."""

    name: str
    model: ModelProto
    data: tuple
    forward: ModelProto


def node_tests() -> list[NodeTest]:
    """Return onnx's backend node tests."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        tests = {test.name: test for test in load_model_tests(kind="node")}
    found = []
    for name, test in sorted(tests.items()):
        single = test.model.graph.node[0].op_type in SINGLE
        forward = tests[f"{name}_expanded"].model if single else test.model
        found.append(NodeTest(name, test.model, test.data_sets[0], forward))
    return found


def judge(test: NodeTest) -> Verdict:
    """Return the verdict on one node test."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        status, reason = _judge(test)
    return Verdict(test.name, operator_of(test), status, _plain_words(reason))


def _plain_words(reason: str) -> str:
    """Return the first sentence of a reason, without its place in the graph."""
    text = re.sub(r"operator (\S+) \(node.*?computing .*?\):?", r"\1", " ".join(reason.split()))
    return re.sub(r"'grad_\w+'", "inside", text).partition(". ")[0].rstrip(".")


def operator_of(test: NodeTest) -> str:
    """Return the operator that a test is about; that of an expanded one is in the names of its tensors."""
    node = test.model.graph.node[0]
    name, expanded, _ = node.output[0].partition(f"_{test.name}_")
    return name if expanded else node.op_type


def _judge(test: NodeTest) -> tuple[str, str]:
    inputs = [value.name for value in test.model.graph.input if _is_real(value)]
    outputs = [value.name for value in test.model.graph.output if _is_real(value)]
    if not inputs or not outputs:
        return NOT_REAL, f"no {'output' if inputs else 'input'} is a tensor of real numbers"
    try:
        gradient = onnx_derivative(test.model, engine="portable")
    except OnnxSGDError as error:
        if "nothing to differentiate for" not in str(error):
            return REFUSED, str(error)
        gradient = None
    except Exception as error:  # the public function must refuse it
        return WRONG, f"{type(error).__name__}: {error}"
    try:
        return _compare(test, inputs, outputs, gradient)
    except Undecided as error:
        return UNJUDGED, str(error)


def _compare(test, inputs: list[str], outputs: list[str], gradient: ModelProto | None) -> tuple[str, str]:
    """Compare each gradient at a point where differences settle."""
    if any(node.op_type in RANDOM for node in test.model.graph.node):
        raise Undecided("its outputs are drawn at random")
    given, expected = test.data
    names = [value.name for value in test.model.graph.input]
    point = {name: _double(array) for name, array in zip(names, given, strict=False)}
    forward = _evaluator(test.forward)
    _check_forward(forward, point, [value.name for value in test.model.graph.output], expected)
    plain = [_is_plain(y) for y in _run(forward, point, outputs)]
    found = [] if gradient is None else [value.name.removesuffix("_grad") for value in gradient.graph.output]
    backward = None if gradient is None else _evaluator(gradient)
    rng = np.random.default_rng(zlib.crc32(test.name.encode()))
    rtol = max(REAL[kind] for kind in map(_kind, test.model.graph.input) if kind in REAL)
    doubt = Undecided("differences do not settle")
    for attempt in range(TRIES):
        size = 0.0 if attempt == TRIES - 1 else 0.01
        here = {k: v + size * rng.uniform(-1, 1, v.shape) if k in found else v for k, v in point.items()}
        try:
            return _compare_at(here, forward, backward, inputs, outputs, plain, found, rng, rtol)
        except Undecided as error:
            doubt = error
    raise doubt


def _compare_at(here, forward, backward, inputs, outputs, plain, found, rng, rtol) -> tuple[str, str]:
    results = _run(forward, here, outputs)
    if not all(np.array_equal(_is_plain(y), mask) for y, mask in zip(results, plain, strict=True)):
        raise Undecided("a small step leaves the domain of the operator")
    seeds = {
        name: np.where(mask, rng.normal(size=mask.shape), 0.0)
        for name, mask in zip(outputs, plain, strict=True)
    }
    gradients = {}
    if backward is not None:
        feeds = {**here, **{f"{name}_grad": seed for name, seed in seeds.items()}}
        asked = {name: feeds[name] for name in backward.input_names}
        gradients = dict(zip(found, _run(backward, asked, None), strict=True))
    missing = []
    for name in inputs:
        if name not in gradients:
            missing += [] if _is_flat(forward, here, name, seeds, rng) else [name]
            continue
        dx, x = gradients[name], here[name]
        if dx.shape != x.shape:
            return WRONG, f"the gradient of {name} has shape {dx.shape}, not {x.shape}"
        direction = np.where(_is_plain(x), rng.normal(size=x.shape), 0.0)
        slope = float((dx * direction)[_is_plain(x)].sum())
        if not _agrees(forward, here, name, direction, seeds, slope, rtol):
            return WRONG, f"the gradient of {name}"
    if missing:
        return REFUSED, f"no gradient with respect to {', '.join(missing)}"
    return (RIGHT, "") if gradients else (CONSTANT, "the outputs do not change with the inputs")


def _is_plain(array: np.ndarray) -> np.ndarray:
    """Return the mask of elements that a small step changes; infinite ones are left alone."""
    return np.asarray(np.abs(np.nan_to_num(array, nan=np.inf)) < 1e6)


def _is_flat(forward, here, name, seeds, rng) -> bool:
    """Return whether the outputs are constant in an input in all tried neighbourhoods."""
    x = here[name]
    for _ in range(TRIES):
        moved = {**here, name: x + rng.uniform(-0.01, 0.01, x.shape)}
        direction = np.where(_is_plain(x), rng.normal(size=x.shape), 0.0)
        try:
            return _agrees(forward, moved, name, direction, seeds, 0.0, 1e-9)
        except Undecided:
            continue
    return False


def _agrees(forward, here, name, direction, seeds, slope, rtol) -> bool:
    """Return whether a slope is that of the differences; raise if these do not settle."""
    floor = 1e-3 * max(1.0, sum(float(np.abs(seed).sum()) for seed in seeds.values()))
    slopes = []
    for step in STEPS:
        low, high = (
            _weighted(forward, {**here, name: here[name] + sign * step * direction}, seeds)
            for sign in (-1, 1)
        )
        slopes.append((high - low) / (2 * step))
        if abs(slopes[-1] - slope) <= rtol * max(abs(slope), floor):
            return True
    if not np.ptp(slopes) <= 1e-2 * max(map(abs, slopes)):
        raise Undecided(f"differences with respect to {name} do not settle")
    return False


def _weighted(forward, feeds, seeds) -> float:
    results = _run(forward, feeds, list(seeds))
    if [np.shape(y) for y in results] != [seed.shape for seed in seeds.values()]:
        raise Undecided("the shape of the output follows the values of an input")
    pairs = zip(seeds.values(), results, strict=True)
    return sum(float((seed * y)[seed != 0].sum()) for seed, y in pairs)


def _check_forward(forward, point, names, expected) -> None:
    """Check that the judge computes the expected outputs of the test."""
    for name, y, target in zip(names, _run(forward, point, names), map(_double, expected), strict=False):
        if not isinstance(target, np.ndarray) or target.dtype.kind != "f":
            continue
        if np.shape(y) != np.shape(target):
            raise Undecided(f"the reference evaluator returns shape {np.shape(y)} for {name}")
        if not np.allclose(y, target, rtol=2e-3, atol=2e-3, equal_nan=True):
            raise Undecided(f"the reference evaluator returns other numbers for {name} than the test expects")


def _run(evaluator, feeds, outputs) -> list:
    try:
        return evaluator.run(outputs, feeds)
    except Exception as error:
        raise Undecided(f"the reference evaluator fails with {type(error).__name__}") from error


def _evaluator(model: ModelProto) -> ReferenceEvaluator:
    try:
        return ReferenceEvaluator(_in_double(model), new_ops=_kernels())
    except Exception as error:
        raise Undecided(f"the reference evaluator fails with {type(error).__name__}") from error


def _in_double(model: ModelProto) -> ModelProto:
    """Return a model whose constants and casts are float64; the reference evaluator checks no types."""
    copy = ModelProto()
    copy.CopyFrom(model)
    _widen(copy.graph)
    return copy


def _widen(graph: GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and not node.attribute:
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _widen(attribute.g)
            elif attribute.type == AttributeProto.TENSOR:
                _widen_tensor(attribute.t)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i in REAL:
                attribute.i = TensorProto.DOUBLE
            elif attribute.name in ("value_float", "value_floats"):
                numbers = np.array(helper.get_attribute_value(attribute), dtype=np.float64)
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(numbers)))


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in REAL:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)
        )


def _double(array):
    if isinstance(array, TensorProto):
        array = numpy_helper.to_array(array)
    real = isinstance(array, np.ndarray | np.generic) and array.dtype in (np.float16, np.float32)
    return np.asarray(array, dtype=np.float64) if real else array


def _kind(value) -> int:
    return value.type.tensor_type.elem_type


def _is_real(value) -> bool:
    return value.type.HasField("tensor_type") and _kind(value) in REAL


def _kernels() -> list:
    """Return operators that onnx's evaluator lacks or gets wrong: those of the portable rules' tests."""
    name = "portable_reference_kernels"
    if name not in sys.modules:
        path = Path(__file__).parent.parent / "gradient" / "portable" / "conftest.py"
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name].KERNELS


def read_table() -> tuple[str, dict[str, Verdict]]:
    """Return the version of onnx that the table is of, and its rows by the name of the test."""
    with TABLE.open(newline="") as file:
        version = file.readline().strip().removeprefix("# onnx ")
        return version, {row["test"]: Verdict(**row) for row in csv.DictReader(file)}


def _verdicts() -> Iterator[Verdict]:
    for test in node_tests():
        yield judge(test)


def main() -> None:
    """Write the table, and print how many tests have each status."""
    rows = list(_verdicts())
    with TABLE.open("w", newline="") as file:
        file.write(f"# onnx {onnx.__version__}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["test", "operator", "status", "reason"])
        writer.writerows([row.test, row.operator, row.status, row.reason] for row in rows)
    for status, count in Counter(row.status for row in rows).most_common():
        print(f"{status:10} {count}")


if __name__ == "__main__":
    main()
