"""Folders of files and objects that Zarr is stored in: on a local disk, in S3 or Google Cloud Storage, or behind HTTP.

tensorstore reads and writes all of them, so chunks and metadata take the same way. fsspec's other file systems are not
offered: tensorstore cannot use them, and each needs a package of its own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from convforge.imaging.image import ImageError
from convforge.imaging.windowed.contract import Place, Url

READ_SCHEMES = frozenset({"s3", "gs", "http", "https"})
WRITTEN_SCHEMES = frozenset({"s3", "gs"})

# A JSON text takes up to 30 times its size as Python objects.
LARGEST_METADATA = 16 * 2**20
DEEPEST_METADATA = 64  # lists and objects in each other

# A store that does not answer is tried for about 20 s. A request that hangs ends at the deadline.
RETRIES: dict[str, Any] = {"max_retries": 8, "initial_delay": "200ms", "max_delay": "4s"}
DEADLINE = 300.0  # seconds

# Threads of one array that decode and encode, and that wait for the disk.
CORES = os.cpu_count() or 1
CONTEXT: dict[str, Any] = {
    "data_copy_concurrency": {"limit": max(CORES, 4)},
    "file_io_concurrency": {"limit": max(2 * CORES, 8)},
}


class AccessDenied(ImageError):
    """An object store refuses to read an object; some say so of objects that do not exist."""


@dataclass(frozen=True)
class Store:
    """A folder of a local disk, or the objects whose names begin with a URL.

    Parameters
    ----------
    place : Path or Url
    credentials : mapping, optional
        tensorstore's `aws_credentials`; by default those of :func:`aws_credentials`.
    """

    place: Place
    credentials: Mapping[str, Any] | None = None

    @property
    def is_local(self) -> bool:
        return isinstance(self.place, Path)

    def at(self, path: str) -> Store:
        """Return the store of a folder in this one; `path` is relative, with slashes."""
        if isinstance(self.place, Path):
            return Store(self.place / path)
        address, mark, query = self.place.text.partition("?")
        return Store(Url(f"{address.rstrip('/')}/{path}{mark}{query}"), self.credentials)

    @property
    def spec(self) -> dict[str, Any]:
        """tensorstore's specification of this folder as a key-value store."""
        if isinstance(self.place, Path):
            return {"driver": "file", "path": f"{self.place.as_posix()}/"}
        scheme, address = self.place.scheme, self.place.text.partition("://")[2]
        if scheme in ("http", "https"):
            parts = urlsplit(self.place.text)
            base = f"{scheme}://{parts.netloc}" + (f"?{parts.query}" if parts.query else "")
            return {"driver": "http", "base_url": base, "path": f"{unquote(parts.path).rstrip('/')}/"}
        bucket, _, path = address.partition("/")
        path = path.strip("/")
        where = {"bucket": bucket, "path": f"{path}/" if path else ""}
        if scheme == "gs":
            return {"driver": "gcs", **where}
        return {
            "driver": "s3",
            **where,
            **_aws_settings(),
            "aws_credentials": dict(self.credentials or aws_credentials()),
        }

    @property
    def context(self) -> dict[str, Any]:
        """tensorstore's context: threads, and the end of retries."""
        driver = self.spec["driver"]
        return CONTEXT if driver == "file" else CONTEXT | {f"{driver}_request_retries": RETRIES}

    @cached_property
    def _objects(self) -> Any:
        try:
            return awaited(tensorstore(self.place).KvStore.open(self.spec | {"context": self.context}))
        except (ValueError, TimeoutError) as error:
            raise ImageError(f"{self.place}: cannot be opened ({fault(error)})") from error

    def read(self, key: str) -> bytes | None:
        """Return the content of a small file or object, such as metadata, or None if it does not exist."""
        try:
            if isinstance(self.place, Path):
                with (self.place / key).open("rb") as file:
                    content = file.read(LARGEST_METADATA + 1)
            else:
                found = awaited(self._objects.read(key))
                if found.state == "missing":
                    return None
                content = bytes(found.value)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ImageError(f"{self.place}: {key} cannot be read ({error.strerror or fault(error)})") from error
        except ImageError:
            raise
        except ValueError as error:
            kind = AccessDenied if _is_denied(error) else ImageError
            raise kind(f"{self.place}: cannot be read ({fault(error)}){self._advice(error)}") from error
        if len(content) > LARGEST_METADATA:
            raise ImageError(f"{self.place}: {key} is larger than {LARGEST_METADATA} bytes, so it is no metadata")
        return content

    def json(self, key: str) -> dict[str, Any] | None:
        """Return the JSON object in a file, or None if the file does not exist."""
        content = self.read(key)
        if content is None:
            return None
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ImageError(
                f"{self.place}: {key} is truncated or damaged ({error}); get it again from its source"
            ) from error
        if _depth(found) > DEEPEST_METADATA:
            raise ImageError(f"{self.place}: {key} is nested more than {DEEPEST_METADATA} deep, so it is no metadata")
        if not isinstance(found, dict):
            raise ImageError(f"{self.place}: {key} holds {type(found).__name__}, and metadata of Zarr are an object")
        return found

    def write(self, key: str, content: dict[str, Any]) -> None:
        """Write a JSON object; when this returns, it is on the disk."""
        data = json.dumps(content, indent=2).encode()
        try:
            if isinstance(self.place, Path):
                self.place.mkdir(parents=True, exist_ok=True)
                with (self.place / key).open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            else:
                awaited(self._objects.write(key, data))
        except OSError as error:
            reason = error.strerror or fault(error)
            raise ImageError(f"{self.place}: cannot be written ({reason}); choose another place") from error
        except ImageError:
            raise
        except ValueError as error:
            raise ImageError(f"{self.place}: cannot be written ({fault(error)}){self._advice(error)}") from error

    def names(self) -> Iterable[str] | None:
        """Return the names of all files or objects in order, with slashes, relative to this folder.

        None if there is no listing: behind HTTP, and in a bucket that does not permit it.
        """
        if isinstance(self.place, Path):
            return _files(self.place)
        if self.place.scheme in ("http", "https"):
            return None
        objects = self._objects
        try:
            return sorted(key.decode(errors="replace") for key in awaited(objects.list()))
        except (ValueError, TimeoutError) as error:
            if _is_denied(error):
                return None
            raise ImageError(f"{self.place}: cannot be listed ({fault(error)})") from error

    def versions(self, keys: list[str]) -> list[bytes]:
        """Return the store's version of each object, such as its ETag; one byte of each is read."""
        reads = [self._objects.read(key, byte_range=slice(0, 1)) for key in keys]
        versions = []
        for read in reads:
            try:
                versions.append(bytes(awaited(read).stamp.generation))
            except (ValueError, TimeoutError) as error:
                raise ImageError(f"{self.place}: cannot be read ({fault(error)})") from error
        return versions

    def _advice(self, error: Exception) -> str:
        driver = self.spec["driver"]
        if not _is_denied(error) or driver == "http":
            return ""
        if driver == "gcs":
            return "; check the name and GOOGLE_APPLICATION_CREDENTIALS"
        return "; check the name, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


def store_of(place: Place) -> Store:
    """Return the store of a place.

    Without credentials in the environment, S3 is asked anonymously. If it then refuses the metadata, a machine of EC2
    uses its role, unless `AWS_EC2_METADATA_DISABLED` is set.
    """
    store = Store(place)
    if not isinstance(place, Url) or place.scheme != "s3" or aws_credentials() != ANONYMOUS:
        return store
    if not _is_on_ec2() or os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return store
    try:
        store.read("zarr.json")
    except AccessDenied:
        by_role = Store(place, {"type": "imds"})
        with suppress(ImageError):  # no role, or one without the right: the anonymous error says what to do
            by_role.read("zarr.json")
            return by_role
    return store


def _is_on_ec2() -> bool:
    """True on a machine of EC2; elsewhere the search for a role would write to standard error."""
    try:
        return "Amazon EC2" in Path("/sys/class/dmi/id/sys_vendor").read_text(errors="replace")
    except OSError:
        return False


def _files(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders.sort()
        inside = os.path.relpath(place, folder).replace(os.sep, "/")
        yield from (name if inside == "." else f"{inside}/{name}" for name in sorted(files))


def _is_denied(error: Exception) -> bool:
    return str(error).startswith(("PERMISSION_DENIED", "UNAUTHENTICATED"))


ANONYMOUS = {"type": "anonymous"}


def aws_credentials() -> dict[str, Any]:
    """Return tensorstore's name for the credentials that the environment holds; anonymous if it holds none.

    They are named, because tensorstore's own search writes what it does not find to standard error.
    """
    known = os.environ.get
    credentials = Path(known("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
    settings = Path(known("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    if known("AWS_ACCESS_KEY_ID") and known("AWS_SECRET_ACCESS_KEY"):
        return {"type": "environment"}
    if known("AWS_PROFILE") or _has_default(credentials):
        files = {"credentials_file": credentials, "config_file": settings}
        named = {name: str(path) if path.is_file() else os.devnull for name, path in files.items()}
        return {"type": "profile", "profile": known("AWS_PROFILE") or "default", **named}
    if known("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") or known("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        return {"type": "ecs"}
    if known("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return {"type": "default"}
    return ANONYMOUS


def _has_default(credentials: Path) -> bool:
    try:
        return "[default]" in credentials.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _aws_settings() -> dict[str, str]:
    """Return endpoint and region from the environment; a server of one's own needs a region, and any will do."""
    known = os.environ.get
    endpoint = known("AWS_ENDPOINT_URL_S3") or known("AWS_ENDPOINT_URL")
    region = known("AWS_REGION") or known("AWS_DEFAULT_REGION") or ("us-east-1" if endpoint else None)
    settings = {"endpoint": endpoint and endpoint.rstrip("/"), "aws_region": region}
    return {name: value for name, value in settings.items() if value}


def _depth(found: Any) -> int:
    depth, level = 0, [found]
    while level:
        depth += 1
        inside = [item for item in level if isinstance(item, dict | list)]
        level = [child for item in inside for child in (item.values() if isinstance(item, dict) else item)]
    return depth


def tensorstore(place: Place) -> Any:
    """Return the module tensorstore; ``ImageError`` without it."""
    try:
        import tensorstore as module
    except ModuleNotFoundError as error:
        raise ImageError(f"{place}: Zarr needs tensorstore; get it with: pip install 'convforge[zarr]'") from error
    return module


def awaited(future: Any) -> Any:
    """Return the result of tensorstore's future; ``TimeoutError`` if it takes longer than the deadline."""
    return future.result(DEADLINE)


def fault(error: Exception) -> str:
    """Return tensorstore's message on one line, without its status code and its details in brackets."""
    if isinstance(error, TimeoutError):
        return f"no answer within {DEADLINE:g} s"
    text = re.sub(r"( \[[a-z_-]+='[^']*'\])+$| \[[a-z_]+='.*", "", " ".join(str(error).split()))
    status, _, reason = text.partition(": ")
    if re.fullmatch("[A-Z_]+", status):
        text = status.lower().replace("_", " ") if reason == "Unknown" else reason
    return text if len(text) < 600 else f"{text[:300]} ... {text[-200:]}"
