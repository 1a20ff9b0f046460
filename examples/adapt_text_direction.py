"""
Adapt a classifier of text direction to handwriting
====================================================

A tool for reading text in pictures, exported from PaddlePaddle, holds a small convolutional network that
detects lines of text that are upside down. It was made for print. Here it learns, from lines of handwritten
digits of low resolution,

- to detect their direction: all weights are trained;
- to recognise mirrored lines as well, a class that it does not have: a new layer on the frozen network.
"""

import numpy as np
import onnxruntime
from sklearn.datasets import load_digits
from wheels import file_of_wheel

from onnxsgd import OnnxSGDClassifier, describe_trainable

PACKAGE = "rapidocr-onnxruntime==1.4.4"
MEMBER = "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
#: The input of the last layer of the network.
FEATURES = "reshape2_0.tmp_0"

DIGITS = load_digits().images / 16


# %%
# Lines of eight digits, dark on light, as the network takes them: three equal channels of 48 x 192, from -1
# to 1. Those for training and those for measuring show different digits.
def make_line(images):
    line = np.ones((48, 192))
    line[8:40] -= 2 * np.kron(np.concatenate(list(images), axis=1), np.ones((4, 3)))
    return line


DIRECTIONS = {
    "0": lambda line: line,
    "180": lambda line: line[::-1, ::-1],
    "mirrored": lambda line: line[:, ::-1],
}


def make_lines(n_lines, digits, directions, seed):
    rng = np.random.default_rng(seed)
    y = rng.choice(directions, size=n_lines)
    lines = [DIRECTIONS[name](make_line(rng.choice(digits, size=8))) for name in y]
    return np.repeat(np.float32(lines)[:, None], 3, axis=1), y


def main():
    path = file_of_wheel(PACKAGE, MEMBER)
    report = describe_trainable(path)
    print(
        f"{len(report.trained)} of {len(report.tensors)} tensors are trained, such as {report.trained[:3]}\n"
    )

    # %%
    # The direction of handwriting, with the two existing outputs.
    X, y = make_lines(320, DIGITS[:1200], ["0", "180"], seed=0)
    X_test, y_test = make_lines(200, DIGITS[1200:], ["0", "180"], seed=1)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    before = np.mean(np.array(["0", "180"])[session.run(None, {"x": X_test})[0].argmax(axis=1)] == y_test)
    tuned = OnnxSGDClassifier(
        path, classes=["0", "180"], optimizer="adam", learning_rate="constant", eta0=1e-3, batch_size=16,
        max_iter=2, tol=None, random_state=0,
    ).fit(X, y)  # fmt: skip
    print(f"direction: accuracy {before:.3f} before, {tuned.score(X_test, y_test):.3f} after")

    # %%
    # Three classes: the network trained so far is frozen, the third class is learned on top of it.
    X, y = make_lines(320, DIGITS[:1200], list(DIRECTIONS), seed=2)
    X_test, y_test = make_lines(200, DIGITS[1200:], list(DIRECTIONS), seed=3)
    before = np.mean(tuned.predict(X_test) == y_test)
    head = OnnxSGDClassifier(
        tuned.to_onnx(), output=FEATURES, head="linear", optimizer="adam", learning_rate="constant",
        eta0=0.01, max_iter=50, tol=None, random_state=0,
    ).fit(X, y)  # fmt: skip
    print(f"with mirrored lines: accuracy {before:.3f} before, {head.score(X_test, y_test):.3f} after")


if __name__ == "__main__":
    main()
