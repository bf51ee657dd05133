"""The GPU that these tests run on; without one a whole file is skipped, with the reason."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from convforge.backends.cuda import why_absent


def need_gpu() -> None:
    """Skip the file that calls this where there is no GPU to use; this is the one reason."""
    if (reason := why_absent()) is not None:
        pytest.skip(f"needs an NVIDIA GPU: {reason}", allow_module_level=True)


def gpu(device: int = 0) -> Any:
    """The runtime of a GPU."""
    from convforge.backends.cuda.runtime import cuda_runtime

    return cuda_runtime(device)


@cache
def gpu_count() -> int:
    """Number of GPUs that the driver sees."""
    from cuda.bindings import driver

    return int(driver.cuDeviceGetCount()[1])
