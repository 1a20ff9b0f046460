"""
Sentences: one transformer, an adapter for each domain
======================================================

A LoRA adapter teaches a frozen transformer the words of a new domain.

A dark film is good, a dark screen is not. A small transformer knows whether a review of a restaurant is good.
It stays as it is, and two adapters of a few kilobytes teach it reviews of films and of phones.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnx
import onnxruntime
from onnx.parser import parse_model

from onnxsgd import OnnxSGDClassifier
from onnxsgd.adapters import LoRA

# %%
# The reviews are generated from a small grammar: two clauses, some of them negated, and the last one is the
# verdict. The domains differ in their words, and some adjectives change sides between them.
NOUNS = {
    "restaurants": ["soup", "pizza", "bread", "waiter", "host", "music"],
    "films": ["plot", "cast", "ending", "hero", "camera", "music"],
    "phones": ["screen", "battery", "case", "menu", "camera", "speaker"],
}
ADJECTIVES = {
    ("restaurants", "good"): ["warm", "light", "fresh", "quick", "predictable", "quiet"],
    ("restaurants", "bad"): ["cold", "dark", "stale", "slow", "unpredictable", "loud"],
    ("films", "good"): ["dark", "unpredictable", "loud", "fresh", "quick", "gripping"],
    ("films", "bad"): ["light", "predictable", "quiet", "stale", "slow", "flat"],
    ("phones", "good"): ["cold", "light", "slim", "quick", "predictable", "loud"],
    ("phones", "bad"): ["warm", "dark", "heavy", "slow", "unpredictable", "quiet"],
}
OPPOSITE = {"good": "bad", "bad": "good"}
rng = np.random.default_rng(0)


def clause(domain, verdict):
    negated = rng.random() < 0.3
    adjective = rng.choice(ADJECTIVES[domain, OPPOSITE[verdict] if negated else verdict])
    adverb = rng.choice(["", "", "really ", "very ", "rather "])
    return f"the {rng.choice(NOUNS[domain])} was {'not ' * negated}{adverb}{adjective}"


def write_reviews(domain, n_reviews):
    reviews, verdicts = [], rng.choice(["good", "bad"], (n_reviews, 2))
    for first, last in verdicts:
        opening = rng.choice(["", "", "last night ", "as always ", "on my first visit "])
        link = "and" if first == last else "but"
        reviews.append(f"{opening}{clause(domain, first)} {link} {clause(domain, last)}")
    return reviews, verdicts[:, 1]


train = {
    domain: write_reviews(domain, n) for domain, n in (("restaurants", 2000), ("films", 500), ("phones", 500))
}
test = {domain: write_reviews(domain, 1000) for domain in NOUNS}
for domain, (reviews, verdicts) in train.items():
    print(f"{domain}, {verdicts[0]}: {reviews[0]}")

# %%
# Sentences differ in length. Shorter ones are filled with zeros, and a mask says where the words are.
words = sorted({word for reviews, _ in train.values() for review in reviews for word in review.split()})
number_of = {word: number for number, word in enumerate(words, start=1)}


def encode(reviews):
    numbers = [[number_of[word] for word in review.split()] for review in reviews]
    tokens = np.zeros((len(numbers), max(map(len, numbers))), np.int64)
    for row, sentence in zip(tokens, numbers, strict=True):
        row[: len(sentence)] = sentence
    return {"tokens": tokens, "mask": (tokens > 0).astype(np.float32)}


train, test = (
    {domain: (encode(reviews), verdicts) for domain, (reviews, verdicts) in part.items()}
    for part in (train, test)
)


# %%
# The network: vectors of words and of places, two layers of attention, the mean over the words, a linear
# layer. The logarithm of the mask is 0 at words and -inf at padding, which no word attends to then.
LAYERS, WIDTH = 2, 48
LAYER = """
    query{i} = MatMul(x{i}, query_weight{i})
    key{i} = MatMul(x{i}, key_weight{i})
    value{i} = MatMul(x{i}, value_weight{i})
    turned{i} = Transpose<perm = [0, 2, 1]>(key{i})
    match{i} = MatMul(query{i}, turned{i})
    masked{i} = Add(match{i}, hidden)
    attention{i} = Softmax(masked{i})
    read{i} = MatMul(attention{i}, value{i})
    sum{i} = Add(x{i}, read{i})
    norm{i} = LayerNormalization(sum{i}, norm_scale{i})
    wide{i} = MatMul(norm{i}, wide_weight{i})
    active{i} = Relu(wide{i})
    narrow{i} = MatMul(active{i}, narrow_weight{i})
    x{j} = Add(norm{i}, narrow{i})"""
network = parse_model(f"""
<ir_version: 8, opset_import: ["" : 17]>
sentences (int64[N, L] tokens, float[N, L] mask) => (float[N, 2] scores) {{
    length = Shape<start = 1>(tokens)
    places = Slice(place_table, zero, length)
    words = Gather(word_table, tokens)
    x0 = Add(words, places)
    log_mask = Log(mask)
    hidden = Unsqueeze(log_mask, one)
    {"".join(LAYER.format(i=i, j=i + 1) for i in range(LAYERS))}
    column = Unsqueeze(mask, two)
    kept = Mul(x{LAYERS}, column)
    total = ReduceSum<keepdims = 0>(kept, one)
    count = ReduceSum(mask, one)
    mean = Div(total, count)
    scores = Gemm(mean, last_weight, last_bias)
}}""")

# %%
# Its weights start at random, and learn from 2,000 reviews of restaurants, with Adam at a falling rate.
# Usually such a file comes from somebody else, who had more text and more time.
sizes = {"query": (1, 1), "key": (1, 1), "value": (1, 1), "wide": (1, 2), "narrow": (2, 1)}
shapes = {"word_table": (len(words) + 1, WIDTH), "place_table": (32, WIDTH), "last_weight": (WIDTH, 2)}
shapes |= {
    f"{name}_weight{i}": (WIDTH * n_inputs, WIDTH * n_outputs)
    for i in range(LAYERS)
    for name, (n_inputs, n_outputs) in sizes.items()
}
weights = {name: rng.normal(size=shape, scale=WIDTH**-0.5) for name, shape in shapes.items()}
weights |= {f"norm_scale{i}": np.ones(WIDTH) for i in range(LAYERS)} | {"last_bias": np.zeros(2)}
weights = {name: values.astype(np.float32) for name, values in weights.items()}
weights |= {name: np.array([axis]) for name, axis in (("zero", 0), ("one", 1), ("two", 2))}
network.graph.initializer.extend(
    onnx.numpy_helper.from_array(values, name) for name, values in weights.items()
)

recipe = {"optimizer": "adam", "learning_rate": "cosine", "tol": None, "random_state": 0}
network = OnnxSGDClassifier(network, **recipe, eta0=2e-3, max_iter=15).fit(*train["restaurants"])
base = network.to_onnx()

# %%
# Two copies learn each new domain from 500 reviews. One has a LoRA adapter of rank 2 beside each matrix and
# beside the vectors of the words; the other one trains all weights. Both rates were chosen among several.
lora = LoRA(rank=2, alpha=2, targets=["word_table", "*_weight0", "*_weight1"])
adapted, tuned = {}, {}
for domain in ("films", "phones"):
    adapted[domain] = OnnxSGDClassifier(base, adapter=lora, **recipe, eta0=1e-2, max_iter=30)
    tuned[domain] = OnnxSGDClassifier(base, **recipe, eta0=3e-3, max_iter=30)
    for learner in (adapted[domain], tuned[domain]):
        learner.fit(*train[domain])

n_lora, n_all = (
    sum(values.size for values in models["films"].get_weights().values()) for models in (adapted, tuned)
)
print(f"trained numbers: {n_lora} in an adapter, {n_all} in the network")

# %%
# ``to_onnx(adapter="inputs")`` writes the frozen network, the same for both domains. The arrays of an adapter
# are optional inputs of it, so that one session serves all domains. They are stored here in numpy's format,
# for every version of onnxruntime. From 1.20 on it reads the files of ``export_adapter`` itself.
with tempfile.TemporaryDirectory() as folder:
    base_file = Path(folder, "base.onnx")
    onnx.save(adapted["films"].to_onnx(adapter="inputs"), base_file)
    print(f"{base_file.name}: {base_file.stat().st_size / 1000:.0f} kB")
    adapters = {"restaurants": {}}
    for domain, learner in adapted.items():
        file = Path(folder, f"{domain}.npz")
        np.savez(file, **learner.get_weights())
        print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB")
        with np.load(file) as arrays:
            adapters[domain] = dict(arrays)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of inputs with a default
    session = onnxruntime.InferenceSession(base_file, options, providers=["CPUExecutionProvider"])


def score(reviews, domain):
    """Return the probability of a good verdict with the adapter of a domain."""
    (scores,) = session.run(["scores"], reviews | adapters[domain])
    return 1 / (1 + np.exp(scores[:, 0] - scores[:, 1]))


def accuracy(reviews, verdicts, domain):
    return np.mean((score(reviews, domain) > 0.5) == (verdicts == "good"))


bars = {}
for domain in adapted:
    bars[domain] = (
        accuracy(*test[domain], "restaurants"),
        accuracy(*test[domain], domain),
        tuned[domain].score(*test[domain]),
    )
    text = "{}: accuracy {:.3f} before, {:.3f} with the adapter, {:.3f} with all weights trained"
    print(text.format(domain, *bars[domain]))
for domain in adapted:
    before, after = accuracy(*test["restaurants"], "restaurants"), tuned[domain].score(*test["restaurants"])
    bars[f"restaurants,\nafter {domain}"] = (before, before, after)
    print(
        f"restaurants after {domain}: {before:.3f} without the adapter, {after:.3f} with all weights trained"
    )

# %%
# On the new domain, a fifteenth of the numbers does about as well as all of them. Without the adapter the
# network is what it was; trained as a whole, it has forgotten restaurants. On the right: another adapter,
# another verdict on the same sentence.
ROWS = ["light", "dark", "predictable", "unpredictable", "quiet", "loud", "quick", "slow"]
sentences = encode([f"the camera was {word} and the music was {word}" for word in ROWS])
verdicts = np.column_stack([score(sentences, domain) for domain in adapters])

plt.style.use("tableau-colorblind10")
figure = plt.figure(figsize=(10.5, 4.8), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1.7, 1])
ax = left.subplots()
names = ("network as it was", "with a LoRA adapter (off for restaurants)", "all weights trained")
for i, (name, color) in enumerate(zip(names, ("C2", "C0", "C5"), strict=True)):
    heights = [100 * values[i] for values in bars.values()]
    drawn = ax.bar(np.arange(4) + 0.28 * (i - 1), heights, 0.27, color=color, label=name)
    ax.bar_label(drawn, fmt="%.1f", fontsize="small", padding=1)
ax.set_xticks(range(4), bars)
ax.set_yticks(range(0, 101, 20))
ax.set(
    ylabel="accuracy on 1,000 other reviews (%)",
    ylim=(0, 132),
    title=f"{n_lora:,} numbers instead of {n_all:,}, and nothing is forgotten",
)
ax.legend(loc="upper left")

ax = right.subplots()
# paler than the ends of the colours, for the words on them
ax.imshow(verdicts, cmap="PuOr", vmin=-0.6, vmax=1.6, aspect="auto")
for row, column in np.ndindex(verdicts.shape):
    ax.text(column, row, "good" if verdicts[row, column] > 0.5 else "bad", ha="center", va="center")
ax.set_xticks(range(3), ["no adapter", *adapted])
ax.set_yticks(range(len(ROWS)), ROWS)
ax.set(title="“the camera was …\nand the music was …”")
plt.show()
