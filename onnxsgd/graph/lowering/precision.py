"""Conversion of a graph to another floating-point type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.lowering.missing_kernels import write_out_missing_kernels
from onnxsgd.graph.model import HALF_TYPES, REAL_TYPES, graph_names, unique_name
from onnxsgd.graph.nodes import attribute, first, maker
from onnxsgd.graph.rewriting import Table, Writer, rewrite
from onnxsgd.graph.writing import computed

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

__all__ = ["restore_digits", "with_precision", "without_half_precision"]

#: Attributes for element types: of Cast, and of the operators that create tensors.
_TYPE_ATTRIBUTES = ("to", "dtype")


def without_half_precision(model: ir.Model) -> ir.Model:
    """Return a copy with float32 in place of float16 and bfloat16; `model` itself if it has neither.

    Updates of weights of 16 bits would be lost where they are smaller than a unit in the last place, 1e-3 of
    the weight or more.
    """
    graphs = (model.graph, *model.graph.subgraphs())
    if not any(value.dtype in HALF_TYPES for graph in graphs for value in _values(graph)):
        return model
    return with_precision(model, ir.DataType.FLOAT, HALF_TYPES)


def with_precision(model: ir.Model, dtype: ir.DataType, given: Set[ir.DataType] = REAL_TYPES) -> ir.Model:
    """Return a copy of `model` in which every tensor of one of the types `given` has the type `dtype`.

    Operators whose results are always float32, those of ``ai.onnx.ml`` and of other domains, stay float32
    between casts; an Imputer becomes standard operators. Operators without a kernel in that type are written
    out.

    Precondition: no functions; :func:`onnxsgd.graph.lowering.lower.lower_for_training` gives such models.
    """
    copy = model.clone()
    if dtype != ir.DataType.FLOAT:
        rewrite(copy, _STANDARD_FORMS)
    names = graph_names(copy.graph)
    for graph in (copy.graph, *copy.graph.subgraphs()):
        for value in _values(graph):
            if value.dtype in given:
                # a new type: clones share theirs with the original
                value.type = ir.TensorType(dtype)
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _convert(value.const_value, dtype, given)
        for node in list(graph):
            if not _is_float32(node):
                _convert_attributes(node, dtype, given)
            elif dtype != ir.DataType.FLOAT:
                _enclose(node, graph, dtype, names)
    write_out_missing_kernels(copy)
    return copy


def restore_digits(model: ir.Model, estimator: BaseEstimator) -> None:
    """Restore the digits of a float64 graph's constants that conversion to float32 dropped.

    A constant that is an array of the fitted estimator rounded to float32, or the negative, the double or the
    reciprocal of one, becomes that array. Of other constants, each number becomes the number of the estimator
    that rounds to it, if it is unique. Other numbers computed by converters stay rounded.

    A product with reciprocals becomes a quotient: where the next step has intervals whose ends are data, as a
    KBinsDiscretizer or a QuantileTransformer behind a StandardScaler has, the last digit of it counts.

    Parameters
    ----------
    model : ir.Model
        The estimator's graph, converted by :func:`with_precision`. It is changed.
    estimator : estimator
        Fitted.
    """
    arrays, divisors = list(_arrays(estimator, set())), list(_divisors(estimator, set()))
    pools = [_pool(arrays, forms) for forms in (_USUAL_FORMS, _FORMS)]
    for name, value in model.graph.initializers.items():
        if value.dtype == ir.DataType.DOUBLE and value.const_value is not None:
            array = value.const_value.numpy()
            restored = _take_divisor(array, divisors)
            if restored is None or not _become_quotients(value):
                restored = _whole(array, arrays)
            value.const_value = ir.tensor(_each(array, pools) if restored is None else restored, name=name)


_Form = Callable[[np.ndarray], np.ndarray]

#: Functions that converters apply to the numbers of an estimator: those that are looked for first, and all.
_USUAL_FORMS: tuple[_Form, ...] = (lambda x: x, lambda x: -x)
_FORMS: tuple[_Form, ...] = (
    *_USUAL_FORMS,
    lambda x: 2 * x,
    lambda x: -2 * x,
    lambda x: 1 / x,
)
#: The relative difference up to which numbers count as equal.
_SAME = 1e-12


def _whole(array: np.ndarray, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the form of one of `arrays` that rounds to `array`, in its shape."""
    for known in (known for known in arrays if known.size == array.size and known.size > 1):
        for table in (known, known.T):
            for form in _FORMS:
                with np.errstate(all="ignore"):
                    made = form(table.reshape(array.shape))
                    if np.array_equal(made.astype(np.float32), array):
                        return made
    return None


def _take_divisor(array: np.ndarray, divisors: list[np.ndarray]) -> np.ndarray | None:
    """Return the first of some divisors whose reciprocal rounds to `array`, in its shape, and remove it."""
    for number, divisor in enumerate(divisors):
        # scalars are constants of formulas
        if array.ndim and divisor.size == array.size:
            made = divisor.reshape(array.shape)
            with np.errstate(all="ignore"):
                if np.array_equal((1 / made).astype(np.float32), array):
                    del divisors[number]
                    return made
    return None


def _divisors(value: object, seen: set[int]) -> Iterator[np.ndarray]:
    """Yield the scales by which the steps of a fitted estimator divide, in their order."""
    from sklearn.preprocessing import MaxAbsScaler, RobustScaler, StandardScaler

    if isinstance(value, MaxAbsScaler | RobustScaler | StandardScaler):
        if getattr(value, "scale_", None) is not None:
            yield value.scale_
        return
    for part in _parts(value, seen):
        yield from _divisors(part, seen)


def _become_quotients(value: ir.Value) -> bool:
    """Let products with a constant be quotients, if it is only a factor; return whether it is."""
    nodes = [node for node, _ in value.uses()]
    if value.is_graph_output() or any(node.op_type != "Mul" or node.domain for node in nodes):
        return False
    if any(node.inputs[0] is node.inputs[1] for node in nodes):
        return False
    for node in nodes:
        node.op_type = "Div"
        if node.inputs[0] is value:
            node.replace_input_with(0, node.inputs[1])
            node.replace_input_with(1, value)
    return bool(nodes)


def _each(array: np.ndarray, pools: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return an array whose numbers are those that alone round to them, of the first pool that has one."""
    restored = array
    for rounded, exact in reversed(pools):
        if len(exact):
            place = np.minimum(np.searchsorted(rounded, array), len(rounded) - 1)
            restored = np.where(rounded[place] == array, exact[place], restored)
    return restored


def _pool(arrays: Sequence[np.ndarray], forms: Sequence[_Form]) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 numbers, sorted, and the float64 number that alone rounds to each of them."""
    numbers = np.unique(np.concatenate([np.empty(0), *(array.ravel() for array in arrays)]))
    with np.errstate(all="ignore"):
        exact = np.unique(np.concatenate([form(numbers) for form in forms]))
        rounded = exact.astype(np.float32).astype(np.float64)
    is_number = np.isfinite(rounded) & np.isfinite(exact)
    exact, rounded = exact[is_number], rounded[is_number]
    values, low = np.unique(rounded, return_index=True)
    if not len(values):
        return values, values
    high = np.append(low[1:], len(exact)) - 1
    is_one = exact[high] - exact[low] <= _SAME * np.abs(values)
    return values[is_one], exact[low][is_one]


def _arrays(value: object, seen: set[int]) -> Iterator[np.ndarray]:
    """Yield the float64 arrays in a fitted estimator and in the estimators, lists and dictionaries in it."""
    if isinstance(value, float):
        yield np.array([value])
    elif isinstance(value, np.ndarray) and value.dtype == np.float64:
        yield value
    else:
        for part in _parts(value, seen):
            yield from _arrays(part, seen)


def _parts(value: object, seen: set[int]) -> Iterable[Any]:
    """Return the parts of an object; none if it was seen before."""
    if isinstance(value, np.ndarray):
        return value.ravel().tolist() if value.dtype == object else ()
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, dict):
        return value.values()
    # splines of scipy 1.18 hold a module of array functions
    if not hasattr(value, "__dict__") or isinstance(value, type | ModuleType) or id(value) in seen:
        return ()
    seen.add(id(value))
    return [*vars(value).values(), *_derived(value)]


def _derived(estimator: Any) -> Iterator[np.ndarray]:
    """Yield arrays that converters make of the attributes of an estimator."""
    if getattr(estimator, "kernel", None) == "linear" and hasattr(estimator, "coef_"):
        # a property of support vector machines
        yield estimator.coef_
    if hasattr(estimator, "bsplines_"):
        # of a SplineTransformer: neighbours may be equal up to rounding
        yield np.stack([spline.t for spline in estimator.bsplines_])
    if hasattr(estimator, "quantiles_") and hasattr(estimator, "references_"):
        # of a QuantileTransformer: padded for a binary search, and some may be equal up to rounding
        quantiles = estimator.quantiles_
        n_before = (1 << len(quantiles).bit_length()) - len(quantiles) + 1
        for table in (quantiles, -quantiles[::-1]):
            yield np.concatenate([np.repeat(table[:1], n_before, axis=0), table]).T.ravel()


def _impute(w: Writer, node: ir.Node) -> ir.Value | None:
    """Replace NaN, or another number, by a number."""
    x, replaced = first(node), attribute(node, "replaced_value_float", 0.0)
    values = attribute(node, "imputed_value_floats")
    if not values or x.dtype not in REAL_TYPES:
        return None
    missing = w.op.IsNaN(x) if np.isnan(replaced) else w.op.Equal(x, float(replaced))
    constants = w.tensor("imputed", np.array(values, x.dtype.numpy()), frozen="constant of an Imputer")
    return w.op.Where(missing, constants, x)


#: Standard forms of operators that would round their operands to float32.
_STANDARD_FORMS: Table = {("ai.onnx.ml", "Imputer"): _impute}


def _is_float32(node: ir.Node) -> bool:
    """Return whether the real results of a node are always float32."""
    if node.op_type == "ArrayFeatureExtractor":
        return False
    return node.domain not in ("", "ai.onnx") or node.op_type == "TfIdfVectorizer"


def _enclose(node: ir.Node, graph: ir.Graph, dtype: ir.DataType, names: set[str]) -> None:
    """Run a node in float32: cast its operands and its results."""

    def cast(value: ir.Value, to: ir.DataType) -> ir.Node:
        made = computed("Cast", [value], {"to": to}, name=unique_name(f"{value.name}_cast", names))
        made.type, made.shape = ir.TensorType(to), value.shape
        return maker(made)

    for index, value in enumerate(node.inputs):
        if value is not None and value.dtype == dtype:
            before = cast(value, ir.DataType.FLOAT)
            graph.insert_before(node, before)
            node.replace_input_with(index, before.outputs[0])
    for value in node.outputs:
        if value.dtype == dtype:
            after = cast(value, dtype)
            wide = after.outputs[0]
            ir.convenience.replace_all_uses_with(value, wide, replace_graph_outputs=True)
            after.replace_input_with(0, value)
            graph.insert_after(node, after)
            name = str(value.name)
            value.name, wide.name = wide.name, name
            value.type = ir.TensorType(ir.DataType.FLOAT)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _convert(tensor: ir.TensorProtocol, dtype: ir.DataType, given: Set[ir.DataType]) -> ir.TensorProtocol:
    if tensor.dtype not in given:
        return tensor
    return ir.tensor(tensor.numpy().astype(dtype.numpy()), name=tensor.name)


def _convert_attributes(node: ir.Node, dtype: ir.DataType, given: Set[ir.DataType]) -> None:
    for name, held in list(node.attributes.items()):
        if held.type == ir.AttributeType.TENSOR:
            node.attributes[name] = ir.AttrTensor(name, _convert(held.as_tensor(), dtype, given))
        elif name in _TYPE_ATTRIBUTES and held.as_int() in given:
            node.attributes[name] = ir.AttrInt64(name, dtype)
