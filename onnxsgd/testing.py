"""Numerical checks of gradients, of a custom loss or of a whole graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

from onnxsgd.exceptions import GradientError, ParameterError, ParameterTypeError
from onnxsgd.graph.loading.load import check_proto
from onnxsgd.graph.model import to_ir
from onnxsgd.graph.opsets.versions import bring_into_range
from onnxsgd.losses import Loss
from onnxsgd.objective.scored_output import find_output

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from onnxsgd.checking.problems import Problem

__all__ = ["GradientReport", "check_gradients"]


@dataclass(frozen=True)
class GradientReport:
    """The agreement of gradients with central differences.

    Attributes
    ----------
    n_checked : int
        Number of elements compared.
    max_error : float
        The largest absolute difference.
    worst : str
        The element that comes closest to its tolerance, or exceeds it most, such as ``"coef[0, 2]"``.
    gradient, difference : float
        The two numbers there: the gradient, and the central difference.
    """

    n_checked: int
    max_error: float
    worst: str
    gradient: float
    difference: float


def check_gradients(
    target: Loss | onnx.ModelProto,
    *,
    weights: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    output: int | str | None = None,
    feeds: Mapping[str, ArrayLike] | None = None,
    n_samples: int = 5,
    max_elements: int = 30,
    dtype: DTypeLike | None = None,
    eps: float = 1e-6,
    rtol: float | None = None,
    atol: float | None = None,
    random_state: int | np.random.Generator | None = 0,
) -> GradientReport:
    """Compare gradients with central differences, which are computed in float64.

    Of a loss, the derivative of `value` by `raw_prediction` is checked, on targets of the kind
    ``loss.targets``: `gradient`, or, if it returns None, the engine's derivative of `value`. Of a model, the
    derivatives of an output by weights and inputs are checked, times random numbers and summed::

        sum_j c_j output_j,  c_j normally distributed

    (the plain sum would hide errors: that of a softmax is constant). An element passes if::

        |gradient - difference| <= atol + rtol |difference|

    Parameters
    ----------
    target : Loss or onnx.ModelProto
        The loss or the graph to check.
    weights, inputs : list of str, optional
        For a model: the initializers and the inputs to differentiate by; all of a real type by default.
    output : int or str, optional
        For a model: the output to differentiate, by position or name; not needed if there is one only.
    feeds : dict, optional
        Values of the inputs, `y_true` and `raw_prediction` for a loss. Those not given are random:
        normally distributed, or 0 and 1 for inputs that are not real.
    n_samples : int, default=5
        Number of samples, the size of unknown dimensions, > 0.
    max_elements : int, default=30
        The largest number of elements checked in each tensor, chosen at random, > 0.
    dtype : {float32, float64}, optional
        The type in which the gradient is computed. Default: float64 for a loss, its own for a model.
    eps : float, default=1e-6
        Half the step of the differences, > 0. They are meaningless at a distance below `eps` from a kink.
    rtol, atol : float, optional
        Tolerances, >= 0; 1e-6 and 1e-7 in float64, 1e-3 and 1e-4 in float32 by default.
    random_state : int or numpy.random.Generator, default=0
        Seed of the random values.

    Returns
    -------
    GradientReport

    Raises
    ------
    GradientError
        An AssertionError: an element differs by more than the tolerance, and the message names the worst; or
        a loss or its gradient is not finite at raw predictions of -1000 or 1000, as diverging weights give;
        -30 or 30 for a logarithmic link.
    GraphError
        If the formulas of the loss make no valid ONNX graph, or give a result of a wrong shape.
    ParameterError, ParameterTypeError
        If an argument is not accepted.

    Examples
    --------
    >>> from onnxsgd.losses import Huber
    >>> from onnxsgd.testing import check_gradients
    >>> check_gradients(Huber(epsilon=0.5)).n_checked
    15
    """
    from onnxsgd.checking.problems import problem_of_loss, problem_of_model

    _check_positive(n_samples=n_samples, max_elements=max_elements, eps=eps)
    rng = np.random.default_rng(random_state)
    if isinstance(target, Loss):
        if (weights, inputs, output) != (None, None, None):
            raise ParameterError("weights, inputs and output are for models: a loss has none of them.")
        problem = problem_of_loss(target, _real_type(dtype or np.float64), feeds or {}, n_samples, rng)
    elif isinstance(target, onnx.ModelProto):
        check_proto(target, "target")
        problem = problem_of_model(
            _prepare(target, output, dtype), weights, inputs, feeds or {}, n_samples, rng
        )
    else:
        raise ParameterTypeError(f"target must be a Loss or an onnx.ModelProto, not {type(target).__name__}.")
    differences = list(_differences(problem, eps, max_elements, rng))
    if not differences:
        raise ParameterError("There is nothing to check: no weight and no input to differentiate by.")
    precise = all(gradient.dtype == np.float64 for gradient in problem.gradients.values())
    default_rtol, default_atol = (1e-6, 1e-7) if precise else (1e-3, 1e-4)
    report = _report(
        differences, default_rtol if rtol is None else rtol, default_atol if atol is None else atol
    )
    problem.check_far_away()
    return report


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise ParameterError(f"{name}={number!r} is not accepted: it must be > 0.")


def _real_type(dtype: DTypeLike) -> ir.DataType:
    try:
        found = ir.DataType.from_numpy(np.dtype(dtype))
    except TypeError:
        found = None
    if found not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        raise ParameterError(f"dtype={dtype!r} is not accepted: it must be float32 or float64.")
    return found


def _prepare(model: onnx.ModelProto, output: int | str | None, dtype: DTypeLike | None) -> ir.Model:
    from onnxsgd.graph.lowering.lower import lower_for_training
    from onnxsgd.graph.lowering.precision import with_precision

    source = to_ir(bring_into_range(model))
    source.graph.outputs[:] = [find_output(source.graph, output)]
    return source if dtype is None else with_precision(lower_for_training(source), _real_type(dtype))


def _differences(
    problem: Problem, eps: float, max_elements: int, rng: np.random.Generator
) -> Iterator[tuple[str, float, float]]:
    """Yield name, gradient and central difference of the elements that are compared."""
    for name, gradient in problem.gradients.items():
        chosen = rng.permutation(gradient.size)[:max_elements]
        for index in (tuple(int(i) for i in np.unravel_index(c, gradient.shape)) for c in chosen):
            above, below = problem.point[name].copy(), problem.point[name].copy()
            above[index] += eps
            below[index] -= eps
            rise = problem.function({**problem.point, name: above})
            rise -= problem.function({**problem.point, name: below})
            # The step after rounding, not eps itself.
            yield f"{name}{list(index)}", float(gradient[index]), rise / (above[index] - below[index])


def _report(compared: Sequence[tuple[str, float, float]], rtol: float, atol: float) -> GradientReport:
    gradients = np.array([gradient for _, gradient, _ in compared])
    differences = np.array([difference for _, _, difference in compared])
    errors = np.abs(gradients - differences)
    tolerances = atol + rtol * np.abs(differences)
    failed = ~(errors <= tolerances)
    worst = int(np.argmax(np.where(np.isfinite(errors), errors - tolerances, np.inf)))
    name, gradient, difference = compared[worst]
    if failed.any():
        raise GradientError(
            f"The gradient by {name} is {gradient:.6g}, the central difference {difference:.6g}: they differ "
            f"by {errors[worst]:.3g}, more than atol + rtol |difference| = {tolerances[worst]:.3g} "
            f"({failed.sum()} of {len(compared)} elements do)."
        )
    return GradientReport(len(compared), float(errors.max()), name, gradient, float(difference))
