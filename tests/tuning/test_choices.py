"""Stored choices: on the disk between processes, in files that are shipped, and never at the price of a crash."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.algorithms.compiling import H200
from tests.tuning.played import entry, fastest

from convforge.backends.cpu import cpu_facts
from convforge.problem import parse_problem
from convforge.tuning.choices import CHOICES, Bucket, Choices, Tried, bucket_of, environment_of, read, write

PRODUCT = parse_problem("m500n60k70_f32")
BUCKET = bucket_of(PRODUCT)
HERE = environment_of("gemm", cpu_facts())
FOUND = entry(BUCKET, HERE, fastest("gemm_blas"), Tried("gemm_loops", "", True, 1e-2, fault="wrong", wrong=True))


def found_by(choices: Choices, level: str = "auto", bucket: Bucket = BUCKET) -> Any:
    return choices.find("gemm", cpu_facts(), bucket, level)


def files(folder: Path, ending: str = ".json") -> list[Path]:
    return sorted(folder.glob(f"*/*{ending}"))


def test_another_process_finds_what_one_remembers(folder: Path) -> None:
    CHOICES.remember(FOUND)
    assert found_by(CHOICES) == FOUND
    assert found_by(Choices(folder)) == FOUND
    (path,) = files(folder)
    assert path.name.startswith("m512n64k128_f32-")


def test_sizes_of_one_bucket_share_a_choice_and_others_do_not() -> None:
    CHOICES.remember(FOUND)
    assert found_by(CHOICES, bucket=bucket_of(parse_problem("m512n33k128_f32"))) == FOUND
    assert found_by(CHOICES, bucket=bucket_of(parse_problem("m512n65k128_f32"))) is None
    assert found_by(CHOICES, bucket=bucket_of(PRODUCT, 1000)) is None
    assert found_by(CHOICES, bucket=bucket_of(PRODUCT, peers=True)) is None


def test_levels() -> None:
    CHOICES.remember(FOUND)
    assert found_by(CHOICES, "max") is None
    thorough = replace(FOUND, level="max", tried=(fastest("gemm_blocked"),))
    CHOICES.remember(thorough)
    assert found_by(CHOICES, "max") == found_by(CHOICES, "auto") == thorough
    CHOICES.remember(FOUND)
    assert found_by(CHOICES, "auto") == thorough, "a smaller search does not put out a larger one"


@pytest.mark.parametrize(
    "field", ["name", "architecture", "driver", "cores"], ids=["device", "architecture", "driver", "cores"]
)
def test_another_device_or_driver_has_choices_of_its_own(folder: Path, field: str) -> None:
    value: Any = 3 if field == "cores" else "another"
    CHOICES.remember(FOUND)
    other = replace(cpu_facts(), **{field: value})
    assert CHOICES.find("gemm", other, BUCKET, "auto") is None
    CHOICES.remember(replace(FOUND, environment=environment_of("gemm", other)))
    assert len(files(folder)) == 2


@pytest.mark.parametrize("changed", ["_methods", "_libraries"])
def test_other_methods_or_libraries_have_choices_of_their_own(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CHOICES.remember(FOUND)
    monkeypatch.setattr(f"convforge.tuning.choices.{changed}", lambda *words: "another")
    assert found_by(CHOICES) is None


def test_a_change_of_a_method_changes_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.tuning import choices

    before = environment_of("gemm", H200)
    monkeypatch.setattr(choices, "_files_digest", lambda: "of other files")
    choices._methods.cache_clear()
    after = environment_of("gemm", H200)
    choices._methods.cache_clear()
    assert {name for name in before if before[name] != after[name]} == {"methods"}


DAMAGE = {
    "empty": b"",
    "cut off": b'{"schema": 1, "tuned": [{"envir',
    "no JSON": b"\x00\xff\xfe",
    "a list": b"[]",
    "another schema": b'{"schema": 99, "tuned": []}',
    "no choice": b'{"schema": 1, "tuned": []}',
    "a word for a number": None,
    "an unknown field": None,
    "another environment": None,
    "another bucket": None,
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_cannot_be_used_is_set_aside_and_measured_again(folder: Path, kind: str) -> None:
    CHOICES.remember(FOUND)
    (path,) = files(folder)
    table = json.loads(path.read_bytes())
    choice = table["tuned"][0]["choices"][0]
    if kind == "a word for a number":
        choice["tried"][0]["seconds"] = "soon"
    elif kind == "an unknown field":
        choice["tried"][0]["colour"] = "red"
    elif kind == "another environment":
        table["tuned"][0]["environment"]["driver"] = "another"
    elif kind == "another bucket":
        choice["bucket"] = "m1n1k1_f32"
    damaged = DAMAGE[kind]
    damaged = json.dumps(table).encode() if damaged is None else damaged
    path.write_bytes(damaged)
    fresh = Choices(folder)
    assert found_by(fresh) is None
    assert files(folder) == []
    (aside,) = files(folder, ".aside")
    assert aside.read_bytes() == damaged, "nothing is lost"
    fresh.remember(FOUND)
    assert found_by(Choices(folder)) == FOUND


def test_a_folder_that_cannot_be_written_keeps_choices_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    choices = Choices(tmp_path / "file" / "tuned")
    choices.remember(FOUND)
    assert found_by(choices) == FOUND


def _write_many(folder: Path, number: int, go: Any) -> None:
    """Another process: choices of 20 buckets that all others write too, and of 5 of its own."""
    choices = Choices(folder)
    go.wait()
    for i in range(20):
        for bucket in (f"m{i}n1k1_f32", f"m{i % 5}n{number}k9_f32"):
            choices.remember(entry(Bucket(bucket), HERE, fastest("gemm_blas", seconds=1.0 + number)))
            assert found_by(Choices(folder), bucket=Bucket(bucket)) is not None


def test_many_processes_write_at_once_and_nothing_is_lost(folder: Path) -> None:
    ways = multiprocessing.get_context("spawn")
    go = ways.Event()
    workers = [ways.Process(target=_write_many, args=(folder, number, go)) for number in range(4)]
    for worker in workers:
        worker.start()
    go.set()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert len(files(folder)) == 20 + 4 * 5
    assert files(folder, ".aside") == []
    assert list(folder.rglob(".new-*")) == []
    for path in files(folder):
        (one,) = read(path)
        assert one.tried[0].seconds in (1.0, 2.0, 3.0, 4.0)


def test_a_writer_that_is_killed_leaves_nothing_half_written(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.tuning.test_choices import *\n"
        "choices = Choices(Path(sys.argv[1])); print('ready', flush=True)\n"
        "while True: choices.remember(entry(BUCKET, HERE, *[fastest('gemm_blas')] * 500))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        while not files(folder):
            assert writer.poll() is None
        writer.kill()
    assert len(found_by(Choices(folder)).tried) == 500


def test_many_threads_find_and_remember(folder: Path) -> None:
    choices, faults = Choices(folder), list[str]()

    def work(number: int) -> None:
        for i in range(30):
            bucket = Bucket(f"m{i}n{number % 2}k1_f32")
            choices.remember(entry(bucket, HERE, fastest("gemm_blas")))
            if found_by(choices, bucket=bucket) is None:
                faults.append(str(bucket))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert len(files(folder)) == 60


def test_a_file_is_written_merged_and_used(tmp_path: Path) -> None:
    path, other = tmp_path / "tuned.json", entry(Bucket("m1n1k1_f32"), HERE, fastest("gemm_loops"))
    assert write(path, [FOUND]) == 1
    newer = replace(FOUND, tried=(fastest("gemm_blocked"),))
    assert write(path, [other, newer]) == 2
    assert {one.bucket: one.tried for one in read(path)} == {BUCKET: newer.tried, other.bucket: other.tried}
    elsewhere = replace(FOUND, environment=HERE | {"device": "another"})
    assert write(path, [elsewhere]) == 3, "another device's stand beside"
    assert CHOICES.load(path) == 3
    found = found_by(CHOICES)
    assert found.tried == newer.tried
    assert found.origin == str(path)
    assert "\n" in path.read_text(), "people can read it"


def test_a_shipped_choice_holds_for_other_drivers_and_libraries_but_not_for_other_methods(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    write(path, [replace(FOUND, environment=HERE | {"driver": "another", "libraries": "others"})])
    CHOICES.load(path)
    assert found_by(CHOICES) is not None
    CHOICES.forget()
    path.unlink()
    write(path, [replace(FOUND, environment=HERE | {"methods": "others"})])
    CHOICES.load(path)
    assert found_by(CHOICES) is None


def test_what_was_measured_here_goes_before_what_was_shipped(tmp_path: Path) -> None:
    write(tmp_path / "tuned.json", [replace(FOUND, tried=(fastest("gemm_loops"),))])
    CHOICES.load(tmp_path / "tuned.json")
    CHOICES.remember(FOUND)
    assert found_by(CHOICES) == FOUND


def test_files_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    write(one, [FOUND])
    write(two, [entry(Bucket("m1n1k1_f32"), HERE, fastest("gemm_loops"))])
    monkeypatch.setenv("CONVFORGE_TUNED", os.pathsep.join(map(str, (one, two))))
    assert found_by(CHOICES) is not None
    assert found_by(CHOICES, bucket=Bucket("m1n1k1_f32")) is not None


@pytest.mark.parametrize("content", [None, b"{"])
def test_a_named_file_that_cannot_be_used_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    path = tmp_path / "tuned.json"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("CONVFORGE_TUNED", str(path))
    with pytest.warns(UserWarning, match="it is not used"):
        assert found_by(CHOICES) is None
    assert found_by(CHOICES) is None, "once"
    assert path.exists() is (content is not None), "a file of somebody's is left alone"


def test_a_file_that_is_no_such_one_is_neither_loaded_nor_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "photo.json"
    path.write_text("{}")
    for act in (lambda: CHOICES.load(path), lambda: write(path, [FOUND])):
        with pytest.raises(ValueError, match=r"photo\.json holds no tuned choices"):
            act()
    assert path.read_text() == "{}"
