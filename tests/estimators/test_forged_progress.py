"""Checkpoints with a forged progress, under the right digest: fits work, or one sentence names the entry."""

import math

import numpy as np
import pytest

from onnxsgd import OnnxSGDClassifier
from onnxsgd.data import random_order
from onnxsgd.exceptions import ConvergenceError, ParameterError
from onnxsgd.persistence.checkpoint_folder import last_files
from onnxsgd.persistence.saved_file import read_file, write_file
from onnxsgd.persistence.value_tree import TreeReader, TreeWriter
from onnxsgd.training.checkpoints import Checkpoints

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(64, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
#: Rows of several windows of blocks.
MANY = RANDOM.normal(size=(512, 2)).astype(np.float32)


class Loader:
    """Four batches."""

    def __len__(self):
        return 4

    def __iter__(self):
        yield from zip(np.split(X, 4), np.split(Y, 4), strict=True)


class StopFit(Exception):
    """The interruption of a fit."""


INSIDE = {"checkpoint_every": {"updates": 3}}
#: For each kind of fit its parameters, its data, and the number of checkpoints before it is interrupted.
FITS = {
    "sgd": ({"learning_rate": "constant"}, (X, Y), 3),
    "auto": ({**INSIDE, "batch_size": 8}, (X, Y), 5),
    "early stopping": ({"early_stopping": True, "learning_rate": "adaptive", "penalty": "l1"}, (X, Y), 3),
    "auto, early stopping": ({"early_stopping": True, "average": 0.9}, (X, Y), 3),
    "adam": (
        {"learning_rate": "cosine", "optimizer": "adam", "average": True, "batch_size": 8, **INSIDE},
        (X, Y),
        4,
    ),
    "blocks": (
        {"shuffle": "blocks", "learning_rate": "constant", **INSIDE},
        (MANY, (MANY[:, 0] > 0).astype(int)),
        5,
    ),
    "batches": ({"learning_rate": "invscaling", "classes": [0, 1], **INSIDE}, (Loader(),), 3),
}
#: Stands for an entry that is left out.
MISSING = "left out"
#: Values of all kinds, and for each array one of another length and one of other numbers.
ODD = [
    None, "x", True, -1, 0, 2**50, -(2**50), 10**30, 1e308, math.nan, math.inf, [], {}, (), (1.0, 2.0, 3.0),
    np.full(3, math.nan), np.arange(64)[None] - 5, np.array(["a"]), np.random.RandomState(0), MISSING,
]  # fmt: skip


def places(tree, way=()):
    """Yield the ways to all values inside; of a sequence, those to the first two."""
    entries = tree.items() if isinstance(tree, dict) else ()
    if isinstance(tree, list | tuple):
        entries = list(enumerate(tree))[: 2 if isinstance(tree, list) else None]
    for key, value in entries:
        yield (*way, key)
        yield from places(value, (*way, key))


def forged(tree, way, value):
    """Return a copy with another value at a way."""
    if not way:
        return value
    key, rest = way[0], way[1:]
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    made = {k: forged(old, rest, value) if k == key else old for k, old in items}
    if not rest:
        made[key] = value
    if not rest and value is MISSING:
        del made[key]
    return made if isinstance(tree, dict) else type(tree)(made.values())


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """Let blocks have 8 rows, and windows 128."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_order, "_MOST_ROWS", 8)
        patch.setattr(random_order, "_MIXED_BLOCKS", 16)
        yield


@pytest.fixture(scope="module", params=FITS)
def checkpoint(request, small_blocks, tmp_path_factory):
    """Return the estimator of an interrupted fit, its data, and the parts of its last checkpoint."""
    parameters, data, n_before = FITS[request.param]
    folder = tmp_path_factory.mktemp("checkpoints")
    estimator = OnnxSGDClassifier(checkpoint=folder, random_state=0, max_iter=6, **parameters)
    written, save = [0], Checkpoints._save

    def stop(*args):
        save(*args)
        written[0] += 1
        if written[0] == n_before:
            raise StopFit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "_save", stop)
        with pytest.raises(StopFit):
            estimator.fit(*data)
    file = last_files(folder)[0]
    content, tensors = read_file(file, lambda *parts: parts)
    kept = {key: part for key, part in content.items() if key not in ("format", "version")}
    return estimator, data, file, kept, tensors


def resume(checkpoint, progress):
    """Continue the fit from another progress; return the refusal, None if it works."""
    estimator, data, file, content, tensors = checkpoint
    writer = TreeWriter()
    tree = writer.write(progress, "forged")
    for path in last_files(file.parent):
        path.unlink()
    write_file(file, {**content, "progress": tree}, tensors | writer.tensors)
    try:
        OnnxSGDClassifier(**estimator.get_params()).fit(*data, resume=True)
    except ParameterError as error:
        message = str(error)
        assert str(file) in message
        assert "\n" not in message
        return message
    except ConvergenceError:
        # a forged rate is a rate
        return "diverged"
    return None


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("share", [40, pytest.param(1, marks=pytest.mark.long)])
def test_each_forged_entry_is_refused_in_a_sentence_or_does_no_harm(checkpoint, share):
    """They were a KeyError, a TypeError or an IndexError of the fit that continued, or numpy's ValueError."""
    *_, content, tensors = checkpoint
    progress = TreeReader(tensors).read(content["progress"])
    assert resume(checkpoint, progress) is None
    ways = [way for way in places(progress) if way[0] != "identity"]
    assert len(ways) > 10
    n_refused = 0
    for number, way in enumerate(ways):
        # each value at a share of the places
        for value in ODD[number % share :: share]:
            if value is MISSING and not isinstance(way[-1], str):
                continue
            n_refused += resume(checkpoint, forged(progress, way, value)) is not None
    assert n_refused > 8 * len(ways) / share


#: Entries of the right type that no fit writes, and the refusal.
WRONG = [
    ("sgd", ("loop", "n_epochs"), -1, "loop.n_epochs is -1, not a count"),
    ("sgd", ("rule", "plateau", "best"), "x", "rule.plateau.best is 'x', not of type float"),
    (
        "sgd",
        ("rule",),
        {},
        "rule lacks ['_best', '_best_value', '_has_converged', '_improved_at', '_losses', 'gain', 'plateau']",
    ),
    ("sgd", ("epochs", "more"), 1, "epochs has ['more']"),
    (
        "sgd",
        ("epochs", "ahead"),
        np.arange(1, 65)[None],
        "epochs.ahead is not a table whose rows are orders of",
    ),
    ("auto", ("rule", "_copy", "tensors"), {}, "rule._copy.tensors is not a table with the weights ['coef',"),
    ("auto", ("position", "n_batches"), 8, "position.n_batches is not below the 8 batches of the epoch"),
    ("auto", ("position", "losses"), np.ones(9), "position.losses is not an array of "),
    ("auto", ("position", "losses"), np.full(1, np.nan), "position.losses is not a vector of finite floats"),
    (
        "auto",
        ("position", "begun", "state", "eta"),
        math.nan,
        "position.begun.state.eta is nan, not a finite",
    ),
    (
        "blocks",
        ("position", "begun", "window"),
        (1, 0.0, 0.0),
        "position.begun.window is not the first batch of",
    ),
    ("batches", ("position", "n_batches"), 5, "position.n_batches is not one of the 4 batches"),
    ("batches", ("position", "begun", "weights"), [0.0], "position.begun.weights is not a list of "),
    ("batches", ("position", "begun", "t"), 99, "position.begun.t is not below "),
]


def test_entries_that_no_fit_writes_are_named(checkpoint, request):
    *_, content, tensors = checkpoint
    progress = TreeReader(tensors).read(content["progress"])
    for kind, way, value, said in WRONG:
        if kind == request.node.callspec.params["checkpoint"]:
            refusal = resume(checkpoint, forged(progress, way, value))
            assert refusal is not None, way
            assert said in refusal


def test_every_kind_of_position_has_a_wrong_one():
    assert {row[0] for row in WRONG if row[1][0] == "position"} == {"auto", "blocks", "batches"}
