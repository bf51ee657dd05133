"""Matrix products: a ladder from three loops to the BLAS, and the 1x1 convolution, which is a matrix product."""

from convforge.algorithms.gemm.gemm import GemmBlas, GemmBlocked, GemmLoops
from convforge.algorithms.gemm.pointwise import Gemm1x1

__all__ = ["Gemm1x1", "GemmBlas", "GemmBlocked", "GemmLoops"]
