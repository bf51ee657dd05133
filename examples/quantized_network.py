"""Train a small network, quantise it to 8-bit integers, and compare accuracy and time.

    python examples/quantized_network.py                 # on the CPU: half a minute
    python examples/quantized_network.py --device cuda   # on a GPU, with times beside float16

The network tells five drawn shapes apart, at any place and size, in noise. It is trained in float32. Then
`convforge.torch.quantize` calibrates it on a few batches: BatchNorm and ReLU are folded into the convolutions, which
pass 8-bit integers to each other. Accuracy is measured on images that neither training nor calibration has seen.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import convforge

SIDE, SHAPES, BATCH, TESTED = 32, 5, 64, 2048


def drawn(count: int, make: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of discs, squares, diamonds, rings and crosses in noise: (count, 1, SIDE, SIDE), and their numbers."""
    kinds = torch.randint(0, SHAPES, (count,), generator=make)
    middle = torch.rand(2, count, 1, 1, generator=make) * 16 + 8
    size = torch.rand(count, 1, 1, generator=make) * 4 + 4
    at = torch.arange(SIDE, dtype=torch.float32)
    dx, dy = (at[None, None, :] - middle[0]).abs(), (at[None, :, None] - middle[1]).abs()
    far = (dx**2 + dy**2).sqrt()
    each = [
        far < size, torch.maximum(dx, dy) < 0.9 * size, dx + dy < 1.25 * size, (far < size) & (far > 0.6 * size),
        (torch.minimum(dx, dy) < 0.3 * size) & (torch.maximum(dx, dy) < size),
    ]  # fmt: skip
    shape = torch.stack(each)[kinds, torch.arange(count)].float()
    strength = torch.rand(count, 1, 1, generator=make) + 0.5
    return (strength * shape + 0.5 * torch.randn(count, SIDE, SIDE, generator=make))[:, None], kinds


def network(width: int) -> nn.Sequential:
    """Convolutions with BatchNorm and ReLU, three of them with stride 2, and a linear layer."""

    def unit(c: int, k: int, stride: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k), nn.ReLU()]

    layers = [*unit(1, width), *unit(width, width), *unit(width, 2 * width, 2), *unit(2 * width, 2 * width)]
    layers += [*unit(2 * width, 4 * width, 2), *unit(4 * width, 4 * width), *unit(4 * width, 4 * width, 2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, SHAPES))


def train(model: nn.Module, steps: int, device: str) -> None:
    make = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, steps)
    for _ in range(steps):
        x, kinds = drawn(BATCH, make)
        loss = nn.functional.cross_entropy(model(x.to(device)), kinds.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def accuracy(model: Callable[[Any], Any], device: str) -> float:
    """Share of TESTED images that the model tells right."""
    x, kinds = drawn(TESTED, torch.Generator().manual_seed(7))
    return float((model(x.to(device)).argmax(1).cpu() == kinds).float().mean())


@torch.no_grad()
def seconds(call: Callable[[], Any], device: str) -> float:
    """Median seconds of a call; on a GPU in a CUDA graph, so that Python costs nothing."""
    for _ in range(3):
        call()
    if device.startswith("cuda"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        call = graph.replay
    times = []
    for _ in range(11):
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, help="filters of the first layer (8 on the CPU, 128 on a GPU)")
    parser.add_argument("--steps", type=int, help="training steps (150 on the CPU, 600 on a GPU)")
    options = parser.parse_args()
    device, on_gpu = options.device, options.device.startswith("cuda")
    torch.manual_seed(0)
    model = network(options.width or (128 if on_gpu else 8)).to(device)
    train(model, options.steps or (600 if on_gpu else 150), device)
    model.eval()

    make = torch.Generator().manual_seed(3)
    batches = [drawn(BATCH, make)[0].to(device) for _ in range(4)]
    quantized = convforge.torch.quantize(model, batches)
    print(quantized)
    print(f"accuracy: float32 {accuracy(model, device):.2%}, 8-bit integers {accuracy(quantized.model, device):.2%}")

    x = batches[0].to(memory_format=torch.channels_last)
    model.to(memory_format=torch.channels_last)
    taken = {"float32": partial(model, x), "8-bit integers": partial(quantized.model, x)}
    if on_gpu:
        torch.backends.cudnn.benchmark = True
        taken["float16"] = partial(copy.deepcopy(model).half(), x.half())
    for name, call in taken.items():
        print(f"{name}: {1e6 * seconds(call, device) / BATCH:.2f} us an image")


if __name__ == "__main__":
    main()
