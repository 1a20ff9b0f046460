"""Each table of functions has a test that fails while a row lacks a case: a row without one is added here."""

import ast
import importlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]

#: Tests of completeness, ``file::function`` below ``tests``, with their tables.
GUARDS = {
    "checking/test_reference_cells.py::test_every_activation_has_a_case": (
        "checking.reference_cells:_ACTIVATIONS",
    ),
    "graph/test_multiplications.py::test_every_operator_has_a_case": ("graph.multiplications:_COUNTS",),
    "data/test_file_formats.py::test_every_format_has_a_file": ("data.file_formats:_FORMATS",),
    "engine/export/test_formulas.py::test_every_function_has_a_case": (
        "engine.export.formulas:_FUNCTIONS",
        "engine.export.formulas:_OPERATORS",
    ),
    "engine/step/test_buffers.py::test_types_are_those_of_onnx": ("engine.step.buffers:_NUMPY_TYPES",),
    "engine/step/test_cuda_graph_operators.py::test_every_condition_holds_and_fails_in_a_case": (
        "engine.step.cuda_graph_operators:_CONDITIONS",
    ),
    "estimators/test_saving.py::test_every_typed_attribute_has_a_wrong_value": ("estimators.saving:_TYPES",),
    "persistence/test_saved_form.py::test_every_entry_of_another_type_is_named": (
        "persistence.saved_form:_TYPES",
    ),
    "persistence/test_shared_tensors.py::test_every_form_of_an_array_has_a_case": (
        "persistence.shared_tensors:_FORMS",
    ),
    "estimators/test_labels.py::test_every_probability_of_several_labels_has_a_case": (
        "estimators.labels:_ELEMENTWISE",
    ),
    "gradient/native/test_builder.py::test_each_operator_of_the_table_has_a_case": (
        "gradient.native.coverage:DIFFERENTIABLE",
    ),
    "gradient/native/test_lowering.py::test_every_form_of_this_engine_has_a_case": (
        "gradient.native.lowering:NATIVE_FORMS",
    ),
    "gradient/native/test_builder.py::test_each_refusal_of_the_table_has_a_case": (
        "gradient.native.refused_forms:REFUSALS",
    ),
    "gradient/native/test_standardize.py::test_every_rule_has_a_case": (
        "gradient.native.standardize:FLOAT64_RULES",
        "gradient.native.standardize:RULES",
    ),
    "gradient/portable/rules/test_table.py::test_every_rule_has_a_case_for_each_input": (
        "gradient.portable.rules.control:CONTROL",
        "gradient.portable.rules.table:RULES",
    ),
    "gradient/portable/rules/test_recurrent.py::test_every_cell_and_every_slope_has_a_case": (
        "gradient.portable.rules.recurrent_cells:CELLS",
        "gradient.portable.rules.cell_gates:SLOPES",
    ),
    "gradient/portable/rules/test_scattering.py::test_every_reduction_has_a_case": (
        "gradient.portable.rules.scattering:_REDUCTIONS",
    ),
    "gradient/portable/writing/test_known_shapes.py::test_every_rule_has_a_case": (
        "gradient.portable.writing.known_shapes:_RULES",
    ),
    "graph/loading/test_random_inputs.py::test_types_of_sessions_are_those_of_onnx": (
        "graph.loading.random_inputs:_SESSION_TYPES",
    ),
    "graph/lowering/test_ai_onnx_ml.py::test_every_rule_for_ml_has_a_case": (
        "graph.lowering.ai_onnx_ml:ML_RULES",
    ),
    "graph/lowering/test_ai_onnx_ml.py::test_every_link_has_a_case": ("graph.lowering.ai_onnx_ml:_LINKS",),
    "graph/lowering/test_forms.py::test_every_form_is_tested": ("graph.lowering.forms:FORMS",),
    "graph/lowering/test_forms.py::test_every_form_of_matrices_is_tested": (
        "graph.lowering.forms.layers:MATRIX_FORMS",
    ),
    "graph/lowering/forms/test_sequence_convolutions.py::test_every_form_of_sequences_is_tested": (
        "graph.lowering.forms.sequence_convolutions:SEQUENCE_FORMS",
    ),
    "graph/lowering/forms/test_affine_layers.py::test_every_form_of_affine_layers_is_tested": (
        "graph.lowering.forms.affine_layers:AFFINE_FORMS",
    ),
    "graph/lowering/forms/test_few_channels.py::test_every_form_of_few_channels_is_tested": (
        "graph.lowering.forms.few_channels:FEW_CHANNEL_FORMS",
    ),
    "graph/lowering/forms/test_max_pools.py::test_every_form_of_pools_is_tested": (
        "graph.lowering.forms.max_pools:COMPARED_POOL_FORMS",
        "graph.lowering.forms.max_pools:POOL_FORMS",
    ),
    "graph/lowering/forms/test_merged_patches.py::test_every_form_of_merged_patches_is_tested": (
        "graph.lowering.forms.merged_patches:MERGED_PATCH_FORMS",
    ),
    "graph/lowering/forms/test_picked_parts.py::test_every_form_of_parts_is_tested": (
        "graph.lowering.forms.picked_parts:PICKED_PART_FORMS",
    ),
    "graph/lowering/forms/test_patches.py::test_every_form_of_patches_is_tested": (
        "graph.lowering.forms.patches:PATCH_FORMS",
    ),
    "graph/lowering/forms/test_standardized.py::test_every_form_of_standardized_tensors_is_tested": (
        "graph.lowering.forms.standardized:STANDARDIZED_FORMS",
    ),
    "graph/lowering/forms/test_small_images.py::test_every_form_of_small_images_is_tested": (
        "graph.lowering.forms.small_images:SMALL_IMAGE_FORMS",
    ),
    "graph/lowering/test_inference_mode.py::test_every_switch_has_a_case": (
        "graph.lowering.inference_mode:_SWITCHES",
    ),
    "graph/lowering/test_lower.py::test_every_rule_for_standard_operators_is_tested": (
        "graph.lowering.lower:RULES",
    ),
    "graph/lowering/test_missing_kernels.py::test_every_form_has_a_case": (
        "graph.lowering.missing_kernels:_FORMS",
    ),
    "graph/lowering/test_precision.py::test_every_standard_form_has_a_case": (
        "graph.lowering.precision:_STANDARD_FORMS",
    ),
    "graph/lowering/test_ai_onnx_ml.py::test_every_kernel_has_a_case": ("graph.lowering.svm:_KERNELS",),
    "graph/opsets/test_newer_opsets.py::test_every_rule_has_a_case": ("graph.opsets.newer_opsets:_RULES",),
    "graph/opsets/transformer/test_contrib.py::test_every_rule_has_a_case": (
        "graph.opsets.transformer.contrib:CONTRIB_RULES",
    ),
    "graph/reading/test_output_layer.py::test_every_operator_has_a_case": (
        "graph.reading.output_layer:_READERS",
    ),
    "graph/reading/test_postprocessing.py::test_every_link_has_a_case": (
        "graph.reading.postprocessing:_ONE_BY_ONE",
    ),
    "graph/reading/test_postprocessing.py::test_every_link_of_several_scores_has_a_case": (
        "graph.reading.postprocessing:_TABLES",
    ),
    "graph/reading/test_postprocessing.py::test_every_link_over_classes_has_a_case": (
        "graph.reading.postprocessing:_PROBABILITIES",
    ),
    "graph/reading/test_sample_axis.py::test_every_rule_has_a_case": (
        "graph.reading.sample_axis_rules:RULES",
    ),
    "graph/test_open_shapes.py::test_every_open_shape_has_a_case": ("graph.open_shapes:_SHAPES",),
    "graph/sklearn/test_converters.py::test_every_converter_has_a_case": (
        "graph.sklearn.converters:_CONVERTERS",
        "graph.sklearn.converters:_FUNCTIONS",
        "graph.sklearn.converters:_SHAPES",
    ),
    "graph/sklearn/test_prepare.py::test_every_adaptation_has_a_case": (
        "graph.sklearn.prepare:_ADAPTATIONS",
    ),
    "graph/sklearn/test_refused_steps.py::test_every_objection_has_a_case": (
        "graph.sklearn.refused_steps:_OBJECTIONS",
    ),
    "graph/sklearn/test_target_transform.py::test_every_inverse_has_a_case": (
        "graph.sklearn.target_transform:_FUNCTIONS",
        "graph.sklearn.target_transform:_INVERSES",
    ),
    "learner/test_templates.py::test_every_class_with_a_known_structure_has_a_case": (
        "graph.sklearn.structure:_ATTRIBUTES",
    ),
    "training/test_linear_runner.py::test_every_loss_of_a_margin_is_that_of_rows_with_signs": (
        "engine.step.linear_layer:_TARGET_OF_MARGINS",
    ),
    "test_losses.py::test_every_loss_has_a_case": (
        "losses:CLASSIFICATION_LOSSES",
        "losses:MULTINOMIAL_LOSSES",
        "losses:REGRESSION_LOSSES",
    ),
    "objective/test_attach.py::test_every_score_has_a_case": ("objective.score_table:SCORES",),
    "test_optimizers.py::test_every_optimizer_has_a_case": ("optimizers:OPTIMIZERS",),
    "test_penalties.py::test_every_penalty_has_a_case": ("penalties:PENALTIES",),
    "test_schedules.py::test_every_schedule_has_a_case": ("schedules:SCHEDULES",),
}

#: Tables that are a part of another one, whose test guards their rows.
PARTS = {
    "gradient.portable.rules.table:RULES": {
        f"gradient.portable.rules.{part}"
        for part in (
            "convolution:CONVOLUTION",
            "elementwise:ELEMENTWISE",
            "elementwise:_BROADCAST",
            "elementwise:_UNARY",
            "indexing:INDEXING",
            "integer_products:INTEGER_PRODUCTS",
            "movement:MOVEMENT",
            "neural:NEURAL",
            "normalization:NORMALIZATION",
            "packed_products:PACKED_PRODUCTS",
            "pooling:POOLING",
            "products:PRODUCTS",
            "quantization:QUANTIZATION",
            "recurrent:RECURRENT",
            "reductions:REDUCTIONS",
            "resize:RESIZE",
            "sampling:GRID_SAMPLE",
            "scattering:SCATTERING",
        )
    },
    "graph.lowering.forms:FORMS": {
        "graph.lowering.forms.activations:ACTIVATION_FORMS",
        "graph.lowering.forms.layers:LAYER_FORMS",
        "graph.lowering.forms.sums_and_extrema:REDUCTION_FORMS",
    },
    "graph.lowering.lower:RULES": {"graph.lowering.stable_formulas:STANDARD_RULES"},
    "graph.lowering.ai_onnx_ml:ML_RULES": {"graph.lowering.svm:SVM_RULES"},
    "graph.opsets.newer_opsets:_RULES": {"graph.opsets.transformer.standard_opset_23:STANDARD_RULES"},
    "graph.opsets.transformer.contrib:CONTRIB_RULES": {
        "graph.opsets.transformer.attention:ATTENTION_RULES",
        "graph.opsets.transformer.fused_layers:LAYER_RULES",
        "graph.opsets.transformer.grouped_attention:GROUPED_RULES",
    },
}

#: Tables without rules by operator or name.
OTHERS = {
    "graph.reading.sample_axis_rules:_ML": "names without a domain, those of RULES",
    "graph.reading.sample_axis_rules:_STANDARD": "names without a domain, those of RULES",
}


def is_table(value):
    """Return whether a value is a table with functions among its keys or values."""
    if not isinstance(value, dict):
        return False
    return any(callable(entry) for row in value.items() for part in row
               for entry in (part if isinstance(part, tuple) else (part,)))  # fmt: skip


def tables():
    """Return the tables of functions that the modules of the package assign, as ``module:name``."""
    found = {}
    for path in sorted((ROOT / "onnxsgd").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(targets[0], ast.Name):
                value = getattr(importlib.import_module(name), targets[0].id)
                if is_table(value):
                    found[f"{name.removeprefix('onnxsgd.')}:{targets[0].id}"] = value
    return found


TABLES = tables()


def test_every_table_has_a_test_of_its_rows():
    """A new table of functions is added to GUARDS, with the test that fails while a row lacks its case."""
    parts = set().union(*PARTS.values())
    assert set(TABLES) <= {*sum(GUARDS.values(), ()), *parts, *OTHERS}
    assert parts | set(OTHERS) <= set(TABLES)


@pytest.mark.parametrize("whole", PARTS)
def test_parts_are_in_their_table(whole):
    for part in PARTS[whole]:
        assert TABLES[part].items() <= TABLES[whole].items(), part


def load_test(path):
    """Return the module of a test file."""
    spec = importlib.util.spec_from_file_location(f"guard_of_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row_without_a_case(table):
    """Return a key of the kind of the others, and the value of another row."""
    key, value = next((key, value) for key, value in table.items() if key is not None)
    if isinstance(key, tuple):
        return ("", "Unheard"), value
    if isinstance(key, type):
        return type("Unheard", (), {}), value
    return (np.tanh if callable(key) else "Unheard"), value


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of estimators that scikit-learn will drop
@pytest.mark.parametrize(("test", "name"), [(test, name) for test, names in GUARDS.items() for name in names])
def test_a_row_without_a_case_is_found(test, name, monkeypatch):
    file, _, function = test.partition("::")
    module, _, attribute = name.partition(":")
    table = getattr(importlib.import_module(f"onnxsgd.{module}"), attribute)
    guard = getattr(load_test(ROOT / "tests" / file), function)
    guard()
    monkeypatch.setitem(table, *row_without_a_case(table))
    with pytest.raises(AssertionError):
        guard()
