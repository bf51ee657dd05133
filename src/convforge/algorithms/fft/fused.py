"""Host side of fused.cu: a block transforms tiles in shared memory; for one-channel filters."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from convforge.algorithms.contract import Buffers, Config, Launch, Plan, Preparation, PreparedFilter
from convforge.algorithms.depthwise.family import one_channel_refusal
from convforge.algorithms.fft.tiling import Tiling, integer_refusal, transform_work
from convforge.algorithms.fft.tiling import tiling as tiling_of
from convforge.algorithms.host.conv import WeightPacker, address, conv_constants, fill, with_conv
from convforge.algorithms.host.on_device import DeviceConvolution
from convforge.algorithms.host.outside import outside_steps
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# Size of a transform -> numbers that a thread holds in the outer and the inner stage.
STAGES = {32: (8, 4), 64: (8, 8), 128: (16, 8)}

# Extent of a filter up to which outputs are at least about a quarter of a tile's numbers.
MOST_EXTENT = 63


@dataclass(frozen=True, slots=True)
class FusedConfig(Config):
    """Tile and block of the fused kernel."""

    size: int  # rows and columns of a transform, a key of STAGES
    threads: int  # threads of a block; a multiple of 32


class FftFused(DeviceConvolution[FusedConfig]):
    """Products of spectra of tiles that never leave shared memory: one kernel, no workspace, no library."""

    name = "fft_fused"
    summary = "the FFT of a pair of tiles, product and way back in one block's shared memory; one channel a filter"
    since = "fft"
    precision = "fft"
    nan_spread = "image"  # its tile, and the other tile of the pair
    cost = MethodCost(0.30, 0.7, 4096, 2)
    look = Mark("green", "triangle-up")

    def work_for(self, problem: Conv2dProblem) -> Work:
        return transform_work(problem, 0)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if max(problem.extent_h, problem.extent_w) > MOST_EXTENT:
            return None
        return Preference(
            Rank.LESS_ARITHMETIC_ON_CHIP, "every filter sees one channel: its tiles never leave shared memory"
        )

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if (reason := integer_refusal(problem) or one_channel_refusal(problem)) is not None:
            return reason
        reasons = [config_refusal(problem, config, facts) for config in _all_configs()]
        return None if None in reasons else reasons[-1]

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[FusedConfig]:
        fit = [config for config in _all_configs() if config_refusal(problem, config, facts) is None]
        return sorted(fit, key=lambda config: numbers(problem, config.size))

    def plan(self, problem: Conv2dProblem, config: FusedConfig, runtime: Runtime) -> Plan:
        if (reason := config_refusal(problem, config, runtime.facts)) is not None:
            raise ValueError(f"{config}: {reason}")
        cut = tiling_of(problem, config.size, config.size)
        integers = dict.fromkeys(("tile_p", "tile_q", "across", "tiles", "span_h", "span_w"), ctypes.c_int)
        struct = with_conv("Fused", problem, spectra=ctypes.c_void_p, **integers)
        kernel = runtime.compile(_source(problem, config, "fft_fused", struct, "Fused"))
        blocks = problem.n * problem.k * _pairs(cut)
        shared = _shared_bytes(problem, config.size)
        info = runtime.describe(kernel, LaunchInfo("fft_fused", (blocks,), (config.threads,), shared))

        def arguments(buffers: Buffers) -> Any:
            args = struct(
                spectra=address(buffers["w"].tensors["spectra"]), tile_p=cut.tile_p, tile_q=cut.tile_q,
                across=cut.across, tiles=cut.down * cut.across, span_h=cut.span_h, span_w=cut.span_w,
            )  # fmt: skip
            fill(args.conv, problem, buffers)
            return args

        prepare = _Spectra(problem, config, runtime)
        steps = [Launch(info, kernel, arguments, runtime), *outside_steps(problem, runtime)]
        return Plan(self, problem, config, runtime, steps=steps, prepare=prepare)


class _Spectra(Preparation):
    """Prepare filters: cast and flip them, then transform each in one block.

    Spectra are (K, size, size) complex numbers, in the order of fused.cu.
    """

    def __init__(self, problem: Conv2dProblem, config: FusedConfig, runtime: Runtime) -> None:
        pack, size = WeightPacker(problem, runtime), config.size
        fields = [(name, ctypes.c_void_p) for name in ("w", "spectra")]
        struct: Any = type("Spectra", (ctypes.Structure,), {"_fields_": fields})
        kernel = runtime.compile(_source(problem, config, "fft_spectra", struct, "Spectra"))
        info = LaunchInfo("fft_spectra", (problem.k,), (config.threads,), _shared_bytes(problem, size))
        info = runtime.describe(kernel, info)

        def arguments(buffers: Buffers) -> Any:
            return struct(address(buffers["w"]), address(buffers["spectra"]))

        def spectra(buffers: Buffers, stream: Any) -> PreparedFilter:
            return PreparedFilter({"spectra": buffers["spectra"]}, int(buffers["spectra"].nbytes))

        pieces = {**pack.pieces, "spectra": ((problem.k, size, size), np.result_type(problem.acc_dtype, np.complex64))}
        super().__init__(runtime, pieces, [*pack.steps, Launch(info, kernel, arguments, runtime)], spectra)


def config_refusal(problem: Conv2dProblem, config: FusedConfig, facts: DeviceFacts) -> Reason | None:
    if config.size not in STAGES:
        return Reason("size={size} must be one of {sizes}", size=config.size, sizes=", ".join(map(str, STAGES)))
    if config.threads % 32 or not 32 <= config.threads <= 1024:
        return Reason("threads={threads} must be a multiple of 32 up to 1024", threads=config.threads)
    if max(problem.extent_h, problem.extent_w) > config.size:
        return Reason(
            "a tile of {size} x {size} must hold the filter's {extent_h} x {extent_w}",
            size=config.size, extent_h=problem.extent_h, extent_w=problem.extent_w,
        )  # fmt: skip
    if (room := _shared_bytes(problem, config.size)) > facts.block_shared_bytes:
        return Reason(
            "a pair of tiles takes {room} bytes of shared memory; a block has {most}",
            room=room,
            most=facts.block_shared_bytes,
        )
    return None


def numbers(problem: Conv2dProblem, size: int) -> int:
    """Complex numbers of all tile pairs of one channel of an image; the work is proportional to them.

    Examples
    --------
    >>> problem = Conv2dProblem(n=1, c=1, h=2048, w=2048, k=1, r=31, s=31, padding=(15, 15, 15, 15))
    >>> round(numbers(problem, 128) / 2048**2, 2), round(numbers(problem, 64) / 2048**2, 2)
    (0.86, 1.82)
    """
    return _pairs(tiling_of(problem, size, size)) * size * size


def _all_configs() -> list[FusedConfig]:
    """Return all configs: a thread holds one or two sets of numbers in the outer stages."""
    return [
        FusedConfig(size, size * inner // share) for size, (_, inner) in STAGES.items()
        for share in (2, 1) if size * inner // share >= 64
    ]  # fmt: skip


def _pairs(cut: Tiling) -> int:
    return -(-cut.down * cut.across // 2)


def _shared_bytes(problem: Conv2dProblem, size: int) -> int:
    return size * (size + 1) * 2 * itemsize(problem.acc_dtype)


def _source(problem: Conv2dProblem, config: FusedConfig, name: str, struct: Any, title: str) -> KernelSource:
    outer, inner = STAGES[config.size]
    own = constants(A=outer, B=inner, THREADS=config.threads)
    twiddles = np.exp(-2j * np.pi * np.arange(config.size) / config.size)
    table = f"#define TWIDDLES {', '.join(f'{{{turn.real}, {turn.imag}}}' for turn in twiddles)}"
    return KernelSource("algorithms/fft/fused.cu", name, (*conv_constants(problem), *own, table), struct, title)
