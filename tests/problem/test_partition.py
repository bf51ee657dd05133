"""Partition: tiles cover the output exactly, and computing tile by tile equals the whole."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import conv2d_problems

from convforge.problem import Conv2dProblem, border_indices, parse_problem
from convforge.verify import Inputs, make_inputs, truth

FLOAT = [("float32", "float32", "float32", "float32")]
INTEGER = [("uint8", "int8", "int32", "int32")]


def picture_of(problem: Conv2dProblem, tile, x: np.ndarray) -> np.ndarray:
    """Pixels that a tile reads, (N, C, h, w): a view, or gathered through the border's tables as Tile says."""
    if not tile.gathered:
        return x[:, :, tile.h0 : tile.h1, tile.w0 : tile.w1]
    top, bottom, left, right = problem.padding
    rows = border_indices(problem.h, top, bottom, problem.padding_mode)[slice(*tile.padded_rows)]
    columns = border_indices(problem.w, left, right, problem.padding_mode)[slice(*tile.padded_columns)]
    read = x[:, :, rows][..., columns].copy()
    read[:, :, rows < 0] = problem.outside
    read[..., columns < 0] = problem.outside
    return read


def plain(problem: Conv2dProblem) -> Conv2dProblem:
    return problem.replace(x_layout="NCHW", out_layout="NCHW", n=min(problem.n, 1) or 1)


@settings(max_examples=150, deadline=None)
@given(
    conv2d_problems(epilogues=False, dtypes=FLOAT + INTEGER), st.integers(1, 9), st.integers(1, 9), st.integers(0, 9)
)
def test_tile_by_tile_equals_the_whole(problem, tile_p, tile_q, zero):
    problem = plain(problem)
    if problem.acc_dtype == "int32":
        problem = problem.replace(epilogue=dataclasses.replace(problem.epilogue, x_zero_point=zero))
    inputs = make_inputs(problem)
    whole = truth(problem, inputs).value
    covered = np.zeros(problem.out_shape, int)
    for tile in problem.split(tile_p, tile_q):
        assert 0 <= tile.p0 < tile.p1 <= problem.p
        assert 0 <= tile.q0 < tile.q1 <= problem.q
        assert tile.p1 - tile.p0 <= tile_p
        assert tile.q1 - tile.q0 <= tile_q
        assert (tile.problem.p, tile.problem.q) == (tile.p1 - tile.p0, tile.q1 - tile.q0)
        assert 0 <= tile.h0 <= tile.h1 <= problem.h
        assert 0 <= tile.w0 <= tile.w1 <= problem.w
        read = picture_of(problem, tile, inputs.x)
        assert read.shape == tile.problem.x_shape
        part = truth(tile.problem, Inputs(read, inputs.w, {})).value
        np.testing.assert_array_equal(part, whole[:, :, tile.p0 : tile.p1, tile.q0 : tile.q1])
        covered[:, :, tile.p0 : tile.p1, tile.q0 : tile.q1] += 1
    assert np.all(covered == 1)


@settings(max_examples=80, deadline=None)
@given(conv2d_problems(epilogues=False, dtypes=FLOAT), st.integers(1, 9))
def test_gathered_tiles_name_all_of_the_picture_that_they_read(problem, size):
    problem = plain(problem)
    top, bottom, left, right = problem.padding
    rows = border_indices(problem.h, top, bottom, problem.padding_mode)
    columns = border_indices(problem.w, left, right, problem.padding_mode)
    for tile in problem.split(size, size):
        read = rows[slice(*tile.padded_rows)]
        if tile.gathered and (read >= 0).any() and tile.h1 > tile.h0:
            assert read[read >= 0].min() == tile.h0
            assert read.max() == tile.h1 - 1
        read = columns[slice(*tile.padded_columns)]
        if tile.gathered and (read >= 0).any() and tile.w1 > tile.w0:
            assert read[read >= 0].min() == tile.w0
            assert read.max() == tile.w1 - 1


def test_inside_the_picture_a_tile_has_no_padding_and_reads_a_view():
    problem = parse_problem("n1c1h100w100_k1r3s3_p1_reflect_f32_nchw")
    inside = [t for t in problem.split(10, 10) if 0 < t.p0 < 90 and 0 < t.q0 < 90]
    assert len(inside) == 64
    for tile in inside:
        assert not tile.gathered
        assert tile.problem.padding == (0, 0, 0, 0)
        assert (tile.h1 - tile.h0, tile.w1 - tile.w0) == (12, 12)


def test_a_tile_defaults_to_whole_rows():
    problem = parse_problem("n1c1h20w30_k1r3s3_p1_f32_nchw")
    assert [(t.p0, t.p1, t.q0, t.q1) for t in problem.split(8)] == [(0, 8, 0, 30), (8, 16, 0, 30), (16, 20, 0, 30)]


@pytest.mark.parametrize("size", [(0, 4), (4, 0), (-1, 4)])
def test_a_tile_without_a_pixel_is_refused(size):
    with pytest.raises(ValueError, match="has no pixel; both must be at least 1"):
        list(parse_problem("n1c1h8w8_k1r3s3").split(*size))
