"""Host side of wgmma.cu: implicit GEMM on Hopper's tensor cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from convforge.algorithms.contract import Buffers, PreparedFilter
from convforge.algorithms.host.on_device import types_refusal
from convforge.algorithms.host.pack_channels import ChannelPacker, UnpackedWeights
from convforge.algorithms.implicit_gemm import wgmma_tiles as tiles
from convforge.algorithms.implicit_gemm.on_wgmma import Maps, OnTensorCores, group_refusal
from convforge.algorithms.implicit_gemm.ways import ways_of_arrays, ways_of_result, ways_of_shares, ways_of_x
from convforge.algorithms.implicit_gemm.wgmma_configs import ordered
from convforge.algorithms.implicit_gemm.wgmma_tiles import WgmmaConfig, filter_steps, row_channels
from convforge.algorithms.traits import Mark, MethodCost, Way
from convforge.backends.facts import DeviceFacts
from convforge.backends.maps import AnyMap
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize


class ImplicitGemmWgmma(OnTensorCores[WgmmaConfig]):
    """Implicit GEMM on Hopper's tensor cores: the TMA loads tiles, two warpgroups multiply them.

    Threads store results that the TMA cannot store: of float32, in NCHW, of groups whose filters are no multiple of 64.
    """

    name = "implicit_gemm_wgmma"
    summary = "implicit GEMM of 16-bit types on the tensor cores of Hopper, fed by its tensor memory accelerator; sm_90"
    since = "implicit_gemm_mma"
    cost = MethodCost(1.0, 0.8, 16384, 2)
    look = Mark("teal", "triangle-left")
    path, kernel, struct = "algorithms/implicit_gemm/wgmma.cu", "implicit_gemm_wgmma", "Wgmma"
    fewest, why = 16, "16 bits and many channels: tensor cores, whose tiles come by themselves"

    types: ClassVar[Mapping[str, str]] = {"float16": "f16", "bfloat16": "bf16"}  # NumPy's name -> that of PTX

    config_refusal, smallest = staticmethod(tiles.config_refusal), staticmethod(tiles.smallest)
    shared_bytes, whole_groups = staticmethod(tiles.shared_bytes), staticmethod(tiles.whole_groups)

    def problem_refusal(self, problem: Conv2dProblem) -> Reason | None:
        return types_refusal(problem, self.types) or group_refusal(problem)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[WgmmaConfig]:
        return ordered(problem, facts)

    def ways(self, problem: Conv2dProblem, config: WgmmaConfig) -> tuple[Way, ...]:
        return (
            *ways_of_x(problem, config, self.whole_groups(problem)), *ways_of_result(problem, config),
            *ways_of_shares(config.split_k), *ways_of_arrays(config, not config.scattered),
        )  # fmt: skip

    def numbers(self, problem: Conv2dProblem, config: WgmmaConfig) -> dict[str, Any]:
        held = tiles.filters_held(problem, config, row_channels(problem, config))
        return {
            "NUMBER_BYTES": itemsize(problem.x_dtype), "ROW_BYTES": config.row_bytes, "HALVES": 1,
            "FILTER_STAGES": held, "SCATTERED": config.scattered, "BY_PIXELS": False,
        }  # fmt: skip

    def instruction(self, problem: Conv2dProblem) -> str:
        return self.types[problem.x_dtype]

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

    def preparation(self, problem: Conv2dProblem, runtime: Runtime) -> Callable[[Any, Any], PreparedFilter]:
        return FilterRows(problem, runtime)


class ImplicitGemmTf32(ImplicitGemmWgmma):
    """The same kernel on float32: each number is rounded to TF32, of 10 mantissa bits, and sums are float32.

    A product differs from that of the float32 numbers by up to 2^-10 of it.
    """

    name = kernel = "implicit_gemm_tf32"
    names = ("#define implicit_gemm_wgmma implicit_gemm_tf32",)
    summary = "implicit GEMM of float32, rounded to TF32, on the tensor cores of Hopper; sm_90"
    since = "implicit_gemm_wgmma"
    precision = "tf32"
    look = Mark("teal", "cross")
    why = "many channels, and TF32 is allowed: tensor cores"
    types: ClassVar[Mapping[str, str]] = {"float32": "tf32"}


class FilterRows(ChannelPacker):
    """The weights with the channels of a tap contiguous, as rows of an operand.

    `borrow` does not copy weights that are already stored so: those of 1x1, and of channels_last models.
    """

    def __init__(self, problem: Conv2dProblem, runtime: Runtime) -> None:
        super().__init__(problem, runtime, tiles.row_pitch(problem, 1) // itemsize(problem.w_dtype))
        packed = self.finish

        def finish(buffers: Buffers, stream: Any) -> PreparedFilter:
            made = packed(buffers, stream)
            return PreparedFilter({"w": made.tensors["w"].transpose(0, 3, 1, 2)}, made.nbytes)

        self.finish = finish
        self.borrow = UnpackedWeights(
            self, problem, runtime, lambda w: filter_steps(problem, tuple(w.strides)) is not None
        )
