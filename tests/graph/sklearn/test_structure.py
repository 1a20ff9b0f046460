"""Structures of estimators: equal for equal graphs, unknown for classes beside the table."""

import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd.graph.sklearn.structure import read_structure, with_arrays

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 3)), RNG.normal(size=30)


def test_numbers_and_settings_of_training_are_no_part_of_the_key():
    one = read_structure(make_pipeline(StandardScaler(), Ridge(1.0)).fit(X, Y))
    other = read_structure(make_pipeline(StandardScaler(), Ridge(9.0, tol=1e-6)).fit(X[:20], Y[:20]))
    assert one.key == other.key
    assert [array.shape for array in one.arrays] == [(3,), (3,), (3,), ()]


def test_shapes_types_labels_and_classes_are_part_of_the_key():
    y = (Y > 0).astype(int)
    models = [
        Ridge().fit(X, Y),
        Ridge().fit(X[:, :2], Y),
        Ridge().fit(X.astype(np.float32), Y),
        Ridge(fit_intercept=False).fit(X, Y),
        Ridge().fit(X, np.c_[Y, Y]),
        LogisticRegression().fit(X, y),
        LogisticRegression().fit(X, y + 1),
        LogisticRegression().fit(X, y.astype(str)),
        LogisticRegression(solver="liblinear").fit(X, y),
        make_pipeline(Ridge()).fit(X, Y),
    ]
    assert len({read_structure(model).key for model in models}) == len(models)


def test_other_classes_and_subclasses_are_unknown():
    class Own(Ridge):
        pass

    assert read_structure(Own().fit(X, Y)) is None
    assert read_structure(make_pipeline(PCA(2), Ridge()).fit(X, Y)) is None
    assert read_structure(make_pipeline("passthrough", Ridge()).fit(X, Y)) is not None
    ridge = Ridge().fit(X, Y)
    ridge.coef_ = [1.0, 2.0, object()]
    assert read_structure(ridge) is None


def test_other_arrays_give_an_estimator_of_the_same_structure_with_nothing_else():
    model = make_pipeline(StandardScaler(), Ridge()).fit(X, Y)
    known = read_structure(model)
    other = with_arrays(model, iter([array + 1 for array in known.arrays]))
    again = read_structure(other)
    assert again.key == known.key
    for array, moved in zip(known.arrays, again.arrays, strict=True):
        np.testing.assert_array_equal(moved, array + 1)
    assert "alpha" not in vars(other.steps[-1][1])
