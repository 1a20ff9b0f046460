"""Random graphs against another implementation of reverse mode: correct rules must also compose."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxsgd.gradient.portable import differentiate

torch = pytest.importorskip("torch", reason="the comparison with torch needs torch")

MASK = np.arange(12).reshape(3, 4) % 3 == 0
ROWS = np.array([2, 0, 2, 1])

UNARY = {
    "Abs": torch.abs,
    "Elu": torch.nn.functional.elu,
    "Neg": torch.neg,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Sin": torch.sin,
    "Softplus": torch.nn.functional.softplus,
    "Tanh": torch.tanh,
}
BINARY = {"Add": torch.add, "Max": torch.maximum, "Min": torch.minimum, "Mul": torch.mul, "Sub": torch.sub}
REDUCTIONS = {
    "ReduceMax": torch.amax,
    "ReduceMean": torch.mean,
    "ReduceMin": torch.amin,
    "ReduceSum": torch.sum,
    "ReduceLogSumExp": torch.logsumexp,
}


class Pair:
    """The same computation as ONNX nodes and as torch tensors, grown one random step at a time."""

    def __init__(self, draw):
        self.draw = draw
        self.nodes = []
        self.constants = {"mask": MASK, "rows": ROWS, "flat": np.array([-1])}
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        arrays = {"A": rng.normal(size=(3, 4)), "B": rng.normal(size=(4,)), "C": rng.normal(size=(3, 1))}
        self.leaves = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
        self.pool = list(self.leaves.items())

    def grow(self):
        steps = [self.unary, self.binary, self.reduction, self.softmax, self.product, self.moved, self.picked]
        self.draw(st.sampled_from(steps))()

    def add(self, op_type, inputs, result, **attributes):
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        self.pool.append((name, result))

    def any(self):
        return self.draw(st.sampled_from(self.pool))

    def axes(self, rank):
        axes = self.draw(st.lists(st.integers(0, rank - 1), min_size=1, unique=True))
        name = "axes" + "".join(map(str, axes))
        self.constants[name] = np.array(axes)
        return name, axes

    def unary(self):
        (name, x), chosen = self.any(), self.draw(st.sampled_from(sorted(UNARY)))
        self.add(chosen, [name], UNARY[chosen](x))

    def binary(self):
        name, x = self.any()
        fitting = [(n, t) for n, t in self.pool if _broadcasts(x, t)]
        other, t = self.draw(st.sampled_from(fitting))
        chosen = self.draw(st.sampled_from(sorted(BINARY)))
        self.add(chosen, [name, other], BINARY[chosen](x, t))

    def reduction(self):
        (name, x), chosen = self.any(), self.draw(st.sampled_from(sorted(REDUCTIONS)))
        if x.ndim:
            axes_name, axes = self.axes(x.ndim)
            keep = self.draw(st.booleans())
            self.add(
                chosen, [name, axes_name], REDUCTIONS[chosen](x, dim=axes, keepdim=keep), keepdims=int(keep)
            )

    def softmax(self):
        name, x = self.any()
        if x.ndim:
            axis = self.draw(st.integers(0, x.ndim - 1))
            self.add("Softmax", [name], torch.softmax(x, axis), axis=axis)

    def product(self):
        (name, x), (other, t) = self.any(), self.any()
        if x.ndim and t.ndim and x.shape[-1] == t.shape[max(t.ndim - 2, 0)]:
            self.add("MatMul", [name, other], x @ t)

    def moved(self):
        name, x = self.any()
        if x.ndim == 2 and self.draw(st.booleans()):
            self.add("Transpose", [name], x.T, perm=[1, 0])
        else:
            self.add("Reshape", [name, "flat"], x.reshape(-1))

    def picked(self):
        name, x = self.any()
        if x.shape == (3, 4):
            self.add("Where", ["mask", name, "A"], torch.where(torch.tensor(MASK), x, self.leaves["A"]))
        elif x.ndim and x.shape[0] > 2:
            self.add("Gather", [name, "rows"], x[torch.tensor(ROWS)])


def _broadcasts(x, t):
    try:
        torch.broadcast_shapes(x.shape, t.shape)
    except RuntimeError:
        return False
    return True


def _model(pair, output):
    inputs = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, t.shape) for n, t in pair.leaves.items()]
    held = [numpy_helper.from_array(array, name) for name, array in pair.constants.items()]
    outputs = [helper.make_tensor_value_info(output[0], TensorProto.DOUBLE, output[1].shape)]
    graph = helper.make_graph(pair.nodes, "random", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_graphs_have_torch_s_gradients(data):
    pair = Pair(data.draw)
    for _ in range(data.draw(st.integers(1, 10))):
        pair.grow()
    if not pair.nodes:
        return
    name, y = pair.pool[-1]
    seed = torch.tensor(np.random.default_rng(0).normal(size=tuple(y.shape)))
    wanted = torch.autograd.grad(y, list(pair.leaves.values()), seed, allow_unused=True)
    model = _model(pair, (name, y))
    onnx.checker.check_model(model)
    gradient = ir.to_proto(differentiate(ir.from_proto(model), [name], list(pair.leaves)))
    feeds = {leaf: t.detach().numpy() for leaf, t in pair.leaves.items()}
    found = ReferenceEvaluator(gradient).run(None, {**feeds, f"{name}_grad": seed.numpy()})
    np.testing.assert_allclose(found[0], y.detach().numpy(), rtol=1e-9, atol=1e-9)
    for leaf, mine, theirs in zip(pair.leaves, found[1:], wanted, strict=True):
        expected = np.zeros(mine.shape) if theirs is None else theirs.numpy()
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(mine, expected, rtol=1e-8, atol=1e-9 * scale, err_msg=leaf)
