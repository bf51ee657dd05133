"""Train a small CNN of convforge's layers to tell the direction of stripes in generated images.

python examples/train_cnn.py                  # on the CPU, in seconds
python examples/train_cnn.py --device cuda
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn

from convforge import torch as forge  # convforge.torch

DIRECTIONS = 4


def stripes(count: int, size: int, device: str) -> tuple[Any, Any]:
    """Noisy images of waves in one of four directions, (count, 1, size, size), and the directions."""
    way = torch.randint(DIRECTIONS, (count,), device=device)
    angle = way[:, None, None] * torch.pi / DIRECTIONS
    rows, columns = torch.meshgrid(*[torch.arange(size, device=device) / 2.0] * 2, indexing="ij")
    phase = 6.3 * torch.rand(count, 1, 1, device=device)
    waves = torch.sin(rows * torch.cos(angle) + columns * torch.sin(angle) + phase)
    return (waves + 0.5 * torch.randn_like(waves))[:, None], way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(
        forge.Conv2d(1, 8, 5, padding=2, activation="relu"), nn.MaxPool2d(2),
        forge.Conv2d(8, 16, 3, padding=1, activation="relu"), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, DIRECTIONS),
    ).to(given.device)  # fmt: skip
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(given.steps):
        x, way = stripes(32, 24, given.device)
        loss = nn.functional.cross_entropy(model(x), way)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if step % 10 == 0:
            print(f"step {step:3d}: loss {losses[-1]:.3f}")
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    assert last < first / 2, f"the loss went from {first:.3f} to {last:.3f}"
    x, way = stripes(256, 24, given.device)
    with torch.no_grad():
        right = (model(x).argmax(1) == way).float().mean()
    print(f"the loss fell from {first:.3f} to {last:.3f}; {100 * right:.0f} % of new pictures are told rightly")


if __name__ == "__main__":
    main()
