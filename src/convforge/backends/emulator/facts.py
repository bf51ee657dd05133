"""Facts of the emulator: this CPU's cores with the limits of an sm_90."""

from __future__ import annotations

import dataclasses
from functools import cache

from convforge.backends.cpu.facts import cpu_facts
from convforge.backends.facts import DeviceFacts


@cache
def emulator_facts() -> DeviceFacts:
    host = cpu_facts()
    return dataclasses.replace(
        host, backend="emulator", name=f"emulator on {host.name}", l1_bytes=0, vector_bytes=16, architecture="sm_90",
        block_shared_bytes=227 << 10, shared_bytes=228 << 10, registers=1 << 16, threads=2048,
    )  # fmt: skip
