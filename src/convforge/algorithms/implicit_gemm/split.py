"""Host side of split.cu: implicit GEMM of floats on Hopper's tensor cores, by three products of halves."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from convforge.algorithms.contract import Buffers, Launch, Preparation, PreparedFilter
from convforge.algorithms.host.conv import ArrayView, Strides, address
from convforge.algorithms.implicit_gemm import split_tiles as tiles
from convforge.algorithms.implicit_gemm import stages, wgmma_tiles
from convforge.algorithms.implicit_gemm.split_tiles import SplitConfig
from convforge.algorithms.implicit_gemm.wgmma import Maps, OnTensorCores, Put, group_refusal, ways_of_x
from convforge.algorithms.implicit_gemm.wgmma_configs import in_pairs
from convforge.algorithms.traits import Mark, MethodCost, Way
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.maps import AnyMap
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

# An output of fewer products is more exact in float32: a product of halves has a relative error of up to 2^-22.
FEWEST_PRODUCTS = 32

# With fewer channels or filters "auto" chooses another method: tiles have 64 of each, and most would be zeros.
FEWEST, WHY = 32, "many channels: three products of 16 bits on tensor cores for one of float32"

NEIGHBOURS = 16  # filters of one tap that split_filters.cu compares

# Exponents of 2 in messages: the range of numbers that halves can represent.
LIMITS = {"above": tiles.REACH + 1, "least": tiles.IN_FULL, "ratio": tiles.IN_FULL - tiles.TOP}

# Fields of a kernel's struct for filters split by :class:`SplitFilters`; put_filters fills them.
FILTER_FIELDS: Mapping[str, Any] = {"scales": ctypes.c_void_p, "w_strides": Strides, "redone": ctypes.c_void_p}


class _SplitFilters(ctypes.Structure):
    """struct SplitFilters of split_filters.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("w", "plain", "halves", "scales", "redone")),
        ("strides", ctypes.c_longlong * 4), ("K", ctypes.c_int), ("flip", ctypes.c_int),
    )  # fmt: skip


class SplitFilters(Preparation):
    """Splits the filters on the device.

    Its tensors: "w" (K, C, R, S), float32 in cross-correlation order; "halves" (2, K, R, S, channels), float16, high
    and low; "scales" (K,), float32, 0 for a filter that is computed from its floats; "redone", the tiles that were
    computed from floats. "w" is a copy if `keeps` is True. Else it is the user's array, as in `borrow`, for calls that
    end before the array changes.
    """

    def __init__(self, problem: Conv2dProblem, runtime: Runtime, keeps: bool = True) -> None:
        k, c, r, s = problem.w_shape
        channels, held = tiles.padded_channels(problem), c * (r * s | 1) * 4
        held = held if held <= 200 << 10 else 0  # bytes of a filter in shared memory
        # One block per filter. With few filters a block has more threads, so that there are about 128 Ki in all.
        threads = max(256, min(1024, (128 << 10) // k // 256 * 256))
        prelude = constants(C=c, R=r, S=s, K_GROUP=problem.k_per_group, NEIGHBOURS=NEIGHBOURS, CHANNELS=channels,
                            THREADS=threads, IS_HELD=held > 0, KEEPS=keeps)  # fmt: skip
        path = "algorithms/implicit_gemm/split_filters.cu"
        source = KernelSource(path, "split_filters", prelude, _SplitFilters, "SplitFilters")
        info = LaunchInfo("split_filters", (k,), (threads,), held, pdl=True)
        flip = int(problem.mode == "convolution")

        def arguments(buffers: Buffers) -> Any:
            w = buffers["given"]
            made = (address(buffers[name]) for name in ("halves", "scales", "redone"))
            plain = address(buffers["w"]) if keeps else 0
            strides = (ctypes.c_longlong * 4)(*[step // w.itemsize for step in w.strides])
            return _SplitFilters(address(w), plain, *made, strides, k, flip)

        def finish(buffers: Buffers, stream: Any) -> PreparedFilter:
            tensors = {name: buffers[name] for name in pieces}
            nbytes = sum(tensor.nbytes for tensor in tensors.values())
            if keeps:
                tensors["w"] = tensors["w"].transpose(0, 3, 1, 2)
            else:
                tensors |= {"w": in_order(buffers["given"], flip > 0), "given": buffers["given"]}

            def said() -> Reason | None:
                plain = int((np.asarray(runtime.download(tensors["scales"])) == 0).sum())
                redone = int(np.asarray(runtime.download(tensors["redone"])).view(np.uint32)[0])
                if not plain and not redone:
                    return None
                return Reason(
                    "{plain} of {all} filters and {redone} tiles, or parts of tiles, so far were computed by "
                    "multiply-adds of float32, as numbers of 16 bits do not hold them",
                    plain=plain, all=k, redone=redone,
                )  # fmt: skip

            return PreparedFilter(tensors, nbytes, said)

        pieces = {
            "halves": ((2, k, r, s, channels), "float16"), "scales": ((k,), "float32"), "redone": ((1,), "int32"),
            **({"w": ((k, r, s, c), "float32")} if keeps else {}),
        }  # fmt: skip
        super().__init__(runtime, pieces, [Launch(info, runtime.compile(source), arguments, runtime)], finish)
        if keeps:
            self.borrow = SplitFilters(problem, runtime, keeps=False)


def in_order(w: Any, flip: bool) -> Any:
    """View the weights (K, C, R, S) in cross-correlation order."""
    if not flip:
        return w
    _, _, r, s = w.shape
    of_k, of_c, of_r, of_s = w.strides
    return ArrayView(address(w) + (r - 1) * of_r + (s - 1) * of_s, w.shape, (of_k, of_c, -of_r, -of_s), w.itemsize)


def put_filters(args: Any, buffers: Buffers) -> None:
    """Fill the fields that :data:`FILTER_FIELDS` names."""
    filters = buffers["w"].tensors
    args.scales, args.redone = address(filters["scales"]), address(filters["redone"])
    args.w_strides = Strides(*(step // filters["w"].itemsize for step in filters["w"].strides))


class ImplicitGemmSplit(OnTensorCores[SplitConfig]):
    """Implicit GEMM of float32 on Hopper's tensor cores: each number is split into two halves of 16 bits.

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
    stem, config_type, preparation = "split", SplitConfig, SplitFilters
    types, products, fewest, why = MappingProxyType({"float32": "f16"}), tiles.PRODUCTS, FEWEST, WHY

    def fields(self, problem: Conv2dProblem, loaded: Conv2dProblem) -> tuple[Mapping[str, Any], Put]:
        return FILTER_FIELDS, put_filters

    def problem_refusal(self, problem: Conv2dProblem) -> Reason | None:
        return problem_refusal(problem)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[SplitConfig]:
        fit = dict.fromkeys(tiles.fitting(problem, facts))
        found = sorted(fit, key=lambda config: tiles.modelled_cycles(problem, config, facts))
        return [*found[:1], *in_pairs(problem, found), *found[1:]]

    def ways(self, problem: Conv2dProblem, config: SplitConfig) -> tuple[Way, ...]:
        products, shares = ways_of_split(problem, config.split_first), stages.ways_of_shares(config.split_k)
        if config.split_first:
            return *products, *shares
        x = ways_of_x(problem, config) or (stages.way_of_unaligned_x(),)
        return *products, *x, *shares

    def numbers(self, problem: Conv2dProblem, config: SplitConfig) -> dict[str, Any]:
        held = wgmma_tiles.filters_held(problem, config, tiles.ROW_CHANNELS)
        top, _, left, _ = problem.padding
        outside = config.split_first and problem.padding_mode != "zeros"  # rows contain the border
        return {"NUMBER_BYTES": 2, "ROW_BYTES": wgmma_tiles.ROW_BYTES, "HALVES": 2, "FILTER_STAGES": held,
                "BY_PIXELS": config.by_pixels, "FILTER_CHANNELS": problem.c_per_group,
                "SPLIT_FIRST": config.split_first, "ROWS_TOP": outside * top, "ROWS_LEFT": outside * left}  # fmt: skip

    def maps(self, problem: Conv2dProblem, loaded: Conv2dProblem, config: SplitConfig) -> Maps:
        channels = tiles.padded_channels(problem)
        steps, first = (2 * channels, 2 * channels * problem.r * problem.s), config.split_first
        rows = tiles.split_rows(problem) if first else loaded

        def halves(at: int, strides: tuple[int, ...]) -> AnyMap:
            return wgmma_tiles.rows_map(problem, config, at, "u16", channels, steps, tiles.ROW_CHANNELS, halves=2)

        def downs(at: int, strides: tuple[int, ...]) -> AnyMap:
            sizes = (strides[2] // strides[3], rows.w, rows.h, problem.n)
            plain = wgmma_tiles.im2col_map(rows, config, at, strides, "u32")
            return replace(plain, sizes=sizes, channels=tiles.SCALES, pixels=config.block[0], swizzle=0)

        pixels = partial(wgmma_tiles.im2col_map, rows, config, element="u16")
        floats = partial(wgmma_tiles.pixels_map, loaded, config, element="u32")
        return {
            "pixels": (pixels, "pixels") if first else (floats, "x"),
            "filters": (halves, "halves"),
            "downs": (downs if first else None, "downs"),
        }

    def rows(
        self, problem: Conv2dProblem, loaded: Conv2dProblem, config: SplitConfig, runtime: Runtime
    ) -> stages.Squares | None:
        if config.split_first:
            return stages.SplitPixels(problem, stages.rows_problem(problem, problem.c), runtime)
        return super().rows(problem, loaded, config, runtime)


def problem_refusal(problem: Conv2dProblem) -> Reason | None:
    """The reason why products of halves cannot compute a layer, or not exactly or fast enough; None if they can."""
    return types_refusal(problem, FEWEST_PRODUCTS) or group_refusal(problem)


def types_refusal(problem: Conv2dProblem, fewest: int) -> Reason | None:
    """The reason why products of halves do not suit a layer's types or its number of products; None if they do."""
    types = {problem.x_dtype, problem.w_dtype, problem.out_dtype, problem.acc_dtype}
    if types != {"float32"}:
        return Reason("x, w and the result must all be float32; these are {types}", types=", ".join(sorted(types)))
    if problem.taps < fewest:
        return Reason("an output of fewer than {fewest} products is more exact in float32; these have {count}",
                      fewest=fewest, count=problem.taps)  # fmt: skip
    return None


def ways_of_split(problem: Conv2dProblem, split_first: bool) -> tuple[Way, ...]:
    """The ways of products of halves, with pixels split beforehand or in tiles."""
    limits = {**LIMITS, "below": -tiles.REACH, "top": tiles.TOP}
    words = Reason(
        "if {channels} channels of a tile of x hold Inf or NaN, or their largest value is 2^{above} or more or "
        "below 2^{below}, or every value of one channel or of one pixel times the scale is below 2^{least}, the "
        "tile is computed by multiply-adds of float32, in the same launch. The scale makes the largest value "
        "2^{top} or more, so such a channel or pixel is below 2^{ratio} of it; zeros do not count. {note} says how "
        "many tiles were computed so",
        channels=min(tiles.ROW_CHANNELS, problem.c_per_group), **limits, note="Filter.note",
    )  # fmt: skip
    if split_first:
        words = Reason(
            "if {channels} channels of a pixel of x hold Inf or NaN, or a value of 2^{above} or more, or more than "
            "a quarter of them are below 2^{ratio} of the largest, or one channel is so in each of 64 neighbouring "
            "pixels, the outputs over the pixel are computed by multiply-adds of float32, in the same launch; "
            "zeros do not count. {note} says in how many parts of tiles",
            channels=min(tiles.ROW_CHANNELS, problem.c_per_group), **limits, note="Filter.note",
        )  # fmt: skip
    ways = (way_of_products(), Way("plain_tiles", "values", words), way_of_filters(problem))
    if not split_first:
        return ways
    first = Reason(
        "every call first writes x to a workspace, as rows of channels (NHWC) of two numbers of 16 bits each, "
        "with a scale for each pixel and {channels} channels: tiles would split the same pixels many times",
        channels=tiles.ROW_CHANNELS,
    )  # fmt: skip
    return ways[0], Way("plain_pixels", "values", words), ways[2], Way("split_pixels", "default", first)


def way_of_products() -> Way:
    words = Reason(
        "each float32 is two numbers of 16 bits, and {count} products of those on the tensor cores are one "
        "product; pixels and filters are first multiplied by scales, which are powers of two",
        count=tiles.PRODUCTS,
    )
    return Way("tensor_cores", "default", words)


def way_of_filters(problem: Conv2dProblem) -> Way:
    """The way of filters that do not fit into halves."""
    filters = Reason(
        "if a filter holds Inf or NaN, or its largest value is 2^{above} or more, or every value of one of its "
        "channels or taps times its scale is below 2^{least}, and so below 2^{ratio} of the largest, its outputs "
        "are computed by multiply-adds of float32, in the same launch. {note} says how many filters were",
        **LIMITS, note="Filter.note",
    )  # fmt: skip
    if problem.r * problem.s == 1:
        filters = Reason(
            "if a filter holds Inf or NaN, or its largest value is 2^{above} or more, or more than a quarter of "
            "its values are below 2^{ratio} of the largest, or one channel is so in each of {count} neighbouring "
            "filters, its outputs are computed by multiply-adds of float32, in the same launch; zeros do not "
            "count. {note} says how many filters were",
            count=NEIGHBOURS, **LIMITS, note="Filter.note",
        )  # fmt: skip
    return Way("plain_filters", "values", filters)
