"""Goals beside what was reached, from made-up results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.benchmark.fakes import result, run

from convforge.benchmark.peer_tables import Goal, goals_markdown, load_goals, reached_by
from convforge.benchmark.records import CopyTime, Run
from convforge.timing.timer import Timing


def made() -> Run:
    """A layer in two layouts: ours takes 2 and 1 ms, a peer 3 and 5, another 8; a copy of its bytes 0.5 ms."""
    layouts = {"nchw": (2e-3, 3e-3), "nhwc": (1e-3, 5e-3)}
    results = []
    for layout, (ours, peer) in layouts.items():
        problem = f"n1c3h64w64_k3r3s3_g3_p1_f32_{layout}"
        results += [
            result(f"layer_{layout}", "ours", (ours,) * 3, problem=problem),
            result(f"layer_{layout}", "ours_narrow", (1e-4,) * 3, problem=problem, precision="fft"),
            result(f"layer_{layout}", "peer", (peer,) * 3, problem=problem, ours=False),
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
    goal = Goal("layers", ("suite",), "peer", 1.0, ours="*_mma", peers="peer")
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
    goal = Goal("layers", ("suite", "other"), "peer", 1.0, peers="peer")
    text = goals_markdown([goal], lambda of: (runs[of], runs[of].results))
    assert cells(text)[0][2:4] == ["**0.750x, missed**", "more\\_layer\\_nchw"]
    with pytest.raises(ValueError, match="holds no case of 'other'"):
        goals_markdown([goal], lambda of: (runs[of], runs[of].results if of == "suite" else ()))


def test_weights_that_were_prepared_before_count_where_a_goal_says_so() -> None:
    held = made()
    before = [replace(r, prepared_time=Timing((2.5e-4,) * 3)) if r.algorithm == "ours" else r for r in held.results]
    held = replace(held, results=tuple(before))
    for prepared, ratios in ((False, (1.5, 5)), (True, (12, 20))):
        goal = Goal("layers", ("suite",), "peer", 1.0, peers="peer", prepared=prepared)
        found = reached_by(goal, held, held.results)
        assert found == pytest.approx(dict(zip(("layer_nchw", "layer_nhwc"), ratios, strict=True)))


def test_a_goal_that_nothing_was_measured_for_is_an_error() -> None:
    with pytest.raises(ValueError, match="no case of 'suite' that was timed on both sides"):
        table(Goal("layers", ("suite",), "peer", 1.0, peers="absent"))


def test_goals_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "goals.toml"
    assert load_goals(file) == []
    lines = ["[[goal]]", 'words = "a"', 'of = "images"', 'than = "copy"', "wanted = 0.9", 'precisions = ["fft"]']
    file.write_text("\n".join(lines))
    assert load_goals(file) == [Goal("a", "images", "copy", 0.9, precisions=("fft",))]
    file.write_text("\n".join([*lines, "shares = 1"]))
    with pytest.raises(ValueError, match=r"goals\.toml: .*shares"):
        load_goals(file)
