"""The matrix product problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convforge.problem.protocol import Operand, ProblemBase, check_word
from convforge.problem.types import FP8, PRECISIONS, accumulation_dtype, itemsize, magnitude, numpy_dtype, output_dtype

# Element types of matrices.
FLOATS = ("float32", "float64", "float16", "bfloat16")
BYTES = ("int8", "uint8")
DTYPES = (*FLOATS, *BYTES)

LARGEST_SUM = 2**31 - 1  # largest value of int32


@dataclass(frozen=True, kw_only=True)
class GemmProblem(ProblemBase):
    """C = op(A) op(B), with op(A) of shape (M, K), op(B) of shape (K, N) and C of shape (M, N), all row-major.

    Parameters
    ----------
    m, n, k : int
        Each 0 or more.
    transpose_a, transpose_b : bool
        A is stored as (K, M), B as (N, K).
    dtype : str
        NumPy name of the element type of A and C, one of :data:`DTYPES`. 16-bit types are summed in float32.
        Integers are summed in int32, and C is then int32.
    b_dtype : str
        Element type of B, by default A's. Only int8 and uint8 may be mixed.
    precision : str
        Allowed arithmetic: a key of :data:`convforge.problem.PRECISIONS`.

    Examples
    --------
    >>> str(GemmProblem(m=512, n=256, k=128, transpose_b=True))
    'm512n256k128_tb_f32'
    >>> str(GemmProblem(m=512, n=256, k=128, dtype="uint8", b_dtype="int8"))
    'm512n256k128_u8-i8'
    """

    operation: ClassVar[str] = "gemm"
    multiplies: ClassVar[bool] = True
    stride: ClassVar[tuple[int, ...]] = ()  # type: ignore[misc]  # a field of other kinds

    m: int
    n: int
    k: int
    transpose_a: bool = False
    transpose_b: bool = False
    dtype: str = "float32"
    b_dtype: str = ""
    precision: str = "strict"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: a matrix has 0 or more rows and columns")
        if self.dtype not in DTYPES and self.dtype not in FP8:
            raise ValueError(f"dtype={self.dtype}: the matrix product takes {', '.join(DTYPES)}; cast the matrices")
        numpy_dtype(self.dtype)  # registers the name with NumPy
        self._derive(b_dtype=self.b_dtype or self.dtype)
        if self.b_dtype != self.dtype and not {self.dtype, self.b_dtype} <= set(BYTES):
            raise ValueError(f"A is {self.dtype} and B is {self.b_dtype}; only {' and '.join(BYTES)} go together")
        if self.dtype in BYTES and (most := magnitude(self.dtype) * magnitude(self.b_dtype)) * self.k > LARGEST_SUM:
            raise ValueError(f"k={self.k}: so many products of {self.dtype} and {self.b_dtype} can exceed int32; "
                             f"{LARGEST_SUM // most} cannot")  # fmt: skip
        check_word("precision", self.precision, PRECISIONS)
        m, n, k = self.m, self.n, self.k
        out_dtype = output_dtype(self.dtype, self.b_dtype)
        self._derive(
            direction="fprop", acc_dtype=accumulation_dtype(self.dtype, self.b_dtype), out_dtype=out_dtype,
            out_shape=(m, n), outputs=m * n, taps=k, flops=2 * m * n * k,
            least_bytes=m * k * itemsize(self.dtype) + k * n * itemsize(self.b_dtype) + m * n * itemsize(out_dtype),
        )  # fmt: skip

    @property
    def sides(self) -> tuple[int, ...]:
        return (self.m, self.n, self.k)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """A and B in their stored shapes."""
        m, n, k = self.m, self.n, self.k
        a = ((k, m), "KM") if self.transpose_a else ((m, k), "MK")
        b = ((n, k), "NK") if self.transpose_b else ((k, n), "KN")
        return (Operand("a", "input", a[0], self.dtype, a[1]), Operand("b", "weights", b[0], self.b_dtype, b[1]))

    @property
    def results(self) -> tuple[Operand, ...]:
        return (Operand("c", "output", self.out_shape, self.out_dtype, "MN"),)
