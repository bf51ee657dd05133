"""The cost model: it predicts a method's time as the larger of arithmetic time and memory time, plus launches.

It ranks methods before anything is compiled; measurements decide later. A method gives four figures and its work.
"""

from __future__ import annotations

from typing import NamedTuple

from convforge.algorithms import AnyAlgorithm
from convforge.algorithms.contract import Plan
from convforge.backends.architecture import Architecture
from convforge.backends.facts import DeviceFacts
from convforge.problem import Problem

# Multiply-adds that an SM issues per clock: 64 on these architectures, 128 on all others.
HALF_WIDTH = (60, 70, 75, 80)
WIDTH = 128
# Share of the driver's figures that kernels reach; figures of a recent GPU, used if the driver reports none.
REACHED = 0.9
CLOCK_HZ, FLOPS_PER_BYTE = 1.5e9, 25.0
# CPU: clock of a core (two vector multiply-adds per clock), memory bandwidth per core, and its limit for all cores.
CPU_CLOCK_HZ, CPU_BYTES_PER_S, MOST_CPU_BYTES_PER_S = 3e9, 13e9, 300e9
LAUNCH_S = {"cpu": 5e-6, "cuda": 1.5e-6, "emulator": 1.5e-6}
# Occupancy below which latencies of memory and arithmetic are no longer hidden.
BUSY_OCCUPANCY = 0.25


class Rates(NamedTuple):
    """Rates of a device."""

    flops_per_s: float
    bytes_per_s: float
    launch_s: float


def predicted_s(algorithm: AnyAlgorithm, problem: Problem, facts: DeviceFacts, plan: Plan | None = None) -> float:
    """Predict the seconds of a call. If a plan is given, use its launches and occupancy instead of the usual ones."""
    rates = rates_of(facts)
    cost, work = algorithm.cost, algorithm.work_for(problem)
    launches, share = cost.launches, cost.arithmetic
    if facts.backend != "cpu":
        share *= min(1.0, problem.outputs / (cost.outputs * facts.cores))
    if plan is not None:
        launches = max(launches, len(plan.launches))
        occupancy = min((i.occupancy for i in plan.launches if i.occupancy is not None), default=1.0)
        share *= min(1.0, max(occupancy, 0.01) / BUSY_OCCUPANCY)
    arithmetic_s = work.flops / (rates.flops_per_s * max(share, 1e-6))
    memory_s = work.moved / (rates.bytes_per_s * cost.memory)
    return launches * rates.launch_s + max(arithmetic_s, memory_s)


def rates_of(facts: DeviceFacts) -> Rates:
    """Compute the rates of a device from its facts.

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
