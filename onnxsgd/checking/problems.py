"""Functions of real arrays and their claimed gradients, which ``check_gradients`` compares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxsgd._library_errors import reason, run_error
from onnxsgd.engine.predict import weights_as_inputs
from onnxsgd.exceptions import GradientError, GraphError, ParameterError
from onnxsgd.gradient.derivative import onnx_derivative
from onnxsgd.graph.append import builder_of, check_operators
from onnxsgd.graph.loading.random_inputs import check_drawn
from onnxsgd.graph.lowering.forms import write_out
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.lowering.precision import with_precision
from onnxsgd.graph.model import REAL_TYPES, to_proto
from onnxsgd.losses import Loss
from onnxsgd.objective.score_table import weighted_loss
from onnxsgd.objective.scored_output import dtype_and_shape
from onnxsgd.runtime.sessions import make_session

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["Problem", "problem_of_loss", "problem_of_model"]

_N_OUTPUTS = 3
_RAW = "raw_prediction"
#: Raw predictions at which a loss has to be finite, by its link: those of exponentials overflow.
_FAR_AWAY = {"log": (-30.0, 30.0)}
_FARTHEST = (-1e3, 1e3)
_Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Problem:
    """A function, a point, and the claimed gradient there.

    Attributes
    ----------
    function : callable
        From named arrays to a number, in float64.
    point : dict
        The arrays, in float64 where they are real.
    gradients : dict
        The claimed derivatives, by name, in the type in which they were computed.
    check_far_away : callable
        Raises if the function or its gradient is not finite far away from the point.
    """

    function: Callable[[Mapping[str, np.ndarray]], float]
    point: _Arrays
    gradients: _Arrays
    check_far_away: Callable[[], None] = lambda: None


def problem_of_loss(
    loss: Loss, dtype: ir.DataType, feeds: Mapping[str, ArrayLike], n_samples: int, rng: np.random.Generator
) -> Problem:
    """Pose ``sum_i sample_weight_i sum_k value_ik`` as a function of the raw predictions."""
    given = {name: np.asarray(value) for name, value in feeds.items()}
    # several quantiles are those of one target
    width = len(loss.score_factors) * (1 if loss.link == "sorted" else _N_OUTPUTS)
    shape = next((value.shape for value in given.values()), (n_samples, width))
    point = {"y_true": _targets(loss, shape, rng), _RAW: 2.0 * rng.normal(size=shape)}
    _refuse_unknown(given, point)
    point |= {**given, "sample_weight": rng.uniform(0.5, 1.5, size=(shape[0], 1))}
    point = {name: value.astype(dtype.numpy()) for name, value in point.items()}
    model = _loss_model(loss, dtype, shape)
    differentiate = _gradient_of(model, dtype)
    found = differentiate(point)
    if found.shape != shape:
        raise GraphError(f"The gradient of {loss!r} has shape {found.shape}: it must be {shape}, as {_RAW}.")
    evaluate = _evaluator(_loss_model(loss, ir.DataType.DOUBLE, shape, gradient=False), "loss")
    functions = {"value": lambda at: _run(model, at)["loss"], "gradient": differentiate}
    return Problem(
        lambda at: float(evaluate(at).sum()),
        _widen(point),
        {_RAW: found},
        lambda: _check_far_away(loss, point, functions),
    )


def _gradient_of(model: onnx.ModelProto, dtype: ir.DataType) -> Callable[[_Arrays], np.ndarray]:
    """Return a function for the gradient of a loss, in closed form if the loss has one."""
    if len(model.graph.output) > 1:
        return lambda point: _run(model, point)["gradient"]
    derivative = onnx_derivative(model, weights=[], inputs=[_RAW])
    one = np.ones((1, 1), dtype.numpy())
    return lambda point: _run(derivative, {**point, "loss_grad": one})[f"{_RAW}_grad"]


def _check_far_away(
    loss: Loss, point: _Arrays, functions: Mapping[str, Callable[[_Arrays], np.ndarray]]
) -> None:
    """Refuse a formula that overflows where scores are large, as in the first updates of many fits."""
    for score in _FAR_AWAY.get(loss.link, _FARTHEST):
        at = {**point, _RAW: np.full_like(point[_RAW], score)}
        for name, function in functions.items():
            if not np.isfinite(function(at)).all():
                raise GradientError(
                    f"The {name} of {loss!r} is not finite at {_RAW} = {score:g}: write it in a form that "
                    "does not overflow, such as max(z, 0) + log(1 + exp(-|z|)) for log(1 + exp(z))."
                )


def problem_of_model(
    model: ir.Model,
    weights: Sequence[str] | None,
    inputs: Sequence[str] | None,
    feeds: Mapping[str, ArrayLike],
    n_samples: int,
    rng: np.random.Generator,
) -> Problem:
    """Pose ``sum_j c_j output_j``, c random, as a function of weights and inputs of a one-output graph."""
    lowered = lower_for_training(model)
    initializers = {
        name: value.const_value.numpy()
        for name, value in lowered.graph.initializers.items()
        if value.const_value is not None
    }
    data = {str(value.name): value for value in model.graph.inputs if value.name not in initializers}
    _refuse_unknown(feeds, data)
    fed = {name: _feed(value, feeds.get(name), n_samples, rng) for name, value in data.items()}
    derivative = onnx_derivative(to_proto(model), weights=weights, inputs=inputs)
    by = [value.name.removesuffix("_grad") for value in derivative.graph.output]
    trained = [name for name in by if name not in data]
    point = {**fed, **{name: initializers[name] for name in trained}}
    wide = weights_as_inputs(with_precision(lowered, ir.DataType.DOUBLE), trained)
    # the reference implementations of some operators are those of float32, or do not broadcast
    write_out(wide)
    evaluate = _evaluator(to_proto(wide), str(wide.graph.outputs[0].name))
    # by the runtime first, which has guards: the reference implementation would compute any size, or for ever
    (output,) = _run(to_proto(weights_as_inputs(lowered, trained)), point).values()
    directions = rng.normal(size=output.shape)
    (seed,) = (value for value in derivative.graph.input if value.name not in point)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(seed.type.tensor_type.elem_type)
    gradients = _run(derivative, {**point, seed.name: directions.astype(dtype)})
    return Problem(
        lambda at: float((directions * evaluate(at)).sum()),
        _widen(point),
        {name: gradients[f"{name}_grad"] for name in by},
    )


def _loss_model(
    loss: Loss, dtype: ir.DataType, shape: tuple[int, ...], *, gradient: bool = True
) -> onnx.ModelProto:
    """Return a graph with outputs "loss" and, if requested and available in closed form, "gradient"."""
    shapes = {"y_true": shape, _RAW: shape, "sample_weight": (shape[0], 1)}
    values = [
        ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(dims)) for name, dims in shapes.items()
    ]
    graph = ir.Graph(values, [], nodes=[], opset_imports={"": 18}, name="loss")
    op = builder_of(graph)
    y_true, raw_prediction, weight = values
    outputs = {"loss": weighted_loss(op, loss, y_true, raw_prediction, weight)}
    formula = loss.gradient(op, y_true, raw_prediction) if gradient else None
    if formula is not None:
        outputs["gradient"] = op.Mul(formula, weight)
    for name, value in outputs.items():
        # A wrong formula has no inferred type: with one set here, the checker names the formula instead.
        value.name, value.dtype = name, dtype
        value.shape = value.shape or ir.Shape((1, 1) if name == "loss" else shape)
        graph.outputs.append(value)
    check_operators(graph, graph.opset_imports)
    model = to_proto(ir.Model(graph, ir_version=8))
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise GraphError(f"The formulas of {loss!r} make no valid ONNX graph: {reason(error)}.") from error
    return model


def _evaluator(model: onnx.ModelProto, output: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """Return a function that computes `output` with the reference implementation of the operators."""
    from onnx.reference import ReferenceEvaluator

    from onnxsgd.checking.reference_cells import CELLS
    from onnxsgd.checking.reference_scan import Scan

    try:
        evaluator: Any = ReferenceEvaluator(model, new_ops=[Scan, *CELLS])
    except Exception as error:
        raise GraphError(
            f"The reference implementation of onnx cannot read the graph: {reason(error)}."
        ) from error

    def evaluate(feeds: Mapping[str, np.ndarray]) -> np.ndarray:
        try:
            # results that are not finite are refused; within, such as in exp of a sigmoid, they may be right
            with np.errstate(all="ignore"):
                return evaluator.run([output], dict(feeds))[0]
        except Exception as error:
            # operators in Python, which raise all kinds of errors
            raise GraphError(f"The reference evaluator cannot run the graph: {reason(error)}.") from error

    return evaluate


def _run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> _Arrays:
    session = make_session(model.SerializeToString(), 1)
    wanted = [value.name for value in session.get_inputs()]
    names = [value.name for value in session.get_outputs()]
    try:
        found = session.run(names, {name: feeds[name] for name in wanted})
    except Exception as error:
        raise run_error(error) from error
    return dict(zip(names, found, strict=True))


def _targets(loss: Loss, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if loss.targets == "indicator":
        return np.eye(shape[1])[rng.integers(shape[1], size=shape[0])]
    if loss.targets == "sign":
        return rng.choice([-1.0, 1.0], size=shape)
    count = len(loss.score_factors)
    drawn = np.tile(rng.normal(size=(shape[0], shape[1] // count)), (1, count))
    return drawn if loss.targets == "real" else np.abs(drawn)


def _feed(value: ir.Value, given: Any, n_samples: int, rng: np.random.Generator) -> np.ndarray:
    dtype, dims = dtype_and_shape(value)
    if given is not None:
        return np.asarray(given, dtype.numpy())
    known = [size if isinstance(size, int) and size >= 0 else None for size in dims]
    shape = [(1 if axis else n_samples) if size is None else size for axis, size in enumerate(known)]
    check_drawn(str(value.name), shape)
    drawn = rng.normal(size=shape) if dtype in REAL_TYPES else rng.integers(2, size=shape)
    return drawn.astype(dtype.numpy())


def _widen(arrays: _Arrays) -> _Arrays:
    return {name: a.astype(np.float64) if a.dtype.kind == "f" else a for name, a in arrays.items()}


def _refuse_unknown(feeds: Iterable[str], legal: Iterable[str]) -> None:
    unknown = sorted(set(feeds) - set(legal))
    if unknown:
        raise ParameterError(f"feeds names {unknown}: the inputs are {sorted(legal)}.")
