"""Networks of the usual families, written in plain torch, small enough to be trained on one core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse
from torch.nn import functional

__all__ = ["BATCH_SIZE", "NETWORKS", "N_CLASSES", "Network"]

BATCH_SIZE, N_CLASSES = 8, 10


@dataclass(frozen=True)
class Network:
    """A network and its data.

    Attributes
    ----------
    make : callable
        Returns the module, which ends in `N_CLASSES` raw scores.
    shape : tuple of int
        The shape of one row of its input.
    n_tokens : int
        For integer inputs, the number of their values; 0 for real numbers.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (3, 32, 32)
    n_tokens: int = 0


class _Attention(nn.Module):
    """Self-attention, with one product for queries, keys and values."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        n, length, dim = x.shape
        parts = self.qkv(x).reshape(n, length, 3, self.n_heads, dim // self.n_heads).permute(2, 0, 3, 1, 4)
        q, k, v = parts[0], parts[1], parts[2]
        weights = (q @ k.transpose(-2, -1) * (dim // self.n_heads) ** -0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(n, length, dim))


class _Block(nn.Module):
    """A layer of a transformer that normalizes first, or behind the sums."""

    def __init__(
        self, dim: int, n_heads: int, n_hidden: int | None = None, *, norm_first: bool = True
    ) -> None:
        super().__init__()
        self.norm_first, n_hidden = norm_first, n_hidden or 4 * dim
        self.norm1, self.attention = nn.LayerNorm(dim), _Attention(dim, n_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, n_hidden), nn.GELU(), nn.Linear(n_hidden, dim))

    def forward(self, x: Tensor) -> Tensor:
        if self.norm_first:
            x = x + self.attend(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.mlp(x))

    def attend(self, x: Tensor) -> Tensor:
        return self.attention(x)


class _ViT(nn.Module):
    """A vision transformer with a class token."""

    def __init__(self, dim: int, depth: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.position = nn.Parameter(0.02 * torch.randn(1, (32 // patch) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*(_Block(dim, 4) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class _WindowBlock(_Block):
    """A layer whose attention is within windows, which may be shifted."""

    def __init__(self, dim: int, n_heads: int, size: int, window: int, shift: int) -> None:
        super().__init__(dim, n_heads)
        self.size, self.window, self.shift = size, window, shift

    def attend(self, x: Tensor) -> Tensor:
        n, _, dim = x.shape
        count, w = self.size // self.window, self.window
        x = x.reshape(n, self.size, self.size, dim)
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2)) if self.shift else x
        x = x.reshape(n, count, w, count, w, dim).transpose(2, 3).reshape(n * count * count, w * w, dim)
        x = self.attention(x).reshape(n, count, count, w, w, dim).transpose(2, 3)
        x = x.reshape(n, self.size, self.size, dim)
        x = torch.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x
        return x.reshape(n, self.size * self.size, dim)


class _Merge(nn.Module):
    """The merging of patches of 2 x 2 neighbours."""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.size, self.norm = size, nn.LayerNorm(4 * dim)
        self.reduce = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n, _, dim = x.shape
        x = x.reshape(n, self.size, self.size, dim)
        parts = [x[:, row::2, column::2] for row, column in ((0, 0), (1, 0), (0, 1), (1, 1))]
        return self.reduce(self.norm(torch.cat(parts, -1).reshape(n, -1, 4 * dim)))


class _Swin(nn.Module):
    """A hierarchy of shifted windows in two stages."""

    def __init__(self, dim: int, patch: int) -> None:
        super().__init__()
        size = 32 // patch
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.stages = nn.Sequential(
            _WindowBlock(dim, 2, size, 4, 0), _WindowBlock(dim, 2, size, 4, 2), _Merge(dim, size),
            _WindowBlock(2 * dim, 4, size // 2, 4, 0), _WindowBlock(2 * dim, 4, size // 2, 4, 0),
        )  # fmt: skip
        self.norm, self.head = nn.LayerNorm(2 * dim), nn.Linear(2 * dim, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.patches(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))


class _Dense(nn.Module):
    """A layer of a DenseNet: its output is joined to its input."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def _densenet(growth: int = 8) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 2 * growth, 3, stride=2, padding=1, bias=False)]
    channels = 2 * growth
    for stage in range(2):
        for _ in range(3):
            layers.append(_Dense(channels, growth))
            channels += growth
        if stage == 0:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False)]
            layers.append(nn.AvgPool2d(2))
            channels //= 2
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(channels, N_CLASSES))


def _vgg(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in widths:
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    size = (32 >> len(widths)) ** 2 * channels
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(size, 128), nn.ReLU(), nn.Dropout(0.0), nn.Linear(128, N_CLASSES)
    )


class _Residual(nn.Module):
    """Two convolutions and a short cut."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out)
        self.conv2, self.norm2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False), nn.BatchNorm2d(n_out)
        self.short = nn.Sequential()
        if stride > 1 or n_in != n_out:
            self.short = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(y + self.short(x))


def _resnet18() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for width in (64, 128, 256, 512):
        layers += [_Residual(channels, width, 1 if width == 64 else 2), _Residual(width, width, 1)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, N_CLASSES))


class _Inverted(nn.Module):
    """An inverted residual: wider inside, one channel for each filter."""

    def __init__(self, n_in: int, n_out: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = n_in * factor
        layers = [] if factor == 1 else [nn.Conv2d(n_in, wide, 1, bias=False), *_norm6(wide)]
        layers += [nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), *_norm6(wide)]
        self.body = nn.Sequential(*layers, nn.Conv2d(wide, n_out, 1, bias=False), nn.BatchNorm2d(n_out))
        self.adds = stride == 1 and n_in == n_out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def _norm6(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU6()]


def _mobilenet() -> nn.Module:
    rows = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), *_norm6(32)]
    channels = 32
    for factor, width, count, stride in rows:
        for k in range(count):
            layers.append(_Inverted(channels, width, stride if k == 0 else 1, factor))
            channels = width
    layers += [nn.Conv2d(channels, 1280, 1, bias=False), *_norm6(1280)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, N_CLASSES))


def _one_dimensional() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (16, 32):
        layers += [
            nn.Conv1d(channels, width, 5, padding=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.MaxPool1d(2),
        ]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, N_CLASSES))


class _Wav2Vec2(nn.Module):
    """A wav2vec 2.0: convolutions over a waveform, a position by a convolution, two layers of a transformer.

    `moves` are kernels and strides of the convolutions; a transformer of layers that normalize behind the
    sums normalizes its input, another one its output.
    """

    def __init__(
        self,
        channels: int,
        moves: Sequence[tuple[int, int]],
        dim: int,
        n_groups: int,
        n_heads: int,
        n_hidden: int,
        norm_first: bool,
    ) -> None:
        super().__init__()
        extractor: list[nn.Module] = []
        for index, (kernel, stride) in enumerate(moves):
            extractor.append(nn.Conv1d(channels if index else 1, channels, kernel, stride, bias=False))
            extractor += [nn.GELU()] if index else [nn.GroupNorm(channels, channels), nn.GELU()]
        self.extractor = nn.Sequential(*extractor)
        self.norm, self.project = nn.LayerNorm(channels), nn.Linear(channels, dim)
        self.position = nn.Conv1d(dim, dim, 16, padding=8, groups=n_groups)
        blocks = [_Block(dim, n_heads, n_hidden, norm_first=norm_first) for _ in range(2)]
        norm = nn.LayerNorm(dim)
        self.transformer = nn.Sequential(*([*blocks, norm] if norm_first else [norm, *blocks]))
        self.head = nn.Linear(dim, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(self.norm(self.extractor(x).transpose(1, 2)))
        x = x + functional.gelu(self.position(x.transpose(1, 2))[..., :-1]).transpose(1, 2)
        return self.head(self.transformer(x).mean(1))


class _LSTM(nn.Module):
    """A bidirectional LSTM, read at its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(16, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])


class _Bag(nn.Module):
    """The mean of the embeddings of some words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(2000, 16)
        self.head = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, N_CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(1))


def _made(make: Callable[..., nn.Module], *arguments: Any) -> Callable[[], nn.Module]:
    """Return a maker of a network in its exported form, with normalizations folded into convolutions."""

    def made() -> nn.Module:
        torch.manual_seed(0)
        module = make(*arguments).eval()
        for part in module.modules():
            if isinstance(part, nn.LayerNorm):
                # equal tensors would be one in the exported graph
                nn.init.uniform_(part.weight, 0.9, 1.1)
                nn.init.normal_(part.bias, 0.0, 0.1)
        norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
        for norm in norms:
            norm.running_mean.normal_(0.0, 0.1)
            norm.running_var.uniform_(0.5, 1.5)
        # biases made by the folding are frozen
        return fuse(module).requires_grad_(True) if norms else module

    return made


NETWORKS: dict[str, Network] = {
    "vit": Network(_made(_ViT, 64, 4, 8)),
    "swin": Network(_made(_Swin, 32, 4)),
    "vgg": Network(_made(_vgg, 16, 32, 64)),
    "densenet": Network(_made(_densenet)),
    "conv1d": Network(_made(_one_dimensional), (3, 64)),
    "wav2vec2": Network(
        _made(_Wav2Vec2, 32, ((10, 5), (3, 2), (3, 2), (2, 2)), 64, 8, 4, 256, True), (1, 1000)
    ),
    "wav2vec2-small": Network(_made(_Wav2Vec2, 32, 3 * ((8, 4),), 16, 2, 2, 20, False), (1, 1024)),
    "lstm": Network(_made(_LSTM), (20, 16)),
    "bag": Network(_made(_Bag), (12,), 2000),
    "resnet18": Network(_made(_resnet18)),
    "mobilenetv2": Network(_made(_mobilenet)),
}
