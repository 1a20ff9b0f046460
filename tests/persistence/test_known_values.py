"""Texts and numbers of the parameter `model`."""

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from onnxsgd.persistence.known_values import KnownValues

X = pd.DataFrame({"size": [1.0, 2.5, 5.5], "place": ["Bern", "Genf", "Bern"]})
PIPELINE = make_pipeline(
    make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["place"])), LinearRegression()
)


def test_they_are_those_of_its_arrays():
    known = KnownValues.of(PIPELINE.fit(X, [0.0, 1.0, 2.0]))
    assert {b"Bern", b"Genf", b"size", b"place"} == set(known.texts)
    assert np.isin(np.array([3.0], np.float32).view(np.uint32), known.words).all()
    assert known.nbytes >= PIPELINE[-1].coef_.nbytes
    # in an order of their own
    attributes = vars(PIPELINE[-1])
    for name in list(attributes)[::-1]:
        attributes[name] = attributes.pop(name)
    assert KnownValues.of(PIPELINE).digest() == known.digest()


def test_other_models_have_none():
    for model in (None, "model.onnx", b"", StandardScaler()):
        assert KnownValues.of(model).digest() == KnownValues().digest()
    assert KnownValues.of([np.ones(3)]).words.size == 0


def test_the_digest_follows_numbers_and_texts():
    digests = {
        KnownValues(arrays).digest()
        for arrays in (
            (),
            [np.ones(2)],
            [np.zeros(2)],
            [np.array(["a", "b"])],
            [np.array(["a", "c"], object)],
            [np.array(["a\0b"], object)],
            # the bytes of np.ones(2)
            [np.ones(2).view(np.int64)],
            [np.ones(2).view(np.float32)],
        )
    }
    assert len(digests) == 8


def test_large_weights_are_none():
    """Their words take 24 bytes a number, and sorting them takes seconds."""
    model = StandardScaler()
    model.a, model.b, model.c = np.zeros(1 << 20), np.ones(3), np.array(["a"], object)
    assert KnownValues.of(model).arrays == [model.a, model.c]
    model.a = np.zeros((1 << 20) - 2)
    assert KnownValues.of(model).arrays == [model.a, model.c]
    model.a = np.zeros((1 << 20) + 1)
    assert KnownValues.of(model).arrays == [model.b, model.c]
