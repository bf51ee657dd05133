"""Kernels' argument structs: offsets of array addresses (``c_void_p``) and tensor maps (:class:`MapField`) in them.

Only these fields contain addresses, so the call cache knows which bytes to write for other arrays.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

from convforge.backends.maps import MAP_ALIGNMENT, MAP_BYTES, AnyMap

_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)

Place = tuple[int, int, int]
MapPlace = tuple[int, int, int, Callable[[int], bytes]]


class MapField(ctypes.Structure):
    """struct TensorMap of tma.cuh: an array's layout, for TMA."""

    _fields_ = (("bytes", ctypes.c_ubyte * MAP_BYTES),)


class WithMaps(ctypes.Structure):
    """A struct with tensor maps."""

    maps: dict[int, AnyMap]  # offset in the struct -> map

    def put_map(self, name: str, tensor_map: AnyMap, encoded: bytes) -> None:
        at = getattr(type(self), name).offset
        ctypes.memmove(ctypes.addressof(self) + at, encoded, MAP_BYTES)
        self.__dict__.setdefault("maps", {})[at] = tensor_map


def struct_with_maps(name: str, fields: Iterable[tuple[str, Any]]) -> type[WithMaps]:
    """Make a struct of these fields; as in C++, offsets of maps and the size are multiples of 64 bytes."""
    padded: list[tuple[str, Any]] = []
    end = 0
    for field, kind in fields:
        if kind is MapField and (gap := -end % MAP_ALIGNMENT):
            padded.append((f"_before_{field}", ctypes.c_ubyte * gap))
        padded.append((field, kind))
        end = getattr(type("Plain", (ctypes.Structure,), {"_fields_": padded}), field).offset + ctypes.sizeof(kind)
    if gap := -end % MAP_ALIGNMENT:
        padded.append(("_padding", ctypes.c_ubyte * gap))
    return type(name, (WithMaps,), {"_fields_": padded})


@cache
def address_places(kind: Any) -> tuple[int, ...]:
    """Return the offsets of array addresses in a struct."""
    return tuple(_places(kind, 0))


class Template:
    """A launch's struct in the call cache: its constant bytes, and the places of the addresses of `count` buffers.

    `pointers` are (offset in the struct, index of the buffer, offset from the buffer's address). `maps` have a fourth
    item: a function that encodes the map for an address. ``write(copy, addresses)`` writes the buffers' addresses into
    a copy of the struct.
    """

    __slots__ = ("_args", "write")

    def __init__(
        self, args: ctypes.Structure, count: int, pointers: Sequence[Place], maps: Sequence[MapPlace] = ()
    ) -> None:
        self._args = args
        self.write = _writer(args, count, sorted(pointers), tuple(maps))

    def copy(self) -> Any:
        return type(self._args).from_buffer_copy(self._args)


def _writer(
    args: ctypes.Structure, count: int, pointers: Sequence[Place], maps: Sequence[MapPlace]
) -> Callable[[Any, Sequence[int]], None]:
    """Return a function that packs all bytes from the first address to the last at once, including constant bytes."""
    content, form, picked = bytes(args), "=", list[int]()
    between: list[bytes] = []
    shifted = [(which, delta) for _, which, delta in pointers if delta]
    behind = count + len(shifted)
    end = first = pointers[0][0] if pointers else 0
    moved = iter(range(count, behind))
    for at, which, delta in pointers:
        if at > end:
            form += f"{at - end}s"
            picked.append(behind + len(between))
            between.append(content[end:at])
        form += "Q"
        picked.append(next(moved) if delta else which)
        end = at + _POINTER_BYTES
    if len(picked) == 1:  # for one item itemgetter makes no tuple
        form, picked = form + "0s", [*picked, behind + len(between)]
        between.append(b"")
    pack, pick = struct.Struct(form).pack_into, itemgetter(*picked) if picked else None

    def write_plain(copy: Any, places: Sequence[int]) -> None:
        pack(copy, first, *pick(places))  # type: ignore[misc]  # there is one

    if pick is not None and not (shifted or between or maps):
        return write_plain

    def write(copy: Any, places: Sequence[int]) -> None:
        if pick is not None:
            far = [places[which] + delta for which, delta in shifted] if shifted else ()
            pack(copy, first, *pick((*places, *far, *between)))
        for at, which, delta, encoded in maps:
            ctypes.memmove(ctypes.addressof(copy) + at, encoded(places[which] + delta), MAP_BYTES)

    return write


def _places(kind: Any, start: int) -> Iterator[int]:
    if kind is ctypes.c_void_p:
        yield start
    elif issubclass(kind, ctypes.Array):
        size = ctypes.sizeof(kind._type_)
        for i in range(kind._length_):
            yield from _places(kind._type_, start + i * size)
    elif issubclass(kind, ctypes.Structure):
        for name, inner, *_ in kind._fields_:
            yield from _places(inner, start + getattr(kind, name).offset)
