"""Facts of a device: the figures by which algorithms size their tiles. A table can stand in for a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def cores_in_words(cores: int, backend: str) -> str:
    """A device's processors by the name that its kind of device gives them.

    Examples
    --------
    >>> cores_in_words(132, "cuda"), cores_in_words(1, "cpu")
    ('132 multiprocessors', '1 core')
    """
    noun = "multiprocessor" if backend == "cuda" else "core"
    return f"{cores} {noun}{'s' if cores != 1 else ''}"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Figures of one device.

    Attributes
    ----------
    backend : str
        "cpu", "cuda" or "emulator".
    name : str
        What the maker calls it.
    cores : int
        Processors that run at once: cores of a CPU that this process may use, multiprocessors of a GPU.
    l1_bytes, l2_bytes, l3_bytes : int
        Cache of one core (L1, L2) and of all (L3); 0 where unknown or absent.
    memory_bytes : int
        Main memory of the device.
    vector_bytes : int
        Bytes of the widest vector registers; 0 where it has no meaning.
    architecture : str
        "x86_64", "aarch64", "sm_90", ...
    block_shared_bytes, shared_bytes : int
        Shared memory that one block may ask for, and of a multiprocessor; 0 on a CPU.
    registers, threads : int
        Registers of 32 bits and resident threads of a multiprocessor; 0 on a CPU.
    clock_hz, memory_bytes_per_s : int
        Highest clock of a GPU's multiprocessors, and bandwidth of its memory, as its driver states them; 0 where it
        does not.
    driver : str
        Version of a GPU's driver; empty on a CPU.
    no_fft : str
        Why there is no library of Fourier transforms for the device, in words; empty where there is one.
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
        """Facts from a mapping, such as a stored result's; unknown names are refused.

        Raises
        ------
        ValueError
            A field is missing or unknown.
        """
        names = {f.name for f in dataclasses.fields(cls)}
        needed = {f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING}
        if unknown := set(table) - names:
            raise ValueError(f"device facts have no field {', '.join(sorted(unknown))}")
        if missing := needed - set(table):
            raise ValueError(f"device facts lack {', '.join(sorted(missing))}")
        return cls(**table)

    def to_table(self) -> dict[str, Any]:
        """The facts as a mapping that JSON can hold."""
        return dataclasses.asdict(self)
