"""The direct method: the definition of convolution, loop by loop."""

from convforge.algorithms.direct.direct import DirectNaive, DirectRows

__all__ = ["DirectNaive", "DirectRows"]
