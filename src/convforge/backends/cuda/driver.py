"""Calls of the CUDA driver, their status turned into an exception."""

from __future__ import annotations

from typing import Any


class CudaError(RuntimeError):
    """The driver reported an error."""


def checked(result: tuple[Any, ...]) -> Any:
    """What a driver call returns beside its status.

    Raises
    ------
    CudaError
        The status is no success.
    """
    status, *values = result
    if int(status) != 0:
        raise CudaError(f"the CUDA driver says {status.name}")
    return values[0] if len(values) == 1 else tuple(values)
