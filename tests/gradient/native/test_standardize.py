"""Standard operators that replace those of gradient graphs give central differences of numpy's functions."""

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxsgd.gradient.native.standardize import FLOAT64_RULES, RULES, standardize
from onnxsgd.graph.model import to_proto

RNG = np.random.default_rng(0)


def numbers(*shape):
    """Return numbers away from zero, where the slopes of these functions jump."""
    return np.array(RNG.uniform(0.3, 1.5, shape) * RNG.choice([-1.0, 1.0], shape))


def pull_back(function, dy, *operands):
    """Return the gradients of ``sum(dy * function(*operands))`` by central differences."""
    results = []
    for position, operand in enumerate(operands):
        gradient = np.empty_like(operand)
        for index in np.ndindex(operand.shape):
            values = []
            for step in (1e-5, -1e-5):
                moved = operand.copy()
                moved[index] += step
                values.append(np.sum(dy * function(*operands[:position], moved, *operands[position + 1 :])))
            gradient[index] = (values[0] - values[1]) / 2e-5
        results.append(gradient)
    return results


@dataclass
class Case:
    """Nodes, their operands by name, and the expected results, in the order of the outputs.

    Attributes
    ----------
    key : tuple of str
        The row of the table: domain and operator.
    body : str
        The nodes, in the text of ONNX; ``ms`` denotes the domain of the runtime.
    feeds : dict
        Operands by name: real numbers, booleans, integers.
    expected : dict
        Results by name, in float64.
    shapes : dict
        Declared shapes of operands, where they are not those of the arrays.
    constants : str
        Initializers, in the text of ONNX; ``real`` denotes the element type.
    single : bool
        Whether the rule also applies to float32.
    """

    key: tuple[str, str]
    body: str
    feeds: dict
    expected: dict
    shapes: dict = field(default_factory=dict)
    constants: str = ""
    single: bool = True

    def model(self, real):
        """Return the graph, and the nodes of the body."""
        kinds = {"f": real, "b": "bool", "i": "int64"}

        def declare(name, array):
            shape = ", ".join(map(str, self.shapes.get(name, array.shape)))
            return f"{kinds[array.dtype.kind]}[{shape}] {name}"

        inputs = ", ".join(declare(*item) for item in self.feeds.items())
        outputs = ", ".join(f"{kinds[array.dtype.kind]} out_{name}" for name, array in self.expected.items())
        # a replacement may be an input, which cannot be an output itself
        ends = " ".join(f"out_{name} = Identity({name})" for name in self.expected)
        text = f"""<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
            g ({inputs}) => ({outputs}) <{self.constants.replace("real", real)}>
            {{ {self.body} {ends} }}"""
        proto = onnx.parser.parse_model(text.replace("ms.", "com.microsoft."))
        for value in proto.graph.input:
            # the text cannot tell rank 0 from an unknown rank
            value.type.tensor_type.shape.SetInParent()
        for value in proto.graph.output:
            value.type.tensor_type.ClearField("shape")
        model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
        return model, list(model.graph)[: -len(self.expected)]


def gradients(key, body, function, dy, operands, more=None, names=("dX",), **options):
    """Return the case of a gradient: ``dY`` and named operands, against central differences."""
    expected = dict(zip(names, pull_back(function, dy, *operands.values()), strict=True))
    return Case(("com.microsoft", key), body, {"dY": dy, **operands, **(more or {})}, expected, **options)


def softmax(x, axis):
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)


def normalized(axis):
    def function(x, scale, bias):
        axes = tuple(range(axis % x.ndim, x.ndim))
        centred = x - x.mean(axis=axes, keepdims=True)
        return centred / np.sqrt(x.var(axis=axes, keepdims=True) + 1e-5) * scale + bias

    return function


def layer_normalization(axis, *shape):
    operands = {"X": numbers(*shape), "scale": numbers(*shape[axis:]), "bias": numbers(*shape[axis:])}
    return gradients(
        "LayerNormalizationGrad",
        f"dX, dscale, dbias = ms.LayerNormalizationGrad<axis={axis}>(dY, X, scale, mean, deviation)",
        normalized(axis), numbers(*shape), operands, {"mean": numbers(1), "deviation": numbers(1)},
        names=("dX", "dscale", "dbias"), single=False,
    )  # fmt: skip


def fused(left, right, numpy_left=lambda a: a, numpy_right=lambda b: b, attributes="", alpha=1.0):
    a, b = numbers(*left), numbers(*right)
    expected = alpha * (numpy_left(a) @ numpy_right(b))
    body = f"Y = ms.FusedMatMul{attributes}(A, B)"
    return Case(("com.microsoft", "FusedMatMul"), body, {"A": a, "B": b}, {"Y": expected})


def swap(stack):
    return stack.swapaxes(-1, -2)


def standard(key, body, feeds, expected, **options):
    return Case(("", key), body, feeds, expected, **options)


def largest(x):
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(2, 3))
    return windows.max(axis=(4, 5))


X, SPREAD = numbers(4, 3), np.arange(1.0, 19).reshape(1, 2, 3, 3)[..., ::-1].copy()
COUNTS = np.array([2, 0, 2])
PAIRS = np.array([[0, 1], [2, 2], [0, 1]])
ELEMENTS = np.array([[0, 2, 2], [1, 1, 0]])
#: A result of Shape of `x`, as the gradient builder writes targets.
SHAPE_OF_X = {"x": numbers(2, 3)}

CASES = [
    *(gradients("ReluGrad", f"r = Relu(X) s = Neg(r) dX = ms.ReluGrad(dY, {given})",
                lambda x: np.maximum(x, 0), numbers(4, 3), {"X": X})
      for given in "rX"),
    gradients("LeakyReluGrad", "y = LeakyRelu<alpha=0.2>(X) dX = ms.LeakyReluGrad<alpha=0.2>(dY, y)",
              lambda x: np.where(x > 0, x, 0.2 * x), numbers(4, 3), {"X": X}, single=False),
    *(gradients("SoftmaxGrad_13", f"y = Softmax<axis={axis}>(X) dX = ms.SoftmaxGrad_13<axis={axis}>(dY, y)",
                lambda x, axis=axis: softmax(x, axis), numbers(4, 3), {"X": X}, single=False)
      for axis in (0, -1)),
    *(gradients("LogSoftmaxGrad_13",
                f"y = LogSoftmax<axis={axis}>(X) dX = ms.LogSoftmaxGrad_13<axis={axis}>(dY, y)",
                lambda x, axis=axis: np.log(softmax(x, axis)), numbers(4, 3), {"X": X})
      for axis in (0, -1)),
    standard("Cos", "y = Cos(x)", {"x": 5 * X}, {"y": np.cos(5 * X)}, single=False),
    *(gradients("DivGrad", "dA, dB = ms.DivGrad(dY, A, B)", np.divide, numbers(2, 4, 3),
                {"A": numbers(*a), "B": numbers(*b)}, names=("dA", "dB"))
      for a, b in [((2, 4, 3), (2, 4, 3)), ((2, 4, 3), (3,)), ((4, 1), (2, 1, 3)), ((), (2, 4, 3))]),
    fused((4, 3), (3, 2)),
    fused((3, 4), (2, 3), np.transpose, np.transpose, "<transA=1, transB=1, alpha=0.5>", 0.5),
    fused((3,), (3, 2), attributes="<alpha=2.0>", alpha=2.0),
    fused((3,), (2, 3), numpy_right=np.transpose, attributes="<transB=1>"),
    fused((2, 4, 3), (2, 2, 3), numpy_right=swap, attributes="<transB=1>"),
    fused((2, 3, 4), (3, 2), swap, attributes="<transA=1>"),
    gradients("GatherGrad", "dX = ms.GatherGrad(shape, i, dY)", lambda x: x[COUNTS], numbers(3, 3), {"X": X},
              {"i": COUNTS, "shape": np.array([4, 3])}),
    gradients("GatherElementsGrad", "dX = ms.GatherElementsGrad<axis=1>(dY, shape, i)",
              lambda x: np.take_along_axis(x[:2], ELEMENTS, axis=1), numbers(2, 3), {"X": X},
              {"i": ELEMENTS, "shape": np.array([4, 3])}),
    gradients("GatherNDGrad", "dX = ms.GatherNDGrad(shape, i, dY)", lambda x: x[tuple(PAIRS.T)], numbers(3),
              {"X": X}, {"i": PAIRS, "shape": np.array([4, 3])}),
    standard("MaxPoolGrad", "y, i = MaxPool<kernel_shape=[2, 2]>(X) dX = MaxPoolGrad(dY, i)",
             {"X": SPREAD, "dY": np.arange(1.0, 9).reshape(1, 2, 2, 2)},
             {"dX": pull_back(largest, np.arange(1.0, 9).reshape(1, 2, 2, 2), SPREAD)[0]}, single=False),
    layer_normalization(2, 2, 4, 3),
    layer_normalization(1, 4, 2, 3),
    layer_normalization(0, 3, 2),
    Case(("com.microsoft", "Trilu"), "y = ms.Trilu<upper=0>(x, k)", {"x": X, "k": np.array(-1)},
         {"y": np.tril(X, -1)}),
    Case(("com.microsoft", "Trilu"), "y = ms.Trilu(x)", {"x": X}, {"y": np.triu(X)}),
    standard("Identity", "a = Identity(x) y = Neg(a)", {"x": X}, {"y": -X}),
    standard("ReduceSum", "a = ReduceSum<noop_with_empty_axes=1>(x, none) y = Neg(a)", {"x": X}, {"y": -X},
             constants="int64[0] none = {}"),
    *(standard("Reshape", "s = Shape(x) y = Reshape(z, s)", {**SHAPE_OF_X, "z": (z := numbers(*size))},
               {"y": z.reshape(2, 3)}, shapes=shapes)
      for size, shapes in [((6,), {}), ((2, 3), {"x": ("N", 3), "z": ("N", 3)}), ((6,), {"x": ("N", 3)})]),
    *(standard("Expand", "s = Shape(x) y = Expand(z, s)", {**SHAPE_OF_X, "z": (z := numbers(*size))},
               {"y": np.broadcast_to(z, (2, 3))}, shapes=shapes)
      for size, shapes in [((1, 3), {}), ((2, 1), {"x": ("N", 3), "z": ("N", 1)}), ((2, 3), {})]),
    standard("Where", "y = Where(c, x, zero)", {"c": np.array(True), "x": np.array(2.0)},
             {"y": np.array(2.0)}, constants="real[1] zero = {0}"),
    *(Case(("com.microsoft", "BroadcastGradientArgs"),
           "s = Shape(A) t = Shape(B) for_a, for_b = ms.BroadcastGradientArgs(s, t) "
           "dA = ReduceSum<keepdims=1, noop_with_empty_axes=1>(dY, for_a) "
           "dB = ReduceSum<keepdims=1, noop_with_empty_axes=1>(dY, for_b)",
           {"A": numbers(4, 1), "B": numbers(2, 1, 3), "dY": (dy := numbers(2, 4, 3))},
           {"dA": dy.sum(axis=(0, 2), keepdims=True), "dB": dy.sum(axis=1, keepdims=True)}, shapes=shapes)
      for shapes in [{}, {"A": ("N", 1), "B": (2, "K", 3)}]),
    *(Case(("com.microsoft", "Scale"), f"y = ms.Scale<scale_down={down}>(x, scale)",
           {"x": X, "scale": np.array(4.0)}, {"y": X / 4 if down else X * 4})
      for down in (0, 1)),
    *(Case(("com.microsoft", "Scale"),
           "a = Size(x) b = Size(z) scale = Div(a, b) y = ms.Scale<scale_down=1>(x, scale)",
           {"x": X, "z": numbers(3)}, {"y": X / 4}, shapes=shapes)
      for shapes in [{}, {"x": ("N", 3)}]),
    *(Case(("com.microsoft", "SplitTraining"),
           "c, sizes = ms.ConcatTraining<axis=1>(A, B) dA, dB = ms.SplitTraining<axis=1>(dY, sizes)",
           {"A": numbers(2, 1), "B": numbers(2, 3), "dY": (dy := numbers(2, 4))},
           {"dA": dy[:, :1], "dB": dy[:, 1:]}, shapes=shapes)
      for shapes in [{}, {"A": (2, "K"), "B": (2, "M")}]),
]  # fmt: skip


def test_every_rule_has_a_case():
    """A row without a case above would go unnoticed, and rows of float32 need a case of float32."""
    assert set(FLOAT64_RULES) == {case.key for case in CASES}
    assert set(RULES) == {case.key for case in CASES if case.single}


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(case, dtype, id=f"{case.key[1]}-{index}-{dtype.__name__}")
        for index, case in enumerate(CASES)
        for dtype in ((np.float32, np.float64) if case.single else (np.float64,))
    ],
)
def test_replacements_keep_values(case, dtype, execute):
    model, nodes = case.model("float" if dtype == np.float32 else "double")
    replaced = [node for node in nodes if (node.domain, node.op_type) == case.key]
    standardize(model.graph, nodes)
    assert not set(replaced) & set(model.graph)
    RemoveUnusedNodesPass()(model)
    assert not any(node.domain for node in model.graph)
    feeds = {name: a.astype(dtype) if a.dtype.kind == "f" else a for name, a in case.feeds.items()}
    found = execute(to_proto(model), feeds)
    # central differences are right to 1e-9
    tolerance = {"rtol": 2e-5, "atol": 2e-6} if dtype == np.float32 else {"rtol": 1e-7, "atol": 1e-8}
    for name, expected in case.expected.items():
        assert found[f"out_{name}"].dtype == dtype
        np.testing.assert_allclose(found[f"out_{name}"], expected, err_msg=name, **tolerance)


def test_nodes_without_a_rule_stay():
    """ConvGrad and its like are kernels of the training edition alone."""
    case = Case(("com.microsoft", "TanhGrad"), "y = ms.TanhGrad(dY, x)", {"dY": X, "x": X}, {"y": X})
    model, nodes = case.model("float")
    standardize(model.graph, nodes)
    assert [node.op_type for node in model.graph] == ["TanhGrad", "Identity"]
