"""Host code that the depthwise kernels share, mainly the problems that they support."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from convforge.algorithms.direct.box import MOST_TAPS
from convforge.algorithms.host.conv import LIMIT_BITS
from convforge.algorithms.host.on_device import C, OneLaunch
from convforge.backends.architecture import Architecture
from convforge.backends.facts import DeviceFacts
from convforge.errors import Reason
from convforge.problem import Conv2dProblem, is_small_plane
from convforge.problem.keys import SMALL_SIDE
from convforge.problem.types import itemsize

# Output channels of a single-channel image from which general methods are preferred: each pixel serves many outputs.
MANY_OUTPUTS = 8

# Filter taps above which tiles of planes in shared memory are faster in NHWC. WIDE is for pixels of at least four
# bytes: a few planes then use a larger part of each memory line.
LARGE, WIDE = 49, 9

# Pixels of a plane up to which blocks with whole planes are faster than tiles in NCHW: SMALL_PLANE (above it,
# depthwise_mma is preferred for 16-bit floats), or LARGE_PLANE with large filters. They need at least FEW_PLANES
# planes per SM: with fewer, some SMs get none.
SMALL_PLANE, LARGE_PLANE, FEW_PLANES = 28 * 28, 64 * 64, 4

# Planes that keep a GPU busy if each block holds whole planes.
BUSY_PLANES = 512


class DepthwiseConvolution(OneLaunch[C]):
    """Base of convolutions on GPUs in which every channel is a group."""

    first_architecture: ClassVar[int] = 0  # first one with the tensor cores that the kernel uses; 0: it uses none

    @abstractmethod
    def least(self, problem: Conv2dProblem) -> C:
        """Return the smallest config: if it is invalid, all configs are."""

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if self.first_architecture and Architecture.parse(facts.architecture).number < self.first_architecture:
            return Reason(
                "these tensor cores came with sm_{first}; this is {architecture}",
                first=self.first_architecture,
                architecture=facts.architecture,
            )
        return one_channel_refusal(problem) or self.config_refusal(problem, self.least(problem), facts)


def one_channel_refusal(problem: Conv2dProblem) -> Reason | None:
    """Return why a method for one-channel filters cannot compute a problem, or None."""
    if problem.groups == problem.c:
        return None
    return Reason("a filter must see one channel: groups={groups} must equal C={c}", groups=problem.groups, c=problem.c)


def blocks_of(problem: Conv2dProblem, planes: int) -> int:
    """Blocks of a launch in which each block computes so many output planes."""
    return max(1, -(-problem.n * problem.k // planes))


def threads_refusal(threads: int) -> Reason | None:
    if threads <= 1024:
        return None
    return Reason("a block has at most 1024 threads; {threads} are asked for", threads=threads)


def planes_room_refusal(planes: int, room: int, facts: DeviceFacts) -> Reason | None:
    """Return why the planes of a block and their filters do not fit in shared memory, or None."""
    if room <= facts.block_shared_bytes:
        return None
    return Reason(
        "{planes} planes and their filters take {room} bytes of shared memory; a block has {most}",
        planes=planes, room=room, most=facts.block_shared_bytes,
    )  # fmt: skip


def small_plane_refusal(problem: Conv2dProblem) -> Reason | None:
    """Return why planes are too large for a kernel that is compiled for one plane size, or None."""
    if is_small_plane(problem):
        return None
    return Reason(
        "a kernel is made for one size of planes, at most {most} x {most}; these are {h} x {w}",
        most=SMALL_SIDE, h=problem.h, w=problem.w,
    )  # fmt: skip


def whole_planes_refusal(problem: Conv2dProblem) -> Reason | None:
    """Return why blocks cannot hold whole planes, each with its own output plane, or None."""
    if problem.x_layout != "NCHW" or problem.out_layout != "NCHW":
        return Reason(
            "planes must lie by themselves: NCHW, not {x_layout} and {out_layout}",
            x_layout=problem.x_layout,
            out_layout=problem.out_layout,
        )
    if problem.k != problem.c:
        return Reason("an output must have a plane of its own: K={k} must equal C={c}", k=problem.k, c=problem.c)
    if (planes := problem.n * problem.k) >= 2**LIMIT_BITS:
        return Reason("{planes} planes are more than a launch counts", planes=planes)
    return None


def idle_for_planes(problem: Conv2dProblem) -> float:
    """Factor by which a call slows down because there are too few whole planes for all SMs."""
    return max(1.0, BUSY_PLANES / max(problem.n * problem.c, 1))


def is_preferred(problem: Conv2dProblem) -> bool:
    """True if depthwise methods are preferred to general ones; for C = 1, only if the filter is large."""
    if problem.groups != problem.c:
        return False
    return problem.c > 1 or (problem.r * problem.s > MOST_TAPS and problem.k_per_group < MANY_OUTPUTS)


def whole_planes_pay(problem: Conv2dProblem, facts: DeviceFacts) -> bool:
    """True if blocks that hold whole planes are faster than tiles."""
    most = LARGE_PLANE if problem.r * problem.s >= LARGE else SMALL_PLANE
    return problem.n * problem.c >= FEW_PLANES * facts.cores and problem.h * problem.w <= most


def tiles_of_planes_pay(problem: Conv2dProblem) -> bool:
    """True if tiles of planes in shared memory are faster than vectors of channels."""
    return problem.r * problem.s > (WIDE if itemsize(problem.x_dtype) >= 4 else LARGE)
