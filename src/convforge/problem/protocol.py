"""The protocol of all kinds of problem: operands, result, size and arithmetic."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from convforge.problem.types import itemsize

# Upper limit in pixels of a stride, a dilation, a padding, and a side of the padded image.
LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Operand:
    """An array that a problem reads or writes."""

    name: str  # in the problem's formula: "x", "w", "a", "b", "bias", "out", ...
    role: str  # "input", "weights", "epilogue" or "output"
    shape: tuple[int, ...]  # of the caller's array; for weights always (K, C / groups, R, S)
    dtype: str  # NumPy's name
    layout: str  # physical order of the axes, one letter each; empty for vectors

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * itemsize(self.dtype)


class ProblemBase:
    """Protocol of all kinds of problem; each is a frozen dataclass, validated when it is made.

    Attributes that follow from the fields are computed once. They are no fields: equality, hash and repr ignore them.
    """

    operation: ClassVar[str]
    multiplies: ClassVar[bool] = False  # outputs are sums of products, with rounding errors

    stride: tuple[int, ...]  # (vertical, horizontal); empty without a sliding window

    direction: str  # "fprop", forward propagation
    precision: str  # allowed arithmetic: a key of :data:`convforge.problem.PRECISIONS`
    acc_dtype: str  # type in which outputs are computed; NumPy's name
    out_dtype: str  # type in which outputs are stored
    out_shape: tuple[int, ...]  # in the physical layout
    outputs: int  # elements of the output
    taps: int  # input elements of one output: products of a sum, or values compared
    flops: int  # nominal: two per product, or one comparison per tap
    least_bytes: int  # bytes of the input, the weights and the output, each moved once

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Operands in the order of a call: the input, then weights and the epilogue's tensors, if any."""
        raise NotImplementedError

    @property
    def results(self) -> tuple[Operand, ...]:
        """The output, and further numbers that a call computes beside it."""
        raise NotImplementedError

    @property
    def sides(self) -> tuple[int, ...]:
        """The size of a problem: h and w of images; m, n, k of a product; the number of elements."""
        raise NotImplementedError

    @property
    def input(self) -> Operand:
        """The first operand: x, or the matrix A."""
        return self.operands[0]

    @property
    def weights(self) -> Operand | None:
        """The filter, or the matrix B; None if the problem has neither."""
        return next((operand for operand in self.operands if operand.role == "weights"), None)

    def allowing(self, precision: str) -> Self:
        """Return a copy that allows this precision; the problem itself if it has no products."""
        return dataclasses.replace(self, precision=precision) if self.multiplies else self  # type: ignore[type-var]

    def __str__(self) -> str:
        from convforge.problem.keys import result_key

        return result_key(self)  # type: ignore[arg-type]  # every kind is a member of the union

    def _derive(self, **values: object) -> None:
        """Set derived attributes, although the dataclass is frozen."""
        self.__dict__.update(values)


class WindowProblem(ProblemBase):
    """A problem with a sliding window over the images of a batch."""

    n: int
    h: int
    w: int
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]

    extent_h: int  # height and width of the window in pixels of x, dilation included
    extent_w: int
    padded_h: int  # height and width of the padded image
    padded_w: int
    p: int  # height and width of the output
    q: int
    x_shape: tuple[int, int, int, int]  # in the physical layout
    out_shape: tuple[int, int, int, int]
    needs_wide_index: bool  # an index into an array may exceed 32 bits

    @property
    def sides(self) -> tuple[int, ...]:
        """Height and width of x."""
        return (self.h, self.w)

    def _check_sizes(self, *sizes: str) -> None:
        """Raise ``ValueError`` if a size, or a field of the window, is out of range."""
        if self.n < 0:
            raise ValueError(f"n={self.n}: a batch has 0 or more images")
        for name in sizes:
            if (size := getattr(self, name)) < 1:
                raise ValueError(f"{name}={size} must be at least 1")
        pairs: dict[str, tuple[int, ...]] = {"stride": self.stride, "dilation": self.dilation}
        for name, pair in pairs.items():
            if min(pair) < 1:
                raise ValueError(f"{name}={pair} must be at least 1 on both axes")
        for name, values in {**pairs, "padding": self.padding}.items():
            if max(values) > LARGEST:
                raise ValueError(f"{name}={values} must be at most {LARGEST}")
        if min(self.padding) < 0:
            raise ValueError(f"padding={self.padding} (top, bottom, left, right) must not be negative")


def in_order(layout: str, n: int, c: int, h: int, w: int) -> tuple[int, int, int, int]:
    """The shape of images in the order of a layout, NCHW or NHWC."""
    return (n, c, h, w) if layout == "NCHW" else (n, h, w, c)


def check_word(name: str, value: Any, allowed: Any) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is unknown; choose one of {', '.join(allowed)}")
