"""Losses computed after the loop."""

import onnx
from engine.step.mlp_step import make_spec

from onnxsgd.engine.step.scan_epoch import build_epoch
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.losses import LogLoss


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
