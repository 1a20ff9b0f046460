"""
A quantized network learns beside its integers
==============================================

An int8 file adapts to new data: its integers stay, and a LoRA adapter beside them learns.

A scanner reads digits with a quantized network; the float file that it came from is gone. The next scanner
takes its sheets sideways.
"""

import logging
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnx
from onnx.parser import parse_model
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from sklearn.datasets import load_digits

from onnxsgd import OnnxSGDClassifier
from onnxsgd.adapters import LoRA

# %%
# Half of the digits train the first network, a quarter is for the new scanner, and a quarter tests.
X, y = load_digits(return_X_y=True)
shuffled = np.random.default_rng(0).permutation(len(X))
X, y = (X[shuffled].reshape(-1, 1, 8, 8) / 16).astype(np.float32), y[shuffled]
first, new, test = slice(900), slice(900, 1350), slice(1350, None)
sideways = np.rot90(X, axes=(2, 3)).copy()

# %%
# The float network: two convolutions and two dense layers, trained from random weights with default settings.
network = parse_model("""
<ir_version: 8, opset_import: ["" : 17]>
digits (float[N, 1, 8, 8] pixels) => (float[N, 10] scores) {
    conv1 = Conv<pads = [1, 1, 1, 1]>(pixels, conv1_weight, conv1_bias)
    relu1 = Relu(conv1)
    conv2 = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(relu1, conv2_weight, conv2_bias)
    relu2 = Relu(conv2)
    flat = Flatten(relu2)
    dense = Gemm<transB = 1>(flat, dense_weight, dense_bias)
    relu3 = Relu(dense)
    scores = Gemm<transB = 1>(relu3, last_weight, last_bias)
}""")
rng = np.random.default_rng(0)
shapes = {"conv1": (8, 1, 3, 3), "conv2": (24, 8, 3, 3), "dense": (128, 384), "last": (10, 128)}
for name, shape in shapes.items():
    weight = rng.normal(scale=np.sqrt(2 / np.prod(shape[1:])), size=shape).astype(np.float32)
    bias = np.zeros(shape[0], np.float32)
    network.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"{name}_weight"))
    network.graph.initializer.append(onnx.numpy_helper.from_array(bias, f"{name}_bias"))
float_network = OnnxSGDClassifier(network, random_state=0).fit(X[first], y[first]).to_onnx()


# %%
# onnxruntime quantizes it: weights and activations become integers of 8 bits, with QuantizeLinear and
# DequantizeLinear around each layer. The ranges of the activations are those of 200 pictures.
class Pictures(CalibrationDataReader):
    def __init__(self):
        self.batches = iter([{"pixels": X[:200]}])

    def get_next(self):
        return next(self.batches, None)


logging.getLogger().setLevel(
    logging.ERROR
)  # it recommends a preparation that this small graph can do without
with tempfile.TemporaryDirectory() as folder:
    onnx.save(float_network, Path(folder, "float.onnx"))
    quantize_static(Path(folder, "float.onnx"), Path(folder, "int8.onnx"), Pictures())
    int8_network = onnx.load(Path(folder, "int8.onnx"))

# %%
# Integers have no gradient. An adapter of rank 4 has one, beside those of the convolutions and of the dense
# layer; rounded activations count as if they were not rounded. B starts at zero, so that the estimator is the
# int8 network until it is fitted.
adapted = OnnxSGDClassifier(int8_network, classes=range(10), adapter=LoRA(rank=4), random_state=0)
print(f"old scanner, int8 network: accuracy {adapted.score(X[test], y[test]):.3f}")
old_digits = adapted.predict(sideways[test])
accuracy = {"int8 network": adapted.score(sideways[test], y[test])}
adapted.fit(sideways[new], y[new])
new_digits = adapted.predict(sideways[test])

# %%
# For comparison, as if the float file were still there: the same adapter beside its weights, and all of its
# weights trained.
with_adapter = OnnxSGDClassifier(float_network, adapter=LoRA(rank=4), classes=range(10), random_state=0)
retrained = OnnxSGDClassifier(float_network, classes=range(10), random_state=0)
models = {
    "int8 network": int8_network,
    "int8 with an adapter": adapted.to_onnx(),
    "float with an adapter": with_adapter.fit(sideways[new], y[new]).to_onnx(),
    "float, all weights trained": retrained.fit(sideways[new], y[new]).to_onnx(),
}
for name, learner in zip(list(models)[1:], (adapted, with_adapter, retrained), strict=True):
    accuracy[name] = learner.score(sideways[test], y[test])
size = {name: model.ByteSize() / 1000 for name, model in models.items()}
for name in models:
    print(f"new scanner, {name}: accuracy {accuracy[name]:.3f}, {size[name]:.0f} kB")

# %%
# The new int8 file holds the integers of the old one, byte for byte, and the adapter as a branch beside them.
# In the float files the product of the adapter is added to the weights, and they do not grow.
before, after = (
    {t.name: t.raw_data for t in models[name].graph.initializer if t.data_type == onnx.TensorProto.INT8}
    for name in ("int8 network", "int8 with an adapter")
)
n_same = sum(len(integers) for name, integers in before.items() if after[name] == integers)
print(f"{n_same} of {sum(map(len, before.values()))} integers are the same")

# %%
# The adapter brings back most of what was lost, in a third of the bytes of the float file. Training all
# weights brings back a little more, where there is a float file to train.
plt.style.use("tableau-colorblind10")
figure = plt.figure(figsize=(10.5, 4.6), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1, 1.5])
left.suptitle("The int8 network reads: before → after\n(blue: right, orange: wrong)")
for digit, ax in enumerate(left.subplots(3, 4).ravel()):
    ax.imshow(sideways[test][digit, 0], cmap="gray_r")
    ax.set(xticks=[], yticks=[])
    is_right = new_digits[digit] == y[test][digit]
    ax.set_title(f"{old_digits[digit]} → {new_digits[digit]}", color="C0" if is_right else "C5")
bars, files = right.subplots(1, 2, sharey=True, width_ratios=[1.4, 1])
names, colors = list(models), ("C2", "C0", "C3", "C5")
for ax, values, fmt in (
    (bars, [100 * accuracy[name] for name in names], "%.1f"),
    (files, [size[name] for name in names], "%.0f"),
):
    ax.bar_label(ax.barh(names, values, color=colors), fmt=fmt, padding=3)
    ax.set(xlim=(0, 1.25 * max(values)))
bars.invert_yaxis()
before, after = (accuracy[name] for name in names[:2])
right.suptitle(f"From {before:.0%} to {after:.0%} with the same integers")
bars.set(xlabel="accuracy on sideways digits (%)")
files.set(xlabel="size of the file (kB)")
plt.show()
