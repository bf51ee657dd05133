"""Host side of max_pool.cu: the tile of a thread, and the vectors of loads and stores."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from convforge.algorithms.contract import Buffers, Config, Launch, Plan
from convforge.algorithms.host.conv import Strides, address, strides
from convforge.algorithms.host.element_types import NUMBERS, ElementTypes
from convforge.algorithms.host.on_device import OnDevice
from convforge.algorithms.traits import Mark, Preference, Rank
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Pool2dProblem
from convforge.problem.types import VECTOR_BYTES, is_integer, itemsize, limits

# Blocks of a grid along x, at most.
MOST_BLOCKS = 2**31 - 1

# Outputs that a thread keeps in registers, at most.
MOST_OUTPUTS = 64

# Threads per SM below which a thread computes fewer outputs, because the image is small.
ENOUGH_THREADS = 512


@dataclass(frozen=True, slots=True)
class MaxPoolConfig(Config):
    """Block size of :class:`MaxPool`, and the tile of a thread."""

    block: int = 128  # threads of a block, 32 to 1024
    out_p: int = 2  # rows of outputs of a thread
    out_q: int = 2  # columns of outputs of a thread; in NHWC, each of as many channels as fit in 16 bytes


@dataclass(frozen=True, slots=True)
class _Vectors:
    """Elements of a thread's channels, loads and stores, and the shift of its tile; see max_pool.cu."""

    channels: int
    load: int
    store: int
    shift: int


class MaxPool(OnDevice[Pool2dProblem, MaxPoolConfig]):
    """A thread computes a small tile of maxima from rows of pixels, which it loads as vectors."""

    name = "max_pool"
    summary = "a tile of outputs a thread, each pixel under it read once, 16-byte loads"
    operation = "max_pool2d"
    look = Mark("blue", "diamond")
    preference = Preference(Rank.FIRST, "the one method of its operation on GPUs")

    def refuses(self, problem: Pool2dProblem, facts: DeviceFacts) -> Reason | None:
        return None

    def configs(self, problem: Pool2dProblem, facts: DeviceFacts) -> Sequence[MaxPoolConfig]:
        """The default is the first shape with enough threads for the device, or the smallest tile."""
        if problem.layout == "NHWC":
            shapes = [(2, 1), (1, 1), (4, 1), (2, 2), (1, 2)]
        else:  # as many columns as a 16-byte load holds
            wide = min(max(VECTOR_BYTES // (itemsize(problem.dtype) * problem.stride[1]), 1), 8)
            shapes = [(2, wide), (1, wide), (4, wide), (2, 2 * wide), (1, 1)]
        tiles = [(out_p if problem.p > 1 else 1, out_q if problem.q > 1 else 1) for out_p, out_q in shapes]
        found = list(dict.fromkeys(MaxPoolConfig(128, *tile) for tile in tiles))
        enough = ENOUGH_THREADS * facts.cores
        default = next((c for c in found if _tiles(problem, c) >= enough), max(found, key=lambda c: _tiles(problem, c)))
        others = [MaxPoolConfig(block, default.out_p, default.out_q) for block in (256, 512)]
        return [default, *(c for c in found if c != default), *others]

    def plan(self, problem: Pool2dProblem, config: MaxPoolConfig, runtime: Runtime) -> Plan:
        if not 32 <= config.block <= 1024:
            raise ValueError(f"block={config.block}: a block has 32 to 1024 threads")
        if (reason := _config_refusal(problem, config.out_p, config.out_q)) is not None:
            raise ValueError(f"{config}: {reason}")
        vectors, wide = _vectors(problem, config), problem.needs_wide_index
        value = "int32" if is_integer(problem.dtype) else "float64" if problem.dtype == "float64" else "float32"
        struct = _struct(value)
        source = KernelSource(
            "algorithms/pool/max_pool.cu", "max_pool", _prelude(problem, config, vectors, value, wide), struct, "Pool"
        )
        kernel = runtime.compile(source)
        tiles = _tiles(problem, config)
        info = LaunchInfo("max_pool", (min(-(-tiles // config.block), MOST_BLOCKS),), (config.block,))
        info = runtime.describe(kernel, info)
        outside = limits(problem.dtype)[0] if is_integer(problem.dtype) else -math.inf

        def arguments(buffers: Buffers) -> Any:
            x, out = buffers["x"], buffers["out"]
            args = struct(
                x=address(x), out=address(out), x_strides=strides(x, problem.layout, wide),
                out_strides=strides(out, problem.layout, wide), tiles=tiles, N=problem.n, C=problem.c,
                H=problem.h, W=problem.w, P=problem.p, Q=problem.q, top=problem.padding[0], left=problem.padding[2],
                outside=outside,
            )  # fmt: skip
            args.x_vectors = _lies_in_vectors(x, vectors.load)
            args.out_vectors = _lies_in_vectors(out, vectors.store)
            return args

        return Plan(self, problem, config, runtime, steps=[Launch(info, kernel, arguments, runtime)])


@cache
def _struct(value: str) -> type[ctypes.Structure]:
    """Make the ctypes mirror of struct Pool in max_pool.cu, for comparisons in this type."""
    sizes = [(name, ctypes.c_int) for name in ("N", "C", "H", "W", "P", "Q", "top", "left", "x_vectors", "out_vectors")]
    fields = [
        ("x", ctypes.c_void_p), ("out", ctypes.c_void_p), ("x_strides", Strides), ("out_strides", Strides),
        ("tiles", ctypes.c_longlong), *sizes, ("outside", NUMBERS[value]),
    ]  # fmt: skip
    return type("Pool", (ctypes.Structure,), {"_fields_": fields})


def _prelude(
    problem: Pool2dProblem, config: MaxPoolConfig, vectors: _Vectors, value: str, wide: bool
) -> tuple[str, ...]:
    numbers = constants(
        R=problem.r, S=problem.s, STRIDE_H=problem.stride[0], STRIDE_W=problem.stride[1],
        DILATION_H=problem.dilation[0], DILATION_W=problem.dilation[1], CHANNELS_LAST=problem.layout == "NHWC",
        THREADS=config.block, OUT_P=config.out_p, OUT_Q=config.out_q, CHANNELS=vectors.channels, LOAD=vectors.load,
        STORE=vectors.store, SHIFT=vectors.shift,
    )  # fmt: skip
    types = ElementTypes(x=problem.dtype, out=problem.dtype, acc=value)
    index, count = ("long long", "unsigned long long") if wide else ("int", "unsigned")
    return (*types.prelude(), *numbers, f"using index_t = {index};", f"using count_t = {count};")


def _vectors(problem: Pool2dProblem, config: MaxPoolConfig) -> _Vectors:
    most = VECTOR_BYTES // itemsize(problem.dtype)
    if problem.layout == "NHWC":
        channels = math.gcd(problem.c, most)
        return _Vectors(channels, channels, channels, 0)
    load = math.gcd(config.out_q * problem.stride[1], most)
    return _Vectors(1, load, math.gcd(config.out_q, most), -problem.padding[2] % load)


def _config_refusal(problem: Pool2dProblem, out_p: int, out_q: int) -> Reason | None:
    if min(out_p, out_q) < 1:
        return Reason("a thread computes at least one row and one column")
    channels = _vectors(problem, MaxPoolConfig(32, out_p, out_q)).channels
    if (outputs := out_p * out_q * channels) > MOST_OUTPUTS:
        return Reason(
            "a thread would keep {outputs} outputs in registers; {most} are to be had",
            outputs=outputs,
            most=MOST_OUTPUTS,
        )
    return None


def _tiles(problem: Pool2dProblem, config: MaxPoolConfig) -> int:
    channels = problem.c // _vectors(problem, config).channels
    return problem.n * channels * -(-problem.p // config.out_p) * -(-problem.q // config.out_q)


def _lies_in_vectors(array: Any, vector: int) -> bool:
    """True if the array consists of whole, aligned vectors along its contiguous last axis.

    Strides of axes with one element do not matter.
    """
    *outer, inner = (step // array.itemsize for step in array.strides)
    aligned = all(size <= 1 or step % vector == 0 for size, step in zip(array.shape[:-1], outer, strict=True))
    filled = inner == 1 and array.shape[-1] % vector == 0
    return aligned and filled and address(array) % (vector * array.itemsize) == 0
