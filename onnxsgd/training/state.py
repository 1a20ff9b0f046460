"""The state of a fit: weights, their states, numbers, random numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from onnxsgd.data.generators import make_generator
from onnxsgd.data.moments import Moments
from onnxsgd.engine.step.buffers import Tensors
from onnxsgd.engine.step.mixed_precision import FIRST_SCALE, GOOD_UPDATES, LOSS_SCALE, SCALER
from onnxsgd.engine.step.update import AVERAGE, L1_DEBT, START, WEIGHT
from onnxsgd.graph.reading.first_layers import FirstLayer
from onnxsgd.losses import Hinge
from onnxsgd.optimizers import LEAST_FACTOR, LOG_FACTOR, BlockAdam
from onnxsgd.training.fit_plan import FitPlan

__all__ = [
    "SOME_ROWS", "TARGET", "FitState", "adapt_state", "fresh_state", "has_comparable_losses", "is_far_above",
    "mean_factor", "mean_weight", "missing_starts", "output_unit", "rate_scales", "slows_intercept",
]  # fmt: skip

#: The fewest rows of a part whose loss is looked at.
SOME_ROWS = 8
#: The key of the target's moments; no tensor has an empty name.
TARGET = ""
#: The fewest and the most parts of a stream whose losses the last one is compared with, and the growth that
#: is a jump.
_LEAST_EARLIER, _MOST_EARLIER, _JUMP = 4, 8, 10.0
#: The unit of raw predictions that lack that of the target, as logarithms of variances do.
#: ``benchmarks/variance_unit.py``, a linear model from zero: up to a signal of 3 times the scatter at most
#: 0.002 nats above the least loss with any unit; at 100 times 0.021 with 1, 0.006 with 4, 0.003 with 8; at
#: 1,000 times 0.43, 0.04 and 0.02. Ten rows for each column or fewer, with as much noise as signal, are 0.1
#: nats better with 1 than with 4, with little noise up to 1.4 worse.
_UNIT_OF_OTHERS = 4.0
#: The factor of the rate of the intercepts of some classifiers on sparse data, as in scikit-learn, where no
#: share of a class is off by more than a fifth of that of equal classes: rare words tell the classes of all
#: rows, with any intercept, and large steps leave it anywhere. A perceptron of two classes, 86 sets of texts
#: and one-hot codes: the mean accuracy is 0.822 with 0.01, 0.816 with 0.1, and 0.800 with 1 (`SGDClassifier`
#: 0.816). 36 sets of 100 to 1,000 texts of 4 to 10 topics, with more words than rows: 0.881 in place of 0.852
#: with hinges (`SGDClassifier` 0.864), 0.849 in place of 0.798 with perceptrons (0.831); 16 of binary
#: features 0.313 in place of 0.316 with hinges. Unequal classes lose: 400 rows of binary features in four of
#: them have 0.55 in place of 0.67 with a hinge.
_OF_SPARSE_INTERCEPT = 0.01
_BALANCED = 0.2
#: The difference of a sum of shares from 1 that is rounding: of several labels of a sample it is larger.
_ROUNDING = 1e-6
#: The kinds of tensors that are no slots of an optimizer.
_OF_NO_OPTIMIZER = frozenset({WEIGHT, AVERAGE, L1_DEBT, START, LOSS_SCALE, GOOD_UPDATES})


@dataclass
class FitState:
    """The state of a fit, from which a later fit or ``partial_fit`` continues.

    Attributes
    ----------
    tensors : dict of ndarray
        Weights and their states, and those of the loss scale, if there is one.
    eta : float
        The present learning rate.
    random_state : numpy.random.RandomState
        Draws the order of the samples.
    t : int
        Updates made.
    l1_totals : dict of float
        The l1 penalty that the elements of each weight could have received so far; 0 for the others.
    optimizer : str or None
        The owner of the optimizer's slots; None: the next optimizer.
    slots_from, averages_from : int
        Updates made before the slots, and before the averages, began.
    schedule : str or None
        The owner of `eta`; None: the next schedule.
    rate_memory : tuple of float
        The numbers that the schedule remembers of the losses.
    loss_curve : list of float
        The objective of each epoch.
    validation_scores : list of float
        The score of each epoch on the validation data, if any.
    learning_rates : list of float
        The learning rate of the last update of each epoch.
    update_norms : list of float
        The norm of the change of the weights over each epoch, NaN where it was not recorded; shorter than
        `loss_curve` if the last ones were not.
    n_updates : int or None
        The largest number of updates of the last call to ``fit``; None before the first call.
    epoch_updates : int or None
        The number of updates of each of its epochs.
    moments : dict of Moments
        The moments of features that first layers read, and, under :data:`TARGET`, of the target, if training
        standardises them.
    forgotten_at : int
        The number of updates at which a stream began anew; 0: never.
    judged_from : int
        The entries of `loss_curve` before the calls of few rows after a fit, whose losses will tell whether
        the data have changed; 0: none are looked at.
    n_rows, mean_weight : int, float
        The number of samples so far, and the mean of their weights, if training finds the rate.
    missed : dict of int
        The updates, since the slots began, in which weights were frozen; replaced, not changed.
    of_batches : list of (float, float) or None
        The objectives and the learning rates of the batches of an iterable, which take the place of those of
        epochs until the epoch is whole; None outside such an epoch.
    """

    tensors: Tensors
    eta: float
    random_state: np.random.RandomState
    t: int = 0
    l1_totals: dict[str, float] = field(default_factory=dict)
    optimizer: str | None = None
    slots_from: int = 0
    averages_from: int = 0
    schedule: str | None = None
    rate_memory: tuple[float, ...] = ()
    loss_curve: list[float] = field(default_factory=list)
    validation_scores: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    update_norms: list[float] = field(default_factory=list)
    n_updates: int | None = None
    epoch_updates: int | None = None
    moments: dict[str, Moments] = field(default_factory=dict)
    forgotten_at: int = 0
    judged_from: int = 0
    n_rows: int = 0
    mean_weight: float = 0.0
    missed: dict[str, int] = field(default_factory=dict)
    of_batches: list[tuple[float, float]] | None = None

    def count_rows(self, weight: np.ndarray, mean: float | None = None) -> None:
        """Count further samples of the given weights, and of their mean, if that is known."""
        self.n_rows += len(weight)
        mean = mean_weight(weight) if mean is None else mean
        self.mean_weight += (mean - self.mean_weight) * len(weight) / self.n_rows

    def start_steering(self, share: float) -> None:
        """Let steered rates begin with this share of the rate."""
        for name, weight in self.weights().items():
            factor = np.full((1,) * weight.ndim, math.log(share), weight.dtype)
            self.tensors[name, LOG_FACTOR] = factor

    def cut_steering(self, divisor: float) -> None:
        """Divide the factors of steered rates, which stay within their bounds."""
        least = math.log(LEAST_FACTOR)
        for key, factor in self.tensors.items():
            if key[1] == LOG_FACTOR:
                self.tensors[key] = np.maximum(factor - math.log(divisor), least).astype(factor.dtype)

    def copy(self) -> FitState:
        """Return this state, which training does not change; records and random numbers remain shared."""
        duplicate = FitState.__new__(FitState)
        vars(duplicate).update(vars(self))
        duplicate.tensors, duplicate.moments = self.tensors.copy(), self.moments.copy()
        return duplicate

    @property
    def has_jumped(self) -> bool:
        """True if the last part of a stream had a loss far above those before."""
        return bool(self.loss_curve) and self.is_jump(self.loss_curve[-1])

    def is_jump(self, loss: float) -> bool:
        """Tell whether a loss is far above those of the parts before the last one."""
        earlier = self.loss_curve[-1 - _MOST_EARLIER : -1]
        return len(earlier) >= _LEAST_EARLIER and loss > _JUMP * max(earlier)

    def forget(self, *, keep_data: bool = False) -> None:
        """Keep the weights alone: moments of gradients and averages begin anew.

        Moments of the data do too, unless `keep_data`.
        """
        self.forget_gradients()
        self.forgotten_at, self.judged_from = self.t, 0
        self.moments = self.moments if keep_data else {}

    def forget_gradients(self) -> None:
        """Let moments of gradients and averages of the weights begin anew."""
        self.tensors = {
            (name, kind): self.tensors[name, WEIGHT] if kind == AVERAGE else array
            for (name, kind), array in self.tensors.items()
            if kind in _OF_NO_OPTIMIZER
        }
        self.slots_from = self.averages_from = self.t
        self.missed = {}

    @property
    def is_steered(self) -> bool:
        """True if the rates of the weights have factors of their own."""
        return any(kind == LOG_FACTOR for _, kind in self.tensors)

    @property
    def factor(self) -> float:
        """The geometric mean of the factors of steered rates; 1 without any."""
        return mean_factor([array for (_, kind), array in self.tensors.items() if kind == LOG_FACTOR])

    def record(self, objectives: np.ndarray, learning_rates: np.ndarray) -> None:
        """Record the objectives and the learning rates of further epochs, or of a batch."""
        if self.of_batches is not None:
            self.of_batches.extend(zip(objectives.tolist(), learning_rates.tolist(), strict=True))
            return
        self.loss_curve.extend(objectives.tolist())
        self.learning_rates.extend(learning_rates.tolist())

    def record_part(self, objective: float, learning_rate: float) -> None:
        """Record the objective and the last learning rate of a part of a stream; numbers need no arrays."""
        self.loss_curve.append(objective)
        self.learning_rates.append(learning_rate)

    def first_averaged(self, average_from: int) -> int:
        """Return the update at which the averages begin, for the parameter `average_from`."""
        return max(average_from, self.averages_from + 1)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(array.nbytes for array in self.tensors.values())

    def weights(self, average_from: int = 0) -> dict[str, np.ndarray]:
        """Return the weights, averaged ones once averaging has started."""
        is_averaged = 0 < average_from <= self.t and any(kind == AVERAGE for _, kind in self.tensors)
        kind = AVERAGE if is_averaged else WEIGHT
        return {name: array for (name, k), array in self.tensors.items() if k == kind}


def has_comparable_losses(plan: FitPlan, n_rows: int) -> bool:
    """Tell whether the loss of a part of so many rows tells that training diverged, while it is finite.

    That of a few rows may be any, as may one that is in proportion to the scores, or has no least value.
    """
    return n_rows >= SOME_ROWS and plan.loss_has_scale and plan.loss_unit is None


def is_far_above(loss: float, loss_curve: Sequence[float], penalty: float) -> bool:
    """Tell whether a loss is far above those of all the last parts, or there are none.

    `penalty` is that of the present weights, with which all are compared. Losses below zero have no ratios.
    """
    earlier = loss_curve[-_MOST_EARLIER:]
    if not earlier:
        return True
    most = max(earlier)
    return most >= 0.0 and not loss <= _JUMP * max(0.0, most - penalty)


def mean_weight(weight: np.ndarray) -> float:
    """Return the mean of the weights of some samples."""
    # numpy's methods, and sums in a given type, take twice the time
    total = np.add.reduce(weight) if weight.dtype == np.float64 else weight.sum(dtype=np.float64)
    return float(total) / len(weight)


def mean_factor(logs: Sequence[np.ndarray]) -> float:
    """Return the geometric mean of the factors of rates with these logarithms; 1 without any."""
    means = [array.item() if array.size == 1 else float(array.mean()) for array in logs]
    return math.exp(sum(means) / len(means)) if means else 1.0


def adapt_state(state: FitState, plan: FitPlan) -> None:
    """Adapt `state` to a plan that may have changed since: initialize quantities that it lacks.

    Slots of another optimizer are dropped, and a rate of another schedule is replaced by the first one of
    this schedule. The cumulative penalty of weights that had different ones before begins anew. Penalties of
    the distance from the first weights take the present ones, where they have none.
    """
    recipe = plan.recipe
    slots_owner, rate_owner = recipe.slots_owner, recipe.rate_owner
    if state.optimizer not in (None, slots_owner):
        state.tensors = {key: a for key, a in state.tensors.items() if key[1] in _OF_NO_OPTIMIZER}
        state.slots_from, state.missed = state.t, {}
    if state.schedule not in (None, rate_owner):
        state.eta, state.rate_memory = recipe.schedule.initial_at(state.t), ()
    state.optimizer, state.schedule = slots_owner, rate_owner
    kinds = {kind for _, kind in state.tensors} if state.l1_totals or recipe.average_from else frozenset()
    if L1_DEBT not in kinds:
        state.l1_totals = {}
    for names in map(plan.penalised, plan.groups) if state.l1_totals else ():
        if len({state.l1_totals.get(name, 0.0) for name in names}) > 1:
            state.l1_totals = {name: a for name, a in state.l1_totals.items() if name not in names}
            state.tensors = {key: a for key, a in state.tensors.items() if key not in _debts(names)}
    if plan.step_spec.from_start:
        state.tensors |= missing_starts(state, plan)
    if plan.step_spec.scales_loss and (SCALER, LOSS_SCALE) not in state.tensors:
        state.tensors[SCALER, LOSS_SCALE] = np.array(FIRST_SCALE, np.float32)
        state.tensors[SCALER, GOOD_UPDATES] = np.array(0.0, np.float32)
    if recipe.average_from and AVERAGE not in kinds:
        state.tensors |= {(name, AVERAGE): a.copy() for name, a in state.weights().items()}
        state.averages_from = state.t


def missing_starts(state: FitState, plan: FitPlan) -> Tensors:
    """Return the first weights that penalties need and `state` lacks: copies of the present weights."""
    return {
        (name, START): state.tensors[name, WEIGHT].copy()
        for name, penalty in plan.penalties.items()
        if penalty.from_start and (name, START) not in state.tensors
    }


def _debts(names: Sequence[str]) -> set[tuple[str, str]]:
    """Return the keys of the cumulative penalties of weights."""
    return {(name, L1_DEBT) for name in names}


def output_unit(plan: FitPlan, state: FitState) -> float:
    """Return the unit of all rates of an even last layer: that of its raw predictions, over the factor."""
    part = plan.scaled_layer.weights[0]
    return abs(float(_target_scales(plan, state)[part.outputs[0]]) / float(part.factors[0]))


def rate_scales(
    plan: FitPlan,
    state: FitState,
    layers: Sequence[FirstLayer],
    *,
    slows_intercept: bool = False,
    variances_wait: bool = False,
) -> dict[str, np.ndarray]:
    """Return the factors of the rates of weights that have one.

    Cases: the units of a last layer that is not even; first layers of sparse data, whose steps would
    otherwise grow with the number of columns, and their intercepts if `slows_intercept`; adapters, so that a
    step changes the weight as one of the weight itself would. With `variances_wait` those of variances
    are 0.
    """
    layer, scales = plan.scaled_layer, dict[str, np.ndarray]()
    if not layer.is_even:
        units = _target_scales(plan, state, of_others=0.0 if variances_wait else _UNIT_OF_OTHERS)
        scales = {part.name: part.unit(units) for part in layer.weights}
    for first in layers if isinstance(plan.recipe.optimizer, BlockAdam) else ():
        shape = state.tensors[first.weight, WEIGHT].shape
        crowding = state.moments[first.feature].crowding(shape[int(first.is_transposed)])
        if crowding != 1.0:
            even = np.ones((1,) * len(shape))
            scales[first.weight] = crowding * scales.get(first.weight, even)
            if first.intercept is not None and slows_intercept:
                n_axes = state.tensors[first.intercept, WEIGHT].ndim
                scales[first.intercept] = np.full((1,) * n_axes, _OF_SPARSE_INTERCEPT)
    if plan.learner.adapters and plan.recipe.is_auto:
        for name, unit in _adapter_units(plan, state, layers).items():
            scales[name] = unit * scales.get(name, np.ones((1,) * state.tensors[name, WEIGHT].ndim))
    return scales


def slows_intercept(plan: FitPlan, moments: Moments, target: np.ndarray, weight: np.ndarray) -> bool:
    """Tell whether the intercepts of a linear classifier fitted to sparse data have a small rate.

    Cases: a hinge or a perceptron of several equal classes, with more columns than rows, and a perceptron of
    equal classes.

    Parameters
    ----------
    plan : FitPlan
        The settings of the fit.
    moments : Moments
        Those of the data.
    target, weight : ndarray
        The target, encoded as signs, and the weights of the samples.
    """
    if not isinstance(plan.loss, Hinge) or plan.recipe.in_parts or plan.is_exact or target.ndim != 2:
        return False
    shares = (np.average(target, axis=0, weights=weight) + 1.0) / 2.0
    n_classes, n_rows = max(2, len(shares)), len(target)
    off = float(np.abs(shares * n_classes - 1.0).max())
    is_wide = int(np.count_nonzero(moments.count)) > n_rows
    if is_wide and len(shares) > 1 and abs(float(shares.sum()) - 1.0) < _ROUNDING:
        # beside that of a count
        return off <= _BALANCED + 2.0 * math.sqrt((n_classes - 1) / n_rows)
    return not plan.loss_has_scale and off <= _BALANCED


def _adapter_units(plan: FitPlan, state: FitState, layers: Sequence[FirstLayer]) -> dict[str, float]:
    """Return the units of the rates of adapters, those of first layers on standardised inputs."""
    sizes = {first.weight: state.moments[first.feature].size() for first in layers}
    shapes = {name: array.shape for (name, kind), array in state.tensors.items() if kind == WEIGHT}
    units: dict[str, float] = {}
    for adapter in plan.learner.adapters:
        units |= adapter.rate_units(shapes, sizes.get(adapter.down, 1.0))
    return units


def _target_scales(plan: FitPlan, state: FitState, of_others: float = _UNIT_OF_OTHERS) -> np.ndarray:
    """Return the unit of each raw prediction: the deviation of its target; 1 for logarithms."""
    if not plan.has_target_units:
        return np.ones(plan.n_outputs, plan.learner.dtype)
    deviation = state.moments[TARGET].deviation(plan.learner.dtype)
    factors = plan.loss.score_factors
    if len(factors) == 1 and factors[0]:
        return deviation
    has_unit = np.repeat(np.array(factors), plan.n_outputs // len(factors)) != 0
    return np.where(has_unit, deviation, of_others)


def fresh_state(
    weights: Mapping[str, np.ndarray], eta: float, seed: int | np.random.RandomState | None
) -> FitState:
    """Return the state before the first update.

    Parameters
    ----------
    weights : mapping of str to ndarray
        The weights, which are copied unless nobody can change them: training replaces its tensors.
    eta : float
        The learning rate.
    seed : int, RandomState or None
        Seeds a new generator; a generator loses at most one draw.
    """
    tensors = {
        (name, WEIGHT): array.copy() if array.flags.writeable else array for name, array in weights.items()
    }
    return FitState(tensors, eta=eta, random_state=make_generator(seed))
