"""Host side of wgmma.cu: implicit GEMM on Hopper's tensor cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from convforge.algorithms.contract import Buffers, PreparedFilter
from convforge.algorithms.host.on_device import types_refusal
from convforge.algorithms.host.pack_channels import ChannelPacker, UnpackedWeights
from convforge.algorithms.implicit_gemm import wgmma_tiles as tiles
from convforge.algorithms.implicit_gemm.on_wgmma import Maps, OnTensorCores, group_refusal, ways_of_x
from convforge.algorithms.implicit_gemm.stages import row_pitch, way_of_unaligned_x, ways_of_shares
from convforge.algorithms.implicit_gemm.wgmma_configs import ordered
from convforge.algorithms.implicit_gemm.wgmma_tiles import WgmmaConfig, filter_steps, row_channels
from convforge.algorithms.traits import Mark, MethodCost, Way
from convforge.backends.facts import DeviceFacts
from convforge.backends.maps import ALIGNMENT, AnyMap
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize


class FilterRows(ChannelPacker):
    """The weights with the channels of a tap contiguous, as rows of an operand.

    `borrow` does not copy weights that are already stored so: those of 1x1, and of channels_last models.
    """

    def __init__(self, problem: Conv2dProblem, runtime: Runtime) -> None:
        super().__init__(problem, runtime, row_pitch(problem, 1) // itemsize(problem.w_dtype))
        packed = self.finish

        def finish(buffers: Buffers, stream: Any) -> PreparedFilter:
            made = packed(buffers, stream)
            return PreparedFilter({"w": made.tensors["w"].transpose(0, 3, 1, 2)}, made.nbytes)

        self.finish = finish
        self.borrow = UnpackedWeights(
            self, problem, runtime, lambda w: filter_steps(problem, tuple(w.strides)) is not None
        )


class ImplicitGemmWgmma(OnTensorCores[WgmmaConfig]):
    """Implicit GEMM on Hopper's tensor cores: the TMA loads tiles, two warpgroups multiply them.

    Threads store results that the TMA cannot store: of float32, in NCHW, of groups whose filters are no multiple of 64.
    """

    name = "implicit_gemm_wgmma"
    summary = "implicit GEMM of 16-bit types on the tensor cores of Hopper, whose tiles the TMA loads; sm_90"
    since = "implicit_gemm_mma"
    cost = MethodCost(1.0, 0.8, 16384, 2)
    look = Mark("teal", "star")
    stem, config_type, preparation = "wgmma", WgmmaConfig, FilterRows
    types = MappingProxyType({"float16": "f16", "bfloat16": "bf16"})
    fewest, why = 16, "16 bits and many channels: tensor cores, whose tiles the TMA loads"

    def problem_refusal(self, problem: Conv2dProblem) -> Reason | None:
        return types_refusal(problem, self.types) or group_refusal(problem)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[WgmmaConfig]:
        return ordered(problem, facts)

    def ways(self, problem: Conv2dProblem, config: WgmmaConfig) -> tuple[Way, ...]:
        found = [*ways_of_x(problem, config), *_ways_of_result(problem, config), *ways_of_shares(config.split_k)]
        if config.scattered:
            return *found, *([] if config.repacked else [way_of_unaligned_x()])
        if config.repacked:
            words = Reason(
                "if the address or a stride of the result is no multiple of {bytes} bytes, or the result has gaps, "
                "threads store it: by another plan, which is compiled when it is first needed",
                bytes=ALIGNMENT,
            )  # fmt: skip
            return *found, Way("thread_stores", "arrays", words)
        words = Reason(
            "if the address or a stride of x or of the result is no multiple of {bytes} bytes, or one of them has gaps "
            "between its channels, x is first written to a workspace as rows that the TMA loads, and threads store the "
            "result: by another plan, which is compiled when it is first needed",
            bytes=ALIGNMENT,
        )  # fmt: skip
        return *found, Way("pixel_rows", "arrays", words)

    def numbers(self, problem: Conv2dProblem, config: WgmmaConfig) -> dict[str, Any]:
        held = tiles.filters_held(problem, config, row_channels(problem, config))
        return {
            "NUMBER_BYTES": itemsize(problem.x_dtype), "ROW_BYTES": config.row_bytes, "HALVES": 1,
            "FILTER_STAGES": held, "SCATTERED": config.scattered, "BY_PIXELS": False,
        }  # fmt: skip

    def maps(self, problem: Conv2dProblem, loaded: Conv2dProblem, config: WgmmaConfig) -> Maps:
        # The TMA rounds floats to TF32; it copies other numbers bit for bit.
        element = "tf32" if problem.x_dtype == "float32" else tiles.element_of(problem.x_dtype)

        def filters(at: int, strides: tuple[int, ...]) -> AnyMap | None:
            if (steps := filter_steps(problem, strides)) is None:
                return None
            channels, together = problem.c_per_group, row_channels(problem, config)
            return tiles.rows_map(problem, config, at, element, channels, steps, together)

        return {
            "pixels": (partial(tiles.pixels_map, loaded, config, element=element), "x"),
            "filters": (filters, "w"),
            "results": (None if config.scattered else partial(tiles.results_map, problem, config), "out"),
        }


class ImplicitGemmTf32(ImplicitGemmWgmma):
    """The same kernel on float32: each number is rounded to TF32, of 10 mantissa bits, and sums are float32.

    A product differs from that of the float32 numbers by up to 2^-10 of it.
    """

    name = "implicit_gemm_tf32"
    summary = "implicit GEMM of float32, rounded to TF32, on the tensor cores of Hopper; sm_90"
    since = "implicit_gemm_wgmma"
    precision = "tf32"
    look = Mark("teal", "cross")
    why = "many channels, and TF32 is allowed: tensor cores"
    types = MappingProxyType({"float32": "tf32"})


def _ways_of_result(problem: Conv2dProblem, config: WgmmaConfig) -> tuple[Way, ...]:
    """The way of the result: the TMA or threads store it."""
    if config.split_k > 1:
        return ()
    if not config.scattered:
        return (Way("tma_stores", "default", Reason("the TMA stores the result from shared memory")),)
    why = Reason.joined(_why_scattered(problem)) or Reason("the config asks for it ({field})", field="scattered")
    return (Way("thread_stores", "default", Reason("threads store the result, not the TMA: {why}", why=why)),)


def _why_scattered(problem: Conv2dProblem) -> Iterator[Reason]:
    """Each reason why the TMA cannot store the result of a problem."""
    nbytes, k = problem.k * itemsize(problem.out_dtype), problem.k_per_group
    if problem.out_layout != "NHWC":
        yield Reason("the result is in {layout}", layout=problem.out_layout)
    if itemsize(problem.out_dtype) != 2:
        yield Reason("its numbers are of {dtype}, not of 16 bits", dtype=problem.out_dtype)
    if nbytes % ALIGNMENT:
        yield Reason("a pixel of it has {count} bytes, which are no multiple of {bytes}", count=nbytes, bytes=ALIGNMENT)
    if problem.groups > 1 and k % tiles.BOX_FILTERS:
        yield Reason("a group has {count} filters, which are no multiple of {whole}", count=k, whole=tiles.BOX_FILTERS)
