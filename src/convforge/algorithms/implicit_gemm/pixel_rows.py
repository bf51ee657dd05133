"""Host side of pixel_rows.cu: a picture in rows of channels that the tensor memory accelerator can bring."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from convforge.algorithms.contract import Buffers, Launch
from convforge.algorithms.implicit_gemm.wgmma_tiles import row_pitch
from convforge.algorithms.include.conv import address, conv_constants, fill, with_conv
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# Pixels and channels of a block's square; threads; multiples of bytes at which the rows begin.
SIDE, BLOCK, BEGINS = 64, (32, 8), 256


class Rows(NamedTuple):
    """An array in the workspace: where it lies, and how."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


class PixelRows:
    """The step that writes a picture to the workspace in NHWC, rows of channels at multiples of 16 bytes.

    Parameters
    ----------
    problem, seen : Conv2dProblem
        As it is given, and as it is on the rows: where the border is not zeros, what stands outside is written too.

    Attributes
    ----------
    launch : Launch
    nbytes : int
        Of the workspace.
    """

    def __init__(self, problem: Conv2dProblem, seen: Conv2dProblem, runtime: Runtime) -> None:
        self._shape = seen.x_shape
        height, width = seen.h, seen.w
        top, left = problem.padding[0] - seen.padding[0], problem.padding[2] - seen.padding[2]
        self._size, self._pitch = itemsize(problem.x_dtype), row_pitch(problem, seen.c)
        self.nbytes = problem.n * height * width * self._pitch + BEGINS - 1
        fields = ("height", "width", "top", "left", "squares")
        struct = with_conv("PixelRows", problem, rows=ctypes.c_void_p, **dict.fromkeys(fields, ctypes.c_int))
        own = constants(
            CHANNELS=seen.c, WHOLE_GROUP=seen.c_per_group, PITCH=self._pitch // self._size,
            CHANNELS_NEAR=problem.x_layout == "NHWC",
        )  # fmt: skip
        path, lines = "algorithms/implicit_gemm/pixel_rows.cu", (*conv_constants(problem), *own)
        source = KernelSource(path, "pixel_rows", lines, struct, "PixelRows")
        kernel = runtime.compile(source)
        squares = -(-height * width // SIDE)
        info = LaunchInfo("pixel_rows", (problem.n * squares, -(-seen.c // SIDE)), BLOCK, early=True)

        def arguments(buffers: Buffers) -> Any:
            rows = self.array(buffers).address
            args = struct(rows=rows, height=height, width=width, top=top, left=left, squares=squares)
            fill(args.conv, problem, buffers)
            return args

        self.launch = Launch(info, kernel, arguments, runtime)

    def array(self, buffers: Buffers) -> Rows:
        """Give the rows in a call's workspace."""
        n, h, w, c = self._shape
        at = -(-address(buffers["workspace"]) // BEGINS) * BEGINS
        return Rows(at, (n, h, w, c), (h * w * self._pitch, w * self._pitch, self._pitch, self._size), self._size)
