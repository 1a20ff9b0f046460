"""Growth of memory in ten thousand steps of :class:`onnxsgd.OrtGradientForwardBackward`.

Run ``python benchmarks/leak.py``. It prints the resident memory of the process before and after, and ends
with status 1 if it grew by more than 10 MB.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from onnxsgd import OrtGradientForwardBackward

_LAYERS = (20, 100, 50, 1)
_LIMIT = 10.0


def make_network() -> onnx.ModelProto:
    """Return a multi-layer perceptron of :data:`_LAYERS`."""
    rng = np.random.default_rng(0)
    lines, last, initializers = [], "X", []
    for index, (n_in, n_out) in enumerate(pairwise(_LAYERS)):
        final = index == len(_LAYERS) - 2
        lines.append(f"{'Y' if final else f'A{index}'} = Gemm({last}, W{index}, b{index})")
        if not final:
            lines.append(f"H{index} = Relu(A{index})")
            last = f"H{index}"
        for name, shape in ((f"W{index}", (n_in, n_out)), (f"b{index}", (n_out,))):
            initializers.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    signature = f"g (float[N, {_LAYERS[0]}] X) => (float[N, {_LAYERS[-1]}] Y)"
    text = f'<ir_version: 9, opset_import: ["": 18]> {signature} {{ {" ".join(lines)} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(initializers)
    return model


def resident_megabytes() -> float:
    """Return the resident memory of this process; its peak where the system does not report it."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> int:
    """Run the steps and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=256)
    arguments = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    model = make_network()
    owner = OrtGradientForwardBackward(model, sess_options=options)
    function = owner.new_instance()
    weights = [np.array(owner.get_initializer(name)) for name in owner.weights_to_train]
    rng = np.random.default_rng(0)

    def step() -> None:
        # new arrays of varying size: neither arrays nor memory plans for one size may be kept
        x = rng.normal(size=(rng.integers(1, arguments.batch + 1), _LAYERS[0])).astype(np.float32)
        prediction = function.forward([x, *weights], training=True)[0].numpy()
        gradients = function.backward([2 * prediction / len(x)])
        for weight, gradient in zip(weights, list(gradients)[1:], strict=True):
            weight -= 1e-6 * gradient.numpy()

    for _ in range(arguments.steps // 10):
        step()
    before, start = resident_megabytes(), time.perf_counter()
    for _ in range(arguments.steps):
        step()
    after, seconds = resident_megabytes(), time.perf_counter() - start
    print(f"{arguments.steps} steps in {seconds:.1f} s ({1e6 * seconds / arguments.steps:.0f} us a step)")
    print(f"resident memory: {before:.1f} MB before, {after:.1f} MB after, {after - before:+.1f} MB")
    return int(after - before > _LIMIT)


if __name__ == "__main__":
    sys.exit(main())
