"""Files of adapters, read back by onnxruntime."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

from onnxsgd.exceptions import MissingRuntimeError
from onnxsgd.runtime.adapter_file import write_adapter

ARRAY = np.arange(6).reshape(2, 3)


@pytest.mark.skipif(not hasattr(onnxruntime, "AdapterFormat"), reason="needs onnxruntime 1.20 or later")
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_a_file_holds_values_types_and_names(tmp_path, dtype):
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    path = tmp_path / "file.onnx_adapter"
    write_adapter(path, {"a": (ARRAY.T.astype(dtype), kind), "b": (ARRAY.astype(dtype), kind)})
    held = onnxruntime.AdapterFormat.read_adapter(str(path)).get_parameters()
    assert sorted(held) == ["a", "b"]
    assert held["a"].shape() == [3, 2]
    assert held["a"].element_type() == kind
    if dtype is not ml_dtypes.bfloat16:
        np.testing.assert_array_equal(held["a"].numpy(), ARRAY.T)


def test_an_older_runtime_is_named(tmp_path, monkeypatch):
    monkeypatch.delattr(onnxruntime, "AdapterFormat", raising=False)
    with pytest.raises(MissingRuntimeError, match=f"1.20 or later, and {onnxruntime.__version__} is inst"):
        write_adapter(tmp_path / "file", {})
    assert not (tmp_path / "file").exists()
