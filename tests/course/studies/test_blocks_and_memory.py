"""The studies of block size, partition, memory, filter size and channels: made-up records flip each conclusion."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.course.studies.made_up import CALM, LOUD, found, launch, one, result, rgb, run, timing

from convforge.benchmark.config_tables import block_tables
from convforge.benchmark.records import Finalist, Finalists, Result, Run

SHAPES = ((32, 4), (64, 2), (8, 8), (16, 16), (32, 8), (32, 32), (128, 1))


def shaped(times: Mapping[str, float | None], method: str = "direct_constant", case: str = "a") -> list[Result]:
    """Config -> seconds; the first is the default."""
    return [result(method, s, rgb(256), case=case, config=config) for config, s in times.items()]


def block(x: int, y: int) -> str:
    return f"block_x={x},block_y={y},resident=2048"


# Block size.


def test_the_fastest_shape_and_what_it_matters() -> None:
    finding = one("block-size", run(*shaped({block(32, 4): 1.0, block(8, 8): 3.0})), "best-shape")
    assert finding.form == "shape/one"
    assert (finding.values["best"], finding.values["worst"], finding.values["ratio"]) == ("32x4", "8x8", 3.0)
    finding = one("block-size", run(*shaped({block(32, 4): 3.0, block(8, 8): 1.0})), "best-shape")
    assert (finding.values["best"], finding.values["worst"]) == ("8x8", "32x4")


def test_a_shape_may_change_with_the_case_or_not() -> None:
    first = shaped({block(32, 4): 1.0, block(8, 8): 3.0})
    same = shaped({block(32, 4): 1.0, block(8, 8): 2.0}, case="b")
    other = shaped({block(32, 4): 2.0, block(8, 8): 1.0}, case="b")
    assert one("block-size", run(*first, *same), "best-shape").form == "shape/same"
    finding = one("block-size", run(*first, *other), "best-shape")
    assert finding.form == "shape/changes"
    assert "fastest shape on each case: 32x4: a; 8x8: b" in finding.details


def test_a_case_with_skipped_shapes_is_not_held_against_one_that_has_them_all() -> None:
    whole = shaped({block(32, 4): 1.0, block(8, 8): 3.0, block(16, 16): 2.0})
    cut = shaped({block(32, 4): None, block(8, 8): 3.0, block(16, 16): 2.0}, case="b")
    said = found("block-size", run(*whole, *cut), "best-shape")
    assert [(f.form, f.supported) for f in said] == [("shape/one", True), ("shape/left-out", False)]
    assert said[1].sentence == ("direct_constant: b left out, because some shapes were skipped there.")
    alone = found("block-size", run(*cut), "best-shape")
    assert [f.form for f in alone] == ["shape/one", "shape/cut"], "there is no other case to go by"
    assert "some shapes were skipped on b, so another may be faster" in alone[1].sentence


@pytest.mark.parametrize(("shape", "form"), [(CALM, "level"), (LOUD, "unsure")])
def test_shapes_that_are_level_or_noisy_support_nothing(shape: tuple[float, ...], form: str) -> None:
    times = {block(32, 4): 1.0, block(8, 8): 1.03}
    made = run(*(result("direct_constant", s * 0.9, rgb(256), config=c, shape=shape) for c, s in times.items()))
    finding = one("block-size", made, "best-shape")
    assert (finding.form, finding.supported) == (f"shape/{form}", False)
    (said,) = found("block-size", made, "shapes")
    assert (said.form, said.supported) == (f"shapes/{form}", False)
    assert one("block-size", run(*shaped({block(32, 4): 1.0})), "shapes").form == "shapes/none"


def each(x: int, y: int, per_p: int) -> str:
    return f"block_x={x},block_y={y},per_p={per_p},resident=2048"


def test_shapes_are_compared_all_else_equal() -> None:
    """The gain of per_p, 4 times, is not that of the shape."""
    times = {each(32, 4, 8): 1.0, each(64, 2, 8): 1.1, each(32, 4, 1): 4.0, each(16, 16, 1): 4.8}
    eight, one_each = found("block-size", run(*shaped(times)), "best-shape")
    assert (eight.values["method"], eight.values["ratio"]) == ("direct_constant[per_p=8]", pytest.approx(1.1))
    assert (one_each.values["method"], one_each.values["ratio"]) == ("direct_constant[per_p=1]", pytest.approx(1.2))
    width = one("block-size", run(*shaped(times)), "width")
    assert (width.values["method"], width.values["span"]["most"]) == ("direct_constant[per_p=1]", pytest.approx(1.2))


def test_shapes_that_differ_in_more_are_not_compared() -> None:
    made = run(*shaped({each(32, 4, 8): 1.0, each(16, 16, 1): 4.8}))
    assert one("block-size", made, "shapes").form == "shapes/apart"
    assert one("block-size", made, "width").form == "width/apart"
    assert not found("block-size", made, "best-shape")


@pytest.mark.parametrize("other, best", [(0.5, "8x8"), (2.0, "32x4")])
def test_shapes_at_a_glance(other: float, best: str) -> None:
    made = run(*shaped({block(32, 4): 1.0, block(8, 8): 2.0, block(16, 16): 3.0}),
               *shaped({block(32, 4): 1.0, block(8, 8): other}, "direct_naive"),
               *shaped({block(16, 16): 1.0, block(8, 8): 0.5}, "direct_small"))  # fmt: skip
    finding = one("block-size", made, "shapes")
    assert finding.values["span"]["most_case"] == "direct_constant"
    assert (finding.values["shape"], finding.values["k"], finding.values["n"]) == (best, 2, 3)


@pytest.mark.parametrize("first, second, form", [(1.0, 1.0, "best"), (1.0, 3.0, "some"), (3.0, 3.0, "beaten")])
def test_defaults_at_a_glance(first: float, second: float, form: str) -> None:
    made = run(*shaped({block(32, 4): first, block(8, 8): 2.0}),
               *shaped({block(32, 4): second, block(8, 8): 2.0}, "direct_naive"))  # fmt: skip
    finding = one("block-size", made, "defaults")
    assert (finding.form, finding.values["k"]) == (f"defaults/{form}", 2 - (first > 2) - (second > 2))


def test_a_final_s_time_counts_in_sentences_and_tables() -> None:
    rows = shaped({block(32, 4): 1e-3, block(8, 8): 2e-3})
    final = Finalists("a", (Finalist("direct_constant", block(8, 8), timing(0.5e-3)),))
    made = run(*rows, finals=(final,))
    finding = one("block-size", made, "best-shape")
    assert (finding.values["best"], finding.values["best_s"]) == ("8x8", 0.5e-3)
    (table,) = block_tables(made, made.results)
    assert "*0.500" in [cell.text for cell in table.rows[0]]
    finals = (Finalists("a", (Finalist("direct_naive", partitioned(pixel=1.0).results[0].config, timing(0.5)),)),)
    finding = one("partition", replace(partitioned(pixel=1.0, row=2.0), finals=finals), "partitions")
    assert finding.values["costs"] == {"row": 4.0}


def test_the_default_is_well_chosen_or_not() -> None:
    made = run(*shaped({block(32, 4): 1.0, block(8, 8): 3.0}))
    assert one("block-size", made, "default-config").form == "default/best"
    finding = one("block-size", run(*shaped({block(32, 4): 3.0, block(8, 8): 1.5})), "default-config")
    assert (finding.form, finding.values["ratio"], finding.values["default"]) == ("default/behind", 2.0, block(32, 4))


def test_a_default_that_was_skipped_is_not_taken_for_another() -> None:
    made = run(*shaped({block(32, 4): None, block(8, 8): 3.0, block(16, 16): 1.0}))
    finding = one("block-size", made, "default-config")
    assert (finding.form, finding.supported) == ("default/untimed", False)


def occupied(times: list[float], shares: list[float]) -> Run:
    return run(*(
        result("direct_constant", s, rgb(256), case="a", config=block(*xy), launches=launch(xy, (64, 64), share))
        for xy, s, share in zip(SHAPES, times, shares, strict=True)
    ))  # fmt: skip


RISING = [0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0]


@pytest.mark.parametrize(
    "times, form, supported",
    [
        ([7, 6, 5, 4, 3, 2, 1], "occupancy/faster-top", True),
        ([1, 2, 3, 4, 5, 6, 7], "occupancy/slower", True),
        ([3, 1, 5, 2, 6, 1.5, 4], "occupancy/neither", False),
    ],
)
def test_whether_occupancy_makes_faster(times: list[float], form: str, supported: bool) -> None:
    finding = one("block-size", occupied(times, RISING), "occupancy")
    assert (finding.form, finding.supported) == (form, supported)


def test_occupancy_may_matter_on_one_case_alone() -> None:
    first, second = occupied([7, 6, 5, 4, 3, 2, 1], RISING), occupied([3, 1, 5, 2, 6, 1.5, 4], RISING)
    finding = one("block-size", run(*first.results, *(replace(r, case="b") for r in second.results)), "occupancy")
    assert (finding.form, finding.supported) == ("occupancy/mixed", True)
    assert {"faster: a", "no relation: b"} < set(finding.details)


@pytest.mark.parametrize(
    "times, form",
    [([7, 6, 5, 4, 3, 2, 1], "faster"), ([1, 2, 3, 4, 5, 6, 7], "slower"), ([3, 1, 5, 2, 6, 1.5, 4], "neither")],
)
def test_occupancy_at_a_glance(times: list[float], form: str) -> None:
    few = [replace(r, algorithm="direct_small") for r in occupied(times, RISING).results[:3]]
    finding = one("block-size", run(*occupied(times, RISING).results, *few), "occupancies")
    assert (finding.form, finding.supported) == ("occupancies/some", form != "neither")
    assert [name for name, methods in finding.values["related"].items() if methods] == [form]
    assert finding.values["untold"] == ["direct_small"]
    assert one("block-size", occupied(times, RISING), "occupancies").form == "occupancies/all"
    assert one("block-size", run(*few), "occupancies").form == "occupancies/none"


def test_occupancy_is_that_of_shapes_all_else_equal() -> None:
    made = occupied([7, 6, 5, 4, 3, 2, 1], RISING)
    apart = [replace(r, config=f"{r.config},per_p={i}") for i, r in enumerate(made.results)]
    assert not found("block-size", run(*apart), "occupancy")


def test_one_occupancy_for_all_says_nothing() -> None:
    finding = one("block-size", occupied([1, 2, 3, 4, 5, 6, 7], [0.5] * 7), "occupancy")
    assert (finding.form, finding.supported) == ("occupancy/too-few", False)


@pytest.mark.parametrize("narrow, form", [(2.0, "faster"), (0.5, "slower"), (1.0, "level")])
def test_wide_blocks_against_narrow_ones(narrow: float, form: str) -> None:
    made = run(*shaped({block(32, 4): 1.0, block(8, 8): narrow}))
    assert one("block-size", made, "width").form == f"width/{form}"


@pytest.mark.parametrize(
    "grid, form, said",
    [
        ((1, 3), "waves/below", "launches 3 blocks, fewer than the 4 SMs."),
        ((2, 2), "waves/part", "launches 4 blocks, fewer than the SMs hold at once"),
        ((64, 64), "waves/full", "enough blocks to fill all 4 SMs at least 64.0 times"),
    ],
)  # fmt: skip
def test_waves(grid: tuple[int, int], form: str, said: str) -> None:
    """Of 128 threads at full occupancy 16 blocks stay on each of the 4 SMs."""
    made = run(*(
        result("direct_constant", s, rgb(256), config=block(*xy), launches=launch(xy, grid, 1.0))
        for xy, s in zip(SHAPES[:2], (1.0, 2.0), strict=True)
    ))  # fmt: skip
    finding = one("block-size", made, "waves")
    assert finding.form == form
    assert said in finding.sentence
    assert f"blocks there: {grid[0] * grid[1]} on 4 SMs, each of which holds 16 at once" in finding.details
    assert finding.values["least"] == grid[0] * grid[1] / 64


# Partition.


def partitioned(**times: float) -> Run:
    return run(*(
        result("direct_naive", s, rgb(256), case="a", config=f"block_x=32,block_y=4,partition={name},resident=1280",
               launches=launch((32, 4), (8 if name == "pixel" else 1, 64), 1.0))
        for name, s in times.items()
    ))  # fmt: skip


@pytest.mark.parametrize("row, form", [(5.0, "slower"), (0.5, "faster"), (1.0, "level")])
def test_partitions(row: float, form: str) -> None:
    finding = one("partition", partitioned(pixel=1.0, row=row), "partition")
    assert finding.form == f"partition/{form}"
    assert (finding.values["threads"], finding.values["pixel_threads"]) == (128 * 64, 128 * 8 * 64)


@pytest.mark.parametrize("row", [5.0, 0.5])
def test_partitions_at_a_glance(row: float) -> None:
    finding = one("partition", partitioned(pixel=1.0, row=row, column=9.0), "partitions")
    assert finding.values["costs"] == pytest.approx({"row": row, "column": 9.0})


def test_one_partition_says_nothing() -> None:
    assert one("partition", partitioned(pixel=1.0), "partitions").form == "partition/none"
    assert one("partition", run(backend="cpu"), "partitions").form == "partition/host"


# Memory.


def laddered(naive: float, shared: float, side: int = 5, channels: int = 1) -> list[Result]:
    problem = f"n1c{channels}h256w256_k1r{side}s{side}_st1_p{side // 2}_f32_nchw"
    case = f"c{channels}_{side}x{side}"
    return [result("direct_naive", naive, problem, case=case), result("direct_shared", shared, problem, case=case)]


@pytest.mark.parametrize(
    "naive, shared, form",
    [(3.0, 1.0, "faster"), (1.0, 3.0, "slower"), (1.0, 1.0, "level")],
)
def test_what_shared_memory_brings(naive: float, shared: float, form: str) -> None:
    finding = one("memory", run(*laddered(naive, shared)), "shared-memory")
    assert finding.form == f"pair/{form}"
    assert finding.supported is (form != "level")


def test_where_what_shared_memory_brings_turns() -> None:
    rows = [r for c, gains in ((1, (3.0, 2.0, 0.5)), (3, (2.0, 3.0, 0.2)), (8, (3.0, 0.5, 0.5)))
            for side, gain in zip((3, 5, 7), gains, strict=True) for r in laddered(gain, 1.0, side, c)]  # fmt: skip
    finding = one("memory", run(*rows), "shared-memory")
    assert finding.form == "steps/turns"
    assert finding.sentence == "direct_shared is faster than direct_naive on 5 of 9 cases."
    assert finding.details[1:] == [
        "faster: C 1, 3: 3x3-5x5 and C 8: 3x3",
        "slower: C 1, 3: 7x7 and C 8: 5x5-7x7",
    ]
    other = one("memory", run(*laddered(3.0, 1.0, 5), *laddered(1.0, 2.0, 7)), "shared-memory")
    assert other.details[1:] == ["faster: C 1: 5x5", "slower: C 1: 7x7"]


def test_pictures_of_two_sizes_show_no_turn() -> None:
    """Either of the two may cause the difference."""
    small = [replace(r, case="small", problem=r.problem.replace("256", "64")) for r in laddered(1.0, 2.0, 7)]
    finding = one("memory", run(*laddered(3.0, 1.0, 5), *small), "shared-memory")
    assert finding.form == "pair/mixed"
    assert finding.details[1:] == ["faster: c1_5x5", "slower: small"]


def test_a_step_without_its_other_side_is_not_judged() -> None:
    finding = one("memory", run(*laddered(3.0, 1.0)), "constant-memory")
    assert (finding.form, finding.supported) == ("pair/none", False)


@pytest.mark.parametrize("gain, form", [(3.0, "confirmed"), (1.5, "refuted"), (5.0, "refuted")])
def test_the_published_claim(gain: float, form: str) -> None:
    small, large = found("memory", run(*laddered(gain, 1.0)), "published-claim")
    assert small.form == f"claim/{form}-5x5"
    assert (large.form, large.supported) == ("claim/untested-larger", False)


def test_the_claim_may_hold_in_part() -> None:
    _, large = found("memory", run(*laddered(4.0, 1.0, 7), *laddered(2.0, 1.0, 11)), "published-claim")
    assert (large.form, large.values["k"], large.values["n"]) == ("claim/partly-larger", 1, 2)


@pytest.mark.parametrize(
    "gains, form", [((1, 2, 3), "grows"), ((3, 2, 1), "falls"), ((1, 3, 2), "no-order"), ((2, 2, 2), "steady")]
)
def test_how_the_gain_moves_with_the_filter(gains: tuple[float, ...], form: str) -> None:
    rows = [r for side, gain in zip((3, 5, 7), gains, strict=True) for r in laddered(gain, 1.0, side)]
    finding = one("memory", run(*rows), "gain-by-filter")
    assert (finding.form, finding.supported) == (f"trend/{form}", form != "steady")


def test_two_filters_show_no_trend() -> None:
    made = run(*laddered(1.0, 1.0, 3), *laddered(2.0, 1.0, 5))
    assert one("memory", made, "gain-by-filter").form == "trend/too-few"


@pytest.mark.parametrize("seconds, form", [(1e-6, "traffic/cached-alone"), (1.0, "traffic/below")])
def test_what_the_caches_must_have_served(seconds: float, form: str) -> None:
    finding = one("memory", run(*laddered(seconds, 1.0, 5)), "traffic")
    assert finding.form == form
    # 25 taps, each a pixel and a weight of 4 bytes, and 4 bytes written.
    assert finding.values["requested"] == 256 * 256 * (25 * 8 + 4)


@pytest.mark.parametrize("other, k", [(1e-6, 2), (1.0, 1)])
def test_cases_whose_requests_outrun_a_copy_are_counted(other: float, k: int) -> None:
    finding = one("memory", run(*laddered(1e-6, 1.0, 7), *laddered(other, 1.0, 3)), "traffic")
    assert (finding.form, finding.values["case"]) == ("traffic/cached", "c1_7x7")
    assert f"requests faster than a copy on: {k} of 2 cases" in finding.details


def test_hit_rates_are_said_to_be_missing() -> None:
    finding = one("memory", run(*laddered(2.0, 1.0)), "hit-rates")
    assert (finding.supported, finding.values["n"]) == (False, 2)


# Filter size and channels.


def filtered(direct: Mapping[int, float], fft: Mapping[int, float]) -> Run:
    def problem(side: int) -> str:
        return f"n1c1h256w256_k1r{side}s{side}_st1_p{side // 2}_f32_nchw"

    rows = [result("direct_tiled", s, problem(n), case=f"full_{n}") for n, s in direct.items()]
    return run(*rows, *(result("fft", s, problem(n), case=f"full_{n}", precision="fft") for n, s in fft.items()))


@pytest.mark.parametrize(
    "direct, form",
    [
        ({3: 1.0, 7: 2.0, 15: 9.0, 31: 30.0}, "at"),
        ({3: 1.0, 7: 1.0, 15: 1.0, 31: 30.0}, "at-last"),
        ({3: 9.0, 7: 9.0, 15: 9.0, 31: 9.0}, "always"),
        ({3: 1.0, 7: 1.0, 15: 1.0, 31: 1.0}, "never"),
        ({3: 9.0, 7: 9.0, 15: 1.0, 31: 1.0}, "back"),
        ({3: 1.0, 7: 9.0, 15: 1.0, 31: 9.0}, "scattered"),
        ({3: 4.0, 7: 4.0, 15: 4.0, 31: 4.0}, "level"),
        ({3: 4.0, 7: 4.0, 15: 9.0, 31: 9.0}, "never-behind"),
    ],
)
def test_where_the_fft_overtakes(direct: dict[int, float], form: str) -> None:
    made = filtered(direct, dict.fromkeys(direct, 4.0))
    fft = one("filter-size", made, "crossover-fft")
    separable = one("filter-size", made, "crossover-separable")
    assert (fft.form, fft.supported) == (f"crossover/{form}", form != "level")
    assert (separable.form, separable.supported) == ("crossover/too-few", False)


@pytest.mark.parametrize("theirs, form", [(9.0, "never"), (0.5, "always")])
def test_a_library_s_fft_is_an_fft(theirs: float, form: str) -> None:
    """Whoever made it: names are not what a method is told by."""
    made = filtered({3: 1.0, 7: 2.0}, {3: 8.0, 7: 8.0})
    peers = [replace(r, algorithm="opencv_filter2d_dft", ours=False, time=timing(theirs)) for r in made.results[2:]]
    finding = one("filter-size", run(*made.results, *peers), "crossover-fft")
    assert finding.form == f"crossover/{form}"


def test_the_crossover_lies_between_two_filters() -> None:
    made = filtered({3: 1.0, 7: 2.0, 15: 9.0, 31: 30.0}, dict.fromkeys((3, 7, 15, 31), 4.0))
    finding = one("filter-size", made, "crossover-fft")
    assert finding.sentence.endswith("at a filter size between 7 and 15.")
    assert "gain by filter size: 3: 0.25x, 7: 0.50x, 15: 2.25x and 31: 7.50x" in finding.details


@pytest.mark.parametrize("last, form", [(200.0, "taps"), (50.0, "between"), (5.0, "flat"), (0.5, "none")])
def test_growth_with_the_filter(last: float, form: str) -> None:
    finding = one("filter-size", filtered({3: 1.0, 31: last}, {}), "growth")
    assert finding.form == f"filter-growth/{form}"


def channelled(direct: Mapping[int, float], product: Mapping[int, float], **more: object) -> Run:
    def problem(count: int) -> str:
        return f"n1c{count}h56w56_k{count}r3s3_st1_p1_f32_nchw"

    rows = [result("direct_tiled", s, problem(n), case=f"channels_{n}") for n, s in direct.items()]
    products = [result("implicit_gemm", s, problem(n), case=f"channels_{n}") for n, s in product.items()]
    return run(*rows, *products, **more)


@pytest.mark.parametrize("product, form", [({1: 4.0, 64: 1.0}, "at-last"), ({1: 4.0, 64: 90.0}, "never"),
                                           ({1: 0.5, 64: 1.0}, "always")])  # fmt: skip
def test_from_how_many_channels_the_product_wins(product: dict[int, float], form: str) -> None:
    made = channelled({1: 1.0, 64: 10.0}, product)
    assert one("channels", made, "direct-against-product").form == f"crossover/{form}"


@pytest.mark.parametrize("last, form", [(10.0, "grows"), (1e5, "falls"), (4096.0, "level")])
def test_how_the_rate_moves_with_the_channels(last: float, form: str) -> None:
    """64 times the channels are 4096 times the operations."""
    finding = one("channels", channelled({1: 1.0, 64: last}, {}), "rate")
    assert finding.form == f"rate/{form}"
    without = channelled({1: 1.0, 64: last}, {}, ceilings=())
    assert one("channels", without, "rate").form == (f"rate/{form}-no-peak" if form != "level" else "rate/level")


def test_other_cases_make_no_series_of_channels() -> None:
    finding = one("channels", run(result("direct_tiled", 1.0, rgb(64))), "winner-by-channels")
    assert (finding.form, finding.supported) == ("channels/none", False)


def test_filters_of_full_rank_and_gaussian_ones_are_told_apart() -> None:
    def problem(side: int) -> str:
        return f"n1c1h64w64_k1r{side}s{side}_st1_p{side // 2}_f32_nchw"

    rows = [
        result(method, seconds * side, problem(side), case=f"{weights}_{side}", weights=weights)
        for weights in ("normal", "gaussian") for side in (3, 5, 7)
        for method, seconds in (("direct_tiled", 1e-3), ("depthwise", 2e-3))
    ]  # fmt: skip
    full, blur = found("filter-size", run(*rows), "winner-by-filter")
    assert re.match(r"direct_tiled is .* \(filters of full rank\)\.$", full.sentence)
    assert re.match(r"direct_tiled is .* \(Gaussian filters\)\.$", blur.sentence)
    one_kind = one("filter-size", run(*rows[:6]), "winner-by-filter")
    assert "full rank" not in one_kind.sentence
    first = found("filter-size", run(*rows), "crossover-separable")[0]
    assert first.values["workload"]["weights"] == "gaussian", "what separable passes are for"
