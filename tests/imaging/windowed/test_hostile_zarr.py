"""Damaged and hostile metadata of Zarr and OME-Zarr: every fault is an ``ImageError``."""

from __future__ import annotations

import gzip
import json
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.imaging.pipeline.large import kept, recipe
from tests.imaging.windowed.ome import group, ome_zarr, zarr_level
from tests.imaging.windowed.windows import within

import convforge
from convforge.imaging.image import ImageError
from convforge.imaging.pipeline.large_plan import LargePlan
from convforge.imaging.windowed import open_windows
from convforge.imaging.windowed.result import letters_of
from convforge.imaging.windowed.zarr import FORMAT, ZarrReader

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
ABSENT = 2**64 - 1  # position and size of a chunk that a shard does not hold
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
    said = r"\.zattrs is larger than 16777216 bytes, so it is no metadata"
    with within(2**26), pytest.raises(ImageError, match=said):
        open_windows(path)


@pytest.mark.parametrize("chunks", [[2**20, 2**20], [2**14, 2**14], [2**40, 1], [2**62, 2**62]])
def test_a_chunk_larger_than_the_memory_is_never_decoded(tmp_path: Path, chunks: list[int]) -> None:
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    for number, metadata in enumerate([{**V3, "chunk_grid": grid}, {**V2, "chunks": chunks}]):
        path = stored(tmp_path / f"{number}.zarr", metadata)
        with pytest.raises(ValueError, match=r"is too small: one unit|is no Zarr array that can be read"):
            LargePlan(path, tmp_path / "b.zarr", recipe("box:3"), memory=2**20)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_huge_chunk_of_a_reduced_copy_is_not_made_again(tmp_path: Path, version: str) -> None:
    """A level whose only chunk has 16 TiB, of which the source stores no byte."""
    source = ome_zarr(tmp_path / "a.zarr", [IMAGE, IMAGE[::2, ::2]], "yx", version=version)
    path = source / "1" / ("zarr.json" if version == "0.5" else ".zarray")
    metadata = json.loads(path.read_text())
    (metadata["chunk_grid"]["configuration"] if version == "0.5" else metadata).update(
        {"chunk_shape": [16, 2**40]} if version == "0.5" else {"chunks": [16, 2**40]}
    )
    path.write_text(json.dumps(metadata))
    target = tmp_path / "b.ome.zarr"
    convforge.filter_large(source, target, "box:3")
    result = FORMAT.open(target)
    assert isinstance(result, ZarrReader)
    assert [level.layout.chunks for level in result.levels] == [(16, 16), (16, 16)]
    assert result.levels[1].read((slice(0, 10), slice(0, 15))).any()


def packed(codec: str, size: int) -> bytes:
    """So many zeros, compressed."""
    import imagecodecs

    if codec == "blosc":
        return bytes(imagecodecs.blosc_encode(bytes(size), compressor="zstd", level=9))
    return bytes(imagecodecs.zstd_encode(bytes(size)) if codec == "zstd" else gzip.compress(bytes(size), 9))


def one_chunk(path: Path, version: int, codec: str, data: bytes, *, shard: bool = False, **index: Any) -> Path:
    """Write an array of 16 x 16 bytes of one file: a chunk, or a shard of two chunks of which one is stored."""
    codecs: list[Any] = {
        "blosc": [{"name": "blosc", "configuration": {"cname": "zstd", "clevel": 9, "shuffle": "noshuffle",
                                                      "blocksize": 0, "typesize": 1}}],
        "zstd": [{"name": "zstd", "configuration": {"level": 1}}], "raw": [],
        "gzip": [{"name": "gzip", "configuration": {"level": 1}}],
    }[codec]  # fmt: skip
    codecs = [BYTES, *codecs]
    if shard:
        inner = {"chunk_shape": [16, 8], "codecs": codecs, "index_codecs": [BYTES], **index}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
        table = struct.pack("<4Q", ABSENT, ABSENT, 32 if index else 0, len(data))
        data = table + data if index else data + table
    if version == 3:
        grid = {"name": "regular", "configuration": {"chunk_shape": [16, 16]}}
        stored(path, {**V3, "shape": [16, 16], "data_type": "uint8", "chunk_grid": grid, "codecs": codecs})
        (path / "c" / "0").mkdir(parents=True)
    else:
        compressor = {"blosc": {"id": "blosc", "cname": "zstd", "clevel": 9, "shuffle": 0, "blocksize": 0},
                      "zstd": {"id": "zstd", "level": 1}, "gzip": {"id": "gzip", "level": 1},
                      "raw": None}[codec]  # fmt: skip
        stored(path, {**V2, "shape": [16, 16], "chunks": [16, 16], "dtype": "|u1", "compressor": compressor})
    (path / ("c/0/0" if version == 3 else "0.0")).write_bytes(data)
    return path


@pytest.mark.parametrize("codec", ["blosc", "zstd", "gzip", "raw"])
def test_a_chunk_that_expands_takes_no_memory(tmp_path: Path, codec: str) -> None:
    """2 GiB of a blosc header, 256 MiB of the others, which tensorstore decodes in a stream; a file of 1 GiB."""
    pytest.importorskip("imagecodecs")
    cases: list[tuple[int, dict[str, Any]]] = [(2, {}), (3, {}), (3, {"shard": True})]
    cases.append((3, {"shard": True, "index_location": "start"}))
    for number, (version, options) in enumerate(cases):
        data = b"" if codec == "raw" else packed(codec, 2**20 if codec == "blosc" else 2**28)
        if codec == "blosc":
            data = data[:4] + struct.pack("<I", 2**31 - 16) + data[8:]
        path = one_chunk(tmp_path / f"{number}.zarr", version, codec, data, **options)
        if codec == "raw":
            with (path / ("c/0/0" if version == 3 else "0.0")).open("r+b") as file:
                file.truncate(2**30)
        words = {"blosc": "whose blosc header names 2147483632 bytes", "raw": "has 1073741824 bytes, and"}.get(
            codec, ""
        )
        reader = open_windows(path)
        before = peak()
        with pytest.raises(ImageError, match=words or "a chunk is damaged|has [0-9]+ bytes"):
            reader.read((slice(0, 16), slice(0, 16)))
        assert peak() - before < 2**26


def peak() -> int:
    """Most resident memory of the process, in bytes."""
    resource = pytest.importorskip("resource")
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def test_a_chunk_of_a_shard_is_checked_only_if_it_is_read(tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    good = packed("blosc", 128)
    for number, index in enumerate([{}, {"index_location": "start"}]):
        path = one_chunk(tmp_path / f"{number}.zarr", 3, "blosc", good, shard=True, **index)
        assert not open_windows(path).read((slice(0, 16), slice(0, 16))).any()
        content = (path / "c/0/0").read_bytes()
        at = content.index(good)
        (path / "c/0/0").write_bytes(content[: at + 4] + struct.pack("<I", 2**30) + content[at + 8 :])
        assert not open_windows(path).read((slice(0, 16), slice(0, 8))).any()
        with pytest.raises(ImageError, match=r"c/0/0 has a chunk whose blosc header names 1073741824 bytes"):
            open_windows(path).read((slice(3, 5), slice(7, 9)))


@pytest.mark.parametrize("index", [{}, {"index_location": "start"}])
def test_a_shard_whose_index_names_a_large_part_of_the_file(tmp_path: Path, index: Any) -> None:
    path = one_chunk(tmp_path / "a.zarr", 3, "raw", bytes(128), shard=True, **index)
    content = (path / "c/0/0").read_bytes()
    entry = struct.pack("<Q", 128)
    assert content.count(entry) == 1
    for count, words in ((2**40, "has a chunk of 1099511627776 bytes"), (2**20, "a chunk is damaged")):
        (path / "c/0/0").write_bytes(content.replace(entry, struct.pack("<Q", count)))
        with pytest.raises(ImageError, match=words):
            open_windows(path).read((slice(0, 16), slice(8, 16)))


def test_codecs_that_hide_a_size_are_refused(tmp_path: Path) -> None:
    zstd, blosc = {"name": "zstd"}, {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 1, "blocksize": 0}}
    inner = {"chunk_shape": [4, 4], "codecs": [BYTES, blosc, zstd], "index_codecs": [BYTES]}
    sharding = {"name": "sharding_indexed", "configuration": inner}
    for number, (codecs, words) in enumerate(
        [
            ([BYTES, blosc, zstd], "encodes blosc once more by 'zstd'"),
            ([sharding], "encodes blosc once more by 'zstd'"),
            ([sharding, zstd], "encodes sharding_indexed once more by 'zstd'"),
            ([{**sharding, "configuration": {**inner, "codecs": [BYTES], "index_codecs": [BYTES, zstd]}}],
             "index of its shards is encoded by bytes, zstd|is no Zarr array that can be read"),
        ]
    ):  # fmt: skip
        path = stored(tmp_path / f"{number}.zarr", {**V3, "codecs": codecs})
        with pytest.raises(ImageError, match=words):
            open_windows(path)


@pytest.mark.parametrize("transposed", [False, True])
def test_shards_of_blosc_are_read_in_any_window(tmp_path: Path, transposed: bool) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    volume = np.random.default_rng(3).integers(1, 200, (9, 21, 34), np.uint8)
    codecs = [BYTES, {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 1, "typesize": 1}}]
    inner = {"chunk_shape": [2, 4, 5], "codecs": codecs, "index_codecs": [BYTES, {"name": "crc32c"}]}
    if transposed:
        inner["chunk_shape"] = [5, 2, 4]
    before = [{"name": "transpose", "configuration": {"order": [2, 0, 1]}}] if transposed else []
    grid = {"name": "regular", "configuration": {"chunk_shape": [4, 8, 20]}}
    metadata = {"data_type": "uint8", "shape": volume.shape, "chunk_grid": grid,
                "codecs": [*before, {"name": "sharding_indexed", "configuration": inner}]}  # fmt: skip
    path = tmp_path / "a.zarr"
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}, "metadata": metadata}
    tensorstore.open(spec, create=True).result()[...] = volume
    reader = open_windows(path)
    for start, stop in (((0, 0, 0), volume.shape), ((3, 7, 19), (5, 9, 21)), ((8, 20, 33), (9, 21, 34))):
        window = tuple(map(slice, start, stop))
        np.testing.assert_array_equal(reader.read(window), volume[window])


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
    with within(2**26):
        path = stored(tmp_path / "a.zarr", {**V3, "shape": shape})
        reader = open_windows(path)
        assert reader.read((slice(0, 2), slice(0, 3))).shape == (2, 3)
        assert FORMAT.source_notes(reader)
        target, named = tmp_path / "b.ome.zarr", replace(reader.layout, axes="YX")
        layout = FORMAT.arranged(named, target, reader)
        FORMAT.create(target, layout, reader)
        assert open_windows(target).layout.levels == layout.levels


@pytest.mark.parametrize(
    ("shape", "name", "what"),
    [
        ([2**40, 20, 30], "b.tif", "pages"), ([1, 2**20, 2**27], "b.tif", "strips or tiles of a page"),
        ([2**40, 20, 30], "b.ome.tif", "pages"), ([2**20, 20, 30], "b.ome.tif", "channels"),
    ],
)  # fmt: skip
def test_an_absurd_shape_becomes_no_tiff(tmp_path: Path, shape: list[int], name: str, what: str) -> None:
    """The XML and the tables of a TIFF take memory for each page and each tile."""
    grid = {"name": "regular", "configuration": {"chunk_shape": [1, 16, 16]}}
    more = {"shape": shape, "chunk_grid": grid, "dimension_names": ["c", "y", "x"]}
    path = stored(tmp_path / "a.zarr", {**V3, **more})
    said = rf"{name}: would have [0-9]+ {what}, more than [0-9]+; write a Zarr array"
    with within(2**26), pytest.raises(ImageError, match=said):
        LargePlan(path, tmp_path / name, recipe("box:3"), memory=2**24)


@pytest.mark.parametrize("shape", [[2**40, 20, 30], [2**36, 2**14, 30]])
def test_an_absurd_number_of_units_is_refused_before_anything_is_written(tmp_path: Path, shape: list[int]) -> None:
    grid = {"name": "regular", "configuration": {"chunk_shape": [1, 16, 16]}}
    path = stored(tmp_path / "a.zarr", {**V3, "shape": shape, "chunk_grid": grid, "dimension_names": ["z", "y", "x"]})
    said = rf"a.zarr: a result of {shape[0]} x .* has [0-9]+ units, more than 10000000;"
    with within(2**26), pytest.raises(ImageError, match=said):
        LargePlan(path, tmp_path / "b.zarr", recipe("box:3"), memory=2**24)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.zarr"]


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
    wanted = (
        f"{source}: 1 of 4 chunks are not stored; they are read as the fill value 0, which is right for empty parts of "
        "an image; if there should be pixels, copy the array again from its origin"
    )
    assert FORMAT.source_notes(reader) == (wanted,)
    assert not reader.read((slice(16, 20), slice(0, 16))).any()
    assert FORMAT.source_notes(open_windows(kept(tmp_path / "b.npy", IMAGE))) == ()


def test_a_group_that_is_no_image_names_an_array_in_it(tmp_path: Path) -> None:
    path = group(tmp_path / "a.zarr", 3, {})
    zarr_level(path / "inner", IMAGE, "yx", "0.5")
    with pytest.raises(ImageError, match=rf"is a Zarr group; name an array in it, such as {path / 'inner'}"):
        open_windows(path)
    assert not FORMAT.is_own(path)
