"""Records of a run: written by the store, read by tables, studies and the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args

from convforge.benchmark.digests import current_digest
from convforge.benchmark.reasons import from_data, to_data
from convforge.errors import Reason
from convforge.problem import PRECISIONS, parse_problem
from convforge.problem.types import allows
from convforge.timing.ceilings import Ceilings, moved
from convforge.timing.timer import Timing

T = TypeVar("T")
Status = Literal["ok", "refused", "failed", "skipped", "error"]
# Names of the timings in a result.
TIMES = ("time", "prepared_time", "transfer_time")


class Record:
    """One line of a run's file."""

    __slots__ = ()
    kind: ClassVar[str]

    def to_record(self) -> dict[str, Any]:
        """Convert the record to JSON data."""
        return {"kind": self.kind, **_data(self)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Convert the output of :meth:`to_record` back to a record; unknown fields of older versions are ignored."""
        return _read(cls, record)


@dataclass(frozen=True, slots=True)
class Error:
    """The error of a result against the float64 truth; None for a value that is not a number."""

    rms: float | None  # divided by the RMS of the truth
    max: float | None  # largest absolute error
    bound_ratio: float | None  # largest ratio of an element's error to its bound; the check fails above 1


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of all steps of a plan that have the same name, without the other steps."""

    name: str  # "expansion", "product", or a kernel's name
    time: Timing  # all of them in sequence; cold if ring and workspace exceed the cache
    launches: int
    least_bytes: int | None = None  # bytes read or written once each; None if not declared

    @property
    def bytes_per_s(self) -> float | None:
        """Least bytes divided by the median time."""
        return None if self.least_bytes is None else self.least_bytes / self.time.median_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Record):
    """Result of one method in one config on one case. A result that is not "ok" has no times."""

    kind: ClassVar[str] = "result"
    case: str
    problem: str  # text form of the case's problem
    operation: str
    algorithm: str
    backend: str
    ours: bool
    precision: str  # class that was used; differs from the problem's only if the method was named
    config: str
    status: Status  # "failed": the check rejected the output; "error": the method raised
    reason: Reason | None = None  # given if the status is not "ok"
    error: Error | None = None
    time: Timing | None = None  # weights prepared on every call, as `conv2d` does
    prepared_time: Timing | None = None  # weights prepared once, as `Filter` does
    transfer_time: Timing | None = None  # from host arrays to a host array, by the host's clock; only with --transfer
    # In order of the call, with prepared weights; empty without --steps or if a call is a single step.
    steps: tuple[StepTime, ...] = ()
    first_call_s: float | None = None  # plan, compile, prepare and call; not part of any time
    prepare_s: float | None = None  # one later preparation; not part of any time
    workspace_bytes: int | None = None
    launches: tuple[dict[str, Any], ...] = ()  # fields of LaunchInfo of each launch
    flops: int = 0  # nominal, of the direct method; least_bytes too
    least_bytes: int = 0
    digest: str = ""  # digest of the code that determines the time, see benchmark.digests
    library_versions: dict[str, str] = field(default_factory=dict)
    note: Reason | None = None
    weights: str = "normal"  # kind of filters: "normal", "gaussian" or "shared", see suites.Case
    # For each plan that a library offers: name, outcome ("run", "large", "failed", "excluded"), and time or reason.
    ways: tuple[tuple[str, str, str], ...] = ()
    # Commit with another digest but the same machine code, see benchmark.carry; empty if this tree was measured.
    carried: str = ""

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise ValueError(f"status={self.status!r} is unknown; it is one of {', '.join(get_args(Status))}")
        if self.status != "ok" and (self.time or self.prepared_time or self.transfer_time or self.steps):
            raise ValueError(f"{self.algorithm} on {self.case} is {self.status!r} and so has no time")

    @property
    def key(self) -> tuple[str, ...]:
        """The key of its row in a run."""
        return (self.case, self.problem, self.backend, self.algorithm, self.config)

    @property
    def label(self) -> str:
        """Name of the method, with the config if there is one."""
        return f"{self.algorithm}[{self.config}]" if self.config else self.algorithm

    @property
    def allowed(self) -> bool:
        """True if the problem allows this precision; results of other precisions are shown but not ranked."""
        return allows(parse_problem(self.problem).precision, self.precision)

    @property
    def gflops(self) -> float | None:
        """Nominal GFLOP/s, from the FLOPs of the direct method."""
        return None if self.time is None else self.flops / self.time.median_s / 1e9


@dataclass(frozen=True, slots=True)
class Finalist:
    """One of the fastest methods of a case, timed again alternately with the others."""

    algorithm: str
    config: str
    time: Timing


@dataclass(frozen=True, slots=True)
class Finalists(Record):
    """The interleaved timings that decide which method of a case is fastest."""

    kind: ClassVar[str] = "finalists"
    case: str
    contestants: tuple[Finalist, ...]


@dataclass(frozen=True, slots=True)
class CopyTime(Record):
    """Time of the copy kernel for a case's least bytes, over a ring as large as the case's."""

    kind: ClassVar[str] = "copy"
    case: str
    bytes: int  # half of them read, half written
    time: Timing

    @property
    def bytes_per_s(self) -> float:
        """Bytes divided by the median time."""
        return self.bytes / self.time.median_s


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of one launch, measured by a profiler."""

    case: str
    method: str
    config: str
    kernel: str
    dram_bytes: float  # read from and written to DRAM
    l1_bytes: float  # requested from L1
    l1_hit: float  # fraction of 32-byte sectors that hit
    l2_hit: float


@dataclass(frozen=True, slots=True)
class Profile(Record):
    """All counters of a run, or the reason why it has none."""

    kind: ClassVar[str] = "profile"
    counters: tuple[Counters, ...] = ()
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A stored run."""

    run: str  # its id
    started: str  # ISO time in UTC
    suite: str
    device: str  # short name of the device, as used for folders
    machine: dict[str, Any]
    versions: dict[str, str]
    commit: str | None
    dirty: bool
    settings: dict[str, Any]
    path: Path
    results: tuple[Result, ...] = ()
    finals: tuple[Finalists, ...] = ()
    ceilings: tuple[tuple[str, Ceilings], ...] = ()  # labelled "before" or "after"; a resumed run has several pairs
    copies: tuple[CopyTime, ...] = ()  # one per case; empty in older runs
    profile: Profile | None = None  # None if nothing was profiled and no reason was stored
    complete: bool = False  # every row was reached

    @classmethod
    def from_header(cls, header: Mapping[str, Any], path: Path, **rest: Any) -> Run:
        """Make a run from the first line of its file and further fields."""
        own = ("run", "started", "suite", "device", "machine", "versions", "commit", "dirty", "settings")
        if missing := [name for name in own if name not in header]:
            raise ValueError(f"{path}, line 1 lacks {', '.join(missing)}")
        return cls(**{name: header[name] for name in own}, path=path, **rest)

    @property
    def where(self) -> str:
        """Name of the device."""
        return str(self.machine.get("facts", {}).get("name", self.device))

    @property
    def tree(self) -> str:
        """The commit as text; empty if it is unknown."""
        return "" if self.commit is None else f"commit {self.commit[:10]}{' with uncommitted changes' * self.dirty}"

    @property
    def cases(self) -> tuple[str, ...]:
        """Names of the cases, in the order of the file."""
        return tuple(dict.fromkeys(result.case for result in self.results))

    @property
    def best_ceilings(self) -> Ceilings | None:
        """The highest measured value of each ceiling; None if none was measured."""
        if not self.ceilings:
            return None
        found = [c for _, c in self.ceilings]
        return Ceilings(max(c.copy_bytes_per_s for c in found), max(c.fma_flops_per_s for c in found))

    @property
    def moved(self) -> Reason | None:
        """Describes changes of the machine's ceilings during the run; None if they did not change."""
        pairs = pairwise(self.ceilings)
        changes = (moved(a, b) for (when, a), (then, b) in pairs if (when, then) == ("before", "after"))
        return Reason.joined(filter(None, changes))

    def copy_share(self, step: StepTime) -> float | None:
        """Bandwidth of a step divided by the copy ceiling; None if either is unknown."""
        best = self.best_ceilings
        return None if best is None or step.bytes_per_s is None else step.bytes_per_s / best.copy_bytes_per_s

    def copy_of(self, case: str) -> CopyTime | None:
        """The time of a copy of the case's least bytes; None if it was not timed."""
        return next((copy for copy in self.copies if copy.case == case), None)

    def of_copy(self, result: Result, timing: Timing | None) -> float | None:
        """Bandwidth of a result's least bytes divided by that of the copy; None if either was not timed.

        A value above 1 means noise, or that the method's data stayed in the cache.
        """
        copy = self.copy_of(result.case)
        return None if copy is None or timing is None else result.least_bytes / timing.median_s / copy.bytes_per_s

    def is_stale(self, result: Result) -> bool:
        """True if the sources of a result have changed since, or if it can no longer be planned."""
        # Results of deliberately wrong clocks (see studies.timer) store the clock as config and ran the default config.
        config = result.config if result.precision in PRECISIONS else ""
        key = (result.operation, result.backend, result.algorithm, result.problem, config)
        return result.digest != current_digest(*key, self.machine.get("facts", {}))

    def timing(self, result: Result) -> Timing | None:
        """The timing that counts: from the final if there is one, else from the row."""
        final = next((final for final in self.finals if final.case == result.case), None)
        for c in final.contestants if final else ():
            if (c.algorithm, c.config) == (result.algorithm, result.config):
                return c.time
        return result.time


def _data(value: Any) -> Any:
    if isinstance(value, Timing):
        return value.to_table()
    if isinstance(value, Reason):
        return to_data(value)
    if dataclasses.is_dataclass(value):
        fields = {field.name: _data(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {name: data for name, data in fields.items() if data or name != "ways"}
    return [_data(item) for item in value] if isinstance(value, tuple) else value


def _read(kind: type[T], record: Mapping[str, Any]) -> T:
    """Make a dataclass from the fields that :func:`_data` wrote."""
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    stored = ((name, data) for name, data in record.items() if name in known)
    return kind(**{name: data if data is None else _READERS.get(name, _plain)(data) for name, data in stored})


def _plain(data: Any) -> Any:
    return tuple(data) if isinstance(data, list) else data


def _each(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda items: tuple(_read(kind, item) for item in items)


# Name of a field -> function that converts its JSON data to the value.
_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(TIMES, Timing.from_table), **dict.fromkeys(("reason", "note"), from_data),
    "error": lambda data: _read(Error, data), "steps": _each(StepTime), "contestants": _each(Finalist),
    "counters": _each(Counters), "ways": lambda ways: tuple(map(tuple, ways)),
}  # fmt: skip
