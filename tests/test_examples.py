"""The examples run and print the promised output."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, folder):
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "MPLBACKEND": "agg"},
    )
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr
    return result.stdout


def numbers(text):
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def test_fine_tune_mlp(tmp_path):
    output = run("fine_tune_mlp.py", tmp_path)
    before, after = numbers(output.splitlines()[0])
    assert after > before + 0.1
    onnx.checker.check_model(onnx.load(tmp_path / "fine_tuned_mlp.onnx"))
    readme = (EXAMPLES.parent / "README.md").read_text()
    assert output.strip().splitlines()[1] in readme


def rows_of_numbers(text):
    """Return the numbers of each line that has any."""
    rows = [re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", line) for line in text.splitlines()]
    return [[float(number) for number in row] for row in rows if row]


def is_ascending(*values):
    return all(later > earlier for earlier, later in itertools.pairwise(values))


def _business_loss(squares, spare, custom):
    return custom[-2] < spare[-2] - 0.5 < squares[-2] - 5


def _calibration(before, all_weights, last):
    errors = is_ascending(last[0], 0.1, all_weights[0], before[0])
    return errors and is_ascending(last[1], all_weights[1], before[1]) and last[2] > before[2]


def _changed_weights(none, everything, coefs_0, intercepts_0, coefs_1, intercepts_1, *changes):
    most = [change[-1] for change in changes]
    return (
        everything[-1] > none[-1] + 0.2
        and none[-1] + 0.1 < intercepts_0[-1] < everything[-1]
        and most[1] == max(most)
        and most[1] > 3 * most[0]
    )


def _digits_drift(upright, turned):
    _, fitted, worst, end = turned
    return is_ascending(fitted, 0.3, worst, 0.85, end, 1.05 * upright[-1])


def _distillation(teacher, given, probabilities, labels, *widths):
    kilobytes, accuracy = zip(*(row[1:] for row in widths), strict=True)
    return (
        is_ascending(given[-1] + 0.05, probabilities[-1], teacher[0] + 0.02)
        and all(is_ascending(labels[n], probabilities[n], probabilities[-1]) for n in (0, 1))
        and is_ascending(accuracy[0], accuracy[1], accuracy[-1])
        and kilobytes[-1] < teacher[1] / 1000
    )


def _frozen_backbone(old, head, dense, pixels):
    return old[-1] > 0.9 and all(np.array(head) > pixels) and is_ascending(pixels[-1], head[-1], dense[-1])


def _grid_search(best, losses):
    return best[:2] == [40, 5] and losses[0] == pytest.approx(losses[1], rel=0.1)


def _memory_map(file, learned):
    return file == [96] and learned[0] > 0.81 and learned[1] < 10


def _onnx_in_onnx_out(*rows):
    return rows[-2][-1] < 0.6 and rows[-1][-1] > 0.95


def _quantile_bands(below, quantile, constant):
    close = np.allclose(below, [0.1, 0.5, 0.9], atol=0.05)
    return close and constant[0] > quantile[0] and quantile[2] > constant[2] + 0.05


def _quantized_adapter(old, int8, adapted, float_adapted, tuned, integers):
    # the 8 of "int8" is the first number of three lines
    accuracies = old[-1] > 0.95 and int8[-2] < 0.3 and min(adapted[-2], float_adapted[-2]) > 0.85
    sizes = int8[-1] < adapted[-1] < 0.5 * tuned[-1]
    return accuracies and sizes and tuned[-2] > 0.9 and integers[0] == integers[1] > 50000


def _rates_and_schedules(auto, large, middle, small, *others):
    losses = [row[-3] for row in (large, middle, small, *others)]
    return large[-1] < 0.5 and middle[-3] < small[-3] and auto[-3] < min(losses)


def _sentence_adapters(trained, base, first, second, films, phones, after_films, after_phones):
    domains = all(before < 0.7 and min(adapter, tuned) > 0.85 for before, adapter, tuned in (films, phones))
    kept = all(without > 0.95 and tuned < 0.75 for without, tuned in (after_films, after_phones))
    return domains and kept and 10 * trained[0] < trained[1] and 8 * max(first + second) < base[0]


def _segmentation(shares, background, network, classes):
    return (
        network[0] > background[0] + 0.2
        and network[1] > background[1] + 0.6
        and len(classes) == 4
        and network[1] == pytest.approx(np.mean(classes), abs=0.01)
    )


def _stream_drift(ours, scaled, raw):
    return is_ascending(raw[-1] + 0.2, scaled[-1], ours[-1])


def _text_l1(penalised, default):
    _, n_words, _, found, telling, accuracy = penalised
    return found == telling == 24 and n_words < 40 and accuracy > default[-1] + 0.02


#: The conclusions of the examples of the gallery, as conditions on the numbers in the lines that they print.
CONCLUSIONS = {
    "business_loss": _business_loss,
    "calibration": _calibration,
    "changed_weights": _changed_weights,
    "digits_drift": _digits_drift,
    "distillation": _distillation,
    "frozen_backbone": _frozen_backbone,
    "grid_search": _grid_search,
    "memory_map": _memory_map,
    "onnx_in_onnx_out": _onnx_in_onnx_out,
    "quantile_bands": _quantile_bands,
    "quantized_adapter": _quantized_adapter,
    "rates_and_schedules": _rates_and_schedules,
    "sentence_adapters": _sentence_adapters,
    "segmentation": _segmentation,
    "stream_drift": _stream_drift,
    "text_l1": _text_l1,
}
QUICK = ("business_loss", "calibration", "onnx_in_onnx_out")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CONCLUSIONS]
)
def test_gallery_conclusions_match_the_numbers(name, tmp_path):
    output = run(f"plot_{name}.py", tmp_path)
    assert CONCLUSIONS[name](*rows_of_numbers(output)), output
    assert not any(tmp_path.iterdir()), "files were left behind"


def test_every_example_of_the_gallery_draws_and_concludes():
    scripts = {path.stem.removeprefix("plot_"): path.read_text() for path in EXAMPLES.glob("plot_*.py")}
    assert scripts.keys() == CONCLUSIONS.keys()
    assert all("plt.show()" in script for script in scripts.values())


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("plot_*.py")), ids=lambda path: path.name)
def test_the_card_of_an_example_has_one_short_sentence(path):
    """The first paragraph; sphinx-gallery 0.18 cuts it after 95 characters."""
    sentence = path.read_text().split("\n\n")[1]
    assert len(sentence.replace("`", "")) <= 95
    assert re.fullmatch(r"[^.]*(\.[^ \n][^.]*)*\.", sentence), sentence


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_has_a_docstring(path):
    assert path.read_text().startswith('"""\n')
