"""Graphs with adapters: the trained tensors, as `describe_trainable` reports them."""

import pytest
from sklearn.neural_network import MLPRegressor

from onnxsgd import OnnxSGDRegressor, describe_trainable
from onnxsgd.adapters import LoRA
from onnxsgd.exceptions import ParameterError, ParameterTypeError


@pytest.fixture(name="network", scope="module")
def _network(diabetes):
    return MLPRegressor(hidden_layer_sizes=(6, 5), max_iter=3000, random_state=0).fit(*diabetes)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["coefs_0.lora_A", "coefs_0.lora_B", "coefs_1.lora_A", "coefs_1.lora_B"]),
        (
            {"trainable": ["intercepts_1"], "adapter": LoRA(2, targets="coefs_0")},
            ["coefs_0.lora_A", "coefs_0.lora_B", "intercepts_1"],
        ),
        (
            {"head": "linear", "output": "next_activations", "trainable": ["intercepts_0"]},
            ["coefs_0.lora_A", "coefs_0.lora_B", "intercepts_0", "coef", "intercept"],
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Training did not lower")
def test_a_report_names_what_a_fit_trains(network, diabetes, settings, expected):
    settings = {"adapter": LoRA(2), **settings}
    report = describe_trainable(network, **settings)
    assert sorted(report.trained) == sorted(expected)
    fitted = OnnxSGDRegressor(network, max_iter=1, tol=None, **settings).fit(*diabetes)
    assert sorted(fitted.get_weights()) == sorted(expected)
    roles = {row.name: row.reason for row in report.tensors}
    assert roles["coefs_0.lora_A"] == "adapter of coefs_0"
    assert roles["coefs_0"] == "weight of MatMul"


def test_a_weight_has_an_adapter_or_is_trained(network, diabetes):
    model = OnnxSGDRegressor(network, adapter=LoRA(targets="coefs_0"), trainable=["coefs_0"])
    with pytest.raises(ParameterError, match="'coefs_0', which trainable= trains itself"):
        model.fit(*diabetes)


def test_a_report_needs_an_adapter_as_an_object(network):
    with pytest.raises(ParameterTypeError, match="adapter='lora' is not accepted: it must be a LoRA or None"):
        describe_trainable(network, adapter="lora")
