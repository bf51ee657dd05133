"""Host side of dp4a.cu: the tile of a thread, the strips of rows and the block shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convforge.algorithms.contract import Config
from convforge.algorithms.depthwise.family import (
    DepthwiseConvolution,
    is_preferred,
    one_channel_refusal,
    threads_refusal,
)
from convforge.algorithms.direct.blocks import even_share
from convforge.algorithms.host.conv import LIMIT_BITS, MOST_BLOCKS, divisor
from convforge.algorithms.host.on_device import Kernel, Vectors, least_refusal
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank
from convforge.backends.architecture import Architecture
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import constants
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import VECTOR_BYTES, itemsize

# First architecture with dp4a, and the types of its factors.
FIRST_ARCHITECTURE, TYPES = 61, ("int8", "uint8")

CHANNELS = 4  # of a word

# Neighbouring outputs of a thread worth comparing; the least is for filters that leave no registers for others.
WIDTHS, LEAST_WIDTH = (4, 2, 8), 1

# Heights of strips worth comparing: an image in 1, 2, ... up to so many strips.
MOST_STRIPS = 8

# Limits of a thread: registers for sums, pixels, windows and factors; pixels of a row, of which a word has a bit each;
# products of the loop over rows, which is unrolled. And bytes of shared memory for the filters of a block.
MOST_REGISTERS, MOST_COLUMNS, MOST_UNROLLED, TAPS_BYTES = 200, 32, 2400, 48 << 10

# Words of a filter that a thread keeps in registers; KEPT of dp4a.cu. For BLACKWELL and later ones the compiler keeps
# the others too, and needs more registers besides: its limit is lower.
KEPT_WORDS, BLACKWELL, MOST_FOR_BLACKWELL = 3, 100, 145

# Words of channels of a block, at most; resident threads per SM, at least; threads of a block, and of one whose threads
# have more than MANY_SUMS: their registers leave room for two such blocks on an SM.
BLOCK_WORDS, RESIDENT, BLOCK_THREADS, MANY_SUMS, FEWER_THREADS = 48, 512, 256, 48, 192

# Launched threads per SM, at least: with filters of KEPT_WORDS, and with larger ones. Their threads have more products
# to do while they wait for pixels, and low strips compute more of them twice.
ENOUGH_THREADS, ENOUGH_FOR_LARGE = 400, 200


@dataclass(frozen=True, slots=True)
class DepthwiseDp4aConfig(Config):
    """Tile of a thread of :class:`DepthwiseDp4a`, and the block shape."""

    out_q: int  # neighbouring outputs of a thread
    height: int  # rows of outputs of its strip
    block_c: int  # threads along channels
    block_t: int  # threads along tiles; at most 1024 in a block
    resident: int = RESIDENT  # resident threads per SM, at least; see :func:`compiled`

    @property
    def threads(self) -> int:
        return self.block_c * self.block_t


class DepthwiseDp4a(DepthwiseConvolution[DepthwiseDp4aConfig]):
    """Products of four bytes by one instruction, for 8-bit integers in NHWC; strips of rows in registers.

    See CUDA C++ Programming Guide, integer intrinsics, ``__dp4a``.
    """

    name = "depthwise_dp4a"
    summary = "depthwise of 8-bit integers in NHWC: four taps by one instruction (dp4a), rows of pixels used once"
    since = "depthwise_channels"
    cost = MethodCost(0.5, 0.8, 2048, 1)
    look = Mark("purple", "diamond")

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if problem.x_dtype not in TYPES or not is_preferred(problem):
            return None
        return Preference(Rank.WHOLE_PLANES, "every filter sees one channel: four bytes are multiplied at once")

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if (reason := bytes_refusal(problem)) is not None:
            return reason
        if Architecture.parse(facts.architecture).number < FIRST_ARCHITECTURE:
            return Reason("dp4a came with sm_{first}; this is {architecture}",
                          first=FIRST_ARCHITECTURE, architecture=facts.architecture)  # fmt: skip
        return super().refuses(problem, facts)

    def least(self, problem: Conv2dProblem) -> DepthwiseDp4aConfig:
        return _config(problem, LEAST_WIDTH, 1)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[DepthwiseDp4aConfig]:
        """Return valid configs, the first with the highest strips that give the device enough threads."""
        large = problem.r * _tap_words(problem) > KEPT_WORDS
        widths = sorted(WIDTHS) if large else WIDTHS
        enough = (ENOUGH_FOR_LARGE if large else ENOUGH_THREADS) * facts.cores
        fit = self._of_widths(problem, widths, facts) or self._of_widths(problem, (LEAST_WIDTH,), facts)
        fit = fit or [self.least(problem)]

        def threads(config: DepthwiseDp4aConfig) -> int:
            return problem.n * _tiles(problem, config) * problem.k // CHANNELS

        busy = [config for config in fit if threads(config) >= enough]
        default = busy[0] if busy else max(fit, key=threads)
        return [default, *(config for config in fit if config != default)]

    def _of_widths(
        self, problem: Conv2dProblem, widths: Sequence[int], facts: DeviceFacts
    ) -> list[DepthwiseDp4aConfig]:
        """Return valid configs of such tiles, for an image in 1, 2, ... strips."""
        heights = [-(-problem.p // strips) for strips in range(1, MOST_STRIPS + 1)]
        found = (_config(problem, out_q, height) for out_q in widths for height in heights)
        return self.valid(problem, dict.fromkeys(found), facts)

    def kernel(self, problem: Conv2dProblem, config: DepthwiseDp4aConfig) -> Kernel:
        prelude = constants(OUT_Q=config.out_q, BLOCK_C=config.block_c, BLOCK_T=config.block_t)
        tiles = _tiles(problem, config)
        grid = (-(-problem.k // CHANNELS // config.block_c) * -(-tiles // config.block_t), min(problem.n, MOST_BLOCKS))
        x = Vectors({"n": problem.n, "h": problem.h, "w": problem.w}, {"c": 1}, CHANNELS)
        out = Vectors({"n": problem.n, "h": problem.p, "w": problem.q}, {"c": 1}, CHANNELS)
        across = divisor(-(-problem.q // config.out_q))
        fields = {"across": across, "tiles": tiles, "height": config.height}
        return Kernel(
            prelude, grid, (config.block_c, config.block_t), config.resident, fields=fields, last_fields={"dense": 0},
            vectors=(x, out),
        )  # fmt: skip

    def complete(self, problem: Conv2dProblem, args: Any) -> None:
        x, out = args.conv.x_strides, args.conv.out_strides
        dense = (x.c, x.w, out.c, out.w) == (1, problem.c, 1, problem.k)
        args.dense = args.aligned_x and args.aligned_out and dense

    def config_refusal(self, problem: Conv2dProblem, config: DepthwiseDp4aConfig, facts: DeviceFacts) -> Reason | None:
        if (reason := least_refusal(config) or threads_refusal(config.threads)) is not None:
            return reason
        if (nbytes := _taps_bytes(problem, config)) > TAPS_BYTES:
            return Reason(
                "the filters of a block's channels take {nbytes} bytes of shared memory; {most} are to be had",
                nbytes=nbytes, most=TAPS_BYTES,
            )  # fmt: skip
        if (tiles := _tiles(problem, config)) >= 2**LIMIT_BITS:
            return Reason("{tiles} tiles are more than a launch counts", tiles=tiles)
        if (columns := _columns(problem, config)) > MOST_COLUMNS:
            return Reason("a thread needs {columns} pixels of a row, more than {most}",
                          columns=columns, most=MOST_COLUMNS)  # fmt: skip
        if (products := _unrolled(problem, config)) > MOST_UNROLLED:
            return Reason("a loop of {products} products is too long to be unrolled; {most} are not",
                          products=products, most=MOST_UNROLLED)  # fmt: skip
        blackwell = Architecture.parse(facts.architecture).number >= BLACKWELL
        most = MOST_FOR_BLACKWELL if blackwell else MOST_REGISTERS
        if (need := _registers(problem, config, keeps_all=blackwell)) > most:
            return Reason("sums, pixels and weights of a thread take {need} registers; {most} are to be had",
                          need=need, most=most)  # fmt: skip
        return None


def bytes_refusal(problem: Conv2dProblem) -> Reason | None:
    """Return why a method of bytes, with words of four channels in NHWC, cannot compute a problem, or None."""
    if (reason := one_channel_refusal(problem)) is not None:
        return reason
    if problem.x_dtype not in TYPES or problem.w_dtype not in TYPES:
        return Reason("x and w must be of {types}; these are {x} and {w}",
                      types=", ".join(TYPES), x=problem.x_dtype, w=problem.w_dtype)  # fmt: skip
    if CHANNELS * itemsize(problem.out_dtype) > VECTOR_BYTES:
        return Reason("{channels} results of {out} are more than one store of {vector} bytes",
                      channels=CHANNELS, out=problem.out_dtype, vector=VECTOR_BYTES)  # fmt: skip
    if problem.x_layout != "NHWC" or problem.out_layout != "NHWC":
        return Reason("channels must be contiguous: x and out must be NHWC, not {x_layout} and {out_layout}",
                      x_layout=problem.x_layout, out_layout=problem.out_layout)  # fmt: skip
    if problem.k != problem.c or problem.c % CHANNELS:
        return Reason("words hold {channels} channels: C={c} must be a multiple of it, and K={k} equal C",
                      channels=CHANNELS, c=problem.c, k=problem.k)  # fmt: skip
    return None


def _config(problem: Conv2dProblem, out_q: int, height: int) -> DepthwiseDp4aConfig:
    """Make a config of the width and height of a tile, with a block that the channels fill."""
    of_word = 4 * problem.r * _tap_words(problem) * CHANNELS  # bytes of the filters of a word of channels
    block_c = even_share(-(-problem.k // CHANNELS), min(BLOCK_WORDS, TAPS_BYTES // of_word))
    threads = FEWER_THREADS if _ring(problem) * out_q * CHANNELS > MANY_SUMS else BLOCK_THREADS
    return DepthwiseDp4aConfig(out_q, height, block_c, max(1, threads // block_c))


def _tiles(problem: Conv2dProblem, config: DepthwiseDp4aConfig) -> int:
    """Tiles of an image."""
    return -(-problem.q // config.out_q) * -(-problem.p // config.height)


def _tap_words(problem: Conv2dProblem) -> int:
    """Words of a filter row; TAP_WORDS of dp4a.cu."""
    return -(-problem.s // 4)


def _taps_bytes(problem: Conv2dProblem, config: DepthwiseDp4aConfig) -> int:
    """Bytes of shared memory for the filters of a block's channels."""
    return 4 * problem.r * _tap_words(problem) * CHANNELS * config.block_c


def _columns(problem: Conv2dProblem, config: DepthwiseDp4aConfig) -> int:
    """Pixels of a row that a thread needs; COLUMNS of dp4a.cu."""
    return (config.out_q - 1) * problem.stride[1] + (problem.s - 1) * problem.dilation[1] + 1


def _ring(problem: Conv2dProblem) -> int:
    """Rows of outputs whose windows span the same row of pixels; RING of dp4a.cu."""
    return -(-((problem.r - 1) * problem.dilation[0] + 1) // problem.stride[0])


def _unrolled(problem: Conv2dProblem, config: DepthwiseDp4aConfig) -> int:
    """Products in the code of the loop over rows of outputs."""
    return problem.r * _tap_words(problem) * CHANNELS * config.out_q


def _registers(problem: Conv2dProblem, config: DepthwiseDp4aConfig, *, keeps_all: bool = False) -> int:
    """Registers for the sums, pixels, windows and factors of a thread, with all factors kept or few; see dp4a.cu."""
    columns, words = _columns(problem, config), problem.r * _tap_words(problem)
    kept = CHANNELS * (words if keeps_all or words <= KEPT_WORDS else 1)
    sums, windows = _ring(problem) * config.out_q * CHANNELS, config.out_q * CHANNELS
    return sums + windows + kept + columns + -(-columns // 4) * CHANNELS + 4 * CHANNELS
