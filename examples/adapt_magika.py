"""
Adapt a file-type detector to new types of files
=====================================================

Magika distinguishes 214 types of files by their bytes. Its package holds the network as an ONNX file, with
integers as input, exported from JAX. Here it learns, from a few hundred synthetic files,

- new types: a new layer on top of the frozen network;
- short snippets of known types, on which it is often wrong: all weights are trained.
"""

import json
import random

import numpy as np
import onnx
import onnxruntime
from wheels import file_of_wheel

from onnxsgd import OnnxSGDClassifier, describe_trainable

PACKAGE, FOLDER = "magika==1.0.3", "magika/models/standard_v3_3"


# %%
# The network reads the first and the last 1024 bytes of a file; 256 denotes no byte.
def read_bytes(files):
    X = np.full((len(files), 2048), 256, np.int32)
    for row, content in zip(X, files, strict=True):
        content = np.frombuffer(content.strip().encode(), np.uint8)
        head, tail = content[:1024], content[-1024:]
        row[: len(head)] = head
        row[2048 - len(tail) :] = tail
    return X


# %%
# Files of new types: music, chess, machine tools, proteins.
def make_music(rng):
    bars = " | ".join("".join(rng.choices("ABCDEFGabcdefg234", k=6)) for _ in range(rng.randint(8, 40)))
    return (
        f"X:{rng.randint(1, 99)}\nT:{rng.choice(WORDS)}\nM:6/8\nL:1/8\nK:{rng.choice('ADEG')}\n|: {bars} :|"
    )


def make_chess(rng):
    moves = [f"{rng.choice('NBRQK')}{rng.choice('abcdefgh')}{rng.randint(1, 8)}" for _ in range(40)]
    turns = " ".join(f"{i + 1}. {moves[2 * i]} {moves[2 * i + 1]}" for i in range(rng.randint(5, 20)))
    return f'[Event "{rng.choice(WORDS)}"]\n[White "{rng.choice(WORDS)}"]\n[Result "1-0"]\n\n{turns} 1-0'


def make_milling(rng):
    lines = [f"G1 X{rng.uniform(0, 200):.3f} Y{rng.uniform(0, 200):.3f}" for _ in range(rng.randint(8, 60))]
    return "G21\nG90\n" + "\n".join(f"{line} F{rng.randint(1, 9)}00" for line in lines) + "\nM30"


def make_protein(rng):
    lines = ["".join(rng.choices("ACDEFGHIKLMNPQRSTVWY", k=60)) for _ in range(rng.randint(3, 15))]
    return f">{rng.choice(WORDS)}|{rng.randint(1000, 9999)}\n" + "\n".join(lines)


WORDS = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "thing",
    "life",
    "child",
    "world",
    "school",
    "state",
    "group",
]
NEW_TYPES = {"music": make_music, "chess": make_chess, "milling": make_milling, "protein": make_protein}


def make_new_files(n_files, seed):
    rng = random.Random(seed)
    y = [rng.choice(list(NEW_TYPES)) for _ in range(n_files)]
    return read_bytes([NEW_TYPES[name](rng) for name in y]), np.array(y)


# %%
# Snippets of a line or two: ``@`` denotes a word, ``%`` a number.
SNIPPETS = {
    "c": ["int @(int @) { return @ * %; }", "#include <@.h>\nint @ = %;", "struct @ { float @; int @; };"],
    "csv": ["@,@,@\n%,%,%", "@,%\n@,%\n@,%", "%,@\n%,@"],
    "html": ["<p>@ <b>@</b></p>", '<a href="@.html">@</a>', "<ul><li>@</li><li>@</li></ul>"],
    "json": ['{"@": %}', '{"@": "@", "@": %}', '["@", "@", %]'],
    "markdown": ["# @ @\n\n- @\n- @", "**@** @ [@](@.md)", "## @\n\n@ `@` @"],
    "python": ["def @(@):\n    return @ + %", "for @ in @:\n    print(@)", "import @\n@ = @.@()"],
    "shell": ["for @ in *.@; do echo $@; done", "cd @ && ls -l | grep @", "export @=%\n@ --@ %"],
    "yaml": ["@: %\n@: @", "@:\n  - @\n  - @", "@:\n  @: %"],
}


def make_snippets(n_files, seed):
    rng = random.Random(seed)

    def fill(template):
        parts = (
            rng.choice(WORDS) if c == "@" else str(rng.randint(0, 999)) if c == "%" else c for c in template
        )
        return "".join(parts)

    y = [rng.choice(list(SNIPPETS)) for _ in range(n_files)]
    return read_bytes([fill(rng.choice(SNIPPETS[name])) for name in y]), np.array(y)


# %%
# The content of the file.
def read_network():
    """Return the file of the network, the tensor behind its last layer, and its labels."""
    path = file_of_wheel(PACKAGE, f"{FOLDER}/model.onnx")
    labels = json.loads(file_of_wheel(PACKAGE, f"{FOLDER}/config.min.json").read_text())[
        "target_labels_space"
    ]
    products = [node for node in onnx.load(path).graph.node if node.op_type == "MatMul"]
    return path, products[-1].input[0], np.array(labels)


def ask(path, labels, X):
    """Return the predictions of the original network."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return labels[session.run(None, {"bytes": X})[0].argmax(axis=1)]


def main():
    path, features, labels = read_network()
    print(describe_trainable(path))

    # %%
    # New types. The network can only give its own answers: "before" is the best accuracy with those.
    X, y = make_new_files(120, seed=0)
    X_test, y_test = make_new_files(200, seed=1)
    answers = ask(path, labels, X)
    reading = {name: max(sorted(set(y)), key=list(y[answers == name]).count) for name in set(answers)}
    before = np.mean(np.array([reading.get(name) for name in ask(path, labels, X_test)]) == y_test)
    head = OnnxSGDClassifier(
        path,
        output=features,
        head="linear",
        learning_rate="invscaling",
        eta0=0.1,
        max_iter=30,
        random_state=0,
    )
    head.fit(X, y)
    print(f"new types: accuracy {before:.3f} before, {head.score(X_test, y_test):.3f} with a new layer")

    # %%
    # Snippets of known types: the output keeps its 214 columns.
    X, y = make_snippets(160, seed=0)
    X_test, y_test = make_snippets(200, seed=1)
    before = np.mean(ask(path, labels, X_test) == y_test)
    tuned = OnnxSGDClassifier(
        path, classes=labels, optimizer="adam", learning_rate="constant", eta0=5e-4, batch_size=16,
        max_iter=2, tol=None, random_state=0,
    ).fit(X, y)  # fmt: skip
    print(f"snippets: accuracy {before:.3f} before, {tuned.score(X_test, y_test):.3f} after")


if __name__ == "__main__":
    main()
