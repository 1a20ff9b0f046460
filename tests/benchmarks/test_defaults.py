"""The comparison of default settings runs, and judges by the stated rule."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def defaults(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import defaults

    return defaults


def test_rows_of_folds_and_of_tuned_models(defaults):
    rows = defaults.compare_all(["linear: 20 rows, regressor", "Ridge, linnerud, new"])
    assert [row.name for row in rows] == [
        "20 rows, regressor, raw", "20 rows, regressor, scaled", "Ridge, linnerud, new data",
    ]  # fmt: skip
    # on 20 rows of 10 columns Ridge reaches 0.709 on scaled data
    assert rows[1].second.mean == pytest.approx(0.709, abs=0.01)
    assert not any(row.ours.error for row in rows)
    assert rows[0].ratio > 0
    assert rows[2].ratio is None
    table = json.loads(defaults.to_json(rows))
    assert [row["holds"] for row in table] == [row.holds for row in rows]
    assert defaults.to_markdown(rows).count("\n| ") == 4
    assert defaults.to_rst(rows).count("   * - ") == 4
    assert "3 rows hold" in defaults.summary(rows)


def test_a_row_of_a_stream(defaults):
    (row,) = defaults.compare_all(["stream: stream, stationary"])
    # the optimal accuracy of these labels is about 0.96
    assert 0.9 < row.reference.mean < 1


def test_the_verdict_allows_one_spread_of_the_reference(defaults):
    reference = defaults.Score(0.9, 0.05, 1.0)
    assert defaults.Score(0.851, 0.0, 1.0).holds_against(reference)
    assert not defaults.Score(0.849, 0.2, 1.0).holds_against(reference)
    assert not defaults.Score(0.9, 0.0, 1.0, "ValueError: no").holds_against(reference)
    assert defaults.Score(0.896, 0.0, 1.0).holds_against(defaults.Score(0.9, 0.0, 1.0))


def test_a_contestant_that_raises_is_recorded(defaults):
    def fails(X, y):
        raise ValueError("refused")

    assert defaults._score(defaults.ROWS[0], fails).error == "ValueError: refused"
