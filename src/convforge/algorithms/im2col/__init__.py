"""im2col: the convolution as one matrix product of the filter with an expanded image."""

from convforge.algorithms.im2col.im2col import Im2col

__all__ = ["Im2col"]
