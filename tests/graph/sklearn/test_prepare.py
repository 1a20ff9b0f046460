"""Estimators are adapted in a copy before their conversion."""

import numpy as np
import pytest
from sklearn.ensemble import VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn_cases import CASES as SKLEARN_CASES

from onnxsgd.graph.sklearn.convert import convert_estimator
from onnxsgd.graph.sklearn.prepare import _ADAPTATIONS as ADAPTATIONS


def test_the_estimator_is_not_changed():
    """Conversion works on a copy: the user's VotingClassifier keeps its parameters and its members."""

    X, y = np.eye(6), np.array([0, 1, 2, 0, 1, 2])
    member = FrozenEstimator(LogisticRegression().fit(X, y))
    voting = VotingClassifier([("a", member)], voting="soft").fit(X, y)
    before, members = voting.get_params(), list(voting.estimators_)
    convert_estimator(voting, X)
    assert voting.get_params() == before
    assert voting.estimators_ == members


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of estimators that scikit-learn will drop
def test_every_adaptation_has_a_case():
    """Estimators that are changed before their conversion are among those converted, alone or in others."""
    parts = {type(part) for case in SKLEARN_CASES for part in parts_of(case.make())}
    assert set(ADAPTATIONS) <= parts


def parts_of(estimator):
    """Yield an estimator and those among its parameters."""
    yield estimator
    for value in estimator.get_params().values():
        if hasattr(value, "get_params") and not isinstance(value, type):
            yield value
