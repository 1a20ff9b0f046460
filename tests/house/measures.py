"""Measures of the house: ``python tests/house/measures.py [CHECKOUT]`` prints them for a checkout.

``test_words.py`` holds the limits of those that are limited.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

import onnx

#: The files that hold prose: pages, and modules with their docstrings, comments and messages.
PROSE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.rst", "docs/guide/*.rst", "docs/*.py")
PROSE += ("onnxsgd/**/*.py", "tests/**/*.py", "benchmarks/**/*.py", "examples/**/*.py")

#: No docstring opens with one of these.
CLAUSES = frozenset({"What", "Which", "How", "Whether", "Where"})

OPERATORS = frozenset(schema.name for schema in onnx.defs.get_all_schemas())


def prose(path):
    """Return the prose of a file: of a module its comments, its docstrings and its texts of several words."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    texts = [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    ]
    return "\n".join([*comments, *texts])


def words(text):
    """Return the words of a text in lower case."""
    return re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower())


def count_what(root):
    """Return how often the word "what" occurs in the prose of a checkout, and how many words it has."""
    found = Counter()
    for pattern in PROSE:
        for path in root.glob(pattern):
            found.update(words(prose(path)))
    return found["what"], found.total()


def definitions(root, kinds=(ast.Module, ast.ClassDef, ast.FunctionDef)):
    """Yield each definition of the package with its file."""
    for path in sorted(root.glob("onnxsgd/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds):
                yield path, node


def clause_docstrings(root):
    """Return the docstrings of the package that open with a clause, as `file: first line`."""
    return [
        f"{path.relative_to(root)}: {docstring.splitlines()[0]}"
        for path, node in definitions(root)
        if (docstring := ast.get_docstring(node)) and docstring.split()[0] in CLAUSES
    ]


def any_share(root):
    """Return the share of annotated parameters whose annotation is or holds Any."""
    annotations = [
        ast.unparse(argument.annotation)
        for _, node in definitions(root, (ast.FunctionDef,))
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if argument.annotation is not None
    ]
    return sum(bool(re.search(r"\bAny\b", text)) for text in annotations) / len(annotations)


def operator_tables(root):
    """Return the literals of a module's level that name at least three operators, as `file: name`."""
    tables = []
    for path, module in definitions(root, (ast.Module,)):
        for node in module.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                texts = {n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)}
                texts |= {key for text in texts if isinstance(text, str) for key in text.split()}
                if len(OPERATORS.intersection(text for text in texts if isinstance(text, str))) >= 3:
                    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                    tables.append(f"{path.relative_to(root)}: {ast.unparse(target)}")
    return tables


def measures(root):
    """Yield each measure with its name."""
    modules = [path for path in root.glob("onnxsgd/**/*.py") if path.name != "__init__.py"]
    names = Counter(path.name for path in modules)
    functions = [node.end_lineno - node.lineno + 1 for _, node in definitions(root, (ast.FunctionDef,))]
    n_what, n_words = count_what(root)
    tables = operator_tables(root)
    yield "modules", len(modules)
    yield (
        "private modules at the top",
        sum(path.parent.name == "onnxsgd" and path.name[0] == "_" for path in modules),
    )
    yield "folders", len({path.parent for path in modules})
    yield "file names that occur twice", sum(count > 1 for count in names.values())
    yield (
        "modules of more than 250 lines",
        sum(len(path.read_text(encoding="utf-8").splitlines()) > 250 for path in modules),
    )
    yield "functions within 20 lines, in %", round(100 * sum(n <= 20 for n in functions) / len(functions), 1)
    yield "docstrings that open with a clause", len(clause_docstrings(root))
    yield '"what" in 1,000 words', round(1000 * n_what / n_words, 2)
    yield "words of prose", n_words
    yield "parameters typed Any, in %", round(100 * any_share(root), 1)
    yield "asserts in the package", sum(1 for _ in definitions(root, (ast.Assert,)))
    yield "tables of operator names", len(tables)
    yield "modules with such tables", len({table.partition(":")[0] for table in tables})


if __name__ == "__main__":
    checkout = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    for name, value in measures(checkout):
        print(f"{name:40} {value}")
