"""Host side of channels.cu: the channel vector and tile of a thread, and the block shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convforge.algorithms.contract import Config
from convforge.algorithms.depthwise.family import (
    DepthwiseConvolution,
    is_preferred,
    one_channel_refusal,
    tiles_of_planes_pay,
)
from convforge.algorithms.direct.blocks import columns_read, even_share
from convforge.algorithms.host.conv import MOST_BLOCKS
from convforge.algorithms.host.on_device import Kernel, Vectors, least_refusal
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import constants
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import VECTOR_BYTES, itemsize

# Registers of a thread for a row of pixels, the sums and the weights: at most, of its 255; and the most with which
# an SM still holds enough threads.
MOST_REGISTERS, GOOD_REGISTERS = 200, 112

# Registers for the weights and the pixels of a window, at most, for the window to be unrolled: the compiler loads all
# of them before it uses the first.
KEPT_WEIGHTS, KEPT_PIXELS = 40, 100

# Bytes of a vector, rows and columns of outputs of a thread. The default is the first that takes few registers and
# gives the device enough threads: wide vectors and large tiles load least, small ones keep more threads busy.
TILES = (
    (16, 2, 4), (8, 2, 4), (16, 4, 4), (8, 4, 4), (8, 4, 8), (8, 2, 8), (16, 2, 2), (8, 2, 2), (4, 4, 4), (4, 2, 2),
    (4, 1, 1),
)  # fmt: skip

# With a stride, neighbouring outputs share few pixels, and small tiles keep more loads in flight. The widest vector
# with an unrolled window comes first.
STRIDED_TILES = ((16, 2, 2), (8, 2, 2))

# Threads of a block; contiguous channel vectors in it, 128 bytes of 16-byte vectors; and the maximum number of threads
# along its third axis (CUDA C++ Programming Guide, technical specifications).
BLOCK_THREADS, BLOCK_VECTORS, MOST_DEEP = 128, 8, 64

# Bytes of shared memory for the filters of a block's channels, at most.
TAPS_BYTES = 48 << 10

# Resident threads per SM, at least; and launched threads per SM from which a tile pays.
RESIDENT, ENOUGH_THREADS = 512, 256


@dataclass(frozen=True, slots=True)
class ChannelsConfig(Config):
    """Block shape of :class:`DepthwiseChannels`, and the tile of a thread."""

    vec: int  # contiguous channels of a thread
    out_p: int  # rows of its outputs
    out_q: int  # columns of its outputs
    block_c: int  # threads along channels
    block_q: int  # threads along q
    block_p: int  # threads along p; 32 to 1024 in a block
    resident: int = RESIDENT  # resident threads per SM, at least; see :func:`compiled`

    @property
    def threads(self) -> int:
        return self.block_c * self.block_q * self.block_p


class DepthwiseChannels(DepthwiseConvolution[ChannelsConfig]):
    """Channel vectors and a tile of outputs per thread, both in registers: for NHWC and small filters."""

    name = "depthwise_channels"
    summary = "depthwise in NHWC: vectors of channels, a tile of outputs a thread, rows of pixels in registers"
    since = "direct_tiled"
    cost = MethodCost(0.17, 0.8, 2048, 1)
    look = Mark("olive", "diamond")

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if not is_preferred(problem):
            return None
        rank = Rank.ONE_CHANNEL_NEXT if tiles_of_planes_pay(problem) else Rank.ONE_CHANNEL
        return Preference(rank, "every filter sees one channel: neighbouring channels are loaded together")

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if one_channel_refusal(problem) is None and problem.x_layout != "NHWC":
            return Reason("channels must lie side by side: x_layout={layout} must be NHWC", layout=problem.x_layout)
        return super().refuses(problem, facts)

    def least(self, problem: Conv2dProblem) -> ChannelsConfig:
        return _config(problem, 4, 1, 1)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[ChannelsConfig]:
        """The largest tile that gives the device enough threads first, then the others."""
        strided = [_config(problem, *tile) for tile in STRIDED_TILES if max(problem.stride) > 1]
        strided.sort(key=lambda config: not _kept(problem, config))
        found = list(dict.fromkeys([*strided, *(_config(problem, *tile) for tile in TILES)]))
        fit = self.valid(problem, found, facts)

        def threads(config: ChannelsConfig) -> int:
            return math.prod(_grid(problem, config)) * config.threads

        good = [config for config in fit if _registers(problem, config) <= GOOD_REGISTERS] or fit
        default = next((c for c in good if threads(c) >= ENOUGH_THREADS * facts.cores), good[-1])
        return [default, *(config for config in fit if config != default)]

    def kernel(self, problem: Conv2dProblem, config: ChannelsConfig) -> Kernel:
        store = math.gcd(config.vec, VECTOR_BYTES // itemsize(problem.out_dtype))
        prelude = constants(
            VEC=config.vec, OUT_P=config.out_p, OUT_Q=config.out_q, STORE=store, UNROLLED=_kept(problem, config),
            BLOCK_C=config.block_c, BLOCK_Q=config.block_q, BLOCK_P=config.block_p,
        )  # fmt: skip
        x_run, out_run = ({"c": 1} if vector > 1 else {} for vector in (config.vec, store))
        x = Vectors({"n": problem.n, "h": problem.h, "w": problem.w}, x_run, config.vec)
        out = Vectors({"n": problem.n, "h": problem.p, "w": problem.q}, out_run, store)
        block = (config.block_c, config.block_q, config.block_p)
        return Kernel(
            prelude, _grid(problem, config), block, config.resident, last_fields={"dense": 0}, vectors=(x, out)
        )

    def complete(self, problem: Conv2dProblem, args: Any) -> None:
        x, out = args.conv.x_strides, args.conv.out_strides
        dense = (x.c, x.w, out.c, out.w) == (1, problem.c, 1, problem.k)
        args.dense = args.aligned_x and args.aligned_out and dense

    def config_refusal(self, problem: Conv2dProblem, config: ChannelsConfig, facts: DeviceFacts) -> Reason | None:
        if (reason := least_refusal(config)) is not None:
            return reason
        if problem.k % config.vec:
            return Reason("vec={vec} must divide the {k} channels", vec=config.vec, k=problem.k)
        if config.vec & (config.vec - 1):
            return Reason("vec={vec} must be a power of two: it is one load", vec=config.vec)
        if config.vec * itemsize(problem.x_dtype) > VECTOR_BYTES:
            return Reason(
                "vec={vec} channels of {pixels} are more than a load of {vector} bytes",
                vec=config.vec, pixels=problem.x_dtype, vector=VECTOR_BYTES,
            )  # fmt: skip
        if not 32 <= config.threads <= 1024:
            return Reason("a block has 32 to 1024 threads; these are {threads}", threads=config.threads)
        if config.block_p > MOST_DEEP:
            return Reason(
                "block_p={block_p} must be at most {most}: a block's third axis has no more threads",
                block_p=config.block_p,
                most=MOST_DEEP,
            )
        if (nbytes := _taps_bytes(problem, config)) > TAPS_BYTES:
            return Reason(
                "the filters of a block's channels take {nbytes} bytes of shared memory; {most} are to be had",
                nbytes=nbytes,
                most=TAPS_BYTES,
            )
        if (need := _registers(problem, config)) > MOST_REGISTERS:
            return Reason(
                "a row of the window, the sums and the weights of {vec} channels take {need} registers; {most} are "
                "to be had",
                vec=config.vec, need=need, most=MOST_REGISTERS,
            )  # fmt: skip
        return None


def _config(problem: Conv2dProblem, nbytes: int, out_p: int, out_q: int) -> ChannelsConfig:
    """Make a config of a tile, with a block that the image fills."""
    vec = math.gcd(problem.k, max(1, nbytes // itemsize(problem.x_dtype)))
    block_c = even_share(problem.k // vec, BLOCK_VECTORS)
    while block_c > 1 and _taps_bytes(problem, ChannelsConfig(vec, out_p, out_q, block_c, 1, 1)) > TAPS_BYTES:
        block_c = even_share(problem.k // vec, block_c - 1)
    across, down = -(-problem.q // out_q), -(-problem.p // out_p)
    block_q = even_share(across, max(2, BLOCK_THREADS // (4 * block_c)))
    block_p = even_share(down, min(MOST_DEEP, max(1, BLOCK_THREADS // (block_c * block_q))))
    missing = -(-32 // (block_c * block_q * block_p))
    return ChannelsConfig(vec, out_p, out_q, block_c, block_q, block_p * missing)


def _taps_bytes(problem: Conv2dProblem, config: ChannelsConfig) -> int:
    """Bytes of shared memory for the filters of a block's channels; PITCH of channels.cu per tap."""
    size = itemsize(problem.acc_dtype)
    lanes = VECTOR_BYTES // size
    pitch = (config.block_c * config.vec + 2 * lanes - 1) // lanes * lanes
    return problem.r * problem.s * pitch * size


def _kept(problem: Conv2dProblem, config: ChannelsConfig) -> bool:
    """True if the window is unrolled and its weights stay in registers."""
    width = config.vec * -(-itemsize(problem.acc_dtype) // 4)
    rows = (config.out_p - 1) * problem.stride[0] + problem.extent_h
    pixels = rows * columns_read(problem, config.out_q)
    return problem.r * problem.s * width <= KEPT_WEIGHTS and pixels * width <= KEPT_PIXELS


def _registers(problem: Conv2dProblem, config: ChannelsConfig) -> int:
    """Registers for the pixels of one row that the outputs need, the sums and the weights."""
    columns, weights = columns_read(problem, config.out_q), problem.r * problem.s if _kept(problem, config) else 1
    numbers = (columns + config.out_p * config.out_q + weights) * config.vec
    return numbers * -(-itemsize(problem.acc_dtype) // 4) + columns


def _grid(problem: Conv2dProblem, config: ChannelsConfig) -> tuple[int, int, int]:
    """Grid; the kernel loops if y or z is clipped."""
    channels = -(-(problem.k // config.vec) // config.block_c)
    across = -(-problem.q // (config.block_q * config.out_q))
    down = -(-problem.p // (config.block_p * config.out_p))
    return channels * across, min(down, MOST_BLOCKS), min(problem.n, MOST_BLOCKS)
