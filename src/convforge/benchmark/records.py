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
    """How far a result is from the float64 truth; None where it is not a number.

    Attributes
    ----------
    rms : float or None
        RMS error over the RMS of the truth.
    max : float or None
        Largest absolute error.
    bound_ratio : float or None
        Largest error over its elementwise bound; above 1 the check fails.
    """

    rms: float | None
    max: float | None
    bound_ratio: float | None


@dataclass(frozen=True, slots=True)
class StepTime:
    """All steps of a plan that have one name, timed by themselves.

    Attributes
    ----------
    name : str
        "expansion", "product", or a kernel's name.
    time : Timing
        Seconds of all of them, one after the other. Cold where the ring and the workspace exceed the cache.
    launches : int
    least_bytes : int or None
        What they must move if they read and write everything once; None where the method does not say.
    """

    name: str
    time: Timing
    launches: int
    least_bytes: int | None = None

    @property
    def bytes_per_s(self) -> float | None:
        """Least bytes over the median."""
        return None if self.least_bytes is None else self.least_bytes / self.time.median_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One method in one config on one case.

    Attributes
    ----------
    case, problem, operation, algorithm, backend, config : str
        Which row it is; `problem` is the text form of what the suite asks.
    ours : bool
    weights : str
        What its filter was: "normal", "gaussian" or "shared", see :class:`convforge.benchmark.suites.Case`; empty where
        the record does not say.
    precision : str
        Class of the arithmetic that ran. It differs from the problem's where a method must be asked for by name.
    status : {"ok", "refused", "failed", "skipped", "error"}
        "failed": the check refused the result, so there is no time. "error": it raised.
    reason : Reason or None
        Why the status is not "ok".
    error : Error or None
    time : Timing or None
        Weights prepared on every call, as ``conv2d`` does.
    prepared_time : Timing or None
        Weights prepared once, as ``Filter`` does.
    transfer_time : Timing or None
        From host arrays to a host array, by the host's clock; None where it was not asked for.
    steps : tuple of StepTime
        Of a call with prepared weights, in its order; empty where it was not asked for, or the call is one step.
    first_call_s, prepare_s : float or None
        Plan, compile, preparation and first call; a later preparation alone. Neither is inside a time.
    workspace_bytes : int or None
    launches : tuple of dict
        :class:`LaunchInfo` of each launch.
    flops, least_bytes : int
        Nominal: those of the direct method.
    digest : str
        Of what the time depends on, see :func:`convforge.benchmark.digests.digest`.
    library_versions : dict
    note : Reason or None
    ways : tuple of (str, str, str)
        Of a library's fastest way: name, outcome ("run", "large", "failed", "excluded") and time or reason of each that
        it offers.
    carried : str
        The commit whose tree had another digest and the same machine code, see :mod:`convforge.benchmark.carry`; empty
        where the digest is that of the tree that was measured.
    """

    case: str
    problem: str
    operation: str
    algorithm: str
    backend: str
    ours: bool
    precision: str
    config: str
    status: Status
    reason: Reason | None = None
    error: Error | None = None
    time: Timing | None = None
    prepared_time: Timing | None = None
    transfer_time: Timing | None = None
    steps: tuple[StepTime, ...] = ()
    first_call_s: float | None = None
    prepare_s: float | None = None
    workspace_bytes: int | None = None
    launches: tuple[dict[str, Any], ...] = ()
    flops: int = 0
    least_bytes: int = 0
    digest: str = ""
    library_versions: dict[str, str] = field(default_factory=dict)
    note: Reason | None = None
    weights: str = ""
    ways: tuple[tuple[str, str, str], ...] = ()
    carried: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status={self.status!r} is unknown; it is one of {', '.join(STATUSES)}")
        if self.status != "ok" and (self.time or self.prepared_time or self.transfer_time or self.steps):
            raise ValueError(f"{self.algorithm} on {self.case} is {self.status!r} and so has no time")

    @property
    def key(self) -> tuple[str, ...]:
        """Which row of a run it is."""
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
    """The copy kernel over as many bytes as a case must move at least, over a ring as large as the case's.

    Attributes
    ----------
    case : str
    nbytes : int
        Read and written together, half of them each.
    time : Timing
    """

    case: str
    nbytes: int
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
    """What one launch did.

    Attributes
    ----------
    case, method, config, kernel : str
    dram_bytes, l2_bytes, l1_bytes : float
        Bytes read from and written to memory; that passed L2; that L1 was asked for.
    l1_hit, l2_hit : float
        Share of the 32-byte sectors that were found there.
    """

    case: str
    method: str
    config: str
    kernel: str
    dram_bytes: float
    l2_bytes: float
    l1_bytes: float
    l1_hit: float
    l2_hit: float


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profiler counted, or why it counted nothing.

    Attributes
    ----------
    counters : tuple of Counters
    reason : Reason or None
    """

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
    """One run as stored.

    Attributes
    ----------
    run, started, suite, device : str
        Id; ISO time in UTC; suite; device slug.
    machine, versions, settings : dict
    commit : str or None
    dirty : bool
    path : Path
    results : tuple of Result
    finals : tuple of Finalists
    ceilings : tuple of (str, Ceilings)
        "before" or "after" each; a resumed run has several pairs.
    copies : tuple of CopyTime
        One a case; none in runs that are older than copies.
    profile : Profile or None
        A profiler's counters; None where none was asked.
    complete : bool
        Every row was reached.
    """

    run: str
    started: str
    suite: str
    device: str
    machine: dict[str, Any]
    versions: dict[str, str]
    commit: str | None
    dirty: bool
    settings: dict[str, Any]
    path: Path
    results: tuple[Result, ...] = ()
    finals: tuple[Finalists, ...] = ()
    ceilings: tuple[tuple[str, Ceilings], ...] = ()
    copies: tuple[CopyTime, ...] = ()
    profile: Profile | None = None
    complete: bool = False

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
        """What of the machine changed while the run was under way; None where nothing did."""
        said, before = [], None
        for when, found in self.ceilings:
            if when == "before":
                before = found
            elif before is not None and (change := moved(before, found)):
                said.append(change)
        return Reason.joined(said)

    def copy_share(self, step: StepTime) -> float | None:
        """What a step moves, over what a copy moves in the same time; None where either is not known."""
        best = self.best_ceilings
        return None if best is None or step.bytes_per_s is None else step.bytes_per_s / best.copy_bytes_per_s

    def copy_of(self, case: str) -> CopyTime | None:
        """The copy of as many bytes as a case must move; None where it was not timed."""
        return next((copy for copy in self.copies if copy.case == case), None)

    def of_copy(self, result: Result, timing: Timing | None) -> float | None:
        """The bytes that a result's case must move over its time, over what a copy of as many moves in a second.

        None where either was not timed. Above 1 the method would be faster than a copy of its bytes: it is noise, or
        its data stayed in the cache.
        """
        copy = self.copy_of(result.case)
        return None if copy is None or timing is None else result.least_bytes / timing.median_s / copy.bytes_per_s

    def is_stale(self, result: Result) -> bool:
        """Whether what a result depends on has changed since, or can no longer be planned."""
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
