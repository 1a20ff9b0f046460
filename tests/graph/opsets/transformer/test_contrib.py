"""Operators of the runtime's domain, written in standard ones, agree with its kernels."""

import re

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from onnxsgd import DerivativeOptions, onnx_derivative
from onnxsgd.exceptions import NotTrainableError
from onnxsgd.graph.opsets.transformer.contrib import CONTRIB_RULES
from onnxsgd.graph.opsets.versions import bring_into_range

#: Shapes of inputs by name: batch 2, length 4, 3 heads of size 4, 6 keys, a memory of length 2.
SHAPES = {
    "x": (2, 4, 12),
    "skip": (2, 4, 12),
    "rows": (1, 4, 12),
    "matrix": (4, 12),
    "g": (12,),
    "b": (12,),
    "c": (12,),
    "square": (12, 12),
    "A": (2, 3, 4, 5),
    "A1": (4, 2, 3, 5),
    "B": (2, 3, 5, 4),
    "C": (2, 3, 4, 5),
    "words": (9, 12),
    "places": (6, 12),
    "kinds": (2, 12),
    "W": (12, 36),
    "bias": (36,),
    "W2": (12, 30),
    "bias2": (30,),
    "past": (2, 2, 3, 2, 4),
    "more": (2, 3, 4, 4),
    "more6": (2, 3, 4, 6),
    "q": (2, 4, 12),
    "k": (2, 6, 12),
    "v": (2, 6, 12),
    "wide": (2, 6, 15),
    "wbias": (39,),
    "kh": (2, 3, 6, 4),
    "vh": (2, 3, 6, 4),
    "pk": (2, 3, 2, 4),
    "pv": (2, 3, 2, 4),
    "more8": (2, 3, 4, 8),
    "qkv": (2, 4, 3, 3, 4),
    "kv": (2, 6, 3, 2, 4),
    "heads": (2, 3, 4, 8),
    "cos4": (6, 2),
    "sin4": (6, 2),
    "cos8": (6, 4),
    "sin8": (6, 4),
    "big": (2, 4, 64),
    "shared": (2, 4, 32),
    "shared_v": (2, 4, 32),
    "packed": (2, 4, 128),
    "cos16": (6, 8),
    "sin16": (6, 8),
    "wide_heads": (2, 4, 32),
    "sink": (4,),
    "pk16": (2, 2, 2, 16),
    "none": (2, 2, 0, 16),
}
INTEGERS = {
    "ids": np.array([[1, 4, 8, 0], [2, 2, 7, 5]], np.int32),
    "segments": np.array([[0, 0, 1, 1], [0, 1, 1, 1]], np.int32),
    "numbers": np.array([[3, 2, 1, 0], [0, 1, 2, 5]], np.int32),
    "mask": np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32),
    "mask6": np.array([[1, 1, 1, 0, 1, 1], [1, 1, 0, 0, 1, 0]], np.int32),
    "mask8": np.array([[1, 1, 1, 0, 1, 1, 1, 0], [1, 1, 0, 0, 1, 0, 1, 1]], np.int32),
    "ends": np.array([4, 2], np.int32),
    "ends6": np.array([6, 3], np.int32),
    "span": np.array([4, 3, 1, 0], np.int32),
    "cube": np.tril(np.ones((2, 4, 4), np.int32)),
    "positions": np.array([[0, 2, 5, 1], [1, 3, 4, 0]], np.int64),
    "offset": np.array([2], np.int64),
    "lengths": np.array([3, 3], np.int32),
    "short": np.array([3, 1], np.int32),
    "total": np.array(4, np.int32),
}

_MHA = "ms.MultiHeadAttention <num_heads = 3"
_GQA = "ms.GroupQueryAttention <num_heads = 4, kv_num_heads = 2"

#: The graph, in which ms denotes com.microsoft, its outputs, its inputs.
CASES = [
    ("y = ms.Gelu(x)", "y", "x"),
    ("y = ms.BiasGelu(x, b)", "y", "x b"),
    ("y = ms.FastGelu(x)", "y", "x"),
    ("y = ms.FastGelu(x, b)", "y", "x b"),
    ("y = ms.QuickGelu(x)", "y", "x"),
    ("y = ms.QuickGelu <alpha = 0.7> (x)", "y", "x"),
    ("y = ms.FusedMatMul(x, square)", "y", "x square"),
    ("y = ms.FusedMatMul <alpha = 0.3, transB = 1> (x, square)", "y", "x square"),
    ("y = ms.FusedMatMul <transA = 1, transB = 1> (A, B)", "y", "A B"),
    ("y = ms.TransposeMatMul <alpha = 0.3, transB = 1> (x, square)", "y", "x square"),
    ("y = ms.FusedMatMul <transA = 1> (A, C)", "y", "A C"),
    ("y = ms.FusedMatMul <transBatchA = 1> (A1, B2)", "y", "A1 B2"),
    ("y = ms.FusedMatMul <transBatchA = 1, transA = 1> (A1, B3)", "y", "A1 B3"),
    ("y = ms.FusedMatMul <transBatchB = 1, transB = 1> (A4, A1)", "y", "A4 A1"),
    ("y = ms.SkipLayerNormalization(x, skip, g, b)", "y", "x skip g b"),
    ("y = ms.SkipLayerNormalization <epsilon = 0.1> (x, skip, g)", "y", "x skip g"),
    ("y, , , s = ms.SkipLayerNormalization(x, skip, g, b, c)", "y s", "x skip g b c"),
    ("y, , , s = ms.SkipLayerNormalization(x, rows, g, b)", "y s", "x rows g b"),
    ("y = ms.SkipLayerNormalization(x, matrix, g, b)", "y", "x matrix g b"),
    ("y = ms.SkipSimplifiedLayerNormalization(x, skip, g)", "y", "x skip g"),
    (
        "y, , , s = ms.SkipSimplifiedLayerNormalization <epsilon = 0.1> (x, skip, g, c)",
        "y s",
        "x skip g c",
    ),
    ("y = SimplifiedLayerNormalization(x, g)", "y", "x g"),
    ("y = SimplifiedLayerNormalization <axis = 1, epsilon = 0.1> (x, matrix)", "y", "x matrix"),
    (
        "y, m = ms.EmbedLayerNormalization(ids, segments, words, places, kinds, g, b)",
        "y m",
        "ids segments words places kinds g b",
    ),
    (
        "y, m = ms.EmbedLayerNormalization(ids, , words, places, , g, b, mask)",
        "y m",
        "ids words places g b mask",
    ),
    (
        "y, m, s = ms.EmbedLayerNormalization <epsilon = 0.1> "
        "(ids, segments, words, places, kinds, g, b, mask, numbers)",
        "y m s",
        "ids segments words places kinds g b mask numbers",
    ),
    ("y = ms.Attention <num_heads = 3> (x, W, bias)", "y", "x W bias"),
    ("y = ms.Attention <num_heads = 3, unidirectional = 1> (x, W, bias)", "y", "x W bias"),
    (
        "y = ms.Attention <num_heads = 3, qkv_hidden_sizes = [12, 12, 6]> (x, W2, bias2)",
        "y",
        "x W2 bias2",
    ),
    ("y = ms.Attention <num_heads = 3> (x, W, bias, mask)", "y", "x W bias mask"),
    (
        "y = ms.Attention <num_heads = 3, unidirectional = 1, mask_filter_value = -3.0> (x, W, bias, mask)",
        "y",
        "x W bias mask",
    ),
    ("y = ms.Attention <num_heads = 3> (x, W, bias, ends)", "y", "x W bias ends"),
    ("y = ms.Attention <num_heads = 3> (x, W, bias, span)", "y", "x W bias span"),
    ("y = ms.Attention <num_heads = 3> (x, W, bias, cube)", "y", "x W bias cube"),
    ("y = ms.Attention <num_heads = 3> (x, W, bias, mask, , more)", "y", "x W bias mask more"),
    ("y, p = ms.Attention <num_heads = 3> (x, W, bias)", "y p", "x W bias"),
    (
        "y, p = ms.Attention <num_heads = 3, unidirectional = 1> (x, W, bias, mask6, past)",
        "y p",
        "x W bias mask6 past",
    ),
    (f"y = {_MHA}> (q, k, v)", "y", "q k v"),
    (f"y = {_MHA}, scale = 0.2> (q, k, v, bias)", "y", "q k v bias"),
    (f"y = {_MHA}> (q, k, wide, wbias)", "y", "q k wide wbias"),
    (f"y = {_MHA}> (q, k, v, bias, mask6)", "y", "q k v bias mask6"),
    (f"y = {_MHA}> (q, k, v, , ends6)", "y", "q k v ends6"),
    (f"y = {_MHA}> (q, k, v, , mask6, more6)", "y", "q k v mask6 more6"),
    (f"y = {_MHA}, unidirectional = 1> (q, q, skip, bias)", "y", "q skip bias"),
    (f"y = {_MHA}> (q, x, skip, bias, mask)", "y", "q x skip bias mask"),
    (f"y = {_MHA}> (q, x, skip, , ends)", "y", "q x skip ends"),
    (f"y = {_MHA}> (q, x, skip, , , more)", "y", "q x skip more"),
    (f"y = {_MHA}> (q, k, v, , , more6)", "y", "q k v more6"),
    (f"y = {_MHA}> (q, kh, vh)", "y", "q kh vh"),
    (f"y = {_MHA}> (q, kh, vh, bias)", "y", "q kh vh bias"),
    (f"y, a, c = {_MHA}> (q, k, v, bias, mask8, more8, pk, pv)", "y a c", "q k v bias mask8 more8 pk pv"),
    (f"y, a, c = {_MHA}> (q, k, v)", "y a c", "q k v"),
    ("y = ms.RotaryEmbedding(heads, positions, cos8, sin8)", "y", "heads positions cos8 sin8"),
    (
        "y = ms.RotaryEmbedding <interleaved = 1> (heads, offset, cos8, sin8)",
        "y",
        "heads offset cos8 sin8",
    ),
    (
        "y = ms.RotaryEmbedding(wide_heads, positions, cos8, sin8)",
        "y",
        "wide_heads positions cos8 sin8",
    ),
    (
        "y = ms.RotaryEmbedding <num_heads = 4, rotary_embedding_dim = 4> "
        "(wide_heads, positions, cos4, sin4)",
        "y",
        "wide_heads positions cos4 sin4",
    ),
    (
        f"y, a, c = {_GQA}, scale = 0.2> (big, shared, shared_v, , , lengths, total)",
        "y a c",
        "big shared shared_v lengths total",
    ),
    (
        f"y, a, c = {_GQA}, do_rotary = 1> (big, shared, shared_v, , , lengths, total, cos16, sin16)",
        "y a c",
        "big shared shared_v lengths total cos16 sin16",
    ),
    (
        f"y, a, c = {_GQA}, do_rotary = 1, rotary_interleaved = 1> "
        "(big, shared, shared_v, , , lengths, total, cos16, sin16)",
        "y a c",
        "big shared shared_v lengths total cos16 sin16",
    ),
    (
        f"y, a, c = {_GQA}, do_rotary = 1> (packed, , , , , lengths, total, cos16, sin16)",
        "y a c",
        "packed lengths total cos16 sin16",
    ),
    (
        f"y, a, c = {_GQA}> (big, shared, shared_v, none, none, lengths, total)",
        "y a c",
        "big shared shared_v none lengths total",
    ),
    (
        f"y, a, c = {_GQA}, local_window_size = 2> (big, shared, shared_v, , , lengths, total)",
        "y a c",
        "big shared shared_v lengths total",
    ),
    (
        f"y, a, c = {_GQA}, softcap = 0.5> (big, shared, shared_v, , , lengths, total)",
        "y a c",
        "big shared shared_v lengths total",
    ),
    (
        f"y, a, c = {_GQA}, smooth_softmax = 1> (big, shared, shared_v, , , lengths, total)",
        "y a c",
        "big shared shared_v lengths total",
    ),
    (
        f"y, a, c = {_GQA}> (big, shared, shared_v, , , lengths, total, , , , , sink)",
        "y a c",
        "big shared shared_v lengths total sink",
    ),
]
SHAPES |= {"B2": (2, 3, 5, 2), "B3": (2, 3, 4, 2), "A4": (2, 3, 4, 5)}


def values(names):
    rng = np.random.default_rng(0)
    return {
        name: INTEGERS[name] if name in INTEGERS else rng.normal(size=SHAPES[name]).astype(np.float32)
        for name in names.split()
    }


def model_of(body, outputs, feeds, opset=18):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>
        g () => ({", ".join(f"float {name}" for name in outputs.split())})
        {{ {body.replace("ms.", "com.microsoft.")} }}"""
    )
    for name, array in feeds.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
    for value in model.graph.output:
        kind = onnx.TensorProto.INT32 if value.name == "m" else onnx.TensorProto.FLOAT
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, None))
    return model


#: Forms that kernels of onnxruntime 1.19 lack or compute wrongly, unlike those of 1.31: a mask of keys with
#: fewer queries, a window that is one key too wide, a bias that is added after the normalization.
NEWER = (
    "mask6)",
    "ends6)",
    "mask6, more6)",
    "mask8, more8,",
    "local_window",
    "softcap",
    "sink)",
    "(x, skip, g, c)",
)
OLD_RUNTIME = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 30)


def is_newer(body):
    own = "ms.MultiHeadAttention", "ms.GroupQuery", "ms.SkipSimplified"
    return any(operator in body for operator in own) and any(form in body for form in NEWER)


def expanded(model):
    """Return `model` in operators of the standard alone."""
    converted = bring_into_range(model)
    assert {node.domain for node in converted.graph.node} == {""}
    return converted


def check_values(run, model, feeds, expected, outputs):
    got = run(expanded(model), feeds)
    for name in outputs.split():
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-4, atol=1e-5)


def test_every_rule_has_a_case():
    """LayerNormalization is an operator of the runtime in old opsets alone: see test_old_opsets."""
    tried = {re.match(r".*? = (?:ms\.)?(\w+)", body)[1] for body, _, _ in CASES}
    assert {name for _, name in CONTRIB_RULES} - tried == {"LayerNormalization"}


@pytest.mark.parametrize(("body", "outputs", "inputs"), CASES)
def test_values_are_those_of_the_kernel(body, outputs, inputs, run):
    """The runtime computes the operator and its expansion."""
    if OLD_RUNTIME and is_newer(body):
        pytest.skip("the kernel of this runtime lacks this form, or computes it wrongly")
    feeds = values(inputs)
    model = model_of(body, outputs, feeds)
    check_values(run, model, feeds, run(model, feeds), outputs)


def test_open_sizes(run):
    """Batch and length may be unknown; the two kinds of mask vectors are distinguished at run time."""
    for mask in ("ends", "span", "mask"):
        feeds = values(f"x W bias {mask}")
        body = f"y = ms.Attention <num_heads = 3, unidirectional = 1> (x, W, bias, {mask})"
        model = model_of(body, "y", feeds)
        expected = run(model, feeds)
        for value in (model.graph.input[0], model.graph.input[3]):
            for dim in list(value.type.tensor_type.shape.dim)[:2]:
                dim.dim_param = f"open_{value.name}_{dim.dim_value}"
        check_values(run, model, feeds, expected, "y")


def test_forms_without_a_kernel(run):
    """Packed inputs give the same results as separate ones, and a missing bias as one of zeros."""
    feeds = values("qkv q kv x W")
    apart = [feeds["qkv"][:, :, :, index].reshape(2, 4, 12) for index in range(3)]
    pairs = [feeds["kv"][:, :, :, index].reshape(2, 6, 12) for index in range(2)]
    plain = model_of(f"y = {_MHA}> (a, b, c)", "y", dict(zip("abc", apart, strict=True)))
    expected = run(plain, dict(zip("abc", apart, strict=True)))
    only = {"qkv": feeds["qkv"]}
    check_values(run, model_of(f"y = {_MHA}> (qkv)", "y", only), only, expected, "y")
    given = dict(zip("abc", (feeds["q"], *pairs), strict=True))
    expected = run(model_of(f"y = {_MHA}> (a, b, c)", "y", given), given)
    only = {"q": feeds["q"], "kv": feeds["kv"]}
    check_values(run, model_of(f"y = {_MHA}> (q, kv)", "y", only), only, expected, "y")
    only = {"x": feeds["x"], "W": feeds["W"]}
    given = {**only, "zeros": np.zeros(36, np.float32)}
    body = "y = ms.Attention <num_heads = 3, scale = 0.1>"
    expected = run(model_of(f"{body} (x, W, zeros)", "y", given), given)
    check_values(run, model_of(f"{body} (x, W)", "y", only), only, expected, "y")


def test_padding_of_group_query_attention(run):
    """Samples differ in length; the kernel leaves rows after their ends undefined."""
    feeds = values("big shared shared_v short total")
    body = f"y, a, c = {_GQA}> (big, shared, shared_v, , , short, total)"
    model = model_of(body, "y a c", feeds)
    expected, got = run(model, feeds)["y"], run(expanded(model), feeds)["y"]
    for sample, last in enumerate(feeds["short"]):
        np.testing.assert_allclose(
            got[sample, : last + 1], expected[sample, : last + 1], rtol=1e-4, atol=1e-5
        )


def test_old_opsets(run):
    """LayerNormalization is written out in opsets that lack it, under either name."""
    feeds = values("x skip g b")
    body = "y, , , s = ms.SkipLayerNormalization(x, skip, g, b)"
    check_values(
        run, model_of(body, "y s", feeds, 14), feeds, run(model_of(body, "y s", feeds), feeds), "y s"
    )
    feeds = values("x g b")
    body = "y = LayerNormalization(x, g, b)"
    check_values(run, model_of(body, "y", feeds, 14), feeds, run(model_of(body, "y", feeds), feeds), "y")


#: One form of each operator, with all inputs that a gradient may reach.
DIFFERENTIATED = (
    "BiasGelu(x, b)",
    "FastGelu(x, b)",
    "QuickGelu <",
    "transBatchB",
    "RotaryEmbedding <num_heads",
    "RotaryEmbedding <interleaved",
    "SkipLayerNormalization(x, skip, g, b, c)",
    "SkipSimplifiedLayerNormalization(x, skip, g)",
    "= SimplifiedLayerNormalization <",
    "mask, numbers)",
    "mask, , more)",
    "mask6, past)",
    "q, x, skip, bias, mask)",
    "rotary_interleaved",
    "(packed",
    "smooth_softmax",
)


@pytest.mark.parametrize(
    ("body", "inputs"),
    [(body, inputs) for body, _, inputs in CASES if any(form in body for form in DIFFERENTIATED)],
)
def test_gradients_are_central_differences_of_the_kernel(body, inputs, run):
    """The derivative is that of the expansion, the differences are those of the kernel."""
    feeds = values(inputs)
    model = model_of(body, "y a c" if "a, c" in body else "y", feeds)
    del model.graph.output[1:]
    names = [name for name, array in feeds.items() if array.dtype == np.float32 and array.size]
    if "cos16" in feeds:
        names = [name for name in names if name not in ("cos16", "sin16")]
    rng = np.random.default_rng(1)
    seed = rng.normal(size=run(model, feeds)["y"].shape)
    gradients = run(
        onnx_derivative(model, weights=[], inputs=names), {**feeds, "y_grad": seed.astype(np.float32)}
    )
    for name in names:
        change = (1e-2 * rng.normal(size=feeds[name].shape)).astype(np.float32)
        above, below = (run(model, {**feeds, name: feeds[name] + s * change})["y"] for s in (1, -1))
        difference = ((above.astype(np.float64) - below) * seed).sum() / 2
        gradient = gradients[f"{name}_grad"].astype(np.float64)
        size = np.linalg.norm(gradient) * np.linalg.norm(change)
        assert (gradient * change).sum() == pytest.approx(difference, abs=3e-3 * size)


def test_faults_of_optimizers(run):
    """A missing import of the domain, and an operator in the standard domain, are accepted."""
    feeds = values("x b g")
    model = model_of("h = ms.BiasGelu(x, b)  y = SimplifiedLayerNormalization(h, g)", "y", feeds)
    expected = run(model, feeds)["y"]
    del model.opset_import[1:]
    gradient = onnx_derivative(model, options=DerivativeOptions.KeepOutputs, weights=[], inputs=["g"])
    got = run(gradient, {**feeds, "y_grad": np.ones_like(expected)})
    np.testing.assert_allclose(got["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "inputs", "reason"),
    [
        (
            "y = ms.Attention <num_heads = 3, do_rotary = 1> (x, W, bias)",
            "x W bias",
            "attribute do_rotary",
        ),
        (
            f"y, a, c = {_GQA}> (big, shared, shared_v, pk16, pk16, lengths, total)",
            "big shared shared_v pk16 lengths total",
            "input past_key",
        ),
        (
            "y, m, i = ms.SkipLayerNormalization(x, skip, g, b)",
            "x skip g b",
            "outputs mean and inv_std_var",
        ),
    ],
)
def test_operators_without_an_expansion_are_named(body, inputs, reason):
    feeds = values(inputs)
    outputs = "y i" if " i = " in body else "y"
    with pytest.raises(NotTrainableError, match=reason):
        onnx_derivative(model_of(body, outputs, feeds), weights=[], inputs=[inputs.split()[0]])
