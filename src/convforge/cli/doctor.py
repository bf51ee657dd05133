"""`convforge doctor`: the machine, installed and missing packages, and the caches."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Annotated

import typer

# Packages and their purpose. Required ones are dependencies of convforge.
_NEEDED = {
    "numpy": "arrays, BLAS",
    "ml_dtypes": "bfloat16",
    "scipy": "FFT",
    "numba": "CPU kernels",
    "pillow": "JPEG",
    "tifffile": "TIFF",
    "imagecodecs": "PNG, compressed TIFF",
    "typer": "command line",
    "rich": "tables, progress",
    "platformdirs": "places of the caches",
    "threadpoolctl": "threads of the BLAS",
}
_LAB = "'convforge[lab]'"
_OPTIONAL = {
    "pandas": ("tables of results", _LAB),
    "altair": ("charts", _LAB),
    "vl-convert-python": ("charts without a network", _LAB),
    "jinja2": ("pages", _LAB),
    "babel": ("pages in other languages", _LAB),
    "pygments": ("kernels' sources on pages", _LAB),
    "psutil": ("the memory limit of convforge check", _LAB),
    "torch": ("peer: PyTorch's convolution (oneDNN)", "torch"),
    "opencv-python-headless": ("peer: filter2D, sepFilter2D", "opencv-python-headless"),
    "scikit-image": ("the photographs of the demonstration", "'convforge[demo]'"),
}


def doctor(
    clear_cache: Annotated[
        bool, typer.Option("--clear-cache", help="Delete compiled kernels and tuned choices.")
    ] = False,
) -> None:
    """Show what is installed, what is missing with the command that installs it, and the caches."""
    from rich.console import Console
    from rich.table import Table

    from convforge import __version__
    from convforge.backends.cpu import cpu_facts
    from convforge.benchmark.formats import byte_count

    facts = cpu_facts()
    machine = Table("machine", "", title=f"convforge {__version__}", title_justify="left")
    machine.add_row("Python", f"{platform.python_version()} on {platform.platform()}")
    machine.add_row("CPU", f"{facts.name}, {facts.cores} cores in use, vectors of {facts.vector_bytes} bytes")
    sizes = {"L1": facts.l1_bytes, "L2": facts.l2_bytes, "L3": facts.l3_bytes}
    machine.add_row("caches", ", ".join(f"{name} {byte_count(size)}" for name, size in sizes.items()))
    machine.add_row("memory", byte_count(facts.memory_bytes))
    machine.add_row("GPU", _gpu())
    packages = Table("package", "version", "for", "to get it")
    needed = {name: (purpose, name) for name, purpose in _NEEDED.items()}
    for name, (purpose, wanted) in {**needed, **_OPTIONAL}.items():
        version = _version(name) or (name.startswith("opencv") and _version("opencv-python"))
        packages.add_row(name, version or ("missing" if name in _NEEDED else "not installed"), purpose,
                         "" if version else f"pip install {wanted}")  # fmt: skip
    console = Console(markup=False)
    console.print(machine)
    console.print(packages)
    _caches(clear_cache)


def _caches(clear: bool) -> None:
    from convforge.backends.cache import cache_folder, cache_root, file_sizes, remove_folder
    from convforge.benchmark.formats import byte_count

    folders = {kind: cache_folder(kind) for kind in ("cuda", "emulator", "numba", "tuned")}
    if None in folders.values():  # already reported
        typer.echo(f"caches: {cache_root()} is not used")
        return
    there = {kind: folder for kind, folder in folders.items() if folder is not None and folder.exists()}
    compiled = [folder for kind, folder in there.items() if kind != "tuned"]
    for folder in compiled or [cache_root() / "numba"]:
        sizes = file_sizes(folder)
        typer.echo(f"compiled kernels: {folder}, {len(sizes)} files, {byte_count(sum(sizes))}")
    if (tuned := there.get("tuned")) is not None:
        typer.echo(f"tuned choices: {tuned}, {len(list(tuned.glob('*/*.json')))} buckets")
    if clear and there:
        for folder in there.values():
            remove_folder(folder)
        typer.echo("deleted; kernels are compiled again when they are next used")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu() -> str:
    from convforge.backends.cuda import why_absent
    from convforge.backends.cuda.facts import cuda_facts
    from convforge.benchmark.formats import byte_count

    if (reason := why_absent()) is not None:
        return f"none to use: {reason}"
    facts = cuda_facts()
    words = f"{facts.name}, {facts.cores} SMs, {facts.architecture}, {byte_count(facts.memory_bytes)}"
    return f"{words}; {facts.no_fft}" if facts.no_fft else words
