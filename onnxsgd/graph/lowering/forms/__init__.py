"""Standard operators written out in simpler ones.

The values are the same, and so are the derivatives at kinks: those of the rules in
:mod:`onnxsgd.gradient.portable`. Used for operators without a gradient in a gradient builder, or without a
kernel in any runtime.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxsgd.graph.lowering.forms.activations import ACTIVATION_FORMS
from onnxsgd.graph.lowering.forms.affine_layers import AFFINE_FORMS
from onnxsgd.graph.lowering.forms.few_channels import FEW_CHANNEL_FORMS
from onnxsgd.graph.lowering.forms.gelu_factors import factor_forms
from onnxsgd.graph.lowering.forms.layers import LAYER_FORMS, MATRIX_FORMS
from onnxsgd.graph.lowering.forms.max_pools import COMPARED_POOL_FORMS, POOL_FORMS
from onnxsgd.graph.lowering.forms.merged_patches import MERGED_PATCH_FORMS
from onnxsgd.graph.lowering.forms.patches import PATCH_FORMS
from onnxsgd.graph.lowering.forms.picked_parts import PICKED_PART_FORMS
from onnxsgd.graph.lowering.forms.sequence_convolutions import SEQUENCE_FORMS
from onnxsgd.graph.lowering.forms.small_images import SMALL_IMAGE_FORMS
from onnxsgd.graph.lowering.forms.standardized import STANDARDIZED_FORMS
from onnxsgd.graph.lowering.forms.standardized_windows import standardized_window_forms
from onnxsgd.graph.lowering.forms.sums_and_extrema import REDUCTION_FORMS
from onnxsgd.graph.rewriting import Table, rewrite
from onnxsgd.graph.shape_inference import ShapeInferencePass

__all__ = [
    "AFFINE_FORMS",
    "COMPARED_POOL_FORMS",
    "FEW_CHANNEL_FORMS",
    "FORMS",
    "MATRIX_FORMS",
    "MERGED_PATCH_FORMS",
    "PATCH_FORMS",
    "PICKED_PART_FORMS",
    "POOL_FORMS",
    "SEQUENCE_FORMS",
    "SMALL_IMAGE_FORMS",
    "STANDARDIZED_FORMS",
    "factor_forms",
    "standardized_window_forms",
    "write_out",
]

#: The form of every operator that has one, by domain and name.
FORMS: Table = {**ACTIVATION_FORMS, **LAYER_FORMS, **REDUCTION_FORMS}


def write_out(model: ir.Model, table: Table = FORMS) -> None:
    """Replace the operators of the main graph that `table` has a form of, in place, until none is left."""
    while rewrite(model, table):
        if not all(_is_known(value) for node in model.graph for value in node.outputs):
            ShapeInferencePass(strict_mode=False)(model)


def _is_known(value: ir.Value) -> bool:
    """Tell whether the type and the sizes of a tensor are known."""
    return value.dtype is not None and value.shape is not None and value.shape.is_static()
