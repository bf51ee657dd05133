"""Facts of a device, from which algorithms choose their tile sizes. A table can replace a device."""

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
    """Figures of one device.

    Attributes
    ----------
    backend : str
        "cpu", "cuda" or "emulator".
    name : str
        The vendor's name.
    cores : int
        CPU cores that this process may use; SMs of a GPU.
    l1_bytes, l2_bytes, l3_bytes : int
        Cache of one core (L1, L2) and of all (L3); 0 where unknown or absent.
    memory_bytes : int
        Main memory of the device.
    vector_bytes : int
        Bytes of the widest vector registers; 0 where it has no meaning.
    architecture : str
        "x86_64", "aarch64", "sm_90", ...
    block_shared_bytes, shared_bytes : int
        Most shared memory of a block, and shared memory of an SM; 0 on a CPU.
    registers, threads : int
        32-bit registers and resident threads of an SM; 0 on a CPU.
    clock_hz, memory_bytes_per_s : int
        Highest SM clock and memory bandwidth, as the driver states them; 0 where unknown.
    driver : str
        Version of a GPU's driver; empty on a CPU.
    no_fft : str
        Reason why the device has no FFT library; empty where it has one.
    """

    backend: str
    name: str
    cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    memory_bytes: int
    vector_bytes: int
    architecture: str
    block_shared_bytes: int = 0
    shared_bytes: int = 0
    registers: int = 0
    threads: int = 0
    clock_hz: int = 0
    memory_bytes_per_s: int = 0
    driver: str = ""
    no_fft: str = ""

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> DeviceFacts:
        """Read facts from a mapping; ``ValueError`` for a missing or an unknown field."""
        names = {f.name for f in dataclasses.fields(cls)}
        needed = {f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING}
        if unknown := set(table) - names:
            raise ValueError(f"device facts have no field {', '.join(sorted(unknown))}")
        if missing := needed - set(table):
            raise ValueError(f"device facts lack {', '.join(sorted(missing))}")
        return cls(**table)

    def to_table(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
