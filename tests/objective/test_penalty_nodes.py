"""penalty_loss_onnx: value, gradient, names, refusals."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.gradient.derivative import onnx_derivative
from onnxsgd.objective.penalty_nodes import penalty_loss_onnx

COEFFICIENTS = st.sampled_from([None, 0, 0.5, 1, 2, np.float32(0.25), -0.5])


def model_of(initializers, nodes, dtype, shape, opset, name="w"):
    elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    make = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "penalty",
        [make(name, elem_type, shape)],
        [make(nodes[-1].output[0], elem_type, [1])],
        initializers,
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)


@settings(deadline=None, max_examples=40)
@given(
    l1=COEFFICIENTS,
    l2=COEFFICIENTS,
    shape=st.lists(st.integers(1, 4), max_size=4).map(tuple),
    dtype=st.sampled_from([np.float32, np.float64]),
    opset=st.integers(7, 21),
    seed=st.integers(0, 2**32 - 1),
)
def test_value_agrees_with_numpy(run, l1, l2, shape, dtype, opset, seed):
    if not (l1 or l2):
        with pytest.raises(ParameterError, match="tensor 'w' are 0"):
            penalty_loss_onnx("w", dtype, l1, l2)
        return
    model = model_of(*penalty_loss_onnx("w", dtype, l1, l2), dtype, shape, opset)
    w = np.asarray(np.random.default_rng(seed).normal(size=shape), dtype)
    (value,) = run(model, {"w": w}).values()
    wide = w.astype(np.float64)
    expected = (l1 or 0) * np.abs(wide).sum() + (l2 or 0) * (wide**2).sum()
    assert value.shape == (1,)
    assert value.dtype == dtype
    rtol = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(value, [expected], rtol=rtol, atol=rtol)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3, 2)])
@pytest.mark.parametrize(("l1", "l2"), [(0.5, None), (None, 2), (1, 0.25)])
def test_gradient_agrees_with_numpy(run, l1, l2, shape):
    model = model_of(*penalty_loss_onnx("w", np.float32, l1, l2), np.float32, shape, 15)
    derivative = onnx_derivative(model, weights=[], inputs=["w"])
    w = np.asarray(np.random.default_rng(0).normal(size=shape), np.float32)
    if w.size > 1:
        w.flat[0] = 0  # at the kink the derivative is 0
    seed = derivative.graph.input[-1].name
    found = run(derivative, {"w": w, seed: np.ones(1, np.float32)})["w_grad"]
    np.testing.assert_allclose(found, (l1 or 0) * np.sign(w) + 2 * (l2 or 0) * w, rtol=1e-6)


def test_names_avoid_those_in_use():
    existing = {"w", "other"}
    seen = set(existing)
    for _ in range(3):
        initializers, nodes = penalty_loss_onnx("w", np.float32, 1, 2, existing)
        new = [entry.name for entry in initializers] + [node.output[0] for node in nodes]
        assert len(set(new)) == len(new)
        assert not seen & set(new)
        seen |= set(new)
        assert existing == seen


def test_names_start_empty_every_time():
    first, second = (penalty_loss_onnx("w", np.float32, 1)[1][-1].output[0] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    "dtype", [np.float16, np.dtype("float16"), "float16", onnx.TensorProto.FLOAT16, np.int64(10)]
)
def test_types_are_numpy_dtypes_or_onnx_numbers(dtype):
    initializers, _ = penalty_loss_onnx("w", dtype, l2=1)
    assert {entry.data_type for entry in initializers} == {onnx.TensorProto.FLOAT16}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("w", np.float32), ParameterError, "tensor 'w' are 0: l1 or l2 must differ from 0"),
        (("w", np.float32, 0, 0.0), ParameterError, "are 0: l1 or l2 must differ from 0"),
        (
            ("w", np.float32, float("inf")),
            ParameterError,
            "l1 penalty of tensor 'w' is inf: it must be finite",
        ),
        (("w", np.float32, None, "1"), ParameterTypeError, "l2 penalty of tensor 'w' is '1'"),
        (("w", np.int64, 1), ParameterError, "dtype=.*int64.* must be float16, float32 or float64"),
        (("w", onnx.TensorProto.INT64, 1), ParameterError, "dtype=7 "),
        (("w", 12345, 1), ParameterTypeError, "dtype=12345"),
        (("w", "number", 1), ParameterTypeError, "dtype='number'"),
        (("", np.float32, 1), ParameterTypeError, "name=''"),
        (("w", np.float32, 1, None, ["w"]), ParameterTypeError, r"existing_names must be a set or None"),
    ],
)
def test_refusals_name_the_argument(arguments, error, message):
    with pytest.raises(error, match=message):
        penalty_loss_onnx(*arguments)
