"""Reasons why no GPU can be used, each with its remedy."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

# Major CUDA version of the installed wheels -> CUDA version that the driver must support.
LEAST_DRIVER = {13: 13000, 12: 12000}
INSTALL = "pip install 'convforge[cuda13]' (drivers 580 and later) or 'convforge[cuda12]' (older drivers and cards)"


class CudaUnavailable(RuntimeError):
    """No GPU can be used; the message gives the reason and the remedy."""


@cache
def why_no_compiler() -> str | None:
    """Return the reason why kernels cannot be compiled, or None; compiling needs neither GPU nor driver."""
    for module in ("cuda.core", "cuda.bindings.nvrtc"):
        try:
            there = find_spec(module) is not None
        except ModuleNotFoundError:
            there = False
        if not there:
            return f"the Python package {module.replace('.nvrtc', '')} is missing: {INSTALL}"
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as fault:  # a wheel without its library raises any error of its loader
        return f"NVRTC, CUDA's run-time compiler, cannot be loaded ({first_line(fault)}): {INSTALL}"
    return None


@cache
def why_absent() -> str | None:
    """Return the reason why no GPU can be used, or None."""
    if (reason := why_no_compiler()) is not None:
        return reason
    from cuda.bindings import driver

    try:
        (status,) = driver.cuInit(0)
    except Exception as fault:  # no libcuda.so
        return f"there is no NVIDIA driver ({first_line(fault)}): install one from nvidia.com/drivers"
    if status == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        return "the NVIDIA driver sees no GPU: CUDA_VISIBLE_DEVICES may hide it"
    if status != driver.CUresult.CUDA_SUCCESS:
        return f"the NVIDIA driver does not start: {status.name}"
    status, version = driver.cuDriverGetVersion()
    from cuda.bindings import nvrtc

    major = int(nvrtc.nvrtcVersion()[1])
    if version < LEAST_DRIVER.get(major, 0):
        return (
            f"the NVIDIA driver is too old: it speaks CUDA {version // 1000}.{version % 1000 // 10}, the installed "
            f"wheels CUDA {major}; update the driver, or pip install 'convforge[cuda12]'"
        )
    status, count = driver.cuDeviceGetCount()
    if not count:
        return "the NVIDIA driver sees no GPU: CUDA_VISIBLE_DEVICES may hide it"
    return None


def first_line(fault: BaseException) -> str:
    """The first line of an exception's text, or its type."""
    return (str(fault).strip().splitlines() or [type(fault).__name__])[0]
