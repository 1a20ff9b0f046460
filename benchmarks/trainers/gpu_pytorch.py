"""PyTorch on a device: the usual loop, and a step captured once as a CUDA graph and replayed.

Data, order and losses stay on the device; the loss of an epoch is read at its end. Products of float32 are
computed in float32.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional
from workloads import Layers, Task

from trainers import TimedTrain

__all__ = ["train_eager", "train_graph", "train_half"]


def train_eager(task: Task, device: str) -> TimedTrain:
    """Train in the usual loop."""
    torch.backends.cuda.matmul.allow_tf32 = False
    X, y, module = _place(task, device)
    optimizer = torch.optim.SGD(module.parameters(), lr=task.rate)
    total = torch.zeros((), device=device)

    def step(rows: torch.Tensor) -> None:
        loss = 0.5 * functional.mse_loss(module(X.index_select(0, rows)), y.index_select(0, rows))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total.add_(loss.detach())

    return _timed(task, device, module, total, step)


def train_half(task: Task, device: str) -> TimedTrain:
    """Train in the usual loop with autocast to float16 and a scale of the loss."""
    X, y, module = _place(task, device)
    optimizer = torch.optim.SGD(module.parameters(), lr=task.rate)
    scaler = torch.amp.GradScaler(torch.device(device).type)
    total = torch.zeros((), device=device)

    def step(rows: torch.Tensor) -> None:
        with torch.autocast(torch.device(device).type, torch.float16):
            raw = module(X.index_select(0, rows))
        loss = 0.5 * functional.mse_loss(raw.float(), y.index_select(0, rows))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total.add_(loss.detach())

    return _timed(task, device, module, total, step)


def train_graph(task: Task, device: str) -> TimedTrain:
    """Train by replaying one step; only the order of its rows changes.

    Raises
    ------
    ImportError
        If `device` is not a GPU.
    """
    if not device.startswith("cuda"):
        raise ImportError("CUDA graphs need a GPU")
    torch.backends.cuda.matmul.allow_tf32 = False
    X, y, module = _place(task, device)
    optimizer = torch.optim.SGD(module.parameters(), lr=task.rate)
    total = torch.zeros((), device=device)
    read = torch.arange(task.batch_size, device=device)

    def step() -> None:
        loss = 0.5 * functional.mse_loss(module(X.index_select(0, read)), y.index_select(0, read))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total.add_(loss.detach())

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    return _timed(task, device, module, total, partial(_replay, graph, read, (X, y)))


def _replay(graph: torch.cuda.CUDAGraph, read: torch.Tensor, held: object, rows: torch.Tensor) -> None:
    """Replay a recorded step on some rows; `held` are tensors that it reads, which must not be freed."""
    read.copy_(rows)
    graph.replay()


def _place(task: Task, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.nn.Sequential]:
    modules: list[torch.nn.Module] = []
    for weight, _ in task.initial:
        modules += [torch.nn.Linear(*weight.shape), torch.nn.ReLU()]
    module = torch.nn.Sequential(*modules[:-1]).to(device)
    y = torch.from_numpy(task.y.astype("float32")).reshape(-1, 1)
    return torch.from_numpy(task.X).to(device), y.to(device), module


def _timed(
    task: Task,
    device: str,
    module: torch.nn.Sequential,
    total: torch.Tensor,
    step: Callable[[torch.Tensor], None],
) -> TimedTrain:
    """Return a trainer that calls `step` for each batch of each epoch, from the initial weights."""
    n_rows = len(task.X)

    def run(n_epochs: int, shuffle: bool) -> tuple[Layers, list[float]]:
        _restart(task, module)
        seconds = []
        for _ in range(n_epochs):
            start = time.perf_counter()
            total.zero_()
            make = torch.randperm if shuffle else torch.arange
            for rows in make(n_rows, device=device).split(task.batch_size):
                step(rows)
            total.item()
            seconds.append(time.perf_counter() - start)
        arrays = [value.detach().cpu().numpy().copy() for value in module.parameters()]
        return [(weight.T, bias) for weight, bias in zip(arrays[::2], arrays[1::2], strict=True)], seconds

    return run


def _restart(task: Task, module: torch.nn.Sequential) -> None:
    """Copy the initial weights into the weights."""
    layers = [part for part in module if isinstance(part, torch.nn.Linear)]
    with torch.no_grad():
        for layer, (weight, bias) in zip(layers, task.initial, strict=True):
            layer.weight.copy_(torch.from_numpy(weight.T.copy()))
            layer.bias.copy_(torch.from_numpy(bias))
