"""Tiles of neighbouring planes: how many there are, and when there are too many."""

import pytest

from convforge.algorithms.depthwise.planes import DepthwisePlanes
from convforge.algorithms.host.conv import LIMIT_BITS
from convforge.algorithms.host.plane_tiles import PlaneTiles, odd_vectors, whole_vectors, window
from convforge.algorithms.separable.device import Separable
from convforge.backends.emulator.facts import emulator_facts
from convforge.problem import parse_problem


def test_tiles_cover_all_outputs_and_no_more_than_a_tile_beyond() -> None:
    problem = parse_problem("n3c5h33w70_k5r3s3_st1_p1_g5_f32_nchw")
    tiles = PlaneTiles.of(problem, 16, 32, planes=4)
    assert (tiles.down - 1) * 16 < problem.p <= tiles.down * 16
    assert (tiles.across - 1) * 32 < problem.q <= tiles.across * 32
    assert tiles.count == tiles.across * tiles.down * 4  # 15 planes in fours
    divisors = tiles.divisors()
    assert (divisors.across.by, divisors.down.by) == (tiles.across, tiles.down)


def test_no_outputs_are_one_tile_that_divides() -> None:
    problem = parse_problem("n0c3h8w8_k3r3s3_g3_f32_nchw")
    assert PlaneTiles.of(problem, 16, 32, planes=1).count == 1


@pytest.mark.parametrize("method", [DepthwisePlanes, Separable])
def test_more_tiles_than_can_be_numbered_are_refused(method: type) -> None:
    planes = 2**LIMIT_BITS
    refusal = method("emulator").refuses(parse_problem(f"n{planes}c1h1w1_k1r1s1_f32_nchw"), emulator_facts())
    assert str(refusal) == f"{planes} tiles of 1 planes are more than a launch counts"
    assert method("emulator").refuses(parse_problem(f"n{planes - 1}c1h1w1_k1r1s1_f32_nchw"), emulator_facts()) is None


@pytest.mark.parametrize(
    ("elements", "nbytes", "whole", "odd"), [(1, 4, 4, 4), (5, 4, 8, 12), (9, 1, 16, 16), (0, 4, 0, 4)]
)
def test_rows_of_shared_memory_are_whole_vectors(elements: int, nbytes: int, whole: int, odd: int) -> None:
    assert whole_vectors(elements, nbytes) == whole
    assert odd_vectors(elements, nbytes) == odd


def test_a_window_reaches_from_the_first_pixel_to_the_last() -> None:
    assert window(outputs=4, taps=3, stride=2, dilation=5) == 1 + 3 * 2 + 2 * 5
