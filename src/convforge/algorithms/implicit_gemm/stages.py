"""The kernels around a product: pixel_rows.cu or split_pixels.cu before it, sum_shares.cu (split-K) after it."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from convforge.algorithms.contract import Algorithm, Buffers, Config, Launch, Plan, PreparedFilter
from convforge.algorithms.gemm.device import modelled_time
from convforge.algorithms.gemm.product import Tiling
from convforge.algorithms.host.amax import amax_fields, clear_amax, put_amax
from convforge.algorithms.host.conv import ArrayView, address, conv_constants, fill, with_conv
from convforge.algorithms.traits import Way
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.maps import ALIGNMENT
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.epilogue import Epilogue
from convforge.problem.types import itemsize

# Pixels and channels of the square that a block writes as rows; alignment of arrays in the workspace in bytes.
SIDE, BEGINS = 64, 256
MOST_OF_TWO_BYTES = 255  # largest difference of two numbers of int8

C = TypeVar("C", bound=Config)


def begins(at: int) -> int:
    """Round an address up to the alignment of arrays in the workspace."""
    return -(-at // BEGINS) * BEGINS


def row_pitch(problem: Conv2dProblem, channels: int) -> int:
    """Bytes from one row of `channels` channels to the next, a multiple of the TMA's alignment."""
    return -(-channels * itemsize(problem.x_dtype) // ALIGNMENT) * ALIGNMENT


def rows_problem(problem: Conv2dProblem, of_group: int) -> Conv2dProblem:
    """Problem that reads rows in a workspace, with `of_group` channels a group; rows include any border but zeros."""
    rows = problem.replace(x_layout="NHWC", out_layout=problem.out_layout, c=of_group * problem.groups)
    if problem.padding_mode == "zeros":
        return rows
    top, bottom, left, right = problem.padding
    return rows.replace(
        h=problem.h + top + bottom, w=problem.w + left + right, padding=(0, 0, 0, 0), padding_mode="zeros",
        padding_value=0.0,
    )  # fmt: skip


def problem_of_shares(problem: Conv2dProblem) -> Conv2dProblem:
    """Problem with the sums of one split-K share as its output: in NHWC, without the epilogue."""
    return problem.replace(out_dtype=problem.acc_dtype, out_layout="NHWC", epilogue=Epilogue())


def passes_of(problem: Conv2dProblem) -> int:
    """Products of bytes for each product of a layer: two for weights of int16 from -255 to 255, else one.

    Such weights are those of 8 bits minus their zero point. Each is the difference of two bytes, so a kernel adds up
    its products twice, with each byte of the weights.
    """
    wide = problem.w_dtype == "int16" and 0 < problem.w_bound <= MOST_OF_TWO_BYTES
    return 2 if wide and problem.x_dtype in ("int8", "uint8") else 1


def problem_of_bytes(problem: Conv2dProblem) -> Conv2dProblem:
    """Problem with the weights of one pass: int8, if there are two passes."""
    return problem.replace(w_dtype="int8", w_bound=0) if passes_of(problem) == 2 else problem


class Squares(ABC):
    """A step that reads an image square by square, and writes it to the workspace in another form.

    `problem` reads the user's x; `rows` reads the written rows, which include a border other than zeros. The class has
    the name of the kernel's struct.
    """

    kernel: ClassVar[str]  # name of the kernel, and stem of its file
    nbytes: int

    def __init__(self, problem: Conv2dProblem, rows: Conv2dProblem, runtime: Runtime) -> None:
        self._n, self._height, self._width = problem.n, rows.h, rows.w
        squares = -(-rows.h * rows.w // SIDE)
        sizes = {
            "height": rows.h, "width": rows.w, "top": problem.padding[0] - rows.padding[0],
            "left": problem.padding[2] - rows.padding[2], "squares": squares,
        }  # fmt: skip
        own = constants(
            CHANNELS=rows.c, WHOLE_GROUP=rows.c_per_group, CHANNELS_LAST=problem.x_layout == "NHWC",
            **self._numbers(problem, rows.c),
        )  # fmt: skip
        fields = {**dict.fromkeys(self._places(0), ctypes.c_void_p), **dict.fromkeys(sizes, ctypes.c_int)}
        struct = with_conv(type(self).__name__, problem, **fields)
        path, lines = f"algorithms/implicit_gemm/{self.kernel}.cu", (*conv_constants(problem), *own)
        kernel = runtime.compile(KernelSource(path, self.kernel, lines, struct, struct.__name__))
        info = LaunchInfo(self.kernel, (problem.n * squares, -(-rows.c // SIDE)), (32, 8), pdl=True)

        def arguments(buffers: Buffers) -> Any:
            places = self._places(address(buffers["workspace"]))
            args = struct(**{name: place.address for name, place in places.items()}, **sizes)
            fill(args.conv, problem, buffers)
            return args

        self.launch = Launch(info, kernel, arguments, runtime)

    @abstractmethod
    def _numbers(self, problem: Conv2dProblem, channels: int) -> dict[str, Any]:
        """Return the constants of the kernel for rows of `channels` channels, and set `nbytes`."""

    @abstractmethod
    def _places(self, workspace: int) -> dict[str, ArrayView]:
        """Arrays that the kernel writes to a workspace at this address, by their names in the struct."""

    def arrays(self, buffers: Buffers) -> Mapping[str, ArrayView]:
        """Arrays that the kernel wrote in a call, by the names that the product uses."""
        return self._places(address(buffers["workspace"]))

    def _dense(self, at: int, count: int, channels: int, size: int) -> ArrayView:
        """Contiguous array of `count` images, with `channels` numbers of `size` bytes per pixel."""
        pixel = channels * size
        strides = (self._height * self._width * pixel, self._width * pixel, pixel, size)
        return ArrayView(at, (count, self._height, self._width, channels), strides, size)


class PixelRows(Squares):
    """The step that writes x in NHWC, in rows of channels aligned to 16 bytes."""

    kernel = "pixel_rows"

    def _numbers(self, problem: Conv2dProblem, channels: int) -> dict[str, Any]:
        self._channels, self._size, self._pitch = channels, itemsize(problem.x_dtype), row_pitch(problem, channels)
        self.nbytes = problem.n * self._height * self._width * self._pitch + BEGINS - 1
        return {"PITCH": self._pitch // self._size}

    def _places(self, workspace: int) -> dict[str, ArrayView]:
        rows = self._dense(begins(workspace), self._n, self._pitch // self._size, self._size)
        return {"rows": rows._replace(shape=(*rows.shape[:3], self._channels))}

    def arrays(self, buffers: Buffers) -> Mapping[str, ArrayView]:
        return {"x": super().arrays(buffers)["rows"]}


class SplitPixels(Squares):
    """The step that writes float32 pixels as rows of halves, all high halves before all low halves, and their scales.

    A pixel has `pitch` halves and `slices` scales.
    """

    kernel = "split_pixels"

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
        places = super().arrays(buffers)
        return {"pixels": places["halves"], "downs": places["downs"]}


class SumShares:
    """The step that adds up `count` split-K shares, `offset` bytes into the workspace, and applies the epilogue."""

    def __init__(self, problem: Conv2dProblem, count: int, offset: int, runtime: Runtime) -> None:
        self._shape, self._offset = problem_of_shares(problem).out_shape, offset
        self.nbytes = count * problem.outputs * 4 + BEGINS - 1
        struct = with_conv("SumShares", problem, sums=ctypes.c_void_p, count=ctypes.c_int, **amax_fields(problem))
        lines = (*conv_constants(problem), *constants(SPLIT_K=count))
        source = KernelSource("algorithms/implicit_gemm/sum_shares.cu", "sum_shares", lines, struct, "SumShares")
        threads, lanes = 256, 4 if problem.k % 4 == 0 else 1
        info = LaunchInfo("sum_shares", (-(-problem.outputs // (threads * lanes)),), (threads,), pdl=True)

        def arguments(buffers: Buffers) -> Any:
            args = struct(sums=self.array(buffers).address, count=problem.outputs)
            fill(args.conv, problem, buffers)
            put_amax(args, problem, buffers)
            return args

        self.launch = Launch(info, runtime.compile(source), arguments, runtime)

    def array(self, buffers: Buffers) -> ArrayView:
        """View of the sums of the first share in a call's workspace; the other shares follow."""
        n, p, q, k = self._shape
        at = begins(address(buffers["workspace"]) + self._offset)
        return ArrayView(at, (n, p, q, k), (4 * p * q * k, 4 * q * k, 4 * k, 4), 4)


class Stages:
    """The kernels around a product: one writes x to the workspace as rows, one adds up the sums of shares.

    Without `rows` the product reads x itself; with `split_k` 1 it writes the result. If amax is wanted, a first kernel
    sets it to 0.
    """

    def __init__(self, problem: Conv2dProblem, rows: Squares | None, split_k: int, runtime: Runtime) -> None:
        self._rows, self._nbytes = rows, 0 if rows is None else rows.nbytes
        self._shares = SumShares(problem, split_k, self._nbytes, runtime) if split_k > 1 else None
        self._before = clear_amax(problem, runtime)

    def buffers(self, buffers: Buffers) -> Buffers:
        """The buffers of the product in a call."""
        if self._rows is not None:
            buffers = {**buffers, **self._rows.arrays(buffers)}
        if self._shares is not None:
            buffers = {**buffers, "out": self._shares.array(buffers)}
        return buffers

    def plan(
        self, method: Algorithm[Any, Any], problem: Conv2dProblem, config: Config, launch: Launch,
        prepare: Callable[[Any, Any], PreparedFilter],
    ) -> Plan:  # fmt: skip
        """The plan of a product's launch with the kernels around it."""
        around = [stage for stage in (self._rows, self._shares) if stage is not None]
        steps = [stage.launch for stage in around]
        steps.insert(self._rows is not None, launch)
        nbytes = sum(stage.nbytes for stage in around)
        steps = [*self._before, *steps]
        return Plan(method, problem, config, launch.runtime, steps=steps, prepare=prepare, workspace_bytes=nbytes)


def ordered_with_shares(
    shapes: Mapping[C, Tiling], problem: Conv2dProblem, facts: DeviceFacts, steps: Callable[[C], int], fewest: int,
    share: Callable[[C, int], C],
) -> list[C]:  # fmt: skip
    """The configs that fit a device, the shortest estimated time first.

    A config with fewer tiles than SMs is also listed with split-K: up to 16 blocks share the steps of a tile. Each has
    at least `fewest` of the `steps`. `share` returns the config with that many blocks. Rows of a Tiling are output
    pixels, columns are filters.
    """
    pixels, k, groups = problem.n * problem.p * problem.q, problem.k_per_group, problem.groups
    found: dict[C, float] = {}
    for config, shape in shapes.items():
        if shape.shared_bytes > facts.block_shared_bytes:
            continue
        found[config] = modelled_time(shape, pixels, k, groups, facts)
        tiles, count = max(1, shape.tiles(pixels, k, groups)), steps(config)
        shares = min(facts.cores // tiles, count // fewest, 16)
        if shares > 1:
            shares = -(-count // -(-count // shares))  # no block is without steps
            found[share(config, shares)] = found[config] / shares
    return sorted(found, key=found.__getitem__)


def can_share(steps: int, count: int) -> bool:
    """True if `count` blocks can share these steps: each has some, and all parts but the last are equal."""
    return 1 <= count <= steps and -(-steps // -(-steps // count)) == count


def way_of_rows(why: Reason | None) -> Way:
    """The way of x if every call first writes it as rows."""
    words = Reason(
        "every call first writes x to a workspace, as rows of channels (NHWC) at multiples of {bytes} bytes: {why}",
        bytes=ALIGNMENT, why=why or Reason("the config asks for it ({field})", field="repacked"),
    )  # fmt: skip
    return Way("pixel_rows", "default", words)


def way_of_unaligned_x() -> Way:
    """The way of arrays that cannot be copied 16 bytes at a time."""
    words = Reason(
        "if the address or a stride of x is no multiple of {bytes} bytes, or x has gaps between its channels, x is "
        "first written to a workspace as rows of channels: by another plan, which is compiled when it is first needed",
        bytes=ALIGNMENT,
    )  # fmt: skip
    return Way("pixel_rows", "arrays", words)


def ways_of_shares(split_k: int) -> tuple[Way, ...]:
    words = Reason(
        "there are few tiles: each shares its channels out among {count}, whose sums a last kernel adds up and stores",
        count=split_k,
    )  # fmt: skip
    return () if split_k == 1 else (Way("sum_shares", "default", words),)
