"""Compilation of a kernel's source by NVRTC, for one architecture; needs neither GPU nor driver."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from convforge.backends.cache import DiskCache, cache_folder
from convforge.backends.cuda.absent import CudaUnavailable, why_no_compiler
from convforge.backends.kernel import HEADERS, KernelSource
from convforge.backends.notices import compiling
from convforge.backends.sources import on_disk

# Warning 177 is for unused constants; a kernel need not use all constants of its prelude.
OPTIONS = {"std": "c++17", "diag_suppress": 177, "ptxas_options": ["-v"]}


class CompileError(RuntimeError):
    """NVRTC refused a kernel; the message is NVRTC's log."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code of one kernel: a cubin."""

    name: str
    architecture: str
    code: bytes
    registers: int  # per thread
    spill_bytes: int  # per thread, in local memory
    stack_bytes: int  # per thread
    shared_bytes: int  # static shared memory of a block
    constant_bytes: int  # constant memory of the module, without the arguments


@cache
def compiler_version() -> str:
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


def compile_kernel(source: KernelSource, architecture: str, disk: DiskCache | None = None) -> Compiled:
    """Compile a kernel, or load it from the disk cache; ``CudaUnavailable`` without NVRTC, else ``CompileError``."""
    if (reason := why_no_compiler()) is not None:
        raise CudaUnavailable(reason)
    return kept(source, architecture + source.feature, compiler_version(), _nvrtc, disk)


def compile_kernels(sources: Iterable[KernelSource], architecture: str) -> Iterator[Compiled | None]:
    """Compile kernels in parallel; yield None for one that cannot be compiled. ``CudaUnavailable`` without NVRTC."""
    if (reason := why_no_compiler()) is not None:
        raise CudaUnavailable(reason)
    import cuda.core  # noqa: F401 - it fails if several threads import it first

    def compiled(source: KernelSource) -> Compiled | None:
        try:
            return compile_kernel(source, architecture)
        except Exception:
            return None

    with ThreadPoolExecutor(os.cpu_count() or 1, "convforge-compile") as pool:
        yield from pool.map(compiled, sources)


def kept(
    source: KernelSource, architecture: str, version: str, compile_: Callable[[KernelSource, str], Compiled],
    disk: DiskCache | None = None,
) -> Compiled:  # fmt: skip
    """Load a kernel from the disk cache, or compile and store it."""
    disk = DiskCache(cache_folder("cuda")) if disk is None else disk
    key = disk.key(source.digest(), source.name, architecture, repr(OPTIONS), version)
    if (found := disk.load(key)) is not None:
        about, code = found
        return Compiled(code=code, **about)
    with compiling(f"{source.name} for {architecture}", disk.folder):
        compiled = compile_(source, architecture)
    about = asdict(compiled)
    disk.store(key, about, about.pop("code"))
    return compiled


def program_options(source: KernelSource, architecture: str) -> Any:
    """NVRTC's options for a kernel: a ``cuda.core.ProgramOptions``."""
    from cuda.core import ProgramOptions

    return ProgramOptions(name=source.file.name, arch=architecture, include_path=str(on_disk(HEADERS)), **OPTIONS)


def _nvrtc(source: KernelSource, architecture: str) -> Compiled:
    from cuda.core import Program

    log = io.StringIO()
    try:
        binary = Program(source.text(), "c++", program_options(source, architecture)).compile("cubin", logs=log)
    except Exception as fault:  # cuda.core raises several types
        raise CompileError(f"{source.path} for {architecture}: {fault}\n{log.getvalue()}") from fault
    return Compiled(source.name, architecture, bytes(binary.code), **resources(log.getvalue(), source.name))


def resources(log: str, name: str) -> dict[str, int]:
    """Parse the output of ptxas -v into the last five fields of :class:`Compiled`."""
    part = log[max(log.find(f"Compiling entry function '{name}'"), 0) :]
    found = {
        "registers": re.search(r"Used (\d+) registers", part),
        "spill_bytes": re.search(r"(\d+) bytes spill stores", part),
        "stack_bytes": re.search(r"(\d+) bytes stack frame", part),
        "shared_bytes": re.search(r"(\d+) bytes smem", part),
        "constant_bytes": re.search(r"(\d+) bytes cmem\[3\]", log),
    }
    return {name: int(match[1]) if match else 0 for name, match in found.items()}
