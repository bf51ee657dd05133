"""convforge: 2D convolution by every method the field knows, checked against float64 before it is timed."""
