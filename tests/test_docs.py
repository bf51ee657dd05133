"""The documents, held to the code: pages, links, commands, the worked example, the layering of architecture.md."""

from __future__ import annotations

import ast
import dataclasses
import graphlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.cases import CONV2D

import convforge
from convforge.algorithms import ON_DEVICE, OURS, refusal
from convforge.backends.cpu import cpu_facts, cpu_runtime
from convforge.problem import parse_problem
from convforge.verify import Judge, check_nan_spread, check_plan, make_inputs

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "convforge"
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *(DOCS / "notebooks").glob("*.md"), *(DOCS / "kernels").rglob("*.md")])
DOCUMENTS = [*PAGES, *sorted(ROOT.glob("*.md"))]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def extension(name: str) -> ModuleType:
    """A module of docs/_ext, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "_ext" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# What every page must mention.


def test_every_page_is_in_the_table_of_contents() -> None:
    groups = re.findall(r"```\{toctree\}\n:hidden:\n:caption: [^\n]+\n\n(.*?)```", text_of("docs/index.md"), re.DOTALL)
    listed = " ".join(groups).split()
    pages = (page.relative_to(DOCS).with_suffix("").as_posix() for page in PAGES)
    # A page a kernel is listed in the order of the ladder on a page of its own: see tests/docs.
    above = [page for page in pages if not page.startswith("kernels/") or page == "kernels/index"]
    assert sorted(listed) == sorted(page for page in above if page != "index")


@pytest.mark.parametrize("algorithm", OURS, ids=lambda a: a.name)
def test_every_method_has_an_entry(algorithm: Any) -> None:
    assert f"\n## {algorithm.name}\n" in text_of("docs/methods.md"), f"docs/methods.md has no section {algorithm.name}"


def test_no_entry_is_of_a_method_that_is_no_more() -> None:
    headings = re.findall(r"^## ([a-z0-9_]+)$", text_of("docs/methods.md"), re.MULTILINE)
    assert set(headings) <= {a.name for a in OURS}


# The table of docs/adding-an-algorithm.md: which methods a file must name.
ASKED = {
    "every method": [*OURS, *(a for a in ON_DEVICE if a.backend == "cuda")],
    "every method of the CPU": list(OURS),
    "every method of GPUs": [a for a in ON_DEVICE if a.backend == "cuda"],
}
ASKED |= {
    f"every convolution and product{of}": [a for a in ASKED[f"every method{of}"] if a.operation in ("conv2d", "gemm")]
    for of in ("", " of GPUs")
}


@cache
def touched() -> dict[str, str]:
    """Files, and of which methods the page asks something there."""
    table = text_of("docs/adding-an-algorithm.md").split("| file |", 1)[1].split("\n\n", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {file: asked for files, _, asked in rows for file in re.findall(r"`([^`]+)`", files)}


def names_in(name: str) -> set[str]:
    """The methods that a file names, by their classes too; of a folder, any file; of faults, those beside it.

    A catalogue of messages names them by their summaries.
    """
    paths = sorted((ROOT / name).rglob("*.*")) if name.endswith("/") else [ROOT / name]
    if name == "tests/algorithms/faults.py":
        paths = sorted((ROOT / "tests/algorithms").glob("*faults*.py"))
    if name.endswith(".po"):
        text = text_of(name).replace('"\n"', "")
        return {a.name for a in ASKED["every method"] if a.summary in text}
    paths = [path for path in paths if path.suffix != ".pyc"]
    words = {word for path in paths for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    return {a.name for a in ASKED["every method"] if not words.isdisjoint({a.name, type(a).__name__})}


def test_the_files_that_a_new_method_touches_name_every_method() -> None:
    assert len(touched()) == 13
    for file, asked in touched().items():
        if file in ("src/convforge/algorithms/FOLDER/", "src/convforge/algorithms/__init__.py"):
            continue  # a method without these is none
        assert (ROOT / file).exists(), file
        missing = {a.name for a in ASKED.get(asked, [])} - names_in(file)
        assert not missing, f"{file} does not name {sorted(missing)}, and the page says {asked}"


def test_a_convolution_on_gpus_touches_as_many_files_as_the_page_says() -> None:
    """None of these is a table of methods in the rooms that tune, draw or measure: they read it beside the method."""
    of_every = ("every method", "every method of GPUs", "every convolution and product of GPUs")
    files = [file for file, asked in touched().items() if asked in of_every]
    several = {"src/convforge/algorithms/FOLDER/": 3, "docs/kernels/": 2}
    count = sum(several.get(file, 1) for file in files)
    assert f"touches {count} files" in text_of("docs/adding-an-algorithm.md")
    source = [file for file in files if file.startswith("src/")]
    assert {file.split("/")[2] for file in source} == {"algorithms", "course"}


@pytest.mark.parametrize("of", ["the CPU", "GPUs"])
def test_no_other_file_names_every_method(of: str) -> None:
    """Whoever adds one would have to touch it: all in the code, and half of them in what is no method's own."""
    methods = {a.name for a in ASKED[f"every method of {of}"]}
    listed = tuple(touched())
    found = set()
    for path in sorted(path for folder in ("src", "tests", "docs", "examples") for path in (ROOT / folder).rglob("*")):
        name = named(path)
        if path.suffix not in (".py", ".md", ".csv", ".po") or name.startswith(("src/convforge/algorithms/", "docs/_")):
            continue
        enough = len(methods) * (0.5 if name.startswith("src/") else 1)
        if len(names_in(name) & methods) >= enough:
            found.add(name)
    assert {name for name in found if not name.startswith(listed) and "/kernels/" not in name} == set()


def test_every_public_name_is_in_the_api_page() -> None:
    listed = set(re.findall(r"^   (\w+)$", text_of("docs/api.md"), re.MULTILINE))
    assert set(convforge.__all__) <= listed


def test_every_border_mode_is_in_the_table_of_names() -> None:
    from convforge.problem import PADDING_MODES

    rows = re.findall(r"^\| `(\w+)` \| `(\w+)`", text_of("docs/borders.md"), re.MULTILINE)
    assert {mode: name.split(",")[0] for mode, (name, _) in PADDING_MODES.items()} == dict(rows)


def test_every_precision_is_in_the_table_of_bounds() -> None:
    from convforge.problem import PRECISIONS
    from convforge.verify.bounds import NARROWED
    from convforge.verify.gate import ALLOWED, TENSOR

    page = text_of("docs/accuracy.md")
    assert [name for name in PRECISIONS if f"`{name}`" not in page and name != "int8"] == []
    for name, times in ALLOWED.items():
        assert f"| `{name}` | {times:g}" in page, f"docs/accuracy.md states another gate than {name}: {times}"
    for name, (times, _) in TENSOR.items():
        assert f"{times:g} times that" in page, f"docs/accuracy.md states another gate of sums {name}: {times}"
    assert [u.as_integer_ratio()[1].bit_length() - 1 for u in NARROWED.values()] == [10, 11, 8, 3, 3]
    assert "2^-10, 2^-11, 2^-8, 2^-3" in page


def test_the_measuring_page_states_the_rules_as_they_are() -> None:
    from convforge.benchmark.runner import QUICK
    from convforge.timing.ceilings import MOVED
    from convforge.timing.ring import COLD_FACTOR, MOST_SLOTS, RING_LIMIT_BYTES
    from convforge.timing.stopping import StoppingRule

    rule, page = StoppingRule(), " ".join(text_of("docs/measuring.md").split())
    for said in (
        f"at least {1e6 * rule.sample_s:.0f} us",
        f"At least {rule.samples} samples",
        f"at most {100 * rule.narrow:.0f} % of it",
        f"asks for {QUICK.samples} samples and {100 * QUICK.narrow:.0f} %",
        f"At most {RING_LIMIT_BYTES >> 20} MiB and {MOST_SLOTS} slots",
        f"moved by more than {100 * MOVED:.0f} %",
    ):
        assert said in page, f"docs/measuring.md does not say {said!r}"
    assert rule.patience_s == 1.0
    assert "after a second" in page
    assert COLD_FACTOR == 2
    assert "twice the bytes" in page


def test_the_measuring_page_names_every_field_of_a_record() -> None:
    from convforge.benchmark.records import Result

    page = text_of("docs/measuring.md")
    row = next(line for line in page.splitlines() if line.startswith("| `result`"))
    fields = [f.name for f in dataclasses.fields(Result)]
    assert [name for name in fields if f"`{name}`" not in row] == []


@pytest.mark.parametrize("page", DOCUMENTS, ids=named)
def test_tables_are_asked_of_suites_that_exist(page: Path) -> None:
    from convforge.benchmark.markers import marker_specs
    from convforge.benchmark.sheets import KINDS
    from convforge.benchmark.suites import suite_names

    asked = {spec.split()[0] for spec in marker_specs(page.read_text(encoding="utf-8"))}
    assert asked <= {*suite_names(), *KINDS, "goals", "headline"}


# Versions.


def test_the_changelog_agrees_with_the_version() -> None:
    declared = tomllib.loads(text_of("pyproject.toml"))["project"]["version"]
    assert convforge.__version__ == declared
    assert changelog_version(text_of("CHANGELOG.md")) == declared


def changelog_version(text: str) -> str:
    """The version that the changelog is about: what Unreleased says while it is in the making, else the newest."""
    newest = re.search(r"^## \[(?P<name>[^\]]+)\](?P<rest>.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert newest is not None
    if newest["name"] != "Unreleased":
        return newest["name"]
    making = re.search(r"The version in the making is (\S+)\.$", newest["rest"], re.MULTILINE)
    if making is not None:
        return making[1]
    released = re.search(r"^## \[(\d[^\]]*)\]", text, re.MULTILINE)
    assert released is not None, "the changelog names no version"
    return released[1]


def test_a_changelog_of_another_version_is_seen() -> None:
    assert changelog_version("## [Unreleased]\n\nThe version in the making is 0.2.0.dev0.\n") == "0.2.0.dev0"
    assert changelog_version("## [Unreleased]\n\n## [0.3.0] - 2030-01-01\n") == "0.3.0"
    assert changelog_version("## [0.4.0] - 2030-01-01\n\n## [0.3.0]\n") == "0.4.0"


# Links.

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as MyST and GitHub make them."""
    headings = re.findall(r"^#{1,3} (.+)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Links of a page to files or headings that are not there; those that leave the checkout are not followed."""
    broken = []
    for match in _LINK.finditer(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        target = match["target"]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page if not path else page.parent / path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", DOCUMENTS, ids=named)
def test_links_resolve(page: Path) -> None:
    assert broken_links(page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A heading, of two\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#a-heading-of-two) [c](other.md#none) [d](gone.md) [e](https://example.org)\n"
        "```text\n[f](also-gone.md)\n```\n[g](#none)\n# Own\n[h](#own)\n",
        encoding="utf-8",
    )
    assert broken_links(page) == ["other.md#none", "gone.md", "#none"]


# Commands.

_SHELL = re.compile(r"^ *```(?:console|bash|shell|sh)\n(?P<body>.*?)^ *```", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"^```\{command\} (?P<line>.+)$", re.MULTILINE)


def commands_of(text: str) -> Iterator[list[str]]:
    """Every `convforge ...` that a document shows in a shell block or runs at its build, as words."""
    lines = [line for match in _SHELL.finditer(text) for line in match["body"].replace("\\\n", " ").splitlines()]
    lines = [line.strip().removeprefix("$ ") for line in lines] + [m["line"] for m in _DIRECTIVE.finditer(text)]
    for line in lines:
        words = shlex.split(line, comments=True)
        if words and Path(words[0]).name == "convforge":
            yield words[1:]


@cache
def command_line() -> Any:
    """The application as the parser sees it."""
    import typer.main

    from convforge.cli import app

    return typer.main.get_command(app.app)


def misuse(words: list[str]) -> str | None:
    """The parser's reason for refusing a command, or None. Nothing is run."""
    group = command_line()
    if words in ([], ["--help"]):
        return None
    if words[0] not in group.commands:
        return f"there is no command {words[0]!r}"
    command = group.commands[words[0]]
    if "--help" in words:
        return None
    try:
        command.make_context(words[0], list(words[1:]))
    except Exception as fault:
        return f"{type(fault).__name__}: {getattr(fault, 'format_message', fault.__str__)()}"
    return None


@pytest.mark.parametrize("page", DOCUMENTS, ids=named)
def test_commands_are_understood(page: Path) -> None:
    faults = {" ".join(words): misuse(words) for words in commands_of(page.read_text(encoding="utf-8"))}
    assert {line: fault for line, fault in faults.items() if fault} == {}


def test_commands_that_are_wrong_are_found() -> None:
    text = (
        "```console\n$ convforge bench smoke --nosuch 3\n$ ls convforge\n$ convforge bnch smoke\n```\n"
        "```bash\nconvforge filter in.png  # no output, no kernel\nconvforge explain m4n4k4\n"
        ".venv/bin/convforge doctor\n```\n"
        "```python\nconvforge = 1\n```\n```{command} convforge gemm 8 8\n```\n"
    )
    found = [misuse(words) for words in commands_of(text)]
    assert [fault is None for fault in found] == [False, False, False, True, True, False]
    assert "--nosuch" in str(found[0])
    assert "bnch" in str(found[1])


def test_every_command_is_run_on_its_page() -> None:
    run = {shlex.split(match["line"])[1] for match in _DIRECTIVE.finditer(text_of("docs/cli.md"))}
    assert run >= set(command_line().commands)


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", text_of("Makefile"), re.MULTILINE))
    for page in DOCUMENTS:
        named_targets = set(re.findall(r"(?:`|^)make ([a-z]+)(?:`|$)", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert named_targets <= targets, f"{named(page)} names {named_targets - targets}"


# The worked example of adding-an-algorithm.md.

# Each further combination of types compiles every kernel anew, so three stand for all.
_TYPES = ("_f32_", "_f16_nhwc_+", "_u8-i8-u8-i32_nhwc_+")
EXAMPLE = [case for case in CONV2D if any(types in case.text for types in _TYPES)][::3] + [
    case for case in CONV2D if any(types in case.text for types in _TYPES[1:])
]


@pytest.fixture(scope="module")
def pasted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The page's files, laid out as if they had been pasted."""
    page, folder, module = DOCS / "adding-an-algorithm.md", tmp_path_factory.mktemp("pasted"), extension("pasted")
    modules = module.lay_out(page, folder)
    yield module.files_of(page)
    module.take_away(folder, modules)


@pytest.fixture
def example(pasted: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The page's method, in the list."""
    from convforge.algorithms.shifted import DirectShifted  # type: ignore[import-not-found]
    from convforge.call import dispatch

    room = sys.modules["convforge.algorithms"]
    monkeypatch.setattr(room, "OURS", (*room.OURS, DirectShifted()))  # type: ignore[attr-defined]
    yield DirectShifted()
    monkeypatch.undo()
    dispatch._find_plan.cache_clear()


def test_the_example_shows_every_file(pasted: dict[str, str]) -> None:
    assert list(pasted) == [
        "src/convforge/algorithms/shifted/__init__.py",
        "src/convforge/algorithms/shifted/shifted.py",
        "src/convforge/algorithms/shifted/cpu.py",
        "tests/algorithms/test_shifted.py",
    ]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", EXAMPLE, ids=str)
def test_the_example_is_right(example: Any, case: Any) -> None:
    problem = parse_problem(case.text)
    assert refusal(example, problem, cpu_facts()) is None
    plan = example.plan(problem, example.configs(problem, cpu_facts())[0], cpu_runtime())
    for kind in case.kinds:
        inputs = make_inputs(problem, kind)
        verdict = check_plan(plan, Judge(problem, inputs))
        assert verdict.ok, verdict.message
    verdict = check_nan_spread(plan)
    assert verdict.ok, verdict.message


def test_the_example_is_found_by_name(example: Any) -> None:
    assert "direct_shifted" in {a.name for a in convforge.algorithms("n1c2h3w4_k2r2s3_f32_nchw")}
    x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    w = np.arange(1, 25, dtype=np.float32).reshape(2, 2, 2, 3)
    out = convforge.conv2d(x, w, algorithm="direct_shifted")
    assert out.tolist() == [[[[962, 1040], [1274, 1352]], [[2258, 2480], [3146, 3368]]]]


def test_the_example_is_gone_afterwards() -> None:
    assert "direct_shifted" not in {a.name for a in convforge.algorithms()}


def test_the_examples_own_test_passes(pasted: dict[str, str]) -> None:
    space: dict[str, Any] = {"__name__": "test_shifted"}
    exec(compile(pasted["tests/algorithms/test_shifted.py"], "test_shifted.py", "exec"), space)
    tests = [value for name, value in space.items() if name.startswith("test_")]
    assert len(tests) == 1
    tests[0]()


def test_the_examples_results_depend_on_its_files(example: Any) -> None:
    from convforge.benchmark.digests import code_files

    assert [path.name for path in code_files(example, (), cpu_facts())] == ["cpu.py", "shifted.py"]


# The layers of architecture.md.

# From the bottom up. A room may import the layers below its own and, in its own, the rooms before it. "contract" is
# algorithms/contract.py, steps.py and traits.py; "list" is algorithms/__init__.py; "images" is imaging/ but for
# filtering.py, weights.py, volumes.py and pipeline/.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "images", "language", "problem", "backends", "backends.cpu", "backends.emulator", "timing"),
    ("contract", "host", "algorithms", "list"),
    ("peers", "verify", "tuning", "call", "api"),
    ("imaging", "integrations", "torch", "dask", "benchmark", "studies", "pages", "report", "lab", "grader", "traces"),
    ("cli",),
)
RANK = {room: (layer, place) for layer, rooms in enumerate(LAYERS) for place, room in enumerate(rooms)}
# Rooms of which one may not know the other although it comes before it: these know nothing of ours at all, ...
ALONE = {"errors", "images", "language", "problem"}
# ... and a judge must not know whom it judges, nor a call that it may be measured.
APART = {
    "backends": {"errors", "images", "language", "problem"},
    "algorithms": {"timing"},
    "contract": {"timing"},
    "host": {"timing"},
    "list": {"timing"},
    "verify": {"errors", "host", "algorithms", "list", "peers", "timing"},
    "call": {"verify", "timing"},
    "api": {"verify", "timing"},
    "imaging": {"verify", "timing", "tuning"},
    "integrations": {"imaging", "verify"},
    "benchmark": {"imaging", "integrations", "torch"},
    "studies": {"imaging", "integrations", "torch", "tuning"},
    "report": {"imaging", "integrations", "torch", "tuning"},
}
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").is_file())


def room_of(module: tuple[str, ...]) -> str:
    """The room of a module, given as the parts of its name after ``convforge``; empty for the package itself."""
    if not module:
        return ""
    if module == ("__main__",):
        return "cli"
    first, inside = module[0], module[1] if len(module) > 1 else ""
    if first == "backends" and inside in ("cpu", "emulator"):
        return f"backends.{inside}"
    if first == "algorithms":
        own = dict.fromkeys(("contract", "steps", "traits"), "contract")
        return {"": "list", "host": "host", **own}.get(inside, "algorithms")
    if first == "imaging":
        return "imaging" if inside in ("filtering", "weights", "volumes", "pipeline") else "images"
    return inside if first == "course" and inside else first


def imports_of(source: str) -> Iterator[tuple[str, ...]]:
    """Modules of ours that a file imports anywhere, functions included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            base = node.module or ""
            # `from convforge import check` imports a room; `from convforge import __version__` the package itself.
            names = [f"{base}.{alias.name}" if alias.name in ROOMS else base for alias in node.names]
            names = names if base == "convforge" else [base]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "convforge":
                yield tuple(name.split(".")[1:])


def breaches(file: tuple[str, ...], source: str) -> list[str]:
    """What a file imports although its room may not know it."""
    own = room_of(file)
    if own in ("", "course"):  # the package exports names of several rooms
        return []
    rooms = {room_of(module) for module in imports_of(source)} - {own}
    return sorted(
        room
        for room in rooms
        if own != "cli" and (not room or own in ALONE or RANK[room] > RANK[own] or room in APART.get(own, ()))
    )


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_file_imports_only_what_its_room_may_know(path: Path) -> None:
    module = path.relative_to(PACKAGE).with_suffix("").parts
    module = module[:-1] if module[-1] == "__init__" else module
    assert breaches(module, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("file", "source", "found"),
    [
        ("problem/conv2d", "from convforge.backends.facts import DeviceFacts", ["backends"]),
        ("algorithms/direct/direct", "def f():\n    from convforge.verify import truth", ["verify"]),
        ("algorithms/direct/direct", "from convforge.algorithms import find", ["list"]),
        ("verify/truth", "import convforge.benchmark.store", ["benchmark"]),
        ("verify/truth", "from convforge import timing", ["timing"]),
        ("timing/ring", "from convforge.algorithms.contract import Plan", ["contract"]),
        ("algorithms", "def f():\n    from convforge.peers import PEERS", ["peers"]),
        ("api", "from convforge.cli.failure import Failure", ["cli"]),
        ("benchmark/runner", "from convforge.course.report import page", ["report"]),
        ("benchmark/runner", "from convforge import verify", []),
        ("peers/torch", "from convforge.algorithms.contract import Plan", []),
        ("imaging/image", "from convforge.imaging.filtering import filter", ["imaging"]),
    ],
)
def test_a_breach_is_found(file: str, source: str, found: list[str]) -> None:
    assert breaches(tuple(file.split("/")), source) == found


def test_every_file_is_in_a_room_of_the_layers() -> None:
    """And the package's top shows at most 17 names."""
    rooms = {room_of(tuple(module_of(path).split(".")[1:])) for path in FILES}
    assert rooms - {"", "course"} == set(RANK)
    names = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.name in ROOMS}
    assert len(names - {"__init__", "__main__"}) <= 17


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def at_import(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run when a module is imported, those in functions and for types aside."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.Try | ast.With):
            yield from at_import(node.body)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from at_import([*node.body, *node.orelse])


def test_no_module_imports_itself_by_way_of_others() -> None:
    modules = {module_of(path): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = graph.setdefault(name, set())
        for node in at_import(ast.parse(path.read_text(encoding="utf-8")).body):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in modules else str(node.module) for name in names]
            found |= {target for target in names if target in modules and target != name}
    assert graph["convforge.benchmark.store"] >= {"convforge.benchmark.records"}
    assert list(graphlib.TopologicalSorter(graph).static_order())  # CycleError where there is a circle


def test_only_kernels_and_their_runtime_import_numba() -> None:
    importers = {
        path.relative_to(PACKAGE).as_posix()
        for path in FILES
        if re.search(r"^\s*(?:import|from) (?:numba|llvmlite)\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert importers
    assert {p for p in importers if not p.startswith(("backends/cpu/", "algorithms/"))} == set()


def test_importing_convforge_loads_nothing_heavy() -> None:
    heavy = ["numba", "scipy", "torch", "cv2", "altair", "rich", "typer", "PIL", "tifffile", "imagecodecs", "jinja2"]
    code = f"import sys, json, convforge; print(json.dumps([m for m in {heavy!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_the_architecture_page_is_short_and_shows_the_rooms_that_are() -> None:
    page = text_of("docs/architecture.md")
    assert len(page.splitlines()) <= 150
    block = re.search(r"^    src/convforge/\n(.*?)^    tests/", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    shown = set(re.findall(r"^      (\S+)", block[1], re.MULTILINE))
    there = {f"{room}/" for room in ROOMS} | {path.name for path in PACKAGE.glob("*.py")}
    assert shown == there


def test_the_page_of_problems_shows_the_text_form_as_it_is() -> None:
    """Every example of a token is read, and comes back."""
    page = text_of("docs/problems.md")
    table = re.search(r"^\| token \| means \| example \|\n\|---\|---\|---\|\n(.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    assert table is not None
    examples = [token for row in table[1].splitlines() for token in re.findall(r"`([^`]+)`", row.split("|")[3])]
    assert len(examples) >= 15
    for token in examples:
        base = "n1c4h9w9_k4r3s3" if not token.startswith("t") else "m4n5k6"
        base = "max_n1c4h9w9_r3s3" if token == "ceil" else base
        if token.startswith("+zero"):
            base += "_u8-i8-i32-i32"
        problem = parse_problem(f"{base}_{token}")
        assert problem != parse_problem(base) or token in str(problem), token
        assert parse_problem(str(problem)) == problem
