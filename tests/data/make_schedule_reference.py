"""Write schedules.npz: the rates of 70 updates, and of reductions on plateaus, by torch.

Needs PyTorch; the file it writes is in the repository, so that the tests do not need it.
"""

import warnings
from pathlib import Path

import numpy as np
import torch
from torch.optim import lr_scheduler as torch_schedules

ETA0, N = 0.3, 70


def linear(optimizer, n):
    return torch_schedules.LinearLR(optimizer, start_factor=0.1, total_iters=n)


def cosine(optimizer, n):
    return torch_schedules.CosineAnnealingLR(optimizer, T_max=n, eta_min=0.001)


SCHEDULES = {
    "step": lambda o: torch_schedules.StepLR(o, step_size=15, gamma=0.4),
    "exponential": lambda o: torch_schedules.ExponentialLR(o, gamma=0.97),
    "polynomial": lambda o: torch_schedules.PolynomialLR(o, total_iters=60, power=0.9),
    "cosine": lambda o: cosine(o, N),
    "cosine_restarts": lambda o: torch_schedules.CosineAnnealingWarmRestarts(
        o, T_0=10, T_mult=2, eta_min=0.02
    ),
    "cosine_equal_restarts": lambda o: torch_schedules.CosineAnnealingWarmRestarts(o, T_0=14),
    "one_cycle": lambda o: torch_schedules.OneCycleLR(
        o, max_lr=ETA0, total_steps=N, pct_start=0.2, div_factor=10, final_div_factor=50, cycle_momentum=False
    ),
    "one_cycle_default": lambda o: torch_schedules.OneCycleLR(o, max_lr=ETA0, total_steps=N),
    "warm_up_cosine": lambda o: torch_schedules.SequentialLR(o, [linear(o, 12), cosine(o, N - 12)], [12]),
    "warm_up_step": lambda o: torch_schedules.SequentialLR(
        o, [linear(o, 12), torch_schedules.StepLR(o, step_size=15, gamma=0.4)], [12]
    ),
    "warm_up_constant": lambda o: linear(o, 12),
}
#: Reductions on plateaus of the losses: `threshold`, `patience`.
PLATEAUS = {"plateau": (0.05, 2), "plateau_impatient": (0.0, 0)}


def optimizer():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=ETA0, momentum=0.9)


arrays = {"eta0": ETA0}
for name, make in SCHEDULES.items():
    sgd, rates = optimizer(), []
    with warnings.catch_warnings():
        # of SequentialLR, about a deprecated argument that it sets itself
        warnings.simplefilter("ignore", UserWarning)
        schedule = make(sgd)
        for number in range(N):
            rates.append(sgd.param_groups[0]["lr"])
            sgd.step()
            if number < N - 1:
                schedule.step()
    arrays[name] = np.array(rates)
rng = np.random.RandomState(0)
losses = 0.2 + np.exp(-np.minimum(np.arange(N), 25) / 10) + 0.05 * rng.normal(size=N)
arrays["losses"] = losses
for name, (threshold, patience) in PLATEAUS.items():
    sgd, rates = optimizer(), []
    schedule = torch_schedules.ReduceLROnPlateau(
        sgd, factor=0.5, patience=patience, threshold=threshold, min_lr=0.004, eps=0
    )
    for loss in losses:
        schedule.step(loss)
        rates.append(sgd.param_groups[0]["lr"])
    arrays[name] = np.array(rates)
np.savez_compressed(Path(__file__).with_name("schedules.npz"), **arrays)
