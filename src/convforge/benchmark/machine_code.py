"""Extract the part of a cubin that a GPU executes, without names, notes and unused constants.

The cubin contains every constant of the kernel's source, even if instructions have its value as an immediate. An
additional constant shifts the addresses of later ones. Hence two cubins with the same machine code may differ.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

# ELF sections (System V ABI, chapter 4): machine code, constant banks of arguments and values, and shared memory.
RUN = (".text.", ".nv.constant0", ".nv.constant1", ".nv.constant2", ".nv.constant3", ".nv.shared.")
EMPTY = 8  # sh_type of a section without bytes in the file
WIDTH = 16  # bytes of an instruction
# Bit fields (position, mask) of an instruction (sm_70 and later): its form, and the constant bank of an operand, which
# only FORMS have. Bank ADDRESSES holds the addresses of variables.
FORM, FORMS, BANK, ADDRESSES = (9, 7), (3, 5), (54, 31), 4


class Section(NamedTuple):
    """A section of an ELF file; `data` is empty if the file has no bytes of it."""

    name: str
    size: int
    data: bytes


def running(cubin: bytes) -> bytes:
    """The executed sections: name, size and content. The whole file if its code loads addresses from constant bank 4.

    ``ValueError`` if it is no 64-bit ELF file.
    """
    found = sorted(section for section in sections(cubin) if section.name.startswith(RUN))
    for section in found:
        words = struct.iter_unpack("<QQ", section.data[: len(section.data) // WIDTH * WIDTH])
        banks = (word >> BANK[0] & BANK[1] for word, _ in words if (word >> FORM[0] & FORM[1]) in FORMS)
        if section.name.startswith(".text.") and ADDRESSES in banks:
            return cubin
    return b"\n".join(f"{section.name} {section.size} ".encode() + section.data for section in found)


def sections(elf: bytes) -> list[Section]:
    """Parse the sections of a 64-bit ELF file."""
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("this is no ELF file of 64 bits")
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, of_names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * size) for i in range(count)]
    start = headers[of_names][4]
    found = []
    for name, kind, _, _, at, length, *_ in headers:
        title = elf[start + name : elf.index(b"\0", start + name)].decode()
        data = b"" if kind == EMPTY else elf[at : at + length]
        found.append(Section(title, length, data))
    return found
