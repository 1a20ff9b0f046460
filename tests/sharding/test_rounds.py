"""The outer step, and sums of results in an order that their number decides."""

import numpy as np
import pytest
from serial_executor import SerialExecutor

from onnxsgd import OnnxSGDClassifier
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.optimizers import SGD
from onnxsgd.sharding.changes import Change, add_changes
from onnxsgd.sharding.executor import reduced
from onnxsgd.sharding.rounds import OuterStep

KEY, VELOCITY, SLOT = ("w", WEIGHT), ("w", "outer_velocity"), ("w", "slot")


def test_the_outer_step_is_nesterovs():
    """Source: torch's SGD with ``nesterov=True``, whose gradient is minus the change."""
    torch = pytest.importorskip("torch")
    weight = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.7, momentum=0.9, nesterov=True)
    step = OuterStep(0.7, 0.9)
    tensors = step.places({KEY: np.array([1.0, -2.0])}, ["w"])
    tensors[VELOCITY] = np.zeros(2)
    for number in range(5):
        change = np.array([0.5, -0.25]) / (1 + number)
        weight.grad = torch.from_numpy(-change)
        optimizer.step()
        tensors = step.after(tensors, {KEY: change})
        np.testing.assert_allclose(tensors[KEY], weight.detach().numpy(), rtol=1e-14)


def test_states_become_the_means_of_those_of_the_shards():
    tensors = OuterStep(0.7, 0.9).places({KEY: np.ones(2), SLOT: np.zeros(2)}, ["w"])
    after = OuterStep(0.7, 0.9).after(tensors, {KEY: np.ones(2), SLOT: np.full(2, 0.25)})
    np.testing.assert_allclose(after[SLOT], 0.25)


def test_the_outer_step_goes_as_far_as_the_updates_of_one_machine():
    auto = OnnxSGDClassifier()._check_parameters()
    named = OnnxSGDClassifier(learning_rate="constant")._check_parameters()
    assert OuterStep.of(auto, [1, 1, 1, 1], 8) == OuterStep.of(named, [5.0], 8) == OuterStep(1.0, 0.0)
    assert OuterStep.of(named, [2] * 8, 8) == OuterStep(0.7, pytest.approx(0.9))
    for weights, factor in (([1, 1], 2.0), ([3, 3, 3, 3], 4.0), ([1, 3], 1.6)):
        step = OuterStep.of(named, weights, 8)
        assert step.rate / (1 - step.momentum) == pytest.approx(factor)
    assert OuterStep().places({KEY: np.ones(1)}, ["w"]) == {KEY: np.ones(1)}


@pytest.mark.parametrize(
    ("optimizer", "updates"),
    [("sgd", 1.0), (SGD(0.5), 2.0), ("adam", 10.0), ("adamw", 10.0), ("rmsprop", 1.0), ("lion", 100.0)],
)
def test_a_momentum_that_spans_rounds_takes_no_second_one(optimizer, updates):
    recipe = OnnxSGDClassifier(learning_rate="constant", optimizer=optimizer)._check_parameters()
    assert recipe.optimizer.averaged_updates == pytest.approx(updates)
    for sync_every in (2, 5, 6, 50, 51):
        step = OuterStep.of(recipe, [1, 1, 1], sync_every)
        expected = OuterStep(3.0) if 2 * sync_every <= updates else OuterStep(0.7, 1 - 0.7 / 3)
        assert (step.rate, step.momentum) == pytest.approx((expected.rate, expected.momentum))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_sums_are_pairwise(count):
    executor = SerialExecutor()
    values = [f"{number}" for number in range(count)]
    handles = [executor.source(value) for value in values]
    (total,) = executor.results([reduced(executor, lambda a, b: f"({a}+{b})", handles)])
    expected = {1: "0", 2: "(0+1)", 3: "((0+1)+2)", 5: "(((0+1)+(2+3))+4)",
                8: "(((0+1)+(2+3))+((4+5)+(6+7)))"}  # fmt: skip
    assert total == expected[count]
    assert executor.n_tasks == count - 1


def test_changes_add_up():
    total = add_changes(Change({KEY: np.ones(2)}, 1.0, 2.0), Change({KEY: np.full(2, 3.0)}, 0.5, 1.0))
    assert (total.tensors[KEY].tolist(), total.loss, total.weight) == ([4.0, 4.0], 1.5, 3.0)
