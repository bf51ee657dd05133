"""Ours beside the fastest other library, from made-up results: means over all cases, goals, and the README's rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import altair as alt
import pandas as pd
import pytest
from tests.benchmark.fakes import result, run

from convforge.benchmark.markers import view_markdown
from convforge.benchmark.peer_tables import (
    Goal,
    Headline,
    ahead_sentence,
    goals_markdown,
    headline_markdown,
    load_rows,
    reached_by,
)
from convforge.benchmark.records import CopyTime, Result, Run
from convforge.course.report.ahead import ahead_png, ahead_spec, ratio_rows
from convforge.timing.timer import Timing

ROOT = Path(__file__).parents[2]


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


def made() -> Run:
    """A layer in two layouts: ours takes 2 and 1 ms, a peer 3 and 5, another 8; a copy of its bytes 0.5 ms."""
    layouts = {"nchw": (2e-3, 3e-3), "nhwc": (1e-3, 5e-3)}
    results = []
    for layout, (ours, peer) in layouts.items():
        problem = f"n1c3h64w64_k3r3s3_g3_p1_f32_{layout}"
        results += [
            result(f"layer_{layout}", "ours", (ours,) * 3, problem=problem),
            result(f"layer_{layout}", "ours_narrow", (1e-4,) * 3, problem=problem, precision="fft"),
            result(f"layer_{layout}", "a_peer", (peer,) * 3, problem=problem, ours=False),
            result(f"layer_{layout}", "slow", (8e-3,) * 3, problem=problem, ours=False),
        ]
    copies = tuple(CopyTime(r.case, r.least_bytes, Timing((5e-4,) * 3)) for r in results if r.algorithm == "ours")
    return run(*results, copies=copies)


def cells(text: str) -> list[list[str]]:
    """The table's rows."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def table(*goals: Goal) -> list[list[str]]:
    held = made()
    return cells(goals_markdown(goals, lambda of: (held, held.results)))


def test_the_least_case_decides_and_what_is_missed_is_said() -> None:
    layer = Goal("layers", ("suite",), "copy", 0.4)
    assert table(layer)[0][:4] == ["layers", "40 %", "**25 %, missed**", "layer\\_nchw"]
    assert table(Goal("layers", ("suite",), "copy", 0.25))[0][2] == "25 %"
    assert table(Goal("layers", ("suite",), "peer", 1.5))[0][1:4] == ["1.50x", "1.50x", "layer\\_nchw"]
    assert table(Goal("layers", ("suite",), "peer", 1.51))[0][2] == "**1.50x, missed**"


def test_a_mean_is_geometric_and_names_the_least_case_with_its_own() -> None:
    row = table(Goal("layers", ("suite",), "peer", 2.7, mean=True))[0]
    assert row[:4] == ["layers: mean of 2", "2.70x", "2.74x", "layer\\_nchw, 1.50x"]


def test_either_side_takes_the_layout_that_suits_it() -> None:
    goal = Goal("layers", ("suite",), "peer", 3.0, either_layout=True)
    assert reached_by(goal, made(), made().results) == pytest.approx({"layer": 3.0})
    shares = reached_by(Goal("layers", ("suite",), "copy", 0.5, either_layout=True), made(), made().results)
    assert shares == pytest.approx({"layer": 0.5})


def test_only_the_arithmetic_and_the_peers_that_a_goal_names_count() -> None:
    results = made().results
    narrow = Goal("layers", ("suite",), "peer", 1.0, precisions=("fft",))
    assert reached_by(narrow, made(), results)["layer_nchw"] == pytest.approx(30)
    slow = Goal("layers", ("suite",), "peer", 1.0, peers="slow")
    assert reached_by(slow, made(), results) == pytest.approx({"layer_nchw": 4, "layer_nhwc": 8})
    only = [r for r in results if r.case == "layer_nhwc"]
    assert list(reached_by(slow, made(), only)) == ["layer_nhwc"]


def test_of_our_methods_those_count_that_a_goal_names() -> None:
    held = made()
    second = [replace(r, algorithm="ours_mma", time=Timing((4e-3,) * 3)) for r in held.results if r.algorithm == "ours"]
    held = replace(held, results=(*held.results, *second))
    goal = Goal("layers", ("suite",), "peer", 1.0, ours="*_mma", peers="a_peer")
    assert reached_by(goal, held, held.results) == pytest.approx({"layer_nchw": 0.75, "layer_nhwc": 1.25})


def test_a_time_is_reached_where_the_slowest_case_takes_no_longer() -> None:
    assert table(Goal("layers", ("suite",), "time", 2e-3))[0][:4] == ["layers", "2000 us", "2000 us", "layer\\_nchw"]
    assert table(Goal("layers", ("suite",), "time", 1e-3))[0][2] == "**2000 us, missed**"
    either = Goal("layers", ("suite",), "time", 1e-3, either_layout=True)
    assert table(either)[0][2] == "1000 us"


def test_a_goal_may_be_of_several_suites() -> None:
    held = made()
    other = replace(held, suite="other", results=tuple(
        replace(r, case=f"more_{r.case}", time=Timing((2 * r.time.median_s,) * 3) if r.ours else r.time)
        for r in held.results if r.time is not None
    ))  # fmt: skip
    runs = {"suite": held, "other": other}
    goal = Goal("layers", ("suite", "other"), "peer", 1.0, peers="a_peer")
    text = goals_markdown([goal], lambda of: (runs[of], runs[of].results))
    assert cells(text)[0][2:4] == ["**0.750x, missed**", "more\\_layer\\_nchw"]
    with pytest.raises(ValueError, match="holds no case of 'other'"):
        goals_markdown([goal], lambda of: (runs[of], runs[of].results if of == "suite" else ()))


def test_weights_that_were_prepared_before_count_where_a_goal_says_so() -> None:
    held = made()
    before = [replace(r, prepared_time=Timing((2.5e-4,) * 3)) if r.algorithm == "ours" else r for r in held.results]
    held = replace(held, results=tuple(before))
    for prepared, ratios in ((False, (1.5, 5)), (True, (12, 20))):
        goal = Goal("layers", ("suite",), "peer", 1.0, peers="a_peer", prepared=prepared)
        found = reached_by(goal, held, held.results)
        assert found == pytest.approx(dict(zip(("layer_nchw", "layer_nhwc"), ratios, strict=True)))


def test_a_goal_that_nothing_was_measured_for_is_an_error() -> None:
    with pytest.raises(ValueError, match="no case of 'suite' that was timed on both sides"):
        table(Goal("layers", ("suite",), "peer", 1.0, peers="absent"))


def test_goals_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "goals.toml"
    assert load_rows(file, "goal", Goal) == []
    lines = ["[[goal]]", 'words = "a"', 'of = "images"', 'than = "copy"', "wanted = 0.9", 'precisions = ["fft"]']
    file.write_text("\n".join(lines))
    assert load_rows(file, "goal", Goal) == [Goal("a", "images", "copy", 0.9, precisions=("fft",))]
    file.write_text("\n".join([*lines, "shares = 1"]))
    with pytest.raises(ValueError, match=r"goals\.toml: .*shares"):
        load_rows(file, "goal", Goal)


def shown(*rows: Headline, of: Run | None = None) -> list[list[str]]:
    held = of or made()
    return cells(headline_markdown(rows, lambda name: (held, [r for r in held.results if r.case.startswith(name)])))


def test_each_side_takes_its_faster_layout() -> None:
    assert shown(Headline("a layer", "layer")) == [["a layer", "1.00", "3.00 (a\\_peer)", "**3.00x**"]]
    assert shown(Headline("a layer", "layer_nhwc")) == [["a layer", "1.00", "5.00 (a\\_peer)", "**5.00x**"]]


def test_narrower_arithmetic_counts_where_the_row_allows_it() -> None:
    assert shown(Headline("a layer", "layer", ("strict", "fft")))[0][1:] == ["0.100", "3.00 (a\\_peer)", "**30.0x**"]


def test_a_row_that_is_behind_says_so() -> None:
    behind = run(result("a", "ours", (4e-3,) * 3), result("a", "peer", (3e-3,) * 3, ours=False))
    assert shown(Headline("a layer", "a"), of=behind)[0][3] == "0.750x: slower"


def test_a_row_without_one_of_its_sides_is_refused() -> None:
    alone = run(result("a", "ours", (4e-3,) * 3))
    with pytest.raises(ValueError, match="no case of 'a' that was timed on both sides"):
        shown(Headline("a layer", "a"), of=alone)


def test_rows_are_read_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "headline.toml"
    assert load_rows(path, "row", Headline) == []
    path.write_text('[[row]]\nwords = "a"\nof = "images"\nprecisions = ["fft"]\n')
    assert load_rows(path, "row", Headline) == [Headline("a", "images", ("fft",))]
    path.write_text('[[row]]\nword = "a"\n')
    with pytest.raises(ValueError, match=r"headline\.toml: .*word"):
        load_rows(path, "row", Headline)


def test_the_rows_of_the_readme_show_what_is_behind_too() -> None:
    rows = load_rows(ROOT / "benchmarks" / "headline.toml", "row", Headline)
    assert any(row.of.startswith("products cases=llama") for row in rows)
