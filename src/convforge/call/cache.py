"""Calls made again in a few microseconds: on a GPU the same launches with other addresses, on the CPU the same plan.

The first call of a kind goes the whole way: arguments are checked, and a plan is found. All that its launches derive of
the call's buffers, but for where they begin, follows from their shapes, strides and types, and from the last bits of
their addresses, which decide what is aligned. So each launch's struct is filled once for stand-ins: arrays like the
call's own at made-up addresses, far apart. The struct's type says where addresses are in it
(:mod:`convforge.backends.structs`), and each then names the buffer that it points into, also where the caller's own
arrays share memory. The first call on a GPU is made of these launches too. A call whose plan does more than launch
kernels goes the whole way every time. On the CPU the plan looks at its arrays anew, and is all that is kept.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from convforge.algorithms.contract import Buffers, Launch, Plan, PreparedFilter, Step
from convforge.backends.cuda.arrays import DeviceArray
from convforge.backends.maps import MAP_BYTES, AnyMap
from convforge.backends.streams import CallerStream
from convforge.backends.structs import Template, address_places
from convforge.call.arrays import Home, Seen, address, overlap, repeats, span
from convforge.call.libraries import replaying
from convforge.call.libraries.contract import Library

# Kinds of calls that are kept; plans, kernels and a few hundred bytes each.
CALLS_KEPT = 1024

# What addresses are alike in where calls are: more than any kernel's loads, or a box's, are aligned to.
ALIGNMENT = 256

# Addresses for which a launch's maps are kept encoded.
MAPS_KEPT = 64

# Bytes between stand-ins: each may reach half as far to either side.
APART = 1 << 41


_POINTER = struct.Struct("P")


@dataclass(frozen=True, slots=True)
class Ready:
    """A call on a GPU's arrays that can be made again on others of the same kind.

    Attributes
    ----------
    runtime : runtime of the device
    make, address : callable
        A new result; where an array lies.
    take : callable
        Bytes -> memory of the library for the current stream: its address, and what keeps it.
    handle : callable
        Gives the handle of the library's current stream.
    spans : tuple of (int, int)
        Of each input and the result the first byte and the one behind the last, from where the array begins.
    takes : tuple of int
        Bytes of memory that the call needs meanwhile.
    launches : tuple of callable
        Each is handed the addresses of all these, in this order, and the stream.
    held : object
        What else the launches read: the weights of a Filter. They were prepared for one stream.
    stream : int or None
        Its handle.
    """

    runtime: Any
    make: Callable[[], Any]
    address: Callable[[Any], int]
    take: Callable[[int], tuple[int, Any]]
    handle: Callable[[], int]
    spans: tuple[tuple[int, int], ...]
    takes: tuple[int, ...]
    launches: tuple[Callable[[Sequence[int], int], None], ...]
    held: Any
    stream: int | None

    def __call__(self, inputs: tuple[Any, ...], places: list[int], out: Any) -> Any:
        """The result for the inputs at these addresses, in `out` where that is an array, whose address is the last.

        None where memory lies otherwise than it did, the stream is another, or `out` overlaps an input.
        """
        if out is not None and self._overlapping(places):
            return None
        if self.runtime.is_current():
            return self.run(places, out)
        with self.runtime.current():
            return self.run(places, out)

    def run(self, places: list[int], out: Any) -> Any:
        """The same on the GPU that is the thread's own, where `out` overlaps nothing."""
        stream = self.handle()
        if self.stream is not None and self.stream != stream:
            return None
        if out is None:
            out = self.make()
            place = self.address(out)
            if place % ALIGNMENT:
                return None
            places.append(place)
        if self.takes:
            memory = [self.take(nbytes) for nbytes in self.takes]  # in use until the launches are on the stream
            places = places + [place for place, _ in memory]
            if any(place % ALIGNMENT for place in places[-len(memory) :]):
                return None
        for launch in self.launches:
            launch(places, stream)
        return out

    def _overlapping(self, places: Sequence[int]) -> bool:
        """True if the output, the last array, may share memory with another one."""
        *spans, (low, high) = self.spans
        low, high = places[-1] + low, places[-1] + high
        return any(at + first < high and low < at + last
                   for at, (first, last) in zip(places[:-1], spans, strict=True))  # fmt: skip


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

    def __call__(self, inputs: tuple[Any, ...], places: list[int], out: Any) -> Any:
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


@dataclass(slots=True)
class Kept:
    """A call that can be made again for as long as nothing more is measured of problems like its own.

    Attributes
    ----------
    about : str
        The tuning key of these problems.
    generation : int
        That of what was measured of them when the call's plan was chosen.
    alike : callable or None
        The arrays of a call like this one -> their addresses; None for others.
    """

    ready: Ready | HostReady
    about: str
    generation: int
    alike: Callable[..., list[int] | None] | None = None


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
        # By a call's options, then by all that its arrays are; and by the identity of its weights the call that was
        # made last with them: to compare its arrays is quicker than to look up what they are.
        self._kept: dict[Any, dict[Any, Kept]] = {}
        self._count = 0
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
        given = inputs if inputs[-1] is not None else inputs[:-1]
        arrays = given if out is None else (*given, out)
        kind, weights = (options, out is None, len(given)), id(given[1]) if len(given) > 1 else None
        try:
            calls = self._kept.get(kind)
        except TypeError:  # an option without a hash, such as a list
            return None, None
        last = None if calls is None else calls.get(weights)
        if last is not None and last.alike is not None and (places := last.alike(*arrays)) is not None:
            result = last.ready(given, places, out) if self._generation(last.about) == last.generation else None
            if result is not None:
                return result, None
        of: Any = type(given[0])
        library = replaying(of)
        if library is None or (signed := library.signed(arrays)) is None:
            return None, None
        found, places = signed
        key = (kind, tuple(found))
        kept = None if calls is None else calls.get(key[1])
        if kept is None or self._generation(kept.about) != kept.generation:
            return None, key
        if places and kept.alike is None:
            kept.alike = library.alike(arrays)
        if kept.alike is not None:
            self._keep(kind, weights, kept)
        return kept.ready(given, places, out), key

    def keeper(
        self, key: Any, whole: bool, stream: CallerStream | None, about: str
    ) -> Callable[[Ready | HostReady], None] | None:
        """Find the cached call of a key; None where there is none, or it did not use its `whole` arguments directly.

        Asked for before a plan is found: what is measured meanwhile makes the call one that is not made again.
        Nothing is kept of a call that a graph captures: it may not measure, and the next one may.
        """
        if key is None or not whole or (stream is not None and stream.capturing):
            return None
        generation = self._generation(about)

        return lambda ready: self._keep(key[0], key[1], Kept(ready, about, generation))

    def __len__(self) -> int:
        return sum(type(by) is tuple for calls in self._kept.values() for by in calls)

    def _keep(self, kind: Any, by: Any, kept: Kept) -> None:
        if self._count >= CALLS_KEPT:
            self.clear()
        calls = self._kept.setdefault(kind, {})
        self._count += by not in calls
        calls[by] = kept

    def clear(self) -> None:
        """Forget all calls."""
        self._kept.clear()
        self._count = 0


def ready_for(
    plan: Plan, home: Home, moving: Mapping[str, Seen], out: Seen, prepared: PreparedFilter | None, fixed: Buffers,
    stream: CallerStream, *, shape: tuple[int, ...], given: bool,
) -> Ready | None:  # fmt: skip
    """A call of a plan, ready to be made on arrays like these; None where it does more than launch kernels.

    Parameters
    ----------
    moving : mapping of str to array
        Inputs that are others in another call, by their names in the problem; the weights as users give them.
    prepared, fixed
        The weights, prepared for the stream, and further inputs, where they are the same in every call.
    shape : tuple of int
        Of the result as the caller gets it.
    given : bool
        `out` is an array of the caller's.
    """
    stand_ins = _StandIns()
    buffers: dict[str, Any] = {name: stand_ins.like(array) for name, array in moving.items()}
    buffers[plan.result] = stand_ins.like(out, given)
    if plan.workspace_bytes:
        buffers["workspace"] = stand_ins.taken((plan.workspace_bytes,), "uint8")
    filled: list[tuple[Launch, Any]] | None = []
    if prepared is not None:
        buffers |= {name: stand_ins.held(array) for name, array in fixed.items()}
        tensors = {name: stand_ins.held(tensor) for name, tensor in prepared.tensors.items()}
        buffers[plan.weights] = PreparedFilter(tensors, prepared.nbytes)
    elif plan.weights:
        if (preparation := plan.preparation) is None:
            return None
        own = {"given": buffers[plan.weights]}
        preparation = preparation.of(own["given"])
        for name, (sizes, dtype) in preparation.pieces.items():
            own[name] = stand_ins.taken(sizes, dtype)
        filled = _filled(preparation.steps, own)
        buffers[plan.weights] = preparation.finish(own, None)
    steps = _filled(plan.steps, buffers)
    if filled is None or not steps:
        return None
    launches = []
    for step, args in (*filled, *steps):
        if (template := stand_ins.template(args, plan.runtime)) is None:
            return None
        launches.append(step.runtime.again(step.kernel, step.info, template))  # type: ignore[attr-defined]  # a GPU's
    library, held = home.library, tuple(stand_ins.fixed.values())
    spans = [(low - address(array), high - address(array)) for array in (*moving.values(), out)
             for low, high in (span(array),)] if given else []  # fmt: skip
    return Ready(
        plan.runtime, library.maker(shape, plan.problem.out_dtype, home.device), library.address,
        partial(library.take, device=home.device), library.handles(home.device), tuple(spans),
        tuple(stand_ins.takes), tuple(launches), held, stream.handle if held else None,
    )  # fmt: skip


class _StandIns:
    """Arrays like those of a call at made-up addresses, each in a stretch of memory of its own.

    A stand-in's number is that of its address among those of a call.

    Attributes
    ----------
    takes : list of int
        Bytes of those that stand for memory which a call takes meanwhile.
    fixed : dict of int to array
        The arrays that are the same in every call, by the numbers of their stand-ins; they come last.
    """

    def __init__(self) -> None:
        self._places: list[int] = []
        self.takes: list[int] = []
        self.fixed: dict[int, Any] = {}

    def like(self, array: Seen, exactly: bool = True) -> DeviceArray:
        """For an array; `exactly` where the last bits of its address count, else it begins as new memory does."""
        place = (len(self._places) + 1) * APART + (address(array) % ALIGNMENT if exactly else 0)
        self._places.append(place)
        return DeviceArray.over(place, array.shape, array.strides, array.dtype, None)

    def taken(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """For new memory."""
        self._places.append((len(self._places) + 1) * APART)
        made = DeviceArray.over(self._places[-1], shape, None, np.dtype(dtype), None)
        self.takes.append(made.nbytes)
        return made

    def held(self, value: Any) -> Any:
        """For an array that is the same in every call; what is no array stands for itself."""
        if not hasattr(value, "strides"):
            return value
        self.fixed[len(self._places)] = value
        return self.like(value)

    def template(self, args: Any, runtime: Any) -> Template | None:
        """A struct that was filled for stand-ins, ready for others; None where an address in it is that of none."""
        kind: Any = type(args)
        pointers, maps, places = [], [], self._places
        for at in address_places(kind):
            (place,) = _POINTER.unpack_from(args, at)
            if not place:
                continue
            which = (place + APART // 2) // APART - 1
            if not 0 <= which < len(places):
                return None
            if which in self.fixed:
                _POINTER.pack_into(args, at, address(self.fixed[which]) + place - places[which])
            else:
                pointers.append((at, which, place - places[which]))
        for at, seen in getattr(args, "seen", {}).items():
            which = (seen.address + APART // 2) // APART - 1
            if not 0 <= which < len(places):
                return None
            behind, encoded = seen.address - places[which], _encoder(runtime, seen)
            if which in self.fixed:
                ctypes.memmove(ctypes.addressof(args) + at, encoded(address(self.fixed[which]) + behind), MAP_BYTES)
            else:
                maps.append((at, which, behind, encoded))
        return Template(args, len(places) - len(self.fixed), pointers, maps)


def _filled(steps: Iterable[Step], buffers: Buffers) -> list[tuple[Launch, Any]] | None:
    """The launches that steps make on these buffers, each with its struct; None where a step is more than a launch."""
    found: list[tuple[Launch, Any]] = []
    for step in steps:
        if not isinstance(step, Launch):
            return None
        if 0 in step.info.grid:
            continue
        if (args := step.fill(buffers)) is not None:
            found.append((step, args))
        elif step.otherwise is not None:
            plan = step.otherwise()
            instead = None if plan.workspace_bytes else _filled(plan.steps, buffers)
            return None if instead is None else [*found, *instead]
    return found


def _encoder(runtime: Any, seen: AnyMap) -> Callable[[int], bytes]:
    """Return a function that encodes a map for another address."""

    @lru_cache(maxsize=MAPS_KEPT)
    def encoded(place: int) -> bytes:
        return runtime.tensor_map(replace(seen, address=place))  # type: ignore[no-any-return]

    return encoded
