"""Losses computed after the loop."""

import numpy as np
import onnx
from engine.step.mlp_step import make_spec, network

from onnxsgd.engine.step import sample_losses
from onnxsgd.engine.step.deferred_losses import build_deferred
from onnxsgd.engine.step.scan_epoch import build_epoch
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.losses import Hinge, LogLoss


def test_the_loop_computes_losses_once_for_all_batches(model):
    """In the body they would cost as much as the training of a small model."""
    spec = make_spec(loss=LogLoss())
    graph = onnx.load_from_string(build_epoch(build_step(model, spec), spec.loss)).graph
    scan = next(node for node in graph.node if node.op_type == "Scan")
    body = next(attribute.g for attribute in scan.attribute if attribute.name == "body")
    assert "Log" in {node.op_type for node in graph.node}
    assert "Log" not in {node.op_type for node in body.node}
    # no penalty: its strength is not cut into slices
    without = make_spec(l2=False)
    graph = onnx.load_from_string(build_epoch(build_step(model, without), without.loss)).graph
    assert not [value.name for value in graph.input if "decay" in value.name]


def scalars(content):
    """The shapes of the constants of one number that losses are computed with."""
    graph = onnx.load_from_string(content).graph
    dims = {value.name: tuple(value.dims) for value in graph.initializer}
    operators = [node for node in graph.node if node.op_type in ("Sub", "Less", "Mul")]
    used = [dims[name] for node in operators for name in node.input if name in dims]
    return [shape for shape in used if all(size == 1 for size in shape)]


def test_losses_of_one_output_use_no_slow_broadcast():
    """A scalar of fewer axes than a column of 10,000: an operator of the runtime takes 100 us, not 4."""
    spec = make_spec(loss=Hinge(), n_outputs=1)
    model = network(3, 1)[0]
    losses = build_deferred(build_step(model, spec), spec.loss)[1]
    alone = sample_losses._build_losses(Hinge(), np.dtype(np.float32), (1, 1), model)
    of_graph, _ = sample_losses._build_losses_of_graph(Hinge(), np.dtype(np.float32), 1, model, [])
    for content in (losses, alone, of_graph):
        assert set(scalars(content)) == {(1, 1)}
