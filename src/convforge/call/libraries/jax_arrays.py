"""JAX's arrays."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from convforge.backends.cuda.arrays import DeviceArray
from convforge.backends.runtime import CallerStream
from convforge.call.libraries.contract import Library
from convforge.problem.types import numpy_dtype


class Jax(Library):
    """JAX's arrays. JAX does not expose its streams, so GPU work runs on a stream of ours, and DLPack orders the two.

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

    def dtype(self, array: Any) -> str:
        return str(array.dtype)

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

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        if device == "cpu":
            return np.empty(shape, numpy_dtype(dtype))
        with self._wide(dtype):
            return self._jax.numpy.empty(shape, dtype, device=self._gpu(device))

    def zeros(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        if device == "cpu":
            return np.zeros(shape, numpy_dtype(dtype))
        with self._wide(dtype):
            return self._jax.numpy.zeros(shape, dtype, device=self._gpu(device))

    def _gpu(self, device: str) -> Any:
        return next(d for d in self._jax.local_devices(backend="gpu") if d.local_hardware_id == int(device[5:]))

    def cast(self, array: Any, dtype: str) -> Any:
        with self._wide(dtype):
            return array.astype(dtype)  # never changed, so it need not be a copy

    def empty_like(self, array: Any) -> Any:
        return self.empty(array.shape, str(array.dtype), self.device(array, "x"))

    def copy(self, target: Any, source: Any) -> None:
        raise TypeError("a JAX array cannot be written to")

    def stream(self, device: str) -> CallerStream:
        from convforge.backends.cuda.runtime import cuda_runtime

        return CallerStream(cuda_runtime(int(device[5:])).stream_handle(None))

    def give(self, array: Any, stream: CallerStream | None) -> Any:
        with self._wide(str(array.dtype)):
            if stream is None:
                return self._jax.numpy.asarray(array)
            return self._jax.dlpack.from_dlpack(_Written(array, stream.handle))

    def _wide(self, dtype: str) -> AbstractContextManager[Any]:
        """Let JAX make float64 arrays: unless the user has enabled them, it makes float32 instead."""
        if dtype != "float64":
            return nullcontext()
        room = self._jax if hasattr(self._jax, "enable_x64") else importlib.import_module("jax.experimental")
        wide: AbstractContextManager[Any] = room.enable_x64(True)
        return wide


class _Written:
    """A JAX array that our stream writes to: its DLPack consumer waits for that stream."""

    def __init__(self, array: Any, stream: int) -> None:
        self._array, self._stream = array, stream

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        from convforge.backends.cuda.driver import wait_for

        if stream is not None:
            wait_for(stream, self._stream)
        return self._array.__dlpack__(**options)
