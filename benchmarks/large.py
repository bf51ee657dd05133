"""Images larger than memory: convforge filter beside other libraries, from file to file, each in its own process.

python benchmarks/large.py --folder /scratch --sizes 2GB,16GB
python benchmarks/large.py --folder /scratch --device cuda --only zarr,blurred --budget 540 --keep --resume
python benchmarks/large.py --only zarr --sizes 16GB --program convforge --program dask-image --resume

zarr       uint16 in shards of 2048 x 2048, zstd, Gaussian of 17 taps: beside tensorstore and dask without a filter,
           dask-image, dask with SciPy and with CuPy
blurred    the result of that filter, copied by tensorstore: what its samples alone cost
tiff       12000 x 12000 RGB in tiles, Deflate, Gaussian of 33 taps: beside libvips, and OpenCV with tifffile
synthetic  100,000 x 100,000 uint8, computed when it is read and never stored: on one GPU and on several; as
           synthetic-dense with 63 x 63 random taps, on GPUs alone

In each round every contender runs once, in random order. Before each run the source is read, so that it is in the
system's cache as far as memory allows. After it the files of the result are forced to the disk, in a time of their own,
samples of the result are compared with the blur in float64, and it is removed. The images are made once, in a folder
of your choice, and removed at the end.

The result goes to benchmarks/results/DEVICE/large-TIME.json, a row for each run. A contender that cannot run, or whose
result is wrong, has a row with the reason.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Annotated

import typer
from large_cases import CONTENDERS, KINDS, Case, Contender, cases_of

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.processes import Ended, ended
from convforge.benchmark.sheets import Sheet
from convforge.call.dispatch import runtime_of
from convforge.cli.values import parse_bytes, words_of
from convforge.imaging.windowed import format_of

HERE = Path(__file__).parent
LIBRARIES = ("tensorstore", "zarr", "numcodecs", "dask", "dask-image", "cupy-cuda12x", "cupy-cuda13x", "pyvips",
             "pyvips-binary", "opencv-python-headless", "tifffile", "imagecodecs")  # fmt: skip

# Sides of the images of a contender's untimed runs. Ours runs first on the larger one, which compiles the kernels, and
# once more on the tiny one. The memory of the last run is that of the program without an image.
TINY, SMALL = 256, 4096

# Free bytes of the disk that a case needs for each byte of its samples: source and result, packed, and a reserve.
DISK_SHARE = 1.5

# Times of smaller images than this are mostly those of starting, and predict nothing.
TELLING = 100_000_000


@dataclass
class Bench:
    """Runs contenders and stores a row for each run."""

    sheet: Sheet
    folder: Path
    device: str
    gpus: int
    threads: int
    memory: dict[str, int]  # kind of case -> limit in bytes: --memory of our command
    limit_s: float  # of a process
    programs: tuple[str, ...] = ()  # the contenders that run; empty: all
    ends_at: float = float("inf")  # by time.monotonic
    base_bytes: dict[tuple[str, str], int] = field(default_factory=dict)  # memory without an image, by kind and name

    def measure(self, case: Case, rounds: int, *, keep: bool) -> bool:
        """Add the missing rows of a case; return False if the budget did not suffice."""
        if not any(self.left(case, at) for at in range(rounds)):
            return True
        source = case.path(self.folder, case.name)
        try:
            if case.is_stored and not source.exists():
                if (free := shutil.disk_usage(self.folder).free) < DISK_SHARE * case.nbytes:
                    self.leave_out(case, "", f"{self.folder} has {free} free bytes, and it needs {DISK_SHARE} times "
                                             f"{case.nbytes}")  # fmt: skip
                    return True
                incomplete = case.path(self.folder, f"{case.name}.incomplete")
                remove(incomplete)
                case.make(incomplete, self.threads)
                incomplete.rename(source)
            for at in range(rounds):
                names = sorted(self.left(case, at))
                random.Random(f"{case.name} {at}").shuffle(names)
                for name in names:
                    if not self.fits(case, name):
                        return False
                    self.add(case, name, at, source)
        finally:
            if not keep:
                remove(source)
        return True

    def left(self, case: Case, at: int) -> list[str]:
        """Return the contenders that have no row of a round, and can run; add rows for those that cannot."""
        found = []
        for name, contender in CONTENDERS[case.kind].items():
            if contender.gpus > self.gpus or (contender.on_gpu and self.device == "cpu"):
                continue
            if self.programs and name not in self.programs:
                continue
            rows = [row for row in self.sheet.rows if (row["case"], row["contender"]) in ((case.name, name),
                                                                                        (case.name, ""))]  # fmt: skip
            if any(row["round"] in (at, None) for row in rows):
                continue
            if contender.missing:
                self.leave_out(case, name, f"{contender.missing} is not installed")
            elif (forecast := self.forecast(case, name)) > self.limit_s:
                self.leave_out(case, name, f"it would take about {forecast:.0f} s, by its time for a smaller image")
            else:
                found.append(name)
        return found

    def forecast(self, case: Case, name: str) -> float:
        """Return the seconds of a run, by those of this case or of a smaller one; 0 if there are none."""
        times: dict[int, list[float]] = {}
        for row in self.sheet.rows:
            known = (row["kind"], row["contender"]) == (case.kind, name) and "seconds" in row
            if known and (row["nbytes"] >= TELLING or row["case"] == case.name):
                times.setdefault(row["nbytes"], []).append(row["seconds"])
        nearest = max((nbytes for nbytes in times if nbytes <= case.nbytes), default=0)
        return median(times[nearest]) * case.nbytes / nearest if nearest else 0.0

    def fits(self, case: Case, name: str) -> bool:
        return monotonic() + self.forecast(case, name) < self.ends_at

    def leave_out(self, case: Case, name: str, reason: str) -> None:
        """Add a row without a time; an empty name stands for all contenders."""
        self.sheet.add({"case": case.name, "kind": case.kind, "nbytes": case.nbytes, "contender": name, "round": None,
                        "reason": reason})  # fmt: skip
        typer.echo(f"{case.name:18} {name:24} left out: {reason}")

    def add(self, case: Case, name: str, at: int, source: Path) -> None:
        """Run a contender, check its result, and add a row."""
        if (case.kind, name) not in self.base_bytes and not self.prepare(case, name):
            return
        contender = CONTENDERS[case.kind][name]
        target = case.path(self.folder, "result")
        try:
            read_files(source)
            run = self.run(case, contender, source, target)
            if fault := fault_of(run, self.limit_s):
                self.leave_out(case, name, fault)
                return
            begin = perf_counter()
            stored = sync(target)
            synced_s = perf_counter() - begin
            error = None
            if case.is_stored:
                try:
                    error = case.deviation(source, target)
                except ValueError as mistake:
                    self.leave_out(case, name, f"wrong: {mistake}")
                    return
                if error > contender.most:
                    self.leave_out(case, name, f"wrong: a sample is {error:.3g} off")
                    return
        finally:
            remove_result(target)
        row = {
            "case": case.name, "kind": case.kind, "nbytes": case.nbytes, "contender": name, "round": at,
            "ours": contender.ours, "device": self.device_of(contender), "gpus": contender.gpus,
            "seconds": run.seconds, "work_s": work_of(run), "cpu_s": run.cpu_s, "peak_bytes": run.peak_bytes,
            "base_bytes": self.base_bytes[case.kind, name], "gpu_bytes": run.gpu_bytes,
            "limit_bytes": None if contender.program or format_of(source) is None else self.memory[case.kind],
            "stored_bytes": [files_of(source)[1], stored], "sync_s": synced_s,
            "error": None if error is None or contender.most == float("inf") else error,
        }  # fmt: skip
        self.sheet.add(row)
        typer.echo(f"{case.name:18} {name:24} {run.seconds:8.2f} s  {run.peak_bytes / 1e6:8.0f} MB")

    def prepare(self, case: Case, name: str) -> bool:
        """Run a contender on small images; return False if it fails, after a row with the reason."""
        contender = CONTENDERS[case.kind][name]
        for side in (SMALL, TINY, TINY) if contender.ours else (TINY,):
            small = Case(case.name, case.kind, side * side, side, case.sigma, case.taps, case.border)
            source, target = small.path(self.folder, "small"), small.path(self.folder, "small-result")
            try:
                if case.is_stored:
                    small.make(source, self.threads, side)
                run = self.run(small, contender, source, target)
            finally:
                remove(source)
                remove_result(target)
            if fault := fault_of(run, self.limit_s):
                self.leave_out(case, name, f"on a small image {fault}")
                return False
            self.base_bytes[case.kind, name] = run.peak_bytes
        return True

    def run(self, case: Case, contender: Contender, source: Path, target: Path) -> Ended:
        device = self.device_of(contender)
        if contender.program:
            job = {"source": str(source), "target": str(target), "sigma": case.sigma, "taps": case.taps,
                   "threads": self.threads, "device": device, "side": case.side, "gpus": contender.gpus}  # fmt: skip
            command = [str(HERE / "large_programs.py"), contender.program, json.dumps(job)]
        else:
            command = ["-m", "convforge", "filter", str(source), str(target), "--kernel", case.kernel]
            command += ["--border", case.border, "--device", device]
            if format_of(source) is not None:
                command += ["--memory", str(self.memory[case.kind]), "--jobs", str(self.threads)]
        count = str(self.threads)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "VIPS_CONCURRENCY"), count)
        watch = gpu_memory(self.gpus) if device != "cpu" else None
        return ended([sys.executable, *command], {**os.environ, **threads}, self.limit_s, watch)

    def device_of(self, contender: Contender) -> str:
        return contender.device or self.device


def fault_of(run: Ended, limit_s: float) -> str:
    """Return the reason why a run has no result, or an empty text."""
    if run.code is None:
        return f"it took longer than {limit_s:g} s"
    last = (run.errors.strip().splitlines() or ["no message"])[-1]
    return f"it ended with {run.code}: {last[-300:]}" if run.code else ""


def work_of(run: Ended) -> float | None:
    """Return the seconds that a program worked after its imports, by its last line; None if it does not tell them."""
    last = (run.output.strip().splitlines() or [""])[-1]
    with suppress(ValueError, KeyError, TypeError):
        return float(json.loads(last)["work_s"])
    found = re.search(r"^done .* in ([\d.e+-]+) s$", run.output, re.MULTILINE)
    return float(found[1]) if found else None


def gpu_memory(gpus: int) -> Callable[[], int] | None:
    """Return a function for the bytes in use on the first GPUs; None without NVIDIA's library for it."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, or no driver
        return None
    handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(max(gpus, 1))]
    return lambda: sum(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)


def files_of(path: Path) -> tuple[list[Path], int]:
    """Return the files of an image, and their bytes."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return files, sum(file.stat().st_size for file in files)


def read_files(path: Path) -> None:
    for file in files_of(path)[0]:
        with file.open("rb", buffering=0) as opened:
            while opened.read(1 << 23):
                pass


def sync(path: Path) -> int:
    """Force the files of an image to the disk; return their bytes."""
    files, nbytes = files_of(path)
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    return nbytes


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_result(path: Path) -> None:
    """Remove a result, and what our command leaves of one when it is stopped."""
    for ending in ("", ".incomplete", ".journal"):
        remove(path.with_name(path.name + ending))


def installed() -> Iterator[tuple[str, str]]:
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def facts_of(device: str) -> tuple[DeviceFacts, int]:
    """Return the facts of a device, and the number of GPUs that the driver sees; 0 for the CPU."""
    facts = runtime_of(device).facts
    if facts.backend != "cuda":
        return facts, 0
    from cuda.bindings import driver

    return facts, int(driver.cuDeviceGetCount()[1])


def main(
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    only: Annotated[str, typer.Option(metavar="KIND,...", help=f"{', '.join(KINDS)}. [default: all]")] = "",
    sizes: Annotated[str, typer.Option(metavar="SIZE,...", help="Bytes of the Zarr images.")] = "2GB,16GB",
    program: Annotated[
        list[str] | None, typer.Option(help="A contender, by its name; may be repeated. [default: all]")
    ] = None,
    tiff_side: Annotated[int, typer.Option(min=1, help="Side of the TIFF image in pixels.")] = 12_000,
    synthetic_side: Annotated[int, typer.Option(min=1, help="Side of the synthetic image in pixels.")] = 100_000,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="--memory of our command for Zarr.")] = "1GB",
    tiff_memory: Annotated[str, typer.Option(metavar="SIZE", help="The same for TIFF.")] = "150MB",
    threads: Annotated[int, typer.Option(min=0, help="Cores that all use. [default: all]")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each contender.")] = 3,
    limit: Annotated[float, typer.Option(help="Seconds of a process, at most.")] = 600.0,
    budget: Annotated[float, typer.Option(help="Seconds in all; the rest is for --resume.")] = 3600.0,
    folder: Annotated[Path | None, typer.Option(help="Place of the images. [default: a temporary folder]")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the images in the folder.")] = False,
    out: Annotated[Path, typer.Option(help="The result goes to OUT/DEVICE/.")] = HERE / "results",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")] = False,
) -> None:
    """Filter large images with each library, and store times and memory."""
    if threads:  # before the runtime counts the cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    count = len(os.sched_getaffinity(0))
    facts, gpus = facts_of(device)
    try:
        if keep and folder is None:
            raise ValueError("--keep goes with --folder")
        cases = cases_of(words_of(only), words_of(sizes), tiff_side, synthetic_side)
        programs = tuple(program or ())
        if unknown := set(programs).difference(*(CONTENDERS[case.kind] for case in cases)):
            raise ValueError(f"--program {min(unknown)}: there is none of this name")
        limits = dict.fromkeys(KINDS, 0) | {"zarr": parse_bytes(memory), "tiff": parse_bytes(tiff_memory)}
    except ValueError as mistake:
        typer.echo(f"large.py: {mistake}", err=True)
        raise typer.Exit(2) from None
    settings = {"device": device, "threads": count, "memory": limits, "rounds": rounds}
    sheet = Sheet.begin(out, "large", facts, settings, resume=resume, more_versions=dict(installed()))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="convforge-", dir=folder) as scratch:
        place = folder if keep and folder is not None else Path(scratch)
        bench = Bench(sheet, place, device, gpus, count, limits, limit, programs, monotonic() + budget)
        whole = [bench.measure(case, rounds, keep=keep) for case in cases]
    if all(whole) and not programs:
        sheet.finish()
    elif not all(whole):
        typer.echo("the budget is spent: go on with --resume")
    typer.echo(f"stored in {sheet.path}")


if __name__ == "__main__":
    typer.run(main)
