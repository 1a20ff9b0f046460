"""Parameters that change between calls are refused or honoured, none is ignored."""

import copy
import inspect
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, schedules
from onnxsgd.adapters import LoRA
from onnxsgd.estimators.between_calls import is_same
from onnxsgd.estimators.parameters import make_recipe
from onnxsgd.exceptions import ConvergenceError, ParameterError
from onnxsgd.losses import CrossEntropy
from onnxsgd.persistence.small_form import from_small_form

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = (X @ [1.0, -2.0, 0.5] + 0.3 * RNG.normal(size=40) > 0.2).astype(int)

#: Parameters of the graph, each with another value.
REFUSED = {
    "model": LogisticRegression(C=5.0).fit(X, Y),
    "output": "score",
    "head": "linear",
    "trainable": ["coef"],
    "adapter": LoRA(2),
    "classes": [1, 0],
    "dtype": "float64",
    "batch_norm": "frozen",
    "dropout": 0.0,
}
#: Other values of the parameters that act on the next call.
HONOURED = {
    "loss": "squared_error", "epsilon": 1.5, "penalty": "l1", "alpha": 0.5, "l1_ratio": 0.9,
    "optimizer": "adam", "momentum": 0.5, "nesterov": True, "learning_rate": "invscaling", "eta0": 0.2,
    "power_t": 0.9, "learning_rate_multipliers": {"coef": 0.1},
    "max_grad_norm": 0.01, "max_grad_value": 0.01, "batch_size": 3,
    "gradient_accumulation_steps": 2,
    "shuffle": False, "random_state": 1, "average": True,
    "class_weight": {0: 0.1, 1: 3.0},
}  # fmt: skip
#: Settings under which some of them act.
WITH = {
    "epsilon": {"loss": "epsilon_insensitive"},
    "l1_ratio": {"penalty": "elasticnet", "alpha": 0.1},
    "nesterov": {"momentum": 0.5},
    "power_t": {"learning_rate": "invscaling"},
    "random_state": {"batch_size": 3},
    "gradient_accumulation_steps": {"batch_size": 3},
}
#: Those of ``fit`` alone, and those that change no weight.
OTHERS = {
    "max_iter", "tol", "n_iter_no_change", "early_stopping", "validation_fraction", "warm_start", "engine",
    "steps_per_epoch",
    "checkpoint", "checkpoint_every", "device", "n_threads", "n_jobs", "verbose", "record_update_norms",
}  # fmt: skip


def classifier(**more):
    settings = {"learning_rate": "constant", "eta0": 0.05, "random_state": 0, "max_iter": 2, "tol": None}
    return OnnxSGDClassifier(**settings | more)


def test_each_parameter_has_a_decision():
    parameters = set(inspect.signature(OnnxSGDClassifier).parameters)
    assert sorted([*REFUSED, *HONOURED, *OTHERS]) == sorted(parameters)


@pytest.mark.parametrize("warm", [False, True], ids=["partial_fit", "warm fit"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_new_graph_is_refused_by_name(name, warm):
    model = classifier(warm_start=warm).fit(X, Y)
    before = model.coef_.copy()
    old = getattr(model, name)
    model.set_params(**{name: REFUSED[name]})
    with pytest.raises(ParameterError, match=f"^{name} of OnnxSGDClassifier changed from .* to .*warm_start"):
        model.fit(X, Y) if warm else model.partial_fit(X, Y)
    np.testing.assert_array_equal(model.coef_, before)
    model.set_params(**{name: old}).partial_fit(X, Y)
    if name not in ("output", "head", "adapter"):
        assert model.set_params(**{name: REFUSED[name]}, warm_start=False).fit(X, Y).t_ == 4


@pytest.mark.parametrize("name", HONOURED)
def test_other_parameters_act_on_the_next_call(name):
    settings = WITH.get(name, {})
    first = classifier(**settings).fit(X, Y)
    other = copy.deepcopy(first).set_params(**{name: HONOURED[name]})
    first.partial_fit(X, Y)
    other.partial_fit(X, Y)
    assert np.abs(other.decision_function(X) - first.decision_function(X)).max() > 1e-5


def test_a_new_seed_acts_from_the_next_call_on():
    """The same seed again continues its order; a new one orders the samples as in a first call."""
    one = classifier(batch_size=3).partial_fit(X, Y, classes=[0, 1])
    start = one.get_weights()
    one.set_params(random_state=7).partial_fit(X, Y)
    graph = classifier().fit(X, Y).set_weights(start).to_onnx()
    two = classifier(model=graph, batch_size=3, random_state=7).partial_fit(X, Y)
    np.testing.assert_allclose(one.coef_, two.coef_, rtol=1e-6)
    same = copy.deepcopy(one).set_params(random_state=7)
    np.testing.assert_array_equal(same.partial_fit(X, Y).coef_, one.partial_fit(X, Y).coef_)


@pytest.mark.parametrize("frozen", [False, True])
def test_parameters_of_the_model_inside_are_part_of_the_graph(frozen):
    inner = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    model = classifier(model=FrozenEstimator(inner) if frozen else inner).partial_fit(X, Y)
    model = pickle.loads(pickle.dumps(model)).partial_fit(X, Y)
    name = "model__estimator" if frozen else "model__logisticregression"
    parameters = {name: LogisticRegression(C=2.0)} if frozen else {f"{name}__C": 2.0}
    model.set_params(**parameters)
    with pytest.raises(
        ParameterError, match="changed" if frozen else "^C of LogisticRegression changed from 1.0"
    ):
        model.partial_fit(X, Y)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
@pytest.mark.parametrize("trainable", [["coef"], np.array(["coef"]), str.isalpha, None], ids=str)
def test_equal_parameters_are_the_same(copied, trainable):
    graph = OnnxSGDRegressor(max_iter=1, tol=None).fit(X, Y).to_onnx()
    model = copied(OnnxSGDRegressor(graph, trainable=trainable).partial_fit(X, Y))
    equal = trainable if callable(trainable) or trainable is None else [*trainable]
    again = type(graph).FromString(graph.SerializeToString())
    if not isinstance(trainable, np.ndarray):
        model.set_params(trainable=equal)
    n_updates = model.t_
    assert model.set_params(model=again).partial_fit(X, Y).t_ == 2 * n_updates


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (1.0, 1.0, True), (1, True, False), (float("nan"), float("nan"), True), (["a"], ["a"], True),
        (["a"], ["b"], False), (["a"], ["a", "b"], False), (("a",), ["a"], True), (None, "l", False),
        (np.arange(3), np.arange(3), True), (LogisticRegression(), LogisticRegression(), False),
    ],
)  # fmt: skip
def test_same_values(first, second, expected):
    assert is_same(first, second) is expected


@pytest.mark.parametrize("name", ["alpha", "loss", "batch_size", "max_grad_norm", "optimizer"])
def test_a_plan_that_is_kept_between_calls_follows_parameters(name):
    """The plan of updates is kept while all parameters stay the same objects."""
    model, fresh = classifier(), classifier()
    for each in (model, fresh):
        each.partial_fit(X, Y, classes=[0, 1, 2])
    kept = model._known_plan[1]
    model.partial_fit(X, Y)
    assert model._known_plan[1] is kept
    fresh._known_plan = None
    fresh.partial_fit(X, Y)
    for each in (model, fresh):
        each.set_params(**{name: HONOURED[name]})
    fresh._known_plan = None
    for each in (model, fresh):
        each.partial_fit(X, Y)
    assert model._known_plan[1] is not kept
    np.testing.assert_array_equal(model.coef_, fresh.coef_)


def test_no_plan_is_kept_of_parameters_that_change_in_place():
    weights = {0: 1.0, 1: 1.0, 2: 1.0}
    model = classifier(class_weight=weights).partial_fit(X, Y, classes=[0, 1, 2])
    assert model._known_plan is None
    penalty = {"coef": 0.5}
    model = classifier(penalty=penalty).partial_fit(X, Y, classes=[0, 1, 2])
    penalty["nothing"] = 1.0
    with pytest.raises(ParameterError, match="nothing"):
        model.partial_fit(X, Y)


def test_clones_share_their_settings_and_changed_parameters_have_their_own():
    """They are looked up by values."""
    model = classifier()
    kept = make_recipe(model)
    assert make_recipe(clone(model)) is kept
    assert make_recipe(clone(model).set_params(random_state=np.random.RandomState(3))) is kept
    for name, value in {"alpha": 0.5, "shuffle": False, "average": 1}.items():
        changed = make_recipe(clone(model).set_params(**{name: value}))
        assert changed is not kept
        assert changed != kept
    each, decayed = (make_recipe(clone(model).set_params(average=value)) for value in (1, 0.5))
    assert (each.average_from, each.average_decay) == (1, None)
    assert (decayed.average_from, decayed.average_decay) == (1, 0.5)


def test_settings_of_objects_are_not_shared():
    penalty = {"coef": 0.5}
    model = classifier(penalty=penalty)
    before = make_recipe(model).penalties.rows
    penalty["coef"] = 0.25
    assert make_recipe(model).penalties.rows != before


def test_a_new_fit_makes_a_new_plan():
    model = classifier().partial_fit(X, Y, classes=[0, 1, 2])
    model.fit(X[:, :2], Y).partial_fit(X[:, :2], Y)
    assert model.coef_.shape[1] == 2
    assert "_known_plan" not in from_small_form(model.__getstate__())


@pytest.mark.parametrize("class_weight", [{0: 0, 1: 0}, {7: 1.0}])
def test_a_refused_fit_keeps_the_one_before(class_weight):
    model = classifier().fit(X, Y)
    before = model.coef_, model.t_, model.n_iter_, model.loss_curve_
    with pytest.raises(ValueError, match="class"):
        model.set_params(class_weight=class_weight).fit(X, 1 - Y)
    np.testing.assert_array_equal(model.coef_, before[0])
    assert (model.t_, model.n_iter_, model.loss_curve_) == before[1:]
    fresh = classifier(class_weight=class_weight)
    with pytest.raises(ValueError, match="class"):
        fresh.fit(X, Y)
    assert not hasattr(fresh, "coef_")


def test_epochs_before_an_error_are_counted():
    model = OnnxSGDRegressor(learning_rate=lambda t: 0.01 if t < 5 else 1e38, batch_size=20, tol=None)
    with pytest.raises(ConvergenceError):
        model.fit(X, Y)
    assert model.n_iter_ == len(model.loss_curve_) == 2


def test_a_call_in_which_nothing_counts_changes_nothing():
    model = OnnxSGDClassifier(loss=CrossEntropy(ignore_index=-1), random_state=0)
    model.partial_fit(X, Y, classes=[0, 1])
    coef, t = model.coef_, model.t_
    model.partial_fit(X[:10], np.full(10, -1))
    np.testing.assert_array_equal(model.coef_, coef)
    assert (model.t_, len(model.loss_curve_)) == (t, 1)
    first = clone(model).partial_fit(X[:10], np.full(10, -1), classes=[0, 1])
    assert (first.t_, first.predict(X).shape) == (0, (40,))


def test_a_warm_up_that_is_over_begins_with_the_whole_rate():
    model = classifier(eta0=0.1).partial_fit(X, Y, classes=[0, 1])
    model.set_params(learning_rate=schedules.WarmUp("adaptive", n_updates=2), batch_size=20)
    model.partial_fit(X, Y).partial_fit(X, Y)
    np.testing.assert_allclose(model.learning_rates_, 0.1)


def test_a_model_that_contains_itself_since_the_first_call():
    model = FrozenEstimator(LogisticRegression().fit(X, Y))
    estimator = OnnxSGDClassifier(model).partial_fit(X, Y)
    model.estimator.C = model
    with pytest.raises(ParameterError, match="parameter of itself"):
        estimator.partial_fit(X, Y)


def test_estimators_inside_a_model_are_compared_at_each_call():
    """A call that found no change is remembered by the objects; a list may get other ones in place."""
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    model = OnnxSGDClassifier(pipeline, random_state=0)
    for _ in range(3):
        model.partial_fit(X, Y)
    assert model._seen_graph is not None
    own = pipeline.steps[1]
    pipeline.steps[1] = (own[0], LogisticRegression(C=2.0))
    with pytest.raises(ParameterError, match="since the first call"):
        model.partial_fit(X, Y)
    pipeline.steps[1] = own
    model.partial_fit(X, Y)
    own[1].C = 3.0
    with pytest.raises(ParameterError, match="C of LogisticRegression changed from 1.0 to 3.0"):
        model.partial_fit(X, Y)
    own[1].C = 1.0
    own[1].more = 1.0
    with pytest.raises(ParameterError, match="more of LogisticRegression"):
        model.partial_fit(X, Y)
    del own[1].more
    assert model.partial_fit(X, Y).t_ > 0
    assert "_seen_graph" not in from_small_form(model.__getstate__())


def _stream(learner, X, y, n_rows):
    for first in range(0, len(X) - 400, n_rows):
        rows = slice(first, first + n_rows)
        learner.partial_fit(X[rows], y[rows])
    return learner.score(X[-400:], y[-400:])


@pytest.mark.parametrize("n_rows", [10, 100])
@pytest.mark.parametrize(
    ("factor", "level", "unit", "mean"),
    [(1, 0, 1, 1e4), (1, 0, 1e-3, 0), (1, 1000, 1, 0), (100, 0, 1, 0)],
    ids=["level of the target", "its unit", "level of columns", "their unit"],
)
def test_a_given_linear_model_gets_the_unit_and_the_level_of_the_first_call(
    factor, level, unit, mean, n_rows
):
    """R2 was -25 to -6e6 after 1,000 rows; other models, and these after `fit`, have 0.99."""
    rng = np.random.default_rng(0)
    X, coef = rng.normal(size=(1700, 6)), rng.normal(size=6)
    y = X @ coef + 0.2 * rng.normal(size=1700)
    ridge = Ridge().fit(X[:300], y[:300])
    learner = OnnxSGDRegressor(ridge, random_state=0)
    assert _stream(learner, X[300:] * factor + level, unit * y[300:] + mean, n_rows) > 0.97
    labels = np.digitize(y, [-1.5, 1.5])
    logistic = LogisticRegression().fit(X[:300], labels[:300])
    learner = OnnxSGDClassifier(logistic, random_state=0)
    assert _stream(learner, X[300:] * factor + level, labels[300:], n_rows) > 0.8


@pytest.mark.parametrize("n_rows", [10, 40])
def test_a_first_call_of_similar_rows_keeps_a_given_linear_model(n_rows):
    """Targets that are nearly equal, and labels of one class, are no other level or unit."""
    rng = np.random.default_rng(0)
    X, coef = rng.normal(size=(22_000, 6)), rng.normal(size=6)
    y = X @ coef + 0.2 * rng.normal(size=22_000)
    ridge = Ridge().fit(X[:300], y[:300])
    for level in (0.0, 1.0):
        near = 300 + np.argsort(np.abs(y[300:20_000] - level))[:n_rows]
        learner = OnnxSGDRegressor(ridge, random_state=0).partial_fit(X[near], y[near])
        assert learner.score(X[20_000:], y[20_000:]) > 0.95
    constant = OnnxSGDRegressor(ridge, random_state=0).partial_fit(X[:n_rows], np.ones(n_rows))
    assert constant.score(X[20_000:], y[20_000:]) > 0.5
    labels = np.digitize(y, [-1.5, 1.5])
    logistic = LogisticRegression().fit(X[:300], labels[:300])
    first = 300 + np.flatnonzero(labels[300:] == 2)[:n_rows]
    learner = OnnxSGDClassifier(logistic, random_state=0).partial_fit(X[first], labels[first])
    assert learner.score(X[20_000:], labels[20_000:]) > 0.9


@pytest.mark.parametrize("n_rows", [10, 100])
def test_each_output_of_a_given_linear_model_has_its_own_unit_and_level(n_rows):
    rng = np.random.default_rng(0)
    X, coef = rng.normal(size=(1700, 6)), rng.normal(size=(6, 3))
    y = X @ coef + 0.2 * rng.normal(size=(1700, 3))
    ridge = Ridge().fit(X[:300], y[:300])
    other, first = y * [1.0, 1e-3, 1.0] + [0.0, 0.0, 300.0], slice(300, 300 + n_rows)
    learner = OnnxSGDRegressor(ridge, random_state=0).partial_fit(X[first], other[first])
    scores = r2_score(other[1000:], learner.predict(X[1000:]), multioutput="raw_values")
    assert scores.min() > 0.9
