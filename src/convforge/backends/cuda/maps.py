"""Maps for the tensor memory accelerator, encoded by the driver."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from convforge.backends.cuda.driver import CudaError
from convforge.backends.maps import MAP_BYTES, BoxMap

# CUtensorMapDataType of unsigned integers by bytes: bits are copied as they are, and what is not there is zero.
_TYPES = {1: 0, 2: 1, 4: 2, 8: 4}
# CU_TENSOR_MAP_L2_PROMOTION_L2_128B: the second level cache reads lines of 128 bytes.
_PROMOTION = 2
# What the driver writes to must be a multiple of this, which the objects of cuda.bindings are not.
_ALIGNMENT = 64


@cache
def _driver() -> Any:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def encoded(box_map: BoxMap) -> bytes:
    """The bytes that a kernel is handed.

    Raises
    ------
    CudaError
        The driver refuses the map.
    """
    room = ctypes.create_string_buffer(MAP_BYTES + _ALIGNMENT)
    start = -ctypes.addressof(room) % _ALIGNMENT
    sizes = (ctypes.c_ulonglong * 3)(*box_map.sizes)
    strides = (ctypes.c_ulonglong * 2)(*box_map.strides)
    box, step = (ctypes.c_uint * 3)(*box_map.box), (ctypes.c_uint * 3)(1, 1, 1)
    status = _driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(ctypes.addressof(room) + start), _TYPES[box_map.unit], 3, ctypes.c_void_p(box_map.address),
        sizes, strides, box, step, 0, 0, _PROMOTION, 0,
    )  # fmt: skip
    if status:
        raise CudaError(f"the CUDA driver encodes no map of {box_map}: error {status}")
    return room.raw[start : start + MAP_BYTES]
