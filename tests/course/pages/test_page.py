"""Parts of pages: JSON that ends no element, pictures, files that are written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from convforge.course.pages.images import SHARE_BYTES, figures, find_images
from convforge.course.pages.page import json_for_html, write

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}\u2028<!--"


def test_json_in_html_ends_no_element() -> None:
    text = json_for_html([HOSTILE])
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == [HOSTILE]


def picture(path: Path, shape: tuple[int, ...] = (600, 900, 3), seed: int = 0) -> Path:
    from PIL import Image

    Image.fromarray(np.random.default_rng(seed).integers(0, 255, shape, np.uint8)).save(path)
    return path


def test_files_of_the_same_bytes_are_shown_once_with_every_name(tmp_path: Path) -> None:
    for name, seed in (("photograph", 1), ("edges-fft", 0), ("edges-im2col", 0), ("a", 2)):
        picture(tmp_path / f"{name}.png", (40, 40), seed)
    found = figures(find_images(tmp_path))
    same = "edges-fft, edges-im2col: the same image, to the byte"
    assert [f.caption for f in found] == ["photograph", "a", same]


def test_many_large_pictures_are_shrunk_further_and_the_page_stays_small(tmp_path: Path) -> None:
    for i in range(8):
        picture(tmp_path / f"{i}.png", (480, 480, 3), i)
    found = figures(find_images(tmp_path))
    assert len(found) == 8
    assert found[0].width < 480
    assert sum(len(f.address) for f in found) <= SHARE_BYTES


def test_an_old_page_stays_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "new" / "report.html"
    assert write(target, "öld") == 4
    assert target.read_text(encoding="utf-8") == "öld"

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write(target, "new")
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]
    assert target.read_text(encoding="utf-8") == "öld"
    with pytest.raises(IsADirectoryError, match="is a folder"):
        write(target.parent, "new")
