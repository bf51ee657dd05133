"""Implicit GEMM: im2col's matrix product without im2col's matrix."""

from convforge.algorithms.implicit_gemm.implicit_gemm import ImplicitGemm

__all__ = ["ImplicitGemm"]
