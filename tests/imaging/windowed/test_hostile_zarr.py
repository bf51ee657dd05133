"""Damaged and hostile metadata of Zarr and OME-Zarr: every fault is an ``ImageError``."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.imaging.pipeline.large import kept, recipe
from tests.imaging.windowed.ome import group, ome_zarr, zarr_level

import convforge
from convforge.imaging.image import ImageError
from convforge.imaging.pipeline.large_plan import LargePlan
from convforge.imaging.windowed import open_windows
from convforge.imaging.windowed.result import letters_of
from convforge.imaging.windowed.zarr import FORMAT

IMAGE = np.arange(20 * 30, dtype=np.uint16).reshape(20, 30)
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
V3: dict[str, Any] = {
    "zarr_format": 3, "node_type": "array", "shape": [20, 30], "data_type": "uint16", "codecs": [BYTES],
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 8]}},
    "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
}  # fmt: skip
V2: dict[str, Any] = {
    "zarr_format": 2, "shape": [20, 30], "chunks": [8, 8], "dtype": "<u2", "compressor": None, "fill_value": 0,
    "order": "C", "filters": None,
}  # fmt: skip
WRONG: list[Any] = [None, 5, -1, True, "x", "../..", [], {}, [None], [{}], {"name": 3}, [[[]]], 1e400, 2**70, "\ud800"]


def stored(path: Path, metadata: Any) -> Path:
    path.mkdir(parents=True)
    name = "zarr.json" if metadata.get("zarr_format") == 3 else ".zarray"
    (path / name).write_text(json.dumps(metadata))
    return path


def refused(path: Path) -> str:
    """The message of a path that cannot be read, or an empty text if a result can be made of it."""
    target = path.with_name("result.ome.zarr")
    try:
        reader = open_windows(path)
        letters = letters_of(path, reader.layout, None)
        layout = FORMAT.arranged(replace(reader.layout, axes=letters), target, reader)
        FORMAT.create(target, layout, reader)
        reader.fingerprint()
        FORMAT.lost(reader, layout)
        FORMAT.source_notes(reader)
    except ImageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("metadata", [V2, V3], ids=["v2", "v3"])
def test_wrong_members_of_an_array_are_refused_or_unused(tmp_path: Path, metadata: Any, value: Any) -> None:
    for number, member in enumerate([*metadata, "attributes", "dimension_names", "dimension_separator"]):
        path = stored(tmp_path / str(number) / "a.zarr", {"zarr_format": metadata["zarr_format"]} | metadata)
        name = "zarr.json" if metadata is V3 else ".zarray"
        (path / name).write_text(json.dumps({**metadata, member: value}))
        message = refused(path)
        if member in ("shape", "chunk_grid", "chunks", "dtype", "data_type", "codecs", "node_type"):
            assert message
        assert not message or "a.zarr" in message or "result.ome.zarr" in message
        assert len(message) < 2000


def test_absent_members_of_an_array_are_refused(tmp_path: Path) -> None:
    for metadata in (V2, V3):
        for member in set(metadata) - {"zarr_format", "filters"}:
            rest = {name: value for name, value in metadata.items() if name != member}
            path = stored(tmp_path / str(metadata["zarr_format"]) / member / "a.zarr", rest)
            with pytest.raises(ImageError, match=rf"a\.zarr: .*{member}"):
                open_windows(path)


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("version", ["0.3", "0.4", "0.5"])
def test_wrong_members_of_an_image_are_refused_or_unused(tmp_path: Path, version: str, value: Any) -> None:
    path = ome_zarr(tmp_path / "a.zarr", [IMAGE, IMAGE[::2, ::2]], "yx", version=version)
    for number in range(2):
        (path / str(number)).rename(tmp_path / str(number))

    def image(name: str, **more: Any) -> Path:
        made = ome_zarr(tmp_path / name / "a.zarr", [], "yx", version=version, datasets=2, **more)
        for number in range(2):
            (made / str(number)).symlink_to(tmp_path / str(number))
        return made

    for member in ("version", "axes", "datasets", "coordinateTransformations", "name", "type"):
        message = refused(image(member, multiscale={member: value}))
        assert message or (member not in ("axes", "datasets")) or value is None
        assert not message or "a.zarr" in message
    one = {"path": "0", "coordinateTransformations": value}
    datasets = {"datasets": [one, {"path": value}]}, {"datasets": [one]}, {"datasets": [{"path": value}]}
    for number, more in enumerate(datasets):
        refused(image(f"datasets {number}", multiscale=more))
    for kind in ("scale", "translation"):
        steps = [[{"type": kind, kind: value}], [{"type": kind, kind: [value, value]}], [{"type": value}]]
        for number, step in enumerate(steps):
            more = {"datasets": [{"path": "0", "coordinateTransformations": step}]}
            refused(image(f"{kind} {number}", multiscale=more))
    names = [
        [{"name": value}, {"name": "x"}],
        ["y", value],
        [{"name": "y", "type": value, "unit": value}, {"name": "x"}],
    ]
    for number, axes in enumerate(names):
        refused(image(f"axes {number}", multiscale={"axes": axes}))
    refused(image("omero", omero=value))
    refused(image("channels", omero={"channels": value}))
    for member in ("ome", "multiscales", "plate", "well", "labels", "bioformats2raw.layout"):
        refused(image(member + "s", group={member: value}))


@pytest.mark.parametrize(
    "path", ["../secret", "/etc", "..", ".", "", "a//b", "a/../../secret", "x\0y", "c:\\x", "zarr.json"]
)
def test_a_path_outside_of_the_group_is_not_read(tmp_path: Path, path: str) -> None:
    zarr_level(tmp_path / "secret", IMAGE, "yx", "0.5")
    source = ome_zarr(tmp_path / "a.zarr", [IMAGE], "yx", multiscale={"datasets": [{"path": path}]})
    with pytest.raises(ImageError, match="must be a relative path inside the group"):
        open_windows(source)


@pytest.mark.parametrize("paths", [["0", "0"], ["0", "0/c"], ["0", "1"], ["0"] * 65, ["0", "a" * 300]])
def test_datasets_that_are_not_levels_are_refused(tmp_path: Path, paths: list[str]) -> None:
    datasets = [{"path": path} for path in paths]
    source = ome_zarr(tmp_path / "a.zarr", [IMAGE], "yx", version="0.4", multiscale={"datasets": datasets})
    with pytest.raises(ImageError, match=r"a\.zarr.*(occurs twice|holds no array|1 to 64|cannot be read)"):
        open_windows(source)


def test_levels_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    for number, levels in enumerate([[IMAGE, IMAGE[:, :9].astype(np.uint8)], [IMAGE[:9], IMAGE], [IMAGE, IMAGE[:0]]]):
        source = ome_zarr(tmp_path / f"{number}.zarr", levels, "yx")
        with pytest.raises(ImageError, match=r"differ in sample type|not in order|has no pixel"):
            open_windows(source)
    with pytest.raises(ImageError, match="name 2 axes, and level 0 has 3"):
        open_windows(
            ome_zarr(
                tmp_path / "3.zarr", [IMAGE[None]], "zyx", multiscale={"axes": ["y", "x"], "datasets": [{"path": "0"}]}
            )
        )


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "5", '{"a":' * 100_000, "[" * 10**6, "9" * 5000, '{"a": ' + "[" * 80 + "]" * 80 + "}"]
)
@pytest.mark.parametrize("name", ["zarr.json", ".zarray", ".zattrs"])
def test_texts_that_are_no_metadata(tmp_path: Path, name: str, text: str) -> None:
    path = stored(tmp_path / "a.zarr", V2)
    (path / name).write_text(text)
    with pytest.raises(ImageError, match=rf"a\.zarr: {name} (is truncated or damaged|holds|is nested)"):
        open_windows(path)


def test_metadata_of_many_megabytes_are_not_parsed(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.zarr", V2)
    with (path / ".zattrs").open("wb") as file:
        file.truncate(2**34)
    tracemalloc.start()
    with pytest.raises(ImageError, match=r"\.zattrs is larger than 16777216 bytes, so it is no metadata"):
        open_windows(path)
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()


@pytest.mark.parametrize("chunks", [[2**20, 2**20], [2**14, 2**14], [2**40, 1], [2**62, 2**62]])
def test_a_chunk_larger_than_the_memory_is_never_decoded(tmp_path: Path, chunks: list[int]) -> None:
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    for number, metadata in enumerate([{**V3, "chunk_grid": grid}, {**V2, "chunks": chunks}]):
        path = stored(tmp_path / f"{number}.zarr", metadata)
        with pytest.raises(ValueError, match=r"is too small: one unit|is no Zarr array that can be read"):
            LargePlan(path, tmp_path / "b.zarr", recipe("box:3"), memory=2**20)


def test_a_shard_of_too_many_chunks_is_refused(tmp_path: Path) -> None:
    inner = {"chunk_shape": [1, 1], "codecs": [BYTES], "index_codecs": [BYTES]}
    sharding = {"name": "sharding_indexed", "configuration": inner}
    grid = {"name": "regular", "configuration": {"chunk_shape": [2**14, 2**14]}}
    path = stored(tmp_path / "a.zarr", {**V3, "chunk_grid": grid, "codecs": [sharding]})
    with pytest.raises(ImageError, match="a shard holds 268435456 chunks, more than 4194304"):
        open_windows(path)
    nested = {"name": "sharding_indexed", "configuration": {**inner, "chunk_shape": [2, 2], "codecs": [sharding]}}
    path = stored(tmp_path / "b.zarr", {**V3, "codecs": [nested]})
    with pytest.raises(ImageError, match="shards inside shards"):
        open_windows(path)


@pytest.mark.parametrize("shape", [[2**60, 2**60], [2**60, 3], [10**9, 10**9]])
def test_an_absurd_shape_takes_no_memory(tmp_path: Path, shape: list[int]) -> None:
    tracemalloc.start()
    path = stored(tmp_path / "a.zarr", {**V3, "shape": shape})
    reader = open_windows(path)
    assert reader.read((slice(0, 2), slice(0, 3))).shape == (2, 3)
    assert FORMAT.source_notes(reader)
    target, named = tmp_path / "b.ome.zarr", replace(reader.layout, axes="YX")
    layout = FORMAT.arranged(named, target, reader)
    FORMAT.create(target, layout, reader)
    assert open_windows(target).layout.levels == layout.levels
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({**V3, "codecs": [BYTES, {"name": "numcodecs.lzma"}]}, "'numcodecs.lzma', which is not supported"),
        ({**V3, "codecs": [BYTES, "vlen"]}, "'vlen', which is not supported"),
        ({**V2, "compressor": {"id": "lz4"}}, "is compressed by lz4, which is not supported"),
        ({**V2, "filters": [{"id": "delta"}, {"id": "crc32"}]}, "filters of Zarr 2 .* has delta, crc32"),
        ({**V3, "data_type": "complex64"}, "samples are complex64"),
        ({**V2, "dtype": [["a", "<u2"]]}, "is no Zarr array that can be read"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, metadata: Any, named: str) -> None:
    path = stored(tmp_path / "a.zarr", metadata | ({"fill_value": [0.0, 0.0]} if "complex" in named else {}))
    with pytest.raises(ImageError, match=named):
        open_windows(path)


@pytest.mark.parametrize("codec", ["zstd", "gzip", "blosc", "transpose", "sharding_indexed", "crc32c"])
def test_codecs_of_version_3_are_read_and_kept(tmp_path: Path, codec: str) -> None:
    inner = {"chunk_shape": [4, 4], "codecs": [BYTES, {"name": "zstd"}], "index_codecs": [BYTES, {"name": "crc32c"}]}
    blosc = {"cname": "zstd", "clevel": 1, "shuffle": "noshuffle", "blocksize": 0}
    codecs = {
        "zstd": [BYTES, {"name": "zstd", "configuration": {"level": 3, "checksum": True}}],
        "gzip": [BYTES, {"name": "gzip", "configuration": {"level": 1}}],
        "blosc": [BYTES, {"name": "blosc", "configuration": {**blosc, "typesize": 2}}],
        "transpose": [{"name": "transpose", "configuration": {"order": [1, 0]}}, BYTES],
        "sharding_indexed": [{"name": "sharding_indexed", "configuration": inner}],
        "crc32c": [BYTES, {"name": "crc32c"}],
    }[codec]
    zarr_level(tmp_path / "a.zarr", IMAGE, "yx", "0.5", codecs=codecs)
    convforge.filter_large(tmp_path / "a.zarr", tmp_path / "b.zarr", "laplacian")
    reader = open_windows(tmp_path / "b.zarr")
    np.testing.assert_array_equal(reader.read((slice(0, 20), slice(0, 30))), convforge.filter(IMAGE, "laplacian"))
    assert json.loads((tmp_path / "b.zarr" / "zarr.json").read_text())["codecs"][0]["name"] == codecs[0]["name"]


def test_zstd_of_version_2_with_numcodecs_checksum_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    zarr_level(path, IMAGE, "yx", "0.4", compressor={"id": "zstd", "level": 1})
    metadata = json.loads((path / ".zarray").read_text())
    metadata["compressor"]["checksum"] = False  # tensorstore does not know this member
    (path / ".zarray").write_text(json.dumps(metadata))
    convforge.filter_large(path, tmp_path / "b.zarr", "laplacian")
    assert json.loads((tmp_path / "b.zarr" / ".zarray").read_text())["compressor"]["id"] == "zstd"


@pytest.mark.parametrize("more", [{}, {"dimension_separator": "."}, {"chunk_key_encoding": {"name": "v2"}}])
def test_lost_chunks_are_counted(tmp_path: Path, more: Any) -> None:
    version = "0.4" if "dimension_separator" in more else "0.5"
    source = ome_zarr(tmp_path / "a.zarr", [IMAGE + 1, IMAGE[::2, ::2]], "yx", version=version, array=more)
    reader = open_windows(source)
    assert FORMAT.source_notes(reader) == ()
    name = {"0.4": "1.0"}.get(version, "1.0" if more else "c/1/0")
    (source / "0" / name).unlink()
    (source / "0" / "note.txt").write_text("")
    reader = open_windows(source)
    wanted = f"{source}: 1 of 4 chunks are not stored; they are read as the fill value 0"
    assert FORMAT.source_notes(reader) == (wanted,)
    assert not reader.read((slice(16, 20), slice(0, 16))).any()
    assert FORMAT.source_notes(open_windows(kept(tmp_path / "b.npy", IMAGE))) == ()


def test_a_group_that_is_no_image_names_an_array_in_it(tmp_path: Path) -> None:
    path = group(tmp_path / "a.zarr", 3, {})
    zarr_level(path / "inner", IMAGE, "yx", "0.5")
    with pytest.raises(ImageError, match=rf"is a Zarr group; name an array in it, such as {path / 'inner'}"):
        open_windows(path)
    assert not FORMAT.is_own(path)
