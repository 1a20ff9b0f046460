"""Write data/*.npz: networks exported by torch, with gradients, updates and predictions of torch itself.

Needs PyTorch 2.13 and onnxscript; the files are in the repository, so that the tests need neither. Run it as
``python tests/networks/make.py [name ...]``.

Before the export each parameter gets unique numbers. They identify each tensor of the file as an arrangement
of parameters, for all transposes, joins and folds of the exporter. The real numbers are filled in afterwards,
and torch's results are arranged alike. If an exporter fuses BatchNorm into the layer before it, or keeps
copies of a parameter, torch trains the same.
"""

import io
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import torch
from attention import GPT2, Bert, Encoder, Llama, Swin, ViT
from convolutional import VGG, Conv1dNet, ConvNeXt, DenseNet, MobileNet, ResNet, UNet
from onnx import numpy_helper
from recurrent import (
    BiGRU,
    EmbeddingBag,
    GRUClassifier,
    LSTMClassifier,
    LSTMForecast,
    SeveralOutputs,
    Tabular,
)
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

DATA = Path(__file__).with_name("data")
ROWS, BATCH, UPDATES = 15, 5, 30
#: Identities of parameters start here: float32 distinguishes as many whole numbers.
FIRST = 1 << 20


def images(channels=3, size=12):
    return lambda rng: {"x": _grid(rng, ROWS, channels, size, size)}


def numbers(*shape):
    return lambda rng: {"x": _grid(rng, ROWS, *shape)}


def tokens(count, length):
    return lambda rng: {"tokens": rng.integers(0, count, (ROWS, length))}


def _grid(rng, *shape):
    # few digits: the files are smaller
    return (rng.integers(-24, 25, shape) / 16).astype(np.float32)


def _categories(rng):
    columns = [rng.integers(0, size, ROWS) for size in (5, 9, 4)]
    return {"categories": np.stack(columns, 1), "numbers": _grid(rng, ROWS, 4)}


def _text(rng):
    mask = (np.arange(7) < rng.integers(3, 8, (ROWS, 1))).astype(np.int64)
    return {"input_ids": rng.integers(0, 20, (ROWS, 7)), "attention_mask": mask}


#: Name: network, its data, the second axes that stay open, classes or 0 for a regression, learning rate, and
#: the output to train if there are several. No rate is so large that rounding grows over the updates: torch's
#: predictions in float32 and in float64 differ by 2e-5 of the largest at most (ViT at 0.05: 5e-4).
NETWORKS = {
    "resnet": (ResNet, images(3, 16), {}, 3, 0.02, None),
    "mobilenet": (MobileNet, images(3, 12), {}, 3, 0.05, None),
    "vgg": (VGG, images(3, 14), {}, 3, 0.02, None),
    "densenet": (DenseNet, images(3, 16), {}, 3, 0.05, None),
    "convnext": (ConvNeXt, images(3, 16), {}, 3, 0.05, None),
    "unet": (UNet, images(2, 8), {}, 0, 0.02, None),
    "conv1d": (Conv1dNet, numbers(3, 20), {}, 3, 0.05, None),
    "lstm_text": (LSTMClassifier, tokens(20, 7), {}, 3, 0.2, None),
    "lstm": (LSTMForecast, numbers(6, 4), {}, 0, 0.1, None),
    "gru": (GRUClassifier, numbers(6, 4), {}, 3, 0.2, None),
    "bigru": (BiGRU, numbers(6, 4), {}, 3, 0.1, None),
    "bag": (EmbeddingBag, tokens(30, 6), {}, 3, 0.2, None),
    "tabular": (Tabular, _categories, {}, 3, 0.1, None),
    "outputs": (SeveralOutputs, numbers(6), {}, 3, 0.1, 0),
    "vit": (ViT, images(3, 12), {}, 3, 0.02, None),
    "swin": (Swin, images(3, 12), {}, 3, 0.05, None),
    "encoder": (Encoder, numbers(6, 4), {}, 3, 0.05, None),
    "gpt2": (lambda: GPT2(tied=False), tokens(20, 7), {"tokens": "length"}, 3, 0.05, None),
    "gpt2_tied": (lambda: GPT2(tied=True), tokens(20, 7), {"tokens": "length"}, 20, 0.05, None),
    "bert": (Bert, _text, {"input_ids": "length", "attention_mask": "length"}, 3, 0.05, None),
    "llama": (lambda: Llama(tables=False), tokens(20, 7), {"tokens": "length"}, 3, 0.05, None),
    "llama_tables": (lambda: Llama(tables=True), tokens(20, 7), {"tokens": "length"}, 3, 0.05, None),
}


def main(names):
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    warnings.simplefilter("ignore")
    DATA.mkdir(exist_ok=True)
    for name in names or NETWORKS:
        for exporter in ("script", "dynamo"):
            arrays = record(name, dynamo=exporter == "dynamo")
            path = DATA / f"{name}_{exporter}.npz"
            np.savez_compressed(path, **arrays)
            print(path.name, path.stat().st_size, *arrays["notes"])


def record(name, dynamo):
    make, make_data, lengths, n_classes, eta, output = NETWORKS[name]
    rng = np.random.default_rng(len(name))
    data = make_data(rng)
    network = initialised(make, rng, data)
    notes = []
    model, places = export(network, data, lengths, dynamo)
    for note, change in (("BatchNorm is fused", fused), ("copies are untied", untied)):
        if not is_complete(network, places) and change(network):
            model, places = export(network, data, lengths, dynamo)
            notes.append(note)
    assert is_complete(network, places), "weights cannot be found again"
    set_weights(model, places, flat(network.state_dict()[key] for key, _ in network.named_parameters()))
    return {
        "model": np.frombuffer(model.SerializeToString(), np.uint8),
        **{f"input {key}": value for key, value in data.items()},
        **reference(network.double(), data, places, n_classes, eta, output, rng),
        "weights": np.array(list(places)),
        "eta": np.array(eta),
        "classes": np.array(n_classes),
        "output": np.array(-1 if output is None else output),
        "notes": np.array(notes, dtype=str),
    }


def initialised(make, rng, data):
    """Return the network with weights of few digits, and with running statistics unlike the first ones."""
    torch.manual_seed(0)
    network = make().eval()
    for key, parameter in network.named_parameters():
        spread = 0.1 if parameter.ndim == 1 else min(0.5, 1.2 / np.sqrt(parameter[0].numel() or 1))
        noise = torch.tensor(rng.normal(size=parameter.shape) * max(spread, 0.1), dtype=torch.float32)
        if parameter.ndim == 1 and "bias" not in key:
            noise += parameter.detach()
        parameter.data = torch.round(noise * 256) / 256
    for module in network.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.running_mean.data = torch.tensor(rng.integers(-8, 9, module.num_features) / 32).float()
            module.running_var.data = torch.tensor(rng.integers(16, 48, module.num_features) / 32).float()
    return network


def is_complete(network, places):
    """Return whether each number of each parameter is in one place of the file, and in no other."""
    if not places:
        return False
    found = np.sort(np.concatenate([place.reshape(-1) for place in places.values()]))
    return np.array_equal(found, np.arange(sum(value.numel() for value in network.parameters())))


def untied(network):
    """Give each exported copy of a parameter its own parameter; return whether there was any."""
    modules = [module for module in network.modules() if hasattr(module, "untie")]
    for module in modules:
        module.untie()
    return bool(modules)


def fused(network):
    """Fold each BatchNorm into the layer before it, as exporters do; return whether there was any."""
    found = False
    for module in network.modules():
        children = list(module.named_children())
        for (name, layer), (after, norm) in pairwise(children):
            fuse = _FUSIONS.get(type(layer))
            if fuse is not None and isinstance(norm, torch.nn.modules.batchnorm._BatchNorm):
                setattr(module, name, fuse(layer, norm).requires_grad_(True))
                setattr(module, after, torch.nn.Identity())
                found = True
    return found


_FUSIONS = {
    torch.nn.Conv1d: fuse_conv_bn_eval,
    torch.nn.Conv2d: fuse_conv_bn_eval,
    torch.nn.Linear: fuse_linear_bn_eval,
}


def export(network, data, lengths, dynamo):
    """Return the exported file and the places of parameters in it; None if some were mixed."""
    weights = {key: value.detach().clone() for key, value in network.named_parameters()}
    place(network, np.arange(FIRST, FIRST + sum(value.numel() for value in weights.values())))
    examples = tuple(torch.tensor(value[:3]) for value in data.values())
    axes = {key: {0: "n", **({1: lengths[key]} if key in lengths else {})} for key in data}
    buffer = io.BytesIO()
    with torch.no_grad():
        count = len(result) if isinstance(result := network(*examples), tuple) else 1
    outputs = [f"output_{i}" for i in range(count)]
    options = {"input_names": list(data), "output_names": outputs, "dynamo": dynamo, "verbose": False}
    if dynamo:
        symbols = {
            name: torch.export.Dim(name, min=2, max=64) for axis in axes.values() for name in axis.values()
        }
        shapes = tuple({i: symbols[name] for i, name in axis.items()} for axis in axes.values())
        program = torch.onnx.export(network, examples, dynamic_shapes=shapes, **options)
        model = program.model_proto
    else:
        axes.update({name: {0: "n"} for name in outputs})
        torch.onnx.export(network, examples, buffer, dynamic_axes=axes, opset_version=17, **options)
        model = onnx.load_from_string(buffer.getvalue())
    for key, value in network.named_parameters():
        value.data = weights[key]
    strip(model)
    return model, find_places(model, sum(value.numel() for value in weights.values()))


def strip(model):
    """Drop traces of the exporting machine."""
    model.ClearField("metadata_props")
    del model.graph.value_info[:]
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.ClearField("metadata_props")
        value.ClearField("doc_string")


def place(network, flat_numbers):
    start = 0
    for parameter in network.parameters():
        part = flat_numbers[start : start + parameter.numel()]
        parameter.data = torch.tensor(part.reshape(parameter.shape), dtype=parameter.dtype)
        start += parameter.numel()


def tensors(model):
    """Yield (name, tensor) of initializers and of Constant nodes."""
    for tensor in model.graph.initializer:
        yield tensor.name, tensor
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            yield node.output[0], node.attribute[0].t


def find_places(model, count):
    """Return {tensor of the file: the number of the parameter at each place}; None if some were mixed."""
    places = {}
    for name, tensor in tensors(model):
        array = numpy_helper.to_array(tensor)
        if array.dtype != np.float32 or not np.any(np.abs(array) > FIRST / 2):
            continue
        numbers = array.astype(np.float64) - FIRST
        if np.any(numbers != np.rint(numbers)) or numbers.min() < 0 or numbers.max() >= count:
            if np.abs(array).max() > 1e9:  # a mask
                continue
            return None
        places[name] = numbers.astype(np.int64)
    return places


def set_weights(model, places, values):
    for name, tensor in tensors(model):
        if name in places:
            tensor.CopyFrom(numpy_helper.from_array(values[places[name]].astype(np.float32), name))


def flat(values):
    return np.concatenate([value.detach().double().numpy().reshape(-1) for value in values])


def reference(network, data, places, n_classes, eta, output, rng):
    """Return the gradients, the weights after the updates and predictions, in float64."""
    inputs = [torch.tensor(value) for value in data.values()]
    inputs = [value.double() if value.is_floating_point() else value for value in inputs]
    results = network(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    seeds = [np.round(rng.normal(size=result.shape) * 16) / 16 for result in results]
    total = sum((result * torch.tensor(seed)).sum() for result, seed in zip(results, seeds, strict=True))
    total.backward()
    arrays = {f"seed {i}": seed.astype(np.float32) for i, seed in enumerate(seeds)}
    arrays |= {f"result {i}": result.detach().numpy().astype(np.float32) for i, result in enumerate(results)}
    arrays["gradient"] = arranged(flat(parameter.grad for parameter in network.parameters()), places)
    score = results[output or 0]
    y = rng.integers(0, n_classes, ROWS) if n_classes else _grid(rng, *score.shape)
    if n_classes:
        y[:n_classes] = np.arange(n_classes)[:ROWS]
    start = flat(network.parameters())
    optimizer = torch.optim.SGD(network.parameters(), lr=eta)
    for update in range(UPDATES):
        rows = [slice(first, first + BATCH) for first in range(0, ROWS, BATCH)][update % (ROWS // BATCH)]
        optimizer.zero_grad()
        loss(network(*[value[rows] for value in inputs]), y[rows], output).backward()
        optimizer.step()
    end = flat(network.parameters())
    changed = {name: place for name, place in places.items() if np.any(start[place] != end[place])}
    arrays |= {"trained": arranged(end, changed), "trained names": np.array(list(changed))}
    trained = network(*inputs)
    trained = trained[output] if isinstance(trained, tuple) else trained
    return arrays | {"y": y, "trained result": trained.detach().numpy().astype(np.float32)}


def loss(result, y, output):
    result = result[output] if isinstance(result, tuple) else result
    if y.dtype.kind == "i":
        return F.cross_entropy(result, torch.tensor(y))
    return F.mse_loss(result, torch.tensor(y).double(), reduction="none").sum(dim=1).mean() / 2


def arranged(values, places):
    """Return the values at these places, one tensor after the other."""
    return np.concatenate([values[place].reshape(-1) for place in places.values()]).astype(np.float32)


if __name__ == "__main__":
    main(sys.argv[1:])
