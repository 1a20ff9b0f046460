"""Try the gradient builder of onnxruntime-training on every form of its operators, and write the table.

``python tests/gradient/native_sweep.py`` needs onnxruntime-training. It takes the cases of
``test_orttraining.py``, which the tests compare with central differences, and more sizes of convolutions and
pools, in three types, with open and fixed sizes, with the gradients of all inputs as outputs and behind other
trained nodes, and compares each with the portable engine. Cases run in child processes, as some of them end
the interpreter. A form is proven if each of its cases is right.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "onnxsgd" / "gradient" / "native_table.py"

#: Largest difference, relative to the largest element of the gradient, by type. The reference is
#: float32; what is wrong differs by more than a tenth.
TOLERANCES = {"float16": 2e-2, "float32": 1e-3, "float64": 1e-3}


def load_cases():
    """Return the module of the tests, with the cases that are only swept added to its own."""
    spec = importlib.util.spec_from_file_location("test_orttraining", HERE / "test_orttraining.py")
    module = sys.modules["test_orttraining"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.CASES.update(windows(module.Case))
    module.CASES.update(others(module.Case, module.ints))
    return module


def windows(case):
    """Return convolutions and pools in one to three dimensions of space."""
    found = {}
    for space, group, n_in, n_out, size in itertools.product((1, 2, 3), (1, 2, 4), (1, 3), (1, 2), (7, 16)):
        if (space == 3 and size == 16) or (n_in, n_out) == (1, 2):
            continue
        for kernel, more in itertools.product(
            (1, 3), ("", "strides", "dilations", "pads", 'auto_pad="SAME_UPPER"')
        ):
            text = more if more.startswith("auto") or not more else f"{more}=[{values(more, space)}]"
            text = ", ".join(word for word in (f"group={group}", text) if word)
            shapes = {"X": (2, n_in * group, *[size] * space), "W": (n_out * group, n_in, *[kernel] * space)}
            name = f"Conv {space} {group} {n_in} {n_out} {size} {kernel} {more}"
            found[name] = case(f"Y = Conv<{text}>(X, W, b)", {**shapes, "b": (n_out * group,)})
    for space, op_type in itertools.product((1, 2, 3), ("AveragePool", "MaxPool")):
        options = ["", "strides", "dilations", "pads", "ceil_mode=1", 'auto_pad="SAME_UPPER"']
        options += ["count_include_pad=1"] if op_type == "AveragePool" else ["storage_order=1"]
        for size, more in itertools.product((5, 8), options):
            text = more if "=" in more or not more else f"{more}=[{values(more, space)}]"
            text = ", ".join(word for word in (f"kernel_shape=[{', '.join(['2'] * space)}]", text) if word)
            if "ceil" in more or "count" in more:
                text += f", strides=[{', '.join(['2'] * space)}]"
            if "count" in more:
                text += f", pads=[{values('pads', space)}]"
            body = f"Y = {op_type}<{text}>(X)"
            opset = 19 if op_type == "AveragePool" and more == "dilations" else 18
            found[f"{op_type} {space} {size} {more}"] = case(
                body, {"X": (2, 3, *[size] * space)}, {}, (opset,)
            )
    for space in (1, 2, 3):
        found[f"GlobalAveragePool {space}"] = case("Y = GlobalAveragePool(X)", {"X": (2, 3, *[4] * space)})
    return found


def values(attribute, space):
    """Return the values of an attribute that has some for each axis."""
    return ", ".join(["1"] * 2 * space if attribute == "pads" else ["2"] * space)


def others(case, ints):
    """Return forms that failed somewhere, and ranks."""
    ranks = {f"of rank {rank}": tuple(range(2, 2 + rank)) for rank in (1, 2, 3, 4, 5)}
    unary = ["Abs", "Cos", "Erf", "Exp", "Identity", "LeakyRelu", "LogSoftmax", "Neg", "Relu", "Sigmoid"]
    unary += ["Sin", "Softmax", "Tanh", "Transpose", "Trilu"]
    found = {
        f"{op_type} {name}": case(f"Y = {op_type}(X)", {"X": shape})
        for op_type in unary
        for name, shape in ranks.items()
        if op_type != "Trilu" or len(shape) > 1
    }
    found |= {
        f"{op_type} {name}": case(f"Y = {op_type}(X, P)", {"X": shape, "P": shape})
        for op_type in ("Add", "Sub", "Mul", "Div", "Max", "Min")
        for name, shape in ranks.items()
    }
    found |= {
        f"MatMul {left} {right}": case("Y = MatMul(X, W)", {"X": left, "W": right})
        for left, right in [
            ((3,), (3,)), ((3,), (3, 2)), ((3,), (4, 3, 2)), ((2, 3), (3,)), ((4, 2, 3), (3,)),
            ((4, 2, 3), (3, 5)), ((2, 3), (4, 3, 5)), ((4, 2, 3), (4, 3, 5)), ((2, 1, 2, 3), (4, 3, 5)),
        ]
    }  # fmt: skip
    # one that keeps everything, as others draw at random
    found["Dropout"] = case("Y, m = Dropout(X, r, t)", {"X": (3, 4)}, {"r": 0.0, "t": np.array(True)})
    label = {"l": ints(0, 2, 1)}
    for more in ("", '<reduction="sum">', '<reduction="none">', "<ignore_index=1>"):
        body = f"Y = SoftmaxCrossEntropyLoss{more}(X, l)"
        found[f"SoftmaxCrossEntropyLoss {more}"] = case(body, {"X": (3, 4)}, label)
        body = f"A, B = SoftmaxCrossEntropyLoss{more}(X, l)\n C = ReduceSum<keepdims=0>(B)\n Y = Add(A, C)"
        found[f"SoftmaxCrossEntropyLoss log_prob {more}"] = case(body, {"X": (3, 4)}, label)
    return found


def variants(module):
    """Yield what identifies one trial: case, type, sizes, place."""
    for name in module.CASES:
        for dtype, sizes, place in itertools.product(TOLERANCES, ("open", "fixed"), ("outputs", "behind")):
            # neither has a kernel: the runtime refuses the former and dies of the latter
            if (dtype == "float64" and name.startswith("Conv")) or (dtype == "float16" and "Pool" in name):
                continue
            yield name, dtype, sizes, place


def build(module, name, dtype, sizes, place):
    """Return model, feeds and what to differentiate for."""
    case = module.CASES[name]
    model, feeds = module.build(case, case.opsets[-1], np.dtype(dtype).type)
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims):
            if sizes == "fixed":
                dim.dim_value = feeds[value.name].shape[axis]
            elif axis == 0 and len(dims) > 1 and value.name == "X":
                dim.dim_param = dim.dim_param or "batch"
    names = list(case.inputs)
    if place == "outputs":
        return model, feeds, names
    kind = {"float16": "float16", "float32": "float", "float64": "double"}[dtype]
    scales = [f"scale_{name}" for name in names]
    nodes = [onnx.helper.make_node("Mul", [n, f"scale_{n}"], [f"scaled_{n}"]) for n in names]
    for node in model.graph.node:
        for index, read in enumerate(node.input):
            if read in names:
                node.input[index] = f"scaled_{read}"
    body = [*nodes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(body)
    element = onnx.parser.parse_graph(f"g ({kind} x) => () {{ }}").input[0].type.tensor_type.elem_type
    for scale in scales:
        model.graph.input.append(onnx.helper.make_tensor_value_info(scale, element, []))
        feeds[scale] = np.asarray(1.0, dtype)
    return model, feeds, scales


def run(both, feeds, seed):
    """Return the outputs of a gradient graph by name."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(
        ir.to_proto(both).SerializeToString(), options, ["CPUExecutionProvider"]
    )
    taken = {value.name: {**feeds, "Y_grad": seed}[value.name] for value in session.get_inputs()}
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, taken), strict=True))


def attempt(module, trial, seen, dead, report):
    """Return "right", or what is wrong; forms in `dead` are not run."""
    from onnx.reference import ReferenceEvaluator

    from onnxsgd.gradient.forward_backward import forward_backward_model

    name, dtype, *_ = trial
    model, feeds, names = build(module, *trial)
    reference, wide, _ = build(module, name, "float32", *trial[2:])
    y = ReferenceEvaluator(reference).run(None, wide)[0]
    seed = np.random.default_rng(1).normal(size=y.shape)
    expected = run(
        forward_backward_model(ir.from_proto(reference), (), names, "portable"), wide, seed.astype("f")
    )
    seen.clear()
    both = forward_backward_model(ir.from_proto(model), (), names, "onnxruntime-training")
    report()
    if not seen.isdisjoint(dead):
        return "ended the interpreter: another case of this form"
    found = run(both, feeds, seed.astype(dtype))
    for name in names:
        exact, gradient = expected[f"{name}_grad"], found[f"{name}_grad"].astype(np.float64)
        error = np.abs(gradient - exact).max() / (1e-3 + np.abs(exact).max())
        if not error <= TOLERANCES[dtype]:
            return f"wrong: {name} by {error:.2g}"
    return "right"


def child(module, trials, dead, stream):
    """Run trials; write a line for each: before it is built, before it runs, and when it is done."""
    from onnxsgd.gradient import orttraining
    from onnxsgd.gradient.native_proof import form_of

    seen = set()
    orttraining.why_not = lambda node: None
    orttraining.unproven = lambda node: seen.add(form_of(node))

    def report(trial, **more):
        stream.write(json.dumps({"trial": trial, "forms": sorted(seen), **more}) + "\n")
        stream.flush()

    for trial in trials:
        seen.clear()
        report(trial)
        try:
            result = attempt(module, trial, seen, dead, lambda trial=trial: report(trial))
        except Exception as error:
            result = f"failed: {str(error).splitlines()[0][:120]}"
        report(trial, result=result)


def sweep():
    """Return for each trial its forms and its result."""
    module = load_cases()
    waiting, results, dead = [list(trial) for trial in variants(module)], [], set()
    while waiting:
        end, start = os.pipe()
        pid = os.fork()
        if pid == 0:
            with os.fdopen(start, "w") as stream:
                child(module, waiting, dead, stream)
                stream.flush()
                os._exit(0)
        os.close(start)
        done, last = [], None
        with os.fdopen(end) as lines:
            for line in lines:
                last = json.loads(line)
                if "result" in last:
                    done.append(last)
                    if len(done) % 500 == 0:
                        print(len(results) + len(done), "tried", file=sys.stderr, flush=True)
        _, status = os.waitpid(pid, 0)
        if len(done) < len(waiting):
            done.append({**last, "result": f"ended the interpreter: signal {os.WTERMSIG(status)}"})
            dead.update(form for form in last["forms"] if form.split()[0] == last["trial"][0].split()[0])
        results += done
        waiting = waiting[len(done) :]
    return results


def write(results):
    """Write the table; print what failed."""
    right, blamed = set(), defaultdict(list)
    for line in results:
        operator = line["trial"][0].split()[0]
        forms = {form for form in line["forms"] if form.split()[0] == operator}
        if line["result"] == "right":
            # what a case is not named after is only ever proven by it
            right |= set(line["forms"])
        for form in forms if line["result"] != "right" else ():
            blamed[form].append((line["trial"], line["result"]))
    for form, trials in sorted(blamed.items()):
        print(f"{form}: {len(trials)} not right, such as {trials[0]}")
    proven = sorted(right - blamed.keys())
    lines = "".join(f'        "{form}",\n' for form in proven)
    TABLE.write_text(
        '"""Forms of operators; written by ``python tests/gradient/native_sweep.py``."""\n\n'
        '__all__ = ["PROVEN"]\n\n'
        "#: The forms whose gradients were right in every case.\n"
        f"PROVEN: frozenset[str] = frozenset(\n    [\n{lines}    ]\n)\n"
    )
    counts = defaultdict(int)
    for line in results:
        counts[line["result"].split(":")[0]] += 1
    print(dict(counts), len(proven), "forms proven,", len(blamed), "not")


if __name__ == "__main__":
    write(sweep())
