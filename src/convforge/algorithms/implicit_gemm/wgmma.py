"""Host side of wgmma.cu: implicit GEMM on Hopper's tensor cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from convforge.algorithms.contract import Buffers, PreparedFilter
from convforge.algorithms.host.channels_near import ChannelsNear, WhereTheyLie
from convforge.algorithms.implicit_gemm.on_wgmma import TENSOR_PRODUCTS, Maps, OnTensorCores, group_refusal
from convforge.algorithms.implicit_gemm.refusals import types_refusal
from convforge.algorithms.implicit_gemm.ways import ways_of_arrays, ways_of_result, ways_of_shares, ways_of_x
from convforge.algorithms.implicit_gemm.wgmma_configs import ordered
from convforge.algorithms.implicit_gemm.wgmma_tiles import (
    WgmmaConfig,
    config_refusal,
    element_of,
    filter_steps,
    filters_held,
    pixels_map,
    results_map,
    row_channels,
    row_pitch,
    rows_map,
    shared_bytes,
    smallest,
    whole_groups,
)
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.maps import AnyMap
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# With fewer channels or filters of a group "auto" takes another method: most of a tile would be zeros.
FEWEST = 16


class ImplicitGemmWgmma(OnTensorCores[WgmmaConfig]):
    """Implicit GEMM on Hopper's tensor cores: tiles come by the tensor memory accelerator, two warpgroups multiply.

    Results that the accelerator cannot store are stored by threads: of float32, in NCHW, of groups whose filters are no
    multiple of 64.
    """

    name = "implicit_gemm_wgmma"
    summary = "implicit GEMM of 16-bit types on the tensor cores of Hopper, fed by its tensor memory accelerator; sm_90"
    since = "implicit_gemm_mma"
    cost = MethodCost(1.0, 0.8, 16384, 2)
    look = Mark("teal", "star")
    path, kernel, struct = "algorithms/implicit_gemm/wgmma.cu", "implicit_gemm_wgmma", "Wgmma"

    # NumPy's name of a type -> that of PTX.
    types: ClassVar[dict[str, str]] = {"float16": "f16", "bfloat16": "bf16"}

    def work_for(self, problem: Conv2dProblem) -> Work:
        """See :class:`Algorithm`."""
        return Work(problem.flops / TENSOR_PRODUCTS, problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        """See :class:`Algorithm`."""
        if self.problem_refusal(problem) is not None or min(problem.c_per_group, problem.k_per_group) < FEWEST:
            return None
        return Preference(Rank.TENSOR_CORES, "16 bits and many channels: tensor cores, whose tiles come by themselves")

    def problem_refusal(self, problem: Conv2dProblem) -> Reason | None:
        """See :class:`OnTensorCores`."""
        return types_refusal(problem, self.types) or group_refusal(problem)

    def config_refusal(self, problem: Conv2dProblem, config: WgmmaConfig, facts: DeviceFacts) -> Reason | None:
        """See :class:`OnTensorCores`."""
        return config_refusal(problem, config, facts)

    def ordered(self, problem: Conv2dProblem, facts: DeviceFacts) -> list[WgmmaConfig]:
        """See :class:`OnTensorCores`."""
        return ordered(problem, facts)

    def smallest(self, problem: Conv2dProblem) -> WgmmaConfig:
        """See :class:`OnTensorCores`."""
        return smallest(problem)

    def ways(self, problem: Conv2dProblem, config: WgmmaConfig) -> tuple[Way, ...]:
        """See :class:`Algorithm`."""
        return (
            *ways_of_x(problem, config, self.of_group(problem)), *ways_of_result(problem, config),
            *ways_of_shares(config.split_k),
            *ways_of_arrays(config, not config.scattered),
        )  # fmt: skip

    def any_way(self, config: WgmmaConfig) -> WgmmaConfig:
        """See :class:`OnTensorCores`."""
        return replace(config, turned=True, scattered=True)

    def threads(self, config: WgmmaConfig) -> int:
        """See :class:`OnTensorCores`."""
        return 384

    def shared_bytes(self, problem: Conv2dProblem, config: WgmmaConfig) -> int:
        """See :class:`OnTensorCores`."""
        return shared_bytes(problem, config)

    def of_group(self, problem: Conv2dProblem) -> int:
        """See :class:`OnTensorCores`."""
        return whole_groups(problem)

    def numbers(self, problem: Conv2dProblem, config: WgmmaConfig) -> dict[str, Any]:
        """See :class:`OnTensorCores`."""
        held = filters_held(problem, config, row_channels(problem, config))
        size = itemsize(problem.x_dtype)
        return {
            "NUMBER_BYTES": size, "ROW_BYTES": config.row_bytes, "HALVES": 1, "FILTER_STAGES": held,
            "SCATTERED": config.scattered, "BY_PIXELS": False,
        }  # fmt: skip

    def instruction(self, problem: Conv2dProblem) -> str:
        """See :class:`OnTensorCores`."""
        return self.types[problem.x_dtype]

    def maps(self, problem: Conv2dProblem, seen: Conv2dProblem, config: WgmmaConfig) -> Maps:
        """See :class:`OnTensorCores`."""
        # The accelerator rounds floats to TF32; else numbers are copied as they are.
        element = "tf32" if problem.x_dtype == "float32" else element_of(problem.x_dtype)
        channels = problem.c_per_group

        def filters(at: int, strides: tuple[int, ...]) -> AnyMap | None:
            steps = filter_steps(problem, strides)
            return None if steps is None else rows_map(
                problem, config, at, element, channels, steps, row_channels(problem, config)
            )  # fmt: skip

        return {
            "pixels": (partial(pixels_map, seen, config, element=element), "x"), "filters": (filters, "w"),
            "results": (None if config.scattered else partial(results_map, problem, config), "out"),
        }  # fmt: skip

    def preparation(self, problem: Conv2dProblem, runtime: Runtime) -> Callable[[Any, Any], PreparedFilter]:
        """See :class:`OnTensorCores`."""
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
    types: ClassVar[dict[str, str]] = {"float32": "tf32"}

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        """See :class:`Algorithm`."""
        if super().preference_for(problem, facts) is None:
            return None
        return Preference(Rank.TENSOR_CORES, "many channels, and TF32 is allowed: tensor cores")


class FilterRows(ChannelsNear):
    """The weights with the channels of a tap side by side, which is how rows of an operand come.

    Attributes
    ----------
    borrow : Preparation
        Takes the weights where they lie, if they lie so: those of 1x1, and of models in channels_last.
    """

    def __init__(self, problem: Conv2dProblem, runtime: Runtime) -> None:
        size = itemsize(problem.w_dtype)
        super().__init__(problem, runtime, row_pitch(problem, 1) // size)
        packed = self.finish

        def finish(buffers: Buffers, stream: Any) -> PreparedFilter:
            made = packed(buffers, stream)
            return PreparedFilter({"w": made.tensors["w"].transpose(0, 3, 1, 2)}, made.nbytes)

        self.finish = finish
        self.borrow = WhereTheyLie(
            self, problem, runtime, lambda w: filter_steps(problem, tuple(w.strides)) is not None
        )
