"""Host side of wgmma.cu: implicit GEMM on Hopper's tensor cores."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, Protocol, cast

from convforge.algorithms.contract import Buffers, Call, Launch, Plan, PreparedFilter
from convforge.algorithms.implicit_gemm.device import ImplicitGemm
from convforge.algorithms.implicit_gemm.wgmma_tiles import (
    MAPS,
    SMALLEST,
    TYPES,
    WgmmaConfig,
    config_refusal,
    filters_held,
    fitting,
    modelled_cycles,
    shared_bytes,
    tiling,
)
from convforge.algorithms.include.conv import WeightPacker, address, conv_constants, conv_struct, fill
from convforge.algorithms.include.divide import Divisor, divisor
from convforge.algorithms.include.element_types import ElementTypes
from convforge.algorithms.include.on_device import DeviceConvolution
from convforge.algorithms.include.resident import evenly
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Work
from convforge.backends.architecture import Architecture
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.maps import AnyMap
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.backends.structs import MapField, struct_with_maps
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import VECTOR_BYTES, itemsize

# The architecture whose tensor cores read both operands from shared memory.
ARCHITECTURE = 90

# Maps that a plan keeps: to encode one takes microseconds.
MAPS_KEPT = 64

# Multiply-adds of tensor cores in the time of one of a plain core: what the cost model counts.
TENSOR_PRODUCTS = 12


class WithMaps(Runtime, Protocol):
    """A runtime whose device copies by maps."""

    def tensor_map(self, seen: AnyMap) -> bytes:
        """The bytes of a map, which the kernel takes as an argument."""
        ...


class ImplicitGemmWgmma(DeviceConvolution[WgmmaConfig]):
    """Implicit GEMM on Hopper's tensor cores: tiles come by the tensor memory accelerator, two warpgroups multiply.

    The accelerator sees arrays whose address and strides are multiples of 16 bytes. A plan that is called with another
    hands it to a plan of :class:`ImplicitGemm`, which is compiled when it is first needed and packs the filters again.
    """

    name = "implicit_gemm_wgmma"
    summary = "implicit GEMM of 16-bit types on the tensor cores of Hopper, fed by its tensor memory accelerator; sm_90"
    since = "implicit_gemm"
    cost = MethodCost(1.0, 0.8, 16384, 2)
    look = Mark("teal", "star")

    def work_for(self, problem: Conv2dProblem) -> Work:
        """See :class:`Algorithm`."""
        return Work(problem.flops / TENSOR_PRODUCTS, problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        """See :class:`Algorithm`."""
        if _problem_refusal(problem) is not None:
            return None
        return Preference(Rank.TENSOR_CORES, "16 bits and many channels: tensor cores, whose tiles come by themselves")

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        """See :class:`Algorithm`."""
        if (reason := device_refusal(facts) or _problem_refusal(problem)) is not None:
            return reason
        if next(fitting(problem, facts), None) is not None:
            return None
        return config_refusal(problem, SMALLEST, facts)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[WgmmaConfig]:
        """See :class:`Algorithm`. Those that waste least of the device first."""
        fit = dict.fromkeys(fitting(problem, facts))
        return sorted(fit, key=lambda config: modelled_cycles(problem, config, facts))

    def plan(self, problem: Conv2dProblem, config: WgmmaConfig, runtime: Runtime) -> Plan:
        """See :class:`Algorithm`."""
        if (reason := config_refusal(problem, config, runtime.facts)) is not None:
            raise ValueError(f"{config}: {reason}")
        shape = Tiling.of(problem, config)
        struct = _struct(problem)
        prelude = constants(
            PATCH=config.patch, FILTERS_ON_M=config.filters_on_m, PING_PONG=config.ping_pong, ROWS_64=config.rows,
            BLOCK_N=config.columns, HALVES=1, PIXEL_STAGES=config.pixel_stages, RESIDENT=config.resident,
            FILTER_STAGES=filters_held(problem, config), SHARED_BYTES=shared_bytes(problem, config),
        )  # fmt: skip
        lines = (*conv_constants(problem), *prelude, *wgmma_lines(config.columns, TYPES[problem.x_dtype]))
        source = KernelSource(
            "algorithms/implicit_gemm/wgmma.cu", "implicit_gemm_wgmma", lines, struct, "Wgmma", feature="a"
        )
        kernel = runtime.compile(source)
        grid = (min(shape.tiles, runtime.facts.cores),)
        info = LaunchInfo("implicit_gemm_wgmma", grid, (384,), shared_bytes(problem, config), early=True)
        fallback = gathered_instead(self, problem, config, runtime)
        map_of = lru_cache(maxsize=MAPS_KEPT)(lambda name, *lies: MAPS[name](problem, config, *lies))

        def arguments(buffers: Buffers) -> Any:
            args = struct()
            arrays = {"pixels": buffers["x"], "filters": buffers["w"].tensors["w"], "results": buffers["out"]}
            for name, array in arrays.items():
                seen = map_of(name, address(array), tuple(array.strides))
                if seen is None or seen.refusal() is not None:
                    return None
                args.put_map(name, seen, cast(WithMaps, runtime).tensor_map(seen))
            fill(args.conv, problem, buffers)
            args.tiling = shape
            return args

        return Plan(
            self, problem, config, runtime,
            steps=[Launch(evenly(runtime, kernel, info), kernel, arguments, runtime, otherwise=fallback)],
            prepare=FilterRows(problem, runtime),
        )  # fmt: skip


def gathered_instead(
    method: ImplicitGemmWgmma, problem: Conv2dProblem, config: WgmmaConfig, runtime: Runtime
) -> Callable[[], Plan]:
    """Gives the plan for arrays that the accelerator cannot bring: threads gather their pixels. It is made once."""

    @cache
    def get() -> Plan:
        gathering = ImplicitGemm(method.backend)
        turned = problem.replace(mode="cross-correlation")  # as the packed filters are
        plan = gathering.plan(turned, gathering.configs(turned, runtime.facts)[0], runtime)

        def run(buffers: Buffers, stream: Any) -> None:
            plan.execute({**buffers, "w": plan.prepare(buffers["w"].tensors["w"], stream)}, stream)

        return Plan(method, problem, config, runtime, steps=[Call(plan.launches[0], run)])

    return get


class FilterRows(WeightPacker):
    """The weights with the channels of a tap side by side, which is how rows of an operand come."""

    def __init__(self, problem: Conv2dProblem, runtime: Runtime) -> None:
        super().__init__(problem, runtime, "KRSC", problem.w_dtype)
        packed = self.finish

        def finish(buffers: Buffers, stream: Any) -> PreparedFilter:
            made = packed(buffers, stream)
            return PreparedFilter({"w": made.tensors["w"].transpose(0, 3, 1, 2)}, made.nbytes)

        self.finish = finish


def wgmma_lines(columns: int, kind: str) -> tuple[str, ...]:
    """The macros of wgmma.cuh: the instruction for a number of columns, and the names of its operands.

    Examples
    --------
    >>> wgmma_lines(8, "f16")[1:3]
    ('#define SUM_NAMES "%0, %1, %2, %3"', '#define SUMS_OF(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])')
    """
    sums = columns // 2
    names, operands = ", ".join(f"%{i}" for i in range(sums)), ", ".join(f'"+f"(d[{i}])' for i in range(sums))
    return (
        f'#define WGMMA "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind}"',
        f'#define SUM_NAMES "{names}"',
        f"#define SUMS_OF(d) {operands}",
        *(f'#define {name}_NAME "%{sums + i}"' for i, name in enumerate(("A", "B", "ADDS"))),
    )


def device_refusal(facts: DeviceFacts) -> Reason | None:
    """Why a device has no wgmma; None if it has."""
    if facts.backend == "emulator":
        return Reason("the emulator has no tensor cores that read shared memory (wgmma)")
    if Architecture.parse(facts.architecture).number != ARCHITECTURE:
        return Reason(
            "{name} is {architecture}; the instruction wgmma is of sm_90 alone",
            name=facts.name, architecture=facts.architecture,
        )  # fmt: skip
    return None


def _problem_refusal(problem: Conv2dProblem) -> Reason | None:
    types = {problem.x_dtype, problem.w_dtype, problem.out_dtype}
    if len(types) != 1 or problem.x_dtype not in TYPES:
        return Reason(
            "x, w and the result must all be float16 or all bfloat16; these are {types}", types=", ".join(sorted(types))
        )
    if problem.x_layout != "NHWC" or problem.out_layout != "NHWC":
        return Reason("channels must lie side by side: NHWC")
    if problem.groups != 1:
        return Reason("every filter must see all channels; there are {groups} groups", groups=problem.groups)
    if problem.padding_mode != "zeros":
        return Reason("the accelerator brings zeros from outside of a picture, not {mode}", mode=problem.padding_mode)
    size = itemsize(problem.x_dtype)
    for name, count in (("C", problem.c), ("K", problem.k)):
        if count * size % VECTOR_BYTES or not count:
            return Reason(
                "{name}={count} numbers side by side must be a multiple of {vector} bytes",
                name=name, count=count, vector=VECTOR_BYTES,
            )  # fmt: skip
    return None


class Tiling(ctypes.Structure):
    """struct Tiling of wgmma_tiles.cuh."""

    _fields_ = [("tiles", ctypes.c_int), *((name, Divisor) for name in ("tiles_k", "across", "down", "P", "Q"))]

    @classmethod
    def of(cls, problem: Conv2dProblem, config: WgmmaConfig) -> Tiling:
        """Those of a problem in a config."""
        tiles, *counts = tiling(problem, config)
        return cls(tiles, *(divisor(max(1, count)) for count in (*counts, problem.p, problem.q)))


@lru_cache(maxsize=64)
def _struct_of(types: ElementTypes) -> Any:
    maps = dict.fromkeys(MAPS, MapField)
    return struct_with_maps("Wgmma", {"conv": conv_struct(types), **maps, "tiling": Tiling}.items())


def _struct(problem: Conv2dProblem) -> Any:
    return _struct_of(ElementTypes.of(problem))
