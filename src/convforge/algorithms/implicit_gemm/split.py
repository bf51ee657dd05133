"""Host side of split.cu: implicit GEMM of floats on Hopper's tensor cores, by three products of halves."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, cast

import numpy as np

from convforge.algorithms.contract import Buffers, Launch, Plan, Preparation, PreparedFilter
from convforge.algorithms.implicit_gemm.split_tiles import (
    PRODUCTS,
    SplitConfig,
    can_copy,
    config_refusal,
    fitting,
    modelled_cycles,
    padded_channels,
    shared_bytes,
    threads_of,
)
from convforge.algorithms.implicit_gemm.wgmma import (
    MAPS_KEPT,
    TENSOR_PRODUCTS,
    Tiling,
    WithMaps,
    device_refusal,
    wgmma_lines,
)
from convforge.algorithms.implicit_gemm.wgmma_tiles import filters_held, halves_map, pixels_map
from convforge.algorithms.include.conv import address, conv_constants, conv_struct, fill
from convforge.algorithms.include.element_types import ElementTypes
from convforge.algorithms.include.on_device import DeviceConvolution
from convforge.algorithms.include.resident import evenly
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.maps import AnyMap
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.backends.structs import MapField, struct_with_maps
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

# An output of fewer products is more exact in float32: each product of halves has an error of up to 2^-22 of itself.
FEWEST_PRODUCTS = 32

# With fewer channels or filters "auto" takes another method: tiles have 64 of each, and most of them would be zeros.
FEWEST = 32


class ImplicitGemmSplit(DeviceConvolution[SplitConfig]):
    """Implicit GEMM of float32 on Hopper's tensor cores: each number is two of 16 bits, each product three of them.

    Three products of halves differ from the product of the floats by at most 2^-22 of it. Tensor cores add up 32
    products, then threads add that sum to a float32. Each tile of pixels and each filter has its own scale, a power of
    two. Some numbers do not fit into halves: Inf, NaN, numbers beyond 2^100, numbers that are all below 2^-100, and a
    channel or a pixel that is smaller than 2^-26 of the largest number. The same call computes the outputs of such a
    tile or filter by multiply-adds of float32.

    References
    ----------
    H. Ootomo and R. Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
    theoretical peak performance", International Journal of High Performance Computing Applications 36(4), 2022.
    """

    name = "implicit_gemm_split"
    summary = "implicit GEMM of float32 on the tensor cores of Hopper, each number split into two of 16 bits; sm_90"
    since = "implicit_gemm_wgmma"
    cost = MethodCost(1.0, 0.8, 16384, 2)
    look = Mark("teal", "diamond")

    def work_for(self, problem: Conv2dProblem) -> Work:
        """See :class:`Algorithm`."""
        return Work(problem.flops * PRODUCTS / TENSOR_PRODUCTS, problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        """See :class:`Algorithm`."""
        if _problem_refusal(problem) is not None or min(problem.c, problem.k) < FEWEST:
            return None
        why = "many channels: three products of 16 bits on tensor cores for one of float32"
        return Preference(Rank.TENSOR_CORES, why)

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        """See :class:`Algorithm`."""
        if (reason := device_refusal(facts) or _problem_refusal(problem)) is not None:
            return reason
        if next(fitting(problem, facts), None) is not None:
            return None
        return config_refusal(problem, _smallest(problem), facts)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[SplitConfig]:
        """See :class:`Algorithm`. The model of cycles puts the fastest first."""
        fit = dict.fromkeys(fitting(problem, facts))
        return sorted(fit, key=lambda config: modelled_cycles(problem, config, facts))

    def plan(self, problem: Conv2dProblem, config: SplitConfig, runtime: Runtime) -> Plan:
        """See :class:`Algorithm`."""
        if (reason := config_refusal(problem, config, runtime.facts)) is not None:
            raise ValueError(f"{config}: {reason}")
        shape, struct = Tiling.of(problem, config), _struct(problem)
        prelude = constants(
            PATCH=config.patch, FILTERS_ON_M=config.filters_on_m, PING_PONG=config.ping_pong, ROWS_64=1,
            BLOCK_N=config.columns, HALVES=2, GATHER=config.gather, CHANNELS_NEAR=problem.x_layout == "NHWC",
            OUT_NEAR=problem.out_layout == "NHWC",
            RAW_STAGES=config.raw_stages, PIXEL_STAGES=config.pixel_stages, RESIDENT=config.resident,
            FILTER_STAGES=filters_held(problem, config), SHARED_BYTES=shared_bytes(problem, config),
        )  # fmt: skip
        lines = (*conv_constants(problem), *prelude, *wgmma_lines(config.columns, "f16"))
        source = KernelSource(
            "algorithms/implicit_gemm/split.cu", "implicit_gemm_split", lines, struct, "Split", feature="a"
        )
        kernel = runtime.compile(source)
        grid = (min(shape.tiles, runtime.facts.cores),)
        info = LaunchInfo("implicit_gemm_split", grid, (threads_of(config),), shared_bytes(problem, config), early=True)

        @lru_cache(maxsize=MAPS_KEPT)
        def pixels_at(at: int, strides: tuple[int, ...]) -> AnyMap | None:
            return pixels_map(problem, config, at, strides)

        @lru_cache(maxsize=MAPS_KEPT)
        def filters_at(at: int) -> AnyMap:
            return halves_map(problem, config, at, padded_channels(problem), 2)

        def arguments(buffers: Buffers) -> Any:
            args, encode = struct(), cast(WithMaps, runtime).tensor_map
            x, filters = buffers["x"], buffers["w"].tensors
            if not config.gather:
                seen = pixels_at(address(x), tuple(x.strides))
                if seen is None or seen.refusal() is not None:
                    return None
                args.put_map("pixels", seen, encode(seen))
            held = filters_at(address(filters["halves"]))
            args.put_map("filters", held, encode(held))
            fill(args.conv, problem, buffers)
            args.tiling = shape
            args.scales, args.redone = address(filters["scales"]), address(filters["redone"])
            args.pairs = int(_in_pairs(problem, buffers["out"]))
            return args

        gathering = None if config.gather else self._gathering(problem, config, runtime)
        return Plan(
            self, problem, config, runtime,
            steps=[Launch(evenly(runtime, kernel, info), kernel, arguments, runtime, otherwise=gathering)],
            prepare=SplitFilters(problem, runtime),
        )  # fmt: skip

    def _gathering(self, problem: Conv2dProblem, config: SplitConfig, runtime: Runtime) -> Callable[[], Plan]:
        """Give the plan whose threads copy the pixels, for arrays that the accelerator cannot bring; made once."""
        return cache(lambda: self.plan(problem, replace(config, gather=True), runtime))


class _SplitFilters(ctypes.Structure):
    """struct SplitFilters of split_filters.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("w", "plain", "halves", "scales", "redone")),
        ("strides", ctypes.c_longlong * 4), ("K", ctypes.c_int), ("flip", ctypes.c_int),
    )  # fmt: skip


class SplitFilters(Preparation):
    """Splits the filters on the device, and keeps them as floats beside.

    Its tensors: "w", float32 in the order K, R, S, C, seen as (K, C, R, S); "halves" (2, K, R, S, channels), float16,
    high and low; "scales" (K,), float32, 0 where a filter is computed from its floats; "redone", the tiles that were.
    """

    def __init__(self, problem: Conv2dProblem, runtime: Runtime) -> None:
        k, c, r, s = problem.w_shape
        channels = padded_channels(problem)
        prelude = constants(C=c, R=r, S=s, CHANNELS=channels)
        source = KernelSource(
            "algorithms/implicit_gemm/split_filters.cu", "split_filters", prelude, _SplitFilters, "SplitFilters"
        )
        info = LaunchInfo("split_filters", (k,), (256,), early=True)
        flip = int(problem.mode == "convolution")

        def arguments(buffers: Buffers) -> Any:
            w = buffers["given"]
            strides = (ctypes.c_longlong * 4)(*[step // w.itemsize for step in w.strides])
            pieces = (address(buffers[name]) for name in ("w", "halves", "scales", "redone"))
            return _SplitFilters(address(w), *pieces, strides, k, flip)

        def finish(buffers: Buffers, stream: Any) -> PreparedFilter:
            tensors = {name: buffers[name] for name in ("w", "halves", "scales", "redone")}
            tensors["w"] = tensors["w"].transpose(0, 3, 1, 2)

            def said() -> Reason | None:
                plain = int((np.asarray(runtime.download(tensors["scales"])) == 0).sum())
                redone = int(np.asarray(runtime.download(tensors["redone"])).view(np.uint32)[0])
                if not plain and not redone:
                    return None
                return Reason(
                    "{plain} of {all} filters and {redone} tiles so far were computed by multiply-adds of float32, as "
                    "numbers of 16 bits do not hold them",
                    plain=plain, all=k, redone=redone,
                )  # fmt: skip

            return PreparedFilter(tensors, sum(tensors[name].nbytes for name in tensors), said)

        pieces = {
            "w": ((k, r, s, c), "float32"), "halves": ((2, k, r, s, channels), "float16"),
            "scales": ((k,), "float32"), "redone": ((1,), "int32"),
        }  # fmt: skip
        super().__init__(runtime, pieces, [Launch(info, runtime.compile(source), arguments, runtime)], finish)


def _smallest(problem: Conv2dProblem) -> SplitConfig:
    """The config with the smallest tiles: a problem that it cannot take has no config."""
    gather = not can_copy(problem)
    return SplitConfig(patch=False, columns=64, pixel_stages=2, filter_stages=2, gather=gather, raw_stages=1)


def _problem_refusal(problem: Conv2dProblem) -> Reason | None:
    types = {problem.x_dtype, problem.w_dtype, problem.out_dtype, problem.acc_dtype}
    if types != {"float32"}:
        return Reason("x, w and the result must all be float32; these are {types}", types=", ".join(sorted(types)))
    if problem.groups != 1:
        return Reason("every filter must see all channels; there are {groups} groups", groups=problem.groups)
    if not problem.k or problem.taps < FEWEST_PRODUCTS:
        return Reason(
            "an output of fewer than {fewest} products is more exact in float32; these have {count}",
            fewest=FEWEST_PRODUCTS, count=problem.taps if problem.k else 0,
        )  # fmt: skip
    return None


def _in_pairs(problem: Conv2dProblem, out: Any) -> bool:
    """Whether a thread may store two neighbouring outputs by one instruction: pairs lie at multiples of 8 bytes."""
    near = problem.out_layout == "NHWC" and out.strides[3] == out.itemsize
    return near and address(out) % 8 == 0 and all(step % 8 == 0 for step in out.strides[:3])


@lru_cache(maxsize=64)
def _struct_of(types: ElementTypes) -> Any:
    fields = {
        "conv": conv_struct(types), "pixels": MapField, "filters": MapField, "tiling": Tiling,
        "scales": ctypes.c_void_p, "redone": ctypes.c_void_p, "pairs": ctypes.c_int,
    }  # fmt: skip
    return struct_with_maps("Split", fields.items())


def _struct(problem: Conv2dProblem) -> Any:
    return _struct_of(ElementTypes.of(problem))
