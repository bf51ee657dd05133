"""Compilation of a kernel's source by g++ to a shared library for this CPU, cached on disk."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from convforge.backends.cache import DiskCache, cache_folder
from convforge.backends.cpu.facts import read_cpuinfo
from convforge.backends.emulator.absent import EmulatorUnavailable, why_absent
from convforge.backends.kernel import HEADERS, KernelSource
from convforge.backends.notices import compiling
from convforge.backends.sources import on_disk

ROOM = Path(__file__).parent

# The C++ library is not linked, because the process may have loaded an older one. -fno-gnu-unique and hidden symbols
# separate the libraries of two kernels; -Bsymbolic separates their variables from the process's. The linker's plugin
# serves link-time optimisation, which is not used.
FLAGS = (
    "-std=c++17", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fno-exceptions", "-fno-rtti", "-shared",
    "-fPIC", "-fno-gnu-unique", "-fvisibility=hidden", "-nodefaultlibs", "-fno-use-linker-plugin", "-Wl,-Bsymbolic",
    "-w",
)  # fmt: skip
# Sanitizers check indices and alignment; cuda.h has the handlers. Compiling takes longer than most runs: -Og takes half
# the time of -O2; -O0 would drop the check of objects' sizes.
KERNEL_FLAGS = ("-Og", "-fsanitize=bounds,alignment,object-size")
SCHEDULER_FLAGS = ("-O2",)
# Fills variables with poison (0xFE in every byte), because an uninitialised variable is often 0 by luck. Older versions
# of g++ do not know the flag.
POISON_FLAG, POISON_SINCE = "-ftrivial-auto-var-init=pattern", 12
LIBRARIES = ("-x", "none", "-lm", "-ldl", "-lpthread", "-lc", "-lgcc")


class CompileError(RuntimeError):
    """g++ refused a kernel; the message is g++'s log."""


def compile_kernel(source: KernelSource, disk: DiskCache | None = None) -> bytes:
    """Compile a kernel, or load it from the disk cache; ``EmulatorUnavailable``, or ``CompileError`` on failure."""
    if (reason := why_absent()) is not None:
        raise EmulatorUnavailable(reason)
    body = source.text()
    if re.search(r"\bextern\s+__shared__", body):
        raise CompileError(f'{source.path}: "extern __shared__" must be DYNAMIC_SHARED(type, name) of memory.cuh')
    enter = (
        f'\nextern "C" __attribute__((visibility("default"))) void emulator_enter(const void *args) {{\n'
        f"    {source.name}(*static_cast<const {source.struct} *>(args));\n}}\n"
    )
    text = f'#include "cuda.h"\n{body}{enter}'
    flags = (*FLAGS, *KERNEL_FLAGS, *([POISON_FLAG] if knows_poison() else []), f"-I{on_disk(HEADERS)}")
    return library_of(text, source.digest(), flags, source.path, disk)


def compile_scheduler(portable: bool = False, disk: DiskCache | None = None) -> bytes:
    """Compile the library that runs kernels; `portable` switches stacks by ucontext instead of assembly."""
    text = '#include "scheduler.cpp"\n'
    flags = (*FLAGS, *SCHEDULER_FLAGS, *(["-DEMULATOR_UCONTEXT"] if portable else []))
    return library_of(text, "", flags, "scheduler.cpp", disk)


def library_of(text: str, digest: str, flags: tuple[str, ...], name: str, disk: DiskCache | None) -> bytes:
    if (reason := why_absent()) is not None:
        raise EmulatorUnavailable(reason)
    disk = disk_cache() if disk is None else disk
    # The path of the headers does not change the code.
    options = repr([flag for flag in flags if not flag.startswith("-I")])
    key = disk.key("emulator", text, digest, _room_digest(), options, repr(LIBRARIES), compiler_version(), _processor())
    if (found := disk.load(key)) is not None:
        return found[1]
    with compiling(f"{name} for the emulator", disk.folder):
        code = _compiled(text, flags, name)
    disk.store(key, {}, code)
    return code


def disk_cache() -> DiskCache:
    return DiskCache(cache_folder("emulator"))


def _compiled(text: str, flags: tuple[str, ...], name: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="convforge-") as folder:
        out = Path(folder) / "kernel.so"
        command = ["g++", *flags, f"-I{on_disk(ROOM)}", "-x", "c++", "-", *LIBRARIES, "-o", str(out)]
        plain = os.environ | {"LC_ALL": "C"}  # messages in English
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, env=plain)
        if done.returncode:
            raise CompileError(f"{name}: {done.stderr.strip()}")
        return out.read_bytes()


def knows_poison() -> bool:
    """True if this g++ can poison variables."""
    major = re.search(r" (\d+)\.\d", compiler_version())
    return major is not None and int(major[1]) >= POISON_SINCE


@cache
def compiler_version() -> str:
    done = subprocess.run(["g++", "-dumpfullversion", "-dumpmachine"], capture_output=True, text=True, check=True)
    return f"{os.path.realpath(shutil.which('g++') or 'g++')} {done.stdout.strip()}"


@cache
def _room_digest() -> str:
    """A digest of the headers and the scheduler in this folder."""
    digest = hashlib.sha256()
    room = on_disk(ROOM)
    for path in sorted([*room.glob("*.h"), *room.glob("*.cpp")]):
        digest.update(f"\n{path.name}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _processor() -> str:
    """Return the CPU features that -march=native uses: part of the key, because machines may share the cache."""
    first = read_cpuinfo().split("\n\n")[0]
    lines = (line for line in first.splitlines() if line.partition(":")[0].strip() in _NAMES)
    return "\n".join([os.uname().machine, *lines])


_NAMES = {"vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU part", "Features"}
