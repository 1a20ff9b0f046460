"""Graphs of sequences, and the same functions in numpy."""

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def drawn(seed, **shapes):
    """Return random weights."""
    generator = np.random.default_rng(seed)
    return {
        name: (generator.normal(size=shape) / np.sqrt(shape[-1])).astype("f")
        for name, shape in shapes.items()
    }


def _model(nodes, initializers, inputs, scores):
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in initializers.items()]
    values = [helper.make_tensor_value_info(*entry) for entry in inputs]
    output = helper.make_tensor_value_info("scores", FLOAT, scores)
    graph = helper.make_graph(nodes, "sequences", values, [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def pooling(mask="mask", n_outputs=1, length="length", mask_type=FLOAT):
    """Return a network that averages the steps of a series by attention; `mask`: the name of that input."""
    node = helper.make_node
    weights = drawn(0, A=(3, 4), a=(4,), v=(4, 1), C=(4, n_outputs), c=(n_outputs,))
    nodes = [
        node("MatMul", ["X", "A"], ["product"]),
        node("Add", ["product", "a"], ["sum"]),
        node("Tanh", ["sum"], ["hidden"]),
        node("MatMul", ["hidden", "v"], ["energy"]),
    ]
    inputs, energy = [("X", FLOAT, ["n", length, 3])], "energy"
    if mask is not None:
        nodes += [
            node("Cast", [mask], ["real"], to=FLOAT),
            node("Unsqueeze", ["real", "last"], ["column"]),
            node("Sub", ["column", "one"], ["padding"]),
            node("Mul", ["padding", "huge"], ["bias"]),
            node("Add", ["energy", "bias"], ["masked"]),
        ]
        inputs.append((mask, mask_type, ["n", length]))
        energy = "masked"
        weights |= {"last": np.array([-1]), "one": np.float32(1), "huge": np.float32(1e9)}
    nodes += [
        node("Softmax", [energy], ["share"], axis=1),
        node("Mul", ["hidden", "share"], ["shared"]),
        node("ReduceSum", ["shared", "first"], ["context"], keepdims=0),
        node("MatMul", ["context", "C"], ["last_product"]),
        node("Add", ["last_product", "c"], ["scores"]),
    ]
    return _model(nodes, weights | {"first": np.array([1])}, inputs, ["n", n_outputs])


def pooled(weights, x):
    """Return the raw prediction of one series, without padding, in float64."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    hidden = np.tanh(x.astype(np.float64) @ w["A"] + w["a"])
    energy = hidden @ w["v"]
    share = np.exp(energy - energy.max())
    return (hidden * share / share.sum()).sum(axis=0) @ w["C"] + w["c"]


def recurrent(operator="LSTM", masked=True):
    """Return a recurrent network, which takes the lengths from the mask."""
    node, gates = helper.make_node, {"LSTM": 4, "GRU": 3}[operator]
    weights = drawn(0, W=(1, 4 * gates, 3), R=(1, 4 * gates, 4), B=(1, 8 * gates), C=(4, 1), c=(1,))
    weights |= {"zero": np.array([0])}
    nodes, inputs = [node("Transpose", ["X"], ["steps"], perm=[1, 0, 2])], [("X", FLOAT, ["n", "length", 3])]
    if masked:
        weights["one"] = np.array([1])
        nodes += [
            node("ReduceSum", ["mask", "one"], ["sum"], keepdims=0),
            node("Cast", ["sum"], ["lengths"], to=TensorProto.INT32),
        ]
        inputs.append(("mask", FLOAT, ["n", "length"]))
    nodes += [
        node(operator, ["steps", "W", "R", "B", "lengths" if masked else ""], ["", "state"], hidden_size=4),
        node("Squeeze", ["state", "zero"], ["last"]),
        node("MatMul", ["last", "C"], ["product"]),
        node("Add", ["product", "c"], ["scores"]),
    ]
    return _model(nodes, weights, inputs, ["n", 1])


def tagger(masked=True, n_outputs=3, is_flat=False):
    """Return a network with scores for each token, from its embedding and the mean of the sequence."""
    node, weights = helper.make_node, drawn(1, E=(7, 2), C=(4, n_outputs), c=(n_outputs,))
    weights |= {"one": np.array([1]), "last": np.array([-1])}
    nodes = [node("Gather", ["E", "ids"], ["e"])]
    inputs = [("ids", INT64, ["n", "length"])]
    if masked:
        inputs.append(("mask", FLOAT, ["n", "length"]))
        nodes += [
            node("Unsqueeze", ["mask", "last"], ["column"]),
            node("Mul", ["e", "column"], ["kept"]),
            node("ReduceSum", ["kept", "one"], ["sum"]),
            node("ReduceSum", ["column", "one"], ["count"]),
            node("Div", ["sum", "count"], ["mean"]),
        ]
    else:
        nodes.append(node("ReduceMean", ["e", "one"], ["mean"]))
    nodes += [
        node("Shape", ["e"], ["shape"]),
        node("Expand", ["mean", "shape"], ["context"]),
        node("Concat", ["e", "context"], ["both"], axis=2),
        node("MatMul", ["both", "C"], ["product"]),
        node("Add", ["product", "c"], ["table" if is_flat else "scores"]),
    ]
    if is_flat:
        nodes.append(node("Squeeze", ["table", "last"], ["scores"]))
    return _model(nodes, weights, inputs, ["n", "length"] if is_flat else ["n", "length", n_outputs])


def tagged(weights, ids):
    """Return the raw predictions of the tokens of one sequence, in float64."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    e = w["E"][ids]
    return np.hstack([e, np.broadcast_to(e.mean(axis=0), e.shape)]) @ w["C"] + w["c"]


def value_inputs(**shapes):
    """Return inputs of a graph, of float32 numbers; the first axis is that of the samples."""
    return [
        ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n", *shape]))
        for name, shape in shapes.items()
    ]
