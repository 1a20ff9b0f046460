"""Bombs: models and files of some bytes that declare, nest or unfold to very much.

Each is refused, or serves, within seconds and a gigabyte.
"""

import onnx
from calls import CALLS
from graph_bombs import GRAPHS
from rules import Trial, faults

#: Functions that bombs go through: all ways in, and passes that could unfold them.
_FUNCTIONS = (
    "get_train_initializer", "describe_trainable", "plot_graph", "add_loss_output", "onnx_derivative",
    "portable forward and backward", "check_gradients", "regressor",
)  # fmt: skip


def prepare():
    """Return the names of the bombs."""
    return list(GRAPHS)


def run(number, rng, names):
    """Yield the faults of one case: one bomb in one function."""
    name = names[number % len(names)]
    model = GRAPHS[name]()
    try:
        content = model.SerializeToString()
    except Exception:
        # nested deeper than files can be
        content = None
    for function in _FUNCTIONS if number < len(names) else [str(rng.choice(_FUNCTIONS))]:
        call, needs_model = CALLS[function]
        given = model if needs_model else content
        if given is None:
            continue
        yield from faults(
            Trial(f"{name} {function}", lambda call=call, given=given: call(given), given=(onnx.ModelProto(),), seconds=20.0, growth=1 << 30)
        )  # fmt: skip
