"""Rounding errors of each method, by arithmetic class and element type, compared with their allowed bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Result, Run
from convforge.benchmark.suites import Case
from convforge.course.studies.finding import Datum, Finding, undecided
from convforge.course.studies.readings import allowed, by_case, device_backend, distinct, spanned
from convforge.course.studies.study import Part, padded, study
from convforge.problem import parse_problem

# Element types on which the methods of float arithmetic are measured.
TYPES = ("float64", "float32", "float16")
CHANNELS = (1, 16, 256)
# Errors within this factor of each other count as similar.
ALIKE = 2.0
# Errors within this factor of each other count as equal.
SAME = 1.1


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """Return cases of 3x3 filters by channels and by element type; their sums have 9 to 2304 terms."""
    size, counts = (14, CHANNELS[:2]) if quick else (28, CHANNELS)
    types = TYPES[:2] if quick else TYPES
    kinds = [("float32", c) for c in counts[:-1]] + [(dtype, counts[-1]) for dtype in types]
    cases = [Case(f"{dtype}_c{c}", padded(size, c, 8, x_dtype=dtype)) for dtype, c in kinds]
    # The quick form limits the methods, because compiling all of them takes too long.
    return [Part(cases, ("direct_*", "im2col", "winograd*") if quick else ())]


def _checked(run: Run) -> list[Result]:
    """Results on the run's device that passed the check against the float64 truth and have an RMS error."""
    backend = device_backend(run)
    found = [r for r in run.results if r.status == "ok" and r.backend == backend and r.operation == "conv2d"]
    return [r for r in found if r.error is not None and r.error.rms is not None]


def _rms(r: Result) -> float:
    return float(r.error.rms)  # type: ignore[union-attr, arg-type]


def _data(found: Iterable[Result], what: str = "rms") -> tuple[Datum, ...]:
    return tuple(Datum(r.case, r.algorithm, r.config, what, float(getattr(r.error, what))) for r in found)


def _type(r: Result) -> str:
    return parse_problem(r.problem).input.dtype


def bound(run: Run) -> Iterator[Finding]:
    """Compare each error with its elementwise bound, and name the method closest to its bound."""
    data = _data((r for r in _checked(run) if r.error and r.error.bound_ratio is not None), "bound_ratio")
    values: dict[str, Any]
    if failed := [r for r in run.results if r.status == "failed" and r.operation == "conv2d"]:
        values = {"k": len(failed), "failed": sorted({r.algorithm for r in failed}),
                  "cases": distinct(r.case for r in failed)}  # fmt: skip
        yield Finding("within-bound", "bound/failed", values, data)
    elif data:
        ratio = max(datum.value for datum in data)
        # Methods that add in the same order have bitwise identical errors.
        top = [datum for datum in data if datum.value == ratio]
        methods, near = distinct(datum.method for datum in top), distinct(datum.case for datum in top)
        values = {"n": len(data), "ratio": ratio, "methods": methods, "near": near}
        yield Finding("within-bound", "bound/held" if len(methods) == 1 else "bound/tied", values, data)
    else:
        yield undecided("within-bound", "bound/none")


def spread(run: Run) -> Iterator[Finding]:
    """Compare the errors of the methods of strict arithmetic, for each element type."""
    strict = [r for r in _checked(run) if allowed(r, parse_problem(r.problem)) and _rms(r) > 0]
    for dtype in distinct(map(_type, strict)):
        cases = by_case(r for r in strict if _type(r) == dtype)
        several = {case: sorted(rs, key=_rms) for case, rs in cases.items() if len({r.algorithm for r in rs}) > 1}
        if not several:
            continue
        ratios = {case: _rms(rs[-1]) / _rms(rs[0]) for case, rs in several.items()}
        case = max(ratios, key=lambda c: ratios[c])
        # The first of the methods with the largest error.
        best, worst = several[case][0], max(cases[case], key=_rms)
        values = {"dtype": dtype, "ratio": ratios[case], "case": case, "best": best.algorithm, "best_rms": _rms(best),
                  "worst": worst.algorithm, "worst_rms": _rms(worst), "alike": ALIKE}  # fmt: skip
        form = "alike" if ratios[case] <= ALIKE else "differs"
        yield Finding("strict-methods", f"strict/{form}", values, _data(r for case in several for r in cases[case]))


def narrower(run: Run) -> Iterator[Finding]:
    """Compare each method of other arithmetic with the worst strict method of the same case."""
    found: dict[str, list[tuple[Result, Result]]] = {}
    for rs in by_case(_checked(run)).values():
        strict = [r for r in rs if r.precision == "strict" and _rms(r) > 0]
        for r in rs if strict else ():
            if r.precision != "strict":
                found.setdefault(r.algorithm, []).append((r, max(strict, key=_rms)))
    for algorithm, both in found.items():
        precision = both[0][0].precision
        span = spanned({r.case: _rms(r) / _rms(worst) for r, worst in both})
        low, high = span["least"], span["most"]
        form = "more" if low > ALIKE else "less" if high < 1 / ALIKE else "alike"
        form = "mixed" if form == "alike" and (low < 1 / ALIKE or high > ALIKE) else form
        values = {"method": algorithm if precision in algorithm else f"{algorithm} ({precision})", "n": len(both),
                  "alike": ALIKE, "span": span}  # fmt: skip
        yield Finding("other-arithmetic", f"narrower/{form}", values, _data(r for ab in both for r in ab))


def types(run: Run) -> Iterator[Finding]:
    """Compare element types by the largest error of the strict methods."""
    strict = [r for r in _checked(run) if r.precision == "strict" and _rms(r) > 0 and _type(r) in TYPES]
    worst: dict[str, Result] = {}
    for r in sorted(strict, key=_rms, reverse=True):
        worst.setdefault(_type(r), r)
    ordered = sorted(worst.values(), key=_rms)
    if len(ordered) < 2:
        yield undecided("by-type", "types/too-few", n=len(ordered))
        return
    values = {"types": [f"{_type(r)} {_rms(r):.1e}" for r in ordered], "least": _type(ordered[0]),
              "most": _type(ordered[-1]), "ratio": _rms(ordered[-1]) / _rms(ordered[0])}  # fmt: skip
    yield Finding("by-type", "types/ranked", values, _data(ordered))


def length(run: Run) -> Iterator[Finding]:
    """Growth of the error of direct_naive with the number of terms in its sums."""
    naive = [r for r in _checked(run) if r.algorithm == "direct_naive" and _type(r) == "float32" and _rms(r) > 0]
    found = {parse_problem(r.problem).taps: r for r in naive}
    if len(found) < 2:
        yield undecided("sum-length", "length/too-few", n=len(found))
        return
    short, long = min(found), max(found)
    a, b = found[short], found[long]
    ratio = _rms(b) / _rms(a)
    values = {"short": short, "long": long, "short_rms": _rms(a), "long_rms": _rms(b), "ratio": ratio,
              "root": (long / short) ** 0.5, "within": SAME - 1}  # fmt: skip
    form = "same" if 1 / SAME <= ratio <= SAME else "grows" if ratio > 1 else "falls"
    yield Finding("sum-length", f"length/{form}", values, _data([a, b]), supported=form != "same")


STUDY = study("accuracy", parts, (bound, spread, narrower, types, length))
