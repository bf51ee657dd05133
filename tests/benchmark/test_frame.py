"""The data frame of a run, and what tables take from it, from made-up results."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.benchmark.fakes import result, run

from convforge.benchmark.frame import by_method, frame, leader, select, time_cell
from convforge.benchmark.records import CopyTime, Finalist, Finalists
from convforge.timing.timer import Timing

SLOW, FAST = Timing((2e-3,) * 3), Timing((1e-3,) * 3)


def test_a_row_a_result_with_the_timing_that_counts() -> None:
    final = Finalists("square_8", (Finalist("honest", "", SLOW),))
    made = run(result(), result(algorithm="picky", status="refused", reason="no"), finals=(final,),
               copies=(CopyTime("square_8", 768, FAST),))  # fmt: skip
    rows = frame(made)
    assert list(rows.result) == list(made.results)
    assert list(rows.timing) == [SLOW, None]
    assert rows.seconds[0] == SLOW.median_s
    assert rows.of_copy[0] == pytest.approx(0.5)
    assert rows[["seconds", "of_copy", "rms"]].isna().all(axis=1).tolist() == [False, True]
    assert rows.reason.tolist() == ["", "no"]


def test_a_frame_without_rows_has_every_column() -> None:
    empty = frame(run())
    assert empty.empty
    assert set(frame(run(result())).columns) == set(empty.columns)
    assert leader(empty) is None


def test_the_leader_is_the_fastest_and_none_where_the_order_cannot_be_told() -> None:
    rows = frame(run(result(), result(algorithm="other", time=SLOW)))
    assert leader(rows) == 0
    wide = [result(algorithm=name, samples=samples) for name, samples in
            (("a", (1e-3, 2e-3, 3e-3)), ("b", (1.1e-3, 2.2e-3, 3.3e-3)))]  # fmt: skip
    assert leader(frame(run(*wide))) is None


def test_groups_are_in_natural_order_and_cells_say_why_there_is_no_time() -> None:
    made = run(result(case="a_1024"), result(case="a_64", status="failed", reason="wrong"))
    first, second = by_method(frame(made))
    assert [group.case.iloc[0] for group in (first, second)] == ["a_64", "a_1024"]
    assert time_cell(made, next(first.itertuples())).text == "failed"
    assert time_cell(made, next(second.itertuples()), 0.5).text == "*1.00 (50 %)"


def test_results_are_chosen_by_patterns() -> None:
    made = run(result(), result(algorithm="other", case="b"))
    assert select(made) == list(made.results)
    assert [r.algorithm for r in select(made, methods=["o*"])] == ["other"]
    assert [r.algorithm for r in select(made, cases=["square*"], methods=["*"])] == ["honest"]


def test_the_library_loads_no_pandas() -> None:
    code = (
        "import sys, convforge, convforge.cli, convforge.benchmark.markers, convforge.course.report;"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_pandas_tables_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"tables of results need pandas: pip install 'convforge\[lab\]'"):
        frame(run())
