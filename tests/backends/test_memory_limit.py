"""The limit of memory of a container or a job, by the files of Linux's control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from convforge.backends.cpu import limits
from convforge.imaging.pipeline import lanes


def tree(root: Path, groups: str, **files: str) -> int:
    """Return the limit where /proc/self/cgroup has these lines, and these files have these contents."""
    process = root / "cgroup"
    process.write_text(groups)
    for name, content in files.items():
        path = root.joinpath(*name.split("__"))
        path = path.with_name({"max": "memory.max", "limit": "memory.limit_in_bytes"}[path.name])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    trees = (("", root / "two", "memory.max"), ("memory", root / "one", "memory.limit_in_bytes"))
    return limits.memory_limit(process, trees)


def test_of_a_container(tmp_path: Path) -> None:
    assert tree(tmp_path, "0::/\n", two__max="2000000000\n") == 2_000_000_000


def test_of_a_group_inside_others_the_least_counts(tmp_path: Path) -> None:
    assert tree(tmp_path, "0::/a/b\n", two__a__b__max="max\n", two__a__max="3000\n", two__max="9000\n") == 3000


def test_of_version_1(tmp_path: Path) -> None:
    lines = "9:name=systemd:/x\n4:memory,other:/job/7\n0::/\n"
    assert tree(tmp_path, lines, one__job__7__limit="5000\n", one__limit="9223372036854771712\n") == 5000


def test_of_a_path_that_only_the_machine_outside_knows(tmp_path: Path) -> None:
    assert tree(tmp_path, "4:memory:/docker/abc\n", one__limit="7000\n") == 7000


def test_without_a_limit(tmp_path: Path) -> None:
    assert tree(tmp_path, "0::/\n", two__max="max\n") == 0
    assert limits.memory_limit(tmp_path / "none", ()) == 0


def test_the_share_of_images_is_a_quarter_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    there = lanes.memory_share()
    assert there > 0
    monkeypatch.setattr(lanes, "memory_limit", lambda: 4000)
    assert lanes.memory_share() == 1000
    monkeypatch.setattr(lanes, "memory_limit", lambda: 2**63)
    assert lanes.memory_share() >= there
