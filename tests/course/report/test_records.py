"""The runs that are shown, and the messages for those that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.course.report import runs

from convforge.course.report.records import load, roof, view
from convforge.timing.ceilings import Ceilings


def test_a_run_is_read_and_its_families_found(tmp_path: Path) -> None:
    shown, left_out = load([runs.write(tmp_path / "a.jsonl", runs.records())])
    assert not left_out
    found = view(shown[0])
    assert len(found.series) == 2
    assert found.series[0] == "RGB image to 1 channel, 3x3, padding 1, float32, NCHW"
    assert found.methods[:2] == ("direct_naive", "direct_rows")
    assert found.methods[-1] == "scipy_ndimage"
    assert "separable" not in found.methods  # refused everywhere
    assert all(found.is_series(entry) for entry in found.entries)


def test_the_times_of_a_final_count(tmp_path: Path) -> None:
    shown, _ = load([runs.write(tmp_path / "a.jsonl", runs.records())])
    entry = next(
        e for e in view(shown[0]).entries if (e.result.case, e.label) == ("rgb_to_3_2048_s1", "opencv_filter2d")
    )
    assert entry.seconds == pytest.approx(29.3e-3)
    assert entry.result.time is not None
    assert entry.result.time.median_s != entry.seconds


def test_families_keep_apart_what_differs_in_more_than_size_and_stride(tmp_path: Path) -> None:
    texts = [
        "n1c3h64w64_k1r3s3_st1_p1_f32_nchw", "n1c3h64w64_k1r3s3_st1_p1_f32_nhwc", "n1c3h64w64_k1r3s3_st1_p1_u8_nchw",
        "n2c3h64w64_k1r3s3_st1_p1_f32_nchw", "n1c3h64w64_k1r5s3_st1_p1_f32_nchw", "n1c3h64w64_k1r3s3_st1_p0_f32_nchw",
        "n1c4h64w64_k4r3s3_st1_p1_g4_f32_nchw", "n1c4h64w64_k4r3s3_st1_p1_g2_f32_nchw",
        "n1c3h64w64_k1r3s3_st1_p1_d2_f32_nchw", "n1c3h64w64_k1r3s3_st1_p1_reflect_f32_nchw",
        "n1c3h64w64_k1r3s3_st1_p1_f32_nchw_+bias+relu", "m64n64k64_f32", "m64n64k64_tb_f32", "relu4096_f32",
        "max_n1c3h64w64_r3s3_st2_p1_f32_nchw",
    ]  # fmt: skip
    base = runs.result("direct_rows", 1, 64, 1)
    rows = [base | {"case": f"case {i}", "problem": text} for i, text in enumerate(texts)]
    shown, _ = load([runs.write(tmp_path / "a.jsonl", [runs.header(), *rows])])
    families = [entry.family for entry in view(shown[0]).entries]
    assert len(set(families)) == len(texts), families
    assert "n1c3" not in " ".join(families)


def test_stride_and_size_alone_do_not_part_a_family(tmp_path: Path) -> None:
    base = runs.result("direct_rows", 1, 64, 1)
    texts = ["n1c3h64w64_k1r3s3_st1_p1_f32_nchw", "n1c3h32w80_k1r3s3_st2x1_p1_f32_nchw"]
    rows = [base | {"case": text, "problem": text} for text in texts]
    shown, _ = load([runs.write(tmp_path / "a.jsonl", [runs.header(), *rows])])
    first, second = view(shown[0]).entries
    assert first.family == second.family
    assert (second.size, second.size_text, second.stride) == (None, "32x80", "2x1")


def test_of_a_folder_the_newest_finished_run_of_each_kind_is_shown(tmp_path: Path) -> None:
    rows = list(runs.results(sizes=(32,)))
    end = {"kind": "end", "complete": True}
    old = runs.header(run="old", started="2026-01-01T00:00:00+00:00")
    new = runs.header(run="new", started="2026-01-02T00:00:00+00:00")
    torn = runs.header(run="torn", started="2026-01-03T00:00:00+00:00")
    other = runs.header(run="other", suite="layers", started="2025-01-01T00:00:00+00:00")
    runs.write(tmp_path / "dev" / "old.jsonl", [old, *rows, end])
    runs.write(tmp_path / "dev" / "new.jsonl", [new, *rows, end])
    runs.write(tmp_path / "dev" / "torn.jsonl", [torn, *rows[:4]])
    runs.write(tmp_path / "dev" / "other.jsonl", [other, *rows[:9], end])
    shown, left_out = load([tmp_path])
    assert [run.run for run in shown] == ["new", "other"]
    assert sorted(run.run for run in left_out) == ["old", "torn"]
    named, _ = load([tmp_path, tmp_path / "dev" / "old.jsonl"])
    assert {run.run for run in named} == {"old", "new", "other"}


def test_a_setting_that_was_not_chosen_makes_no_other_kind(tmp_path: Path) -> None:
    rows, end = list(runs.results(sizes=(32,))), {"kind": "end", "complete": True}
    old = runs.header(run="old", started="2026-01-01T00:00:00+00:00")
    settings = old["settings"] | {"transfer": False, "steps": False}
    new = runs.header(run="new", started="2026-01-02T00:00:00+00:00", settings=settings)
    more = runs.header(run="more", started="2026-01-03T00:00:00+00:00", settings=settings | {"steps": True})
    for first in (old, new, more):
        runs.write(tmp_path / f"{first['run']}.jsonl", [first, *rows, end])
    shown, left_out = load([tmp_path])
    assert {run.run for run in shown} == {"new", "more"}
    assert [run.run for run in left_out] == ["old"]


def test_missing_and_empty_and_foreign_inputs_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.jsonl does not exist"):
        load([tmp_path / "none.jsonl"])
    with pytest.raises(ValueError, match="holds no results"):
        load([tmp_path])
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ValueError, match=r"empty\.jsonl is not a run"):
        load([tmp_path / "empty.jsonl"])
    (tmp_path / "picture.jsonl").write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff\xfe\n")
    with pytest.raises(ValueError, match=r"picture\.jsonl, line 1"):
        load([tmp_path / "picture.jsonl"])
    runs.write(tmp_path / "header.jsonl", [runs.header()])
    with pytest.raises(ValueError, match=r"header\.jsonl holds no result"):
        load([tmp_path / "header.jsonl"])
    with pytest.raises(ValueError, match="name a file"):
        load([])


def test_a_torn_last_line_costs_that_row_alone(tmp_path: Path) -> None:
    path = runs.write(tmp_path / "a.jsonl", [runs.header(), *list(runs.results(sizes=(32,)))[:3]])
    path.write_bytes(path.read_bytes()[:-40])
    shown, _ = load([path])
    assert len(shown[0].results) == 2
    assert not shown[0].complete


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = runs.write(tmp_path / "a.jsonl", [runs.header(), *list(runs.results(sizes=(32,)))[:3]])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:50], lines[2]]) + "\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2"):
        load([path])


def test_a_problem_that_is_none_and_a_time_that_is_none_are_refused(tmp_path: Path) -> None:
    row = runs.result("direct_rows", 1, 64, 1)
    shown, _ = load([runs.write(tmp_path / "a.jsonl", [runs.header(), row | {"problem": "<b>"}])])
    with pytest.raises(ValueError, match=r"a\.jsonl, case 'rgb_to_1_64_s1'.*is not a problem"):
        view(shown[0])
    for samples in ([], [0.0], [-1.0], [1e-3, None]):
        time = row["time"] | {"samples": samples}
        shown, _ = load([runs.write(tmp_path / "b.jsonl", [runs.header(), row | {"time": time}])])
        with pytest.raises(ValueError, match="has a time that is not positive"):
            view(shown[0])


def test_the_roof_is_the_lower_of_bandwidth_and_peak() -> None:
    ceilings = Ceilings(10e9, 100e9)
    assert [roof(ceilings, i) for i in (1.0, 10.0, 11.0)] == [10.0, 100.0, 100.0]
