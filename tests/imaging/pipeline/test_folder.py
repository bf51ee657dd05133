"""The files of a folder that are filtered, and the names and places of the results."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from convforge.imaging.pipeline.folder import Listing, limit_of, list_folder, shares_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images, others, hidden ones, a sub-folder, a hidden one; all files are empty."""
    place = tmp_path / "in"
    for name in (
        *("b.png", "a.JPG", "c.tiff", "d.npy", "notes.txt", "noending", ".b.png", "movie.gif"),
        *("deep/e.png", "deep/deeper/f.jpeg", "deep/thumbs.db", ".cache/g.png"),
    ):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).touch()
    return place


def names(found: Listing, folder: Path, out: Path) -> dict[str, str]:
    return {
        job.source.relative_to(folder).as_posix(): job.target.relative_to(out).as_posix()
        for job in found.jobs
    }  # fmt: skip


def test_images_by_their_endings_in_order_under_their_own_names(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = list_folder(folder, out)
    assert list(names(found, folder, out).items()) == [(name, name) for name in ("a.JPG", "b.png", "c.tiff", "d.npy")]
    assert (sum(found.left_alone.values()), found.subfolders) == (4, 1)
    assert not out.exists(), "listing makes nothing"


def test_sub_folders_keep_their_places(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = list_folder(folder, out, recursive=True, suffix=".tif")
    assert names(found, folder, out) == {
        "a.JPG": "a.tif", "b.png": "b.tif", "c.tiff": "c.tif", "d.npy": "d.tif", "deep/e.png": "deep/e.tif",
        "deep/deeper/f.jpeg": "deep/deeper/f.tif",
    }  # fmt: skip
    assert (sum(found.left_alone.values()), found.subfolders) == (5, 0)


def test_sub_folders_that_are_not_looked_into_are_counted_if_they_hold_images(folder: Path, tmp_path: Path) -> None:
    out = folder / "out"
    for name in ("out/a.png", "texts/a.txt", "texts/.hidden.png", "far/more/most/a.tif", "slides/a.svs"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "link").symlink_to(folder / "deep")
    assert list_folder(folder, out).subfolders == 2, "deep and far"
    assert list_folder(folder, out, suffix=".tif").subfolders == 3, "the slides too"
    assert list_folder(folder, out, recursive=True).subfolders == 0


def test_results_of_an_earlier_run_inside_the_folder_are_no_images_of_it(folder: Path) -> None:
    out = folder / "deep" / "out"
    out.mkdir()
    (out / "b.png").touch()
    found = list_folder(folder, out, recursive=True)
    assert out not in {job.source.parent for job in found.jobs}
    assert len(found.jobs) == 6


def test_the_folder_itself_is_refused_under_any_name(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    for out in (folder, folder / "deep" / "..", tmp_path / "link"):
        with pytest.raises(ValueError, match="is the folder of the images"):
            list_folder(folder, out)


def test_a_file_in_the_place_of_the_folder_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"notes\.txt: is a file"):
        list_folder(folder, folder / "notes.txt")


def test_two_images_that_would_become_one_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "b.jpg").touch()
    assert len(list_folder(folder, tmp_path / "out").jobs) == 5
    with pytest.raises(ValueError, match=r"b\.jpg and .*b\.png would both become .*out/b\.png"):
        list_folder(folder, tmp_path / "out", suffix=".png")


def test_a_result_that_would_overwrite_an_image_to_be_read_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "deep" / "deep").mkdir()
    (folder / "deep" / "deep" / "e.png").touch()  # which would go to deep/e.png, seen from deep's parent
    with pytest.raises(ValueError, match=r"deep/deep/e\.png would overwrite .*deep/e\.png"):
        list_folder(folder / "deep", folder, recursive=True)
    out = tmp_path / "out"
    out.mkdir()
    (out / "b.png").symlink_to(folder / "a.JPG")
    with pytest.raises(ValueError, match=r"b\.png would overwrite .*a\.JPG"):
        list_folder(folder, out)


def test_links_to_files_are_read_and_links_to_folders_not_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "z.png").symlink_to(folder / "b.png")
    (folder / "loop").symlink_to(folder)
    out = tmp_path / "out"
    found = names(list_folder(folder, out, recursive=True), folder, out)
    assert "z.png" in found
    assert not [name for name in found if name.startswith("loop")]


def test_a_folder_that_cannot_be_looked_into_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def guarded(path: str) -> object:
        if Path(path).name == "deeper":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    found = list_folder(folder, tmp_path / "out", recursive=True)
    assert [Path(error.filename).name for error in found.unreadable] == ["deeper"]
    assert len(found.jobs) == 5


def test_the_limit_is_the_longest_stage_of_the_busiest_threads() -> None:
    shares = shares_of({"decode": 6.0, "encode": 3.0, "filter": 4.0}, 10.0, {"files": 2, "lanes": 1})
    assert [share.of_time for share in shares] == [0.3, 0.4, 0.15]
    assert limit_of(shares) == "decode: the longest work of 2 threads for reading and writing, busy 45% of the time"
    shares = shares_of({"decode": 6.0, "first call": 5.0}, 10.0, {"files": 2, "lanes": 1})
    assert limit_of(shares).endswith("cache): the longest work of 1 lane of the device, busy 50% of the time")
