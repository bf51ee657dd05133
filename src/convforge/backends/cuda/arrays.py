"""Arrays in GPU memory: NumPy's shape, strides and dtype, at an address that the host never reads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Address:
    """A device address with NumPy's array interface."""

    def __init__(
        self, address: int, owner: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None = None,
        typestr: str = "|u1",
    ) -> None:  # fmt: skip
        self.owner = owner  # NumPy's array keeps this object, and so the memory, alive
        self.__array_interface__ = {
            "version": 3, "shape": shape, "strides": strides, "typestr": typestr, "data": (address, False)
        }  # fmt: skip


def _view_at(
    address: int, owner: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: np.dtype[Any]
) -> NDArray[Any]:
    own = dtype.isbuiltin == 1  # the array interface cannot name dtypes of other packages
    view = np.asarray(_Address(address, owner, shape, strides, dtype.str if own else f"|V{dtype.itemsize}"))
    return view if own else view.view(dtype)


def _gives_view(part: Any) -> bool:
    """True for an integer, a slice, None or an ellipsis; a bool is a mask."""
    return part is None or part is ... or (isinstance(part, int | np.integer | slice) and not isinstance(part, bool))


class DeviceArray:
    """A strided array in device memory. A NumPy array at its address describes it; the host never reads its elements.

    NumPy computes views from shape and strides. Strides are in bytes; `owner` keeps the memory alive.
    """

    __slots__ = ("_described", "address", "dtype", "itemsize", "nbytes", "ndim", "owner", "shape", "size", "strides")

    def __init__(self, described: NDArray[Any], owner: Any) -> None:
        self._described: NDArray[Any] | None = described
        self.owner = owner
        self.address: int = described.__array_interface__["data"][0]
        self.shape, self.strides, self.dtype = described.shape, described.strides, described.dtype
        self.ndim, self.size = described.ndim, described.size
        self.itemsize, self.nbytes = described.itemsize, described.nbytes

    @classmethod
    def at(cls, address: int, nbytes: int, owner: Any) -> DeviceArray:
        """Wrap `nbytes` bytes at a device address as an array of uint8."""
        return cls(np.asarray(_Address(address, owner, (nbytes,))) if nbytes else np.empty(0, np.uint8), owner)

    @classmethod
    def over(
        cls, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: np.dtype[Any], owner: Any
    ) -> DeviceArray:
        """Wrap an array of another library; strides in bytes, None if contiguous."""
        if 0 in shape or strides is None:
            return cls(np.empty(shape, dtype) if 0 in shape else _view_at(address, owner, shape, strides, dtype), owner)
        made = cls.__new__(cls)  # without a NumPy array, because most uses read only a few attributes
        made._described, made.owner, made.address = None, owner, address
        made.shape, made.strides, made.dtype = shape, strides, dtype
        made.ndim, made.size, made.itemsize = len(shape), math.prod(shape), dtype.itemsize
        made.nbytes = made.size * made.itemsize
        return made

    @property
    def described(self) -> NDArray[Any]:
        """A NumPy array with the same shape, strides, dtype and address; the host must not read its elements."""
        if self._described is None:
            self._described = _view_at(self.address, self.owner, self.shape, self.strides, self.dtype)
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
        """Return a view; ``IndexError`` for a mask or a list, with which NumPy would read the device's memory."""
        parts = index if isinstance(index, tuple) else (index,)
        if not all(_gives_view(part) for part in parts):
            raise IndexError(f"an array on a GPU is indexed by integers and slices, not by {index!r}")
        # With an ellipsis, an integer for every axis gives a view too, not a number.
        return DeviceArray(self.described[parts if any(part is ... for part in parts) else (*parts, ...)], self.owner)

    def transpose(self, *axes: int) -> DeviceArray:
        return DeviceArray(self.described.transpose(*axes), self.owner)

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return a view of a contiguous array in another shape; ``ValueError`` if the array is not contiguous."""
        if not self.is_contiguous:
            raise ValueError(f"an array of shape {self.shape} and strides {self.strides} bytes must be copied first")
        return DeviceArray(self.described.reshape(*shape), self.owner)

    def view(self, dtype: Any) -> DeviceArray:
        """Return a view of the same bytes as another dtype."""
        return DeviceArray(self.described.view(dtype), self.owner)

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, address={self.address:#x})"


def address(array: NDArray[Any] | DeviceArray) -> int:
    return array.address if isinstance(array, DeviceArray) else int(array.__array_interface__["data"][0])
