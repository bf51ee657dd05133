"""Output rows of a convolution or a matrix product, with all channels and columns.

Item n * P + p is row p of image n. Arrays of rows have the shape (items, K, Q) for a convolution, and (items, 1, N)
for a matrix product, which has one channel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.problem import Conv2dProblem, GemmProblem
from convforge.verify.bounds import ACTIVATION_ROUNDINGS, unit_roundoff
from convforge.verify.inputs import Inputs
from convforge.verify.truth import (
    Floats,
    Truth,
    activate,
    conv2d_sums,
    epilogue,
    epilogue_steps,
    from_rows,
    gemm_sums,
    requantization_steps,
    some_rows,
    to_rows,
)

Items = NDArray[np.int64]

# Variance ulp^2 / 12 of the rounding error of t, divided by (u t)^2; the mean if mantissas follow Benford's law.
ROUNDING_VARIANCE = 0.18


class Band(NamedTuple):
    """Group of outputs that are checked together: a mask over the sampled rows, and a mask over the columns."""

    name: str
    rows: NDArray[np.bool_]
    columns: NDArray[np.bool_]

    @property
    def mask(self) -> NDArray[np.bool_]:
        return (self.rows[:, None] & self.columns[None, :])[:, None, :]

    def sums(self, values: Floats, chosen: NDArray[np.bool_] | None) -> Floats:
        """Sum values (items, K, Q) per channel over the band, or over its outputs that `chosen` selects."""
        if chosen is not None:
            return np.asarray(np.where(chosen & self.mask, values, 0).sum(axis=(0, 2)))
        columns = values if self.columns.all() else values[:, :, self.columns]
        return np.asarray(columns.sum(axis=2)[self.rows].sum(axis=0))


class ConvolutionRows:
    """Output rows of a convolution: `images` images with `height` rows each."""

    def __init__(self, problem: Conv2dProblem) -> None:
        self._problem = problem
        self.images, self.height = problem.n, problem.p

    def true(self, inputs: Inputs, items: Items) -> Truth:
        return Truth(*epilogue(self._problem, inputs, items, *conv2d_sums(self._problem, inputs, items, "truth")))

    def by_loop(self, inputs: Inputs, items: Items, style: str, backward: bool) -> tuple[Floats, Floats]:
        """Compute rows by one style of sums and the epilogue, before rounding to a narrower output; also variances."""
        problem, ends, dtype = self._problem, self._problem.epilogue, np.dtype(self._problem.acc_dtype)
        unit = ROUNDING_VARIANCE * unit_roundoff(problem.acc_dtype) ** 2
        sums, squares = conv2d_sums(problem, inputs, items, style, backward=backward)
        value: NDArray[Any] = sums.astype(dtype)
        variance = unit * squares

        def rounding() -> Floats:
            return unit * value.astype(np.float64) ** 2

        with np.errstate(all="ignore"):
            for apply, operand in epilogue_steps(problem, inputs, items, dtype):
                value = apply(value, operand)
                if apply is not np.add:
                    variance = apply(variance, operand.astype(np.float64) ** 2)
                variance = variance + 2 * rounding()
            if ends.activation not in ("identity", "relu", "clipped_relu"):
                variance = variance * 1.3 + ACTIVATION_ROUNDINGS * rounding()
                if ends.activation in ("sigmoid", "tanh"):
                    variance = variance + ACTIVATION_ROUNDINGS * unit
                if ends.activation == "leaky_relu":
                    variance = variance * max(1.0, (ends.alpha or 0.0) ** 2)
            value = activate(value, ends.activation, ends.alpha)
            for apply, operand in requantization_steps(problem, dtype):
                value = apply(value, operand)
                if apply is not np.add:
                    variance = apply(variance, operand.astype(np.float64) ** 2)
                variance = variance + 2 * rounding()
        return value.astype(np.float64), variance

    def taken(self, out: NDArray[Any], items: Items) -> NDArray[Any]:
        return some_rows(self._problem, out, items)

    def brought(self, out: Any, items: Items, download: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
        """Download rows `items` of a whole output on a device, row by row; returns (items, K, Q)."""
        places = [divmod(i, self.height) for i in items.tolist()]
        if self._problem.out_layout == "NHWC":
            return np.stack([download(out[n, p]).T for n, p in places])
        return np.stack([download(out[n, :, p]) for n, p in places])

    def place(self, item: int, channel: int, column: int) -> str:
        n, p = divmod(item, self.height)
        return f"row {p} of image {n}, channel {channel}, column {column}"

    def edges(self) -> Items:
        """Rows that every sample contains: border rows of the first and last image, at most eight per edge."""
        border = np.flatnonzero(border_of(self._problem)[0])
        few = np.unique(np.concatenate([border[:8], border[-8:]]))
        return np.unique(np.concatenate([few, few + (self.images - 1) * self.height]))

    def bands(self, items: Items) -> tuple[Band, ...]:
        """Bands of the rows `items`: the inside, border rows and border columns."""
        rows, columns = border_of(self._problem)
        row, every = rows[items % self.height], np.ones_like(columns)
        return (Band("inside", ~row, ~columns), Band("border rows", row, every), Band("border columns", ~row, columns))

    def outputs_in(self, band: str, channel: int) -> NDArray[np.bool_]:
        """Mask of a channel's outputs in a band or in "image N", in the output's shape and layout."""
        problem, items = self._problem, np.arange(self.images * self.height)
        rows = np.zeros((items.size, problem.k, problem.q), bool)
        if band.startswith("image"):
            rows[items // self.height == int(band.split()[1]), channel] = True
        else:
            rows[:, channel] = next(each for each in self.bands(items) if each.name == band).mask[:, 0]
        return np.asarray(from_rows(problem, rows))


class ProductRows:
    """Output rows of a matrix product, (items, 1, N): one image without a border."""

    def __init__(self, problem: GemmProblem) -> None:
        self._problem = problem
        self.images, self.height = 1, problem.m

    def true(self, inputs: Inputs, items: Items) -> Truth:
        return Truth(*(sums[:, None, :] for sums in gemm_sums(self._problem, inputs, items, "truth")))

    def by_loop(self, inputs: Inputs, items: Items, style: str, backward: bool) -> tuple[Floats, Floats]:
        sums, squares = gemm_sums(self._problem, inputs, items, style, backward=backward)
        unit = ROUNDING_VARIANCE * unit_roundoff(self._problem.acc_dtype) ** 2
        return sums[:, None, :], unit * squares[:, None, :]

    def taken(self, out: NDArray[Any], items: Items) -> NDArray[Any]:
        return np.asarray(out[items][:, None, :])

    def brought(self, out: Any, items: Items, download: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
        return np.stack([download(out[i]) for i in items.tolist()])[:, None, :]

    def place(self, item: int, channel: int, column: int) -> str:
        return f"row {item}, column {column}"

    def edges(self) -> Items:
        return np.empty(0, np.int64)

    def bands(self, items: Items) -> tuple[Band, ...]:
        return (Band("inside", np.ones(items.size, bool), np.ones(self._problem.n, bool)),)

    def outputs_in(self, band: str, channel: int) -> NDArray[np.bool_]:
        return np.ones(self._problem.out_shape, bool)


def rows_of(problem: Any) -> ConvolutionRows | ProductRows:
    return ProductRows(problem) if problem.operation == "gemm" else ConvolutionRows(problem)


def border_of(problem: Conv2dProblem) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of border rows and columns of the output: first, last, or with a window that extends beyond the image."""
    found = []
    for outputs, stride, before, size, extent in (
        (problem.p, problem.stride[0], problem.padding[0], problem.h, problem.extent_h),
        (problem.q, problem.stride[1], problem.padding[2], problem.w, problem.extent_w),
    ):
        start = np.arange(outputs) * stride - before
        border = (start < 0) | (start + extent > size)
        border[[0, -1]] = True
        found.append(border)
    return found[0], found[1]


def only_border(problem: Conv2dProblem, mask: NDArray[np.bool_]) -> bool:
    """True if the output has elements inside its border, and the mask contains none of them."""
    rows, columns = border_of(problem)
    whole = to_rows(problem, mask).reshape(problem.n, problem.p, problem.k, problem.q)
    inside = whole[:, ~rows][..., ~columns]
    return inside.size > 0 and not inside.any()
