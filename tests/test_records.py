"""Records: dataclasses that the type checker holds to be frozen, and that are quick to make."""

import shutil
from dataclasses import dataclass, field, fields, replace
from timeit import repeat

import pytest

from onnxsgd import _records
from onnxsgd._records import record


@record
class Point:
    x: float
    y: float = 0.0
    seen: list[int] = field(default_factory=list, init=False, repr=False)


@dataclass(frozen=True)
class FrozenPoint:
    x: float
    y: float = 0.0
    seen: list[int] = field(default_factory=list, init=False, repr=False)


def test_a_record_is_a_dataclass():
    point = Point(1.0)
    assert [entry.name for entry in fields(point)] == ["x", "y", "seen"]
    assert point == Point(1.0, 0.0)
    assert replace(point, y=2.0) == Point(1.0, 2.0)
    assert replace(point).seen is not point.seen
    with pytest.raises(TypeError, match="unhashable"):
        hash(point)


def test_a_record_is_made_in_less_time_than_a_frozen_dataclass():
    quick, frozen = (min(repeat(lambda kind=kind: kind(1.0), number=2000)) for kind in (Point, FrozenPoint))
    assert quick < 0.9 * frozen


@pytest.mark.slow
def test_the_type_checker_refuses_to_change_a_record(tmp_path):
    api = pytest.importorskip("mypy.api")
    # alone, without the package around it
    shutil.copy(_records.__file__, tmp_path / "records.py")
    changed = tmp_path / "changed.py"
    changed.write_text(
        "from records import record\n@record\nclass Point:\n    x: float\nPoint(1.0).x = 2.0\n"
    )
    told, _, _ = api.run([str(changed), str(tmp_path / "records.py")])
    assert 'Property "x" defined in "Point" is read-only' in told
