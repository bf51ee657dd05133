"""Host side of sum_shares.cu, which adds up the sums of tiles that share channels (split-K), and of such plans."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from convforge.algorithms.contract import Algorithm, Buffers, Config, Launch, Plan, PreparedFilter
from convforge.algorithms.gemm.device import modelled_time
from convforge.algorithms.gemm.product import Tiling
from convforge.algorithms.host.conv import ArrayView, address, conv_constants, fill, with_conv
from convforge.algorithms.implicit_gemm.pixel_rows import BEGINS, Squares, begins
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem
from convforge.problem.epilogue import Epilogue

# Threads of a block; most blocks that share the steps of a tile.
THREADS, MOST_SHARES = 256, 16

C = TypeVar("C", bound=Config)


def ordered_with_shares(
    shapes: Mapping[C, Tiling], problem: Conv2dProblem, facts: DeviceFacts, steps: Callable[[C], int], fewest: int,
    share: Callable[[C, int], C],
) -> list[C]:  # fmt: skip
    """The configs that fit a device, those that waste least of it first.

    A config with fewer tiles than SMs also comes with blocks that share the steps of a tile: each has at least `fewest`
    of its `steps`, and `share` gives the config with so many blocks. Rows of a Tiling are output pixels, columns
    filters.
    """
    pixels, k, groups = problem.n * problem.p * problem.q, problem.k_per_group, problem.groups
    found: dict[C, float] = {}
    for config, shape in shapes.items():
        if shape.shared_bytes > facts.block_shared_bytes:
            continue
        found[config] = modelled_time(shape, pixels, k, groups, facts)
        tiles, count = max(1, shape.tiles(pixels, k, groups)), steps(config)
        shares = min(facts.cores // tiles, count // fewest, MOST_SHARES)
        if shares > 1:
            shares = -(-count // -(-count // shares))  # each has some
            found[share(config, shares)] = found[config] / shares
    return sorted(found, key=found.__getitem__)


def problem_of_shares(problem: Conv2dProblem) -> Conv2dProblem:
    """The problem whose results are the sums of one share: floats in NHWC, before the epilogue."""
    return problem.replace(out_dtype="float32", out_layout="NHWC", epilogue=Epilogue())


class SumShares:
    """The step that adds up `count` shares, `offset` bytes into the workspace, and applies the epilogue."""

    def __init__(self, problem: Conv2dProblem, count: int, offset: int, runtime: Runtime) -> None:
        self._shape, self._offset = problem_of_shares(problem).out_shape, offset
        self.nbytes = count * problem.outputs * 4 + BEGINS - 1
        struct = with_conv("SumShares", problem, sums=ctypes.c_void_p, count=ctypes.c_int)
        lines = (*conv_constants(problem), *constants(SPLIT_K=count))
        source = KernelSource("algorithms/implicit_gemm/sum_shares.cu", "sum_shares", lines, struct, "SumShares")
        lanes = 4 if problem.k % 4 == 0 else 1
        info = LaunchInfo("sum_shares", (-(-problem.outputs // (THREADS * lanes)),), (THREADS,), early=True)

        def arguments(buffers: Buffers) -> Any:
            args = struct(sums=self.array(buffers).address, count=problem.outputs)
            fill(args.conv, problem, buffers)
            return args

        self.launch = Launch(info, runtime.compile(source), arguments, runtime)

    def array(self, buffers: Buffers) -> ArrayView:
        """The sums of the first share in a call's workspace; those of the others follow."""
        n, p, q, k = self._shape
        at = begins(address(buffers["workspace"]) + self._offset)
        return ArrayView(at, (n, p, q, k), (4 * p * q * k, 4 * q * k, 4 * k, 4), 4)


class Stages:
    """The kernels around a product: one writes x to the workspace as rows, one adds up the sums of shares.

    Without `rows` the product reads x itself; with `split_k` 1 it writes the result.
    """

    def __init__(self, problem: Conv2dProblem, rows: Squares | None, split_k: int, runtime: Runtime) -> None:
        self._rows, self._nbytes = rows, 0 if rows is None else rows.nbytes
        self._shares = SumShares(problem, split_k, self._nbytes, runtime) if split_k > 1 else None

    def buffers(self, buffers: Buffers) -> Buffers:
        """The buffers of the product in a call."""
        if self._rows is not None:
            buffers = {**buffers, **self._rows.arrays(buffers)}
        if self._shares is not None:
            buffers = {**buffers, "out": self._shares.array(buffers)}
        return buffers

    def plan(
        self, method: Algorithm[Any, Any], problem: Conv2dProblem, config: Config, launch: Launch,
        prepare: Callable[[Any, Any], PreparedFilter],
    ) -> Plan:  # fmt: skip
        """The plan of a product's launch with the kernels around it."""
        steps = [] if self._rows is None else [self._rows.launch]
        steps.append(launch)
        nbytes = self._nbytes
        if self._shares is not None:
            steps.append(self._shares.launch)
            nbytes += self._shares.nbytes
        return Plan(method, problem, config, launch.runtime, steps=steps, prepare=prepare, workspace_bytes=nbytes)
