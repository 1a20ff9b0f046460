"""The axis of the samples is found if it exists, and only then."""

import numpy as np
import pytest
from onnx import numpy_helper, parser, shape_inference
from onnx.reference import ReferenceEvaluator

from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.reading.sample_axis import Along, sample_axes, sample_rows
from onnxsgd.graph.reading.sample_axis_rules import RULES

HEAD = '<ir_version: 9, opset_import: ["": 20, "ai.onnx.ml": 3, "com.microsoft": 1]>'
X, IMAGE, CUBE = "float[N, 4] X", "float[N, 4, 5, 5] X", "float[N, 3, 4] X"

_rng = np.random.RandomState(0)


def _real(*shape):
    return _rng.normal(size=shape).astype(np.float32)


#: Constants that the graphs below use by name.
ARRAYS = {
    "W": _real(4, 2),
    "W2": _real(2, 4),
    "b": _real(4),
    "v": _real(4) ** 2 + 1,
    "K": _real(2, 4, 1, 1),
    "C": _real(4, 2, 1, 1),
    "IW": _real(1, 12, 4),
    "R3": _real(1, 12, 3),
    "R4": _real(1, 12, 4),
    "R12": _real(1, 12, 12),
    "half": np.float32(0.5),
    "offon": np.float32([0, 1]),
    "doubled": np.float32([1, 1, 2, 2]),
    "width": np.int32([1]),
    "nil": np.int64(0),
    "step": np.int64(1),
    "three": np.int64(3),
    "zero": [0],
    "one": [1],
    "two": [2],
    "four": [4],
    "last": [-1],
    "flat": [-1, 2],
    "rows": [0, -1],
    "parts": [0, 2, 6],
    "onetwo": [1, 2],
    "twoone": [2, 1],
    "pads": [0, 1, 0, 1],
    "front": [1, 0, 0, 0],
    "huge": [10**9, 10**9],
    "far": [-(10**9)],
}

_UNARY = (
    "Abs", "Acos", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf",
    "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log",
    "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu",
)  # fmt: skip
_BINARY = (
    "Add", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mul",
    "PRelu", "Pow", "Sub", "Sum",
)  # fmt: skip
_LOGIC = ["And", "Or", "Xor"]
_BITS = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
_POOLS = ["AveragePool", "MaxPool", "LpPool"]
_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
_I = "I = Cast<to = 7>(X)\n"
_B = "B = Greater(X, half)\n"

#: (inputs, body, axis of the samples in Y); the operator is the first word behind "Y = ".
FOUND = [
    *((X, f"Y = {op}(X)", 0) for op in _UNARY),
    *((X, f"Y = {op}(X, b)", 0) for op in _BINARY),
    *((X, f"{_B}Y = {op}(B, B)", 0) for op in _LOGIC),
    *((X, f"{_I}Y = {op}(I, I)", 0) for op in _BITS),
    *((IMAGE, f"Y = {op}<kernel_shape = [2, 2]>(X)", 0) for op in _POOLS),
    *((CUBE, f"Y = {op}<keepdims = 0>(X, one)", 0) for op in _REDUCTIONS),
    *(
        (CUBE, f"T = Transpose<perm = [1, 0, 2]>(X)\nY = {op}<keepdims = 0>(T, zero)", 0)
        for op in _REDUCTIONS
    ),
    *((IMAGE, f"Y = {op}(X)", 0) for op in ("GlobalAveragePool", "GlobalMaxPool")),
    *((X, f"Y = {op}(X)", 0) for op in ("Hardmax", "LogSoftmax", "LpNormalization", "Softmax")),
    *((X, f"Y = {op}<axis = 1, keepdims = 0>(X)", 0) for op in ("ArgMax", "ArgMin")),
    (X, f"{_B}Y = Not(B)", 0),
    (X, f"{_I}Y = BitwiseNot(I)", 0),
    (X, "Y = Mod<fmod = 1>(X, b)", 0),
    (IMAGE, "Y = Resize(X, , doubled)", 0),
    (CUBE, "S = Size(X)\nT = Cast<to = 1>(S)\nM = Mul(T, half)\nY = Tanh(X)", 0),
    (X, f'{_I}U = Cast<to = 12>(X)\nY = BitShift<direction = "LEFT">(U, U)', 0),
    (X, f"{_B}Y = Where(B, X, b)", 0),
    (X, "Y = Clip(X, half)", 0),
    (X, "Y = Cast<to = 11>(X)", 0),
    (X, "Y = CastLike(X, b)", 0),
    (X, "Y, mask = Dropout(X, half)", 0),
    (X, "Z = Cast<to = 3>(nil)\nY = QuantizeLinear(X, half, Z)", 0),
    (X, "Z = Cast<to = 3>(nil)\nQ = QuantizeLinear(X, half, Z)\nY = DequantizeLinear(Q, half, Z)", 0),
    (X, "Y = MatMul(X, W)", 0),
    (X, "Y = MatMul(X, b)", 0),
    (CUBE, "Y = MatMul(X, W)", 0),
    (CUBE, "T = Transpose<perm = [0, 2, 1]>(X)\nY = MatMul(X, T)", 0),
    (CUBE, "T = Transpose<perm = [1, 2, 0]>(X)\nY = MatMul(W2, T)", 2),
    (X, "T = Transpose(X)\nY = Gemm<transA = 1>(T, W)", 0),
    (X, "Y = Gemm(X, W)", 0),
    (CUBE, 'Y = Einsum<equation = "nij,jk->kni">(X, W)', 1),
    (CUBE, 'T = Transpose<perm = [0, 2, 1]>(X)\nY = Einsum<equation = "nij,njk->nik">(X, T)', 0),
    (CUBE, "Y = Transpose<perm = [2, 0, 1]>(X)", 1),
    (CUBE, "Y = Flatten(X)", 0),
    (CUBE, "Y = Reshape(X, flat)", 0),
    (CUBE, "Y = Reshape(X, parts)", 0),
    (X, "S = Shape(X)\nR = Gather(S, zero)\nT = Concat<axis = 0>(R, two, two)\nY = Reshape(X, T)", 0),
    (CUBE, "F = Reshape(X, flat)\nM = Mul(F, half)\nS = Shape(X)\nY = Reshape(M, S)", 0),
    (X, "U = Unsqueeze(X, zero)\nM = Mul(U, half)\nY = Squeeze(M, zero)", 0),
    (X, "Y = Unsqueeze(X, zero)", 1),
    (X, "Y = Reshape(X, last)", 0),
    (X, "M = Exp(X)\nY = Acosh(M)", 0),
    (CUBE, "Y = LayerNormalization(X, b)", 0),
    (IMAGE, "Y = Conv(X, K)", 0),
    (IMAGE, "Y = ConvTranspose(X, C)", 0),
    (IMAGE, "Y = BatchNormalization(X, b, v, b, v)", 0),
    (IMAGE, "Y = InstanceNormalization(X, b, v)", 0),
    (IMAGE, "Y = DepthToSpace<blocksize = 2>(X)", 0),
    (IMAGE, "Y = MeanVarianceNormalization<axes = [2, 3]>(X)", 0),
    ("float[N, 2, 4, 4] X", "Y = SpaceToDepth<blocksize = 2>(X)", 0),
    ("float[N, 2, 4, 4] X, float[N, 3, 3, 2] G", "Y = GridSample(X, G)", 0),
    (X, "Y = Concat<axis = 1>(X, X)", 0),
    (X, "Y, Z = Split<axis = 1, num_outputs = 2>(X)", 0),
    (X, "Y = Slice(X, zero, two, one)", 0),
    (X, "Y = Slice(X, rows, huge)", 0),
    (X, "Y = Gather<axis = 1>(X, two)", 0),
    (X, "A = ArgMax<axis = 1, keepdims = 0>(X)\nY = Gather(W, A)", 0),
    (X, "A = ArgMax<axis = 1, keepdims = 0>(X)\nY = OneHot(A, three, offon)", 0),
    (X, "A = ArgMax<axis = 1>(X)\nY = GatherElements<axis = 1>(X, A)", 0),
    (X, "A = ArgMax<axis = 1>(X)\nY = GatherND<batch_dims = 1>(X, A)", 0),
    (X, "A = ArgMax<axis = 1>(X)\nY = GatherND(W, A)", 0),
    (X, "Y, I = TopK(X, two)", 0),
    (X, "Y = CumSum(X, step)", 0),
    (X, "Y = Pad(X, pads)", 0),
    (X, "Y = Tile(X, onetwo)", 0),
    (CUBE, "Y = Trilu(X)", 0),
    (X, "S = Shape(X)\nY = Expand(b, S)", 0),
    (X, "S = Shape(X)\nE = Expand(half, S)\nY = Add(E, X)", 0),
    (X, "S = Shape(X)\nY = ConstantOfShape(S)", 0),
    (X, "S = Shape<start = 1>(X)\nT = Cast<to = 1>(S)\nY = Div(X, T)", 0),
    (CUBE, "T = Transpose<perm = [1, 0, 2]>(X)\nA, Y = GRU<hidden_size = 4>(T, IW, R4)", 1),
    (CUBE, "T = Transpose<perm = [1, 0, 2]>(X)\nA, Y = LSTM<hidden_size = 3>(T, IW, R3)", 1),
    (CUBE, "T = Transpose<perm = [1, 0, 2]>(X)\nA, Y = RNN<hidden_size = 12>(T, IW, R12)", 1),
    (X, "Y = ai.onnx.ml.Binarizer(X)", 0),
    (X, "Y = ai.onnx.ml.Normalizer(X)", 0),
    (X, "Y = ai.onnx.ml.Scaler<offset = [1.0], scale = [2.0]>(X)", 0),
    (X, "Y = ai.onnx.ml.Imputer<imputed_value_floats = [1.0]>(X)", 0),
    (X, "Y = ai.onnx.ml.ArrayFeatureExtractor(X, two)", 0),
    (X, "Y = ai.onnx.ml.LinearRegressor<coefficients = [1.0, 2.0, 3.0, 4.0], targets = 1>(X)", 0),
]

TREE = (
    "nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [0, 0, 0], "
    'nodes_values = [0.5, 0.0, 0.0], nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], '
    "nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0], "
)
VECTORS = (
    'kernel_type = "RBF", kernel_params = [0.5, 0.0, 3.0], rho = [0.1], '
    "support_vectors = [1.0, 0.0, 2.0, 1.0, 0.0, 1.0, 1.0, 0.0], "
)
LINEAR = "coefficients = [1.0, 2.0, 3.0, 4.0, 4.0, 3.0, 2.0, 1.0], intercepts = [0.1, 0.2], "
LABELS = "classlabels_ints = [3, 7]"

PACKED = (
    "B = Constant<value = uint8[2, 1, 8] {1, 20, 3, 4, 5, 6, 70, 8, 9, 10, 11, 120, 13, 14, 15, 16}>()\n"
    "S = Constant<value_floats = [0.5, 0.25]>()\n"
)

#: As above, for operators that the reference evaluator cannot compute, or that lowering would replace.
COMPUTED = [
    (IMAGE, "Y = GlobalLpPool(X)", 0),
    (IMAGE, "Y = LRN<size = 1>(X)", 0),
    (
        X,
        f"{PACKED}Y = com.microsoft.MatMulNBits<K = 4, N = 2, bits = 4, block_size = 16>(X, B, S)",
        0,
    ),
    (X, "Y = ai.onnx.ml.FeatureVectorizer<inputdimensions = [4, 4]>(X, X)", 0),
    (X, "Y = ai.onnx.ml.LabelEncoder<keys_floats = [0.5], values_floats = [2.0], default_float = 1.0>(X)", 0),
    (X, "Y = ai.onnx.ml.OneHotEncoder<cats_int64s = [0, 1]>(X)", 0),
    (X, f"L, Y = ai.onnx.ml.LinearClassifier<{LINEAR}{LABELS}>(X)", 0),
    (X, f"Y = ai.onnx.ml.SVMRegressor<{VECTORS}coefficients = [1.0, -1.0], n_supports = 2>(X)", 0),
    (
        X,
        f"L, Y = ai.onnx.ml.SVMClassifier<{VECTORS}coefficients = [1.0, -1.0], vectors_per_class = [1, 1], "
        f"{LABELS}>(X)",
        0,
    ),
    (
        X,
        f"Y = ai.onnx.ml.TreeEnsembleRegressor<{TREE}n_targets = 1, target_treeids = [0, 0], "
        "target_nodeids = [1, 2], target_ids = [0, 0], target_weights = [1.0, 2.0]>(X)",
        0,
    ),
    (
        X,
        f"L, Y = ai.onnx.ml.TreeEnsembleClassifier<{TREE}class_treeids = [0, 0], class_nodeids = [1, 2], "
        "class_ids = [0, 1], class_weights = [1.0, 1.0], classlabels_int64s = [3, 7]>(X)",
        0,
    ),
]

#: Operators without a case: forms of one opset, of strings, or of other runtimes, with cases in
#: tests/data/test_text.py and tests/learner/test_converted.py.
UNTESTED = {
    ("", "GroupNormalization"),
    ("", "StringNormalizer"),
    ("", "TfIdfVectorizer"),
    ("ai.onnx.ml", "TreeEnsemble"),
    ("com.microsoft", "Tokenizer"),
}

#: (inputs, body, reason why Y has no axis of samples)
MIXED = [
    (
        X,
        "S = Shape(X)\nR = Gather(S, zero)\nQ = Add(R, one)\nT = Concat<axis = 0>(R, Q)\n"
        "F = ReduceSum<keepdims = 1>(X, one)\nE = Expand(F, T)\nY = ReduceSum(E, one)",
        "summed as often as there are samples",
    ),
    (
        X,
        "S = Shape(X)\nR = Gather(S, zero)\nQ = Min(R, two)\nT = Concat<axis = 0>(R, Q)\n"
        "F = ReduceSum<keepdims = 1>(X, one)\nE = Expand(F, T)\nY = ReduceSum(E, one)",
        "summed twice, a single sample once",
    ),
    (
        X,
        'S = Shape(X)\nT = Cast<to = 1>(S)\nY = Einsum<equation = "ni,j->ni">(X, T)',
        "multiplied by their number",
    ),
    (
        X,
        "P = Slice(X, zero, two, zero)\nS = Shape(P)\nT = Cast<to = 1>(S)\n"
        "G = Gather(T, zero)\nY = Mul(X, G)",
        "two, or one",
    ),
    (
        IMAGE,
        "S = Shape(X)\nR = Gather(S, zero)\nQ = Add(R, one)\nT = Concat<axis = 0>(R, four, Q, four)\n"
        "Y = Resize(X, , , T)",
        "as high as there are samples",
    ),
    ("float[N, 1, 4] X", "Y = Squeeze(X)", "one sample loses its axis"),
    (X, "Y = ReduceMean(X, zero)", "a mean over the batch"),
    (X, "Y = ReduceSum(X)", "a sum of everything"),
    (X, "Y = CumSum(X, nil)", "sums of the samples before"),
    (X, "Y = Softmax<axis = 0>(X)", "a distribution over the batch"),
    (X, "Y = ArgMax(X)", "the number of a sample"),
    (X, "T = Transpose(X)\nY = MatMul(X, T)", "products of two samples"),
    ("float[N, 1] X, float[N] Z", "Y = Add(X, Z)", "a table of all pairs"),
    (X, "S = Shape(X)\nR = Gather(S, nil)\nT = Range(nil, R, step)\nY = Cast<to = 1>(T)", "positions"),
    (X, "S = Shape(X)\nR = Gather(S, zero)\nT = Cast<to = 1>(R)\nY = Div(X, T)", "divided by their number"),
    (X, "S = Size(X)\nT = Cast<to = 1>(S)\nY = Div(X, T)", "divided by their number"),
    (
        X,
        "S = Shape(X)\nR = Gather(S, zero)\nH = Div(R, two)\nM = Min(H, four)\nY = Slice(X, zero, M, one)",
        "cut by their number",
    ),
    (X, "Y = Slice(X, one, huge)", "samples moved up"),
    (X, "Y = Slice(X, last, far, zero, last)", "samples reversed"),
    (X, "Y = Gather(X, zero)", "the first sample"),
    (X, "Y = Pad(X, front)", "samples moved down"),
    (X, "Y = Concat<axis = 0>(X, X)", "twice as many"),
    (IMAGE, "P, Y = MaxPool<kernel_shape = [2, 2]>(X)", "numbers of elements of the batch"),
    (IMAGE, "Y, m, s = BatchNormalization<training_mode = 1>(X, b, v, b, v)", "statistics of the batch"),
    (X, "A = ReduceMean(X, zero)\nY = Mul(X, A)", "multiplied by a mean over the batch"),
    (X, "Y = RandomNormalLike(X)", "drawn"),
    (X, "Y = Bernoulli(X)", "drawn"),
    (X, "D = RandomNormal<shape = [4]>()\nY = Add(X, D)", "drawn"),
    (X, "N = NonZero(X)\nY = Cast<to = 1>(N)", "positions"),
    (X, "Y = Tile(X, twoone)", "repeated"),
    (CUBE, 'Y = Einsum<equation = "nij,nij->ij">(X, X)', "a sum over the batch"),
    ("float[N] X", "Y = ai.onnx.ml.Normalizer(X)", "a vector is one sample"),
]


def read(inputs, body):
    proto = parser.parse_model(f"{HEAD} g ({inputs}) => (float[A, B] Y) {{ {body} }}")
    used = {name for node in proto.graph.node for name in node.input}
    for name in sorted(used & set(ARRAYS)):
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(ARRAYS[name]), name))
    proto.graph.output[0].ClearField("type")
    return lower_for_training(to_ir(proto))


def feeds(model, count):
    rng = np.random.RandomState(1)
    sizes = {value.name: list(value.shape[1:]) for value in model.graph.inputs}
    return {name: rng.uniform(0.1, 0.9, (count, *rest)).astype(np.float32) for name, rest in sizes.items()}


def evaluate(model, values):
    proto = to_proto(model)
    proto.graph.output[0].ClearField("type")
    return ReferenceEvaluator(proto).run(["Y"], values)[0]


@pytest.mark.parametrize(("inputs", "body", "axis"), FOUND)
def test_each_part_is_that_of_one_sample(inputs, body, axis):
    model = read(inputs, body)
    assert sample_axes(model)["Y"] == Along(axis)
    values = feeds(model, 5)
    together = evaluate(model, values)
    alone = [evaluate(model, {name: x[i : i + 1] for name, x in values.items()}) for i in range(5)]
    np.testing.assert_allclose(together, np.concatenate(alone, axis), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("inputs", "body", "axis"), COMPUTED)
def test_each_part_of_a_computed_table_is_that_of_one_sample(inputs, body, axis, run):
    proto = parser.parse_model(f"{HEAD} g ({inputs}) => (float Y) {{ {body} }}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = to_ir(shape_inference.infer_shapes(proto))
    assert sample_axes(model)["Y"] == Along(axis)
    values = feeds(model, 5)
    together = run(to_ir(proto), values)["Y"]
    alone = [run(to_ir(proto), {"X": values["X"][i : i + 1]})["Y"] for i in range(5)]
    np.testing.assert_allclose(together, np.concatenate(alone, axis), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "body", "reason"), MIXED, ids=[f"{case[2]} {i}" for i, case in enumerate(MIXED)]
)
def test_no_axis_is_found_in_mixed_samples(inputs, body, reason):
    assert not isinstance(sample_axes(read(inputs, body))["Y"], Along)


def test_every_rule_has_a_case():
    tested = {
        (node.domain, node.op_type)
        for inputs, body, _ in [*FOUND, *COMPUTED]
        for node in parser.parse_model(f"{HEAD} g ({inputs}) => (float[A, B] Y) {{ {body} }}").graph.node
    }
    assert set(RULES) - tested == UNTESTED


def test_rows_are_those_with_one_row_for_each_sample():
    body = "F = Reshape(X, flat)\nT = Transpose(X)\nS = Shape(X)\nM = Tanh(X)\nY = MatMul(M, W)"
    model = read(X, body)
    assert {"X", "M", "Y"} <= sample_rows(model)
    assert sample_rows(model).isdisjoint({"F", "T", "S", "W"})


def test_rows_are_recognised_despite_computed_sizes():
    # the number of rows passes through integers of another type, as exporters from TensorFlow write it
    body = """S = Shape(X)
    small = Cast<to = 6>(S)
    R = Slice(small, zero, one)
    both = Concat<axis = 0>(R, width)
    T = Cast<to = 7>(both)
    M = ReduceMean<keepdims = 0>(X, one)
    Y = Reshape(M, T)"""
    assert {"M", "Y"} <= sample_rows(read(X, body))


@pytest.mark.parametrize(
    ("nodes", "proven"),
    [
        ("s = Shape<start = 1>(x)  h = Div(s, two)  y = Resize<axes = [1, 2]>(x, , , h)", True),
        ("s = Shape<start = 1>(x)  h = Div(s, two)  e = Add(h, two)  y = Slice(x, h, e, axes)", True),
        # the crop's size follows from the number of samples
        ("s = Shape<end = 1>(x)  h = Concat<axis = 0>(s, s)  y = Resize<axes = [1, 2]>(x, , , h)", False),
        ("s = Shape<end = 1>(x)  y = Slice(x, two, s, one)", False),
        # samples are left out
        ("s = Shape<start = 1, end = 2>(x)  y = Slice(x, s, s, zero)", False),
    ],
    ids=["resize", "slice", "resize by samples", "slice by samples", "slice of samples"],
)
def test_sizes_of_a_sample_do_not_depend_on_the_number(nodes, proven):
    """Images of any height and width."""
    text = f"""<ir_version: 8, opset_import: ["" : 18]> g (float[N, H, W] x) => (float[N, A, B] y)
    <int64[1] two = {{2}}, int64[2] axes = {{1, 2}}, int64[1] one = {{1}}, int64[1] zero = {{0}}>
    {{ {nodes} }}"""
    assert ("y" in sample_rows(to_ir(parser.parse_model(text)))) == proven
