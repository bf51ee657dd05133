"""The studies of size and stride: made-up records flip each conclusion."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.course.studies.made_up import (
    CALM,
    LOUD,
    STILL,
    found,
    one,
    result,
    rgb,
    run,
    table,
    timing,
)

from convforge.benchmark.records import Result
from convforge.course.studies import find_study


def pair_of(a: dict[int, float], b: dict[int, float]) -> list[Result]:
    return table({"direct_naive": a, "direct_tiled": b})


# Who is fastest at which size.


def test_one_method_leads_throughout() -> None:
    made = run(*pair_of({32: 2.0, 64: 4.0}, {32: 1.0, 64: 1.0}))
    finding = one("size", made, "winner-by-size")
    assert finding.form == "winners/one"
    assert (finding.values["method"], finding.values["least"], finding.values["most"]) == ("direct_tiled", 2.0, 4.0)
    assert finding.sentence == "direct_tiled is the fastest at every image size."
    assert {"image size: 32 to 64", "lead: 2.00x to 4.00x"} < set(finding.details)


def test_the_other_leads_when_the_times_are_exchanged() -> None:
    made = run(*pair_of({32: 1.0, 64: 1.0}, {32: 2.0, 64: 4.0}))
    assert one("size", made, "winner-by-size").values["method"] == "direct_naive"


def test_a_crossover_is_found_where_it_is() -> None:
    made = run(*pair_of({32: 1.0, 64: 2.0, 128: 6.0}, {32: 2.0, 64: 3.0, 128: 4.0}))
    finding = one("size", made, "winner-by-size")
    assert finding.form == "winners/changes"
    assert "direct_naive at 32, direct_tiled at 128" in finding.sentence
    assert "fastest by image size: 32-64: direct_naive; 128: direct_tiled" in finding.details


@pytest.mark.parametrize(("shape", "form"), [(CALM, "winners/level"), (LOUD, "undecided/series")])
def test_times_closer_than_their_spreads_support_no_winner(shape: tuple[float, ...], form: str) -> None:
    made = run(*table({"direct_naive": {32: 0.9, 64: 1.8}, "direct_tiled": {32: 0.92, 64: 1.83}}, shape=shape))
    finding = one("size", made, "winner-by-size")
    assert finding.form == form
    assert not finding.supported


def test_one_size_is_too_few_for_a_crossover() -> None:
    made = run(*pair_of({32: 1.0}, {32: 2.0}))
    finding = one("size", made, "winner-by-size")
    assert (finding.form, finding.supported) == ("winners/too-few", False)


@pytest.mark.parametrize(
    "study, rule, near",
    [
        ("size", "winner-by-size", "n1c3h64w32_k1r3s3_st1_p1_f32_nchw"),
        ("filter-size", "winner-by-filter", "n1c3h64w64_k1r5s1_st1_p2x0_f32_nchw"),
        ("filter-size", "winner-by-filter", "n1c3h64w64_k1r5s5_st1_p0_f32_nchw"),
    ],
)
def test_a_place_of_a_series_has_one_case(study: str, rule: str, near: str) -> None:
    """Neither a case whose sides differ stands there nor a second one; with one method there is no winner."""
    first, last = ("n1c3h64w64_k1r3s3_st1_p1_f32_nchw", "n1c3h64w64_k1r5s5_st1_p2_f32_nchw")
    texts = (rgb(32), rgb(64)) if study == "size" else (first, last)
    alone = [result("direct_tiled", 1.0, text) for text in (*texts, near)]
    assert {f.form for f in found(study, run(*alone), rule)} == {"winners/too-few"}
    others = [result("direct_naive", 2.0 if text != near else 0.1, text) for text in (*texts, near)]
    finding = one(study, run(*alone, *others), rule)
    assert (finding.form, finding.values["least"], finding.values["most"]) == ("winners/one", 2.0, 2.0)


def test_a_method_that_must_be_asked_for_by_name_does_not_win() -> None:
    made = run(*pair_of({32: 1.0, 64: 1.0}, {32: 2.0, 64: 2.0}),
               *table({"fft": {32: 0.1, 64: 0.1}}, precision="fft"))  # fmt: skip
    assert one("size", made, "winner-by-size").values["method"] == "direct_naive"


# What a call costs, and how time grows.


def test_the_floor_of_a_call() -> None:
    made = run(*table({"direct_naive": {32: 1.0, 64: 1.1, 128: 1.2, 256: 4.8}}))
    finding = one("size", made, "call-floor")
    assert finding.form == "floor/flat"
    assert (finding.values["last"], finding.values["next"]) == (128, 256)
    assert finding.values["next_growth"] == pytest.approx(4.0)


@pytest.mark.parametrize(
    "times, form",
    [
        ({32: 1.0, 64: 4.0, 128: 16.0}, "floor/none"),
        ({32: 1.0, 64: 1.1, 128: 1.2}, "floor/all"),
        ({32: 1.0, 64: 4.0}, "floor/too-few"),
    ],
)
def test_no_floor(times: dict[int, float], form: str) -> None:
    assert one("size", run(*table({"direct_naive": times})), "call-floor").form == form


@pytest.mark.parametrize("last, form", [(4.0, "in-step"), (8.0, "more"), (2.0, "less")])
def test_growth_with_the_pixels(last: float, form: str) -> None:
    made = run(*table({"direct_naive": {32: 1.0, 64: last}}))
    assert one("size", made, "growth").form == f"growth/{form}"


# Transfer, and when a GPU is worth it.


def worth(gpu: dict[int, float], cpu: dict[int, float], transfer: dict[int, float] | None = None) -> list[Result]:
    there = []
    for size, seconds in gpu.items():
        way = None if transfer is None else timing(transfer[size])
        there.append(result("direct_tiled", seconds, rgb(size), case=f"rgb_{size}", transfer_time=way))
    here = [result("direct_rows", s, rgb(n), case=f"rgb_{n}_host", backend="cpu") for n, s in cpu.items()]
    return [*there, *here]


@pytest.mark.parametrize(
    "gpu, form",
    [
        ({32: 0.1, 64: 0.1, 128: 0.1}, "always"),
        ({32: 2.0, 64: 4.0, 128: 9.0}, "never"),
        ({32: 2.0, 64: 1.0, 128: 1.0}, "from"),
        ({32: 0.1, 64: 4.0, 128: 1.0}, "scattered"),
    ],
)
def test_when_a_gpu_is_worth_it(gpu: dict[int, float], form: str) -> None:
    made = run(*worth(gpu, {32: 1.0, 64: 2.0, 128: 8.0}))
    assert one("size", made, "gpu-worth-it").form == f"worth/{form}-time"


def test_the_crossover_is_named_with_its_figures() -> None:
    made = run(*worth({32: 2.0, 64: 1.0, 128: 1.0}, {32: 1.0, 64: 2.0, 128: 8.0}))
    finding = one("size", made, "gpu-worth-it")
    assert "faster than its host from 64 pixels a side on" in finding.sentence
    assert "gain by size: 32: 0.50x, 64: 2.00x and 128: 8.00x" in finding.details


def test_transfer_may_turn_it_round() -> None:
    made = run(*worth({32: 0.1, 64: 0.1, 128: 0.1}, {32: 1.0, 64: 2.0, 128: 8.0}, {32: 5.0, 64: 9.0, 128: 20.0}))
    assert one("size", made, "gpu-worth-it").form == "worth/always-time"
    assert one("size", made, "gpu-worth-it-with-transfer").form == "worth/never-transfer_time"
    assert one("size", made, "transfer").form == "transfer/most"


def test_a_host_whose_time_falls_as_pixels_grow_says_nothing_of_the_crossover() -> None:
    """It was kept from its work; a little less time for more pixels is noise, and changes nothing."""
    gpu = {32: 1.0, 64: 1.0, 128: 1.0}
    finding = one("size", run(*worth(gpu, {32: 1.0, 64: 8.0, 128: 2.0})), "gpu-worth-it")
    assert (finding.form, finding.supported) == ("worth/unsteady-time", False)
    assert {"host at 64: 8.00 s", "host at 128, which has more pixels: 2.00 s"} < set(finding.details)
    finding = one("size", run(*worth({32: 2.0, 64: 1.0, 128: 1.0}, {32: 1.0, 64: 3.0, 128: 2.0})), "gpu-worth-it")
    assert (finding.form, finding.supported) == ("worth/from-time", True)


def test_what_holds_though_the_host_was_kept() -> None:
    """Its times may be too long, never too short: where it is ahead it is; a steady time of the smallest is a bound."""
    host = {32: 1.0, 64: 8.0, 128: 2.0}
    finding = one("size", run(*worth({32: 0.1, 64: 0.2, 128: 0.3}, host)), "gpu-worth-it")
    assert (finding.form, finding.supported) == ("worth/kept-ahead-time", True)
    below = set(finding.details)
    assert {"least time of the host: 1.00 s at 32", "longest time of the GPU: 300 ms at 128"} < below
    assert {"host at 64: 8.00 s", "host at 128, which has more pixels: 2.00 s"} < below
    finding = one("size", run(*worth({32: 2.0, 64: 0.2, 128: 0.3}, host)), "gpu-worth-it")
    assert (finding.form, finding.supported) == ("worth/kept-behind-time", True)
    assert "slower than its host at 32 pixels a side" in finding.sentence
    finding = one("size", run(*worth({32: 0.9, 64: 1.2, 128: 1.5}, host)), "gpu-worth-it")
    assert (finding.form, finding.supported) == ("worth/unsteady-time", False)
    kept = [
        replace(r, time=replace(r.time, noisy=True)) if r.case == "rgb_32_host" and r.time is not None else r
        for r in worth({32: 0.1, 64: 0.2, 128: 0.3}, host)
    ]
    assert one("size", run(*kept), "gpu-worth-it").form == "worth/unsteady-time"
    late = {32: 8.0, 64: 1.0, 128: 2.0}  # the smallest was kept itself, so the next may have been
    assert one("size", run(*worth({32: 0.1, 64: 0.2, 128: 0.3}, late)), "gpu-worth-it").form == "worth/unsteady-time"


def test_without_the_host_it_cannot_be_said() -> None:
    made = run(*worth({32: 0.1, 64: 0.1}, {}))
    finding = one("size", made, "gpu-worth-it")
    assert (finding.form, finding.supported) == ("worth/missing-host", False)
    assert one("size", made, "transfer").form == "transfer/none"


@pytest.mark.parametrize("whole, form", [(1.2, "little"), (10.0, "most")])
def test_what_transfer_takes(whole: float, form: str) -> None:
    made = run(*worth({32: 1.0, 64: 1.0}, {}, {32: whole, 64: whole}))
    assert one("size", made, "transfer").form == f"transfer/{form}"


# Who is ahead how often.


def test_other_strides_are_none_of_its_business() -> None:
    strides = [result("direct_naive", 1.0, rgb(64, n), case=f"s{n}", shape=LOUD if n == 2 else STILL) for n in (2, 1)]
    made = run(*(replace(r, time=replace(r.time, noisy=r.case == "s2")) for r in strides if r.time is not None))
    assert [r.case for r in find_study("size").own(made).results] == ["s1"]
    assert not found("size", made, "quality")
    assert found("stride", made, "quality")
    only = run(*strides[:1])
    assert find_study("size").own(only) == only


def test_ahead_and_never_ahead() -> None:
    made = run(*pair_of({32: 1.0, 64: 1.0}, {32: 2.0, 64: 4.0}))
    first, never = found("size", made, "ahead")
    assert (first.form, first.values["method"], first.values["most"]) == ("ahead/all", "direct_naive", 4.0)
    assert (never.form, never.values["methods"]) == ("ahead/never", ["direct_tiled"])


def test_who_wins_once_is_not_said_never_to_win() -> None:
    made = run(*pair_of({32: 1.0, 64: 5.0}, {32: 2.0, 64: 4.0}))
    assert [f.form for f in found("size", made, "ahead")] == ["ahead/some", "ahead/some"]


def test_who_is_level_is_not_said_never_to_win() -> None:
    made = run(*table({"direct_naive": {32: 0.9}, "direct_tiled": {32: 0.93}}, shape=CALM))
    assert {f.form for f in found("size", made, "ahead")} == {"ahead/level"}
    noisy = run(*table({"direct_naive": {32: 0.9}, "direct_tiled": {32: 0.93}}, shape=LOUD))
    finding = one("size", noisy, "ahead")
    assert finding.form == "undecided/fastest"
    assert "(direct_naive, direct_tiled)" in finding.details[-1]


def test_a_spread_that_hides_a_factor_of_five_makes_no_tie() -> None:
    """im2col's median is 5.4 times direct_rows', its spread 160 %: whoever of the two is faster, they are not level."""
    texts = {"rgb_to_1_64_s2": rgb(64, 2), "rgb_to_1_128_s2": rgb(128, 2)}
    rows = [result("direct_rows", 3e-5, text, case=case) for case, text in texts.items()]
    rows.append(result("im2col", 1.61e-4, rgb(64, 2), case="rgb_to_1_64_s2", shape=(0.1, 0.2, 1.0, 3.4, 5.0)))
    (undecided,) = found("stride", run(*rows), "im2col-against-direct")
    said = "At stride 2 the times are too noisy to compare im2col with the best direct method."
    assert undecided.sentence == said
    assert undecided.details == ["too noisy to rank: rgb_to_1_64_s2"]
    rows.append(result("im2col", 1.61e-4, rgb(128, 2), case="rgb_to_1_128_s2"))
    (behind,) = found("stride", run(*rows), "im2col-against-direct")
    assert behind.sentence == "At stride 2 im2col is slower than the best direct method on 1 case."
    assert behind.details == ["gain: 0.19x (rgb_to_1_128_s2)", "too noisy to rank: rgb_to_1_64_s2"]


# Strides.


def strided(times: dict[int, float], method: str = "direct_naive", **more: object) -> list[Result]:
    return [result(method, s, rgb(60, stride), case=f"s{stride}", **more) for stride, s in times.items()]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "second, form",
    [(0.25, "in-step"), (0.5, "part"), (0.8, "as-bytes"), (0.9, "less"), (1.0, "level"), (1.5, "slower")],
)
def test_what_a_stride_saves(second: float, form: str) -> None:
    finding = one("stride", run(*strided({1: 1.0, 2: second})), "stride-saves")
    assert finding.form == f"saves/{form}"
    assert finding.values["outputs"] == 4.0
    assert "outputs, of those at stride 1: 25 %" in finding.details
    assert finding.supported is (form != "level")


def test_without_stride_1_nothing_can_be_said() -> None:
    finding = one("stride", run(*strided({2: 1.0, 3: 0.5})), "stride-saves")
    assert (finding.form, finding.supported) == ("saves/too-few", False)


def test_a_kernel_that_wastes_its_stride_is_named() -> None:
    made = run(*strided({1: 1.0, 3: 0.2}), *strided({1: 1.0, 3: 1.0}, "direct_tiled"))
    finding = one("stride", made, "gain-by-method")
    assert (finding.form, finding.values["idle"]) == ("waste/some", ["direct_tiled"])
    made = run(*strided({1: 1.0, 3: 0.2}), *strided({1: 1.0, 3: 0.4}, "direct_tiled"))
    assert one("stride", made, "gain-by-method").form == "waste/none"


@pytest.mark.parametrize("second, form", [(0.3, "same"), (0.9, "changes")])
def test_whether_the_stride_changes_who_is_fastest(second: float, form: str) -> None:
    made = run(*strided({1: 1.0, 2: second}), *strided({1: 2.0, 2: 0.6}, "im2col"))
    assert one("stride", made, "winner-by-stride").form == f"by-stride/{form}"


@pytest.mark.parametrize("own, form", [(0.5, "all"), (2.0, "none"), (1.0, "level")])
def test_im2col_against_direct(own: float, form: str) -> None:
    made = run(*strided({1: 1.0}), *strided({1: own}, "im2col"))
    assert one("stride", made, "im2col-against-direct").form == f"im2col/{form}"
