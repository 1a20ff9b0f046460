"""
Text: the words that survive an l1 penalty
==========================================

An l1 penalty turns a sparse text model into a short list of words that a person can read.

Reports to four departments contain a few telling words among a thousand common ones. The penalty sets the
coefficients of most words to exactly zero.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

from onnxsgd import OnnxSGDClassifier

# %%
# Generated reports: 30 common words of a vocabulary of 1,000, none to four words of the department, and one
# telling word of any department.
TOPICS = {
    "billing": ["invoice", "refund", "payment", "charge", "discount", "receipt"],
    "delivery": ["parcel", "courier", "address", "delayed", "tracking", "doorstep"],
    "login": ["password", "account", "locked", "username", "email", "verify"],
    "repair": ["broken", "screen", "battery", "warranty", "replace", "noise"],
}
rng = np.random.default_rng(0)
syllables = np.array(["ba", "ce", "di", "fo", "gu", "la", "me", "ni", "so", "tu"])
common = ["".join(syllables[[int(digit) for digit in f"{number:03d}"]]) for number in range(1000)]
frequency = 1 / np.arange(10, 10 + len(common))


def report(topic):
    words = list(rng.choice(common, size=30, p=frequency / frequency.sum()))
    words += list(rng.choice(TOPICS[topic], size=rng.integers(0, 5)))
    words += [rng.choice(TOPICS[rng.choice(list(TOPICS))])]
    return " ".join(rng.permutation(words))


y = rng.choice(list(TOPICS), size=2000)
texts = [report(topic) for topic in y]
train, test, y_train, y_test = train_test_split(texts, y, random_state=0)
print(f"{y[0]}: {texts[0]}")


# %%
# The matrix of the vectorizer is sparse, and stays sparse in training. Each strength of the penalty keeps
# some of the words.
def fit(**penalty):
    return make_pipeline(TfidfVectorizer(), OnnxSGDClassifier(**penalty, random_state=0)).fit(train, y_train)


alphas = np.logspace(-5, -2.3, 10)
models = [fit(penalty="l1", alpha=alpha) for alpha in alphas]
kept = [np.any(model[-1].coef_ != 0, axis=0) for model in models]
counts = [mask.sum() for mask in kept]
accuracy = [model.score(test, y_test) for model in models]
default = fit().score(test, y_test)

# %%
# The strongest penalty of those with the best accuracy, and its words.
best = max(range(len(alphas)), key=lambda i: (accuracy[i], alphas[i]))
words = models[best][0].get_feature_names_out()[kept[best]]
telling = {word for topic in TOPICS.values() for word in topic}
print(f"alpha={alphas[best]:.2g}: {counts[best]} of {len(kept[best])} words, ", end="")
print(f"{len(telling & set(words))} of the {len(telling)} telling ones, accuracy {accuracy[best]:.3f}")
print(f"default penalty, l2: all words, accuracy {default:.3f}")

# %%
# All telling words survive, and next to none of the common ones, whose names would be grey. Fewer words are
# also more accurate, since a model of all words learns the common ones by heart.
plt.style.use("tableau-colorblind10")
figure = plt.figure(figsize=(10, 6), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1, 1.1])
top, bottom = left.subplots(2, 1, sharex=True)
top.semilogx(alphas, accuracy, "o-", color="C0", label="l1")
top.axhline(default, color="C1", ls="--", label="l2, default strength")
top.set(ylabel="accuracy on other reports", title=f"{counts[best]} words are better than {len(kept[best])}")
top.legend(loc="lower right")
bottom.loglog(alphas, counts, "o-", color="C0")
bottom.axhline(len(telling), color="C3", ls=":")
bottom.text(alphas[0], len(telling) * 1.1, f"{len(telling)} telling words")
bottom.set(xlabel="strength alpha of the l1 penalty", ylabel="words with a coefficient")
for ax in (top, bottom):
    ax.axvline(alphas[best], color="C2", lw=6, alpha=0.4)
    ax.grid(alpha=0.3)

ax = right.subplots()
coef = models[best][-1].coef_[:, kept[best]]
order = np.lexsort((-coef.max(axis=0), coef.argmax(axis=0)))
limit = np.abs(coef).max()
picture = ax.imshow(coef[:, order].T, cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto")
ax.set_xticks(range(4), models[best].classes_)
ax.set_yticks(range(len(order)), words[order], fontsize="small")
for label in ax.get_yticklabels():
    label.set_color("black" if label.get_text() in telling else "C6")
ax.set_title("The surviving words")
right.colorbar(picture, ax=ax, label="coefficient")
plt.show()
