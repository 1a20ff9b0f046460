"""Operator rules for the proof of independent samples, see :mod:`onnxsgd.graph.reading.sample_axis`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnxsgd.graph.nodes import attribute
from onnxsgd.graph.operators import Fact, having, having_in_ml
from onnxsgd.graph.reading.sample_axis import CONSTANT, Along, Many, NodeView, Rule, Sizes, State

__all__ = ["RULES"]


def _data_axis(view: NodeView) -> int | None:
    """Return the axis of the samples of the first input."""
    state = view.state(0)
    return state.axis if isinstance(state, Along) else None


def _elementwise(view: NodeView) -> State:
    """Operands are broadcast: the samples must lie on the same axis, counted from the last."""
    if any(isinstance(state, Sizes) for state in view.states):
        return _computed_sizes(view)
    rank = view.result_rank()
    along = [(state.axis, view.dims[i]) for i, state in enumerate(view.states) if isinstance(state, Along)]
    if len(view.states) == 1 and along:
        return Along(along[0][0])
    known = [(axis, dims) for axis, dims in along if dims is not None]
    if rank is None or len(known) < len(along):
        return None
    places = {(axis + rank - len(dims), dims[axis]) for axis, dims in known}
    return Along(places.pop()[0]) if len(places) == 1 else None


def _computed_sizes(view: NodeView) -> State:
    """Integers computed from one vector of sizes and from numbers, or from several vectors."""
    sizes = [state for state in view.states if isinstance(state, Sizes)]
    others = [dims for state, dims in zip(view.states, view.dims, strict=True) if state == CONSTANT]
    if len(sizes) + len(others) < len(view.states):
        return None
    if len(sizes) == 1 and all(dims is not None and _product(dims) == 1 for dims in others):
        return sizes[0]
    result = view.result_dims[0]
    length = None if result is None else _product(result)
    return None if length is None else Sizes((True,) * length)


def _first_elementwise(view: NodeView) -> State:
    """Keep the shape of the first input; the others are parameters."""
    state = view.state(0)
    if isinstance(state, Sizes):
        return state if view.rest_is_constant() else None
    return state if isinstance(state, Along) and view.rest_is_constant() else None


def _batch_normalization(view: NodeView) -> State:
    return None if view.attribute("training_mode", 0) else _first_elementwise(view)


def _dropout(view: NodeView) -> State:
    training = view.constant(2)
    draws = view.has(2) and (training is None or bool(training))
    return None if draws else _first_elementwise(view)


def _type_of_second(view: NodeView) -> State:
    return view.state(0)


def _rows(view: NodeView) -> Sequence[State]:
    """Keep the first axis of the first output; other outputs may count elements of the whole batch."""
    return [Along(0)] if view.state(0) == Along(0) and view.rest_is_constant() else []


def _rows_of_table(view: NodeView) -> State:
    """Keep the rows of a table; a vector would be one row."""
    return Along(0) if view.state(0) == Along(0) and view.rank(0) == 2 and view.rest_is_constant() else None


def _rows_of_all(view: NodeView) -> State:
    tables = all(view.rank(index) == 2 for index in range(len(view.states)))
    return Along(0) if tables and all(state == Along(0) for state in view.states) else None


def _resize(view: NodeView) -> State:
    before, result = view.dims[0], view.result_dims[0]
    computed = [state for state in view.states[1:] if state != CONSTANT]
    crops = view.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
    if crops or before is None or result is None or not before[0] == result[0] == Many(1):
        return None
    fits = all(isinstance(state, Sizes) and not any(state.depends[1:]) for state in computed)
    return view.state(0) if fits and not (computed and view.attribute("axes")) else None


def _reinterpret(view: NodeView) -> State:
    """Find the axis of the samples by the number of elements before it: their order is unchanged."""
    state, before, after = view.state(0), view.dims[0], view.result_dims[0]
    if isinstance(state, Sizes):
        return state
    # without axes, one sample loses the axis of the samples
    if view.node.op_type == "Squeeze" and not view.has(1):
        return None
    if not isinstance(state, Along) or before is None or after is None:
        return None
    outer = _product(before[: state.axis])
    for axis, size in enumerate(after):
        if isinstance(size, Many) and outer is not None and _product(after[:axis]) == outer:
            return Along(axis) if _sized_along(view, axis, len(after)) else None
    return None


def _sized_along(view: NodeView, axis: int, rank: int) -> bool:
    """Return whether no size of a result but that of `axis` depends on the number of samples."""
    for state in view.states[1:]:
        if isinstance(state, Sizes):
            offset = rank - len(state.depends)
            if any(depends and place + offset != axis for place, depends in enumerate(state.depends)):
                return False
        elif state != CONSTANT:
            return False
    return True


def _product(sizes: Sequence[int | Many | None]) -> int | None:
    numbers = [size for size in sizes if isinstance(size, int)]
    return math.prod(numbers) or None if len(numbers) == len(sizes) else None


def _transpose(view: NodeView) -> State:
    axis, rank = _data_axis(view), view.rank(0)
    if axis is None or rank is None:
        return None
    return Along(list(view.attribute("perm", range(rank)[::-1])).index(axis))


def _spread(view: NodeView) -> State:
    """Expand and Tile: data keep their axis; a constant gets the axis sized by the number of samples."""
    state, result = view.state(0), view.result_dims[0]
    if result is None:
        return None
    many = [axis for axis, size in enumerate(result) if isinstance(size, Many)]
    if len(many) != 1 or not _sized_along(view, many[0], len(result)):
        return None
    if state == CONSTANT:
        return Along(many[0])
    before = view.dims[0]
    if not isinstance(state, Along) or before is None:
        return None
    keeps = many[0] == state.axis + len(result) - len(before)
    return Along(many[0]) if keeps and result[many[0]] == before[state.axis] else None


def _filled(view: NodeView) -> State:
    """ConstantOfShape: all elements are equal."""
    sizes, result = view.state(0), view.result_dims[0]
    if result is None or not isinstance(sizes, Sizes) or sum(sizes.depends) != 1:
        return None
    axis = sizes.depends.index(True)
    return Along(axis) if isinstance(result[axis], Many) else None


def _shape(view: NodeView) -> State:
    dims, axis = view.dims[0], _data_axis(view)
    if dims is None:
        return None
    # the part of a sample follows from that sample alone, and so does its shape
    depends = [
        isinstance(size, Many) or (size is None if axis is None else number == axis)
        for number, size in enumerate(dims)
    ]
    return _sizes(depends[slice(view.attribute("start", 0), view.attribute("end"))])


def _size(view: NodeView) -> State:
    dims = view.dims[0]
    return None if dims is None else _sizes([any(not isinstance(size, int) for size in dims)])


def _sizes(depends: Sequence[bool] | object) -> State:
    found = Sizes(tuple(depends))  # type: ignore[arg-type]
    return found if any(found.depends) else CONSTANT


def _matmul(view: NodeView) -> State:
    left, right = view.states
    ranks, rank = (view.rank(0), view.rank(1)), view.result_rank()
    if ranks[0] is None or ranks[1] is None or rank is None or ranks[0] < 2:
        return None
    full = rank + (ranks[1] == 1)
    if isinstance(left, Along) and right == CONSTANT:
        return Along(left.axis + full - ranks[0]) if left.axis < ranks[0] - 1 else None
    if ranks[1] < 2 or not isinstance(right, Along):
        return None
    if left == CONSTANT:
        return Along(right.axis + rank - ranks[1]) if right.axis != ranks[1] - 2 else None
    if not isinstance(left, Along) or left.axis - ranks[0] != right.axis - ranks[1]:
        return None
    return Along(left.axis + rank - ranks[0]) if left.axis < ranks[0] - 2 else None


def _packed_product(view: NodeView) -> State:
    """Follow rows: the last axis of the first operand is summed."""
    state, rank = view.state(0), view.rank(0)
    is_row = isinstance(state, Along) and rank is not None and state.axis < rank - 1
    others = all(found == CONSTANT for found in view.states[1:])
    return state if is_row and others else None


def _gemm(view: NodeView) -> State:
    axis, added = (1 if view.attribute("transA", 0) else 0), view.state(2)
    fits = added == CONSTANT or (added == Along(0) and view.rank(2) == 2)
    return Along(0) if view.state(0) == Along(axis) and view.state(1) == CONSTANT and fits else None


def _einsum(view: NodeView) -> State:
    if any(isinstance(state, Sizes) for state in view.states):
        return None
    equation = str(view.attribute("equation")).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    if "." in equation or not arrow:
        return None
    letters = set()
    for term, state in zip(terms.split(","), view.states, strict=True):
        if isinstance(state, Along):
            letters.add(term[state.axis])
    letter = letters.pop() if len(letters) == 1 else ""
    for term, state in zip(terms.split(","), view.states, strict=True):
        # a repeated letter mixes samples
        if not letter or term.count(letter) != (1 if isinstance(state, Along) else 0):
            return None
    return Along(result.index(letter)) if result.count(letter) == 1 else None


def _over_axis(default: int) -> Rule:
    """Operators along one axis: the samples must lie on another."""

    def rule(view: NodeView) -> State:
        axis, rank = _data_axis(view), view.rank(0)
        if axis is None or rank is None or not view.rest_is_constant():
            return None
        return Along(axis) if view.attribute("axis", default) % rank != axis else None

    return rule


def _cumulative(view: NodeView) -> State:
    axis, rank, along = _data_axis(view), view.rank(0), view.constant(1)
    if axis is None or rank is None or along is None:
        return None
    return Along(axis) if int(along.reshape(-1)[0]) % rank != axis else None


def _from_axis_on(view: NodeView) -> State:
    """Normalize over all axes from one on."""
    axis, rank = _data_axis(view), view.rank(0)
    if axis is None or rank is None or not view.rest_is_constant():
        return None
    return Along(axis) if axis < view.attribute("axis", -1) % rank else None


def _reduce(view: NodeView) -> State:
    rank = view.rank(0)
    if rank is None or not view.rest_is_constant():
        return None
    given = view.constant(1)
    axes = view.attribute("axes", ()) if given is None else given.reshape(-1).tolist()
    if not axes and ((given is None and view.has(1)) or not view.attribute("noop_with_empty_axes", 0)):
        return None
    return _without(view, {int(axis) % rank for axis in axes}, bool(view.attribute("keepdims", 1)))


def _argument(view: NodeView) -> State:
    rank = view.rank(0)
    if rank is None:
        return None
    return _without(view, {view.attribute("axis", 0) % rank}, bool(view.attribute("keepdims", 1)))


def _without(view: NodeView, gone: set[int], keeps: bool) -> State:
    axis = _data_axis(view)
    if axis is None or axis in gone:
        return None
    return Along(axis if keeps else axis - sum(entry < axis for entry in gone))


def _moments(view: NodeView) -> State:
    axes, axis = view.attribute("axes", (0, 2, 3)), _data_axis(view)
    return None if axis is None or axis in axes or min(axes) < 0 else Along(axis)


def _concat(view: NodeView) -> State:
    sizes = [state for state in view.states if isinstance(state, Sizes)]
    if sizes:
        return _joined_sizes(view)
    states, rank = set(view.states), view.rank(0)
    state = states.pop()
    if states or rank is None or not isinstance(state, Along):
        return None
    return state if view.attribute("axis") % rank != state.axis else None


def _joined_sizes(view: NodeView) -> State:
    joined: list[bool] = []
    for index, state in enumerate(view.states):
        dims = view.dims[index]
        if isinstance(state, Sizes) and view.rank(index) == 1:
            joined += state.depends
        elif state == CONSTANT and dims is not None and len(dims) == 1 and isinstance(dims[0], int):
            joined += [False] * dims[0]
        else:
            return None
    return Sizes(tuple(joined))


def _slice(view: NodeView) -> State:
    state, rank = view.state(0), view.rank(0)
    if rank is None or not view.rest_is_constant():
        return None
    cuts = _cuts(view, rank)
    if cuts is None:
        return None
    if isinstance(state, Sizes):
        cut = cuts.get(0)
        return _sizes(state.depends[cut]) if rank == 1 and cut is not None else None
    if not isinstance(state, Along):
        return None
    return state if cuts.get(state.axis, _ALL) == _ALL else None


_ALL = slice(0, None, 1)
#: Exporters write an unreachable end for "to the end": TensorFlow's 10^9, others 2^31 - 1 or more.
_NO_END = 10**9


def _cuts(view: NodeView, rank: int) -> dict[int, slice | None] | None:
    """Return the slice of each axis that a Slice names, None if it is computed; None if axes are."""
    starts, ends, axes, steps = (view.constant(index) for index in range(1, 5))
    if axes is not None and starts is None:
        return {int(axis) % rank: None for axis in axes.reshape(-1)}
    if (axes is None and view.has(3)) or starts is None:
        return None
    named = range(len(starts.reshape(-1))) if axes is None else axes.reshape(-1).tolist()
    unknown = ends is None or (steps is None and view.has(4))
    cuts: dict[int, slice | None] = {}
    for index, axis in enumerate(named):
        end = None if ends is None else int(ends.reshape(-1)[index])
        step = 1 if steps is None else int(steps.reshape(-1)[index])
        whole = end is not None and end >= _NO_END
        cut = slice(int(starts.reshape(-1)[index]), None if whole else end, step)
        cuts[int(axis) % rank] = None if unknown else cut
    return cuts


def _gather(view: NodeView) -> State:
    data, index = view.states
    ranks, axis = (view.rank(0), view.rank(1)), int(view.attribute("axis", 0))
    if isinstance(data, Sizes):
        return _picked_sizes(view, data)
    if ranks[0] is None or ranks[1] is None:
        return None
    axis %= ranks[0]
    if data == CONSTANT and isinstance(index, Along):
        return Along(axis + index.axis)
    if not isinstance(data, Along) or index != CONSTANT or data.axis == axis:
        return None
    return Along(data.axis if data.axis < axis else data.axis + ranks[1] - 1)


def _picked_sizes(view: NodeView, data: Sizes) -> State:
    index = view.constant(1)
    if index is None or view.rank(0) != 1:
        return None
    picked = [int(entry) for entry in index.reshape(-1)]
    if any(not -len(data.depends) <= entry < len(data.depends) for entry in picked):
        return None
    return _sizes(data.depends[entry] for entry in picked)


def _gather_elements(view: NodeView) -> State:
    axis, rank = _data_axis(view), view.rank(0)
    if axis is None or rank is None or view.state(1) != view.state(0):
        return None
    return Along(axis) if view.attribute("axis", 0) % rank != axis else None


def _gather_nd(view: NodeView) -> State:
    data, index = view.states
    if data == CONSTANT and isinstance(index, Along) and (rank := view.rank(1)) is not None:
        return index if index.axis < rank - 1 and not view.attribute("batch_dims", 0) else None
    return Along(0) if data == index == Along(0) and view.attribute("batch_dims", 0) >= 1 else None


def _grid_sample(view: NodeView) -> State:
    return Along(0) if view.states == [Along(0), Along(0)] else None


def _pad(view: NodeView) -> State:
    axis, rank, pads = _data_axis(view), view.rank(0), view.constant(1)
    if axis is None or rank is None or pads is None or not view.rest_is_constant():
        return None
    axes = range(rank) if not view.has(3) else view.constant(3)
    if axes is None:
        return None
    padded = {
        int(entry) % rank for entry, amount in zip([*axes, *axes], pads.reshape(-1), strict=True) if amount
    }
    return None if axis in padded else Along(axis)


def _one_hot(view: NodeView) -> State:
    axis, rank = _data_axis(view), view.rank(0)
    if axis is None or rank is None or not view.rest_is_constant():
        return None
    return Along(axis + (int(view.attribute("axis", -1)) % (rank + 1) <= axis))


def _trilu(view: NodeView) -> State:
    axis, rank = _data_axis(view), view.rank(0)
    fits = axis is not None and rank is not None and axis < rank - 2 and view.rest_is_constant()
    return Along(axis) if fits and axis is not None else None


def _recurrent(view: NodeView) -> Sequence[State]:
    """Time first, or samples first with layout=1; states follow the samples."""
    first = bool(view.attribute("layout", 0))
    x, state = (Along(0), Along(0)) if first else (Along(1), Along(1))
    parameters = [view.state(index) for index in (1, 2, 3, 7)]
    begins = [view.state(index) for index in (5, 6)]
    length = view.state(4)
    fits = view.state(0) == x and all(entry == CONSTANT for entry in parameters)
    if not fits or length not in (CONSTANT, Along(0)) or any(s not in (CONSTANT, state) for s in begins):
        return []
    return [Along(0) if first else Along(2), state, state]


def _tokens(view: NodeView) -> State:
    """Rows are padded to the longest text of the batch; only a TfIdfVectorizer ignores the padding."""
    rank, pad = view.rank(0), str(view.attribute("pad_value"))
    one_text = rank == 1 or (rank == 2 and view.dims[0] is not None and view.dims[0][1] == 1)
    readers = [use.node for use in view.node.outputs[0].uses()]
    if one_text and [node.op_type for node in readers] == ["Flatten"]:
        readers = [use.node for use in readers[0].outputs[0].uses()]
    passed = all(
        node.op_type == "TfIdfVectorizer" and pad not in attribute(node, "pool_strings", ())
        for node in readers
    )
    return view.state(0) if readers and passed else None


def _one_more_axis(view: NodeView) -> State:
    return view.state(0) if isinstance(view.state(0), Along) else None


def _array_features(view: NodeView) -> State:
    axis, rank = _data_axis(view), view.rank(0)
    fits = axis is not None and rank is not None and axis < rank - 1 and view.state(1) == CONSTANT
    return Along(axis) if fits and axis is not None else None


def _normalized_strings(view: NodeView) -> State:
    """Refuse dropped words, which move the others."""
    return None if view.attribute("stopwords") else view.state(0)


#: Operators of images: each row of the result follows from one row of the operand.
_OF_IMAGES = (
    "AveragePool", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool",
    "GlobalLpPool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN", "LpPool",
    "MaxPool", "SpaceToDepth",
)  # fmt: skip

_STANDARD: dict[str, Rule] = {
    **dict.fromkeys(having(Fact.ELEMENTWISE), _elementwise),
    **dict.fromkeys(("Cast", "DequantizeLinear", "QuantizeLinear"), _first_elementwise),
    **dict.fromkeys(_OF_IMAGES, _rows),
    **dict.fromkeys(having(Fact.REDUCTION), _reduce),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "LpNormalization", "Softmax", "TopK"), _over_axis(-1)),
    **dict.fromkeys(having(Fact.IN_ORDER) - having(Fact.ELEMENTWISE), _reinterpret),
    **dict.fromkeys(having(Fact.RECURRENT), _recurrent),
    "LayerNormalization": _from_axis_on,
    **dict.fromkeys(("ArgMax", "ArgMin"), _argument),
    **dict.fromkeys(("Expand", "Tile"), _spread),
    "Resize": _resize,
    "CumSum": _cumulative,
    "BatchNormalization": _batch_normalization,
    "CastLike": _type_of_second,
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Dropout": _dropout,
    "Einsum": _einsum,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "GridSample": _grid_sample,
    "MatMul": _matmul,
    "MeanVarianceNormalization": _moments,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Split": _over_axis(0),
    "StringNormalizer": _normalized_strings,
    "TfIdfVectorizer": _rows_of_table,
    "Transpose": _transpose,
    "Trilu": _trilu,
}

_ML: dict[str, Rule] = {
    **dict.fromkeys(("LinearClassifier", "LinearRegressor", "Normalizer"), _rows_of_table),
    **dict.fromkeys(("SVMClassifier", "SVMRegressor"), _rows_of_table),
    **dict.fromkeys(("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"), _rows_of_table),
    **dict.fromkeys(having_in_ml(Fact.ELEMENTWISE), _first_elementwise),
    "ArrayFeatureExtractor": _array_features,
    "FeatureVectorizer": _rows_of_all,
    "OneHotEncoder": _one_more_axis,
}

#: The rule of each operator, by domain and name.
RULES: dict[tuple[str, str], Rule] = {
    **{("", name): rule for name, rule in _STANDARD.items()},
    **{("ai.onnx.ml", name): rule for name, rule in _ML.items()},
    ("com.microsoft", "MatMulNBits"): _packed_product,
    ("com.microsoft", "Tokenizer"): _tokens,
}
