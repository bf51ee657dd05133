"""`convforge doctor`: the machine, what is installed, what is missing with the line that gets it, the cache."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.commands import Ran

import convforge
from convforge.backends import cuda
from convforge.backends.cpu import cpu_facts
from convforge.backends.cuda import facts as cuda_facts

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
# What convforge cannot do without, and what gets each thing that it can.
NEEDED = (*("numpy", "ml_dtypes", "scipy", "numba", "pillow", "tifffile", "imagecodecs", "typer", "rich"),)
LAB = ("pandas", "altair", "vl-convert-python", "jinja2", "babel", "pygments", "psutil")
OPTIONAL = {
    **dict.fromkeys(LAB, "pip install 'convforge[lab]'"),
    "torch": "pip install torch",
    "opencv-python-headless": "pip install opencv-python-headless",
    "scikit-image": "pip install 'convforge[demo]'",
}


@pytest.fixture
def run(run: Callable[..., Ran], wide: None) -> Callable[..., Ran]:
    """Run `convforge doctor WORDS...` in a wide terminal."""
    return lambda *words: run("doctor", *words)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Distribution -> version: what seems to be installed. Everything, until a test takes something out."""
    versions = {name: f"{number}.0.1" for number, name in enumerate((*NEEDED, *OPTIONAL))}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return versions


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of compiled kernels, moved to one of the test's own; it does not exist yet."""
    monkeypatch.setenv("CONVFORGE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "numba"


def cache_line(ran: Ran) -> str:
    """Return the lines about the cache of compiled kernels."""
    (line,) = (line for line in ran.out.splitlines() if line.startswith("compiled kernels: "))
    return line.removeprefix("compiled kernels: ")


def test_the_machine(done: Callable[..., Ran]) -> None:
    ran, facts = done(), cpu_facts()
    assert ran.out.startswith(f"convforge {convforge.__version__}")
    assert ran.rows["Python"] == [f"{platform.python_version()} on {platform.platform()}"]
    assert ran.rows["CPU"] == [f"{facts.name}, {facts.cores} cores in use, vectors of {facts.vector_bytes} bytes"]
    (memory,) = ran.rows["memory"]
    number, unit = memory.split()
    assert float(number) * {"MiB": 2**20, "GiB": 2**30}[unit] == pytest.approx(facts.memory_bytes, rel=0.01)
    assert re.fullmatch(r"L1 [\d.]+ \wi?B, L2 [\d.]+ \wi?B, L3 [\d.]+ \wi?B", ran.rows["caches"][0].replace("iB", "B"))


def test_a_gpu_that_cannot_be_used_is_said_with_what_would_mend_it(
    done: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "the Python package cuda.core is missing: pip install 'convforge[cuda13]'"
    monkeypatch.setattr(cuda, "why_absent", lambda: reason)
    assert done().rows["GPU"] == [f"none to use: {reason}"]


def test_a_gpu_is_named_with_its_size(done: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    there = dataclasses.replace(cpu_facts(), name="Some GPU", cores=132, architecture="sm_90", memory_bytes=8 << 30)
    monkeypatch.setattr(cuda, "why_absent", lambda: None)
    monkeypatch.setattr(cuda_facts, "cuda_facts", lambda: there)
    assert done().rows["GPU"] == ["Some GPU, 132 SMs, sm_90, 8 GiB"]


def test_the_kernels_of_every_backend_are_measured_and_cleared(done: Callable[..., Ran], kernels: Path) -> None:
    for name, nbytes in (("cuda", 5), ("emulator", 7)):
        kernels.with_name(name).mkdir(parents=True)
        (kernels.with_name(name) / "key").write_bytes(bytes(nbytes))
    out = done("--clear-cache").out
    for name, nbytes in (("cuda", 5), ("emulator", 7)):
        assert f"{kernels.with_name(name)}, 1 files, {nbytes} B" in out
        assert not kernels.with_name(name).exists()


def test_what_is_here_is_listed_with_its_version_and_use(done: Callable[..., Ran], installed: dict[str, str]) -> None:
    rows = done().rows
    for name, version in installed.items():
        assert rows[name][0] == version
        assert rows[name][1] != "", "what it is for"
        assert rows[name][2] == "", "there is nothing to get"


def test_the_versions_are_those_installed(done: Callable[..., Ran]) -> None:
    rows = done().rows
    for name in NEEDED:
        assert rows[name][0] == importlib.metadata.version(name)


@pytest.mark.parametrize("name", NEEDED)
def test_a_needed_package_that_is_missing(done: Callable[..., Ran], installed: dict[str, str], name: str) -> None:
    del installed[name]
    rows = done().rows
    assert rows[name][0] == "missing"
    assert rows[name][2] == f"pip install {name}"
    assert all(row[2] == "" for other, row in rows.items() if other in installed), "and nothing else"


@pytest.mark.parametrize("name", OPTIONAL)
def test_an_optional_package_that_is_not_installed(
    done: Callable[..., Ran], installed: dict[str, str], name: str
) -> None:
    del installed[name]
    rows = done().rows
    assert rows[name][0] == "not installed", "it is no fault"
    assert rows[name][2] == OPTIONAL[name]
    assert all(row[2] == "" for other, row in rows.items() if other in installed), "and nothing else"


def test_opencv_counts_in_its_other_package_too(done: Callable[..., Ran], installed: dict[str, str]) -> None:
    del installed["opencv-python-headless"]
    installed["opencv-python"] = "4.99.0"
    assert done().rows["opencv-python-headless"][::2] == ["4.99.0", ""]


def test_every_dependency_of_the_project_is_listed(done: Callable[..., Ran]) -> None:
    names = {re.split(r"[<>=!~\[; ]", text)[0] for text in PROJECT["dependencies"]}
    assert len(names) >= len(NEEDED)
    assert names <= set(done().rows)


def test_it_asks_for_nothing_that_the_project_does_not() -> None:
    names = {re.split(r"[<>=!~\[; ]", text)[0] for text in PROJECT["dependencies"]}
    assert set(NEEDED) <= names
    extras = PROJECT["optional-dependencies"]
    assert any(text.startswith("scikit-image") for text in extras["demo"]), "what 'convforge[demo]' gets"
    assert set(LAB) == {re.split(r"[<>=!~\[; ]", text)[0] for text in extras["lab"]}
    for name in ("torch", "opencv-python-headless"):
        assert any(text.startswith(name) for text in extras["peers"])


def test_a_cache_that_is_not_there_yet(done: Callable[..., Ran], kernels: Path) -> None:
    assert cache_line(done()) == f"{kernels}, 0 files, 0 B"
    ran = done("--clear-cache")
    assert "deleted" not in ran.out
    assert not kernels.exists()


def test_the_cache_is_measured_and_left_alone(done: Callable[..., Ran], kernels: Path) -> None:
    for digest, nbytes in (("new", 3000), ("old", 1096)):
        (kernels / digest / "direct_123").mkdir(parents=True)
        (kernels / digest / "direct_123" / "rows.nbi").write_bytes(bytes(nbytes))
    ran = done()
    assert cache_line(ran) == f"{kernels}, 2 files, 4 KiB", "those of older sources count too"
    assert "deleted" not in ran.out
    assert (kernels / "old" / "direct_123" / "rows.nbi").stat().st_size == 1096


def test_the_cache_is_cleared_and_nothing_beside_it(done: Callable[..., Ran], kernels: Path) -> None:
    (kernels / "new" / "direct_123").mkdir(parents=True)
    (kernels / "new" / "direct_123" / "rows.nbi").write_bytes(bytes(17))
    other = kernels.parent / "choices.json"
    other.write_text("{}")
    ran = done("--clear-cache")
    assert cache_line(ran) == f"{kernels}, 1 files, 17 B"
    assert ran.out.splitlines()[-1] == "deleted; kernels are compiled again when they are next used"
    assert not kernels.exists()
    assert other.read_text() == "{}"
    assert cache_line(done()) == f"{kernels}, 0 files, 0 B"


def test_tuned_choices_are_counted_and_cleared(done: Callable[..., Ran], kernels: Path) -> None:
    choice = kernels.with_name("tuned") / "a-cpu-0123" / "m8n8k8-0123.json"
    choice.parent.mkdir(parents=True)
    choice.write_text("{}")
    assert f"tuned choices: {kernels.with_name('tuned')}, 1 buckets" in done().out
    assert done("--clear-cache").out.splitlines()[-1].startswith("deleted")
    assert not choice.exists()


def test_a_cache_that_cannot_be_deleted_is_a_failure(
    run: Callable[..., Ran], kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels.mkdir(parents=True)

    def locked(path: Path, onerror: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", locked)
    ran = run("--clear-cache")
    assert ran.code == 1
    assert ran.err == f"convforge: {kernels}: Permission denied\n"


@pytest.mark.parametrize("words, says", [(("--clear",), "--clear"), (("now",), "now")])
def test_bad_use(refused: Callable[..., str], kernels: Path, words: tuple[str, ...], says: str) -> None:
    kernels.mkdir(parents=True)
    refused(2, *words, says=(says,))
    assert kernels.exists()
