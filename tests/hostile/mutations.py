"""Mutations of serialized models: some of bytes, most of the structure, drawn by a random generator."""

import numpy as np
import onnx
from google.protobuf.message import DecodeError

NUMBERS = [0, 1, -1, 2, 3, 7, -2, 64, 1000, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63)]
SIZES = [0, 1, 2, 3, 5, -1, 100, 2**31, 2**62]
REALS = [0.0, -1.0, 1e30, float("inf"), float("-inf"), float("nan")]
TYPES = [0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 16, 17, 22, 99]
OPERATORS = [
    "Add",
    "Mul",
    "Sub",
    "Div",
    "Pow",
    "MatMul",
    "Gemm",
    "Conv",
    "MaxPool",
    "AveragePool",
    "Relu",
    "Sigmoid",
    "Tanh",
    "Softmax",
    "Reshape",
    "Transpose",
    "Concat",
    "Split",
    "Slice",
    "Gather",
    "GatherND",
    "ScatterND",
    "ScatterElements",
    "ReduceSum",
    "ReduceMax",
    "ReduceMean",
    "Squeeze",
    "Unsqueeze",
    "Expand",
    "Tile",
    "Pad",
    "Where",
    "Clip",
    "Cast",
    "Identity",
    "Flatten",
    "Shape",
    "Size",
    "Range",
    "ConstantOfShape",
    "OneHot",
    "TopK",
    "ArgMax",
    "Einsum",
    "LSTM",
    "GRU",
    "If",
    "Loop",
    "Scan",
    "BatchNormalization",
    "LayerNormalization",
    "Dropout",
    "Resize",
    "CumSum",
    "Trilu",
    "Erf",
    "Exp",
    "Log",
    "Sqrt",
    "Abs",
    "Neg",
    "Not",
    "Equal",
    "Greater",
    "RandomNormal",
    "NonZero",
    "Unique",
    "DepthToSpace",
    "GridSample",
    "SequenceEmpty",
    "Optional",
    "StringNormalizer",
    "Nothing",
]


def mutate(content, rng):
    """Return `content`, a serialized model, with some faults."""
    if rng.random() < 0.15:
        return _flip(content, rng)
    model = onnx.load_from_string(content)
    for _ in range(1 + rng.integers(3)):
        mutation = MUTATIONS[rng.integers(len(MUTATIONS))]
        graphs = list(_graphs(model.graph))
        graph = model.graph if rng.random() < 0.7 else _one(graphs, rng)
        try:
            mutation(model, graph, rng)
        except (ValueError, KeyError, TypeError, onnx.checker.ValidationError):
            # it reads parts broken by another one
            continue
    return model.SerializeToString()


def parse(content):
    """Return the model, or None if `content` is none."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        return None
    return model


def _flip(content, rng):
    changed = bytearray(content)
    for _ in range(1 + rng.integers(8)):
        changed[rng.integers(len(changed))] = rng.integers(256)
    if rng.random() < 0.2:
        del changed[rng.integers(len(changed)) :]
    return bytes(changed)


def _graphs(graph):
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _one(items, rng):
    """Return one of `items`, None if there is none."""
    return items[rng.integers(len(items))] if len(items) else None


def _names(graph):
    names = [value.name for value in graph.input] + [tensor.name for tensor in graph.initializer]
    return names + [name for node in graph.node for name in node.output] + ["", "nothing"]


def _tensor(model, graph, rng):
    constants = [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
    return _one([*graph.initializer, *constants], rng)


def _dims(model, graph, rng):
    if (tensor := _tensor(model, graph, rng)) is not None:
        dims = list(tensor.dims)
        if dims and rng.random() < 0.5:
            dims[rng.integers(len(dims))] = int(_one(SIZES, rng))
        else:
            dims = [int(_one(SIZES, rng)) for _ in range(rng.integers(5))]
        tensor.dims[:] = dims


def _reshaped(model, graph, rng):
    """Give a tensor another shape, with data that fit."""
    if (tensor := _tensor(model, graph, rng)) is not None:
        shape = [int(rng.integers(4)) for _ in range(rng.integers(5))]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type or 1)
        array = rng.integers(0, 3, size=shape)
        array = array.astype(np.str_ if np.dtype(dtype).kind == "O" else dtype)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _numbers(model, graph, rng):
    """Change the numbers of a tensor: indices, sizes, axes, bounds."""
    tensor = _tensor(model, graph, rng)
    if tensor is None or tensor.data_type not in (1, 6, 7):
        return
    array = onnx.numpy_helper.to_array(tensor).copy()
    if array.size:
        pool = (
            REALS
            if tensor.data_type == 1
            else [n for n in NUMBERS if abs(n) < 2**31 or tensor.data_type == 7]
        )
        array.flat[rng.integers(array.size)] = _one(pool, rng)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _element_type(model, graph, rng):
    if (tensor := _tensor(model, graph, rng)) is not None:
        tensor.data_type = int(_one(TYPES, rng))


def _other_array(model, graph, rng):
    """Give a tensor another type, with data that fit."""
    tensor = _tensor(model, graph, rng)
    if tensor is not None and tensor.data_type in (1, 6, 7, 11):
        array = np.abs(onnx.numpy_helper.to_array(tensor))
        array = array.astype(_one([np.float16, np.float64, np.int32, np.int64, np.bool_, np.uint8], rng))
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _data(model, graph, rng):
    if (tensor := _tensor(model, graph, rng)) is not None:
        tensor.raw_data = tensor.raw_data[: rng.integers(len(tensor.raw_data) + 1)]


def _outside(model, graph, rng):
    if (tensor := _tensor(model, graph, rng)) is not None:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        location = _one(["/etc/hostname", "../x", "weights.bin", "", "a\0b"], rng)
        tensor.external_data.add(key="location", value=location)
        tensor.external_data.add(
            key=_one(["offset", "length", "other"], rng), value=_one(["-1", "x", "9" * 30], rng)
        )


def _initializers(model, graph, rng):
    if not graph.initializer:
        return
    index, kind = int(rng.integers(len(graph.initializer))), rng.integers(4)
    if kind == 0:
        del graph.initializer[index]
    elif kind == 1:
        graph.initializer.append(graph.initializer[index])
    elif kind == 2:
        graph.initializer[index].name = _one(_names(graph), rng)
    else:
        tensor = graph.initializer[index]
        graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def _operator(model, graph, rng):
    if (node := _one(graph.node, rng)) is not None:
        node.op_type = _one(OPERATORS, rng)


def _domain(model, graph, rng):
    if (node := _one(graph.node, rng)) is not None:
        node.domain = _one(["", "ai.onnx", "ai.onnx.ml", "com.microsoft", "own", "?"], rng)


def _inputs(model, graph, rng):
    if (node := _one(graph.node, rng)) is None or not node.input:
        return
    index, kind = int(rng.integers(len(node.input))), rng.integers(4)
    if kind == 0:
        del node.input[index]
    elif kind == 1:
        node.input[:] = list(node.input)[::-1]
    elif kind == 2:
        node.input.append(_one(_names(graph), rng))
    else:
        node.input[index] = _one(_names(graph), rng)


def _outputs(model, graph, rng):
    if (node := _one(graph.node, rng)) is None or not node.output:
        return
    index, kind = int(rng.integers(len(node.output))), rng.integers(3)
    if kind == 0:
        del node.output[index]
    elif kind == 1:
        node.output.append(_one([*_names(graph), "more"], rng))
    else:
        node.output[index] = _one(_names(graph), rng)


def _nodes(model, graph, rng):
    if not graph.node:
        return
    index, kind = int(rng.integers(len(graph.node))), rng.integers(3)
    if kind == 0:
        del graph.node[index]
    elif kind == 1:
        graph.node.append(graph.node[index])
    else:
        nodes = list(graph.node)
        del graph.node[:]
        graph.node.extend(nodes[::-1])


def _new_node(model, graph, rng):
    """Put an operator between a node and an operand."""
    if (node := _one(graph.node, rng)) is None or not node.input:
        return
    index = int(rng.integers(len(node.input)))
    names = [node.input[index], *(_one(_names(graph), rng) for _ in range(rng.integers(3)))]
    new = onnx.helper.make_node(_one(OPERATORS, rng), names, [f"new_{len(graph.node)}"])
    node.input[index] = new.output[0]
    nodes = list(graph.node)
    nodes.insert(nodes.index(node), new)
    del graph.node[:]
    graph.node.extend(nodes)


def _attribute(model, graph, rng):
    attributes = [(node, attribute) for node in graph.node for attribute in node.attribute]
    if not attributes:
        return
    node, attribute = _one(attributes, rng)
    kind = rng.integers(5)
    if kind == 0:
        node.attribute.remove(attribute)
    elif kind == 1:
        attribute.type = int(rng.integers(12))
    elif kind == 2:
        attribute.name = _one(["axis", "axes", "to", "value", "nothing", ""], rng)
    else:
        _attribute_value(attribute, rng)


def _attribute_value(attribute, rng):
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i = _one(NUMBERS, rng)
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = _one(REALS, rng)
    elif attribute.type == onnx.AttributeProto.STRING:
        attribute.s = _one([b"", b"valid", b"\xff\xfe", b"SAME_UPPER", b"ij->ji", b"sum", b"x" * 2000], rng)
    elif attribute.type == onnx.AttributeProto.INTS:
        kept = list(attribute.ints)[: rng.integers(len(attribute.ints) + 1)]
        attribute.ints[:] = [*kept, *(_one(NUMBERS, rng) for _ in range(rng.integers(3)))]
    elif attribute.type == onnx.AttributeProto.FLOATS:
        kept = list(attribute.floats)[: rng.integers(len(attribute.floats) + 1)]
        attribute.floats[:] = [*kept, *(_one(REALS, rng) for _ in range(rng.integers(3)))]


def _new_attribute(model, graph, rng):
    if (node := _one(graph.node, rng)) is not None:
        name = _one(
            ["axis", "axes", "keepdims", "alpha", "to", "perm", "auto_pad", "group", "allowzero"], rng
        )
        value = _one(NUMBERS, rng) if rng.random() < 0.6 else _one([[0], [1, 1], "VALID", 0.5], rng)
        node.attribute.append(onnx.helper.make_attribute(name, value))


def _value_info(model, graph, rng):
    if (value := _one([*graph.input, *graph.output, *graph.value_info], rng)) is None:
        return
    kind, tensor = rng.integers(6), value.type.tensor_type
    if kind == 0:
        tensor.elem_type = int(_one(TYPES, rng))
    elif kind == 1:
        tensor.ClearField("shape")
    elif kind == 2:
        value.ClearField("type")
    elif kind == 3:
        value.name = _one(_names(graph), rng)
    elif kind == 4 or not tensor.shape.dim:
        tensor.shape.dim.add(dim_value=_one(SIZES, rng))
    else:
        _one(tensor.shape.dim, rng).dim_value = _one(SIZES, rng)


def _ends(model, graph, rng):
    values = graph.input if rng.random() < 0.5 else graph.output
    if not values:
        return
    index = int(rng.integers(len(values)))
    if rng.random() < 0.5:
        del values[index]
    else:
        values.append(values[index])


def _versions(model, graph, rng):
    if rng.random() < 0.3:
        model.ir_version = _one([0, 1, 3, 13, 99, 2**62, -1], rng)
    elif (entry := _one(model.opset_import, rng)) is not None:
        entry.version = _one([0, 1, 6, 9, 11, 13, 15, 20, 22, 24, 26, 99, 2**62, -1], rng)


def _functions(model, graph, rng):
    if (function := _one(model.functions, rng)) is None:
        return
    kind = rng.integers(4)
    if kind == 0:
        model.functions.append(function)
    elif kind == 1 and function.node:
        function.node[0].op_type, function.node[0].domain = function.name, function.domain
    elif kind == 2:
        del function.opset_import[:]
    elif function.input:
        function.input[0] = "nothing"


def _wrap(model, graph, rng):
    """Put the graph into a branch of itself, some levels deep."""
    for _ in range(int(_one([1, 2, 15, 40], rng))):
        body = onnx.GraphProto(name="inner")
        body.node.extend(graph.node)
        body.output.extend(graph.output)
        names = [value.name for value in graph.output]
        node = onnx.helper.make_node("If", ["condition"], names, then_branch=body, else_branch=body)
        if len(node.attribute[0].g.SerializeToString()) > 100_000:
            break
        del graph.node[:]
        graph.node.append(node)
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "condition"))


MUTATIONS = [
    _dims, _reshaped, _reshaped, _numbers, _numbers, _element_type, _other_array, _other_array, _data, _outside,
    _initializers, _operator, _operator, _domain, _inputs, _inputs, _outputs, _nodes, _new_node, _new_node,
    _attribute, _attribute, _attribute, _new_attribute, _value_info, _value_info, _ends, _versions, _functions,
    _wrap,
]  # fmt: skip
