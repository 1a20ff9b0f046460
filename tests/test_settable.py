"""Parameters of losses, optimizers, schedules and penalties are search spaces of an estimator."""

import inspect
import pickle

import numpy as np
import onnx.parser
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, adapters, losses, optimizers, penalties, schedules
from onnxsgd._settable import Settable
from onnxsgd.exceptions import OnnxSGDError, ParameterError, ParameterTypeError

PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (adapters, losses, optimizers, penalties, schedules)
    for name in module.__all__
    if inspect.isclass(getattr(module, name))
    and issubclass(getattr(module, name), Settable)
    and not inspect.isabstract(getattr(module, name))
}
#: A loss as a graph: the square of the residual.
GRAPH = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 18]>
g (float[N, C] y_true, float[N, C] raw_prediction) => (float[N, C] loss) {
  residual = Sub(raw_prediction, y_true)
  loss = Mul(residual, residual)
}
""").SerializeToString()
ARGUMENTS = {
    "eta0": 0.1, "power_t": 0.25, "alpha": 1e-3, "schedule": "cosine", "model": GRAPH,
    "function": np.subtract,
}  # fmt: skip
X, Y = load_diabetes(return_X_y=True)


def make(cls):
    needed = inspect.signature(cls).parameters.values()
    return cls(**{p.name: ARGUMENTS[p.name] for p in needed if p.default is inspect.Parameter.empty})


@pytest.mark.parametrize("name", PUBLIC)
def test_an_object_is_its_parameters(name):
    thing = make(PUBLIC[name])
    assert list(thing.get_params()) == list(inspect.signature(PUBLIC[name]).parameters)
    assert PUBLIC[name](**thing.get_params()) == thing
    copy = clone(thing)
    assert copy == thing
    assert copy is not thing


def test_a_search_over_parameters_of_objects():
    learner = OnnxSGDRegressor(
        loss=losses.Huber(), optimizer=optimizers.SGD(), learning_rate=schedules.Constant(0.1),
        max_iter=3, tol=None, random_state=0,
    )  # fmt: skip
    assert {"loss__epsilon", "optimizer__momentum", "learning_rate__eta0"} <= set(learner.get_params())
    grid = {"loss__epsilon": [0.01, 100.0], "optimizer__momentum": [0.0, 0.9], "learning_rate__eta0": [0.3]}
    search = GridSearchCV(learner, grid, cv=2).fit(X, Y)
    # a small epsilon bounds the steps: in 3 epochs the predictions stay far from targets of 150
    assert search.best_params_["loss__epsilon"] == 100.0
    assert search.best_estimator_.loss == losses.Huber(100.0)
    assert learner.loss == losses.Huber()


def test_a_search_over_the_strength_of_a_penalty():
    learner = OnnxSGDRegressor(penalty=penalties.Penalty(l2=0.1), random_state=0)
    search = GridSearchCV(learner, {"penalty__l2": [0.001, 1.0]}, cv=2).fit(X, Y)
    assert search.best_estimator_.penalty == penalties.Penalty(l2=0.001)
    assert clone(search.best_estimator_).penalty == penalties.Penalty(l2=0.001)
    assert learner.penalty == penalties.Penalty(l2=0.1)


def test_a_changed_parameter_changes_the_compiled_step():
    settings = {"max_iter": 2, "tol": None, "random_state": 0}
    learner = OnnxSGDRegressor(loss=losses.Huber(0.1), **settings).fit(X, Y)
    learner.set_params(loss__epsilon=30.0).fit(X, Y)
    fresh = OnnxSGDRegressor(loss=losses.Huber(30.0), **settings).fit(X, Y)
    np.testing.assert_array_equal(learner.coef_, fresh.coef_)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"epsilon": -1.0}, r"epsilon=-1.0 is not accepted"),
        ({"epsilon": 1.0, "delta": 2.0}, r"\['delta'\] are no parameters of Huber: it has \['epsilon'\]"),
    ],
)
def test_refused_parameters_change_nothing(params, message):
    loss = losses.Huber(0.5)
    with pytest.raises(ParameterError, match=message):
        loss.set_params(**params)
    assert loss == losses.Huber(0.5)


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite")
def test_a_search_goes_on_after_a_value_that_is_refused():
    learner = OnnxSGDRegressor(loss=losses.Huber(), random_state=0)
    grid = {"loss__epsilon": [-1.0, "wide", 100.0]}
    with pytest.warns(FitFailedWarning, match="epsilon=-1.0 is not accepted"):
        search = GridSearchCV(learner, grid, cv=2).fit(X, Y)
    assert search.best_params_ == {"loss__epsilon": 100.0}
    assert np.isnan(search.cv_results_["mean_test_score"][:2]).all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fit_refuses_what_set_params_has_set():
    """Until then it is there as it was given, for `get_params`, `clone` and another change."""
    learner = OnnxSGDRegressor(loss=losses.Huber(0.5), random_state=0)
    learner.set_params(loss__epsilon=-1.0, alpha=0.5)
    assert learner.alpha == 0.5
    assert learner.get_params()["loss__epsilon"] == -1.0
    assert "Huber(epsilon=0.5) with {'epsilon': -1.0}" in repr(learner.loss)
    for one in (learner, clone(learner), pickle.loads(pickle.dumps(learner))):
        with pytest.raises(ParameterError, match=r"epsilon=-1.0 is not accepted: .* > 0"):
            one.fit(X, Y)
        with pytest.raises(ParameterError, match=r"epsilon=-1.0 is not accepted"):
            one.partial_fit(X, Y)
    assert learner.set_params(loss__epsilon=2.0).loss == losses.Huber(2.0)
    assert learner.fit(X, Y).loss == losses.Huber(2.0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_fitted_model_predicts_as_before_after_a_value_that_is_refused():
    """The link of the loss too: without it predictions are logarithms."""
    learner = OnnxSGDRegressor(loss=losses.Tweedie(1.5), random_state=0).fit(X, Y)
    before = learner.predict(X)
    assert (before > 20.0).all()
    np.testing.assert_array_equal(learner.set_params(loss__power=-3.0).predict(X), before)
    classifier = OnnxSGDClassifier(LogisticRegression().fit(X, Y > 140), loss=losses.Focal())
    before = classifier.predict_proba(X)
    np.testing.assert_array_equal(classifier.set_params(loss__gamma=-1.0).predict_proba(X), before)


def test_another_parameter_takes_the_place_of_one_that_is_refused():
    learner = OnnxSGDRegressor(learning_rate=schedules.WarmUp(schedules.Step(0.3), 5))
    learner.set_params(learning_rate__schedule__factor=-1.0, learning_rate__n_updates=7)
    assert learner.get_params()["learning_rate__schedule__factor"] == -1.0
    with pytest.raises(ParameterError, match="factor=-1.0"):
        learner.fit(X, Y)
    learner.set_params(learning_rate="constant")
    assert learner.learning_rate == "constant"


def test_names_that_a_parameter_lacks_are_refused_at_once():
    learner = OnnxSGDRegressor(loss=losses.Huber(0.5))
    with pytest.raises(ParameterError, match=r"\['delta'\] are no parameters of Huber"):
        learner.set_params(loss__delta=1.0)
    with pytest.raises(ValueError, match="Invalid parameter 'los'"):
        learner.set_params(los__epsilon=1.0)


def test_parameters_of_parameters():
    """Names behind two underscores reach into a schedule inside another one, in place."""
    inner = schedules.Cosine(0.1)
    rate = schedules.WarmUp(inner, 5)
    assert list(rate.get_params(deep=False)) == ["schedule", "n_updates", "start_factor"]
    assert rate.get_params()["schedule__eta0"] == 0.1
    assert rate.set_params(schedule__eta0=0.2, n_updates=7) is rate
    assert (inner.eta0, rate.n_updates) == (0.2, 7)
    assert rate.schedule is inner
    rate.set_params(schedule=schedules.Step(0.3), schedule__factor=0.5)
    assert rate.schedule == schedules.Step(0.3, 0.5)
    learner = OnnxSGDRegressor(learning_rate=schedules.ByEpoch(rate))
    learner.set_params(learning_rate__schedule__schedule__factor=0.25)
    assert rate.schedule.factor == 0.25
    copy = clone(rate)
    assert copy == rate
    assert copy.schedule is not rate.schedule


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_updates": 9, "schedule__eta0": -1.0}, "eta0=-1.0 is not accepted"),
        ({"n_updates": 0, "schedule__eta0": 1.0}, "n_updates=0 is not accepted"),
        ({"schedule__power": 2.0}, r"\['power'\] are no parameters of Cosine"),
        ({"inner__eta0": 2.0}, r"\['inner'\] are no parameters of WarmUp"),
        ({"n_updates__eta0": 2.0}, r"\['eta0'\] are no parameters of n_updates=5: it has none"),
    ],
)
def test_refused_parameters_of_parameters_change_nothing(params, message):
    rate = schedules.WarmUp(schedules.Cosine(0.1), 5)
    with pytest.raises(ParameterError, match=message):
        rate.set_params(**params)
    assert rate == schedules.WarmUp(schedules.Cosine(0.1), 5)


def test_objects_of_users_have_parameters_too():
    class Scaled(losses.Loss):
        def __init__(self, factor=2.0):
            self.factor = factor

        def value(self, op, y_true, raw_prediction):
            return op.Mul(op.Abs(op.Sub(raw_prediction, y_true)), self.factor)

    class Plain(losses.Loss):
        def value(self, op, y_true, raw_prediction):
            return op.Abs(op.Sub(raw_prediction, y_true))

    assert Scaled(3.0).get_params() == {"factor": 3.0}
    assert OnnxSGDRegressor(loss=Scaled()).set_params(loss__factor=5.0).loss.factor == 5.0
    assert Plain().get_params() == {}
    with pytest.raises(ParameterError, match="it has none"):
        Plain().set_params(factor=1.0)


#: Values that are no number, none in any range, or none that a C type holds.
ODD = (
    "x", np.nan, np.inf, -1, -1.0, None, [1], {}, np.array([1.0, 2.0]), np.array("q"), object(), 1j, b"x", (),
)  # fmt: skip
PARAMETERS = [
    (name, parameter) for name in PUBLIC for parameter in inspect.signature(PUBLIC[name]).parameters
]


def _said_of(cls, values):
    """Return the message of the refusal; None: the values are accepted."""
    try:
        cls(**values)
    except OnnxSGDError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_odd_values_are_refused_in_a_sentence_that_names_them(name, parameter):
    cls = PUBLIC[name]
    needed = make(cls).get_params(deep=False)
    for value in (*ODD, 10**400):
        said = _said_of(cls, {**needed, parameter: value})
        assert said is None or (parameter in said and len(said) < 1000), (value, said)


#: Parameters of BlockAdam that accept None.
_OPTIONAL = ("beta_1", "rest", "square_rest", "inertia")


@pytest.mark.parametrize(
    ("cls", "parameter"),
    [
        (cls, parameter)
        for cls in (
            optimizers.Adam, optimizers.AdamW, optimizers.BlockAdam, optimizers.RMSProp, optimizers.Adagrad,
            optimizers.Lion, optimizers.SGD, adapters.LoRA, losses.Focal, schedules.Cosine, schedules.Step,
        )
        for parameter in inspect.signature(cls).parameters
        if parameter not in ("n_updates", "every", "targets")
    ],
)  # fmt: skip
def test_parameters_are_checked_when_they_are_given(cls, parameter):
    """Not in the depths of a fit. None of these values is legal, but for None where it chooses the value."""
    needed = make(cls).get_params(deep=False)
    others = () if parameter in _OPTIONAL and cls is optimizers.BlockAdam else (None,)
    for value in ("x", np.nan, [1], np.array([1.0, 2.0]), object(), 1j, *others):
        with pytest.raises(OnnxSGDError, match=rf"^{parameter}=.* is not accepted: it must be"):
            cls(**{**needed, parameter: value})


def test_the_rank_of_an_adapter_is_bounded_before_its_matrices_are_made():
    for rank in (0, 65_537, 10**30):
        with pytest.raises(ParameterError, match="rank=.* is not accepted: .* from 1 to"):
            adapters.LoRA(rank=rank)


def test_targets_of_an_adapter_that_are_read_once_are_refused():
    for targets in ((name for name in ["a"]), np.array("q")):
        with pytest.raises(ParameterTypeError, match="^targets="):
            adapters.LoRA(targets=targets)
