"""The stride: how much of the work it saves is saved in time, and whether the order of the methods changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Run
from convforge.benchmark.suites import load, select
from convforge.course.studies import common
from convforge.course.studies.finding import Datum, Finding
from convforge.course.studies.readings import Reading, Series, by_case, decided, ranked, readings, series
from convforge.course.studies.study import Part, Study
from convforge.timing.ranking import order

METHODS = ("direct_*", "im2col", "implicit_gemm", "cudnn", "torch_conv2d", "opencv_filter2d")


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """RGB pictures of a few sizes, by stride."""
    sizes = (64, 128) if quick else (256, 1024, 2048, 8192) if facts.backend == "cuda" else (128, 512, 2048)
    cases = select(load(["images"])[1], sizes=sizes)
    return [Part([case for case in cases if case.problem.k == 1], METHODS)]  # type: ignore[union-attr]


def _series(run: Run) -> list[Series]:
    return series(readings(run, "conv2d"), "stride")


def _largest(run: Run) -> list[Series]:
    """Of each workload the series of its largest picture."""
    found: dict[str, Series] = {}
    for one in _series(run):
        rest = {name: value for name, value in one.workload.items() if name != "pictures"}
        before = found.get(str(rest))
        if before is None or _pixels(one) > _pixels(before):
            found[str(rest)] = one
    return list(found.values())


def ahead(run: Run) -> Iterator[Finding]:
    """Who is ahead on how many cases, and who never."""
    yield from common.ahead(readings(run, "conv2d"))


def winners(run: Run) -> Iterator[Finding]:
    """Whether another stride changes who is fastest: by picture."""
    kept, changed, rests = list[dict[str, Any]](), list[dict[str, Any]](), list[Datum]()
    unsure: list[str] = []
    for one in _series(run):
        points = {s: [r for r in found if r.strict] for s, found in one.points.items()}
        points = {s: found for s, found in points.items() if len(found) > 1}
        if len(points) < 2:
            continue
        sets, doubtful = ranked(points)
        unsure += [f"{one.workload.get('pictures', '')} stride {place}".strip() for place in doubtful]
        if len(sets) < 2:
            continue
        common_methods = set.intersection(*({r.method for r in found} for found in sets.values()))
        says = {"workload": one.workload, "by_stride": {s: [r.method for r in f] for s, f in sets.items()}}
        (kept if common_methods else changed).append(says)
        rests += [r.datum() for found in sets.values() for r in found]
    values = {"n": len(kept) + len(changed), "kept": len(kept), "changed": len(changed), "series": [*changed, *kept]}
    values["unsure"] = unsure
    if not values["n"]:
        form = "undecided/fastest" if unsure else "by-stride/too-few"
        yield Finding("winner-by-stride", form, values, supported=False)
        return
    if changed:
        values["example"] = changed[-1]["workload"]
        values["who"] = changed[-1]["by_stride"]
    form = "by-stride/changes" if changed else "by-stride/same"
    yield Finding("winner-by-stride", form, values, tuple(rests))


def saves(run: Run) -> Iterator[Finding]:
    """What the fastest time falls by against the outputs, which fall by the stride's square, on the largest picture."""
    for one in _largest(run):
        points = {s: [r for r in found if r.strict] for s, found in one.points.items()}
        best = {s: min(found, key=lambda r: r.seconds) for s, found in points.items() if found}
        if 1 not in best or len(best) < 2:
            yield Finding("stride-saves", "saves/too-few", {"workload": one.workload}, supported=False)
            continue
        for stride, r in best.items():
            if stride != 1:
                yield _saves(one, stride, best[1], r)


def _saves(one: Series, stride: int, whole: Reading, strided: Reading) -> Finding:
    outputs = whole.result.flops / strided.result.flops
    nbytes = whole.result.least_bytes / strided.result.least_bytes
    gain = whole.seconds / strided.seconds
    values = {
        "workload": one.workload,
        "stride": stride,
        "outputs": outputs,
        "share": 1 / outputs,
        "bytes": nbytes,
        "gain": gain,
        "loss": 1 / gain,
        "whole": whole.method,
        "strided": strided.method,
        "whole_s": whole.seconds,
        "strided_s": strided.seconds,
    }
    verdict = order(strided.timing, whole.timing)
    if verdict == "faster":
        noise = 1 + whole.timing.spread + strided.timing.spread
        near = nbytes / noise <= gain <= nbytes * noise
        form = "in-step" if gain * noise >= outputs else "as-bytes" if near else "part" if gain > nbytes else "less"
    else:
        form = verdict
    told = verdict in ("faster", "slower")
    return Finding("stride-saves", f"saves/{form}", values, (whole.datum(), strided.datum()), told)


def wasted(run: Run) -> Iterator[Finding]:
    """Methods that a stride does not make faster on the largest picture, although most outputs are gone."""
    for one in _largest(run):
        idle, gaining, rests = list[tuple[str, float]](), list[tuple[str, float]](), list[Datum]()
        unsure: list[str] = []
        for method in one.methods:
            own = one.method(method)
            if 1 not in own or len(own) < 2:
                continue
            last = own[max(own)]
            gains, verdict = own[1].seconds / last.seconds, order(last.timing, own[1].timing)
            if verdict == "unsure":
                unsure.append(method)
                continue
            (gaining if verdict == "faster" else idle).append((method, gains))
            rests += [own[1].datum(), last.datum()]
        if not idle and not gaining:
            if unsure:
                values = {"stride": max(one.places), "workload": one.workload, "unsure": unsure}
                yield Finding("gain-by-method", "waste/unsure", values, supported=False)
            continue
        most = max(gaining, key=lambda pair: pair[1], default=("", 1.0))
        least = min(gaining, key=lambda pair: pair[1], default=("", 1.0))
        values = {
            "workload": one.workload,
            "idle": [m for m, _ in idle],
            "n": len(idle) + len(gaining),
            "stride": max(one.places),
            "most": most[1],
            "most_method": most[0],
            "least": least[1],
            "least_method": least[0],
            "unsure": unsure,
        }
        yield Finding("gain-by-method", "waste/some" if idle else "waste/none", values, tuple(rests))


def im2col(run: Run) -> Iterator[Finding]:
    """im2col against the best direct method, stride by stride."""
    found = readings(run, "conv2d")
    strides = sorted({r.problem.stride[0] for r in found})
    for stride in strides:
        at = [r for r in found if r.problem.stride[0] == stride and r.strict]
        pairs = {}
        for case, rs in by_case(at).items():
            direct = [r for r in rs if r.method.startswith("direct")]
            own = [r for r in rs if r.method == "im2col"]
            if direct and own:
                pairs[case] = (min(direct, key=lambda r: r.seconds), own[0])
        told, unsure = decided(pairs)
        both = list(told.values())
        if not both:
            if unsure:
                values: dict[str, Any] = {"stride": stride, "unsure": unsure}
                yield Finding("im2col-against-direct", "im2col/unsure", values, supported=False)
            continue
        verdicts = {b.case: order(b.timing, a.timing) for a, b in both}
        ratios = {b.case: a.seconds / b.seconds for a, b in both}
        won = [case for case, verdict in verdicts.items() if verdict == "faster"]
        level = [case for case, verdict in verdicts.items() if verdict == "level"]
        top, low = max(ratios, key=lambda c: ratios[c]), min(ratios, key=lambda c: ratios[c])
        values = {
            "stride": stride,
            "n": len(both),
            "won": won,
            "level": level,
            "most": ratios[top],
            "most_case": top,
            "behind": 1 / ratios[low],
            "behind_case": low,
            "unsure": unsure,
        }
        form = "all" if len(won) == len(both) else "some" if won else "level" if level else "none"
        rests = tuple(r.datum() for pair in both for r in pair)
        yield Finding("im2col-against-direct", f"im2col/{form}", values, rests)


def _pixels(one: Series) -> int:
    return int(one.every[0].problem.h * one.every[0].problem.w)


ENGLISH = {
    "by-stride/same": "The stride does not change who is fastest: on {n:each picture} one method is the fastest, "
    "or level with it, at every stride.",
    "by-stride/changes": "The stride changes who is fastest on {changed} of {n:count picture}; for instance "
    "({example:workload}): {who:by_stride}.",
    "by-stride/too-few": "Whether the stride changes who is fastest cannot be said: no picture was timed at two "
    "strides by two methods.",
    "saves/in-step": "Stride {stride} leaves {share:percent} of the outputs and is {gain:times} as fast "
    "({whole_s:time} to {strided_s:time}): within the spreads it saves what it leaves out ({workload:workload}).",
    "saves/as-bytes": "Stride {stride} leaves {share:percent} of the outputs but is only {gain:times} as fast "
    "({whole_s:time} to {strided_s:time}), within the spreads as much as the bytes fall that must be moved "
    "({bytes:times}): the picture must still be read ({workload:workload}).",
    "saves/part": "Stride {stride} leaves {share:percent} of the outputs and is {gain:times} as fast ({whole_s:time} "
    "to {strided_s:time}): less than the outputs fall, {outputs:times}, and more than the bytes to move, {bytes:times} "
    "({workload:workload}).",
    "saves/less": "Stride {stride} leaves {share:percent} of the outputs but is only {gain:times} as fast "
    "({whole_s:time} to {strided_s:time}), less than even the bytes to move fall ({bytes:times}): neither outputs nor "
    "bytes decide its time ({workload:workload}).",
    "saves/level": "Stride {stride} leaves {share:percent} of the outputs, but its time is level with that of stride "
    "1 ({whole_s:time}, {strided_s:time}; {workload:workload}).",
    "saves/unsure": "What stride {stride} saves cannot be told: {whole_s:time} at stride 1 and {strided_s:time} are "
    "too noisy to rank ({workload:workload}).",
    "saves/slower": "Stride {stride} leaves {share:percent} of the outputs and takes longer: {whole_s:time} becomes "
    "{strided_s:time} ({loss:times}; {workload:workload}).",
    "saves/too-few": "What a stride saves cannot be said, as strides 1 and above were not both timed "
    "({workload:workload}).",
    "waste/some": "Stride {stride} makes {idle:names} no faster than stride 1, though most outputs are gone: a kernel "
    "that computes what it throws away looks so, or one that waits for bytes ({workload:workload}).",
    "waste/none": "Stride {stride} makes {n:each method} faster than stride 1: {least_method} by {least:times}, the "
    "least, and {most_method} by {most:times}, the most ({workload:workload}).",
    "waste/unsure": "What stride {stride} does to each method cannot be told ({workload:workload}).",
    "im2col/unsure": "At stride {stride} whether im2col or the best direct method is faster cannot be told.",
    "im2col/all": "At stride {stride} im2col is ahead of the best direct method on {n:all case}, by up to "
    "{most:times} ({most_case}).",
    "im2col/some": "At stride {stride} im2col is ahead of the best direct method on {won:names}, of {n:count case}, by "
    "up to {most:times} ({most_case}); on {behind_case} it takes {behind:times} the time.",
    "im2col/level": "At stride {stride} im2col is level with the best direct method on {level:names}, of {n:count "
    "case}, and ahead on none; on {behind_case} it takes {behind:times} the time.",
    "im2col/none": "At stride {stride} im2col is behind the best direct method on {n:all case}; on "
    "{behind_case} it takes {behind:times} the time.",
}

STUDY = Study(
    "stride",
    "What does a stride save, and does it change which method is fastest?",
    parts,
    (ahead, winners, saves, wasted, im2col),
    ENGLISH,
    answered_by=("stride-saves", "winner-by-stride"),
    suites=("images",),
)
