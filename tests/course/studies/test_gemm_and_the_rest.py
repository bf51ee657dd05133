"""The studies of gemm, breakdown, accuracy and timer, and what makes a run doubtful: each conclusion flipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.course.studies.made_up import error, found, one, result, rgb, run, steps, timing

from convforge.benchmark.records import Result, Run
from convforge.course.studies import timer
from convforge.timing.ceilings import Ceilings
from convforge.timing.timer import Timing

# The matrix product.


def products(times: Mapping[str, Mapping[int, float]], **more: object) -> Run:
    rows = [
        result(method, s, f"m{n}n{n}k{n}_f32", case=f"square_{n}", ours=method.startswith("gemm"))
        for method, sizes in times.items()
        for n, s in sizes.items()
    ]
    return run(*rows, **more)


@pytest.mark.parametrize("above, form", [(1.0, "faster"), (4.0, "slower"), (2.0, "level")])
def test_a_rung_against_the_one_below(above: float, form: str) -> None:
    finding = one("gemm", products({"gemm_naive": {512: 2.0}, "gemm_shared": {512: above}}), "ladder-step")
    assert (finding.form, finding.supported) == (f"pair/{form}", form != "level")


def test_one_rung_is_no_ladder() -> None:
    assert one("gemm", products({"gemm_naive": {512: 2.0}}), "ladder").form == "ladder/none"


@pytest.mark.parametrize(
    "cublas, form", [({512: 2.0, 1024: 9.0}, "faster"), ({512: 0.5, 1024: 7.0}, "slower"),
                     ({512: 1.0, 1024: 8.0}, "level"), ({512: 0.5, 1024: 9.0}, "mixed")]
)  # fmt: skip
def test_ours_against_the_library(cublas: dict[int, float], form: str) -> None:
    made = products({"gemm_naive": {512: 1.0, 1024: 8.0}, "cublas": cublas})
    finding = one("gemm", made, "against-library")
    assert (finding.form, finding.supported) == (f"library/{form}", form != "level")


def test_without_a_library_nothing_is_compared() -> None:
    assert one("gemm", products({"gemm_naive": {512: 1.0}}), "against-library").form == "library/none"


@pytest.mark.parametrize("share, form", [(0.099, "peak/low"), (0.101, "peak/top")])
def test_the_share_of_the_peak(share: float, form: str) -> None:
    seconds = 2 * 512**3 / (share * 1e13)
    finding = one("gemm", products({"gemm_naive": {512: seconds}}), "share-of-peak")
    assert finding.form == form
    assert finding.values["top_share"] == pytest.approx(share)


@pytest.mark.parametrize("cublas, form", [(2.0, "peak/top"), (0.5, "peak/library")])
def test_a_library_nearest_to_the_peak_does_not_hide_the_rungs(cublas: float, form: str) -> None:
    seconds = 2 * 512**3 / 3e12
    finding = one("gemm", products({"gemm_naive": {512: seconds}, "cublas": {512: cublas * seconds}}), "share-of-peak")
    name = "own" if form == "peak/library" else "top"
    assert (finding.form, finding.values[name]) == (form, "gemm_naive")
    assert finding.values[f"{name}_share"] == pytest.approx(0.3)


@pytest.mark.parametrize("above", [1.0, 4.0])
def test_the_ladder_at_a_glance(above: float) -> None:
    times = {"gemm_naive": {512: 2.0, 1024: 8.0}, "gemm_shared": {512: above, 1024: 4 * above, 2048: 1.0}}
    finding = one("gemm", products(times), "ladder")
    assert finding.values["gains"] == pytest.approx({"gemm_shared": 2.0 / above})
    apart = products({"gemm_naive": {512: 2.0}, "gemm_shared": {1024: 2.0}})
    assert one("gemm", apart, "ladder").form == "ladder/none"


def test_without_a_peak_no_share_is_said() -> None:
    made = products({"gemm_naive": {512: 1.0}}, ceilings=())
    assert one("gemm", made, "share-of-peak").form == "peak/unknown"


@pytest.mark.parametrize("first, form", [(1.0, "filling/all"), (3.0, "filling/from")])
def test_from_which_size_the_device_is_full(first: float, form: str) -> None:
    finding = one("gemm", products({"gemm_naive": {512: first, 1024: 8.0, 2048: 64.0}}), "filling")
    assert finding.form == form
    assert finding.values["near"] == (512 if form == "filling/all" else 1024)
    made = products({"gemm_naive": {512: first, 1024: 8.0}})
    assert one("gemm", made, "filling").form == "filling/too-few"


# im2col by steps.

LAYER = "n1c16h56w56_k16r3s3_st1_p1_f32_nchw"


def expanded(expansion: float, product: float, case: str = "a", backend: str = "cuda", call: float | None = None,
             ) -> Result:  # fmt: skip
    seconds = expansion + product if call is None else call
    made = result("im2col", seconds, LAYER, case=case, backend=backend)
    return replace(made, steps=steps(expansion=expansion, product=product))


@pytest.mark.parametrize("expansion, form", [(3.0, "most"), (0.1, "less")])
def test_the_share_of_the_expansion(expansion: float, form: str) -> None:
    gpu, host = found("breakdown", run(expanded(expansion, 1.0)), "expansion-share")
    assert gpu.form == f"expansion/{form}-gpu"
    assert gpu.values["span"]["least"] == pytest.approx(expansion / (expansion + 1))
    assert (host.form, host.supported) == ("expansion/none-host", False)


def test_the_expansion_may_matter_on_some_layers() -> None:
    gpu, _ = found("breakdown", run(expanded(3.0, 1.0), expanded(0.1, 1.0, "b")), "expansion-share")
    assert (gpu.form, gpu.values["above"]) == ("expansion/mixed-gpu", ["a"])


@pytest.mark.parametrize("seconds, form", [(1.1e-6, "near"), (1e-5, "far")])
def test_the_expansion_against_a_copy(seconds: float, form: str) -> None:
    """A megabyte takes a copy of 1 TB/s a microsecond."""
    finding = one("breakdown", run(expanded(seconds, 1.0)), "expansion-against-copy")
    assert finding.form == f"copying/{form}"


def test_without_a_ceiling_the_expansion_is_not_judged() -> None:
    finding = one("breakdown", run(expanded(1.0, 1.0), ceilings=()), "expansion-against-copy")
    assert (finding.form, finding.supported) == ("copying/unknown", False)


@pytest.mark.parametrize("call, form", [(2.0, "sum"), (4.0, "more"), (1.0, "less")])
def test_the_call_against_its_steps(call: float, form: str) -> None:
    assert one("breakdown", run(expanded(1.0, 1.0, call=call)), "beyond-steps").form == f"rest/{form}"


def test_a_call_that_is_beyond_its_steps_on_some_layers_is_not_called_their_sum() -> None:
    apart = replace(expanded(1.0, 1.0, call=1.0), case="apart")
    finding = one("breakdown", run(expanded(1.0, 1.0, call=2.0), apart), "beyond-steps")
    assert (finding.form, finding.values["beyond"]) == ("rest/mixed", ["apart"])


@pytest.mark.parametrize("host, form", [(9.0, "slower"), (0.1, "faster")])
def test_the_expansion_on_the_host(host: float, form: str) -> None:
    made = run(expanded(1.0, 1.0), expanded(host, 1.0, "a_host", "cpu"))
    assert one("breakdown", made, "host-expansion").form == f"host/{form}"
    assert one("breakdown", run(expanded(1.0, 1.0)), "host-expansion").form == "host/none"


@pytest.mark.parametrize("own, form", [(1.0, "faster"), (4.0, "slower")])
def test_implicit_gemm_against_im2col(own: float, form: str) -> None:
    made = run(expanded(1.0, 1.0), result("implicit_gemm", own, LAYER, case="a"))
    assert one("breakdown", made, "without-expansion").form == f"pair/{form}"


# Accuracy.


def exact(method: str, rms: float, dtype: str = "f32", precision: str = "strict", channels: int = 1) -> Result:
    problem = f"n1c{channels}h28w28_k8r3s3_st1_p1_{dtype}_nchw"
    return result(method, 1.0, problem, case=f"{dtype}_c{channels}", precision=precision, error=error(rms))


def test_within_the_bound_or_not() -> None:
    made = run(exact("direct_naive", 1e-7))
    assert one("accuracy", made, "within-bound").form == "bound/held"
    others = [replace(exact("im2col", 1e-7), error=error(1e-7, ratio)) for ratio in (0.4, 0.5)]
    finding = one("accuracy", run(*made.results, others[0]), "within-bound")
    assert (finding.form, finding.values["methods"]) == ("bound/held", ["direct_naive"])
    finding = one("accuracy", run(*made.results, others[1]), "within-bound")
    assert (finding.form, finding.values["methods"]) == ("bound/tied", ["direct_naive", "im2col"])
    wrong = replace(result("direct_tiled", None, rgb(28), case="b"), status="failed")
    finding = one("accuracy", run(*made.results, wrong), "within-bound")
    assert (finding.form, finding.values["failed"]) == ("bound/failed", ["direct_tiled"])
    finding = one("accuracy", run(), "within-bound")
    assert (finding.form, finding.supported) == ("bound/none", False)


@pytest.mark.parametrize("other, form", [(1.5e-7, "alike"), (5e-7, "differs")])
def test_whether_strict_methods_differ(other: float, form: str) -> None:
    made = run(exact("direct_naive", 1e-7), exact("im2col", other))
    assert one("accuracy", made, "strict-methods").form == f"strict/{form}"


@pytest.mark.parametrize("other, form", [(9e-7, "more"), (1e-8, "less"), (1e-7, "alike")])
def test_other_arithmetic_against_the_strict(other: float, form: str) -> None:
    made = run(exact("direct_naive", 1e-7), exact("winograd_f4", other, precision="winograd"))
    assert one("accuracy", made, "other-arithmetic").form == f"narrower/{form}"


def test_other_arithmetic_may_be_both() -> None:
    made = run(exact("direct_naive", 1e-7), exact("fft", 9e-7, precision="fft"),
               exact("direct_naive", 1e-7, channels=16), exact("fft", 1e-8, precision="fft", channels=16))  # fmt: skip
    assert one("accuracy", made, "other-arithmetic").form == "narrower/mixed"


@pytest.mark.parametrize("half, most", [(1e-3, "float16"), (1e-9, "float32")])
def test_types_are_ranked_by_their_errors(half: float, most: str) -> None:
    finding = one("accuracy", run(exact("direct_naive", 1e-7), exact("direct_naive", half, "f16")), "by-type")
    assert (finding.form, finding.values["most"]) == ("types/ranked", most)
    assert one("accuracy", run(exact("direct_naive", 1e-7)), "by-type").form == "types/too-few"


@pytest.mark.parametrize("long, form", [(4e-7, "grows"), (1e-8, "falls"), (1.02e-7, "same")])
def test_errors_and_the_length_of_sums(long: float, form: str) -> None:
    made = run(exact("direct_naive", 1e-7), exact("direct_naive", long, channels=256))
    finding = one("accuracy", made, "sum-length")
    assert (finding.form, finding.supported) == (f"length/{form}", form != "same")
    assert (finding.values["short"], finding.values["long"]) == (9, 2304)


# Clocks.


def clock(name: str, seconds: float, **more: object) -> Result:
    made = result("direct_tiled", seconds, rgb(64), case="a", precision="mistaken", config=f"clock={name}")
    return replace(made, time=timing(seconds, **more))


@pytest.mark.parametrize("seconds, form", [(0.1, "less"), (3.0, "more"), (1.0, "level"), (1.05, "level")])
@pytest.mark.parametrize("name", ["no_wait", "host_clock", "same_arrays"])
def test_what_a_mistaken_clock_shows(name: str, seconds: float, form: str) -> None:
    finding = one("timer", run(clock("right", 1.0), clock(name, seconds)), name.replace("_", "-"))
    assert (finding.form, finding.supported) == (f"clocks/{name}-{form}", form != "level")


@pytest.mark.parametrize("seconds, form", [(3.0, "less"), (90.0, "more"), (30.0, "level"), (31.5, "level")])
@pytest.mark.parametrize("name", ["allocating", "planning"])
def test_what_is_done_inside_the_time_is_held_to_the_clock_that_reads_it(name: str, seconds: float, form: str) -> None:
    """Waiting with the host's clock takes 30 times the right time here, and is none of allocation's doing."""
    finding = one("timer", run(clock("right", 1.0), clock("host_clock", 30.0), clock(name, seconds)), name)
    assert (finding.form, finding.supported) == (f"clocks/{name}-{form}", form != "level")
    assert finding.values["difference_s"] == pytest.approx(abs(seconds - 30.0))
    assert not found("timer", run(clock("right", 1.0), clock(name, seconds)), name), "nothing to hold it to"


def test_a_ring_that_was_hot_too_is_said_to_be() -> None:
    made = run(clock("right", 1.0, cold=False), clock("same_arrays", 0.5))
    assert one("timer", made, "same-arrays").form == "clocks/same_arrays-hot"


def test_a_gpu_is_asked_for_a_call_that_outlasts_its_launch() -> None:
    def cases(backend: str, quick: bool) -> list[str]:
        return [case.name for case in timer._mistaken_cases(backend, quick)]

    assert cases("cuda", False) == ["rgb_to_1_2048_31x31", *cases("cpu", False)]
    assert cases("cuda", True) == cases("cpu", True)
    assert timer._mistaken_cases("cuda", False)[0].problem.flops > 2e10, "under a millisecond on the fastest cards"


def test_without_mistakes_there_is_nothing_to_say() -> None:
    finding = one("timer", run(result("direct_tiled", 1.0, rgb(64))), "clocks")
    assert (finding.form, finding.supported) == ("clocks/none", False)


@pytest.mark.parametrize("ours, first, form", [(True, 9.0, "ours"), (False, 9.0, "peer"), (True, 0.5, "none")])
def test_first_calls(ours: bool, first: float, form: str) -> None:
    made = run(result("cudnn", 1.0, rgb(64), ours=ours, first_call_s=first))
    assert one("timer", made, "first-call").form == f"first/{form}"


# What makes a run doubtful.


def doubts(made: Run) -> list[str]:
    return [finding.form for finding in found("size", made, "quality")]


def test_a_sound_run_has_no_doubts() -> None:
    assert doubts(run(result("direct_tiled", 1.0, rgb(64)))) == []


def test_each_doubt_is_named() -> None:
    sound = result("direct_tiled", 1.0, rgb(64))
    noisy = replace(result("im2col", 1.0, rgb(64)), time=timing(1.0, noisy=True))
    single = replace(result("cudnn", 1.0, rgb(64)), time=Timing((1.0,)))
    skipped = result("direct_naive", None, rgb(64))
    assert doubts(run(sound, noisy)) == ["quality/noisy"]
    assert doubts(run(sound, single)) == ["quality/no-spread"]
    assert doubts(run(sound, skipped)) == ["quality/skipped"]
    assert doubts(run(sound, replace(skipped, status="error"))) == ["quality/error"]
    assert doubts(run(sound, replace(skipped, status="failed"))) == ["quality/failed"]
    assert doubts(run(skipped)) == ["quality/nothing-timed"]
    moving = (("before", Ceilings(1e12, 1e13)), ("after", Ceilings(1e12, 5e12)))
    (moved,) = found("size", run(sound, ceilings=moving), "quality")
    assert moved.form == "quality/moved"
    assert any("FMA peak moved" in line for line in moved.details)


def test_noise_of_times_is_no_doubt_about_errors() -> None:
    noisy = replace(exact("im2col", 1e-7), time=timing(1.0, noisy=True))
    assert found("accuracy", run(noisy), "quality") == []
