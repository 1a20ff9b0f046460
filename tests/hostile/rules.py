"""Rules for a call with hostile arguments: it works, or is refused in a sentence, and does no harm.

A :class:`Trial` is one call. :func:`faults` makes it and yields each rule that it breaks:

- it raises an error of the package, of scikit-learn's validation, or one that Python's own functions raise on
  purpose; no accident of a library, and no ``MemoryError``;
- the message is short, ends as a sentence, and names the argument;
- it takes seconds, and a bounded amount of memory;
- it warns at most some times, and lets no warning of numpy's arithmetic through;
- its arguments are unchanged after it;
- an estimator keeps what it has learned if the call is refused;
- finite arguments give finite results, unless there was a warning.
"""

import linecache
import re
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from onnxsgd.exceptions import ConvergenceError, OnnxSGDError

#: The longest message that is a sentence, and the most warnings of one call.
LONGEST, MOST_LINES, MOST_WARNINGS = 1200, 6, 8
#: Files whose ``raise`` statements are refusals made on purpose.
_OWN = ("/onnxsgd/", "/sklearn/")
#: Errors that users expect of a refusal.
_EXPECTED = (OnnxSGDError, NotFittedError, ValueError, TypeError, OSError, AttributeError)


@dataclass
class Trial:
    """A call, and the rules that need more than its result.

    Attributes
    ----------
    title : str
        The function and its arguments, for a reader.
    call : callable
        The call, without arguments.
    given : tuple
        Objects that it must not change.
    estimator : estimator or None
        The estimator whose method it is; it has been fitted.
    names : tuple of str
        The message of a refusal holds one of these words; empty: any message will do.
    is_finite : bool
        Whether all arguments are finite, so that the results must be.
    is_legal : bool or None
        Whether the documentation accepts the arguments; None: that is not known here.
    seconds : float
        The processor time that it may take.
    growth : int
        The bytes by which the process may grow.
    """

    title: str
    call: object
    given: tuple = ()
    estimator: object = None
    names: tuple = ()
    is_finite: bool = False
    is_legal: bool | None = None
    seconds: float = 30.0
    growth: int = 1 << 30
    result: object = None
    error: BaseException | None = None
    warned: list = field(default_factory=list)

    @property
    def was_refused(self):
        return self.error is not None


def faults(trial):
    """Make the call; yield the rules that it breaks, as text."""
    given, learned = [fingerprint(item) for item in trial.given], _learned(trial.estimator)
    before, begin = _reset_peak(), time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trial.result = trial.call()
        except Exception as error:
            trial.error = error
        trial.warned = list(caught)
    seconds, grown = time.process_time() - begin, _peak() - before
    if seconds > trial.seconds:
        yield f"{trial.title}: took {seconds:.1f} s"
    if grown > trial.growth:
        yield f"{trial.title}: took {grown >> 20} MiB"
    # NaN comes with a warning of numpy, and a refusal without one
    is_told = trial.error is None and not is_finite(trial.result)
    for fault in [] if is_told else _of_warnings(trial.warned):
        yield f"{trial.title}: {fault}"
    if [fingerprint(item) for item in trial.given] != given:
        yield f"{trial.title}: an argument was changed"
    if trial.error is not None:
        for fault in of_error(trial.error, trial.names):
            yield f"{trial.title}: {fault}"
        if trial.is_legal:
            yield f"{trial.title}: refused, though it is documented: {str(trial.error)[:200]!r}"
        if learned is not None and not isinstance(trial.error, ConvergenceError):
            lost = _changed(learned, _learned(trial.estimator))
            if lost:
                yield f"{trial.title}: refused, and yet {lost} changed ({str(trial.error)[:80]!r})"
    else:
        if trial.is_legal is False:
            yield f"{trial.title}: accepted, though it is not documented"
        if trial.is_finite and not trial.warned and not is_finite(trial.result):
            yield f"{trial.title}: the result is not finite, without a warning"


def of_error(error, names=(), longest=LONGEST):
    """Yield the faults of an error: its kind, its origin and its message."""
    text, kind = str(error), type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [f"{f.filename.rpartition('onnxsgd/')[2]}:{f.lineno}" for f in frames if "/onnxsgd/" in f.filename]
    shown = f"{kind} {text[:200]!r} at {own[-2:]}"
    if not isinstance(error, _EXPECTED):
        yield f"foreign error: {shown}"
    elif not isinstance(error, OnnxSGDError | OSError) and not _is_raised_on_purpose(frames):
        yield f"accident: {shown} in {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}"
    if len(text) > longest or text.count("\n") >= MOST_LINES:
        yield f"long message: {shown}"
    elif len(text) < 20:
        yield f"no sentence: {shown}"
    if (
        names
        and not isinstance(error, AttributeError)
        and not any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in names)
    ):
        yield f"the message names none of {list(names)[:6]}: {shown}"


def _is_raised_on_purpose(frames):
    """Tell whether the last frame of the package or of scikit-learn is a ``raise`` statement."""
    last = frames[-1]
    if not any(part in last.filename for part in _OWN):
        return False
    # the line of a statement of several lines is one of the middle, for some versions of Python
    lines = [
        linecache.getline(last.filename, number).strip()
        for number in range(last.lineno, last.lineno - 12, -1)
    ]
    return any(line.startswith("raise") for line in lines)


def _of_warnings(caught):
    if len(caught) > MOST_WARNINGS:
        yield f"{len(caught)} warnings, such as {str(caught[0].message)[:150]!r}"
    for warning in caught:
        if issubclass(warning.category, RuntimeWarning) and "/sklearn/" not in warning.filename:
            place = f"{Path(warning.filename).name}:{warning.lineno}"
            yield f"a warning of arithmetic at {place}: {str(warning.message)[:150]!r}"
            return


def is_finite(value):
    """Tell whether a result holds no NaN and no infinity."""
    if isinstance(value, BaseEstimator):
        value = value.get_weights()
    if isinstance(value, Mapping):
        return all(is_finite(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(is_finite(item) for item in value)
    if sparse.issparse(value):
        value = value.data
    if isinstance(value, np.ndarray | np.generic | float) and np.asarray(value).dtype.kind in "fc":
        return bool(np.isfinite(value).all())
    return True


def fingerprint(value):
    """Return the contents of a value, to be compared."""
    if isinstance(value, np.ma.MaskedArray):
        return "masked", fingerprint(np.ma.getdata(value)), fingerprint(np.ma.getmaskarray(value))
    if isinstance(value, np.ndarray):
        # views of one number are larger than the memory
        some = value if value.nbytes < 1 << 28 else value[(slice(16),) * value.ndim]
        content = repr(some.tolist()) if value.dtype.hasobject else some.tobytes()
        return (
            type(value).__name__,
            value.dtype.str,
            value.shape,
            value.strides,
            value.flags.writeable,
            content,
        )
    if sparse.issparse(value):
        parts = {name: part for name, part in vars(value).items() if isinstance(part, np.ndarray)}
        return value.format, value.shape, fingerprint(parts)
    if isinstance(value, onnx.ModelProto):
        return value.SerializeToString(deterministic=True)
    if type(value).__module__.startswith(("pandas", "polars")):
        names = [str(name) for name in getattr(value, "columns", [])]
        return type(value).__name__, names, repr(np.asarray(value, dtype=object).tolist())
    if isinstance(value, Mapping):
        return [(repr(key), fingerprint(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [fingerprint(item) for item in value]
    if isinstance(value, bytes | str | int | float):
        return value
    return object.__repr__(value)


def _learned(estimator):
    """Return what an estimator has learned; None if it is none."""
    if estimator is None or not hasattr(estimator, "_state"):
        return None
    known = {
        name: fingerprint(value)
        for name, value in vars(estimator).items()
        if name.endswith("_") and not name.startswith("_")
    }
    try:
        weights = fingerprint(estimator.get_weights())
    except ValueError:
        # a parameter that is refused, such as average
        weights = None
    return known | {"weights": weights, "t": estimator.t_, "loss_curve": list(estimator.loss_curve_)}


def _changed(before, after):
    return sorted(name for name in {*before, *(after or {})} if before.get(name) != (after or {}).get(name))


def _reset_peak():
    """Begin to measure the largest size of the process; return the present one."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 1 << 62
    return _status("VmRSS")


def _peak():
    return _status("VmHWM")


def _status(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return 0
