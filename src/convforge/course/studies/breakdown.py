"""Parts of im2col's time: the expansion, the matrix product, and the rest of the call, on the GPU and the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Result, Run
from convforge.benchmark.suites import Case, load
from convforge.course.studies import rules
from convforge.course.studies.finding import Datum, Finding, undecided
from convforge.course.studies.readings import device_backend, readings, spanned
from convforge.course.studies.study import Part, padded, study

# The expansion counts as limited by memory from this share of a copy's rate on.
NEAR = 0.7
# A call takes as long as its steps if it differs from their sum by at most this share and the spread.
MARGIN = 0.05
# Names of the expansion step on a GPU and on the CPU.
EXPANSION = ("expansion", "im2col_expand")


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """Return ResNet layers for im2col and implicit GEMM (no expansion); with a GPU, for im2col on its host too."""
    if quick:
        return [Part([Case("layer_14", padded(14, 16, 16))], ("im2col", "implicit_gemm"), steps=True)]
    batch1 = [case for case in load(["layers-b1"])[1] if case.name.startswith("resnet50") and "3x3" in case.name]
    if facts.backend != "cuda":
        return [Part(batch1, ("im2col", "implicit_gemm"), steps=True)]
    host = [replace(case, name=f"{case.name}_host") for case in batch1]
    return [
        Part(host, ("im2col",), host=True, steps=True, share=0.3),
        Part([*batch1, *load(["layers-b32"])[1]], ("im2col", "implicit_gemm"), steps=True, share=0.7),
    ]


def _expanded(run: Run, backend: str) -> list[Result]:
    """Results of im2col with timed steps, one for each case."""
    found = {r.case: r for r in run.results if r.steps and r.algorithm == "im2col" and r.backend == backend}
    return [r for r in found.values() if any(step.name in EXPANSION for step in r.steps)]


def _seconds(r: Result, names: Sequence[str] = ()) -> float:
    """Sum of the median times, in seconds, of the steps with these names, or of all steps."""
    return sum(s.time.median_s for s in r.steps if not names or s.name in names)


def _data(found: Sequence[Result]) -> tuple[Datum, ...]:
    return tuple(Datum.of(r.case, r.algorithm, r.config, s.time, s.name) for r in found for s in r.steps)


def shares(run: Run) -> Iterator[Finding]:
    """Share of the expansion in the time of all steps, for each layer and each timed device."""
    device = device_backend(run)
    for backend in dict.fromkeys((device, "cpu")):
        found = _expanded(run, backend)
        where = "host" if backend != device else "gpu" if backend == "cuda" else "cpu"
        if not found:
            yield undecided("expansion-share", f"expansion/none-{where}", place=PLACES[where])
            continue
        each = {r.case: _seconds(r, EXPANSION) / _seconds(r) for r in found}
        above = [case for case, share in each.items() if share > 0.5]
        form = "most" if len(above) == len(each) else "mixed" if above else "less"
        values = {"place": PLACES[where], "n": len(each), "span": spanned(each), "above": above, "k": len(above)}
        yield Finding("expansion-share", f"expansion/{form}-{where}", values, _data(found))


def copying(run: Run) -> Iterator[Finding]:
    """Rate of the expansion divided by the rate of a copy of its bytes, the upper limit of any kernel."""
    found = [(r, s) for r in _expanded(run, device_backend(run)) for s in r.steps if s.name in EXPANSION]
    rates = {r.case: share for r, s in found if s.time.cold and (share := run.copy_share(s))}
    hot = [r.case for r, s in found if not s.time.cold]
    if not rates:
        yield undecided("expansion-against-copy", "copying/unknown", hot=hot)
        return
    span = spanned(rates)
    form = "near" if span["least"] >= NEAR else "mixed" if span["most"] >= NEAR else "far"
    values = {"span": span, "hot": hot, "near": NEAR}
    yield Finding("expansion-against-copy", f"copying/{form}", values, _data([r for r, _ in found if r.case in rates]))


def rest(run: Run) -> Iterator[Finding]:
    """Compare the time of the call with the sum of its steps."""
    found = _expanded(run, device_backend(run))
    calls = {r.case: (call.median_s, _seconds(r)) for r in found if (call := r.prepared_time or r.time) is not None}
    if not calls:
        return
    extra = {case: call_s / steps_s for case, (call_s, steps_s) in calls.items()}
    noise = max(s.time.spread for r in found for s in r.steps) + MARGIN
    longer = [case for case, share in extra.items() if share > 1 + noise]
    shorter = [case for case, share in extra.items() if share < 1 - noise]
    values = {"n": len(extra), "span": spanned(extra), "within": noise, "beyond": [*longer, *shorter]}
    form = "more" if len(longer) == len(extra) else "less" if len(shorter) == len(extra) else "mixed"
    form = form if values["beyond"] else "sum"
    yield Finding("beyond-steps", f"rest/{form}", values, _data(found))


def implicit(run: Run) -> Iterator[Finding]:
    """Compare implicit GEMM, which never writes the expanded matrix, with im2col."""
    yield rules.pair(readings(run, "conv2d"), "im2col", "implicit_gemm", "without-expansion")


def host(run: Run) -> Iterator[Finding]:
    """Compare the expansion on the host with the expansion on the GPU."""
    if device_backend(run) != "cuda":
        return
    gpu = {r.problem: r for r in _expanded(run, "cuda")}
    both = [(r, gpu[r.problem]) for r in _expanded(run, "cpu") if r.problem in gpu]
    if not both:
        yield undecided("host-expansion", "host/none")
        return
    ratios = {own.case: _seconds(cpu, EXPANSION) / _seconds(own, EXPANSION) for cpu, own in both}
    form = "slower" if min(ratios.values()) > 1 else "faster" if max(ratios.values()) < 1 else "mixed"
    values = {"n": len(ratios), "span": spanned(ratios), "k": sum(ratio > 1 for ratio in ratios.values())}
    yield Finding("host-expansion", f"host/{form}", values, _data([r for ab in both for r in ab]))


PLACES = {"gpu": "On the GPU", "cpu": "On the CPU", "host": "On the GPU's host"}
STUDY = study("breakdown", parts, (shares, copying, rest, implicit, host))
