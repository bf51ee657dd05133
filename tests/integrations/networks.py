"""A small network with all that `replace` folds or leaves: BatchNorm2d, ReLU, ReLU6, residuals, a depthwise layer."""

from __future__ import annotations

from typing import Any

# Convolutions of the network, and the BatchNorm2d behind them.
CONVOLUTIONS, NORMS = 8, 7


def residual_network(torch: Any, channels: int = 8) -> Any:
    """The same numbers on every call, in eval mode; images of 3 channels -> (N, 5, 1, 1)."""
    nn = torch.nn

    def normed(c: int, k: int, size: int, stride: int = 1, groups: int = 1) -> list[Any]:
        return [nn.Conv2d(c, k, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(k)]

    class Residual(nn.Module):  # type: ignore[misc]
        """Two convolutions, one ReLU that is called twice, and a convolution beside them where shapes differ."""

        def __init__(self, c: int, k: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = normed(c, k, 3, stride)
            self.conv2, self.bn2 = normed(k, k, 3)
            self.relu = nn.ReLU(inplace=True)
            self.beside = nn.Identity() if stride == 1 else nn.Sequential(*normed(c, k, 1, stride))

        def forward(self, x: Any) -> Any:
            y = self.relu(self.bn1(self.conv1(x)))
            return self.relu(self.bn2(self.conv2(y)) + self.beside(x))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = nn.Sequential(
            *normed(3, channels, 5, 2), nn.ReLU(inplace=True), Residual(channels, channels, 1),
            Residual(channels, 2 * channels, 2), *normed(2 * channels, 2 * channels, 3, 1, 2 * channels), nn.ReLU6(),
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(2 * channels, 5, 1),
        )  # fmt: skip
        for one in model.modules():
            if isinstance(one, nn.BatchNorm2d):
                one.running_mean.normal_(0, 0.2)
                one.running_var.uniform_(0.5, 2)
    return model.eval()
