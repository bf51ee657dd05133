"""Facts of a GPU, as its driver reports them."""

from __future__ import annotations

from functools import cache

from convforge.backends.architecture import Architecture
from convforge.backends.cuda.absent import CudaUnavailable, why_absent
from convforge.backends.cuda.fft import why_no_fft
from convforge.backends.facts import DeviceFacts


def gpu_count() -> int:
    """Return the number of GPUs that the driver sees; CUDA_VISIBLE_DEVICES may hide some."""
    from cuda.bindings import driver

    _, count = driver.cuDeviceGetCount()
    return int(count)


@cache
def cuda_facts(device: int = 0) -> DeviceFacts:
    """Return the facts of a GPU; ``CudaUnavailable`` if no GPU can be used, ``ValueError`` if none has this number."""
    if (reason := why_absent()) is not None:
        raise CudaUnavailable(reason)
    from cuda.bindings import driver
    from cuda.core import Device

    count = gpu_count()
    if not 0 <= device < count:
        raise ValueError(f"device cuda:{device} is not there; the driver sees {count}")
    gpu = Device(device)
    facts = gpu.properties
    capability = gpu.compute_capability
    _, memory = driver.cuDeviceTotalMem(device)
    _, version = driver.cuDriverGetVersion()  # the newest supported CUDA version
    transfers_khz = _attribute(device, "MEMORY_CLOCK_RATE")  # two transfers a clock
    return DeviceFacts(
        backend="cuda", name=str(gpu.name), cores=facts.multiprocessor_count,
        l1_bytes=0,  # L1 is the rest of shared memory
        l2_bytes=facts.l2_cache_size, l3_bytes=0, memory_bytes=int(memory), vector_bytes=16,
        architecture=str(Architecture(10 * capability.major + capability.minor)),
        block_shared_bytes=facts.max_shared_memory_per_block_optin,
        shared_bytes=facts.max_shared_memory_per_multiprocessor,
        registers=facts.max_registers_per_multiprocessor,
        threads=facts.max_threads_per_multiprocessor,
        clock_hz=1000 * _attribute(device, "CLOCK_RATE"),  # in kHz
        memory_bytes_per_s=2000 * transfers_khz * _attribute(device, "GLOBAL_MEMORY_BUS_WIDTH") // 8,
        driver=f"{version // 1000}.{version % 1000 // 10}",
        no_fft=why_no_fft(),
    )  # fmt: skip


def _attribute(device: int, name: str) -> int:
    """Return an attribute of a device; 0 if the driver does not have it."""
    from cuda.bindings import driver

    attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    status, value = driver.cuDeviceGetAttribute(attribute, device)
    return int(value) if int(status) == 0 else 0
