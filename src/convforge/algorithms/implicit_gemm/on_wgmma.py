"""The host side that implicit GEMMs on Hopper's tensor cores share: from a config to a plan."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, ClassVar, Protocol, TypeVar, cast

from convforge.algorithms.contract import Buffers, Launch, Plan, PreparedFilter
from convforge.algorithms.host.conv import address, conv_constants, conv_struct, fill
from convforge.algorithms.host.divide import Divisor, divisor
from convforge.algorithms.host.element_types import ElementTypes
from convforge.algorithms.host.on_device import DeviceConvolution
from convforge.algorithms.host.resident import persistent, with_occupancy_cap
from convforge.algorithms.implicit_gemm.pixel_rows import PixelRows, Squares
from convforge.algorithms.implicit_gemm.sum_shares import Stages, problem_of_shares
from convforge.algorithms.implicit_gemm.wgmma_tiles import TilesConfig, loaded_problem, tiling
from convforge.algorithms.traits import Preference, Rank, Work
from convforge.backends.architecture import Architecture
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.maps import AnyMap
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.backends.structs import MapField, struct_with_maps
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

ARCHITECTURE = 90  # whose tensor cores read both operands from shared memory
FEWEST_CHANNELS = 8  # of each of several groups, to be worth a product
MAPS_KEPT = 64  # of an array, by a plan: to encode one takes microseconds
TENSOR_PRODUCTS = 12  # multiply-adds of tensor cores in the time of one of a plain core, for the cost model

C = TypeVar("C", bound=TilesConfig)

# An array's address and strides in bytes -> its tensor map; None if the TMA cannot access it.
MapMaker = Callable[[int, tuple[int, ...]], AnyMap | None]

# Name of a map in the struct -> its maker, None for an unused map, and its array: of the call, its workspace or the
# filters.
Maps = dict[str, tuple[MapMaker | None, str]]


class WithMaps(Runtime, Protocol):
    """A runtime whose device copies by tensor maps."""

    def tensor_map(self, seen: AnyMap) -> bytes:
        """The bytes of a map, an argument of the kernel."""
        ...


class OnTensorCores(DeviceConvolution[C]):
    """An implicit GEMM whose tiles the TMA loads, and which wgmma multiplies.

    The TMA loads rows of channels (NHWC) whose addresses are multiples of 16 bytes, and zeros outside the image. For
    any other image a kernel first writes such rows to the workspace. A plan that is called with unaligned arrays passes
    them to a plan with that kernel, which is compiled when it is first needed.
    """

    path: ClassVar[str]
    kernel: ClassVar[str]
    struct: ClassVar[str]
    names: ClassVar[tuple[str, ...]] = ()  # macros that give the file's kernel another name
    fields: ClassVar[Mapping[str, Any]] = {}  # further ones of the struct
    products: ClassVar[int] = 1  # of 16 bits, for one of this method
    fewest: ClassVar[int]  # channels and filters of a group for which "auto" chooses the method
    why: ClassVar[str]  # it chooses so

    # The reason why the kernel cannot compute a problem in a config; None if it can.
    config_refusal: staticmethod[[Conv2dProblem, Any, DeviceFacts], Reason | None]
    # The config with the smallest tiles: a problem that it cannot compute has no config.
    smallest: staticmethod[[Conv2dProblem], C]
    # Shared memory of a block.
    shared_bytes: staticmethod[[Conv2dProblem, Any], int]
    # Channels of a group in rows that are written to the workspace.
    whole_groups: staticmethod[[Conv2dProblem], int]

    @abstractmethod
    def problem_refusal(self, problem: Conv2dProblem) -> Reason | None:
        """The reason why the kernel cannot compute a problem on any device; None if it can."""

    @abstractmethod
    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[C]:
        """Configs worth a look, the fastest by a model of cycles first; empty if none fits."""

    @abstractmethod
    def numbers(self, problem: Conv2dProblem, config: C) -> dict[str, Any]:
        """Constants specific to this kernel."""

    @abstractmethod
    def instruction(self, problem: Conv2dProblem) -> str:
        """The type of factors in PTX."""

    @abstractmethod
    def maps(self, problem: Conv2dProblem, loaded: Conv2dProblem, config: C) -> Maps:
        """The maps of the struct."""

    @abstractmethod
    def preparation(self, problem: Conv2dProblem, runtime: Runtime) -> Callable[[Any, Any], PreparedFilter]:
        """The step that prepares the weights."""

    def rows(self, problem: Conv2dProblem, loaded: Conv2dProblem, config: C, runtime: Runtime) -> Squares | None:
        """The step that first writes x to the workspace; None where the TMA loads x itself."""
        return PixelRows(problem, loaded, runtime) if config.repacked else None

    def put(self, args: Any, buffers: Buffers) -> None:
        """Fill the further fields of the struct."""

    def work_for(self, problem: Conv2dProblem) -> Work:
        return Work(problem.flops * self.products / TENSOR_PRODUCTS, problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if self.problem_refusal(problem) is not None or min(problem.c_per_group, problem.k_per_group) < self.fewest:
            return None
        return Preference(Rank.TENSOR_CORES, self.why)

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if (reason := device_refusal(facts) or self.problem_refusal(problem)) is not None:
            return reason
        return None if self.configs(problem, facts) else self.config_refusal(problem, self.smallest(problem), facts)

    def plan(self, problem: Conv2dProblem, config: C, runtime: Runtime) -> Plan:
        if (reason := self.config_refusal(problem, config, runtime.facts)) is not None:
            raise ValueError(f"{config}: {reason}")
        # Rows in a workspace contain the border; shares of channels leave sums.
        own = problem if config.split_k == 1 else problem_of_shares(problem)
        loaded = loaded_problem(own, config, self.whole_groups(problem))
        stages = Stages(problem, self.rows(problem, loaded, config, runtime), config.split_k, runtime)
        shape, shared = Tiling.of(problem, config), self.shared_bytes(problem, config)
        maps = self.maps(problem, loaded, config)
        struct = _struct_of(ElementTypes.of(own), self.struct, tuple(maps), tuple(self.fields.items()))
        prelude = constants(
            PATCH=config.patch, FILTERS_ON_M=config.filters_on_m, PING_PONG=config.ping_pong, ROWS_64=config.rows,
            BLOCK_N=config.columns, PIXEL_STAGES=config.pixel_stages, RESIDENT=config.resident,
            SPLIT_K=config.split_k, PAIRS_FILTERS=config.pairs == "filters",
            PAIRS_PIXELS=config.pairs == "pixels", OUT_CHANNELS_LAST=own.out_layout == "NHWC", SHARED_BYTES=shared,
            **self.numbers(problem, config),
        )  # fmt: skip
        own_lines = (*self.names, *wgmma_lines(config.columns, self.instruction(problem)))
        lines = (*conv_constants(loaded), *prelude, *own_lines)
        kernel = runtime.compile(KernelSource(self.path, self.kernel, lines, struct, self.struct, feature="a"))
        cluster = (2,) if config.pairs != "none" else ()
        grid = persistent(shape.tiles, runtime.facts, *cluster)
        info = LaunchInfo(self.kernel, grid, (config.threads,), shared, cluster=cluster, early=True)
        used = {name: (lru_cache(maxsize=MAPS_KEPT)(make), array) for name, (make, array) in maps.items() if make}

        def arguments(buffers: Buffers) -> Any:
            args = struct()
            buffers = stages.buffers(buffers)
            arrays = {**buffers, **buffers["w"].tensors}
            for name, (make, which) in used.items() if shape.tiles else ():
                array = arrays[which]
                tensor_map = make(address(array), tuple(array.strides))
                if tensor_map is None or tensor_map.refusal() is not None:
                    return None
                args.put_map(name, tensor_map, cast(WithMaps, runtime).tensor_map(tensor_map))
            fill(args.conv, loaded, buffers)
            args.tiling, args.store_width = shape, outputs_together(own, buffers["out"])
            self.put(args, buffers)
            return args

        any_way = config.any_way()
        otherwise = None if config == any_way else cache(lambda: self.plan(problem, any_way, runtime))
        launch = Launch(with_occupancy_cap(runtime, kernel, info), kernel, arguments, runtime, otherwise=otherwise)
        return stages.plan(self, problem, config, launch, self.preparation(problem, runtime))


def wgmma_lines(columns: int, kind: str, across: tuple[bool, bool] = (False, False)) -> tuple[str, ...]:
    """The macros of wgmma.cuh: the instruction for a number of columns, and the names of its operands.

    A and B are K-major, or MN-major where `across` is True, which only 16-bit types may be.

    Examples
    --------
    >>> wgmma_lines(8, "f16")[2:4]
    ('#define SUM_NAMES "%0, %1, %2, %3"', '#define SUMS_OF(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])')
    """
    sums, depth = columns // 2, 8 if kind == "tf32" else 16
    names, operands = ", ".join(f"%{i}" for i in range(sums)), ", ".join(f'"+f"(d[{i}])' for i in range(sums))
    return (
        f'#define WGMMA "wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{kind}.{kind}"',
        f'#define MAJORS "{"" if kind == "tf32" else f", {across[0]:d}, {across[1]:d}"}"',
        f'#define SUM_NAMES "{names}"',
        f"#define SUMS_OF(d) {operands}",
        *(f'#define {name}_NAME "%{sums + i}"' for i, name in enumerate(("A", "B", "ADDS"))),
    )


def device_refusal(facts: DeviceFacts) -> Reason | None:
    """The reason why a device has no wgmma; None if it has."""
    if Architecture.parse(facts.architecture).number != ARCHITECTURE:
        return Reason(
            "{name} is {architecture}; the instruction wgmma is of sm_90 alone",
            name=facts.name, architecture=facts.architecture,
        )  # fmt: skip
    return None


def group_refusal(problem: Conv2dProblem) -> Reason | None:
    """The reason why groups have too few channels; None if they have enough."""
    if problem.groups > 1 and problem.c_per_group < FEWEST_CHANNELS:
        return Reason(
            "a product takes 16 channels, and a group has {count}: fewer than {least} would waste most of it",
            count=problem.c_per_group, least=FEWEST_CHANNELS,
        )  # fmt: skip
    return None


def outputs_together(problem: Conv2dProblem, out: Any) -> int:
    """Neighbouring outputs that one instruction of a thread may store: 4, 2 or 1, at most 8 bytes."""
    axis = 3 if problem.out_layout == "NHWC" else problem.out_layout.index("W")
    count = problem.k_per_group if problem.out_layout == "NHWC" else problem.q
    others = [step for other, step in enumerate(out.strides) if other != axis]
    for many in (4, 2):
        nbytes = many * out.itemsize
        aligned = nbytes <= 8 and address(out) % nbytes == 0 and all(step % nbytes == 0 for step in others)
        if aligned and count % many == 0 and out.strides[axis] == out.itemsize:
            return many
    return 1


class Tiling(ctypes.Structure):
    """struct Tiling of wgmma_tiles.cuh."""

    _fields_ = [("tiles", ctypes.c_int), *((name, Divisor) for name in ("tiles_k", "across", "down", "P", "Q"))]

    @classmethod
    def of(cls, problem: Conv2dProblem, config: TilesConfig) -> Tiling:
        """The tiling of a problem in a config."""
        tiles, *counts = tiling(problem, config)
        return cls(tiles, *(divisor(max(1, count)) for count in (*counts, problem.p, problem.q)))


@lru_cache(maxsize=64)
def _struct_of(types: ElementTypes, name: str, maps: tuple[str, ...], fields: tuple[tuple[str, Any], ...]) -> Any:
    fixed = {"tiling": Tiling, "store_width": ctypes.c_int}
    own: Mapping[str, Any] = {"conv": conv_struct(types), **dict.fromkeys(maps, MapField), **fixed, **dict(fields)}
    return struct_with_maps(name, own.items())
