"""The lines of a journal: whole ones only, also after a kill and on a full disk; and one process at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from convforge.imaging.pipeline.journal_lines import JournalLines


def read(path: Path) -> list[bytes]:
    file = JournalLines(path)
    file.close()
    return file.lines


def test_the_next_line_replaces_one_without_its_end(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b'{"a": 1}\n12\n3')
    file = JournalLines(path)
    assert file.lines == [b'{"a": 1}', b"12"]
    assert path.read_bytes().endswith(b"\n3"), "a file that may be of someone else is not changed when it is read"
    file.append("45", force=True)
    file.append("6")
    file.close()
    assert path.read_bytes() == b'{"a": 1}\n12\n45\n6\n'


def test_a_restart_keeps_the_first_line_only(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"{}\n1\n2")
    file = JournalLines(path)
    file.restart({"kernel": "µ"}, force=True)
    file.append("7")
    file.close()
    first, second = read(path)
    assert (json.loads(first), second) == ({"kernel": "µ"}, b"7")


def test_a_short_write_raises_and_leaves_no_half_line(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="limits of a file's size are those of Unix")
    path = tmp_path / "journal"
    file = JournalLines(path)
    file.append("1")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.append("2345")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"1\n23"
    file.append("6")
    file.close()
    assert read(path) == [b"1", b"6"]


def test_a_file_is_open_once(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="files are not locked on Windows")
    file = JournalLines(tmp_path / "journal")
    with pytest.raises(BlockingIOError):
        JournalLines(tmp_path / "journal")
    file.remove()
    assert not (tmp_path / "journal").exists()
    assert read(tmp_path / "journal") == []
