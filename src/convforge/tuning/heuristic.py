"""The choice by rule: no measuring, the same on every run. Each rule is a crossover seen in the bench's results.

It is the level "heuristic", what stands in where nothing may be measured, and what a search measures first.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from convforge.algorithms import AnyAlgorithm, algorithms, refusal
from convforge.algorithms.contract import Config, Plan
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import UnsupportedProblem
from convforge.problem import Conv2dProblem, Problem
from convforge.problem.types import is_integer, itemsize

# A method's name, and the sentence that says why it comes here.
Rule = tuple[str, str]

# Preference by operation where no rule speaks.
_ORDER = {
    "conv2d": ("direct_rows", "direct_tiled", "implicit_gemm", "im2col", "direct_naive"),
    "gemm": ("gemm_blas", "gemm_blocked", "gemm_loops", "gemm_warp_tiled", "gemm_vectorised", "gemm_naive"),
    "max_pool2d": ("max_pool_rows", "max_pool"),
    "relu": ("relu",),
}

# Extent of a filter up to which tiles in shared memory leave more than a quarter of their numbers as outputs.
FUSED_EXTENT = 63

# Taps of a depthwise filter beyond which, in NHWC too, planes in shared memory are ahead; and those with pixels of four
# bytes or more, of whose lines a few planes have use.
LARGE_DEPTHWISE, WIDE_DEPTHWISE = 49, 9

# Pixels of a plane up to which blocks that hold whole planes are ahead of tiles in NCHW; up to which they are with such
# filters, and on 16-bit floats tensor cores; and planes for each multiprocessor from which all of them are: fewer leave
# some without any.
SMALL_PLANE, LARGE_PLANE, FEW_PLANES = 28 * 28, 64 * 64, 4

# Windows of a row, of all pictures, that fill a product of tensor cores.
FULL_PRODUCT = 16

# Output channels of a group up to which tiles that come ahead of the threads are ahead: with more there is so much to
# multiply that taps in constant memory are. Pixels of a plane up to which they are: in larger pictures memory is the
# limit of both, and the other has less to wait for. Where there are more input channels than this too, or every filter
# sees one of several, pixels from which they are; and there the most taps: beyond, threads that slide along rows are.
BOXES_CHANNELS, BOXES_MOST_PIXELS, BOXES_PIXELS, BOXES_TAPS = 4, 48 << 20, 512 * 512, 49

# Pixels of a picture of bytes from which tensor cores are ahead: below, it is over before their first rows are there.
BYTES_PIXELS = 1 << 20

# Outputs of a plane for each multiprocessor, a block of threads, up to which a picture is over before anything but
# latency counts, and output channels: a thread has them all.
SMALL_OUTPUTS, SMALL_CHANNELS = 512, 4

# Stride from which, where windows share no pixel, neighbouring pixels are no vector that a thread could use.
APART = 3

# Columns of the product up to which, with many channels on both sides, a matrix that is written first is ahead: so few
# columns keep few blocks busy, and a product whose operands lie ready is over sooner. Where there is one product, more
# columns, and outputs for each multiprocessor, up to which it is.
FEW_COLUMNS, SEVERAL_COLUMNS, SEVERAL_OUTPUTS = 256, 4096, 16000

# Taps and output channels from which, with several input channels but too few for tiles of their own, the matrix pays:
# a thread that holds its pixels would read a tap for nearly every product. And outputs for each multiprocessor from
# which it does: with fewer, a method of one launch is over first.
MATRIX_TAPS, MATRIX_CHANNELS, MATRIX_OUTPUTS = 48, 32, 4000

# Output channels of a filter of one channel from which its pixels are read for many outputs, as in a layer.
MANY_OUTPUTS = 8


@dataclass(frozen=True, slots=True)
class Choice:
    """A method, a config, and the sentence that says why.

    Attributes
    ----------
    algorithm : Algorithm
    config : Config
    plan : Plan
    reason : str
    untuned : bool
        Nothing is remembered of the problem's bucket yet, so that measuring might choose another one.
    """

    algorithm: AnyAlgorithm
    config: Config
    plan: Plan
    reason: str
    untuned: bool = False


def choose(
    problem: Problem, runtime: Runtime, workspace_limit: int | None = None, without: Container[str] = ()
) -> Choice:
    """The first method of the preferred order that takes the problem within the workspace limit.

    Parameters
    ----------
    problem : Problem
    runtime : Runtime
    workspace_limit : int, optional
        Bytes.
    without : container of str
        Methods that gave a wrong result when they were measured.

    Raises
    ------
    UnsupportedProblem
        None does; with every reason.
    """
    facts = runtime.facts
    reasons: dict[str, str] = {}
    for algorithm, why in preferred(problem, facts):
        reason = refusal(algorithm, problem, facts)
        if reason is None and algorithm.name in without:
            reason = "its result was wrong when it was measured"
        if reason is None:
            fitting = fit(algorithm, problem, runtime, workspace_limit)
            if isinstance(fitting, Plan):
                return Choice(algorithm, fitting.config, fitting, why)
            reason = fitting
        reasons[algorithm.name] = reason
    raise UnsupportedProblem(str(problem), reasons or {"(none)": f"no method for {facts.backend}"})


def preferred(problem: Problem, facts: DeviceFacts) -> list[tuple[AnyAlgorithm, str]]:
    """Our methods in the order of preference, each with the rule that puts it there; some may refuse the problem."""
    known = {
        a.name: a for a in algorithms() if a.ours and a.operation == problem.operation and a.backend == facts.backend
    }
    return [(known[name], why) for name, why in _preferred(problem, facts) if name in known]


def fit(algorithm: AnyAlgorithm, problem: Any, runtime: Runtime, workspace_limit: int | None) -> Plan | str:
    """The plan of the first config whose workspace is within the limit, or the sentence that says none is."""
    least: int | None = None
    refused: str | None = None
    for config in algorithm.configs(problem, runtime.facts):
        try:
            plan = algorithm.plan(problem, config, runtime)
        except UnsupportedProblem as fault:  # a library's, seen only when it is asked for a plan
            refused = refused or fault.reasons.get(algorithm.name, str(fault))
            continue
        if workspace_limit is None or plan.workspace_bytes <= workspace_limit:
            return plan
        least = plan.workspace_bytes if least is None else min(least, plan.workspace_bytes)
    if least is None and refused is not None:
        return refused
    return f"it needs a workspace of at least {least} bytes; the limit is {workspace_limit}"


def _preferred(problem: Problem, facts: DeviceFacts) -> list[Rule]:
    """Names in order of preference, each with the rule that puts it there."""
    order = [(name, "the general method that comes next") for name in _ORDER[problem.operation]]
    if not isinstance(problem, Conv2dProblem):
        one = facts.backend != "cpu" and problem.operation in ("max_pool2d", "relu")
        why = (
            "the one method of its operation on GPUs" if one else "the fastest of its operation in the bench's results"
        )
        return [(name, why) for name, _ in order]
    found = _by_arithmetic(problem, facts)
    found += _on_cpu(problem) if facts.backend == "cpu" else _on_gpu(problem, facts)
    named: dict[str, str] = {}
    for name, why in (*found, *order):
        named.setdefault(name, why)
    return list(named.items())


def _by_arithmetic(problem: Conv2dProblem, facts: DeviceFacts) -> list[Rule]:
    """Where a problem allows more than sums of products."""
    if problem.precision == "separable":
        return [("separable", f"two passes of {problem.r} + {problem.s} products instead of {problem.r * problem.s}")]
    if problem.precision == "winograd":
        return [("winograd_f4", "a quarter of the products, where the transforms pay")]
    if problem.precision != "fft":
        return []
    found = [("fft", "the products in the frequency domain do not grow with the filter")]
    if facts.backend != "cpu" and max(problem.extent_h, problem.extent_w) <= FUSED_EXTENT:
        found.insert(0, ("fft_fused", "every filter sees one channel: its tiles never leave shared memory"))
    return found


def _on_cpu(problem: Conv2dProblem) -> list[Rule]:
    found: list[Rule] = []
    exact_in_float32 = not is_integer(problem.acc_dtype) or problem.largest_sum < 2**24
    if problem.groups == problem.c > 1 and exact_in_float32:
        found.append(("depthwise", "every filter sees one channel: vectors of sums stay in registers for all its taps"))
    found.append(("gemm_1x1", "a 1x1 filter is a matrix product of the picture where it lies"))
    few = ("direct_rows", "few channels or few outputs: bound by memory, read once from a cached tile")
    return [*found, *_shared_pixels(problem), few]


def _on_gpu(problem: Conv2dProblem, facts: DeviceFacts) -> list[Rule]:
    tiled = ("direct_tiled", "a thread's outputs share the pixels that it holds in registers")
    return [
        *_small(problem, facts), *_bytes(problem), *_one_channel(problem, facts), *_matrices(problem, facts),
        *_boxes(problem), tiled, *_shared_pixels(problem),
    ]  # fmt: skip


def _shared_pixels(problem: Conv2dProblem) -> list[Rule]:
    """Several outputs of several products."""
    if problem.k_per_group < 4 or problem.taps < 16:
        return []
    why = f"{problem.k_per_group} outputs of {problem.taps} products each share every pixel that is loaded"
    return [("implicit_gemm", why)]


def _small(problem: Conv2dProblem, facts: DeviceFacts) -> list[Rule]:
    """Few outputs: pictures that are over before anything but latency counts, and those whose windows lie apart."""
    if problem.groups != 1 or problem.k_per_group > SMALL_CHANNELS:
        return []
    if problem.n * problem.p * problem.q <= SMALL_OUTPUTS * facts.cores:
        return [("direct_small", "a small picture: pixels and filter are under way at once")]
    if problem.stride[0] >= problem.extent_h and problem.stride[1] >= max(problem.extent_w, APART):
        return [("direct_small", "windows share no pixel: there is nothing to keep for a neighbour")]
    return []


def _bytes(problem: Conv2dProblem) -> list[Rule]:
    """Large pictures of bytes, with filters of whole numbers."""
    if problem.acc_dtype != "int32" or problem.h * problem.w < BYTES_PIXELS:
        return []
    return [("direct_mma", "bytes: a row of the filter is one product of a tensor core")]


def _one_channel(problem: Conv2dProblem, facts: DeviceFacts) -> list[Rule]:
    """Filters that see one channel each."""
    large = problem.r * problem.s > BOXES_TAPS
    if problem.groups != problem.c or (problem.c == 1 and (not large or problem.k_per_group >= MANY_OUTPUTS)):
        return []
    return [*([] if large else _boxes(problem)), *_depthwise(problem, facts)]


def _matrices(problem: Conv2dProblem, facts: DeviceFacts) -> list[Rule]:
    """Products of matrices: many outputs of many products."""
    found: list[Rule] = []
    columns, outputs, channels = problem.n * problem.p * problem.q, problem.k_per_group, problem.c_per_group
    long = problem.taps >= MATRIX_TAPS and outputs >= MATRIX_CHANNELS
    if long and 1 < channels <= 8 and columns * problem.k >= MATRIX_OUTPUTS * facts.cores:
        found.append(("im2col", f"{outputs} outputs of {problem.taps} products share what they load"))
    if channels > 8 and outputs >= 8:
        several = columns <= SEVERAL_COLUMNS and columns * problem.k <= SEVERAL_OUTPUTS * facts.cores
        if columns <= FEW_COLUMNS or (several and problem.groups == 1):
            found.append(("im2col", "a product of few columns, whose operands lie ready"))
        why = f"tiles of {outputs} outputs of {problem.taps} products each share what they load"
        found.append(("implicit_gemm", why))
    return found


def _boxes(problem: Conv2dProblem) -> list[Rule]:
    """Pictures of few channels; of many, such as are large."""
    few = problem.groups == 1 and problem.c <= BOXES_CHANNELS
    pixels = problem.h * problem.w
    if problem.k_per_group > BOXES_CHANNELS or not (0 if few else BOXES_PIXELS) <= pixels <= BOXES_MOST_PIXELS:
        return []
    return [("direct_boxes", "few channels: the next boxes of pixels come while one is computed")]


def _depthwise(problem: Conv2dProblem, facts: DeviceFacts) -> list[Rule]:
    """Names in order of preference where every filter sees one channel, on a GPU."""
    planes = ("depthwise_planes", "every filter sees one channel: tiles of several planes share a block")
    channels = ("depthwise_channels", "every filter sees one channel: neighbouring channels are loaded together")
    rows = ("depthwise_rows", "every filter sees one channel: a block holds whole planes, a thread a row")
    matrix = ("depthwise_mma", "every filter sees one channel: tensor cores multiply by its rows, of 16-bit floats")
    batch = ("depthwise_batch", "every filter sees one channel: tensor cores multiply rows of several pictures by it")
    taps = problem.r * problem.s
    small = problem.h * problem.w <= SMALL_PLANE
    whole: list[Rule] = []
    most = LARGE_PLANE if taps >= LARGE_DEPTHWISE else SMALL_PLANE
    if problem.n * problem.c >= FEW_PLANES * facts.cores and problem.h * problem.w <= most:
        halves = problem.x_dtype in ("float16", "bfloat16")
        whole = [matrix, rows] if halves and not small else [rows]
        together = problem.n * -(-problem.q // 8) >= FULL_PRODUCT
        if halves and together and problem.stride == (1, 1) and taps > WIDE_DEPTHWISE:
            whole = [batch, *whole]
    large = taps > (WIDE_DEPTHWISE if itemsize(problem.x_dtype) >= 4 else LARGE_DEPTHWISE)
    others = [planes, channels] if large else [channels, planes]
    return [*whole, *others, *(rule for rule in (rows, matrix, batch) if rule not in whole)]
