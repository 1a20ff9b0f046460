"""``set_weights`` with every kind of value, before and after a fit, and what follows it."""

import copy
import math
from collections import OrderedDict, UserDict
from types import MappingProxyType

import numpy as np
import pandas as pd
from rules import Trial, faults
from scipy import sparse
from seed_models import TEXTS, _model

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

#: From an array of the right shape, the value of a weight; and True where it is to be accepted.
VALUES = {
    "itself": (lambda a: a, True),
    "float64": (lambda a: a.astype(np.float64), True),
    "float16": (lambda a: a.astype(np.float16), True),
    "longdouble": (lambda a: a.astype(np.longdouble), True),
    "big-endian": (lambda a: a.astype(">f8"), True),
    "integers": (lambda a: np.ones(a.shape, int), True),
    "uint8": (lambda a: np.ones(a.shape, np.uint8), True),
    "lists": (lambda a: a.tolist(), True),
    "Fortran order": (np.asfortranarray, True),
    "a view of one number": (lambda a: np.broadcast_to(np.float32(0.5), a.shape), True),
    "reversed strides": (lambda a: a[::-1] if a.ndim else a, True),
    "read-only": (lambda a: _read_only(a), True),
    "booleans": (lambda a: np.ones(a.shape, bool), None),
    "objects of floats": (lambda a: a.astype(object), None),
    "a masked array": (lambda a: np.ma.masked_array(a, np.ones(a.shape, bool)), False),
    "a matrix": (lambda a: np.asmatrix(a) if a.ndim <= 2 else a, None),
    "a frame": (lambda a: pd.DataFrame(a) if a.ndim == 2 else pd.Series(np.ravel(a)), None),
    "sparse": (lambda a: sparse.csr_array(np.atleast_2d(a)) if a.ndim <= 2 else a, None),
    "denormals": (lambda a: np.full(a.shape, 1e-310), True),
    "1e30": (lambda a: np.full(a.shape, 1e30), None),
    "1e300": (lambda a: np.full(a.shape, 1e300), None),
    "NaN": (lambda a: np.full(a.shape, math.nan), False),
    "infinity": (lambda a: np.full(a.shape, -math.inf), False),
    "complex": (lambda a: a.astype(complex), False),
    "strings": (lambda a: a.astype(str), False),
    "bytes": (lambda a: b"x", False),
    "dates": (lambda a: a.astype("datetime64[s]"), False),
    "None": (lambda a: None, False),
    "an array of None": (lambda a: np.full(a.shape, None), False),
    "pd.NA": (lambda a: np.full(a.shape, pd.NA), False),
    "a set": (lambda a: {1.0}, False),
    "an object": (lambda a: object(), False),
    "a function": (lambda a: len, False),
    "empty": (lambda a: np.empty(0), False),
    "ragged": (lambda a: [[1.0], [1.0, 2.0]], False),
    "another axis": (lambda a: np.ones((*a.shape, 2)), False),
    "huge": (lambda a: np.broadcast_to(np.float32(1), (1 << 20, 1 << 20)), False),
    "a dict": (lambda a: {"a": 1}, False),
    "structured": (lambda a: np.zeros(a.shape, "f4, i4"), False),
    "10**400": (lambda a: 10**400, False),
}
#: The container of the weights, from a dictionary; and True where it is to be accepted.
CONTAINERS = {
    "dict": (lambda d: d, True),
    "OrderedDict": (OrderedDict, True),
    "UserDict": (UserDict, True),
    "mapping proxy": (MappingProxyType, True),
    "None": (lambda d: None, False),
    "a list": (lambda d: list(d.values()), False),
    "pairs": (lambda d: list(d.items()), False),
    "an array": (lambda d: next(iter(d.values())), False),
    "True": (lambda d: True, False),
    "a number": (lambda d: 1.5, False),
    "complex": (lambda d: 1j, False),
    "a string": (lambda d: "coef", False),
    "a frame": (lambda d: pd.DataFrame({"coef": [1.0]}), False),
    "number keys": (lambda d: {0: next(iter(d.values()))}, False),
    "None key": (lambda d: {None: next(iter(d.values()))}, False),
    "tuple key": (lambda d: {("coef", 0): next(iter(d.values()))}, False),
    "unknown name": (lambda d: {"no such weight": next(iter(d.values()))}, False),
    "long name": (lambda d: {"w" * 100_000: next(iter(d.values()))}, False),
    "empty": (lambda d: {}, True),
}


def _read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def prepare():
    """Return fitted estimators with their data."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 4)).astype(np.float32)
    y = X @ np.array([1.0, -2.0, 0.5, 1.0])
    mlp = _model(*TEXTS["mlp"])
    normalized = _model(*TEXTS["normalized"])
    X3, y3 = rng.normal(size=(30, 3, 4)).astype(np.float32), rng.normal(size=(30, 3, 2))
    return {
        "linear": (OnnxSGDRegressor(max_iter=2, random_state=0).fit(X, y), X, y),
        "averaged": (OnnxSGDRegressor(max_iter=2, average=True, random_state=0).fit(X, y), X, y),
        "classes": (OnnxSGDClassifier(max_iter=2, random_state=0).fit(X, np.digitize(y, [-1, 1])), X, np.digitize(y, [-1, 1])),
        "network": (OnnxSGDRegressor(mlp, max_iter=2, random_state=0).fit(X, np.c_[y, y]), X, np.c_[y, y]),
        "network before its fit": (OnnxSGDRegressor(mlp, max_iter=2, random_state=0), X, np.c_[y, y]),
        "normalized": (OnnxSGDRegressor(normalized, max_iter=2, batch_norm="train", random_state=0).fit(X3, y3), X3, y3),
        "float64": (OnnxSGDRegressor(max_iter=2, dtype="float64", random_state=0).fit(X, y), X, y),
    }  # fmt: skip


def run(number, rng, prepared):
    """Yield the faults of one case."""
    name = sorted(prepared)[number % len(prepared)]
    estimator, X, y = prepared[name]
    estimator = copy.deepcopy(estimator)
    present = estimator.get_weights()
    kind, container = str(rng.choice(list(VALUES))), "dict"
    if rng.random() < 0.3:
        kind, container = "itself", str(rng.choice(list(CONTAINERS)))
    chosen = [str(n) for n in rng.permutation(list(present))[: rng.integers(1, len(present) + 1)]]
    value, value_is_legal = VALUES[kind]
    wrap, is_container_legal = CONTAINERS[container]
    weights = wrap({key: value(present[key]) for key in chosen})
    is_legal = is_container_legal and value_is_legal
    title = f"set_weights of {name}: {kind} in {container} for {chosen}"
    trial = Trial(
        title, lambda: estimator.set_weights(weights), given=(weights,), estimator=estimator, is_legal=is_legal,
        names=("weights", "weight", *chosen, *map(str, [0, None])), growth=1 << 28,
    )  # fmt: skip
    yield from faults(trial)
    if trial.was_refused:
        return
    if is_legal and container in ("dict", "OrderedDict", "UserDict", "mapping proxy"):
        found = estimator.get_weights()
        for key in chosen:
            given = np.asarray(weights[key], np.float64)
            if not np.array_equal(found[key], given.astype(found[key].dtype).reshape(found[key].shape)):
                yield f"{title}: get_weights returns another {key}"
    for method, given in {"predict": (X,), "score": (X, y), "to_onnx": (), "partial_fit": (X, y)}.items():
        call = getattr(estimator, method)
        yield from faults(
            Trial(f"{title}, then {method}", lambda call=call, given=given: call(*given), estimator=estimator)
        )
