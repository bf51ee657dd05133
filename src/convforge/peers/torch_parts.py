"""PyTorch's other operations on the CPU: max pooling, matrix product, ReLU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from convforge.algorithms.contract import Algorithm, Buffers, Config
from convforge.algorithms.gemm.gemm import operand_b
from convforge.algorithms.host.views import logical
from convforge.algorithms.traits import Mark
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.peers.contract import PeerPlan, one_config, version
from convforge.peers.torch import missing, ready, tensor
from convforge.problem import ElementwiseProblem, GemmProblem, Pool2dProblem
from convforge.problem.types import is_integer, itemsize


class TorchMaxPool2d(Algorithm[Pool2dProblem, Config]):
    """``torch.nn.functional.max_pool2d``; an NHWC image is a channels_last tensor, without a copy."""

    name = "torch_max_pool2d"
    summary = "PyTorch's max_pool2d"
    operation = "max_pool2d"
    ours = False
    look = Mark("torch", "triangle-left", (7, 3))
    configs = one_config

    def refuses(self, problem: Pool2dProblem, facts: DeviceFacts) -> Reason | None:
        if reason := missing():
            return reason
        if problem.dtype in ("bfloat16", "uint16"):
            return Reason("max_pool2d of PyTorch takes no NumPy array of {dtype}; cast to float32", dtype=problem.dtype)
        return None

    def plan(self, problem: Pool2dProblem, config: Config, runtime: Runtime) -> PeerPlan:
        ready(runtime.facts)
        pool = pooling(problem)

        def compute(buffers: Buffers, stream: Any) -> Any:
            x = tensor(logical(buffers["x"], problem.layout))
            if is_integer(problem.dtype):  # in channels_last PyTorch counts pixels in the image's type
                x = x.contiguous()
            y = pool(x)
            y = y if problem.layout == "NCHW" else y.permute(0, 2, 3, 1)
            return y.numpy()

        return PeerPlan(
            self,
            problem,
            config,
            runtime,
            compute=compute,
            kernel="torch.nn.functional.max_pool2d",
            allocates=True,
        )

    def versions(self) -> dict[str, str]:
        return {"torch": version("torch")}


def pooling(problem: Pool2dProblem) -> Callable[[Any], Any]:
    """``max_pool2d`` of a tensor with axes N, C, H, W.

    PyTorch pads opposite sides equally, by at most half a window; other padding is written first, up to the last
    window.
    """
    import torch

    top, bottom, left, right = problem.padding
    own = top == bottom <= problem.r // 2 and left == right <= problem.s // 2
    over_h = (problem.p - 1) * problem.stride[0] + problem.extent_h - problem.h - top
    over_w = (problem.q - 1) * problem.stride[1] + problem.extent_w - problem.w - left
    pads = (left, max(right, over_w), top, max(bottom, over_h))
    lowest = np.iinfo(problem.dtype).min if is_integer(problem.dtype) else -math.inf
    window = {
        "kernel_size": (problem.r, problem.s),
        "stride": problem.stride,
        "padding": (top, left) if own else 0,
        "dilation": problem.dilation,
        "ceil_mode": problem.ceil_mode and own,
    }

    def pool(x: Any) -> Any:
        with torch.inference_mode():
            if not own:
                x = torch.nn.functional.pad(x, pads, "constant", lowest)
            return torch.nn.functional.max_pool2d(x, **window)[:, :, : problem.p, : problem.q]

    return pool


class TorchMatmul(Algorithm[GemmProblem, Config]):
    """``torch.matmul`` into the caller's array: the BLAS that PyTorch was built with (MKL in its x86 wheels)."""

    name = "torch_matmul"
    summary = "PyTorch's matmul"
    operation = "gemm"
    ours = False
    look = Mark("torch", "triangle-right", (7, 3))
    configs = one_config

    def refuses(self, problem: GemmProblem, facts: DeviceFacts) -> Reason | None:
        if is_integer(problem.dtype):
            return Reason("matmul of PyTorch has results of the factors' type; {dtype} holds no such sums",
                          dtype=problem.dtype)  # fmt: skip
        if itemsize(problem.dtype) == 2:
            return Reason("matmul of PyTorch on the CPU is compared in float32 and float64, not in {dtype}",
                          dtype=problem.dtype)  # fmt: skip
        return missing()

    def plan(self, problem: GemmProblem, config: Config, runtime: Runtime) -> PeerPlan:
        torch = ready(runtime.facts)

        def compute(buffers: Buffers, stream: Any) -> Any:
            a, b = tensor(buffers["a"]), tensor(buffers["b"].tensors["b"])
            a, b = (a.T if problem.transpose_a else a), (b.T if problem.transpose_b else b)
            if buffers["c"] is None or not buffers["c"].flags.c_contiguous:
                return torch.matmul(a, b).numpy()
            torch.matmul(a, b, out=torch.from_numpy(buffers["c"]))
            return buffers["c"]

        return PeerPlan(self, problem, config, runtime, compute=compute, prepare=operand_b, kernel="torch.matmul")

    def versions(self) -> dict[str, str]:
        return {"torch": version("torch")}


class TorchRelu(Algorithm[ElementwiseProblem, Config]):
    """``torch.clamp_min`` into the caller's array: a ReLU with an `out`. NaN stays NaN."""

    name = "torch_relu"
    summary = "PyTorch's clamp_min at 0"
    operation = "relu"
    ours = False
    look = Mark("torch", "triangle-left", (3, 3))
    configs = one_config

    def refuses(self, problem: ElementwiseProblem, facts: DeviceFacts) -> Reason | None:
        if reason := missing():
            return reason
        if problem.dtype in ("bfloat16", "uint16"):
            return Reason("clamp_min of PyTorch takes no NumPy array of {dtype}; cast to float32", dtype=problem.dtype)
        return None

    def plan(self, problem: ElementwiseProblem, config: Config, runtime: Runtime) -> PeerPlan:
        torch = ready(runtime.facts)

        def compute(buffers: Buffers, stream: Any) -> Any:
            if buffers["out"] is None or not buffers["out"].flags.c_contiguous:
                return torch.clamp_min(tensor(buffers["x"]), 0).numpy()
            torch.clamp_min(tensor(buffers["x"]), 0, out=torch.from_numpy(buffers["out"]))
            return buffers["out"]

        return PeerPlan(self, problem, config, runtime, compute=compute, kernel="torch.clamp_min")

    def versions(self) -> dict[str, str]:
        return {"torch": version("torch")}
