"""Functions that a test file executes, of the modules it covers: ``python tests/house/mirror.py [FILE ...]``.

Runs the files of ``COVERED`` in ``test_mirror.py`` one by one, in child processes, and prints for each module
the share of its functions that its file executes, and the others by name. Methods of protocols and of
abstract classes are executed by none. Some minutes.
"""

import inspect
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "onnxsgd"

_executed: set[CodeType] = set()


def _record(frame, event, argument):
    _executed.add(frame.f_code)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Record the functions that a test and its fixtures call."""
    sys.setprofile(_record)
    try:
        return (yield)
    finally:
        sys.setprofile(None)


def pytest_unconfigure(config):
    """Write the functions of the package that were called, as file and line."""
    called = [code for code in _executed if str(PACKAGE) in code.co_filename]
    found = [(code.co_filename, code.co_firstlineno) for code in called]
    Path(os.environ["EXECUTED"]).write_text(json.dumps(found))


def functions(path):
    """Return the functions of a module by the line of their first decorator or ``def``."""

    def inner(code):
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                # the bodies of classes are not optimized
                if constant.co_flags & inspect.CO_OPTIMIZED and not constant.co_name.startswith("<"):
                    yield constant.co_firstlineno, constant.co_qualname
                yield from inner(constant)

    return dict(inner(compile(path.read_text(encoding="utf-8"), str(path), "exec")))


def executed_by(file):
    """Return the functions of the package that a test file calls, as file and line."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "executed.json"
        path = os.pathsep.join([str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "house.mirror", "-p", "no:cacheprovider", str(file)],
            env={**os.environ, "EXECUTED": str(output), "PYTHONPATH": path},
            cwd=ROOT, check=True, capture_output=True,
        )  # fmt: skip
        return {tuple(entry) for entry in json.loads(output.read_text())}


def main():
    """Print the shares."""
    from house.test_mirror import COVERED

    for file, modules in COVERED.items():
        if len(sys.argv) > 1 and file not in sys.argv[1:]:
            continue
        called = executed_by(ROOT / "tests" / file)
        for module in modules.split():
            path = PACKAGE / f"{module}.py"
            left = {line: name for line, name in functions(path).items() if (str(path), line) not in called}
            total = len(functions(path))
            share = 100 * (total - len(left)) // total if total else 100
            print(f"{file:60} {module:50} {share:3} %  {' '.join(left.values())}", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    main()
