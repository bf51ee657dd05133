"""The elementwise problem: an activation over any number of elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convforge.problem.protocol import Operand, ProblemBase
from convforge.problem.types import check_dtype, itemsize


@dataclass(frozen=True, kw_only=True)
class ElementwiseProblem(ProblemBase):
    """out = max(x, 0) over `size` elements; NaN stays NaN.

    Examples
    --------
    >>> str(ElementwiseProblem(size=4096, dtype="float16"))
    'relu4096_f16'
    """

    operation: ClassVar[str] = "relu"
    stride: ClassVar[tuple[int, ...]] = ()  # type: ignore[misc]  # a field of other kinds

    size: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"size={self.size}: an array has 0 or more elements")
        check_dtype(self.dtype, "dtype")
        self._derive(
            direction="fprop", precision="strict", acc_dtype=self.dtype, out_dtype=self.dtype, out_shape=(self.size,),
            outputs=self.size, taps=1, flops=self.size, least_bytes=2 * self.size * itemsize(self.dtype),
        )  # fmt: skip

    @property
    def sides(self) -> tuple[int, ...]:
        return (self.size,)

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (Operand("x", "input", (self.size,), self.dtype, ""),)

    @property
    def results(self) -> tuple[Operand, ...]:
        return (Operand("out", "output", (self.size,), self.dtype, ""),)
