"""Host side of dp4a.cu: implicit GEMM of 8-bit integers, four products an instruction, on any GPU since Pascal."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import starmap
from typing import Any

from convforge.algorithms.contract import Buffers, Launch, Plan, Preparation
from convforge.algorithms.gemm.device import WarpTile, modelled_time
from convforge.algorithms.gemm.product import MOST_COLUMNS, Product, blocked_flops
from convforge.algorithms.host.conv import address, is_aligned
from convforge.algorithms.host.element_types import ElementTypes
from convforge.algorithms.host.on_device import DeviceConvolution
from convforge.algorithms.implicit_gemm import stages
from convforge.algorithms.implicit_gemm.device import tiling
from convforge.algorithms.implicit_gemm.wgmma_bytes import ImplicitGemmInt8, bytes_refusal
from convforge.algorithms.implicit_gemm.zero_point import NAME as TAP_SUMS
from convforge.algorithms.implicit_gemm.zero_point import WithTapSums
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Work
from convforge.backends.architecture import Architecture
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

FIRST = 61  # first architecture with dp4a
WORD = "uint32"  # type of four bytes along K
PRODUCTS = 3  # products in the time of one float32 multiply-add
SIDE, ROWS = 32, 8  # threads of a block of pack_words.cu

# Filters and pixels of a block, words of a step; filters and pixels of a warp; those of a thread.
TILES = tuple(starmap(WarpTile, (
    (128, 128, 16, 32, 64, 8, 8), (128, 128, 8, 32, 64, 8, 8), (64, 256, 8, 32, 64, 8, 8),
    (64, 128, 16, 32, 64, 8, 8), (64, 128, 8, 32, 64, 8, 8), (64, 64, 16, 32, 32, 8, 4), (64, 64, 8, 32, 32, 8, 4),
    (32, 256, 8, 32, 64, 8, 8), (32, 128, 16, 32, 32, 8, 4), (32, 128, 8, 32, 32, 8, 4), (16, 128, 8, 16, 32, 4, 4),
    (8, 256, 8, 8, 64, 4, 4),
)))  # fmt: skip


class ImplicitGemmDp4a(DeviceConvolution[WarpTile]):
    """out (K x NPQ) = w (K x RSC) x columns (RSC x NPQ) of words: four bytes along RSC, multiplied by dp4a.

    Sums are int32 and exact. The kernel multiplies stored pixels, and the stored value of the padding outside the image;
    from each sum it subtracts the zero point of x times the sum of the filter's weights. See PTX ISA, dp4a.
    """

    name = "implicit_gemm_dp4a"
    summary = "implicit GEMM of 8-bit integers by dp4a, with exact sums; sm_61"
    since = "implicit_gemm"
    cost = MethodCost(0.62, 0.8, 8192, 2)
    look = Mark("moss", "triangle-down")
    types = tuple(ImplicitGemmInt8.types)
    results = ImplicitGemmInt8.results

    def work_for(self, problem: Conv2dProblem) -> Work:
        return Work(blocked_flops(problem) / PRODUCTS, problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if problem.k_per_group < 8 or problem.taps < 16:
            return None
        return Preference(Rank.BYTES, "8-bit integers: one instruction adds four products")

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if Architecture.parse(facts.architecture).number < FIRST:
            return Reason("dp4a came with sm_{first}; this is {architecture}",
                          first=FIRST, architecture=facts.architecture)  # fmt: skip
        return bytes_refusal(problem, self.types, self.results)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[WarpTile]:
        pixels = problem.n * problem.p * problem.q
        fit = [tile for tile in TILES if tile.fits(tiling(tile, problem), 4, facts)]

        def time(tile: WarpTile) -> float:
            steps = -(-words_of(problem) // tile.block_k) * tile.block_k / words_of(problem)  # the last one is padded
            tiles = modelled_time(tiling(tile, problem), problem.k_per_group, pixels, problem.groups, facts)
            return steps * tiles

        return sorted(fit, key=time)

    def plan(self, problem: Conv2dProblem, config: WarpTile, runtime: Runtime) -> Plan:
        pixels, nhwc = problem.n * problem.p * problem.q, problem.x_layout == "NHWC"
        has_zero, words = problem.epilogue.x_zero_point != 0, words_of(problem)
        product = Product(
            "algorithms/implicit_gemm/dp4a.cu", self.name, tiling(config, problem), runtime, False, nhwc, WORD, problem,
            constants=constants(CHANNELS_LAST=nhwc, ZERO_POINT=has_zero), around=_around,
        )  # fmt: skip
        # Bytes of a load, and whether they are contiguous and aligned: strides of axes of length 1 count too.
        each = 16 if problem.c_per_group % 16 == 0 else 4
        whole = nhwc and problem.c_per_group % 4 == 0
        vectors = dict.fromkeys("nhw", 2), {"c": 1}, each, 1

        def columns(first: int) -> Launch:
            count = min(MOST_COLUMNS, pixels - first)
            info = product.info(problem.k_per_group, count, problem.groups, pdl=True)

            def arguments(buffers: Buffers) -> Any:
                gemm = product.output(buffers, count, words, first)
                conv = gemm.store.conv
                aligned = whole and is_aligned(conv.x, conv.x_strides, *vectors)
                zero = address(buffers["w"].tensors[TAP_SUMS]) if has_zero else None
                return product.arguments(gemm, int(aligned), zero)

            return Launch(info, product.kernel, arguments, runtime)

        steps = [columns(first) for first in range(0, max(pixels, 1), MOST_COLUMNS)]
        return Plan(self, problem, config, runtime, steps=steps, prepare=prepared(problem, runtime))


def words_of(problem: Conv2dProblem) -> int:
    """Words of a filter (KWords::DEPTH of words.cuh).

    Examples
    --------
    >>> first = Conv2dProblem(n=1, c=3, h=224, w=224, k=64, r=7, s=7, stride=(2, 2), padding=(3, 3, 3, 3))
    >>> words_of(first), words_of(first.replace(c=1)), words_of(first.replace(c=64))  # 49, 7 * 2, 49 * 16
    (49, 14, 784)
    """
    taps = {1: 4, 2: 2}.get(problem.c_per_group, 1)
    return problem.r * -(-problem.s // taps) * -(-problem.c_per_group // 4)


def prepared(problem: Conv2dProblem, runtime: Runtime) -> Preparation:
    """The preparation of the weights, with the sums of the filters if x has a zero point."""
    packed = WordPacker(problem, runtime)
    if not problem.epilogue.x_zero_point:
        return packed
    # As if any border were stored pixels: then every output has all taps of its window.
    whole = stages.rows_problem(problem.replace(padding_mode="constant"), problem.c_per_group)
    return WithTapSums(packed, problem, whole, runtime)


class _PackWords(ctypes.Structure):
    """struct PackWords of pack_words.cu."""

    _fields_ = (
        ("w", ctypes.c_void_p), ("packed", ctypes.c_void_p), ("strides", ctypes.c_longlong * 4),
        ("K", ctypes.c_int), ("flip", ctypes.c_int),
    )  # fmt: skip


class WordPacker(Preparation):
    """Packs the weights as words along K, with the filters innermost: its tensor "w" has the shape (words, K)."""

    def __init__(self, problem: Conv2dProblem, runtime: Runtime) -> None:
        words, k, flip = words_of(problem), problem.k, int(problem.mode == "convolution")
        lines = (
            *ElementTypes(acc="int32").prelude(),
            *constants(C_GROUP=problem.c_per_group, R=problem.r, S=problem.s),
        )
        source = KernelSource("algorithms/implicit_gemm/pack_words.cu", "pack_words", lines, _PackWords, "PackWords")
        info = LaunchInfo("pack_words", (-(-k // SIDE) * -(-words // SIDE),), (SIDE, ROWS), pdl=True)

        def arguments(buffers: Buffers) -> Any:
            w = buffers["given"]
            return _PackWords(address(w), address(buffers["w"]), (ctypes.c_longlong * 4)(*w.strides), k, flip)

        launch = Launch(info, runtime.compile(source), arguments, runtime)
        super().__init__(runtime, {"w": ((words, k), WORD)}, [launch])


def _around(gemm: Any) -> type[ctypes.Structure]:
    """struct Dp4a of dp4a.cu."""
    fields = [("product", gemm), ("vectors", ctypes.c_int), ("zero", ctypes.c_void_p)]
    return type("Dp4a", (ctypes.Structure,), {"_fields_": fields})
