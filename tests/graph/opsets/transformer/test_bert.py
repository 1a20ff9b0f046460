"""A text classifier fused by a transformer optimizer trains, and first predicts the same."""

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxsgd import OnnxSGDClassifier, OrtGradientForwardBackward, add_loss_output, onnx_derivative
from onnxsgd.testing import check_gradients

BERT = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
bert (int64[N, L] ids) => (float[N, 3] scores) {
    words32 = Cast <to = 6> (ids)  zero = Sub(ids, ids)  kinds32 = Cast <to = 6> (zero)
    present = Greater(ids, zero)  mask = Cast <to = 6> (present)
    h, index = com.microsoft.EmbedLayerNormalization(words32, kinds32, words, places, kinds, g0, b0)
    a = com.microsoft.Attention <num_heads = 2> (h, qkv, qkv_bias, mask)
    o = MatMul(a, out)
    s = com.microsoft.SkipLayerNormalization(o, h, g1, b1, out_bias)
    up = MatMul(s, wide)
    act = com.microsoft.BiasGelu(up, wide_bias)
    down = MatMul(act, narrow)
    t = com.microsoft.SkipLayerNormalization(down, s, g2, b2, narrow_bias)
    first = Gather <axis = 1> (t, start)
    scores = Gemm(first, head, head_bias)
}"""
SHAPES = {
    "words": (11, 8),
    "places": (7, 8),
    "kinds": (2, 8),
    "qkv": (8, 24),
    "qkv_bias": (24,),
    "out": (8, 8),
    "out_bias": (8,),
    "wide": (8, 16),
    "wide_bias": (16,),
    "narrow": (16, 8),
    "narrow_bias": (8,),
    "head": (8, 3),
    "head_bias": (3,),
    **{f"{letter}{index}": (8,) for letter in "gb" for index in range(3)},
}


@pytest.fixture(name="bert")
def _bert():
    """Return the graph, ids of texts (0 pads them), and classes that follow from the ids."""
    model, rng = onnx.parser.parse_model(BERT), np.random.default_rng(0)
    for name, shape in SHAPES.items():
        array = 0.3 * rng.normal(size=shape) + (name in ("g0", "g1", "g2"))
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0), "start"))
    ids = rng.integers(1, 11, size=(60, 5))
    ids[::3, 3:] = 0
    return model, ids, ids[:, 0] % 3


def test_a_classifier_trains(bert, run):
    model, ids, y = bert
    before = run(model, {"ids": ids})["scores"]
    start = OnnxSGDClassifier(model, learning_rate="constant", eta0=1e-12, max_iter=1, tol=None).fit(ids, y)
    np.testing.assert_allclose(start.decision_function(ids), before, rtol=1e-4, atol=1e-5)
    # all learned tensors, under their names, the merged projections as one tensor
    assert set(SHAPES) - {"kinds"} <= set(start.get_weights())
    trained = OnnxSGDClassifier(
        model, learning_rate="invscaling", optimizer="adam", max_iter=100, tol=None, random_state=0
    ).fit(ids, y)
    assert trained.score(ids, y) > 0.9
    exported = trained.to_onnx()
    assert {entry.domain for entry in exported.opset_import} == {""}


def test_every_function_takes_it(bert, run):
    model, ids, _ = bert
    # a step large enough for single precision: onnx normalizes layers in it for every type
    report = check_gradients(
        model, weights=["qkv", "g1"], inputs=[], feeds={"ids": ids[:4]}, eps=3e-3, rtol=1e-2, atol=1e-3
    )
    assert report.n_checked == 38
    gradient = onnx_derivative(model)
    assert {value.name for value in gradient.graph.output} >= {"qkv_grad", "words_grad", "b2_grad"}
    with_loss = add_loss_output(model, "log_loss")
    assert [value.name for value in with_loss.graph.output] == ["loss", "scores"]
    instance = OrtGradientForwardBackward(model, weights_to_train=["qkv", "head"]).new_instance()
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    (scores,) = instance.forward([ids, weights["qkv"], weights["head"]])
    np.testing.assert_allclose(
        np.asarray(scores.numpy()), run(model, {"ids": ids})["scores"], rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_block_that_torch_exports_and_the_optimizer_fuses(tmp_path, run):
    """With both tools installed, training starts at the scores of the fused graph."""
    torch = pytest.importorskip("torch")
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer", exc_type=ImportError)
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    network = torch.nn.Sequential(
        torch.nn.Embedding(11, 8), layer, torch.nn.Flatten(), torch.nn.Linear(40, 3)
    )
    ids = np.random.default_rng(0).integers(0, 11, size=(24, 5))
    path = tmp_path / "block.onnx"
    # without gradients the exporter would take a fused path that no opset has
    network = network.eval().requires_grad_(True)
    names = {"input_names": ["ids"], "output_names": ["scores"], "dynamic_axes": {"ids": {0: "N"}}}
    torch.onnx.export(network, (torch.from_numpy(ids[:2]),), path, dynamo=False, opset_version=17, **names)
    fused = optimizer.optimize_model(str(path), model_type="bert", num_heads=2, hidden_size=8, opt_level=0)
    assert "com.microsoft" in {node.domain for node in fused.model.graph.node}
    before = run(fused.model, {"ids": ids})["scores"]
    y = ids[:, 0] % 3
    start = OnnxSGDClassifier(fused.model, learning_rate="constant", eta0=1e-12, max_iter=1, tol=None)
    np.testing.assert_allclose(start.fit(ids, y).decision_function(ids), before, rtol=1e-4, atol=1e-5)
    trained = OnnxSGDClassifier(
        fused.model, learning_rate="invscaling", optimizer="adam", max_iter=60, tol=None, random_state=0
    )
    assert trained.fit(ids, y).score(ids, y) > 0.9
