"""`convforge filter - -`: an image in a pipe of the shell."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.filter.images import LAPLACIAN, SMALL, correlated, kept, saturated

from convforge.cli import filter_streams
from convforge.imaging.files import Metadata, read_image

EDGES = ("--kernel", "laplacian", "--method", "direct_naive")
WANTED = saturated(correlated(SMALL, LAPLACIAN))


class Stream(io.TextIOWrapper):
    """Standard input or output in this process: bytes, and whether it is a terminal."""

    def __init__(self, data: bytes = b"", terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data))
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def piped(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, bytes, str]]:
    """Run the command with these bytes as standard input: exit code, bytes of standard output, standard error."""

    def command(data: bytes, *words: object) -> tuple[int, bytes, str]:
        out = Stream()
        monkeypatch.setattr(sys, "stdin", Stream(data))
        monkeypatch.setattr(sys, "stdout", out)
        ran = run(*words)
        return ran.code, out.buffer.getvalue(), ran.err  # type: ignore[attr-defined]

    return command


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.npy", "a.jpg"])
def test_in_a_pipe_the_bytes_are_those_of_a_file(
    tmp_path: Path, piped: Callable[..., tuple[int, bytes, str]], run: Callable[..., Any], name: str
) -> None:
    source = kept(tmp_path, name, SMALL)
    assert run(source, tmp_path / f"b{source.suffix}", *EDGES).code == 0
    code, out, err = piped(source.read_bytes(), "-", "-", *EDGES)
    assert code == 0
    assert out == (tmp_path / f"b{source.suffix}").read_bytes()
    assert err.splitlines()[0] == "in          standard input: 31 x 23 pixels, 3 bands, uint8"
    assert f"\nout         standard output{source.suffix}: 31 x 23 pixels" in err


def test_a_pipe_of_the_shell(tmp_path: Path) -> None:
    source = kept(tmp_path, "a.png", SMALL)
    filter_ = f"{sys.executable} -m convforge filter - - --kernel"
    line = f"{filter_} laplacian < {source} | {filter_} identity > {tmp_path / 'b.png'}"
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    np.testing.assert_array_equal(read_image(tmp_path / "b.png").pixels, WANTED)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_ends_the_command_quietly(tmp_path: Path, unbuffered: str) -> None:
    source = kept(tmp_path, "a.npy", np.zeros((700, 700), np.float64))
    words = [sys.executable, "-m", "convforge", "filter", source, "-", "--kernel", "identity"]
    there, here = os.pipe()
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(words, stdout=here, stderr=subprocess.PIPE, env=environment) as process:
        os.close(here)
        os.read(there, 10)
        os.close(there)
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_from_a_stream_to_a_file_and_back(tmp_path: Path, piped: Callable[..., tuple[int, bytes, str]]) -> None:
    source = kept(tmp_path, "a.png", SMALL, alpha=SMALL[..., 0], metadata=Metadata((300, 300)))
    code, out, err = piped(source.read_bytes(), "-", tmp_path / "b.tif", *EDGES)
    assert (code, err) == (0, "")
    assert out.startswith(b"in          standard input: 31 x 23 pixels, 3 bands and alpha, uint8\n")
    np.testing.assert_array_equal(read_image(tmp_path / "b.tif").pixels, WANTED)
    code, out, err = piped(b"", source, "-", *EDGES, "--format", "npy", "--region", "3:9,:")
    assert code == 0
    np.testing.assert_array_equal(np.load(io.BytesIO(out))[..., :3], WANTED[3:9])
    assert err.endswith("convforge: standard output.npy: not kept: resolution\n")


@pytest.mark.parametrize(
    ("code", "data", "words", "says"),
    [
        (1, b"", ("-", "-"), "standard input: is empty (0 bytes)"),
        (1, b"This is no image.", ("-", "-"), "standard input: not an image that can be read"),
        (1, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", ("-", "b.png"), "standard input: truncated PNG"),
        (1, SMALL, ("-", "-", "--max-pixels", "700"), "standard input: declares 31 x 23 pixels"),
        (2, SMALL, ("-", "-", "--format", "gif"), "--format 'gif'"),
        (2, SMALL, ("-", "-", "--out-dtype", "float32"), "standard output.png: PNG holds uint8 or uint16"),
        (2, SMALL, ("-", "b.png", "--format", "png"), "--format goes with a folder of images or with - as OUT"),
        (2, SMALL, ("-", "-", "--memory", "1GB"), "--memory goes with files; - is one image"),
        (2, SMALL, ("-", "-", "--jobs", "2"), "--jobs goes with files"),
        (1, SMALL, ("-", "none/b.png"), "does not exist; make it first"),
        (1, SMALL, ("none.png", "-"), "none.png: no such file"),
        (1, SMALL, (".", "-"), ".: is a folder; name one image in it"),
    ],
)
def test_mistakes(
    tmp_path: Path, piped: Callable[..., tuple[int, bytes, str]], monkeypatch: pytest.MonkeyPatch, code: int, data: Any,
    words: tuple[str, ...], says: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    data = data if isinstance(data, bytes) else kept(tmp_path, "a.png", data).read_bytes()
    found, out, err = piped(data, *words, *EDGES)
    assert (found, out) == (code, b"")
    assert err.startswith("convforge: ")
    assert err.count("\n") == 1
    assert says in err


def test_more_bytes_than_an_image_can_have_are_refused(
    tmp_path: Path, piped: Callable[..., tuple[int, bytes, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_streams, "MORE_BYTES", 0)
    monkeypatch.setattr(filter_streams, "BLOCK", 16)
    data = kept(tmp_path, "a.png", SMALL).read_bytes()
    code, out, err = piped(data, "-", "-", *EDGES, "--max-pixels", len(data) // 33)
    assert (code, out) == (1, b"")
    assert "standard input: has more than" in err
    assert "--max-pixels" in err


def test_a_terminal_is_no_stream_of_an_image(
    tmp_path: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = kept(tmp_path, "a.png", SMALL)
    monkeypatch.setattr(sys, "stdin", Stream(terminal=True))
    ran = run("-", tmp_path / "b.png", *EDGES)
    assert (ran.code, ran.err.partition(";")[0]) == (2, "convforge: standard input is a terminal")
    monkeypatch.setattr(sys, "stdout", Stream(terminal=True))
    ran = run(source, "-", *EDGES)
    assert (ran.code, ran.err.partition(",")[0]) == (2, "convforge: standard output is a terminal")
