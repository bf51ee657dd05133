"""The configs of a rung that compute tiles of C of a given size: a free choice for some rungs, a few for others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from convforge.algorithms.contract import Algorithm, Config
from convforge.algorithms.gemm.device import GemmStep
from convforge.errors import Reason
from convforge.problem import GemmProblem


class _Fields(NamedTuple):
    """Fields of a config that are a tile's rows and columns; `free` if they can be any numbers."""

    rows: str
    columns: str
    free: bool


_FIELDS = (_Fields("tile_m", "tile_n", True), _Fields("block_y", "block_x", True), _Fields("block", "block", True),
           _Fields("block_m", "block_n", False))  # fmt: skip


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
    fields = _fields(configs[0])
    assert fields is not None
    if not fields.free:
        sizes = [(getattr(config, fields.rows), getattr(config, fields.columns)) for config in configs]
        found = [config for config, size in zip(configs, sizes, strict=True) if size == (rows, columns)]
        known = dict.fromkeys(f"{high}x{wide}" for high, wide in sizes)
        return found or Reason("its tiles are {sizes}", sizes=", ".join(known))
    if fields.rows == fields.columns and rows != columns:
        return Reason("its tiles are square")
    config = dataclasses.replace(configs[0], **{fields.rows: rows, fields.columns: columns})
    if isinstance(algorithm, GemmStep):
        try:
            algorithm.tiling(config, np.dtype(problem.dtype).itemsize)
        except ValueError as fault:
            return Reason.quoted(str(fault))
    return [config]


def _fields(config: Config) -> _Fields | None:
    names = {f.name for f in dataclasses.fields(config)}
    return next((found for found in _FIELDS if {found.rows, found.columns} <= names), None)
