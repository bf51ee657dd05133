"""Host side of dp4a.cu: implicit GEMM of 8-bit integers, four products an instruction, on any GPU since Pascal."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
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
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way, Work
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


@dataclass(frozen=True, slots=True)
class Dp4aConfig(WarpTile):
    """Tiles of :class:`ImplicitGemmDp4a`: rows are filters, columns are pixels, block_k counts words."""

    words: bool = True  # load words of x, 16 bytes of them if it may be; False: byte by byte, for any array


# Filters and pixels of a block, words of a step; filters and pixels of a warp; those of a thread.
TILES = tuple(starmap(Dp4aConfig, (
    (128, 128, 16, 32, 64, 8, 8), (128, 128, 8, 32, 64, 8, 8), (64, 256, 8, 32, 64, 8, 8),
    (64, 128, 8, 32, 32, 8, 4), (64, 128, 16, 32, 64, 8, 8), (64, 128, 8, 32, 64, 8, 8), (64, 64, 16, 32, 32, 8, 4),
    (64, 64, 8, 32, 32, 8, 4), (32, 256, 8, 32, 64, 8, 8), (32, 128, 16, 32, 32, 8, 4), (32, 128, 8, 32, 32, 8, 4),
    (16, 128, 8, 16, 32, 4, 4), (8, 256, 8, 8, 64, 4, 4),
)))  # fmt: skip


class ImplicitGemmDp4a(DeviceConvolution[Dp4aConfig]):
    """out (K x NPQ) = w (K x RSC) x columns (RSC x NPQ) of words: four bytes along RSC, multiplied by dp4a.

    Sums are int32 and exact. The kernel multiplies stored pixels, and the stored value of the padding outside the
    image. From each sum it subtracts the zero point of x times the sum of the filter's weights. See PTX ISA, dp4a.
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
        if problem.x_dtype not in ImplicitGemmInt8.types or problem.k_per_group < 8 or problem.taps < 16:
            return None
        return Preference(Rank.BYTES, "8-bit integers: one instruction adds four products")

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        return dp4a_refusal(problem, facts)

    def ways(self, problem: Conv2dProblem, config: Dp4aConfig) -> tuple[Way, ...]:
        return ways_to_load(problem, config.words, load_bytes(problem))

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[Dp4aConfig]:
        """Valid configs, the shortest estimated time first; the last loads bytes where others load words."""
        pixels, words = problem.n * problem.p * problem.q, words_of(problem)
        fit = [tile for tile in TILES if tile.fits(tiling(tile, problem), 4, facts)]

        def time(tile: Dp4aConfig) -> float:
            steps = -(-words // tile.block_k) * tile.block_k / words  # the last step is padded
            return steps * modelled_time(tiling(tile, problem), problem.k_per_group, pixels, problem.groups, facts)

        ordered = sorted(fit, key=time)
        in_bytes = [replace(tile, words=False) for tile in ordered]
        return [*ordered, in_bytes[0]] if why_bytes(problem) is None else in_bytes

    def plan(self, problem: Conv2dProblem, config: Dp4aConfig, runtime: Runtime) -> Plan:
        pixels, nhwc = problem.n * problem.p * problem.q, problem.x_layout == "NHWC"
        has_zero, words = problem.epilogue.x_zero_point != 0, config.words and why_bytes(problem) is None
        product = Product(
            "algorithms/implicit_gemm/dp4a.cu", self.name, tiling(config, problem), runtime, False, nhwc, WORD, problem,
            constants=constants(CHANNELS_LAST=nhwc, WHOLE_WORDS=words, ZERO_POINT=has_zero, SEVERAL_TAPS=True),
            around=_around,
        )  # fmt: skip
        # Strides of axes of length 1 count too.
        vectors = dict.fromkeys("nhw", 2), {"c": 1}, load_bytes(problem), 1
        any_way = replace(config, words=False)
        otherwise = cache(lambda: self.plan(problem, any_way, runtime)) if words else None

        def columns(first: int) -> Launch:
            count = min(MOST_COLUMNS, pixels - first)
            info = product.info(problem.k_per_group, count, problem.groups, pdl=True)

            def arguments(buffers: Buffers) -> Any:
                gemm = product.output(buffers, count, words_of(problem), first)
                conv = gemm.store.conv
                if words and not is_aligned(conv.x, conv.x_strides, *vectors):
                    return None
                return product.arguments(gemm, address(buffers["w"].tensors[TAP_SUMS]) if has_zero else None)

            return Launch(info, product.kernel, arguments, runtime, otherwise=otherwise)

        steps = [columns(first) for first in range(0, max(pixels, 1), MOST_COLUMNS)]
        return Plan(self, problem, config, runtime, steps=steps, prepare=prepared(problem, runtime))


def dp4a_refusal(problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
    """The reason why a device has no dp4a, or dp4a does not take the types of a problem; None if it does."""
    if Architecture.parse(facts.architecture).number < FIRST:
        return Reason("dp4a came with sm_{first}; this is {architecture}",
                      first=FIRST, architecture=facts.architecture)  # fmt: skip
    return bytes_refusal(problem, tuple(ImplicitGemmInt8.types), ImplicitGemmInt8.results)


def ways_to_load(problem: Conv2dProblem, words: bool, nbytes: int) -> tuple[Way, ...]:
    """Ways of a method whose config loads `nbytes` of whole words at once, if `words`, or bytes."""
    why = why_bytes(problem)
    if words and why is None:
        together = Reason("threads load {count} channels of a pixel at once", count=nbytes)
        otherwise = Reason(
            "if the address or a stride of x is no multiple of {bytes} bytes, or x has gaps between its channels, "
            "threads load channels one by one: by another plan, which is compiled when it is first needed",
            bytes=nbytes,
        )
        return Way("words", "default", together), Way("bytes", "arrays", otherwise)
    why = why or Reason("the config asks for it ({field})", field="words")
    return (Way("bytes", "default", Reason("threads load channels one by one: {why}", why=why)),)


def load_bytes(problem: Conv2dProblem) -> int:
    """Bytes of a load of whole words of a group's channels."""
    return 16 if problem.c_per_group % 16 == 0 else 4


def why_bytes(problem: Conv2dProblem) -> Reason | None:
    """The reason why channels cannot be loaded as words, whatever the alignment; None if they can."""
    if problem.x_layout != "NHWC":
        return Reason("x is in {layout}", layout=problem.x_layout)
    if problem.c_per_group % 4:
        return Reason("a group has {count} channels, no multiple of {piece}", count=problem.c_per_group, piece=4)
    return None


def words_of(problem: Conv2dProblem, several_taps: bool = True) -> int:
    """Words of a filter (KWords::DEPTH of words.cuh); with few channels one may have `several_taps`.

    Examples
    --------
    >>> first = Conv2dProblem(n=1, c=3, h=224, w=224, k=64, r=7, s=7, stride=(2, 2), padding=(3, 3, 3, 3))
    >>> words_of(first), words_of(first.replace(c=1)), words_of(first.replace(c=64))  # 49, 7 * 2, 49 * 16
    (49, 14, 784)
    """
    taps = {1: 4, 2: 2}.get(problem.c_per_group, 1) if several_taps else 1
    return problem.r * -(-problem.s // taps) * -(-problem.c_per_group // 4)


def prepared(problem: Conv2dProblem, runtime: Runtime, several_taps: bool = True) -> Preparation:
    """The preparation of the weights, with the sums of the filters if x has a zero point."""
    packed = WordPacker(problem, runtime, several_taps)
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

    def __init__(self, problem: Conv2dProblem, runtime: Runtime, several_taps: bool = True) -> None:
        words, k, flip = words_of(problem, several_taps), problem.k, int(problem.mode == "convolution")
        lines = (
            *ElementTypes(acc="int32").prelude(),
            *constants(C_GROUP=problem.c_per_group, R=problem.r, S=problem.s, SEVERAL_TAPS=several_taps),
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
    fields = [("product", gemm), ("zero", ctypes.c_void_p)]
    return type("Dp4a", (ctypes.Structure,), {"_fields_": fields})
