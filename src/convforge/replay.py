"""Calls on a GPU's arrays made again in a few microseconds: the same launches, with the addresses of other arrays.

The first call of a kind goes the whole way: arguments are checked, a plan is found, structs are filled. What it
launches is noted. All that a plan derives of its arrays, but for where they lie, follows from their shapes, strides and
types, and from the last bits of their addresses, which decide what is aligned. So a call with the same of all these,
and the same options, launches the same kernels with the same structs, but for the pointers in them, which are told by
their type.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from convforge.arrays import Home, Seen, address, span
from convforge.backends.maps import MAP_BYTES
from convforge.backends.runtime import Runtime
from convforge.backends.streams import CallerStream, Tape
from convforge.libraries import Library, replaying

# Kinds of calls that are kept; plans, kernels and a few hundred bytes each.
CALLS_KEPT = 1024

# What addresses are alike in where calls are: more than any kernel's loads, or a box's, are aligned to.
ALIGNMENT = 256

_POINTER = struct.Struct("P")
_WIDE = (ctypes.c_longlong, ctypes.c_ulonglong)
_NUMBERS = (ctypes.c_int, ctypes.c_uint, *_WIDE, ctypes.c_float, ctypes.c_double)


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch made again: the struct as it was, and where pointers stand in it.

    Attributes
    ----------
    pointers : tuple of (int, int, int)
        Place in the struct; which array it points into; how far.
    map_at : callable or None
        Encodes the map of x with which the struct begins, for an address of x.
    """

    run: Callable[[Any, int], None]
    copy: Callable[[Any], Any]
    template: Any
    pointers: tuple[tuple[int, int, int], ...]
    map_at: Callable[[int], bytes] | None


@dataclass(frozen=True, slots=True)
class Ready:
    """A call that can be made again on other arrays of the same kind.

    Attributes
    ----------
    shape, dtype, device
        Of the result.
    takes : tuple of int
        Bytes of memory that the call needs meanwhile.
    held : object
        What else the launches read: the weights of a Filter. They were prepared for one stream.
    stream : int or None
        Its handle.
    """

    library: Library
    runtime: Runtime
    shape: tuple[int, ...]
    dtype: str
    device: str
    takes: tuple[int, ...]
    launches: tuple[_Launch, ...]
    held: Any
    stream: int | None

    def __call__(self, *inputs: Any) -> Any:
        """The result for these inputs; None where memory lies otherwise than it did, or the stream is another."""
        if not self.runtime.is_current():
            with self.runtime.current():
                return self._run(inputs)
        return self._run(inputs)

    def _run(self, inputs: tuple[Any, ...]) -> Any:
        library = self.library
        stream = library.handle(self.device)
        if self.stream is not None and self.stream != stream:
            return None
        out = library.empty(self.shape, self.dtype, self.device)
        places = [library.address(array) for array in (out, *inputs)]
        ours = places[0]
        if self.takes:
            # In use until the launches stand in the stream.
            memory = [library.take(nbytes, self.device) for nbytes in self.takes]
            for place, _ in memory:
                places.append(place)
                ours |= place
        if ours % ALIGNMENT:
            return None
        for launch in self.launches:
            args = launch.copy(launch.template)
            if launch.map_at is not None:
                ctypes.memmove(ctypes.addressof(args), launch.map_at(places[1]), MAP_BYTES)
            for at, which, delta in launch.pointers:
                _POINTER.pack_into(args, at, places[which] + delta)
            launch.run(args, stream)
        return out


class Calls:
    """The calls of one function that can be made again. Safe from many threads."""

    def __init__(self) -> None:
        self._ready: dict[Any, Ready] = {}

    def again(self, inputs: tuple[Any, ...], options: tuple[Any, ...]) -> tuple[Any, Any]:
        """The result, or None where such a call has not been made; and the key under which to keep it, or None."""
        kind: Any = type(inputs[0])
        library = replaying(kind)
        if library is None:
            return None, None
        given = inputs if inputs[-1] is not None else inputs[:-1]
        signatures = []
        for array in given:
            other: Any = type(array)
            if other is not kind and replaying(other) is not library:
                return None, None
            signatures.append(library.signature(array))
        if None in signatures:
            return None, None
        key = (*options, *signatures)
        try:
            ready = self._ready.get(key)
        except TypeError:  # an option without a hash, such as a list
            return None, None
        return None if ready is None else ready(*given), key

    def keeper(self, key: Any, whole: bool, stream: CallerStream | None) -> Callable[[Ready], None] | None:
        """What keeps a call under a key; None where it has none, or was not made on its `whole` arguments as given.

        Nothing is kept of a call that a graph captures: it may not measure, and the next one may.
        """
        if key is None or not whole or stream is None or stream.capturing:
            return None

        def keep(ready: Ready) -> None:
            if len(self._ready) >= CALLS_KEPT:
                self._ready.clear()
            self._ready[key] = ready

        return keep

    def clear(self) -> None:
        """Forget all calls."""
        self._ready.clear()


def replay(
    home: Home, runtime: Runtime, tape: Tape, inputs: Sequence[Seen], out: Seen, dtype: str, held: Sequence[Seen] = ()
) -> Ready | None:
    """A call made ready to be made again; None where it did more than launch kernels, or its structs do not tell.

    Parameters
    ----------
    held : sequence of array
        What the launches read beside the inputs, the same each time: prepared for the tape's stream.
    """
    if not tape.launches or not tape.launches_alone:
        return None
    if any(place % ALIGNMENT for place in (address(out), *(place for place, _ in tape.taken))):
        return None
    pieces = [(address(array), *span(array)) for array in (out, *inputs)]
    pieces += [(at, at, at + nbytes) for at, nbytes in tape.taken]
    moving = len(pieces)
    pieces += [(address(array), *span(array)) for array in held]
    launches = []
    for kernel, info, args, map_at in tape.launches:
        pointers = _pointers(args, pieces, 0 if map_at is None else MAP_BYTES)
        if pointers is None:
            return None
        moved = tuple(pointer for pointer in pointers if pointer[1] < moving)
        launches.append(_Launch(runtime.launcher(kernel, info), type(args).from_buffer_copy, args, moved, map_at))
    takes = tuple(nbytes for _, nbytes in tape.taken)
    stream = tape.handle if held else None
    return Ready(home.library, runtime, out.shape, dtype, home.device, takes, tuple(launches), tuple(held), stream)


def _pointers(args: Any, pieces: Sequence[tuple[int, int, int]], begin: int) -> tuple[tuple[int, int, int], ...] | None:
    """Where pointers stand in a struct from a place on, and what they point into; None where that is not certain."""
    found = []
    for at, kind, value in _fields(type(args), args):
        if at < begin:
            continue
        if kind not in _NUMBERS and kind is not ctypes.c_void_p:
            return None  # such as the map of a box, in which an address is encoded
        inside = [i for i, (_, low, high) in enumerate(pieces) if value is not None and low <= value < high]
        if kind is ctypes.c_void_p:
            if value is not None and len(inside) != 1:
                return None
            found += [(at, i, value - pieces[i][0]) for i in inside]
        elif inside and kind in _WIDE:
            return None  # a number that could be an address
    return tuple(found)


def _fields(kind: Any, value: Any, start: int = 0) -> Iterator[tuple[int, Any, Any]]:
    """Place, type and value of every field, those of inner structs and arrays of numbers included."""
    for name, inner, *_ in kind._fields_:
        if name.startswith("_"):  # padding
            continue
        at, held = start + getattr(kind, name).offset, getattr(value, name)
        if issubclass(inner, ctypes.Structure):
            yield from _fields(inner, held, at)
        elif issubclass(inner, ctypes.Array) and inner._type_ in _NUMBERS:
            size = ctypes.sizeof(inner._type_)
            yield from ((at + i * size, inner._type_, number) for i, number in enumerate(held))
        else:
            yield at, inner, held
