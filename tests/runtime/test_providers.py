"""Names of execution providers, their options and their device, without any of them installed."""

import pytest

from onnxsgd.exceptions import ParameterError
from onnxsgd.runtime.providers import CPU, CUDA, Placement, resolve_placement

BOTH = (CUDA, CPU)


@pytest.mark.parametrize(
    ("providers", "options", "index", "expected"),
    [
        (None, None, 0, Placement([CPU], [{}], "cpu", 0)),
        ("cpu", None, 3, Placement([CPU], [{}], "cpu", 0)),
        ("cuda", None, 0, Placement([CUDA], [{"device_id": "0"}], "cuda", 0)),
        ("gpu", None, 2, Placement([CUDA], [{"device_id": "2"}], "cuda", 2)),
        ("cuda:1", None, 0, Placement([CUDA], [{"device_id": "1"}], "cuda", 1)),
        ([CUDA, CPU], None, 1, Placement([CUDA, CPU], [{"device_id": "1"}, {}], "cuda", 1)),
        ([CPU, CPU, CPU], None, 0, Placement([CPU], [{}], "cpu", 0)),
        (
            [CUDA, CPU],
            [{"use_tf32": "0"}, {}],
            0,
            Placement([CUDA, CPU], [{"device_id": "0", "use_tf32": "0"}, {}], "cuda", 0),
        ),
        ([(CUDA, {"device_id": "3"})], None, 0, Placement([CUDA], [{"device_id": "3"}], "cuda", 3)),
    ],
)
def test_names_options_and_index_are_resolved(providers, options, index, expected):
    assert resolve_placement(providers, options, index, BOTH) == expected


def test_a_gpu_is_never_replaced_by_the_cpu():
    with pytest.raises(ParameterError, match=rf"'{CUDA}' is not available.*\['{CPU}'\]"):
        resolve_placement("cuda", None, 0, [CPU])
