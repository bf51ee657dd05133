"""Tensor maps of TMA, encoded by the driver."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from convforge.backends.cuda.driver import CudaError, library
from convforge.backends.maps import MAP_ALIGNMENT, MAP_BYTES, AnyMap, TiledMap

# CUtensorMapDataType.
_ELEMENTS = {"u8": 0, "u16": 1, "u32": 2, "u64": 4, "f16": 6, "f32": 7, "f64": 8, "bf16": 9, "tf32": 11}
# CUtensorMapSwizzle by bytes.
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
# Options of all maps: no interleaved layout (CU_TENSOR_MAP_INTERLEAVE_NONE); L2 reads lines of 128 bytes
# (CU_TENSOR_MAP_L2_PROMOTION_L2_128B); elements outside the array are zeros (CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE).
_INTERLEAVE, _PROMOTION, _FILL = 0, 2, 0

# Drivers up to this version set a bit in the maps of tensors below this size, with which a copy reads outside the
# tensor; without the bit it reads as it does for larger ones.
_FAULTY_DRIVER, _SMALL_BYTES, _FAULTY_BIT = 13010, 128 << 10, 1 << 21
_SECOND_WORD = struct.Struct("<Q")

# Number of encoded maps in memory; encoding takes microseconds.
MAPS_KEPT = 256


@cache
def _driver_version() -> int:
    version = ctypes.c_int()
    if status := library().cuDriverGetVersion(ctypes.byref(version)):
        raise CudaError(f"the CUDA driver does not say its version: error {status}")
    return version.value


@lru_cache(maxsize=MAPS_KEPT)
def encoded(array: AnyMap) -> bytes:
    """Encode a map; ``CudaError`` if the driver refuses it."""
    room = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)  # the driver needs it aligned
    start = -ctypes.addressof(room) % MAP_ALIGNMENT
    if isinstance(array, TiledMap):
        function, middle = library().cuTensorMapEncodeTiled, [_numbers(ctypes.c_uint, array.box)]
    else:
        function = library().cuTensorMapEncodeIm2col
        middle = [_numbers(ctypes.c_int, array.lower), _numbers(ctypes.c_int, array.upper)]
        middle += [ctypes.c_uint(array.channels), ctypes.c_uint(array.pixels)]
    status = function(
        ctypes.c_void_p(ctypes.addressof(room) + start), _ELEMENTS[array.element], len(array.sizes),
        ctypes.c_void_p(array.address), _numbers(ctypes.c_ulonglong, array.sizes),
        _numbers(ctypes.c_ulonglong, array.strides), *middle, _numbers(ctypes.c_uint, array.steps), _INTERLEAVE,
        _SWIZZLES[array.swizzle], _PROMOTION, _FILL,
    )  # fmt: skip
    if status:
        raise CudaError(f"the CUDA driver encodes no map of {array}: error {status}")
    return without_fault(room.raw[start : start + MAP_BYTES], array.span, _driver_version())


def without_fault(content: bytes, nbytes: int, driver: int) -> bytes:
    """Correct an encoded map of a tensor of `nbytes` bytes for a bug of older drivers."""
    if driver > _FAULTY_DRIVER or nbytes >= _SMALL_BYTES:
        return content
    (word,) = _SECOND_WORD.unpack_from(content, 8)
    return content[:8] + _SECOND_WORD.pack(word & ~_FAULTY_BIT) + content[16:]


def _numbers(kind: Any, values: Sequence[int]) -> Any:
    return (kind * max(len(values), 1))(*values)
