"""1x1 convolution without padding or stride: a matrix product that reads the image without a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from convforge.algorithms.contract import Algorithm, Buffers, Child, Chunks, Config, Plan, PreparedFilter
from convforge.algorithms.gemm.gemm import GemmBlas, operand_b
from convforge.algorithms.host.views import logical
from convforge.algorithms.host.weights import correlation_filter
from convforge.algorithms.host.widened import takes_bfloat16
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank
from convforge.backends.cpu.runtime import INLINE_FLOPS
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem, GemmProblem


@takes_bfloat16
class Gemm1x1(Algorithm[Conv2dProblem, Config]):
    """out (K x PQ) = w (K x C) times x (C x HW), one product for each image and group."""

    name = "gemm_1x1"
    summary = "a 1x1 filter as a matrix product of the image without a copy"
    operation = "conv2d"
    since = "gemm_blas"
    cost = MethodCost(0.60, 0.4, 1, 2)
    look = Mark("olive", "triangle-left")
    preference = Preference(Rank.POINTWISE, "a 1x1 filter is a matrix product of the image without a copy")

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if (problem.r, problem.s) != (1, 1):
            return Reason("the filter is {own}, not {wanted}", own=f"{problem.r}x{problem.s}", wanted="1x1")
        if problem.stride != (1, 1) or any(problem.padding):
            return Reason("stride {stride} and padding {padding} leave no plain matrix; im2col gathers one",
                          stride=str(problem.stride), padding=str(problem.padding))  # fmt: skip
        if {problem.x_dtype, problem.w_dtype, problem.out_dtype, problem.acc_dtype} not in ({"float32"}, {"float64"}):
            return Reason(
                "the product reads x without a copy, so x, w, out and the sums must all be float32 or all float64"
            )
        if not problem.epilogue.is_identity:
            return Reason("the BLAS has no epilogue {epilogue}; im2col has", epilogue=str(problem.epilogue))
        return None

    def plan(self, problem: Conv2dProblem, config: Config, runtime: Runtime) -> Plan:
        groups, outputs, channels = problem.groups, problem.k_per_group, problem.c_per_group
        gemm = GemmProblem(m=outputs, n=problem.h * problem.w, k=channels, dtype=problem.acc_dtype)
        child = GemmBlas().plan(gemm, config, runtime)
        # Each core multiplies a part of the pixels with a single-threaded BLAS. A small product is not divided.
        parts = runtime.facts.cores if problem.flops >= INLINE_FLOPS else 1

        def part_of(part: int) -> Callable[[Buffers], Iterator[Buffers]]:
            def parts_of(buffers: Buffers) -> Iterator[Buffers]:
                w = buffers["w"].tensors["w"]
                for n in range(problem.n):
                    x, out = logical(buffers["x"], problem.x_layout)[n], logical(buffers["out"], problem.out_layout)[n]
                    for pixels_x, pixels_out in _matrices(x, out):
                        count = pixels_x.shape[1]
                        own = slice(part * count // parts, (part + 1) * count // parts)
                        for g in range(groups):
                            k = slice(g * outputs, (g + 1) * outputs)
                            b = operand_b(pixels_x[g * channels : (g + 1) * channels, own])
                            yield {"a": w[k], "b": b, "c": pixels_out[k, own]}

            return parts_of

        shared = Chunks(tuple((Child(child, part_of(part)),) for part in range(parts)), parts, 0, runtime)

        def prepare(w: Any, stream: Any = None) -> PreparedFilter:
            packed = correlation_filter(problem, w).reshape(problem.k, channels)
            return PreparedFilter({"w": packed}, packed.nbytes)

        return Plan(self, problem, config, runtime, steps=[shared], prepare=prepare)


def _matrices(x: Any, out: Any) -> Iterator[tuple[Any, Any]]:
    """Yield views of two images as matrices (channels, pixels): whole if their rows are contiguous, else row by row."""
    whole = [_flat_rows(image) for image in (x, out)]
    if all(whole):
        yield x.reshape(x.shape[0], -1), out.reshape(out.shape[0], -1)
    else:
        for h in range(x.shape[1]):
            yield x[:, h], out[:, h]


def _flat_rows(image: Any) -> bool:
    """True if the pixels of a (channels, H, W) image have one stride, so that they can be viewed as a row."""
    _, height, width = image.shape
    return height == 1 or width == 1 or bool(image.strides[1] == width * image.strides[2])
