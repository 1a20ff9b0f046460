"""Sweep of the gradient builder of onnxruntime-training over every form of its operators, for the table.

``python tests/gradient/native/sweep.py`` needs onnxruntime-training, and takes about 20 minutes. It tries the
cases of ``native_cases.py`` in three types, with fixed sizes, an open batch and all sizes open, and with the
gradients of all inputs, of numbers that these are multiplied by, or of one input alone. A trial is right
if the gradients agree with those of the portable engine and with central differences (``native_trials.py``).
Trials run in child processes, as some of them end the interpreter. A form is proven if every trial of it that
is named after its operator is right.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

from native_trials import attempt, first_line, variants

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.native import builder as orttraining
from onnxsgd.gradient.native.proof import form_of, rank_of

TABLE = Path(__file__).parents[3] / "onnxsgd" / "gradient" / "native" / "proven_forms.py"

#: Seconds after which a trial is ended.
LIMIT = 60


class DeadForm(Exception):
    """A form that ended the interpreter in another trial."""


def child(trials, dead, stream):
    """Run trials; write a line for each form before it is built, and for each result."""
    seen = set()

    def report(trial, **more):
        stream.write(json.dumps({"trial": trial, "forms": sorted(seen), **more}) + "\n")
        stream.flush()

    def note(trial, node):
        form = f"{form_of(node)} of rank {rank_of(node)}"
        seen.add(form)
        report(trial)
        if form in dead:
            raise DeadForm(form)

    for trial in trials:
        seen.clear()
        report(trial)
        signal.alarm(LIMIT)
        orttraining.unproven = lambda node, trial=trial: note(trial, node)
        try:
            result = attempt(trial)
        except DeadForm as form:
            result = f"ended the interpreter: as in another case of {form}"
        except NotTrainableError as error:
            result = f"refused: {first_line(error)}"
        except Exception as error:
            result = f"failed: {first_line(error)}"
        report(trial, result=result)


def sweep():
    """Return the forms and the result of each trial."""
    waiting, results, dead = [list(trial) for trial in variants()], [], set()
    while waiting:
        end, start = os.pipe()
        pid = os.fork()
        if pid == 0:
            with os.fdopen(start, "w") as stream:
                child(waiting, dead, stream)
                stream.flush()
                os._exit(0)
        os.close(start)
        with os.fdopen(end) as lines:
            done, last = follow(lines, len(results))
        _, status = os.waitpid(pid, 0)
        if len(done) < len(waiting):
            done.append({**last, "result": f"ended the interpreter: signal {os.WTERMSIG(status)}"})
            dead.update(named_after(last))
        results += done
        waiting = waiting[len(done) :]
    return results


def follow(lines, before):
    """Return the results that a child writes, and its last line."""
    done, last = [], None
    for line in lines:
        last = json.loads(line)
        if "result" in last:
            done.append(last)
            if (before + len(done)) % 1000 == 0:
                print(before + len(done), "tried", file=sys.stderr, flush=True)
    return done, last


def named_after(line):
    """Return the forms of a trial whose operator its case is named after."""
    operator = line["trial"][0].split()[0]
    return {form for form in line["forms"] if form.split()[0] == operator}


def judge(results):
    """Return the proven forms, and the wrong trials of each other one."""
    right, blamed = set(), defaultdict(list)
    for line in results:
        if line["result"] == "right":
            right |= named_after(line)
        elif not line["result"].startswith("refused"):
            for form in named_after(line):
                blamed[form].append((line["trial"], line["result"]))
    return right - blamed.keys(), blamed


def write(proven):
    """Write the table."""
    ranks = defaultdict(list)
    for form in proven:
        words, _, rank = form.rpartition(" of rank ")
        ranks[words].append(None if rank == "None" else int(rank))
    lines = "".join(f'    "{words}": {text(ranks[words])},\n' for words in sorted(ranks))
    TABLE.write_text(
        '"""Forms of operators; written by ``python tests/gradient/native/sweep.py``."""\n\n'
        "from __future__ import annotations\n\n"
        '__all__ = ["PROVEN"]\n\n'
        "#: The ranks at which the gradients of a form were right in every case; None is an unknown one.\n"
        f"PROVEN: dict[str, tuple[int | None, ...]] = {{\n{lines}}}\n"
    )


def text(ranks):
    """Return the text of a tuple, the unknown rank last."""
    return repr(tuple(sorted(ranks, key=lambda rank: (rank is None, rank))))


def main():
    """Sweep, print all wrong trials, and write the table."""
    started = time.monotonic()
    results = sweep()
    proven, blamed = judge(results)
    for line in results:
        if line["result"].startswith("portable"):
            print(line["trial"], line["result"])
    for form, trials in sorted(blamed.items()):
        print(f"{form}: {len(trials)} not right, such as {trials[0]}")
    write(proven)
    print(dict(Counter(line["result"].split(":")[0] for line in results)), f"of {len(results)} trials")
    print(len(proven), "forms proven,", len(blamed), f"not, in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
