"""The cost model: how long a method should take on a device, by the larger of its arithmetic and its traffic.

It ranks methods before anything is compiled, and decides only what is measured first and what not at all; what is
chosen is measured. So each method has four figures, read off stored results, and what it does besides the direct
method's work: im2col writes and reads its matrix, transforms save products.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from convforge.algorithms import AnyAlgorithm
from convforge.algorithms.contract import Plan
from convforge.backends.architecture import Architecture
from convforge.backends.facts import DeviceFacts
from convforge.problem import Conv2dProblem, GemmProblem, Problem
from convforge.problem.types import itemsize

# Multiply-adds that a multiprocessor begins in a clock: 64 on these architectures, 128 on all others.
HALF_WIDTH = (60, 70, 75, 80)
WIDTH = 128
# Of what the driver states, this much is reached; where it states nothing, these figures of a recent card stand in.
REACHED = 0.9
CLOCK_HZ, FLOPS_PER_BYTE = 1.5e9, 25.0
# A CPU core: two multiply-adds of vectors in a clock, and its part of the memory's bandwidth.
CPU_CLOCK_HZ, CPU_BYTES_PER_S, MOST_CPU_BYTES_PER_S = 3e9, 13e9, 300e9
LAUNCH_S = {"cpu": 5e-6, "cuda": 1.5e-6, "emulator": 1.5e-6}
# Planes that keep a GPU busy where a block has whole ones; and operations of tensor cores that would take as long as
# beginning one there.
BUSY_PLANES, PLANE_FLOPS = 512, 1 << 15
# Threads of a multiprocessor below which an occupancy no longer hides what memory and arithmetic take.
BUSY_OCCUPANCY = 0.25


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device does in a second, and seconds of one launch."""

    flops_per_s: float
    bytes_per_s: float
    launch_s: float


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs and bytes that a method takes for a problem."""

    flops: float
    moved: float


@dataclass(frozen=True, slots=True)
class Method:
    """What the model knows of a method.

    Attributes
    ----------
    arithmetic, memory : float
        Shares of the device's peak and of its bandwidth that its kernels come to where that is the limit.
    outputs : int
        Outputs that keep a multiprocessor busy; with fewer it is idle in part. 1 on a CPU.
    launches : int
        Of a call, the preparation of the weights included.
    work : callable
        Problem -> Work.
    """

    arithmetic: float
    memory: float
    outputs: int
    launches: int
    work: Callable[[Problem], Work]


def predicted_s(algorithm: AnyAlgorithm, problem: Problem, facts: DeviceFacts, plan: Plan | None = None) -> float:
    """Seconds that a call should take.

    Parameters
    ----------
    plan : Plan, optional
        Where it is there, its own launches and their occupancy count instead of what is usual.

    Examples
    --------
    >>> from convforge.algorithms import find
    >>> from convforge.backends.cpu import cpu_facts
    >>> from convforge.problem import parse_problem
    >>> problem = parse_problem("n1c64h56w56_k64r3s3_p1_f32_nchw")
    >>> naive, implicit = (find("conv2d", "cpu", name) for name in ("direct_naive", "implicit_gemm"))
    >>> predicted_s(naive, problem, cpu_facts()) > 10 * predicted_s(implicit, problem, cpu_facts())
    True
    """
    rates = rates_of(facts)
    table = ON_CPU if facts.backend == "cpu" else ON_GPU
    method = table.get(algorithm.name, OTHER)
    work, launches, share = method.work(problem), method.launches, method.arithmetic
    if facts.backend != "cpu":
        share *= min(1.0, outputs_of(problem) / (method.outputs * facts.cores))
    if plan is not None:
        launches = max(launches, len(plan.launches))
        occupancy = min((i.occupancy for i in plan.launches if i.occupancy is not None), default=1.0)
        share *= min(1.0, max(occupancy, 0.01) / BUSY_OCCUPANCY)
    arithmetic_s = work.flops / (rates.flops_per_s * max(share, 1e-6))
    memory_s = work.moved / (rates.bytes_per_s * method.memory)
    return launches * rates.launch_s + max(arithmetic_s, memory_s)


def rates_of(facts: DeviceFacts) -> Rates:
    """Rates of a device, from its facts.

    Examples
    --------
    >>> gpu = DeviceFacts("cuda", "G", 100, 0, 0, 0, 0, 16, "sm_90", clock_hz=10**9, memory_bytes_per_s=10**12)
    >>> f"{rates_of(gpu).flops_per_s:.3g} {rates_of(gpu).bytes_per_s:.3g}"
    '2.3e+13 9e+11'
    """
    launch_s = LAUNCH_S[facts.backend]
    if facts.backend == "cpu":
        lanes = max(facts.vector_bytes // 4, 4)
        copied = min(facts.cores * CPU_BYTES_PER_S, MOST_CPU_BYTES_PER_S)
        return Rates(facts.cores * lanes * 4 * CPU_CLOCK_HZ, copied, launch_s)
    width = WIDTH // 2 if Architecture.parse(facts.architecture).number in HALF_WIDTH else WIDTH
    flops = REACHED * 2 * width * facts.cores * (facts.clock_hz or CLOCK_HZ)
    moved = REACHED * facts.memory_bytes_per_s if facts.memory_bytes_per_s else flops / FLOPS_PER_BYTE
    return Rates(flops, moved, launch_s)


def outputs_of(problem: Problem) -> int:
    """Elements of the output."""
    if isinstance(problem, GemmProblem):
        return problem.m * problem.n
    return problem.n * problem.k * problem.p * problem.q if isinstance(problem, Conv2dProblem) else problem.flops


def _direct(problem: Problem) -> Work:
    """Every product, and everything read and written once."""
    return Work(problem.flops, problem.least_bytes)


def _by_plane(problem: Problem) -> Work:
    """The same, where a block takes 16 x 128 outputs of one plane: small planes leave threads idle.

    In NHWC a plane's pixels lie among those of others, of which up to eight are loaded along.
    """
    work = _by_box(problem)
    if isinstance(problem, Conv2dProblem) and problem.groups == problem.c > 1 and problem.x_layout == "NHWC":
        return Work(work.flops, work.moved * min(problem.c, 8))
    return work


def _by_box(problem: Problem) -> Work:
    """The same, where pixels of all channels come in one box."""
    work = _direct(problem)
    if not isinstance(problem, Conv2dProblem) or problem.groups != problem.c or problem.c == 1:
        return work
    idle = -(-problem.p // 16) * 16 * -(-problem.q // 128) * 128 / max(problem.p * problem.q, 1)
    return Work(work.flops * idle, work.moved)


def _by_tile(problem: Problem) -> Work:
    """Tiles are as wide as the plane; in NHWC lines are read for the sake of a few neighbouring planes."""
    work = _direct(problem)
    apart = isinstance(problem, Conv2dProblem) and problem.x_layout == "NHWC" and problem.c > 1
    return Work(work.flops, work.moved * (2 if apart else 1))


def _by_whole_plane(problem: Problem) -> Work:
    """The same without products that fall on a border of zeros: of a filter no more rows and columns than pixels.

    A block has whole planes, so that few of them leave most multiprocessors idle.
    """
    work = _direct(problem)
    if not isinstance(problem, Conv2dProblem):
        return work
    seen = min(problem.r, max(problem.h, 1)) * min(problem.s, max(problem.w, 1))
    idle = _idle_for_planes(problem)
    return Work(work.flops * seen / max(problem.r * problem.s, 1) * idle, work.moved * idle)


def _idle_for_planes(problem: Conv2dProblem) -> float:
    """How much longer it takes where there are too few planes."""
    return max(1.0, BUSY_PLANES / max(problem.n * problem.c, 1))


def _by_matrix(problem: Problem) -> Work:
    """Eight outputs take a product of 16 pixels or more with each row of the filter; planes are begun one by one."""
    work = _direct(problem)
    if not isinstance(problem, Conv2dProblem):
        return work
    planes = problem.n * problem.c
    window = 7 * problem.stride[1] + problem.extent_w + problem.padding[2] % 2
    products = problem.p * -(-problem.q // 8) * 8 * problem.r * -(-window // 16) * 16
    idle = _idle_for_planes(problem)
    return Work(planes * (2 * products + PLANE_FLOPS) * idle, work.moved * idle)


def _by_pictures(problem: Problem) -> Work:
    """The same, where 16 windows of a row, of several pictures, go down together: fewer leave products empty."""
    work = _direct(problem)
    if not isinstance(problem, Conv2dProblem):
        return work
    windows = max(1, -(-problem.q // 8))
    span = min(7 * problem.stride[1] + problem.extent_w, problem.w if windows == 1 else 64)
    full = max(1.0, 16 / (max(problem.n, 1) * windows))
    products = problem.p * windows * 8 * problem.r * -(-span // 16) * 16 * full
    idle = _idle_for_planes(problem)
    return Work(problem.n * problem.c * 2 * products * idle, work.moved * idle)


def _by_load(problem: Problem) -> Work:
    """A thread takes as long as its loads: pixels that it has serve up to four output channels for nothing."""
    work = _direct(problem)
    served = min(problem.k_per_group, 4) if isinstance(problem, Conv2dProblem) else 1
    return Work(work.flops / served, work.moved)


def _by_rows(problem: Problem) -> Work:
    """A product of a tensor core takes a row of the filter, however long: as many operations as for ten taps."""
    work = _direct(problem)
    return Work(work.flops * 10 / max(problem.s, 1), work.moved) if isinstance(problem, Conv2dProblem) else work


def _blocked(problem: Problem) -> Work:
    """The same in blocks of 32 filters, which are computed whole."""
    if not isinstance(problem, Conv2dProblem):
        return _direct(problem)
    k = problem.k_per_group
    return Work(problem.flops * -(-k // 32) * 32 / max(k, 1), problem.least_bytes)


def _expanded(problem: Problem) -> Work:
    """The matrix of windows is written and read besides."""
    if not isinstance(problem, Conv2dProblem):
        return _direct(problem)
    windows = problem.n * problem.c * problem.r * problem.s * problem.p * problem.q * itemsize(problem.acc_dtype)
    return Work(_blocked(problem).flops, problem.least_bytes + 2 * windows)


def _winograd(tile: int) -> Callable[[Problem], Work]:
    """(m + 2)^2 products give m^2 outputs of 9 products each; transformed tiles are written and read."""
    grown = ((tile + 2) / tile) ** 2

    def work(problem: Problem) -> Work:
        return Work(problem.flops * grown / 9, (1 + 2 * grown) * problem.least_bytes)

    return work


def _fourier(planes: int) -> Callable[[Problem], Work]:
    """2.5 N log2 N operations a real transform, of tiles that overlap by half; `planes` passes over memory."""

    def work(problem: Problem) -> Work:
        assert isinstance(problem, Conv2dProblem)
        points = 2.0 * problem.n * problem.padded_h * problem.padded_w
        extent = max(problem.extent_h, problem.extent_w, 2)
        transforms = 2.5 * 2 * math.log2(4 * extent) * points * (problem.c + problem.k)
        products = 4.0 * points * problem.k * problem.c_per_group
        return Work(transforms + products, problem.least_bytes + 4.0 * planes * points * (problem.c + problem.k))

    return work


def _separable(problem: Problem) -> Work:
    """Two passes of a filter of rank one, the least that there can be."""
    assert isinstance(problem, Conv2dProblem)
    return Work(problem.flops * (problem.r + problem.s) / max(problem.r * problem.s, 1), problem.least_bytes)


# A method that is not listed is taken for a good one, so that it gets measured.
OTHER = Method(0.5, 0.9, 2048, 1, _direct)
ON_GPU: dict[str, Method] = {
    "direct_naive": Method(0.10, 0.4, 1024, 2, _by_plane),
    "direct_constant": Method(0.11, 0.45, 1024, 2, _by_plane),
    "direct_shared": Method(0.28, 0.6, 1024, 2, _by_plane),
    "direct_tiled": Method(0.42, 0.9, 2048, 1, _by_plane),
    "direct_boxes": Method(0.50, 0.9, 2048, 1, _by_box),
    "direct_small": Method(0.05, 0.95, 256, 1, _by_load),
    "direct_mma": Method(1.0, 0.8, 4096, 1, _by_rows),
    "depthwise_channels": Method(0.17, 0.8, 2048, 1, _direct),
    "depthwise_planes": Method(0.50, 0.9, 2048, 1, _by_tile),
    "depthwise_rows": Method(0.55, 0.9, 2048, 1, _by_whole_plane),
    "depthwise_mma": Method(1.7, 0.9, 2048, 1, _by_matrix),
    "depthwise_batch": Method(2.0, 0.9, 2048, 1, _by_pictures),
    "im2col": Method(0.55, 0.8, 2048, 3, _expanded),
    "implicit_gemm": Method(0.62, 0.8, 8192, 2, _blocked),
    "fft": Method(0.30, 0.7, 4096, 5, _fourier(3)),
    "fft_fused": Method(0.30, 0.7, 4096, 2, _fourier(0)),
    "separable": Method(0.40, 0.6, 2048, 2, _separable),
    "gemm_naive": Method(0.09, 0.4, 1024, 1, _direct),
    "gemm_shared": Method(0.10, 0.4, 1024, 1, _direct),
    "gemm_tile_1d": Method(0.35, 0.5, 4096, 1, _direct),
    "gemm_tile_2d": Method(0.48, 0.5, 8192, 1, _direct),
    "gemm_vectorised": Method(0.70, 0.6, 8192, 1, _direct),
    "gemm_warp_tiled": Method(0.77, 0.6, 8192, 1, _direct),
}
ON_CPU: dict[str, Method] = {
    "direct_naive": Method(0.004, 0.03, 1, 1, _direct),
    "direct_rows": Method(0.30, 0.4, 1, 1, _direct),
    "depthwise": Method(0.40, 0.5, 1, 1, _direct),
    "gemm_1x1": Method(0.60, 0.4, 1, 2, _direct),
    "im2col": Method(0.50, 0.2, 1, 6, _direct),
    "implicit_gemm": Method(0.60, 0.4, 1, 2, _direct),
    "winograd_f2": Method(0.27, 0.4, 1, 2, _winograd(2)),
    "winograd_f4": Method(0.27, 0.4, 1, 2, _winograd(4)),
    "fft": Method(0.10, 0.4, 1, 2, _fourier(3)),
    "separable": Method(0.25, 0.4, 1, 1, _separable),
    "gemm_loops": Method(0.02, 0.1, 1, 1, _direct),
    "gemm_blocked": Method(0.30, 0.4, 1, 1, _direct),
    "gemm_blas": Method(0.78, 0.5, 1, 1, _direct),
}
