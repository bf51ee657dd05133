"""The shape of a block: its effect on time and occupancy, the quality of the default, and how full the card is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.config_tables import shape_of
from convforge.benchmark.records import Run
from convforge.benchmark.row import Row
from convforge.benchmark.suites import load, select
from convforge.course.studies.finding import Datum, Finding, undecided
from convforge.course.studies.readings import (
    Comparison,
    Reading,
    compare,
    data_of,
    distinct,
    fastest,
    pairs,
    ranked,
    slowest,
    spanned,
)
from convforge.course.studies.study import Part, Study
from convforge.course.studies.tried import Alike, Cases, alike, shape, tried

METHODS = ("direct_naive", "direct_constant", "direct_shared", "direct_tiled", "direct_rows")
PRODUCTS = ("gemm_*",)
# Fewer shapes, or fewer values of occupancy, say nothing about a relation.
FEWEST: dict[str, Any] = {"shapes": 6, "shares": 3}
SIGNIFICANT = 0.05


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """Every config of the ladder's kernels and of the products."""
    if quick:
        images = select(load(["images"])[1], sizes=(64,), strides=(1,))
        return [Part(images[:1], METHODS, all_configs=True, keep=_whole)]
    images = select(load(["blocks"])[1], sizes=(1024, 2048) if facts.backend == "cuda" else (1024,))
    products = select(load(["gemm"])[1], sizes=(1024,))
    return [
        Part(images, METHODS, all_configs=True, share=0.6, keep=_whole),
        Part(products, PRODUCTS, all_configs=True, share=0.4),
    ]


def _whole(row: Row) -> bool:
    """Rows whose threads compute one output each, or a tile: not those of other partitions."""
    return getattr(row.config, "partition", "pixel") == "pixel"


# The shape.


def overview(run: Run) -> Iterator[Finding]:
    """All methods: by how much the shape matters, and which shape is the fastest most often."""
    groups = alike(run)
    if not groups:
        several = any(len(set(map(shape, rs))) > 1 for cases in tried(run).values() for rs in cases.values())
        yield undecided("shapes", "shapes/apart" if several else "shapes/none")
        return
    ratios, leads, even, n = dict[str, float](), Counter[str](), True, 0
    unsure: list[str] = []
    for group in groups:
        winners, doubtful = ranked(group.cases)
        unsure += [f"{group.name} on {case}" for case in doubtful]
        for case, leaders in winners.items():
            found = group.cases[case]
            leads.update(map(shape, leaders))
            ratios[group.name] = max(_ratio(found), ratios.get(group.name, 0.0))
            even, n = even and len(leaders) == len(found), n + 1
    if not n:
        yield undecided("shapes", "shapes/unsure", unsure=unsure)
        return
    best, times = leads.most_common(1)[0]
    values = {"n": n, "span": spanned(ratios), "shape": best, "k": times, "unsure": unsure}
    data = data_of(r for group in groups for found in group.cases.values() for r in found)
    yield Finding("shapes", "shapes/level" if even else "shapes/all", values, data, supported=not even)


def _ratio(found: Sequence[Reading]) -> float:
    """The time of the slowest over that of the fastest."""
    return slowest(found).seconds / fastest(found).seconds


def shapes(run: Run) -> Iterator[Finding]:
    """Of configs that differ in the shape alone: by how much it matters, and whether one is the fastest throughout."""
    for group in alike(run):
        leaders, unsure = ranked(group.cases)
        if not leaders:
            yield undecided("best-shape", "shape/unsure", method=group.name, unsure=unsure)
            continue
        top = max(leaders, key=lambda case: _ratio(group.cases[case]))
        best, worst = leaders[top][0], slowest(group.cases[top])
        shared = set.intersection(*(set(map(shape, found)) for found in leaders.values()))
        each: dict[str, list[str]] = {}
        for case, found in leaders.items():
            each.setdefault(shape(found[0]), []).append(case)
        values = {
            "method": group.name,
            "n": len(leaders),
            "unsure": unsure,
            "shapes": len({shape(r) for found in group.cases.values() for r in found}),
            "shared": sorted(shared),
            "each": each if not shared else {},
        }
        values |= {"case": top, "ratio": worst.seconds / fastest(group.cases[top]).seconds, "best": shape(best),
                   "best_s": best.seconds, "worst": shape(worst), "worst_s": worst.seconds}  # fmt: skip
        even = all(len(found) == len(group.cases[case]) for case, found in leaders.items())
        form = "level" if even else "changes" if not shared else "one" if len(leaders) == 1 else "same"
        data = data_of(r for found in group.cases.values() for r in found)
        yield Finding("best-shape", f"shape/{form}", values, data, supported=not even)
        if group.cut:
            form = "left-out" if set(group.cut).isdisjoint(group.cases) else "cut"
            yield undecided("best-shape", f"shape/{form}", method=group.name, left=group.cut)


def wide(run: Run) -> Iterator[Finding]:
    """Blocks at least a warp wide against narrower ones: a warp of a narrow block reads several rows at once."""
    judged = set[str]()
    for group in alike(run):
        if both := _by_width(group.cases):
            judged.add(group.method)
            yield compare(both).finding("width", "width", {"method": group.name})
    for method, cases in tried(run).items():
        if method not in judged and _by_width(cases):
            yield undecided("width", "width/apart", method=method)


def _by_width(cases: Cases) -> dict[str, tuple[Reading, Reading]]:
    return pairs(cases, lambda r: _columns(r) >= 32, lambda r: 0 < _columns(r) < 32)


def _columns(r: Reading) -> int:
    """Columns of the block of threads; 0 if the config has none."""
    found = shape_of(r.result.config)
    return found.first if found is not None and found.kind == "threads" else 0


# The default.


def _defaults(run: Run) -> Iterator[tuple[str, Comparison[str]]]:
    """Of each method the fastest config against the first, where that one was not skipped."""
    first = {(r.case, r.algorithm): r.config for r in reversed(run.results)}
    for method, cases in tried(run).items():
        both = {}
        for case, found in cases.items():
            own = next((r for r in found if r.result.config == first[case, r.result.algorithm]), None)
            if own is not None:
                both[case] = (fastest(found), own)
        yield method, compare(both)


def defaults(run: Run) -> Iterator[Finding]:
    """All methods: for how many the default config is the fastest."""
    found = {method: told for method, told in _defaults(run) if told.pairs}
    if not found:
        return
    costs = {m: max(told.gains[c] for c in told.split["faster"]) for m, told in found.items() if told.split["faster"]}
    costs = dict(sorted(costs.items(), key=lambda pair: -pair[1]))
    unsure = [f"{method} on {case}" for method, told in found.items() for case in told.unsure]
    values = {"n": len(found), "k": len(found) - len(costs), "costs": costs, "unsure": unsure}
    form = "best" if not costs else "beaten" if len(costs) == len(found) else "some"
    yield Finding("defaults", f"defaults/{form}", values, tuple(d for told in found.values() for d in told.data))


def default(run: Run) -> Iterator[Finding]:
    """The default config of each method against the fastest."""
    for method, told in _defaults(run):
        behind = told.split["faster"]
        values: dict[str, Any] = {"method": method, "n": len(told.pairs), "k": len(behind), "unsure": told.unsure}
        if not told.pairs:
            yield undecided("default-config", "default/unsure" if told.unsure else "default/untimed", **values)
            continue
        if behind:
            case = max(behind, key=lambda case: told.gains[case])
            best, own = told.pairs[case]
            values |= {"ratio": told.gains[case], "case": case, "best": best.result.config,
                       "default": own.result.config, "behind": behind}  # fmt: skip
        yield Finding("default-config", "default/behind" if behind else "default/best", values, told.data)


# Occupancy.


@dataclass(frozen=True, slots=True)
class Related:
    """The relation of time and occupancy in a group of configs, by Kendall's tau on each case.

    `split` has the cases that are "faster", "slower" or "neither" with more occupancy. `most` has for each case the
    occupancy of the fastest config, the highest occupancy, and the time there over the fastest's.
    """

    group: Alike
    split: dict[str, list[str]]
    taus: dict[str, float]
    most: dict[str, tuple[float, float, float]]
    data: tuple[Datum, ...]

    @property
    def form(self) -> str:
        """One of the split's, "mixed", or "unknown" where there are too few configs."""
        if not self.taus:
            return "unknown"
        return next((name for name, cases in self.split.items() if len(cases) == len(self.taus)), "mixed")


def _related(run: Run) -> Iterator[Related]:
    """The relation in each group whose occupancy is known."""
    from scipy.stats import kendalltau

    for group in alike(run):
        split: dict[str, list[str]] = {"faster": [], "slower": [], "neither": []}
        taus, data, most, seen = {}, list[Datum](), {}, False
        for case, found in group.cases.items():
            known = [(r, share) for r in found if (share := _occupancy(r)) is not None]
            seen = seen or bool(known)
            shares = [share for _, share in known]
            if len(known) < FEWEST["shapes"] or len(set(shares)) < FEWEST["shares"]:
                continue
            tau = kendalltau(shares, [r.seconds for r, _ in known])
            name = "neither" if tau.pvalue > SIGNIFICANT else "faster" if tau.statistic < 0 else "slower"
            split[name].append(case)
            taus[case] = float(tau.statistic)
            best, share = min(known, key=lambda pair: pair[0].seconds)
            full = fastest(r for r, share in known if share == max(shares))
            most[case] = (share, max(shares), full.seconds / best.seconds)
            for r, share in known:
                data += [r.datum(), Datum(r.case, r.method, r.result.config, "occupancy", share)]
        if seen:
            yield Related(group, split, taus, most, tuple(data))


def _occupancy(r: Reading) -> float | None:
    """Of the first launch, which is the only one of these methods."""
    return r.result.launches[0].get("occupancy") if r.result.launches else None


def _untold(found: Sequence[Related]) -> list[str]:
    """Methods of which no group has enough configs."""
    told = {one.group.method for one in found if one.taus}
    return distinct(one.group.method for one in found if one.group.method not in told)


def occupancies(run: Run) -> Iterator[Finding]:
    """All methods: faster, slower or neither with more occupancy."""
    found = list(_related(run))
    if not found:
        return
    related = {form: [one.group.name for one in found if one.form == form]
               for form in ("faster", "slower", "neither", "mixed")}  # fmt: skip
    untold = _untold(found)
    values: dict[str, Any] = {"related": related, "untold": untold, "level": SIGNIFICANT, **FEWEST}
    values |= {"k": len(related["faster"]), "n": sum(map(len, related.values()))}
    form = "none" if not values["n"] else "some" if untold else "all"
    supported = values["n"] > len(related["neither"])
    data = tuple(datum for one in found for datum in one.data)
    yield Finding("occupancies", f"occupancies/{form}", values, data, supported)


def occupancy(run: Run) -> Iterator[Finding]:
    """The relation of time and occupancy, by method, where blocks differ in shape alone."""
    every = list(_related(run))
    for method in _untold(every):
        yield undecided("occupancy", "occupancy/too-few", method=method, **FEWEST)
    for found in every:
        if not found.taus:
            continue
        case = max(found.taus, key=lambda c: abs(found.taus[c]))
        best, highest, ratio = found.most[case]
        top = found.form != "mixed" and best >= highest
        values = {
            "method": found.group.name,
            "n": len(found.taus),
            "k": len(found.split["faster"]),
            "case": case,
            "tau": found.taus[case],
            "best": best,
            "highest": highest,
            "ratio": ratio,
            "where": found.split if found.form == "mixed" else {},
            "level": SIGNIFICANT,
        }
        form = f"occupancy/{found.form}{'-top' if top else ''}"
        yield Finding("occupancy", form, values, found.data, supported=found.form != "neither")


def waves(run: Run) -> Iterator[Finding]:
    """The waves of each method's fastest config: blocks over those that the card holds at once."""
    facts = run.machine.get("facts", {})
    if not facts.get("threads"):
        return
    cores = int(facts["cores"])
    for method, cases in tried(run).items():
        grids, data = dict[str, tuple[int, int]](), list[Datum]()
        for case, rs in cases.items():
            best = fastest(rs)
            if (grid := _grid(best, int(facts["threads"]))) is not None:
                grids[case] = grid
                data.append(Datum(case, method, best.result.config, "waves", grid[0] / grid[1] / cores))
        if not grids:
            continue
        count = {case: blocks / room / cores for case, (blocks, room) in grids.items()}
        low, few = min(count, key=lambda c: count[c]), min(grids, key=lambda c: grids[c][0])
        form = "below" if grids[few][0] < cores else "part" if count[low] < 1 else "full"
        case = few if form == "below" else low
        values: dict[str, Any] = {"method": method, "least": count[low], "case": case, "cores": cores,
                                  "blocks": grids[case][0], "room": grids[case][1]}  # fmt: skip
        yield Finding("waves", f"waves/{form}", values, tuple(data))


def _grid(r: Reading, threads: int) -> tuple[int, int] | None:
    """Blocks of a launch, and how many an SM holds at once; None where its occupancy is not known."""
    share = _occupancy(r)
    if not share:
        return None
    launch = r.result.launches[0]
    return prod(launch["grid"]), max(round(share * threads / prod(launch["block"])), 1)


STUDY = Study(
    "block-size",
    "What does the shape of a block do to time and occupancy, and is the default well chosen?",
    parts,
    (overview, occupancies, defaults, shapes, default, occupancy, wide, waves),
    gpu_s=70.0,
    view="blocks",
    answered_by=("shapes", "occupancies", "defaults"),
    suites=("blocks",),
)
