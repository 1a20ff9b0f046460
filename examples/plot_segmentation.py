"""
Segmentation: a class for each pixel
====================================

A small network with skip connections marks circles, triangles and squares in noisy images.

``y`` has a label for each pixel. As in many data sets, pixels at an outline have none: nobody can tell on
which side of it they are.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from onnx import TensorProto, helper, numpy_helper
from sklearn.metrics import jaccard_score

from onnxsgd import OnnxSGDClassifier, losses

CLASSES = ["background", "circle", "triangle", "square"]
rng = np.random.default_rng(0)


# %%
# The images: shapes of any brightness, brighter than the background, that may hide each other. Brightness
# tells a shape from the background. It does not tell which shape it is: that takes the corners and the
# slope of the outline, from all around a pixel.
def draw(n_images, height, width, n_shapes):
    rows, columns = np.mgrid[:height, :width]
    images = np.empty((n_images, 1, height, width), np.float32)
    labels = np.zeros((n_images, height, width), int)
    for image, label in zip(images[:, 0], labels, strict=True):
        image[:] = dark = rng.uniform(0, 0.6)
        for _ in range(n_shapes):
            radius = rng.uniform(5, 9)
            x, y = columns - rng.uniform(7, width - 7), rows - rng.uniform(7, height - 7)
            kind = rng.integers(1, 4)
            inside = {
                1: x**2 + y**2 < radius**2,
                2: (y < 0.7 * radius) & (2 * abs(x) < y + 1.3 * radius),
                3: np.maximum(abs(x), abs(y)) < 0.9 * radius,
            }[kind]
            image[inside], label[inside] = rng.uniform(dark + 0.3, 1), kind
    return images + rng.normal(scale=0.07, size=images.shape).astype(np.float32), labels


# %%
# The labels -1 are for pixels with a neighbour of another class.
def erase_outlines(labels):
    height, width = labels.shape[1:]
    wide = np.pad(labels, ((0, 0), (1, 1), (1, 1)), mode="edge")
    shifted = [wide[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return np.where(np.ptp(shifted, axis=0) > 0, -1, labels)


X, truth = draw(1000, 32, 32, n_shapes=3)
y = erase_outlines(truth)
X_train, X_test, y_train, y_test = X[:800], X[800:], y[:800], y[800:]
print(f"{np.mean(y == -1):.0%} of the pixels have no label, {np.mean(y == 0):.0%} are background")


# %%
# The network, written with ``onnx.helper``. At a quarter of the resolution, a convolution sees a whole shape.
# On the way back to full resolution, the maps of the way down are joined (the skip connections), so that
# outlines stay sharp. There are only convolutions: images may have any size that is a multiple of four.
nodes, weights = [], {}


def add(kind, *inputs, **attributes):
    nodes.append(helper.make_node(kind, inputs, [f"{kind}_{len(nodes)}"], **attributes))
    return nodes[-1].output[0]


def convolve(maps, n_in, n_out, size=3):
    name = f"layer_{len(nodes)}"
    scale = np.sqrt(2 / (n_in * size**2))
    weights[f"{name}_weight"] = rng.normal(scale=scale, size=(n_out, n_in, size, size))
    weights[f"{name}_bias"] = np.zeros(n_out)
    return add("Conv", maps, f"{name}_weight", f"{name}_bias", pads=[size // 2] * 4)


def block(maps, n_in, n_out):
    maps = convolve(maps, n_in, n_out)
    names = [f"{maps}_{name}" for name in ("scale", "shift", "mean", "variance")]
    weights.update(zip(names, np.repeat([[1], [0], [0], [1]], n_out, axis=1), strict=True))
    return add("Relu", add("BatchNormalization", maps, *names))


def halve(maps):
    return add("MaxPool", maps, kernel_shape=[2, 2], strides=[2, 2])


def double(maps):
    return add("Resize", maps, "", "twice", mode="nearest")


weights["twice"] = np.array([1, 1, 2, 2])
full = block("image", 1, 8)
half = block(halve(full), 8, 16)
quarter = block(block(halve(half), 16, 32), 32, 32)
half = block(add("Concat", double(quarter), half, axis=1), 32 + 16, 16)
full = block(add("Concat", double(half), full, axis=1), 16 + 8, 8)
scores = convolve(full, 8, len(CLASSES), size=1)

image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, "H", "W"])
output = helper.make_tensor_value_info(scores, TensorProto.FLOAT, ["N", len(CLASSES), "H", "W"])
tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
graph = helper.make_graph(nodes, "segmentation", [image], [output], tensors)
network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

# %%
# ``ignore_index`` leaves out the pixels without a label. ``batch_norm="train"`` normalises each batch by its
# own statistics; without it, this many convolutions with random weights learn more slowly. The fit finds its
# rate, as for other graphs.
learner = OnnxSGDClassifier(
    network,
    loss=losses.CrossEntropy(ignore_index=-1),
    batch_norm="train",
    batch_size=16,
    max_iter=10,
    tol=None,
    random_state=0,
).fit(X_train, y_train)

# %%
# Accuracy flatters where most pixels are background: who marks nothing is right for many of them. The
# intersection over union of a class, the Jaccard score, is the number of pixels that truth and prediction
# share, divided by the number that either has; the mean over the classes counts each the same.
labelled = y_test >= 0
for name, predicted in {"all background": np.zeros_like(y_test), "network": learner.predict(X_test)}.items():
    accuracy = np.mean(predicted[labelled] == y_test[labelled])
    unions = jaccard_score(y_test[labelled], predicted[labelled], average=None)
    print(f"{name}: pixel accuracy {accuracy:.2f}, mean intersection over union {unions.mean():.2f}")
print("of each class:", *(f"{name} {value:.2f}" for name, value in zip(CLASSES, unions, strict=True)))

# %%
# Images of the test, and one of another size. Pixels without a label are white in the truth; the network
# has a class for them as well. It errs most where one shape hides much of another.
wide, wide_labels = draw(3, 32, 96, n_shapes=8)
columns = [(X_test[i, 0], y_test[i], learner.predict(X_test[i : i + 1])[0]) for i in range(5)]
columns.append((wide[2, 0], erase_outlines(wide_labels)[2], learner.predict(wide)[2]))

plt.style.use("tableau-colorblind10")
colors = ["white", "C9", "C0", "C1", "C3"]
figure, axes = plt.subplots(3, 6, figsize=(10, 4.6), width_ratios=[1] * 5 + [3], layout="constrained")
for column, pictures in zip(axes.T, columns, strict=True):
    for ax, picture in zip(column, pictures, strict=True):
        ax.set(xticks=[], yticks=[])
        if picture.dtype.kind == "f":
            ax.imshow(picture, cmap="gray", vmin=0, vmax=1)
        else:
            ax.imshow(picture, cmap=ListedColormap(colors), vmin=-1, vmax=3, interpolation="nearest")
for ax, name in zip(axes[:, 0], ("image", "truth", "prediction"), strict=True):
    ax.set_ylabel(name)
axes[0, 2].set_title("five images of the test")
axes[0, 5].set_title("an image of another size")
names = ["no label", *(f"{name} {value:.2f}" for name, value in zip(CLASSES, unions, strict=True))]
patches = [
    Patch(facecolor=color, edgecolor="0.5", label=name) for color, name in zip(colors, names, strict=True)
]
figure.legend(handles=patches, ncols=5, loc="outside lower center", title="intersection over union")
figure.suptitle(f"{accuracy:.0%} of the pixels are right; mean intersection over union {unions.mean():.2f}")
plt.show()
