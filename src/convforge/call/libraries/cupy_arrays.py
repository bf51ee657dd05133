"""CuPy's arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from convforge.backends.cuda.arrays import DeviceArray
from convforge.backends.runtime import CallerStream
from convforge.call.libraries.contract import Library


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

    def dtype(self, array: Any) -> str:
        return str(array.dtype)

    def view(self, array: Any, written: bool = False) -> DeviceArray:
        return DeviceArray.over(array.data.ptr, array.shape, array.strides, array.dtype, array)

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        with self._cupy.cuda.Device(int(device[5:])):
            return self._cupy.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        with self._cupy.cuda.Device(int(device[5:])):
            return self._cupy.zeros(shape, dtype)

    def cast(self, array: Any, dtype: str) -> Any:
        with array.device:
            return array.astype(dtype, order="C", copy=True)

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

    def signature(self, arrays: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
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
