"""Convolution in the frequency domain, for large filters."""

from convforge.algorithms.fft.fft import Fft

__all__ = ["Fft"]
