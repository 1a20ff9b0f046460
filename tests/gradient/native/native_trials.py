"""One trial of the sweep: a case, a type, sizes and a place, with its expected gradients.

These are those of the portable engine, and central differences of the reference evaluator of ONNX in float64,
along random directions.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import test_builder
from native_cases import swept_cases
from onnx.reference import ReferenceEvaluator

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.joint_graph import forward_backward_model

__all__ = ["attempt", "first_line", "variants"]

CASES = swept_cases()

#: Largest difference, relative to the largest element of the gradient, by type; wrong ones differ by more
#: than a tenth.
TOLERANCES = {"float16": 2e-2, "float32": 1e-3, "float64": 1e-3}

#: The same between portable gradients in float32 and central differences in float64.
TOLERANCE_OF_DIFFERENCES = 1e-4

#: Sizes of inputs, and sources of the gradient: all inputs, numbers that they are multiplied by, or one.
SIZES, PLACES = ("fixed", "batch", "open"), ("outputs", "behind", "first", "last")

#: The operators whose other inputs are weights, which have sizes.
WEIGHTED = ("Conv", "Gemm", "LayerNormalization")

#: The operators whose second axis are channels, of known size like the weights.
WINDOWED = ("AveragePool", "Conv", "GlobalAveragePool", "MaxPool")

#: Indices, labels and conditions, which are fed unless all inputs are differentiated.
DATA = ("c", "i", "l")


def variants():
    """Yield the parts of each trial: case, type, sizes, place."""
    for name, case in CASES.items():
        places = PLACES if len(case.inputs) > 1 else PLACES[:2]
        yield from itertools.product([name], TOLERANCES, SIZES, places)


def build(name, dtype, sizes, place):
    """Return model, feeds and the names to differentiate with respect to."""
    case = CASES[name]
    model, feeds = test_builder.build(case, case.opsets[-1], np.dtype(dtype).type)
    names = list(case.inputs)
    if place != "outputs":
        feed_data(model, feeds)
    name_sizes(model, feeds, name.split()[0], sizes)
    if place == "behind":
        names = scale(model, feeds, names, dtype)
    return model, feeds, {"first": names[:1], "last": names[-1:]}.get(place, names)


def feed_data(model, feeds):
    """Turn indices, labels and conditions from constants to inputs."""
    for constant in [tensor for tensor in model.graph.initializer if tensor.name in DATA]:
        feeds[constant.name] = onnx.numpy_helper.to_array(constant)
        declared = onnx.helper.make_tensor_value_info(constant.name, constant.data_type, constant.dims)
        model.graph.input.append(declared)
        model.graph.initializer.remove(constant)


def name_sizes(model, feeds, operator, sizes):
    """Give sizes of inputs their numbers, or names: equal ones have the same."""
    first = feeds[model.graph.input[0].name]
    for index, value in enumerate(model.graph.input):
        array = feeds[value.name]
        alike = array.ndim == first.ndim and operator not in WEIGHTED
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            channels = axis == 1 and operator in WINDOWED
            if sizes == "fixed":
                dim.dim_value = array.shape[axis]
            elif dim.dim_param or array.shape[axis] == 1 or channels or not (index == 0 or alike):
                continue
            elif axis == 0 and array.shape[0] == first.shape[0]:
                dim.dim_param = "batch"
            elif sizes == "open":
                dim.dim_param = f"size{array.shape[axis]}"


def scale(model, feeds, names, dtype):
    """Multiply inputs by numbers, and return the names of these."""
    nodes = [onnx.helper.make_node("Mul", [n, f"scale_{n}"], [f"scaled_{n}"]) for n in names]
    for node in model.graph.node:
        for index, read in enumerate(node.input):
            # a Shape reads the input itself, whose shape is known
            if read in names and node.op_type != "Shape":
                node.input[index] = f"scaled_{read}"
    body = [*nodes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(body)
    element = model.graph.input[0].type.tensor_type.elem_type
    for name in names:
        model.graph.input.append(onnx.helper.make_tensor_value_info(f"scale_{name}", element, []))
        feeds[f"scale_{name}"] = np.asarray(1.0, dtype)
    return [f"scale_{name}" for name in names]


def load(name, path):
    """Return the module of a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FOLDER = Path(__file__).parents[1]

#: Kernels in float64 where the reference evaluator has none, or a wrong one.
KERNELS = [
    *load("portable_conftest", FOLDER / "portable" / "conftest.py").KERNELS,
    load("gradient_conftest", FOLDER / "conftest.py").Gelu,
]


def reference(name, place):
    """Return, in float64: the output, the seed of its gradient, and derivatives along random directions.

    These are, for each source of the gradient, pairs of a direction and the central difference along it.
    """
    return computed_reference(name, "behind" if place == "behind" else "outputs")


@cache
def computed_reference(name, place):
    """Return the result of :func:`reference`, for all inputs at once."""
    model, feeds, names = build(name, "float64", "fixed", place)
    evaluator = ReferenceEvaluator(model, new_ops=KERNELS)
    rng = np.random.default_rng(1)
    output = evaluator.run(None, feeds)[0]
    seed = rng.normal(size=output.shape)
    # a Cast to float32 rounds
    step = 1e-3 if "to=1" in CASES[name].body else 1e-6
    slopes = {}
    for wrt in names:
        directions = [rng.normal(size=feeds[wrt].shape) for _ in range(3 if feeds[wrt].ndim else 1)]
        ends = [
            [evaluator.run(None, {**feeds, wrt: feeds[wrt] + sign * step * d})[0] for sign in (1, -1)]
            for d in directions
        ]
        slopes[wrt] = [
            (d, float(((high - low) * seed).sum()) / (2 * step))
            for d, (high, low) in zip(directions, ends, strict=True)
        ]
    return output, seed, slopes


@cache
def portable(name, sizes, place):
    """Return the outputs of the portable engine's graph in float32, after a comparison with differences."""
    model, feeds, names = build(name, "float32", sizes, place)
    _, seed, _ = reference(name, place)
    found = run(forward_backward_model(ir.from_proto(model), (), names, "portable"), feeds, seed.astype("f"))
    if wrong := compare_reference(found, names, name, place, TOLERANCE_OF_DIFFERENCES):
        raise AssertionError(wrong)
    return found


def expected_gradients(name, sizes, place):
    """Return those of the portable engine; of fixed sizes, where it refuses open ones."""
    try:
        return portable(name, sizes, place)
    except NotTrainableError:
        return portable(name, "fixed", place)


def compare_reference(found, names, case, place, tolerance):
    """Return the difference of an output or a gradient from the reference, as text; None if none differs."""
    output, seed, slopes = reference(case, place)
    error = difference(found["Y"], output, seed)
    if not error <= tolerance:
        return f"Y by {error:.2g}"
    if "to=1" in CASES[case].body:
        tolerance = max(tolerance, 1e-3)
    for name in names:
        gradient = found[f"{name}_grad"].astype(np.float64)
        for direction, slope in slopes[name]:
            error = abs((gradient * direction).sum() - slope)
            error /= size_of(gradient, seed) * np.linalg.norm(direction)
            if not error <= tolerance:
                return f"{name} by {error:.2g} of central differences"
    return None


def difference(found, exact, seed):
    """Return the largest difference of elements, relative to the largest element."""
    if found.shape != exact.shape:
        return np.inf
    return np.abs(found.astype(np.float64) - exact).max() / size_of(exact, seed)


def size_of(exact, seed):
    """Return the number that differences are relative to: a sum over all outputs may be small by chance."""
    return np.abs(exact).max() + (0.01 if exact.ndim else 0.1 * np.linalg.norm(seed))


def run(both, feeds, seed):
    """Return the outputs of a gradient graph by name."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    model = ir.to_proto(both).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    taken = {value.name: {**feeds, "Y_grad": seed}[value.name] for value in session.get_inputs()}
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, taken), strict=True))


def attempt(trial):
    """Return "right", or a description of the failure that starts with its kind."""
    name, dtype, sizes, place = trial
    try:
        expected = expected_gradients(name, sizes, place)
    except AssertionError as error:
        return f"portable wrong: {error}"
    except Exception as error:
        return f"portable failed: {first_line(error)}"
    _, seed, _ = reference(name, place)
    model, feeds, names = build(*trial)
    both = forward_backward_model(ir.from_proto(model), (), names, "onnxruntime-training")
    found = run(both, feeds, seed.astype(dtype))
    for wrt in (f"{wrt}_grad" for wrt in names):
        error = difference(found[wrt], expected[wrt].astype(np.float64), seed)
        if not error <= TOLERANCES[dtype]:
            return f"wrong: {wrt} by {error:.2g}"
    wrong = compare_reference(found, names, name, place, TOLERANCES[dtype])
    return f"wrong: {wrong}" if wrong else "right"


def first_line(error):
    """Return a line of a message."""
    return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
