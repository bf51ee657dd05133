"""cuDNN: all execution plans of its graph API, each selected by its number; the default is the fastest plan.

All plans are timed on random numbers that are not in the cache. A plan that needs too much workspace, that cuDNN
refuses, or that fails when it runs stays in the list with the reason. A "way" below is a plan or an algorithm.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

from convforge.algorithms.contract import Algorithm, Buffers, Config, Plan, PreparedFilter
from convforge.algorithms.host.conv import address
from convforge.algorithms.host.pack_channels import ChannelPacker
from convforge.algorithms.traits import Mark
from convforge.backends.cuda.driver import CudaError
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason, UnsupportedProblem
from convforge.peers.contract import PeerPlan, absence, packed_address, random_array, tf32_refusal, version
from convforge.problem import Conv2dProblem

# Text in the frontend's message for a plan that deselect_numeric_notes has excluded.
_DESELECTED = "Deselecting execution plan"
_EXCLUSION = Reason("tensor cores, Winograd or FFT")
_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
# Workspace limit of a way: the device's memory divided by the first number; but at least the second, in bytes.
WORKSPACE_SHARE, LEAST_LIMIT = 4, 4 << 30
# Ways with a first timing within this factor of the best are timed again, interleaved.
CLOSE = 1.25
# Samples of each way in the first and the second timing, enough to rank; seconds after which a noisy timing ends.
FIRST_SAMPLES, FINAL_SAMPLES = 5, 15
FIRST_S, FINAL_S = 0.3, 2.0
# Seconds after which a timing ends even with fewer samples.
FIRST_BUDGET_S, FINAL_BUDGET_S = 1.0, 10.0

Outcome = Literal["run", "large", "failed", "excluded"]


@dataclass(frozen=True, slots=True)
class CudnnConfig(Config):
    """One of cuDNN's plans."""

    plan: str = "best"  # a number, or "best" for the fastest of all


class Cudnn(Algorithm[Conv2dProblem, CudnnConfig]):
    """cuDNN's convolution in the layout of the image.

    Plans that use tensor cores, Winograd's transforms or the FFT are excluded: their errors exceed what strict
    arithmetic allows.
    """

    name = "cudnn"
    summary = "cuDNN's graph API, the fastest of its plans of plain float32 arithmetic"
    operation = "conv2d"
    backend = "cuda"
    ours = False
    look = Mark("cudnn", "square", (2, 3))

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        frontend = absence("cudnn", "cuDNN's frontend", "nvidia-cudnn-frontend==1.18.0")
        if reason := tf32_refusal(self, problem) or frontend:
            return reason
        if {problem.x_dtype, problem.w_dtype, problem.out_dtype} != {problem.x_dtype} or problem.x_dtype not in _TYPES:
            return Reason("cuDNN is asked for float32, float16 and bfloat16 alone, the same for x, w and the output")
        if problem.padding_mode != "zeros" or not problem.epilogue.is_plain:
            return Reason("cuDNN pads with zeros, and is measured without an epilogue")
        if problem.x_layout != problem.out_layout:
            return Reason("x is {x_layout} and the output {out_layout}; cuDNN is asked for one layout",
                          x_layout=problem.x_layout, out_layout=problem.out_layout)  # fmt: skip
        if not problem.n * problem.p * problem.q:
            return Reason("cuDNN takes no empty batch")
        try:
            _graph(problem, self.precision)
        except LibraryFault as fault:
            return Reason("cuDNN has no plan for it: {fault}", fault=str(fault))
        return None

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[CudnnConfig]:
        """Configs: "best" first, then one for each plan's number."""
        count = _graph(problem, self.precision).count
        return [CudnnConfig(), *(CudnnConfig(str(number)) for number in range(count))]

    def plan(self, problem: Conv2dProblem, config: CudnnConfig, runtime: Runtime) -> Plan:
        """Make a plan; raises UnsupportedProblem, with cuDNN's message, if cuDNN refuses this plan or all plans."""
        graph = _graph(problem, self.precision)
        found = graph.best(problem, runtime) if config.plan == "best" else None
        if found is not None and found.best is None:
            raise UnsupportedProblem(
                str(problem), {self.name: Reason("none of cuDNN's plans can be run: {words}", words=found.words)}
            )
        number = int(config.plan) if found is None or found.best is None else found.best
        try:
            name, workspace_bytes = graph.build(number)
        except LibraryFault as fault:
            raise UnsupportedProblem(str(problem), {self.name: Reason.quoted(str(fault))}) from fault

        def compute(buffers: Buffers, stream: Any) -> Any:
            graph.execute(number, buffers, runtime, stream)
            return buffers["out"]

        plan_name = Reason("plan {name}", name=f"{number}: {name}")
        note = Reason.joined([plan_name, found.words] if found else [plan_name])
        prepare = CudnnFilter(problem, runtime, note)
        plan = PeerPlan(self, problem, config, runtime, compute=compute, prepare=prepare, kernel=f"{number}: {name}",
                        workspace_bytes=workspace_bytes)  # fmt: skip
        plan.takes_gaps = False
        if found is not None:
            plan.choice, plan.ways = found.words, found.table()
        return plan

    def versions(self) -> dict[str, str]:
        import cudnn

        return {"cudnn": str(cudnn.backend_version()), "cudnn-frontend": version("nvidia-cudnn-frontend")}


class CudnnTf32(Cudnn):
    """cuDNN's convolution with tensor cores allowed: float32 factors may be rounded to TF32."""

    name = "cudnn_tf32"
    summary = "cuDNN's graph API, the fastest of all its plans"
    precision = "tf32"
    look = Mark("cudnn", "triangle-right", (2, 3))


class CudnnFilter:
    """Prepare filters: with an NHWC image, cuDNN needs channels-last filters too.

    The order of taps does not change, because cuDNN flips filters itself. `note` tells the caller which plan runs.
    """

    def __init__(self, problem: Conv2dProblem, runtime: Runtime, note: Reason | None) -> None:
        self._note = note
        self._packer = None
        if problem.x_layout == "NHWC":
            self._packer = ChannelPacker(problem.replace(mode="cross-correlation"), runtime)

    def __call__(self, w: Any, stream: Any = None) -> PreparedFilter:
        packed = w if self._packer is None else self._packer(w, stream).tensors["w"]
        return PreparedFilter({"w": packed}, packed.nbytes, self._note)

    def borrow(self, w: Any, stream: Any = None) -> PreparedFilter:
        """Prepare without a copy if the filter is already channels-last."""
        size, (_, c, r, s) = w.itemsize, w.shape
        if self._packer is not None and tuple(w.strides) == (c * r * s * size, size, c * s * size, c * size):
            return PreparedFilter({"w": w.transpose(0, 2, 3, 1)}, 0, self._note)
        return self(w, stream)


class _Graph:
    """cuDNN's graph of a convolution; builds each plan on first use."""

    def __init__(self, problem: Conv2dProblem, precision: str) -> None:
        import cudnn

        self._lock = threading.Lock()
        with _faults():  # no GPU, or no plan
            self._handle = cudnn.create_handle()
            self._graph = self._described(problem, precision)
            self.count = int(self._graph.get_execution_plan_count())
        self._built: dict[int, tuple[str, int]] = {}
        self._found: ShortList | None = None

    def _described(self, problem: Conv2dProblem, precision: str) -> Any:
        import cudnn

        kind = getattr(cudnn.data_type, _TYPES[problem.x_dtype])
        graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=cudnn.data_type.FLOAT,
                              compute_data_type=cudnn.data_type.FLOAT, handle=self._handle)  # fmt: skip
        x_shape = (problem.n, problem.c, problem.h, problem.w)
        w_shape = (problem.k, problem.c_per_group, problem.r, problem.s)
        last = problem.x_layout == "NHWC"
        self._x = graph.tensor(name="x", dim=list(x_shape), stride=_strides(x_shape, last), data_type=kind)
        self._w = graph.tensor(name="w", dim=list(w_shape), stride=_strides(w_shape, last), data_type=kind)
        top, bottom, left, right = problem.padding
        modes = cudnn._pybind_module.convolution_mode  # not exported
        self._out = graph.conv_fprop(
            image=self._x, weight=self._w, pre_padding=[top, left], post_padding=[bottom, right],
            stride=list(problem.stride), dilation=list(problem.dilation),
            convolution_mode=modes.CONVOLUTION if problem.mode == "convolution" else modes.CROSS_CORRELATION,
        )  # fmt: skip
        out_shape = (problem.n, problem.k, problem.p, problem.q)
        self._out.set_output(True).set_data_type(kind).set_dim(list(out_shape)).set_stride(_strides(out_shape, last))
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK])
        if precision == "strict" and problem.x_dtype == "float32":
            notes = cudnn.numerical_note
            graph.deselect_numeric_notes([notes.TENSOR_CORE, notes.WINOGRAD, notes.FFT])
        graph.check_support()
        return graph

    def name(self, number: int) -> str:
        """cuDNN's name of a plan, which need not be built."""
        with _faults():
            return str(self._graph.get_plan_name_at_index(number))

    def build(self, number: int) -> tuple[str, int]:
        """Build a plan and return its name and workspace in bytes; raises LibraryFault if cuDNN refuses it."""
        with self._lock:
            if number not in self._built:
                with _faults():
                    self._graph.build_plan_at_index(number)
                    nbytes = int(self._graph.get_workspace_size_plan_at_index(number))
                self._built[number] = self.name(number), nbytes
            return self._built[number]

    def execute(self, number: int, buffers: Buffers, runtime: Any, stream: Any) -> None:
        """Run a plan on a stream; raises LibraryFault if cuDNN refuses it."""
        import cudnn

        with self._lock:
            cudnn.set_stream(handle=self._handle, stream=runtime.stream_handle(stream))
            w = packed_address(buffers["w"].tensors["w"], "cuDNN")
            places = {self._x: packed_address(buffers["x"], "cuDNN"), self._w: w,
                      self._out: packed_address(buffers["out"], "cuDNN")}  # fmt: skip
            room = buffers.get("workspace")
            workspace = 0 if room is None else address(room)
            with _faults():
                self._graph.execute_plan_at_index(places, workspace, number, self._handle)

    def best(self, problem: Conv2dProblem, runtime: Runtime) -> ShortList:
        if self._found is None:
            self._found = short_list(
                problem, runtime, [f"{number}: {self.name(number)}" for number in range(self.count)],
                build=lambda number: self.build(number)[1],
                execute=lambda number, buffers: self.execute(number, buffers, runtime, None),
                noun="plans", exclusion=_EXCLUSION,
            )  # fmt: skip
        return self._found


@contextmanager
def _faults() -> Iterator[None]:
    """Convert the frontend's exceptions to a LibraryFault with their message; other exceptions pass unchanged."""
    import cudnn

    try:
        yield
    except (RuntimeError, cudnn.cudnnGraphNotSupportedError) as fault:
        text = " ".join(str(fault).split()) or type(fault).__name__
        raise (Excluded if _DESELECTED in text else LibraryFault)(text) from fault


@lru_cache(maxsize=64)
def _graph(problem: Conv2dProblem, precision: str) -> _Graph:
    return _Graph(problem.replace(precision="strict"), precision)


def _strides(shape: tuple[int, ...], channels_last: bool) -> list[int]:
    _, c, h, w = shape
    return [c * h * w, 1, w * c, c] if channels_last else [c * h * w, h * w, w, 1]


class LibraryFault(RuntimeError):
    """The library refused a call; the text is its message."""


class Excluded(LibraryFault):
    """The caller excluded this way, for example because of its arithmetic."""


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    outcome: Outcome
    reason: str = ""  # why it did not run; else empty
    seconds: float | None = None  # median time of a call

    @property
    def words(self) -> str:
        """Time of a call, or the reason why there is none."""
        return f"{1e6 * self.seconds:.4g} us" if self.seconds is not None else self.reason


@dataclass(frozen=True, slots=True)
class ShortList:
    ways: tuple[Way, ...]
    best: int | None  # index of the fastest; None if none runs
    noun: str  # the library's name for its ways: "plans" or "algorithms"
    limit_bytes: int  # limit of a way's workspace
    exclusion: Reason | None = None  # the common property of the excluded ways

    @property
    def words(self) -> Reason:
        """Number of ways with each outcome, as a sentence.

        Examples
        --------
        >>> ways = (Way("a", "run", "", 1e-6), Way("b", "large", "wants 9 GiB"), Way("c", "failed", "no such shape"))
        >>> ways = (*ways, Way("d", "excluded", ""))
        >>> print(ShortList(ways, 0, "plans", 8 << 30, Reason("tensor cores")).words)
        3 plans: 1 run, 1 wants more than 8 GiB of workspace, 1 failed: no such shape; excluded: tensor cores, 1
        """
        by = {o: [w for w in self.ways if w.outcome == o] for o in ("run", "large", "failed", "excluded")}
        total = len(self.ways) - len(by["excluded"])
        said, rest = _counted(self.noun, total, len(by["run"])), list[Reason]()
        if large := len(by["large"]):
            limit = gib(self.limit_bytes)
            one = Reason("{count} wants more than {limit} of workspace", count=large, limit=limit)
            many = Reason("{count} want more than {limit} of workspace", count=large, limit=limit)
            rest.append(one if large == 1 else many)
        failed = Counter(way.reason for way in by["failed"])
        rest += [Reason("{count} failed: {reason}", count=count, reason=reason) for reason, count in failed.items()]
        for outcome in rest:
            said = Reason("{first}, {rest}", first=said, rest=outcome)
        if self.exclusion is None or not by["excluded"]:
            return said
        excluded = Reason("excluded: {what}, {count}", what=self.exclusion, count=len(by["excluded"]))
        return Reason("{first}; {rest}", first=said, rest=excluded)

    def table(self) -> tuple[tuple[str, str, str], ...]:
        return tuple((way.name, way.outcome, way.words) for way in self.ways)


def _counted(noun: str, count: int, run: int) -> Reason:
    counts = {"count": count, "run": run}
    if noun == "plans":
        one, many = Reason("{count} plan: {run} run", **counts), Reason("{count} plans: {run} run", **counts)
    else:
        one = Reason("{count} algorithm: {run} run", **counts)
        many = Reason("{count} algorithms: {run} run", **counts)
    return one if count == 1 else many


def gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.3g} GiB"


def workspace_limit(facts: DeviceFacts) -> int:
    return max(facts.memory_bytes // WORKSPACE_SHARE, LEAST_LIMIT)


def short_list(
    problem: Conv2dProblem,
    runtime: Runtime,
    names: Sequence[str],
    build: Callable[[int], int],
    execute: Callable[[int, Buffers], None],
    *,
    noun: str,
    exclusion: Reason | None = None,
) -> ShortList:
    """Try every way (plan or algorithm of a library), and time those that run.

    An index in `names` identifies a way. `build` prepares it and returns its workspace in bytes; `execute` runs it on
    the buffers of a call. Both raise :class:`LibraryFault` if the library refuses.
    """
    from convforge.timing.ring import Cycle
    from convforge.timing.stopping import StoppingRule
    from convforge.timing.timer import interleave, measure

    limit, slots = workspace_limit(runtime.facts), _slots(problem, runtime)
    ways, needs = list[Way](), dict[int, int]()

    def cycle(number: int, workspace: Any) -> Cycle:
        calls = [{"x": x, "w": PreparedFilter({"w": w}, 0), "out": out, "workspace": workspace} for x, w, out in slots]
        return Cycle(len(calls), lambda i: execute(number, calls[i]))

    rule = StoppingRule(samples=FIRST_SAMPLES, patience_s=FIRST_S, budget_s=FIRST_BUDGET_S)
    for number, name in enumerate(names):
        try:
            needs[number] = build(number)
            if needs[number] > limit:
                ways.append(Way(name, "large", f"wants {gib(needs[number])} of workspace; the limit is {gib(limit)}"))
                continue
            run = cycle(number, runtime.allocate(needs[number]) if needs[number] else None)
            run()
            runtime.synchronize()
            ways.append(Way(name, "run", "", measure(run, runtime, rule).median_s))
        except Excluded as fault:
            ways.append(Way(name, "excluded", _line(fault)))
        except (LibraryFault, CudaError, MemoryError) as fault:
            ways.append(Way(name, "failed", _line(fault)))
    taken = {number: way.seconds for number, way in enumerate(ways) if way.seconds is not None}
    if not taken:
        return ShortList(tuple(ways), None, noun, limit, exclusion)

    close = [number for number, seconds in taken.items() if seconds <= CLOSE * min(taken.values())]
    best = close[0]
    if len(close) > 1:
        most = max(needs[number] for number in close)  # one workspace for all: they run one after the other
        workspace = runtime.allocate(most) if most else None
        final = StoppingRule(samples=FINAL_SAMPLES, patience_s=FINAL_S, budget_s=FINAL_BUDGET_S)
        runs = [cycle(number, workspace if needs[number] else None) for number in close]
        timings = dict(zip(close, interleave(runs, runtime, final), strict=True))
        for number, timing in timings.items():
            ways[number] = Way(names[number], "run", "", timing.median_s)
        best = min(close, key=lambda number: timings[number].median_s)
    return ShortList(tuple(ways), best, noun, limit, exclusion)


def _slots(problem: Conv2dProblem, runtime: Runtime) -> list[tuple[Any, Any, Any]]:
    """Make x, w and output for each call of a ring, which is so large that no call finds its data in the cache."""
    from convforge.timing.ring import ring_limit, ring_size

    new = partial(random_array, runtime=runtime)
    x, w = new(problem.x_shape, problem.x_dtype, seed=0), new(problem.w_shape, problem.w_dtype, seed=1)
    out = runtime.empty(problem.out_shape, problem.out_dtype)
    slots = [(x, w, out)]
    count = ring_size(x.nbytes + w.nbytes + out.nbytes, runtime.facts, ring_limit(runtime.facts)).slots
    for seed in range(2, 2 * count, 2):
        x, w = new(problem.x_shape, problem.x_dtype, seed=seed), new(problem.w_shape, problem.w_dtype, seed=seed + 1)
        slots.append((x, w, runtime.empty(problem.out_shape, problem.out_dtype)))
    return slots


def _line(fault: BaseException) -> str:
    return " ".join(str(fault).split()) or type(fault).__name__
