"""Operators without a kernel in some type are computed by others, and keep their parameters."""

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.lowering.missing_kernels import _FORMS as FORMS
from onnxsgd.graph.lowering.precision import with_precision
from onnxsgd.graph.model import to_ir
from onnxsgd.graph.parameter_roles.roles import find_roles

#: Not Gelu and Tan: their forms use Erf and Cos, without a float64 kernel in onnxruntime 1.19.
NODES = {
    "Celu": "y = Celu(x)",
    "Cosh": "y = Cosh(x)",
    "Elu": "y = Elu(x)",
    "GlobalMaxPool": "y = GlobalMaxPool(x)",
    "HardSigmoid": "y = HardSigmoid(x)",
    "HardSwish": "y = HardSwish(x)",
    "InstanceNormalization": "y = InstanceNormalization(x, s, b)",
    "Mean": "a = Abs(x) y = Mean(x, a)",
    "Mish": "y = Mish(x)",
    "PRelu": "y = PRelu(x, p)",
    "ReduceProd": "y = ReduceProd(x, axes)",
    "Selu": "y = Selu(x)",
    "Sinh": "y = Sinh(x)",
    "Softplus": "y = Softplus(x)",
    "Softsign": "y = Softsign(x)",
    "ThresholdedRelu": "y = ThresholdedRelu(x)",
}


def test_every_form_has_a_case():
    assert {name for _, name in FORMS} - set(NODES) == {"Gelu", "Tan"}


def parse(body, real="double"):
    weights = """real[3] s = {1, 2, 3}, real[3] b = {3, 2, 1}, real[3, 1] p = {0.1, 0.2, 0.3},
        int64[1] axes = {2}"""
    text = f'<ir_version: 8, opset_import: ["": 18]> g (real[N, 3, 4] x) => (real y) <{weights}> {{ {body} }}'
    proto = onnx.parser.parse_model(text.replace("real", real))
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return to_ir(proto)


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("converted", [False, True])
def test_a_graph_of_float64_runs(name, converted, run):
    """The runtime accepts float64 graphs, and graphs converted to float64."""
    model = parse(NODES[name], "float" if converted else "double")
    lowered = lower_for_training(model)
    lowered = with_precision(lowered, ir.DataType.DOUBLE) if converted else lowered
    x = np.random.default_rng(0).normal(size=(5, 3, 4))
    expected = run(parse(NODES[name], "float"), {"x": x.astype(np.float32)})["y"]
    np.testing.assert_allclose(run(lowered, {"x": x})["y"], expected, rtol=2e-5, atol=1e-6)


def test_parameters_of_a_layer_that_is_written_out_stay_parameters():
    """A fit in float64 trains the same tensors."""
    lowered = lower_for_training(parse("a = PRelu(x, p) y = InstanceNormalization(a, s, b)"))
    roles = find_roles(lowered.graph)
    assert {value.name: role.kind for value, role in roles.items() if role.kind} == {
        "s": "weight",
        "b": "intercept",
        "p": "weight",
    }
