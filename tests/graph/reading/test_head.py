"""The raw prediction is found behind the outputs of a graph; estimators are in ``test_convert.py``."""

import numpy as np
import onnx.parser
import pytest

from onnxsgd.exceptions import NotTrainableError, ParameterError, ParameterTypeError
from onnxsgd.graph.cut import cut_at
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.reading.head import find_score

X = np.array([[1.0, -2.0], [0.0, 0.0], [-3.0, 1.0]], np.float32)
COEF = np.array([[1.0, 2, 3], [-1, 0, 1]], np.float32)
WEIGHTS = """<float[2, 3] w = {1, 2, 3, -1, 0, 1}, float[2, 1] u = {1, -1}, float one = {1},
    float[1] ones = {1}, float half = {0.5}, float zero = {-9}, int64[1] axis = {1}>"""


def parse(body, outputs="float[N, 3] y", weights=WEIGHTS):
    text = f"""<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]>
        g (float[N, 2] x) => ({outputs}) {weights} {{ {body} }}"""
    return to_ir(onnx.parser.parse_model(text))


def score_of(scored, run):
    return run(cut_at(scored.model, scored.score), X)[scored.score]


PLAIN = X @ COEF
SINGLE = X @ np.array([[1.0], [-1.0]], np.float32)

#: The nodes of a graph, its link, its scores.
LINKS = [
    ("y = MatMul(x, w)", "identity", PLAIN),
    ("z = MatMul(x, w)  a = Relu(z)  y = Identity(a)", "identity", np.maximum(PLAIN, 0)),
    ("z = MatMul(x, w)  y = Softmax(z)", "softmax", PLAIN),
    ("z = MatMul(x, w)  y = Softmax <axis = 1> (z)", "softmax", PLAIN),
    ("z = MatMul(x, w)  y = LogSoftmax(z)", "softmax", PLAIN),
    ("z = MatMul(x, w)  e = Exp(z)  s = ReduceSum(e, axis)  y = Div(e, s)", "softmax", PLAIN),
    (
        "z = MatMul(x, w)  m = ReduceMax <keepdims = 0> (z, axis)  k = Max(m, zero)  r = Unsqueeze(k, axis)"
        "  d = Sub(z, r)  e = Exp(d)  s = ReduceSum(e, axis)  y = Div(e, s)",
        "softmax",
        PLAIN,
    ),
    ("z = MatMul(x, w)  d = Cast <to = 11> (z)  p = Softmax(d)  y = Cast <to = 1> (p)", "softmax", PLAIN),
    ("z = MatMul(x, w)  y = Sigmoid(z)", "sigmoid", PLAIN),
    ("z = MatMul(x, u)  y = Sigmoid(z)", "sigmoid", SINGLE),
    ("z = MatMul(x, u)  p = Sigmoid(z)  y = Squeeze(p, axis)", "sigmoid", SINGLE[:, 0]),
    (
        "z = MatMul(x, w)  p = Sigmoid(z)  q = Transpose <perm = [1, 0]> (p)"
        "  y = Transpose <perm = [1, 0]> (q)",
        "sigmoid",
        PLAIN,
    ),
    ("z = MatMul(x, u)  p = Sigmoid(z)  q = Sub(one, p)  y = Concat <axis = 1> (q, p)", "sigmoid", SINGLE),
    ("z = MatMul(x, u)  p = Sigmoid(z)  q = Sub(ones, p)  y = Concat <axis = -1> (q, p)", "sigmoid", SINGLE),
    ("z = MatMul(x, u)  m = Neg(z)  y = Concat <axis = 1> (m, z)", "identity", SINGLE),
    ("z = MatMul(x, u)  m = Neg(z)  y = Concat <axis = 1> (z, m)", "identity", -SINGLE),
    (
        "z = MatMul(x, u)  m = Neg(z)  e = Exp(m)  d = Add(e, one)  p = Reciprocal(d)  q = Sub(one, p)"
        "  y = Concat <axis = 1> (q, p)",
        "sigmoid",
        SINGLE,
    ),
    (
        "z = MatMul(x, u)  e = Exp(z)  d = Add(one, e)  p = Div(one, d)  q = Sub(one, p)"
        "  y = Concat <axis = 1> (q, p)",
        "sigmoid",
        -SINGLE,
    ),
    ("z = MatMul(x, w)  p = Sigmoid(z)  y = LpNormalization <p = 1, axis = 1> (p)", "ovr", PLAIN),
    ('z = MatMul(x, w)  p = Sigmoid(z)  y = ai.onnx.ml.Normalizer <norm = "L1"> (p)', "ovr", PLAIN),
    ('z = MatMul(x, w)  p = Softmax(z)  y = ai.onnx.ml.Normalizer <norm = "L1"> (p)', "softmax", PLAIN),
    (
        "z = MatMul(x, w)  p = Sigmoid(z)  s = ReduceSum(p, axis)  y = Div(p, s)",
        "ovr",
        PLAIN,
    ),
]


@pytest.mark.parametrize(("body", "link", "expected"), LINKS)
def test_links(body, link, expected, run):
    """Every link from scores to probabilities."""
    scored = find_score(parse(body), "classification")
    assert scored.link == link
    np.testing.assert_allclose(score_of(scored, run), expected, rtol=1e-6)
    assert scored.proba_output == (None if link == "identity" else "y")
    assert [value.name for value in scored.model.graph.outputs] == ["y"]


@pytest.mark.parametrize(
    "body",
    [
        "z = MatMul(x, w)  p = Softmax(z)  q = Sigmoid(z)  s = Add(p, q)  y = Mul(s, half)",
        "z = MatMul(x, w)  p = Softmax(z)  r = Sub(one, p)  y = Clip(r)",
    ],
)
def test_other_mixtures_of_probabilities(body, run):
    """Averages of several models have no score: the logarithm serves, whose softmax is p."""
    scored = find_score(parse(body), "classification")
    assert scored.link == "log"
    expected = run(scored.model, X)["y"]
    np.testing.assert_allclose(score_of(scored, run), np.log(expected), rtol=1e-5, atol=1e-6)


def test_a_logarithm_of_zero_stays_finite(run):
    """A probability of zero is clipped: its logarithm would stop training."""
    body = "z = Mul(x, big)  p = Softmax(z)  q = Mul(p, one)  y = Add(q, q)"
    weights = "<float one = {0.5}, float big = {1000}>"
    scored = find_score(parse(body, "float[N, 2] y", weights), "classification")
    assert scored.link == "log"
    assert np.isfinite(score_of(scored, run)).all()


def test_a_regression_is_not_followed_back(run):
    """A regression with range (0, 1) predicts the result of its sigmoid."""
    scored = find_score(parse("z = MatMul(x, u)  y = Sigmoid(z)"), "regression")
    assert (scored.score, scored.link) == ("y", "identity")


LABELS = "float[N, 3] p, int64[N] label"


@pytest.mark.parametrize(
    ("lookup", "expected"),
    [
        ("i = ArgMax <axis = 1, keepdims = 0> (p)  label = Gather(classes, i)", [7, 3, 9]),
        (
            "i = ArgMax <axis = 1> (p)  g = ai.onnx.ml.ArrayFeatureExtractor(classes, i)"
            "  label = Reshape(g, minus)",
            [7, 3, 9],
        ),
        (
            "i = ArgMax <axis = 1, keepdims = 0> (p)"
            "  label = ai.onnx.ml.LabelEncoder <keys_int64s = [2, 0, 1], values_int64s = [9, 7, 3]> (i)",
            [7, 3, 9],
        ),
        ("label = ArgMax <axis = 1, keepdims = 0> (p)", None),
    ],
)
def test_classes_come_from_the_graph(lookup, expected, run):
    """The labels of a file are those of its table."""
    weights = f"{WEIGHTS[:-1]}, int64[3] classes = {{7, 3, 9}}, int64[1] minus = {{-1}}>"
    scored = find_score(
        parse(f"z = MatMul(x, w)  p = Softmax(z)  {lookup}", LABELS, weights), "classification"
    )
    assert scored.label_output == "label"
    if expected is None:
        assert scored.classes is None
    else:
        np.testing.assert_array_equal(scored.classes, expected)
        winner = np.argmax(PLAIN, axis=1)
        np.testing.assert_array_equal(run(scored.model, X)["label"], np.array(expected)[winner])


@pytest.mark.parametrize(
    "lookup",
    [
        "label = ai.onnx.ml.LabelEncoder <keys_int64s = [0, 1, 2], values_int64s = [9, 7]> (i)",
        "label = Gather(classes, i)",
    ],
)
def test_tables_without_all_labels_are_ignored(lookup):
    """A file may hold fewer labels than columns, or none."""
    weights = f"{WEIGHTS[:-1]}, int64[0] classes = {{}}>"
    body = f"z = MatMul(x, w)  p = Softmax(z)  i = ArgMax <axis = 1, keepdims = 0> (p)  {lookup}"
    assert find_score(parse(body, LABELS, weights), "classification").classes is None


@pytest.mark.parametrize(("axis", "index"), [(1, 2), (1, -3), (0, 0)])
def test_a_column_beyond_a_concat_is_no_copy(axis, index):
    """Nor is a column of tensors that are stacked along the samples."""
    weights = f"{WEIGHTS[:-1]}, int64[1] index = {{{index}}}>"
    body = f"""z = MatMul(x, u)  p = Sigmoid(z)
        c = Concat <axis = {axis}> (p, p)  y = Gather <axis = 1> (c, index)"""
    scored = find_score(parse(body, "float[N, 1] y", weights), "classification")
    assert scored.link != "sigmoid"


def test_string_labels(run):
    """Tables of strings hold bytes; users have strings."""
    weights = f'{WEIGHTS[:-1]}, string[3] classes = {{"a", "b", "c"}}>'
    body = """z = MatMul(x, w)  p = Softmax(z)
        i = ArgMax <axis = 1, keepdims = 0> (p)  label = Gather(classes, i)"""
    scored = find_score(parse(body, "float[N, 3] p, string[N] label", weights), "classification")
    assert scored.classes.tolist() == ["a", "b", "c"]


def test_labels_follow_scores_at_equal_probabilities(run):
    """Far out, all sigmoids are 0 in float32, and the first class would win; scikit-learn compares scores."""
    body = """z = MatMul(x, w)  p = Sigmoid(z)  q = LpNormalization <p = 1, axis = 1> (p)
              i = ArgMax <axis = 1, keepdims = 0> (q)  label = Gather(classes, i)"""
    weights = "<float[2, 3] w = {-900, -800, -700, 0, 0, 0}, int64[3] classes = {7, 3, 9}>"
    scored = find_score(parse(body, "float[N, 3] q, int64[N] label", weights), "classification")
    outputs = run(scored.model, np.array([[1.0, 0.0]], np.float32))
    assert outputs["label"].tolist() == [9]
    assert list(outputs) == ["q", "label"]


def test_output_names_a_tensor_inside():
    """The graph is cut there, and the tensor itself is the score."""
    scored = find_score(parse("a = MatMul(x, w)  h = Sigmoid(a)  y = Relu(h)"), "classification", "h")
    assert (scored.score, scored.link) == ("h", "identity")
    assert [value.name for value in scored.model.graph.outputs] == ["h"]


@pytest.mark.parametrize("output", ["y", 1, -1])
def test_output_picks_one_of_several(output):
    """By name or by number, from the front or from the back."""
    model = parse("a = MatMul(x, w)  y = Softmax(a)  b = Relu(a)", "float[N, 3] b, float[N, 3] y")
    scored = find_score(model, "classification", output)
    assert (scored.score, scored.link) == ("a", "softmax")
    assert len(scored.model.graph.outputs) == 2


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        (None, ParameterError, "several real outputs, 'b', 'y'"),
        (2, ParameterError, "has 2 outputs"),
        ("c", ParameterError, "no tensor 'c'"),
        (True, ParameterTypeError, "a name, a number or None"),
        (1.0, ParameterTypeError, "a name, a number or None"),
    ],
)
def test_outputs_that_are_refused(output, error, message):
    """The message lists the outputs."""
    model = parse("a = MatMul(x, w)  y = Softmax(a)  b = Relu(a)", "float[N, 3] b, float[N, 3] y")
    with pytest.raises(error, match=message):
        find_score(model, "classification", output)


def test_labels_alone_have_no_score():
    """A graph that returns only labels cannot be trained; the tensor before can be named."""
    model = parse("z = MatMul(x, w)  y = ArgMax <axis = 1, keepdims = 0> (z)", "int64[N] y")
    with pytest.raises(NotTrainableError, match="output="):
        find_score(model, "classification")
    with pytest.raises(NotTrainableError, match="'y' holds"):
        find_score(model, "classification", "y")
    assert find_score(model, "classification", "z").score == "z"


def test_an_input_is_no_score():
    """A graph that only squashes its input has nothing to train."""
    with pytest.raises(NotTrainableError, match="nothing to train"):
        find_score(parse("y = Softmax(x)", "float[N, 2] y"), "classification")


def test_the_model_is_not_changed():
    """New tensors for scores go into a copy."""
    model = parse("z = MatMul(x, w)  p = Softmax(z)  y = Mul(p, one)")
    before = to_proto(model)
    find_score(model, "classification")
    assert to_proto(model) == before
