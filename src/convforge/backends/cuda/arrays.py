"""Arrays in a GPU's memory: shape, strides and type as NumPy has them, over an address that the host never reads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Address:
    """A device address in the form of NumPy's array interface."""

    def __init__(
        self, address: int, owner: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None = None,
        typestr: str = "|u1",
    ) -> None:  # fmt: skip
        self.owner = owner  # the memory lives as long as what NumPy makes of this
        self.__array_interface__ = {
            "version": 3, "shape": shape, "strides": strides, "typestr": typestr, "data": (address, False)
        }  # fmt: skip


def _seen(
    address: int, owner: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """NumPy's array over a device address."""
    own = dtype.isbuiltin == 1  # the array interface has no word for types of other makers
    seen = np.asarray(_Address(address, owner, shape, strides, dtype.str if own else f"|V{dtype.itemsize}"))
    return seen if own else seen.view(dtype)


class DeviceArray:
    """A strided array in device memory.

    It is seen through a NumPy array at the device's address. NumPy works out slices, transposes and other views from
    shape and strides alone; that array's elements are never touched, and it is never handed out.

    Parameters
    ----------
    seen : array
        At the device's address.
    owner : object
        What keeps the memory alive.

    Attributes
    ----------
    address : int
        Of the first element, on the device.
    shape, strides, dtype, ndim, size, itemsize, nbytes
        As NumPy's; strides in bytes.
    """

    __slots__ = ("_described", "address", "dtype", "itemsize", "nbytes", "ndim", "owner", "shape", "size", "strides")

    def __init__(self, seen: NDArray[Any], owner: Any) -> None:
        self._described: NDArray[Any] | None = seen
        self.owner = owner
        self.address: int = seen.__array_interface__["data"][0]
        self.shape, self.strides, self.dtype = seen.shape, seen.strides, seen.dtype
        self.ndim, self.size, self.itemsize, self.nbytes = seen.ndim, seen.size, seen.itemsize, seen.nbytes

    @classmethod
    def at(cls, address: int, nbytes: int, owner: Any) -> DeviceArray:
        """`nbytes` bytes at a device address."""
        seen = np.asarray(_Address(address, owner, (nbytes,))) if nbytes else np.empty(0, np.uint8)
        return cls(seen, owner)

    @classmethod
    def over(
        cls, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: np.dtype[Any], owner: Any
    ) -> DeviceArray:
        """Another library's array, where it lies; strides in bytes, None where it is contiguous."""
        if 0 in shape or strides is None:
            return cls(np.empty(shape, dtype) if 0 in shape else _seen(address, owner, shape, strides, dtype), owner)
        made = cls.__new__(cls)  # most are only read through a few attributes
        made._described, made.owner, made.address = None, owner, address
        made.shape, made.strides, made.dtype = shape, strides, dtype
        made.ndim, made.size, made.itemsize = len(shape), math.prod(shape), dtype.itemsize
        made.nbytes = made.size * made.itemsize
        return made

    @property
    def described(self) -> NDArray[Any]:
        """Shape, strides, type and address as a NumPy array, whose elements must not be touched."""
        if self._described is None:
            self._described = _seen(self.address, self.owner, self.shape, self.strides, self.dtype)
        return self._described

    @property
    def is_contiguous(self) -> bool:
        """True if the elements are contiguous in C order."""
        return self.described.flags.c_contiguous

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": self.shape, "typestr": self.dtype.str, "strides": self.strides,
                "data": (self.address if self.size else 0, False), "stream": None}  # fmt: skip

    def __getitem__(self, index: Any) -> DeviceArray:
        """A view; an index that would copy is refused."""
        return self._view(self.described[index])

    def transpose(self, *axes: int) -> DeviceArray:
        """A view with the axes in this order."""
        return self._view(self.described.transpose(*axes))

    def reshape(self, *shape: Any) -> DeviceArray:
        """A view of a contiguous array in another shape; ValueError where the array has gaps, as that takes a copy."""
        if not self.is_contiguous:
            raise ValueError(f"an array of shape {self.shape} and strides {self.strides} bytes must be copied first")
        return self._view(self.described.reshape(*shape))

    def view(self, dtype: Any) -> DeviceArray:
        """The same bytes as another type."""
        return self._view(self.described.view(dtype))

    def _view(self, seen: NDArray[Any]) -> DeviceArray:
        return DeviceArray(seen, self.owner)

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, address={self.address:#x})"


def address(array: NDArray[Any] | DeviceArray) -> int:
    """Address of an array's first element."""
    return array.address if isinstance(array, DeviceArray) else int(array.__array_interface__["data"][0])
