"""How far ahead all cases are together, from made-up results."""

from __future__ import annotations

from dataclasses import replace

import altair as alt
import pandas as pd
import pytest
from tests.benchmark.fakes import result, run

from convforge.benchmark.markers import view_markdown
from convforge.benchmark.peer_tables import ahead_sentence
from convforge.benchmark.records import CopyTime, Result, Run
from convforge.course.report.ahead import ahead_png, ahead_spec, ratio_rows
from convforge.timing.timer import Timing


def both(size: int, stride: int, ours_ms: float, peer_ms: float | None) -> list[Result]:
    """A case by a method of ours, and by a peer where it has a time."""
    problem = f"n1c3h{size}w{size}_k1r3s3_st{stride}_p1_f32_nchw"
    case = f"rgb_{size}_s{stride}"
    found = [result(case, "ours", (1e-3 * ours_ms,) * 3, problem=problem)]
    if peer_ms is not None:
        found.append(result(case, "peer", (1e-3 * peer_ms,) * 3, problem=problem, ours=False))
    return found


def rows(made: Run) -> list[list[str]]:
    """The table's cells, line by line."""
    lines = [line for line in view_markdown("ahead", made, made.results).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]


def test_geometric_means_by_stride_and_size_with_the_least_and_the_most() -> None:
    made = run(*both(512, 1, 1, 2), *both(1024, 1, 1, 4), *both(2048, 1, 1, 9), *both(64, 2, 2, 1))
    assert rows(made) == [
        ["stride", "below 1024", "1024 and up", "all sizes"],
        ["1", "2.00x (2.00 to 2.00)", "6.00x (4.00 to 9.00)", "4.16x (2.00 to 9.00)"],
        ["2", "0.500x (0.500 to 0.500)", "-", "0.500x (0.500 to 0.500)"],
        ["all", "1.00x (0.500 to 2.00)", "6.00x (4.00 to 9.00)", "2.45x (0.500 to 9.00)"],
    ]


def test_one_stride_takes_one_row_and_copies_count_on_large_pictures() -> None:
    results = [*both(1024, 1, 1, 2), *both(2048, 1, 1, 2)]
    copies = tuple(CopyTime(r.case, r.least_bytes, Timing((5e-4,) * 3, ring=4, cold=True)) for r in results if r.ours)
    made = run(*results, copies=copies)
    assert rows(made)[0] == ["stride", "below 1024", "1024 and up", "all sizes", "of a copy"]
    assert rows(made)[1:] == [["1", "-", "2.00x (2.00 to 2.00)", "2.00x (2.00 to 2.00)", "50.0 % (50.0 to 50.0)"]]
    assert "from 2048 up" in view_markdown("ahead", made, made.results)


def test_a_case_without_a_peer_is_left_out_and_said() -> None:
    made = run(*both(512, 1, 1, 2), *both(2048, 1, 1, None))
    text = view_markdown("ahead", made, made.results)
    assert "Not counted, as one side was not timed: rgb\\_2048\\_s1." in text
    with pytest.raises(ValueError, match="no case that both a method of ours and a peer were timed on"):
        view_markdown("ahead", run(*both(512, 1, 1, None)), both(512, 1, 1, None))


def test_all_cases_in_one_sentence() -> None:
    made = run(*both(512, 1, 1, 2), *both(2048, 1, 1, 8), *both(64, 1, 1, None))
    assert ahead_sentence(made, made.results).startswith("**4.00x (2.00 to 8.00) as fast as peer** on ")
    assert "geometric mean of 2 cases" in ahead_sentence(made, made.results)
    assert "configs" not in ahead_sentence(made, made.results)
    searched = replace(made, settings={**made.settings, "search": 8})
    assert "; each of our methods in the fastest of its first 8 configs; " in ahead_sentence(searched, made.results)
    with pytest.raises(ValueError, match="no case that both"):
        ahead_sentence(run(*both(512, 1, 1, None)), both(512, 1, 1, None))


def test_the_chart_has_a_bar_for_each_size_and_stride() -> None:
    made = run(*both(512, 1, 1, 2), *both(512, 2, 1, 3), *both(2048, 1, 1, 8))
    spec = ahead_spec(made)
    bars = next(rows for name, rows in spec["datasets"].items() if name != "level")
    assert [(row["size"], row["stride"]) for row in bars] == [(512, 1), (512, 2), (2048, 1)]
    assert [row["ratio"] for row in bars] == pytest.approx([2, 3, 8])
    alt.LayerChart.from_dict(spec, validate=True)
    assert ahead_png(made).startswith(b"\x89PNG")


def test_a_bar_is_the_geometric_mean_of_its_cases() -> None:
    cases = pd.DataFrame({"stride": [1, 1, 2], "size": [512, 512, 64], "ratio": [1.0, 4.0, 3.0]})
    assert ratio_rows(cases) == [
        {"size": 64, "stride": 2, "ratio": pytest.approx(3)},
        {"size": 512, "stride": 1, "ratio": pytest.approx(2)},
    ]
