"""Independent values and gradients: the reference evaluator of ONNX, and central differences."""

import math

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

_erf = np.vectorize(math.erf, otypes=[float])


class Erf(OpRun):
    """Erf in float64: that of ONNX rounds to float32."""

    op_domain = ""

    def _run(self, x):
        return (_erf(x),)


class Gelu(OpRun):
    op_domain = ""

    def _run(self, x, approximate=None):
        assert approximate in (None, "none")
        return (0.5 * x * (1 + _erf(x / math.sqrt(2))),)


@pytest.fixture(scope="session")
def evaluate():
    """Return a function that runs a model by the reference evaluator."""

    def run(model, feeds):
        return ReferenceEvaluator(model, new_ops=[Erf, Gelu]).run(None, feeds)

    return run


@pytest.fixture(scope="session")
def differences():
    """Return a function that computes, in float64, the gradients of ``sum_i (output_i . seed_i)``."""

    def gradients(model, feeds, seeds, names, step=1e-6):
        evaluator = ReferenceEvaluator(model, new_ops=[Erf, Gelu])

        def total(at):
            outputs = evaluator.run(None, at)
            return sum(
                float((output * seed).sum())
                for output, seed in zip(outputs, seeds, strict=True)
                if seed is not None
            )

        found = []
        for name in names:
            gradient = np.zeros(feeds[name].shape)
            for index in np.ndindex(gradient.shape):
                high, low = np.array(feeds[name]), np.array(feeds[name])
                high[index] += step
                low[index] -= step
                gradient[index] = (total({**feeds, name: high}) - total({**feeds, name: low})) / (2 * step)
            found.append(gradient)
        return found

    return gradients


@pytest.fixture(scope="session")
def execute():
    """Return a function that runs a model by onnxruntime and returns its outputs by name."""

    def run(model, feeds, optimize=True):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        if not optimize:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [value.name for value in session.get_outputs()]
        taken = {value.name: feeds[value.name] for value in session.get_inputs()}
        return dict(zip(names, session.run(None, taken), strict=True))

    return run


@pytest.fixture(scope="session")
def parse():
    """Return a function that reads a graph, in whose text ``real`` denotes the element type."""

    def read(text, opset=18, real="float", ir_version=9):
        imports = f'"": {opset}'
        domains = "".join(f', "{domain}": 1' for domain in ("my.domain",) if domain in text)
        domains += ', "ai.onnx.ml": 3' if "ai.onnx.ml" in text else ""
        source = f"<ir_version: {ir_version}, opset_import: [{imports}{domains}]>\n{text}"
        return onnx.parser.parse_model(source.replace("real", real))

    return read
