"""Host side of pixel_rows.cu and split_pixels.cu, which write images as rows that the TMA can load."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from convforge.algorithms.contract import Buffers, Launch
from convforge.algorithms.host.conv import ArrayView, address, conv_constants, fill, with_conv
from convforge.algorithms.implicit_gemm.wgmma_tiles import row_pitch
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# Pixels and channels of a block's square; threads; alignment of arrays in the workspace in bytes.
SIDE, BLOCK, BEGINS = 64, (32, 8), 256


def begins(at: int) -> int:
    """The aligned address of the next array of the workspace, from `at` on."""
    return -(-at // BEGINS) * BEGINS


class Squares(ABC):
    """A step that reads an image square by square, and writes it to the workspace in another form.

    `problem` is the given one, and `rows` the one on the rows: a border other than zeros is written out. `kernel` is
    the name of the file and of the kernel, `struct` that of its struct.
    """

    kernel: ClassVar[str]
    struct: ClassVar[str]
    nbytes: int

    def __init__(self, problem: Conv2dProblem, rows: Conv2dProblem, runtime: Runtime) -> None:
        self._n, self._height, self._width = problem.n, rows.h, rows.w
        own = constants(
            CHANNELS=rows.c, WHOLE_GROUP=rows.c_per_group, CHANNELS_LAST=problem.x_layout == "NHWC",
            **self._numbers(problem, rows.c),
        )  # fmt: skip
        squares = -(-rows.h * rows.w // SIDE)
        sizes = {
            "height": rows.h, "width": rows.w, "top": problem.padding[0] - rows.padding[0],
            "left": problem.padding[2] - rows.padding[2], "squares": squares,
        }  # fmt: skip
        fields = {**dict.fromkeys(self._places(0), ctypes.c_void_p), **dict.fromkeys(sizes, ctypes.c_int)}
        struct = with_conv(self.struct, problem, **fields)
        path, lines = f"algorithms/implicit_gemm/{self.kernel}.cu", (*conv_constants(problem), *own)
        kernel = runtime.compile(KernelSource(path, self.kernel, lines, struct, self.struct))
        info = LaunchInfo(self.kernel, (problem.n * squares, -(-rows.c // SIDE)), BLOCK, early=True)

        def arguments(buffers: Buffers) -> Any:
            places = self._places(address(buffers["workspace"]))
            args = struct(**{name: place.address for name, place in places.items()}, **sizes)
            fill(args.conv, problem, buffers)
            return args

        self.launch = Launch(info, kernel, arguments, runtime)

    @abstractmethod
    def _numbers(self, problem: Conv2dProblem, channels: int) -> dict[str, Any]:
        """Constants specific to the kernel, for `channels` in a row; sets `nbytes`."""

    @abstractmethod
    def _places(self, workspace: int) -> dict[str, ArrayView]:
        """The arrays that it writes to a workspace at this address, by their names in the struct."""

    @abstractmethod
    def arrays(self, buffers: Buffers) -> Mapping[str, ArrayView]:
        """The arrays that it wrote in a call, by the product's names for them."""

    def _dense(self, at: int, count: int, channels: int, size: int) -> ArrayView:
        """An array of `count` images with so many numbers a pixel."""
        pixel = channels * size
        strides = (self._height * self._width * pixel, self._width * pixel, pixel, size)
        return ArrayView(at, (count, self._height, self._width, channels), strides, size)


class PixelRows(Squares):
    """The step that writes x in NHWC, in rows of channels aligned to 16 bytes."""

    kernel, struct = "pixel_rows", "PixelRows"

    def _numbers(self, problem: Conv2dProblem, channels: int) -> dict[str, Any]:
        self._channels, self._size, self._pitch = channels, itemsize(problem.x_dtype), row_pitch(problem, channels)
        self.nbytes = problem.n * self._height * self._width * self._pitch + BEGINS - 1
        return {"PITCH": self._pitch // self._size}

    def _places(self, workspace: int) -> dict[str, ArrayView]:
        rows = self._dense(begins(workspace), self._n, self._pitch // self._size, self._size)
        return {"rows": rows._replace(shape=(*rows.shape[:3], self._channels))}

    def arrays(self, buffers: Buffers) -> Mapping[str, ArrayView]:
        """The rows, which replace x."""
        return {"x": self._places(address(buffers["workspace"]))["rows"]}


class SplitPixels(Squares):
    """The step that writes float32 pixels as rows of halves, all high ones before all low ones, and their scales.

    A pixel has `pitch` halves and `slices` scales.
    """

    kernel, struct = "split_pixels", "SplitPixels"

    def _numbers(self, problem: Conv2dProblem, channels: int) -> dict[str, Any]:
        self.pitch, self.slices = -(-channels // 8) * 8, -(-channels // (4 * SIDE)) * 4
        pixels = problem.n * self._height * self._width
        self.nbytes = begins(2 * 2 * pixels * self.pitch) + 4 * pixels * self.slices + BEGINS - 1
        return {"PITCH": self.pitch, "SLICES": self.slices}

    def _places(self, workspace: int) -> dict[str, ArrayView]:
        halves = self._dense(begins(workspace), 2 * self._n, self.pitch, 2)
        behind = halves.address + 2 * self._n * halves.strides[0]
        return {"halves": halves, "downs": self._dense(begins(behind), self._n, self.slices, 4)}

    def arrays(self, buffers: Buffers) -> Mapping[str, ArrayView]:
        places = self._places(address(buffers["workspace"]))
        return {"pixels": places["halves"], "downs": places["downs"]}
