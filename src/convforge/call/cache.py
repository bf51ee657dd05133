"""The call cache: repeats a call in a few microseconds, on a GPU by the same launches with other addresses.

The first call checks its arguments and finds a plan. Its launches depend only on shapes, strides, dtypes and alignment
(the low bits of addresses), and on the addresses of the buffers. So the arguments of each launch, a struct, are filled
once for stand-ins: arrays with the same properties at invented addresses far apart. The struct's type declares the
positions of its addresses (:mod:`convforge.backends.structs`); the value of each identifies its buffer, even if the
caller's arrays share memory. A repeated call writes its own addresses there. The first call on a GPU uses these
launches too. Plans that do more than launch kernels are not cached. On the CPU only the plan is cached.
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
from convforge.backends.cuda.arrays import DeviceArray, address
from convforge.backends.maps import MAP_BYTES, AnyMap
from convforge.backends.runtime import CallerStream
from convforge.backends.structs import Template, address_places
from convforge.call.arrays import Home, View, overlap, repeats, span
from convforge.call.libraries import cached_library
from convforge.call.libraries.contract import Library

# Maximum number of calls in a cache; each holds a plan, kernels and a few hundred bytes.
CALLS_KEPT = 1024

# Addresses of one signature are equal modulo this, which is above the alignment of any load and of TMA.
ALIGNMENT = 256

# Maximum number of addresses for which a launch keeps its encoded tensor maps.
MAPS_KEPT = 64

# Bytes from one stand-in to the next: addresses within half of this belong to the nearest.
APART = 1 << 41

_POINTER = struct.Struct("P")


@dataclass(frozen=True, slots=True)
class Ready:
    """A cached call on arrays of a GPU."""

    runtime: Any  # CudaRuntime or EmulatorRuntime
    make: Callable[[], Any]  # makes an array for the result
    address: Callable[[Any], int]  # returns an array's address
    take: Callable[[int], tuple[int, Any]]  # bytes -> address and owner of the library's memory
    handle: Callable[[], int]  # returns the handle of the library's current stream
    spans: tuple[tuple[int, int], ...]  # first byte and end of each input and of the result, relative to its address
    takes: tuple[int, ...]  # size of each temporary buffer in bytes
    launches: tuple[Callable[[Sequence[int], int], None], ...]  # (addresses of inputs, result, temporaries; stream)
    held: Any  # arrays that the launches read in every call: weights prepared for `stream`
    stream: int | None  # that stream's handle

    def __call__(self, inputs: tuple[Any, ...], places: list[int], out: Any) -> Any:
        """Run the call on inputs at the addresses `places`, followed by the address of `out` if given.

        Returns the result; None for another alignment, another stream, or an `out` that overlaps an input.
        """
        if out is not None:
            *spans, (low, high) = self.spans
            low, high = places[-1] + low, places[-1] + high
            if any(at + a < high and low < at + b for at, (a, b) in zip(places[:-1], spans, strict=True)):
                return None
        if self.runtime.is_current():
            return self.run(places, out)
        with self.runtime.current():
            return self.run(places, out)

    def run(self, places: list[int], out: Any) -> Any:
        """Run the call without these checks: its GPU must be current, and `out` must not overlap an input."""
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


@dataclass(frozen=True, slots=True)
class HostReady:
    """A cached call on arrays of the host."""

    library: Library
    shape: tuple[int, ...]
    dtype: str
    compute: Callable[[tuple[Any, ...], Any], None]  # runs the plan on views of inputs and output

    def __call__(self, inputs: tuple[Any, ...], places: list[int], out: Any) -> Any:
        """Run the call; return the result, or None if `out` cannot be written to directly."""
        library = self.library
        views = tuple([library.view(array) for array in inputs])
        if out is None:
            out = library.empty(self.shape, self.dtype, "cpu")
            target = library.view(out)
        else:
            target = library.view(out, written=True)
            if not target.flags.writeable or repeats(target) or any(overlap(target, view) for view in views):
                return None
        self.compute(views, target)
        return out


@dataclass(slots=True)
class Kept:
    """An entry of the cache; a new measurement of similar problems invalidates it."""

    ready: Ready | HostReady
    about: str  # tuning key of the problem
    generation: int  # generation of that key when the plan was chosen
    guard: Callable[..., list[int] | None] | None = None  # from :meth:`Library.guard`


def kinds(*options: Any) -> tuple[Any, ...]:
    """Return the types of options, including those in tuples: True and 1.0 equal 1, but are refused as integers.

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
    """The call cache of one function. Thread-safe.

    `generation` maps a tuning key to a number, which changes when problems of that key may get another plan.
    """

    def __init__(self, generation: Callable[[str], int]) -> None:
        # Keys are a call's options, then the signature of its arrays. The last call with some weights is also stored
        # under id(weights), because checking arrays with its guard is faster than reading their signature.
        self._kept: dict[Any, dict[Any, Kept]] = {}
        self._count = 0
        self._generation = generation

    def again(
        self, inputs: tuple[Any, ...], options: tuple[Any, ...], out: Any = None, *, has_weights: bool = True
    ) -> tuple[Any, Any]:
        """Repeat a cached call. Returns its result, or None if it is not cached; and the key to cache it, or None.

        The last input may be None. The second input is the weights, unless `has_weights` is False.
        """
        given = inputs if inputs[-1] is not None else inputs[:-1]
        arrays = given if out is None else (*given, out)
        kind = (options, out is None, len(given))
        weights = id(given[1]) if has_weights and len(given) > 1 else None
        try:
            calls = self._kept.get(kind)
        except TypeError:  # an option that is not hashable, such as a list
            return None, None
        last = None if calls is None else calls.get(weights)
        if last is not None and last.guard is not None and (places := last.guard(*arrays)) is not None:
            result = last.ready(given, places, out) if self._generation(last.about) == last.generation else None
            if result is not None:
                return result, None
        of: Any = type(given[0])
        library = cached_library(of)
        if library is None or (signature := library.signature(arrays)) is None:
            return None, None
        found, places = signature
        key = (kind, tuple(found))
        kept = None if calls is None else calls.get(key[1])
        if kept is None or self._generation(kept.about) != kept.generation:
            return None, key
        if places and kept.guard is None:
            kept.guard = library.guard(arrays)
        if kept.guard is not None:
            self._keep(kind, weights, kept)
        return kept.ready(given, places, out), key

    def keeper(
        self, key: Any, whole: bool, stream: CallerStream | None, about: str
    ) -> Callable[[Ready | HostReady], None] | None:
        """Return a function that caches a call under the key; None if the call must not be cached.

        Get it before a plan is chosen, so that a measurement in between invalidates the entry. `whole` is true if the
        plan reads the caller's own arrays. A call under graph capture is not cached: only a later call may measure.
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
        self._kept.clear()
        self._count = 0


def ready_for(
    plan: Plan, home: Home, moving: Mapping[str, View], out: View, prepared: PreparedFilter | None, fixed: Buffers,
    stream: CallerStream, *, shape: tuple[int, ...], given: bool,
) -> Ready | None:  # fmt: skip
    """Make a cached call from a plan; None if the plan does more than launch kernels.

    `moving` are the arrays that change from call to call, by their names in the problem, with unprepared weights;
    `prepared` and `fixed` are the same in every call. `shape` is the shape of the caller's result.
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
    """Stand-ins: arrays with the properties of a call's arrays, at invented addresses far apart."""

    def __init__(self) -> None:
        self._places: list[int] = []
        self.takes: list[int] = []
        self.fixed: dict[int, Any] = {}

    def like(self, array: View, exactly: bool = True) -> DeviceArray:
        """Make a stand-in for an array with the low bits of its address; unless `exactly`, aligned like new memory."""
        place = (len(self._places) + 1) * APART + (address(array) % ALIGNMENT if exactly else 0)
        self._places.append(place)
        return DeviceArray.over(place, array.shape, array.strides, array.dtype, None)

    def taken(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        self._places.append((len(self._places) + 1) * APART)
        made = DeviceArray.over(self._places[-1], shape, None, np.dtype(dtype), None)
        self.takes.append(made.nbytes)
        return made

    def held(self, value: Any) -> Any:
        """Make a stand-in for an array that is the same in every call; return anything else unchanged."""
        if not hasattr(value, "strides"):
            return value
        self.fixed[len(self._places)] = value
        return self.like(value)

    def template(self, args: Any, runtime: Any) -> Template | None:
        """Make a template of a struct filled for stand-ins; None if it has any other address."""
        kind: Any = type(args)
        pointers, maps, places = [], [], self._places

        def buffer_of(place: int) -> int:
            """Return the index of the stand-in that an address belongs to, or -1."""
            which = (place + APART // 2) // APART - 1
            return which if which < len(places) else -1

        for at in address_places(kind):
            (place,) = _POINTER.unpack_from(args, at)
            if not place:
                continue
            if (which := buffer_of(place)) < 0:
                return None
            if which in self.fixed:
                _POINTER.pack_into(args, at, address(self.fixed[which]) + place - places[which])
            else:
                pointers.append((at, which, place - places[which]))
        for at, tensor_map in getattr(args, "maps", {}).items():
            if (which := buffer_of(tensor_map.address)) < 0:
                return None
            behind, encoded = tensor_map.address - places[which], _encoder(runtime, tensor_map)
            if which in self.fixed:
                ctypes.memmove(ctypes.addressof(args) + at, encoded(address(self.fixed[which]) + behind), MAP_BYTES)
            else:
                maps.append((at, which, behind, encoded))
        return Template(args, len(places) - len(self.fixed), pointers, maps)


def _filled(steps: Iterable[Step], buffers: Buffers) -> list[tuple[Launch, Any]] | None:
    """Return the launches of steps on these buffers, each with its arguments; None if a step is no launch."""
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


def _encoder(runtime: Any, tensor_map: AnyMap) -> Callable[[int], bytes]:
    @lru_cache(maxsize=MAPS_KEPT)
    def encoded(place: int) -> bytes:
        return runtime.tensor_map(replace(tensor_map, address=place))  # type: ignore[no-any-return]

    return encoded
