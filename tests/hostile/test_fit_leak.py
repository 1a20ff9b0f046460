"""Fits of many structures keep no memory; .ci/long makes 10,000 of a hundred structures."""

import sys
from pathlib import Path

import numpy as np
import pytest

from onnxsgd import OnnxSGDClassifier

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
import fit_leak  # noqa: E402

sys.path.remove(str(FOLDER))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the memory is that of Linux"),
]


def test_memory_is_flat_after_the_first_rounds():
    """Forty rounds of ten structures: 12 kB kept by each fit would be 4 MB."""
    resident = [megabytes for _, megabytes in fit_leak.run(400, 10)]
    assert len(resident) == 40
    assert max(resident[8:]) - resident[8] < 4


def test_memory_that_is_kept_is_found(monkeypatch):
    kept, fit = [], OnnxSGDClassifier.fit

    def leaking(self, X, y):
        kept.append(np.ones(1 << 14))
        return fit(self, X, y)

    monkeypatch.setattr(OnnxSGDClassifier, "fit", leaking)
    resident = [megabytes for _, megabytes in fit_leak.run(200, 10)]
    assert max(resident[8:]) - resident[8] > 8
