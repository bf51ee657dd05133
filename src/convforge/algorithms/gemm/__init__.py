"""Matrix products: a ladder from three loops to the BLAS, and the convolution that is one by itself (1x1)."""

from convforge.algorithms.gemm.gemm import GemmBlas, GemmBlocked, GemmLoops
from convforge.algorithms.gemm.pointwise import Gemm1x1

__all__ = ["Gemm1x1", "GemmBlas", "GemmBlocked", "GemmLoops"]
