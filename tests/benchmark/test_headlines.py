"""The README's table, from made-up results: each side in its faster layout, and what is slower is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.benchmark.fakes import result, run

from convforge.benchmark.peer_tables import Headline, headline_markdown, load_headlines
from convforge.benchmark.records import Run

ROOT = Path(__file__).parents[2]


def made() -> Run:
    """A layer in two layouts: ours takes 2 and 1 ms, 0.1 ms by narrower arithmetic; peers take 3, 5 and 8 ms."""
    results = []
    for layout, ours, peer in (("nchw", 2e-3, 3e-3), ("nhwc", 1e-3, 5e-3)):
        problem = f"n1c3h64w64_k3r3s3_g3_p1_f32_{layout}"
        results += [
            result(f"layer_{layout}", "ours", (ours,) * 3, problem=problem),
            result(f"layer_{layout}", "ours_narrow", (1e-4,) * 3, problem=problem, precision="fft"),
            result(f"layer_{layout}", "a_peer", (peer,) * 3, problem=problem, ours=False),
            result(f"layer_{layout}", "slow", (8e-3,) * 3, problem=problem, ours=False),
        ]
    return run(*results)


def cells(*rows: Headline, of: Run | None = None) -> list[list[str]]:
    held = of or made()
    text = headline_markdown(rows, lambda name: (held, [r for r in held.results if r.case.startswith(name)]))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_each_side_takes_its_faster_layout() -> None:
    assert cells(Headline("a layer", "layer")) == [["a layer", "1.00", "3.00 (a\\_peer)", "**3.00x**"]]
    assert cells(Headline("a layer", "layer_nhwc")) == [["a layer", "1.00", "5.00 (a\\_peer)", "**5.00x**"]]


def test_narrower_arithmetic_counts_where_the_row_allows_it() -> None:
    assert cells(Headline("a layer", "layer", ("strict", "fft")))[0][1:] == ["0.100", "3.00 (a\\_peer)", "**30.0x**"]


def test_a_row_that_is_behind_says_so() -> None:
    behind = run(result("a", "ours", (4e-3,) * 3), result("a", "peer", (3e-3,) * 3, ours=False))
    assert cells(Headline("a layer", "a"), of=behind)[0][3] == "0.750x: slower"


def test_a_row_without_one_of_its_sides_is_refused() -> None:
    alone = run(result("a", "ours", (4e-3,) * 3))
    with pytest.raises(ValueError, match="no case of 'a' that was timed on both sides"):
        cells(Headline("a layer", "a"), of=alone)


def test_rows_are_read_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "headline.toml"
    assert load_headlines(path) == []
    path.write_text('[[row]]\nwords = "a"\nof = "images"\nprecisions = ["fft"]\n')
    assert load_headlines(path) == [Headline("a", "images", ("fft",))]
    path.write_text('[[row]]\nword = "a"\n')
    with pytest.raises(ValueError, match=r"headline\.toml: .*word"):
        load_headlines(path)


def test_the_rows_of_the_readme_show_what_is_behind_too() -> None:
    rows = load_headlines(ROOT / "benchmarks" / "headline.toml")
    assert any(row.of.startswith("products cases=llama") for row in rows)
