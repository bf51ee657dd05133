"""Every line of every shell block in the documents is run, or else held to what it names.

The rule. What stands in a directive ``{command}`` or ``{script}`` is run when the pages are built, and a wrong exit
code fails the build. Of the other shell blocks,

- a `convforge` command is run here as it stands, but small (see `small`): on the CPU or the emulator where it asks for
  a GPU, with quick measuring, small pictures, and the methods that are there; the lines of a page in order;
- scripts and modules of the checkout are asked for their help, so that they start;
- `make`, `pytest`, `pip` and variables must name targets, files, extras and settings that are there: they install
  things, or run for minutes, and continuous integration runs them;
- any other line fails this test.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.backends.emulated import needs_emulator

from convforge.algorithms import algorithms
from convforge.cli import app as application
from convforge.imaging.photographs import photograph

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(DOCS / "notebooks").glob("*.md"), *(DOCS / "kernels").rglob("*.md")]
)
_SHELL = re.compile(r"^ *```(?:console|bash|shell|sh)\n(?P<body>.*?)^ *```", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_of(text: str) -> list[list[str]]:
    """The lines of a text's shell blocks, as words, without prompts and comments."""
    bodies = (match["body"].replace("\\\n", " ") for match in _SHELL.finditer(text))
    lines = (re.sub(r"^[$>] ", "", line.strip()) for body in bodies for line in body.splitlines())
    windows = ((line.replace("\\", "/") if ".venv\\" in line else line) for line in lines)
    found = (shlex.split(line, comments=True) for line in windows)
    return [words for words in found if words]


PAGES = [
    # It measures every suite, if shortly.
    pytest.param(page, marks=[pytest.mark.thorough] if page.stem == "reproducing" else [])
    for page in DOCUMENTS
    if lines_of(page.read_text(encoding="utf-8"))
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder in which the lines of a page run, with the files that they name."""
    from PIL import Image

    Image.fromarray(photograph()[:64, :64]).save(tmp_path / "photo.png")
    (tmp_path / "homework").mkdir()
    shutil.copyfile(ROOT / "examples" / "student_naive.cu", tmp_path / "homework" / "ada.cu")
    columns = (ROOT / "benchmarks" / "layers.csv").read_text(encoding="utf-8").splitlines()[0]
    (tmp_path / "layers.csv").write_text(f"{columns}\nsmall,made up,1,2,16,16,4,3,3,1,1,1,1,1,1\n", encoding="utf-8")
    for name in ("benchmarks", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], tuple[Any, str]]:
    """Run `convforge WORDS...` in this process: its exit code, and what it said."""

    def command(words: list[str]) -> tuple[Any, str]:
        monkeypatch.setattr(sys, "argv", ["convforge", *words])
        code: Any = 0
        try:
            application.main()
        except SystemExit as stop:
            code = stop.code
        return code, "\n".join(capsys.readouterr())

    return command


def small(words: list[str]) -> list[str]:
    """A command of convforge as it is run here."""
    command, *rest = words
    rest = [re.sub(r"h\d{3,}w\d{3,}", "h64w64", word) for word in rest]
    gpu = _take(rest, "--device") not in (None, "cpu", "emulator")
    if command in ("bench", "study"):
        rest = [word for word in rest if word not in ("--transfer", "--heavy", "--all-configs", "--quick")]
        rest += [] if "--from" in rest or "--list" in rest else ["--quick", "--budget", "2s"]
    if command == "bench":
        suite = rest[0]
        if _take(rest, "--sizes") is not None or suite in ("images", "gemm", "smoke"):
            rest[1:1] = ["--sizes", "512" if suite == "gemm" else "32"]
        if (methods := _take(rest, "--methods")) is not None:
            rest[1:1] = ["--methods", ",".join(there(methods, suite))]
        _take(rest, "--out")
        rest += ["--out", "out"]
    if command == "lab":
        whole = _take(rest, "--from")
        rest += ["gemm"] if whole is None else ["--from", str(next(Path(whole).glob("layers-b32-*.jsonl")))]
    if command == "gemm":
        rest[:3] = ["64", "64", "64"]
    if command == "check" and gpu:
        rest += ["--device", "emulator", "--no-time"]
    return [command, *rest]


def there(methods: str, suite: str) -> list[str]:
    """Of some methods those that the CPU has; a rung of its own where it has none of them."""
    known = {a.name for a in algorithms() if a.backend == "cpu"}
    found = [name for name in methods.split(",") if name in known or name.endswith("*")]
    found = [name for name in found if any(re.match(name.replace("*", ".*"), other) for other in known)]
    return found or ["gemm_blocked" if suite == "gemm" else "direct_rows"]


def _take(words: list[str], option: str) -> str | None:
    """Take an option and its value out of some words."""
    if option not in words:
        return None
    at = words.index(option)
    value = words[at + 1]
    del words[at : at + 2]
    return value


@pytest.mark.one_in(8)
@needs_emulator
@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_line_is_run(page: Path, folder: Path, run: Any) -> None:
    ran = []
    for words in lines_of(page.read_text(encoding="utf-8")):
        program, *rest = words
        if Path(program).name == "convforge":
            if small(rest) not in ran:
                code, said = run(small(rest))
                assert code == 0, f"convforge {' '.join(small(rest))}: {said}"
                ran.append(small(rest))
        else:
            assert (fault := fault_of(words, page)) is None, f"{' '.join(words)}: {fault}"


def fault_of(words: list[str], page: Path) -> str | None:
    """The fault of a line that is no command of convforge, or None."""
    program, *rest = words
    name = Path(program).name
    if name == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        return next((f"there is no target {w}" for w in rest if "=" not in w and w not in targets), None)
    if name == "export":
        variable = rest[0].partition("=")[0]
        known = any(variable in path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
        return None if known else f"nobody reads {variable}"
    if name == "pytest":
        shown = re.findall(r"^# (tests/\S+\.py)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        files = [word for word in rest if word.startswith("tests/")]
        return next((f"there is no {f}" for f in files if not (ROOT / f).exists() and f not in shown), None)
    if name in ("python", "python3", "py") and rest[:2] == ["-m", "venv"]:
        return None
    if name == "pip" or rest[:2] == ["-m", "pip"]:
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        asked = re.findall(r"\[([\w,-]+)\]", " ".join(rest))
        extras = [extra for group in asked for extra in group.split(",")]
        return next((f"there is no extra {e}" for e in extras if e not in declared["optional-dependencies"]), None)
    if name in ("python", "python3"):
        script = rest[:2] if rest[0] == "-m" else rest[:1]
        done = subprocess.run(
            [sys.executable, *script, "--help"], cwd=ROOT, capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        )  # fmt: skip
        return None if done.returncode == 0 else done.stderr
    return "nobody runs it"


@pytest.mark.parametrize(
    "line, says",
    [
        ("make demo", None),
        ("make nothing", "there is no target nothing"),
        ("pip install '.[demo]'", None),
        ("python -m pip install -e '.[dev,nothing]'", "there is no extra nothing"),
        ("pytest tests/test_docs.py", None),
        ("pytest tests/test_nothing.py", "there is no tests/test_nothing.py"),
        ("export CONVFORGE_TUNED=a.json", None),
        ("export CONVFORGE_NOTHING=1", "nobody reads CONVFORGE_NOTHING"),
        ("rm -rf /", "nobody runs it"),
    ],
)
def test_a_line_that_names_what_is_not_there_is_found(line: str, says: str | None) -> None:
    assert fault_of(shlex.split(line), DOCS / "index.md") == says


def test_lines_are_read_as_a_shell_reads_them() -> None:
    bash = "```bash\nconvforge bench a \\\n    b --quick  # quick\n\n```\n"
    console = "```console\n$ make demo\n> .venv\\Scripts\\python x.py\n```\n"
    lines = [["convforge", "bench", "a", "b", "--quick"], ["make", "demo"], [".venv/Scripts/python", "x.py"]]
    assert lines_of(bash + console) == lines


@pytest.mark.parametrize(
    "given, run",
    [
        ("bench images --sizes 512,2048 --methods direct_naive,cudnn --transfer --device cuda",
         "bench images --methods direct_naive --sizes 32 --quick --budget 2s --out out"),
        ("check a.cu --device cuda --json", "check a.cu --json --device emulator --no-time"),
        ("explain n1c3h4096w4096_k1r3s3", "explain n1c3h64w64_k1r3s3"),
        ("study gemm --device cuda", "study gemm --quick --budget 2s"),
        ("doctor", "doctor"),
    ],
)  # fmt: skip
def test_a_command_is_made_small_and_nothing_else(given: str, run: str) -> None:
    assert " ".join(small(given.split())) == run


@needs_emulator
def test_scripts_of_pages_end_where_a_line_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    command = pytest.importorskip("command", exc_type=ModuleNotFoundError)
    done = command.run_script("convforge --help > help.txt\nhead -1 help.txt\nfalse\necho never", tmp_path)
    assert done.returncode == 1
    assert "never" not in done.stdout
    assert (tmp_path / "help.txt").read_text().startswith("Usage: ")


# Blocks of Python that are no cells.


def blocks() -> Iterator[tuple[str, str]]:
    for page in DOCUMENTS:
        for i, match in enumerate(_PYTHON.finditer(page.read_text(encoding="utf-8"))):
            yield f"{named(page)}-{i}", match["body"]


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in blocks()])
def test_python_on_a_page_is_python(body: str) -> None:
    ast.parse(body)


@needs_emulator
@pytest.mark.parametrize(
    "body", [pytest.param(b, id=n) for n, b in blocks() if b.startswith(("import numpy", "from convforge.problem"))]
)
def test_python_that_needs_nothing_before_it_runs(body: str) -> None:
    exec(compile(body, "page", "exec"), {})
