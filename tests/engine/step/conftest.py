"""A multilayer perceptron, its weights and its data."""

import numpy as np
import pytest
from engine.step.mlp_step import MLP, SHAPES, read_network

from onnxsgd.engine.step.batches import Batches


@pytest.fixture
def weights():
    rng = np.random.RandomState(0)
    return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in SHAPES.items()}


@pytest.fixture
def model(weights):
    return read_network(MLP, weights)


@pytest.fixture
def data():
    rng = np.random.RandomState(1)
    X = rng.normal(size=(53, 5)).astype(np.float32)
    y = np.eye(3, dtype=np.float32)[rng.randint(0, 3, 53)]
    return Batches({"X": X}, y, rng.uniform(0.5, 2, 53), 8, True)
