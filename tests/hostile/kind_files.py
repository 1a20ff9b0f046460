"""Forged and damaged files: of ``save``, of checkpoints, and external data of models.

Most cases state the digest of their forged contents, as a stranger would, so that the code behind it is reached.
"""

import copy
import hashlib
import io
import json
import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import onnx
import safetensors.numpy
from mutations import mutate
from rules import Trial, faults
from seed_models import TEXTS, _model
from sklearn.linear_model import SGDRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import onnxsgd
from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, losses
from onnxsgd.adapters import LoRA
from onnxsgd.exceptions import OnnxSGDError
from onnxsgd.persistence.compression import compressed, decompressed

#: A file is refused, or read, within seconds and a gigabyte.
SECONDS, GROWTH = 20.0, 1 << 30
#: The text of JSON that no writer made, and values for any place of a tree of JSON.
DEEP = {"nested lists": "[" * 200_000, "nested objects": '{"tuple": [' * 50_000, "an open string": '"'}
VALUES = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**30, 10**400, -0.0, 1e300, "x", "x" * 300_000, "\0", "\ud800", "../x",
    [], {}, [[]], [None] * 1000, {"array": "x"}, {"array": {"dtype": "<U99999999", "shape": [1], "values": ["a"]}},
    {"array": {"dtype": "O", "shape": [2**40], "values": []}}, {"range": [0, 10**15, 1]}, {"range": [0, 1, 0]},
    {"bytes": "x"}, {"model": "x"}, {"sklearn": "x"}, {"path": "/dev/zero"}, {"path": "/etc/passwd"},
    {"float": "nan"}, {"float": "inf"}, {"float": "9" * 5000}, {"dict": [[1, 2]]}, {"dict": [[{"array": "x"}, 2]]},
    {"set": [1, 2]}, {"tuple": [1]}, {"generator": ["MT19937", 1, 2, 3, 4]}, {"pickle": "x"},
    {"object": {"class": "losses.Huber", "parameters": [["delta", -1]]}},
    {"object": {"class": "os.system", "parameters": [["command", "true"]]}},
)  # fmt: skip
#: More than a case may take, and long to pack.
ZEROS = bytes((1 << 30) + (1 << 27))
SIZES = (0, 1, 7, 2**31, 2**40, 2**62, 2**63, 2**64 - 1, -1, 1.5, "x", None)
DTYPES = ("F64", "F32", "F16", "BF16", "U8", "I64", "BOOL", "F8_E4M3", "C64", "X", 1, None)
#: Names that are no file of an estimator.
PATHS = {
    "a folder": lambda f: _made(os.mkdir, f / "empty"),
    "a pipe": lambda f: _made(os.mkfifo, f / "pipe"),
    "a device": lambda f: "/dev/zero",
    "a terminal": lambda f: "/dev/tty",
    "nothing": lambda f: f / "nothing",
    "a link to itself": lambda f: _made(lambda p: os.symlink(p, p), f / "circle"),
    "a long name": lambda f: f / ("x" * 300),
    "an empty name": lambda f: "",
    "a zero byte": lambda f: f"{f}/a\0b",
    "bytes": lambda f: os.fsencode(f / "nothing"),
    "a number": lambda f: 0,
    "None": lambda f: None,
    "a list": lambda f: [f],
}


def _made(make, path):
    make(path)
    return path


def prepare():
    """Return files with their contents, samples, and a folder."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-files-"))
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 4)).astype(np.float32)
    y = X @ np.array([1.0, -2.0, 0.5, 1.0])
    mlp = _model(*TEXTS["mlp"])
    inner = make_pipeline(StandardScaler(), SGDRegressor(random_state=0)).fit(X, y)
    estimators = {
        "linear": OnnxSGDRegressor(max_iter=2, random_state=0, loss=losses.Huber(0.5)).fit(X, y),
        "classes": OnnxSGDClassifier(max_iter=2, random_state=0, average=True).fit(
            X, np.digitize(y, [-1, 1])
        ),
        "network": OnnxSGDRegressor(mlp, max_iter=2, random_state=0).fit(X, np.c_[y, y]),
        "adapter": OnnxSGDRegressor(mlp, max_iter=2, random_state=0, adapter=LoRA(1)).fit(X, np.c_[y, y]),
        "scikit-learn": OnnxSGDRegressor(inner, max_iter=2, random_state=0).fit(X, y),
    }
    files = {}
    for name, estimator in estimators.items():
        estimator.save(folder / "seed")
        files[name] = (folder / "seed").read_bytes(), estimator.predict(X)
    resumed = OnnxSGDRegressor(max_iter=3, tol=None, random_state=0, checkpoint=folder / "kept").fit(X, y)
    files["checkpoint"] = max((folder / "kept").iterdir()).read_bytes(), resumed.predict(X)
    external = folder / "external"
    external.mkdir()
    onnx.save(mlp, external / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    return {"files": files, "X": X, "y": y, "folder": folder, "resumed": resumed}


def run(number, rng, prepared):
    """Yield the faults of one case."""
    if number % 16 == 0:
        yield from _path_faults(rng, prepared)
        return
    if number % 16 == 1:
        yield from _external_faults(rng, prepared)
        return
    files = prepared["files"]
    name = sorted(files)[number % len(files)]
    content, expected = files[name]
    kind = list(FORGERIES)[rng.integers(len(FORGERIES))]
    if kind == "skops":
        name = "scikit-learn"
        content, expected = files[name]
    forged = FORGERIES[kind](content, rng)
    if forged is None:
        return
    folder = prepared["folder"] / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / "checkpoint-000001.onnxsgd"
    path.write_bytes(forged)
    X, y = prepared["X"], prepared["y"]
    loaded = []
    # in a list, as the rules read the weights of a result, and forged parameters may refuse that
    calls = {
        "load": lambda: loaded.append(onnxsgd.load(path)),
        "load of the folder": lambda: loaded.append(onnxsgd.load(folder)),
    }
    if name == "checkpoint":
        again = copy.deepcopy(prepared["resumed"]).set_params(checkpoint=folder)
        calls["resume"] = lambda: again.fit(X, y, resume=True)
    for call, function in calls.items():
        title = f"{call} of {name}: {kind}"
        trial = Trial(title, function, seconds=SECONDS, growth=GROWTH)
        for fault in faults(trial):
            # damage that a fit cannot see shows in its numbers
            if call != "resume" or "warning" not in fault:
                yield fault
        if trial.was_refused:
            if not isinstance(trial.error, OnnxSGDError):
                yield f"{title}: {type(trial.error).__name__} is no error of the package: {trial.error!r:.300}"
            continue
        if kind in UNSIGNED and call != "resume":
            if not np.array_equal(loaded[-1].predict(X), expected):
                yield f"{title}: accepted, and predicts other numbers"
        elif call == "load":
            # values of a stranger: any plain error, but no harm
            use = Trial(f"{title}, then predict", lambda e=loaded[-1]: e.predict(X), seconds=60.0)
            yield from (fault for fault in faults(use) if _is_harm(fault, use.error))


def _is_harm(fault, error):
    return "took" in fault or isinstance(error, MemoryError | RecursionError | SystemError)


def _path_faults(rng, prepared):
    folder = prepared["folder"] / "paths"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    name = list(PATHS)[rng.integers(len(PATHS))]
    path = PATHS[name](folder)
    yield from faults(Trial(f"load of {name}", lambda: onnxsgd.load(path), seconds=5.0, is_legal=False))
    estimator = copy.deepcopy(prepared["resumed"])
    if name in ("a pipe", "a device", "a terminal"):
        # devices are for the user to keep away from
        return
    if name not in ("nothing",):
        yield from faults(Trial(f"save to {name}", lambda: estimator.save(path), seconds=5.0))
    estimator.set_params(checkpoint=path)
    trial = Trial(f"checkpoint={name}", lambda: estimator.fit(prepared["X"], prepared["y"], resume=True))
    yield from faults(trial)


def _external_faults(rng, prepared):
    source, folder = prepared["folder"] / "external", prepared["folder"] / "beside"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    path = folder / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    tensor = model.graph.initializer[rng.integers(len(model.graph.initializer))]
    entries = {entry.key: entry for entry in tensor.external_data}
    what = str(rng.choice(["location", "offset", "length", "file", "dims", "twice"]))
    value = str(rng.choice(["", "-1", "99999999999999999999", "x", "1e9", "4", "9" * 5000, str(2**63)]))
    if what == "location":
        value = str(
            rng.choice(["", ".", "..", "/dev/zero", "pipe", "model.onnx", "../seed", "a\\b", "x" * 5000])
        )
        os.mkfifo(folder / "pipe")
        entries["location"].value = value
    elif what in entries:
        entries[what].value = value
    elif what == "file":
        (folder / "weights").write_bytes(b"x" * int(rng.integers(0, 100)))
    elif what == "dims":
        tensor.dims[0] = int(rng.choice([0, -1, 2**31, 2**62]))
    else:
        for key in ("location", "offset", "length"):
            tensor.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    title = f"a model whose external {what} is {value[:20]!r}"
    trial = Trial(title, lambda: onnxsgd.describe_trainable(path), seconds=SECONDS, growth=GROWTH)
    yield from faults(trial)
    if trial.was_refused and not isinstance(trial.error, OnnxSGDError):
        yield f"{title}: {type(trial.error).__name__} is no error of the package: {trial.error!r:.300}"


def _parts(content):
    """Return the header, and the bytes of the tensors."""
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _whole(header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def signed(text, tensors):
    """Return a file of a text of JSON and of tensors, with the digest of both."""
    digest = hashlib.sha256(text.encode(errors="replace"))
    for name, array in sorted(tensors.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    # safetensors takes no text that is not UTF-8
    return safetensors.numpy.save(
        {name: np.ascontiguousarray(array) for name, array in tensors.items()},
        {"onnxsgd": text.encode(errors="replace").decode(), "sha256": digest.hexdigest()},
    )


def _read(content):
    return _parts(content)[0]["__metadata__"]["onnxsgd"], safetensors.numpy.load(content)


def _flip(content, rng):
    changed, (header, _) = bytearray(content), _parts(content)
    end = len(content) if rng.random() < 0.5 else len(json.dumps(header)) + 8
    for place in rng.integers(0, min(end, len(content)), 1 + rng.integers(6)):
        changed[place] = rng.integers(256)
    return bytes(changed)


def _cut(content, rng):
    place = int(rng.integers(len(content)))
    return [content[:place], content + b"more", content[:place] + content[place + 1 :], content[place:]][
        rng.integers(4)
    ]


def _header(content, rng):
    header, data = _parts(content)
    if rng.random() < 0.2:
        return _whole(header, data, [0, 1, 2**27, 2**40, 2**63, 2**64 - 1][rng.integers(6)])
    if rng.random() < 0.2:
        return _whole(list(DEEP.values())[rng.integers(len(DEEP))].encode(), data)
    for _ in range(1 + rng.integers(2)):
        names = [name for name in header if name != "__metadata__"]
        entry = header[names[rng.integers(len(names))]]
        change = rng.integers(7)
        if change == 0:
            entry["data_offsets"] = [SIZES[rng.integers(len(SIZES))] for _ in range(2)]
        elif change == 1:
            entry["data_offsets"] = list(header[names[rng.integers(len(names))]]["data_offsets"])
        elif change == 2:
            entry["shape"] = [SIZES[rng.integers(len(SIZES))] for _ in range(rng.integers(4))]
        elif change == 3:
            entry["dtype"] = DTYPES[rng.integers(len(DTYPES))]
        elif change == 4:
            entry["shape"] = [1] * int(rng.choice([33, 65, 100_000])) + list(entry["shape"])
        elif change == 5:
            header["x" * 100_000] = dict(entry)
        else:
            header["__metadata__"] = [None, {}, {"onnxsgd": 1}, {"onnxsgd": "{}"}, []][rng.integers(5)]
            break
    return _whole(header, data)


def _places(tree, way=()):
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield (*way, key)
        yield from _places(value, (*way, key))


def _tree(content, rng):
    text, tensors = _read(content)
    tree = json.loads(text)
    for _ in range(1 + rng.integers(2)):
        places = list(_places(tree))
        *way, last = places[rng.integers(len(places))]
        inner = tree
        for step in way:
            inner = inner[step]
        inner[last] = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
    return signed(json.dumps(tree), tensors)


def _text(content, rng):
    text, tensors = _read(content)
    forms = [
        *DEEP.values(),
        "9" * 100_000,
        "NaN",
        "null",
        "[]",
        '{"format": 1}',
        '"' + "x" * 10_000_000 + '"',
        "",
    ]
    found = forms[rng.integers(len(forms))]
    if rng.random() < 0.7:
        # inside of an attribute
        key = ['"learned": {', '"attributes": {', '"parameters": {'][rng.integers(3)]
        found = text.replace(key, f'{key}"x": {found}, ', 1)
    return signed(found, tensors)


def _often(content, rng):
    """Return a file that names one large tensor many times."""
    text, tensors = _read(content)
    tree, n_times = json.loads(text), 20_000
    tensors["large"] = np.zeros(1 << 20, [np.uint8, np.float32][rng.integers(2)])
    kind = ["array", "scalar", "bytes", "model", "dict", "tensors"][rng.integers(6)]
    if kind == "tensors":
        learned = tree["learned"]["_saved"] if "_saved" in tree["learned"] else tree["learned"]
        learned["tensors"] = [["coef", str(number), {"array": "large"}] for number in range(n_times)]
    elif kind == "dict":
        tree["attributes"]["x"] = {"dict": [[k, {"array": "large"}] for k in range(n_times)]}
    else:
        tree["attributes"]["x"] = [{kind: "large"} for _ in range(n_times)]
    return signed(json.dumps(tree), tensors)


def _tensors(content, rng):
    text, tensors = _read(content)
    name = list(tensors)[rng.integers(len(tensors))]
    array = tensors[name]
    change = rng.integers(7)
    if change == 0:
        del tensors[name]
    elif change == 1 and array.dtype.kind == "f":
        tensors[name] = np.full_like(array, [np.nan, np.inf, 1e30][rng.integers(3)])
    elif change == 2:
        types = [np.float16, np.float64, np.int64, np.uint8, bool]
        with np.errstate(all="ignore"):
            tensors[name] = array.astype(types[rng.integers(5)])
    elif change == 3:
        tensors[name] = array.reshape(-1)[: rng.integers(array.size + 1)]
    elif change == 4:
        tensors[name] = np.broadcast_to(array, (3, *array.shape))
    elif change == 5:
        tensors[name] = np.resize(array, 5_000_000)
    else:
        tensors[name] = array.reshape((1,) * 30 + array.shape)
    return signed(text, tensors)


def _graph(content, rng):
    """Return a file whose graph is mutated."""
    text, tensors = _read(content)
    names = [name for name, array in tensors.items() if "model" in name and array.dtype == np.uint8]
    names = [name for name in names if not tensors[name].tobytes().startswith(b"PK")]
    if not names:
        return None
    name = names[rng.integers(len(names))]
    model = stored = tensors[name].tobytes()
    if is_compressed := stored[:1] == b"\x78":
        model = decompressed(stored)
    if is_compressed and rng.random() < 0.2:
        places = rng.integers(len(stored), size=3)
        flipped = bytes(byte ^ 255 if place in places else byte for place, byte in enumerate(stored))
        changed, is_compressed = flipped if rng.random() < 0.9 else zlib.compress(bytes(1 << 28)), False
    elif rng.random() < 0.2:
        found = onnx.load_from_string(model)
        found.graph.initializer.add(name="huge", data_type=1, dims=[2**31, 2**31])
        bombs = [b"\x0a" * 3_000_000, b"", found.SerializeToString(), _nested(model)]
        changed = bombs[rng.integers(len(bombs))]
    else:
        changed = mutate(model, rng)
    if is_compressed and rng.random() < 0.8:
        changed = compressed(changed)
    tensors[name] = np.frombuffer(changed, np.uint8)
    return signed(text, tensors)


def _nested(content):
    """Return a model whose graphs are nested 60 deep."""
    model = onnx.load_from_string(content)
    graph = model.graph
    for _ in range(30):
        node = graph.node.add(op_type="If", input=["c"], output=["d"])
        graph = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
    return model.SerializeToString()


def _skops(content, rng):
    """Return a file whose part of skops is forged; None if there is none."""
    text, tensors = _read(content)
    names = [name for name, array in tensors.items() if array.tobytes()[:2] == b"PK"]
    if not names:
        return None
    name = names[0]
    with zipfile.ZipFile(io.BytesIO(tensors[name].tobytes())) as archive:
        parts = {entry: archive.read(entry) for entry in archive.namelist()}
    schema = json.loads(parts["schema.json"])
    change = rng.integers(8)
    if change == 0:
        found = bytearray(tensors[name].tobytes())
        for place in rng.integers(0, len(found), 4):
            found[place] = rng.integers(256)
        tensors[name] = np.frombuffer(bytes(found), np.uint8)
        return signed(text, tensors)
    if change == 1:
        parts["schema.json"] = list(DEEP.values())[rng.integers(len(DEEP))].encode()
    elif change == 2:
        parts["schema.json"] = ZEROS
    elif change == 3:
        array = next((entry for entry in parts if entry.endswith(".npy")), "x.npy")
        parts[array] = parts.get(array, b"")[:128] + ZEROS
    elif change == 4:
        array = next((entry for entry in parts if entry.endswith(".npy")), "x.npy")
        stream = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            stream, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)}
        )
        parts[array] = stream.getvalue()
    else:
        for _ in range(1 + rng.integers(2)):
            places = list(_places(schema))
            *way, last = places[rng.integers(len(places))]
            inner = schema
            for step in way:
                inner = inner[step]
            values = (*VALUES, "os", "system", "builtins", "eval", "FunctionNode", "TypeNode", "JsonNode")
            inner[last] = values[rng.integers(len(values))]
        parts["schema.json"] = json.dumps(schema).encode()
    key = int(change) if change in (2, 3) else None
    if key not in _PACKED:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for entry, part in parts.items():
                archive.writestr(entry, part)
        if key is None:
            tensors[name] = np.frombuffer(stream.getvalue(), np.uint8)
            return signed(text, tensors)
        _PACKED[key] = np.frombuffer(stream.getvalue(), np.uint8)
    tensors[name] = _PACKED[key]
    return signed(text, tensors)


#: Archives that take seconds to pack, by their forgery.
_PACKED = {}


#: Forgeries of a file, and those that leave the digest as it was.
FORGERIES = {
    "bytes": _flip,
    "length": _cut,
    "header": _header,
    "values": _tree,
    "more values": _tree,
    "text": _text,
    "one tensor often": _often,
    "tensors": _tensors,
    "graph": _graph,
    "skops": _skops,
}
UNSIGNED = ("bytes", "length", "header")
