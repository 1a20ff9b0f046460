"""Tests stand where their module does: ``tests/graph/test_cut.py`` for ``onnxsgd/graph/cut.py``.

A module without a file of its name is listed in COVERED, a test file without a module in SUBJECTS.
``python tests/house/mirror.py`` measures the functions of the former that their test file executes.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = ROOT / "onnxsgd", ROOT / "tests"

#: Of test files: the modules without a file of their name that they test, paths below ``onnxsgd``.
COVERED = {
    "checking/test_reference_cells.py": "gradient/portable/rules/sequence_lengths",
    "data/test_text.py": "estimators/text_graph",
    "dask/test_dask_estimators.py": "dask/dask_collections dask/dask_executor",
    "sharding/test_process_executor.py": "sharding/worker_process",
    "sharding/test_process_rounds.py": "sharding/client_step sharding/gradient_step",
    "sharding/test_rounds.py": "sharding/changes sharding/executor",
    "estimators/test_sharded_fit.py": ("sharding/shard_tasks sharding/sharded_training sharding/shards"),
    "engine/export/test_step_file.py": (
        "engine/export/manifest engine/export/raw_weights training/step_export"
    ),
    "engine/forward_backward/test_executors.py": "engine/forward_backward/runtime_options",
    "engine/forward_backward/test_forward_backward.py": (
        "engine/forward_backward/devices engine/forward_backward/function_base "
        "engine/forward_backward/function_class engine/forward_backward/tensors "
        "engine/forward_backward/training_graphs graph/named_shapes"
    ),
    "engine/step/test_device_loop.py": "engine/step/cuda_blocks engine/step/unrolled",
    "engine/step/test_scan_epoch.py": "engine/step/update",
    "engine/step/test_training_step.py": "engine/step/step_spec",
    "estimators/test_display.py": "estimators/curves",
    "estimators/test_estimators.py": (
        "engine/predict estimators/base estimators/classifier estimators/fitted estimators/parameters "
        "estimators/regressor exceptions learner/build training/fit_plan"
    ),
    "estimators/test_forged_progress.py": "training/progress_forms",
    "estimators/test_gaussian_nll.py": "estimators/likelihood_score learner/further_scores",
    "estimators/test_html_display.py": "estimators/card estimators/card_rows",
    "estimators/test_plot_graph.py": (
        "drawing/graph_plot drawing/listing drawing/marks estimators/graph_stages"
    ),
    "estimators/test_quantile_levels.py": "estimators/quantile_score",
    "estimators/test_sklearn_tools.py": "estimators/inner_model",
    "graph/preprocessing/test_add_preprocessing.py": (
        "graph/preprocessing/image_format graph/preprocessing/image_nodes"
    ),
    "training/test_rules.py": "training/fit_kind",
    "training/test_sparse_runners.py": (
        "engine/step/row_update_graph engine/step/sparse_sgd engine/step/sparse_step"
    ),
    "gradient/native/test_builder.py": (
        "gradient/native/builder_forms gradient/native/coverage gradient/native/isolate "
        "gradient/native/native_engine gradient/native/refused_forms"
    ),
    "gradient/native/test_proof.py": "gradient/native/proven_forms",
    "gradient/native/test_standardize.py": (
        "gradient/native/replacements gradient/native/standard_operators gradient/native/standard_shapes"
    ),
    "gradient/portable/rules/test_control.py": (
        "checking/reference_scan gradient/portable/body_shapes gradient/portable/rules/scan "
        "gradient/portable/rules/scan_axes graph/captured_constants"
    ),
    "gradient/portable/rules/test_convolution.py": (
        "gradient/portable/rules/channels_last_weight gradient/portable/rules/convolution_image "
        "gradient/portable/rules/convolution_weight gradient/portable/rules/depthwise_weight "
        "gradient/portable/rules/patch_weight gradient/portable/rules/tap_weight "
        "gradient/portable/rules/windows"
    ),
    "gradient/portable/rules/test_gelu_nodes.py": "graph/written_gelus",
    "gradient/portable/rules/test_indexing.py": (
        "gradient/portable/rules/slicing gradient/portable/rules/split_reads"
    ),
    "gradient/portable/rules/test_pooling.py": "gradient/portable/rules/max_pool",
    "gradient/portable/rules/test_products.py": "gradient/portable/rules/einsum",
    "gradient/portable/rules/test_recurrent.py": (
        "gradient/portable/rules/batch_first gradient/portable/rules/cell_gates "
        "gradient/portable/rules/directions gradient/portable/rules/lstm_memory "
        "gradient/portable/rules/recurrent_cells gradient/portable/rules/time_steps"
    ),
    "gradient/portable/rules/test_resize.py": "gradient/portable/rules/resize_identity",
    "gradient/portable/rules/test_table.py": (
        "gradient/portable/writing/broadcasting gradient/portable/writing/call "
        "gradient/portable/writing/emitter gradient/portable/writing/tensor"
    ),
    "gradient/portable/test_differentiate.py": "gradient/portable/forward_shapes gradient/portable/sweep",
    "gradient/test_derivative.py": (
        "gradient/derivative_options gradient/engines gradient/joint_graph gradient/output_gradients "
        "gradient/with_respect_to"
    ),
    "graph/loading/test_doors.py": (
        "graph/loading/consistency graph/loading/loop_trips graph/loading/size_limits"
    ),
    "graph/lowering/test_ai_onnx_ml.py": "graph/lowering/svm",
    "graph/lowering/test_forms.py": (
        "graph/lowering/forms/activations graph/lowering/forms/layers graph/lowering/forms/sums_and_extrema"
    ),
    "graph/lowering/test_lower.py": "graph/lowering/stable_formulas",
    "graph/lowering/test_dropout_ratio.py": "graph/dropout",
    "graph/lowering/test_running_statistics.py": "graph/batch_normalization",
    "graph/opsets/test_newer_opsets.py": (
        "graph/opsets/function_bodies graph/opsets/transformer/standard_opset_23"
    ),
    "graph/opsets/transformer/test_contrib.py": (
        "graph/opsets/transformer/attention graph/opsets/transformer/attention_heads "
        "graph/opsets/transformer/attention_masks graph/opsets/transformer/axis_sizes "
        "graph/opsets/transformer/fused_layers graph/opsets/transformer/grouped_attention "
        "graph/opsets/transformer/refusal graph/opsets/transformer/rotary_embedding"
    ),
    "graph/reading/test_head.py": "graph/lowering/class_labels graph/parameter_roles/patterns",
    "graph/reading/test_sample_axis.py": "graph/reading/sample_axis_rules",
    "graph/reading/test_trainable.py": (
        "graph/parameter_roles/constant_arrays graph/parameter_roles/origins graph/parameter_roles/roles"
    ),
    "graph/sklearn/test_convert.py": "graph/sklearn/polynomial_features graph/sklearn/repair",
    "graph/sklearn/test_converters.py": "graph/sklearn/converter_nodes",
    "learner/test_describe.py": "graph/reading/report",
    "learner/test_learner.py": "learner/model_source",
    "objective/test_attach.py": "objective/score_table objective/scored_output",
    "estimators/test_checkpointing.py": "persistence/checkpoint_folder training/checkpoints",
    "persistence/test_saved_form.py": "_classifier _regressor",
    "persistence/test_value_tree.py": "persistence/known_classes persistence/sklearn_objects",
    "runtime/test_cuda.py": "runtime/bindings runtime/device",
    "test_adapters.py": "adapters/_lora",
    "test_optimizers.py": (
        "optimizers/_adam optimizers/_adaptive optimizers/_block_adam optimizers/_group_steps "
        "optimizers/_lion optimizers/_optimizer optimizers/_sgd"
    ),
    "test_schedules.py": (
        "schedules/_around schedules/_auto schedules/_cosine schedules/_decay schedules/_function "
        "schedules/_plateau schedules/_scaling schedules/_schedule"
    ),
    "test_losses.py": (
        "_builder losses/_base losses/_classification losses/_dense losses/_deviance losses/_likelihood "
        "losses/_regression"
    ),
    "test_own_losses.py": "losses/_callable losses/_graph",
    "test_package.py": "_version",
    "test_testing.py": "checking/problems",
    "training/test_linear_runner.py": "engine/step/linear_averages engine/step/linear_layer "
    "engine/step/linear_scan engine/step/linear_truncation",
    "training/test_training_control.py": "estimators/training_data training/loop training/stopping",
}

#: Test files whose subject is no module, and that subject.
SUBJECTS = {
    "backend/test_nodes.py": "the node tests of onnx",
    "benchmarks/test_alternatives.py": "a benchmark",
    "benchmarks/test_defaults.py": "a benchmark",
    "training/test_accumulation.py": "updates of several batches, in both estimators",
    "estimators/test_auto.py": "the default of learning_rate, from outside",
    "estimators/test_common.py": "scikit-learn's checks of estimators",
    "estimators/test_cross_entropy.py": "options of the cross-entropy, in the classifier",
    "estimators/test_elements.py": "targets of several axes, in both estimators",
    "estimators/test_estimators.py": "both estimators",
    "estimators/test_joint_losses.py": "losses that compare classes, in the classifier",
    "estimators/test_links.py": "losses with a link, in the regressor",
    "estimators/test_metadata_routing.py": "scikit-learn's routing of weights and validation data",
    "estimators/test_forged_progress.py": "checkpoints of strangers",
    "estimators/test_gaussian_nll.py": "means and variances, in the regressor",
    "estimators/test_quantile_levels.py": "several quantiles at once, in the regressor",
    "estimators/test_scores.py": "a page of the documentation",
    "estimators/test_sklearn_tools.py": "scikit-learn's tools around an estimator",
    "estimators/test_training_mode.py": "the parameters batch_norm and dropout, from outside",
    "gradient/native/test_sweep.py": "the sweep that proves forms",
    "gradient/portable/rules/test_function_bodies.py": "operators without a rule, defined by others",
    "gradient/portable/test_higher_order.py": "gradients of gradients",
    "gradient/portable/test_kinks.py": "conventions of the rules at kinks",
    "gradient/portable/test_networks.py": "whole networks",
    "gradient/portable/test_torch.py": "torch as another implementation",
    "gradient/test_kinks.py": "both engines at kinks",
    "gradient/test_random_graphs.py": "random graphs",
    "graph/loading/test_doors.py": "malformed models at every public function",
    "graph/opsets/transformer/test_bert.py": "a fused network",
    "hostile/test_fit_leak.py": "memory after many fits",
    "hostile/test_hostile.py": "mutated models",
    "hostile/test_interrupts.py": "interrupts at every moment",
    "hostile/test_memory_limits.py": "the formula of the memory of a fit",
    "learner/test_converted.py": "every converted estimator, from graph to fit",
    "learner/test_half_precision.py": "graphs in float16 and bfloat16, in training and in files",
    "learner/test_real_graphs.py": "published networks",
    "networks/test_networks.py": "networks that torch exported",
    "networks/test_unoptimized_exports.py": "networks that torch exported without its optimizer",
    "recipes/test_ray.py": "a recipe of the documentation",
    "recipes/test_spark.py": "recipes of the documentation",
    "test_browser.py": "the page of the browser example",
    "test_examples.py": "the examples",
    "test_gpu.py": "training on a GPU",
    "test_dask_ml.py": "searches of another library",
    "test_lists.py": "lists in documentation",
    "test_own_losses.py": "losses that users give",
    "test_workers.py": "threads and worker processes",
    "test_notebooks.py": "the notebooks of the examples",
    "test_package.py": "the public names",
    "test_pages.py": "code, outputs and tables of the documentation",
    "test_recipes.py": "the recipes of CONTRIBUTING",
    "training/test_averages.py": "exponential averages of weights, against torch",
    "training/test_fidelity_mlp.py": "scikit-learn's networks, update by update",
    "training/test_fidelity_sgd.py": "scikit-learn's linear models, update by update",
    "training/test_named_rows.py": "named optimizers, schedules and penalties in fits",
    "training/test_schedules_in_fits.py": "schedules in fits, streams and searches",
    "training/test_training_control.py": "stopping, validation, callbacks",
}

MODULES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix(): path
    for path in PACKAGE.rglob("*.py")
    if path.name != "__init__.py"
}
FOLDERS = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")}
FILES = {path.relative_to(TESTS).as_posix(): path for path in TESTS.rglob("test_*.py")}


def file_of(module):
    """Return the test file with the name of a module or a folder; a private name loses its underscore."""
    folder, _, name = module.rpartition("/")
    return f"{folder}/test_{name.lstrip('_')}.py".lstrip("/")


#: Modules that the public names import when they are first used.
PUBLIC = (
    "onnxsgd/estimators/regressor.py",
    "onnxsgd/estimators/classifier.py",
    "onnxsgd/gradient/derivative.py",
    "onnxsgd/objective/attach.py",
    "onnxsgd/engine/forward_backward/forward_backward.py",
    "onnxsgd/learner/describe.py",
    "onnxsgd/estimators/plot_graph.py",
)


@cache
def imported(path):
    """Return the files of the package, and of the tests' helpers, that a file imports anywhere."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    bases = [root / name.replace(".", "/") for name in names for root in (ROOT, TESTS)]
    files = [file for base in bases for file in (base.with_suffix(".py"), base / "__init__.py")]
    public = [ROOT / name for name in PUBLIC if "onnxsgd" in names]
    return [file for file in (*files, *public) if file.exists()]


def reachable(file):
    """Return the modules that a test file and its conftest files import, directly or through others."""
    waiting = [FILES[file], *(TESTS / parent / "conftest.py" for parent in Path(file).parents)]
    found = set()
    while waiting:
        path = waiting.pop()
        if path not in found and path.exists():
            found.add(path)
            waiting += imported(path)
    return {module for module, path in MODULES.items() if path in found}


def test_each_test_file_has_the_name_of_a_module_or_a_stated_subject():
    mirrored = {file_of(module) for module in {*MODULES, *FOLDERS}}
    house = {file for file in FILES if file.startswith("house/")}
    assert set(FILES) - mirrored - house == set(SUBJECTS)


def test_each_module_has_a_test_file_or_one_that_covers_it():
    covered = [module for modules in COVERED.values() for module in modules.split()]
    assert len(set(covered)) == len(covered)
    assert {module for module in MODULES if file_of(module) not in FILES} == set(covered)


@pytest.mark.parametrize("file", COVERED)
def test_a_file_reaches_the_modules_that_it_covers(file):
    assert set(COVERED[file].split()) <= reachable(file)
