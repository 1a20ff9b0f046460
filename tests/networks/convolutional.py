"""Small convolutional networks in the idioms of their authors."""

import torch
from torch import nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut (ResNet-18)."""

    def __init__(self, width, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """A stem with a pool, blocks, the mean over space, a linear layer; pixels are scaled inside."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.layers = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 12, 2))
        self.fc = nn.Linear(12, 3)

    def forward(self, x):
        x = self.pool(self.stem((x - self.mean) / self.std))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(self.layers(x), 1), 1))


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project (MobileNetV2)."""

    def __init__(self, width, out, stride, expand):
        super().__init__()
        hidden = width * expand
        self.conv = nn.Sequential(
            nn.Conv2d(width, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden),
            nn.ReLU6(), nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.use_shortcut = stride == 1 and width == out

    def forward(self, x):
        return x + self.conv(x) if self.use_shortcut else self.conv(x)


class MobileNet(nn.Module):
    """Inverted residuals between two plain convolutions."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU6(),
            InvertedResidual(6, 8, 2, 2), InvertedResidual(8, 8, 1, 3),
            nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, 3))

    def forward(self, x):
        return self.classifier(self.features(x).mean([2, 3]))


class VGG(nn.Module):
    """Plain convolutions and pools of which one rounds up, then linear layers."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2),
            nn.Conv2d(8, 10, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2, ceil_mode=True),
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(nn.Linear(40, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, 3))

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class DenseLayer(nn.Module):
    """Normalise, then convolve; concatenate the result with its input."""

    def __init__(self, width, growth):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(width), nn.Conv2d(width, 8, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(8), nn.Conv2d(8, growth, 3, 1, 1, bias=False)

    def forward(self, x):
        y = self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(y)))], 1)


class DenseNet(nn.Module):
    """Two dense layers, a transition with a mean pool, another one."""

    def __init__(self):
        super().__init__()
        self.conv0 = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.block1 = nn.Sequential(DenseLayer(8, 4), DenseLayer(12, 4))
        self.transition = nn.Sequential(
            nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1, bias=False), nn.AvgPool2d(2, 2)
        )
        self.block2 = nn.Sequential(DenseLayer(8, 4))
        self.norm, self.classifier = nn.BatchNorm2d(12), nn.Linear(12, 3)

    def forward(self, x):
        x = F.relu(self.norm(self.block2(self.transition(self.block1(self.conv0(x))))))
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))


class LayerNorm2d(nn.LayerNorm):
    """Normalise over channels, which are the second axis."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A wide filter for each channel, a perceptron, and a scale for the layer."""

    def __init__(self, dim):
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1, self.act, self.pwconv2 = nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)
        self.gamma = nn.Parameter(torch.full((dim,), 1e-2))

    def forward(self, x):
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = self.gamma * self.pwconv2(self.act(self.pwconv1(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Patches, blocks, a reduction between them."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 4, 4), LayerNorm2d(8))
        self.blocks = nn.Sequential(
            ConvNeXtBlock(8), LayerNorm2d(8), nn.Conv2d(8, 12, 2, 2), ConvNeXtBlock(12)
        )
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.stem(x)).mean([-2, -1])))


class UNet(nn.Module):
    """Down, up by a transposed convolution, joined with the way down; GroupNorm; one number for a pixel."""

    def __init__(self):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.SiLU())
        self.down2 = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU())
        self.up1 = nn.ConvTranspose2d(8, 6, 2, 2)
        self.merge = nn.Sequential(nn.Conv2d(12, 6, 3, padding=1), nn.GroupNorm(3, 6), nn.SiLU())
        self.out = nn.Conv2d(6, 1, 1)

    def forward(self, x):
        skip = self.down1(x)
        y = self.up1(self.down2(F.max_pool2d(skip, 2)))
        y = self.merge(torch.cat([skip, y], dim=1))
        return self.out(F.interpolate(F.avg_pool2d(y, 2), scale_factor=2.0, mode="nearest")).flatten(1)


class Conv1dNet(nn.Module):
    """Filters along time, some in groups and dilated, a slope for each channel, the largest value of each."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(3, 8, 5, padding=2)
        self.bn = nn.BatchNorm1d(8)
        self.act = nn.PReLU(8)
        self.conv2 = nn.Conv1d(8, 12, 3, padding=2, dilation=2, groups=4)
        self.fc = nn.Linear(12, 3)

    def forward(self, x):
        x = F.max_pool1d(self.act(self.bn(self.conv1(x))), 2)
        return self.fc(F.leaky_relu(self.conv2(x), 0.1).amax(dim=-1))
