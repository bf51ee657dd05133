"""The reads of output chunks: each gathers exactly what the padded image has there, for every border and chunking."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convforge.integrations.dask_chunks import Part, Window, gather, one_to_one, together, windowed
from convforge.problem import PADDING_MODES
from convforge.problem.borders import border_indices

OUTSIDE = -5
CHUNKS = st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(sum)


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[int], Window]:
    """Chunk sizes of an axis, and a window that fits the padded axis."""
    chunks = draw(CHUNKS)
    before, after = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    padded = sum(chunks) + before + after
    extent, stride = draw(st.integers(1, min(padded, 7))), draw(st.integers(1, 4))
    mode = draw(st.sampled_from(list(PADDING_MODES)))
    return chunks, Window((padded - extent) // stride + 1, before, after, extent, stride, mode)


def padded(line: np.ndarray, before: int, after: int, mode: str) -> np.ndarray:
    indices = border_indices(line.size, before, after, mode)
    return np.where(indices < 0, OUTSIDE, line[indices])


@given(windows())
def test_a_chunk_reads_the_windows_of_its_outputs(case: tuple[list[int], Window]) -> None:
    chunks, window = case
    line = np.arange(sum(chunks))
    whole = padded(line, window.before, window.after, window.mode)
    blocks = np.split(line, np.cumsum(chunks)[:-1])
    reads = windowed(chunks, window)
    assert sum(read.outputs for read in reads) == window.outputs
    assert all(read.outputs for read in reads)
    done = 0
    for read in reads:
        assert read.first == done
        part = Part((read,))
        found = gather(part, [blocks[block] for (block,) in part.blocks], OUTSIDE)
        assert found.shape == (read.size,)
        if any(read.padding):  # left to the method, which must see the image's edge there
            assert window.mode in ("zeros", "constant", "replicate")
            assert not read.padding[0] or found[0] == line[0]
            assert not read.padding[1] or found[-1] == line[-1]
        start = done * window.stride
        expected = whole[start : start + (read.outputs - 1) * window.stride + window.extent]
        np.testing.assert_array_equal(padded(found, *read.padding, window.mode), expected)
        done += read.outputs


@pytest.mark.parametrize("mode", PADDING_MODES)
def test_a_chunk_reads_no_more_blocks_than_it_needs(mode: str) -> None:
    reads = windowed((10,) * 9, Window(90, 2, 2, 5, 1, mode))
    ends = ((0, 1, 8), (0, 7, 8)) if mode == "circular" else ((0, 1), (7, 8))
    assert [read.blocks for read in reads] == [ends[0], *((i - 1, i, i + 1) for i in range(1, 8)), ends[1]]
    assert all(read.size <= 14 for read in reads)


def test_a_halo_may_be_wider_than_many_chunks() -> None:
    reads = windowed((1,) * 20, Window(20, 6, 6, 13, 1, "reflect"))
    assert [read.blocks for read in reads[::10]] == [tuple(range(7)), tuple(range(4, 17))]


def test_chunks_without_an_output_have_no_read() -> None:
    assert [read.outputs for read in windowed((1, 0, 1, 1, 2), Window(2, 1, 1, 3, 3, "zeros"))] == [1, 1]
    assert [read.outputs for read in one_to_one((2, 0, 3))] == [2, 3]
    assert [read.size for read in one_to_one((0, 0))] == [0]


class OfDevice(np.ndarray):
    """An array type other than NumPy's own."""


@pytest.mark.parametrize("chunks", [(8,), (3, 5)], ids=["a view", "a copy"])
@pytest.mark.parametrize("window", [Window(6, 0, 0, 3, 1, "zeros"), Window(8, 1, 1, 3, 1, "reflect")], ids=str)
def test_what_is_gathered_has_the_type_of_the_blocks(chunks: tuple[int, ...], window: Window) -> None:
    blocks = [block.view(OfDevice) for block in np.split(np.arange(8.0), np.cumsum(chunks)[:-1])]
    for read in windowed(chunks, window):
        part = Part((read,))
        found = gather(part, [blocks[block] for (block,) in part.blocks], 0)
        assert type(found) is OfDevice
        inner = window.mode == "zeros" and len(part.blocks) == 1
        assert np.shares_memory(found, blocks[part.blocks[0][0]]) == inner


def test_all_chunks_of_an_axis_are_read_together() -> None:
    (read,) = together((2, 0, 3), 7)
    blocks = [np.array([0, 1]), np.array([3, 4, 5])]
    assert (read.outputs, read.blocks) == (7, (0, 2))
    assert gather(Part((read,)), blocks, 0).tolist() == [0, 1, 3, 4, 5]
