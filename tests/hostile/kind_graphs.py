"""Mutated models through every public function that takes one."""

from calls import CALLS
from mutations import mutate, parse
from rules import Trial, faults
from seed_models import seed_models

from onnxsgd.exceptions import OnnxSGDError


def prepare():
    """Return the serialized models that cases mutate."""
    return seed_models()


def run(number, rng, seeds):
    """Yield the faults of one case."""
    name = sorted(seeds)[number % len(seeds)]
    content = mutate(seeds[name], rng)
    for function, (call, needs_model) in CALLS.items():
        model = parse(content) if needs_model else content
        if model is None:
            continue
        trial = Trial(
            f"{name} {function}", lambda call=call, model=model: call(model), given=(model,), seconds=60.0
        )
        for fault in faults(trial):
            # runtimes warn of arithmetic in graphs that no one would write
            if "a warning of arithmetic" not in fault and not _is_of_kinks(trial.error):
                yield fault
        if trial.was_refused and not isinstance(trial.error, OnnxSGDError):
            yield f"{trial.title}: {type(trial.error).__name__} is no error of the package"


def _is_of_kinks(error):
    """Tell of check_gradients whether numbers of a mutated graph differ, as they do at its kinks."""
    return isinstance(error, OnnxSGDError) and isinstance(error, AssertionError)
