"""PyTorch on NVIDIA GPUs: convolution (cuDNN as PyTorch chooses it), max pooling, matrix product and ReLU.

Tensors share our arrays' memory through ``__cuda_array_interface__``, and all work runs on the caller's stream.
PyTorch's flags apply to the whole process: a call sets them (cuDNN's search for its fastest algorithm; TF32 on or off)
and restores them. This affects other threads that use PyTorch at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from convforge.algorithms.contract import Algorithm, Buffers, Config, PreparedFilter
from convforge.algorithms.gemm.gemm import operand_b
from convforge.algorithms.traits import Mark
from convforge.backends.cuda.arrays import DeviceArray
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.peers.contract import (
    PeerPlan,
    dtype_refusal,
    random_array,
    sums_dtype,
    tf32_refusal,
    version,
)
from convforge.peers.torch import (
    TorchMatmul,
    TorchMaxPool2d,
    TorchRelu,
    activated,
    epilogue_refusal,
    explicit_padding,
    matmul_refusal,
    missing,
    pad_mode,
    padded,
    pooling,
    rounded,
)
from convforge.problem import Conv2dProblem, ElementwiseProblem, GemmProblem, Pool2dProblem
from convforge.problem.types import is_integer, numpy_dtype

_FLAGS = threading.RLock()


def missing_cuda() -> Reason | None:
    """Reason if PyTorch is not installed or finds no usable GPU; else None."""
    if reason := missing():
        return reason
    import torch

    if not torch.backends.cuda.is_built():
        install = "pip install torch --index-url https://download.pytorch.org/whl/cu130"
        return Reason("PyTorch {version} was built without CUDA: {install}", version=torch.__version__, install=install)
    if torch.cuda.is_available():
        return None
    return Reason("PyTorch {version} finds no GPU that its CUDA {cuda} can use",
                  version=torch.__version__, cuda=torch.version.cuda)  # fmt: skip


def tensor(array: Any) -> Any:
    """Make a tensor that shares the memory of an array on a GPU."""
    # ``__cuda_array_interface__`` has no bfloat16.
    import torch

    if array.dtype == numpy_dtype("bfloat16"):
        return _shared(array.view("int16")).view(torch.bfloat16)
    return _shared(array)


def _shared(array: Any) -> Any:
    import torch

    return torch.as_tensor(array, device="cuda")


def device_array(found: Any) -> DeviceArray:
    """Make a DeviceArray that shares the memory of a contiguous tensor and keeps it alive."""
    dtype = str(found.dtype).removeprefix("torch.")
    flat = DeviceArray.at(found.data_ptr(), found.numel() * found.element_size(), found)
    return flat.view(dtype).reshape(*found.shape)


@contextmanager
def flags(tf32: bool) -> Iterator[None]:
    """Set PyTorch's flags for one call, then restore them: cuDNN's algorithm search on, TF32 on or off."""
    # Calls hold a lock, so that no call runs with the flags of another.
    import torch

    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    with _FLAGS:
        before = (cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32)
        try:
            cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = True, tf32, tf32
            yield
        finally:
            cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before


@contextmanager
def running(runtime: Any, stream: Any, tf32: bool = False) -> Iterator[None]:
    """Use PyTorch on the caller's stream, under :func:`flags`, without gradients."""
    import torch

    device = torch.device("cuda", runtime.device)
    outside = torch.cuda.ExternalStream(runtime.stream_handle(stream), device=device)
    with torch.inference_mode(), flags(tf32), torch.cuda.device(device), torch.cuda.stream(outside):
        yield


class TorchConv2dCuda(Algorithm[Conv2dProblem, Config]):
    """``torch.nn.functional.conv2d`` in the layout of the problem.

    Making a plan calls conv2d once, so that PyTorch searches for cuDNN's fastest algorithm. This may be Winograd; if
    its error is too large for strict arithmetic, the result fails the check. If factors and output have one 16-bit
    dtype, sums are in float32. Other dtypes are cast first; the measured time includes this.
    """

    name = "torch_conv2d"
    summary = "PyTorch's conv2d on the layout as it comes"
    operation = "conv2d"
    backend = "cuda"
    ours = False
    reads = "forward"
    channels_last: ClassVar[bool] = False
    look = Mark("torch", "circle", (7, 3))
    _plan: ClassVar[type[PeerPlan]] = PeerPlan

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        dtype = None if compute_dtype(problem) == "bfloat16" else dtype_refusal(problem)
        if reason := tf32_refusal(self, problem) or missing() or dtype or epilogue_refusal(problem):
            return reason
        if "uint16" in (problem.x_dtype, problem.w_dtype, problem.out_dtype):
            return Reason("PyTorch converts no {dtype} on a GPU; cast to float32", dtype="uint16")
        if explicit_padding(problem) and pad_mode(problem) is None:
            mode, padding = problem.padding_mode, str(problem.padding)
            return Reason("PyTorch's pad has no {padding_mode} border of {padding} on {h}x{w}",
                          padding_mode=mode, padding=padding, h=problem.h, w=problem.w)  # fmt: skip
        if not problem.n:
            return Reason("PyTorch is asked for no empty batch")
        return _border_refusal(problem) or missing_cuda()

    def plan(self, problem: Conv2dProblem, config: Config, runtime: Runtime) -> PeerPlan:
        dtype = compute_dtype(problem)

        def prepare(w: Any, stream: Any = None) -> PreparedFilter:
            with running(runtime, stream):
                packed = self._filter(problem, tensor(w), dtype)
            return PreparedFilter({"w": packed, "owner": w}, packed.nbytes)

        def compute(buffers: Buffers, stream: Any) -> Any:
            with running(runtime, stream, self.precision == "tf32"):
                bias = tensor(buffers["bias"]) if problem.epilogue.bias else None
                y = self._conv2d(problem, tensor(buffers["x"]), buffers["w"].tensors["w"], bias, dtype)
                if buffers["out"] is None:
                    return self._own(y.to(_torch_type(problem.out_dtype)))
                tensor(buffers["out"]).copy_(y)
                return buffers["out"]

        plan = self._plan(
            self, problem, config, runtime, compute=compute, prepare=prepare, kernel="torch.nn.functional.conv2d",
            allocates=self._keeps(problem) and problem.out_dtype == dtype,
        )  # fmt: skip
        _first_call(plan, problem, runtime)
        return plan

    def versions(self) -> dict[str, str]:
        return {"torch": version("torch"), "cudnn": version("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")}

    def _filter(self, problem: Conv2dProblem, w: Any, dtype: str) -> Any:
        """Filter in cross-correlation order, in conv2d's dtype and memory format; copied only if it changes."""
        import torch

        w = w.flip(2, 3) if problem.mode == "convolution" else w
        return w.to(_torch_type(dtype)).contiguous(
            memory_format=torch.channels_last if self._is_last(problem) else torch.contiguous_format
        )

    def _is_last(self, problem: Conv2dProblem) -> bool:
        return self.channels_last or problem.x_layout == "NHWC"

    def _keeps(self, problem: Conv2dProblem) -> bool:
        """True if conv2d's result already has the problem's layout."""
        layout = "NHWC" if self._is_last(problem) else "NCHW"
        return layout == problem.out_layout or problem.k == 1 or problem.p * problem.q == 1

    def _own(self, y: Any) -> DeviceArray:
        return device_array(y.contiguous())

    def _conv2d(self, problem: Conv2dProblem, x: Any, w: Any, bias: Any, dtype: str) -> Any:
        """Compute the result; return it with the axes of the problem's output, as a view if PyTorch's axes differ."""
        import torch

        x = logical_tensor(x, problem.x_layout).to(_torch_type(dtype))
        if not self._is_last(problem):
            x = x.contiguous()
        elif self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        x, padding = padded(problem, x)
        bias = None if bias is None else bias.to(_torch_type(dtype))
        y = torch.nn.functional.conv2d(x, w, bias, problem.stride, padding, problem.dilation, problem.groups)
        y = rounded(problem, activated(problem, y))
        return y if problem.out_layout == "NCHW" else y.permute(0, 2, 3, 1)


class TorchConv2dCudaTf32(TorchConv2dCuda):
    name = "torch_conv2d_tf32"
    summary = "PyTorch's conv2d, factors rounded to TF32"
    since = "torch_conv2d"
    precision = "tf32"
    look = Mark("torch", "square", (7, 3))


class TorchConv2dCudaChannelsLast(TorchConv2dCuda):
    """``conv2d`` in channels_last memory format; for NCHW problems the time includes copies of x and the result."""

    name = "torch_conv2d_channels_last"
    summary = "PyTorch's conv2d in the channels_last memory format"
    since = "torch_conv2d"
    channels_last = True
    look = Mark("torch", "diamond", (7, 3, 2, 3))


class TorchConv2dCudaChannelsLastTf32(TorchConv2dCudaTf32):
    name = "torch_conv2d_channels_last_tf32"
    summary = "PyTorch's conv2d in the channels_last memory format, factors rounded to TF32"
    since = "torch_conv2d_channels_last"
    channels_last = True
    look = Mark("torch", "cross", (7, 3, 2, 3))


class _InNchw(PeerPlan):
    """Plan for an input that is transposed to NCHW beforehand, and viewed as NHWC."""

    def lay(self, x: Any) -> Any:
        with running(self.runtime, None):
            return _turned(device_array(logical_tensor(tensor(x), "NHWC").contiguous()))


class TorchConv2dCudaNchw(TorchConv2dCuda):
    """``conv2d`` in NCHW for callers who can choose: x (NHWC) is transposed beforehand, the result stays in NCHW."""

    name = "torch_conv2d_nchw"
    summary = "PyTorch's conv2d on an NHWC image that was transposed to NCHW beforehand"
    since = "torch_conv2d"
    look = Mark("torch", "x", (7, 3, 2, 3))
    _plan = _InNchw

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        reason = super().refuses(problem, facts)
        if reason or problem.x_layout == problem.out_layout == "NHWC":
            return reason
        return Reason("it is about images and results in NHWC; torch_conv2d takes others in their own layout")

    def _is_last(self, problem: Conv2dProblem) -> bool:
        return False

    def _keeps(self, problem: Conv2dProblem) -> bool:
        return True  # viewed as NHWC, without a copy

    def _own(self, y: Any) -> DeviceArray:
        return _turned(device_array(logical_tensor(y, "NHWC").contiguous()))


def _turned(array: DeviceArray) -> DeviceArray:
    return array.transpose(0, 2, 3, 1)


def compute_dtype(problem: Conv2dProblem) -> str:
    """Dtype of conv2d's tensors: the 16-bit dtype if no later step rounds a second time, else the sums' dtype."""
    types = {problem.x_dtype, problem.w_dtype, problem.out_dtype}
    halves = len(types) == 1 and problem.x_dtype in ("float16", "bfloat16") and problem.acc_dtype == "float32"
    if halves and not problem.epilogue.bias and problem.epilogue.activation in ("identity", "relu"):
        return problem.x_dtype
    return sums_dtype(problem)


def _border_refusal(problem: Conv2dProblem) -> Reason | None:
    """Reason if x's dtype cannot hold the border value, because PyTorch's pad writes it in this dtype; else None."""
    value = problem.padding_value
    if problem.padding_mode != "constant" or not any(problem.padding) or compute_dtype(problem) != "float16":
        return None
    with np.errstate(over="ignore"):
        if float(np.float16(value)) == value:
            return None
    return Reason("PyTorch pads float16 images in float16, which does not hold a border of {value}", value=value)


def logical_tensor(x: Any, layout: str) -> Any:
    """View a tensor with its axes in the order N, C, H, W."""
    return x if layout == "NCHW" else x.permute(0, 3, 1, 2)


def _torch_type(dtype: str) -> Any:
    import torch

    return getattr(torch, dtype)


def _first_call(plan: PeerPlan, problem: Conv2dProblem, runtime: Runtime) -> None:
    """Call a plan once on random numbers, so that PyTorch searches for its algorithm before any capture."""
    x = random_array(problem.x_shape, problem.x_dtype, runtime, 0)
    w = random_array(problem.w_shape, problem.w_dtype, runtime, 1)
    operands = {}
    if problem.epilogue.bias:
        operands["bias"] = runtime.empty((problem.k,), problem.operand_dtype)
        runtime.fill(operands["bias"], 0)
    out = runtime.empty(problem.out_shape, problem.out_dtype)
    plan(plan.buffers(x, plan.prepare(w), operands, out))
    runtime.synchronize()


class TorchMaxPool2dCuda(TorchMaxPool2d):
    """``torch.nn.functional.max_pool2d``; an NHWC image becomes a channels_last tensor without a copy."""

    backend = "cuda"
    reads = "forward"

    def refuses(self, problem: Pool2dProblem, facts: DeviceFacts) -> Reason | None:
        if is_integer(problem.dtype):
            return Reason("max_pool2d of PyTorch takes no array of {dtype} on a GPU; cast to float32",
                          dtype=problem.dtype)  # fmt: skip
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

        kernel = "torch.nn.functional.max_pool2d"
        return PeerPlan(self, problem, config, runtime, compute=compute, kernel=kernel, allocates=True)


class TorchMatmulCuda(TorchMatmul):
    """``torch.matmul`` into the caller's array: cuBLAS or cuBLASLt, as PyTorch chooses."""

    backend = "cuda"
    reads = "forward"

    def refuses(self, problem: GemmProblem, facts: DeviceFacts) -> Reason | None:
        if not problem.m * problem.n * problem.k:
            return Reason("PyTorch is asked for products that sum at least one number")
        return tf32_refusal(self, problem) or matmul_refusal(problem) or missing_cuda()

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
    name = "torch_matmul_tf32"
    summary = "PyTorch's matmul, factors rounded to TF32"
    since = "torch_matmul"
    precision = "tf32"
    look = Mark("torch", "triangle-down", (7, 3))


class TorchReluCuda(TorchRelu):
    """``torch.clamp_min`` into the caller's array: a ReLU that has an `out` argument. NaN stays NaN."""

    backend = "cuda"
    reads = "forward"

    def refuses(self, problem: ElementwiseProblem, facts: DeviceFacts) -> Reason | None:
        if problem.dtype == "uint16":
            return Reason("clamp_min of PyTorch takes no array of {dtype} on a GPU; cast to float32",
                          dtype=problem.dtype)  # fmt: skip
        return missing_cuda() if problem.size else Reason("PyTorch is asked for no empty array")

    def plan(self, problem: ElementwiseProblem, config: Config, runtime: Runtime) -> PeerPlan:
        import torch

        def compute(buffers: Buffers, stream: Any) -> Any:
            with running(runtime, stream):
                if buffers["out"] is None:
                    return device_array(torch.clamp_min(tensor(buffers["x"]), 0))
                torch.clamp_min(tensor(buffers["x"]), 0, out=tensor(buffers["out"]))
                return buffers["out"]

        return PeerPlan(self, problem, config, runtime, compute=compute, kernel="torch.clamp_min")
