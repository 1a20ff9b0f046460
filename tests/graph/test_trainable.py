"""Parameters are trained, constants are not, and what gradients do not reach is refused with a reason."""

import onnx.parser
import pytest

from onnxsgd.exceptions import NotTrainableError, ParameterError, ParameterTypeError
from onnxsgd.graph.lower import lower_for_training
from onnxsgd.graph.model import FROZEN, to_ir, to_proto
from onnxsgd.graph.trainable import intercept_names, select_trainable


def parse(body, weights, x="float[N, 4] x", opset=18):
    text = f"""<ir_version: 8, opset_import: ["": {opset}]>
        g ({x}) => (float[N, M] y) <{weights}> {{ {body} }}"""
    return lower_for_training(to_ir(onnx.parser.parse_model(text)))


def anything(node):
    """Say that every operator has a gradient."""


def only(*operators):
    """Say that these operators have a gradient, and no others."""
    return lambda node: None if node.op_type in operators else f"{node.op_type} has no gradient"


def zeros(*sizes):
    count = 1
    for size in sizes:
        count *= size
    return "{" + ", ".join(["0"] * count) + "}"


MATRIX = f"float[4, 3] w = {zeros(4, 3)}"
VECTOR = f"float[3] b = {zeros(3)}"
KERNEL = f"float[2, 4, 1] w = {zeros(2, 4, 1)}, float[2] b = {zeros(2)}"

#: A graph, what is trained in it, and which of that are intercepts.
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
    """What layers learn, by the place it has in the graph, whatever it is called."""
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


def test_embeddings():
    """A table that data look up is learned; a constant that a constant index picks from is not."""
    weights = f"float[9, 3] table = {zeros(9, 3)}, float[5] sizes = {zeros(5)}, int64[3] picked = {{0, 1, 2}}"
    model = parse("e = Gather(table, i)  s = Gather(sizes, picked)  y = Mul(e, s)", weights, x="int64[N] i")
    assert select_trainable(model, "y", None, anything) == ["table"]


def test_marked_constants_stay_unless_named():
    """A matrix that conversion knows to be a PCA's is left alone, but a user may train it all the same."""
    model = parse("h = MatMul(x, pca)  y = MatMul(h, w)", f"float[4, 4] pca = {zeros(4, 4)}, {MATRIX}")
    model.graph.initializers["pca"].metadata_props[FROZEN] = "constant of PCA"
    assert select_trainable(model, "y", None, anything) == ["w"]
    assert select_trainable(model, "y", ["w", "pca"], anything) == ["pca", "w"]
    assert select_trainable(model, "y", "pca", anything) == ["pca"]
    assert select_trainable(model, "y", lambda name: True, anything) == ["w"]


TWO_LAYERS = (
    f"{MATRIX}, float[3, 2] v = {zeros(3, 2)}, float[2] unused = {zeros(2)}, int64[2] shape = {{-1, 2}}"
)


def test_layers_before_an_obstacle_are_frozen():
    """The rest trains: a gradient is needed only between the first trained weight and the score."""
    model = parse("h = MatMul(x, w)  f = Hardmax(h)  y = MatMul(f, v)", TWO_LAYERS)
    assert select_trainable(model, "y", None, only("MatMul")) == ["v"]


@pytest.mark.parametrize("step", ["Floor", "Round", "Sign"])
def test_layers_before_a_step_are_frozen(step):
    """The gradient of a step is zero: what lies before would never change."""
    model = parse(f"h = MatMul(x, w)  f = {step}(h)  y = MatMul(f, v)", TWO_LAYERS)
    assert select_trainable(model, "y", None, anything) == ["v"]


def test_integers_carry_no_gradient():
    """A mask made of scores is no path; the scores themselves are."""
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


def test_what_subgraphs_read_counts(run):
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
        (lambda name: name == "w", NotTrainableError, "none of 'v'"),
    ],
)
def test_what_is_refused(trainable, error, message):
    """The message names the tensor, and what stands in its way."""
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
    """Why, and what to do."""
    with pytest.raises(NotTrainableError, match=message):
        select_trainable(parse(body, weights), "y", None, only("MatMul", "Relu"))


def test_the_model_is_not_changed():
    """Asking what trains changes nothing."""
    model = parse("y = Gemm(x, w, b)", f"{MATRIX}, {VECTOR}")
    before = to_proto(model)
    select_trainable(model, "y", None, anything)
    assert to_proto(model) == before
