"""The configs of a rung that compute tiles of C of a given size: a free choice for some rungs, a few for others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from convforge.algorithms.contract import Algorithm, Config
from convforge.algorithms.gemm.device import GemmStep
from convforge.errors import Reason
from convforge.problem import GemmProblem

# Fields of configs that are a tile's rows and columns. The last are not free: a rung has few such tiles.
_FIELDS = (("tile_m", "tile_n"), ("block_y", "block_x"), ("block", "block"), ("block_m", "block_n"))


def has_tiles(config: Config) -> bool:
    """Tell if a config determines the tile of C that is computed at a time."""
    return _fields(config) is not None


def configs_of_tile(
    algorithm: Algorithm[Any, Any], problem: GemmProblem, configs: Sequence[Config], rows: int, columns: int
) -> list[Config] | Reason:
    """The configs of a rung with tiles of `rows` x `columns` of C, or the reason why there are none.

    `configs` are the rung's own, with tiles, the default first.

    Examples
    --------
    >>> from convforge.algorithms import find
    >>> from convforge.backends.cpu import cpu_facts
    >>> from convforge.problem import parse_problem
    >>> problem = parse_problem("m512n512k512_f32")
    >>> naive, shared = (find("gemm", "cuda", name) for name in ("gemm_naive", "gemm_shared"))
    >>> [str(c) for c in configs_of_tile(naive, problem, naive.configs(problem, cpu_facts()), 8, 32)]
    ['block_x=32,block_y=8']
    >>> print(configs_of_tile(shared, problem, shared.configs(problem, cpu_facts()), 8, 32))
    its tiles are square
    """
    names = _fields(configs[0])
    assert names is not None
    if names == _FIELDS[-1]:
        sizes = [tuple(getattr(config, name) for name in names) for config in configs]
        found = [config for config, size in zip(configs, sizes, strict=True) if size == (rows, columns)]
        known = dict.fromkeys(f"{high}x{wide}" for high, wide in sizes)
        return found or Reason("its tiles are {sizes}", sizes=", ".join(known))
    if names == ("block", "block") and rows != columns:
        return Reason("its tiles are square")
    config = dataclasses.replace(configs[0], **dict(zip(names, (rows, columns), strict=True)))
    if isinstance(algorithm, GemmStep):
        try:
            algorithm.tiling(config, np.dtype(problem.dtype).itemsize)
        except ValueError as fault:
            return Reason.quoted(str(fault))
    return [config]


def _fields(config: Config) -> tuple[str, str] | None:
    names = {f.name for f in dataclasses.fields(config)}
    return next((found for found in _FIELDS if names.issuperset(found)), None)
