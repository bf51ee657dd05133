"""Tensor maps: descriptions of arrays by which TMA copies tiles (boxes), or rows of pixels, to shared memory.

Limits: CUDA driver API, cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col. The innermost axis is first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

# Bytes of an encoded map (struct TensorMap of tma.cuh), and alignment of its field in a struct.
MAP_BYTES, MAP_ALIGNMENT = 128, 64

# Bytes that divide addresses, strides and rows of a box; and the largest number of elements of a box along an axis.
ALIGNMENT, MOST_UNITS = 16, 256

# Element -> bytes. TMA copies all bits, except that "tf32" drops the bits that TF32 does not have.
ELEMENTS = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "f16": 2, "bf16": 2, "f32": 4, "tf32": 4, "f64": 8}

# Bytes of a row in shared memory within which TMA permutes 16-byte chunks, so that columns use all banks.
SWIZZLES = (0, 32, 64, 128)

# Limits of im2col mode: pixels of one copy, offset of a tap, element stride; number of pixel axes -> limit of corners.
MOST_PIXELS, MOST_REACH, MOST_STRIDE = 1024, 255, 8
MOST_CORNER = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}


class _Map(ABC):
    """Fields of maps of both modes."""

    __slots__ = ()

    address: int
    element: str  # key of :data:`ELEMENTS`
    sizes: tuple[int, ...]  # elements along each axis
    strides: tuple[int, ...]  # bytes along each axis but the first, which is contiguous
    steps: tuple[int, ...]  # distance between the elements that a copy loads, along each axis
    swizzle: int  # key of :data:`SWIZZLES`

    def __post_init__(self) -> None:
        if not self.steps:
            object.__setattr__(self, "steps", (1,) * len(self.sizes))

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last."""
        size = ELEMENTS[self.element]
        return sum((count - 1) * step for count, step in zip(self.sizes, (size, *self.strides), strict=True)) + size

    def refusal(self) -> str | None:
        """Return the reason why TMA cannot read the array, or None."""
        return next(self._faults(), None)

    @abstractmethod
    def _faults(self) -> Iterator[str]: ...

    def _common_faults(self) -> Iterator[str]:
        if self.element not in ELEMENTS:
            yield f"element={self.element!r} is unknown; choose one of {', '.join(ELEMENTS)}"
            return
        if self.address % ALIGNMENT:
            yield f"the address {self.address:#x} is no multiple of {ALIGNMENT}"
        if len(self.strides) != len(self.sizes) - 1:
            yield f"strides are one fewer than axes, {len(self.sizes) - 1}; got {len(self.strides)}"
        for axis, stride in enumerate(self.strides, 1):
            if stride % ALIGNMENT or not 0 < stride < 2**40:
                rule = f"it must be a positive multiple of {ALIGNMENT} below 2^40"
                yield f"a stride of {stride} bytes along axis {axis}: {rule}"
        for axis, size in enumerate(self.sizes):
            if not 1 <= size < 2**32:
                yield f"an array has 1 to 2^32 - 1 elements along axis {axis}; got {size}"
        if len(self.steps) != len(self.sizes) or any(not 1 <= step <= MOST_STRIDE for step in self.steps):
            steps = ", ".join(map(str, self.steps))
            yield f"steps are one number from 1 to {MOST_STRIDE} for each axis; got {steps}"
        if self.swizzle not in SWIZZLES:
            yield f"swizzle={self.swizzle} must be one of {', '.join(map(str, SWIZZLES))}"

    def _row_faults(self, elements: int) -> Iterator[str]:
        """Check that a row in shared memory has whole 16-byte chunks, and fits the swizzle."""
        nbytes = elements * ELEMENTS[self.element]
        if nbytes % ALIGNMENT:
            yield f"a row of a box is a multiple of {ALIGNMENT} bytes; got {nbytes}"
        if self.swizzle and nbytes > self.swizzle:
            yield f"a row of a box has at most the {self.swizzle} bytes of its swizzle; got {nbytes}"


@dataclass(frozen=True, slots=True)
class TiledMap(_Map):
    """An array of one to five axes, of which one copy loads a box; elements outside the array are zeros.

    Examples
    --------
    >>> TiledMap(1 << 20, "f32", (64, 48), (256,), (32, 8), swizzle=128).refusal() is None
    True
    >>> TiledMap(1 << 20, "f32", (64, 48), (250,), (32, 8)).refusal()
    'a stride of 250 bytes along axis 1: it must be a positive multiple of 16 below 2^40'
    """

    address: int
    element: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]  # elements along each axis, before `steps`
    steps: tuple[int, ...] = ()
    swizzle: int = 0

    def _faults(self) -> Iterator[str]:
        axes = len(self.sizes)
        if not 1 <= axes <= 5:
            yield f"an array has one to five axes; got {axes}"
            return
        yield from self._common_faults()
        if len(self.box) != axes:
            yield f"a box has as many axes as its array, {axes}; got {len(self.box)}"
            return
        for axis, box in enumerate(self.box):
            if not 1 <= box <= MOST_UNITS:
                yield f"a box has 1 to {MOST_UNITS} elements along axis {axis}; got {box}"
        yield from self._row_faults(-(-self.box[0] // self.steps[0]))


@dataclass(frozen=True, slots=True)
class Im2colMap(_Map):
    """An image of three to five axes (channels, W, H, ..., N), of which one copy loads the pixels of one tap.

    TMA visits all positions of a window's first tap, and continues across the ends of rows and images. A copy gives the
    first position and the offset of its tap. Pixels outside the image are zeros.

    Examples
    --------
    A filter of 3 x 3 with a padding of 1:

    >>> sizes, strides, corners = (64, 56, 56, 32), (128, 7168, 401408), (-1, -1)
    >>> Im2colMap(1 << 20, "f16", sizes, strides, corners, corners, channels=64, pixels=128).refusal() is None
    True
    """

    address: int
    element: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    lower: tuple[int, ...]  # along W, H, ...: first position's offset from the first pixel
    upper: tuple[int, ...]  # last position's offset from the last pixel
    channels: int  # that one copy loads
    pixels: int  # that one copy loads
    steps: tuple[int, ...] = ()  # the convolution's stride along W, H, ...; 1 along channels and N
    swizzle: int = 0

    def _faults(self) -> Iterator[str]:
        axes = len(self.sizes)
        if not 3 <= axes <= 5:
            yield f"an image has three to five axes in im2col mode; got {axes}"
            return
        yield from self._common_faults()
        for name, corner in (("lower", self.lower), ("upper", self.upper)):
            if len(corner) != axes - 2:
                yield f"{name} has one number for each axis of pixels, {axes - 2}; got {len(corner)}"
            elif any(not -MOST_CORNER[axes - 2] <= at < MOST_CORNER[axes - 2] for at in corner):
                most = MOST_CORNER[axes - 2]
                yield f"{name} = {', '.join(map(str, corner))}: a corner lies from {-most} to {most - 1}"
        if not 1 <= self.channels <= MOST_UNITS:
            yield f"a copy brings 1 to {MOST_UNITS} channels; got {self.channels}"
        if not 1 <= self.pixels <= MOST_PIXELS:
            yield f"a copy brings 1 to {MOST_PIXELS} pixels; got {self.pixels}"
        yield from self._row_faults(self.channels)


AnyMap = TiledMap | Im2colMap
