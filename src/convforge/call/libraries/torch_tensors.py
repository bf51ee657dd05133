"""PyTorch's tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from convforge.backends.cuda.arrays import DeviceArray
from convforge.backends.runtime import CallerStream
from convforge.call.libraries.contract import Library, Signature
from convforge.problem.types import ADDED, SHORT_NAMES, numpy_dtype


class Torch(Library):
    kind = "a PyTorch tensor"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.arrays: tuple[type, ...] = (torch.Tensor,)
        self._types = {name: getattr(torch, name) for name in SHORT_NAMES if hasattr(torch, name)}
        self._names = {dtype: name for name, dtype in self._types.items()}
        self._bits = {1: torch.uint8, 2: torch.int16}
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self.address: Callable[[Any], int] = torch.Tensor.data_ptr  # type: ignore[assignment]  # C, for speed
        self._wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        # Functions that torch.compile's own code calls, because they are quick.
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        guards = getattr(torch._C._dynamo, "guards", None)
        self._quick_empty = getattr(guards, "_empty_strided_cuda", None)
        self._guards = getattr(guards, "TensorGuards", None)
        self._devices: dict[str, Any] = {}

    def device(self, array: Any, name: str) -> str:
        return _torch_device(array.device, name)

    def check(self, array: Any, name: str) -> None:
        torch = self._torch
        if array.layout is not torch.strided:
            raise TypeError(f"{name} is a tensor of layout {array.layout}; call to_dense() first")
        if hasattr(array, "fake_mode"):
            raise TypeError(f"{name} is a fake tensor, as torch.compile traces with: call convforge.torch.conv2d there")
        if self._wrapped(array):
            raise TypeError(
                f"{name} is a tensor inside of torch.func's vmap or grad, which gives no numbers to compute with: call "
                "convforge outside"
            )
        if name == "out" and array.is_neg():
            raise ValueError("out has a lazy minus sign, as the imaginary part of a conjugate has; give a plain tensor")
        if array.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{name} requires a gradient, which is not recorded here: call convforge.torch.conv2d, which records "
                f"it, or give {name}.detach()"
            )

    def dtype(self, array: Any) -> str:
        return self._names.get(array.dtype) or str(array.dtype).removeprefix("torch.")

    def view(self, array: Any, written: bool = False) -> Any:
        if array.requires_grad:
            array = array.detach()
        if not written and array.is_neg():
            array = array.resolve_neg()
        if array.is_cpu:
            name = self._names.get(array.dtype)
            if name in ADDED:  # PyTorch gives NumPy only its bits
                return array.view(self._bits[array.element_size()]).numpy().view(numpy_dtype(name))
            return array.numpy()
        name = self.dtype(array)
        dtype = numpy_dtype(name) if name in SHORT_NAMES else np.dtype(f"V{array.element_size()}")
        size = dtype.itemsize
        steps = tuple([step * size for step in array.stride()])
        return DeviceArray.over(array.data_ptr(), tuple(array.shape), steps, dtype, array)

    def empty(self, shape: tuple[int, ...], dtype: str, device: str, zeros: bool = False) -> Any:
        if zeros:
            return self._torch.zeros(shape, dtype=self._types[dtype], device=device)
        if (place := self._devices.get(device)) is None:  # parsing it takes as long as allocating
            place = self._devices[device] = self._torch.device(device)
        if self._quick_empty is not None and place.type == "cuda" and place.index == self._torch._C._cuda_getDevice():
            return self._quick_empty(shape, _dense(shape), self._types[dtype])
        return self._torch.empty(shape, dtype=self._types[dtype], device=place)

    def cast(self, array: Any, dtype: str) -> Any:
        torch = self._torch
        return array.detach().to(self._types[dtype], memory_format=torch.contiguous_format, copy=True)

    def empty_like(self, array: Any) -> Any:
        return self._torch.empty_like(array.detach())

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def stream(self, device: str) -> CallerStream:
        with self._torch.cuda.device(device):
            capturing = self._torch.cuda.is_current_stream_capturing()
        return CallerStream(self.handles(device)(), partial(self.take, device=device), capturing)

    def signature(self, arrays: Sequence[Any]) -> Signature | None:
        plain, found, places = self._plain, list[Any](), list[int]()
        for array in arrays:
            if type(array) not in plain:
                return None
            try:
                place = array.data_ptr()
            except RuntimeError:  # no memory: sparse, or a tensor inside torch.func's transforms
                return None
            if not place or array.is_neg() or (array.requires_grad and self._torch.is_grad_enabled()):
                return None
            if array.is_cuda:
                found += (array.shape, array.stride(), array.dtype, array.get_device(), place % 256)
                places.append(place)
            elif array.is_cpu:
                found += (array.shape, array.dtype)
            else:
                return None
        return found, places

    def guard(self, arrays: Sequence[Any]) -> Callable[..., list[int] | None] | None:
        if self._guards is None:
            return None
        check = self._guards(
            *arrays, dynamic_dims_sizes=[list(array.shape) for array in arrays],
            dynamic_dims_strides=[list(array.stride()) for array in arrays],
        ).check  # fmt: skip
        address, remainder = self.address, (255).__and__
        remainders = [remainder(address(array)) for array in arrays]
        learned = any(array.requires_grad for array in arrays)
        is_learning = self._torch.is_grad_enabled

        def places(*others: Any) -> list[int] | None:
            if not check(*others) or (learned and is_learning()):
                return None
            found = list(map(address, others))
            return None if 0 in found or list(map(remainder, found)) != remainders else found

        return places

    def maker(self, shape: tuple[int, ...], dtype: str, device: str) -> Callable[[], Any]:
        steps = _dense(shape)
        if self._quick_empty is not None and device != "cpu":
            return partial(self._quick_empty, shape, steps, self._types[dtype])
        place = self._torch.device(device)
        return partial(self._torch.empty_strided, shape, steps, dtype=self._types[dtype], device=place)

    def handles(self, device: str) -> Callable[[], int]:
        if self._raw_stream is not None:
            return partial(self._raw_stream, int(device[5:]))
        return lambda: int(self._torch.cuda.current_stream(device).cuda_stream)


@lru_cache(maxsize=1024)
def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an array without gaps, in elements.

    Examples
    --------
    >>> _dense((2, 3, 4)), _dense((2, 0, 4)), _dense(())
    ((12, 4, 1), (4, 4, 1), ())
    """
    return tuple([math.prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape))])


@lru_cache(maxsize=64)
def _torch_device(device: Any, name: str) -> str:
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name} is on {device}; convforge computes on the CPU and on NVIDIA GPUs: move it there")
    return str(device)
