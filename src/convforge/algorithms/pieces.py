"""The number of step groups of a plan, without making the plan, which may take long and need gigabytes."""

from __future__ import annotations

from typing import Any

from convforge.algorithms.contract import Algorithm, Config
from convforge.algorithms.fft.fft import FftConfig
from convforge.algorithms.im2col.im2col import Im2colConfig
from convforge.algorithms.winograd.winograd import PANEL_BYTES, WinogradConfig
from convforge.problem.types import itemsize

# FFT tiles that Python can list in the time that it takes to make one step.
TILES_OF_A_STEP = 16


def pieces(algorithm: Algorithm[Any, Any], problem: Any, config: Config) -> Any:
    """Step groups of a plan; 1 for most methods, because one launch computes everything."""
    if isinstance(config, Im2colConfig):
        return _parts(problem.n, config.images) * _parts(problem.p, config.tile_p)
    if isinstance(config, WinogradConfig):
        m: int = getattr(algorithm, "m", 1)
        tiles = problem.n * _parts(problem.p, m) * _parts(problem.q, m)
        return _parts(tiles, config.panels * PANEL_BYTES // itemsize(problem.acc_dtype))
    if isinstance(config, FftConfig):
        tile_p = (config.size_h - problem.extent_h) // problem.stride[0] + 1
        tile_q = (config.size_w - problem.extent_w) // problem.stride[1] + 1
        tiles = problem.n * _parts(problem.p, max(tile_p, 1)) * _parts(problem.q, max(tile_q, 1))
        return _parts(tiles, config.tiles) + tiles // TILES_OF_A_STEP
    return 1


def _parts(total: Any, each: int) -> int:
    return -(-int(total) // each)
