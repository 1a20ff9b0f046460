"""Draw the picture of the README, ``docs/_static/drift.svg``: ``python docs/draw_drift.py``.

A network was fitted on upright digits. The camera turns, by two degrees with each batch of 50 pictures,
and stays at 60 degrees. The network as it was fitted is drawn beside the one that trains on each batch. The
file is kept, for readers of the README in the repository; ``tests/test_pages.py`` compares its numbers.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PICTURE = Path(__file__).resolve().parent / "_static" / "drift.svg"

#: The angle of the camera at each batch: upright, turning, still.
ANGLES = np.concatenate([np.zeros(15), np.arange(2.0, 60.0, 2.0), np.full(36, 60.0)])
#: The batches above which the digits from 0 to 9 are shown.
SHOWN = np.linspace(4, len(ANGLES) - 5, 10).astype(int)

#: Of each colour, the one on a dark page.
_DARK = {
    "#ffffff": "#0d1117", "#1f2328": "#e6edf3", "#59636e": "#9198a1", "#d1d9e0": "#3d444d",
    "#eef1f4": "#1b222b", "#0072b2": "#56b4e9", "#c04a00": "#f0a050",
}  # fmt: skip
_PAGE, _INK, _GREY, _LINE, _BAND, _LEARNS, _FIXED = _DARK


@dataclass(frozen=True)
class Stream:
    """Accuracies of both networks at each batch; a picture of each digit with both predictions."""

    fixed: list
    learns: list
    shown: list

    @property
    def summary(self):
        """The numbers that the picture states."""
        return (
            f"accuracy on upright digits: {self.fixed[0]:.2f}; turned by 60 degrees: "
            f"{self.fixed[-1]:.2f} as fitted, {self.learns[-1]:.2f} with partial_fit on each batch"
        )


def follow():
    """Train on the stream; score both networks on other digits at the angle of each batch."""
    from scipy.ndimage import rotate
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    from onnxsgd import OnnxSGDClassifier

    def turn(X, degrees):
        images = rotate(X.reshape(-1, 8, 8), degrees, axes=(2, 1), reshape=False, order=1)
        return images.reshape(-1, 64)

    X, y = load_digits(return_X_y=True)
    X_first, X_later, y_first, y_later = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)
    X_new, X_test, y_new, y_test = train_test_split(X_later, y_later, test_size=300, random_state=0)
    network = MLPClassifier((64,), random_state=0).fit(X_first, y_first)
    learner = OnnxSGDClassifier(network, random_state=0)
    rng = np.random.default_rng(0)
    fixed, learns, shown = [], [], []
    for number, angle in enumerate(ANGLES):
        batch = rng.choice(len(X_new), 50, replace=False)
        learner.partial_fit(turn(X_new[batch], angle), y_new[batch])
        seen = turn(X_test, angle)
        fixed.append(network.score(seen, y_test))
        learns.append(learner.score(seen, y_test))
        if number in SHOWN:
            image = seen[y_test == len(shown)][:1]
            guesses = [int(model.predict(image)[0]) for model in (network, learner)]
            shown.append((image.reshape(8, 8), *guesses))
    return Stream(fixed, learns, shown)


def draw(stream, file):
    """Draw a stream, in colours for light and for dark pages."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings = {"svg.fonttype": "none", "svg.hashsalt": "drift", "font.size": 11, "text.color": _INK}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(9, 4), facecolor=_PAGE)
        axes = figure.add_axes((0.085, 0.125, 0.9, 0.49))
        _draw_curves(axes, stream)
        _draw_digits(figure, axes, stream)
        figure.savefig(file, metadata={"Date": None, "Description": stream.summary})
    file.write_text(_with_dark_colours(file.read_text(encoding="utf-8")), encoding="utf-8")


def _draw_curves(axes, stream):
    turning = np.flatnonzero((ANGLES > 0) & (ANGLES < 60))
    first, last = turning[0] + 0.5, turning[-1] + 2
    axes.axvspan(first, last, color=_BAND, lw=0)
    batches = np.arange(1, len(ANGLES) + 1)
    axes.plot(batches, stream.learns, color=_LEARNS, lw=2.4)
    axes.plot(batches, stream.fixed, "--", color=_FIXED, lw=2.4)
    for middle, text in (
        (first / 2, "a model that works"),
        ((first + last) / 2, "the camera turns by 60°"),
        ((last + len(ANGLES)) / 2, "it stays there"),
    ):
        axes.text(middle, 1.045, text, ha="center", color=_GREY)
    end = len(ANGLES) - 0.6
    for height, text, accuracies, color in (
        (min(stream.learns[-32:]) - 0.18, "partial_fit on each batch", stream.learns, _LEARNS),
        (stream.fixed[-1] + 0.08, "as it was fitted", stream.fixed, _FIXED),
    ):
        axes.text(end, height, f"{text}: {accuracies[-1]:.0%} right", color=color, ha="right", weight="bold")
    axes.set(xlim=(0.5, len(ANGLES) + 0.5), ylim=(0, 1.02), facecolor="none")
    axes.set_xlabel("batches of 50 pictures", color=_GREY)
    axes.set_ylabel("accuracy", color=_GREY)
    axes.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
    axes.tick_params(colors=_GREY, length=0)
    axes.grid(axis="y", color=_LINE, lw=0.8)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw_digits(figure, axes, stream):
    left, _, width, _ = axes.get_position().bounds
    for label, (batch, (image, fixed, learns)) in enumerate(zip(SHOWN, stream.shown, strict=True)):
        middle = left + width * (batch + 0.5) / len(ANGLES)
        place = figure.add_axes((middle - 0.03, 0.84, 0.06, 0.06 * 9 / 4))
        place.imshow(image, cmap="gray_r", interpolation="none")
        place.axis("off")
        for height, guess, color in ((0.79, learns, _LEARNS), (0.735, fixed, _FIXED)):
            mark = "✓" if guess == label else "✗"
            figure.text(middle, height, f"{guess} {mark}", color=color, ha="center")


def _with_dark_colours(text):
    """Add rules for dark pages: matplotlib writes colours into each element."""
    rules = [
        f'[style*="{name}: {light}"]{{{name}:{dark}!important}}'
        for light, dark in _DARK.items()
        for name in ("fill", "stroke")
    ]
    style = f"<style>@media (prefers-color-scheme:dark){{{''.join(rules)}}}</style>"
    return re.sub(r"(<svg[^>]*>)", rf"\1\n {style}", text, count=1)


if __name__ == "__main__":
    stream = follow()
    print(stream.summary)
    draw(stream, PICTURE)
