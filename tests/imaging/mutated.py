"""Damaged files by the thousand: none may end the process, hang it, or take memory beyond a limit.

`python -m tests.imaging.mutated 10000` makes so many files from seed files of each format, each with a few changes, and
reads and filters each in a process of its own that is watched. It prints a line for each fault.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

LIMIT = 64 * 2**20  # bytes, of the filter in units
BEYOND = 512 * 2**20  # bytes that a process may take beyond what it takes for intact files
SECONDS = 20  # for one file
MAX_PIXELS = 2**22

NUMBERS = (0, 1, 2, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, -1)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    1.5,
    1e308,
    "",
    "x",
    "../..",
    "/etc",
    None,
    True,
    [],
    {},
    [[1]],
    {"a": 1},
    "NaN",
    [2**40] * 2,
)


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
    kinds: list[tuple[str, Any, dict[str, Any]]] = [
        ("strips", gray, {"rowsperstrip": 16}),
        ("tiles", colour, {"tile": (32, 32), "compression": "zlib", "predictor": True, "photometric": "rgb"}),
        ("big", gray.astype(np.float32), {"tile": (16, 16), "compression": "lzw", "bigtiff": True}),
        ("jpeg", colour, {"tile": (32, 32), "compression": "jpeg", "photometric": "rgb"}),
        ("ome.ome", np.stack([gray] * 4).astype(np.uint16), {"tile": (32, 32), "metadata": {"axes": "ZYX"}}),
        ("imagej", np.stack([gray] * 3), {"imagej": True}),
    ]
    for name, array, options in kinds:
        place = folder / f"{name}.tif"
        big = {"bigtiff": options.pop("bigtiff")} if "bigtiff" in options else {}
        imwrite(place, array, **big, **options)
        found["tiff"].append(place)
    with TiffWriter(folder / "pyramid.tif", bigtiff=True) as writer:
        writer.write(gray, subifds=1, tile=(32, 32), compression="zlib")
        writer.write(gray[::2, ::2].copy(), subfiletype=1, tile=(32, 32), compression="zlib")
    found["tiff"].append(folder / "pyramid.tif")
    found["zarr"] = _zarr_seeds(folder, gray)
    return found


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
        ("ome.ome.zarr/0", "zarr3", plain),
    ]
    for name, driver, metadata in kinds:
        place = folder / name
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{place}/"}, "metadata": metadata}
        tensorstore.open(spec, create=True).result()[...] = gray
        made.append(folder / name.partition("/")[0])
    axes = [{"name": name, "type": "space", "unit": "micrometer"} for name in "yx"]
    scale = [{"type": "scale", "scale": [0.5, 0.5]}]
    scales = {"version": "0.5", "axes": axes, "datasets": [{"path": "0", "coordinateTransformations": scale}]}
    group = {"zarr_format": 3, "node_type": "group", "attributes": {"ome": {"version": "0.5", "multiscales": [scales]}}}
    (folder / "ome.ome.zarr" / "zarr.json").write_text(json.dumps(group), encoding="utf-8")
    return made


def mutate(seed: Path, place: Path, chance: random.Random) -> None:
    """Write a changed copy of a file or folder."""
    if not seed.is_dir():
        data = changed_bytes(seed.read_bytes(), chance)
        place.write_bytes(with_sums(data) if seed.suffix == ".png" and chance.random() < 0.7 else data)
        return
    shutil.copytree(seed, place)
    files = sorted(path for path in place.rglob("*") if path.is_file())
    texts = [path for path in files if path.suffix == ".json" or path.name.startswith(".z")]
    for _ in range(chance.choice((1, 1, 2, 3))):
        path = chance.choice(texts if chance.random() < 0.7 else files)
        if not path.exists():
            continue
        if path in texts and chance.random() < 0.8:
            try:
                path.write_text(json.dumps(changed_json(json.loads(path.read_text()), chance)), encoding="utf-8")
            except ValueError:
                path.write_bytes(changed_bytes(path.read_bytes(), chance))
        elif chance.random() < 0.1:
            path.unlink()
        else:
            path.write_bytes(changed_bytes(path.read_bytes(), chance))


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    """Change bytes, most of them in the first part of a file, where its header is."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        if not out:
            break
        at = chance.randrange(min(len(out), chance.choice((16, 128, 1024, len(out)))))
        kind = chance.randrange(6)
        if kind == 0:
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            out[at] = chance.randrange(256)
        elif kind == 2:
            form = chance.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
            size = struct.calcsize(form)
            out[at : at + size] = struct.pack(form, chance.choice(NUMBERS) % 2 ** (8 * size))
        elif kind == 3:
            del out[at : at + chance.choice((1, 4, 64, len(out)))]
        elif kind == 4:
            out[at:at] = bytes(chance.randrange(256) for _ in range(chance.choice((1, 4, 64))))
        else:
            other = chance.randrange(len(out))
            out[at : at + 12] = out[other : other + 12]
    return bytes(out)


def with_sums(data: bytes) -> bytes:
    """Return a PNG whose chunks have true check sums, so that the decoder reads what was changed."""
    out, at = bytearray(data), 8
    while at + 12 <= len(out):
        size = struct.unpack_from(">I", out, at)[0]
        end = at + 8 + size
        if end + 4 > len(out):
            break
        struct.pack_into(">I", out, end, zlib.crc32(out[at + 4 : end]))
        at = end + 4
    return bytes(out)


def changed_json(value: Any, chance: random.Random) -> Any:
    """Replace, remove or repeat a part of a value."""
    places = list(_places(value))
    if not places:
        return chance.choice(VALUES)
    holder, key = chance.choice(places)
    kind = chance.randrange(4)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.append(holder[key])
    else:
        holder[key] = chance.choice(VALUES)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield value, key
        yield from _places(part)


def try_file(place: Path, folder: Path) -> str:
    """Read a file whole and filter it in units; return what happened. Only errors for the user are caught."""
    from convforge.imaging.files import read_image
    from convforge.imaging.pipeline import filter_large

    said = []
    for action in _actions(place, folder, read_image, filter_large):
        try:
            action()
            said.append("done")
        except ValueError as error:  # ImageError, AxesError, UnsupportedProblem
            said.append("refused" if str(error) else "refused without a word")
    return " ".join(said)


def _actions(
    place: Path, folder: Path, read: Callable[..., Any], filter_large: Callable[..., Any]
) -> list[Callable[[], Any]]:
    target = folder / f"out{''.join(place.suffixes[-2:]) if place.suffix in ('.zarr', '.tif') else place.suffix}"
    actions: list[Callable[[], Any]] = []
    if place.suffix != ".zarr":
        actions.append(lambda: read(place, max_pixels=MAX_PIXELS))
    if place.suffix != ".png":
        actions.append(lambda: filter_large(place, target, "box:3", memory=LIMIT, workers=1))
    return actions


def worker() -> None:
    """Try each file that standard input names, and answer with one line."""
    folder = Path(tempfile.mkdtemp())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a hang ends the process
    for line in sys.stdin:
        place = Path(line.rstrip("\n"))
        signal.alarm(SECONDS)
        said = try_file(place, folder)
        signal.alarm(0)
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        print(said, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, flush=True)
    shutil.rmtree(folder)


class Watched:
    """A process that tries files, started again after it ended."""

    def __init__(self, intact: list[Path]) -> None:
        self._intact, self._process, self.base = intact, None, 0

    def try_file(self, place: Path) -> tuple[str, int]:
        """Return what happened, and the bytes that the process took beyond those of intact files."""
        if self._process is None:
            command = [sys.executable, "-m", "tests.imaging.mutated", "worker"]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
            for each in self._intact:
                said, self.base = self._ask(each)
                assert "refused" not in said, f"{each.name}: {said}"
        said, peak = self._ask(place)
        if peak - self.base > BEYOND:
            self.end()
        return said, max(peak - self.base, 0)

    def _ask(self, place: Path) -> tuple[str, int]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{place}\n")
        process.stdin.flush()
        words = process.stdout.readline().split()
        if words:
            return " ".join(words[:-1]), int(words[-1])
        code = process.wait()
        said = (process.stderr.read() if process.stderr else "").strip().splitlines()
        self._process = None
        what = "hung" if code == -signal.SIGALRM else f"ended with {code}"
        return f"FAULT: {what}: {said[-1] if said else ''}", 0

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
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
        watched = Watched([path for made in known.values() for path in made])
        kinds = list(known)
        for number in range(count):
            chance = random.Random(f"{seed} {number}")
            kind = kinds[number % len(kinds)]
            origin = chance.choice(known[kind])
            place = folder / origin.name
            mutate(origin, place, chance)
            what, beyond = watched.try_file(place)
            if beyond > BEYOND:
                what = f"FAULT: took {beyond} bytes"
            if "FAULT" in what or "without" in what:
                faults.append(f"{kind} {seed} {number} ({origin.name}): {what}")
                if keep is not None:
                    keep.mkdir(exist_ok=True)
                    place.rename(keep / f"{number}-{origin.name}")
            said[f"{kind}: {'fault' if 'FAULT' in what else what}"] += 1
            if place.exists():
                shutil.rmtree(place) if place.is_dir() else place.unlink()
        watched.end()
    return said, faults


def main() -> None:
    if sys.argv[1:] == ["worker"]:
        worker()
        return
    begin = time.perf_counter()
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    said, faults = run(count, seed, Path("mutated-faults"), tuple(sys.argv[3:]))
    for what, number in sorted(said.items()):
        print(f"{number:6} {what}")
    print(*faults, sep="\n")
    print(f"{count} files in {time.perf_counter() - begin:.0f} s, {len(faults)} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
