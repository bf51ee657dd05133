"""The protocol of all kinds of problem: operands, result, size and arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from convforge.problem.types import itemsize

# Upper limit in pixels of a stride, a dilation, a padding, and a side of the padded image.
LARGEST = 2**31 - 1


def check_sizes(problem: Any, sizes: tuple[str, ...]) -> None:
    """Raise ``ValueError`` if a size, or a field of a problem's sliding window, is out of range."""
    if problem.n < 0:
        raise ValueError(f"n={problem.n}: a batch has 0 or more pictures")
    for name in sizes:
        if (size := getattr(problem, name)) < 1:
            raise ValueError(f"{name}={size} must be at least 1")
    for name, pair in (("stride", problem.stride), ("dilation", problem.dilation)):
        if min(pair) < 1:
            raise ValueError(f"{name}={pair} must be at least 1 on both axes")
    for name, values in (("stride", problem.stride), ("dilation", problem.dilation), ("padding", problem.padding)):
        if max(values) > LARGEST:
            raise ValueError(f"{name}={values} must be at most {LARGEST}")
    if min(problem.padding) < 0:
        raise ValueError(f"padding={problem.padding} (top, bottom, left, right) must not be negative")


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

    Attributes that follow from the fields are computed once and are no fields: equality, hash, repr and pickles do not
    use them.
    """

    __slots__ = (
        "acc_dtype", "direction", "flops", "least_bytes", "out_dtype", "out_shape", "outputs", "precision", "taps"
    )  # fmt: skip

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
    flops: int  # nominal: two for a product, else one comparison per tap
    least_bytes: int  # of the input, the weights and the output, each moved once

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Operands in the order of a call: the input, then weights and the epilogue's tensors, if any."""
        raise NotImplementedError

    @property
    def results(self) -> tuple[Operand, ...]:
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
        """A copy with this arithmetic allowed; the problem itself if it has no choice of arithmetic."""
        return self

    def __str__(self) -> str:
        from convforge.problem.keys import result_key

        return result_key(self)  # type: ignore[arg-type]  # every kind is a member of the union

    def __setstate__(self, state: list[Any]) -> None:
        """Set the fields of a pickle and derive the rest; a dataclass with slots must name this method in its body."""
        names = (field.name for field in fields(self))  # type: ignore[arg-type]  # of the dataclass that this is
        self._derive(**dict(zip(names, state, strict=True)))
        self._derive_all()

    def _derive_all(self) -> None:
        """Set everything that follows from valid fields."""
        raise NotImplementedError

    def _derive(self, **values: object) -> None:
        """Set derived attributes, although the dataclass is frozen."""
        put = object.__setattr__
        for name, value in values.items():
            put(self, name, value)
