"""Converted graphs of old opsets compute the same: the runtime reads both."""

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxsgd.graph.opsets.versions import bring_into_range

ALL = (9, 10, 11, 12)
#: Inputs that many nodes share.
CUBE, PAIR, IMAGE = "float[2,3,4] X", "float[2,3,4] X; float[4] B", "float[2,3,6,6] X"
OPEN = "float[N,M,4] X"


def forms(opsets, inputs, *nodes, constants=""):
    """Return the cases of several nodes over the same inputs and constants."""
    return [(opsets, node, inputs, constants) for node in nodes]


def reduction(name):
    """Return the cases of one reduction; arguments of a logarithm are not negative."""
    before = "Z = Abs(X)" if name == "ReduceLogSum" else "Z = Identity(X)"
    options = ("", " <keepdims = 0> ", " <axes = [1], keepdims = 0> ", " <axes = [0, 2]> ")
    return [
        *forms(ALL, CUBE, *(f"{before} Y = {name}{given}(Z)" for given in options)),
        *forms((11, 12), CUBE, f"{before} Y = {name} <axes = [-1]> (Z)"),
    ]


def softmax(name):
    """Return the cases of an operator whose axis changed its meaning."""
    return [
        *forms(ALL, CUBE, f"Y = {name}(X)", *(f"Y = {name} <axis = {axis}> (X)" for axis in (0, 1, 2))),
        *forms((11, 12), CUBE, *(f"Y = {name} <axis = {axis}> (X)" for axis in (-1, -2))),
        *forms(ALL, OPEN, *(f"Y = {name} <axis = {axis}> (X)" for axis in (1, 2))),
        *forms(
            ALL,
            OPEN,
            f"A = Relu(X) B = Reshape(A, s) Y = {name} <axis = 2> (B)",
            constants="int64[3] s={0,0,-1}",
        ),
        *forms(ALL, "float[N,M] X", f"Y = {name} <axis = 1> (X)"),
    ]


def resize(mode):
    """Return the cases of one mode of Resize and of its predecessor Upsample."""
    scales = ("1,1,2,2", "1,1,1.5,2.5", "1,1,0.5,0.6")
    places = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn")
    upsample, old = f'Y = Upsample <mode = "{mode}"> (X, s)', f'Y = Resize <mode = "{mode}"> (X, s)'
    new = [
        f'Y = Resize <mode = "{mode}", coordinate_transformation_mode = "{place}"> (X, r, s)'
        for place in places
    ]
    sized = f'Y = Resize <mode = "{mode}"> (X, r, s, z)'
    return [
        *(case for s in scales[:2] for case in forms((9,), IMAGE, upsample, constants=f"float[4] s={{{s}}}")),
        *(case for s in scales for case in forms((10,), IMAGE, old, constants=f"float[4] s={{{s}}}")),
        *forms((11, 12), IMAGE, *new, constants="float[0] r={}, float[4] s={1,1,1.5,2.5}"),
        *forms((11, 12), IMAGE, sized, constants="float[0] r={}, float[0] s={}, int64[4] z={2,3,9,12}"),
    ]


REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip

#: The opsets that have a node in this form, the node, its inputs, and its constants.
NODES = [
    *(case for name in REDUCTIONS for case in reduction(name)),
    *(case for name in ("Hardmax", "LogSoftmax", "Softmax") for case in softmax(name)),
    *(case for mode in ("linear", "nearest") for case in resize(mode)),
    *forms(
        ALL,
        CUBE,
        "Y = Elu(X)",
        "Y = HardSigmoid(X)",
        "Y = LeakyRelu(X)",
        "Y = Relu(X)",
        "Y = Selu(X)",
        "Y = Sigmoid(X)",
        "Y = Softplus(X)",
        "Y = Shape(X)",
        "Y = IsNaN(X)",
        "Y = Flatten(X)",
        "Y = Transpose(X)",
        "Y = Flatten <axis = 0> (X)",
        "Y = Flatten <axis = 1> (X)",
        "Y = Flatten <axis = 2> (X)",
        "Y = Flatten <axis = 3> (X)",
        "Y = Transpose <perm = [2, 0, 1]> (X)",
        "Y = ArgMax(X)",
        "Y = ArgMax <axis = 2, keepdims = 0> (X)",
        "Y = ArgMin(X)",
        "Y = ArgMin <axis = 2, keepdims = 0> (X)",
        "Y = LpNormalization <axis = 1, p = 1> (X)",
        "Y = Cast <to = 7> (X)",
        "Z = Greater(X, X) Y = Cast <to = 1> (Z)",
        "Y = Clip(X)",
        "Y = Concat <axis = 1> (X, X)",
        "S = Shape(X) Y = ConstantOfShape(S)",
        "S = Shape(X) Y = ConstantOfShape <value = float[1] {2}> (S)",
        "Y = Dropout(X)",
        "Y, Z = Split <axis = 1, split = [1, 2]> (X)",
        "Y, Z = Split <axis = 2> (X)",
        "Y, Z = Split(X)",
        "Y = Unsqueeze <axes = [0, 2]> (X)",
        "Y = NonZero(X)",
        "Y = Shrink <lambd = 0.3, bias = 0.1> (X)",
    ),
    *forms(ALL, CUBE, "Y = Gather <axis = 1> (X, i)", constants="int64[2] i={0,2}"),
    *forms(ALL, CUBE, "Y = Reshape(X, s)", constants="int64[2] s={0,-1}"),
    *forms(ALL, CUBE, "Y = Tile(X, r)", constants="int64[3] r={1,2,3}"),
    *forms(ALL, CUBE, "Y = Compress <axis = 1> (X, q)", constants="bool[3] q={1,0,1}"),
    *forms(ALL, "float[2,1,4] X", "Y = Squeeze(X)", "Y = Squeeze <axes = [1]> (X)"),
    *forms(ALL, "float[2,1,4] X", "Y = Expand(X, s)", constants="int64[3] s={2,3,4}"),
    *forms((11, 12), "float[2,1,4] X", "Y = Squeeze <axes = [-2]> (X)"),
    *forms(
        (11, 12),
        "float[2,1,4] X",
        "q = Cast <to = 9> (k) Y = If(q) <then_branch = t() => (float[2, 4] a) { a = ReduceSum "
        "<axes = [1], keepdims = 0> (X) }, else_branch = e() => (float[2, 4] b) { c = Relu(X) "
        "b = Squeeze <axes = [1]> (c) }>",
        constants="int64 k={1}",
    ),
    *forms(
        ALL,
        IMAGE,
        "Y = GlobalAveragePool(X)",
        "Y = GlobalMaxPool(X)",
        "Y = LRN <size = 3> (X)",
        "Y = MeanVarianceNormalization(X)",
        "Y = AveragePool <kernel_shape = [3, 3]> (X)",
        "Y = AveragePool <kernel_shape = [2, 2], strides = [2, 2], pads = [1, 0, 1, 0]> (X)",
        'Y = AveragePool <kernel_shape = [3, 3], auto_pad = "SAME_LOWER"> (X)',
        "Y = MaxPool <kernel_shape = [3, 3]> (X)",
        "Y = MaxPool <kernel_shape = [2, 2], strides = [2, 2], pads = [1, 0, 1, 0]> (X)",
        'Y = MaxPool <kernel_shape = [3, 3], auto_pad = "SAME_LOWER"> (X)',
        "Y = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1> (X)",
        "Y, I = MaxPool <kernel_shape = [2, 2]> (X)",
        "P, I = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (X) Y = MaxUnpool "
        "<kernel_shape = [2, 2], strides = [2, 2]> (P, I)",
        "Y = GlobalLpPool(X)",
        "Y = LpPool <kernel_shape = [2, 2]> (X)",
        "Y = SpaceToDepth <blocksize = 2> (X)",
    ),
    *forms(
        ALL,
        IMAGE,
        "Y = BatchNormalization(X, s, b, m, v)",
        "Y = BatchNormalization <epsilon = 0.1, momentum = 0.5> (X, s, b, m, v)",
        constants="float[3] s={1,2,3}, float[3] b={1,0,2}, float[3] m={0.1,0.2,0.3}, float[3] v={1,2,0.5}",
    ),
    *forms(
        ALL, IMAGE, "Y = InstanceNormalization(X, s, b)", constants="float[3] s={1,2,3}, float[3] b={1,0,2}"
    ),
    *forms(
        (11, 12),
        CUBE,
        "Y = Flatten <axis = -1> (X)",
        "Y = Concat <axis = -1> (X, X)",
        "Y, Z = Split <axis = -1> (X)",
        "Y = Unsqueeze <axes = [-1]> (X)",
        "Y = Round(X)",
    ),
    *forms((11, 12), CUBE, "Y = Clip(X, lo, hi)", constants="float lo={-0.5}, float hi={0.5}"),
    *forms((11, 12), CUBE, "Y = Clip(X, , hi)", constants="float hi={0.5}"),
    *forms((11, 12), CUBE, "Y = Gather <axis = 1> (X, i)", constants="int64[2] i={0,-1}"),
    *forms(
        (11, 12),
        CUBE,
        'Y = Pad <mode = "constant"> (X, p, v)',
        'Y = Pad <mode = "reflect"> (X, p, v)',
        'Y = Pad <mode = "edge"> (X, p, v)',
        constants="int64[6] p={0,1,1,0,1,2}, float v={0.7}",
    ),
    *forms((11, 12), CUBE, "Y = Pad(X, p)", constants="int64[6] p={0,1,1,0,1,2}"),
    *forms((11, 12), CUBE, "Y, I = TopK <axis = 1, largest = 0> (X, k)", constants="int64[1] k={2}"),
    *forms((11, 12), CUBE, "Y = CumSum(X, a)", constants="int64 a={1}"),
    *forms(
        (11, 12),
        CUBE,
        "q = Cast <to = 9> (k) Y = If(q) <then_branch = t() => (float[2, 3, 4] a) { a = "
        "Softmax <axis = 1> (X) }, else_branch = e() => (float[2, 3, 4] b) { b = Relu(X) }>",
        constants="int64 k={1}",
    ),
    *forms(
        ALL,
        PAIR,
        "Y = Add(X, B)",
        "Y = Sub(X, B)",
        "Y = Mul(X, B)",
        "Y = Div(X, B)",
        "Z = Abs(X) Y = Pow(Z, B)",
        "Y = Max(X, B)",
        "Y = Min(X, B)",
        "Y = Mean(X, B)",
        "Y = Sum(X, B)",
        "Y = PRelu(X, B)",
        "Y = Greater(X, B)",
        "Y = Less(X, B)",
        "P = Greater(X, B) Q = Less(X, B) Y = And(P, Q)",
        "P = Greater(X, B) Q = Less(X, B) Y = Or(P, Q)",
        "P = Greater(X, B) Q = Less(X, B) Y = Xor(P, Q)",
        "P = Greater(X, B) Y = Where(P, X, B)",
    ),
    *forms(ALL, PAIR, "Y = Where(q, X, B)", constants="bool[1] q={1}"),
    *forms((11, 12), PAIR, "Y = Equal(X, B)"),
    *forms(
        (12,),
        PAIR,
        "Y = GreaterOrEqual(X, B)",
        "Y = LessOrEqual(X, B)",
        'Y = Einsum <equation = "ijk, k->ij"> (X, B)',
    ),
    *forms(
        (12,),
        CUBE,
        "Y = ArgMax <axis = 1, select_last_index = 1> (X)",
        "Y = ArgMin <axis = 1, select_last_index = 1> (X)",
        "Y = Celu <alpha = 2.0> (X)",
    ),
    *forms(
        (9, 10),
        CUBE,
        "Y = Clip <min = -0.5, max = 0.5> (X)",
        "Y = Clip <min = -0.5> (X)",
        "Y = Clip <max = 0.5> (X)",
        'Y = Pad <pads = [0, 1, 1, 0, 1, 2], mode = "constant", value = 0.7> (X)',
        'Y = Pad <pads = [0, 1, 1, 0, 1, 2], mode = "reflect", value = 0.7> (X)',
        'Y = Pad <pads = [0, 1, 1, 0, 1, 2], mode = "edge", value = 0.7> (X)',
        "Y = Pad <pads = [0, 1, 1, 0, 1, 2]> (X)",
        "Y = Pad <pads = [0, 0, -1, 0, 0, -1]> (X)",
    ),
    *forms(
        ALL,
        "float[2,3,6,6] X; float[5,3,3,3] W",
        'Y = Conv <auto_pad = "SAME_UPPER"> (X, W)',
        "Y = Conv <pads = [1, 1, 1, 1]> (X, W)",
        "Y = Conv <strides = [2, 2]> (X, W)",
        "Y = Conv <dilations = [2, 2]> (X, W)",
    ),
    *forms(
        ALL,
        "float[2,3,6,6] X; float[3,5,3,3] W",
        "Y = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (X, W)",
        "Y = ConvTranspose <strides = [2, 2], output_shape = [12, 12]> (X, W)",
        'Y = ConvTranspose <auto_pad = "SAME_UPPER", strides = [2, 2]> (X, W)',
    ),
    *forms(
        (10, 11, 12),
        IMAGE,
        "Y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (X)",
        "Y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (X)",
        "Y = MaxPool <kernel_shape = [2, 2], dilations = [2, 2]> (X)",
    ),
    *forms(ALL, "float[2,9,2,2] X", "Y = DepthToSpace <blocksize = 3> (X)"),
    *forms((11, 12), "float[2,9,2,2] X", 'Y = DepthToSpace <blocksize = 3, mode = "CRD"> (X)'),
    *forms((9, 10, 11), CUBE, "Y = Dropout <ratio = 0.3> (X)"),
    *forms(ALL, "float[3,4] X", "Y = EyeLike(X)"),
    *forms((11, 12), "float[2,3] X", "Y = GatherElements <axis = 1> (X, i)", constants="int64[2,1] i={0,2}"),
    *forms((11, 12), "float[2,3] X", "Y = GatherND(X, i)", constants="int64[1,2] i={0,2}"),
    *forms(
        (11, 12),
        "float[2,3] X",
        "Y = ScatterElements <axis = 1> (X, i, u)",
        constants="int64[2,1] i={0,2}, float[2,1] u={7,8}",
    ),
    *forms(
        (11, 12), "float[2,3] X", "Y = ScatterND(X, i, u)", constants="int64[1,2] i={0,2}, float[1] u={7}"
    ),
    *forms(ALL, "float[3,4] A; float[4,5] B; float[5] C", "Y = Gemm(A, B, C)"),
    *forms(
        ALL,
        "float[4,3] A; float[4,5] B; float[1,5] C",
        "Y = Gemm <transA = 1, alpha = 0.5, beta = 0.3> (A, B, C)",
    ),
    *forms((11, 12), "float[3,4] A; float[4,5] B", "Y = Gemm(A, B)"),
    *forms(ALL, "float[2,3,4] A; float[4,5] B", "Y = MatMul(A, B)"),
    *forms(ALL, "float[3,4] A; float[4] B", "Y = MatMul(A, B)"),
    *forms(ALL, "int64[3] i", "Y = OneHot(i, d, v)", constants="int64 d={4}, float[2] v={0,1}"),
    *forms(
        (11, 12),
        IMAGE,
        'Y = Resize <mode = "cubic"> (X, r, s)',
        constants="float[0] r={}, float[4] s={1,1,2,2}",
    ),
    *forms(
        (9,),
        CUBE,
        "Y = Slice <axes = [1, 2], starts = [1, 0], ends = [3, -1]> (X)",
        "Y = Slice <starts = [1, 0], ends = [2, 9999]> (X)",
    ),
    *forms(
        (10, 11, 12),
        CUBE,
        "Y = Slice(X, a, b, d, e)",
        constants="int64[2] a={2,0}, int64[2] b={-9,3}, int64[2] d={1,2}, int64[2] e={-1,2}",
    ),
    *forms((10, 11, 12), CUBE, "Y, I = TopK <axis = 1> (X, k)", constants="int64[1] k={2}"),
    *forms((10, 11, 12), CUBE, "Y = IsInf(X)"),
    *forms(
        (9, 10),
        "float[2,3] X",
        "Y = Scatter <axis = 1> (X, i, u)",
        constants="int64[2,1] i={0,2}, float[2,1] u={7,8}",
    ),
    *forms((10, 11, 12), PAIR, "Y = Mod <fmod = 1> (X, B)"),
    *forms((11, 12), "float[2,3,3] X", "Y = Det(X)"),
    *forms((10, 11, 12), "float[4,2] X", "Y = ReverseSequence(X, l)", constants="int64[2] l={3,2}"),
    *forms((11, 12), "float[3] X", "Y = Unique <axis = 0> (X)"),
    *forms((11, 12), "", "Y = Range(a, b, d)", constants="int64 a={1}, int64 b={9}, int64 d={2}"),
    *forms(ALL, "float[5,2,3] X; float[1,4,3] W; float[1,4,4] Q", "Y, H = RNN <hidden_size = 4> (X, W, Q)"),
    *forms(ALL, "float[5,2,3] X; float[1,12,3] W; float[1,12,4] Q", "Y, H = GRU <hidden_size = 4> (X, W, Q)"),
    *forms(
        ALL, "float[5,2,3] X; float[1,16,3] W; float[1,16,4] Q", "Y, H, D = LSTM <hidden_size = 4> (X, W, Q)"
    ),
    *forms(
        ALL,
        "float[5,2,3] X; float[2,12,3] W; float[2,12,4] Q",
        'Y, H = GRU <hidden_size = 4, linear_before_reset = 1, direction = "bidirectional"> (X, W, Q)',
    ),
    *forms(
        (12,),
        "float[3,4] X",
        "Y = NegativeLogLikelihoodLoss(X, t)",
        "Y = SoftmaxCrossEntropyLoss(X, t)",
        constants="int64[3] t={0,1,3}",
    ),
    *forms(
        (11, 12),
        "float[2,4] X",
        "m = Shape(X) Y = Loop <body = g(int64 i, bool cc, float[2, 4] s) => (bool co, "
        "float[2, 4] so) { co = Identity(cc) z = Softmax <axis = 0> (s) so = Add(z, s) }> (n, "
        ", X)",
        constants="int64 n={3}",
    ),
]


def model_of(opset, body, inputs, constants):
    """Parse a graph whose outputs are those of the last node, of the types that inference gives them."""
    weights = f"<{constants}>" if constants else ""
    names = onnx.parser.parse_graph(f"g () => () {{ {body} }}").node[-1].output
    ends = f"({inputs.replace(';', ',')}) => ()"
    model = onnx.parser.parse_model(
        f'<ir_version: 6, opset_import: ["": {opset}]> g {ends} {weights} {{ {body} }}'
    )
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    inferred = onnx.shape_inference.infer_shapes(model).graph.output
    for value, known in zip(model.graph.output, inferred, strict=True):
        kind = known.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, None))
    return model


def feeds_of(model):
    rng, feeds = np.random.default_rng(0), {}
    for value in model.graph.input:
        shape = [dim.dim_value or 3 for dim in value.type.tensor_type.shape.dim]
        real = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        feeds[value.name] = (
            rng.normal(size=shape).astype(np.float32) if real else rng.integers(0, 3, size=shape)
        )
    return feeds


#: Operators with a changed meaning, or with a repair; the others take long and show little.
CHANGED = ("Clip", "Hardmax", "Pad", "ReduceSum(", "Resize", "Softmax(X)", "Split", "Unsqueeze", "Upsample")


@pytest.mark.parametrize(
    ("opsets", "body", "inputs", "constants"),
    [
        pytest.param(*case, marks=() if any(name in case[1] for name in CHANGED) else pytest.mark.slow)
        for case in NODES
    ],
)
def test_values_are_kept(opsets, body, inputs, constants, run):
    for opset in opsets:
        model = model_of(opset, body, inputs, constants)
        feeds = feeds_of(model)
        expected, got = run(model, feeds), run(bring_into_range(model), feeds)
        for name, array in expected.items():
            np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-6, err_msg=f"opset {opset}")
