"""Calls made again in a few microseconds: on a GPU the same launches with other addresses, on the CPU the same plan.

The first call of a kind goes the whole way: arguments are checked, a plan is found, structs are filled. What it
launches is noted. All that a plan derives of its arrays, but for where they lie, follows from their shapes, strides and
types, and from the last bits of their addresses, which decide what is aligned. So a call with the same of all these,
and the same options, launches the same kernels with the same structs, but for the addresses in them and in the maps of
arrays. Where these stand the type of a struct declares (:mod:`convforge.backends.structs`). On the CPU the plan looks
at its arrays anew, and is all that is kept.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from convforge.arrays import Home, Seen, address, overlap, repeats, span
from convforge.backends.maps import MAP_BYTES, AnyMap
from convforge.backends.runtime import Runtime
from convforge.backends.streams import CallerStream, Tape
from convforge.backends.structs import address_places
from convforge.libraries import Library, replaying

# Kinds of calls that are kept; plans, kernels and a few hundred bytes each.
CALLS_KEPT = 1024

# What addresses are alike in where calls are: more than any kernel's loads, or a box's, are aligned to.
ALIGNMENT = 256

# Addresses for which a launch's maps are kept encoded.
MAPS_KEPT = 64

_POINTER = struct.Struct("P")


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch made again: the struct as it was, and where addresses and maps stand in it.

    Attributes
    ----------
    pointers : tuple of (int, int, int)
        Place in the struct; which array it points into; how far.
    maps : tuple of (int, int, int, callable)
        The same of a map, and what encodes it for an address.
    """

    run: Callable[[Any, int], None]
    copy: Callable[[Any], Any]
    template: Any
    pointers: tuple[tuple[int, int, int], ...]
    maps: tuple[tuple[int, int, int, Callable[[int], bytes]], ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """A call that can be made again on other arrays of the same kind.

    Attributes
    ----------
    shape, dtype, device
        Of the result.
    spans : tuple of (int, int)
        First byte and the one behind the last, from where an array begins: of the result and of each input.
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
    spans: tuple[tuple[int, int], ...]
    takes: tuple[int, ...]
    launches: tuple[_Launch, ...]
    held: Any
    stream: int | None

    def __call__(self, inputs: tuple[Any, ...], out: Any) -> Any:
        """The result for these inputs, in `out` where that is an array.

        None where memory lies otherwise than it did, the stream is another, or `out` overlaps an input.
        """
        if not self.runtime.is_current():
            with self.runtime.current():
                return self._run(inputs, out)
        return self._run(inputs, out)

    def _run(self, inputs: tuple[Any, ...], out: Any) -> Any:
        library = self.library
        stream = library.handle(self.device)
        if self.stream is not None and self.stream != stream:
            return None
        if out is None:
            out = library.empty(self.shape, self.dtype, self.device)
            places = [library.address(array) for array in (out, *inputs)]
            ours = places[0]
        else:
            places = [library.address(array) for array in (out, *inputs)]
            ours = 0
            if self._overlapping(places):
                return None
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
            for at, which, delta in launch.pointers:
                _POINTER.pack_into(args, at, places[which] + delta)
            for at, which, delta, encoded in launch.maps:
                ctypes.memmove(ctypes.addressof(args) + at, encoded(places[which] + delta), MAP_BYTES)
            launch.run(args, stream)
        return out

    def _overlapping(self, places: Sequence[int]) -> bool:
        """Whether the first array, which is written to, may share memory with one of the others."""
        (low, high), *spans = self.spans
        low, high = places[0] + low, places[0] + high
        return any(at + first < high and low < at + last
                   for at, (first, last) in zip(places[1:], spans, strict=True))  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostReady:
    """A call on arrays of the host that can be made again on others of the same shapes and types.

    Attributes
    ----------
    shape, dtype
        Of the result.
    compute : callable
        The inputs and the output as plans see them: runs the plan.
    """

    library: Library
    shape: tuple[int, ...]
    dtype: str
    compute: Callable[[tuple[Any, ...], Any], None]

    def __call__(self, inputs: tuple[Any, ...], out: Any) -> Any:
        """The result for these inputs, in `out` where that is an array; None where it cannot be written to as it is."""
        library = self.library
        seen = tuple([library.seen(array) for array in inputs])
        if out is None:
            out = library.empty(self.shape, self.dtype, "cpu")
            target = library.seen(out)
        else:
            target = library.seen(out, written=True)
            if not target.flags.writeable or repeats(target) or any(overlap(target, array) for array in seen):
                return None
        self.compute(seen, target)
        return out


@dataclass(frozen=True, slots=True)
class Kept:
    """A call that can be made again for as long as nothing more is measured of problems like its own.

    Attributes
    ----------
    about : str
        The tuning key of these problems.
    generation : int
        That of what was measured of them when the call's plan was chosen.
    """

    ready: Ready | HostReady
    about: str
    generation: int


def kinds(*options: Any) -> tuple[Any, ...]:
    """Types of options, those inside of tuples too: True and 1.0 equal 1, and are refused where 1 is taken.

    Examples
    --------
    >>> kinds(1, (1.0, True))
    (<class 'int'>, (<class 'float'>, <class 'bool'>))
    """
    found = tuple(map(type, options))
    if tuple not in found:
        return found
    return tuple([kinds(*option) if type(option) is tuple else type(option) for option in options])


class Calls:
    """The calls of one function that can be made again. Safe from many threads.

    Parameters
    ----------
    generation : callable
        Tuning key -> a number that changes when another plan may be chosen for problems that have it.
    """

    def __init__(self, generation: Callable[[str], int]) -> None:
        self._ready: dict[Any, Kept] = {}
        self._generation = generation

    def again(self, inputs: tuple[Any, ...], options: tuple[Any, ...], out: Any = None) -> tuple[Any, Any]:
        """The result, or None where such a call has not been made; and the key under which to keep it, or None.

        Parameters
        ----------
        inputs : tuple of array
            The last may be None.
        out : array or None
            Where the caller wants the result.
        """
        kind: Any = type(inputs[0])
        library = replaying(kind)
        if library is None:
            return None, None
        given = inputs if inputs[-1] is not None else inputs[:-1]
        signatures: list[Any] = []
        for array in given if out is None else (*given, out):
            other: Any = type(array)
            if other is not kind and replaying(other) is not library:
                return None, None
            signature = library.signature(array)
            if signature is None:
                return None, None
            signatures.append(signature)
        key = (*options, out is None, *signatures)
        try:
            kept = self._ready.get(key)
        except TypeError:  # an option without a hash, such as a list
            return None, None
        if kept is None or self._generation(kept.about) != kept.generation:
            return None, key
        return kept.ready(given, out), key

    def keeper(
        self, key: Any, whole: bool, stream: CallerStream | None, about: str
    ) -> Callable[[Ready | HostReady], None] | None:
        """What keeps a call under a key; None where it has none, or was not made on its `whole` arguments as given.

        Asked for before a plan is found: what is measured meanwhile makes the call one that is not made again.
        Nothing is kept of a call that a graph captures: it may not measure, and the next one may.
        """
        if key is None or not whole or (stream is not None and stream.capturing):
            return None
        generation = self._generation(about)

        def keep(ready: Ready | HostReady) -> None:
            if len(self._ready) >= CALLS_KEPT:
                self._ready.clear()
            self._ready[key] = Kept(ready, about, generation)

        return keep

    def clear(self) -> None:
        """Forget all calls."""
        self._ready.clear()


def replay(
    home: Home, runtime: Runtime, tape: Tape, inputs: Sequence[Seen], out: Seen, dtype: str, held: Sequence[Seen] = (),
    *, given: bool = False,
) -> Ready | None:  # fmt: skip
    """A call made ready to be made again; None where it did more than launch kernels, or arrays share memory.

    Parameters
    ----------
    given : bool
        `out` is an array of the caller's, whose address is like those of the calls to come.
    held : sequence of array
        What the launches read beside the inputs, the same each time: prepared for the tape's stream.
    """
    if not tape.launches or not tape.launches_alone:
        return None
    taken = [place for place, _ in tape.taken]
    if any(place % ALIGNMENT for place in (0 if given else address(out), *taken)):
        return None
    pieces = [(address(array), *span(array)) for array in (out, *inputs)]
    pieces += [(at, at, at + nbytes) for at, nbytes in tape.taken]
    spans = tuple([(low - at, high - at) for at, low, high in pieces[: 1 + len(inputs)]])
    moving = len(pieces)
    pieces += [(address(array), *span(array)) for array in held]
    launches = [again for launch in tape.launches if (again := _again(runtime, launch, pieces, moving)) is not None]
    if len(launches) < len(tape.launches):
        return None
    takes = tuple([nbytes for _, nbytes in tape.taken])
    stream = tape.handle if held else None
    return Ready(
        home.library, runtime, out.shape, dtype, home.device, spans, takes, tuple(launches), tuple(held), stream
    )  # fmt: skip


def _again(
    runtime: Runtime, launch: tuple[Any, Any, Any, Any], pieces: Sequence[tuple[int, int, int]], moving: int
) -> _Launch | None:
    """A launch as it is made again; None where an address is in none of the pieces of memory, or in several.

    Parameters
    ----------
    moving : int
        The first so many pieces lie elsewhere in another call.
    """
    kernel, info, args, seen = launch
    pointers, maps = [], []
    kind: Any = type(args)
    for at in address_places(kind):
        (where,) = _POINTER.unpack_from(args, at)
        if not where:
            continue
        if (found := _piece(where, pieces)) is None:
            return None
        pointers.append((at, *found))
    for at, one in seen.items():
        if (found := _piece(one.address, pieces)) is None:
            return None
        maps.append((at, *found, _encoder(runtime, one)))
    return _Launch(
        runtime.launcher(kernel, info), type(args).from_buffer_copy, args,
        tuple([one for one in pointers if one[1] < moving]), tuple([one for one in maps if one[1] < moving]),
    )  # fmt: skip


def _piece(address: int, pieces: Sequence[tuple[int, int, int]]) -> tuple[int, int] | None:
    """Which piece of memory an address points into, and how far; None where that is not certain."""
    inside = [(i, address - start) for i, (start, low, high) in enumerate(pieces) if low <= address < high]
    return inside[0] if len(inside) == 1 else None


def _encoder(runtime: Any, seen: AnyMap) -> Callable[[int], bytes]:
    """What encodes a map for another address."""

    @lru_cache(maxsize=MAPS_KEPT)
    def encoded(address: int) -> bytes:
        return runtime.tensor_map(replace(seen, address=address))  # type: ignore[no-any-return]

    return encoded
