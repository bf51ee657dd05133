"""Where im2col's time goes: the expansion, the product, and what is left of the call; on the GPU and on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Result, Run
from convforge.benchmark.suites import Case, load
from convforge.course.studies import common
from convforge.course.studies.finding import Datum, Finding
from convforge.course.studies.readings import device_backend, readings
from convforge.course.studies.study import Part, Study
from convforge.problem import Conv2dProblem

# From this share of a copy's rate on, the expansion runs at the speed of memory.
NEAR = 0.7
# A call that takes what its steps take differs from their sum by no more than this and the spread.
MARGIN = 0.05
# As the steps are called on a GPU and on the CPU.
EXPANSION = ("expansion", "im2col_expand")


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """ResNet's layers; implicit GEMM beside, which expands nothing; on a GPU the same on its host."""
    if quick:
        return [Part([Case("layer_14", _layer(14, 16))], ("im2col", "implicit_gemm"), steps=True)]
    batch1 = [case for case in load(["layers-b1"])[1] if case.name.startswith("resnet50") and "3x3" in case.name]
    if facts.backend != "cuda":
        return [Part(batch1, ("im2col", "implicit_gemm"), steps=True)]
    host = [replace(case, name=f"{case.name}_host") for case in batch1]
    return [
        Part(host, ("im2col",), host=True, steps=True, share=0.3),
        Part([*batch1, *load(["layers-b32"])[1]], ("im2col", "implicit_gemm"), steps=True, share=0.7),
    ]


def _layer(size: int, channels: int) -> Conv2dProblem:
    return Conv2dProblem(n=1, c=channels, h=size, w=size, k=channels, r=3, s=3, padding=(1, 1, 1, 1))


def _expanded(run: Run, backend: str) -> list[Result]:
    """Results of im2col whose steps were timed, one a case."""
    found = {r.case: r for r in run.results if r.steps and r.algorithm == "im2col" and r.backend == backend}
    return [r for r in found.values() if any(step.name in EXPANSION for step in r.steps)]


def _share(r: Result) -> float:
    """What the expansion takes of all steps' time."""
    return sum(s.time.median_s for s in r.steps if s.name in EXPANSION) / sum(s.time.median_s for s in r.steps)


def _data(found: Sequence[Result]) -> tuple[Datum, ...]:
    return tuple(Datum.of(r.case, r.algorithm, r.config, s.time, s.name) for r in found for s in r.steps)


def shares(run: Run) -> Iterator[Finding]:
    """What part of the steps' time the expansion takes, by layer, on each device that was timed."""
    device = device_backend(run)
    for backend in dict.fromkeys((device, "cpu")):
        found = _expanded(run, backend)
        where = "host" if backend != device else "gpu" if backend == "cuda" else "cpu"
        if not found:
            yield Finding("expansion-share", f"expansion/none-{where}", {}, supported=False)
            continue
        each = {r.case: _share(r) for r in found}
        values: dict[str, Any] = {
            "n": len(each),
            "span": common.spanned(each),
            "above": [c for c, share in each.items() if share > 0.5],
        }
        few = len(values["above"])
        form = "most" if few == len(each) else "mixed" if few else "less"
        yield Finding("expansion-share", f"expansion/{form}-{where}", values, _data(found))


def copying(run: Run) -> Iterator[Finding]:
    """How near the expansion comes to a copy of its bytes: below that a better kernel would help, at it none can."""
    best = run.best_ceilings
    found = [(r, s) for r in _expanded(run, device_backend(run)) for s in r.steps if s.name in EXPANSION]
    rates = {r.case: s.bytes_per_s / best.copy_bytes_per_s for r, s in found if best and s.bytes_per_s and s.time.cold}
    hot = [r.case for r, s in found if not s.time.cold]
    if not rates:
        yield Finding("expansion-against-copy", "copying/unknown", {"hot": hot}, supported=False)
        return
    low, high = min(rates, key=lambda c: rates[c]), max(rates, key=lambda c: rates[c])
    values = {"n": len(rates), "span": common.spanned(rates), "hot": hot, "near": NEAR}
    form = "near" if rates[low] >= NEAR else "mixed" if rates[high] >= NEAR else "far"
    yield Finding("expansion-against-copy", f"copying/{form}", values, _data([r for r, _ in found if r.case in rates]))


def rest(run: Run) -> Iterator[Finding]:
    """What the call takes beyond its steps one by one, or saves against them."""
    found = _expanded(run, device_backend(run))
    extra = {}
    for r in found:
        call = r.prepared_time or r.time
        if call is not None:
            extra[r.case] = call.median_s / sum(s.time.median_s for s in r.steps)
    if not extra:
        return
    noise = max(s.time.spread for r in found for s in r.steps) + MARGIN
    longer = [case for case, share in extra.items() if share > 1 + noise]
    shorter = [case for case, share in extra.items() if share < 1 - noise]
    values = {"n": len(extra), "span": common.spanned(extra), "within": noise, "beyond": [*longer, *shorter]}
    form = "more" if len(longer) == len(extra) else "less" if len(shorter) == len(extra) else "mixed"
    form = form if values["beyond"] else "sum"
    yield Finding("beyond-steps", f"rest/{form}", values, _data(found))


def implicit(run: Run) -> Iterator[Finding]:
    """Implicit GEMM, which never writes the expanded matrix, against im2col."""
    yield from common.pair(readings(run, "conv2d"), "im2col", "implicit_gemm", "without-expansion")


def host(run: Run) -> Iterator[Finding]:
    """The expansion on the host against that on the GPU."""
    if device_backend(run) != "cuda":
        return
    gpu = {r.problem: r for r in _expanded(run, "cuda")}
    both = [(r, gpu[r.problem]) for r in _expanded(run, "cpu") if r.problem in gpu]
    if not both:
        yield Finding("host-expansion", "host/none", {}, supported=False)
        return
    ratios = {}
    for cpu, own in both:
        times = [sum(s.time.median_s for s in r.steps if s.name in EXPANSION) for r in (cpu, own)]
        ratios[own.case] = times[0] / times[1]
    values = {
        "n": len(ratios),
        "span": common.spanned(ratios),
        "gain": common.spanned({case: 1 / ratio for case, ratio in ratios.items()}),
    }
    form = "host/slower" if min(ratios.values()) > 1 else "host/faster" if max(ratios.values()) < 1 else "host/mixed"
    yield Finding("host-expansion", form, values, _data([r for ab in both for r in ab]))


_PLACES = {"gpu": "On the GPU", "cpu": "On the CPU", "host": "On the GPU's host"}
ENGLISH = {
    "copying/near": "The expansion runs at the speed of memory, {near:percent} of a copy or more: its bytes move at "
    "{span:shares} of what a copy moves, so little is left to gain but by not expanding.",
    "copying/far": "The expansion does not reach the speed of memory, {near:percent} of a copy: its bytes move at "
    "{span:shares} of what a copy moves.",
    "copying/mixed": "The expansion moves its bytes at {span:shares} of what a copy moves.",
    "copying/unknown": "How near the expansion comes to a copy cannot be said: its bytes are not known, or its data "
    "stays in the cache.",
    "rest/sum": "The call takes what its steps take one by one, within {within:percent}: {span:shares} of their sum.",
    "rest/more": "The call takes longer than its steps one by one, by over {within:percent}: {span:shares} of their "
    "sum.",
    "rest/less": "The call takes less than its steps one by one, by over {within:percent}: {span:shares} of their sum.",
    "rest/mixed": "The call takes {span:shares} of the sum of its steps one by one: by over {within:percent} more or "
    "less on {beyond:names}.",
    "host/slower": "The expansion on the host takes {span:span} the time of that on the GPU, transfer not counted.",
    "host/faster": "The expansion on the host is faster than that on the GPU, by {gain:span}, transfer not counted.",
    "host/mixed": "The expansion on the host takes {span:span} the time of that on the GPU, transfer not counted.",
    "host/none": "How the expansion on the host compares cannot be said: no layer was timed on both.",
}
for _where, _said in _PLACES.items():
    ENGLISH |= {
        f"expansion/most-{_where}": _said
        + " the expansion takes most of im2col's time on {n:each layer}: {span:shares} of its steps.",
        f"expansion/less-{_where}": _said
        + " the expansion takes {span:shares} of the time of im2col's steps, less than half on {n:each layer}.",
        f"expansion/mixed-{_where}": _said
        + " the expansion takes more than half of im2col's time on {above:names}, of "
        "{n:count layer}: {span:shares} of its steps.",
        f"expansion/none-{_where}": _said
        + " the steps of im2col were not timed: what the expansion takes cannot be said.",
    }

STUDY = Study(
    "breakdown",
    "Where does the time of im2col go, what does its expansion cost, and what does it cost on the CPU?",
    parts,
    (shares, copying, rest, implicit, host),
    ENGLISH,
    gpu_s=70.0,
    view="steps",
    answered_by=("expansion-share", "without-expansion", "host-expansion"),
    suites=("layers-b32",),
)
