"""Folders of caches that cannot be used, or must not: what would lie there lasts as long as the process, said once."""

from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from convforge.backends import cache
from convforge.backends.cache import DiskCache, cache_folder, cache_root, file_sizes, make_private, remove_folder
from convforge.backends.notices import say_once
from convforge.tuning.choices import Bucket, Choices, SearchResult, Tried

KINDS = ("cuda", "emulator", "numba", "tuned")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the logger "convforge" was told; what was said before may be said again."""
    say_once.cache_clear()
    caplog.set_level(logging.INFO, "convforge")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "convforge"]


def point_to(monkeypatch: pytest.MonkeyPatch, root: object) -> None:
    monkeypatch.setenv("CONVFORGE_CACHE_DIR", str(root))


def a_file(folder: Path, patch: pytest.MonkeyPatch) -> str:
    (folder / "file").write_text("")
    point_to(patch, folder / "file")
    return "it is no folder"


def too_long(folder: Path, patch: pytest.MonkeyPatch) -> str:
    point_to(patch, folder / ("x" * 300))
    return os.strerror(errno.ENAMETOOLONG)


def inside_a_file(folder: Path, patch: pytest.MonkeyPatch) -> str:
    (folder / "file").write_text("")
    point_to(patch, folder / "file" / "cache")
    return os.strerror(errno.ENOTDIR)


def not_to_be_entered(folder: Path, patch: pytest.MonkeyPatch) -> str:
    """As for root nothing is closed, the system's answer is made up."""
    root, real = folder / "closed" / "cache", Path.stat

    def closed(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if folder / "closed" in self.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return real(self, follow_symlinks=follow_symlinks)

    patch.setattr(Path, "stat", closed)
    point_to(patch, root)
    return os.strerror(errno.EACCES)


def without_a_home(folder: Path, patch: pytest.MonkeyPatch) -> str:
    patch.delenv("CONVFORGE_CACHE_DIR", raising=False)
    patch.setattr(cache, "user_cache_dir", lambda *names, **options: "~/.cache/convforge")
    return "there is no home folder"


def writable_by_others(folder: Path, patch: pytest.MonkeyPatch) -> str:
    folder.chmod(0o777)
    point_to(patch, folder)
    return "other users may write to"


def with_a_writable_part(folder: Path, patch: pytest.MonkeyPatch) -> str:
    folder.chmod(0o700)
    for kind in KINDS:
        (folder / kind).mkdir()
        (folder / kind).chmod(0o775)
    point_to(patch, folder)
    return "other users may write to"


def another_users(folder: Path, patch: pytest.MonkeyPatch) -> str:
    if os.geteuid() == 0:
        os.chown(folder, 4711, 4711)
    else:
        patch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    point_to(patch, folder)
    return "another user's"


UNUSABLE = [a_file, too_long, inside_a_file, not_to_be_entered, without_a_home]
UNSAFE = [writable_by_others, with_a_writable_part, another_users]
POSIX = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners and modes are POSIX's")


@pytest.mark.parametrize("make", [*UNUSABLE, *(pytest.param(one, marks=POSIX) for one in UNSAFE)])
def test_what_cannot_be_used_is_passed_over_and_said_once(
    make: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    why = make(tmp_path, monkeypatch)
    for _ in range(2):
        assert cache_folder("numba") is None
    (line,) = said()
    assert why in line
    assert "CONVFORGE_CACHE_DIR names another folder" in line
    for kind in KINDS:
        disk = DiskCache(cache_folder(kind))
        disk.store("0" * 64, {}, b"code")
        assert disk.load("0" * 64) is None


ENVIRONMENT = {"operation": "gemm", "device": "a device"}


def found() -> SearchResult:
    return SearchResult(Bucket("m1n1k1_f32"), ENVIRONMENT, "auto", "m1n1k1_f32", (Tried("gemm", "", True, 1e-3, 1e-3),))


@pytest.mark.parametrize("make", UNUSABLE)
def test_choices_are_remembered_without_a_folder(
    make: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    why = make(tmp_path, monkeypatch)
    monkeypatch.setattr("convforge.tuning.choices.environment_of", lambda operation, facts: ENVIRONMENT)
    choices = Choices()
    assert choices.find("gemm", None, Bucket("m1n1k1_f32"), "auto") is None  # type: ignore[arg-type]
    choices.remember(found())
    assert choices.find("gemm", None, Bucket("m1n1k1_f32"), "auto") == found()  # type: ignore[arg-type]
    (line,) = said()
    assert why in line


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_is_read_and_that_is_said_once(
    fault: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    point_to(monkeypatch, tmp_path / "cache")
    disk = DiskCache(cache_folder("cuda"))
    disk.store("1" * 64, {}, b"kept before")

    def refused(path: Path, data: bytes) -> None:
        raise OSError(fault, os.strerror(fault), str(path))

    monkeypatch.setattr(cache, "write_whole", refused)
    for key in ("2" * 64, "3" * 64):
        disk.store(key, {}, b"new")
        assert disk.load(key) is None
    assert disk.load("1" * 64) == ({}, b"kept before")
    (line,) = said()
    assert os.strerror(fault) in line
    assert "lasts as long as this process" in line


@POSIX
def test_folders_are_made_for_the_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o000)
    try:
        point_to(monkeypatch, tmp_path / "above" / "cache")
        DiskCache(cache_folder("cuda")).store("1" * 64, {}, b"code")
        make_private(cache_root() / "tuned" / "device")
    finally:
        os.umask(before)
    made = [path for path in (tmp_path / "above").rglob("*") if path.is_dir()]
    assert len(made) == 4
    for folder in (tmp_path / "above", *made):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    assert DiskCache(cache_folder("cuda")).load("1" * 64) == ({}, b"code")


@POSIX
def test_what_root_put_there_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the image of a container, whose programs run as another user."""
    if os.geteuid() != 0:
        pytest.skip("only root makes a folder of root's")
    point_to(monkeypatch, tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert cache_folder("numba") == tmp_path / "numba"


def test_systems_without_owners_ask_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o777)
    point_to(monkeypatch, tmp_path)
    monkeypatch.delattr(os, "geteuid", raising=False)
    assert cache_folder("numba") == tmp_path / "numba"


PROGRAM = """
import numpy as np
import convforge
x, w = np.arange(16, dtype="f4").reshape(1, 1, 4, 4), np.ones((1, 1, 3, 3), "f4")
for _ in range(2):
    print(convforge.conv2d(x, w, algorithm="direct_naive")[0, 0].tolist())
"""


@pytest.mark.thorough
def test_a_call_without_a_cache_is_right_and_one_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"CONVFORGE_CACHE_DIR": str(tmp_path / "file")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[[45.0, 54.0], [81.0, 90.0]]"] * 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"the cache folder {tmp_path / 'file'} cannot be used: it is no folder.")


def test_files_that_vanish_meanwhile_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "kept").write_bytes(b"abc")
    (tmp_path / "vanished").symlink_to(tmp_path / "nowhere")  # listed, and gone when it is asked for
    assert file_sizes(tmp_path) == [3]
    assert file_sizes(tmp_path / "not there") == []


def test_a_folder_is_removed_while_another_process_drops_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    for name in ("first", "second"):
        (folder / name).write_text(name)
    unlink = os.unlink

    def dropped_before(*args: Any, **options: Any) -> None:
        unlink(*args, **options)
        unlink(*args, **options)

    monkeypatch.setattr(os, "unlink", dropped_before)
    remove_folder(folder)
    assert not folder.exists()


def test_what_cannot_be_removed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")

    def refused(*args: Any, **options: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "unlink", refused)
    with pytest.raises(PermissionError):
        remove_folder(tmp_path)
