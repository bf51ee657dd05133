"""Damaged files by the thousand: none may end the process, hang it, or take memory beyond a limit.

`python -m tests.imaging.mutated 10000` makes so many files from seed files of each format, each with a few changes, and
reads and filters each in a process of its own that is watched. It prints a line for each fault.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.imaging.mutations import mutate
from tests.imaging.windowed import slides
from tests.imaging.windowed.ome import ome_zarr

LIMIT = 64 * 2**20  # bytes, of the filter in units
BEYOND = 512 * 2**20  # bytes that a process may take beyond what it takes for intact files
ADDRESSES = 24 * 2**30  # bytes of addresses, beyond which an allocation fails
SECONDS = 20  # for one file
MAX_PIXELS = 2**22

# Suffixes of a format's result: most often its own.
TARGETS = {"npy": (".npy", ".zarr", ".tif"), "tiff": (".tif", ".tif", ".ome.tif", ".ome.zarr"), "png": (".npy",),
           "zarr": (".zarr", ".zarr", ".ome.zarr", ".ome.tif"), "slide": (".tif", ".ome.tif", ".ome.zarr"),
           "slices": (".npy", ".tif", ".zarr")}  # fmt: skip
WHOLE = (".npy", ".png", ".tif")  # suffixes of files that are read whole too


def seeds(folder: Path) -> dict[str, list[Path]]:
    """Make intact files, by the name of the format."""
    from PIL import Image as Pillow
    from tifffile import TiffWriter, imwrite

    chance = np.random.default_rng(1)
    gray, colour = chance.integers(0, 256, (70, 60), np.uint8), chance.integers(0, 256, (70, 60, 3), np.uint8)
    found: dict[str, list[Path]] = {"npy": [], "png": [], "tiff": [], "zarr": []}
    for name, array in (("gray", gray), ("colour", colour), ("wide", gray.astype(np.uint16) * 7)):
        np.save(folder / f"{name}.npy", array)
        found["npy"].append(folder / f"{name}.npy")
        Pillow.fromarray(array).save(folder / f"{name}.png")
        found["png"].append(folder / f"{name}.png")
    stack = np.stack([gray] * 4).astype(np.uint16)
    kinds: list[tuple[str, Any, dict[str, Any]]] = [
        ("strips", gray, {"rowsperstrip": 16}),
        ("tiles", colour, {"tile": (32, 32), "compression": "zlib", "predictor": True, "photometric": "rgb"}),
        ("planar", colour.transpose(2, 0, 1), {"tile": (32, 32), "planarconfig": "separate", "photometric": "rgb"}),
        ("big", gray.astype(np.float32), {"tile": (16, 16), "compression": "lzw", "bigtiff": True}),
        ("jpeg", colour, {"tile": (32, 32), "compression": "jpeg", "photometric": "rgb"}),
        ("ome.ome", stack, {"tile": (32, 32), "metadata": {"axes": "ZYX", "PhysicalSizeX": 0.5}}),
        (
            "shaped",
            stack,
            {"photometric": "minisblack", "metadata": {"axes": "TYX"}, "byteorder": ">", "compression": "zlib"},
        ),
        ("imagej", stack[:3], {"imagej": True, "metadata": {"axes": "ZYX", "spacing": 2.0, "unit": "um"}}),
    ]
    for name, array, options in kinds:
        place = folder / f"{name}.tif"
        writer = {key: options.pop(key) for key in ("bigtiff", "byteorder") if key in options}
        imwrite(place, array, **writer, **options)
        found["tiff"].append(place)
    with TiffWriter(folder / "pyramid.tif", bigtiff=True) as pyramid:
        pyramid.write(gray, subifds=1, tile=(32, 32), compression="zlib")
        pyramid.write(gray[::2, ::2].copy(), subfiletype=1, tile=(32, 32), compression="zlib")
    with TiffWriter(folder / "pages.tif") as pyramid:
        pyramid.write(gray, tile=(32, 32), compression="zlib")
        pyramid.write(gray[::2, ::2].copy(), subfiletype=1, tile=(32, 32), compression="zlib")
    found["tiff"] += [folder / "pyramid.tif", folder / "pages.tif"]
    found["zarr"] = _zarr_seeds(folder, gray)
    found["slide"] = _slide_seeds(folder, np.dstack([colour, gray]))
    found["slices"] = [_slices(folder / kind, stack.astype(np.uint8)) for kind in ("png", "npy", "tif")]
    return found


def _slide_seeds(folder: Path, pixels: Any) -> list[Path]:
    """Make a file of each scanner and microscope of 64 x 48 pixels, from pixels with four bands."""
    four = np.ascontiguousarray(pixels[:64, :48])
    scan, label = np.ascontiguousarray(four[..., :3]), np.ascontiguousarray(four[:20, :12, :3])
    volume = np.stack([four.transpose(2, 0, 1)[:3]] * 3)
    return [
        slides.svs(folder / "a.svs", scan, compression="jpeg"), slides.svs(folder / "j.svs", scan, compression=33005),
        slides.scn(folder / "a.scn", [scan], label), slides.scn(folder / "c.scn", [four], label, channels=4),
        slides.bif(folder / "a.bif", scan, label), slides.qptiff(folder / "a.qptiff", four, label, list("abcd")),
        slides.philips(folder / "a.tiff", scan, label), slides.lsm(folder / "a.lsm", volume),
        slides.stk(folder / "a.stk", volume[:, 0]), slides.ndpi(folder / "a.ndpi", scan),
    ]  # fmt: skip


def _slices(folder: Path, planes: Any) -> Path:
    """Make a folder of slices, in the format that its name says."""
    from PIL import Image as Pillow
    from tifffile import imwrite

    folder.mkdir()
    for number, plane in enumerate(planes):
        place = folder / f"slice{number}.{folder.name}"
        if place.suffix == ".npy":
            np.save(place, plane)
        elif place.suffix == ".tif":
            imwrite(place, plane, compression="zlib")
        else:
            Pillow.fromarray(plane).save(place)
    return folder


def _zarr_seeds(folder: Path, gray: Any) -> list[Path]:
    try:
        import tensorstore
    except ModuleNotFoundError:
        return []
    made = []
    inner = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd"}]
    shards = {"name": "sharding_indexed", "configuration": {"chunk_shape": [8, 10], "codecs": inner}}
    grid = {"name": "regular", "configuration": {"chunk_shape": [16, 20]}}
    plain: dict[str, Any] = {"shape": gray.shape, "data_type": "uint8", "chunk_grid": grid}
    packed = {"shape": gray.shape, "dtype": "|u1", "chunks": [16, 20], "compressor": {"id": "zlib", "level": 1}}
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        ("v3.zarr", "zarr3", {**plain, "codecs": [shards], "dimension_names": ["y", "x"]}),
        ("v2.zarr", "zarr", packed),
        ("blosc.zarr", "zarr", {**packed, "compressor": {"id": "blosc", "cname": "lz4", "clevel": 1, "shuffle": 1}}),
        ("open.zarr", "zarr3", {**plain, "codecs": [_shards_of_blosc()]}),
        ("start.zarr", "zarr3", {**plain, "codecs": [_shards_of_blosc(index_location="start")]}),
    ]
    for name, driver, metadata in kinds:
        place = folder / name
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{place}/"}, "metadata": metadata}
        tensorstore.open(spec, create=True).result()[...] = gray
        made.append(place)
    channels = np.stack([gray, 255 - gray])
    omero = {"channels": [{"label": "a", "color": "FF0000"}, {"label": "b", "color": "00FF00"}]}
    for version in ("0.4", "0.5"):
        levels = [channels, channels[:, ::2, ::2], channels[:, ::4, ::4]]
        made.append(ome_zarr(folder / f"v{version[-1]}.ome.zarr", levels, "cyx", version=version, omero=omero))
    return made


def _shards_of_blosc(**more: Any) -> dict[str, Any]:
    """Return a codec of shards whose index has no check sum."""
    endian = {"name": "bytes", "configuration": {"endian": "little"}}
    blosc = {"name": "blosc", "configuration": {"cname": "zstd", "clevel": 1, "shuffle": "noshuffle", "typesize": 1}}
    inner = {"chunk_shape": [8, 10], "codecs": [endian, blosc], "index_codecs": [endian], **more}
    return {"name": "sharding_indexed", "configuration": inner}


def try_file(place: Path, folder: Path, suffix: str) -> str:
    """Read a file whole and filter it in units; return what happened. Only errors for the user are caught."""
    from convforge.imaging.files import read_image
    from convforge.imaging.pipeline import filter_large

    target = folder / f"out{suffix}"
    actions: list[Callable[[], Any]] = []
    if place.suffix in WHOLE:
        actions.append(lambda: read_image(place, max_pixels=MAX_PIXELS))
    if place.suffix != ".png":
        actions.append(lambda: filter_large(place, target, "box:3", memory=LIMIT, workers=1))
    said = []
    for action in actions:
        try:
            action()
            said.append("done")
        except ValueError as error:  # ImageError, AxesError, UnsupportedProblem
            said.append("refused" if _is_clear(error) else f"FAULT: an unclear message: {error!r:.300}")
    left = {path.name for path in folder.iterdir()}
    wanted = {target.name} if said[-1] == "done" and place.suffix != ".png" else set[str]()
    if left not in (wanted, {f"{target.name}.incomplete", f"{target.name}.journal"} - wanted):
        said.append(f"FAULT: left {sorted(left)}")
    return "; ".join(said)


def _is_clear(error: ValueError) -> bool:
    """True for one line of this library; the errors of NumPy and of Python say nothing of the file."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    own = "convforge" in Path(frame.f_code.co_filename).parts
    return own and "\n" not in str(error) and 10 < len(str(error)) < 2000


def worker() -> None:
    """Try each file that standard input names and answer with one line; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a hang ends the process
    for line in sys.stdin:
        place, folder, suffix = json.loads(line)
        signal.alarm(SECONDS)
        said = try_file(Path(place), Path(folder), suffix)
        signal.alarm(0)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps([said, peak]), file=answers, flush=True)


class Watched:
    """A process that tries files, started again after it ended.

    Parameters
    ----------
    intact : list of (Path, suffix)
        Files that it tries first, with suffixes of their results: they must be read, and the memory that they take
        counts for no file.
    folder : Path
        For what the process writes.
    """

    def __init__(self, intact: list[tuple[Path, str]], folder: Path) -> None:
        self._intact, self._folder, self.base = intact, folder, 0
        self._process: subprocess.Popen[str] | None = None
        self._errors = folder.with_name("errors.txt")

    def try_file(self, place: Path, suffix: str) -> str:
        """Return what happened."""
        if self._process is None:
            self._start()
        said, peak = self._ask(place, suffix)
        if peak - self.base > BEYOND:
            self.end()  # its peak would count for the next file
            return f"FAULT: took {peak - self.base} bytes ({said})"
        return said

    def _start(self) -> None:
        pipe = subprocess.PIPE
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.imaging.mutated", "worker"], text=True, stdin=pipe, stdout=pipe,
                stderr=errors, env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "1048576"},
            )  # fmt: skip
        for place, suffix in self._intact:
            said, self.base = self._ask(place, suffix)
            assert "refused" not in said, f"{place.name} to {suffix}: {said}"
            assert "FAULT" not in said, f"{place.name} to {suffix}: {said}"

    def _ask(self, place: Path, suffix: str) -> tuple[str, int]:
        process, self._folder = self._process, Path(tempfile.mkdtemp(dir=self._folder.parent))
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            try:
                process.stdin.write(json.dumps([str(place), str(self._folder), suffix]) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = ""
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        if line:
            said, peak = json.loads(line)
            return str(said), int(peak)
        code = process.wait()
        self.end()
        what = "hung" if code == -signal.SIGALRM else f"ended with {code}"
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        frames = [text.strip() for text in lines if "convforge/" in text and text.strip().startswith("File")]
        return f"FAULT: {what}: {' '.join(lines[-1:]):.300} {' '.join(frames[-1:])}", 0

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def run(
    count: int, seed: int, keep: Path | None = None, formats: tuple[str, ...] = ()
) -> tuple[Counter[str], list[str]]:
    """Try so many changed files; return how many were read or refused, and the faults."""
    faults: list[str] = []
    said: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "seeds").mkdir()
        known = {
            kind: made for kind, made in seeds(folder / "seeds").items() if made and (not formats or kind in formats)
        }
        intact = [(path, suffix) for kind, made in known.items() for path in made for suffix in set(TARGETS[kind])]
        watched, kinds = Watched(intact, folder / "results"), list(known)
        try:
            for number in range(count):
                chance = random.Random(f"{seed} {number}")
                kind = kinds[number % len(kinds)]
                origin = chance.choice(known[kind])
                place = folder / origin.name
                mutate(origin, place, chance)
                what = watched.try_file(place, chance.choice(TARGETS[kind]))
                if "FAULT" in what:
                    faults.append(f"{kind} {seed} {number} ({origin.name}): {what}")
                    if keep is not None:
                        keep.mkdir(exist_ok=True)
                        shutil.move(place, keep / f"{seed}-{number}-{origin.name}")
                said[f"{kind}: {'fault' if 'FAULT' in what else what}"] += 1
                if place.exists():
                    shutil.rmtree(place) if place.is_dir() else place.unlink()
        finally:
            watched.end()
    return said, faults


def main() -> None:
    if sys.argv[1:] == ["worker"]:
        worker()
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the files with faults go")
    parser.add_argument("formats", nargs="*", help="by default all: " + " ".join(TARGETS))
    given = parser.parse_args()
    begin = time.perf_counter()
    said, faults = run(given.count, given.seed, given.keep, tuple(given.formats))
    for what, number in sorted(said.items()):
        print(f"{number:6} {what}")
    print(*faults, sep="\n")
    print(f"{given.count} files in {time.perf_counter() - begin:.0f} s, {len(faults)} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
