"""The shape of a block: what it does to time and occupancy, whether the default is right, how full the card is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.bench.block_tables import shape_of
from convforge.bench.cells import natural
from convforge.bench.records import Run
from convforge.bench.row import Row
from convforge.bench.suites import load, select
from convforge.studies import common
from convforge.studies.finding import Datum, Finding
from convforge.studies.readings import Reading, fastest, order, readings
from convforge.studies.study import Part, Study

METHODS = ("direct_naive", "direct_constant", "direct_shared", "direct_tiled", "direct_rows")
PRODUCTS = ("gemm_*",)
OPERATIONS = ("conv2d", "gemm")
# Fewer shapes, or fewer values of occupancy, say nothing about a relation.
FEWEST_SHAPES, FEWEST_VALUES = 6, 3
SIGNIFICANT = 0.05


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """Every config of the ladder's kernels and of the products."""
    gpu = facts.backend == "cuda"
    if quick:
        pictures = select(load(["images"])[1], sizes=(64,), strides=(1,))
        return [Part(pictures[:1], METHODS, all_configs=True, keep=_whole)]
    pictures = select(load(["blocks"])[1], sizes=(1024, 2048) if gpu else (1024,))
    products = select(load(["gemm"])[1], sizes=(1024,))
    return [
        Part(pictures, METHODS, all_configs=True, share=0.6, keep=_whole),
        Part(products, PRODUCTS, all_configs=True, share=0.4),
    ]


def _whole(row: Row) -> bool:
    """Rows whose threads compute one output each, or a tile: not those of other partitions."""
    return getattr(row.config, "partition", "pixel") == "pixel"


def _tried(run: Run) -> dict[str, dict[str, list[Reading]]]:
    """Method -> case -> its readings, one a config, in the order of its configs; those with several alone.

    A case on which some config was skipped is left out where another has them all: its fastest would be that of others.
    """
    found: dict[str, dict[str, list[Reading]]] = {}
    for operation in OPERATIONS:
        for r in readings(run, operation, every_config=True, pick=lambda run, r: r.time):
            shape = shape_of(r.result.config)
            if r.result.ours and (shape is None or not shape.partition):  # partitions have a study of their own
                found.setdefault(r.method, {}).setdefault(r.case, []).append(r)
    several = {m: {case: rs for case, rs in cases.items() if len(_shapes(rs)) > 1} for m, cases in found.items()}
    cut = _cut(run)
    whole = {
        m: {case: rs for case, rs in cases.items() if (m, case) not in cut} or cases for m, cases in several.items()
    }
    return {m: dict(sorted(cases.items(), key=lambda c: natural(c[0]))) for m, cases in whole.items() if cases}


def _cut(run: Run) -> set[tuple[str, str]]:
    """Methods and cases of which some config was skipped, those of other partitions aside."""
    return {
        (r.algorithm, r.case)
        for r in run.results
        if r.status == "skipped" and ((shape := shape_of(r.config)) is None or not shape.partition)
    }


def _shape(reading: Reading) -> str:
    return str(shape_of(reading.result.config) or reading.result.config)


def _shapes(found: Sequence[Reading]) -> dict[str, Reading]:
    """Shape -> its fastest config."""
    shapes: dict[str, Reading] = {}
    for r in sorted(found, key=lambda r: r.seconds):
        shapes.setdefault(_shape(r), r)
    return shapes


def shapes(run: Run) -> Iterator[Finding]:
    """By how much the shape matters, and whether one is the fastest on every case."""
    tried = _tried(run)
    if not tried:
        yield Finding("best-shape", "shape/none", {}, supported=False)
    for method, cases in tried.items():
        each = {case: _shapes(rs) for case, rs in cases.items()}
        leaders = {case: fastest(found.values()) for case, found in each.items()}
        ratios = {c: max(r.seconds for r in found.values()) / leaders[c][0].seconds for c, found in each.items()}
        top = max(ratios, key=lambda case: ratios[case])
        worst = max(each[top].values(), key=lambda r: r.seconds)
        shared = set.intersection(*({_shape(r) for r in found} for found in leaders.values()))
        values = {
            "method": method,
            "n": len(cases),
            "shapes": len({s for found in each.values() for s in found}),
            "ratio": ratios[top],
            "case": top,
            "best": _shape(leaders[top][0]),
            "worst": _shape(worst),
            "best_s": leaders[top][0].seconds,
            "worst_s": worst.seconds,
            "shared": sorted(shared),
            "each": _grouped({case: _shape(found[0]) for case, found in leaders.items()}),
            "level": {case: [_shape(r) for r in found] for case, found in leaders.items()},
        }
        rests = tuple(r.datum() for found in each.values() for r in found.values())
        even = all(len(found) == len(each[case]) for case, found in leaders.items())
        form = "level" if even else "one" if shared and len(cases) == 1 else "same" if shared else "changes"
        yield Finding("best-shape", f"shape/{form}", values, rests, supported=not even)
        left = sorted({case for m, case in _cut(run) if m == method}, key=natural)
        if left:
            form = "left-out" if set(left).isdisjoint(cases) else "cut"
            yield Finding("best-shape", f"shape/{form}", {"method": method, "left": left}, supported=False)


def _grouped(names: dict[str, str]) -> dict[str, list[str]]:
    """Name -> the cases that have it."""
    found: dict[str, list[str]] = {}
    for case, name in names.items():
        found.setdefault(name, []).append(case)
    return found


def default(run: Run) -> Iterator[Finding]:
    """Whether the default config, the first of a method's, is the fastest, and what another would bring."""
    first = {(r.case, r.algorithm): r.config for r in reversed(run.results)}
    for method, cases in _tried(run).items():
        behind, rests, known = {}, list[Datum](), 0
        for case, found in cases.items():
            best = min(found, key=lambda r: r.seconds)
            own = next((r for r in found if r.result.config == first[case, r.result.algorithm]), None)
            if own is None:  # the default itself was skipped
                continue
            known += 1
            rests += [own.datum(), best.datum()]
            if order(best.timing, own.timing) == "faster":
                behind[case] = (own.seconds / best.seconds, best, own)
        values: dict[str, object] = {"method": method, "n": known, "behind": list(behind)}
        if not known:
            yield Finding("default-config", "default/untimed", values, supported=False)
            continue
        if behind:
            case = max(behind, key=lambda case: behind[case][0])
            ratio, best, own = behind[case]
            values |= {
                "ratio": ratio,
                "case": case,
                "best": best.result.config,
                "default": own.result.config,
                "k": len(behind),
            }
        yield Finding("default-config", "default/behind" if behind else "default/best", values, tuple(rests))


def occupancy(run: Run) -> Iterator[Finding]:
    """Whether configs with more occupancy are faster: Kendall's tau over the configs of a case."""
    from scipy.stats import kendalltau

    for method, cases in _tried(run).items():
        said: dict[str, list[str]] = {"faster": [], "slower": [], "neither": []}
        taus, rests, most = {}, [], {}
        for case, found in cases.items():
            known = [(r, share) for r in found if (share := _occupancy(r)) is not None]
            if len(known) < FEWEST_SHAPES or len({share for _, share in known}) < FEWEST_VALUES:
                continue
            tau = kendalltau([share for _, share in known], [r.seconds for r, _ in known])
            name = "neither" if tau.pvalue > SIGNIFICANT else "faster" if tau.statistic < 0 else "slower"
            said[name].append(case)
            taus[case] = float(tau.statistic)
            full = min((pair for pair in known if pair[1] == max(share for _, share in known)), key=_seconds_of)
            best = min(known, key=_seconds_of)
            most[case] = (best[1], full[1], full[0].seconds / best[0].seconds)
            rests += [d for r, share in known for d in (r.datum(), _share_datum(r, share))]
        if not taus:
            if any(_occupancy(r) is not None for found in cases.values() for r in found):
                values = {"method": method, "shapes": FEWEST_SHAPES, "shares": FEWEST_VALUES}
                yield Finding("occupancy", "occupancy/too-few", values, supported=False)
            continue
        case = max(taus, key=lambda c: abs(taus[c]))
        values = {
            "method": method,
            "n": len(taus),
            "case": case,
            "tau": taus[case],
            "best": most[case][0],
            "highest": most[case][1],
            "ratio": most[case][2],
            "split": said,
            "level": SIGNIFICANT,
        }
        form = next((name for name, cs in said.items() if len(cs) == len(taus)), "mixed")
        top = "-top" if form != "mixed" and most[case][0] >= most[case][1] else ""
        yield Finding("occupancy", f"occupancy/{form}{top}", values, tuple(rests), supported=form != "neither")


def _seconds_of(pair: tuple[Reading, float]) -> float:
    return pair[0].seconds


def _occupancy(r: Reading) -> float | None:
    """Of the first launch, which is the only one of these methods."""
    return r.result.launches[0].get("occupancy") if r.result.launches else None


def _share_datum(r: Reading, share: float) -> Datum:
    return Datum(r.case, r.method, r.result.config, "occupancy", share)


def wide(run: Run) -> Iterator[Finding]:
    """Blocks at least a warp wide against narrower ones: a warp of a narrow block reads several rows at once."""
    for method, cases in _tried(run).items():
        verdicts, ratios, rests = {}, {}, []
        for case, found in cases.items():
            threads = [(shape, r) for r in found if (shape := shape_of(r.result.config)) and shape.kind == "threads"]
            broad = [r for shape, r in threads if shape.first >= 32]
            narrow = [r for shape, r in threads if shape.first < 32]
            if broad and narrow:
                a, b = min(broad, key=lambda r: r.seconds), min(narrow, key=lambda r: r.seconds)
                verdicts[case], ratios[case] = order(a.timing, b.timing), b.seconds / a.seconds
                rests += [a.datum(), b.datum()]
        if not verdicts:
            continue
        least, most = min(ratios, key=lambda c: ratios[c]), max(ratios, key=lambda c: ratios[c])
        values: dict[str, Any] = {
            "method": method,
            "n": len(ratios),
            "least": ratios[least],
            "most": ratios[most],
            "least_case": least,
            "most_case": most,
            "span": common.spanned(ratios),
            "inverse": common.spanned({case: 1 / r for case, r in ratios.items()}),
            "split": {name: [c for c, v in verdicts.items() if v == name] for name in ("faster", "slower", "level")},
        }
        form = next((f for f in ("faster", "slower", "level") if len(values["split"][f]) == len(ratios)), "mixed")
        yield Finding("width", f"width/{form}", values, tuple(rests), supported=form != "level")


def waves(run: Run) -> Iterator[Finding]:
    """Whether the grid of each method's fastest shape fills the card: blocks over those that it holds at once."""
    facts = run.machine.get("facts", {})
    if not facts.get("threads"):
        return
    for method, cases in _tried(run).items():
        found, rests = {}, []
        for case, rs in cases.items():
            best = min(rs, key=lambda r: r.seconds)
            count = waves_of(best, int(facts["threads"]), int(facts["cores"]))
            if count is not None:
                found[case] = count
                rests.append(Datum(case, method, best.result.config, "waves", count))
        if not found:
            continue
        low, high = min(found, key=lambda c: found[c]), max(found, key=lambda c: found[c])
        values = {
            "method": method,
            "n": len(found),
            "least": found[low],
            "least_case": low,
            "most": found[high],
            "most_case": high,
            "cores": facts["cores"],
            "below": [c for c, w in found.items() if w < 1],
        }
        yield Finding("waves", "waves/below" if values["below"] else "waves/full", values, tuple(rests))


def waves_of(r: Reading, threads: int, cores: int) -> float | None:
    """How often the card is filled by a launch's grid; None where its occupancy is not known."""
    share = _occupancy(r)
    if not share:
        return None
    launch, blocks, block = r.result.launches[0], 1, 1
    for side in launch["grid"]:
        blocks *= side
    for side in launch["block"]:
        block *= side
    return blocks / (max(round(share * threads / block), 1) * cores)


ENGLISH = {
    "shape/one": "{method} on {case}: of {shapes:count shape} {best} is the fastest; {worst} takes {ratio:times} the "
    "time ({best_s:time}, {worst_s:time}).",
    "shape/same": "{method}: {shared:names} is the fastest shape, or level with it, on {n:each case}; the shape "
    "matters by up to {ratio:times} ({best} against {worst} on {case}: {best_s:time}, {worst_s:time}).",
    "shape/changes": "{method}: which of {shapes:count shape} is the fastest changes with the case ({each:groups}); "
    "the shape matters by up to {ratio:times} ({best} against {worst} on {case}: {best_s:time}, {worst_s:time}).",
    "shape/level": "{method}: no shape is faster than another on any of {n:count case}: all are closer than their "
    "spreads.",
    "shape/left-out": "{method}: {left:names} left out of account: some shapes were skipped there.",
    "shape/cut": "{method}: some shapes were skipped on {left:names}, so that another may be faster there.",
    "shape/none": "What the shape of a block does cannot be said: no method was timed in several.",
    "default/untimed": "{method}: whether the default config is well chosen cannot be said; it has no time.",
    "default/best": "{method}: the default config is the fastest, or level with it, on {n:each case}.",
    "default/behind": "{method}: on {k} of {n:count case} another config beats the default, by up to {ratio:times} on "
    "{case} ({best} against {default}).",
    "occupancy/faster": "{method}: configs with more occupancy are faster on {n:each case} (Kendall's tau of "
    "occupancy and time {tau:.2f} on {case}, level {level:percent}); the fastest there has {best:percent}, the "
    "highest is {highest:percent} and takes {ratio:times} the time.",
    "occupancy/slower": "{method}: configs with more occupancy are slower on {n:each case} (Kendall's tau of "
    "occupancy and time {tau:.2f} on {case}, level {level:percent}); the fastest there has {best:percent}, the "
    "highest is {highest:percent} and takes {ratio:times} the time.",
    "occupancy/neither": "{method}: on {n:each case} time does not follow occupancy by more than chance (Kendall's "
    "tau {tau:.2f} on {case}, level {level:percent}); the fastest there has {best:percent}, the highest is "
    "{highest:percent} and takes {ratio:times} the time.",
    "occupancy/faster-top": "{method}: configs with more occupancy are faster on {n:each case} (Kendall's tau of "
    "occupancy and time {tau:.2f} on {case}, level {level:percent}); the fastest there has the highest, "
    "{highest:percent}.",
    "occupancy/slower-top": "{method}: configs with more occupancy are slower on {n:each case} (Kendall's tau of "
    "occupancy and time {tau:.2f} on {case}, level {level:percent}); the fastest there has the highest, "
    "{highest:percent}.",
    "occupancy/neither-top": "{method}: on {n:each case} time does not follow occupancy by more than chance (Kendall's "
    "tau {tau:.2f} on {case}, level {level:percent}); yet the fastest there has the highest, {highest:percent}.",
    "occupancy/mixed": "{method}: whether time follows occupancy changes with the case: configs with more of it are "
    "{split:split} (Kendall's tau, level {level:percent}).",
    "occupancy/too-few": "{method}: whether time follows occupancy cannot be said: no case has {shapes} configs with "
    "{shares} values of it.",
    "width/faster": "{method}: the best block of 32 columns or more beats the best narrower one on "
    "{n:each case}, by {span:span}.",
    "width/slower": "{method}: the best block narrower than 32 columns beats the best wider one on "
    "{n:each case}, by {inverse:span}.",
    "width/level": "{method}: blocks of 32 columns or more and narrower ones are level on {n:each case}.",
    "width/mixed": "{method}: blocks of 32 columns or more against narrower ones: {split:split}; the gain "
    "goes from {span:span}.",
    "waves/full": "{method}: the grid of the fastest shape fills all {cores} multiprocessors {least:.1f} times or "
    "more ({least_case} the least).",
    "waves/below": "{method}: the grid of the fastest shape does not fill the {cores} multiprocessors once on "
    "{below:names} ({least:.2f} of a wave on {least_case}).",
}

STUDY = Study(
    "block-size",
    "What does the shape of a block do to time and occupancy, and is the default well chosen?",
    parts,
    (shapes, default, occupancy, wide, waves),
    ENGLISH,
    gpu_s=70.0,
    view="blocks",
    answered_by=("best-shape", "occupancy", "default-config"),
    suites=("blocks",),
)
