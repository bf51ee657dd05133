"""Host side of mma.cu: windows of 8-bit pixels as rows of a matrix, and the division of rows among warps."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from convforge.algorithms.contract import Buffers, Config, Launch, Plan
from convforge.algorithms.direct.blocks import compiled_for
from convforge.algorithms.direct.box import is_filled
from convforge.algorithms.direct.tiled import tiled_instead, ways_to_tiled
from convforge.algorithms.host.conv import (
    LIMIT_BITS,
    Divisor,
    conv_constants,
    divisor,
    fill,
    is_aligned,
    pixel_channels,
    with_conv,
)
from convforge.algorithms.host.on_device import DeviceConvolution, least_refusal
from convforge.algorithms.host.resident import with_occupancy_cap
from convforge.algorithms.host.staged import Filter, StagedWeights, staging_refusal
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way, Work
from convforge.backends.architecture import Architecture
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer, itemsize

# First architecture with tensor cores that multiply 32 8-bit integers per row.
FIRST_ARCHITECTURE = 80

# Tile of one tensor core product: rows of the pixel matrix (windows), and bytes per row.
WINDOWS, STEP = 16, 32

# Bytes of an asynchronous copy (cp.async), and of the outputs of a thread.
COPY, FOUR = 16, 4

# Shared memory of a block, in bytes, that needs no opt-in at run time.
STATIC_SHARED = 48 << 10

# Registers of a thread for sums and taps, at most, so that none spill: enough for a filter of 15 rows.
MOST_REGISTERS = 180

# Registers for sums and taps, at most, with which two sets of windows leave room for enough warps.
TWO_SETS_REGISTERS = 104

# Filter rows up to which two sets of windows and stages of one row of pixels are faster, in any layout.
FEW_ROWS = 3

# Approximate number of registers of a thread that hold neither taps, sums nor pixels.
OTHER_REGISTERS = 45

# Output rows of a strip, at least, per filter row beyond the first: the halo rows of a strip are read twice.
LEAST_ROWS = 4

# Pixels of an 8-bit image from which tensor cores are faster; smaller images are finished before the pipeline fills.
MANY_PIXELS = 1 << 20


@dataclass(frozen=True, slots=True)
class MmaConfig(Config):
    """Block of :class:`DirectMma`, and the division of an image among warps."""

    warps: int = 4  # warps of a block; 1 to 32
    sets: int = 2  # sets of 16 neighbouring windows that a warp computes
    stage_rows: int = 2  # rows of pixels of a stage, which a warp copies together
    stages: int = field(default=4, metadata={"least": 2})  # stages that are loaded or in flight
    blocks: int = 4  # blocks per SM; fewer if registers would spill
    waves: int = 1  # grid size, in multiples of the blocks that run at once; more waves make strips lower


class DirectMma(DeviceConvolution[MmaConfig]):
    """8-bit convolution as matrix products: tensor cores multiply windows by a Toeplitz matrix of the taps.

    If image rows have gaps or do not begin at multiples of 16 bytes, the plan of :class:`DirectTiled` computes the
    result; it is compiled when it is first needed.
    """

    name = "direct_mma"
    summary = "filters of bytes as products of matrices, on tensor cores; sm_80 and later"
    since = "direct_boxes"
    cost = MethodCost(1.0, 0.8, 4096, 1)
    look = Mark("teal", "triangle-down")

    def work_for(self, problem: Conv2dProblem) -> Work:
        """A filter row of any length needs as many operations as ten taps."""
        return Work(problem.flops * 10 / max(problem.s, 1), problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if problem.acc_dtype != "int32" or problem.h * problem.w < MANY_PIXELS:
            return None
        return Preference(Rank.BYTES, "bytes: a row of the filter is one product of a tensor core")

    def ways(self, problem: Conv2dProblem, config: MmaConfig) -> tuple[Way, ...]:
        copied = Reason("rows of x come by asynchronous copies of {bytes} bytes", bytes=COPY)
        return ways_to_tiled(copied, COPY)

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if Architecture.parse(facts.architecture).number < FIRST_ARCHITECTURE:
            return Reason(
                "{name} is {architecture}; products of 32 bytes a row came with sm_{first}",
                name=facts.name, architecture=facts.architecture, first=FIRST_ARCHITECTURE,
            )  # fmt: skip
        return _problem_refusal(problem) or config_refusal(problem, default_config(problem, facts), facts)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[MmaConfig]:
        """The default first, then configs that change one or two of its fields."""
        default = default_config(problem, facts)
        others = (  # 3 - value swaps one and two
            replace(default, sets=3 - default.sets), replace(default, stage_rows=3 - default.stage_rows),
            replace(default, stages=6), replace(default, waves=2), replace(default, stage_rows=2, waves=2),
        )  # fmt: skip
        return [c for c in dict.fromkeys((default, *others)) if config_refusal(problem, c, facts) is None]

    def plan(self, problem: Conv2dProblem, config: MmaConfig, runtime: Runtime) -> Plan:
        if (reason := _problem_refusal(problem) or config_refusal(problem, config, runtime.facts)) is not None:
            raise ValueError(f"{config}: {reason}")
        fields = {"spans": Divisor, "blocks": Divisor, "aligned_out": ctypes.c_int}
        struct = with_conv("Mma", problem, filter=Filter, rows=ctypes.c_int, units=ctypes.c_int, **fields)
        kernel, resident = _compiled(problem, config, struct, runtime)
        weights = StagedWeights(problem, runtime, kernel)
        chunk, planes, spans = pixel_channels(problem), _planes(problem), _spans(problem, config)
        rows = _rows(problem, config, runtime.facts.cores * resident)
        units = spans * -(-problem.p // rows) if rows else 0
        blocks = -(-units // config.warps)
        info = with_occupancy_cap(
            runtime, kernel, LaunchInfo("direct_mma", (planes * blocks,), (32 * config.warps,), pdl=True)
        )
        divisors = [divisor(max(count, 1)) for count in (spans, blocks)]
        run_of = {"c": 1, "w": chunk} if chunk > 1 else {"w": 1}
        sizes = {"n": problem.n, **({"c": problem.c} if chunk == 1 else {})}

        def arguments(buffers: Buffers) -> Any:
            args = struct()
            conv = args.conv
            fill(conv, problem, buffers)
            if not is_aligned(conv.x, conv.x_strides, {**sizes, "h": problem.h}, run_of, COPY, 1):
                return None
            args.filter = weights.filter(buffers["w"])
            args.rows, args.units, args.spans, args.blocks = rows, units, *divisors
            args.aligned_out = is_aligned(
                conv.out, conv.out_strides, {**sizes, "h": problem.p}, run_of, FOUR, itemsize(problem.out_dtype)
            )
            return args

        step = Launch(info, kernel, arguments, runtime, otherwise=tiled_instead(self.backend, problem, runtime))
        return Plan(self, problem, config, runtime, steps=[step], prepare=weights)


def default_config(problem: Conv2dProblem, facts: DeviceFacts) -> MmaConfig:
    """Config expected to be fastest: as many window sets as make memory accesses wide and leave room for warps."""
    config, chunk, few_rows = MmaConfig(sets=2), pixel_channels(problem), problem.r <= FEW_ROWS
    # A span of one set is already wide enough if it has one channel.
    room = few_rows or (chunk > 1 and _registers(problem, config) <= TWO_SETS_REGISTERS)
    if not room or problem.q * chunk < _span(problem, config):
        config = replace(config, sets=1)
    elif few_rows:
        config = replace(config, stage_rows=1)
    # Do not compile a kernel that would spill; see compiled_for.
    pixels = config.stage_rows * config.sets * _window(problem) // STEP * 4
    need = 32 * config.warps * (_registers(problem, config) + pixels + OTHER_REGISTERS)
    return replace(config, blocks=min(config.blocks, max(facts.registers // need, 1)))


def config_refusal(problem: Conv2dProblem, config: MmaConfig, facts: DeviceFacts) -> Reason | None:
    if (reason := least_refusal(config)) is not None:
        return reason
    if config.warps > 32:
        return Reason("a block has at most 32 warps; got {warps}", warps=config.warps)
    if (need := _registers(problem, config)) > MOST_REGISTERS:
        return Reason("sums and taps take {need} registers; {most} are to be had", need=need, most=MOST_REGISTERS)
    rings = config.warps * config.stages * config.stage_rows * _pitch(problem, config)
    together = rings + _lines(problem)
    room = min(STATIC_SHARED, facts.shared_bytes // config.blocks)
    if together > room:
        return Reason(
            "rows of pixels and taps take {together} bytes of shared memory; a block has {room}",
            together=together,
            room=room,
        )
    units = _planes(problem) * _spans(problem, config) * max(problem.p, 1)
    if units * config.warps >= 2**LIMIT_BITS:
        return Reason("{units} rows of spans are more than a launch counts", units=units)
    return None


def _problem_refusal(problem: Conv2dProblem) -> Reason | None:
    """Return why the pixels of a problem cannot form a matrix of 8-bit integers, or None."""
    if problem.acc_dtype != "int32" or any(
        not is_integer(dtype) or itemsize(dtype) != 1 for dtype in (problem.x_dtype, problem.w_dtype)
    ):
        return Reason(
            "products are of bytes; these are of {pixels} and {weights} in {sums}",
            pixels=problem.x_dtype, weights=problem.w_dtype, sums=problem.acc_dtype,
        )  # fmt: skip
    if problem.stride != (1, 1) or problem.dilation != (1, 1):
        return Reason(
            "windows must be dense; these have stride {stride} and dilation {dilation}",
            stride=str(problem.stride),
            dilation=str(problem.dilation),
        )
    if problem.epilogue.x_zero_point:
        return Reason(
            "pixels are multiplied as they are, and these have the zero point {zero}",
            zero=problem.epilogue.x_zero_point,
        )
    if problem.k != problem.c:
        return Reason("an output must stand where its pixel does: K={k} must equal C={c}", k=problem.k, c=problem.c)
    if itemsize(problem.out_dtype) > 4:
        return Reason(
            "a thread stores four outputs as one vector of 16 bytes at most; four of {out_dtype} take more",
            out_dtype=problem.out_dtype,
        )
    chunk = pixel_channels(problem)
    if problem.x_layout != problem.out_layout and problem.c > 1:
        return Reason(
            "outputs must lie as pixels do: {x_layout} and {out_layout}",
            x_layout=problem.x_layout,
            out_layout=problem.out_layout,
        )
    if chunk == 1 and problem.groups != problem.c:
        return Reason("in NCHW every filter must see one channel alone")
    if _outs(chunk) is None:
        return Reason("C={count} channels side by side divide neither 16 bytes nor 12", count=chunk)
    if (row := problem.w * chunk) % COPY:
        return Reason("a row of pixels has {row} bytes; copies move multiples of {most}", row=row, most=COPY)
    return staging_refusal(problem)


def _outs(chunk: int) -> int | None:
    """Bytes of outputs of a window; a multiple of the pixel size, so that all windows begin with the same channel."""
    return next((outs for outs in (16, 12) if outs % chunk == 0), None)


def _shift(problem: Conv2dProblem) -> int:
    """Bytes from the start of a window to its first output, rounded up to 4-byte words."""
    return -(-problem.padding[2] * pixel_channels(problem) // FOUR) * FOUR


def _lead(problem: Conv2dProblem) -> int:
    """Bytes of a window before the first one that an output uses: LEAD of mma.cu."""
    return _shift(problem) - problem.padding[2] * pixel_channels(problem)


def _window(problem: Conv2dProblem) -> int:
    """Bytes of a window, rounded up to whole steps."""
    chunk = pixel_channels(problem)
    return -(-(_lead(problem) + (_outs(chunk) or 0) + chunk * (problem.s - 1)) // STEP) * STEP


def _span(problem: Conv2dProblem, config: MmaConfig) -> int:
    """Bytes of outputs that a warp computes along a row."""
    return WINDOWS * (_outs(pixel_channels(problem)) or 0) * config.sets


def _spans(problem: Conv2dProblem, config: MmaConfig) -> int:
    return -(-problem.q * pixel_channels(problem) // _span(problem, config))


def _planes(problem: Conv2dProblem) -> int:
    return problem.n * problem.c // pixel_channels(problem)


def _pitch(problem: Conv2dProblem, config: MmaConfig) -> int:
    """Pitch of a row in shared memory, in bytes: PITCH of mma.cu."""
    shift = _shift(problem)
    used = _span(problem, config) - (_outs(pixel_channels(problem)) or 0) + _window(problem) - shift
    return -(-(-(-shift // COPY) * COPY + used) // COPY) * COPY


def _fragments(problem: Conv2dProblem) -> int:
    return problem.r * _window(problem) // STEP * 4


def _lines(problem: Conv2dProblem) -> int:
    """Bytes of the taps in shared memory: LINES of mma.cu."""
    return pixel_channels(problem) * problem.r * ((_lead(problem) + 19) // FOUR * FOUR + _window(problem) + FOUR)


def _registers(problem: Conv2dProblem, config: MmaConfig) -> int:
    return _fragments(problem) + config.sets * 8 * problem.r


def _rows(problem: Conv2dProblem, config: MmaConfig, at_once: int) -> int:
    """Output rows of a strip, so that the strips fill the SMs `waves` times; `at_once` blocks run at a time."""
    planes, spans = _planes(problem), _spans(problem, config)
    if not planes * spans * problem.p:
        return 0
    strips = max(at_once * config.waves // planes * config.warps // spans, 1)
    return min(max(-(-problem.p // strips), LEAST_ROWS * (problem.r - 1), 1), problem.p)


def _compiled(problem: Conv2dProblem, config: MmaConfig, struct: Any, runtime: Runtime) -> tuple[Any, int]:
    chunk = pixel_channels(problem)
    prelude = constants(
        WARPS=config.warps, SETS=config.sets, STAGE_ROWS=config.stage_rows, STAGES=config.stages, CHUNK=chunk,
        OUTS=_outs(chunk) or 0, SHIFT=_shift(problem), LEAD=_lead(problem), WINDOW=_window(problem),
        FILLED=is_filled(problem),
    )  # fmt: skip
    lines = (*conv_constants(problem), *prelude)
    source = KernelSource("algorithms/direct/mma.cu", "direct_mma", lines, struct, "Mma")
    return compiled_for(runtime, source, 32 * config.warps, config.blocks)
