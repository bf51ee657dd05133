"""Host side of pack_channels.cu, which packs filters so that the channels of a tap are contiguous."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from convforge.algorithms.contract import Buffers, Launch, Preparation, PreparedFilter
from convforge.algorithms.host.conv import address
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# Most bytes of a part of a filter, threads of a block, most channels of a part, bytes of a vector.
PART_BYTES, THREADS, MOST_CHANNELS, VECTOR = 36864, 256, 256, 16


class _Packing(ctypes.Structure):
    """struct Packing of pack_channels.cu."""

    _fields_ = (
        ("w", ctypes.c_void_p), ("packed", ctypes.c_void_p), ("strides", ctypes.c_longlong * 4),
        ("pitch", ctypes.c_longlong),
        *((name, ctypes.c_int) for name in ("C", "R", "S", "channels", "parts", "flip", "dense", "vectors")),
    )  # fmt: skip


class ChannelPacker(Preparation):
    """Packs the weights in the axis order K, R, S, C and in cross-correlation order, without a change of type.

    Its tensor "w" has the shape (K, R, S, channels): a tap's channels are padded with zeros to multiples of `whole`
    elements. `borrow` does not copy weights that already have this layout: those of channels_last models.

    With two `planes`, weights of int16 from -255 to 255 become two bytes each, and "w" has the shape
    (2 K, R, S, channels) and the type int8: minus ceil(w / 2) of all filters, then floor(w / 2).
    """

    def __init__(self, problem: Conv2dProblem, runtime: Runtime, whole: int = 1, planes: int = 1) -> None:
        (k, c, r, s), size = problem.w_shape, itemsize(problem.w_dtype)
        taps, pitch = r * s, -(-c // whole) * whole
        # A part is aligned to 16 bytes. So is the next filter, if the length of a filter is a multiple of 16 bytes.
        channels = max(8, min(MOST_CHANNELS, PART_BYTES // (taps * size) // 8 * 8))
        parts = -(-c // channels)
        fits = min(channels, c) * taps * size <= PART_BYTES
        across = min(MOST_CHANNELS, -(-min(channels, c) // 32) * 32)
        lines = constants(NUMBER_BYTES=size, PLANES=planes)
        source = KernelSource("algorithms/host/pack_channels.cu", "pack_channels", lines, _Packing, "Packing")
        info = LaunchInfo("pack_channels", (k * parts,), (across, THREADS // across), pdl=True)
        flip = int(problem.mode == "convolution")

        def arguments(buffers: Buffers) -> Any:
            w = buffers["given"]
            steps = [step // w.itemsize for step in w.strides]
            dense = fits and steps[1:] == [taps, s, 1]
            vectors = dense and address(w) % VECTOR == 0 and w.strides[0] % VECTOR == 0
            return _Packing(
                address(w), address(buffers["w"]), (ctypes.c_longlong * 4)(*steps), pitch, c, r, s, channels, parts,
                flip, dense, vectors,
            )  # fmt: skip

        def packed(buffers: Buffers, stream: Any) -> PreparedFilter:
            return PreparedFilter({"w": buffers["w"]}, buffers["w"].nbytes)

        pieces = {"w": ((planes * k, r, s, pitch), problem.w_dtype if planes == 1 else "int8")}
        super().__init__(runtime, pieces, [Launch(info, runtime.compile(source), arguments, runtime)], packed)
        if planes > 1:
            return
        steps = tuple(size * step for step in (r * s * c, 1, s * c, c))

        def lies(w: Any) -> bool:
            axes = zip((k, c, r, s), w.strides, steps, strict=True)
            return pitch == c and all(length == 1 or own == step for length, own, step in axes)

        self.borrow: Preparation = UnpackedWeights(self, problem, runtime, lies)


class UnpackedWeights(Preparation):
    """Passes the user's weights to the kernel if it can read their layout; else packs them.

    `lies` returns True if the kernel can read the array, provided that its address is a multiple of 16 bytes.
    """

    def __init__(
        self, packed: Preparation, problem: Conv2dProblem, runtime: Runtime, lies: Callable[[Any], bool]
    ) -> None:
        super().__init__(runtime, {}, (), lambda buffers, stream: PreparedFilter({"w": buffers["given"]}, 0))
        self._packed, self._lies = packed, lies
        self._flipped = problem.mode == "convolution" and problem.r * problem.s > 1

    def of(self, given: Any) -> Preparation:
        return self if not self._flipped and address(given) % VECTOR == 0 and self._lies(given) else self._packed
