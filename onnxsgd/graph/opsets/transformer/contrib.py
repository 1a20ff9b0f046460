"""Operators of the domain ``com.microsoft``, written in standard ones."""

from __future__ import annotations

import onnx
from onnx_ir.passes.common import RemoveUnusedNodesPass, RemoveUnusedOpsetsPass

from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.opsets.transformer.attention import ATTENTION_RULES
from onnxsgd.graph.opsets.transformer.fused_layers import LAYER_RULES
from onnxsgd.graph.opsets.transformer.grouped_attention import GROUPED_RULES
from onnxsgd.graph.rewriting import Table, rewrite
from onnxsgd.graph.shape_inference import ShapeInferencePass

__all__ = ["CONTRIB_RULES", "expand_contrib", "give_domain", "lacks_domain"]

#: The rules of every replaced operator of the runtime's domain.
CONTRIB_RULES: Table = {**ATTENTION_RULES, **GROUPED_RULES, **LAYER_RULES}

_DOMAIN = "com.microsoft"

#: Operators of the runtime under the standard domain, with the first opset in which the standard has them.
_OWN_IN_STANDARD = {"LayerNormalization": 17, "SimplifiedLayerNormalization": 2**62}


def lacks_domain(model: onnx.ModelProto) -> bool:
    """Return whether :func:`give_domain` would change anything."""
    return bool(_own_in_standard(model)) or _lacks_import(model)


def give_domain(model: onnx.ModelProto) -> None:
    """Move operators that graph optimizers write as standard ones to the domain of the runtime, in place.

    These are SimplifiedLayerNormalization, and LayerNormalization before opset 17: the checker knows neither.
    The domain is imported if a node is of it: optimizers omit the import, and the runtime accepts that.
    """
    for node in _own_in_standard(model):
        node.domain = _DOMAIN
    if _lacks_import(model):
        model.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))


def _lacks_import(model: onnx.ModelProto) -> bool:
    imported = any(entry.domain == _DOMAIN for entry in model.opset_import)
    return not imported and any(node.domain == _DOMAIN for node in model.graph.node)


def _own_in_standard(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    versions = {entry.domain: entry.version for entry in model.opset_import}
    opset = versions.get("", versions.get("ai.onnx", 1))
    return [
        node
        for node in model.graph.node
        if node.domain in ("", "ai.onnx") and opset < _OWN_IN_STANDARD.get(node.op_type, 0)
    ]


def expand_contrib(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the operators of :data:`CONTRIB_RULES` written in standard ones.

    Weights keep their names and values. A form of an operator that no rule covers stays unchanged: the
    runtime can run it, and gradients do not pass. Nodes of subgraphs stay, too.

    Parameters
    ----------
    model : ModelProto
        Of an opset from 13 to 21. It is not changed, and returned unchanged if there is nothing to replace.
    """
    if not any((node.domain, node.op_type) in CONTRIB_RULES for node in model.graph.node):
        return model
    result = to_ir(model)
    ShapeInferencePass(strict_mode=False, data_prop=True)(result)
    # types after a non-standard operator are inferred only once it is replaced
    while rewrite(result, CONTRIB_RULES):
        ShapeInferencePass(strict_mode=False, data_prop=True)(result)
    RemoveUnusedNodesPass()(result)
    RemoveUnusedOpsetsPass()(result)
    return to_proto(result)
