"""The elementwise problem: an activation over any number of elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convforge.problem.types import check_dtype, itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementwiseProblem:
    """out = max(x, 0) over `size` elements; NaN stays NaN.

    Examples
    --------
    >>> str(ElementwiseProblem(size=4096, dtype="float16"))
    'relu4096_f16'
    """

    operation: ClassVar[str] = "relu"

    size: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"size={self.size}: an array has 0 or more elements")
        check_dtype(self.dtype, "dtype")

    @property
    def flops(self) -> int:
        """One comparison an element."""
        return self.size

    @property
    def least_bytes(self) -> int:
        """Bytes read and written."""
        return 2 * self.size * itemsize(self.dtype)

    def __str__(self) -> str:
        from convforge.problem.keys import result_key

        return result_key(self)
