"""The parts of im2col's time: the expansion, the product, and the rest of the call; on the GPU and on the CPU."""

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

# From this share of a copy's rate on, the expansion runs at the speed of memory.
NEAR = 0.7
# A call that takes what its steps take differs from their sum by no more than this and the spread.
MARGIN = 0.05
# As the steps are called on a GPU and on the CPU.
EXPANSION = ("expansion", "im2col_expand")


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """ResNet's layers, by im2col and by implicit GEMM, which expands nothing; on a GPU the same on its host."""
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
    """Results of im2col whose steps were timed, one a case."""
    found = {r.case: r for r in run.results if r.steps and r.algorithm == "im2col" and r.backend == backend}
    return [r for r in found.values() if any(step.name in EXPANSION for step in r.steps)]


def _seconds(r: Result, names: Sequence[str] = ()) -> float:
    """The time of the steps of these names, or of all."""
    return sum(s.time.median_s for s in r.steps if not names or s.name in names)


def _data(found: Sequence[Result]) -> tuple[Datum, ...]:
    return tuple(Datum.of(r.case, r.algorithm, r.config, s.time, s.name) for r in found for s in r.steps)


def shares(run: Run) -> Iterator[Finding]:
    """The share of the steps' time that the expansion takes, by layer, on each device that was timed."""
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
    """The rate of the expansion over that of a copy of its bytes, which no kernel can exceed."""
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
    """The time of the call against the sum of its steps."""
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
    """Implicit GEMM, which never writes the expanded matrix, against im2col."""
    yield rules.pair(readings(run, "conv2d"), "im2col", "implicit_gemm", "without-expansion")


def host(run: Run) -> Iterator[Finding]:
    """The expansion on the host against that on the GPU."""
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
