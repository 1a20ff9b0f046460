"""scikit-learn's own checks, on several configurations of both estimators."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from sklearn.base import clone
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import has_fit_parameter

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

# Checks may print their arguments, and trigger every warning that an estimator may issue.
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning"),
]

ALL_IN_ONE = 10_000  # samples: no batch of the checks is as large, so training is full-batch


class TableRegressor(OnnxSGDRegressor):
    """Every check gives it `y` as a table."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = False
        return tags


CONFIGURATIONS = {
    "default regressor": OnnxSGDRegressor(),
    "default classifier": OnnxSGDClassifier(),
    "classifier, larger steps": OnnxSGDClassifier(learning_rate="invscaling", eta0=0.1),
    "regressor, Adam": OnnxSGDRegressor(learning_rate="invscaling", optimizer="adam", batch_size=ALL_IN_ONE),
    "classifier, Adam": OnnxSGDClassifier(
        optimizer="adam", eta0=0.1, learning_rate="constant", batch_size=ALL_IN_ONE
    ),
    "regressor, an MLP inside": OnnxSGDRegressor(
        MLPRegressor(hidden_layer_sizes=(5,), max_iter=20, random_state=0),
        learning_rate="invscaling", optimizer="adam", eta0=0.05, max_iter=100, batch_size=ALL_IN_ONE,
    ),
    "classifier, an MLP inside": OnnxSGDClassifier(
        MLPClassifier(hidden_layer_sizes=(5,), max_iter=20, random_state=0),
        learning_rate="invscaling", eta0=1.0, max_iter=50, batch_size=ALL_IN_ONE,
    ),
    "regressor, early stopping": OnnxSGDRegressor(
        learning_rate="invscaling", optimizer="adam", eta0=0.1, early_stopping=True, validation_fraction=0.3
    ),
    "classifier, early stopping": OnnxSGDClassifier(
        learning_rate="invscaling", eta0=0.1, early_stopping=True, validation_fraction=0.3
    ),
    "regressor, y as a table": TableRegressor(
        learning_rate="invscaling", optimizer="adam", batch_size=ALL_IN_ONE
    ),
}  # fmt: skip

_SPLIT = "validation data are drawn from the rows, and rows that are repeated are drawn in another way"
_PADDED = (
    "batches of weighted rows are other batches than those of repeated rows; scikit-learn lists these two "
    "checks for its own SGD estimators too"
)
_ALIKE = (
    "the validation score counts the samples of all classes alike, as that of SGDClassifier does, so that "
    "the best weights are not those for the only class that counts"
)
_EARLY = dict.fromkeys(
    (
        "check_sample_weight_equivalence_on_dense_data",
        "check_sample_weight_equivalence_on_sparse_data",
    ),
    _SPLIT,
)
_UNWEIGHTED = (
    "the perceptrons of scikit-learn before 1.7 take no weights, so that the model inside ignores them"
)
_INSIDE = {} if has_fit_parameter(MLPClassifier(), "sample_weight") else dict.fromkeys(_EARLY, _UNWEIGHTED)
EXPECTED_FAILURES = {
    "regressor, an MLP inside": _INSIDE,
    "classifier, an MLP inside": _INSIDE,
    "default regressor": dict.fromkeys(_EARLY, _PADDED),
    "default classifier": dict.fromkeys(_EARLY, _PADDED),
    "regressor, early stopping": _EARLY,
    "classifier, early stopping": {**_EARLY, "check_class_weight_classifiers": _ALIKE},
}

#: Checks that compare two trainings to 1e-7 relative; float32 has a rounding error of 6e-8 in each operation.
FLOAT32_CHECKS = frozenset(_EARLY)


def configuration_of(estimator):
    (name,) = [name for name, known in CONFIGURATIONS.items() if repr(known) == repr(estimator)]
    return name


def expected_failures(estimator):
    return EXPECTED_FAILURES.get(configuration_of(estimator), {})


@parametrize_with_checks(list(CONFIGURATIONS.values()), expected_failed_checks=expected_failures)
def test_scikit_learn_checks(estimator, check, monkeypatch):
    if getattr(check, "func", check).__name__ in FLOAT32_CHECKS:
        compare = partial(estimator_checks.assert_allclose_dense_sparse, rtol=1e-5)
        monkeypatch.setattr(
            estimator_checks,
            "assert_allclose_dense_sparse",
            # a score near 0 is a difference of terms as large as the largest score
            lambda x, y, err_msg="": compare(x, y, atol=1e-6 * max(1, abs(y).max()), err_msg=err_msg),
        )
        # rounding decides the epoch in which the loss falls by less than tol: one training may be longer
        estimator = clone(estimator).set_params(tol=None, max_iter=100)
    check(estimator)


def test_the_check_that_waits_for_an_environment_variable():
    """`check_array_api_input` is skipped above unless scipy is imported with SCIPY_ARRAY_API set."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    command += ["-k", "check_array_api_input", "--rootdir", str(Path(__file__).parents[2])]
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    # Versions of scikit-learn before 1.8 have this check for their own estimators only.
    assert done.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED), done.stdout
    assert "skipped" not in done.stdout
