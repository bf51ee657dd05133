"""The words follow from the numbers: ahead, level and behind, each where it is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.course.report import runs

from convforge.course.report import summary
from convforge.course.report.headline import headline as headline_of
from convforge.course.report.records import View, load, view
from convforge.course.report.tables import error_table, summary_table


def shown(tmp_path: Path, lines: list[Any]) -> View:
    return view(load([runs.write(tmp_path / "a.jsonl", lines)])[0][0])


def two(ours: float, peer: float, width: float = 0.01, size: int = 64) -> list[dict[str, Any]]:
    """One of ours and one peer on one case, with these seconds and spreads."""
    rows = []
    for method, seconds in (("direct_rows", ours), ("opencv_filter2d", peer)):
        samples = [seconds * (1 + width * (i - 7) / 7) for i in range(15)]
        row = runs.result(method, 1, size, 1)
        row["time"] = row["time"] | {"samples": samples, "noisy": False}
        rows.append(row)
    return rows


@pytest.mark.parametrize(
    ("ours", "peer", "width", "tone", "figure", "words"),
    [
        (1e-3, 2e-3, 0.01, "ahead", "2.00x", "2.00x ahead"),
        (2e-3, 1e-3, 0.01, "behind", "0.500x", "ours is behind, 0.500x of its speed"),
        (1.00e-3, 1.01e-3, 0.05, "level", "1.01x", "a tie (1.01x)"),
        (1e-3, 1.1e-3, 0.001, "ahead", "1.10x", "1.10x ahead"),
    ],
)
def test_the_headline_says_what_the_times_say(
    tmp_path: Path, ours: float, peer: float, width: float, tone: str, figure: str, words: str
) -> None:
    found = headline_of(shown(tmp_path, [runs.header(), *two(ours, peer, width)]))
    assert (found.tone, found.figure) == (tone, figure)
    assert words in found.sentences[0]
    assert "direct_rows" in found.sentences[0]
    assert "opencv_filter2d" in found.sentences[0]
    assert "RMS error" in found.sentences[1]


def test_the_mean_is_geometric_and_the_counts_add_up(tmp_path: Path) -> None:
    lines = [runs.header(), *two(1e-3, 4e-3, size=32), *two(4e-3, 1e-3, size=64), *two(1e-3, 1e-3, size=128)]
    found = shown(tmp_path, lines)
    headline = headline_of(found)
    assert (headline.tone, headline.figure) == ("level", "1.00x")
    assert "Ahead in 1, level in 1, behind in 1 of 3 cases." in headline.sentences
    assert any(s.startswith("Best: 4.00x") and "Worst: 0.250x" in s for s in headline.sentences)
    [group] = summary.groups(found)
    assert group.counts == (1, 1, 1)
    assert group.mean == pytest.approx(1.0)
    assert group.worst.ours.size == 64
    assert group.largest.ours.size == 128


def test_each_kind_of_case_has_a_mean_of_its_own(tmp_path: Path) -> None:
    layers = two(4e-3, 1e-3, size=96)
    for row in layers:
        row |= {"case": "layer", "problem": "n1c64h56w56_k64r3s3_st1_p1_f32_nchw"}
    pictures = [*two(1e-3, 4e-3, size=32), *two(1e-3, 4e-3, size=64)]
    found = shown(tmp_path, [runs.header(), *pictures, *layers])
    assert {kind.family: round(kind.mean, 9) for kind in summary.kinds(found)} == {
        "images of up to 4 channels": 4.0, "layers of more than 4 channels": 0.25
    }  # fmt: skip
    headline = headline_of(found)
    assert (headline.tone, headline.figure) == ("ahead", "4.00x")
    assert "on images of up to 4 channels, geometric mean over 2 cases" in headline.caption
    assert headline.sentences[1] == (
        "On layers of more than 4 channels: 0.250x, on the one case that both were timed on; ahead in 0, level in 0, "
        "behind in 1. Peers timed: opencv_filter2d on 1."
    )
    most = shown(tmp_path, [runs.header(), *pictures[:2], *layers, *[row | {"case": "more"} for row in layers]])
    assert (headline_of(most).tone, headline_of(most).figure) == ("behind", "0.250x")


def test_a_peer_that_is_the_only_one_on_most_cases_is_named(tmp_path: Path) -> None:
    def caption(*others: int) -> str:
        rows = [row for size in (32, 64, 128) for row in two(1e-3, 2e-3, size=size)]
        rows += [runs.result("scipy_ndimage", 1, size, 1) for size in others]
        return headline_of(shown(tmp_path, [runs.header(), *rows])).caption

    assert caption().startswith("the speed of opencv_filter2d, the only peer timed, on images")
    assert "the best peer (opencv_filter2d, the only one timed on 2 of 3 cases) on images" in caption(32)
    assert caption(32, 64).startswith("the speed of the best peer on images")


def test_single_cases_stand_by_kind_and_the_largest_is_named(tmp_path: Path) -> None:
    rows = [*two(1e-3, 4e-3, size=32), *two(1e-3, 2e-3, size=64)]
    layers = two(4e-3, 1e-3, size=96)
    for row in layers:
        row |= {"case": "layer", "problem": "n1c64h56w56_k64r3s3_st1_p1_f32_nchw"}
    found = shown(tmp_path, [runs.header(), *rows, *layers])
    assert {row[0].text: (row[2].text, row[7].text.partition(": ")[0]) for row in summary_table(found).rows} == {
        "single cases: images of up to 4 channels": ("2", "rgb_to_1_64_s1"),
        "single cases: layers of more than 4 channels": ("1", "layer"),
    }


def test_without_peers_nothing_is_compared(tmp_path: Path) -> None:
    headline = headline_of(shown(tmp_path, [runs.header(), runs.result("direct_rows", 1, 64, 1)]))
    assert headline.tone == "alone"
    assert "no peer was timed" in headline.sentences[0]


def test_without_times_the_headline_says_so(tmp_path: Path) -> None:
    found = shown(tmp_path, [runs.header(), runs.result("separable", 1, 64, 1)])
    assert headline_of(found).figure == "No time"
    assert summary.groups(found) == []


def test_a_wider_arithmetic_than_asked_for_does_not_compete(tmp_path: Path) -> None:
    rows = two(2e-3, 1e-3)
    quick = runs.result("winograd_f4", 1, 64, 1)
    quick["time"] = quick["time"] | {"samples": [1e-5] * 15}
    headline = headline_of(shown(tmp_path, [runs.header(), *rows, quick]))
    assert headline.figure == "0.500x"


def test_a_case_that_a_peer_of_another_arithmetic_wins_is_not_the_best(tmp_path: Path) -> None:
    rows = [*two(1e-3, 8e-3, size=32), *two(1e-3, 4e-3, size=64), *two(2e-3, 1e-3, size=128)]
    for method, precision, ours in (("opencv_filter2d_dft", "fft", False), ("fft", "fft", True)):
        row = runs.result("opencv_filter2d", 1, 32, 1) | {"algorithm": method, "precision": precision, "ours": ours}
        rows.append(row | {"time": row["time"] | {"samples": [0.5e-3] * 15}})
    headline = headline_of(shown(tmp_path, [runs.header(), *rows]))
    assert "in the same run, both in strict arithmetic: ours is ahead." in headline.caption
    assert any(s.startswith("Best: 4.00x") and "64x64" in s and "Worst: 0.500x" in s for s in headline.sentences)
    assert any(
        "a peer is faster than our best on 1 of 3 cases (opencv_filter2d_dft on 1), none of which is called the best, "
        "and so is a method of ours on 1." in s
        for s in headline.sentences
    )
    alone = headline_of(shown(tmp_path, [runs.header(), *two(1e-3, 8e-3, size=32), *rows[-2:]]))
    assert "opencv_filter2d_dft is faster there, 500 us" in alone.sentences[1]


def test_a_final_decides(tmp_path: Path) -> None:
    rows = two(2e-3, 1e-3)
    final = runs.finalists("rgb_to_1_64_s1", ("direct_rows", "opencv_filter2d"), (1e-3, 3e-3), 0.01)
    assert headline_of(shown(tmp_path, [runs.header(), *rows, final])).figure == "3.00x"


def test_cautions_name_what_is_wrong_and_are_silent_where_nothing_is(tmp_path: Path) -> None:
    def sound(row: dict[str, Any]) -> None:
        if row["time"]:
            row["time"]["noisy"] = False
        if row["status"] == "failed":
            row |= {"status": "refused"}

    known = [row for row in runs.results() if runs.digest_of_method(row["algorithm"])]
    for row in known:
        sound(row)
    end = {"kind": "end", "complete": True}
    lines = [runs.header(), runs.ceilings("before"), *known, runs.ceilings("after"), end]
    assert summary.cautions(shown(tmp_path, lines)) == []

    text = " ".join(summary.cautions(shown(tmp_path, runs.records(moved=0.5, dirty=True))))
    for words in ("did not hold still", "moved by -50 %", "1 result was wrong", "uncommitted changes", "noisy"):
        assert words in text
    text = " ".join(summary.cautions(shown(tmp_path, runs.records(complete=False))))
    assert "did not finish" in text
    assert "not measured again" in text


def test_a_machine_that_did_not_hold_still_makes_the_headline_doubtful(tmp_path: Path) -> None:
    def lines(moved: float) -> list[Any]:
        return [runs.header(), runs.ceilings("before"), *two(1e-3, 2e-3), runs.ceilings("after", moved)]

    sound, doubtful = (headline_of(shown(tmp_path, lines(moved))) for moved in (0.95, 0.8))
    assert (sound.tone, doubtful.tone) == ("ahead", "unsure")
    assert sound.caption.endswith("ours is ahead.")
    assert doubtful.caption.endswith("ours is ahead. The machine did not hold still, so this is doubtful.")


def test_a_digest_that_is_not_the_sources_is_stale(tmp_path: Path) -> None:
    row = runs.result("direct_rows", 1, 64, 1) | {"digest": "0" * 64}
    found = shown(tmp_path, [runs.header(), row])
    assert any("1 of 1 times are stale" in text for text in summary.cautions(found))


def test_wrong_results_come_first_among_those_without_time(tmp_path: Path) -> None:
    found = summary.troubles(shown(tmp_path, runs.records()))
    assert [t.status for t in found][:2] == ["failed", "skipped"]
    assert found[0].cases == ("rgb_to_3_64_s1",)
    refused = next(t for t in found if t.method == "separable")
    assert len(refused.cases) == 42


def test_reasons_that_differ_in_numbers_alone_are_one(tmp_path: Path) -> None:
    base = runs.result("direct_rows", 1, 64, 1) | {"status": "skipped", "time": None, "prepared_time": None}
    reasons = [
        "a call would take about 0.21 s (93.3 ms for n1c3h1024w1024_k1r3s3_p1_f32_nchw_math-fft); its share is 1 s",
        "a call would take about 1.3e+02 s (2 s for n1c3h64w64_k3r3s3_st1_p1_f32_nchw); its share is 9 ms",
        "the budget of 60 s was spent",
    ]
    rows = [base | {"case": f"case {i}", "reason": reason} for i, reason in enumerate(reasons)]
    found = summary.troubles(shown(tmp_path, [runs.header(), *rows]))
    assert [(t.reasons, t.cases) for t in found] == [(2, ("case 0", "case 1")), (1, ("case 2",))]
    wrong = [row | {"status": "failed"} for row in rows[:2]]
    assert len(summary.troubles(shown(tmp_path, [runs.header(), *wrong]))) == 2


def test_errors_by_method_and_class(tmp_path: Path) -> None:
    view_ = shown(tmp_path, runs.records())
    found = {a.method: a for a in summary.accuracies(view_).itertuples()}
    assert found["winograd_f4"].bound == 52000.0
    assert found["winograd_f4"].precision == "winograd"
    assert found["direct_rows"].checked == 42
    assert [name for name, _ in summary.gates(view_)] == ["strict", "winograd", "fft"]
    assert "64 times" in dict(summary.gates(view_))["winograd"]


def test_errors_of_two_types_stand_apart(tmp_path: Path) -> None:
    rows = [runs.result("direct_rows", 1, size, 1) for size in (32, 64, 128)]
    rows[1] |= {
        "problem": "n1c3h64w64_k1r3s3_st1_p1_f16_nchw",
        "error": {"rms": 2.1e-4, "max": 1.0, "bound_ratio": 0.27},
    }
    view_ = shown(tmp_path, [runs.header(), *rows])
    found = {a.types: a for a in summary.accuracies(view_).itertuples()}
    assert {types: a.checked for types, a in found.items()} == {"float32": 2, "float16": 1}
    assert found["float16"].largest == 2.1e-4
    assert found["float32"].largest < 1e-6
    assert [row[4].text for row in error_table(view_).rows if row[1].text == "float16"] == ["27 %"]
    mixed = runs.result("direct_rows", 1, 64, 1) | {"problem": "n1c3h64w64_k1r3s3_st1_p1_u8-i8-u8-i32_nchw"}
    assert list(summary.accuracies(shown(tmp_path, [runs.header(), mixed])).types) == ["uint8 x int8"]


def test_an_error_that_is_not_a_number_is_missing_and_not_zero(tmp_path: Path) -> None:
    row = runs.result("direct_rows", 1, 64, 1)
    row |= {"status": "failed", "time": None, "prepared_time": None, "reason": "NaN"}
    row["error"] = {"rms": None, "max": None, "bound_ratio": None}
    [cells] = [[cell.text for cell in row] for row in error_table(shown(tmp_path, [runs.header(), row])).rows]
    assert cells[2:5] == ["–"] * 3
