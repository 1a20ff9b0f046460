"""Write architecture.rst and draw architecture.svg, from the modules and their imports.

A build of the documentation does both; so does ``python make_architecture.py`` in this folder.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "onnxsgd"

HEAD = """.. Written by make_architecture.py.

Architecture
============

Data flows one way, and so do imports: each folder imports only from those below it in the picture. An arrow
points to a folder that is imported from; it is left out where a longer path of arrows leads there.

.. image:: architecture.svg
   :alt: Folders of the package as boxes in layers, with arrows for imports
   :width: 100%

"""


def folder_of(path):
    """Return the folder of a module below the package, such as ``graph/reading``; empty at the top."""
    folder = path.parent.relative_to(PACKAGE).as_posix()
    return "" if folder == "." else folder


def modules():
    """Return the modules of each folder below the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if folder_of(path) and path.name != "__init__.py":
            found.setdefault(folder_of(path), []).append(path)
    return found


def imports():
    """Return for each folder the folders that its modules import from."""
    folders = {folder: set() for folder in modules()}
    for folder, paths in modules().items():
        for path in [*paths, PACKAGE / folder / "__init__.py"]:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onnxsgd."):
                    parts = node.module.split(".")[1:]
                    is_module = PACKAGE.joinpath(*parts).with_suffix(".py").exists()
                    names = ["/".join([*parts, name.name]) for name in node.names]
                    own = "/".join(parts[:-1] if is_module else parts)
                    folders[folder].update(name if name in folders else own for name in names)
    return {folder: {other for other in found if other in folders and other != folder}
            for folder, found in folders.items()}  # fmt: skip


def layers(graph):
    """Return the folders in layers: each imports only from layers after its own."""
    depth = {}

    def visit(folder):
        if folder not in depth:
            depth[folder] = 1 + max((visit(other) for other in graph[folder]), default=-1)
        return depth[folder]

    highest = max(visit(folder) for folder in graph)
    return [sorted(folder for folder in graph if depth[folder] == level) for level in range(highest, -1, -1)]


def shortest(graph):
    """Return the imports without those that follow from others."""

    def reached(folder):
        return set().union(*({other} | reached(other) for other in graph[folder]))

    return {
        folder: {other for other in others if not any(other in reached(third) for third in others - {other})}
        for folder, others in graph.items()
    }


def first_line(path):
    """Return the first line of the docstring of a module."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).splitlines()[0]


def page():
    """Return the text of the page."""
    order = [folder for layer in layers(imports()) for folder in layer]
    found = modules()
    lines = [HEAD.rstrip(), ""]
    for folder in order:
        title = f"``{folder}/``"
        lines += [title, "-" * len(title), "", first_line(PACKAGE / folder / "__init__.py"), ""]
        lines += [".. list-table::", "   :widths: 25 75", ""]
        for path in found[folder]:
            lines += [f"   * - ``{path.name}``", f"     - {first_line(path)}"]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def draw(file):
    """Draw the folders in layers, with an arrow for each pair of folders that imports."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "architecture"
    graph, rows = shortest(imports()), layers(imports())
    figure = Figure(figsize=(13, 1.1 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    places = {
        folder: ((i + 1) / (len(row) + 1), -level)
        for level, row in enumerate(rows)
        for i, folder in enumerate(row)
    }
    tops = sorted({folder.split("/")[0] for folder in graph})
    colors = {top: mpl.colormaps["tab10"](i % 10) for i, top in enumerate(tops)}
    for folder, others in graph.items():
        for other in others:
            arrow = {"arrowstyle": "-|>", "color": colors[folder.split("/")[0]], "shrinkA": 0, "shrinkB": 0}
            (x, y), (x_other, y_other) = places[folder], places[other]
            axes.annotate("", (x_other, y_other + 0.14), (x, y - 0.14), arrowprops=arrow)
    for folder, (x, y) in places.items():
        color = colors[folder.split("/")[0]]
        box = {"boxstyle": "round,pad=0.45", "facecolor": "white", "edgecolor": color, "linewidth": 1.8}
        axes.text(x, y, folder, ha="center", va="center", fontsize=9, bbox=box)
    axes.set(xlim=(0, 1), ylim=(0.5 - len(rows), 0.5))
    axes.axis("off")
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    Path("architecture.rst").write_text(page(), encoding="utf-8")
    draw("architecture.svg")
