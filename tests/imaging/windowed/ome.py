"""OME-Zarr images made by hand, and a check of their metadata by the rules of the specification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convforge.imaging.windowed import Layout, WindowWriter

AXES = {
    "t": {"name": "t", "type": "time", "unit": "second"},
    "c": {"name": "c", "type": "channel"},
    **{name: {"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"},
}


def ome_zarr(path: Path, levels: list[Any], letters: str, *, version: str = "0.5", **more: Any) -> Path:
    """Write an image of these arrays; `more` holds `multiscale`, `omero`, `group` (attributes), `array` (metadata).

    With `datasets`, the metadata name so many levels.

    Every level is displaced by the centre of the samples of level 0 that were averaged, at 0.5 micrometres a sample.
    """
    for number, array in enumerate(levels):
        zarr_level(path / str(number), array, letters, version, **more.get("array", {}))
    scale = [{"t": 3.0, "c": 1.0, "z": 2.0}.get(letter, 0.5) for letter in letters]
    datasets: list[dict[str, Any]] = []
    for number in range(more.get("datasets", len(levels))):
        factor = [1 if letter in "tcz" else 2**number for letter in letters]
        own = [side * step for side, step in zip(scale, factor, strict=True)]
        shift = [7 + (step - 1) / 2 * side for side, step in zip(scale, factor, strict=True)]
        both = [{"type": "scale", "scale": own}, {"type": "translation", "translation": shift}]
        datasets.append({"path": str(number)} | ({"coordinateTransformations": both} if version >= "0.4" else {}))
    axes: Any = [AXES[letter] for letter in letters] if version >= "0.4" else list(letters)
    multiscale = {"name": "cells", "datasets": datasets} | ({} if version < "0.3" else {"axes": axes})
    multiscale |= {"type": "gaussian"} | more.get("multiscale", {})
    omero = {"omero": more["omero"]} if "omero" in more else {}
    if version == "0.5":
        group(path, 3, {"ome": {"version": version, "multiscales": [multiscale], **omero}} | more.get("group", {}))
    else:
        group(path, 2, {"multiscales": [{"version": version, **multiscale}], **omero, **more.get("group", {})})
    return path


def group(path: Path, version: int, attributes: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    if version == 3:
        metadata = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
        (path / "zarr.json").write_text(json.dumps(metadata))
    else:
        (path / ".zgroup").write_text('{"zarr_format": 2}')
        (path / ".zattrs").write_text(json.dumps(attributes))
    return path


def zarr_level(path: Path, array: Any, letters: str, version: str, chunk: int = 16, **more: Any) -> None:
    """Write one array in chunks of one plane, `chunk` samples high and wide."""
    tensorstore = pytest.importorskip("tensorstore")
    chunks = [1 if letter in "tcz" else chunk for letter in letters]
    metadata: dict[str, Any]
    if version == "0.5":
        grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip"}]
        metadata = {"data_type": array.dtype.name, "chunk_grid": grid, "codecs": codecs, "dimension_names": [*letters]}
    else:
        compressor = {"id": "zlib", "level": 1}
        metadata = {"dtype": array.dtype.str, "chunks": chunks, "compressor": compressor, "dimension_separator": "/"}
    spec = {"driver": "zarr3" if version == "0.5" else "zarr", "kvstore": {"driver": "file", "path": f"{path}/"}}
    spec["metadata"] = {**metadata, "shape": array.shape, **more}
    tensorstore.open(spec, create=True).result()[...] = array


def attributes(path: Path) -> dict[str, Any]:
    """The attributes of a group."""
    if (path / "zarr.json").exists():
        return dict(json.loads((path / "zarr.json").read_text())["attributes"])
    return dict(json.loads((path / ".zattrs").read_text()))


def checked(path: Path) -> dict[str, Any]:
    """Check an image by the rules of its version, with its arrays as zarr-python reads them; return its multiscale."""
    zarr = pytest.importorskip("zarr")
    opened = zarr.open_group(path, mode="r")
    found = dict(opened.attrs)
    if opened.metadata.zarr_format == 3:
        found = found["ome"]
        version = found["version"]
        assert version == "0.5"
    else:
        version = found["multiscales"][0]["version"]
        assert version in ("0.1", "0.2", "0.3", "0.4")
    (multiscale,) = found["multiscales"]
    arrays = [opened[dataset["path"]] for dataset in multiscale["datasets"]]
    if version >= "0.3":
        _check_axes(multiscale["axes"], arrays, version)
    else:
        assert "axes" not in multiscale
        assert all(array.ndim == 5 for array in arrays)
    assert len({array.dtype for array in arrays}) == 1
    shapes = [array.shape for array in arrays]
    assert shapes == sorted(shapes, reverse=True)
    for dataset, array in zip(multiscale["datasets"], arrays, strict=True):
        if version < "0.4":
            assert set(dataset) == {"path"}
            continue
        scale, *translation = dataset["coordinateTransformations"]
        assert scale["type"] == "scale"
        assert len(scale["scale"]) == array.ndim
        for entry in translation:
            assert entry["type"] == "translation"
            assert len(entry["translation"]) == array.ndim
        assert len(translation) <= 1
    for channel in found.get("omero", {}).get("channels", []):
        assert len(bytes.fromhex(channel["color"])) == 3
        assert {"min", "max", "start", "end"} <= set(channel["window"])
    return dict(multiscale)


def _check_axes(axes: list[Any], arrays: list[Any], version: str) -> None:
    names = [axis if version == "0.3" else axis["name"] for axis in axes]
    assert len(set(names)) == len(names)
    assert all(array.ndim == len(names) for array in arrays)
    if version == "0.3":
        return
    order = ["time", "channel", "space"]
    kinds = [order.index(axis["type"]) for axis in axes]
    assert kinds == sorted(kinds)
    assert 2 <= kinds.count(2) <= 3
    assert kinds.count(0) <= 1
    assert kinds.count(1) <= 1
    assert [name for name in names if name in "zyx"] == [name for name in "zyx" if name in names]
    if version == "0.5":
        assert all(list(array.metadata.dimension_names) == names for array in arrays)


def scales(multiscale: dict[str, Any]) -> list[list[float]]:
    return [dataset["coordinateTransformations"][0]["scale"] for dataset in multiscale["datasets"]]


def filled(writer: WindowWriter, value: int = 1) -> None:
    """Write every sample of an array and of its levels: level k gets `value` + k."""
    for number, level in enumerate([writer, *writer.levels]):
        shape = level.layout.shape
        level.write(tuple(slice(0, size) for size in shape), np.full(shape, value + number, level.layout.dtype))


def layout_of(shape: tuple[int, ...], letters: str, dtype: str = "uint16", **more: Any) -> Layout:
    return Layout(shape, np.dtype(dtype), letters, **more)
