"""Tags of an estimator: the input and target kinds of the model inside."""

import numpy as np
import onnx
import pytest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, PoissonRegressor, SGDRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import get_tags

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor


def test_the_linear_model():
    regressor, classifier = get_tags(OnnxSGDRegressor()), get_tags(OnnxSGDClassifier())
    assert regressor.input_tags.sparse
    assert regressor.target_tags.multi_output
    assert not regressor.input_tags.allow_nan
    assert classifier.classifier_tags.multi_label


@pytest.mark.parametrize(
    "inner",
    [
        SGDRegressor(),
        PoissonRegressor(),
        make_pipeline(SimpleImputer(), StandardScaler(), SGDRegressor()),
        make_pipeline(OneHotEncoder(), SGDRegressor()),
    ],
    ids=str,
)
def test_input_and_target_are_those_of_the_model_inside(inner):
    tags, theirs = get_tags(OnnxSGDRegressor(inner)), get_tags(inner)
    assert tags.input_tags == theirs.input_tags
    assert tags.target_tags.multi_output == theirs.target_tags.multi_output
    assert tags.target_tags.positive_only == theirs.target_tags.positive_only
    assert tags.estimator_type == "regressor"


@pytest.mark.parametrize("inner", [LogisticRegression(), MLPClassifier()], ids=str)
def test_several_labels_as_the_model_inside(inner):
    ours, theirs = get_tags(OnnxSGDClassifier(inner)), get_tags(inner)
    assert ours.classifier_tags.multi_label == theirs.classifier_tags.multi_label


def test_a_trained_graph_declares_its_input():
    onx = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
    g (float[N, 2, 3] A, float[N, 3] B) => (float[N, 1] Y) <float[3, 1] W = {1, 2, 3}> {
        S = ReduceSum <keepdims = 0> (A, axes)  T = Add(S, B)  Y = MatMul(T, W) }""")
    onx.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "axes"))
    X = {"A": np.ones((8, 2, 3), np.float32), "B": np.ones((8, 3), np.float32)}
    tags = get_tags(OnnxSGDRegressor(onx, max_iter=1, tol=None).fit(X, np.arange(8.0)))
    assert tags.input_tags.dict
    assert tags.input_tags.three_d_array
    assert not tags.input_tags.sparse
