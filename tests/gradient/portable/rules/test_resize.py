"""Resizing: every placement of the pixels has other weights, and the gradient must use the same."""

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from onnxsgd import onnx_derivative
from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.portable import differentiate

MODES = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"]
SCALES = {"S": np.array([1.0, 1.0, 1.5, 0.6], dtype=np.float32)}
CUBIC = 'mode = "cubic", cubic_coeff_a = -0.5, exclude_outside = 1'
RTOL = 1e-5  # onnx places the pixels in single precision


@pytest.mark.parametrize("kind", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("mode", MODES)
def test_scales(check, mode, kind):
    text = f'Y = Resize<mode = "{kind}", coordinate_transformation_mode = "{mode}">(A, , S)'
    check(text, {"A": (1, 2, 4, 5)}, constants=SCALES, opset=19, rtol=RTOL)


@pytest.mark.parametrize("kind", ["nearest", "linear", "cubic"])
def test_sizes(check, kind):
    text = f'Y = Resize<mode = "{kind}", axes = [1, 2]>(A, , , S)'
    check(text, {"A": (2, 3, 4), "S": np.array([2, 7])}, opset=18, rtol=RTOL)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_roundings(check, rounding):
    text = f'Y = Resize<nearest_mode = "{rounding}">(A, , S)'
    scales = {"S": np.array([1.0, 1.0, 1.5, 0.75], dtype=np.float32)}
    check(text, {"A": (1, 1, 4, 4)}, constants=scales, opset=13, rtol=RTOL)


@pytest.mark.parametrize(
    "attributes", ['mode = "linear", antialias = 1', 'mode = "cubic", antialias = 1', CUBIC]
)
def test_weights_of_further_neighbours(check, attributes):
    check(f"Y = Resize<{attributes}>(A, , S)", {"A": (1, 1, 7, 9)}, constants=SCALES, opset=19, rtol=RTOL)


def test_a_batch_of_any_size(check):
    text = 'Y = Resize<mode = "linear">(A, , S)'
    check(text, {"A": (1, 2, 4, 5)}, "hidden", constants=SCALES, known_axes=(2, 3), rtol=RTOL)


@pytest.mark.parametrize("mode", ["asymmetric", "half_pixel"])
def test_repeated_pixels_of_images_of_any_size(check, mode):
    rounding = "floor" if mode == "asymmetric" else "round_prefer_floor"
    text = f'Y = Resize<coordinate_transformation_mode = "{mode}", nearest_mode = "{rounding}">(A, , S)'
    scales = {"S": np.array([1.0, 1.0, 2.0, 3.0], dtype=np.float32)}
    gradient = check(text, {"A": (2, 2, 3, 4)}, "hidden", constants=scales)
    assert "AveragePool" in {node.op_type for node in gradient.graph.node}


def test_aspect_ratios_of_images_of_any_size_are_refused(check):
    text = 'Y = Resize<axes = [2, 3], keep_aspect_ratio_policy = "not_larger">(A, , , S)'
    with pytest.raises(NotTrainableError, match="Resize .*keeps the aspect ratio needs constant sizes"):
        check(text, {"A": (1, 2, 4, 5), "S": np.array([3, 8])}, "hidden", opset=19)


CROP = 'coordinate_transformation_mode = "tf_crop_and_resize"'
REGION = {"R": np.array([0.0, 0.0, 0.25, -0.1, 1.0, 1.0, 0.75, 1.2], dtype=np.float32)}


@pytest.mark.parametrize("kind", ["nearest", "linear", "cubic"])
def test_a_part_that_is_cut_out(check, kind):
    text = f'Y = Resize<mode = "{kind}", {CROP}, extrapolation_value = 2.0>(A, R, S)'
    check(text, {"A": (1, 2, 4, 5)}, "hidden", constants={**SCALES, **REGION}, known_axes=(2, 3), rtol=RTOL)


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ({"S": np.array([1, 2, 4, 7])}, "cuts out a part of axis 2, but keeps its size"),
        ({"S": np.array([1, 2, 6, 7]), "R": (8,)}, "no gradient with respect to its input 1"),
    ],
)
def test_parts_that_are_refused(check, operands, message):
    constants = {} if "R" in operands else REGION
    with pytest.raises(NotTrainableError, match=f"Resize .*{message}"):
        check(f"Y = Resize<{CROP}>(A, R, , S)", {"A": (1, 2, 4, 5), **operands}, constants=constants)


@pytest.mark.parametrize("kind", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("mode", MODES)
def test_images_of_any_size(check, mode, kind):
    text = f'Y = Resize<mode = "{kind}", coordinate_transformation_mode = "{mode}">(A, , S)'
    check(text, {"A": (1, 2, 4, 5)}, "hidden", constants=SCALES, opset=19, rtol=RTOL)


@pytest.mark.parametrize("kind", ["nearest", "linear", "cubic"])
def test_sizes_of_images_of_any_size(check, kind):
    text = f'Y = Resize<mode = "{kind}", axes = [1, 2]>(A, , , S)'
    check(text, {"A": (2, 3, 4), "S": np.array([2, 7])}, "hidden", opset=18, rtol=RTOL)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("sizes", [[3, 8], [9, 7], [2, 3]])
def test_aspect_ratios(check, policy, sizes):
    text = f'Y = Resize<mode = "linear", axes = [2, 3], keep_aspect_ratio_policy = "{policy}">(A, , , S)'
    check(text, {"A": (1, 2, 4, 5), "S": np.array(sizes)}, "hidden", known_axes=(2, 3), opset=19, rtol=RTOL)


@pytest.fixture
def run():
    """Return the function that runs a model on onnxruntime."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1

    def apply(model, outputs, **feeds):
        session = runtime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        return session.run(outputs, feeds)[0]

    return apply


def resize(image, **given):
    """Return a model with one Resize to given scales."""
    scales = onnx.numpy_helper.from_array(np.array([1.0, 1.0, *given.pop("scales")], dtype=np.float32), "S")
    region = onnx.numpy_helper.from_array(REGION["R"] if "tf_" in str(given) else REGION["R"][:0], "R")
    computed = given.pop("computed", False)
    names = ["A", *(["P", "Q"] if computed else ["R", "S"])]
    nodes = [helper.make_node("Identity", [a], [b]) for a, b in (("R", "P"), ("S", "Q"))] if computed else []
    nodes.append(helper.make_node("Resize", names, ["Y"], extrapolation_value=2.0, **given))
    values = [
        helper.make_tensor_value_info("A", TensorProto.FLOAT, image),
        helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * 4),
    ]
    graph = helper.make_graph(nodes, "resize", values[:1], values[1:], [scales, region])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("scales", [(0.75, 1.3), (2.7, 0.4), (0.5, 3.0), (0.6, 0.6), (1.25, 1.3)])
@pytest.mark.parametrize(
    ("coordinates", "attributes"),
    list(
        itertools.product(
            [*MODES, "tf_crop_and_resize"],
            [
                {"mode": "nearest", "nearest_mode": "floor"},
                {"mode": "nearest"},
                {"mode": "linear"},
                {"mode": "linear", "antialias": 1},
                {"mode": "cubic"},
                {"mode": "cubic", "exclude_outside": 1},
                {"mode": "cubic", "antialias": 1},
            ],
        )
    ),
)
def test_the_gradient_is_the_transpose_of_the_runtime_s_matrix(
    run, coordinates, attributes, scales, computed
):
    """Sizes that are no multiples of the scales: the evaluator of onnx and onnxruntime place pixels apart."""
    image = (1, 2, 4, 5)
    attributes = {**attributes, "coordinate_transformation_mode": coordinates, "computed": computed}
    model = resize(image, scales=scales, **attributes)
    gradient = ir.to_proto(differentiate(ir.from_proto(model), ["Y"], ["A"]))
    rng = np.random.default_rng(0)
    x = rng.normal(size=image).astype(np.float32)
    y = run(model, ["Y"], A=x) - run(model, ["Y"], A=np.zeros_like(x))
    seed = rng.normal(size=y.shape).astype(np.float32)
    found = (run(gradient, ["A_grad"], A=x, Y_grad=seed).astype(float) * x).sum()
    np.testing.assert_allclose(found, (y.astype(float) * seed).sum(), rtol=1e-4, atol=1e-4)


def test_an_image_that_keeps_its_size_is_copied(run):
    model = resize((1, 2, 2, 3), scales=(1.3, 1.3), mode="linear")
    gradient = ir.to_proto(differentiate(ir.from_proto(model), ["Y"], ["A"]))
    seed = np.random.default_rng(0).normal(size=(1, 2, 2, 3)).astype(np.float32)
    np.testing.assert_array_equal(run(gradient, ["A_grad"], A=seed, Y_grad=seed), seed)


def test_one_axis_with_scales_that_are_fed_is_refused():
    # the matrix of an axis is read off a resized identity, which needs a second one
    text = """
    <ir_version: 9, opset_import: ["": 18]>
    g (float[4] A, float[1] F) => (float[3] Y) { Y = Resize<mode = "linear">(A, , F) }
    """
    with pytest.raises(NotTrainableError, match="Resize .* needs constant scales"):
        differentiate(ir.from_proto(onnx.parser.parse_model(text)), ["Y"], ["A"])


@pytest.mark.parametrize(
    ("size", "scale", "rounding"),
    [
        (10, 0.75, "round_prefer_ceil"),
        (6, 0.75, "round_prefer_ceil"),
        (9, 0.4, "round_prefer_floor"),
        (5, 2 / 3, "round_prefer_floor"),
        (10, 1 / 3, "round_prefer_floor"),
        (6, 2.205029249191284, "round_prefer_ceil"),
    ],
)
def test_pixels_that_are_equally_near_are_those_of_the_runtime(run, size, scale, rounding):
    """Single precision decides between them: the matrix of the operator is read off the runtime."""
    attributes = {"coordinate_transformation_mode": "half_pixel_symmetric", "nearest_mode": rounding}
    node = helper.make_node("Resize", ["X", "", "S"], ["Y"], **attributes)
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, [size, size])]
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
    scales = helper.make_tensor("S", TensorProto.FLOAT, [2], [1.0, scale])
    graph = helper.make_graph([node], "g", inputs, outputs, [scales])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)
    matrix = run(model, ["Y"], X=np.eye(size, dtype=np.float32))
    seed = np.random.default_rng(0).normal(size=matrix.shape).astype(np.float32)
    gradient = onnx_derivative(model, weights=[])
    found = run(gradient, ["X_grad"], X=np.zeros((size, size), np.float32), Y_grad=seed)
    np.testing.assert_allclose(found, seed @ matrix.T, rtol=0, atol=1e-6)
