"""Digests: what a result depends on changes them, and nothing else does."""

from __future__ import annotations

import ctypes
import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.algorithms.compiling import H200
from tests.benchmark.fakes import result, run

from convforge.algorithms import ON_DEVICE, find, refusal
from convforge.backends import kernel
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, compiled_part
from convforge.benchmark import digests
from convforge.benchmark.closure import closure
from convforge.benchmark.digests import compiles, current_digest, digest, recorded
from convforge.peers import every_algorithm
from convforge.problem import parse_problem

PACKAGE = Path(kernel.__file__).parents[1]
PICTURE = "n1c3h64w64_k1r3s3_st1_p1_f32_nchw"


@pytest.fixture(autouse=True)
def nothing_kept() -> Any:
    """Digests of a process are kept: each test begins without."""

    def forget() -> None:
        for kept in (digests._planned, digests._of_plan, digests._of_code, digests._code):
            kept.cache_clear()

    forget()
    yield
    forget()


def of(name: str, problem: str = PICTURE, facts: DeviceFacts = H200, **changes: Any) -> str:
    """The digest of a GPU's method in its default config, or in one that differs from it."""
    method, parsed = find("conv2d", "cuda", name), parse_problem(problem)
    config = dataclasses.replace(method.configs(parsed, facts)[0], **changes)
    return digest(method, parsed, config, facts)


# Kernels.


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of one kernel and two headers, of which the kernel includes one."""
    monkeypatch.setattr(kernel, "PACKAGE", tmp_path)
    monkeypatch.setattr(kernel, "HEADERS", tmp_path)
    (tmp_path / "a.cu").write_text('// Doubles.\n#include "one.cuh"\nint a = 2;\n', encoding="utf-8")
    (tmp_path / "one.cuh").write_text("int one = 1;\n", encoding="utf-8")
    (tmp_path / "two.cuh").write_text("int two = 2;\n", encoding="utf-8")
    return tmp_path


def code_digest(*constants: str) -> str:
    """Of the package's kernel."""
    kernel.included.cache_clear()
    kernel._code_digest.cache_clear()
    return KernelSource("a.cu", "a", constants, ctypes.Structure, "A").code_digest()


def changed(file: Path, before: str, after: str) -> None:
    """Write a file anew with a part of it replaced."""
    text = file.read_text(encoding="utf-8")
    assert before in text
    file.write_text(text.replace(before, after), encoding="utf-8")


def test_a_header_more_or_less_changes_the_digest_and_so_does_what_it_includes(package: Path) -> None:
    before = code_digest()
    changed(package / "a.cu", "int a", '#include "two.cuh"\nint a')
    assert (more := code_digest()) != before
    changed(package / "two.cuh", "int two = 2", "int two = 3")
    assert (other := code_digest()) != more
    changed(package / "one.cuh", "int one", '#include "two.cuh"\nint one')
    changed(package / "a.cu", '#include "two.cuh"\n', "")
    assert (through := code_digest()) not in (before, more, other)
    changed(package / "two.cuh", "int two = 3", "int two = 4")
    assert code_digest() != through, "through the other header"


def test_a_header_that_is_not_included_changes_nothing(package: Path) -> None:
    before = code_digest()
    changed(package / "two.cuh", "2", "3")
    assert code_digest() == before


def test_comments_blanks_and_assertions_change_nothing(package: Path) -> None:
    before = code_digest()
    changed(package / "a.cu", "// Doubles.", '// Doubles\n// all.\n\nstatic_assert(A > 0 &&\n    B, "both");')
    changed(package / "one.cuh", "int one = 1;", "int one = 1;  // the first\n/* and\nlast */\n")
    assert code_digest() == before


def test_a_constant_of_the_prelude_changes_the_digest(package: Path) -> None:
    assert len({code_digest(), code_digest("constexpr int N = 1;"), code_digest("constexpr int N = 2;")}) == 3


def test_what_looks_like_a_comment_in_a_string_is_no_comment() -> None:
    one, other = (f'const char *where = "https://{host}";  // where\n' for host in ("a", "b"))
    assert compiled_part(one) == 'const char *where = "https://a";\n' != compiled_part(other)


# Plans.


def test_a_plan_for_another_config_problem_or_device_has_another_digest() -> None:
    tiled = of("direct_tiled")
    assert of("direct_tiled", block_y=8) != tiled
    assert of("direct_tiled", PICTURE.replace("r3s3", "r5s5")) != tiled
    assert of("direct_tiled", PICTURE.replace("h64", "h640")) != tiled, "the grid is another"
    assert of("direct_constant") != tiled
    assert of("direct_tiled", facts=dataclasses.replace(H200, name="another", driver="1.0")) == tiled


def test_a_constant_of_a_host_file_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.algorithms.direct import tiled
    from convforge.algorithms.host import resident

    problem = "n1c4h64w64_k1r3s3_st1_p1_f32_nhwc"
    before, held = of("direct_tiled", problem), of("direct_tiled", problem, resident=1024)
    digests._of_plan.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(tiled, "FEW_CHANNELS", 3)
        assert of("direct_tiled", problem) != before
    digests._of_plan.cache_clear()
    monkeypatch.setattr(resident, "MOST_BLOCKS_HELD", 4)
    assert of("direct_tiled", problem, resident=1024) != held


def test_another_grid_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.algorithms.direct import naive

    before = of("direct_naive")
    digests._of_plan.cache_clear()
    grid = naive.grid
    monkeypatch.setattr(naive, "grid", lambda *sizes: (*grid(*sizes)[:2], 7))
    assert of("direct_naive") != before


def test_plans_that_are_made_without_a_device_cannot_run() -> None:
    method = find("conv2d", "cuda", "fft")
    problem = parse_problem("n1c1h64w64_k1r9s9_p4_f32_nchw_math-fft")
    _, recording = recorded(method, problem, method.configs(problem, H200)[0], H200)
    assert len(recording.kernels) == 4
    assert {fft.inverse for fft in recording.transforms} == {False, True}
    with pytest.raises(RuntimeError, match="made without a device"):
        recording.fft(recording.transforms[0])(None)


@pytest.mark.parametrize("method", ON_DEVICE, ids=repr)
def test_every_method_on_a_device_has_a_digest_of_its_default_plan(method: Any) -> None:
    from tests.algorithms.compiled_problems import EVERYWHERE, OWN

    facts = dataclasses.replace(H200, backend=method.backend)
    texts = OWN.get(method.name, (EVERYWHERE[method.operation],))[0]
    able = [problem for problem in map(parse_problem, texts) if refusal(method, problem, facts) is None]
    found = [digest(method, problem, method.configs(problem, facts)[0], facts) for problem in able]
    assert found
    assert all(len(one) == 64 for one in found)


# Python.


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """A small package with a method, its kernels, and what others use."""
    files = {
        "algorithms/__init__.py": "",
        "algorithms/contract.py": "class Algorithm: ...\n",
        "algorithms/method.py": (
            "from convforge.algorithms.contract import Algorithm\nfrom convforge.problem import parse\nLIMIT = 8\n\n"
            'class Method(Algorithm):\n    """Adds."""\n\n    summary = "adds"\n    cost = Figures(0.5)\n\n'
            "    def configs(self):\n        return [1]\n\n    def plan(self):\n"
            "        from convforge.algorithms import cpu\n        from convforge.timing import clock\n\n"
            "        return cpu.add, clock, parse(LIMIT)\n\n"
            "class Other(Algorithm):\n    wide = 3\n"
        ),
        "algorithms/cpu.py": (
            "import numpy as np\nfrom convforge.backends.cpu.jit import jit\n"
            "from convforge.algorithms.rows import store as keep\n\n@jit\ndef add(a):\n    keep(a + np.pi)\n\n"
            "@jit\ndef unused(a):\n    pass\n"
        ),
        "algorithms/rows.py": (
            "STEP = 2\n\ndef store(a):\n    cost = 0\n    a[::STEP] = cost  # every other\n\ndef load(a):\n    pass\n"
        ),
        "backends/cpu/jit.py": "FAST = {1}\n\ndef jit(f):\n    return compiled(f, FAST)\n",
        "problem/__init__.py": "def parse(n):\n    return n\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def code(room: Path, name: str = "Method") -> dict[str, list[str]]:
    """The closure of a class of the package."""
    from convforge.benchmark.closure import _read

    _read.cache_clear()
    found = closure(room, room / "algorithms/method.py", "convforge.algorithms.method", name)
    return {path.relative_to(room).as_posix(): texts for path, texts in found.items()}


def test_a_closure_holds_what_is_named_and_no_more(room: Path) -> None:
    found = code(room)
    assert set(found) == {"algorithms/method.py", "algorithms/cpu.py", "algorithms/rows.py", "backends/cpu/jit.py"}
    assert found["algorithms/rows.py"] == ["STEP = 2", "def store(a):\n    cost = 0\n    a[::STEP] = cost"]
    assert found["backends/cpu/jit.py"] == ["FAST = {1}"], "of a decorator the options"
    assert any("import numpy" in text for text in found["algorithms/method.py"])
    whole = "\n".join(text for texts in found.values() for text in texts)
    assert not any(words in whole for words in ("unused", "Other", "Adds.", "summary", "configs", "every other"))


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("algorithms/rows.py", "STEP = 2", "STEP = 3"),
        ("algorithms/rows.py", "= cost  #", "= 1  #"),
        ("algorithms/rows.py", "cost = 0", "cost = 1"),
        ("algorithms/cpu.py", "a + np.pi", "a - np.pi"),
        ("algorithms/cpu.py", "import store as", "import load as"),
        ("algorithms/method.py", "LIMIT = 8", "LIMIT = 9"),
        ("algorithms/method.py", "from convforge.timing import clock", "from other import clock"),
        ("backends/cpu/jit.py", "{1}", "{2}"),
    ],
)
def test_a_changed_helper_constant_or_option_changes_the_closure(
    room: Path, file: str, before: str, after: str
) -> None:
    found = code(room)
    changed(room / file, before, after)
    assert code(room) != found


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("algorithms/rows.py", "# every other", "# each second"),
        ("algorithms/rows.py", "def load(a):\n    pass", "def load(a):\n    return a"),
        ("algorithms/method.py", "Adds.", "Adds two."),
        ("algorithms/method.py", "return [1]", "return [2, 1]"),
        ("algorithms/method.py", "Figures(0.5)", "Figures(0.6)"),
        ("algorithms/method.py", "wide = 3", "wide = 4"),
        ("algorithms/contract.py", "...", "x = 1"),
        ("problem/__init__.py", "return n", "return n + 1"),
        ("algorithms/method.py", "from convforge.timing import clock", "from convforge.clocks.clock import clock"),
        ("backends/cpu/jit.py", "return compiled", "print(f)\n    return compiled"),
    ],
)
def test_comments_and_what_computes_nothing_of_it_change_no_closure(
    room: Path, file: str, before: str, after: str
) -> None:
    found = code(room)
    changed(room / file, before, after)
    assert code(room) == found


def test_kernels_of_the_cpu_stand_on_their_shared_rows_and_vectors() -> None:
    files = {path.relative_to(PACKAGE).as_posix() for path in digests._code(type(find("conv2d", "cpu", "direct_rows")))}
    assert {"algorithms/direct/cpu.py", "algorithms/host/rows.py", "backends/cpu/simd.py"} <= files
    assert "algorithms/gemm/cpu.py" not in files


def test_every_method_in_python_has_a_digest_and_methods_of_one_file_have_their_own() -> None:
    methods = [a for a in every_algorithm() if not compiles(a)]
    found = {a.key: digests._of_code(type(a)) for a in methods}
    assert "" not in found.values()
    assert len(set(found.values())) == len({type(a) for a in methods})


def test_a_method_without_its_source_has_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    method = type(find("conv2d", "cpu", "direct_rows"))
    monkeypatch.setattr(sys.modules[method.__module__], "__file__", "/none.py")
    assert digests._of_code(method) == ""


# Stored results.


def stored(name: str, config: str, digest: str | None, backend: str = "cuda", **more: Any) -> bool:
    """True if a stored result of a method is stale."""
    assert digest is not None
    row = result(algorithm=name, backend=backend, problem=PICTURE, config=config, digest=digest, **more)
    return run(row, machine={"facts": H200.to_table()}).is_stale(row)


def test_stale_is_what_another_code_computed() -> None:
    config = str(find("conv2d", "cuda", "direct_tiled").configs(parse_problem(PICTURE), H200)[0])
    now = of("direct_tiled")
    assert not stored("direct_tiled", config, now)
    assert stored("direct_tiled", config, "0" * 64)
    assert stored("direct_tiled", config.replace("block_y=4", "block_y=8"), now)
    assert stored("gone", config, now)
    assert not stored("direct_tiled", "clock=no_wait", now, precision="mistaken"), "a mistaken clock, default config"


def test_a_result_that_cannot_be_planned_any_more_is_stale() -> None:
    now = of("direct_tiled")
    assert stored("direct_tiled", "block_x=32,block_z=4", now), "a field that is no more"
    assert stored("direct_tiled", "block_x=7000,block_y=4", now), "a config that is refused"
    row = result(algorithm="direct_tiled", backend="cuda", problem=PICTURE, digest=now)
    assert run(row, machine={"facts": {"name": "of before there were facts"}}).is_stale(row)


def test_a_result_of_the_host_is_told_by_its_code_alone() -> None:
    now = current_digest("conv2d", "cpu", "direct_rows", "", "", {})
    assert not stored("direct_rows", "tile_p=1,tile_c=1,tile_k=1", now, backend="cpu")
    assert stored("direct_rows", "", "0" * 64, backend="cpu")


def test_a_refused_problem_has_no_digest() -> None:
    method = find("conv2d", "cpu", "direct_rows")
    assert digest(method, parse_problem(PICTURE), None, H200) == ""


def test_no_method_declares_what_it_depends_on() -> None:
    assert [a for a in every_algorithm() if hasattr(a, "sources")] == []
