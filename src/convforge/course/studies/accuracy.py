"""How exact each method is, by its arithmetic and the type of its elements, against the bound that it is held to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Result, Run
from convforge.benchmark.suites import Case
from convforge.course.studies.finding import Datum, Finding
from convforge.course.studies.readings import allowed, device_backend
from convforge.course.studies.study import Part, Study
from convforge.problem import Conv2dProblem, parse_problem

# Types that methods of float arithmetic are asked for.
TYPES = ("float64", "float32", "float16")
CHANNELS = (1, 16, 256)
# Errors within this factor of each other are of one size.
ALIKE = 2.0
# And within this factor the same.
SAME = 1.1


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """3x3 over few and many channels, so sums from 9 to 2304 terms; by type."""
    size, counts = (14, CHANNELS[:2]) if quick else (28, CHANNELS)
    types = TYPES[:2] if quick else TYPES
    cases = []
    for count in counts:
        for dtype in types if count == counts[-1] else ("float32",):
            problem = Conv2dProblem(n=1, c=count, h=size, w=size, k=8, r=3, s=3, padding=(1, 1, 1, 1), x_dtype=dtype)
            cases.append(Case(f"{dtype}_c{count}", problem))
    # Compiling every method takes longer than the small form may.
    return [Part(cases, ("direct_*", "im2col", "winograd*") if quick else ())]


def _checked(run: Run) -> list[Result]:
    """Results that were compared with the truth and passed."""
    backend = device_backend(run)
    found = [r for r in run.results if r.status == "ok" and r.backend == backend and r.operation == "conv2d"]
    return [r for r in found if r.error is not None and r.error.rms is not None]


def _rms(r: Result) -> float:
    assert r.error is not None
    assert r.error.rms is not None
    return r.error.rms


def _data(found: Sequence[Result], what: str = "rms") -> tuple[Datum, ...]:
    return tuple(Datum(r.case, r.algorithm, r.config, what, float(getattr(r.error, what))) for r in found)


def _type(r: Result) -> str:
    return parse_problem(r.problem).input.dtype


def bound(run: Run) -> Iterator[Finding]:
    """Whether every method stays within its elementwise bound, and how near the nearest comes."""
    found = [r for r in _checked(run) if r.error is not None and r.error.bound_ratio is not None]
    failed = [r for r in run.results if r.status == "failed" and r.operation == "conv2d"]
    if not found and not failed:
        yield Finding("within-bound", "bound/none", {}, supported=False)
        return
    values: dict[str, object] = {
        "n": len(found),
        "failed": sorted({r.algorithm for r in failed}),
        "k": len(failed),
        "cases": list(dict.fromkeys(r.case for r in failed)),
    }
    form = "failed"
    if found:
        ratios = [r.error.bound_ratio or 0.0 for r in found if r.error]
        # Methods that add in the same order have the same error, to the last bit.
        top = [r for r, ratio in zip(found, ratios, strict=True) if ratio == max(ratios)]
        methods, cases = (list(dict.fromkeys(names)) for names in ([r.algorithm for r in top], [r.case for r in top]))
        values |= {"ratio": max(ratios), "methods": methods, "near": cases, "tied": len(methods)}
        form = "failed" if failed else "held" if len(methods) == 1 else "tied"
    yield Finding("within-bound", f"bound/{form}", values, _data(found, "bound_ratio"))


def spread(run: Run) -> Iterator[Finding]:
    """How much the methods of strict arithmetic differ, by type."""
    strict = [r for r in _checked(run) if allowed(r, parse_problem(r.problem)) and _rms(r) > 0]
    for dtype in dict.fromkeys(map(_type, strict)):
        cases: dict[str, list[Result]] = {}
        for r in strict:
            if _type(r) == dtype:
                cases.setdefault(r.case, []).append(r)
        several = {case: rs for case, rs in cases.items() if len({r.algorithm for r in rs}) > 1}
        if not several:
            continue
        ratios = {case: max(map(_rms, rs)) / min(map(_rms, rs)) for case, rs in several.items()}
        case = max(ratios, key=lambda c: ratios[c])
        best, worst = min(several[case], key=_rms), max(several[case], key=_rms)
        values = {
            "dtype": dtype,
            "ratio": ratios[case],
            "case": case,
            "best": best.algorithm,
            "worst": worst.algorithm,
            "best_rms": _rms(best),
            "worst_rms": _rms(worst),
            "n": len(several),
            "alike": ALIKE,
        }
        form = "alike" if ratios[case] <= ALIKE else "differs"
        yield Finding("strict-methods", f"strict/{form}", values, _data([r for rs in several.values() for r in rs]))


def narrower(run: Run) -> Iterator[Finding]:
    """What each other arithmetic costs in error, against the worst strict method of the same case."""
    cases: dict[str, list[Result]] = {}
    for r in _checked(run):
        cases.setdefault(r.case, []).append(r)
    found: dict[str, list[tuple[float, Result, Result]]] = {}
    for rs in cases.values():
        strict = [r for r in rs if r.precision == "strict" and _rms(r) > 0]
        if strict:
            worst = max(strict, key=_rms)
            for r in rs:
                if r.precision != "strict":
                    found.setdefault(r.algorithm, []).append((_rms(r) / _rms(worst), r, worst))
    for algorithm, pairs in found.items():
        precision = pairs[0][1].precision
        method = algorithm if precision in algorithm else f"{algorithm} ({precision})"
        low, high = min(pairs, key=lambda p: p[0]), max(pairs, key=lambda p: p[0])
        values = {
            "method": method,
            "n": len(pairs),
            "precision": precision,
            "alike": ALIKE,
            "part": 1 / ALIKE,
            "span": {"least": low[0], "least_case": low[1].case, "most": high[0], "most_case": high[1].case},
        }
        form = "more" if low[0] > ALIKE else "less" if high[0] < 1 / ALIKE else "alike"
        form = "mixed" if form == "alike" and (low[0] < 1 / ALIKE or high[0] > ALIKE) else form
        yield Finding("other-arithmetic", f"narrower/{form}", values, _data([r for p in pairs for r in p[1:]]))


def types(run: Run) -> Iterator[Finding]:
    """How the error grows from type to type, by the largest error of the strict methods."""
    strict = [r for r in _checked(run) if r.precision == "strict" and _rms(r) > 0]
    worst: dict[str, Result] = {}
    for r in strict:
        if _type(r) not in worst or _rms(r) > _rms(worst[_type(r)]):
            worst[_type(r)] = r
    ranked = sorted((r for dtype, r in worst.items() if dtype in TYPES), key=_rms)
    if len(ranked) < 2:
        yield Finding("by-type", "types/too-few", {"n": len(ranked)}, supported=False)
        return
    values = {
        "types": [f"{_type(r)} {_rms(r):.1e}" for r in ranked],
        "least": _type(ranked[0]),
        "most": _type(ranked[-1]),
        "ratio": _rms(ranked[-1]) / _rms(ranked[0]),
    }
    yield Finding("by-type", "types/ranked", values, _data(ranked))


def length(run: Run) -> Iterator[Finding]:
    """Whether the error of the plainest method grows with the length of its sums."""
    found: dict[int, Result] = {}
    for r in _checked(run):
        p = parse_problem(r.problem)
        if r.algorithm == "direct_naive" and p.input.dtype == "float32" and _rms(r) > 0:
            found[p.taps] = r
    if len(found) < 2:
        yield Finding("sum-length", "length/too-few", {"n": len(found)}, supported=False)
        return
    (short, a), (long, b) = min(found.items(), key=lambda i: i[0]), max(found.items(), key=lambda i: i[0])
    ratio = _rms(b) / _rms(a)
    values = {
        "short": short,
        "long": long,
        "short_rms": _rms(a),
        "long_rms": _rms(b),
        "ratio": ratio,
        "root": (long / short) ** 0.5,
        "within": SAME - 1,
    }
    form = "same" if 1 / SAME <= ratio <= SAME else "grows" if ratio > 1 else "falls"
    yield Finding("sum-length", f"length/{form}", values, _data([a, b]), supported=form != "same")


ENGLISH = {
    "bound/held": "All of {n:count result} of this study stay within their bound; the nearest to it is {methods:names} "
    "on {near:names}, at {ratio:percent} of it.",
    "bound/tied": "All of {n:count result} of this study stay within their bound; the nearest to it are "
    "{tied:count method} with the same error ({methods:names}) on {near:names}, at {ratio:percent} of it.",
    "bound/failed": "{k} results do not pass the check and have no time: {failed:names}, on {cases:names}.",
    "bound/none": "Nothing was checked.",
    "strict/alike": "{dtype}: the strict methods are alike, within {alike:times}; their errors differ by "
    "{ratio:times} at most ({best} {best_rms:tiny}, {worst} {worst_rms:tiny} on {case}).",
    "strict/differs": "{dtype}: the strict methods differ by up to {ratio:times} in error, on {case}: {best} has "
    "{best_rms:tiny}, {worst} {worst_rms:tiny}.",
    "narrower/more": "{method} is less exact than the strict methods on {n:each case}, its error over {alike:times} "
    "that of the worst of them: {span:span}.",
    "narrower/less": "{method} is more exact than the strict methods on {n:each case}, its error below {part:percent} "
    "of that of the worst of them: {span:span}.",
    "narrower/alike": "{method} is as exact as the strict methods on {n:each case}, within {alike:times}: {span:span} "
    "the error of the worst of them.",
    "narrower/mixed": "{method} has {span:span} the error of the worst strict method, over {n:count case}.",
    "types/ranked": "The largest RMS error of the strict methods by type: {types:names}; {most} has {ratio:.3g} "
    "times the error of {least}.",
    "types/too-few": "How the error depends on the type cannot be said from {n:count type}.",
    "length/grows": "The error of direct_naive in float32 grows with the length of its sums: {short_rms:tiny} for "
    "{short} terms, {long_rms:tiny} for {long} ({ratio:times}; the root of the lengths' ratio is {root:times}).",
    "length/falls": "The error of direct_naive in float32 falls with the length of its sums: {short_rms:tiny} for "
    "{short} terms, {long_rms:tiny} for {long}.",
    "length/same": "The error of direct_naive in float32 does not move with the length of its sums, within "
    "{within:percent}: {short_rms:tiny} for {short} terms, {long_rms:tiny} for {long}.",
    "length/too-few": "How the error grows with the length of the sums cannot be said: direct_naive has fewer than two "
    "lengths.",
}

STUDY = Study(
    "accuracy",
    "How exact is each method, by arithmetic and type, and how near does it come to its bound?",
    parts,
    (bound, spread, narrower, types, length),
    ENGLISH,
    gpu_s=40.0,
    cpu_s=90.0,
    timed=False,
    answered_by=("other-arithmetic", "by-type", "within-bound"),
    suites=("images",),
)
