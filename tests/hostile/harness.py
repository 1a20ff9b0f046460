"""Mutated models through every public function: no crash, no hang, no foreign error, no long message.

``python tests/hostile/harness.py --cases 5000`` prints each finding and ends with 1 if there is one. A case
follows from the seed and its number alone, ``--first 1234 --cases 1`` runs it again. Cases run in child
processes, under limits of memory and time; a child that ends is replaced by one that continues after the case.
"""

import argparse
import os
import resource
import select
import subprocess
import sys
import time
import traceback
import warnings

#: Address space of a child: libraries, their threads and small models.
MEMORY = 12 << 30
#: Cases of a child, after which a new one starts, and seconds for one function.
PER_CHILD, PATIENCE = 250, 200
#: The longest message that is a sentence.
LONGEST, MOST_LINES = 1200, 5


def run_case(number, seed, seeds):
    """Yield the faults of one case, as text."""
    import numpy as np
    from calls import CALLS
    from mutations import mutate, parse

    from onnxsgd.exceptions import OnnxSGDError

    rng = np.random.default_rng([seed, number])
    name = sorted(seeds)[number % len(seeds)]
    content = mutate(seeds[name], rng)
    for function, (call, needs_model) in CALLS.items():
        model = parse(content) if needs_model else content
        if model is None:
            continue
        print("at", number, function, name, flush=True)
        try:
            call(model)
        except OnnxSGDError as error:
            if isinstance(error, AssertionError):
                # check_gradients: numbers of a mutated graph differ at its kinks
                continue
            text = str(error)
            if len(text) > LONGEST or text.count("\n") >= MOST_LINES:
                yield f"{number} {name} {function}: long message: {type(error).__name__} {text[:300]!r}"
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)
            own = [
                f"{frame.filename.rpartition('onnxsgd/')[2]}:{frame.lineno}"
                for frame in place
                if "onnxsgd" in frame.filename
            ]
            yield f"{number} {name} {function}: {type(error).__name__} {str(error)[:200]!r} at {own[-2:]}"


def run_child(first, last, seed):
    """Run the cases from `first` to `last`; print findings."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    import logging

    logging.disable(logging.CRITICAL)
    from seed_models import seed_models

    seeds = seed_models()
    for number in range(first, last):
        for finding in run_case(number, seed, seeds):
            print("found", finding, flush=True)
    print("end", flush=True)


def watch(first, last, seed):
    """Run a child from `first` to `last`; return its findings and the next case."""
    command = [sys.executable, os.path.abspath(__file__), "--child", "--first", str(first)]
    command += ["--cases", str(last - first), "--seed", str(seed)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0)
    findings, at, rest = [], f"{first} (start)", b""
    heard = time.monotonic()
    while True:
        ready, _, _ = select.select([child.stdout], [], [], 1.0)
        block = os.read(child.stdout.fileno(), 65536) if ready else None
        if block == b"":
            break
        if block is None and time.monotonic() - heard > PATIENCE:
            child.kill()
            child.wait()
            return [*findings, f"{at}: no answer after {PATIENCE} s"], int(at.split()[0]) + 1
        if block:
            heard = time.monotonic()
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                kind, _, text = line.decode(errors="replace").partition(" ")
                if kind == "end":
                    child.wait()
                    return findings, last
                at = text if kind == "at" else at
                findings += [text] if kind == "found" else []
    if "start" in at:
        raise SystemExit(f"No case could be run: the child ended with {child.wait()}.")
    return [*findings, f"{at}: the process ended with {child.wait()}"], int(at.split()[0]) + 1


def main():
    """Run the cases of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    last, number, n_found = options.first + options.cases, options.first, 0
    if options.child:
        return run_child(number, last, options.seed)
    while number < last:
        findings, number = watch(number, min(number + PER_CHILD, last), options.seed)
        for finding in findings:
            print(finding, flush=True)
        n_found += len(findings)
    print(f"{options.cases} cases, {n_found} findings")
    return int(n_found > 0)


if __name__ == "__main__":
    sys.exit(main())
