"""Bytes of a file by position, from several threads: of a local file, or of a URL by fsspec."""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, Protocol

from convforge.imaging.image import ImageError
from convforge.imaging.windowed.contract import Place, Url

# A URL's small reads, such as those of tables, are cut from blocks of this size, of which the last ones are kept.
BLOCK, BLOCKS = 2**18, 64

# Schemes of URLs whose files fsspec reads by position.
SCHEMES = frozenset({"http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "memory"})


class ByteRanges(Protocol):
    """The bytes of an open file."""

    @property
    def size(self) -> int: ...

    def read(self, at: int, count: int) -> bytes:
        """Return up to `count` bytes, fewer at the end of the file; ``ImageError`` if they cannot be read."""

    def fingerprint(self) -> str:
        """Return a text that changes when the content changes."""

    def close(self) -> None: ...


class LocalBytes:
    """An open file on a local disk; its size may grow."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        self.path, self._file = path, -1
        flags = (os.O_RDWR if write else os.O_RDONLY) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        try:
            self._file = os.open(path, flags)
        except OSError as error:
            raise ImageError(f"{path}: cannot be opened ({error.strerror or error})") from error
        self._turn = threading.Lock()

    @property
    def size(self) -> int:
        return os.fstat(self._file).st_size

    def read(self, at: int, count: int) -> bytes:
        try:
            if at >= self.size:  # also a position that no file can have
                return b""
            if hasattr(os, "pread"):
                return os.pread(self._file, count, at)
            with self._turn:
                os.lseek(self._file, at, os.SEEK_SET)
                return os.read(self._file, count)
        except OSError as error:
            raise ImageError(f"{self.path}: cannot be read ({error.strerror or error})") from error

    def write(self, at: int, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                if hasattr(os, "pwrite"):
                    done = os.pwrite(self._file, rest, at)
                else:
                    with self._turn:
                        os.lseek(self._file, at, os.SEEK_SET)
                        done = os.write(self._file, rest)
                rest, at = rest[done:], at + done
        except OSError as error:
            raise ImageError(f"{self.path}: cannot be written ({error.strerror or error})") from error

    def sync(self) -> None:
        """Return when everything that was written is on the disk."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise ImageError(f"{self.path}: cannot be written ({error.strerror or error})") from error

    def fingerprint(self) -> str:
        facts = os.fstat(self._file)
        return f"{facts.st_size} bytes, modified {facts.st_mtime_ns}"

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()


class RemoteBytes:
    """A file behind a URL, read by fsspec."""

    def __init__(self, url: Url) -> None:
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError as error:
            raise ImageError(f"{url}: needs fsspec; get it with: pip install 'convforge[remote]'") from error
        self.url = url
        try:
            self._files, self._name = url_to_fs(url.text)
            self._facts: dict[str, Any] = dict(self._files.info(self._name))
        except Exception as error:  # each of fsspec's file systems raises its own
            raise ImageError(f"{url}: cannot be read ({_fault(error)})") from error
        if self._facts.get("size") is None:
            raise ImageError(f"{url}: the server does not tell the size of the file; download it first")
        self.size = int(self._facts["size"])
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._turn = threading.Lock()

    def read(self, at: int, count: int) -> bytes:
        count = min(count, max(self.size - at, 0))
        if count <= 0:
            return b""
        if count > BLOCK:
            return self._fetched(at, count)
        first, last = at // BLOCK, (at + count - 1) // BLOCK
        joined = b"".join(self._block(number) for number in range(first, last + 1))
        return joined[at - first * BLOCK :][:count]

    def _block(self, number: int) -> bytes:
        with self._turn:
            if number in self._blocks:
                self._blocks.move_to_end(number)
                return self._blocks[number]
        data = self._fetched(number * BLOCK, min(BLOCK, self.size - number * BLOCK))
        with self._turn:
            self._blocks[number] = data
            while len(self._blocks) > BLOCKS:
                self._blocks.popitem(last=False)
        return data

    def _fetched(self, at: int, count: int) -> bytes:
        try:
            data = bytes(self._files.cat_file(self._name, start=at, end=at + count))
        except Exception as error:
            raise ImageError(f"{self.url}: cannot be read ({_fault(error)})") from error
        if len(data) != count:
            raise ImageError(
                f"{self.url}: {len(data)} bytes came instead of {count}; the file changed, or the server does not give "
                "parts of files: download it first"
            )
        return data

    def fingerprint(self) -> str:
        names = ("ETag", "etag", "LastModified", "mtime", "updated", "created")
        return ", ".join(
            [f"{self.size} bytes", *(f"{name} {self._facts[name]}" for name in names if name in self._facts)]
        )

    def close(self) -> None:
        self._blocks.clear()


def open_bytes(place: Place) -> LocalBytes | RemoteBytes:
    return RemoteBytes(place) if isinstance(place, Url) else LocalBytes(place)


class RangeFile(io.RawIOBase):
    """A file object over :class:`ByteRanges`, for libraries that read from a position that they seek."""

    def __init__(self, ranges: ByteRanges, name: str) -> None:
        super().__init__()
        self._ranges, self._at, self.name = ranges, 0, name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._ranges.size}[whence]
        if start + offset < 0:
            raise OSError(f"a position of {start + offset}")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._ranges.read(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _fault(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
