"""Draw the pictures of the pages into ``docs/pictures``, from the code on these pages.

A build draws them anew.
"""

import itertools
import re
from pathlib import Path

import numpy as np
import onnxruntime
from onnx.parser import parse_model

from onnxsgd import DerivativeOptions, OnnxSGDRegressor, add_loss_output, onnx_derivative, plot_graph
from onnxsgd.losses import CLASSIFICATION_LOSSES, REGRESSION_LOSSES
from onnxsgd.schedules import SCHEDULES, ReduceOnPlateau, make_schedule

FOLDER = Path(__file__).resolve().parent
PICTURES = FOLDER / "pictures"
README_GRAPH = FOLDER / "_static" / "pipeline.svg"

#: A model whose output is its input: the raw prediction.
IDENTITY = parse_model("""
<ir_version: 8, opset_import: ["" : 17]>
identity (double[N, K] x) => (double[N, K] raw_prediction) { raw_prediction = Identity(x) }""")
#: Pictures of losses: the table, and the largest raw prediction and value shown.
LOSSES = {"regression": (REGRESSION_LOSSES, 1.2, 1.2), "classification": (CLASSIFICATION_LOSSES, 2.4, 4.4)}
#: Updates of an epoch in the pictures of schedules.
_BATCHES = 40
#: Their colours on light and on dark pages: text, other losses, value and gradient. Blue and orange differ
#: for colour-blind readers, and a broken line is the gradient in print.
THEMES = {
    "light": ("#222222", "#d5d5d5", "#006ba4", "#c85200"),
    "dark": ("#e4e4e4", "#4a4f57", "#5fb7ee", "#ffa95c"),
}


def names_of(page):
    """Run the first block of a page, up to its first output; return its names."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    block = re.search(r"code-block:: python\n\n((?:   .*\n|\n)+?)   print", text)[1]
    names = {}
    exec("\n".join(line[3:] for line in block.splitlines()), names)
    return names


def draw_tilted_digits(file):
    """Draw ten digits of the first page, as its network reads them before and after."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "index"
    found = names_of("index.rst")
    images, labels = found["tilted"][1400:1410], found["y"][1400:1410]
    before, after = (found[name].predict(images) for name in ("model", "learner"))
    figure = Figure(figsize=(10, 1.75), layout="constrained", facecolor="white")
    for axes, image, label, first, second in zip(
        np.ravel(figure.subplots(1, 10)), images, labels, before, after, strict=True
    ):
        axes.imshow(image.reshape(8, 8), cmap="gray_r")
        axes.set(xticks=[], yticks=[])
        for text, guess, height in (("before", first, -0.22), ("after", second, -0.5)):
            right = guess == label
            # the sign tells the colours apart for every reader
            axes.text(
                0.5, height, f"{text}: {guess} {'✓' if right else '✗'}",
                color="#00693e" if right else "#b2182b", ha="center", transform=axes.transAxes, fontsize=10,
            )  # fmt: skip
    figure.savefig(file, metadata={"Date": None}, bbox_inches="tight", pad_inches=0.08)


def draw_training(file, card_file):
    """Draw the training of the page "Watching a training", and its estimator as notebooks show it."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    from onnxsgd.estimators.card import write_card
    from onnxsgd.estimators.card_rows import read_card

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "watching"
    found = names_of("guide/watching.rst")
    figure = found["display"].figure_
    figure.set_facecolor("white")
    figure.savefig(file, metadata={"Date": None})
    # the first example of the gallery would show an open figure as its own
    plt.close(figure)
    Path(card_file).write_text(write_card(read_card(found["learner"])), encoding="utf-8")


def draw_stages():
    """Draw the four graphs of the page "How it works"."""
    learner = OnnxSGDRegressor(names_of("how_it_works.rst")["network"], learning_rate="constant")
    for stage in ("model", "loss", "gradient", "step"):
        plot_graph(learner, stage=stage).save(PICTURES / f"stage_{stage}.svg")


def loss_curves(loss, raw_predictions, y_true):
    """Return the value and the gradient of a loss at each raw prediction, computed by its graph."""
    graph = onnx_derivative(
        add_loss_output(IDENTITY, loss),
        weights=[], inputs=["x"], options=DerivativeOptions.Loss, loss="loss", label="label",
    )  # fmt: skip
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    # the other class of a loss that compares classes has the score 0, and a variance is 1
    count = len(loss.score_factors)
    first = np.eye(1, count + loss.is_joint)
    label = y_true * first[:, : first.shape[1] // count]
    # the loss is a sum over samples: one sample a run
    results = [session.run(["loss", "x_grad"], {"x": z * first, "label": label}) for z in raw_predictions]
    return np.array([[value.item(), slope[0, 0]] for value, slope in results]).T


def origin(kind, loss):
    """Return the axis of a loss, and the target that makes the raw prediction the quantity on this axis."""
    if kind == "classification":
        return "margin", 1.0
    return ("log(prediction / target)", 1.0) if loss.link == "log" else ("residual", 0.0)


def draw_loss(name, axis, curves, limits, colors, file):
    """Draw the value and the gradient of one loss, before the values of the others."""
    from matplotlib.figure import Figure

    text, others, first, second = colors
    (values, gradients), (furthest, highest) = curves[name], limits
    figure = Figure(figsize=(2.6, 2.1), layout="constrained")
    axes = figure.subplots()
    at = np.linspace(-furthest, furthest, len(values))
    axes.plot(at, np.transpose([other for other, _ in curves.values()]), color=others, lw=0.8)
    axes.plot(at, gradients, "--", color=second, lw=1.3)
    axes.plot(at, values, color=first, lw=2.2)
    axes.set(xlim=(-furthest, furthest), ylim=(-highest, highest))
    axes.set_title(name, color=text, fontsize=10)
    axes.set_xlabel(axis, color=text, fontsize=9)
    axes.tick_params(colors=text, labelsize=8)
    axes.locator_params(nbins=4)
    axes.spines[:].set_visible(False)
    axes.axhline(0, color=text, lw=0.6)
    axes.axvline(0, color=text, lw=0.6)
    figure.savefig(file, metadata={"Date": None}, transparent=True)


def draw_losses():
    """Draw the losses that the estimators accept by name, for light and for dark pages."""
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = "losses"
    for kind, (table, furthest, highest) in LOSSES.items():
        at = np.linspace(-furthest, furthest, 201)
        losses = {name: cls() for name, cls in table.items()}
        origins = {name: origin(kind, loss) for name, loss in losses.items()}
        curves = {name: loss_curves(loss, at, origins[name][1]) for name, loss in losses.items()}
        for name, (theme, colors) in itertools.product(losses, THEMES.items()):
            file = PICTURES / f"{kind}_{name}_{theme}.svg"
            draw_loss(name, origins[name][0], curves, (furthest, highest), colors, file)


def schedule_curves():
    """Return the rates of each named schedule in a fit of ten epochs, as shares of the largest one.

    Epochs 4 and 7 gain nothing. "auto" follows no formula.
    """
    curves = {}
    for name in SCHEDULES:
        if name == "auto":
            continue
        # strong penalties let "optimal" fall within a fit as short as this one
        schedule = make_schedule(name, 1.0, 0.25, 0.01)
        if name == "reduce_on_plateau":
            schedule = ReduceOnPlateau(1.0, factor=0.5, patience=0)
        schedule = schedule.for_updates(10 * _BATCHES)
        eta, memory, loss, rates = schedule.initial, (), 1.0, []
        for epoch in range(10):
            rates.extend(schedule.rates(1 + epoch * _BATCHES, eta, _BATCHES))
            gains = epoch not in (3, 6)
            loss = loss / 2 if gains else loss
            eta, memory = schedule.after_epoch(loss, rates[-1], memory)
            eta = eta if gains else schedule.after_plateau(eta) or eta
        curves[name] = np.array(rates) / max(rates)
    return curves


def draw_schedule(name, curves, colors, file):
    """Draw the rate of one schedule, before the rates of the others."""
    from matplotlib.figure import Figure

    text, others, first, _ = colors
    figure = Figure(figsize=(2.6, 1.9), layout="constrained")
    axes = figure.subplots()
    at = np.linspace(0, 1, len(curves[name]))
    axes.plot(at, np.transpose([*curves.values()]), color=others, lw=0.8)
    axes.plot(at, curves[name], color=first, lw=2.2)
    axes.set(xlim=(0, 1), ylim=(-0.03, 1.05), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    axes.set_title(name, color=text, fontsize=10)
    axes.set_xlabel("share of the fit", color=text, fontsize=9)
    axes.tick_params(colors=text, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.axhline(0, color=text, lw=0.6)
    figure.savefig(file, metadata={"Date": None}, transparent=True)


def draw_schedules():
    """Draw the schedules that the estimators accept by name, for light and for dark pages."""
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = "schedules"
    curves = schedule_curves()
    for name, (theme, colors) in itertools.product(curves, THEMES.items()):
        draw_schedule(name, curves, colors, PICTURES / f"schedule_{name}_{theme}.svg")


def draw_readme_graph(file):
    """Draw the graph of the pipeline of the README, which is kept in the repository."""
    readme = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    names = {}
    exec(re.search(r"```python\n(.*?learner = .*?)\n", readme, re.DOTALL)[1], names)
    plot_graph(names["learner"]).save(file)


def draw():
    """Draw all of them."""
    PICTURES.mkdir(exist_ok=True)
    draw_readme_graph(README_GRAPH)
    draw_tilted_digits(PICTURES / "tilted_digits.svg")
    draw_training(PICTURES / "training_display.svg", PICTURES / "card.html")
    draw_stages()
    draw_losses()
    draw_schedules()


if __name__ == "__main__":
    draw()
