"""
A small network learns from a large forest
==========================================

A network of four kilobytes learns the probabilities of a forest of five megabytes.

This is distillation. Labels are few, but a fitted model gives probabilities for any row, and a smaller one
learns from as many rows as there are. The small file is the one for a browser, a phone or a sensor.
"""

import matplotlib.pyplot as plt
import numpy as np
import onnx
from onnx.parser import parse_model
from skl2onnx import to_onnx
from sklearn.datasets import make_classification
from sklearn.ensemble import ExtraTreesClassifier

from onnxsgd import OnnxSGDClassifier, losses

# %%
# Four classes, each in four clusters. 600 rows have a label, 20,000 have none, and 5,000 are for the test.
X, y = make_classification(
    25_600,
    n_informative=6,
    n_classes=4,
    n_clusters_per_class=4,
    flip_y=0,
    class_sep=2,
    random_state=0,
)
X_labelled, X_free, X_test = np.split(X.astype(np.float32), [600, 20_600])
y_labelled, _, y_test = np.split(y, [600, 20_600])

# %%
# The teacher: 300 trees, fitted on the rows with a label. The size is that of its ONNX file.
teacher = ExtraTreesClassifier(300, max_features=None, random_state=0).fit(X_labelled, y_labelled)
teacher_size = len(to_onnx(teacher, X_labelled[:1]).SerializeToString()) / 1e3
teacher_accuracy = teacher.score(X_test, y_test)
print(f"teacher: accuracy {teacher_accuracy:.2f}, {teacher_size:.0f} kB")


# %%
# The student: a network with one hidden layer and random weights, written as a graph.
def student(width):
    network = parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    student (float[N, 20] rows) => (float[N, 4] scores) {
        sums = Gemm(rows, hidden, hidden_bias)
        active = Relu(sums)
        scores = Gemm(active, last, last_bias)
    }""")
    rng = np.random.default_rng(0)
    for name, shape in {"hidden": (20, width), "last": (width, 4)}.items():
        weight = rng.normal(scale=np.sqrt(2 / shape[0]), size=shape).astype(np.float32)
        bias = np.zeros(shape[1], np.float32)
        network.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
        network.graph.initializer.append(onnx.numpy_helper.from_array(bias, f"{name}_bias"))
    return network


# %%
# It trains with default settings. ``CrossEntropy(soft=True)`` takes a row of probabilities for each sample
# in place of a label.
probabilities = teacher.predict_proba(X_free)


def distil(width, n_rows):
    learner = OnnxSGDClassifier(student(width), loss=losses.CrossEntropy(soft=True), random_state=0)
    return learner.fit(X_free[:n_rows], probabilities[:n_rows])


def fit_labels(width, X, y):
    return OnnxSGDClassifier(student(width), random_state=0).fit(X, y)


# %%
# Three students of 32 hidden units: one learns the 600 labels that are given, one the labels that the
# teacher predicts for the other rows, and one its probabilities for these rows.
counts = [500, 1000, 2000, 5000, 10_000, 20_000]
predicted = teacher.predict(X_free)
given = fit_labels(32, X_labelled, y_labelled).score(X_test, y_test)
curves = {
    "probabilities of the teacher": [distil(32, n).score(X_test, y_test) for n in counts],
    "labels of the teacher": [
        fit_labels(32, X_free[:n], predicted[:n]).score(X_test, y_test) for n in counts
    ],
}
print(f"student, given labels: accuracy {given:.2f}")
for name, values in curves.items():
    print(f"student, {name}: accuracy", *(f"{value:.2f}" for value in values))

# %%
# Students of other sizes, with probabilities for all rows.
widths = [4, 8, 16, 32]
students = [distil(width, len(X_free)) for width in widths]
sizes = [len(learner.to_onnx().SerializeToString()) / 1e3 for learner in students]
accuracy = [learner.score(X_test, y_test) for learner in students]
for width, size, value in zip(widths, sizes, accuracy, strict=True):
    print(f"{width} hidden units: {size:.1f} kB, accuracy {value:.2f}")

# %%
# A row of probabilities tells more than a label: which other classes are near, and how near. That counts
# most while rows are few. With all rows the student is nearly as good as its teacher, and much better than
# the one that learned the given labels.
plt.style.use("tableau-colorblind10")
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), sharey=True, layout="constrained")
for ax in (left, right):
    ax.axhline(teacher_accuracy, color="black", ls="--", label="teacher")
    ax.axhline(given, color="C3", ls=":", lw=2, label="student, 600 given labels")
    ax.grid(alpha=0.3)
styles = zip(curves.items(), ("C0", "C1"), ("o-", "s-."), strict=True)
for (name, values), color, marker in styles:
    left.semilogx(counts, values, marker, color=color, lw=2, label=f"student, {name}")
left.set(
    xlabel="rows without a label",
    ylabel="accuracy on 5,000 other rows",
    title=f"{given:.0%} right with given labels, {accuracy[3]:.0%} with the teacher",
)
left.set_xticks(counts, [f"{n:,}" for n in counts])
left.minorticks_off()
left.legend(loc="lower right")
right.semilogx(sizes, accuracy, "o-", color="C0", lw=2)
for width, size, value in zip(widths, sizes, accuracy, strict=True):
    beside = (9, -4 if width == widths[-1] else -12)
    right.annotate(f"{width} units", (size, value), beside, textcoords="offset points")
right.semilogx(teacher_size, teacher_accuracy, "D", color="black")
right.annotate(
    "300 trees", (teacher_size, teacher_accuracy), (0, -18), textcoords="offset points", ha="center"
)
right.set(
    xlabel="size of the ONNX file",
    xlim=(0.5, 20_000),
    title=f"{sizes[3]:.0f} kB instead of {teacher_size / 1e3:.0f} MB",
)
right.set_xticks([1, 10, 100, 1000, 10_000], ["1 kB", "10 kB", "100 kB", "1 MB", "10 MB"])
right.minorticks_off()
plt.show()
