"""The records of a run: the store writes them; tables, studies and the report read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from convforge.benchmark.digests import current_digest
from convforge.benchmark.reasons import from_data, to_data
from convforge.errors import Reason
from convforge.problem import PRECISIONS
from convforge.timing.ceilings import Ceilings, moved
from convforge.timing.timer import Timing

Status = Literal["ok", "refused", "failed", "skipped", "error"]
# The timings that a result may have.
TIMES = ("time", "prepared_time", "transfer_time")
STATUSES: tuple[Status, ...] = ("ok", "refused", "failed", "skipped", "error")


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
class Result:
    """One method in one config on one case. A result that is not "ok" has no times."""

    case: str
    problem: str  # text form of the problem that the suite asks
    operation: str
    algorithm: str
    backend: str
    ours: bool
    # Class of the arithmetic that ran. It differs from the problem's where a method must be asked for by name.
    precision: str
    config: str
    status: Status  # "failed": the check refused the result; "error": it raised
    reason: Reason | None = None  # of a status other than "ok"
    error: Error | None = None
    time: Timing | None = None  # weights prepared on every call, as `conv2d` does
    prepared_time: Timing | None = None  # weights prepared once, as `Filter` does
    transfer_time: Timing | None = None  # from host arrays to a host array, by the host's clock; only if asked for
    # Of a call with prepared weights, in its order; none if not asked for, or if the call is one step.
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
    weights: str = ""  # filters "normal", "gaussian" or "shared", see suites.Case; empty in records without it
    # Of each way that a library offers: name, outcome ("run", "large", "failed", "excluded"), and time or reason.
    ways: tuple[tuple[str, str, str], ...] = ()
    # Commit whose tree had another digest and the same machine code, see benchmark.carry; empty for the measured tree.
    carried: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status={self.status!r} is unknown; it is one of {', '.join(STATUSES)}")
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
    def gflops(self) -> float | None:
        """Nominal GFLOP/s of `time`."""
        return None if self.time is None else self.flops / self.time.median_s / 1e9

    def to_record(self) -> dict[str, Any]:
        """The result as a line of the store."""
        record = {"kind": "result", **_data(self)}
        if not self.ways:
            del record["ways"]
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Result:
        """The value that :meth:`to_record` wrote."""
        values = {name: value for name, value in record.items() if name != "kind"}
        values["error"] = None if record["error"] is None else Error(**record["error"])
        for name in TIMES:
            values[name] = None if record.get(name) is None else Timing.from_table(record[name])
        values |= {"reason": from_data(record["reason"]), "note": from_data(record["note"])}
        steps = (table | {"time": Timing.from_table(table["time"])} for table in record.get("steps", ()))
        values["steps"] = tuple(StepTime(**step) for step in steps)
        values["launches"] = tuple(record["launches"])
        values["ways"] = tuple((name, outcome, words) for name, outcome, words in record.get("ways", ()))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Finalist:
    """One of the fastest methods of a case, timed again in turns with the others."""

    algorithm: str
    config: str
    time: Timing


@dataclass(frozen=True, slots=True)
class Finalists:
    """The interleaved timings that decide a case."""

    case: str
    contestants: tuple[Finalist, ...]

    def to_record(self) -> dict[str, Any]:
        """As a line of the store."""
        return {"kind": "finalists", **_data(self)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Finalists:
        """The value that :meth:`to_record` wrote."""
        table = record["contestants"]
        found = tuple(Finalist(c["algorithm"], c["config"], Timing.from_table(c["time"])) for c in table)
        return cls(record["case"], found)


@dataclass(frozen=True, slots=True)
class CopyTime:
    """The copy kernel over as many bytes as a case must move at least, over a ring as large as the case's."""

    case: str
    nbytes: int  # read and written together, half of them each
    time: Timing

    @property
    def bytes_per_s(self) -> float:
        """Read and written, over the median."""
        return self.nbytes / self.time.median_s

    def to_record(self) -> dict[str, Any]:
        """As a line of the store."""
        return {"kind": "copy", "case": self.case, "bytes": self.nbytes, "time": self.time.to_table()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> CopyTime:
        """The value that :meth:`to_record` wrote."""
        return cls(record["case"], record["bytes"], Timing.from_table(record["time"]))


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of one launch, as a profiler read them."""

    case: str
    method: str
    config: str
    kernel: str
    dram_bytes: float  # read from and written to memory
    l2_bytes: float  # through L2
    l1_bytes: float  # asked of L1
    l1_hit: float  # share of the 32-byte sectors that were found there
    l2_hit: float


@dataclass(frozen=True, slots=True)
class Profile:
    """All counters of a run, or the reason why there are none."""

    counters: tuple[Counters, ...] = ()
    reason: Reason | None = None

    def to_record(self) -> dict[str, Any]:
        """As a line of the store."""
        return {"kind": "profile", **_data(self)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Profile:
        """The value that :meth:`to_record` wrote."""
        return cls(tuple(Counters(**table) for table in record["counters"]), from_data(record["reason"]))


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
    profile: Profile | None = None  # None where none was asked for
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
        said, before = [], None
        for when, found in self.ceilings:
            if when == "before":
                before = found
            elif before is not None and (change := moved(before, found)):
                said.append(change)
        return Reason.joined(said)

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
        for final in self.finals:
            if final.case == result.case:
                for c in final.contestants:
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
        return {field.name: _data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [_data(item) for item in value] if isinstance(value, tuple) else value
