"""
Adapt a digits classifier to other handwriting
===============================================

A classifier was trained on one half of the digits. The other half was written with a softer pen: the
pictures are blurred and their contrast is lower. A few hundred of them are enough to adapt the network,
starting from its trained weights.
"""

import numpy as np
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier

# %%
# The first half, and the classifier trained on it.
X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
X_first, X_second, y_first, y_second = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)
classifier = MLPClassifier((64,), max_iter=300, random_state=0).fit(X_first, y_first)

# %%
# The other half, in another hand.
images = X_second.reshape(-1, 8, 8)
soft = np.stack([0.6 * gaussian_filter(image, 0.8) for image in images]).reshape(-1, 64).astype(np.float32)
X_few, X_test, y_few, y_test = train_test_split(soft, y_second, train_size=300, random_state=0)
print(f"before: accuracy {classifier.score(X_test, y_test):.3f} on the new hand")

# %%
# All weights are trained, on the few samples of the new hand.
adapted = OnnxSGDClassifier(
    classifier, optimizer="adam", learning_rate="constant", eta0=0.002, max_iter=40, tol=None, random_state=0
).fit(X_few, y_few)
print(f"after:  accuracy {adapted.score(X_test, y_test):.3f} on the new hand")
