"""Convolutions: strides that leave a rest, dilations, groups and paddings each break a naive gradient.

The sizes select the formula of a gradient, so each formula is tried at the edges of its range of sizes.
"""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.portable import differentiate

CONV = [
    ("Conv", (2, 3, 5, 6), (4, 3, 3, 2)),
    ("Conv<strides = [2, 2], pads = [1, 0, 1, 1]>", (2, 3, 5, 6), (4, 3, 3, 2)),
    ("Conv<strides = [3, 2]>", (1, 2, 7, 6), (2, 2, 2, 3)),
    ("Conv<dilations = [2, 1], strides = [1, 3]>", (1, 2, 6, 7), (2, 2, 2, 2)),
    ("Conv<group = 2, pads = [1, 1, 1, 1]>", (2, 4, 4, 4), (6, 2, 3, 3)),
    ("Conv<group = 3>", (2, 3, 4, 4), (3, 1, 3, 3)),
    ('Conv<auto_pad = "VALID">', (1, 2, 5, 6), (3, 2, 3, 3)),
    ("Conv<strides = [2]>", (2, 2, 7), (3, 2, 2)),
    ("Conv<strides = [2, 2, 2]>", (1, 1, 4, 4, 4), (1, 1, 2, 2, 2)),
]

# One channel in each group: few rows, more rows, wide images in blocks of columns, separate images.
CHANNELS = [
    ("Conv<group = 2, pads = [2, 2, 2, 2]>", (2, 2, 2, 5), (2, 1, 5, 5)),
    ("Conv<group = 2, pads = [1, 1, 1, 1]>", (2, 2, 9, 8), (2, 1, 3, 3)),
    ("Conv<group = 2, pads = [1, 1, 1, 1], strides = [2, 2]>", (2, 2, 14, 9), (2, 1, 3, 3)),
    (
        "Conv<group = 2, pads = [0, 2, 1, 0], strides = [3, 2], dilations = [1, 2]>",
        (1, 2, 15, 10),
        (2, 1, 2, 3),
    ),
    ("Conv<group = 2, pads = [1, 1, 1, 1]>", (2, 2, 3, 35), (2, 1, 3, 3)),
    ("Conv<group = 2, pads = [0, 1, 0, 0], strides = [1, 2]>", (1, 2, 7, 40), (2, 1, 2, 3)),
    ("Conv<group = 1, pads = [4, 4, 4, 4]>", (1, 1, 2, 33), (1, 1, 3, 3)),
    ("Conv<group = 2, strides = [2, 3]>", (1, 2, 3, 36), (2, 1, 2, 1)),
    ("Conv<group = 2, dilations = [1, 13]>", (1, 2, 2, 36), (2, 1, 1, 3)),
    ("Conv<group = 2, dilations = [1, 12]>", (1, 2, 2, 50), (2, 1, 1, 3)),
    ("Conv<group = 2, dilations = [1, 11], strides = [1, 3]>", (1, 2, 2, 45), (2, 1, 1, 3)),
    ("Conv<group = 2>", (2, 2, 66, 34), (2, 1, 1, 2)),
    ("Conv<group = 2, strides = [2, 1], pads = [2, 1, 2, 1]>", (2, 2, 7, 6), (2, 1, 5, 3)),
    ("Conv<group = 2, strides = [3, 1], pads = [1, 0, 3, 0]>", (1, 2, 2, 20), (2, 1, 1, 2)),
]

# Few channels in each group: neighbours are multiplied as if they were one.
GROUPS = [
    ("Conv<group = 6, pads = [1, 1, 1, 1]>", (2, 12, 4, 4), (18, 2, 3, 3)),
    ("Conv<group = 3, strides = [2, 2]>", (2, 6, 5, 5), (3, 2, 2, 2)),
    ("Conv<group = 2, pads = [1, 1, 1, 1]>", (2, 2, 4, 4), (6, 1, 3, 3)),
    ("Conv<group = 2>", (1, 2, 9), (2, 1, 4)),
    # many taps of a sequence
    ("Conv<group = 2, pads = [3, 4], strides = [2]>", (2, 4, 11), (6, 2, 9)),
    ("Conv<group = 3, dilations = [2]>", (2, 6, 24), (3, 2, 9)),
    ("Conv<group = 2, strides = [1, 2, 1]>", (1, 4, 3, 4, 3), (4, 2, 2, 2, 2)),
]

# All channels in one group: many or few, one tap or more than are cut out, sums over each image alone.
ONE_GROUP = [
    ("Conv<pads = [1, 1, 1, 1]>", (2, 17, 3, 4), (2, 17, 3, 3)),
    ("Conv<pads = [1, 0, 1, 1], strides = [1, 2]>", (2, 16, 3, 5), (3, 16, 2, 2)),
    ("Conv<pads = [1, 0, 1, 1], strides = [2, 3], dilations = [1, 2]>", (2, 3, 5, 8), (2, 3, 2, 3)),
    ("Conv", (2, 17, 2, 3), (3, 17, 1, 1)),
    ("Conv", (3, 4, 1, 1), (5, 4, 1, 1)),
    ("Conv<strides = [2, 2]>", (2, 17, 4, 5), (3, 17, 1, 1)),
    ("Conv<strides = [2, 2], pads = [1, 1, 1, 1]>", (2, 3, 3, 3), (3, 3, 1, 1)),
    ("Conv", (2, 2, 16, 14), (3, 2, 2, 1)),
    ("Conv", (2, 17, 16, 12), (2, 17, 1, 1)),
    ("Conv<strides = [5]>", (2, 2, 80), (2, 2, 70)),
    ("Conv<pads = [3, 3, 3, 3]>", (1, 2, 3, 3), (2, 2, 2, 2)),
    ("Conv<pads = [1, 0, 1, 2]>", (2, 3, 3, 3), (2, 3, 1, 1)),
    ("Conv<pads = [1, 1, 1, 1]>", (2, 4, 3, 4), (2, 4, 3, 3)),
    ("Conv<pads = [1, 0, 0, 2], dilations = [2, 1]>", (2, 4, 5, 4), (2, 4, 2, 3)),
    ("Conv<pads = [3, 3, 3, 3]>", (1, 4, 3, 3), (2, 4, 2, 2)),
    ("Conv", (2, 2, 16, 14), (1, 2, 2, 1)),
    ("Conv<pads = [1, 1]>", (1, 4, 7), (2, 4, 3)),
    # channels last; then rows that are too long
    ("Conv<pads = [2, 1, 0, 1], strides = [2, 1], dilations = [1, 2]>", (2, 16, 4, 5), (16, 16, 2, 2)),
    ("Conv<pads = [2, 1], strides = [3]>", (1, 16, 9), (9, 16, 3)),
    ("Conv<strides = [1, 2, 1]>", (2, 16, 2, 4, 2), (9, 16, 2, 1, 1)),
    ("Conv", (1, 16, 130), (9, 16, 2)),
]

# Windows side by side, as in embeddings of patches; the last one leaves a rest of the image.
PATCHES = [
    ("Conv<strides = [4, 4]>", (2, 3, 8, 12), (5, 3, 4, 4)),
    ("Conv<strides = [16]>", (2, 2, 32), (3, 2, 16)),
    ("Conv<strides = [4, 4]>", (2, 3, 9, 8), (5, 3, 4, 4)),
]

SAME = [
    ('Conv<auto_pad = "SAME_UPPER", strides = [2, 2]>', (1, 2, 5, 6), (3, 2, 3, 3)),
    ('Conv<auto_pad = "SAME_LOWER">', (1, 2, 5, 6), (3, 2, 2, 2)),
    ('Conv<auto_pad = "SAME_LOWER", group = 2, strides = [2, 1]>', (1, 2, 5, 6), (2, 1, 4, 4)),
]

TRANSPOSE = [
    ("ConvTranspose", (2, 3, 4, 3), (3, 4, 3, 2), 4),
    ("ConvTranspose<strides = [2, 2], pads = [1, 0, 1, 1]>", (2, 3, 4, 3), (3, 4, 3, 2), 4),
    ("ConvTranspose<strides = [2, 2], output_padding = [1, 1]>", (1, 2, 3, 3), (2, 2, 3, 3), 2),
    ("ConvTranspose<dilations = [2, 2]>", (1, 2, 3, 3), (2, 2, 2, 2), 2),
    ("ConvTranspose<group = 2>", (1, 4, 3, 3), (4, 3, 2, 2), 6),
    ("ConvTranspose<group = 2, strides = [2, 2], output_padding = [1, 1]>", (1, 2, 4, 4), (2, 1, 3, 3), 2),
    *(
        (f'ConvTranspose<auto_pad = "{auto}", {more}>', (2, 4, 3, 4), (4, 3, 3, 2), 6)
        for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for more in (
            "strides = [2, 1], group = 2",
            "strides = [3, 4], group = 2",
            "strides = [2, 1], group = 2, output_padding = [1, 0]",
            "dilations = [2, 3], strides = [2, 2], group = 2",
        )
    ),
]

GIVEN_SHAPE = [
    "output_shape = [6, 7]",
    'output_shape = [6, 7], auto_pad = "SAME_UPPER"',
    "output_shape = [9, 8]",
    "output_shape = [8, 10], output_padding = [1, 0]",
    "output_shape = [5, 9], dilations = [2, 1], group = 2",
]


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize(("node", "x", "w"), CONV + CHANNELS + GROUPS + ONE_GROUP + PATCHES)
def test_conv(check, node, x, w, dims):
    check(f"Y = {node}(A, B, C)", {"A": x, "B": w, "C": w[:1]}, dims, known=("B",), known_axes=(1,))


@pytest.mark.parametrize(("node", "x", "w"), SAME)
def test_conv_with_auto_pad(check, node, x, w):
    check(f"Y = {node}(A, B, C)", {"A": x, "B": w, "C": w[:1]})


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize(("node", "x", "w", "channels"), TRANSPOSE)
def test_conv_transpose(check, node, x, w, channels, dims):
    check(f"Y = {node}(A, B, C)", {"A": x, "B": w, "C": (channels,)}, dims, known=("B",), known_axes=(1,))


@pytest.mark.parametrize("attributes", GIVEN_SHAPE)
def test_conv_transpose_to_a_given_shape(check, check_runtime, attributes):
    text = f"Y = ConvTranspose<strides = [2, 2], {attributes}>(A, B)"
    operands = {"A": (2, 4, 4, 4), "B": (4, 3, 2, 3)}
    check(text, operands)
    check_runtime(text, operands)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("output_shape = [5, 5]", "needs known spatial sizes of 'A'"),
        ("strides = [1, 2], output_padding = [0, 2]", "reaches past its windows by a stride"),
    ],
)
def test_conv_transpose_that_is_refused(check, attributes, message):
    operands = {"A": (1, 2, 4, 4), "B": (2, 2, 3, 3)}
    with pytest.raises(NotTrainableError, match=f"ConvTranspose .*computing 'Y'.*{message}"):
        check(f"Y = ConvTranspose<{attributes}>(A, B)", operands, "hidden", known=("B",))


@pytest.mark.parametrize(("node", "x", "w", "channels"), TRANSPOSE[6:])
def test_conv_transpose_with_auto_pad_in_the_runtime(check_runtime, node, x, w, channels):
    check_runtime(f"Y = {node}(A, B)", {"A": x, "B": w}, "hidden", known=("B",), known_axes=(1,))


def test_conv_transpose_with_auto_pad_is_differentiable_again(check_twice):
    text = 'Y = ConvTranspose<strides = [2, 3], auto_pad = "SAME_LOWER">(A, B)'
    check_twice(text, {"A": (1, 2, 3, 3), "B": (2, 2, 3, 2)})


@pytest.mark.parametrize(
    ("node", "x", "w"), [CHANNELS[0], CHANNELS[2], CHANNELS[10], GROUPS[0], ONE_GROUP[1], ONE_GROUP[4]]
)
def test_the_gradient_is_differentiable_again(check_twice, node, x, w):
    check_twice(f"Y = {node}(A, B)", {"A": x, "B": w})


def test_groups_of_unknown_channels_are_refused_with_their_place():
    """Neither the image nor the weight determines the number of channels of a group."""
    image, weight = ("N", "C", 4, 4), ("M", "D", 2, 2)
    with pytest.raises(NotTrainableError, match="Conv .*computing 'Y'.* number of channels of 'A'"):
        gradient(image, weight, ("N", "M", 3, 3), wrt=["B"], group=2)


def test_no_product_is_over_nothing():
    """Some runtimes leave such a product unset: the gradient would be earlier contents of memory."""
    attributes = {"group": 2, "strides": [3, 1], "pads": [1, 0, 3, 0]}
    found = gradient((1, 2, 2, 20), (2, 1, 1, 2), (1, 2, 2, 19), wrt=["B"], **attributes)
    values = onnx.shape_inference.infer_shapes(found, data_prop=True).graph.value_info
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}
    products = [node for node in found.graph.node if node.op_type == "MatMul"]
    assert products
    assert all(np.prod(shapes[name]) > 0 for node in products for name in node.input if name in shapes)


# Speed: a formula that is right but unfit for the sizes makes a step several times slower.

DEPTHWISE = {"group": 32, "pads": [1, 1, 1, 1]}


def conv(x, w, y, element=TensorProto.FLOAT, **attributes):
    """Return the model of one convolution."""
    values = [
        helper.make_tensor_value_info(name, element, shape)
        for name, shape in zip("ABY", (x, w, y), strict=True)
    ]
    node = helper.make_node("Conv", ["A", "B"], ["Y"], **attributes)
    graph = helper.make_graph([node], "conv", values[:2], values[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def gradient(x, w, y, wrt, **attributes):
    """Return the gradient graph of one convolution."""
    return ir.to_proto(differentiate(ir.from_proto(conv(x, w, y, **attributes)), ["Y"], wrt))


def operators(*sizes, **options):
    """Return the operators of a gradient beside the convolution itself."""
    nodes = gradient(*sizes, **options).graph.node
    return {node.op_type for node in nodes if "A" not in node.input or node.op_type != "Conv"}


@pytest.mark.parametrize(
    ("x", "w", "y", "attributes", "is_plain"),
    [
        ((8, 32, 28, 28), (32, 1, 3, 3), (8, 32, 28, 28), DEPTHWISE, True),
        ((8, 32, 28, 28), (32, 1, 3, 3), (8, 32, 14, 28), {**DEPTHWISE, "strides": [2, 1]}, True),
        ((8, 32, 28, 28), (32, 1, 3, 3), (8, 32, 14, 14), {**DEPTHWISE, "strides": [2, 2]}, False),
        ((8, 32, 28, 28), (16, 32, 3, 3), (8, 16, 26, 26), {}, True),
        ((8, 32, 28, 28), (64, 32, 3, 3), (8, 64, 26, 26), {}, False),
        ((8, 32, 28, 28), (64, 32, 1, 1), (8, 64, 28, 28), {}, True),
        ((1, 512, 4, 4), (512, 512, 3, 3), (1, 512, 2, 2), {}, False),
    ],
)
def test_the_image_s_gradient_is_a_plain_convolution_where_that_is_faster(x, w, y, attributes, is_plain):
    found = operators(x, w, y, wrt=["A"], **attributes)
    assert ("Conv" in found, "ConvTranspose" in found) == (is_plain, not is_plain)


@pytest.mark.parametrize(
    ("x", "w", "y", "attributes"),
    [
        ((8, 32, 28, 28), (32, 1, 3, 3), (8, 32, 28, 28), DEPTHWISE),
        ((8, 32, 2, 96), (32, 1, 3, 3), (8, 32, 2, 96), DEPTHWISE),
        ((8, 32, 28, 28), (64, 32, 1, 1), (8, 64, 28, 28), {}),
        ((8, 32, 28, 28), (64, 32, 3, 3), (8, 64, 13, 13), {"strides": [2, 2]}),
        ((8, 3, 28, 28), (64, 3, 3, 3), (8, 64, 26, 26), {}),
        ((8, 32, 28, 28), (64, 4, 3, 3), (8, 64, 26, 26), {"group": 8}),
    ],
)
def test_the_weight_s_gradient_is_a_product(x, w, y, attributes):
    found = operators(x, w, y, wrt=["B"], **attributes)
    assert "MatMul" in found
    assert not found & {"Conv", "Shape"}


def test_few_channels_are_multiplied_once_for_all_taps():
    """Nine products with three columns each would take nine times as long as one with 27."""
    sizes = (8, 3, 28, 28), (64, 3, 3, 3), (8, 64, 26, 26)
    nodes = gradient(*sizes, wrt=["B"]).graph.node
    assert [node.op_type for node in nodes].count("MatMul") == 1


def test_the_gradient_is_cut_where_it_has_fewer_channels():
    """Nine parts of 8 channels are copied, not nine of 32."""
    nodes = gradient((8, 32, 16, 16), (8, 32, 3, 3), (8, 8, 16, 16), wrt=["B"], pads=[1, 1, 1, 1]).graph.node
    cut = {name for node in nodes if node.op_type == "Slice" for name in node.input[:1]}
    padded = {name: node.input[0] for node in nodes if node.op_type == "Pad" for name in node.output}
    assert {padded[name] for name in cut} == {"Y_grad"}
    assert [node.op_type for node in nodes].count("MatMul") == 1


@pytest.mark.parametrize(("channels", "attributes"), [(32, DEPTHWISE), (64, {"pads": [1, 1, 1, 1]})])
def test_large_images_are_not_moved(channels, attributes):
    """Joining the same channels of all images would copy both tensors for nothing."""
    sizes = (8, 32, 56, 56), (channels, 32 // attributes.get("group", 1), 3, 3), (8, channels, 56, 56)
    nodes = gradient(*sizes, wrt=["B"], **attributes).graph.node
    orders = {tuple(node.attribute[0].ints) for node in nodes if node.op_type == "Transpose"}
    assert orders <= {(0, 2, 1), (0, 1, 3, 2), (1, 0)}


@pytest.mark.parametrize(
    ("x", "w", "y", "attributes"),
    [
        ((8, 32, 112, 112), (32, 1, 5, 5), (8, 32, 108, 108), {"group": 32}),
        (
            (8, 8, 4, 512),
            (8, 1, 3, 3),
            (8, 8, 4, 512),
            {"group": 8, "dilations": [1, 18], "pads": [1, 18, 1, 18]},
        ),
        ((8, 1, 4096), (64, 1, 256), (8, 64, 31), {"strides": [128]}),
    ],
)
def test_the_gradient_graph_stays_small(x, w, y, attributes):
    """No tables of the size of an image, no node for each of many taps."""
    found = gradient(x, w, y, wrt=["A", "B"], **attributes)
    assert len(found.graph.node) < 80
    assert found.ByteSize() < 50_000


# Against other implementations, over all settings.


@st.composite
def settings_of_conv(draw, ranks=(1, 2, 3)):
    """Draw the shapes and attributes of a convolution that gives at least one element."""
    rank = draw(st.sampled_from(ranks))
    of = [st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3)]
    kernel, strides, dilations, pads = (draw(st.tuples(*[numbers] * rank)) for numbers in of)
    widest = {1: 60, 2: 40, 3: 7}[rank]
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    least = [max(1, e - 2 * p) for e, p in zip(extent, pads, strict=True)]
    size = [draw(st.integers(low, max(low, widest))) for low in least]
    group = draw(st.sampled_from([1, 1, 2, 3, 6]))
    n_in, n_out = draw(st.sampled_from([(1, 1), (1, 1), (1, 2), (2, 1), (2, 3), (17, 2)]))
    x = (draw(st.integers(1, 3)), group * n_in, *size)
    w = (group * n_out, n_in, *kernel)
    return x, w, {"strides": strides, "dilations": dilations, "group": group, "pads": pads}


def size_of_result(x, w, attributes):
    moves = zip(x[2:], w[2:], *(attributes[name] for name in ("strides", "dilations", "pads")), strict=True)
    return (x[0], w[0], *((n + 2 * p - (k - 1) * d - 1) // s + 1 for n, k, s, d, p in moves))


def make(case, element):
    """Return the gradient graph of a case, random operands, and a random gradient of the result."""
    x, w, attributes = case
    y = size_of_result(*case)
    given = {**attributes, "pads": attributes["pads"] * 2}
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.normal(size=shape) for name, shape in zip(("A", "B", "Y_grad"), (x, w, y), strict=True)
    }
    return gradient(x, w, y, wrt=["A", "B"], element=element, **given), feeds


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(settings_of_conv())
def test_gradients_are_torch_s(evaluate, case):
    torch = pytest.importorskip("torch", reason="the comparison with torch needs torch")
    model, feeds = make(case, TensorProto.DOUBLE)
    _, w, attributes = case
    function = getattr(torch.nn.functional, f"conv{len(w) - 2}d")
    leaves = [torch.tensor(feeds[name], requires_grad=True) for name in "AB"]
    result = function(
        *leaves, stride=attributes["strides"], padding=attributes["pads"],
        dilation=attributes["dilations"], groups=attributes["group"],
    )  # fmt: skip
    wanted = torch.autograd.grad(result, leaves, torch.tensor(feeds["Y_grad"]))
    for mine, theirs in zip(evaluate(model, feeds)[1:], wanted, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.native
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(settings_of_conv(ranks=(2,)))
def test_gradients_are_those_of_onnxruntime_training(case):
    """The same numbers in single precision, in the runtime, as from its own gradient operator."""
    model, feeds = make(case, TensorProto.FLOAT)
    _, w, attributes = case
    own = helper.make_node(
        "ConvGrad", ["Y_grad", "A", "B"], ["A_grad", "B_grad"], domain="com.microsoft",
        **{**attributes, "pads": attributes["pads"] * 2, "kernel_shape": w[2:]},
    )  # fmt: skip
    values = [*model.graph.input, *model.graph.output[1:]]
    graph = helper.make_graph([own], "own", values[:3], values[3:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    theirs = run(helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds)
    for mine, wanted in zip(run(model, feeds)[1:], theirs, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-5 * (1 + np.abs(wanted).max()))


def run(model: onnx.ModelProto, feeds: dict) -> list:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {name: array.astype(np.float32) for name, array in feeds.items()})
