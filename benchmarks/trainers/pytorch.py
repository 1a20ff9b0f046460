"""PyTorch: eager, and compiled, each in the fastest form found.

Eager: ``torch.optim.SGD`` with its defaults (``fused`` and ``foreach`` were slower or equal on a CPU).
Compiled: forward, backward and update in one function under ``torch.compile``; compiling the forward pass
and the optimizer apart from each other was slower than eager.
"""

from __future__ import annotations

import torch
from torch.nn import functional
from workloads import Layers, Task

from trainers import Train

__all__ = ["train_compiled", "train_eager"]


def train_eager(task: Task) -> Train:
    """Train in the usual loop."""
    torch.set_num_threads(task.n_threads)
    X, y = torch.from_numpy(task.X), _target(task)

    def train(n_epochs: int, shuffle: bool) -> Layers:
        model = _module(task)
        optimizer = torch.optim.SGD(model.parameters(), lr=task.rate)
        for _ in range(n_epochs):
            total = torch.zeros(())
            for rows in _order(task, shuffle):
                loss = _loss(task, model(X.index_select(0, rows)), y.index_select(0, rows))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach()
            total.item()
        return _layers(dict(model.named_parameters()))

    return train


def train_compiled(task: Task) -> Train:
    """Train with one compiled function for each update."""
    torch.set_num_threads(task.n_threads)
    # the functions of earlier tasks count towards the limit of recompilations
    torch._dynamo.reset()
    X, y = torch.from_numpy(task.X), _target(task)
    model = _module(task)
    start = {name: value.detach() for name, value in model.named_parameters()}

    def loss_of(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _loss(task, torch.func.functional_call(model, parameters, (x,)), y)

    @torch.compile(dynamic=False)
    def step(
        parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        gradients, loss = torch.func.grad_and_value(loss_of)(
            parameters, x.index_select(0, rows), y.index_select(0, rows)
        )
        return {name: value - task.rate * gradients[name] for name, value in parameters.items()}, loss

    def train(n_epochs: int, shuffle: bool) -> Layers:
        parameters = {name: value.clone() for name, value in start.items()}
        with torch.no_grad():
            for _ in range(n_epochs):
                total = torch.zeros(())
                for rows in _order(task, shuffle):
                    parameters, loss = step(parameters, X, y, rows)
                    total += loss
                total.item()
        return _layers(parameters)

    return train


def _module(task: Task) -> torch.nn.Sequential:
    modules: list[torch.nn.Module] = []
    for weight, bias in task.initial:
        linear = torch.nn.Linear(*weight.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight.T))
            linear.bias.copy_(torch.from_numpy(bias))
        modules += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*modules[:-1])


def _target(task: Task) -> torch.Tensor:
    if task.workload.kind == "multiclass":
        return torch.from_numpy(task.y)
    return torch.from_numpy(task.y.astype("float32")).reshape(-1, 1)


def _loss(task: Task, score: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if task.workload.kind == "regression":
        return 0.5 * functional.mse_loss(score, y)
    if task.workload.kind == "binary":
        return functional.binary_cross_entropy_with_logits(score, y)
    return functional.cross_entropy(score, y)


def _order(task: Task, shuffle: bool) -> tuple[torch.Tensor, ...]:
    n_rows = len(task.X)
    return (torch.randperm(n_rows) if shuffle else torch.arange(n_rows)).split(task.batch_size)


def _layers(parameters: dict[str, torch.Tensor]) -> Layers:
    arrays = [value.detach().numpy() for value in parameters.values()]
    return [(weight.T, bias) for weight, bias in zip(arrays[::2], arrays[1::2], strict=True)]
