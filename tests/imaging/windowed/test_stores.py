"""Zarr in S3, against a local server, and behind HTTP: reading, writing, resuming, and stores that go away."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.imaging.pipeline.large import RANDOM, kept, recipe, zarr_array
from tests.imaging.windowed.gcs import Gcs
from tests.imaging.windowed.ome import filled, layout_of, ome_zarr, zarr_level

import convforge
from convforge.imaging.image import ImageError
from convforge.imaging.pipeline import large_plan
from convforge.imaging.pipeline.large import LargeFilter
from convforge.imaging.windowed import Url, WindowReader, WindowWriter, format_of, open_windows
from convforge.imaging.windowed.zarr import FORMAT, stores

IMAGE = RANDOM.integers(1, 65536, (40, 30), dtype=np.uint16)
EVERYTHING = (slice(0, 40), slice(0, 30))
BUCKET = "images"


class S3:
    """A server of S3 on this machine, which keeps its objects while it is stopped."""

    def __init__(self) -> None:
        self.server = pytest.importorskip("moto.server").ThreadedMotoServer(
            ip_address="127.0.0.1", port=0, verbose=False
        )
        self.start()
        self.url = "http://{}:{}".format(*self.server.get_host_and_port())
        boto3 = pytest.importorskip("boto3")
        keys = {"aws_access_key_id": "me", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
        self.client = boto3.client("s3", endpoint_url=self.url, **keys)

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        """Stop the server; it starts again at the same port."""
        host, port = self.server.get_host_and_port()
        self.server.stop()
        self.server = type(self.server)(ip_address=host, port=port, verbose=False)

    def names(self) -> list[str]:
        return [entry["Key"] for entry in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]

    def upload(self, folder: Path, name: str, **options: Any) -> Url:
        for path in filter(Path.is_file, folder.rglob("*")):
            key = f"{name}/{path.relative_to(folder).as_posix()}"
            self.client.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes(), **options)
        return Url(f"s3://{BUCKET}/{name}")


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    started = S3()
    yield started
    started.server.stop()


@pytest.fixture
def s3(server: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> S3:
    """The server with an empty bucket, an environment that names it, and few retries."""
    pytest.importorskip("tensorstore")
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "no such file"))
    monkeypatch.setattr(stores, "RETRIES", {"max_retries": 2, "initial_delay": "10ms", "max_delay": "20ms"})
    server.client.create_bucket(Bucket=BUCKET)
    for name in server.names():
        server.client.delete_object(Bucket=BUCKET, Key=name)
    server.client.put_bucket_acl(Bucket=BUCKET, ACL="private")
    return server


def begun(url: Url, reader: WindowReader) -> WindowWriter:
    return FORMAT.create(url, FORMAT.arranged(reader.layout, url, reader), reader)


@pytest.mark.parametrize("kind", ["v2", "v3", "sharded", "0.4", "0.5"])
def test_an_array_is_written_and_read(s3: S3, tmp_path: Path, kind: str, capfd: Any) -> None:
    local = tmp_path / "a.zarr"
    if kind in ("0.4", "0.5"):
        ome_zarr(local, [IMAGE, IMAGE[::2, ::2]], "yx", version=kind)
    elif kind == "v2":
        zarr_level(local, IMAGE, "yx", "0.4")
        (local / ".zattrs").write_text('{"by": "me"}')
    else:
        shards = [16, 16] if kind == "sharded" else None
        zarr_array(local, IMAGE, chunks=[8, 8], shards=shards, names=["y", "x"], attributes={"by": "me"})
    source, url = open_windows(local), Url(f"s3://{BUCKET}/folder/b.zarr")
    writer = begun(url, source)
    writer.write(EVERYTHING, IMAGE[::-1])
    for number, level in enumerate(writer.levels):
        level.write(
            tuple(slice(0, size) for size in level.layout.shape), np.full(level.layout.shape, number, np.uint16)
        )
    assert s3.names()
    assert not [name for name in s3.names() if name.endswith((".zarray", "zarr.json", ".zattrs", ".zgroup"))]
    with pytest.raises(ImageError, match=r"s3://images/folder/b\.zarr: holds no zarr.json"):
        open_windows(url)
    np.testing.assert_array_equal(writer.read(EVERYTHING), IMAGE[::-1])
    writer.finish()
    reader = open_windows(url)
    assert reader.layout == source.layout
    assert reader.attributes == source.attributes
    np.testing.assert_array_equal(reader.read(EVERYTHING), IMAGE[::-1])
    assert FORMAT.source_notes(reader) == ()
    assert format_of(Url(f"{url}/0")) is FORMAT
    assert sorted(name.split("/")[-1] for name in s3.names() if "z" in name.split("/")[-1]) == sorted(
        path.name for path in local.rglob("*z*") if path.is_file()
    )
    assert capfd.readouterr().err == ""


def test_a_result_that_exists_is_refused(s3: S3, tmp_path: Path) -> None:
    local = zarr_array(tmp_path / "a.zarr", IMAGE, chunks=[16, 16])
    url = s3.upload(local, "b.zarr")
    with pytest.raises(ImageError, match=r"^s3://images/b\.zarr: exists; remove it first, or name another place$"):
        begun(url, open_windows(local))
    np.testing.assert_array_equal(open_windows(url).read(EVERYTHING), IMAGE)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_store_that_goes_away_and_comes_back(s3: S3, tmp_path: Path, version: str) -> None:
    """The run that ended is continued by a writer that `reopen` makes, and its metadata are those of a whole run."""
    local = open_windows(ome_zarr(tmp_path / "a.ome.zarr", [IMAGE, IMAGE[::2, ::2]], "yx", version=version))
    source, target = s3.upload(tmp_path / "a.ome.zarr", "a.ome.zarr"), Url(f"s3://{BUCKET}/b.ome.zarr")
    reader = open_windows(source)
    before = reader.fingerprint()
    layout = FORMAT.arranged(reader.layout, target, reader)
    writer = FORMAT.create(target, layout, reader)
    first, second = (slice(0, 16), slice(0, 30)), (slice(16, 40), slice(0, 30))
    writer.write(first, IMAGE[:16])
    s3.stop()
    with pytest.raises(ImageError, match=r"a\.ome\.zarr.*the store does not answer .*; the same command goes on"):
        reader.read(EVERYTHING)
    with pytest.raises(ImageError, match=r"b\.ome\.zarr.*cannot be written"):
        writer.write(second, IMAGE[16:])
    with pytest.raises(ImageError, match=r"b\.ome\.zarr.*cannot be written"):
        writer.finish()
    with pytest.raises(ImageError, match=r"a\.ome\.zarr: cannot be read"):
        open_windows(source)
    s3.start()
    reader = open_windows(source)
    assert reader.fingerprint() == before
    writer = FORMAT.reopen(target, layout, reader)
    writer.write(second, IMAGE[16:])
    writer.levels[0].write((slice(0, 20), slice(0, 15)), IMAGE[::2, ::2])
    writer.finish()
    result = open_windows(target)
    np.testing.assert_array_equal(result.read(EVERYTHING), IMAGE)
    whole = FORMAT.create(tmp_path / "b.ome.zarr", layout, local)
    filled(whole)
    for path in filter(Path.is_file, (tmp_path / "b.ome.zarr").rglob("*z*")):
        key = f"b.ome.zarr/{path.relative_to(tmp_path / 'b.ome.zarr').as_posix()}"
        assert s3.client.get_object(Bucket=BUCKET, Key=key)["Body"].read() == path.read_bytes()


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_filter_from_bucket_to_bucket_is_resumed(
    s3: S3, tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stops after three units or more. The same run then does the rest, with the bits of the whole image."""
    monkeypatch.setattr(large_plan, "cache_root", lambda: tmp_path / "cache")  # of the journal
    image = RANDOM.integers(0, 65536, (200, 30), dtype=np.uint16)
    ome_zarr(tmp_path / "a.ome.zarr", [image, image[::2, ::2]], "yx", version=version)
    source, target = s3.upload(tmp_path / "a.ome.zarr", "a.ome.zarr"), Url(f"s3://{BUCKET}/b.ome.zarr")
    run = LargeFilter(source, target, recipe("laplacian"), memory=12_000, workers=2)
    stopped: list[int] = []

    def stop(done: int, total: int, rate: str) -> None:
        if done >= 3 and not stopped:  # other threads finish units meanwhile: 3 may come twice, or never
            stopped.append(done)
            s3.stop()

    with pytest.raises(ImageError, match=r"(a|b)\.ome\.zarr"):
        run(stop)
    s3.start()
    with pytest.raises(ImageError, match=r"b\.ome\.zarr: holds no zarr.json"):
        open_windows(target)
    run = LargeFilter(source, target, recipe("laplacian"), memory=12_000, workers=2)
    assert len(run.finished()) >= 3
    outcome = run()
    assert (outcome.resumed >= 3, outcome.units > 0) == (True, True)
    result = open_windows(target)
    wanted = convforge.filter(image, "laplacian")
    np.testing.assert_array_equal(result.read((slice(0, 200), slice(0, 30))), wanted)
    assert result.layout.levels == ((100, 15),)
    assert open_windows(Url(f"{target}/1")).read((slice(0, 100), slice(0, 15))).any()
    with pytest.raises(ImageError, match="exists; remove it first"):
        LargeFilter(source, target, recipe("laplacian"))()


def test_npy_becomes_ome_zarr_in_a_bucket(s3: S3, tmp_path: Path) -> None:
    reader, target = (
        open_windows(kept(tmp_path / "a.npy", np.zeros((600, 9), np.uint8))),
        Url(f"s3://{BUCKET}/b.ome.zarr"),
    )
    layout = FORMAT.arranged(layout_of((600, 9), "YX", "uint8"), target, reader)
    writer = FORMAT.create(target, layout, reader)
    filled(writer)
    writer.finish()
    assert open_windows(target).layout.levels == ((300, 5),)


def test_the_fingerprint_covers_names_versions_and_metadata(s3: S3, tmp_path: Path) -> None:
    url = s3.upload(zarr_array(tmp_path / "a.zarr", IMAGE, chunks=[16, 16]), "a.zarr")
    seen = [open_windows(url).fingerprint()]
    assert open_windows(url).fingerprint() == seen[0]
    body = s3.client.get_object(Bucket=BUCKET, Key="a.zarr/c/0/0")["Body"].read()
    s3.client.put_object(Bucket=BUCKET, Key="a.zarr/c/1/0", Body=body)
    seen.append(open_windows(url).fingerprint())
    s3.client.delete_object(Bucket=BUCKET, Key="a.zarr/c/2/1")
    reader = open_windows(url)
    seen.append(reader.fingerprint())
    assert FORMAT.source_notes(reader) == (
        "s3://images/a.zarr: 1 of 6 chunks are not stored; they are read as the fill value 0, which is right for empty "
        "parts of an image; if there should be pixels, copy the array again from its origin",
    )
    text = s3.client.get_object(Bucket=BUCKET, Key="a.zarr/zarr.json")["Body"].read()
    s3.client.put_object(Bucket=BUCKET, Key="a.zarr/zarr.json", Body=text.replace(b'"fill_value":0', b'"fill_value":1'))
    seen.append(open_windows(url).fingerprint())
    assert len(set(seen)) == 4


def test_a_public_bucket_is_read_without_credentials(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    url = s3.upload(zarr_array(tmp_path / "a.zarr", IMAGE, chunks=[16, 16]), "a.zarr")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(ImageError, match=r"a\.zarr: cannot be read \(permission denied\); check .* AWS_ACCESS_KEY_ID"):
        open_windows(url)
    s3.client.put_bucket_acl(Bucket=BUCKET, ACL="public-read")
    for name in s3.names():
        s3.client.put_object_acl(Bucket=BUCKET, Key=name, ACL="public-read")
    np.testing.assert_array_equal(open_windows(url).read(EVERYTHING), IMAGE)
    s3.client.put_bucket_acl(Bucket=BUCKET, ACL="private")
    credentials = tmp_path / "credentials"
    credentials.write_text("[lab]\naws_access_key_id = me\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    np.testing.assert_array_equal(open_windows(url).read(EVERYTHING), IMAGE)
    monkeypatch.delenv("AWS_PROFILE")
    assert stores.aws_credentials() == stores.ANONYMOUS
    credentials.write_text(credentials.read_text().replace("lab", "default"))
    np.testing.assert_array_equal(open_windows(url).read(EVERYTHING), IMAGE)
    assert capfd.readouterr().err == ""


def test_a_store_that_says_denied_for_what_does_not_exist(tmp_path: Path) -> None:
    """A public bucket whose objects can be read, but not listed, answers so."""
    local = ome_zarr(tmp_path / "a.ome.zarr", [IMAGE, IMAGE[::2, ::2]], "yx", version="0.4")

    class Denying(Quiet):
        def send_error(self, code: int, *values: Any) -> None:
            super().send_error(403 if code == 404 else code, *values)

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), partial(Denying, directory=str(tmp_path)))) as address:
        reader = open_windows(Url(f"{address}/{local.name}"))
        np.testing.assert_array_equal(reader.read(EVERYTHING), IMAGE)
        with pytest.raises(ImageError, match=r"b\.zarr: cannot be read \(.*403.*\)"):
            open_windows(Url(f"{address}/b.zarr"))


def test_a_store_that_never_answers(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(stores, "DEADLINE", 0.2)
        with pytest.raises(ImageError, match=r"a\.zarr: zarr.json cannot be read \(no answer within 0.2 s\)"):
            open_windows(Url(f"s3://{BUCKET}/a.zarr"))


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, form: str, *values: Any) -> None:
        pass


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    """Serve, and yield the address."""
    pytest.importorskip("tensorstore")
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def http(tmp_path: Path) -> Iterator[str]:
    """The address of a server of the test's folder."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))) as address:
        yield address


def test_google_cloud_storage_is_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_windows(ome_zarr(tmp_path / "a.ome.zarr", [IMAGE, IMAGE[::2, ::2]], "yx"))
    server, target = Gcs(), Url(f"gs://{BUCKET}/folder/b.ome.zarr")
    with serving(server) as address:
        monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", address)
        monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "token")
        writer = begun(target, source)
        filled(writer)
        assert not [name for name in server.objects if name.endswith("zarr.json")]
        writer.finish()
        reader = open_windows(target)
        assert reader.layout == source.layout
        assert (reader.read(EVERYTHING) == 1).all()
        assert FORMAT.source_notes(reader) == ()
        before = reader.fingerprint()
        server.objects["folder/b.ome.zarr/0/c/0/0"] = (99, b"x")
        assert open_windows(target).fingerprint() != before
        with pytest.raises(ImageError, match="exists; remove it first"):
            begun(target, source)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_http_is_read(http: str, tmp_path: Path, version: str) -> None:
    local = ome_zarr(tmp_path / "a b.ome.zarr", [IMAGE, IMAGE[::2, ::2]], "yx", version=version)
    url = Url(f"{http}/a%20b.ome.zarr?token=1")
    reader = open_windows(url)
    assert reader.layout == open_windows(local).layout
    np.testing.assert_array_equal(reader.read(EVERYTHING), IMAGE)
    assert FORMAT.source_notes(reader) == (
        f"{url}: the store has no listing, so chunks that are not stored cannot be counted; they are read as the fill "
        "value 0, which is right for empty parts of an image; if there should be pixels, copy the array again from its "
        "origin",
    )
    before = reader.fingerprint()
    assert before == open_windows(url).fingerprint()
    (local / "0" / "c" / "0" / "0" if version == "0.5" else local / "0" / "0" / "0").unlink()
    assert not reader.read((slice(0, 16), slice(0, 16))).any()
    np.testing.assert_array_equal(
        open_windows(Url(f"{http}/a%20b.ome.zarr/1/")).read((slice(0, 9), slice(0, 9)))[0, 0], IMAGE[0, 0]
    )
    with pytest.raises(ImageError, match=r"c\.zarr: holds no zarr.json"):
        open_windows(Url(f"{http}/c.zarr"))


@pytest.mark.parametrize("text", ["az://images/a.zarr", "ftp://host/a.zarr", "s3://images/a.npy"])
def test_other_schemes_are_refused_by_name(text: str) -> None:
    known = "none" if text.endswith(".npy") else "gs, http, https, s3"
    with pytest.raises(ImageError, match=rf"{text}: .* is not read from \w+:// \(schemes that are: {known}\)"):
        open_windows(Url(text))
    assert FORMAT.written_schemes == {"s3", "gs"}
