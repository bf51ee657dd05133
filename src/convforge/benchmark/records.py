"""The records of a run: the store writes them; tables, studies and the report read them."""

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
from convforge.timing.ceilings import Ceilings, moved
from convforge.timing.timer import Timing

T = TypeVar("T")
Status = Literal["ok", "refused", "failed", "skipped", "error"]
# The timings that a result may have.
TIMES = ("time", "prepared_time", "transfer_time")


class Record:
    """A line of a run's file."""

    __slots__ = ()
    kind: ClassVar[str]

    def to_record(self) -> dict[str, Any]:
        """The record as JSON holds it."""
        return {"kind": self.kind, **_data(self)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The value that :meth:`to_record` wrote; fields that older versions had are left out."""
        return _read(cls, record)


@dataclass(frozen=True, slots=True)
class Error:
    """The error of a result against the float64 truth; None where it is not a number."""

    rms: float | None  # over the RMS of the truth
    max: float | None  # largest absolute error
    bound_ratio: float | None  # largest error over its elementwise bound; above 1 the check fails


@dataclass(frozen=True, slots=True)
class StepTime:
    """All steps of a plan that have one name, timed by themselves."""

    name: str  # "expansion", "product", or a kernel's name
    time: Timing  # of all of them, one after the other; cold where the ring and the workspace exceed the cache
    launches: int
    least_bytes: int | None = None  # read and written once; None where the method does not name them

    @property
    def bytes_per_s(self) -> float | None:
        """Least bytes over the median."""
        return None if self.least_bytes is None else self.least_bytes / self.time.median_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Record):
    """One method in one config on one case. A result that is not "ok" has no times."""

    kind: ClassVar[str] = "result"
    case: str
    problem: str  # text form of the problem that the suite asks
    operation: str
    algorithm: str
    backend: str
    ours: bool
    precision: str  # class of the arithmetic that ran; another than the problem's only in a method that was named
    config: str
    status: Status  # "failed": the check refused the result; "error": it raised
    reason: Reason | None = None  # of a status other than "ok"
    error: Error | None = None
    time: Timing | None = None  # weights prepared on every call, as `conv2d` does
    prepared_time: Timing | None = None  # weights prepared once, as `Filter` does
    transfer_time: Timing | None = None  # from host arrays to a host array, by the host's clock; only with --transfer
    # Of a call with prepared weights, in its order; empty without --steps, or if the call is one step.
    steps: tuple[StepTime, ...] = ()
    first_call_s: float | None = None  # plan, compile, prepare and call; in no time
    prepare_s: float | None = None  # a later preparation alone; in no time
    workspace_bytes: int | None = None
    launches: tuple[dict[str, Any], ...] = ()  # LaunchInfo of each
    flops: int = 0  # nominal: of the direct method, as are the least bytes
    least_bytes: int = 0
    digest: str = ""  # of all that the time depends on, see benchmark.digests
    library_versions: dict[str, str] = field(default_factory=dict)
    note: Reason | None = None
    weights: str = "normal"  # filters "normal", "gaussian" or "shared", see suites.Case
    # Of each way that a library offers: name, outcome ("run", "large", "failed", "excluded"), and time or reason.
    ways: tuple[tuple[str, str, str], ...] = ()
    # Commit whose tree had another digest and the same machine code, see benchmark.carry; empty for the measured tree.
    carried: str = ""

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise ValueError(f"status={self.status!r} is unknown; it is one of {', '.join(get_args(Status))}")
        if self.status != "ok" and (self.time or self.prepared_time or self.transfer_time or self.steps):
            raise ValueError(f"{self.algorithm} on {self.case} is {self.status!r} and so has no time")

    @property
    def key(self) -> tuple[str, ...]:
        """Its row of a run."""
        return (self.case, self.problem, self.backend, self.algorithm, self.config)

    @property
    def label(self) -> str:
        """Name of the method, with its config where it has one."""
        return f"{self.algorithm}[{self.config}]" if self.config else self.algorithm

    @property
    def allowed(self) -> bool:
        """True if the problem allows its arithmetic; any other must be named, and does not compete."""
        return self.precision in ("strict", parse_problem(self.problem).precision)

    @property
    def gflops(self) -> float | None:
        """Nominal GFLOP/s."""
        return None if self.time is None else self.flops / self.time.median_s / 1e9


@dataclass(frozen=True, slots=True)
class Finalist:
    """One of the fastest methods of a case, timed again in turns with the others."""

    algorithm: str
    config: str
    time: Timing


@dataclass(frozen=True, slots=True)
class Finalists(Record):
    """The interleaved timings that decide a case."""

    kind: ClassVar[str] = "finalists"
    case: str
    contestants: tuple[Finalist, ...]


@dataclass(frozen=True, slots=True)
class CopyTime(Record):
    """The copy kernel over as many bytes as a case must move at least, over a ring as large as the case's."""

    kind: ClassVar[str] = "copy"
    case: str
    bytes: int  # read and written together, half of them each
    time: Timing

    @property
    def bytes_per_s(self) -> float:
        """Bytes over the median."""
        return self.bytes / self.time.median_s


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of one launch, as a profiler read them."""

    case: str
    method: str
    config: str
    kernel: str
    dram_bytes: float  # read from and written to memory
    l1_bytes: float  # asked of L1
    l1_hit: float  # share of the 32-byte sectors that were found there
    l2_hit: float


@dataclass(frozen=True, slots=True)
class Profile(Record):
    """All counters of a run, or the reason why there are none."""

    kind: ClassVar[str] = "profile"
    counters: tuple[Counters, ...] = ()
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run as stored."""

    run: str  # its id
    started: str  # ISO time in UTC
    suite: str
    device: str  # slug of the device
    machine: dict[str, Any]
    versions: dict[str, str]
    commit: str | None
    dirty: bool
    settings: dict[str, Any]
    path: Path
    results: tuple[Result, ...] = ()
    finals: tuple[Finalists, ...] = ()
    ceilings: tuple[tuple[str, Ceilings], ...] = ()  # "before" or "after" each; a resumed run has several pairs
    copies: tuple[CopyTime, ...] = ()  # one a case; none in older runs
    profile: Profile | None = None  # None without counters and without a reason
    complete: bool = False  # every row was reached

    @classmethod
    def from_header(cls, header: Mapping[str, Any], path: Path, **rest: Any) -> Run:
        """A run from its first line, and the fields that follow from the others."""
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
        """The commit in words; empty where none is known."""
        return "" if self.commit is None else f"commit {self.commit[:10]}{' with changes' * self.dirty}"

    @property
    def cases(self) -> tuple[str, ...]:
        """Names of the cases in the order of the file."""
        return tuple(dict.fromkeys(result.case for result in self.results))

    @property
    def best_ceilings(self) -> Ceilings | None:
        """The higher of each ceiling, over all that were measured; None where none was."""
        if not self.ceilings:
            return None
        found = [c for _, c in self.ceilings]
        return Ceilings(max(c.copy_bytes_per_s for c in found), max(c.fma_flops_per_s for c in found))

    @property
    def moved(self) -> Reason | None:
        """Changes of the machine's ceilings during the run; None where they held."""
        pairs = pairwise(self.ceilings)
        changes = (moved(a, b) for (when, a), (then, b) in pairs if (when, then) == ("before", "after"))
        return Reason.joined(filter(None, changes))

    def copy_share(self, step: StepTime) -> float | None:
        """The bytes that a step moves over those of a copy in the same time; None where either is not known."""
        best = self.best_ceilings
        return None if best is None or step.bytes_per_s is None else step.bytes_per_s / best.copy_bytes_per_s

    def copy_of(self, case: str) -> CopyTime | None:
        """The copy of as many bytes as a case must move; None where it was not timed."""
        return next((copy for copy in self.copies if copy.case == case), None)

    def of_copy(self, result: Result, timing: Timing | None) -> float | None:
        """The share of a copy's bandwidth that a result's least bytes reach; None where either was not timed.

        Above 1 the method would be faster than a copy of its bytes: it is noise, or its data stayed in the cache.
        """
        copy = self.copy_of(result.case)
        return None if copy is None or timing is None else result.least_bytes / timing.median_s / copy.bytes_per_s

    def is_stale(self, result: Result) -> bool:
        """True where the sources of a result have changed since, or it can no longer be planned."""
        # Times by mistaken clocks (see studies.timer) have the clock as their config; the method has its default.
        config = result.config if result.precision in PRECISIONS else ""
        key = (result.operation, result.backend, result.algorithm, result.problem, config)
        return result.digest != current_digest(*key, self.machine.get("facts", {}))

    def timing(self, result: Result) -> Timing | None:
        """The timing that counts: that of the final, else that of the row."""
        final = next((final for final in self.finals if final.case == result.case), None)
        for c in final.contestants if final else ():
            if (c.algorithm, c.config) == (result.algorithm, result.config):
                return c.time
        return result.time


def _data(value: Any) -> Any:
    """A value as JSON holds it."""
    if isinstance(value, Timing):
        return value.to_table()
    if isinstance(value, Reason):
        return to_data(value)
    if dataclasses.is_dataclass(value):
        fields = {field.name: _data(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {name: data for name, data in fields.items() if data or name != "ways"}
    return [_data(item) for item in value] if isinstance(value, tuple) else value


def _read(kind: type[T], record: Mapping[str, Any]) -> T:
    """A dataclass from the fields that :func:`_data` wrote."""
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    stored = ((name, data) for name, data in record.items() if name in known)
    return kind(**{name: data if data is None else _READERS.get(name, _plain)(data) for name, data in stored})


def _plain(data: Any) -> Any:
    return tuple(data) if isinstance(data, list) else data


def _each(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda items: tuple(_read(kind, item) for item in items)


# Field of a record -> its value from JSON.
_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(TIMES, Timing.from_table), **dict.fromkeys(("reason", "note"), from_data),
    "error": lambda data: _read(Error, data), "steps": _each(StepTime), "contestants": _each(Finalist),
    "counters": _each(Counters), "ways": lambda ways: tuple(map(tuple, ways)),
}  # fmt: skip
