"""Each fact of the table holds for the operator itself: by its schema, or by onnx's own evaluator."""

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from onnxsgd.graph.operators import ML_OPERATORS, OPERATORS, TYPE_ONLY, Fact, having, having_in_ml

SCHEMAS = {
    schema.name: schema
    for schema in onnx.defs.get_all_schemas_with_history()
    if schema.domain == "" and schema.since_version <= 21
}
FLOATS = np.array([[0.31, -1.27, 0.85], [-0.42, 1.93, -2.38]], np.float32)

#: Attributes and further operands of those that need them.
ATTRIBUTES = {"BitShift": {"direction": "LEFT"}, "Cast": {"to": onnx.TensorProto.FLOAT}}
OPERANDS = {
    "Expand": [np.array([2, 2, 3])],
    "Reshape": [np.array([3, 2])],
    "Unsqueeze": [np.array([0])],
}
N_OPERANDS = {"Where": 3, "Clip": 1, "Max": 2, "Mean": 2, "Min": 2, "Sum": 2}


def schema_types(operand):
    return set(operand.types)


def operands_of(name):
    """Return operands of shape [2, 3], of the first type among float, int64, bool that each of them takes."""
    schema, rng = SCHEMAS[name], np.random.default_rng(0)
    count = N_OPERANDS.get(name, schema.min_input)
    arrays = []
    for index in range(count):
        types = schema_types(schema.inputs[min(index, len(schema.inputs) - 1)])
        values = rng.permutation(FLOATS.ravel()).reshape(FLOATS.shape) + np.float32(0.137 * index)
        if name in ("Acosh", "Log", "Pow", "Sqrt"):
            values = np.abs(values) + 1
        elif name in ("Acos", "Asin", "Atanh"):
            values = values / 3
        if "tensor(float)" in types:
            arrays.append(values)
        elif "tensor(bool)" in types:
            arrays.append(values > 0)
        else:
            arrays.append(np.abs(values * 3).astype(np.uint8))
    return arrays


def run(name, arrays, **attributes):
    inputs = [helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(array.dtype), None)
              for i, array in enumerate(arrays)]  # fmt: skip
    node = helper.make_node(
        name, [value.name for value in inputs], ["y"], **ATTRIBUTES.get(name, {}), **attributes
    )
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    return ReferenceEvaluator(model).run(None, {f"x{i}": array for i, array in enumerate(arrays)})[0]


def cases(fact):
    return pytest.mark.parametrize("name", sorted(having(fact)))


def test_operators_of_the_standard_in_alphabetical_order():
    assert set(OPERATORS) <= set(SCHEMAS)
    assert list(OPERATORS) == sorted(OPERATORS)


@cases(Fact.ELEMENTWISE)
def test_an_element_of_the_result_follows_from_those_at_its_place(name):
    arrays = operands_of(name)
    order = [4, 2, 0, 5, 1, 3]
    moved = [array.ravel()[order].reshape(array.shape) for array in arrays]
    np.testing.assert_array_equal(run(name, moved).ravel(), run(name, arrays).ravel()[order])


@cases(Fact.COMMUTATIVE)
def test_operands_may_change_places(name):
    a, b = operands_of(name)
    np.testing.assert_array_equal(run(name, [a, b]), run(name, [b, a]))


@pytest.mark.parametrize(
    ("fact", "expected"), [(Fact.BOOLEAN, "tensor(bool)"), (Fact.INT64, "tensor(int64)")]
)
def test_results_of_one_type_are_those_of_the_schemas(fact, expected):
    """All operators with a single result of that type, for all operands, are in the table."""
    real = {
        name
        for name, schema in SCHEMAS.items()
        if len(schema.outputs) == 1
        and schema_types(schema.outputs[0]) == {expected}
        and schema.support_level == onnx.defs.OpSchema.SupportType.COMMON
        and not any("seq" in kind or "optional" in kind for kind in schema_types(schema.inputs[0]))
    }
    assert {name for name in real if name in OPERATORS} == having(fact)


@cases(Fact.FORM)
def test_the_elements_stay_the_same(name):
    arrays = [FLOATS[None] if name == "Squeeze" else FLOATS, *OPERANDS.get(name, [])]
    assert set(run(name, arrays).ravel()) == set(FLOATS.ravel())


@cases(Fact.IN_ORDER)
def test_the_elements_stay_in_order(name):
    arrays = [FLOATS[None] if name == "Squeeze" else FLOATS, *OPERANDS.get(name, [])]
    np.testing.assert_array_equal(run(name, arrays).ravel(), FLOATS.ravel())


def test_the_order_of_other_forms_may_change():
    """Of all forms, only an Expand repeats elements, only a Transpose moves them."""
    assert having(Fact.FORM) - having(Fact.IN_ORDER) == {"Expand", "Transpose"}


@cases(Fact.SIZES)
def test_elements_do_not_count_and_sizes_do(name):
    np.testing.assert_array_equal(run(name, [FLOATS]), run(name, [-FLOATS]))
    assert not np.array_equal(run(name, [FLOATS]), run(name, [FLOATS[:1]]))


def test_all_operators_that_return_sizes_are_marked():
    """Their schemas take a tensor of any type, and return integers."""
    real = {
        name
        for name in having(Fact.INT64)
        if len(schema_types(SCHEMAS[name].inputs[0])) > 12 and len(SCHEMAS[name].inputs) == 1
        and run(name, [FLOATS]).tolist() == run(name, [-FLOATS]).tolist()
        and run(name, [FLOATS]).tolist() != run(name, [FLOATS[:1]]).tolist()
    }  # fmt: skip
    assert real - {"NonZero"} == having(Fact.SIZES)


def test_recurrent_operators_are_those_with_a_hidden_size():
    real = {name for name, schema in SCHEMAS.items() if "hidden_size" in schema.attributes}
    assert real == having(Fact.RECURRENT)


def test_recurrent_operators_share_the_positions_of_their_operands():
    names = [[operand.name for operand in SCHEMAS[name].inputs] for name in having(Fact.RECURRENT)]
    assert len({tuple(known[:6]) for known in names}) == 1


def test_sequences_are_those_of_the_schemas():
    real = {
        name
        for name, schema in SCHEMAS.items()
        if schema.outputs and all(kind.startswith("seq(") for kind in schema_types(schema.outputs[0]))
    }
    assert real == having(Fact.SEQUENCE)


@cases(Fact.REDUCTION)
def test_an_axis_is_reduced_to_one_element(name):
    values = np.abs(FLOATS)
    result = run(name, [values, np.array([1])], keepdims=0)
    assert result.shape == (2,)
    np.testing.assert_array_equal(run(name, [values[:, [2, 0, 1]], np.array([1])], keepdims=0).shape, (2,))


@pytest.mark.parametrize(
    "name", sorted(name for name in having(Fact.FLAT) - having(Fact.RANDOM)
                   if SCHEMAS[name].inputs and "tensor(float)" in schema_types(SCHEMAS[name].inputs[0])
                   and name != "NonMaxSuppression")
)  # fmt: skip
def test_a_small_change_of_a_real_operand_changes_nothing(name):
    arrays = operands_of(name)
    nearby = [arrays[0] + np.float32(1e-4), *arrays[1:]]
    np.testing.assert_array_equal(run(name, nearby), run(name, arrays))


@pytest.mark.parametrize("name", sorted(having(Fact.ELEMENTWISE) - having(Fact.FLAT)))
def test_others_change_with_it(name):
    """The table of operators without a gradient is exact and complete."""
    arrays = operands_of(name)
    if arrays[0].dtype != np.float32:
        pytest.skip("reads no real numbers")
    if name == "Where":
        arrays = [arrays[0], *arrays[:0:-1]]
    place = 1 if name == "Where" else 0
    nearby = [array + np.float32(1e-2) if i == place else array for i, array in enumerate(arrays)]
    assert (run(name, nearby) != run(name, arrays)).any()


@pytest.mark.parametrize("name", sorted(having(Fact.RANDOM) - {"Multinomial"}))
def test_results_are_drawn(name):
    """The evaluator has no Multinomial."""
    read = {
        "Bernoulli": [np.full((4, 50), 0.5, np.float32)],
        "RandomNormalLike": [FLOATS],
        "RandomUniformLike": [FLOATS],
    }
    attributes = {"shape": [4, 50]} if name in ("RandomNormal", "RandomUniform") else {}
    results = [run(name, read.get(name, []), **attributes) for _ in range(2)]
    assert (results[0] != results[1]).any()


@pytest.mark.parametrize("name", sorted(TYPE_ONLY))
def test_only_the_type_of_an_operand_counts(name):
    position, like = TYPE_ONLY[name], np.zeros(3)
    arrays = [FLOATS, FLOATS]
    arrays[position] = like
    result = run(name, arrays)
    arrays[position] = like + 1
    np.testing.assert_array_equal(run(name, arrays), result)
    arrays[position] = like.astype(np.int64)
    assert run(name, arrays).dtype != result.dtype


ML_ATTRIBUTES = {
    "Binarizer": {"threshold": 0.5},
    "Imputer": {"imputed_value_floats": [4.0, 5.0, 6.0], "replaced_value_float": 0.0},
    "LabelEncoder": {"keys_floats": [0.0, 1.0], "values_floats": [5.0, 6.0], "default_float": 7.0},
    "Scaler": {"offset": [1.0, 2.0, 3.0], "scale": [2.0, 3.0, 4.0]},
}


@pytest.mark.parametrize("name", sorted(having_in_ml(Fact.ELEMENTWISE)))
def test_an_element_of_ai_onnx_ml_changes_only_its_place(name):
    node = helper.make_node(name, ["x"], ["y"], domain="ai.onnx.ml", **ML_ATTRIBUTES[name])
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [value], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    model = ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))
    before = np.ones((2, 3), np.float32)
    for place in np.ndindex(before.shape):
        after = before.copy()
        after[place] = 0.0
        changed = model.run(None, {"x": after})[0] != model.run(None, {"x": before})[0]
        assert changed[place]
        assert changed.sum() == 1


def test_rows_of_ai_onnx_ml_are_operators_of_it():
    assert all(onnx.defs.has(name, "ai.onnx.ml") for name in ML_OPERATORS)
    assert list(ML_OPERATORS) == sorted(ML_OPERATORS)
