"""Host side of wgmma.cu, implicit GEMM on Hopper's tensor cores, and the base that it shares with split.cu."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from convforge.algorithms.contract import Buffers, Launch, Plan, Preparation, PreparedFilter
from convforge.algorithms.host.amax import amax_fields, put_amax
from convforge.algorithms.host.conv import Divisor, address, conv_constants, conv_struct, divisor, fill
from convforge.algorithms.host.on_device import DeviceConvolution, renamed, require, types_refusal
from convforge.algorithms.host.pack_channels import ChannelPacker, UnpackedWeights
from convforge.algorithms.host.resident import persistent, with_occupancy_cap
from convforge.algorithms.implicit_gemm import stages
from convforge.algorithms.implicit_gemm import wgmma_tiles as tiles
from convforge.algorithms.implicit_gemm.wgmma_configs import ordered
from convforge.algorithms.implicit_gemm.wgmma_tiles import TilesConfig, WgmmaConfig
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way, Work
from convforge.backends.architecture import Architecture
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.maps import ALIGNMENT, AnyMap
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.backends.structs import MapField, struct_with_maps
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

MAPS_KEPT = 64  # maps of an array that a plan caches: encoding one takes microseconds
TENSOR_PRODUCTS = 12  # tensor-core multiply-adds in the time of one float32 multiply-add, for the cost model

C = TypeVar("C", bound=TilesConfig)

# An array's address and strides in bytes -> its tensor map; None if the TMA cannot access it.
MapMaker = Callable[[int, tuple[int, ...]], AnyMap | None]

# Fills further fields of a struct from the buffers of a call.
Put = Callable[[Any, Buffers], None]

# Name of a map in the struct -> its maker (None for an unused map) and the name of its array: one of the call, of the
# workspace or of the filters.
Maps = dict[str, tuple[MapMaker | None, str]]


class OnTensorCores(DeviceConvolution[C]):
    """Implicit GEMM on tiles that the TMA loads and wgmma multiplies.

    The TMA loads rows of channels (NHWC) at multiples of 16 bytes, and zeros outside the image. For
    any other image a kernel first writes these rows to the workspace. A plan that is called on unaligned arrays passes
    them to a plan with that kernel, which is compiled when it is first needed.
    """

    stem: ClassVar[str]  # name of the .cu file, its kernel and its struct
    types: ClassVar[Mapping[str, str]]  # NumPy's name of the type of x or w -> PTX's name of the factors' type
    products: ClassVar[int] = 1  # 16-bit products for one product of this method
    fewest: ClassVar[int]  # channels and filters of a group for which "auto" chooses the method
    why: ClassVar[str]  # reason for this choice
    config_type: ClassVar[type[TilesConfig]]
    preparation: ClassVar[type[Any]]  # of the weights; made from a problem and a runtime

    @abstractmethod
    def problem_refusal(self, problem: Conv2dProblem) -> Reason | None:
        """The reason why the kernel cannot compute a problem on any device; None if it can."""

    @abstractmethod
    def numbers(self, problem: Conv2dProblem, config: C) -> dict[str, Any]:
        """Constants specific to this kernel."""

    @abstractmethod
    def maps(self, problem: Conv2dProblem, loaded: Conv2dProblem, config: C) -> Maps:
        """The maps of the struct."""

    def rows(self, problem: Conv2dProblem, loaded: Conv2dProblem, config: C, runtime: Runtime) -> stages.Squares | None:
        """The step that first writes x to the workspace; None where the TMA loads x itself."""
        return stages.PixelRows(problem, loaded, runtime) if config.repacked else None

    def fields(self, problem: Conv2dProblem, loaded: Conv2dProblem) -> tuple[Mapping[str, Any], Put]:
        """Further fields of the struct, with types, and the function that fills them for a call."""
        return {}, lambda args, buffers: None

    def prepared(self, problem: Conv2dProblem, loaded: Conv2dProblem, runtime: Runtime) -> Preparation:
        """The preparation of the weights."""
        made: Preparation = self.preparation(problem, runtime)
        return made

    def work_for(self, problem: Conv2dProblem) -> Work:
        products = self.products * stages.passes_of(problem)
        return Work(problem.flops * products / TENSOR_PRODUCTS, problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if self.problem_refusal(problem) is not None or min(problem.c_per_group, problem.k_per_group) < self.fewest:
            return None
        return Preference(Rank.TENSOR_CORES, self.why)

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if (reason := device_refusal(facts) or self.problem_refusal(problem)) is not None:
            return reason
        return None if self.configs(problem, facts) else self.config_type.smallest(problem).refusal(problem, facts)

    def plan(self, problem: Conv2dProblem, config: C, runtime: Runtime) -> Plan:
        require(config, config.refusal(problem, runtime.facts))
        # Rows in a workspace include the border. With split-K the kernel stores sums.
        own = stages.problem_of_bytes(problem)
        own = own if config.split_k == 1 else stages.problem_of_shares(own)
        loaded = config.loaded(own)
        around = stages.Stages(problem, self.rows(problem, loaded, config, runtime), config.split_k, runtime)
        total, *counts = tiles.tiling(problem, config)
        shape = Tiling(total, *(divisor(max(1, count)) for count in (*counts, problem.p, problem.q)))
        shared = config.shared_bytes(problem)
        maps = self.maps(problem, loaded, config)
        fields, put = self.fields(problem, loaded)
        fields = {**amax_fields(own), **fields}
        struct = _struct_of(conv_struct(own), self.stem.capitalize(), tuple(maps), tuple(fields.items()))
        prelude = constants(
            PATCH=config.patch, FILTERS_ON_M=config.filters_on_m, PING_PONG=config.ping_pong, ROWS_64=config.rows,
            BLOCK_N=config.columns, PIXEL_STAGES=config.pixel_stages, RESIDENT=config.resident,
            SPLIT_K=config.split_k, PAIRS_FILTERS=config.pairs == "filters",
            PAIRS_PIXELS=config.pairs == "pixels", OUT_CHANNELS_LAST=own.out_layout == "NHWC", SHARED_BYTES=shared,
            PASSES=stages.passes_of(problem), **self.numbers(problem, config),
        )  # fmt: skip
        names = renamed(f"implicit_gemm_{self.stem}", self.name)
        kinds = self.types[problem.x_dtype], self.types[own.w_dtype]
        instruction = wgmma_lines(config.columns, *(kinds[::-1] if config.filters_on_m else kinds))
        lines = *conv_constants(loaded), *prelude, *names, *instruction
        path = f"algorithms/implicit_gemm/{self.stem}.cu"
        kernel = runtime.compile(KernelSource(path, self.name, lines, struct, self.stem.capitalize(), feature="a"))
        cluster = (2,) if config.pairs != "none" else ()
        grid = persistent(total, runtime.facts, *cluster)
        info = LaunchInfo(self.name, grid, (config.threads,), shared, cluster=cluster, pdl=True)
        used = {name: (lru_cache(maxsize=MAPS_KEPT)(make), array) for name, (make, array) in maps.items() if make}

        device: Any = runtime  # a runtime with a TMA

        def arguments(buffers: Buffers) -> Any:
            args = struct()
            buffers = around.buffers(buffers)
            arrays = {**buffers, **buffers["w"].tensors}
            for name, (make, which) in used.items() if total else ():
                array = arrays[which]
                tensor_map = make(address(array), tuple(array.strides))
                if tensor_map is None or tensor_map.refusal() is not None:
                    return None
                args.put_map(name, tensor_map, device.tensor_map(tensor_map))
            fill(args.conv, loaded, buffers)
            args.tiling, args.store_width = shape, outputs_together(own, buffers["out"])
            put_amax(args, own, buffers)
            put(args, buffers)
            return args

        any_way = config.any_way()
        otherwise = None if config == any_way else cache(lambda: self.plan(problem, any_way, runtime))
        launch = Launch(with_occupancy_cap(runtime, kernel, info), kernel, arguments, runtime, otherwise=otherwise)
        return around.plan(self, problem, config, launch, self.prepared(problem, loaded, runtime))


def ways_of_x(problem: Conv2dProblem, config: TilesConfig) -> tuple[Way, ...]:
    return (stages.way_of_rows(Reason.joined(_why_rows(problem, config))),) if config.repacked else ()


def _why_rows(problem: Conv2dProblem, config: TilesConfig) -> Iterator[Reason]:
    """Each reason why the TMA cannot load the pixels of a problem."""
    nbytes, room = problem.c * itemsize(problem.x_dtype), config.whole_groups(problem)
    if problem.x_layout != "NHWC":
        yield Reason("x is in {layout}", layout=problem.x_layout)
    if problem.padding_mode != "zeros":
        yield Reason("the border is {border}, and the TMA fills in zeros", border=problem.padding_mode)
    if nbytes % ALIGNMENT:
        yield Reason("a pixel has {count} bytes, which are no multiple of {bytes}", count=nbytes, bytes=ALIGNMENT)
    if tiles.tma_loads(problem) and room != problem.c_per_group:
        yield Reason(
            "a group has {count} channels, which take the room of {room}", count=problem.c_per_group, room=room
        )


def wgmma_lines(columns: int, a: str, b: str, across: tuple[bool, bool] = (False, False)) -> tuple[str, ...]:
    """The macros of wgmma.cuh: the instruction for a number of columns, and the names of its operands.

    `a` and `b` are PTX's names of the types of A and B. A and B are K-major, or MN-major where `across` is True, which
    only 16-bit types may be.

    Examples
    --------
    >>> wgmma_lines(8, "f16", "f16")[3:5]
    ('#define SUM_NAMES "%0, %1, %2, %3"', '#define SUMS_OF(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])')
    """
    sums, depth = columns // 2, {"tf32": 8, "f16": 16, "bf16": 16}.get(a, 32)
    total, register = ("s32", "r") if a in ("u8", "s8") else ("f32", "f")
    names = ", ".join(f"%{i}" for i in range(sums))
    operands = ", ".join(f'"+{register}"(d[{i}])' for i in range(sums))
    return (
        f'#define WGMMA "wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{total}.{a}.{b}"',
        f'#define SIGNS "{", 1, 1" if total == "f32" else ""}"',
        f'#define MAJORS "{f", {across[0]:d}, {across[1]:d}" if depth == 16 else ""}"',
        f'#define SUM_NAMES "{names}"',
        f"#define SUMS_OF(d) {operands}",
        *(f'#define {name}_NAME "%{sums + i}"' for i, name in enumerate(("A", "B", "ADDS"))),
    )


def device_refusal(facts: DeviceFacts) -> Reason | None:
    """The reason why a device has no wgmma; None if it has."""
    if Architecture.parse(facts.architecture).number == 90:
        return None
    return Reason("{name} is {architecture}; the instruction wgmma is of sm_90 alone",
                  name=facts.name, architecture=facts.architecture)  # fmt: skip


def group_refusal(problem: Conv2dProblem) -> Reason | None:
    """The reason why groups have too few channels; None if they have enough."""
    if problem.groups == 1 or problem.c_per_group >= 8:
        return None
    return Reason("a product takes 16 channels, and a group has {count}: fewer than {least} would waste most of it",
                  count=problem.c_per_group, least=8)  # fmt: skip


def outputs_together(problem: Conv2dProblem, out: Any) -> int:
    """Contiguous outputs that one instruction of a thread may store: 4, 2 or 1, at most 8 bytes."""
    axis, count = (
        (3, problem.k_per_group) if problem.out_layout == "NHWC" else (problem.out_layout.index("W"), problem.q)
    )
    others = [address(out), *(step for other, step in enumerate(out.strides) if other != axis)]
    for many in (4, 2):
        nbytes = many * out.itemsize
        aligned = nbytes <= 8 and all(number % nbytes == 0 for number in others)
        if aligned and count % many == 0 and out.strides[axis] == out.itemsize:
            return many
    return 1


class Tiling(ctypes.Structure):
    """struct Tiling of wgmma_tiles.cuh."""

    _fields_ = [("tiles", ctypes.c_int), *((name, Divisor) for name in ("tiles_k", "across", "down", "P", "Q"))]


@lru_cache(maxsize=64)
def _struct_of(conv: Any, name: str, maps: tuple[str, ...], fields: tuple[tuple[str, Any], ...]) -> Any:
    fixed = {"tiling": Tiling, "store_width": ctypes.c_int}
    own: Mapping[str, Any] = {"conv": conv, **dict.fromkeys(maps, MapField), **fixed, **dict(fields)}
    return struct_with_maps(name, own.items())


class FilterRows(ChannelPacker):
    """The weights with the channels of a tap contiguous, as rows of an operand.

    `borrow` does not copy weights that already have this layout: those of 1x1 filters and of channels_last models.
    """

    def __init__(self, problem: Conv2dProblem, runtime: Runtime) -> None:
        super().__init__(problem, runtime, stages.row_pitch(problem, 1) // itemsize(problem.w_dtype))
        packed = self.finish

        def finish(buffers: Buffers, stream: Any) -> PreparedFilter:
            made = packed(buffers, stream)
            return PreparedFilter({"w": made.tensors["w"].transpose(0, 3, 1, 2)}, made.nbytes)

        self.finish = finish
        self.borrow = UnpackedWeights(
            self, problem, runtime, lambda w: tiles.filter_steps(problem, tuple(w.strides)) is not None
        )


class ImplicitGemmWgmma(OnTensorCores[WgmmaConfig]):
    """Implicit GEMM on Hopper's tensor cores: the TMA loads tiles, two warpgroups multiply them.

    Threads store the results that the TMA cannot store: float32, NCHW, or groups with no multiple of 64 filters.
    """

    name = "implicit_gemm_wgmma"
    summary = "implicit GEMM of 16-bit types on the tensor cores of Hopper, whose tiles the TMA loads; sm_90"
    since = "implicit_gemm_mma"
    cost = MethodCost(1.0, 0.8, 16384, 2)
    look = Mark("teal", "triangle-left")
    stem, preparation = "wgmma", FilterRows
    config_type: ClassVar[type[WgmmaConfig]] = WgmmaConfig
    types = MappingProxyType({"float16": "f16", "bfloat16": "bf16"})
    fewest, why = 16, "16 bits and many channels: tensor cores, whose tiles the TMA loads"
    two_levels: ClassVar[bool] = False  # each row's sums are added to others, by multiply-add units

    def problem_refusal(self, problem: Conv2dProblem) -> Reason | None:
        return types_refusal(problem, self.types) or group_refusal(problem)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[WgmmaConfig]:
        return ordered(problem, facts, self.config_type)

    def ways(self, problem: Conv2dProblem, config: WgmmaConfig) -> tuple[Way, ...]:
        found = [*ways_of_x(problem, config), *_ways_of_result(problem, config), *stages.ways_of_shares(config.split_k)]
        if config.scattered:
            return *found, *([] if config.repacked else [stages.way_of_unaligned_x()])
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
        held = tiles.filters_held(problem, config, tiles.row_channels(problem, config))
        return {
            "NUMBER_BYTES": itemsize(problem.x_dtype), "ROW_BYTES": config.row_bytes, "HALVES": 1,
            "FILTER_STAGES": held, "SCATTERED": config.scattered, "BY_PIXELS": False,
            "ZERO_POINT": problem.epilogue.x_zero_point != 0, "TWO_LEVELS": self.two_levels,
        }  # fmt: skip

    def maps(self, problem: Conv2dProblem, loaded: Conv2dProblem, config: WgmmaConfig) -> Maps:
        # The TMA rounds floats to TF32; it copies other numbers bit for bit.
        element = "tf32" if problem.x_dtype == "float32" else tiles.element_of(problem.x_dtype)

        def filters(at: int, strides: tuple[int, ...]) -> AnyMap | None:
            if (steps := tiles.filter_steps(stages.problem_of_bytes(problem), strides)) is None:
                return None
            channels, together = problem.c_per_group, tiles.row_channels(problem, config)
            planes = stages.passes_of(problem)
            return tiles.rows_map(problem, config, at, element, channels, steps, together, planes=planes)

        return {
            "pixels": (partial(tiles.pixels_map, loaded, config, element=element), "x"),
            "filters": (filters, "w"),
            "results": (None if config.scattered else partial(tiles.results_map, problem, config), "out"),
        }


class ImplicitGemmTf32(ImplicitGemmWgmma):
    """The same kernel for float32: factors are rounded to TF32 (10 mantissa bits), and sums are float32.

    The relative error of each product is at most 2^-10.
    """

    name = "implicit_gemm_tf32"
    summary = "implicit GEMM of float32, rounded to TF32, on the tensor cores of Hopper; sm_90"
    since = "implicit_gemm_wgmma"
    precision = "tf32"
    look = Mark("teal", "cross")
    why = "many channels, and TF32 is allowed: tensor cores"
    types = MappingProxyType({"float32": "tf32"})


def _ways_of_result(problem: Conv2dProblem, config: WgmmaConfig) -> tuple[Way, ...]:
    """The way in which the result is stored: by the TMA or by threads."""
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
    if itemsize(problem.out_dtype) > 2:
        yield Reason("its numbers are of {dtype}, not of 8 or 16 bits", dtype=problem.out_dtype)
    if nbytes % ALIGNMENT:
        yield Reason("a pixel of it has {count} bytes, which are no multiple of {bytes}", count=nbytes, bytes=ALIGNMENT)
    if problem.groups > 1 and k % tiles.BOX_FILTERS:
        yield Reason("a group has {count} filters, which are no multiple of {whole}", count=k, whole=tiles.BOX_FILTERS)
