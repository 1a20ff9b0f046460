"""Small models whose tensors, nesting or functions are huge once somebody writes them out."""

import numpy as np
import onnx
import onnx.parser
from onnx import AttributeProto, TensorProto, helper, numpy_helper

_MANY = 1_000_000
FLOAT = TensorProto.FLOAT


def _model(nodes, weights=(), inputs=None, outputs=("y",), opset=18, functions=(), domains=()):
    """Return a model that reads `x`, of shape [N, 4], and a weight `w`."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["N", 4])] if inputs is None else inputs,
        [helper.make_tensor_value_info(name, FLOAT, ["N", "M"]) for name in outputs],
        [numpy_helper.from_array(np.full((4, 2), 0.5, np.float32), "w"), *weights],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=8)


def _constants(**arrays):
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


def _node(operator, inputs, output, **attributes):
    return helper.make_node(operator, inputs.split(), [output], **attributes)


def _behind(nodes, last, **constants):
    """Return a model that adds the sum of `last`, a huge tensor, to a product with the weight."""
    tail = [
        _node("MatMul", "x w", "m"),
        _node("ReduceSum", last, "sum_", keepdims=0),
        _node("Add", "m sum_", "y"),
    ]
    return _model([*nodes, *tail], _constants(**constants))


def _tensor(dims, data_type=FLOAT, raw=None):
    tensor = TensorProto(name="t", data_type=data_type, dims=dims)
    if raw is not None:
        tensor.raw_data = raw
    return tensor


def _with_tensor(dims, data_type=FLOAT, raw=None):
    model = _model([_node("MatMul", "x w", "m"), _node("Add", "m t", "y")])
    model.graph.initializer.append(_tensor(dims, data_type, raw))
    return model


def _doubled(operator, times):
    """Return a model that doubles a constant many times."""
    nodes, name = [], "one"
    for number in range(times):
        inputs = f"{name} {name}" if operator == "Concat" else f"{name} two"
        attributes = {"axis": 0} if operator == "Concat" else {}
        nodes.append(_node(operator, inputs, f"d{number}", **attributes))
        name = f"d{number}"
    return _behind(nodes, name, one=np.ones(1, np.float32), two=np.array([2]))


def _computed(operator):
    """Return a model of a huge tensor whose size is a product of constants."""
    nodes = [_node("Mul", "a a", "b"), _node("Mul", "b b", "c")]
    zero, one = np.int64(0), np.int64(1)
    if operator == "Range":
        nodes += [_node("Range", "zero c one", "r"), _node("Cast", "r", "h", to=FLOAT)]
        return _behind(nodes, "h", a=np.int64(1000), zero=zero, one=one)
    nodes.append(_node("Reshape", "c axis", "shape"))
    if operator == "ConstantOfShape":
        nodes.append(_node("ConstantOfShape", "shape", "h"))
    elif operator == "Expand":
        nodes.append(_node("Expand", "number shape", "h"))
    else:
        nodes.append(_node("Tile", "number shape", "h"))
    return _behind(nodes, "h", a=np.int64(1000), axis=np.array([1]), number=np.ones(1, np.float32))


def _of_data(nodes, **constants):
    """Return a model of a huge tensor `h` whose size `c`, as a shape `s`, is computed from the samples."""
    first = [
        _node("Abs", "x", "a"),
        _node("ReduceMax", "a", "m_", keepdims=0),
        _node("Mul", "m_ many", "f"),
        _node("Cast", "f", "c", to=TensorProto.INT64),
        _node("Reshape", "c axis", "s"),
    ]
    constants = {"n": np.ones(1, np.float32), "many": np.float32(1 << 40), "axis": np.array([1]), **constants}
    return _behind([*first, *nodes], "h", **constants)


def _loop(trips, condition):
    """Return a model of a Loop of so many trips, as long as `condition` makes `d` true."""
    scalar = [helper.make_tensor_value_info(name, FLOAT, [1]) for name in ("v", "u")]
    flags = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("k", "d")]
    count = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    body = helper.make_graph(
        [condition, _node("Add", "v n", "u")], "b", [count, flags[0], scalar[0]], [flags[1], scalar[1]]
    )
    loop = helper.make_node("Loop", [trips, "t", "n"], ["h"], body=body)
    return _of_data([loop], t=np.array(True), none=_INT(0))


def _nested(operator, depth):
    """Return a model of nested subgraphs."""
    out = helper.make_tensor_value_info("y", FLOAT, None)
    body = helper.make_graph([_node("MatMul", "x w", "y")], "b", [], [out])
    for _ in range(depth):
        if operator == "If":
            node = _node(
                "If",
                "c",
                "y",
                then_branch=body,
                else_branch=helper.make_graph([_node("Neg", "x", "y")], "e", [], [out]),
            )
            inputs = []
        else:
            node = helper.make_node(operator, ["", "c"], ["y"], body=body)
            inputs = []
        body = helper.make_graph([node], "b", inputs, [out])
    model = _model([], _constants(c=np.array(True)))
    model.graph.node.extend(body.node)
    return model


def _function(name, nodes):
    return helper.make_function(
        "own", name, ["a"], ["z"], nodes, [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    )


def _call(name, inputs, output):
    return helper.make_node(name, inputs.split(), [output], domain="own")


def _laughs(depth, width=2):
    """Return a model of functions, each of which calls the next one several times."""
    functions = [_function("f0", [_node("Identity", "a", "z")])]
    for number in range(1, depth):
        names = ["a", *(f"i{k}" for k in range(width - 1)), "z"]
        functions.append(
            _function(f"f{number}", [_call(f"f{number - 1}", names[k], names[k + 1]) for k in range(width)])
        )
    nodes = [_node("MatMul", "x w", "m"), _call(f"f{depth - 1}", "m", "y")]
    return _model(nodes, functions=functions, domains=("own",))


def _laughs_in_branches(depth):
    """Return the same with the calls in branches of an If."""
    out = helper.make_tensor_value_info("r", FLOAT, None)
    functions = [_function("f0", [_node("Identity", "a", "z")])]
    for number in range(1, depth):
        branch = helper.make_graph([_call(f"f{number - 1}", "a", "r")], "b", [], [out])
        nodes = [
            helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
            helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch),
        ]
        functions.append(_function(f"f{number}", nodes))
    return _model(
        [_node("MatMul", "x w", "m"), _call(f"f{depth - 1}", "m", "y")], functions=functions, domains=("own",)
    )


def _recursive(*names):
    functions = [
        _function(name, [_call(after, "a", "z")])
        for name, after in zip(names, [*names[1:], names[0]], strict=True)
    ]
    return _model(
        [_node("MatMul", "x w", "m"), _call(names[0], "m", "y")], functions=functions, domains=("own",)
    )


def _chain(length, operator="Relu"):
    nodes = [_node("MatMul", "x w", "n0")]
    nodes += [_node(operator, f"n{k}", f"n{k + 1}" if k + 1 < length else "y") for k in range(length)]
    return _model(nodes)


def _initializers(count):
    model = _model([_node("MatMul", "x w", "y")])
    model.graph.initializer.extend(TensorProto(name=f"t{k}", data_type=FLOAT, dims=[0]) for k in range(count))
    return model


def _inputs(count):
    values = [helper.make_tensor_value_info(f"x{k}", FLOAT, ["N", 1]) for k in range(count - 1)]
    return _model(
        [_node("MatMul", "x w", "y")], inputs=[helper.make_tensor_value_info("x", FLOAT, ["N", 4]), *values]
    )


def _outputs(count):
    return _model(
        [_node("MatMul", "x w", "m"), *(_node("Neg", "m", f"y{k}") for k in range(count))],
        outputs=[f"y{k}" for k in range(count)],
    )


def _changed(change):
    model = _model([_node("MatMul", "x w", "m"), _node("Relu", "m", "y")])
    change(model)
    return model


def _value_infos(model):
    model.graph.value_info.extend(helper.make_tensor_value_info(f"v{k}", FLOAT, [1]) for k in range(_MANY))


def _metadata(model):
    for k in range(_MANY):
        model.metadata_props.add(key=f"k{k}", value="v")


def _opsets(model):
    for k in range(100_000):
        model.opset_import.add(domain=f"d{k}", version=1)


def _functions(model):
    model.functions.extend(_function(f"f{k}", [_node("Identity", "a", "z")]) for k in range(100_000))


def _attributes(model):
    model.graph.node[1].attribute.extend(helper.make_attribute(f"a{k}", 1) for k in range(_MANY))


def _numbers(model):
    model.graph.node[1].attribute.append(helper.make_attribute("a", [1] * 10_000_000))


def _operands(model):
    model.graph.node[1].op_type = "Sum"
    model.graph.node[1].input.extend(["m"] * _MANY)


def _dims(model):
    model.graph.initializer.append(TensorProto(name="t", data_type=FLOAT, dims=[1] * _MANY))


def _long_names(model):
    name = "n" * 10_000_000
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = name


def _long_text(model):
    model.doc_string = "d" * 50_000_000


def _strings(model):
    tensor = TensorProto(name="s", data_type=TensorProto.STRING, dims=[_MANY], string_data=[b"s"] * _MANY)
    model.graph.initializer.append(tensor)


def _sparse(model):
    values = _constants(v=np.ones(1, np.float32))[0]
    indices = _constants(i=np.zeros((1, 2), np.int64))[0]
    model.graph.sparse_initializer.add(values=values, indices=indices, dims=[1 << 40, 4])


def _sparse_attribute(model):
    value = helper.make_sparse_tensor(
        _constants(v=np.ones(1, np.float32))[0], _constants(i=np.zeros((1,), np.int64))[0], [1 << 40]
    )
    attribute = AttributeProto(name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=value)
    node = helper.make_node("Constant", [], ["t"])
    node.attribute.append(attribute)
    model.graph.node.insert(0, node)


def _training(model):
    for _ in range(100_000):
        model.training_info.add()


def _types(model):
    kind = model.graph.input[0].type
    for _ in range(80):
        inner = onnx.TypeProto()
        inner.CopyFrom(kind)
        kind.Clear()
        kind.sequence_type.elem_type.CopyFrom(inner)


def _quoted(model):
    model.graph.node[1].op_type, model.graph.node[1].domain = "o" * 1_000_000, "d" * 1_000_000


def _random(operator, **attributes):
    return _behind([helper.make_node(operator, [], ["h"], **attributes)], "h")


_INT = np.int64
_SIDE = 1 << 20
_ROW = np.ones((1, _SIDE), np.float32)
_COLUMN = np.ones((_SIDE, 1), np.float32)

#: Models by name, each a function without arguments.
GRAPHS = {
    "dims without data": lambda: _with_tensor([10**6, 10**6]),
    "dims with less data": lambda: _with_tensor([10**6, 10**6], raw=b"\0" * 64),
    "dims with more data": lambda: _with_tensor([2], raw=b"\0" * 64),
    "negative dims": lambda: _with_tensor([-4, -4], raw=b"\0" * 64),
    "dims that overflow": lambda: _with_tensor([1 << 62, 1 << 62, 1 << 62]),
    "dims that overflow to 0": lambda: _with_tensor([1 << 32, 1 << 32], raw=b""),
    "dims with a 0": lambda: _with_tensor([1 << 62, 0], raw=b""),
    "dims of half a byte": lambda: _with_tensor([1 << 40], TensorProto.INT4),
    "ConstantOfShape": lambda: _behind([_node("ConstantOfShape", "s", "h")], "h", s=np.array([_SIDE, _SIDE])),
    "Expand": lambda: _behind([_node("Expand", "n s", "h")], "h", n=np.ones(1, np.float32), s=np.array([1 << 40])),
    "Expand of x": lambda: _behind([_node("Reshape", "x r", "q"), _node("Expand", "q s", "h")], "h", r=np.array([-1, 4, 1]), s=np.array([1, 4, 1 << 40])),
    "Tile": lambda: _behind([_node("Tile", "n s", "h")], "h", n=np.ones(1, np.float32), s=np.array([1 << 40])),
    "Range": lambda: _behind([_node("Range", "a b c", "h")], "h", a=np.float32(0), b=np.float32(1e12), c=np.float32(1)),
    "Range of 2^31": lambda: _behind([_node("Range", "a b c", "r"), _node("Cast", "r", "h", to=FLOAT)], "h", a=_INT(0), b=_INT(1 << 31), c=_INT(1)),
    "Resize": lambda: _behind([helper.make_node("Resize", ["n", "", "s"], ["h"], mode="nearest")], "h", n=np.ones((1, 1, 2, 2), np.float32), s=np.array([1, 1, 1e6, 1e6], np.float32)),
    "Resize by sizes": lambda: _behind([helper.make_node("Resize", ["n", "", "", "s"], ["h"], mode="nearest")], "h", n=np.ones((1, 1, 2, 2), np.float32), s=np.array([1, 1, _SIDE, _SIDE])),
    "Pad": lambda: _behind([_node("Pad", "n s", "h")], "h", n=np.ones(1, np.float32), s=np.array([0, 1 << 40])),
    "OneHot": lambda: _behind([_node("OneHot", "i d v", "h")], "h", i=np.array([0]), d=_INT(1 << 40), v=np.array([0, 1], np.float32)),
    "EyeLike": lambda: _behind([_node("ConstantOfShape", "s", "z"), _node("EyeLike", "z", "h")], "h", s=np.array([_SIDE, _SIDE])),
    "Concat of itself": lambda: _doubled("Concat", 50),
    "Concat of itself, 64 times": lambda: _doubled("Concat", 64),
    "Tile of itself": lambda: _doubled("Tile", 50),
    "an outer product": lambda: _behind([_node("MatMul", "a b", "h")], "h", a=_COLUMN, b=_ROW),
    "a broadcast sum": lambda: _behind([_node("Add", "a b", "h")], "h", a=_COLUMN, b=_ROW),
    "an outer Einsum": lambda: _behind([_node("Einsum", "a b", "h", equation="i,j->ij")], "h", a=_COLUMN[:, 0], b=_ROW[0]),
    "RandomNormal": lambda: _random("RandomNormal", shape=[_SIDE, _SIDE]),
    "a computed Range": lambda: _computed("Range"),
    "a computed ConstantOfShape": lambda: _computed("ConstantOfShape"),
    "a computed Expand": lambda: _computed("Expand"),
    "a computed Tile": lambda: _computed("Tile"),
    "2^31 elements of a constant": lambda: _behind([_node("ConstantOfShape", "s", "h")], "h", s=np.array([1 << 31])),
    "2^29 elements of a constant": lambda: _behind([_node("ConstantOfShape", "s", "h")], "h", s=np.array([1 << 29])),
    "Expand by data": lambda: _of_data([_node("Expand", "n s", "h")]),
    "Tile by data": lambda: _of_data([_node("Tile", "n s", "h")]),
    "ConstantOfShape by data": lambda: _of_data([_node("ConstantOfShape", "s", "h")]),
    "Pad by data": lambda: _of_data([_node("Concat", "s s", "p", axis=0), _node("Pad", "n p", "h")]),
    "Range by data": lambda: _of_data([_node("Range", "z c e", "r"), _node("Cast", "r", "h", to=FLOAT)], z=_INT(0), e=_INT(1)),
    "OneHot by data": lambda: _of_data([_node("OneHot", "i c v", "h")], i=np.array([0]), v=np.array([0, 1], np.float32)),
    "Resize by data": lambda: _of_data([helper.make_node("Resize", ["n", "", "", "s"], ["h"], mode="nearest")]),
    "Expand by arithmetic of a shape": lambda: _of_data([_node("Shape", "x", "q"), _node("Mul", "q big", "b"), _node("Expand", "n b", "h")], big=_INT(1 << 40)),
    "Loop by data": lambda: _loop("c", _node("Identity", "k", "d")),
    "Loop without an end": lambda: _loop("", _node("LessOrEqual", "none i", "d")),
    # protobuf reads and writes no more than 100 messages inside each other
    "If, 20 deep": lambda: _nested("If", 20),
    "Loop, 20 deep": lambda: _nested("Loop", 20),
    "Scan, 20 deep": lambda: _nested("Scan", 20),
    "2^30 nodes of functions": lambda: _laughs(31),
    "2^1000 nodes of functions": lambda: _laughs(1001),
    "10^9 nodes of functions": lambda: _laughs(10, 10),
    "2^30 nodes of functions in branches": lambda: _laughs_in_branches(31),
    "1,000 functions deep": lambda: _laughs(1001, 1),
    "a recursive function": lambda: _recursive("f"),
    "two recursive functions": lambda: _recursive("f", "g"),
    "10^6 nodes": lambda: _chain(_MANY),
    "10^6 initializers": lambda: _initializers(_MANY),
    "10^5 inputs": lambda: _inputs(100_000),
    "10^5 outputs": lambda: _outputs(100_000),
    "10^6 value_info": lambda: _changed(_value_infos),
    "10^6 metadata": lambda: _changed(_metadata),
    "10^5 opsets": lambda: _changed(_opsets),
    "10^5 functions": lambda: _changed(_functions),
    "10^6 attributes": lambda: _changed(_attributes),
    "10^7 numbers in an attribute": lambda: _changed(_numbers),
    "10^6 operands": lambda: _changed(_operands),
    "10^6 dims": lambda: _changed(_dims),
    "names of 10^7 letters": lambda: _changed(_long_names),
    "a text of 5 10^7 letters": lambda: _changed(_long_text),
    "10^6 strings": lambda: _changed(_strings),
    "a sparse initializer": lambda: _changed(_sparse),
    "a sparse attribute": lambda: _changed(_sparse_attribute),
    "10^5 parts of training": lambda: _changed(_training),
    "types 80 deep": lambda: _changed(_types),
    "an operator of 10^6 letters": lambda: _changed(_quoted),
}  # fmt: skip
