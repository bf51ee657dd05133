"""Host side of pixel_rows.cu and split_pixels.cu: pictures as rows that the tensor memory accelerator can bring."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from convforge.algorithms.contract import Buffers, Launch
from convforge.algorithms.host.conv import address, conv_constants, fill, with_conv
from convforge.algorithms.implicit_gemm.wgmma_tiles import row_pitch
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# Pixels and channels of a block's square; threads; multiples of bytes at which arrays in the workspace begin.
SIDE, BLOCK, BEGINS = 64, (32, 8), 256


class Rows(NamedTuple):
    """An array in the workspace: where it lies, and how."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


def begins(at: int) -> int:
    """Where the next array of the workspace begins."""
    return -(-at // BEGINS) * BEGINS


class Squares(ABC):
    """A step that brings a picture square after square, and writes it to the workspace in another form.

    Parameters
    ----------
    problem, seen : Conv2dProblem
        As it is given, and as it is on the rows: where the border is not zeros, what stands outside is written too.

    Attributes
    ----------
    kernel, struct : str
        The file's and the kernel's name, and that of the struct that it is handed.
    launch : Launch
    nbytes : int
        Of the workspace.
    """

    kernel: ClassVar[str]
    struct: ClassVar[str]
    nbytes: int

    def __init__(self, problem: Conv2dProblem, seen: Conv2dProblem, runtime: Runtime) -> None:
        self._n, self._height, self._width, channels = problem.n, seen.h, seen.w, seen.c
        own = constants(
            CHANNELS=channels, WHOLE_GROUP=seen.c_per_group, CHANNELS_NEAR=problem.x_layout == "NHWC",
            **self._numbers(problem, channels),
        )  # fmt: skip
        squares = -(-seen.h * seen.w // SIDE)
        sizes = {
            "height": seen.h, "width": seen.w, "top": problem.padding[0] - seen.padding[0],
            "left": problem.padding[2] - seen.padding[2], "squares": squares,
        }  # fmt: skip
        fields = {**dict.fromkeys(self._places(0), ctypes.c_void_p), **dict.fromkeys(sizes, ctypes.c_int)}
        struct = with_conv(self.struct, problem, **fields)
        path, lines = f"algorithms/implicit_gemm/{self.kernel}.cu", (*conv_constants(problem), *own)
        kernel = runtime.compile(KernelSource(path, self.kernel, lines, struct, self.struct))
        info = LaunchInfo(self.kernel, (problem.n * squares, -(-channels // SIDE)), BLOCK, early=True)

        def arguments(buffers: Buffers) -> Any:
            places = self._places(address(buffers["workspace"]))
            args = struct(**{name: rows.address for name, rows in places.items()}, **sizes)
            fill(args.conv, problem, buffers)
            return args

        self.launch = Launch(info, kernel, arguments, runtime)

    @abstractmethod
    def _numbers(self, problem: Conv2dProblem, channels: int) -> dict[str, Any]:
        """Constants of the kernel alone, for so many channels in a row; sets `nbytes`."""

    @abstractmethod
    def _places(self, workspace: int) -> dict[str, Rows]:
        """The arrays that it writes, by the names that the struct has for them, in a workspace that begins there."""

    @abstractmethod
    def arrays(self, buffers: Buffers) -> Mapping[str, Rows]:
        """The arrays of a call that it wrote, by the names that their readers have for them."""

    def _dense(self, at: int, count: int, channels: int, size: int) -> Rows:
        """An array of `count` pictures with so many numbers a pixel."""
        pixel = channels * size
        strides = (self._height * self._width * pixel, self._width * pixel, pixel, size)
        return Rows(at, (count, self._height, self._width, channels), strides, size)


class PixelRows(Squares):
    """The step that writes a picture in NHWC, rows of channels at multiples of 16 bytes."""

    kernel, struct = "pixel_rows", "PixelRows"

    def _numbers(self, problem: Conv2dProblem, channels: int) -> dict[str, Any]:
        self._channels, self._size, self._pitch = channels, itemsize(problem.x_dtype), row_pitch(problem, channels)
        self.nbytes = problem.n * self._height * self._width * self._pitch + BEGINS - 1
        return {"PITCH": self._pitch // self._size}

    def _places(self, workspace: int) -> dict[str, Rows]:
        rows = self._dense(begins(workspace), self._n, self._pitch // self._size, self._size)
        return {"rows": rows._replace(shape=(*rows.shape[:3], self._channels))}

    def array(self, buffers: Buffers) -> Rows:
        """Give the rows in a call's workspace."""
        return self._places(address(buffers["workspace"]))["rows"]

    def arrays(self, buffers: Buffers) -> Mapping[str, Rows]:
        """See :class:`Squares`. The rows take the place of x."""
        return {"x": self.array(buffers)}


class SplitPixels(Squares):
    """The step that writes float32 pixels as rows of halves, all high ones before all low ones, and their scales.

    Attributes
    ----------
    pitch, slices : int
        Halves, and scales, of a pixel.
    """

    kernel, struct = "split_pixels", "SplitPixels"

    def _numbers(self, problem: Conv2dProblem, channels: int) -> dict[str, Any]:
        self.pitch, self.slices = -(-channels // 8) * 8, -(-channels // (4 * SIDE)) * 4
        pixels = problem.n * self._height * self._width
        self.nbytes = begins(2 * 2 * pixels * self.pitch) + 4 * pixels * self.slices + BEGINS - 1
        return {"PITCH": self.pitch, "SLICES": self.slices}

    def _places(self, workspace: int) -> dict[str, Rows]:
        halves = self._dense(begins(workspace), 2 * self._n, self.pitch, 2)
        behind = halves.address + 2 * self._n * halves.strides[0]
        return {"halves": halves, "downs": self._dense(begins(behind), self._n, self.slices, 4)}

    def arrays(self, buffers: Buffers) -> Mapping[str, Rows]:
        """See :class:`Squares`."""
        places = self._places(address(buffers["workspace"]))
        return {"pixels": places["halves"], "downs": places["downs"]}
