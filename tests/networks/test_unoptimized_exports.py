"""Networks that torch exports without its optimizer: all parameters are trained, as torch trains them."""

import numpy as np
import pytest

from onnxsgd import OnnxSGDClassifier, losses

torch = pytest.importorskip("torch", reason="the networks are exported by torch")
nn = torch.nn

pytestmark = pytest.mark.networks


class CrossAttention(nn.Module):
    """A layer of a decoder: the weights of its second attention are split for queries, and for the rest."""

    def __init__(self):
        super().__init__()
        self.project, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.decoder = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, q, k):
        return self.head(self.decoder(self.project(q), self.project(k)).mean(1))


class OtherWidths(nn.Module):
    """An attention whose keys and values have widths of their own: its intercepts alone are split."""

    def __init__(self):
        super().__init__()
        self.project, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, kdim=4, vdim=4, batch_first=True)

    def forward(self, q, k):
        return self.head(self.attention(self.project(q), k, k)[0].mean(1))


class Chunks(nn.Module):
    """Gates that are chunks of data, of equal and of unequal sizes, and single columns."""

    def __init__(self):
        super().__init__()
        self.project, self.head = nn.Linear(4, 10), nn.Linear(6, 3)

    def forward(self, q):
        a, b = self.project(q).mean(1).chunk(2, dim=1)
        c, d, e = torch.split(a * torch.sigmoid(b), [2, 1, 2], dim=1)
        first, second = c.unbind(1)
        return self.head(torch.cat([a, d * first.unsqueeze(1) + (e * second.unsqueeze(1)).sum(1, True)], 1))


def images(*layers, sizes):
    """Return a network of images in which a norm of groups stands between two layers."""
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(int(np.prod(sizes)), 3))


NETWORKS = {
    "cross-attention": (CrossAttention, [(5, 4), (7, 4)]),
    "other widths": (OtherWidths, [(5, 4), (7, 4)]),
    "chunks": (Chunks, [(5, 4)]),
    "groups": (
        lambda: images(nn.Conv2d(2, 8, 3), nn.GroupNorm(2, 8), sizes=(8, 4, 4)),
        [(2, 6, 6)],
    ),
    "groups of volumes": (
        lambda: images(nn.Conv3d(1, 6, 2), nn.GroupNorm(3, 6), sizes=(6, 3, 3, 3)),
        [(1, 4, 4, 4)],
    ),
}


def exported(network, tensors, optimize):
    n = torch.export.Dim("n")
    program = torch.onnx.export(
        network,
        tuple(tensor[:4] for tensor in tensors),
        dynamo=True,
        optimize=optimize,
        verbose=False,
        dynamic_shapes=tuple({0: n} for _ in tensors),
    )
    return program.model_proto


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_updates_are_those_of_torch(name):
    """Ten updates of a fit against torch in float64, and the number of the trained numbers."""
    make, shapes = NETWORKS[name]
    torch.manual_seed(0)
    network = make().train()
    tensors = [torch.randn(40, *shape) for shape in shapes]
    y = torch.randint(0, 3, (40,))
    with torch.no_grad():
        for parameter in network.parameters():
            # biases that torch starts at zero are then told from constants
            parameter.add_(0.1 * torch.randn_like(parameter))
    model = exported(network, tensors, optimize=False)
    X = {value.name: tensor.numpy() for value, tensor in zip(model.graph.input, tensors, strict=True)}
    estimator = OnnxSGDClassifier(
        model, loss=losses.CrossEntropy(), classes=range(3), learning_rate="constant", eta0=0.1, alpha=0,
        batch_size=40, shuffle=False, max_iter=10, tol=None,
    ).fit(X, y.numpy())  # fmt: skip
    count = sum(array.size for array in estimator.get_weights().values())
    assert count == sum(parameter.numel() for parameter in network.parameters())
    network, tensors = network.double(), [tensor.double() for tensor in tensors]
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(*tensors), y).backward()
        optimizer.step()
    expected = network(*tensors).softmax(1).detach().numpy()
    # ten updates in float32; one frozen weight makes a difference of 1e-3
    np.testing.assert_allclose(estimator.predict_proba(X), expected, rtol=0, atol=1e-5)
