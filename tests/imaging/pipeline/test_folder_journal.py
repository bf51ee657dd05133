"""The journal of a folder: whole records only, no second writer, and never a reason to end a run."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from convforge.imaging.pipeline.folder_journal import NAME, FolderJournal, State
from convforge.imaging.pipeline.journal_lines import JournalLines

OPTIONS = {"--kernel": "a", "--stride": "(1, 1)"}


@pytest.fixture
def pairs(tmp_path: Path) -> list[tuple[Path, Path]]:
    """Sources, and results that are written."""
    (tmp_path / "out").mkdir()
    found = [(tmp_path / f"{at}.png", tmp_path / "out" / f"{at}.png") for at in range(3)]
    for at, (source, target) in enumerate(found):
        source.write_bytes(b"s" * at)
        target.write_bytes(b"t" * at)
    return found


def write(out: Path, pairs: list[tuple[Path, Path]]) -> bytes:
    """Record all of them; the journal's bytes."""
    journal = FolderJournal(out, OPTIONS)
    for source, target in pairs:
        journal.record(source, State.of(source), target)
    journal.close(finished=False)
    return (out / NAME).read_bytes()


def known(out: Path, pairs: list[tuple[Path, Path]]) -> list[bool]:
    journal = FolderJournal(out, OPTIONS)
    try:
        return [journal.has(*pair) for pair in pairs]
    finally:
        journal.close(finished=False)


def test_what_is_recorded_is_known(tmp_path: Path, pairs: list[tuple[Path, Path]]) -> None:
    write(tmp_path / "out", pairs[:2])
    assert known(tmp_path / "out", pairs) == [True, True, False]
    source, target = pairs[1]
    assert known(tmp_path / "out", [(source, target.with_suffix(".tif")), (target, source)]) == [False, False]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_was_not_completed_is_dropped_and_the_next_is_whole(
    tmp_path: Path, pairs: list[tuple[Path, Path]], cut: int
) -> None:
    out = tmp_path / "out"
    data = write(out, pairs[:2])
    (out / NAME).write_bytes(data[:-cut])
    assert known(out, pairs) == [True, False, False]
    write(out, pairs[2:])
    assert known(out, pairs) == [True, False, True]


@pytest.mark.parametrize("line", [b"{}", b"[1]", b'["a", "b", "c"]', b"\x00\xff", b'["a", 3, 1, 2, 3, 4]'])
def test_a_damaged_line_is_left_out(tmp_path: Path, pairs: list[tuple[Path, Path]], line: bytes) -> None:
    out = tmp_path / "out"
    (out / NAME).write_bytes(write(out, pairs[:1]) + line + b"\n")
    write(out, pairs[1:2])
    assert known(out, pairs) == [True, True, False]


@pytest.mark.parametrize("content", [b"", b"{", b"no journal\n", b"[]\n", b"3\n", b"\xff\xfe\n"])
def test_a_file_that_is_no_journal_begins_anew(tmp_path: Path, pairs: list[tuple[Path, Path]], content: bytes) -> None:
    out = tmp_path / "out"
    (out / NAME).write_bytes(content)
    write(out, pairs[:1])
    assert known(out, pairs) == [True, False, False]


def test_a_second_run_into_the_folder_goes_on_without(tmp_path: Path, pairs: list[tuple[Path, Path]]) -> None:
    out = tmp_path / "out"
    first, second = FolderJournal(out, OPTIONS), FolderJournal(out, OPTIONS)
    assert (first.fault, second.fault) == ("", "another run writes to the same folder")
    first.record(pairs[0][0], State.of(pairs[0][0]), pairs[0][1])
    second.record(pairs[1][0], State.of(pairs[1][0]), pairs[1][1])
    assert (first.recorded, second.recorded) == (1, 1)
    second.close(finished=True)
    first.close(finished=False)
    assert known(out, pairs) == [True, False, False]


def test_one_that_cannot_be_made_or_written_is_no_failure(
    tmp_path: Path, pairs: list[tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out" / NAME).mkdir()
    journal = FolderJournal(tmp_path / "out", OPTIONS)
    assert "cannot be written" in journal.fault
    journal.close(finished=True)
    (tmp_path / "out" / NAME).rmdir()

    journal = FolderJournal(tmp_path / "out", OPTIONS)

    def full(self: JournalLines, line: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(JournalLines, "append", full)
        journal.record(pairs[0][0], State.of(pairs[0][0]), pairs[0][1])
    assert journal.fault.endswith("cannot be written (No space left on device)")
    journal.record(pairs[1][0], State.of(pairs[1][0]), pairs[1][1])
    journal.close(finished=False)
    assert known(tmp_path / "out", pairs) == [False, False, False], "nothing is written behind half a line"


def test_a_source_that_changed_while_it_was_read_is_not_finished(
    tmp_path: Path, pairs: list[tuple[Path, Path]]
) -> None:
    journal = FolderJournal(tmp_path / "out", OPTIONS)
    source, target = pairs[1]
    before = State.of(source)
    source.write_bytes(b"longer than before")
    journal.record(source, before, target)
    journal.close(finished=False)
    assert known(tmp_path / "out", pairs) == [False, False, False]


@pytest.mark.parametrize("finished", [True, False])
def test_it_is_removed_when_nothing_is_left(tmp_path: Path, pairs: list[tuple[Path, Path]], finished: bool) -> None:
    journal = FolderJournal(tmp_path / "out", OPTIONS)
    journal.record(pairs[0][0], State.of(pairs[0][0]), pairs[0][1])
    journal.close(finished=finished)
    assert (tmp_path / "out" / NAME).exists() is not finished
