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
    """Show what is installed, what is missing with the line that installs it, and the caches."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from convforge import __version__
    from convforge.backends.cpu import cpu_facts

    console = Console()
    facts = cpu_facts()
    machine = Table("machine", "", title=f"convforge {__version__}", title_justify="left")
    machine.add_row("Python", f"{platform.python_version()} on {platform.platform()}")
    machine.add_row("CPU", f"{facts.name}, {facts.cores} cores in use, vectors of {facts.vector_bytes} bytes")
    machine.add_row("caches", f"L1 {_size(facts.l1_bytes)}, L2 {_size(facts.l2_bytes)}, L3 {_size(facts.l3_bytes)}")
    machine.add_row("memory", _size(facts.memory_bytes))
    machine.add_row("GPU", Text(_gpu()))
    console.print(machine)
    console.print(_packages())
    _caches(clear_cache)


def _packages() -> object:
    from rich.table import Table
    from rich.text import Text

    table = Table("package", "version", "for", "to get it")
    for name, purpose in _NEEDED.items():
        version = _version(name)
        table.add_row(name, version or "[red]missing[/red]", purpose, "" if version else f"pip install {name}")
    for name, (purpose, wanted) in _OPTIONAL.items():
        version = _version(name) or (name.startswith("opencv") and _version("opencv-python")) or None
        table.add_row(name, version or "not installed", purpose, "" if version else Text(f"pip install {wanted}"))
    return table


def _caches(clear: bool) -> None:
    from convforge.backends.cache import cache_folder, cache_root, file_sizes, remove_folder

    folders = {kind: cache_folder(kind) for kind in ("cuda", "emulator", "numba", "tuned")}
    if None in folders.values():  # already reported
        typer.echo(f"caches: {cache_root()} is not used")
        return
    there = {kind: folder for kind, folder in folders.items() if folder is not None and folder.exists()}
    compiled = [folder for kind, folder in there.items() if kind != "tuned"]
    for folder in compiled or [cache_root() / "numba"]:
        sizes = file_sizes(folder)
        typer.echo(f"compiled kernels: {folder}, {len(sizes)} files, {_size(sum(sizes))}")
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
    """Describe the first GPU, or say why none can be used."""
    from convforge.backends.cuda import why_absent

    if (reason := why_absent()) is not None:
        return f"none to use: {reason}"
    from convforge.backends.cuda.facts import cuda_facts

    facts = cuda_facts()
    words = f"{facts.name}, {facts.cores} SMs, {facts.architecture}, {_size(facts.memory_bytes)}"
    return f"{words}; {facts.no_fft}" if facts.no_fft else words


def _size(nbytes: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}"
        nbytes = nbytes // 1024 if nbytes % 1024 == 0 else round(nbytes / 1024)
    return f"{nbytes} GiB"
