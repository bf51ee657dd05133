"""The TMA tile of direct_boxes (the part of an image that one TMA load copies), and the TMA map of the image."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from convforge.algorithms.contract import Config
from convforge.algorithms.host.conv import pixel_channels
from convforge.backends.maps import MOST_UNITS, TiledMap
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import VECTOR_BYTES, is_integer, itemsize, numpy_dtype

# Taps of a one-channel filter up to which TMA tiles are faster; above it, threads that slide along rows are faster.
MOST_TAPS = 49


@dataclass(frozen=True, slots=True)
class BoxesConfig(Config):
    """Block shape of :class:`DirectBoxes`, and the tile of a thread."""

    strips: int = 4  # threads along p
    lanes: int = 32  # threads along q; 32 to 1024 in a block
    out_p: int = 2  # rows of outputs of a thread
    out_q: int = 4  # columns of outputs of a thread
    out_k: int = 1  # output channels of a thread
    stages: int = 2  # TMA tiles of a block that are loaded or in flight
    blocks: int = 2  # blocks per SM; fewer if registers would spill
    alignment: int = 128  # bytes of which starts and lengths of TMA tile rows are multiples: 16, 32, 64 or 128


@dataclass(frozen=True, slots=True)
class Box:
    """A TMA tile in elements of x, and the vectors of a thread in it; see boxes.cu."""

    size: int  # bytes of an element
    slices: int
    chunk: int
    shift: int
    width: int
    height: int
    planes: int
    unit: int  # bytes of a map element
    load: int
    store_k: int
    store: int

    @property
    def units(self) -> tuple[int, int, int]:
        """Size of the TMA tile along x, y and z, in map elements."""
        return self.width * self.size // self.unit, self.height, self.planes

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory, rounded up because TMA tiles begin at multiples of 128."""
        return -(-self.width * self.height * self.planes * self.size // 128) * 128


def slices_of(problem: Conv2dProblem) -> int:
    """Number of slices, each with its own TMA tiles, that the channels of an image are divided into."""
    return 1 if problem.x_layout == "NHWC" else problem.groups


def groups_share_a_box(problem: Conv2dProblem) -> bool:
    """True if one TMA tile holds the channels of several groups."""
    return slices_of(problem) < problem.groups


def outside_refusal(problem: Conv2dProblem) -> Reason | None:
    """Return why border values cannot be stored among the pixels, or None."""
    dtype, value = problem.x_dtype, problem.outside
    if not is_filled(problem) or problem.padding_mode not in ("zeros", "constant") or dtype == problem.acc_dtype:
        return None
    if is_integer(dtype):
        limits = np.iinfo(dtype)
        held = float(value).is_integer() and limits.min <= value <= limits.max
    else:
        with np.errstate(over="ignore"):
            held = float(numpy_dtype(dtype).type(value)) == value
    return (
        None
        if held
        else Reason(
            "what stands outside the image, {value}, is no number that {dtype} can hold", value=value, dtype=dtype
        )
    )


def is_filled(problem: Conv2dProblem) -> bool:
    """True if any border value is not zero."""
    return problem.padding_mode not in ("zeros", "constant") or problem.outside != 0


def box_of(problem: Conv2dProblem, config: BoxesConfig) -> Box:
    """TMA tile of a block's tile: starts at a multiple of the alignment at or before its windows, ends after them."""
    size, chunk, slices = itemsize(problem.x_dtype), pixel_channels(problem), slices_of(problem)
    wide, alignment = VECTOR_BYTES // size, config.alignment // size
    shift = -problem.padding[2] * chunk % alignment
    columns = (config.lanes * config.out_q - 1) * problem.stride[1] + problem.dilation[1] * (problem.s - 1) + 1
    rows = (config.strips * config.out_p - 1) * problem.stride[0] + problem.dilation[0] * (problem.r - 1) + 1
    width = -(-(shift + columns * chunk) // alignment) * alignment
    # A map element has several elements of x if a row would otherwise exceed the TMA's limit of elements per axis.
    unit = next((u for u in (1, 2, 4, 8) if u >= size and width * size // u <= MOST_UNITS), 8)
    together = problem.out_layout == "NHWC" and slices == 1 and config.out_k == problem.k
    store_k = problem.k if together else 1
    return Box(
        size, slices, chunk, shift, width, rows, problem.c // slices // chunk, unit,
        load=math.gcd(config.out_q * problem.stride[1] * chunk, wide), store_k=store_k,
        store=math.gcd(config.out_q * store_k, VECTOR_BYTES // itemsize(problem.out_dtype)),
    )  # fmt: skip


def tiles_of(problem: Conv2dProblem, config: BoxesConfig) -> int:
    """Number of tiles of the launch, over positions, output-channel tiles, slices and images."""
    slices = slices_of(problem)
    planes = problem.n * slices * -(-problem.k // slices // config.out_k)
    across, down = -(-problem.q // (config.lanes * config.out_q)), -(-problem.p // (config.strips * config.out_p))
    return planes * across * down


def box_map(problem: Conv2dProblem, box: Box, where: int, strides: tuple[int, ...]) -> TiledMap | None:
    """Return the TMA map of an image at address `where`, or None; `strides` are in bytes, in layout order."""
    size = itemsize(problem.x_dtype)
    row = problem.w * box.chunk * size
    if problem.x_layout == "NHWC":
        step_n, step_h, step_w, step_c = strides
        planes, step_z = problem.n, step_n
        dense = step_w == problem.c * size and (problem.c == 1 or step_c == size)
    else:
        step_n, step_c, step_h, step_w = strides
        planes, step_z = problem.n * problem.c, step_c if problem.c > 1 else step_n
        dense = step_w == size and (problem.n == 1 or problem.c == 1 or step_n == problem.c * step_c)
    if not dense:
        return None
    step_h = step_h if problem.h > 1 else row  # the stride of an axis of size 1 has no meaning
    step_z = step_z if planes > 1 else VECTOR_BYTES
    sizes = (row // box.unit, problem.h, planes)
    found = TiledMap(where, f"u{8 * box.unit}", sizes, (step_h, step_z), box.units)
    return found if found.refusal() is None else None
