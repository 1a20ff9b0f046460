"""
Out of core: training from a memory map
=======================================

``partial_fit`` trains on a large file, a part at a time, in a few megabytes of memory.

The file holds more rows than should be in memory. ``numpy.memmap`` reads the rows that are asked for.
"""

import tempfile
import tracemalloc
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from onnxsgd import OnnxSGDClassifier

# %%
# The file: 400,000 rows of 60 columns in float32, written in parts as well.
N_ROWS, N_COLUMNS, PART = 400_000, 60, 10_000
folder = tempfile.TemporaryDirectory()
path = Path(folder.name, "rows.float32")
rng = np.random.default_rng(0)
direction = rng.normal(size=N_COLUMNS) / np.sqrt(N_COLUMNS)
y = np.empty(N_ROWS, np.int8)
with path.open("wb") as file:
    for start in range(0, N_ROWS, PART):
        rows = rng.standard_normal((PART, N_COLUMNS), np.float32)
        y[start : start + PART] = 3 * rows @ direction + rng.logistic(size=PART) > 0
        file.write((100 * rows + 500).astype(np.float32).tobytes())
X = np.memmap(path, np.float32, mode="r", shape=(N_ROWS, N_COLUMNS))
print(f"{path.stat().st_size / 1e6:.0f} MB in the file")

# %%
# The last 20,000 rows are for the test. ``tracemalloc`` counts the memory of arrays from the second part
# on; the first one compiled the training step, for which the runtime takes a fixed amount.
X_test, y_test = X[-20_000:], y[-20_000:]
learner = OnnxSGDClassifier(classes=[0, 1], random_state=0).partial_fit(X[:250], y[:250])
tracemalloc.start()
seen, accuracy, memory = [250], [learner.score(X_test, y_test)], [0]
start, size = 250, 500
while start < N_ROWS - len(X_test):
    part = slice(start, min(start + size, N_ROWS - len(X_test)))
    learner.partial_fit(X[part], y[part])
    memory.append(tracemalloc.get_traced_memory()[1] / 1e6)
    seen.append(part.stop)
    accuracy.append(learner.score(X_test, y_test))
    start, size = part.stop, min(2 * size, PART)
tracemalloc.stop()
print(f"accuracy {accuracy[-1]:.3f} after one pass; at most {max(memory):.0f} MB of arrays")

# %%
# The first parts are small here, to show the beginning.
plt.style.use("tableau-colorblind10")
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
left.semilogx(seen, accuracy, "o-", color="C0", ms=4)
left.set(
    xlabel="rows read",
    ylabel="accuracy on 20,000 other rows",
    title=f"One pass: {accuracy[-1]:.1%} right",
)
left.grid(alpha=0.3)
rows = np.array(seen)
right.plot(
    rows, rows * X.itemsize * N_COLUMNS / 1e6, "--", color="C1", lw=2, label="rows read so far, in the file"
)
right.plot(rows, memory, color="C0", lw=2, label="largest memory of arrays so far")
right.set(
    xlabel="rows read",
    ylabel="megabytes",
    title=f"{max(memory):.0f} MB of memory for a file of {X.nbytes / 1e6:.0f} MB",
)
right.set_xticks(range(0, N_ROWS + 1, 100_000), [f"{rows:,}" for rows in range(0, N_ROWS + 1, 100_000)])
right.legend()
right.grid(alpha=0.3)
plt.show()

# %%
# The file has to be closed before it is deleted.
del X, X_test
folder.cleanup()
