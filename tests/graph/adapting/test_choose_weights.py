"""Choice of the adapted weights: defaults, names, patterns, functions, refusals."""

import onnx
import pytest

from onnxsgd.adapters import LoRA
from onnxsgd.exceptions import NotTrainableError, ParameterError
from onnxsgd.gradient.engines import PORTABLE, differentiable
from onnxsgd.graph.adapting.choose_weights import choose_weights
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import to_ir
from onnxsgd.graph.reading.trainable import trace_gradients

HEAD = '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 2] X) => (float[N, 2] Y)'
MATRIX = "= {0.3, 0.1, 0.7, 0.2}"
WEIGHTS = ", ".join(f"float[2, 2] {name} {MATRIX}" for name in ("U", "V", "W"))
#: A frozen part before Floor, a hidden layer with a branch, the output layer.
NETWORK = (
    f"{HEAD} <{WEIGHTS}, float[2] b = {{0.5, 0.25}}>"
    "{ P = MatMul(X, U) F = Floor(P) Z = MatMul(F, V) S = Add(Z, b) R = Relu(S) Y = MatMul(R, W) }"
)
RESIDUAL = (
    f"{HEAD} <{WEIGHTS}>"
    "{ P = MatMul(X, U) Q = MatMul(P, V) R = Add(P, Q) T = Tanh(R) O = MatMul(T, W) Y = Add(O, R) }"
)


def choose(text, trained=(), **more):
    model = lower_for_training(to_ir(onnx.parser.parse_model(text)))
    flow = trace_gradients(model, "Y", differentiable(PORTABLE))
    return choose_weights(model, LoRA(**more), flow, trained)


def test_all_but_the_output_layer_and_the_frozen_part():
    assert choose(NETWORK) == ["V"]


def test_a_layer_beside_others_is_no_output_layer():
    """The residual leads around the last product: each of the layers reaches the score without it."""
    assert choose(RESIDUAL) == ["U", "V", "W"]


def test_the_output_layer_alone():
    assert choose(f"{HEAD} <float[2, 2] W {MATRIX}> {{ Y = MatMul(X, W) }}") == ["W"]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("W", ["W"]), (["W", "V"], ["V", "W"]), ("[VW]", ["V", "W"]), (["*"], ["V", "W"]),
        (lambda name: name != "V", ["W"]),
    ],
)  # fmt: skip
def test_names_patterns_and_functions(targets, expected):
    assert choose(NETWORK, targets=targets) == expected


def test_a_trained_weight_has_no_adapter():
    assert choose(NETWORK, ["V"]) == ["W"]
    assert choose(NETWORK, ["V"], targets="*") == ["W"]
    with pytest.raises(ParameterError, match="'V', which trainable= trains itself"):
        choose(NETWORK, ["V"], targets="V")


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        ("v", ParameterError, "targets='v' is not accepted: the graph has no weight of this name; .*'V'"),
        ("x*", ParameterError, r"targets='x\*' is not accepted: no weight matches it"),
        ("b", NotTrainableError, "targets names 'b', which has no place for an adapter: the Add"),
        ("U", NotTrainableError, "targets names 'U', .*: no path of real numbers leads"),
        (str.isdigit, ParameterError, "targets selects none of the weights 'V', 'W'"),
    ],
)
def test_refusals(targets, error, message):
    with pytest.raises(error, match=message):
        choose(NETWORK, targets=targets)


@pytest.mark.parametrize("targets", [None, "*"])
def test_a_graph_without_a_fitting_weight(targets):
    text = f"{HEAD} <float[2] b = {{0.5, 0.25}}> {{ Z = Add(X, b) Y = Tanh(Z) }}"
    with pytest.raises((NotTrainableError, ParameterError), match="has no weight that an adapter could"):
        choose(text, targets=targets)


def test_tables_have_an_adapter_only_if_they_are_named():
    text = f"""<ir_version: 8, opset_import: ["" : 18]> g (int64[N] I) => (float[N, 2] Y)
    <{WEIGHTS}> {{ E = Gather(U, I) Z = MatMul(E, V) Y = MatMul(Z, W) }}"""
    assert choose(text) == ["V"]
    assert choose(text, targets=["U", "W"]) == ["U", "W"]
    tied = text.replace("MatMul(Z, W)", "MatMul(Z, U)")
    assert choose(tied) == ["V"]
    assert choose(tied, targets="*") == ["U", "V"]
