"""The shape of a block: what it does to time and occupancy, whether the default is right, how full the card is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.config_tables import shape_of
from convforge.benchmark.records import Run
from convforge.benchmark.row import Row
from convforge.benchmark.suites import load, select
from convforge.course.studies import common, occupancy
from convforge.course.studies.finding import Datum, Finding
from convforge.course.studies.readings import Reading, decided, ranked
from convforge.course.studies.study import Part, Study
from convforge.course.studies.tried import alike, shape, tried
from convforge.timing.ranking import order

METHODS = ("direct_naive", "direct_constant", "direct_shared", "direct_tiled", "direct_rows")
PRODUCTS = ("gemm_*",)


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


def overview(run: Run) -> Iterator[Finding]:
    """All methods at a glance: by how much the shape matters, and which shape is the fastest most often."""
    groups = alike(run)
    if not groups:
        several = any(len(set(map(shape, rs))) > 1 for cases in tried(run).values() for rs in cases.values())
        yield Finding("shapes", "shapes/apart" if several else "shapes/none", {}, supported=False)
        return
    ratios, leads, even, n = dict[str, float](), Counter[str](), True, 0
    unsure: list[str] = []
    for group in groups:
        winners, doubtful = ranked(group.cases)
        unsure += [f"{group.name} on {case}" for case in doubtful]
        for case, leaders in winners.items():
            found = group.cases[case]
            ratio = _ratio(found)
            leads.update(map(shape, leaders))
            ratios[group.name] = max(ratio, ratios.get(group.name, ratio))
            even, n = even and len(leaders) == len(found), n + 1
    if not n:
        yield Finding("shapes", "shapes/unsure", {"unsure": unsure}, supported=False)
        return
    best, times = leads.most_common(1)[0]
    values = {"n": n, "span": common.spanned(ratios), "shape": best, "k": times, "unsure": unsure}
    rests = tuple(r.datum() for group in groups for found in group.cases.values() for r in found)
    yield Finding("shapes", "shapes/level" if even else "shapes/all", values, rests, supported=not even)


def _ratio(found: Sequence[Reading]) -> float:
    """The time of the slowest over that of the fastest."""
    return max(r.seconds for r in found) / min(r.seconds for r in found)


def shapes(run: Run) -> Iterator[Finding]:
    """Of configs that differ in the shape alone: by how much it matters, and whether one is the fastest throughout."""
    for group in alike(run):
        leaders, unsure = ranked(group.cases)
        if not leaders:
            values: dict[str, Any] = {"method": group.name, "unsure": unsure}
            yield Finding("best-shape", "shape/unsure", values, supported=False)
            continue
        top = max(leaders, key=lambda case: _ratio(group.cases[case]))
        worst = max(group.cases[top], key=lambda r: r.seconds)
        shared = set.intersection(*(set(map(shape, found)) for found in leaders.values()))
        values = {
            "method": group.name,
            "n": len(leaders),
            "unsure": unsure,
            "shapes": len({shape(r) for found in group.cases.values() for r in found}),
            "ratio": _ratio(group.cases[top]),
            "case": top,
            "best": shape(leaders[top][0]),
            "worst": shape(worst),
            "best_s": leaders[top][0].seconds,
            "worst_s": worst.seconds,
            "shared": sorted(shared),
            "each": _grouped({case: shape(found[0]) for case, found in leaders.items()}),
            "level": {case: list(map(shape, found)) for case, found in leaders.items()},
        }
        rests = tuple(r.datum() for found in group.cases.values() for r in found)
        even = all(len(found) == len(group.cases[case]) for case, found in leaders.items())
        form = "level" if even else "one" if shared and len(leaders) == 1 else "same" if shared else "changes"
        yield Finding("best-shape", f"shape/{form}", values, rests, supported=not even)
        if group.cut:
            form = "left-out" if set(group.cut).isdisjoint(group.cases) else "cut"
            yield Finding("best-shape", f"shape/{form}", {"method": group.name, "left": group.cut}, supported=False)


def _grouped(names: dict[str, str]) -> dict[str, list[str]]:
    """Name -> the cases that have it."""
    found: dict[str, list[str]] = {}
    for case, name in names.items():
        found.setdefault(name, []).append(case)
    return found


@dataclass(frozen=True, slots=True)
class Default:
    """A method's default config, the first, against the fastest.

    Attributes
    ----------
    method : str
    cases : int
        On how many it has a time that can be ranked.
    behind : dict
        Case on which another config is faster -> the default there, and the fastest.
    unsure : list of str
        Cases that are too noisy to tell; they do not count.
    rests : tuple of Datum
    """

    method: str
    cases: int
    behind: dict[str, tuple[Reading, Reading]]
    unsure: list[str]
    rests: tuple[Datum, ...]

    @property
    def ratios(self) -> dict[str, float]:
        """By how much it is behind, by case."""
        return {case: own.seconds / best.seconds for case, (own, best) in self.behind.items()}


def _defaults(run: Run) -> Iterator[Default]:
    first = {(r.case, r.algorithm): r.config for r in reversed(run.results)}
    for method, cases in tried(run).items():
        behind, rests, known = dict[str, tuple[Reading, Reading]](), list[Datum](), 0
        unsure: list[str] = []
        for case, found in cases.items():
            best = min(found, key=lambda r: r.seconds)
            own = next((r for r in found if r.result.config == first[case, r.result.algorithm]), None)
            if own is None:  # the default itself was skipped
                continue
            verdict = order(best.timing, own.timing)
            if verdict == "unsure":
                unsure.append(case)
                continue
            known += 1
            rests += [own.datum(), best.datum()]
            if verdict == "faster":
                behind[case] = (own, best)
        yield Default(method, known, behind, unsure, tuple(rests))


def defaults(run: Run) -> Iterator[Finding]:
    """All methods at a glance: of how many the default config is the fastest."""
    found = [d for d in _defaults(run) if d.cases]
    if not found:
        return
    costs = {d.method: max(d.ratios.values()) for d in found if d.behind}
    costs = dict(sorted(costs.items(), key=lambda pair: -pair[1]))
    unsure = [f"{d.method} on {case}" for d in found for case in d.unsure]
    values = {"n": len(found), "k": len(found) - len(costs), "costs": costs, "unsure": unsure}
    form = "best" if not costs else "beaten" if len(costs) == len(found) else "some"
    yield Finding("defaults", f"defaults/{form}", values, tuple(datum for d in found for datum in d.rests))


def default(run: Run) -> Iterator[Finding]:
    """Whether the default config is the fastest, and what another would bring."""
    for found in _defaults(run):
        values: dict[str, object] = {"method": found.method, "n": found.cases, "behind": list(found.behind)}
        values["unsure"] = found.unsure
        if not found.cases:
            form = "default/unsure" if found.unsure else "default/untimed"
            yield Finding("default-config", form, values, supported=False)
            continue
        if found.behind:
            case = max(found.ratios, key=lambda case: found.ratios[case])
            own, best = found.behind[case]
            values |= {
                "ratio": found.ratios[case],
                "case": case,
                "best": best.result.config,
                "default": own.result.config,
                "k": len(found.behind),
            }
        form = "behind" if found.behind else "best"
        yield Finding("default-config", f"default/{form}", values, found.rests)


def wide(run: Run) -> Iterator[Finding]:
    """Blocks at least a warp wide against narrower ones: a warp of a narrow block reads several rows at once."""
    judged = set[str]()
    for group in alike(run):
        pairs = {}
        for case, found in group.cases.items():
            broad, narrow = _by_width(found)
            if broad and narrow:
                pairs[case] = min(broad, key=lambda r: r.seconds), min(narrow, key=lambda r: r.seconds)
        if not pairs:
            continue
        judged.add(group.method)
        told, unsure = decided(pairs)
        if not told:
            yield Finding("width", "width/unsure", {"method": group.name, "unsure": unsure}, supported=False)
            continue
        verdicts = {case: order(a.timing, b.timing) for case, (a, b) in told.items()}
        ratios = {case: b.seconds / a.seconds for case, (a, b) in told.items()}
        rests = [r.datum() for ab in told.values() for r in ab]
        values: dict[str, Any] = {
            "method": group.name,
            "unsure": unsure,
            "n": len(ratios),
            "span": common.spanned(ratios),
            "inverse": common.spanned({case: 1 / r for case, r in ratios.items()}),
            "split": {name: [c for c, v in verdicts.items() if v == name] for name in ("faster", "slower", "level")},
        }
        form = next((f for f in ("faster", "slower", "level") if len(values["split"][f]) == len(ratios)), "mixed")
        yield Finding("width", f"width/{form}", values, tuple(rests), supported=form != "level")
    for method, cases in tried(run).items():
        if method not in judged and any(all(_by_width(found)) for found in cases.values()):
            yield Finding("width", "width/apart", {"method": method}, supported=False)


def _by_width(found: Sequence[Reading]) -> tuple[list[Reading], list[Reading]]:
    """Those whose blocks of threads are at least a warp wide, and narrower ones."""
    threads = [(own, r) for r in found if (own := shape_of(r.result.config)) and own.kind == "threads"]
    return [r for own, r in threads if own.first >= 32], [r for own, r in threads if own.first < 32]


ENGLISH = {
    "shape/one": "{method} on {case}: of {shapes:count shape} {best} is the fastest; {worst} takes {ratio:times} the "
    "time ({best_s:time}, {worst_s:time}).",
    "shape/same": "{method}: {shared:names} is the fastest shape, or level with it, on {n:each case}; the shape "
    "matters by up to {ratio:times} ({best} against {worst} on {case}: {best_s:time}, {worst_s:time}).",
    "shape/changes": "{method}: which of {shapes:count shape} is the fastest changes with the case ({each:groups}); "
    "the shape matters by up to {ratio:times} ({best} against {worst} on {case}: {best_s:time}, {worst_s:time}).",
    "shape/level": "{method}: no shape is faster than another on any of {n:count case}: all are level.",
    "shape/unsure": "{method}: which shape is the fastest cannot be told.",
    "shape/left-out": "{method}: {left:names} left out of account: some shapes were skipped there.",
    "shape/cut": "{method}: some shapes were skipped on {left:names}, so that another may be faster there.",
    "shapes/all": "Where blocks differ in their shape alone, the slowest takes {span:span} the time of the fastest; "
    "{shape} is the fastest, or level with it, in {k} of {n:count comparison}.",
    "shapes/level": "Where blocks differ in their shape alone, none is faster than another in any of "
    "{n:count comparison}: all are level.",
    "shapes/unsure": "What the shape of a block does cannot be told.",
    "shapes/apart": "What the shape of a block does cannot be said: configs of different shapes differ in other things "
    "too.",
    "shapes/none": "What the shape of a block does cannot be said: no method was timed in several.",
    "defaults/best": "The default config is the fastest, or level with it, for {n:each method}.",
    "defaults/some": "The default config is the fastest, or level with it, for {k} of {n:count method}; by how "
    "much another beats it at most: {costs:ratios}.",
    "defaults/beaten": "Another config beats the default for {n:each method}, at most by: {costs:ratios}.",
    "default/untimed": "{method}: whether the default config is well chosen cannot be said; it has no time.",
    "default/unsure": "{method}: whether the default config is well chosen cannot be told.",
    "default/best": "{method}: the default config is the fastest, or level with it, on {n:each case}.",
    "default/behind": "{method}: on {k} of {n:count case} another config beats the default, by up to {ratio:times} on "
    "{case} ({best} against {default}).",
    "width/faster": "{method}: the best block of 32 columns or more beats the best narrower one on "
    "{n:each case}, by {span:span}.",
    "width/slower": "{method}: the best block narrower than 32 columns beats the best wider one on "
    "{n:each case}, by {inverse:span}.",
    "width/level": "{method}: blocks of 32 columns or more and narrower ones are level on {n:each case}.",
    "width/unsure": "{method}: whether blocks of 32 columns or more beat narrower ones cannot be told.",
    "width/apart": "{method}: whether blocks of 32 columns or more beat narrower ones cannot be said: they differ in "
    "other things too.",
    "width/mixed": "{method}: blocks of 32 columns or more against narrower ones: {split:split}; the gain "
    "goes from {span:span}.",
    **occupancy.ENGLISH,
}

STUDY = Study(
    "block-size",
    "What does the shape of a block do to time and occupancy, and is the default well chosen?",
    parts,
    (overview, occupancy.overview, defaults, shapes, default, occupancy.rule, wide, occupancy.waves),
    ENGLISH,
    gpu_s=70.0,
    view="blocks",
    answered_by=("shapes", "occupancies", "defaults"),
    suites=("blocks",),
)
