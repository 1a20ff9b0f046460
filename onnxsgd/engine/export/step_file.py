"""The training step as files: a standard graph, a manifest that describes its inputs, and initial values.

A reader needs an ONNX runtime and nothing else. A run of the graph is one update.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxsgd._files import path_of, write_whole
from onnxsgd._version import __version__
from onnxsgd.engine.export.manifest import (
    Training,
    describe_data,
    describe_numbers,
    describe_penalties,
    describe_tensors,
)
from onnxsgd.engine.step.step_spec import StepSpec
from onnxsgd.engine.step.training_step import CompiledStep
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.exceptions import ParameterError, UnsupportedError

__all__ = ["FORMAT_VERSION", "write_training_step"]

#: The version of the manifest; a reader refuses unknown versions.
FORMAT_VERSION = 1

#: Domains of operators that every runtime has.
_STANDARD = frozenset({"", "ai.onnx.ml"})

#: Alignment in bytes of each value in the file of values, so that a reader can use them in place.
_ALIGNMENT = 64


def write_training_step(
    path: str | os.PathLike[str], step: CompiledStep, spec: StepSpec, training: Training
) -> Path:
    """Write a training step and return the path of its manifest.

    Parameters
    ----------
    path : str or path-like
        The file of the graph, which ends in ``.onnx``. The manifest ends in ``.json`` instead, the values of
        weights and states in ``.bin``.
    step : CompiledStep
        The step, built without rows.
    spec : StepSpec
        Its specification.
    training : Training
        The state that training continues from.

    Raises
    ------
    ParameterError
        If `path` has another suffix, is empty, or holds a zero byte.
    ParameterTypeError
        If `path` is no str or path-like.
    OSError
        If a file cannot be written. Those of an earlier export stay.
    UnsupportedError
        If the graph holds operators that other runtimes do not have.
    """
    graph_file = path_of(path)
    if graph_file.suffix != ".onnx":
        raise ParameterError(f"path={os.fspath(path)!r} is not accepted: it must end in '.onnx'.")
    proto = onnx.load_from_string(step.model)
    _check_operators(proto)
    described = describe_tensors(proto)
    values, tensors = _lay_out(step, training.tensors, described)
    manifest = {
        "format": "onnxsgd training step",
        "format_version": FORMAT_VERSION,
        "producer": f"onnxsgd {__version__}",
        "model": graph_file.name,
        "opsets": {entry.domain: entry.version for entry in proto.opset_import},
        "values": {"file": graph_file.with_suffix(".bin").name, "byte_order": "little"},
        **describe_data(step, spec, training, described),
        "numbers": describe_numbers(step, spec, training, described),
        "tensors": tensors,
        "penalties": describe_penalties(training),
    }
    manifest_file = graph_file.with_suffix(".json")
    content = {
        graph_file: step.model,
        graph_file.with_suffix(".bin"): values,
        manifest_file: _as_json(manifest).encode(),
    }
    write_whole({file: partial(_write_bytes, held) for file, held in content.items()})
    return manifest_file


def _write_bytes(content: bytes, name: str) -> None:
    Path(name).write_bytes(content)


def _as_json(manifest: Mapping[str, object]) -> str:
    """Return a manifest with a line for each entry, and for each item of a list."""
    entries = []
    for name, value in manifest.items():
        lines = [
            json.dumps(item, allow_nan=False) for item in (value if isinstance(value, list) else [value])
        ]
        text = "[\n    " + ",\n    ".join(lines) + "\n  ]" if isinstance(value, list) else lines[0]
        entries.append(f"  {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _check_operators(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.domain not in _STANDARD:
            raise UnsupportedError(
                f"The training step holds the operator {node.domain}.{node.op_type}, which makes "
                f"{node.output[0]!r} and is not a standard one: other runtimes do not have it."
            )


def _lay_out(
    step: CompiledStep,
    values: Mapping[tuple[str, str], np.ndarray],
    described: Mapping[str, dict[str, Any]],
) -> tuple[bytes, list[dict[str, Any]]]:
    """Return the initial values of all weights and states, concatenated, and the place of each."""
    content, tensors = bytearray(), []
    for (weight, kind), (old, new) in step.tensors.items():
        value = values.get((weight, kind))
        if value is None:
            value = np.zeros(described[old]["shape"])
        content.extend(bytes(-len(content) % _ALIGNMENT))
        array = np.ascontiguousarray(value, np.dtype(described[old]["dtype"]).newbyteorder("<"))
        role = {"role": "weight", "name": weight}
        if kind != WEIGHT:
            role = {"role": "state", "kind": kind, "of": weight}
        place = {"offset": len(content), "bytes": array.nbytes}
        tensors.append({**role, "input": old, "output": new, **described[old], **place})
        content.extend(array.tobytes())
    return bytes(content), tensors
