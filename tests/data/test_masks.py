"""Truth values, few and many."""

import numpy as np
import pytest

from onnxsgd.data.masks import are_all, how_many, is_any


@pytest.mark.parametrize("shape", [(0,), (), (1,), (3, 4), (1 << 17,)])
@pytest.mark.parametrize("n_true", [0, 1, None])
def test_the_answers_are_those_of_numpy(shape, n_true):
    mask = np.zeros(shape, bool)
    mask.reshape(-1)[:n_true] = True
    for given in (mask, mask.T, np.broadcast_to(mask, (2, *shape)), mask.reshape(-1)[::2]):
        assert are_all(given) == given.all()
        assert is_any(given) == given.any()
        assert how_many(given) == np.count_nonzero(given)
