"""The training step as files: a standard graph, a manifest that says what to feed it, and first values.

Whoever reads them needs a runtime for ONNX and nothing else. A run of the graph is one update.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxsgd._version import __version__
from onnxsgd.engine.formulas import Formula, read_formula, to_text
from onnxsgd.engine.step import CompiledStep, StepSpec, build_step
from onnxsgd.engine.update import AVERAGE_RATE, L1_TOTAL, WEIGHT
from onnxsgd.exceptions import ParameterError, UnsupportedError
from onnxsgd.losses import Loss
from onnxsgd.penalties import Penalty
from onnxsgd.schedules import Schedule

__all__ = ["FORMAT_VERSION", "Training", "write_training_step"]

#: The version of the manifest; a reader refuses the ones it does not know.
FORMAT_VERSION = 1

#: Domains of operators that every runtime has.
_STANDARD = frozenset({"", "ai.onnx.ml"})

#: What values in the file of values start at a multiple of, so that they can be used where they are.
_ALIGNMENT = 64


@dataclass(frozen=True)
class Training:
    """What a training step goes on from, beside its graph.

    Attributes
    ----------
    schedule : Schedule
        The learning rate.
    penalty : Penalty
        The strengths of the norms.
    average_from : int
        The update at which averaging starts; 0: never.
    classes : list or None
        The labels of a classifier.
    tensors : dict of ndarray
        Weights and their states, under (weight, kind of tensor); what is missing is zero.
    t : int
        Updates made.
    eta, l1_total : float
        The learning rate in force, and the l1 penalty that each weight could have received so far.
    """

    schedule: Schedule
    penalty: Penalty
    average_from: int
    classes: list[Any] | None
    tensors: Mapping[tuple[str, str], np.ndarray]
    t: int
    eta: float
    l1_total: float


def write_training_step(
    path: str | os.PathLike[str], model: ir.Model, spec: StepSpec, training: Training
) -> Path:
    """Write the training step of `model` and return the path of its manifest.

    Parameters
    ----------
    path : str or path-like
        The file of the graph, which ends in ``.onnx``. The manifest ends in ``.json`` instead, the values of
        weights and states in ``.bin``.
    model : ir.Model
        As :func:`onnxsgd.engine.step.build_step` takes it.
    spec : StepSpec
        The step.
    training : Training
        What it goes on from.

    Raises
    ------
    ParameterError
        If `path` has another suffix.
    UnsupportedError
        If the graph holds operators that other runtimes do not have.
    """
    graph_file = Path(path)
    if graph_file.suffix != ".onnx":
        raise ParameterError(f"path={os.fspath(path)!r} is not accepted: it must end in '.onnx'.")
    step = build_step(model, spec)
    proto = onnx.load_from_string(step.model)
    _check_operators(proto)
    described = _described(proto)
    values, tensors = _lay_out(step, training.tensors, described)
    manifest = {
        "format": "onnxsgd training step",
        "format_version": FORMAT_VERSION,
        "producer": f"onnxsgd {__version__}",
        "model": graph_file.name,
        "opsets": {entry.domain: entry.version for entry in proto.opset_import},
        "values": {"file": graph_file.with_suffix(".bin").name, "byte_order": "little"},
        **_describe_data(step, spec, training, described),
        "numbers": _describe_numbers(step, spec, training, described),
        "tensors": tensors,
        "penalty": _describe_penalty(spec, training.penalty),
    }
    graph_file.write_bytes(step.model)
    graph_file.with_suffix(".bin").write_bytes(values)
    manifest_file = graph_file.with_suffix(".json")
    manifest_file.write_text(_as_json(manifest), encoding="utf-8")
    return manifest_file


def _as_json(manifest: Mapping[str, Any]) -> str:
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


def _described(model: onnx.ModelProto) -> dict[str, dict[str, Any]]:
    """Return type and shape of each input and output; a size that is open is null."""
    described = {}
    for value in (*model.graph.input, *model.graph.output):
        tensor = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        shape = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
        described[value.name] = {"dtype": str(dtype), "shape": shape}
    return described


def _describe_data(
    step: CompiledStep, spec: StepSpec, training: Training, described: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Describe what comes from the data of a batch, and the loss."""
    normalised = "w" if spec.batch_size == 1 else "w / total"
    scaled = " * -eta" if spec.optimizer.takes_scaled_gradient else ""
    return {
        "batch_size": spec.batch_size,
        "short_batch": "fill it up with any rows whose w is 0",
        "features": [{"input": name, **described[name]} for name in step.features if name in described],
        "target": {
            "input": step.target,
            **described[step.target],
            **_describe_target(spec.loss, spec.n_outputs, training.classes),
        },
        "sample_weight": {
            "input": step.sample_weight,
            **described[step.sample_weight],
            "formula": normalised,
            "w": "what each sample counts: 1 unless samples have weights",
            "total": "the sum of w over the batch",
        },
        "gradient_weight": {
            "input": step.gradient_weight,
            **described[step.gradient_weight],
            "formula": f"sample_weight{scaled}",
        },
        "loss": {
            "output": step.loss,
            **described[step.loss],
            "loss": repr(spec.loss),
            "formula": "sum over the batch of sample_weight * loss, before the update",
        },
    }


def _describe_target(loss: Loss, n_outputs: int, classes: list[Any] | None) -> dict[str, Any]:
    if classes is None:
        return {"encoding": "the numbers to predict, a column for each"}
    low = 0 if loss.targets == "indicator" else -1
    where = "the second class" if n_outputs == 1 else "the class of the column"
    encoding = f"high where a sample is of {where}, low elsewhere"
    return {"encoding": encoding, "high": 1, "low": low, "classes": classes}


def _describe_numbers(
    step: CompiledStep, spec: StepSpec, training: Training, described: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Describe the numbers of an update, each by what comes before it in the list, and by what it was."""
    t, eta = Formula("t"), Formula("eta")
    l1, l2 = training.penalty.l1 or 0.0, training.penalty.l2 or 0.0
    formulas = {
        "t": to_text(t + 1),
        "eta": read_formula(training.schedule.rate, "t", "eta"),
        **_read_scalars(spec, l2),
        L1_TOTAL: to_text(Formula(L1_TOTAL) + eta * l1),
        AVERAGE_RATE: to_text(1.0 / np.maximum(1.0, t - training.average_from + 1.0)),
    }
    start: dict[str, float] = {"t": training.t, "eta": training.eta, L1_TOTAL: training.l1_total}
    numbers = []
    for name, formula in formulas.items():
        if name not in ("t", "eta", *step.scalars):
            continue
        number: dict[str, Any] = {"name": name, "formula": formula}
        if name in start:
            number["start"] = start[name]
        if name == "eta":
            number["schedule"] = repr(training.schedule)
        if name in step.scalars:
            number |= {"input": step.scalars[name], **described[step.scalars[name]]}
        numbers.append(number)
    return numbers


def _read_scalars(spec: StepSpec, l2: float) -> dict[str, str | None]:
    """Return the formula of each number of the optimizer, None where it has none."""

    def scalar(name: str) -> Any:
        return lambda t, eta: spec.optimizer.scalars(t, eta, l2)[name]

    names = spec.optimizer.scalars(np.ones(1), np.ones(1), l2)
    return {name: read_formula(scalar(name), "t", "eta") for name in names}


def _lay_out(
    step: CompiledStep,
    values: Mapping[tuple[str, str], np.ndarray],
    described: Mapping[str, dict[str, Any]],
) -> tuple[bytes, list[dict[str, Any]]]:
    """Return the first values of all weights and states behind each other, and where each of them is."""
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


def _describe_penalty(spec: StepSpec, penalty: Penalty) -> dict[str, Any]:
    return {
        "l1": penalty.l1 or 0.0,
        "l2": penalty.l2 or 0.0,
        "of": [name for name in spec.weights if name in spec.penalised],
        "formula": "l1 * sum(abs(w)) + l2 / 2 * sum(w * w), part of each update, not of the loss",
    }
