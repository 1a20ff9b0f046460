"""Write torch_optimizers.npz: a weight after each of 50 updates by torch's Adam and AdamW.

Needs PyTorch; the file it writes is in the repository, so that the tests do not need it.
"""

from pathlib import Path

import numpy as np
import torch

STEPS, SHAPE = 50, (7, 3)
CASES = {
    "adam": lambda w: torch.optim.Adam([w], lr=0.02),
    "adam_l2": lambda w: torch.optim.Adam([w], lr=0.02, weight_decay=0.1),
    "adamw": lambda w: torch.optim.AdamW([w], lr=0.02, weight_decay=0.1),
    "sgd": lambda w: torch.optim.SGD([w], lr=0.02),
    "sgd_momentum": lambda w: torch.optim.SGD([w], lr=0.02, momentum=0.9, weight_decay=0.1),
    "sgd_nesterov": lambda w: torch.optim.SGD([w], lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.1),
}

rng = np.random.RandomState(0)
start = rng.normal(size=SHAPE)
gradients = rng.normal(size=(STEPS, *SHAPE)) * np.geomspace(1e-3, 10, SHAPE[0])[:, None]
arrays = {"start": start, "gradients": gradients}
for name, make in CASES.items():
    weight = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = make(weight)
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    arrays[name] = weight.detach().numpy()
np.savez_compressed(Path(__file__).with_name("torch_optimizers.npz"), **arrays)
