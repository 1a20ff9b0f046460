"""Write the names of losses, optimizers, schedules and penalties into docstrings and the README.

Run it after a row is added to one of their tables: ``python docs/make_lists.py``. ``tests/test_lists.py``
fails while a list and its table differ. The reference, ``api.rst``, follows ``__all__`` of the modules.
"""

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from onnxsgd.losses import CLASSIFICATION_LOSSES, REGRESSION_LOSSES
from onnxsgd.optimizers import OPTIMIZERS
from onnxsgd.penalties import PENALTIES
from onnxsgd.schedules import SCHEDULES, make_schedule

ROOT = Path(__file__).parents[1]

_SHARED = {"penalty": PENALTIES, "optimizer": OPTIMIZERS, "learning_rate": SCHEDULES}

#: Of each file with docstrings: the parameters that take a name out of a table.
DOCSTRINGS = {
    "onnxsgd/estimators/regressor.py": {"loss": REGRESSION_LOSSES, **_SHARED},
    "onnxsgd/estimators/classifier.py": {"loss": CLASSIFICATION_LOSSES, **_SHARED},
    "onnxsgd/optimizers/__init__.py": {"optimizer": OPTIMIZERS},
    "onnxsgd/schedules/__init__.py": {"schedule": SCHEDULES},
    "onnxsgd/penalties.py": {"name": PENALTIES},
}

#: The words before each list of the README, up to the next of ``;,.`` behind the last name.
README = {
    "for regression": REGRESSION_LOSSES,
    "for classification": CLASSIFICATION_LOSSES,
    "optimizers": OPTIMIZERS,
    "learning rates": SCHEDULES,
    "penalties": [name for name in PENALTIES if name],
}

_WIDTH = 110


def write_docstring_lists(text: str, tables: dict[str, Iterable[str | None]]) -> str:
    """Return a module's source with the names of `tables` in the types of its parameters."""
    for parameter, names in tables.items():
        listed = ", ".join(f'"{name}"' if name else "None" for name in names)
        pattern = rf'^( +){parameter} : \{{(?:[^}}"]|"\w+")*\}}((?:.*\\\n)*.*)$'
        found = re.search(pattern, text, re.MULTILINE)
        assert found is not None, parameter
        rest = re.sub(r" *\\\n *", " ", found[2])
        line = _wrapped(found[1], f"{parameter} : {{{listed}}}{rest}")
        text = text[: found.start()] + line + text[found.end() :]
    return text


def _wrapped(indent: str, line: str) -> str:
    """Return the type of a parameter in lines that end in a backslash, for a docstring."""
    lines = textwrap.wrap(
        line, _WIDTH - 2, initial_indent=indent, subsequent_indent=indent + 8 * " ", break_on_hyphens=False
    )
    return " \\\n".join(lines)


def write_schedule_items(text: str) -> str:
    """Return an estimator's source with an item for each schedule, made of the summary of its class."""
    for name in SCHEDULES:
        if f'        - "{name}": ' not in text:
            summary = type(make_schedule(name, 0.01, 0.25, 1e-4)).__doc__.partition("\n")[0]
            item = f'        - "{name}": {summary[0].lower()}{summary[1:].rstrip(".")};\n'
            text = text.replace("        - a callable:", f"{item}        - a callable:", 1)
    return text


def write_readme_lists(text: str) -> str:
    """Return the README with the names of its lists, each item wrapped anew."""
    for words, names in README.items():
        listed = ", ".join(f"`{name}`" for name in names)
        pattern = words.replace(" ", r"\s+") + r"\s+`\w+`(?:,\s+`\w+`)*"
        text, count = re.subn(pattern, f"{words} {listed}", text)
        assert count == 1, (words, count)
    return re.sub(r"^- \*\*(?:Losses|Training)\.\*\*(?:.*\n)(?:  .*\n)*", _item, text, flags=re.MULTILINE)


def _item(found: re.Match[str]) -> str:
    line = " ".join(found[0].split())
    wrapped = textwrap.fill(
        line, _WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    )
    return f"{wrapped}\n"


def written() -> dict[Path, str]:
    """Return each file that holds lists, as it should be."""
    files = {}
    for name, tables in DOCSTRINGS.items():
        text = write_docstring_lists((ROOT / name).read_text(encoding="utf-8"), tables)
        files[ROOT / name] = write_schedule_items(text) if "learning_rate" in tables else text
    files[ROOT / "README.md"] = write_readme_lists((ROOT / "README.md").read_text(encoding="utf-8"))
    return files


if __name__ == "__main__":
    for path, content in written().items():
        path.write_text(content, encoding="utf-8")
