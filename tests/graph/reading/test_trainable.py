"""Parameters are trained, constants are not, and tensors without a gradient are refused with a reason."""

import onnx.parser
import pytest

from onnxsgd.exceptions import NotTrainableError, ParameterError, ParameterTypeError
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import FROZEN, to_ir, to_proto
from onnxsgd.graph.reading.trainable import intercept_names, select_trainable


def parse(body, weights, x="float[N, 4] x", opset=18):
    text = f"""<ir_version: 8, opset_import: ["": {opset}]>
        g ({x}) => (float[N, M] y) <{weights}> {{ {body} }}"""
    return lower_for_training(to_ir(onnx.parser.parse_model(text)))


def anything(node):
    """Accept every operator as differentiable."""


def only(*operators):
    """Accept only these operators as differentiable."""
    return lambda node: None if node.op_type in operators else f"{node.op_type} has no gradient"


def zeros(*sizes):
    count = 1
    for size in sizes:
        count *= size
    return "{" + ", ".join(["0"] * count) + "}"


MATRIX = f"float[4, 3] w = {zeros(4, 3)}"
VECTOR = f"float[3] b = {zeros(3)}"
KERNEL = f"float[2, 4, 1] w = {zeros(2, 4, 1)}, float[2] b = {zeros(2)}"

#: A graph, its trained tensors, and the intercepts among them.
LAYERS = [
    ("y = Gemm(x, w, b)", f"{MATRIX}, {VECTOR}", ["w", "b"], {"b"}),
    ("h = MatMul(x, w)  y = Add(h, b)", f"{MATRIX}, {VECTOR}", ["w", "b"], {"b"}),
    ("h = MatMul(x, w)  y = Add(b, h)", f"{MATRIX}, {VECTOR}", ["w", "b"], {"b"}),
    (
        "h = MatMul(x, w)  s = Slice(h, zero, two, zero)  y = Add(s, b)",
        f"{MATRIX}, {VECTOR}, int64[1] zero = {{0}}, int64[1] two = {{2}}",
        ["w", "b"],
        {"b"},
    ),
    (
        "h = MatMul(x, w)  r = Reshape(h, to)  y = Add(r, b)",
        f"{MATRIX}, {VECTOR}, int64[2] to = {{-1, 3}}",
        ["w", "b"],
        {"b"},
    ),
    ("t = Transpose(w)  y = MatMul(x, t)", f"float[3, 4] w = {zeros(3, 4)}", ["w"], set()),
    (
        "t = Transpose <perm = [1, 0]> (w)  c = Identity(t)  y = MatMul(x, c)",
        f"float[3, 4] w = {zeros(3, 4)}",
        ["w"],
        set(),
    ),
    ("y = MatMul(x, w)", f"float[4] w = {zeros(4)}", ["w"], set()),
    # a step of a calibration, a shift, a clip: numbers in formulas
    (
        "h = MatMul(x, w)  s = Mul(h, a)  y = Add(s, c)",
        f"{MATRIX}, float a = {{2}}, float c = {{1}}",
        ["w"],
        set(),
    ),
    ("h = MatMul(x, w)  y = Add(h, c)", f"{MATRIX}, float c = {{1}}", ["w"], set()),
    (
        "h = MatMul(x, w)  k = MatMul(x, u)  s = Add(h, k)  y = Add(s, b)",
        f"float[4, 1] w = {zeros(4, 1)}, float[4, 1] u = {zeros(4, 1)}, float[1] b = {{0}}",
        ["w", "u", "b"],
        {"b"},
    ),
    (
        "h = MatMul(x, w)  s = Add(h, b)  y = Add(s, c)",
        f"float[4, 1] w = {zeros(4, 1)}, float[1] b = {{0}}, float[1] c = {{1}}",
        ["w", "b"],
        {"b"},
    ),
    ("h = MatMul(x, w)  y = Clip(h, a, c)", f"{MATRIX}, float a = {{0}}, float c = {{1}}", ["w"], set()),
    # preprocessing: shift and scale of the input
    (
        "d = Sub(x, m)  s = Mul(d, k)  y = MatMul(s, w)",
        f"{MATRIX}, float[4] m = {zeros(4)}, float[4] k = {zeros(4)}",
        ["w"],
        set(),
    ),
    (
        "y = LayerNormalization(x, s, c)",
        f"float[4] s = {zeros(4)}, float[4] c = {zeros(4)}",
        ["s", "c"],
        {"c"},
    ),
    # the same, as older exporters write it
    (
        "m = ReduceMean(x, a)  d = Sub(x, m)  q = Mul(d, d)  v = ReduceMean(q, a)  e = Add(v, eps)"
        "  r = Sqrt(e)  n = Div(d, r)  h = Mul(n, s)  y = Add(h, c)",
        f"int64[1] a = {{-1}}, float eps = {{0.1}}, float[4] s = {zeros(4)}, float[4] c = {zeros(4)}",
        ["s", "c"],
        {"c"},
    ),
    # and as jax does
    (
        "m = ReduceMean(x, a)  d = Sub(x, m)  q = Mul(d, d)  v = ReduceMean(q, a)  r = Sqrt(v)"
        "  i = Reciprocal(r)  k = Mul(i, s)  h = Mul(d, k)  y = Add(h, c)",
        f"int64[1] a = {{-1}}, float[4] s = {zeros(4)}, float[4] c = {zeros(4)}",
        ["s", "c"],
        {"c"},
    ),
    ("h = MatMul(x, w)  y = PRelu(h, s)", f"{MATRIX}, float[3] s = {zeros(3)}", ["w", "s"], set()),
]


@pytest.mark.parametrize(("body", "weights", "trained", "intercepts"), LAYERS)
def test_roles(body, weights, trained, intercepts):
    """Learned inputs of layers, by position in the graph, not by name."""
    model = parse(body, weights)
    assert select_trainable(model, "y", None, anything) == trained
    assert intercept_names(model, trained) == intercepts


IMAGES = [
    ("y = Conv(x, w, b)", KERNEL, ["w", "b"], {"b"}),
    (
        "h = Conv(x, w)  r = Unsqueeze(b, one)  y = Add(h, r)",
        f"{KERNEL}, int64[1] one = {{1}}",
        ["w", "b"],
        {"b"},
    ),
    (
        "y = BatchNormalization(x, s, c, m, v)",
        ", ".join(f"float[4] {name} = {zeros(4)}" for name in "scmv"),
        ["s", "c"],
        {"c"},
    ),
    (
        "y = InstanceNormalization(x, s, c)",
        ", ".join(f"float[4] {name} = {zeros(4)}" for name in "sc"),
        ["s", "c"],
        {"c"},
    ),
]


@pytest.mark.parametrize(("body", "weights", "trained", "intercepts"), IMAGES)
def test_roles_in_images(body, weights, trained, intercepts):
    """Convolutions and normalisations over channels."""
    model = parse(body, weights, x="float[N, 4, 5] x")
    assert sorted(select_trainable(model, "y", None, anything)) == sorted(trained)
    assert intercept_names(model, trained) == intercepts


DENSE = f"{MATRIX}, float[3, 3] v = {zeros(3, 3)}"
TABLE = "float[2, 3] t = {0.3, -0.1, 0.7, 1.2, -0.4, 0.9}"
ROW = "float[3] r = {0.3, -0.1, 0.7}"
#: The sine and cosine of 0, 0.5 and 1, each in two columns.
SINES = "float[3, 2] s = {0, 0, 0.4794255, 0.4794255, 0.841471, 0.841471}"
COSINES = "float[3, 2] c = {1, 1, 0.8775826, 0.8775826, 0.5403023, 0.5403023}"

#: A graph on tokens h of shape [N, 2, 3], initializers, and the trained ones besides the matrix w before it.
TOKENS = [
    # position embeddings, whole and sliced to the present length
    ("y = Add(h, t)", TABLE, ["t"]),
    (
        "n = Shape <start = 1, end = 2> (h)  p = Slice(t, zero, n, zero)  y = Add(h, p)",
        f"{TABLE}, int64[1] zero = {{0}}",
        ["t"],
    ),
    # the same, stretched to another size by factors that are no parameters
    (
        'p = Resize <mode = "linear"> (k, , f)  q = Squeeze(p, zero)  y = Add(h, q)',
        "float[1, 4, 3] k = {0.3, -0.1, 0.7, 1.2, -0.4, 0.9, 0.2, -0.6, 0.1, 0.5, 0.8, -0.2},"
        " float[3] f = {1, 0.51, 1}, int64[1] zero = {0}",
        ["k"],
    ),
    # a class token, also one that starts at zero
    (
        "n = Shape <start = 0, end = 1> (h)  s = Concat <axis = 0> (n, one, three)  e = Expand(r, s)"
        "  y = Concat <axis = 1> (e, h)",
        f"float[1, 1, 3] r = {zeros(3)}, int64[1] one = {{1}}, int64[1] three = {{3}}",
        ["r"],
    ),
    # a layer scale, a gate, one that is written as a product with a number
    ("y = Mul(h, r)", ROW, ["r"]),
    ("g = Sigmoid(r)  y = Mul(h, g)", ROW, ["r"]),
    ("g = Mul(r, two)  y = Mul(h, g)", f"{ROW}, float[1] two = {{2}}", ["r"]),
    # a weight behind Slice, Reshape, a product: low ranks, weight normalisation, pruning
    (
        "q = Reshape(m, s)  k = Slice(q, zero, three, zero)  y = MatMul(h, k)",
        f"float[12] m = {zeros(12)}, int64[2] s = {{4, 3}}, int64[1] zero = {{0}}, int64[1] three = {{3}}",
        ["m"],
    ),
    ("p = Mul(v, k)  y = MatMul(h, p)", f"float[3, 3] v = {zeros(3, 3)}, float k = {{0.5}}", ["v"]),
    (
        "q = Mul(v, v)  s = ReduceSum(q)  n = Sqrt(s)  d = Div(v, n)  p = Mul(d, r)  y = MatMul(h, p)",
        f"float[3, 3] v = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}, {ROW}",
        ["v", "r"],
    ),
    # masks, grids, fillings, slopes
    ("y = Add(h, m)", "float[2, 3] m = {0, -100, 0, 0, 0, -100}", []),
    ("y = Add(h, m)", "float[2, 3] m = {0, 1, 2, 0.5, 1.5, 2.5}", []),
    ("y = Where(k, h, m)", "float[1, 3] m = {-1e9, -1e9, -1e9}, bool[1, 3] k = {1, 0, 1}", []),
    ("r = Relu(h)  y = Add(r, m)", "float[1, 3] m = {0.5, 0.25, 0.125}", []),
    # numbers that are whole by chance, as a perceptron learns them, next to a linear layer
    ("y = Add(h, m)", "float[3] m = {1, -2, 4}", ["m"]),
    ("y = Where(k, h, r)", f"{ROW}, bool[1, 3] k = {{1, 0, 1}}", ["r"]),
    # tables of rotary embeddings, and the frequencies of such
    (
        "a = Gather <axis = 2> (h, k)  z = Gather(s, i)  e = Gather(c, i)  f = Mul(a, z)  g = Mul(a, e)"
        "  y = Add(f, g)",
        f"{SINES}, {COSINES}, int64[2] k = {{0, 1}}, int64[2] i = {{1, 2}}",
        [],
    ),
    (
        "n = Shape <start = 1, end = 2> (h)  l = Squeeze(n)  p = Range(no, l, by)  f = Cast <to = 1> (p)"
        "  u = Unsqueeze(f, one)  a = Mul(u, r)  c = Cos(a)  d = Sin(a)  g = Mul(h, c)  k = Mul(h, d)"
        "  y = Add(g, k)",
        f"{ROW}, int64[1] one = {{1}}, int64 no = {{0}}, int64 by = {{1}}",
        [],
    ),
    # a normalisation of groups, as older exporters write it
    (
        "g = Reshape(h, apart)  n = InstanceNormalization(g, k, z)  p = Reshape(n, back)  y = Mul(p, r)",
        f"{ROW}, float[3] k = {{1, 1, 1}}, float[3] z = {{0, 0, 0}}, int64[3] apart = {{0, 3, -1}},"
        " int64[3] back = {0, 2, 3}",
        ["r"],
    ),
    # a scale and a shift that take their type from data, as torch writes a GroupNorm
    (
        "k = CastLike(r, h)  p = Mul(h, k)  c = CastLike(m, p)  y = Add(p, c)",
        f"{ROW}, float[3] m = {{0.5, 0.3, 0.2}}",
        ["r", "m"],
    ),
    # a state that starts at zero, bounds, the statistics of a normalisation written out
    ("y = Clip(h, low)", "float low = {0.5}", []),
    (
        "d = Sub(h, r)  e = Add(k, eps)  q = Sqrt(e)  n = Div(d, q)  y = Mul(n, g)",
        f"{ROW}, float[3] k = {{0.3, 0.6, 0.7}}, float[3] g = {{1, 1, 1}}, float eps = {{1e-5}}",
        ["g"],
    ),
]


@pytest.mark.parametrize(("body", "weights", "trained"), TOKENS)
def test_parameters_behind_a_layer(body, weights, trained):
    """Tensors that meet the results of layers are learned, except masks, tables and settings."""
    model = parse(f"h = MatMul(x, w)  {body}", f"{MATRIX}, {weights}", x="float[N, 2, 4] x")
    assert set(select_trainable(model, "y", None, anything)) == {"w", *trained}


def test_before_the_first_layer():
    """Means and scales of pixels are no parameters; an embedding of numbers and of positions is."""
    scaling = "d = Sub(x, m)  s = Div(d, k)  y = Conv(s, w)"
    pixels = "float[1, 3, 1] m = {0.48, 0.45, 0.40}, float[1, 3, 1] k = {0.22, 0.23, 0.24}"
    model = parse(scaling, f"{pixels}, float[2, 3, 1] w = {zeros(6)}", x="float[N, 3, 5] x")
    assert select_trainable(model, "y", None, anything) == ["w"]
    numbers = "e = Mul(x, w)  y = Add(e, b)"
    model = parse(numbers, f"float[2, 3] w = {zeros(6)}, float[2, 3] b = {zeros(6)}", x="float[N, 2, 1] x")
    assert select_trainable(model, "y", None, anything) == ["w", "b"]
    model = parse("p = Add(x, t)  y = MatMul(p, v)", f"{TABLE}, {DENSE}", x="float[N, 2, 3] x")
    assert select_trainable(model, "y", None, anything) == ["t", "v"]


def test_frequencies_of_positions_that_are_fed():
    """Rotary embeddings of positions from outside; learned Fourier features of real data are parameters."""
    body = "f = Cast <to = 1> (p)  a = Mul(f, r)  s = Sin(a)  y = MatMul(s, v)"
    model = parse(body, f"{ROW}, {DENSE}", x="int64[N, 1] p")
    assert select_trainable(model, "y", None, anything) == ["v"]
    model = parse("a = Mul(p, r)  s = Sin(a)  y = MatMul(s, v)", f"{ROW}, {DENSE}", x="float[N, 1] p")
    assert select_trainable(model, "y", None, anything) == ["r", "v"]


def test_values_captured_by_a_body_have_a_role():
    """The table of an embedding bag that a Loop reads by name."""
    body = """l = Loop (n, k, start) <body = b (int64 i, bool c, float[3] s) => (bool d, float[3] o)
        { d = Identity(c)  j = Gather(x, i)  e = Gather(table, j)  o = Add(s, e) }>  y = MatMul(l, v)"""
    loop = f"int64 n = {{2}}, bool k = {{1}}, float[3] start = {zeros(3)}"
    weights = f"float[9, 3] table = {zeros(27)}, {DENSE}, {loop}"
    model = parse(body, weights, x="int64[N] x")
    assert set(select_trainable(model, "y", None, anything)) == {"table", "v"}


def test_embeddings():
    """A lookup table of data is learned, and so is one with a constant index."""
    weights = f"float[9, 3] table = {zeros(9, 3)}, float[5] sizes = {zeros(5)}, int64[3] picked = {{0, 1, 2}}"
    model = parse("e = Gather(table, i)  s = Gather(sizes, picked)  y = Mul(e, s)", weights, x="int64[N] i")
    assert select_trainable(model, "y", None, anything) == ["table", "sizes"]


def test_marked_constants_stay_unless_named():
    """A matrix that conversion marks as a PCA's is left alone, but a user may train it."""
    model = parse("h = MatMul(x, pca)  y = MatMul(h, w)", f"float[4, 4] pca = {zeros(4, 4)}, {MATRIX}")
    model.graph.initializers["pca"].metadata_props[FROZEN] = "constant of PCA"
    assert select_trainable(model, "y", None, anything) == ["w"]
    assert select_trainable(model, "y", ["w", "pca"], anything) == ["pca", "w"]
    assert select_trainable(model, "y", "pca", anything) == ["pca"]
    assert select_trainable(model, "y", lambda name: True, anything) == ["pca", "w"]


def test_a_callable_is_asked_about_every_real_tensor():
    """Constants too; tensors without a gradient are left out of its choice."""
    model = parse(
        "k = MatMul(x, u)  f = Hardmax(k)  e = Mul(f, two)  h = MatMul(e, w)  c = Clip(h, low)"
        "  y = Add(c, i)",
        f"{MATRIX}, float[4, 4] u = {zeros(4, 4)}, float two = {{2}}, float low = {{0}},"
        " float[3] i = {1, 2, 3}",
    )
    asked = []
    assert select_trainable(
        model, "y", lambda name: not asked.append(name), only("MatMul", "Mul", "Clip", "Add")
    ) == ["two", "w", "low", "i"]
    assert asked == ["u", "two", "w", "low", "i"]


@pytest.mark.parametrize("trainable", [None, lambda name: True])
def test_tensors_without_elements_are_not_trained(trainable):
    """There is nothing to train in them, and a mean over their gradient does not exist."""
    model = parse("a = Concat <axis = 1> (w, e)  y = MatMul(x, a)", f"{MATRIX}, float[4, 0] e = {{}}")
    assert select_trainable(model, "y", trainable, anything) == ["w"]
    with pytest.raises(NotTrainableError, match="'e', which cannot be trained: it has no elements"):
        select_trainable(model, "y", ["w", "e"], anything)


def test_the_ratio_of_a_dropout_is_no_weight():
    """No gradient reaches it, and an engine may drop it together with its node."""
    weights = f"{MATRIX}, float ratio = {{0.5}}, bool acts = {{1}}"
    model = parse("a = MatMul(x, w)  y = Dropout(a, ratio, acts)", weights)
    assert "Dropout" in {node.op_type for node in model.graph}
    assert select_trainable(model, "y", lambda name: True, anything) == ["w"]
    with pytest.raises(NotTrainableError, match="'ratio', which cannot be trained: no path of real numbers"):
        select_trainable(model, "y", ["w", "ratio"], anything)


TWO_LAYERS = (
    f"{MATRIX}, float[3, 2] v = {zeros(3, 2)}, float[2] unused = {zeros(2)}, int64[2] shape = {{-1, 2}}"
)


def test_layers_before_an_obstacle_are_frozen():
    """The rest trains: a gradient is needed only between the first trained weight and the score."""
    model = parse("h = MatMul(x, w)  f = Hardmax(h)  y = MatMul(f, v)", TWO_LAYERS)
    assert select_trainable(model, "y", None, only("MatMul")) == ["v"]


@pytest.mark.parametrize("step", ["Floor", "Round", "Sign"])
def test_layers_before_a_step_are_frozen(step):
    """The gradient of a step is zero: the layers before it would never change."""
    model = parse(f"h = MatMul(x, w)  f = {step}(h)  y = MatMul(f, v)", TWO_LAYERS)
    assert select_trainable(model, "y", None, anything) == ["v"]


def test_integers_carry_no_gradient():
    """A mask computed from scores is no path; the scores themselves are."""
    body = "h = MatMul(x, w)  m = Greater(h, zero)  k = Cast <to = 1> (m)  y = MatMul(k, v)"
    model = parse(body, f"{TWO_LAYERS}, float zero = {{0}}")
    assert select_trainable(model, "y", None, only("MatMul")) == ["v"]


@pytest.mark.parametrize("free_first", [True, False])
def test_one_free_path_is_not_enough(free_first):
    """A weight with two paths, one of them blocked, would get half of its gradient."""
    free, blocked = "r = Relu(h)", "f = Hardmax(h)"
    paths = f"{free}  {blocked}" if free_first else f"{blocked}  {free}"
    model = parse(f"h = MatMul(x, w)  {paths}  s = Add(r, f)  y = MatMul(s, v)", TWO_LAYERS)
    assert select_trainable(model, "y", None, only("MatMul", "Add", "Relu")) == ["v"]


def test_values_read_by_subgraphs_count(run):
    """A weight that only the branch of an If reads lies before that If."""
    body = """c = Constant <value_int = 1> ()  k = Cast <to = 9> (c)
        h = If (k) <then_branch = t () => (float[N, 3] a) { a = MatMul(x, w) },
                    else_branch = e () => (float[N, 3] b) { b = MatMul(x, w) }>
        y = MatMul(h, v)"""
    model = parse(body, f"{MATRIX}, float[3, 2] v = {zeros(3, 2)}")
    with pytest.raises(NotTrainableError, match=r"the If .* If has no gradient"):
        select_trainable(model, "y", ["w"], only("MatMul"))
    assert select_trainable(model, "y", None, only("MatMul")) == ["v"]


@pytest.mark.parametrize(
    ("trainable", "error", "message"),
    [
        (["W"], ParameterError, "trainable names 'W'; the graph has, among others, 'w'"),
        (["w", "w"], ParameterError, "more than once"),
        ([], ParameterError, "no tensor"),
        ([1], ParameterTypeError, "names of tensors"),
        (3.5, ParameterTypeError, "names of tensors"),
        (["shape"], NotTrainableError, "'shape'.*no real numbers"),
        (["unused"], NotTrainableError, "no path"),
        (["w"], NotTrainableError, "lies before the Hardmax.*'f'.*Hardmax has no gradient"),
        (lambda name: name == "w", NotTrainableError, "selects tensors .*'w': it lies before the Hardmax"),
        (lambda name: False, NotTrainableError, "selects none of 'w', 'v'"),
    ],
)
def test_refusals(trainable, error, message):
    """The message names the tensor, and the obstacle."""
    body = "h = MatMul(x, w)  f = Hardmax(h)  r = MatMul(f, v)  y = Reshape(r, shape)  z = Identity(unused)"
    text = f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 4] x) => (float[N, M] y, float[2] z) <{TWO_LAYERS}> {{ {body} }}"""
    model = to_ir(onnx.parser.parse_model(text))
    with pytest.raises(error, match=message):
        select_trainable(model, "y", trainable, only("MatMul", "Reshape"))


@pytest.mark.parametrize(
    ("body", "weights", "message"),
    [
        ("h = MatMul(x, w)  y = Hardmax(h)", MATRIX, "such as 'w'.* it lies before the Hardmax"),
        ("y = Hardmax(x)", MATRIX, "It holds the Hardmax"),
        ("y = Relu(x)", "float[1] c = {0}", "head='linear'"),
    ],
)
def test_nothing_to_train(body, weights, message):
    """The message gives the reason and a remedy."""
    with pytest.raises(NotTrainableError, match=message):
        select_trainable(parse(body, weights), "y", None, only("MatMul", "Relu"))


def test_the_model_is_not_changed():
    """The selection works without changes to the model."""
    model = parse("y = Gemm(x, w, b)", f"{MATRIX}, {VECTOR}")
    before = to_proto(model)
    select_trainable(model, "y", None, anything)
    assert to_proto(model) == before


@pytest.mark.parametrize("trainable", [None, ["w"], lambda name: True])
def test_another_engine_trains_the_same_tensors_or_refuses(trainable):
    """It must not silently leave out the layers that it cannot differentiate."""
    model = parse("h = MatMul(x, w)  a = Atan(h)  y = MatMul(a, v)", TWO_LAYERS)
    assert select_trainable(model, "y", ["v"], anything, only("MatMul")) == ["v"]
    with pytest.raises(
        NotTrainableError, match=r"'w' cannot be trained by this engine: it lies before the Atan"
    ):
        select_trainable(model, "y", trainable, anything, only("MatMul"))


#: Nodes between a trained layer h and the score, and whether gradients pass them.
LEVELS = [
    ("q = QuantizeLinear(h, s)  y = DequantizeLinear(q, s)", True),
    ("q = QuantizeLinear(h, s)  t = Transpose(q)  r = Transpose(t)  y = DequantizeLinear(r, s)", True),
    ("q, a, p = DynamicQuantizeLinear(h)  i = MatMulInteger(q, k, p)  y = Cast<to = 1>(i)", True),
    ("q = Cast<to = 2>(h)  y = DequantizeLinear(q, s)", False),
    ("i = ArgMax(h)  y = Cast<to = 1>(i)", False),
]


@pytest.mark.parametrize(("nodes", "passes"), LEVELS)
def test_gradients_pass_numbers_that_a_quantization_makes(nodes, passes):
    held = f"{MATRIX}, float s = {{0.1}}, uint8[3, 1] k = {{1, 2, 3}}"
    model = parse(f"h = MatMul(x, w)  {nodes}", held)
    if passes:
        assert select_trainable(model, "y", None, anything) == ["w"]
        return
    with pytest.raises(NotTrainableError):
        select_trainable(model, "y", None, anything)
