"""Facts of a device, from which algorithms choose their tile sizes. They can be read from a table, without a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def cores_in_words(cores: int, backend: str) -> str:
    """Describe a number of processors: SMs of a GPU, cores of others.

    Examples
    --------
    >>> cores_in_words(132, "cuda"), cores_in_words(1, "cpu")
    ('132 SMs', '1 core')
    """
    noun = "SM" if backend == "cuda" else "core"
    return f"{cores} {noun}{'s' if cores != 1 else ''}"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Figures of one device; 0 or empty where a figure is unknown or has no meaning."""

    backend: str  # "cpu", "cuda" or "emulator"
    name: str  # the vendor's
    cores: int  # CPU cores that this process may use; SMs of a GPU
    l1_bytes: int  # caches of one core
    l2_bytes: int
    l3_bytes: int  # cache of all cores
    memory_bytes: int  # main memory of the device
    vector_bytes: int  # widest vector registers
    architecture: str  # "x86_64", "aarch64", "sm_90", ...
    block_shared_bytes: int = 0  # most shared memory of a block
    shared_bytes: int = 0  # shared memory of an SM
    registers: int = 0  # of 32 bits, of an SM
    threads: int = 0  # resident threads of an SM
    clock_hz: int = 0  # highest SM clock, as the driver states it
    memory_bytes_per_s: int = 0  # bandwidth, as the driver states it
    driver: str = ""  # version of a GPU's driver
    no_fft: str = ""  # reason why the device has no FFT library

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> DeviceFacts:
        """Read facts from a mapping; ``ValueError`` for a missing or an unknown field."""
        fields = dataclasses.fields(cls)
        names, needed = {f.name for f in fields}, {f.name for f in fields if f.default is dataclasses.MISSING}
        if unknown := set(table) - names:
            raise ValueError(f"device facts have no field {', '.join(sorted(unknown))}")
        if missing := needed - set(table):
            raise ValueError(f"device facts lack {', '.join(sorted(missing))}")
        return cls(**table)

    def to_table(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
