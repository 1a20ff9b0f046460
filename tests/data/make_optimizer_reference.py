"""Write optimizers.npz: a weight after 200 updates by optimizers of torch and, for Lion, of optax.

Needs PyTorch, JAX and optax; the file it writes is in the repository, so that the tests do not need them.
"""

from pathlib import Path

import jax
import numpy as np
import optax
import torch

jax.config.update("jax_enable_x64", True)
STEPS, SHAPE = 200, (7, 3)
#: Falling rates: conventions of momentum differ under them.
RATES = 0.02 / np.sqrt(1 + np.arange(STEPS) / 20)
TORCH = {
    "adam": lambda w: torch.optim.Adam([w]),
    "adam_l2": lambda w: torch.optim.Adam([w], weight_decay=0.1),
    "adam_amsgrad": lambda w: torch.optim.Adam([w], amsgrad=True),
    "adamw": lambda w: torch.optim.AdamW([w], weight_decay=0.1),
    "adamw_amsgrad": lambda w: torch.optim.AdamW([w], weight_decay=0.1, amsgrad=True),
    "rmsprop": lambda w: torch.optim.RMSprop([w], weight_decay=0.1),
    "adagrad": lambda w: torch.optim.Adagrad([w], weight_decay=0.1),
    "sgd": lambda w: torch.optim.SGD([w]),
    "sgd_torch_momentum": lambda w: torch.optim.SGD([w], momentum=0.9, weight_decay=0.1),
    "sgd_torch_nesterov": lambda w: torch.optim.SGD([w], momentum=0.9, nesterov=True, weight_decay=0.1),
}
#: At a constant rate, the first of RATES.
CONSTANT = {
    "sgd_momentum": lambda w: torch.optim.SGD([w], momentum=0.9, weight_decay=0.1),
    "sgd_nesterov": lambda w: torch.optim.SGD([w], momentum=0.9, nesterov=True, weight_decay=0.1),
}
OPTAX = {
    "lion": lambda rate: optax.lion(rate, weight_decay=0.0),
    "lion_decay": lambda rate: optax.lion(rate, weight_decay=0.1),
}

rng = np.random.RandomState(0)
start = rng.normal(size=SHAPE)
gradients = rng.normal(size=(STEPS, *SHAPE)) * np.geomspace(1e-3, 10, SHAPE[0])[:, None]
arrays = {"start": start, "gradients": gradients, "rates": RATES}
for name, make in {**TORCH, **CONSTANT}.items():
    weight = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = make(weight)
    for gradient, rate in zip(gradients, RATES, strict=True):
        optimizer.param_groups[0]["lr"] = RATES[0] if name in CONSTANT else rate
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    arrays[name] = weight.detach().numpy()
for name, make in OPTAX.items():
    optimizer = make(lambda count: jax.numpy.asarray(RATES)[count])
    weight, state = jax.numpy.asarray(start), None
    state = optimizer.init(weight)
    for gradient in gradients:
        updates, state = optimizer.update(jax.numpy.asarray(gradient), state, weight)
        weight = optax.apply_updates(weight, updates)
    arrays[name] = np.asarray(weight)
np.savez_compressed(Path(__file__).with_name("optimizers.npz"), **arrays)
