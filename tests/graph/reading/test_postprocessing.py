"""Labels and probabilities that are added to a graph are those of scipy."""

import numpy as np
import onnx.parser
import pytest
from scipy.special import expit, softmax

from onnxsgd.exceptions import ParameterError
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.reading.postprocessing import (
    _INVERSES,
    _ONE_BY_ONE,
    _PROBABILITIES,
    _TABLES,
    add_classifier_tail,
    add_multilabel_tail,
    add_regressor_tail,
)


def scores(columns):
    return to_ir(
        onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 18]> g (float[N, {columns}] x) => (float[N, {columns}] z)'
            "{ z = Identity(x) }"
        )
    )


def test_labels_that_no_file_holds_are_refused():
    with pytest.raises(ParameterError, match=r"label '\\ud800' cannot be written into an ONNX file"):
        add_classifier_tail(scores(1), np.array(["a", "\ud800"]), "sigmoid", ("label", "p"))


def half(z):
    return np.clip((z + 1) / 2, 0, 1)


def complete(p):
    if p.shape[1] == 1:
        return np.hstack([1 - p, p])
    total = p.sum(axis=1, keepdims=True)
    return np.divide(p, total, where=total > 0, out=np.full_like(p, 1 / p.shape[1]))


#: The probabilities of each link, of each score alone and over the classes.
ALONE = {None: lambda z: z, "sigmoid": expit, "modified_huber": half}
CLASSES = {
    None: lambda z: z,
    "sigmoid": lambda z: complete(expit(z)),
    "softmax": lambda z: softmax(z, axis=1),
    "modified_huber": lambda z: complete(half(z)),
}

#: The last row has no positive share by modified_huber: its classes are equally likely.
Z = np.vstack([np.random.default_rng(0).normal(size=(6, 3)), [[-2.0, -3.0, -4.0]]]).astype(np.float32)


def test_every_link_has_a_case():
    assert set(_ONE_BY_ONE) == set(ALONE)


def test_every_link_over_classes_has_a_case():
    assert set(_PROBABILITIES) == set(CLASSES)


@pytest.mark.parametrize(
    ("link", "columns"),
    [*((link, 3) for link in CLASSES), *((link, 1) for link in CLASSES if link != "softmax")],
)
@pytest.mark.parametrize("labels", [["no", "yes", "perhaps"], [7, 3, 5], [2**63, 2**63 + 1, 2**63 + 2]])
def test_classes(link, columns, labels, run):
    classes = np.array(labels[: max(columns, 2)])
    model = add_classifier_tail(scores(columns), classes, link, ("label", "p"))
    z = Z[:, :columns]
    found = run(model, {"x": z})
    winner = (z[:, 0] > 0).astype(int) if columns == 1 else z.argmax(axis=1)
    np.testing.assert_array_equal(found["label"], classes[winner])
    np.testing.assert_allclose(found["p"], CLASSES[link](z.astype(float)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("link", ALONE)
def test_several_labels_of_a_sample(link, run):
    found = run(add_multilabel_tail(scores(3), link, ("labels", "p")), {"x": Z})
    np.testing.assert_array_equal(found["labels"], Z > 0)
    np.testing.assert_allclose(found["p"], ALONE[link](Z.astype(float)), rtol=1e-6, atol=1e-7)


REGRESSION = {"identity": lambda z: z, "log": np.exp}


def test_every_inverse_has_a_case():
    assert set(_INVERSES) == set(REGRESSION)


#: Predictions from all scores of a sample, with the names of the outputs.
TABLES = {
    "normal": lambda z: {"y": z[:, :2], "std": np.exp(np.clip(z[:, 2:], -60, 60) / 2)},
    "sorted": lambda z: {"y": np.sort(z, axis=1)},
}


def test_every_link_of_several_scores_has_a_case():
    assert set(_TABLES) == set(TABLES)


@pytest.mark.parametrize("link", TABLES)
@pytest.mark.parametrize("name", ["y", "z", "x"])
def test_predictions_from_several_scores(link, name, run):
    z = np.vstack([np.hstack([Z, Z[::-1, :1]]), [[1.0, -200.0, 200.0, -200.0]]]).astype(np.float32)
    model = add_regressor_tail(scores(4), link, name, 4)
    found = run(model, {"x": z})
    expected = TABLES[link](z.astype(float))
    for result, (wanted, table) in zip(found.items(), expected.items(), strict=True):
        assert result[0] == (name if wanted == "y" and name != "x" else result[0])
        np.testing.assert_allclose(result[1], table, rtol=1e-5)
    onnx.checker.check_model(to_proto(model), full_check=True)


@pytest.mark.parametrize("link", REGRESSION)
def test_predictions_of_a_regression_in_a_copy(link, run):
    model = scores(3)
    named = add_regressor_tail(model, link, "x")
    assert [value.name for value in named.graph.outputs] != ["x"]
    for name in "yz":
        assert [value.name for value in add_regressor_tail(model, link, name).graph.outputs] == [name]
    assert [value.name for value in model.graph.outputs] == ["z"]
    (found,) = run(named, {"x": Z}).values()
    np.testing.assert_allclose(found, REGRESSION[link](Z), rtol=1e-6)
