"""Checks of nodes by skl2onnx."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer

from onnxsgd import OnnxSGDClassifier
from onnxsgd.graph.sklearn.operator_checks import check_operators_once

pytest.importorskip("skl2onnx")

from skl2onnx.algebra.onnx_operator import OnnxOperator
from skl2onnx.algebra.onnx_ops import OnnxAdd


def test_a_node_that_was_not_added_is_refused():
    check_operators_once()
    first = OnnxAdd("X", np.float32([1]), op_version=18)
    second = OnnxAdd(first, np.float32([1]), op_version=18)
    second.state = "added"
    with pytest.raises(RuntimeError, match="Graph was not produced for operator 'OnnxAdd'"):
        second._verify_add_to_()
    first.state = "added"
    second._verify_add_to_()


class Counted:
    """A node that counts how often it is looked at."""

    n_reads = 0

    def __init__(self, *inputs):
        self._inputs, self.state = inputs, "added"

    @property
    def inputs(self):
        Counted.n_reads += 1
        return self._inputs

    _verify_add_to_ = OnnxOperator._verify_add_to_


def test_each_node_is_checked_once():
    """Paths through nodes that are used twice are too many to follow."""
    check_operators_once()
    Counted._verify_add_to_ = OnnxOperator._verify_add_to_
    node = Counted()
    for _ in range(50):
        node = Counted(node, node)
    node._verify_add_to_()
    assert Counted.n_reads == 51


@pytest.mark.filterwarnings("ignore")
def test_many_quantiles_are_converted():
    """It did not end: also the search for constants of a step followed each path."""
    X, y = np.random.default_rng(0).normal(size=(1200, 3)), np.arange(1200) % 3
    model = make_pipeline(QuantileTransformer(), LogisticRegression()).fit(X, y)
    learner = OnnxSGDClassifier(model, max_iter=1).fit(X, y)
    expected = model.predict_proba(X)
    np.testing.assert_allclose(OnnxSGDClassifier(model).predict_proba(X), expected, atol=1e-5)
    assert learner.score(X, y) > 0.3
