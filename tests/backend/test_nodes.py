"""Gradients of onnx's backend node tests: none is wrong, and verdicts equal the recorded table.

``python tests/backend/judge.py`` writes the table again, ``python docs/make_operators.py`` the page.
"""

import runpy
from collections import Counter
from pathlib import Path

import onnx
import pytest

pytestmark = pytest.mark.backend

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture(scope="module")
def table(judge):
    version, rows = judge.read_table()
    if onnx.__version__ != version:
        pytest.skip(
            f"the table is of the node tests of onnx {version}, and onnx {onnx.__version__} is installed"
        )
    return rows


def test_verdicts_are_those_of_the_table(judge, table, node_tests, operator):
    found = [judge.judge(test) for test in node_tests[operator]]
    assert found == [row for row in table.values() if row.operator == operator]


def test_counts(judge, table, node_tests):
    assert {test.name for tests in node_tests.values() for test in tests} == set(table)
    counts = Counter(row.status for row in table.values())
    assert counts[judge.WRONG] == 0
    assert counts[judge.RIGHT] >= 950
    assert all(row.reason for row in table.values() if row.status != judge.RIGHT)


def test_page_agrees_with_the_table():
    page = runpy.run_path(str(DOCS / "make_operators.py"))["page"]
    assert (DOCS / "operators.rst").read_text() == page()


def test_a_wrong_gradient_is_seen(judge, node_tests, monkeypatch):
    def half(model, **options):
        gradient = derivative(model, **options)
        output = gradient.graph.output[0].name
        next(n for n in gradient.graph.node if output in n.output).output[:] = ["whole"]
        gradient.graph.node.append(onnx.helper.make_node("Mul", ["whole", "two"], [output]))
        gradient.graph.initializer.append(onnx.helper.make_tensor("two", 1, [], [2.0]))
        return gradient

    derivative = judge.onnx_derivative
    monkeypatch.setattr(judge, "onnx_derivative", half)
    assert judge.judge(node_tests["Tanh"][0]).status == judge.WRONG
