"""Gelu in five nodes: one derivative for all of them, wherever else its parts are read."""

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxsgd.gradient.portable import differentiate

CONSTANTS = {
    "root": np.array(math.sqrt(2)),
    "slope": np.array(math.sqrt(0.5)),
    "one": np.array(1.0),
    "half": np.array(0.5),
    "two": np.array(2.0),
}

#: The order of torch, that of other exporters, and constants of another unit than Gelu.
FORMS = {
    "halved last": "u = Div(X, root) e = Erf(u) b = Add(e, one) p = Mul(X, b) Y = Mul(p, half)",
    "halved first": "u = Mul(slope, X) e = Erf(u) b = Add(one, e) h = Mul(half, X) Y = Mul(b, h)",
    "divided": "u = Mul(X, slope) e = Erf(u) b = Add(e, one) p = Mul(b, X) Y = Div(p, two)",
    "other constants": "u = Div(X, two) e = Erf(u) b = Add(e, half) p = Mul(b, X) Y = Mul(two, p)",
}


#: Factors that are in the layers before and after it.
BARE = {
    "no slope": "e = Erf(X) b = Add(e, one) p = Mul(X, b) Y = Mul(p, half)",
    "no factor": "u = Div(X, root) e = Erf(u) b = Add(e, one) Y = Mul(X, b)",
    "neither": "e = Erf(X) b = Add(one, e) Y = Mul(b, X)",
    "neither, a part read elsewhere": "e = Erf(X) b = Add(one, e) y = Mul(b, X) Y = Mul(y, b)",
}


@pytest.mark.parametrize("text", [*FORMS.values(), *BARE.values()], ids=[*FORMS, *BARE])
@pytest.mark.parametrize("dims", ["known", "hidden"])
def test_derivative(check, text, dims):
    check(text, {"X": (3, 4)}, dims, constants=CONSTANTS)


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_parts_that_other_nodes_read(check, text):
    text = text.replace("Y =", "y =") + " t = Mul(u, b) s = Mul(X, e) m = Mul(y, t) Y = Add(m, s)"
    check(text, {"X": (3, 4)}, constants=CONSTANTS)


@pytest.mark.parametrize("outputs", [("Y", "u"), ("b", "Y"), ("p", "Y")])
def test_parts_that_are_outputs(check, outputs):
    check(FORMS["halved last"], {"X": (3, 4)}, constants=CONSTANTS, outputs=outputs)


def test_factors_that_are_trained(check):
    # none of them is a constant then: each has a gradient of its own
    trained = {name: array for name, array in CONSTANTS.items() if name != "two"}
    check(FORMS["halved last"], {"X": (3, 4), **trained})


NEAR = {
    "a vector for a number": "u = Div(X, root) e = Erf(u) b = Add(e, one) p = Mul(X, b) Y = Mul(p, wide)",
    "more axes": "u = Div(X, root) e = Erf(u) b = Add(e, one) p = Mul(X, b) Y = Mul(p, deep)",
    "another factor": "u = Div(X, root) e = Erf(u) b = Add(e, one) p = Mul(u, b) Y = Mul(p, half)",
    "divided by it": "u = Div(root, X) e = Erf(u) b = Add(e, one) p = Mul(X, b) Y = Mul(p, half)",
    "a negative slope": "u = Mul(X, minus) e = Erf(u) b = Add(e, one) p = Mul(X, b) Y = Mul(p, half)",
}


@pytest.mark.parametrize("text", NEAR.values(), ids=NEAR)
def test_other_functions_of_these_nodes(check, text):
    operands = {"X": np.array([[0.5, -1.2, 2.0, 0.8], [1.5, -0.4, 0.3, -2.5]])}
    constants = {
        **CONSTANTS,
        "minus": np.array(-0.7),
        "wide": np.array([0.5, 1.0, 2.0, 3.0]),
        "deep": np.full((1, 1, 1), 0.5),
    }
    check(text, operands, constants=constants)


def counted(text, wrt):
    """Return the number of nodes of the gradient of a graph beside the constants."""
    held = ", ".join(f"float {name} = {{{float(array)}}}" for name, array in CONSTANTS.items())
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g (float[3, 4] X) => (float[3, 4] Y) <{held}> {{ {text} }}'
    )
    gradient = differentiate(ir.from_proto(model), ["Y"], wrt)
    return sum(node.op_type not in ("Constant", "Identity") for node in gradient.graph)


@pytest.mark.parametrize("form", ["halved last", "halved first", "divided"])
def test_seven_nodes_after_its_own_five(form):
    assert counted(FORMS[form], ["X"]) == 12


def test_the_gradient_of_a_constant_inside():
    # the parts are differentiated one by one where one of their own gradients is wanted
    assert counted(FORMS["halved last"], ["X", "root"]) > 12
