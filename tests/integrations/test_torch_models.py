"""Blocks of well-known networks, replaced: the same results in eval, training, copies, traces and compilers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from tests.kinds import module

torch = module("torch")
nn = torch.nn

from convforge.torch import replace  # noqa: E402  # needs PyTorch

X = torch.randn(2, 8, 12, 12, generator=torch.Generator().manual_seed(1))


def layer(c: int, k: int, r: int, groups: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(c, k, r, padding=r // 2, groups=groups, bias=False), nn.BatchNorm2d(k)]


class ResNetBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = layer(8, 8, 3)
        self.conv2, self.bn2 = layer(8, 8, 3)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Sequential(*layer(8, 8, 1))

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.down(x))


class MobileNetBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        wide = [*layer(8, 16, 1), nn.ReLU6(inplace=True)]
        deep = [*layer(16, 16, 3, 16), nn.ReLU6(inplace=True)]
        self.body = nn.Sequential(nn.Sequential(*wide), nn.Sequential(*deep), *layer(16, 8, 1))

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


class ConvNeXtBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.narrow(nn.functional.gelu(self.wide(y))).permute(0, 3, 1, 2)


def made(block: type, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = nn.Sequential(block(), block())
    for one in model.modules():
        if isinstance(one, nn.BatchNorm2d):
            one.running_mean.normal_()
            one.running_var.uniform_(0.5, 2)
    return model.eval()


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


# Members of a fold behind each convolution; a ReLU that is called twice stays.
FOLDED = {ResNetBlock: [1, 1, 1], MobileNetBlock: [1, 2, 2], ConvNeXtBlock: [0]}


@pytest.mark.parametrize("block", FOLDED)
def test_a_block_computes_what_it_did(block: type) -> None:
    model, right = made(block), made(block)
    report = replace(model)
    assert sorted(len(one.folded) for one in report.layers) == sorted(2 * FOLDED[block])
    expected = right(X)
    close(model(X), expected)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.fx.symbolic_trace(model)):
        close(again(X), expected)
    other = made(block, 3)
    model.load_state_dict(other.state_dict())
    close(model(X), other(X))
    report.undo()
    assert torch.equal(model(X), other(X))


@pytest.mark.parametrize("block", FOLDED)
def test_a_block_trains_as_it_did(block: type) -> None:
    model, right = made(block), made(block)
    replace(model)
    found = []
    for one in (model, right):
        one.train()
        optimizer = torch.optim.SGD(one.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            one(X).square().mean().backward()
            optimizer.step()
        found.append((list(one.state_dict().values()), one.eval()(X)))
    close(*[value for _, value in found])
    for mine, theirs in zip(found[0][0], found[1][0], strict=True):
        close(mine, theirs)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("block", FOLDED)
def test_a_block_is_compiled(block: type) -> None:
    torch._dynamo.reset()
    model, expected = made(block), made(block)(X)
    replace(model)
    with torch.no_grad():
        close(torch.compile(model, backend="aot_eager")(X), expected)
