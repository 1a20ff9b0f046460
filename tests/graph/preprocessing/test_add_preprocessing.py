"""Preprocessing of images in the graph, compared with the same in numpy, in float64."""

import pickle
import tracemalloc

import numpy as np
import onnx
import onnxruntime
import pytest
from sklearn.model_selection import GridSearchCV

from onnxsgd import OnnxSGDClassifier, add_preprocessing, describe_trainable
from onnxsgd.exceptions import GraphError, ParameterError, ParameterTypeError

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def identity(*sizes, opset=18, dtype="float", name="x"):
    """Return a network that gives its input, of shape [N, *sizes]."""
    shape = ", ".join(map(str, ("N", *sizes)))
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]>'
        f"g ({dtype}[{shape}] {name}) => ({dtype}[{shape}] y) {{ y = Identity({name}) }}"
    )


def network(n_channels=3):
    """Return a small convolutional network for images of 8 x 8 with two classes."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[N, {n_channels}, 8, 8] x) => (float[N, 2] scores) {{
            maps = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, kernel, bias)
            active = Relu(maps)
            flat = Flatten(active)
            scores = Gemm(flat, coef, intercept)
        }}"""
    )
    drawn = {
        "kernel": rng.normal(size=(4, n_channels, 3, 3)) / 5,
        "bias": np.zeros(4),
        "coef": rng.normal(size=(64, 2)) / 8,
        "intercept": np.zeros(2),
    }
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in drawn.items()
    )
    return model


def stripes(n_samples, n_channels=3):
    """Return images of 8 x 8 with stripes in noise, and their directions."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, n_samples)
    lines = np.where(np.arange(8) % 2, 60, 180)
    images = np.where(y[:, None, None], lines[:, None], lines[None, :])[..., None]
    noise = rng.integers(-50, 50, (n_samples, 8, 8, n_channels))
    return (images + noise).astype(np.uint8), y


def run(model, images):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: images})[0]


def interpolation(n_before, n_after, interpolation, antialias):
    """Return the matrix of an interpolation along one axis, with align_corners=False.

    With antialiasing the kernel is stretched over the pixels that are left out, and its weights sum to 1;
    without it the pixels at the border continue.
    """
    cubic = interpolation == "bicubic"
    ratio = n_before / n_after
    centre = ratio * (np.arange(n_after) + 0.5) - 0.5
    stretch = max(ratio, 1.0) if antialias else 1.0
    places = np.arange(n_before) if antialias else np.arange(-3, n_before + 3)
    x = np.abs(places - centre[:, None]) / stretch
    if cubic:
        a = -0.5 if antialias else -0.75
        near = (a + 2) * x**3 - (a + 3) * x**2 + 1
        far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
        weights = np.where(x <= 1, near, np.where(x < 2, far, 0))
    else:
        weights = np.maximum(0, 1 - x)
    if antialias:
        return weights / weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((n_after, n_before))
    for column, place in enumerate(np.clip(places, 0, n_before - 1)):
        matrix[:, place] += weights[:, column]
    return matrix


def expected(
    images, resize=None, crop=None, mode="bilinear", antialias=True, scale=1 / 255, mean=MEAN, std=STD
):
    """Return the result of the preprocessing of images with the channels last."""
    x = np.moveaxis(images.astype(np.float64), -1, 1)
    height, width = x.shape[2:]
    if isinstance(resize, int):
        short = min(height, width)
        resize = resize * height // short, resize * width // short
    if resize is not None:
        rows, columns = (
            interpolation(*sizes, mode, antialias) for sizes in zip((height, width), resize, strict=True)
        )
        x = rows @ x @ columns.T
    if crop is not None:
        top, left = (round((size - part) / 2) for size, part in zip(x.shape[2:], crop, strict=True))
        x = x[:, :, top : top + crop[0], left : left + crop[1]]
    return (x * scale - np.reshape(mean, (-1, 1, 1))) / np.reshape(std, (-1, 1, 1))


@pytest.mark.parametrize("size", [(40, 61), (61, 40), (9, 11)])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize(
    ("resize", "crop", "result"),
    [
        (20, (20, 20), (20, 20)),
        (25, (20, 19), (20, 19)),
        ((30, 35), (20, 21), (20, 21)),
        ((20, 24), None, (20, 24)),
        (33, None, ("h", "w")),
        (None, (8, 7), (8, 7)),
        (None, None, ("h", "w")),
    ],
)
def test_values_are_those_of_float64(size, mode, antialias, resize, crop, result):
    images = np.random.default_rng(0).integers(0, 256, (2, *size, 3), dtype=np.uint8)
    model = add_preprocessing(
        identity(3, *result, opset=13), mean=MEAN, std=STD, resize=resize, crop=crop, interpolation=mode,
        antialias=antialias,
    )  # fmt: skip
    onnx.checker.check_model(model, full_check=True)
    found, exact = run(model, images), expected(images, resize, crop, mode, antialias)
    assert found.dtype == np.float32
    # float32: 2^-24 of numbers up to 255 is 1.5e-5 of the smallest deviation
    np.testing.assert_allclose(found, exact, rtol=0, atol=5e-5)


@pytest.mark.parametrize(
    ("layout", "n_channels"), [("NHWC", 3), ("NCHW", 3), ("NHW", 1), ("NHWC", 1), ("NCHW", 1)]
)
@pytest.mark.parametrize(("dtype", "scale"), [("uint8", 1 / 255), ("uint16", 1 / 65535), ("float32", 1.0)])
def test_layouts_and_types(layout, n_channels, dtype, scale):
    rng = np.random.default_rng(0)
    images = (rng.random((2, 5, 6, n_channels)) * (1.0 / scale)).astype(dtype)
    given = {"NHWC": images, "NCHW": np.moveaxis(images, -1, 1), "NHW": images[..., 0]}[layout]
    model = add_preprocessing(
        identity(n_channels, 5, 6), dtype=np.dtype(dtype), layout=layout, mean=0.5, std=0.25
    )
    (value,) = model.graph.input
    assert value.name == "x"
    assert onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type) == dtype
    exact = expected(images, scale=scale, mean=0.5, std=0.25)
    np.testing.assert_allclose(run(model, np.ascontiguousarray(given)), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "double"])
def test_the_network_receives_its_own_type(dtype):
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3), dtype=np.uint8)
    found = run(add_preprocessing(identity(3, 4, 4, dtype=dtype), mean=MEAN, std=STD), images)
    assert found.dtype == np.dtype(dtype)
    np.testing.assert_allclose(found, expected(images), rtol=0, atol=2e-3 if dtype == "float16" else 2e-6)


def test_without_numbers_the_graph_has_no_arithmetic():
    model = add_preprocessing(identity(3, 4, 4), dtype="float32", layout="NCHW")
    assert [node.op_type for node in model.graph.node] == ["Identity"]
    assert not model.graph.initializer


def test_the_network_is_not_changed_and_other_names_stay():
    given = network()
    before = given.SerializeToString()
    model = add_preprocessing(given, resize=8, crop=8)
    assert given.SerializeToString() == before
    assert [value.name for value in model.graph.input] == ["x"]
    assert [value.name for value in model.graph.output] == ["scores"]
    assert {tensor.name for tensor in given.graph.initializer} < {t.name for t in model.graph.initializer}


def test_the_input_for_images_is_named():
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[N, 2] table, float[N, 1, 2, 2] picture) => (float[N, 2] y) {
        flat = Flatten(picture)
        part = Slice(flat, zero, two, one)
        y = Add(table, part)
    }"""
    model = onnx.parser.parse_model(text)
    numbers = {"zero": [0], "one": [1], "two": [2]}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array(array), name) for name, array in numbers.items()
    )
    with pytest.raises(ParameterError, match=r"has 2 inputs, \['table', 'picture'\]: name the one"):
        add_preprocessing(model)
    with pytest.raises(ParameterError, match=r"input_name='pictures' .* are \['table', 'picture'\]"):
        add_preprocessing(model, input_name="pictures")
    made = add_preprocessing(model, layout="NHW", input_name="picture")
    assert [value.name for value in made.graph.input] == ["table", "picture"]
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    picture = np.full((1, 2, 2), 51, np.uint8)
    (y,) = session.run(None, {"table": np.ones((1, 2), np.float32), "picture": picture})
    np.testing.assert_allclose(y, [[1.2, 1.2]], rtol=1e-6)


def test_images_smaller_than_the_crop_fail():
    model = add_preprocessing(identity(3, "h", "w"), crop=6)
    images = np.zeros((4, 5, 8, 3), np.uint8)
    with pytest.raises(Exception, match="(?i)reshape"):
        run(model, images)


REFUSED = {
    "type": ({"dtype": "uint9"}, ParameterError, r"dtype='uint9' .* Did you mean 'uint8'\?"),
    "signed": ({"dtype": "int8"}, ParameterError, "must be one of 'uint8', 'uint16', 'float32'"),
    "no type": ({"dtype": None}, ParameterError, "dtype=None is not accepted"),
    "layout": ({"layout": "nhwc"}, ParameterError, r"layout='nhwc' .* Did you mean 'NHWC'\?"),
    "grey": ({"layout": "NHW"}, ParameterError, "of one channel, and the network takes 3"),
    "mean": ({"mean": [0.5, 0.5]}, ParameterError, r"mean=.* has 2 numbers, .* images of 3 channels"),
    "mean of names": ({"mean": "imagenet"}, ParameterTypeError, "mean='imagenet' is not accepted"),
    "mean of rows": ({"mean": [[1, 2, 3]]}, ParameterTypeError, "a number, or one for each channel"),
    "no mean": ({"mean": [np.nan] * 3}, ParameterError, "must be finite"),
    "std": ({"std": [1, 0, 1]}, ParameterError, r"std=\[1, 0, 1\] is not accepted: each must be > 0"),
    "scale": ({"scale": 0}, ParameterError, "scale=0 is not accepted: it must be finite, and not 0"),
    "scales": ({"scale": [1, 2]}, ParameterTypeError, r"scale=\[1, 2\] .* must be a number, or None"),
    "scale of truth": ({"scale": True}, ParameterTypeError, "scale=True"),
    "resize": ({"resize": 0}, ParameterError, "resize=0 is not accepted: it must be a whole number > 0"),
    "resizes": ({"resize": (8, 8, 3)}, ParameterError, r"resize=\(8, 8, 3\)"),
    "resize by half": ({"resize": 0.5}, ParameterError, "resize=0.5"),
    "only resize": ({"resize": 8}, ParameterError, r"takes images of 8 x 8: add crop=\(8, 8\), or give"),
    "other size": ({"resize": (9, 8)}, ParameterError, r"resize=\(9, 8\) is not the size .* \(8, 8\)"),
    "other crop": ({"crop": 7}, ParameterError, r"crop=\(7, 7\) is not the size .* \(8, 8\)"),
    "large crop": (
        {"crop": 8, "resize": 7},
        ParameterError,
        r"crop=\(8, 8\) is larger than the images that resize=7 makes",
    ),
    "interpolation": ({"interpolation": "bilinaer"}, ParameterError, "Did you mean 'bilinear'"),
    "antialias": ({"antialias": "yes"}, ParameterTypeError, "antialias='yes'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    given, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        add_preprocessing(network(), **given)


def test_networks_without_an_input_for_images():
    table = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }'
    )
    with pytest.raises(
        GraphError, match=r"'x' of the network is of FLOAT and of shape \(any, 4\): images need"
    ):
        add_preprocessing(table)
    with pytest.raises(GraphError, match="is of UINT8"):
        add_preprocessing(add_preprocessing(network()))


def test_constants_are_reported_as_frozen():
    report = describe_trainable(add_preprocessing(network(), mean=MEAN, std=STD))
    assert report.trained == ["kernel", "bias", "coef", "intercept"]
    rows = {row.name: row.reason for row in report.tensors if not row.trained}
    assert rows == {
        "pixel_factor": "factor of the pixels of images",
        "pixel_offset": "offset of the pixels of images",
    }


@pytest.mark.parametrize("learning_rate", ["auto", "constant"])
@pytest.mark.parametrize(
    "engine", ["portable", pytest.param("onnxruntime-training", marks=pytest.mark.native)]
)
def test_training_equals_that_on_preprocessed_images(engine, learning_rate):
    X, y = stripes(200)
    floats = expected(X).astype(np.float32)
    shared = {"engine": engine, "learning_rate": learning_rate, "random_state": 0, "max_iter": 5, "tol": None}
    inside = OnnxSGDClassifier(add_preprocessing(network(), mean=MEAN, std=STD), **shared).fit(X, y)
    outside = OnnxSGDClassifier(network(), **shared).fit(floats, y)
    for name, weight in outside.get_weights().items():
        np.testing.assert_allclose(inside.get_weights()[name], weight, rtol=0, atol=1e-4)
    np.testing.assert_allclose(inside.predict_proba(X), outside.predict_proba(floats), rtol=0, atol=1e-4)
    exported = inside.to_onnx()
    assert exported.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
    scores = run(exported, X)
    margin = outside.decision_function(floats)
    np.testing.assert_allclose(scores[:, 1] - scores[:, 0], margin, rtol=1e-4, atol=1e-3)


def test_searches_and_pickles():
    X, y = stripes(120)
    models = [add_preprocessing(network()), add_preprocessing(network(), mean=MEAN, std=STD)]
    base = OnnxSGDClassifier(max_iter=10, tol=None, random_state=0)
    search = GridSearchCV(base, {"model": models}, cv=2, error_score="raise").fit(X, y)
    assert search.best_score_ > 0.9
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict(X), search.predict(X))


def test_images_of_another_kind_are_refused():
    X, y = stripes(40)
    learner = OnnxSGDClassifier(add_preprocessing(network()), max_iter=2, tol=None, random_state=0).fit(X, y)
    with pytest.raises(
        ParameterError, match=r"values such as 0\.\d+, .* must be whole numbers from 0 to 255"
    ):
        learner.predict(X / 255)
    with pytest.raises(ParameterError, match="numbers from 0 to 255"):
        learner.predict(X.astype(int) + 100)
    with pytest.raises((GraphError, ValueError), match="shape|features"):
        learner.predict(np.moveaxis(X, -1, 1))


@pytest.mark.parametrize("learning_rate", ["auto", "constant"])
@pytest.mark.parametrize("sizes", [{}, {"resize": 10, "crop": 8}], ids=["as they are", "resized"])
def test_a_map_of_images_is_read_batch_by_batch(learning_rate, sizes, tmp_path):
    """In float32, 19 MB of bytes would be 77 MB."""
    n_samples = 100_000
    few, labels = stripes(1000)
    images = np.lib.format.open_memmap(tmp_path / "images.npy", "w+", np.uint8, (n_samples, 8, 8, 3))
    for start in range(0, n_samples, len(few)):
        images[start : start + len(few)] = few
    images.flush()
    images = np.load(tmp_path / "images.npy", mmap_mode="r")
    model = add_preprocessing(network(), **sizes)
    learner = OnnxSGDClassifier(model, learning_rate=learning_rate, max_iter=1, tol=None, random_state=0)
    y = np.resize(labels, n_samples)
    learner.fit(few, labels)
    tracemalloc.start()
    learner.fit(images, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < images.nbytes / 2
    assert sizes or learner.score(images[:1000], labels) > 0.9


@pytest.mark.parametrize("sizes", [{"resize": 9, "crop": 8}, {"crop": 8}, {"resize": (8, 8)}], ids=str)
def test_a_frozen_backbone_is_computed_once(sizes):
    """For images of any size too: their heights and widths do not depend on the number of images."""
    model = add_preprocessing(network(), mean=MEAN, std=STD, **sizes)
    rng = np.random.default_rng(0)
    images, y = rng.integers(0, 256, (60, 12, 10, 3), dtype=np.uint8), rng.integers(0, 2, 60)
    learner = OnnxSGDClassifier(model, output="flat", head="linear", max_iter=2, tol=None, random_state=0)
    learner.fit(images, y)
    assert list(learner._learner.divided.split.features) == ["flat"]
    prepared = expected(images, **({**sizes, "crop": (8, 8)} if "crop" in sizes else sizes))
    outside = OnnxSGDClassifier(network(), output="flat", head="linear", max_iter=2, tol=None, random_state=0)
    outside.fit(prepared.astype(np.float32), y)
    for name, weight in outside.get_weights().items():
        np.testing.assert_allclose(learner.get_weights()[name], weight, rtol=1e-3, atol=1e-4)
