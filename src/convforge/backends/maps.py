"""Arrays as the tensor memory accelerator sees them: three axes, of which a kernel brings boxes to shared memory."""

from __future__ import annotations

from dataclasses import dataclass

# Bytes of the map that a kernel is handed (struct Map of bulk.cuh).
MAP_BYTES = 128

# Addresses, strides and rows of a box are multiples of so many bytes; a box has at most so many units along an axis.
ALIGNMENT, MOST_UNITS = 16, 256


@dataclass(frozen=True, slots=True)
class BoxMap:
    """An array of three axes, x fastest, in memory of the device.

    Attributes
    ----------
    address : int
    unit : int
        Bytes that sizes, boxes and coordinates are counted in: 1, 2, 4 or 8.
    sizes : three int
        Along x, y and z.
    strides : two int
        Bytes from one y, and from one z, to the next.
    box : three int
        Units along x, y and z that one copy brings.
    """

    address: int
    unit: int
    sizes: tuple[int, int, int]
    strides: tuple[int, int]
    box: tuple[int, int, int]

    def refusal(self) -> str | None:
        """Why the accelerator cannot see it so; None if it can.

        Limits: CUDA driver API, cuTensorMapEncodeTiled.
        """
        if self.unit not in (1, 2, 4, 8):
            return f"a unit has 1, 2, 4 or 8 bytes; got {self.unit}"
        if self.address % ALIGNMENT:
            return f"the address {self.address:#x} is no multiple of {ALIGNMENT}"
        for axis, stride in zip("yz", self.strides, strict=True):
            if stride % ALIGNMENT or not 0 < stride < 2**40:
                return f"a stride of {stride} bytes along {axis}: it must be a positive multiple of {ALIGNMENT}"
        for axis, size, box in zip("xyz", self.sizes, self.box, strict=True):
            if not 1 <= size < 2**32:
                return f"an array has 1 to 2^32 units along {axis}; got {size}"
            if not 1 <= box <= MOST_UNITS:
                return f"a box has 1 to {MOST_UNITS} units along {axis}; got {box}"
        if self.box[0] * self.unit % ALIGNMENT:
            return f"a row of a box is a multiple of {ALIGNMENT} bytes; got {self.box[0] * self.unit}"
        return None
