"""Host side of implicit GEMM on GPUs: a product of the GEMM ladder that gathers its columns from the image."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap
from typing import Any

from convforge.algorithms.contract import Buffers, Launch, Plan
from convforge.algorithms.gemm.device import WarpTile, modelled_time
from convforge.algorithms.gemm.product import MOST_COLUMNS, Product, Tiling, blocked_flops
from convforge.algorithms.host.conv import WeightPacker, is_aligned
from convforge.algorithms.host.on_device import DeviceConvolution
from convforge.algorithms.traits import GENERAL, Mark, MethodCost, Preference, Rank, Work, shared_pixels
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import constants
from convforge.backends.runtime import Runtime
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# Outputs and pixels of a block, column entries of a step; outputs and pixels of a warp; those of a thread.
TILES = tuple(starmap(WarpTile, (
    (128, 128, 32, 32, 64, 8, 8), (128, 128, 8, 32, 64, 8, 8), (64, 128, 16, 32, 64, 8, 8),
    (64, 128, 8, 32, 64, 8, 8), (64, 64, 32, 32, 32, 8, 4), (64, 64, 16, 32, 64, 8, 8), (64, 64, 8, 32, 32, 8, 4),
    (32, 128, 8, 32, 32, 8, 4), (16, 128, 8, 16, 32, 4, 4), (8, 256, 8, 8, 64, 4, 4),
)))  # fmt: skip


class ImplicitGemm(DeviceConvolution[WarpTile]):
    """out (K x NPQ) = w (K x RSC) x columns (RSC x NPQ); columns are only gathered in shared memory."""

    name = "implicit_gemm"
    summary = "im2col's product without its matrix: tiles of columns gathered into shared memory"
    since = "im2col"
    cost = MethodCost(0.62, 0.8, 8192, 2)
    look = Mark("teal", "square")

    def work_for(self, problem: Conv2dProblem) -> Work:
        return Work(blocked_flops(problem), problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if problem.c_per_group > 8 and problem.k_per_group >= 8:
            why = f"tiles of {problem.k_per_group} outputs of {problem.taps} products each share what they load"
            return Preference(Rank.MATRIX, why)
        return shared_pixels(problem, Rank.SHARED_PIXELS) or Preference(Rank.GENERAL_PRODUCT, GENERAL)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[WarpTile]:
        pixels, size = problem.n * problem.p * problem.q, itemsize(problem.acc_dtype)
        fit = [tile for tile in TILES if tile.fits(tiling(tile, problem), size, facts)]

        def time(tile: WarpTile) -> float:
            slower = 1.25 if problem.c_per_group % tile.block_k else 1.0  # gathering several taps in a step is slower
            return slower * modelled_time(tiling(tile, problem), problem.k_per_group, pixels, problem.groups, facts)

        return sorted(fit, key=time)

    def plan(self, problem: Conv2dProblem, config: WarpTile, runtime: Runtime) -> Plan:
        pixels, nhwc = problem.n * problem.p * problem.q, problem.x_layout == "NHWC"
        product = Product(
            "algorithms/implicit_gemm/implicit_gemm.cu", "implicit_gemm", tiling(config, problem), runtime, False, nhwc,
            problem.acc_dtype, problem, constants=constants(CHANNELS_LAST=nhwc), around=_around,
        )  # fmt: skip

        size = itemsize(problem.x_dtype)
        each = min(4, 16 // size)
        fours = nhwc and problem.c_per_group % each == 0
        vectors = dict.fromkeys("nhw", 2), {"c": 1}, each  # strides of axes of length 1 count too

        def columns(first: int) -> Launch:
            count = min(MOST_COLUMNS, pixels - first)
            info = product.info(problem.k_per_group, count, problem.groups, pdl=True)

            def arguments(buffers: Buffers) -> Any:
                args = product.output(buffers, count, problem.taps, first)
                conv = args.store.conv
                # True if runs of four channels (or of 16 bytes) are contiguous and aligned to their size.
                return product.arguments(args, int(fours and is_aligned(conv.x, conv.x_strides, *vectors, size)))

            return Launch(info, product.kernel, arguments, runtime)

        steps = [columns(first) for first in range(0, max(pixels, 1), MOST_COLUMNS)]
        return Plan(self, problem, config, runtime, steps=steps, prepare=WeightPacker(problem, runtime, "RSCK"))


def tiling(config: WarpTile, problem: Conv2dProblem) -> Tiling:
    """Tile of the kernel: shared memory holds two tiles of each operand, and the offset of each column's window."""
    plain = config.tiling(itemsize(problem.acc_dtype), stages=2)
    shared = -(-(plain.shared_bytes + 16 * config.block_n) // 16) * 16
    return replace(plain, constants=(*plain.constants, ("SHARED_BYTES", shared)), shared_bytes=shared)


def _around(gemm: Any) -> type[ctypes.Structure]:
    return type("Implicit", (ctypes.Structure,), {"_fields_": [("product", gemm), ("vectors", ctypes.c_int)]})
