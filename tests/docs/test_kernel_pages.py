"""The pages of kernels: every kernel has one, its picture is of the kernel as it runs, its words are the file's."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.emulated import needs_emulator

from convforge.course.traces import trace
from convforge.problem import parse_problem

DOCS = Path(__file__).parents[2] / "docs"
KERNELS = DOCS / "kernels"
_PICTURE = re.compile(r"^(?:n\d|m\d|max_|relu)\S+(?: \S+)*$", re.MULTILINE)


@pytest.fixture(scope="module", autouse=True)
def extensions() -> Iterator[None]:
    """docs/_ext, which is no package, on the path."""
    sys.path.insert(0, str(DOCS / "_ext"))
    yield
    sys.path.remove(str(DOCS / "_ext"))


@pytest.fixture(scope="module")
def kernels(extensions: None) -> Any:
    return importlib.import_module("kernel_pages")


def pages() -> dict[str, str]:
    return {
        path.relative_to(KERNELS).with_suffix("").as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(KERNELS.rglob("*.md"))
        if path.name != "index.md"
    }


def test_every_kernel_and_group_has_a_page_and_no_page_is_of_none(kernels: Any) -> None:
    assert set(pages()) == set(kernels.page_names())


def test_pages_are_listed_in_the_order_of_the_ladder(kernels: Any) -> None:
    listed = re.search(r"```\{toctree\}\n:hidden:\n\n(.*?)```", (KERNELS / "index.md").read_text(), re.DOTALL)
    assert listed is not None
    assert listed[1].split() == kernels.page_names()


@pytest.mark.parametrize("name, text", pages().items(), ids=pages().keys())
def test_a_page_has_its_title_its_prose_and_the_rest(name: str, text: str) -> None:
    if name.startswith("cpu/"):
        assert f"```{{cpu-methods}} {name.removeprefix('cpu/')}\n```" in text
        return
    head = text.partition("\n---\n\n")[2] if text.startswith("---\n") else text  # of a page that runs Python
    assert head.startswith(f"# {name}\n\n")
    prose, _, rest = text.partition(f"```{{kernel}} {name}\n")
    assert len(prose.split()) >= 40, "a page says the idea in a paragraph"
    assert _PICTURE.search(rest), "a page has a picture"


@pytest.mark.one_in(17)
@needs_emulator
@pytest.mark.parametrize("name, text", [(n, t) for n, t in pages().items() if _PICTURE.search(t)], ids=lambda v: v[:20])
def test_what_is_drawn_is_what_the_kernel_does(name: str, text: str) -> None:
    """Of every picture: the emulator's result is right, and each panel's labels are the trace's."""
    from kernel_pictures import picture, plane, target_of

    for line in _PICTURE.findall(text):
        problem, *rest = line.split()
        config = next((word for word in rest if not word.startswith("of=")), "")
        traced = trace(parse_problem(problem), name, config)
        assert traced.is_right
        drawn = picture(traced, next((word[3:] for word in rest if word.startswith("of=")), ""))
        wrote = target_of(traced, drawn.launch)
        if wrote:
            blocks = plane(traced.plan.problem, wrote.last("blocks"), "out")
            assert drawn.panels[0].labels.tolist() == blocks.tolist()
            threads = plane(traced.plan.problem, wrote.of_block(drawn.block).last("threads"), "out")
            whole = threads[threads >= 0]
            shown = drawn.panels[1].labels
            if "coloured by warps" in drawn.panels[1].title:
                whole = whole // 32
            assert np.sort(shown[shown >= 0]).tolist() == np.sort(whole).tolist()
        svg = drawn.html()
        assert svg.count("<svg") == len(drawn.panels) >= 1
        assert len(svg) < 300_000, "a page should load at once"


@needs_emulator
def test_numbers_in_cells_are_what_was_read() -> None:
    from kernel_pictures import picture

    traced = trace(parse_problem("n1c1h12w24_k1r3s3_st1_p1_f32_nchw"), "direct_naive", "block_x=8,block_y=4")
    drawn = picture(traced)
    assert (drawn.block, drawn.thread) == (4, 10)
    x = drawn.panels[-1]
    counts = {(row, column): int(text) for row, column, text, *_ in x.words}
    assert counts[1, 1] == 1  # the corner of the halo, under a margin of one
    assert counts[3, 3] == 9
    assert sum(counts.values()) == 8 * 4 * 9
    assert x.outlines[0].sum() == 9
    assert np.argwhere(x.labels == 0).tolist() == [[i, j] for i in range(2, 6) for j in range(2, 10)]  # under outputs
    assert (x.labels == 1).sum() == 6 * 10 - 4 * 8  # the halo
    assert "each 4.8 times" in drawn.caption


@needs_emulator
def test_the_matrix_of_im2col_is_written_whole() -> None:
    from kernel_pictures import picture, target_of

    traced = trace(parse_problem("n1c2h6w8_k4r3s3_st1_p1_f32_nchw"), "im2col")
    matrix = target_of(traced, 1)
    assert matrix is not None
    assert matrix.shape == (18, 48)
    assert (matrix.counts() == 1).all()
    assert picture(traced, "im2col").panels[0].title.startswith("the matrix: the block that")


def test_neighbours_differ_in_colour(extensions: None) -> None:
    from kernel_pictures import colours, rectangles

    labels = np.array([[0, 0, 1, 1], [0, 0, 1, 1], [2, 3, 3, 3], [2, 2, -1, -1]])
    found = colours(labels)
    for a, b in ((0, 1), (0, 2), (0, 3), (1, 3), (2, 3)):
        assert found[a] != found[b]
    area = dict.fromkeys(found, 0)
    for label, _, _, rows, columns in rectangles(labels):
        area[label] += rows * columns
    assert area == {-1: 2, 0: 4, 1: 4, 2: 3, 3: 3}


def test_the_head_of_a_file_is_read(kernels: Any) -> None:
    text = "// relu: max.\n//\n// Threads   an\n//           element.\n// Since a: b\n// c.\n// In place  too\nint i;\n"
    entries = [("Threads", "an element."), ("Since", "a: b c."), ("In place", "too")]
    assert kernels.header(text) == ("relu: max.", entries)


def test_words_of_a_comment_stand_in_markdown_as_they_are(kernels: Any) -> None:
    assert kernels.in_words("a_b * [c] `d_e`") == r"a\_b \* \[c\] `d_e`"


def test_a_page_shows_the_files_of_its_own_kernel(kernels: Any) -> None:
    from convforge.algorithms import find

    files = kernels.kernel_files
    names = {name: [path.name for path in files(find("conv2d", "cuda", name))] for name in ("im2col", "fft")}
    assert names == {"im2col": ["im2col.cu"], "fft": ["gather.cu", "multiply.cu", "scatter.cu", "filter.cu"]}


@pytest.mark.thorough
def test_every_kernels_file_says_its_threads_and_its_limit(kernels: Any) -> None:
    for method in kernels.on_gpu():
        assert kernels.kernel_files(method), method
        for path in kernels.kernel_files(method):
            first, entries = kernels.header(path.read_text(encoding="utf-8"))
            assert first, path
            names = {name for name, _ in entries}
            assert "Limit" in names, path
            assert names & {"Threads", "Block"}, path


def test_every_field_of_a_config_is_on_its_page(kernels: Any) -> None:
    pytest.importorskip("numpydoc", reason="what reads the docs' docstrings is not installed")
    for method in kernels.on_gpu():
        text = kernels.parameters_of(method, kernels.TYPICAL[method.operation], kernels.gpu_facts())
        problem = kernels.asked(method, parse_problem(kernels.TYPICAL[method.operation]))
        config = method.configs(problem, kernels.gpu_facts())[0]
        assert [name for name in config.__dataclass_fields__ if f"`{name}`" not in text] == [], method.name
        assert "` |  | `" not in text, f"a field of {method.name} is not described"


def test_refusals_are_the_methods_own(kernels: Any) -> None:
    from convforge.algorithms import find

    said = kernels.refusals_of(find("conv2d", "cuda", "direct_constant"), kernels.gpu_facts())
    assert "constant memory holds 65536" in said
    assert kernels.refusals_of(find("gemm", "cuda", "gemm_naive"), kernels.gpu_facts()).startswith("Nothing")


def test_results_are_those_stored(kernels: Any) -> None:
    from convforge.algorithms import find

    said = kernels.results_of([find("conv2d", "cuda", "direct_shared")], "cuda")
    assert "| case |" in said
    assert "direct_shared" in said.replace("\\", "")
    assert "NVIDIA" in said
