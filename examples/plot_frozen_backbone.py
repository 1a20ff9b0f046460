"""
A frozen backbone and a new head on images
==========================================

``head="linear"`` puts a new layer on a frozen network, which then needs few pictures.

A convolutional network recognises the digits 0 to 6 anywhere in a picture. Now it has to learn 7, 8 and 9
from a few pictures. The features of the network need fewer of them than the pixels.
"""

import matplotlib.pyplot as plt
import numpy as np
import onnx
from onnx.parser import parse_model
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from onnxsgd import OnnxSGDClassifier, describe_trainable

# %%
# Pictures of 10 x 10 pixels with a digit of 8 x 8 at a random place.
images, digits = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8) / 16
rng = np.random.default_rng(0)


def place(images):
    X = np.zeros((len(images), 1, 10, 10), np.float32)
    for canvas, image, (top, left) in zip(X[:, 0], images, rng.integers(0, 3, (len(images), 2)), strict=True):
        canvas[top : top + 8, left : left + 8] = image
    return X


# %%
# The backbone: two convolutions and a dense layer with random weights, trained on the digits 0 to 6 with
# Adam at a constant rate. Usually it comes as a file, and somebody else trained it; these are the only
# settings here.
network = parse_model("""
<ir_version: 8, opset_import: ["" : 17]>
digits (float[N, 1, 10, 10] pixels) => (float[N, 7] scores) {
    conv1 = Conv(pixels, conv1_weight, conv1_bias)
    relu1 = Relu(conv1)
    conv2 = Conv<strides = [2, 2]>(relu1, conv2_weight, conv2_bias)
    relu2 = Relu(conv2)
    flat = Flatten(relu2)
    dense = Gemm<transB = 1>(flat, dense_weight, dense_bias)
    features = Relu(dense)
    scores = Gemm<transB = 1>(features, last_weight, last_bias)
}""")
shapes = {"conv1": (8, 1, 3, 3), "conv2": (16, 8, 3, 3), "dense": (64, 144), "last": (7, 64)}
for name, shape in shapes.items():
    weight = rng.normal(scale=np.sqrt(2 / np.prod(shape[1:])), size=shape).astype(np.float32)
    bias = np.zeros(shape[0], np.float32)
    network.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"{name}_weight"))
    network.graph.initializer.append(onnx.numpy_helper.from_array(bias, f"{name}_bias"))

old, new = np.flatnonzero(digits < 7), np.flatnonzero(digits > 6)
train, test = np.tile(old[:1000], 8), old[1000:]
recipe = {"optimizer": "adam", "learning_rate": "constant", "eta0": 1e-3, "max_iter": 8, "tol": None}
seven = OnnxSGDClassifier(network, classes=range(7), **recipe, random_state=0)
seven.fit(place(images[train]), digits[train])
print(f"digits 0 to 6: accuracy {seven.score(place(images[test]), digits[test]):.2f} on new pictures")
backbone = seven.to_onnx()

# %%
# ``output`` names the tensor to put the new layer on. Everything before it is frozen, and computed once for
# each picture.
options = {"output": "features", "head": "linear"}
print("trained:", ", ".join(describe_trainable(backbone, **options).trained))

# %%
# With ``trainable`` the last layer of the backbone is trained as well. The new layer always is.
dense = ["dense_weight", "dense_bias"]
models = {
    "frozen network, new layer": OnnxSGDClassifier(backbone, **options, random_state=0),
    "the same, dense layer trained": OnnxSGDClassifier(backbone, **options, trainable=dense, random_state=0),
    "linear model of the pixels": make_pipeline(
        FunctionTransformer(np.reshape, kw_args={"shape": (-1, 100)}), OnnxSGDClassifier(random_state=0)
    ),
}

# %%
# Each model learns the new digits from 2 to 50 pictures of each, drawn five times, and is tested on others.
pool, test = new[:250], np.tile(new[250:], 3)
X_test, y_test = place(images[test]), digits[test]
counts = [2, 5, 10, 20, 50]
accuracy = {name: np.zeros((len(counts), 5)) for name in models}
for row, draw in np.ndindex(len(counts), 5):
    drawn = rng.permutation(pool)
    few = np.concatenate([drawn[digits[drawn] == digit][: counts[row]] for digit in (7, 8, 9)])
    X, y = place(images[few]), digits[few]
    for name, model in models.items():
        accuracy[name][row, draw] = model.fit(X, y).score(X_test, y_test)
for name, values in accuracy.items():
    print(f"{name}: accuracy", *(f"{value:.2f}" for value in values.mean(axis=1)))

# %%
# The features of other digits are worth more than the pixels, and the more pictures there are, the more it
# pays to train the layer that makes them.
plt.style.use("tableau-colorblind10")
figure = plt.figure(figsize=(9, 4.6), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1, 2])
left.suptitle("Digits at random places")
for label, ax in zip((0, 3, 5, 7, 8, 9), left.subplots(2, 3).ravel(), strict=True):
    ax.imshow(place(images[digits == label][:1])[0, 0], cmap="gray_r")
    ax.set(xticks=[], yticks=[])
    ax.set_title("old" if label < 7 else "new", color="black" if label < 7 else "C5")
ax = right.subplots()
styles = zip(accuracy.items(), ("C0", "C5", "C3"), ("o-", "s--", "^:"), strict=True)
for (name, values), color, marker in styles:
    mean, spread = values.mean(axis=1), values.std(axis=1)
    ax.plot(counts, mean, marker, color=color, label=name)
    ax.fill_between(counts, mean - spread, mean + spread, color=color, alpha=0.15, lw=0)
pixels, frozen = (
    accuracy[name][-1].mean() for name in ("linear model of the pixels", "frozen network, new layer")
)
ax.set(
    xscale="log",
    xlabel="pictures of each new digit (band: deviation over 5 draws)",
    ylabel="accuracy on new digits",
    ylim=(0.35, 1),
    title=f"With 50 pictures a new layer is right for {frozen:.0%}, pixels for {pixels:.0%}",
)
ax.set_xticks(counts, counts)
ax.minorticks_off()
ax.legend(loc="upper left")
ax.grid(alpha=0.3)
plt.show()
