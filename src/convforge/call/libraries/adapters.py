"""Adapters for NumPy, CuPy and JAX; PyTorch's is in `torch_tensors`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.cuda.arrays import DeviceArray
from convforge.backends.runtime import CallerStream
from convforge.call.libraries.contract import Library, Signature
from convforge.problem.types import numpy_dtype


def is_masked(array: Any) -> bool:
    """True for NumPy's masked arrays; avoids the import of numpy.ma."""
    return isinstance(array, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


class Numpy(Library):
    kind = "a NumPy array"

    def __init__(self, numpy: Any) -> None:
        self.arrays: tuple[type, ...] = (numpy.ndarray,)

    def device(self, array: Any, name: str) -> str:
        return "cpu"

    def check(self, array: Any, name: str) -> None:
        if is_masked(array):
            raise TypeError(
                f"{name} is a masked array, whose mask would be lost; fill it first, as in {name}.filled(0)"
            )

    def dtype(self, array: Any) -> str:
        return _numpy_name(array.dtype)

    def view(self, array: Any, written: bool = False) -> NDArray[Any]:
        plain = np.asarray(array)
        if written or plain.dtype.isnative:
            return plain
        return plain.astype(plain.dtype.newbyteorder("="))

    def empty(self, shape: tuple[int, ...], dtype: str, device: str, zeros: bool = False) -> NDArray[Any]:
        return (np.zeros if zeros else np.empty)(shape, numpy_dtype(dtype))

    def empty_like(self, array: Any) -> NDArray[Any]:
        plain = np.asarray(array)
        return np.empty_like(plain, plain.dtype.newbyteorder("="))

    def cast(self, array: Any, dtype: str) -> NDArray[Any]:
        return np.array(array, numpy_dtype(dtype), order="C", copy=True)

    def from_host(self, array: NDArray[Any], device: str) -> NDArray[Any]:
        return array

    def signature(self, arrays: Sequence[Any]) -> Signature | None:
        found: list[Any] = []
        for array in arrays:
            if type(array) is not np.ndarray or not array.dtype.isnative:
                return None
            found += (array.shape, array.dtype)
        return found, []


@lru_cache(maxsize=64)
def _numpy_name(dtype: np.dtype[Any]) -> str:
    return str(dtype if dtype.isnative else dtype.newbyteorder("="))


class Cupy(Library):
    kind = "a CuPy array"

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self.arrays: tuple[type, ...] = (cupy.ndarray,)

    def device(self, array: Any, name: str) -> str:
        return f"cuda:{array.device.id}"

    def check(self, array: Any, name: str) -> None:
        if not array.dtype.isnative:
            raise TypeError(f"{name} has bytes in foreign order; cast it with {name}.astype({array.dtype.name!r})")

    def view(self, array: Any, written: bool = False) -> DeviceArray:
        return DeviceArray.over(array.data.ptr, array.shape, array.strides, array.dtype, array)

    def empty(self, shape: tuple[int, ...], dtype: str, device: str, zeros: bool = False) -> Any:
        with self._cupy.cuda.Device(int(device[5:])):
            return (self._cupy.zeros if zeros else self._cupy.empty)(shape, dtype)

    def cast(self, array: Any, dtype: str) -> Any:
        with array.device:
            return array.astype(dtype, order="C", copy=True)

    def from_host(self, array: NDArray[Any], device: str) -> Any:
        with self._cupy.cuda.Device(int(device[5:])):
            return self._cupy.asarray(array)

    def empty_like(self, array: Any) -> Any:
        with array.device:
            return self._cupy.empty_like(array)

    def copy(self, target: Any, source: Any) -> None:
        with target.device:
            target[...] = source

    def stream(self, device: str) -> CallerStream:
        current = self._cupy.cuda.get_current_stream(int(device[5:]))
        capturing = bool(current.ptr and current.is_capturing())
        return CallerStream(int(current.ptr), partial(self.take, device=device), capturing)

    def take(self, nbytes: int, device: str) -> tuple[int, Any]:
        with self._cupy.cuda.Device(int(device[5:])):
            block = self._cupy.cuda.alloc(nbytes)
        return int(block.ptr), block

    def signature(self, arrays: Sequence[Any]) -> Signature | None:
        found: list[Any] = []
        places: list[int] = []
        for array in arrays:
            if type(array) is not self._cupy.ndarray:
                return None
            place = int(array.data.ptr)
            found += (array.shape, array.strides, array.dtype, array.data.device_id, place % 256)
            places.append(place)
        return found, places

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def handles(self, device: str) -> Callable[[], int]:
        return lambda: int(self._cupy.cuda.get_current_stream(int(device[5:])).ptr)


class Jax(Library):
    """JAX's arrays. JAX does not expose its streams: GPU work runs on our stream, and DLPack synchronizes the two.

    ``__dlpack__(stream=ours)`` of an input makes our stream wait until it is computed. A result is JAX memory that we
    write to, returned through a capsule that makes JAX's stream wait for ours.
    """

    kind = "a JAX array"

    def __init__(self, jax: Any) -> None:
        self._jax = jax
        self.arrays: tuple[type, ...] = (jax.Array, jax.core.Tracer)

    def device(self, array: Any, name: str) -> str:
        if isinstance(array, self._jax.core.Tracer):
            raise TypeError(
                f"{name} is traced by JAX (jit, grad or vmap), which gives no numbers to compute with: call convforge "
                "outside, on arrays"
            )
        devices = array.devices()
        if len(devices) > 1:
            raise ValueError(f"{name} is spread over {len(devices)} devices; gather it on one first")
        (device,) = devices
        if device.platform not in ("cpu", "gpu", "cuda"):
            raise ValueError(f"{name} is on {device.platform}; convforge computes on the CPU and on NVIDIA GPUs")
        return "cpu" if device.platform == "cpu" else f"cuda:{device.local_hardware_id}"

    def check(self, array: Any, name: str) -> None:
        if name == "out":
            raise TypeError("out is a JAX array, which cannot be written to; leave out= away and take the result")
        if name == "amax":
            raise TypeError(
                "amax is a JAX array, which cannot be written to; pass x, w and amax as arrays of PyTorch or CuPy "
                "(torch.from_dlpack(x))"
            )

    def view(self, array: Any, written: bool = False) -> Any:
        if isinstance(array, np.ndarray):  # from `empty`
            return array
        (device,) = array.devices()
        dtype = numpy_dtype(str(array.dtype))
        if device.platform == "cpu":
            return np.asarray(array).view(dtype)
        from cuda.core.utils import StridedMemoryView

        there = StridedMemoryView.from_dlpack(array, stream_ptr=self.stream(f"cuda:{device.local_hardware_id}").handle)
        return DeviceArray.over(there.ptr, array.shape, None, dtype, there)

    def empty(self, shape: tuple[int, ...], dtype: str, device: str, zeros: bool = False) -> Any:
        if device == "cpu":
            return (np.zeros if zeros else np.empty)(shape, numpy_dtype(dtype))
        with self._wide(dtype):
            make = self._jax.numpy.zeros if zeros else self._jax.numpy.empty
            return make(shape, dtype, device=self._gpu(device))

    def cast(self, array: Any, dtype: str) -> Any:
        with self._wide(dtype):
            return array.astype(dtype)  # JAX arrays are immutable, so no copy is necessary

    def from_host(self, array: NDArray[Any], device: str) -> Any:
        with self._wide(array.dtype.name):
            return self._jax.device_put(array, self._gpu(device))

    def empty_like(self, array: Any) -> Any:
        return self.empty(array.shape, str(array.dtype), self.device(array, "x"))

    def stream(self, device: str) -> CallerStream:
        from convforge.backends.cuda.runtime import cuda_runtime

        return CallerStream(cuda_runtime(int(device[5:])).stream_handle(None))

    def give(self, array: Any, stream: CallerStream | None) -> Any:
        with self._wide(str(array.dtype)):
            if stream is None:
                return self._jax.numpy.asarray(array)
            return self._jax.dlpack.from_dlpack(_Written(array, stream.handle))

    def _gpu(self, device: str) -> Any:
        gpus = self._jax.local_devices(backend="gpu")
        return next(gpu for gpu in gpus if gpu.local_hardware_id == int(device[5:]))

    def _wide(self, dtype: str) -> AbstractContextManager[Any]:
        """Context in which JAX makes float64 arrays; by default it makes float32 arrays instead."""
        if dtype != "float64":
            return nullcontext()
        room = self._jax if hasattr(self._jax, "enable_x64") else importlib.import_module("jax.experimental")
        wide: AbstractContextManager[Any] = room.enable_x64(True)
        return wide


class _Written:
    """A JAX array that our stream writes to; a DLPack consumer of it waits for that stream."""

    def __init__(self, array: Any, stream: int) -> None:
        self._array, self._stream = array, stream

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        from convforge.backends.cuda.driver import wait_for

        if stream is not None:
            wait_for(stream, self._stream)
        return self._array.__dlpack__(**options)
