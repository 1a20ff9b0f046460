"""Graphs drawn at random, tensors read many times or not at all: both engines against central differences."""

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.joint_graph import forward_backward_model

ROWS = 3


@dataclass
class Draft:
    """A graph under construction: nodes, constants, and the shape of each tensor, N its rows."""

    rng: np.random.Generator
    opset: int
    lines: list = field(default_factory=list)
    constants: dict = field(default_factory=dict)
    shapes: dict = field(default_factory=dict)

    def add(self, expression, *shapes):
        names = [f"t{len(self.lines)}_{index}" for index in range(len(shapes))]
        self.lines.append(f"{', '.join(names)} = {expression}")
        self.shapes.update(zip(names, shapes, strict=True))
        return names[0]

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def pick(self, accept=lambda shape: True):
        names = [name for name, shape in self.shapes.items() if accept(shape)]
        return names[self.rng.integers(len(names))]


def is_table(shape):
    return len(shape) == 2 and isinstance(shape[1], int)


def elementwise(draft):
    name = draft.pick()
    operator = draft.rng.choice(["Tanh", "Sigmoid", "Neg", "Abs", "Relu", "Identity"])
    draft.add(f"{operator}({name})", draft.shapes[name])


def binary(draft):
    one, other = draft.pick(), draft.pick()
    a, b = draft.shapes[one], draft.shapes[other]
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True))
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        return
    operator = draft.rng.choice(["Add", "Sub", "Mul", "Div", "Max", "Min"])
    if operator == "Div":
        other = draft.add(f"Sigmoid({other})", b)
    draft.add(f"{operator}({one}, {other})", tuple(y if x == 1 else x for x, y in pairs))


def product(draft):
    name = draft.pick(is_table)
    rows, columns = draft.shapes[name]
    width = int(draft.rng.integers(1, 4))
    weight = draft.constant(draft.rng.normal(size=(columns, width)))
    if draft.rng.random() < 0.5:
        draft.add(f"MatMul({name}, {weight})", (rows, width))
    else:
        draft.add(f"Gemm({name}, {weight}, {draft.constant(draft.rng.normal(size=width))})", (rows, width))


def reduction(draft):
    name = draft.pick(lambda shape: len(shape) > 0)
    shape = draft.shapes[name]
    axis, keep = int(draft.rng.integers(len(shape))), int(draft.rng.integers(2))
    result = tuple(1 if index == axis else size for index, size in enumerate(shape) if keep or index != axis)
    operator = draft.rng.choice(["ReduceSum", "ReduceMean"])
    if operator == "ReduceSum" or draft.opset >= 18:
        draft.add(f"{operator}<keepdims={keep}>({name}, {draft.constant([axis])})", result)
    else:
        draft.add(f"{operator}<keepdims={keep}, axes=[{axis}]>({name})", result)


def split(draft):
    name = draft.pick(lambda shape: is_table(shape) and shape[1] > 1)
    rows, columns = draft.shapes[name]
    left = int(draft.rng.integers(1, columns))
    sizes = draft.constant([left, columns - left])
    draft.add(f"Split<axis=1>({name}, {sizes})", (rows, left), (rows, columns - left))


def concat(draft):
    one = draft.pick(is_table)
    other = draft.pick(lambda shape: is_table(shape) and shape[0] == draft.shapes[one][0])
    columns = draft.shapes[one][1] + draft.shapes[other][1]
    draft.add(f"Concat<axis=1>({one}, {other})", (draft.shapes[one][0], columns))


def columns(draft):
    name = draft.pick(lambda shape: is_table(shape) and shape[1] > 1)
    rows, count = draft.shapes[name]
    if draft.rng.random() < 0.5:
        draft.add(f"Gather<axis=1>({name}, {draft.constant([0, -1, 0])})", (rows, 3))
    else:
        bounds = [draft.constant([1]), draft.constant([100]), draft.constant([1])]
        draft.add(f"Slice({name}, {', '.join(bounds)})", (rows, count - 1))


def form(draft):
    name = draft.pick(lambda shape: len(shape) == 2)
    draft.add(f"Transpose<perm=[1, 0]>({name})", draft.shapes[name][::-1])


def normalisation(draft):
    name = draft.pick(lambda shape: len(shape) > 0)
    draft.add(f"{draft.rng.choice(['Softmax', 'LogSoftmax'])}<axis=-1>({name})", draft.shapes[name])


def choice(draft):
    name = draft.pick()
    shape = draft.shapes[name]
    draft.add(f"Greater({name}, {draft.constant(0.1)})", shape)
    condition = list(draft.shapes)[-1]
    # a boolean is no operand of later nodes
    del draft.shapes[condition]
    draft.add(f"Where({condition}, {name}, {draft.constant(0.3)})", shape)


STEPS = (elementwise, binary, product, reduction, split, concat, columns, form, normalisation, choice)


def draw(seed):
    rng = np.random.default_rng(seed)
    draft = Draft(rng, int(rng.integers(13, 22)))
    rows = "N" if rng.random() < 0.5 else "?"
    draft.shapes = {"X": ("N", 4), "U": (4,), "V": ("N", 1)}
    for _ in range(rng.integers(3, 12)):
        STEPS[rng.integers(len(STEPS))](draft)
    draft.add("Tanh(X)", ("N", 4))
    computed = [name for name in draft.shapes if name.startswith("t")]
    outputs = sorted({computed[index] for index in rng.integers(len(computed), size=3)})
    signature = f"g (double[{rows}, 4] X, double[4] U, double[{rows}, 1] V)"
    text = f"{signature} => ({', '.join(f'double {name}' for name in outputs)})"
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": {draft.opset}]> {text} {{ {" ".join(draft.lines)} }}'
    )
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    for name, value in draft.constants.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    feeds = {"X": rng.normal(size=(ROWS, 4)), "U": rng.normal(size=4), "V": rng.normal(size=(ROWS, 1))}
    return model, feeds, outputs, rng


def reached(model, names, engine):
    """Return those of `names` that a gradient reaches; onnxruntime-training refuses unproven forms."""
    found, refusals = [], ("No gradient can reach", "proven right")
    for name in names:
        try:
            forward_backward_model(ir.from_proto(model), (), [name], engine=engine)
        except NotTrainableError as error:
            assert any(text in str(error) for text in refusals)  # noqa: PT017 (nothing is expected to be raised)
        else:
            found.append(name)
    return found


@pytest.mark.parametrize("engine", ["onnxruntime-training", "portable"])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_gradients_equal_central_differences(engine, seed, evaluate, differences, execute):
    model, feeds, outputs, rng = draw(seed)
    names = reached(model, feeds, engine)
    if not names:
        return
    seeds = [rng.normal(size=value.shape) for value in evaluate(model, feeds)]
    both = ir.to_proto(forward_backward_model(ir.from_proto(model), (), names, engine=engine))
    given_seeds = {f"{name}_grad": value for name, value in zip(outputs, seeds, strict=True)}
    # optimised, Transpose and MatMul of float64 become an operator that the runtime has for float32 only
    found = execute(both, {**feeds, **given_seeds}, optimize=False)
    for name, expected in zip(names, differences(model, feeds, seeds, names), strict=True):
        scale = 1 + np.abs(expected).max()
        np.testing.assert_allclose(found[f"{name}_grad"], expected, rtol=0, atol=1e-5 * scale)
