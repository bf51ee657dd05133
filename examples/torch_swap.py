"""Swap the convolutions of three PyTorch models for convforge's, and compare outputs and times.

    python examples/torch_swap.py                  # on the CPU, small images
    python examples/torch_swap.py --device cuda    # on a GPU, with torch.compile too, strict and with TF32 allowed
    python examples/torch_swap.py --device cuda --out benchmarks/results    # and store the results for the docs

The models are ResNet-18, MobileNetV2 and U-Net with random weights, on the CPU at a quarter of their width. Both sides
are timed on each layer, and PyTorch keeps the layers that it computes faster; the report names them, and undo()
restores the model. Outputs are compared with the same model in float64; then the whole models are timed in turns.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import convforge
from convforge.benchmark.sheets import Sheet
from convforge.call.dispatch import runtime_of
from convforge.timing import StoppingRule, interleave

# Our error against the float64 model may be FACTOR times PyTorch's, or FLOOR. If a model magnifies rounding, PyTorch's
# error depends on chance: it is the largest over MORE further inputs, which differ from x in the last bit.
FACTOR, FLOOR, MORE = 2.0, 1e-5, 4


def unit(c: int, k: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, normalisation, ReLU."""
    return nn.Sequential(
        nn.Conv2d(c, k, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(k), nn.ReLU()
    )


class Residual(nn.Module):
    """Adds x to the body's output, through a 1x1 convolution if their sizes differ."""

    def __init__(self, body: nn.Module, skip: nn.Module | None = None, last: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.skip, self.last = body, skip or nn.Identity(), last or nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.last(self.body(x) + self.skip(x))


class Down(nn.Module):
    """A level of a U-Net: features, the levels below at half the size, and both concatenated."""

    def __init__(self, c: int, k: int, below: nn.Module | None) -> None:
        super().__init__()
        self.features, self.below = nn.Sequential(unit(c, k), unit(k, k)), below
        if below is not None:
            self.smaller, self.larger = nn.MaxPool2d(2), nn.ConvTranspose2d(2 * k, k, 2, 2)
            self.both = nn.Sequential(unit(2 * k, k), unit(k, k))

    def forward(self, x: Any) -> Any:
        y = self.features(x)
        return y if self.below is None else self.both(torch.cat([y, self.larger(self.below(self.smaller(y)))], 1))


def basic(c: int, k: int, stride: int) -> tuple[nn.Module, int]:
    """The body of a ResNet-18's block, two 3x3 convolutions, and its output channels."""
    return nn.Sequential(unit(c, k, stride=stride), *list(unit(k, k))[:2]), k


def resnet(
    width: int, counts: Sequence[int] = (2, 2, 2, 2), block: Callable[..., tuple[nn.Module, int]] = basic,
    classes: int = 10,
) -> nn.Module:  # fmt: skip
    """ResNet-18 for a width of 64: four stages of `counts` blocks, each at half the size of the previous one."""
    layers: list[nn.Module] = [unit(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    c = width
    for stage, count in enumerate(counts):
        for stride in (1 if stage == 0 else 2, *(1,) * (count - 1)):
            body, k = block(c, width << stage, stride)
            skip = None if (c, stride) == (k, 1) else nn.Sequential(*list(unit(c, k, 1, stride))[:2])
            layers.append(Residual(body, skip, nn.ReLU()))
            c = k
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, classes))


def mobilenet(width: int, classes: int = 10) -> nn.Module:
    """MobileNetV2 for a width of 32: 1x1 to six times the channels, depthwise 3x3, 1x1 back; ReLU6."""

    def part(c: int, k: int, size: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
        return nn.Sequential(*list(unit(c, k, size, stride, groups))[:2], nn.ReLU6())

    layers: list[nn.Module] = [part(3, width, 3, 2)]
    c = width
    for expand, out, count, first in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        k, wide = out * width // 32, c
        for stride in (first, *(1,) * (count - 1)):
            wide = expand * c
            widened = [part(c, wide)] if expand > 1 else []
            body = nn.Sequential(*widened, part(wide, wide, 3, stride, wide), *list(unit(wide, k, 1))[:2])
            layers.append(Residual(body) if (c, stride) == (k, 1) else body)
            c = k
    layers += [part(c, 40 * width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40 * width, classes)]
    return nn.Sequential(*layers)


def unet(width: int) -> nn.Module:
    """U-Net for a width of 64, padded: five levels."""
    below = None
    for level in (4, 3, 2, 1):
        below = Down(width << level - 1, width << level, below)
    return nn.Sequential(Down(3, width, below), nn.Conv2d(width, 2, 1))


def settled(model: nn.Module, size: int) -> nn.Module:
    """The model in eval mode, after its normalisation layers have seen some images."""
    device = next(model.parameters()).device
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # average over all batches
    with torch.no_grad():
        model.train()(torch.randn(8, 3, size, size, device=device))
    return model.eval()


class WholeCalls:
    """A :class:`convforge.timing.timer.Clock` of calls that includes their work on the GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def time(self, run: Callable[[], object], repeats: int) -> float:
        """Seconds of `repeats` calls until the device has finished them."""
        self._wait()
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        self._wait()
        return time.perf_counter() - begin

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def compiled(model: nn.Module, x: torch.Tensor, mode: str | None = None) -> Any:
    """The model by torch.compile, called once."""
    made = torch.compile(model, mode=mode)
    made(x)
    return made


def in_words(fault: Exception) -> str:
    """The reason of a fault, such as compiling without Triton."""
    first = (str(fault).strip().splitlines() or ["no message"])[0]
    return f"not possible here ({type(fault).__name__}: {first[:120]})"


def allow_tf32(allowed: bool) -> None:
    """Set PyTorch's TF32 option; strict forbids TF32 to PyTorch too."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed


def rms(values: torch.Tensor) -> float:
    """The root of the mean square, in float64."""
    return float(values.double().square().mean().sqrt())


def eager_most(model: nn.Module, x: torch.Tensor, exact: torch.Tensor) -> float:
    """PyTorch's largest relative RMS error over inputs that differ from x in the last bit."""
    beside = [x * (1 + torch.finfo(x.dtype).eps * (torch.rand_like(x) - 0.5)) for _ in range(MORE)]
    return max(rms(model(y) - exact) / rms(exact) for y in (x, *beside))


@torch.no_grad()
def compared(model: nn.Module, x: torch.Tensor, with_compile: bool, budget_s: float) -> tuple[dict[str, Any], Any]:
    """Compare a model with its copy with swapped layers: a row of results, and the report of the swap."""
    exact = copy.deepcopy(model).double()(x.double())
    ours = copy.deepcopy(model)
    report = convforge.torch.replace(ours, x)
    calls: dict[str, Any] = {"eager": model, "convforge": ours}
    fault = ""
    if with_compile:
        torch.compiler.reset()  # code compiled for another batch would make this one's sizes dynamic
        try:
            calls["compiled"] = compiled(model, x)
        except Exception as absent:  # no compiler, no Triton
            fault = in_words(absent)
    errors = {by: rms(call(x) - exact) / rms(exact) for by, call in calls.items()}
    most = eager_most(model, x, exact)
    right = errors["convforge"] <= max(FACTOR * most, FLOOR)
    if not right:  # a wrong result gets no time
        del calls["convforge"]
    rule = StoppingRule(sample_s=2e-3, samples=11, patience_s=budget_s / 2, budget_s=budget_s)
    timings = interleave([partial(call, x) for call in calls.values()], WholeCalls(x.device), rule)
    row = {
        "right": right, "error": errors["convforge"], "eager_error": errors["eager"],
        "eager_most": most, "compile_fault": fault,
        "layers": len(report.layers), "ours_layers": sum(layer.by == "convforge" for layer in report.layers),
        "times": {by: timing.to_table() for by, timing in zip(calls, timings, strict=True)},
    }  # fmt: skip
    report.undo()
    torch.testing.assert_close(ours(x), model(x))
    return row, report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, help="height and width of the picture: 224 on a GPU, else 64")
    parser.add_argument("--batch", type=int, nargs="+", help="pictures at once: 1 and 32 on a GPU, else 1")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="time torch.compile: on a GPU it is")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of timing for each model")
    parser.add_argument("--out", type=Path, help="store the result in OUT/DEVICE/models-TIME.json")
    parser.add_argument("--resume", action="store_true", help="go on with what was interrupted")
    given = parser.parse_args()
    on_gpu = given.device != "cpu"
    size, factor = given.size or (224 if on_gpu else 64), 4 if on_gpu else 1
    with_compile = on_gpu if given.compile is None else given.compile
    batches = given.batch or ((1, 32) if on_gpu else (1,))
    sheet = None
    if given.out is not None:
        settings = {"device": given.device, "size": size, "width": 16 * factor, "batches": list(batches),
                    "factor": FACTOR, "floor": FLOOR}  # fmt: skip
        facts = runtime_of(given.device).facts
        more = {"torch": torch.__version__}
        sheet = Sheet.begin(given.out, "models", facts, settings, resume=given.resume, more_versions=more)
    wrong = []
    for name, make, width in (("ResNet-18", resnet, 16), ("MobileNetV2", mobilenet, 8), ("U-Net", unet, 8)):
        torch.manual_seed(0)
        allow_tf32(False)
        model = settled(make(width * factor).to(given.device), size)
        for batch in batches:
            x = torch.randn(batch, 3, size, size, device=given.device)
            for setting in ("strict", "TF32 allowed")[: 2 if on_gpu else 1]:
                about = {"model": name, "batch": batch, "setting": setting}
                if sheet is not None and sheet.has(**about):
                    continue
                allow_tf32(setting != "strict")
                row, report = compared(model, x, with_compile, given.budget)
                print(report)
                print(f"{name}, batch {batch}, {setting}: {told(row)}")
                if sheet is not None:
                    sheet.add(about | row)
                if not row["right"]:
                    wrong.append(f"{name}, batch {batch}, {setting}")
    if sheet is not None:
        sheet.finish()
        print(f"stored in {sheet.path}")
    if wrong:
        raise SystemExit(f"further from float64 than allowed: {', '.join(wrong)}")


def told(row: dict[str, Any]) -> str:
    """A row in words."""
    times = {by: f"{1e3 * table['median_s']:.3f} ms" for by, table in row["times"].items()}
    ours = times.get("convforge", "wrong, so no time,")
    others = times.get("compiled") or row["compile_fault"] or "not asked for"
    errors = f"error {row['error']:.1e}, PyTorch's {row['eager_error']:.1e}"
    return f"{ours} with convforge, {times['eager']} in eager mode; torch.compile: {others}; {errors}"


if __name__ == "__main__":
    main()
