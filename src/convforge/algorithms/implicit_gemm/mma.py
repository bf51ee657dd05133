"""Host side of mma.cu: implicit GEMM of 16-bit types on the tensor cores of any GPU since Ampere."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from convforge.algorithms.contract import Buffers, Launch, Plan
from convforge.algorithms.gemm.device import modelled_time
from convforge.algorithms.gemm.mma import PRODUCTS, TILES, TYPES, GemmMmaConfig, device_refusal, tiling
from convforge.algorithms.implicit_gemm.sum_shares import SumShares, problem_of_shares
from convforge.algorithms.implicit_gemm.ways import ways_of_shares
from convforge.algorithms.include.channels_near import ChannelsNear
from convforge.algorithms.include.conv import conv_constants, fill, is_aligned, with_conv
from convforge.algorithms.include.on_device import DeviceConvolution
from convforge.algorithms.include.resident import evenly
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# Channels that are copied at once; with fewer channels or filters of a group "auto" takes another method.
PIECE, FEWEST = 8, 16
# A block that shares its steps out has at least so many left; so many share a tile at most.
FEWEST_STEPS, MOST_SHARES = 4, 16


@dataclass(frozen=True, slots=True)
class ImplicitMmaConfig(GemmMmaConfig):
    """Tiles of :class:`ImplicitGemmMma`: rows are output pixels, columns filters.

    Attributes
    ----------
    split_k : int
        Blocks that share the steps of a tile; a last kernel adds up their sums.
    """

    split_k: int = 1


class ImplicitGemmMma(DeviceConvolution[ImplicitMmaConfig]):
    """Out (NPQ x K) = columns (NPQ x RSC) times filters, on tensor cores; the columns are gathered by cp.async.

    It takes any stride, border, dilation, groups, layout and number of channels. Channels that do not lie side by side
    at multiples of 16 bytes (NCHW, or C no multiple of 8) are brought one by one, which takes longer.

    Notes
    -----
    PTX ISA, mma.m16n8k16, ldmatrix and cp.async.
    """

    name = "implicit_gemm_mma"
    summary = "implicit GEMM of 16-bit types on tensor cores, whose pixels threads ask for ahead; sm_80"
    since = "implicit_gemm"
    cost = MethodCost(1.0, 0.8, 8192, 2)
    look = Mark("teal", "circle")

    def work_for(self, problem: Conv2dProblem) -> Work:
        """See :class:`Algorithm`."""
        return Work(problem.flops / PRODUCTS, problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        """See :class:`Algorithm`."""
        few = min(problem.c_per_group, problem.k_per_group) < FEWEST
        if few or problem.x_dtype not in TYPES or why_one_by_one(problem):
            return None
        return Preference(
            Rank.TENSOR_CORES_OF_WARPS, "16 bits and many channels: tensor cores, whose factors warps hold"
        )

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        """See :class:`Algorithm`."""
        types = {problem.x_dtype, problem.w_dtype}
        if len(types) != 1 or problem.x_dtype not in TYPES or problem.out_dtype not in (*types, "float32"):
            types.add(problem.out_dtype)
            return Reason(
                "x and w must be of one type of {names}, and the result of that or float32; these are {types}",
                names=", ".join(TYPES), types=", ".join(sorted(types)),
            )  # fmt: skip
        return device_refusal(facts)

    def ways(self, problem: Conv2dProblem, config: ImplicitMmaConfig) -> tuple[Way, ...]:
        """See :class:`Algorithm`."""
        why = why_one_by_one(problem)
        words = (
            Reason("threads bring channels one by one: {why}", why=why)
            if why
            else Reason(
                "threads ask for {count} channels of a pixel at once, ahead of the products; of an x that is not "
                "aligned to 16 bytes they bring channels one by one",
                count=PIECE,
            )
        )
        return Way("tensor_cores", "default", words), *ways_of_shares(config.split_k)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[ImplicitMmaConfig]:
        """See :class:`Algorithm`. Those that waste least of the device first."""
        pixels, k, groups = problem.n * problem.p * problem.q, problem.k_per_group, problem.groups
        found: dict[ImplicitMmaConfig, float] = {}
        for tile in TILES:
            plain = ImplicitMmaConfig(*tile)
            shape = tiling(plain)
            if shape.shared_bytes > facts.block_shared_bytes:
                continue
            time = modelled_time(shape, pixels, k, groups, facts)
            found[plain] = time
            tiles = max(1, shape.tiles(pixels, k, groups))
            steps = steps_of(problem, plain.block_k)
            shares = min(facts.cores // tiles, steps // FEWEST_STEPS, MOST_SHARES)
            if shares > 1:
                shares = -(-steps // -(-steps // shares))  # each has some
                found[replace(plain, split_k=shares)] = time / shares
        return sorted(found, key=found.__getitem__)

    def plan(self, problem: Conv2dProblem, config: ImplicitMmaConfig, runtime: Runtime) -> Plan:
        """See :class:`Algorithm`."""
        shape, steps = tiling(config), steps_of(problem, config.block_k)
        if not 1 <= config.split_k <= steps or -(-steps // -(-steps // config.split_k)) != config.split_k:
            raise ValueError(f"{config}: {steps} steps are not shared out among {config.split_k} blocks")
        own = problem if config.split_k == 1 else problem_of_shares(problem)
        shares = SumShares(problem, config.split_k, 0, runtime) if config.split_k > 1 else None
        struct = with_conv("ImplicitMma", own, vectors=ctypes.c_int, together=ctypes.c_int)
        numbers = {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, **dict(shape.constants)}
        lines = (*conv_constants(own, problem.x_dtype), *constants(**numbers, SPLIT_K=config.split_k))
        kernel = runtime.compile(
            KernelSource("algorithms/implicit_gemm/mma.cu", "implicit_gemm_mma", lines, struct, "ImplicitMma")
        )
        pixels = problem.n * problem.p * problem.q
        tiles = shape.tiles(pixels, problem.k_per_group, problem.groups) * config.split_k
        info = LaunchInfo("implicit_gemm_mma", (tiles,), shape.threads, shape.shared_bytes, early=True)

        def arguments(buffers: Buffers) -> Any:
            if shares is not None:
                buffers = {**buffers, "out": shares.array(buffers)}
            args = struct()
            fill(args.conv, own, buffers)
            args.vectors, args.together = _whole_pieces(problem, args.conv), _together(own, args.conv)
            return args

        launch = Launch(evenly(runtime, kernel, info), kernel, arguments, runtime)
        behind = [] if shares is None else [shares.launch]
        return Plan(
            self, problem, config, runtime, steps=[launch, *behind],
            prepare=ChannelsNear(problem, runtime, whole=PIECE), workspace_bytes=0 if shares is None else shares.nbytes,
        )  # fmt: skip


def steps_of(problem: Conv2dProblem, channels: int) -> int:
    """Steps of so many channels that a tile takes: each tap's channels in whole pieces."""
    return -(-problem.r * problem.s * -(-problem.c_per_group // PIECE) * PIECE // channels)


def why_one_by_one(problem: Conv2dProblem) -> Reason | None:
    """Why channels cannot be copied in pieces of 16 bytes, however the arrays are aligned; None if they can."""
    if problem.x_layout != "NHWC":
        return Reason("x is in {layout}", layout=problem.x_layout)
    if problem.c % PIECE or problem.c_per_group % PIECE:
        return Reason("a group has {count} channels, no multiple of {piece}", count=problem.c_per_group, piece=PIECE)
    return None


def _whole_pieces(problem: Conv2dProblem, conv: Any) -> bool:
    """Tell whether the address of each piece of 8 channels is a multiple of 16 bytes."""
    sizes = {"n": problem.n, "h": problem.h, "w": problem.w}
    aligned = is_aligned(conv.x, conv.x_strides, sizes, {"c": 1}, PIECE, itemsize(problem.x_dtype))
    return aligned and (problem.groups == 1 or problem.c_per_group % PIECE == 0)


def _together(problem: Conv2dProblem, conv: Any) -> int:
    """How many neighbouring outputs of a pixel a thread may store by one instruction."""
    sizes, size = {"n": problem.n, "h": problem.p, "w": problem.q}, itemsize(problem.out_dtype)
    for count in (PIECE, 2):
        if count * size <= 16 and problem.k_per_group % count == 0 \
                and is_aligned(conv.out, conv.out_strides, sizes, {"c": 1}, count, size):  # fmt: skip
            return count
    return 1
