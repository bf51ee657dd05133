"""The matrices of Winograd's minimal filtering, derived exactly by the method of Cook and Toom.

S. Winograd, *Arithmetic Complexity of Computations*, 1980; A. Lavin and S. Gray, "Fast algorithms for convolutional
neural networks", CVPR 2016. The points decide the error: B. Barabasz, A. Anderson, K. Soodhalter and D. Gregg, "Error
analysis and improving the accuracy of Winograd convolution for deep neural networks", ACM Transactions on Mathematical
Software 46(4), 2020, whose (0, 1, -1, 1/2, -2) serve F(4x4, 3x3) here instead of the usual (0, 1, -1, 2, -2).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

Matrix = tuple[tuple[Fraction, ...], ...]

# Outputs of a tile along one axis -> the finite points; the last point is infinity.
POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(1), Fraction(-1), Fraction(1, 2), Fraction(-2)),
}


class Transforms(NamedTuple):
    """y = A^T [(G g) . (B^T d)], where y[i] = sum over j of d[i + j] * g[j].

    Attributes
    ----------
    output : m x (m + r - 1) matrix, A^T
    filter : (m + r - 1) x r matrix, G
    input : square matrix of m + r - 1, B^T
    """

    output: Matrix
    filter: Matrix
    input: Matrix


def cook_toom(m: int, r: int, points: Sequence[Fraction]) -> Transforms:
    """The transforms of F(m, r): `m` outputs of a filter of `r` taps by m + r - 1 products.

    A product of polynomials of m and r coefficients is known from its values at the points and its leading coefficient
    (the value at infinity); interpolation gives it back. F(m, r) is that, transposed. The denominators of the
    interpolation are put into G, so that the transform of the input, which is done most often, has none.

    Parameters
    ----------
    m, r : int
    points : sequence of m + r - 2 distinct fractions

    Raises
    ------
    ValueError
        Points are too few, too many, or repeated.

    Examples
    --------
    >>> [[str(x) for x in row] for row in cook_toom(2, 3, POINTS[2]).filter]
    [['-1', '0', '0'], ['1/2', '1/2', '1/2'], ['1/2', '-1/2', '1/2'], ['0', '0', '1']]
    """
    if len(points) != m + r - 2 or len(set(points)) != len(points):
        raise ValueError(f"F({m}, {r}) needs {m + r - 2} distinct finite points; got {[str(p) for p in points]}")
    zero, one = Fraction(0), Fraction(1)
    others = [[b for b in points if b != a] for a in points]
    output = [[a**i for a in points] + [one if i == m - 1 else zero] for i in range(m)]
    filters = [[a**j / _value(rest, a) for j in range(r)] for a, rest in zip(points, others, strict=True)]
    filters.append([zero] * (r - 1) + [one])
    inputs = [[*_coefficients(rest), zero] for rest in others]
    inputs.append(_coefficients(points))
    return Transforms(*(tuple(tuple(row) for row in matrix) for matrix in (output, filters, inputs)))


def _value(roots: Sequence[Fraction], x: Fraction) -> Fraction:
    """The product of (x - root)."""
    value = Fraction(1)
    for root in roots:
        value *= x - root
    return value


def _coefficients(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of the polynomial with these roots, the constant one first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        coefficients = [high - root * low for high, low in zip(shifted, [*coefficients, Fraction(0)], strict=True)]
    return coefficients
