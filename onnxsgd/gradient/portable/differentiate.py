"""Reverse-mode differentiation: from a graph to the graph of its gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onnxsgd.exceptions import NotTrainableError, ParameterError
from onnxsgd.gradient.portable.forward_shapes import infer_shapes
from onnxsgd.gradient.portable.rules.batch_first import put_time_first
from onnxsgd.gradient.portable.rules.picks_first import put_picks_first
from onnxsgd.gradient.portable.rules.quantization import is_quantized
from onnxsgd.gradient.portable.rules.scan_axes import put_scan_axis_first
from onnxsgd.gradient.portable.rules.table import KNOWN, reason_against
from onnxsgd.gradient.portable.sweep import dependents, sweep
from onnxsgd.gradient.portable.writing.broadcasting import expand_to, zeros_like
from onnxsgd.gradient.portable.writing.emitter import Emitter
from onnxsgd.gradient.portable.writing.tensor import Tensor
from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import qualified_operator, standard_operator
from onnxsgd.graph.opsets.function_bodies import expand_functions

__all__ = ["differentiable", "differentiate"]

#: The first version of the standard operators whose forms the rules know.
_OLDEST_OPSET = 13


def differentiate(model: ir.Model, outputs: Sequence[str], wrt: Sequence[str]) -> ir.Model:
    """Return the graph that computes `outputs` and the gradients of their weighted sum.

    The result computes, for each name ``w`` of `wrt` ::

        w_grad = sum over outputs y of  (dy / dw)^T y_grad

    in standard ONNX operators only. It is a graph like any other and can be differentiated again.

    Parameters
    ----------
    model : ir.Model
        The graph; it is not changed. Its standard operators have version 13 or later.
    outputs : sequence of str
        Tensors of real numbers: outputs of the graph, or inner tensors.
    wrt : sequence of str
        Initializers and inputs of real numbers.

    Returns
    -------
    ir.Model
        Inputs: the original inputs, the initializers of `wrt`, then ``<output>_grad`` for each output, of
        its type and shape. Outputs: `outputs`, then ``<name>_grad`` for each name of `wrt`; zeros where no
        path leads from it to the outputs. A number is added to a name that the graph already uses: the order
        is the contract.

    Raises
    ------
    ParameterError
        A name is unknown or repeated, or not the name of a tensor of real numbers; nothing is named.
    NotTrainableError
        An operator on a path from `wrt` to `outputs` has no gradient rule, or the opset is too old.

    Examples
    --------
    >>> import onnx, onnx_ir as ir
    >>> text = '<ir_version: 9, opset_import: ["": 18]> g (float[N, 3] X, float[3, 1] W) => (float[N, 1] Y)'
    >>> model = ir.from_proto(onnx.parser.parse_model(text + "{ Y = MatMul(X, W) }"))
    >>> gradient = differentiate(model, ["Y"], ["W"])
    >>> [value.name for value in gradient.graph.inputs], [value.name for value in gradient.graph.outputs]
    (['X', 'W', 'Y_grad'], ['Y', 'W_grad'])
    >>> [node.op_type for node in gradient.graph]
    ['MatMul', 'Gemm']
    """
    _check_opset(model)
    result = _expand(_copy(model), wrt)
    graph = result.graph
    put_time_first(graph)
    put_picks_first(graph)
    put_scan_axis_first(result)
    values = ir.convenience.create_value_mapping(graph, include_subgraphs=False)
    targets = [_real_value(graph, values, name, "outputs") for name in _distinct(outputs, "outputs")]
    sources = [_real_value(graph, values, name, "wrt") for name in _distinct(wrt, "wrt")]
    _free(graph, sources)
    names = graph_names(graph)
    emitter = Emitter(graph.opset_imports[""], _unused_prefix(names))
    infer_shapes(result, emitter)
    seeds = [_seed(emitter.tensor(target), names) for target in targets]
    gradients = sweep(emitter, list(graph), sources, list(zip(targets, seeds, strict=True)))
    found = [_name(emitter, emitter.tensor(source), gradients.get(source), names) for source in sources]
    graph.extend(emitter.nodes)
    graph.inputs.extend(seed.value for seed in seeds)
    graph.outputs.clear()
    graph.outputs.extend([*targets, *found])
    return result


def differentiable(node: ir.Node) -> str | None:
    """Return why no gradient can pass through a node.

    Parameters
    ----------
    node : ir.Node
        A node of any graph.

    Returns
    -------
    str or None
        None if the node has a rule, or a gradient that is zero by convention; otherwise one sentence that
        names the operator.
    """
    return reason_against(node)


def _check_opset(model: ir.Model) -> None:
    opset = model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx"))
    if opset is None or opset < _OLDEST_OPSET:
        raise NotTrainableError(
            f"the graph uses version {opset} of the standard operators; gradients need {_OLDEST_OPSET} "
            "or later: convert it with onnx.version_converter.convert_version"
        )


def _copy(model: ir.Model) -> ir.Model:
    copy = model.clone()
    if copy.functions:
        copy = InlinePass()(copy).model
    if "" not in copy.graph.opset_imports:
        copy.graph.opset_imports[""] = copy.graph.opset_imports.pop("ai.onnx")
    return copy


def _expand(model: ir.Model, wrt: Sequence[str]) -> ir.Model:
    """Replace the operators on a path from `wrt` that have a definition in the standard, but no rule."""
    if not any(reason_against(node) is None and not _has_rule(node) for node in model.graph):
        return model
    values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
    sources = [values[name] for name in wrt if name in values]

    def chosen(node: ir.Node) -> bool:
        depends = not dependents(model.graph, sources).isdisjoint(node.outputs)
        return bool(standard_operator(node)) and not _has_rule(node) and depends

    return expand_functions(model, chosen)


def _has_rule(node: ir.Node) -> bool:
    """Return whether a node needs no definition; the rule of a dynamic quantization is that of its levels."""
    is_scale_alone = node.op_type == "DynamicQuantizeLinear" and not node.outputs[0].uses()
    return qualified_operator(node) in KNOWN and not is_scale_alone


def _distinct(names: Sequence[str], parameter: str) -> Sequence[str]:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ParameterError(f"{parameter} names {repeated[0]!r} twice; every name counts once")
    if not names:
        raise ParameterError(f"{parameter} is empty; at least one tensor must be named")
    return names


def _real_value(graph: ir.Graph, values: Mapping[str, ir.Value], name: str, parameter: str) -> ir.Value:
    value = values.get(name)
    if value is None or (parameter == "wrt" and value.producer() is not None):
        legal = [*(v.name for v in graph.inputs), *graph.initializers]
        legal = legal if parameter == "wrt" else [v.name for v in graph.outputs]
        raise ParameterError(f"{parameter} names {name!r}, which is not among {legal}")
    if is_quantized(value):
        raise ParameterError(
            f"{parameter} names {name!r}, whose type {value.dtype} is not a type of real numbers"
        )
    return value


def _free(graph: ir.Graph, sources: Iterable[ir.Value]) -> None:
    """Turn the initializers among `sources` into the last inputs of the graph."""
    for value in sources:
        if value.name is not None and value.name in graph.initializers:
            if value.const_value is not None:
                value.shape, value.dtype = ir.Shape(value.const_value.numpy().shape), value.const_value.dtype
            if value in graph.inputs:
                graph.inputs.remove(value)
            graph.initializers.pop(value.name)
            value.const_value = None
            graph.inputs.append(value)


def _unused_prefix(names: set[str]) -> str:
    prefix = "grad_"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix


def _seed(y: Tensor, names: set[str]) -> Tensor:
    name = unique_name(f"{y.value.name}_grad", names)
    seed = ir.Value(name=name, shape=y.value.shape, type=y.value.type)
    return Tensor(y.emitter, seed, y.dtype, y.dims)


def _name(emitter: Emitter, x: Tensor, gradient: Tensor | None, names: set[str]) -> ir.Value:
    """Return the gradient with respect to `x`, under its final name."""
    full = zeros_like(x) if gradient is None else expand_to(gradient, x)
    if not (full.value.name or "").startswith(emitter.prefix):
        # A value with a name already: of the graph, or the gradient of another tensor.
        full = emitter.copy(full)
    full.value.name = unique_name(f"{x.value.name}_grad", names)
    full.value.shape, full.value.type = x.value.shape, x.value.type
    return full.value
