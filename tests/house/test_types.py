"""Limits of the types: few parameters are Any, and no assert narrows a type for the checker."""

import ast
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEASURES = runpy.run_path(str(ROOT / "tests" / "house" / "measures.py"))

#: The share of parameters that may be Any: objects of libraries without stubs, such as frames and sessions.
LARGEST_SHARE = 0.04


def narrows(test):
    """Return whether an expression checks a type alone: ``x is not None``, ``isinstance(x, T)``."""
    if isinstance(test, ast.BoolOp):
        return all(map(narrows, test.values))
    if isinstance(test, ast.Call):
        return ast.unparse(test.func) == "isinstance"
    is_comparison = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot)
    return is_comparison and ast.unparse(test.comparators[0]) == "None"


def test_few_parameters_are_any():
    assert MEASURES["any_share"](ROOT) < LARGEST_SHARE


def test_no_assert_narrows_a_type():
    """Accessors of :mod:`onnxsgd.graph.nodes` return the value or name the tensor that lacks it."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, node in MEASURES["definitions"](ROOT, (ast.Assert,))
        if narrows(node.test)
    ]
    assert not found


def test_formulas_receive_a_builder():
    """Each parameter `op` of the package has the type of the operator builder."""
    untyped = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, node in MEASURES["definitions"](ROOT, (ast.FunctionDef,))
        for argument in node.args.args
        if argument.arg == "op" and ast.unparse(argument.annotation) != "Builder"
    ]
    assert not untyped
