"""The matrix product problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convforge.problem.types import PRECISIONS, itemsize

# Element types of matrices.
DTYPES = ("float32", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmProblem:
    """C = op(A) op(B), with op(A) of shape (M, K), op(B) of shape (K, N) and C of shape (M, N), all row-major.

    Parameters
    ----------
    m, n, k : int
        Each 0 or more.
    transpose_a, transpose_b : bool
        A is stored as (K, M), B as (N, K).
    dtype : str
        NumPy name of the element type of A, B and C: float32 or float64.
    precision : str
        The arithmetic that is allowed: a key of :data:`convforge.problem.PRECISIONS`.

    Examples
    --------
    >>> str(GemmProblem(m=512, n=256, k=128, transpose_b=True))
    'm512n256k128_tb_f32'
    """

    operation: ClassVar[str] = "gemm"

    m: int
    n: int
    k: int
    transpose_a: bool = False
    transpose_b: bool = False
    dtype: str = "float32"
    precision: str = "strict"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: a matrix has 0 or more rows and columns")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype}: the matrix product takes float32 or float64; cast the matrices")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision={self.precision!r} is unknown; choose one of {', '.join(PRECISIONS)}")

    @property
    def flops(self) -> int:
        """Two for each product."""
        return 2 * self.m * self.n * self.k

    @property
    def least_bytes(self) -> int:
        """Bytes of A, B and C, each moved once."""
        return (self.m * self.k + self.k * self.n + self.m * self.n) * itemsize(self.dtype)

    def __str__(self) -> str:
        from convforge.problem.keys import result_key

        return result_key(self)
