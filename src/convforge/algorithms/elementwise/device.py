"""Host side of relu.cu: the elements that vectors cover, and the grid size."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convforge.algorithms.contract import Buffers, Config, Launch, Plan
from convforge.algorithms.host.conv import address
from convforge.algorithms.host.element_types import ElementTypes
from convforge.algorithms.host.on_device import OnDevice
from convforge.algorithms.traits import Mark, Preference, Rank
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import ElementwiseProblem
from convforge.problem.types import VECTOR_BYTES, itemsize

GRIDS = ("resident", "whole")

# Blocks of a grid along x, at most.
MOST_BLOCKS = 2**31 - 1

# Configs worth comparing, the default first. Blocks start in order, so concurrent loads are close in memory.
CHOICES = ((256, 1, "whole"), (256, 2, "whole"), (512, 4, "whole"), (256, 1, "resident"), (512, 4, "resident"))


@dataclass(frozen=True, slots=True)
class ReluConfig(Config):
    """Block size of :class:`Relu`, and the loads that a thread has in flight."""

    block: int = 256  # threads of a block, 32 to 1024
    vectors: int = 1  # 16-byte loads that a thread has in flight
    # "whole": one block for every block * vectors vectors; "resident": as many blocks as the device holds at once.
    grid: str = "whole"


class _Relu(ctypes.Structure):
    """The ctypes mirror of struct Relu in relu.cu."""

    _fields_ = (
        ("x", ctypes.c_void_p), ("out", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("x_step", "out_step", "size", "head", "vectors")),
    )  # fmt: skip


class Relu(OnDevice[ElementwiseProblem, ReluConfig]):
    """max(x, 0) for one-dimensional arrays of any strides; x and out may be the same array."""

    name = "relu"
    summary = "16-byte loads and stores, several on their way a thread"
    operation = "relu"
    look = Mark("blue", "cross")
    preference = Preference(Rank.FIRST, "the one method of its operation on GPUs")

    def refuses(self, problem: ElementwiseProblem, facts: DeviceFacts) -> Reason | None:
        return None

    def configs(self, problem: ElementwiseProblem, facts: DeviceFacts) -> Sequence[ReluConfig]:
        return [ReluConfig(*choice) for choice in CHOICES]

    def plan(self, problem: ElementwiseProblem, config: ReluConfig, runtime: Runtime) -> Plan:
        if not 32 <= config.block <= 1024:
            raise ValueError(f"block={config.block}: a block has 32 to 1024 threads")
        if not 1 <= config.vectors <= 16:
            raise ValueError(f"vectors={config.vectors} must be 1 to 16: they wait in registers")
        if config.grid not in GRIDS:
            raise ValueError(f"grid={config.grid!r} must be one of {', '.join(GRIDS)}")
        prelude = (
            *ElementTypes(x=problem.dtype).prelude(),
            *constants(THREADS=config.block, VECTORS=config.vectors),
        )  # fmt: skip
        kernel = runtime.compile(KernelSource("algorithms/elementwise/relu.cu", "relu", prelude, _Relu, "Relu"))
        blocks = min(_runs(problem, config), MOST_BLOCKS)
        if config.grid == "resident":
            blocks = min(blocks, runtime.facts.cores * max(runtime.facts.threads // config.block, 1))
        info = runtime.describe(kernel, LaunchInfo("relu", (blocks,), (config.block,)))

        def arguments(buffers: Buffers) -> Any:
            return _arguments(problem, buffers["x"], buffers["out"])

        return Plan(self, problem, config, runtime, steps=[Launch(info, kernel, arguments, runtime)])


def _runs(problem: ElementwiseProblem, config: ReluConfig) -> int:
    """Number of runs of vectors; a block computes one run at a time."""
    return -(-problem.size * itemsize(problem.dtype) // (config.block * config.vectors * VECTOR_BYTES))


def _arguments(problem: ElementwiseProblem, x: Any, out: Any) -> _Relu:
    """Kernel struct of one call. Vectors need contiguous arrays with the same offset from a multiple of 16 bytes."""
    size = itemsize(problem.dtype)
    args = _Relu(address(x), address(out), x.strides[0] // size, out.strides[0] // size, problem.size)
    source, target = args.x or 0, args.out or 0
    head = -target % VECTOR_BYTES // size
    alike = (source - target) % VECTOR_BYTES == 0
    if alike and args.x_step == args.out_step == 1 and head < problem.size:
        args.head, args.vectors = head, (problem.size - head) * size // VECTOR_BYTES
    return args
