"""Host side of im2col on GPUs: the matrix is expanded in chunks, each followed by a product of the GEMM ladder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from convforge.algorithms.contract import Buffers, Config, Launch, Plan
from convforge.algorithms.gemm.by_convolution import GemmSplitMma, GemmTf32Mma
from convforge.algorithms.gemm.device import LADDER, GemmStep
from convforge.algorithms.gemm.mma import PRODUCTS, TYPES, GemmMma, device_refusal
from convforge.algorithms.gemm.product import MOST_COLUMNS, Product, blocked_flops, operand
from convforge.algorithms.host.conv import WeightPacker
from convforge.algorithms.host.on_device import DeviceConvolution
from convforge.algorithms.im2col.by_convolution import (
    ALIGNMENT,
    ConvolvedProduct,
    Expansion,
    chosen,
    columns_at,
    pixels_contiguous,
    ways_of_convolved,
    why_not_convolved,
)
from convforge.algorithms.traits import GENERAL, Mark, MethodCost, Preference, Rank, Way, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import WIDE, itemsize

# Steps of the ladder that can compute the product.
STEPS: dict[str, Callable[[str], GemmStep[Any]]] = {**LADDER, GemmMma.name: GemmMma}
# The columns of a chunk are a multiple of this: the widest tile of a product, and whole lines of 128 bytes.
GRAIN = 256
# Most chunks of a matrix: each costs two launches, and memory for their descriptions in the plan.
MOST_CHUNKS = 1024


@dataclass(frozen=True, slots=True)
class Im2colConfig(Config):
    """Chunk and product of :class:`Im2col`."""

    # Columns of the matrix (output pixels of the batch) that are expanded at once. The workspace holds
    # columns x C x R x S numbers. For gemm_split_mma a chunk has whole images, or whole output rows of one image.
    columns: int
    # The step of the GEMM ladder that multiplies. gemm_mma multiplies 16-bit numbers on tensor cores, not widened.
    # gemm_split_mma multiplies float32 on tensor cores; the workspace then also holds the halves of the numbers.
    gemm: str = "gemm_warp_tiled"
    # Index of that step's tiling; index 0 is the best.
    tile: int = field(default=0, metadata={"least": 0})


class Im2col(DeviceConvolution[Im2colConfig]):
    """out (K x NPQ) = w (K x CRS) x columns (CRS x NPQ), where each column is the window of one output in x.

    Source: Chellapilla, Puri and Simard, High Performance Convolutional Neural Networks for Document Processing, 2006.
    The product writes the output directly in its own layout, through the epilogue.
    """

    name = "im2col"
    summary = "expanded in chunks, then a product of the GEMM ladder that writes the output through the epilogue"
    since = "gemm_warp_tiled"
    cost = MethodCost(0.55, 0.8, 2048, 3)
    look = Mark("amber", "diamond")

    steps: ClassVar[Mapping[str, Callable[[str], GemmStep[Any]]]] = STEPS
    convolved: ClassVar[str] = GemmSplitMma.name  # name of the product that is computed as a convolution

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[Im2colConfig]:
        """Configs that expand the whole matrix, or the part that fits an eighth of the memory; then smaller chunks."""
        total = problem.n * problem.p * problem.q
        least = _least_columns(total)
        narrow = (_why_not_narrow(problem) or device_refusal(facts)) is None
        first = GemmMma.name if narrow else "gemm_warp_tiled"
        row = problem.c * problem.r * problem.s * itemsize(entries_of(problem, first))
        chunks = list(dict.fromkeys(
            _chunk(total, max(room // row, least)) for room in
            (facts.memory_bytes // 8, 256 << 20, facts.l2_bytes, facts.l2_bytes // 4, 4 << 20, 0)
        ))  # fmt: skip
        found = [Im2colConfig(columns, first) for columns in chunks]
        found += [Im2colConfig(chunks[0], first, tile=tile) for tile in (1, 2, 3)]
        convolved = not narrow and why_not_convolved(problem, self.convolved, facts) is None
        behind = self._convolved_configs(problem, facts) if convolved else []
        others = [Im2colConfig(chunks[0], name) for name in LADDER if name != first]
        return [*found[:1], *behind[:1], *found[1:], *others, *behind[1:]]

    def _convolved_configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> list[Im2colConfig]:
        """Configs that multiply by a convolution; the workspace also holds the matrix in the convolution's format."""
        total, entries = problem.n * problem.p * problem.q, problem.c * problem.r * problem.s
        room = facts.memory_bytes // 8 // (2 * entries * itemsize(problem.acc_dtype))
        reach = WIDE // max(entries, problem.k)  # offsets in the arrays must fit 32 bits
        columns = _chunk(total, max(min(room, reach), _least_columns(total)))
        return [Im2colConfig(columns, self.convolved, tile) for tile in range(4)]

    def plan(self, problem: Conv2dProblem, config: Im2colConfig, runtime: Runtime) -> Plan:
        if not 1 <= config.columns <= MOST_COLUMNS:
            raise ValueError(f"columns={config.columns} of a chunk must be 1 to {MOST_COLUMNS}")
        if config.gemm == self.convolved:
            if (reason := why_not_convolved(problem, config.gemm, runtime.facts)) is not None:
                raise ValueError(f"{config}: {reason}")
            by = ConvolvedProduct(problem, config.gemm, config.columns, config.tile, runtime)
            nbytes = by.workspace_bytes
            return Plan(self, problem, config, runtime, steps=by.steps, prepare=by.prepare, workspace_bytes=nbytes)
        if config.gemm not in self.steps:
            known = ", ".join((*self.steps, self.convolved))
            raise ValueError(f"gemm={config.gemm!r} of {self.name} is unknown; choose one of {known}")
        total, taps = problem.n * problem.p * problem.q, problem.taps
        entries, pixels = entries_of(problem, config.gemm), pixels_contiguous(problem)
        size = itemsize(entries)
        expansion = Expansion(problem, runtime, entries)
        widest = min(config.columns, total)
        product = _product(problem, config, runtime)

        counts = {widest, total % config.columns or widest}  # columns of a chunk, and of the last
        infos = {n: product.info(problem.k_per_group, n, problem.groups) for n in counts}

        def steps(first: int, count: int) -> list[Launch]:
            def operands(buffers: Buffers) -> Any:
                columns = columns_at(buffers)
                args = product.output(buffers, count, taps, first)
                if pixels:
                    args.b = operand(columns, size, 1, count, False, taps * count)
                else:
                    args.b = operand(columns, size, taps * problem.groups, 1, True, taps)
                return args

            return [expansion.launch(first, count), Launch(infos[count], product.kernel, operands, runtime, "product")]

        chunks = [(first, min(config.columns, total - first)) for first in range(0, total, config.columns)]
        launches = [step for chunk in chunks for step in steps(*chunk)]
        prepare = WeightPacker(problem, runtime, "CRSK" if pixels else "RSCK", entries)
        nbytes = expansion.nbytes(widest) + ALIGNMENT - 1 if total else 0
        return Plan(self, problem, config, runtime, steps=launches, prepare=prepare, workspace_bytes=nbytes)

    def ways(self, problem: Conv2dProblem, config: Im2colConfig) -> tuple[Way, ...]:
        return ways_of_convolved(problem, config.gemm) if config.gemm == self.convolved else ()

    def work_for(self, problem: Conv2dProblem) -> Work:
        """Work of the product, and of writing and reading the matrix of the first config."""
        return Work(blocked_flops(problem), problem.least_bytes + 2 * _matrix_bytes(problem))

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        columns, outputs, channels = problem.n * problem.p * problem.q, problem.k_per_group, problem.c_per_group
        of_sm = columns * problem.k / facts.cores
        # With few channels, a method that keeps pixels in registers would read a tap for nearly every product. With
        # fewer outputs for each SM, a method of one launch is faster.
        if problem.taps >= 48 and outputs >= 32 and 1 < channels <= 8 and of_sm >= 4000:
            why = f"{outputs} outputs of {problem.taps} products share what they load"
            return Preference(Rank.WRITTEN_MATRIX, why)
        # Few columns keep few blocks busy; then a product of prepared operands is faster.
        several = columns <= 4096 and of_sm <= 16000 and problem.groups == 1
        if channels > 8 and outputs >= 8 and (columns <= 256 or several):
            return Preference(Rank.WRITTEN_MATRIX, "a product of few columns, whose operands are ready")
        return Preference(Rank.GENERAL_MATRIX, GENERAL)


class Im2colTf32(Im2col):
    """im2col of float32 that tensor cores round to TF32; a convolution of that precision computes the product.

    The relative error of each product is at most 2^-10.
    """

    name = "im2col_tf32"
    summary = "float32, rounded to TF32: expanded in chunks, then a product on tensor cores; sm_80"
    since = "im2col"
    precision = "tf32"
    look = Mark("amber", "cross")

    steps: ClassVar[Mapping[str, Callable[[str], GemmStep[Any]]]] = {}
    convolved = GemmTf32Mma.name

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        return why_not_convolved(problem, self.convolved, facts)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[Im2colConfig]:
        """Configs with the tilings of the convolution; a chunk takes at most an eighth of the memory."""
        return self._convolved_configs(problem, facts)

    def work_for(self, problem: Conv2dProblem) -> Work:
        """Work of the product, and of writing and reading the matrix."""
        return Work(2 * problem.flops / PRODUCTS, problem.least_bytes + 2 * _matrix_bytes(problem))

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        """None: the rule never chooses it, because methods that write no matrix have the same arithmetic."""
        return None


def _matrix_bytes(problem: Conv2dProblem) -> int:
    """Bytes of the whole matrix, with the type of entries that the first config uses on a device with tensor cores."""
    entries = problem.n * problem.c * problem.r * problem.s * problem.p * problem.q
    return entries * itemsize(entries_of(problem, GemmMma.name if _why_not_narrow(problem) is None else ""))


def _least_columns(total: int) -> int:
    """Fewest columns of a chunk, so that there are at most MOST_CHUNKS."""
    return -(-total // (MOST_CHUNKS * GRAIN)) * GRAIN


def _chunk(total: int, columns: int) -> int:
    """Columns of a chunk, if all are about equal and have at most `columns` columns, or GRAIN."""
    most = min(max(columns // GRAIN, 1) * GRAIN, MOST_COLUMNS)
    if total <= most:
        return max(total, 1)
    pieces = -(-total // most)
    return -(-total // pieces // GRAIN) * GRAIN


def _product(problem: Conv2dProblem, config: Im2colConfig, runtime: Runtime) -> Product:
    reason = _why_not_narrow(problem) or device_refusal(runtime.facts)
    if config.gemm == GemmMma.name and reason is not None:
        raise ValueError(f"{config}: {reason}")
    step = STEPS[config.gemm](runtime.facts.backend)
    entries = entries_of(problem, config.gemm)
    size = itemsize(entries)
    choices = step.choices(problem.k_per_group, config.columns, problem.taps, problem.groups, size, runtime.facts)
    tiles = chosen(choices, config.tile, config.gemm)
    return step.product(tiles, runtime, False, not pixels_contiguous(problem), entries, problem)


def entries_of(problem: Conv2dProblem, gemm: str) -> str:
    """Type of the matrix's entries: that of x and w for gemm_mma, else that of the sums."""
    return problem.x_dtype if gemm == GemmMma.name else problem.acc_dtype


def _why_not_narrow(problem: Conv2dProblem) -> Reason | None:
    """The reason why gemm_mma cannot multiply x and w directly, in 16 bits; None if it can."""
    if problem.x_dtype not in TYPES or problem.w_dtype != problem.x_dtype or problem.acc_dtype != "float32":
        types = ", ".join(sorted({problem.x_dtype, problem.w_dtype}))
        return Reason("x and w must be of one type of {names}, not {types}, for tensor cores to multiply them",
                      names=", ".join(TYPES), types=types)  # fmt: skip
    return None
