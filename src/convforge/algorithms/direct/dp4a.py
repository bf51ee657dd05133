"""Host side of dp4a.cu: grouped convolution of 8-bit integers, four products an instruction, from registers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from convforge.algorithms.contract import Buffers, Config, Launch, Plan
from convforge.algorithms.host.conv import address, conv_constants, fill, is_aligned, with_conv
from convforge.algorithms.host.on_device import DeviceConvolution, least_refusal, require
from convforge.algorithms.host.resident import with_occupancy_cap
from convforge.algorithms.implicit_gemm.dp4a import PRODUCTS, dp4a_refusal, prepared, ways_to_load, why_bytes
from convforge.algorithms.implicit_gemm.wgmma_bytes import ImplicitGemmInt8
from convforge.algorithms.implicit_gemm.zero_point import NAME as TAP_SUMS
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

WORD = 4  # bytes of a load, and channels of a factor
# Registers for sums, pixels and taps, at most, so that none spill.
MOST_REGISTERS = 128
VECTOR_BYTES = 16  # most bytes of a store


@dataclass(frozen=True, slots=True)
class StripConfig(Config):
    """Outputs of a thread of :class:`DirectDp4a`."""

    threads: int = 128  # threads of a block, a multiple of 32
    tile_q: int = 8  # pixels of a row, a power of 2
    filters: int = field(default=4, metadata={"least": 4})  # filters of a group: 4, 8 or 16
    # Load words of x where its layout has them; False: byte by byte, for any array.
    words: bool = field(default=True, metadata={"least": 0})


class DirectDp4a(DeviceConvolution[StripConfig]):
    """A strip of a row for some filters of a group a thread: pixels and weights are words of four channels.

    Sums are int32 and exact, with the zero point of x as in implicit_gemm_dp4a. See PTX ISA, dp4a.
    """

    name = "direct_dp4a"
    summary = "grouped convolution of 8-bit integers by dp4a, a strip of pixels a thread, in registers; sm_61"
    since = "direct_tiled"
    cost = MethodCost(0.5, 0.8, 4096, 2)
    look = Mark("brown", "triangle-up")
    types = tuple(ImplicitGemmInt8.types)
    results = ImplicitGemmInt8.results

    def work_for(self, problem: Conv2dProblem) -> Work:
        return Work(problem.flops / PRODUCTS, problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        small = 3 <= problem.c_per_group <= 32 and 3 <= problem.k_per_group < 16
        if problem.x_dtype not in ImplicitGemmInt8.types or problem.groups == 1 or not small:
            return None
        return Preference(Rank.BYTES, "8-bit integers in small groups: one instruction adds four products")

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        return dp4a_refusal(problem, facts) or _refusal(problem, StripConfig(tile_q=1))

    def ways(self, problem: Conv2dProblem, config: StripConfig) -> tuple[Way, ...]:
        return ways_to_load(problem, config.words, WORD)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[StripConfig]:
        """Valid configs, the fewest estimated instructions first; the last loads bytes where others load words."""
        k, q = problem.k_per_group, problem.q

        def time(config: StripConfig) -> float:
            filters, tile_q = config.filters, config.tile_q
            wasted = -(-k // filters) * filters / max(k, 1) * (-(-q // tile_q) * tile_q / max(q, 1))
            loads = _seen(problem, tile_q) / (filters * tile_q) + problem.s / (4 * tile_q)
            return wasted * (problem.s + 4 * loads)

        words = why_bytes(problem) is None
        ordered = [replace(config, words=words) for config in sorted(_fitting(problem), key=time)]
        return [*ordered, replace(ordered[0], words=False)] if words else ordered

    def plan(self, problem: Conv2dProblem, config: StripConfig, runtime: Runtime) -> Plan:
        require(config, _refusal(problem, config))
        has_zero, words = problem.epilogue.x_zero_point != 0, config.words and why_bytes(problem) is None
        fields = {"strips": ctypes.c_int, "vectors": ctypes.c_int, "zero": ctypes.c_void_p}
        struct: Any = with_conv("DirectDp4a", problem, **fields)
        lines = (*conv_constants(problem), *constants(
            THREADS=config.threads, TILE_Q=config.tile_q, FILTERS=config.filters, WHOLE_WORDS=words,
            CHANNELS_LAST=problem.x_layout == "NHWC", OUT_CHANNELS_LAST=problem.out_layout == "NHWC",
            ZERO_POINT=has_zero, SEVERAL_TAPS=False,
        ))  # fmt: skip
        kernel = runtime.compile(KernelSource("algorithms/direct/dp4a.cu", self.name, lines, struct, "DirectDp4a"))
        strips = -(-problem.q // config.tile_q)
        units = problem.groups * -(-problem.k_per_group // config.filters)
        blocks = -(-problem.n * problem.p * strips * units // config.threads)
        info = LaunchInfo(self.name, (blocks,), (config.threads,), pdl=True)
        size = itemsize(problem.out_dtype)
        stored = _stored(problem, config)
        any_way = replace(config, words=False)
        otherwise = cache(lambda: self.plan(problem, any_way, runtime)) if words else None

        def arguments(buffers: Buffers) -> Any:
            args = struct(strips=strips, zero=address(buffers["w"].tensors[TAP_SUMS]) if has_zero else None)
            conv = args.conv
            fill(conv, problem, buffers)
            if words and not is_aligned(conv.x, conv.x_strides, dict.fromkeys("nhw", 2), {"c": 1}, WORD, 1):
                return None
            args.vectors = stored is not None and is_aligned(conv.out, conv.out_strides, *stored, size)
            return args

        info = with_occupancy_cap(runtime, kernel, info)
        launch = Launch(info, kernel, arguments, runtime, otherwise=otherwise)
        return Plan(
            self, problem, config, runtime, steps=[launch], prepare=prepared(problem, runtime, several_taps=False)
        )


def _stored(problem: Conv2dProblem, config: StripConfig) -> tuple[dict[str, int], dict[str, int], int] | None:
    """Vectors of a thread's outputs, for :func:`is_aligned`: of filters in NHWC, else of pixels; None without any."""
    most = VECTOR_BYTES // itemsize(problem.out_dtype)
    if problem.out_layout == "NHWC":
        whole = problem.k_per_group % config.filters == 0
        return ({"n": 2, "h": 2, "w": 2}, {"c": 1}, min(most, config.filters)) if whole else None
    return {"n": problem.n, "c": problem.k, "h": problem.p}, {"w": 1}, min(most, config.tile_q)


def _seen(problem: Conv2dProblem, tile_q: int) -> int:
    """Pixels of a row under a strip of `tile_q` outputs."""
    return (tile_q - 1) * problem.stride[1] + (problem.s - 1) * problem.dilation[1] + 1


def _refusal(problem: Conv2dProblem, config: StripConfig) -> Reason | None:
    """The reason why a config is invalid; None if it is valid."""
    if (reason := least_refusal(config)) is not None:
        return reason
    if config.threads % 32 or config.threads > 1024:
        return Reason("a block has whole warps of 32 threads, up to 1024; not {threads}", threads=config.threads)
    if config.filters not in (4, 8, 16) or config.tile_q not in (1, 2, 4, 8, 16):
        return Reason("a thread has 4, 8 or 16 filters and up to 16 pixels, in powers of 2; not {filters} x {tile_q}",
                      filters=config.filters, tile_q=config.tile_q)  # fmt: skip
    if config.filters * config.tile_q + _seen(problem, config.tile_q) + config.filters > MOST_REGISTERS:
        return Reason("the pixels under a thread's outputs must fit in its registers: the filter has {width} columns",
                      width=problem.s)  # fmt: skip
    return None


def _fitting(problem: Conv2dProblem) -> list[StripConfig]:
    """The valid configs among those worth trying."""
    sizes = ((8, 4), (4, 4), (4, 8), (8, 8), (2, 8), (4, 16), (2, 4), (1, 4))
    return [c for c in (StripConfig(128, *size) for size in sizes) if _refusal(problem, c) is None]
