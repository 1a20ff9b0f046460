"""Small transformers in the idioms of their authors."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Attention with one projection for queries, keys and values (timm)."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, bias=None, mask=None):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        scores = (q * self.scale) @ k.transpose(-2, -1)
        if bias is not None:
            scores = scores + bias
        if mask is not None:
            windows = mask.shape[0]
            scores = scores.view(-1, windows, self.heads, n, n) + mask.unsqueeze(1).unsqueeze(0)
            scores = scores.view(-1, self.heads, n, n)
        y = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, c)
        return self.proj(y)


def mlp(dim):
    return nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))


class ViTBlock(nn.Module):
    """Attention and a perceptron, each with a norm before it and a layer scale behind it."""

    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(dim), Attention(dim, heads), nn.LayerNorm(dim)
        self.mlp = mlp(dim)
        self.ls1 = nn.Parameter(1e-1 * torch.ones(dim))
        self.ls2 = nn.Parameter(1e-1 * torch.ones(dim))

    def forward(self, x):
        x = x + self.ls1 * self.attn(self.norm1(x))
        return x + self.ls2 * self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches, a class token, learned positions, blocks with layer scales."""

    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 12, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 12))
        self.pos_embed = nn.Parameter(torch.zeros(1, 10, 12))
        self.blocks = nn.Sequential(ViTBlock(12, 3), ViTBlock(12, 3))
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 3)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class SwinBlock(nn.Module):
    """Attention in windows, shifted or not, with a relative position bias."""

    def __init__(self, dim, heads, size, window, shift):
        super().__init__()
        self.size, self.window, self.shift, self.heads = size, window, shift, heads
        self.norm1, self.attn, self.norm2, self.mlp = (
            nn.LayerNorm(dim), Attention(dim, heads), nn.LayerNorm(dim), mlp(dim),
        )  # fmt: skip
        self.bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        grid = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(
            1
        )
        distance = (grid[:, :, None] - grid[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("index", distance[..., 0] * (2 * window - 1) + distance[..., 1])
        self.register_buffer("mask", self._mask() if shift else None)

    def _mask(self):
        regions = torch.zeros(1, self.size, self.size, 1)
        parts = (slice(0, -self.window), slice(-self.window, -self.shift), slice(-self.shift, None))
        for count, (rows, columns) in enumerate((r, c) for r in parts for c in parts):
            regions[:, rows, columns, :] = count
        windows = self._windows(regions).squeeze(-1)
        difference = windows.unsqueeze(1) - windows.unsqueeze(2)
        return difference.masked_fill(difference != 0, -100.0).masked_fill(difference == 0, 0.0)

    def _windows(self, x):
        b, h, w, c = x.shape
        x = x.view(b, h // self.window, self.window, w // self.window, self.window, c)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, self.window**2, c)

    def untie(self):
        self.expanded = nn.Parameter(self._bias().detach())
        del self.bias_table

    def _bias(self):
        if hasattr(self, "expanded"):
            return self.expanded
        n = self.window**2
        return self.bias_table[self.index.view(-1)].view(n, n, -1).permute(2, 0, 1).unsqueeze(0)

    def forward(self, x):
        b, n, c = x.shape
        y = self.norm1(x).view(b, self.size, self.size, c)
        if self.shift:
            y = torch.roll(y, shifts=(-self.shift, -self.shift), dims=(1, 2))
        y = self.attn(self._windows(y), self._bias(), self.mask)
        k = self.size // self.window
        y = y.view(-1, k, k, self.window, self.window, c).permute(0, 1, 3, 2, 4, 5)
        y = y.reshape(-1, self.size, self.size, c)
        if self.shift:
            y = torch.roll(y, shifts=(self.shift, self.shift), dims=(1, 2))
        x = x + y.reshape(-1, n, c)
        return x + self.mlp(self.norm2(x))


class Swin(nn.Module):
    """Patches, a plain and a shifted block."""

    def __init__(self):
        super().__init__()
        self.patch_embed, self.norm0 = nn.Conv2d(3, 8, 3, 3), nn.LayerNorm(8)
        self.blocks = nn.Sequential(SwinBlock(8, 2, 4, 2, 0), SwinBlock(8, 2, 4, 2, 1))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.norm0(self.patch_embed(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(self.blocks(x)).mean(1))


class Encoder(nn.Module):
    """torch's own encoder layers on numbers, with fixed sines for positions."""

    def __init__(self, length=6, dim=12):
        super().__init__()
        self.project = nn.Linear(4, dim)
        position = torch.arange(length).unsqueeze(1)
        rate = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
        table = torch.zeros(1, length, dim)
        table[0, :, 0::2], table[0, :, 1::2] = torch.sin(position * rate), torch.cos(position * rate)
        self.register_buffer("positions", table)
        layer = nn.TransformerEncoderLayer(dim, 3, 2 * dim, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(dim, 3)

    def forward(self, x):
        return self.fc(self.encoder(self.project(x) + self.positions).mean(dim=1))


class Conv1D(nn.Module):
    """GPT-2's linear layer, whose weight is transposed."""

    def __init__(self, out, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(width, out)), nn.Parameter(torch.zeros(out))

    def forward(self, x):
        size = (*x.size()[:-1], self.bias.shape[0])
        return torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight).view(size)


class GPT2Block(nn.Module):
    """Causal attention with a buffer for its mask, and a perceptron with the approximate GELU."""

    def __init__(self, dim, heads, length):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.c_attn, self.c_proj = Conv1D(3 * dim, dim), Conv1D(dim, dim)
        self.c_fc, self.c_out = Conv1D(2 * dim, dim), Conv1D(dim, 2 * dim)
        self.register_buffer("causal", torch.tril(torch.ones(length, length, dtype=torch.bool))[None, None])

    def forward(self, x):
        b, t, c = x.shape
        split = self.c_attn(self.ln_1(x)).split(c, dim=2)
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2) for part in split)
        scores = q @ k.transpose(-1, -2) / math.sqrt(c // self.heads)
        scores = torch.where(self.causal[:, :, :t, :t], scores, torch.finfo(torch.float32).min)
        y = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(b, t, c)
        x = x + self.c_proj(y)
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """Learned positions, causal blocks; the class of a text from its last token, or from tied embeddings."""

    def __init__(self, tied):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(20, 12), nn.Embedding(8, 12)
        self.blocks = nn.Sequential(GPT2Block(12, 3, 8), GPT2Block(12, 3, 8))
        self.ln_f = nn.LayerNorm(12)
        self.score = None if tied else nn.Linear(12, 3, bias=False)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        x = self.ln_f(self.blocks(self.wte(tokens) + self.wpe(positions)))[:, -1]
        return F.linear(x, self.wte.weight) if self.score is None else self.score(x)

    def untie(self):
        if self.score is None:
            self.score = nn.Linear(12, 20, bias=False)
            self.score.weight.data = self.wte.weight.detach().clone()


class BertLayer(nn.Module):
    """Attention with three projections, norms behind."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.size = heads, dim // heads
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.dense, self.norm1, self.norm2 = nn.Linear(dim, dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def _split(self, x):
        return x.view(*x.shape[:-1], self.heads, self.size).permute(0, 2, 1, 3)

    def forward(self, x, mask):
        q, k, v = self._split(self.query(x)), self._split(self.key(x)), self._split(self.value(x))
        weights = F.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.size) + mask, dim=-1)
        y = (weights @ v).permute(0, 2, 1, 3).contiguous()
        x = self.norm1(self.dense(y.view(*y.shape[:-2], -1)) + x)
        return self.norm2(self.down(F.gelu(self.up(x))) + x)


class Bert(nn.Module):
    """Tokens and a mask of any length, three tables of embeddings, a pooler."""

    def __init__(self):
        super().__init__()
        self.word, self.position, self.kind = nn.Embedding(20, 12), nn.Embedding(10, 12), nn.Embedding(2, 12)
        self.register_buffer("position_ids", torch.arange(10).unsqueeze(0))
        self.norm = nn.LayerNorm(12, eps=1e-12)
        self.layers = nn.ModuleList([BertLayer(12, 3), BertLayer(12, 3)])
        self.pooler, self.classifier = nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, input_ids, attention_mask):
        positions = self.position_ids[:, : input_ids.shape[1]]
        kinds = torch.zeros_like(input_ids)
        x = self.norm(self.word(input_ids) + self.kind(kinds) + self.position(positions))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, mask)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class RMSNorm(nn.Module):
    """Llama's norm: no mean, no shift."""

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class LlamaBlock(nn.Module):
    """Rotated queries and keys, keys and values shared by groups of heads, a gated perceptron."""

    def __init__(self, dim, heads, groups):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, dim // heads
        self.norm1, self.norm2 = RMSNorm(dim), RMSNorm(dim)
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, groups * self.size, bias=False)
        self.v_proj = nn.Linear(dim, groups * self.size, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def _repeat(self, x):
        b, g, t, d = x.shape
        count = self.heads // self.groups
        return x[:, :, None].expand(b, g, count, t, d).reshape(b, self.heads, t, d)

    def forward(self, x, cos, sin, mask):
        b, t, c = x.shape
        y = self.norm1(x)
        q = self.q_proj(y).view(b, t, self.heads, self.size).transpose(1, 2)
        k = self.k_proj(y).view(b, t, self.groups, self.size).transpose(1, 2)
        v = self.v_proj(y).view(b, t, self.groups, self.size).transpose(1, 2)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        k, v = self._repeat(k), self._repeat(v)
        weights = F.softmax(q @ k.transpose(2, 3) / math.sqrt(self.size) + mask, dim=-1)
        x = x + self.o_proj((weights @ v).transpose(1, 2).reshape(b, t, c))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Rotary positions: from frequencies in the graph, or from tables of sines and cosines."""

    def __init__(self, tables):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        rates = 1.0 / (10000.0 ** (torch.arange(0, 4, 2) / 4))
        self.register_buffer("inv_freq", rates)
        self.tables = tables
        if tables:
            angles = torch.outer(torch.arange(12.0), rates)
            angles = torch.cat((angles, angles), dim=-1)
            self.register_buffer("cos_cached", angles.cos())
            self.register_buffer("sin_cached", angles.sin())
        self.layers = nn.ModuleList([LlamaBlock(16, 4, 2), LlamaBlock(16, 4, 2)])
        self.norm, self.score = RMSNorm(16), nn.Linear(16, 3, bias=False)

    def _angles(self, t):
        if self.tables:
            return self.cos_cached[:t], self.sin_cached[:t]
        positions = torch.arange(t, device=self.inv_freq.device).to(self.inv_freq.dtype)
        angles = torch.outer(positions, self.inv_freq)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    def forward(self, tokens):
        t = tokens.shape[1]
        x = self.embed(tokens)
        cos, sin = self._angles(t)
        mask = torch.full((t, t), torch.finfo(torch.float32).min).triu(1).to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.score(self.norm(x)[:, -1])
