"""Tables that others published, as runs: the rules read them as they read ours, and a report can set them beside ours.

A figure of theirs is one sample without a spread, taken by their own clocks; each table says what is known of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from convforge.benchmark.records import Result, Run
from convforge.course.studies.finding import Finding
from convforge.course.studies.study import Study
from convforge.problem import parse_problem
from convforge.timing.ceilings import Ceilings
from convforge.timing.timer import Timing

# Rules about the fastest of all methods: they rest on every figure, and not on those of the fastest alone.
OF_ALL = frozenset(
    {"ahead", "winner-by-size", "winner-by-stride", "call-floor", "growth", "gpu-worth-it", "stride-saves", "filling"}
)


@dataclass(frozen=True, slots=True)
class Doubt:
    """A known or possible fault of figures, in English, and the methods whose figures they are."""

    words: str
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """A published table; `about` says in English what was measured, and on which card."""

    name: str
    about: str
    doubts: tuple[Doubt, ...]
    run: Run

    def findings(self, study: Study) -> list[Finding]:
        """The findings of a study's rules; those on a doubtful figure are not supported."""
        doubted = {method for doubt in self.doubts for method in doubt.methods}
        every = {r.algorithm for r in self.run.results}

        def sound(finding: Finding) -> bool:
            return doubted.isdisjoint(every if finding.rule in OF_ALL else (datum.method for datum in finding.data))

        return [replace(f, supported=f.supported and sound(f)) for f in study.findings(self.run)]


def _run(name: str, device: str, results: Iterable[Result], peak: float | None = None) -> Run:
    # A copy bandwidth was published with none of them: it is left at zero, and no rule divides by it.
    ceilings = () if peak is None else (("before", Ceilings(0.0, peak)),)
    facts = {"backend": "cuda", "name": device}
    return Run(
        run=f"published-{name}", started="", suite=f"published-{name}", device=device, machine={"facts": facts},
        versions={}, commit=None, dirty=False, settings={}, path=Path(f"published-{name}"), results=tuple(results),
        ceilings=ceilings, complete=True,
    )  # fmt: skip


def _result(case: str, problem: str, method: str, ms: float, *, config: str = "", backend: str = "cuda") -> Result:
    parsed = parse_problem(problem)
    return Result(
        case=case, problem=problem, operation=parsed.operation, algorithm=method, backend=backend,
        ours=not method.startswith("cu"), precision="strict", config=config, status="ok",
        time=Timing((1e-3 * ms,), few=True), flops=parsed.flops, least_bytes=parsed.least_bytes,
    )  # fmt: skip


def _rgb(size: int, stride: int, outputs: int, padding: int) -> str:
    return f"n1c3h{size}w{size}_k{outputs}r3s3_st{stride}_p{padding}_f32_nchw"


# Size -> ms of the CPU's loop, direct, im2col, cuDNN; then direct, im2col, cuDNN with the filter in constant memory.
_A = {
    128: (1.011, 0.022, 0.017, 0.012, 0.028, 0.017, 0.012),
    256: (4.188, 0.039, 0.029, 0.020, 0.042, 0.031, 0.022),
    512: (17.433, 0.067, 0.047, 0.040, 0.050, 0.035, 0.026),
    1024: (72.873, 0.136, 0.110, 0.095, 0.120, 0.089, 0.062),
    2048: (307.706, 0.478, 0.284, 0.138, 0.366, 0.251, 0.113),
}
_A_METHODS = ("direct_naive", "im2col", "cudnn", "direct_constant", "im2col_constant", "cudnn_second_run")
# M = N = K -> (ms, block) of global memory, ms of shared memory with blocks of 16 x 16, ms of cuBLAS.
_B = {
    512: ((0.0835, 32), 0.0466, 0.1022),
    1024: ((0.4403, 32), 0.2939, 0.3960),
    2048: ((3.4195, 32), 2.3404, 2.8080),
    4096: ((27.0892, 16), 18.5687, 22.0593),
    8192: ((243.413, 32), 141.881, 169.004),
}
_B_PEAK = 82.6e12
# Size -> ms of the sliding window, of im2col with cuBLAS and of cuDNN, at strides 1, 2 and 3.
_C: Mapping[int, Mapping[str, tuple[float, ...]]] = {
    512: {"direct_naive": (7.71, 7.90, 9.81), "im2col": (2972, 1231, 1314), "cudnn": (826, 811, 739)},
    1024: {"direct_naive": (26.4, 34.0, 30.1), "im2col": (976, 689, 921), "cudnn": (917, 732, 780)},
    2048: {"direct_naive": (104.5, 108.4, 105.4), "im2col": (6212, 2188, 2944), "cudnn": (872, 805, 774)},
    4096: {"direct_naive": (445, 417, 435), "im2col": (24703, 10238, 13833), "cudnn": (1060, 972, 951)},
    8192: {"direct_naive": (1764, 1576, 1717), "im2col": (), "cudnn": (4997, 1728, 1832)},
}
# Size -> GFLOP/s of the sliding window, im2col and cuDNN, at strides 1, 2 and 3.
_D = {
    128: ((9.42, 9.34, 1.67), (3.17, 3.65, 0.44), (1.46, 1.74, 0.20)),
    256: ((16.77, 8.91, 5.34), (7.26, 6.15, 1.52), (3.97, 3.79, 0.73)),
    512: ((19.76, 10.95, 12.18), (9.59, 7.33, 4.83), (5.08, 4.64, 2.33)),
    1024: ((18.90, 14.93, 20.34), (12.55, 9.08, 9.38), (6.92, 6.19, 5.06)),
    2048: ((23.99, 14.96, 22.40), (14.95, 10.85, 12.69), (7.91, 7.30, 7.00)),
}
_THREE = ("direct_naive", "im2col", "cudnn")


def _table_a() -> Iterable[Result]:
    for size, (loop, *rest) in _A.items():
        problem = _rgb(size, 1, 1, 0)
        yield _result(f"rgb_to_1_{size}_s1_host", problem, "direct_naive", loop, backend="cpu")
        for method, ms in zip(_A_METHODS, rest, strict=True):
            yield _result(f"rgb_to_1_{size}_s1", problem, method, ms)


def _table_b() -> Iterable[Result]:
    for size, ((naive, block), shared, library) in _B.items():
        case, problem = f"square_{size}", f"m{size}n{size}k{size}_f32"
        yield _result(case, problem, "gemm_naive", naive, config=f"block_x={block},block_y={block}")
        yield _result(case, problem, "gemm_shared", shared, config="block=16")
        yield _result(case, problem, "cublas", library)


def _table_c() -> Iterable[Result]:
    for size, methods in _C.items():
        for method, times in methods.items():
            for stride, ms in enumerate(times, 1):
                yield _result(f"rgb_to_1_{size}_s{stride}", _rgb(size, stride, 1, 1), method, ms)


def _table_d() -> Iterable[Result]:
    for size, strides in _D.items():
        for stride, rates in enumerate(strides, 1):
            problem = _rgb(size, stride, 3, 1)
            for method, gflops in zip(_THREE, rates, strict=True):
                ms = parse_problem(problem).flops / gflops / 1e6
                yield _result(f"rgb_to_3_{size}_s{stride}", problem, method, ms)


TABLES = {
    "A": Published(
        "A", "RGB image to one channel, 3x3, float32, ms; the GPU is not named",
        (Doubt("direct and im2col ran without padding, cuDNN with a padding of 1 and a flipped filter",
               ("cudnn", "cudnn_second_run")),
         Doubt("these times, with the filter in constant memory, are not those of their own raw log: there im2col "
               "takes about 40 ms from 256 pixels a side on, and cuDNN 557 ms once and then 4 us, which is what a "
               "host's clock shows that is read without waiting for the kernel",
               ("direct_constant", "im2col_constant", "cudnn_second_run"))),
        _run("A", "a GPU that is not named", _table_a()),
    ),
    "B": Published(
        "B", "float32 matrix product on an RTX 4090, ms at the best block size of each",
        (Doubt("cuBLAS printed a matrix that differs from that of the other kernels, so its time may be that of "
               "another product", ("cublas",)),),
        _run("B", "RTX 4090", _table_b(), _B_PEAK),
    ),
    "C": Published(
        "C", "RGB, 3x3, on an RTX 4090, ms by stride",
        (Doubt("the host's work is inside, im2col was expanded on the CPU, and cuDNN's time holds the creation of its "
               "handle", _THREE),),
        _run("C", "RTX 4090", _table_c()),
    ),
    "D": Published(
        "D", "RGB to RGB, 3x3, on a GTX 1050, GFLOP/s by stride",
        (Doubt("cuDNN's search for an algorithm is inside its time", ("cudnn",)),),
        _run("D", "GTX 1050", _table_d()),
    ),
}  # fmt: skip
