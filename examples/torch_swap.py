"""Swap the convolutions of three PyTorch models for convforge's, and compare outputs and times.

    python examples/torch_swap.py                  # on the CPU, small pictures
    python examples/torch_swap.py --device cuda    # on a GPU, beside torch.compile too

The models are like ResNet-18, MobileNetV2 and U-Net, with random weights. Each layer is timed by both sides and left to
PyTorch where that is faster; the report says so, and undo() brings the model back.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn
from torch.utils.benchmark import Timer

import convforge


def unit(c: int, k: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, normalisation, ReLU."""
    return nn.Sequential(
        nn.Conv2d(c, k, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(k), nn.ReLU()
    )


class Residual(nn.Module):
    """What a body makes of x, added to x, through 1x1 where their sizes differ."""

    def __init__(self, body: nn.Module, skip: nn.Module | None = None, last: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.skip, self.last = body, skip or nn.Identity(), last or nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.last(self.body(x) + self.skip(x))


class Down(nn.Module):
    """A level of a U-Net: features, the levels below at half the size, and both together."""

    def __init__(self, c: int, k: int, below: nn.Module | None) -> None:
        super().__init__()
        self.features, self.below = nn.Sequential(unit(c, k), unit(k, k)), below
        self.smaller, self.larger = nn.MaxPool2d(2), nn.ConvTranspose2d(2 * k, k, 2, 2)
        self.both = nn.Sequential(unit(2 * k, k), unit(k, k))

    def forward(self, x: Any) -> Any:
        y = self.features(x)
        return y if self.below is None else self.both(torch.cat([y, self.larger(self.below(self.smaller(y)))], 1))


def resnet(width: int) -> nn.Module:
    """Like ResNet-18: four stages of two blocks of two 3x3 convolutions."""
    layers: list[nn.Module] = [unit(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    c = width
    for stage in range(4):
        k = width << stage
        for stride in (1 if stage == 0 else 2, 1):
            body = nn.Sequential(unit(c, k, stride=stride), *list(unit(k, k))[:2])
            layers.append(Residual(body, nn.Conv2d(c, k, 1, stride) if stride > 1 else None, nn.ReLU()))
            c = k
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10))


def mobilenet(width: int) -> nn.Module:
    """Like MobileNetV2: 1x1 to six times the channels, depthwise 3x3, 1x1 back."""
    layers: list[nn.Module] = [unit(3, width, stride=2)]
    c = width
    for k, stride in ((width, 1), (2 * width, 2), (2 * width, 1), (4 * width, 2), (4 * width, 1)):
        body = nn.Sequential(unit(c, 6 * c, 1), unit(6 * c, 6 * c, 3, stride, 6 * c), *list(unit(6 * c, k, 1))[:2])
        layers.append(Residual(body) if (c, stride) == (k, 1) else body)
        c = k
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10))


def unet(width: int) -> nn.Module:
    """Like U-Net, of three levels."""
    below = Down(2 * width, 4 * width, None)
    return nn.Sequential(Down(3, width, Down(width, 2 * width, below)), nn.Conv2d(width, 2, 1))


def settled(model: nn.Module, size: int) -> nn.Module:
    """The model in eval mode, after its normalisations have seen some pictures."""
    device = next(model.parameters()).device
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # the average of all that it sees
    with torch.no_grad():
        model.train()(torch.randn(8, 3, size, size, device=device))
    return model.eval()


def milliseconds(model: Any, x: Any) -> float:
    """The median time of a call."""
    with torch.no_grad():
        model(x)
        timer = Timer("model(x)", globals={"model": model, "x": x}, num_threads=torch.get_num_threads())
        return timer.blocked_autorange(min_run_time=0.1).median * 1e3


def compiled_milliseconds(model: Any, x: Any) -> str:
    """The same by torch.compile, or why not."""
    try:
        return f"{milliseconds(torch.compile(model), x):.3f} ms"
    except Exception as fault:  # no compiler, no Triton
        return f"not possible here ({type(fault).__name__})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, help="height and width of the picture: 224 on a GPU, else 64")
    parser.add_argument("--compile", action="store_true", help="time torch.compile on the CPU too")
    given = parser.parse_args()
    on_gpu = given.device != "cpu"
    size, factor = given.size or (224 if on_gpu else 64), 4 if on_gpu else 1
    torch.manual_seed(0)
    # Strict against strict: PyTorch may not round to TF32 either.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    for name, make, width in (("ResNet-18", resnet, 16), ("MobileNetV2", mobilenet, 8), ("U-Net", unet, 8)):
        model = settled(make(width * factor).to(given.device), size)
        x = torch.randn(1, 3, size, size, device=given.device)
        with torch.no_grad():
            expected = model(x)
        eager = milliseconds(model, x)
        compiled = compiled_milliseconds(model, x) if on_gpu or given.compile else "not asked for"
        report = convforge.torch.replace(model, x)
        with torch.no_grad():
            found = model(x)
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
        print(report)
        print(f"{name}: {milliseconds(model, x):.3f} ms with convforge, {eager:.3f} ms in eager mode; "
              f"torch.compile: {compiled}; largest difference {(found - expected).abs().max():.1e}")  # fmt: skip
        report.undo()
        with torch.no_grad():
            torch.testing.assert_close(model(x), expected)


if __name__ == "__main__":
    main()
