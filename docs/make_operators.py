"""Write operators.rst: the gradients of onnx's backend node tests, by operator.

Run it from this folder: ``python make_operators.py``. ``tests/backend/judge.py`` makes the table it reads.
"""

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

TABLE = Path(__file__).parent.parent / "tests" / "backend" / "nodes.csv"

HEAD = """\
Operators
=========

The gradients of the node tests of onnx {version}, by the portable engine: each is compared with
differences in float64. Of {all} tests {right} have every gradient right, {wrong} have a wrong one, and
{not_real} have no real input or output. ``docs/make_operators.py`` makes this page.

.. list-table::
   :header-rows: 1
   :widths: 20 10 10 60

   * - operator
     - tests
     - right
     - the others
"""


def read() -> tuple[str, list[dict[str, str]]]:
    """Return the version of onnx, and the rows of the table."""
    with TABLE.open(newline="") as file:
        version = file.readline().strip().removeprefix("# onnx ")
        return version, list(csv.DictReader(file))


def lines(rows: list[dict[str, str]]) -> Iterator[str]:
    """Yield the rows of the page: one for each operator that has a test with real numbers."""
    groups = defaultdict(list)
    for row in rows:
        if row["status"] != "not real":
            groups[row["operator"]].append(row)
    for operator, tests in sorted(groups.items()):
        others = Counter(_reason(row) for row in tests if row["status"] != "right")
        right = len(tests) - others.total()
        yield f"   * - {operator}"
        yield f"     - {len(tests)}"
        yield f"     - {right}"
        yield f"     - {'; '.join(f'{reason} ({count})' for reason, count in others.items())}".rstrip()


def _reason(row: dict[str, str]) -> str:
    """Return the reason why a test is not right."""
    text = row["reason"].replace("*", r"\*").replace("`", "")
    return f"{row['status']}: {text}"


def page() -> str:
    """Return the page."""
    version, rows = read()
    counts = Counter(row["status"] for row in rows)
    numbers = {name.replace(" ", "_"): counts[name] for name in ("right", "wrong", "not real")}
    head = HEAD.format(version=version, all=len(rows), **numbers)
    return head + "\n".join(lines(rows)) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("operators.rst").write_text(page())
