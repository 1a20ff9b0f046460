"""Write tables for the pages into ``docs/tables``: from the package, and from the tables of the README.

A build writes them anew, so that a table cannot differ from its source.
"""

import inspect
import re
from pathlib import Path
from textwrap import indent

import onnxsgd
from onnxsgd import losses, schedules
from onnxsgd.losses import CLASSIFICATION_LOSSES, REGRESSION_LOSSES
from onnxsgd.optimizers import OPTIMIZERS
from onnxsgd.schedules import SCHEDULES, make_schedule

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "tables"

#: The first cell of tables of the README, by the names of their files.
README_TABLES = {"alternatives": "task", "runtimes": "extra", "benchmarks": "model, batch size"}


def public_methods():
    """Return the names of the documented methods of each public class, by its full name."""
    public = {f"onnxsgd.{name}": getattr(onnxsgd, name) for name in onnxsgd.__all__}
    return {name: methods(cls) for name, cls in public.items() if inspect.isclass(cls)}


def methods(cls):
    """Return the names of the methods of a class that this package documents."""
    inherited = {"score"}
    return [
        method
        for method in sorted(dir(cls))
        if method[0] != "_"
        and callable(getattr(cls, method, None))
        and (method in inherited or _home(cls, method).startswith("onnxsgd"))
    ]


def _home(cls, method):
    """Return the module of the class that defines a method; empty for methods made by scikit-learn."""
    if method == "get_metadata_routing" or re.fullmatch(r"set_\w+_request", method):
        return ""
    return next(base.__module__ for base in cls.__mro__ if method in vars(base))


def list_table(header, rows, widths="auto"):
    """Return a table in reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in [header, *rows]:
        for index, cell in enumerate(row):
            start = "   * - " if index == 0 else "     - "
            first, *rest = cell.splitlines() or [""]
            lines += [f"{start}{first}".rstrip(), *(f"       {line}".rstrip() for line in rest)]
    return "\n".join(lines) + "\n"


def readme_table(first_cell):
    """Return the header and the rows of the table of the README with this first cell."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^\| {re.escape(first_cell)} \|.*\n(?:\|.*\n)+", text, re.MULTILINE)
    lines = found[0].replace("`", "``").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return cells[0], cells[2:]


def summary(item):
    """Return the first line of the docstring of a class."""
    return inspect.getdoc(item).partition("\n")[0]


def formula(cls):
    """Return the first literal block of the docstring of a class, or of a class that it extends."""
    for base in cls.__mro__:
        found = re.search(r"::\n\n((?:    .*\n|\n)+)", f"{inspect.getdoc(base)}\n")
        if found:
            block = inspect.cleandoc(found[1])
            return ".. code-block:: text\n\n" + "\n".join(f"   {line}" for line in block.splitlines())
    return ""


#: Losses and schedules without a name, which are given as objects.
OBJECTS = {
    "regression_losses": [losses.FromONNX, losses.FromCallable],
    "classification_losses": [
        losses.CrossEntropy, losses.MultinomialFocal, losses.FromONNX, losses.FromCallable,
    ],
    "schedules": [schedules.WarmUp, schedules.ByEpoch],
}  # fmt: skip

#: The targets that a loss takes, in words.
TARGETS = {
    "real": "real numbers",
    "non-negative": "numbers >= 0",
    "positive": "numbers > 0",
    "sign": "labels, as -1 and 1 in each output",
    "indicator": "labels, as 1 in the column of the class and 0 in others",
}


def source(cls):
    """Return the first reference of the docstring of a class, as a sentence; empty without one."""
    found = re.search(r"References\n-+\n((?:.+\n?)+)", inspect.getdoc(cls))
    return f"Source: {' '.join(found[1].split())}" if found else ""


def domain(cls):
    """Return the targets of a loss, as a sentence; empty for other classes, and for losses of one's own."""
    if not issubclass(cls, losses.Loss) or cls in OBJECTS["regression_losses"]:
        return ""
    return f"Targets: {TARGETS[cls().targets]}."


def definitions(classes, module, objects=()):
    """Return a list of classes by their names, with summary, formula, domain and source in the full width.

    Those that are given as objects follow, under the names of their classes.
    """
    named = [(f'"{name}"', cls) for name, cls in classes.items()]
    items = []
    for name, cls in [*named, *((f"{cls.__name__}(...)", cls) for cls in objects)]:
        parts = [summary(cls), formula(cls), f"{domain(cls)} {source(cls)}".strip()]
        body = indent("\n\n".join(filter(None, parts)), "   ").rstrip()
        items.append(f":class:`{name} <onnxsgd.{module}.{cls.__name__}>`\n{body}\n")
    return "\n".join(items)


def pictures(shown):
    """Return a grid of pictures that ``draw_pictures.py`` draws: their files, words, and places linked to."""
    lines = [".. grid:: 2 3 4 4", "   :gutter: 1"]
    for file, words, place in shown:
        lines += ["", "   .. grid-item::"]
        for theme in ("light", "dark"):
            lines += [
                "",
                f"      .. image:: ../pictures/{file}_{theme}.svg",
                f"         :alt: {words}",
                f"         :class: only-{theme}",
                f"         :target: ../api.html#onnxsgd.{place}",
            ]
    return "\n".join(lines) + "\n"


def loss_shapes(classes, kind):
    """Return the pictures of losses, each linked to its class."""
    return pictures(
        (f"{kind}_{name}", f"{name}: value and gradient", f"losses.{cls.__name__}")
        for name, cls in classes.items()
    )


def schedule_shapes(classes):
    """Return the pictures of schedules, each linked to its class; "auto" follows no formula."""
    return pictures(
        (f"schedule_{name}", f"{name}: rate by update", f"schedules.{cls.__name__}")
        for name, cls in classes.items()
        if name != "auto"
    )


def tables():
    """Return the text of each table by the name of its file."""
    made = {name: list_table(*readme_table(first)) for name, first in README_TABLES.items()}
    made["regression_losses"] = definitions(REGRESSION_LOSSES, "losses", OBJECTS["regression_losses"])
    made["regression_shapes"] = loss_shapes(REGRESSION_LOSSES, "regression")
    made["classification_shapes"] = loss_shapes(CLASSIFICATION_LOSSES, "classification")
    objects = OBJECTS["classification_losses"]
    made["classification_losses"] = definitions(CLASSIFICATION_LOSSES, "losses", objects)
    optimizers = {name: type(make(0.0, False)) for name, make in OPTIMIZERS.items()}
    made["optimizers"] = definitions(optimizers, "optimizers")
    rates = {name: type(make_schedule(name, 0.01, 0.25, 1e-4)) for name in SCHEDULES}
    made["schedules"] = definitions(rates, "schedules", OBJECTS["schedules"])
    made["schedule_shapes"] = schedule_shapes(rates)
    return made


def write():
    """Write all tables."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in tables().items():
        (FOLDER / f"{name}.inc").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
