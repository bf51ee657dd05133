"""Batches of 2-D FFTs of real numbers for the runtimes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class RealFft:
    """A batch of 2-D FFTs of real numbers, in place and unscaled: forward and back multiplies by the number of points.

    In memory a batch is (batch, size_h, pitch) complex numbers, or (batch, size_h, 2 * pitch) real ones. The first
    `size_w` real numbers of a row are pixels, or its first `size_w // 2 + 1` complex numbers the spectrum; the rest of
    a row is undefined after a transform.

    Examples
    --------
    >>> there = RealFft(8, 10, 6, batch=3, dtype="float32")
    >>> there.reals, there.complexes
    ((3, 8, 12), (3, 8, 6))
    """

    size_h: int
    size_w: int
    pitch: int  # distance between rows in complex numbers, more than ``size_w // 2``
    batch: int
    dtype: str  # of the pixels: "float32" or "float64"; spectra are complex64 or complex128
    inverse: bool = False  # from spectra to pixels

    def __post_init__(self) -> None:
        if min(self.size_h, self.size_w, self.batch) < 1 or self.pitch <= self.size_w // 2:
            raise ValueError(f"{self}: sizes must be at least 1, and a pitch more than size_w // 2")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"dtype={self.dtype!r} of a transform must be float32 or float64")

    @property
    def reals(self) -> tuple[int, int, int]:
        """Shape of the batch as real numbers."""
        return (self.batch, self.size_h, 2 * self.pitch)

    @property
    def complexes(self) -> tuple[int, int, int]:
        """Shape of the batch as complex numbers."""
        return (self.batch, self.size_h, self.pitch)


class Transform(Protocol):
    """A :class:`RealFft` prepared on a device. Thread-safe."""

    @property
    def kernel(self) -> str:
        """Name of the library's function."""
        ...

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory that a call needs."""
        ...

    def __call__(self, data: Any, workspace: Any = None, stream: Any = None) -> None:
        """Transform a batch in place on `stream`, without allocating.

        `data` is contiguous, of shape ``fft.reals`` or ``fft.complexes``, aligned to 16 bytes. `workspace` has at least
        `workspace_bytes` bytes, aligned to 256; None if that is 0.
        """
        ...
