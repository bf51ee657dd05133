"""Base classes of the methods that run on a GPU or on the emulator; only the backend differs."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from convforge.algorithms.contract import Algorithm, Buffers, Config, P, Plan
from convforge.algorithms.host.conv import conv_constants, fill, is_aligned, with_conv
from convforge.algorithms.host.resident import compiled, with_occupancy_cap
from convforge.algorithms.host.staged import Filter, StagedWeights
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

C = TypeVar("C", bound=Config)


class OnDevice(Algorithm[P, C]):
    """A method with kernels in CUDA C++; `backend` is "cuda" or "emulator"."""

    def __init__(self, backend: str = "cuda") -> None:
        self.backend = backend


class DeviceConvolution(OnDevice[Conv2dProblem, C]):
    operation = "conv2d"


def require(config: Config, reason: Reason | None) -> None:
    """Raise ValueError if there is a reason why a config is impossible."""
    if reason is not None:
        raise ValueError(f"{config}: {reason}")


def renamed(kernel: str, name: str) -> tuple[str, ...]:
    """Macro that renames a file's kernel, so that profilers tell methods apart; empty if the name stays the same."""
    return () if name == kernel else (f"#define {kernel} {name}",)


def types_refusal(problem: Conv2dProblem, taken: Collection[str]) -> Reason | None:
    """The reason to refuse the type of x, w or the result, if it is not in `taken`; None if all are."""
    types = {problem.x_dtype, problem.w_dtype}
    if len(types) == 1 and problem.x_dtype in taken and problem.out_dtype in (*types, "float32"):
        return None
    return Reason("x and w must be of one type of {names}, and the result of that or float32; these are {types}",
                  names=", ".join(taken), types=", ".join(sorted({*types, problem.out_dtype})))  # fmt: skip


class Vectors(NamedTuple):
    """Vectors in which a kernel reads or writes an array: arguments of :func:`is_aligned`."""

    sizes: Mapping[str, int]
    run: Mapping[str, int]
    elements: int


class Kernel(NamedTuple):
    """The kernel of a config and its launch."""

    constants: tuple[str, ...]  # source lines after those of :func:`conv_constants`
    grid: tuple[int, ...]
    block: tuple[int, ...]
    resident: int  # threads that an SM should run at once; see :func:`compiled`
    shared_bytes: int = 0  # dynamic shared memory of a block
    math: str = ""  # type of the factors; by default that of the sums
    # Numbers and structs in the kernel's struct: `fields` before the alignment flags, `last_fields` after them.
    fields: Mapping[str, Any] = {}
    last_fields: Mapping[str, Any] = {}
    # Vectors of x and of out; None for a kernel without the flags `aligned_x` and `aligned_out`.
    vectors: tuple[Vectors, Vectors] | None = None
    # Problem, runtime, compiled kernel -> the object that prepares the weights.
    weights: Callable[[Conv2dProblem, Runtime, Any], Any] = StagedWeights
    pdl: bool = True  # the launch may begin before the earlier one ends (PDL)


class OneLaunch(DeviceConvolution[C]):
    """A convolution by one kernel launch. Method and kernel are named FAMILY_STEM; the file is FAMILY/STEM.cu."""

    has_filter: ClassVar[bool] = True  # the kernel's struct has a :class:`Filter`
    # With PDL, limit the blocks of each SM to its share; see :func:`with_occupancy_cap`.
    caps_occupancy: ClassVar[bool] = True

    @abstractmethod
    def config_refusal(self, problem: Conv2dProblem, config: C, facts: DeviceFacts) -> Reason | None:
        """The reason why a config is invalid; None if it is valid."""

    @abstractmethod
    def kernel(self, problem: Conv2dProblem, config: C) -> Kernel:
        """The kernel of a valid config."""

    def valid(self, problem: Conv2dProblem, configs: Iterable[C], facts: DeviceFacts) -> list[C]:
        return [config for config in configs if self.config_refusal(problem, config, facts) is None]

    def complete(self, problem: Conv2dProblem, args: Any) -> None:
        """Change a call's struct after all its fields are filled; does nothing by default."""

    def plan(self, problem: Conv2dProblem, config: C, runtime: Runtime) -> Plan:
        require(config, self.config_refusal(problem, config, runtime.facts))
        made = self.kernel(problem, config)
        family, stem = self.name.split("_")
        struct: Any = with_conv(stem.capitalize(), problem, **_types(made, self.has_filter))
        lines = (*conv_constants(problem, math=made.math), *made.constants)
        source = KernelSource(f"algorithms/{family}/{stem}.cu", self.name, lines, struct, stem.capitalize())
        kernel = compiled(runtime, source, math.prod(made.block), made.resident)
        info = LaunchInfo(self.name, made.grid, made.block, made.shared_bytes, pdl=made.pdl)
        info = with_occupancy_cap(runtime, kernel, info) if self.caps_occupancy else runtime.describe(kernel, info)
        values = {**made.fields, **made.last_fields}
        x_bytes, out_bytes = itemsize(problem.x_dtype), itemsize(problem.out_dtype)

        def arguments(buffers: Buffers) -> Any:
            args = struct(**values)
            conv = args.conv
            fill(conv, problem, buffers)
            if isinstance(weights, StagedWeights):
                args.filter = weights.filter(buffers["w"])
            if made.vectors is not None:
                x, out = made.vectors
                args.aligned_x = is_aligned(conv.x, conv.x_strides, *x, x_bytes)
                args.aligned_out = is_aligned(conv.out, conv.out_strides, *out, out_bytes)
            self.complete(problem, args)
            return args

        weights = made.weights(problem, runtime, kernel)
        return Plan(self, problem, config, runtime, steps=[weights.step(info, arguments)], prepare=weights)


def _types(made: Kernel, has_filter: bool) -> dict[str, Any]:
    """Names and types of the struct fields after struct Conv, in order."""
    filters = {"filter": Filter} if has_filter else {}
    flags = dict.fromkeys(("aligned_x", "aligned_out"), ctypes.c_int) if made.vectors is not None else {}
    before, after = (
        {name: ctypes.c_int if isinstance(value, int) else type(value) for name, value in values.items()}
        for values in (made.fields, made.last_fields)
    )
    return {**filters, **before, **flags, **after}


def least_refusal(config: Config) -> Reason | None:
    """Refuse a number of a config below 1, or below "least" in its field's metadata; None if there is none."""
    for field in dataclasses.fields(config):
        value, least = getattr(config, field.name), field.metadata.get("least", 1)
        if isinstance(value, int) and value < least:
            return Reason("{name}={value} must be at least {least}", name=field.name, value=value, least=least)
    return None
