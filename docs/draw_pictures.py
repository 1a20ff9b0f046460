"""Draw the pictures of the pages into ``docs/pictures``, from the code on these pages.

A build draws them anew.
"""

import re
from pathlib import Path

import numpy as np

from onnxsgd import OnnxSGDRegressor, plot_graph

FOLDER = Path(__file__).resolve().parent
PICTURES = FOLDER / "pictures"


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


def draw_training(file):
    """Draw the training of the page "Watching a training"."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "watching"
    figure = names_of("guide/watching.rst")["display"].figure_
    figure.set_facecolor("white")
    figure.savefig(file, metadata={"Date": None})


def draw_stages():
    """Draw the four graphs of the page "How it works"."""
    learner = OnnxSGDRegressor(names_of("how_it_works.rst")["network"], learning_rate="constant")
    for stage in ("model", "loss", "gradient", "step"):
        plot_graph(learner, stage=stage).save(PICTURES / f"stage_{stage}.svg")


def draw():
    """Draw all of them."""
    PICTURES.mkdir(exist_ok=True)
    draw_tilted_digits(PICTURES / "tilted_digits.svg")
    draw_training(PICTURES / "training_display.svg")
    draw_stages()


if __name__ == "__main__":
    draw()
