"""The folders of the package, and the imports between them, are those of the map in CONTRIBUTING.md."""

import ast
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "onnxsgd"
MODULES = sorted(PACKAGE.rglob("*.py"))


def rows_of_map():
    """Return for each folder of the map the folders that it may import from."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("| folder | holds | may import |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {folder.strip("`"): set(re.findall(r"`([^`]+)`", allowed)) for folder, _, allowed in cells}


ROWS = rows_of_map()
#: Folders that any other may import from.
FREE = {"adapters/", "losses/", "optimizers/", "schedules/"}


def folder_of(path):
    return path.parent.relative_to(PACKAGE).as_posix() + "/"


def imported_files(path):
    """Yield the files of the package that a module imports, at its head or inside of functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "onnxsgd":
            assert node.level == 0
            base = ROOT / node.module.replace(".", "/")
            for name in node.names:
                found = [base / f"{name.name}.py", base / name.name / "__init__.py", base.with_suffix(".py")]
                yield next((file for file in found if file.exists()), base / "__init__.py")


def test_the_map_names_the_folders_that_exist():
    with_modules = {folder_of(path) for path in MODULES} - {"./"}
    assert set(ROWS) == with_modules


@pytest.mark.parametrize("folder", sorted(ROWS))
def test_a_folder_imports_from_those_below_it(folder):
    """And from the modules at the top that import no folder, such as the errors and the losses."""
    found = {
        folder_of(file) for path in MODULES if folder_of(path) == folder for file in imported_files(path)
    }
    assert found - {"./", *FREE, folder} == ROWS[folder]


def test_imports_make_no_circle():
    """Each folder can be taken away once all that import from it are gone."""
    left = {folder: set(allowed) for folder, allowed in ROWS.items()}
    while left:
        read = set().union(*left.values())
        free = [folder for folder in left if folder not in read]
        assert free, f"a circle of imports among {sorted(left)}"
        for folder in free:
            del left[folder]


@pytest.mark.parametrize(
    "name",
    ["exceptions", "penalties", "_builder", "_declared_types", "_files", "_library_errors", "_settable"],
)
def test_modules_outside_the_order_import_no_folder(name):
    found = {folder_of(file) for file in imported_files(PACKAGE / f"{name}.py")}
    assert found <= {"./", "losses/", "optimizers/"}


def test_one_module_alone_imports_the_runtime():
    """All others ask :mod:`onnxsgd.runtime.editions`, which explains a missing or mixed installation."""
    imports = re.compile(r"^\s*(?:import|from) onnxruntime\b", re.MULTILINE)
    assert not [path for path in MODULES if imports.search(path.read_text(encoding="utf-8"))]


def test_no_file_name_occurs_twice():
    names = Counter(path.name for path in MODULES if path.name != "__init__.py")
    again = {name for name, count in names.items() if count > 1}
    # the public class and the modules that pickles of format 1 name
    assert not again


def test_the_map_is_in_the_order_of_the_imports():
    order = list(ROWS)
    assert not [
        (folder, other)
        for folder in ROWS
        for other in ROWS[folder]
        if order.index(other) < order.index(folder)
    ]


def test_the_architecture_page_draws_the_same_imports():
    """It is written when the documentation is built."""
    script = runpy.run_path(str(ROOT / "docs" / "make_architecture.py"))
    drawn = {
        f"{folder}/": {f"{other}/" for other in others} for folder, others in script["imports"]().items()
    }
    assert {folder: others - FREE for folder, others in drawn.items()} == ROWS
