"""Draw ``tilted_digits.svg``: digits of the first page, as the network reads them before and after."""

import re
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent


def results():
    """Run the first block of the first page up to the scores; return its names."""
    text = (FOLDER / "index.rst").read_text(encoding="utf-8")
    block = re.search(r"code-block:: python\n\n((?:   .*\n|\n)+?)   print", text)[1]
    names = {}
    exec("\n".join(line[3:] for line in block.splitlines()), names)
    return names


def draw(file):
    """Draw ten digits of the test data, each with the prediction before and after."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "index"
    found = results()
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


if __name__ == "__main__":
    draw(FOLDER / "tilted_digits.svg")
