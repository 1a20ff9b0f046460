"""Small recurrent networks, and bags of embeddings."""

import torch
from torch import nn
from torch.nn import functional as F


class LSTMClassifier(nn.Module):
    """An embedding, an LSTM of two layers in both directions, the last states of both."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(10, 3)

    def forward(self, tokens):
        _, (h, _) = self.lstm(self.embedding(tokens))
        return self.fc(torch.cat([h[-2], h[-1]], dim=1))


class LSTMForecast(nn.Module):
    """One LSTM over real numbers, its last output."""

    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        y, _ = self.lstm(x)
        return self.fc(y[:, -1])


class GRUClassifier(nn.Module):
    """A GRU, the mean of its outputs."""

    def __init__(self):
        super().__init__()
        self.gru, self.fc = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        y, _ = self.gru(x)
        return self.fc(torch.tanh(y.mean(dim=1)))


class BiGRU(nn.Module):
    """Two layers of GRU in both directions, normalised."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.norm, self.fc = nn.LayerNorm(10), nn.Linear(10, 3)

    def forward(self, x):
        y, _ = self.gru(x)
        return self.fc(self.norm(y)[:, -1])


class EmbeddingBag(nn.Module):
    """The mean of the embeddings of the tokens of a bag."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(30, 8, mode="mean")
        self.fc1, self.fc2 = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, tokens):
        return self.fc2(F.relu(self.fc1(self.bag(tokens))))


class Tabular(nn.Module):
    """Two inputs: categories, each with a table of embeddings, and numbers, which are normalised."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(size, 3) for size in (5, 9, 4)])
        self.norm = nn.BatchNorm1d(4)
        self.layers = nn.Sequential(nn.Linear(13, 12), nn.ReLU(), nn.BatchNorm1d(12), nn.Linear(12, 3))

    def forward(self, categories, numbers):
        parts = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        return self.layers(torch.cat([*parts, self.norm(numbers)], dim=1))


class SeveralOutputs(nn.Module):
    """A shared trunk, a classification and a regression on it, and the trunk's features."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 12), nn.ELU(), nn.Linear(12, 8), nn.Tanh())
        self.kind, self.size = nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x):
        h = self.trunk(x)
        return self.kind(h), self.size(h), h
