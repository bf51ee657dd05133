"""PyTorch's other operations on NVIDIA GPUs: max pooling, matrix product, ReLU."""

from __future__ import annotations

from typing import Any

from convforge.algorithms.contract import Algorithm, Buffers, Config
from convforge.algorithms.gemm.gemm import operand_b
from convforge.algorithms.traits import Mark
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.peers.contract import PeerPlan, one_config, version
from convforge.peers.torch import missing
from convforge.peers.torch_cuda import device_array, logical_tensor, missing_cuda, running, tensor
from convforge.peers.torch_parts import pooling
from convforge.problem import ElementwiseProblem, GemmProblem, Pool2dProblem
from convforge.problem.types import is_integer


class TorchMaxPool2dCuda(Algorithm[Pool2dProblem, Config]):
    """``torch.nn.functional.max_pool2d``; an NHWC image is a channels_last tensor, without a copy."""

    name = "torch_max_pool2d"
    summary = "PyTorch's max_pool2d"
    operation = "max_pool2d"
    backend = "cuda"
    ours = False
    reads = "forward"
    look = Mark("torch", "triangle-left", (7, 3))
    configs = one_config

    def refuses(self, problem: Pool2dProblem, facts: DeviceFacts) -> Reason | None:
        if reason := missing():
            return reason
        if is_integer(problem.dtype):
            return Reason(
                "max_pool2d of PyTorch takes no array of {dtype} on a GPU; cast to float32", dtype=problem.dtype
            )
        return missing_cuda() if problem.n else Reason("PyTorch is asked for no empty batch")

    def plan(self, problem: Pool2dProblem, config: Config, runtime: Runtime) -> PeerPlan:
        pool = pooling(problem)

        def compute(buffers: Buffers, stream: Any) -> Any:
            with running(runtime, stream):
                y = pool(logical_tensor(tensor(buffers["x"]), problem.layout))
                y = y if problem.layout == "NCHW" else y.permute(0, 2, 3, 1)
                if buffers["out"] is None:
                    return device_array(y.contiguous())
                tensor(buffers["out"]).copy_(y)
                return buffers["out"]

        return PeerPlan(self, problem, config, runtime, compute=compute,
                        kernel="torch.nn.functional.max_pool2d", allocates=True)  # fmt: skip

    def versions(self) -> dict[str, str]:
        return {"torch": version("torch")}


class TorchMatmulCuda(Algorithm[GemmProblem, Config]):
    """``torch.matmul`` into the caller's array: cuBLAS or cuBLASLt, as PyTorch chooses."""

    name = "torch_matmul"
    summary = "PyTorch's matmul"
    operation = "gemm"
    backend = "cuda"
    ours = False
    reads = "forward"
    look = Mark("torch", "triangle-right", (7, 3))
    configs = one_config

    def refuses(self, problem: GemmProblem, facts: DeviceFacts) -> Reason | None:
        if not problem.m * problem.n * problem.k:
            return Reason("PyTorch is asked for products that sum at least one number")
        if is_integer(problem.dtype):
            return Reason("matmul of PyTorch has results of the factors' type; {dtype} holds no such sums",
                          dtype=problem.dtype)  # fmt: skip
        return missing_cuda()

    def plan(self, problem: GemmProblem, config: Config, runtime: Runtime) -> PeerPlan:
        import torch

        def compute(buffers: Buffers, stream: Any) -> Any:
            with running(runtime, stream, self.precision == "tf32"):
                a, b = tensor(buffers["a"]), tensor(buffers["b"].tensors["b"])
                a, b = (a.T if problem.transpose_a else a), (b.T if problem.transpose_b else b)
                if buffers["c"] is None:
                    return device_array(torch.matmul(a, b))
                out = tensor(buffers["c"])
                if out.is_contiguous():
                    torch.matmul(a, b, out=out)
                else:
                    out.copy_(torch.matmul(a, b))
                return buffers["c"]

        return PeerPlan(self, problem, config, runtime, compute=compute, prepare=operand_b, kernel="torch.matmul")

    def versions(self) -> dict[str, str]:
        return {"torch": version("torch"), "cublas": version("nvidia-cublas", "nvidia-cublas-cu12")}


class TorchMatmulCudaTf32(TorchMatmulCuda):
    """``torch.matmul`` with TF32 allowed."""

    name = "torch_matmul_tf32"
    summary = "PyTorch's matmul, factors rounded to TF32"
    since = "torch_matmul"
    precision = "tf32"
    look = Mark("torch", "triangle-down", (7, 3))

    def refuses(self, problem: GemmProblem, facts: DeviceFacts) -> Reason | None:
        return Reason("TF32 is about float32") if problem.dtype != "float32" else super().refuses(problem, facts)


class TorchReluCuda(Algorithm[ElementwiseProblem, Config]):
    """``torch.clamp_min`` into the caller's array: a ReLU with an `out`. NaN stays NaN."""

    name = "torch_relu"
    summary = "PyTorch's clamp_min at 0"
    operation = "relu"
    backend = "cuda"
    ours = False
    reads = "forward"
    look = Mark("torch", "triangle-left", (3, 3))
    configs = one_config

    def refuses(self, problem: ElementwiseProblem, facts: DeviceFacts) -> Reason | None:
        if reason := missing():
            return reason
        if problem.dtype == "uint16":
            return Reason(
                "clamp_min of PyTorch takes no array of {dtype} on a GPU; cast to float32", dtype=problem.dtype
            )
        return missing_cuda() if problem.size else Reason("PyTorch is asked for no empty array")

    def plan(self, problem: ElementwiseProblem, config: Config, runtime: Runtime) -> PeerPlan:
        import torch

        def compute(buffers: Buffers, stream: Any) -> Any:
            with running(runtime, stream):
                if buffers["out"] is None:
                    return device_array(torch.clamp_min(tensor(buffers["x"]), 0))
                torch.clamp_min(tensor(buffers["x"]), 0, out=tensor(buffers["out"]))
                return buffers["out"]

        return PeerPlan(self, problem, config, runtime, compute=compute,
                        kernel="torch.clamp_min")  # fmt: skip

    def versions(self) -> dict[str, str]:
        return {"torch": version("torch")}
