"""Hostile input through every public function: no crash, no hang, no foreign error, no long message.

``python tests/hostile/harness.py --cases 5000`` prints each finding and ends with 1 if there is one. There are
several kinds of cases, a module each (``kind_graphs.py``): ``--kind graphs`` runs one of them. A case follows
from its kind, the seed and its number alone: ``--kind graphs --first 1234 --cases 1`` runs it again. Cases run in
child processes, under limits of memory and time; a child that ends is replaced by one that continues after the
case. ``rules.py`` has the rules that all kinds share.

The module of a kind has two functions: ``prepare()`` returns what its cases share, and ``run(number, rng,
prepared)`` yields the faults of one case, as text; and perhaps ``PATIENCE``, seconds without a sign.
"""

import argparse
import importlib
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

#: Kinds of cases, each with its share of a run.
KINDS = {"graphs": 0.2, "parameters": 0.25, "data": 0.25, "weights": 0.15, "bombs": 0.05, "files": 0.1}
#: Address space of a child: libraries, their threads and small models.
MEMORY = 12 << 30
#: Cases of a child, after which a new one starts, and seconds for one call.
PER_CHILD, PATIENCE = 300, 150


def run_child(kind, first, last, seed):
    """Run the cases from `first` to `last`; print findings."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    import logging

    import numpy as np

    logging.disable(logging.CRITICAL)
    module = importlib.import_module(f"kind_{kind}")
    prepared = module.prepare()
    out = sys.stdout
    # what functions print is no finding
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    for number in range(first, last):
        print("at", number, flush=True, file=out)
        try:
            for finding in module.run(number, np.random.default_rng([seed, number]), prepared):
                print("found", number, " ".join(finding.split())[:900], flush=True, file=out)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            print("found", number, f"the case itself failed: {error!r} at {place}", flush=True, file=out)
    print("end", flush=True, file=out)
    out.flush()


def watch(kind, first, last, seed):
    """Run a child from `first` to `last`; return its findings and the next case."""
    command = [sys.executable, os.path.abspath(__file__), "--child", "--kind", kind, "--first", str(first)]
    command += ["--cases", str(last - first), "--seed", str(seed)]
    # the end of what a child says before it ends
    errors = tempfile.TemporaryFile()  # noqa: SIM115
    # a child that is killed leaves its files
    folder = tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True)
    environment = {**os.environ, "TMPDIR": folder.name}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, bufsize=0, env=environment)
    findings, at, rest = [], f"{first} (start)", b""
    heard = time.monotonic()
    try:
        while True:
            ready, _, _ = select.select([child.stdout], [], [], 1.0)
            block = os.read(child.stdout.fileno(), 65536) if ready else None
            if block == b"":
                break
            if block is None and time.monotonic() - heard > PATIENCE:
                return [*findings, f"{at}: no answer after {PATIENCE} s"], int(at.split()[0]) + 1
            if block:
                heard = time.monotonic()
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    word, _, text = line.decode(errors="replace").partition(" ")
                    if word == "end":
                        return findings, last
                    at = text if word == "at" else at
                    findings += [text] if word == "found" else []
    finally:
        child.kill()
        status = child.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().rpartition("\n")[2][:300]
        errors.close()
        folder.cleanup()
    if "start" in at:
        raise SystemExit(f"No case of {kind} could be run: the child ended with {status}: {said}")
    return [*findings, f"{at}: the process ended with {status}: {said}"], int(at.split()[0]) + 1


def run(kind, first, n_cases, seed):
    """Run cases of a kind; print their findings, and return how many there are."""
    number, last, n_found = first, first + n_cases, 0
    while number < last:
        findings, number = watch(kind, number, min(number + PER_CHILD, last), seed)
        for finding in findings:
            print(kind, finding, flush=True)
        n_found += len(findings)
    return n_found


def main():
    """Run the cases of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=5000, help="of all kinds together")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=list(KINDS), help="one kind; default: all")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return run_child(options.kind, options.first, options.first + options.cases, options.seed)
    shares = {options.kind: 1.0} if options.kind else KINDS
    n_run = n_found = 0
    for kind, share in shares.items():
        begin, n_cases = time.monotonic(), round(options.cases * share)
        found = run(kind, options.first, n_cases, options.seed)
        print(f"{kind}: {n_cases} cases, {found} findings, {time.monotonic() - begin:.0f} s", flush=True)
        n_run, n_found = n_run + n_cases, n_found + found
    print(f"{n_run} cases, {n_found} findings")
    return int(n_found > 0)


if __name__ == "__main__":
    sys.exit(main())
