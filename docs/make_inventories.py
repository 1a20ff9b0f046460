"""Write inventories of scikit-learn, numpy and scipy, with the names that this documentation uses.

A build writes them anew. The addresses follow from the names, so that no inventory is fetched; a name is
included if the installed library defines it, with its kind.
"""

import importlib
import inspect
import re
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "inventories"

#: The address of each library, and of the page of a name in it.
SITES = {
    "sklearn": ("https://scikit-learn.org/stable/", "modules/generated/{}.html#{}"),
    "numpy": ("https://numpy.org/doc/stable/", "reference/generated/{}.html#{}"),
    "scipy": ("https://docs.scipy.org/doc/scipy/", "reference/generated/{}.html#{}"),
}
#: Labels that inherited docstrings of scikit-learn refer to.
FURTHER = {
    "sklearn": [
        "accuracy_score std:label 1 modules/model_evaluation.html#accuracy-score Accuracy",
        "r2_score std:label 1 modules/model_evaluation.html#r2-score R²",
    ],
}
_NAME = re.compile(r"\b(?:sklearn|numpy|scipy)(?:\.[A-Za-z_]\w*)+")
_IMPORT = re.compile(r"^ *from ((?:sklearn|numpy|scipy)[\w.]*) import (.+)$", re.MULTILINE)


def names():
    """Return the names of these libraries in the pages, the examples and the docstrings."""
    found = set()
    for pattern in ("docs/*.rst", "docs/guide/*.rst", "examples/*.py", "onnxsgd/**/*.py"):
        for path in ROOT.glob(pattern):
            text = path.read_text(encoding="utf-8").replace("np.", "numpy.")
            found.update(_NAME.findall(text))
            for module, imported in _IMPORT.findall(text):
                found.update(f"{module}.{name}" for name in re.findall(r"\w+", imported))
    return found


def kind_and_page(name):
    """Return the kind of a name, and the name whose page describes it; None for modules and unknown names."""
    owner, parts = None, name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            owner, found = found, getattr(found, part, None)
        break
    if inspect.isclass(owner) and callable(found):
        return "method", name.rpartition(".")[0]
    if inspect.isclass(found):
        return "exception" if issubclass(found, Exception) else "class", name
    return ("function", name) if callable(found) else None


def entries(library, used):
    """Yield the lines of the inventory of a library."""
    page = SITES[library][1]
    for name in sorted(name for name in used if name.split(".")[0] == library):
        known = kind_and_page(name)
        if known is not None:
            kind, described = known
            yield f"{name} py:{kind} 1 {page.format(described, name)} -"
    yield from FURTHER.get(library, [])


def written(further=()):
    """Write the inventories, and return them as Sphinx's ``intersphinx_mapping``."""
    FOLDER.mkdir(exist_ok=True)
    used, mapping = {*names(), *further}, {}
    for library, (address, _) in SITES.items():
        head = f"# Sphinx inventory version 2\n# Project: {library}\n# Version:\n"
        head += "# The remainder of this file is compressed using zlib.\n"
        body = "".join(f"{line}\n" for line in entries(library, used))
        file = FOLDER / f"{library}.inv"
        file.write_bytes(head.encode() + zlib.compress(body.encode()))
        mapping[library] = (address, str(file))
    return mapping


if __name__ == "__main__":
    written()
