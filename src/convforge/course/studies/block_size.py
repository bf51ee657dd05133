"""Shape of a thread block: its effect on time and occupancy, the quality of the default, and the number of waves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.config_tables import shape_of
from convforge.benchmark.formats import natural
from convforge.benchmark.records import Result, Run
from convforge.benchmark.row import Row
from convforge.benchmark.suites import load, select
from convforge.course.studies.finding import Datum, Finding, undecided
from convforge.course.studies.readings import (
    Reading,
    compare,
    data_of,
    distinct,
    fastest,
    pairs,
    ranked,
    readings,
    spanned,
)  # fmt: skip
from convforge.course.studies.study import Part, study

METHODS = ("direct_naive", "direct_constant", "direct_shared", "direct_tiled", "direct_rows")
# Fewer block shapes, or fewer different values of occupancy, are not enough to show a relation.
FEWEST: dict[str, Any] = {"shapes": 6, "shares": 3}
SIGNIFICANT = 0.05
# Config keys that define the shape of a block, either of its threads or of the tile that it computes.
BLOCK_KEYS = (
    {"block_x", "block_y"},
    {"block"},
    {"block_m", "block_n"},
    {"strips", "lanes"},
    {"tile_p", "tile_q"},
    {"tile_m", "tile_n"},
)

Cases = dict[str, list[Reading]]


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """Return every config of the direct methods and of the matrix products."""
    if quick:
        images = select(load(["images"])[1], sizes=(64,), strides=(1,))
        return [Part(images[:1], METHODS, all_configs=True, keep=_whole)]
    images = select(load(["blocks"])[1], sizes=(1024, 2048) if facts.backend == "cuda" else (1024,))
    products = select(load(["gemm"])[1], sizes=(1024,))
    return [
        Part(images, METHODS, all_configs=True, share=0.6, keep=_whole),
        Part(products, ("gemm_*",), all_configs=True, share=0.4),
    ]


def _whole(row: Row) -> bool:
    """True if each thread computes one output or a tile, so no other partition is used."""
    return getattr(row.config, "partition", "pixel") == "pixel"


class Alike(NamedTuple):
    """Configs of one method that differ only in the shape of their block."""

    method: str
    name: str  # the method, and those config entries that not all configs of the method share
    cases: Cases  # case -> two or more readings; excludes the cases in `cut` if any other case has all configs
    cut: list[str]  # cases on which some config was skipped


def timed(run: Run) -> dict[str, Cases]:
    """Readings of our methods, as method -> case -> one reading per config; other partitions have their own study."""
    found: dict[str, Cases] = {}
    for r in (r for operation in ("conv2d", "gemm") for r in readings(run, operation, every_config=True)):
        if r.result.ours and not partitioned(r.result.config):
            found.setdefault(r.method, {}).setdefault(r.case, []).append(r)
    return {m: dict(sorted(cases.items(), key=lambda c: natural(c[0]))) for m, cases in found.items()}


def tried(run: Run) -> dict[str, Cases]:
    """Same as :func:`timed`, for methods and cases with several configs.

    If a method has cases with all configs, its cases with skipped configs are left out: their fastest may be missing.
    """
    skipped = {(r.algorithm, r.case) for r in _skipped(run)}
    found = {m: {case: rs for case, rs in cases.items() if len(rs) > 1} for m, cases in timed(run).items()}
    whole = {m: {c: rs for c, rs in cases.items() if (m, c) not in skipped} or cases for m, cases in found.items()}
    return {m: cases for m, cases in whole.items() if cases}


def alike(run: Run) -> list[Alike]:
    """Group the configs that differ only in block shape, where the run timed several shapes."""
    skipped = {(r.algorithm, r.case, split(r.config)[1]) for r in _skipped(run)}
    found = []
    for method, cases in timed(run).items():
        groups: dict[tuple[str, ...], Cases] = {}
        for r in (r for rs in cases.values() for r in rs):
            groups.setdefault(split(r.result.config)[1], {}).setdefault(r.case, []).append(r)
        shared = set.intersection(*map(set, groups))
        for rest, own in groups.items():
            several = {case: rs for case, rs in own.items() if len(rs) > 1 and all(map(shape, rs))}
            if several:
                said = ",".join(part for part in rest if part not in shared)
                cut = sorted((case for m, case, left in skipped if (m, left) == (method, rest)), key=natural)
                whole = {case: rs for case, rs in several.items() if case not in cut} or several
                found.append(Alike(method, f"{method}[{said}]" if said else method, whole, cut))
    return found


def shape(reading: Reading) -> str:
    """Block shape of a reading; empty if its config has none."""
    config = reading.result.config
    return str(shape_of(config) or ",".join(split(config)[0]))


def split(config: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the text of a config into the entries that define the block shape, and the rest.

    Examples
    --------
    >>> split("block_x=32,block_y=4,per_p=8")
    (('block_x=32', 'block_y=4'), ('per_p=8',))
    """
    parts = {part: part.partition("=")[0] for part in config.split(",")}
    keys = next((keys for keys in BLOCK_KEYS if keys & set(parts.values())), set[str]())
    block = tuple(part for part, name in parts.items() if name in keys)
    return block, tuple(part for part in parts if part not in block)


def partitioned(config: str) -> bool:
    """True if a thread computes something other than one output or a tile."""
    found = shape_of(config)
    return found is not None and bool(found.partition)


def _skipped(run: Run) -> list[Result]:
    return [r for r in run.results if r.status == "skipped" and not partitioned(r.config)]


def shapes(run: Run) -> Iterator[Finding]:
    """Effect of the block shape on time, and the shape that is fastest most often: for all methods, then for each."""
    groups = [(group, *ranked(group.cases)) for group in alike(run)]
    unsure = [f"{group.name} on {case}" for group, _, doubtful in groups for case in doubtful]
    leading = [found for _, leaders, _ in groups for found in leaders.values()]
    if not groups:
        several = any(len(set(map(shape, rs))) > 1 for cases in tried(run).values() for rs in cases.values())
        yield undecided("shapes", "shapes/apart" if several else "shapes/none")
    elif not leading:
        yield undecided("shapes", "shapes/unsure", unsure=unsure)
    else:
        best, times = Counter(shape(r) for found in leading for r in found).most_common(1)[0]
        most = {g.name: max(_ratio(g.cases[case]) for case in leaders) for g, leaders, _ in groups if leaders}
        even = all(_even(g.cases, leaders) for g, leaders, _ in groups)
        values = {"n": len(leading), "span": spanned(most), "shape": best, "k": times, "unsure": unsure}
        data = data_of(r for group, *_ in groups for found in group.cases.values() for r in found)
        yield Finding("shapes", "shapes/level" if even else "shapes/all", values, data, supported=not even)
    for group, leaders, doubtful in groups:
        yield _best_shape(group, leaders, doubtful)
        if group.cut and leaders:
            form = "left-out" if set(group.cut).isdisjoint(group.cases) else "cut"
            yield undecided("best-shape", f"shape/{form}", method=group.name, left=group.cut)


def _best_shape(group: Alike, leaders: Mapping[str, Sequence[Reading]], unsure: list[str]) -> Finding:
    """Effect of the shape in one group of configs, and whether one shape is the fastest on all cases."""
    if not leaders:
        return undecided("best-shape", "shape/unsure", method=group.name, unsure=unsure)
    top = max(leaders, key=lambda case: _ratio(group.cases[case]))
    best, worst = leaders[top][0], max(group.cases[top], key=lambda r: r.seconds)
    shared = set.intersection(*(set(map(shape, found)) for found in leaders.values()))
    each: dict[str, list[str]] = {}
    for case, found in leaders.items() if not shared else ():
        each.setdefault(shape(found[0]), []).append(case)
    every = [r for found in group.cases.values() for r in found]
    values = {"method": group.name, "n": len(leaders), "unsure": unsure, "shapes": len(set(map(shape, every))),
              "shared": sorted(shared), "each": each, "case": top, "ratio": _ratio(group.cases[top]),
              "best": shape(best), "best_s": best.seconds, "worst": shape(worst), "worst_s": worst.seconds}  # fmt: skip
    even = _even(group.cases, leaders)
    form = "level" if even else "changes" if not shared else "one" if len(leaders) == 1 else "same"
    return Finding("best-shape", f"shape/{form}", values, data_of(every), supported=not even)


def _ratio(found: Sequence[Reading]) -> float:
    """Time of the slowest reading divided by the time of the fastest."""
    return max(r.seconds for r in found) / fastest(found).seconds


def _even(cases: Cases, leaders: Mapping[str, Sequence[Reading]]) -> bool:
    return all(len(found) == len(cases[case]) for case, found in leaders.items())


def wide(run: Run) -> Iterator[Finding]:
    """Compare blocks at least one warp wide with narrower ones, in which a warp reads several rows at once."""
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
    """Columns of the thread block; 0 if the config has none."""
    found = shape_of(r.result.config)
    return found.first if found is not None and found.kind == "threads" else 0


def defaults(run: Run) -> Iterator[Finding]:
    """Number of methods with the default (first) config as the fastest, then each default against the fastest."""
    first = {(r.case, r.algorithm): r.config for r in reversed(run.results)}
    each = []
    for method, cases in tried(run).items():
        own = {
            case: [r for r in rs if r.result.config == first[case, r.result.algorithm]] for case, rs in cases.items()
        }
        compared = compare({case: (fastest(rs), own[case][0]) for case, rs in cases.items() if own[case]})
        behind = compared.split["faster"]
        values: dict[str, Any] = {"method": method, "n": len(compared.pairs), "k": len(behind),
                                  "unsure": compared.unsure}  # fmt: skip
        if behind:
            case = max(behind, key=lambda case: compared.gains[case])
            values |= {"ratio": compared.gains[case], "case": case, "best": compared.pairs[case][0].result.config,
                       "default": compared.pairs[case][1].result.config, "behind": behind}  # fmt: skip
        form = "behind" if behind else "best" if compared.pairs else "unsure" if compared.unsure else "untimed"
        each.append(Finding("default-config", f"default/{form}", values, compared.data, supported=bool(compared.pairs)))
    if known := [f for f in each if f.supported]:
        beaten = sorted((f for f in known if "ratio" in f.values), key=lambda f: -f.values["ratio"])
        costs = {f.values["method"]: f.values["ratio"] for f in beaten}
        unsure = [f"{f.values['method']} on {case}" for f in known for case in f.values["unsure"]]
        values = {"n": len(known), "k": len(known) - len(costs), "costs": costs, "unsure": unsure}
        form = "best" if not costs else "beaten" if len(costs) == len(known) else "some"
        yield Finding("defaults", f"defaults/{form}", values, tuple(d for f in known for d in f.data))
    yield from each


def occupancies(run: Run) -> Iterator[Finding]:
    """Relation of time and occupancy between blocks that differ only in shape: over all methods, then for each."""
    found = [(group, f) for group in alike(run) if (f := _related(group)) is not None]
    certain = [f for _, f in found if f.data]
    enough = {group.method for group, f in found if f.data}
    untold = distinct(group.method for group, _ in found if group.method not in enough)
    if found:
        related = {form: [f.values["method"] for f in certain if f.form.startswith(f"occupancy/{form}")]
                   for form in ("faster", "slower", "neither", "mixed")}  # fmt: skip
        values = {"related": related, "untold": untold, "k": len(related["faster"]), "n": len(certain)} | FEWEST
        form = "none" if not certain else "some" if untold else "all"
        yield Finding("occupancies", f"occupancies/{form}", values | {"level": SIGNIFICANT},
                      tuple(d for f in certain for d in f.data), len(certain) > len(related["neither"]))  # fmt: skip
    yield from (undecided("occupancy", "occupancy/too-few", method=method, **FEWEST) for method in untold)
    yield from certain


def _related(group: Alike) -> Finding | None:
    """Relation of time and occupancy of one group, by Kendall's tau on each case.

    Returns None if no occupancy is known, and a finding without figures if there are too few configs.
    """
    from scipy.stats import kendalltau

    where: dict[str, list[str]] = {"faster": [], "slower": [], "neither": []}
    taus, data, known_of = {}, list[Datum](), {}
    for case, found in group.cases.items():
        known = [(r, share) for r in found if (share := _occupancy(r)) is not None]
        known_of[case] = known
        shares = [share for _, share in known]
        if len(known) < FEWEST["shapes"] or len(set(shares)) < FEWEST["shares"]:
            continue
        tau = kendalltau(shares, [r.seconds for r, _ in known])
        where["neither" if tau.pvalue > SIGNIFICANT else "faster" if tau.statistic < 0 else "slower"].append(case)
        taus[case] = float(tau.statistic)
        for r, share in known:
            data += [r.datum(), Datum(r.case, r.method, r.result.config, "occupancy", share)]
    if not taus:
        return undecided("occupancy", "occupancy/too-few") if any(known_of.values()) else None
    case = max(taus, key=lambda c: abs(taus[c]))
    highest = max(share for _, share in known_of[case])
    best, share = min(known_of[case], key=lambda pair: pair[0].seconds)
    full = fastest(r for r, share in known_of[case] if share == highest)
    form = next((name for name, cases in where.items() if len(cases) == len(taus)), "mixed")
    values = {"method": group.name, "n": len(taus), "k": len(where["faster"]), "case": case, "tau": taus[case],
              "best": share, "highest": highest, "ratio": full.seconds / best.seconds, "level": SIGNIFICANT,
              "where": where if form == "mixed" else {}}  # fmt: skip
    top = "-top" if form != "mixed" and share >= highest else ""
    return Finding("occupancy", f"occupancy/{form}{top}", values, tuple(data), supported=form != "neither")


def _occupancy(r: Reading) -> float | None:
    """Occupancy of the first launch; these methods have only one."""
    return r.result.launches[0].get("occupancy") if r.result.launches else None


def waves(run: Run) -> Iterator[Finding]:
    """Waves of each method's fastest config: blocks of the launch divided by the blocks that all SMs hold at once."""
    facts = run.machine.get("facts", {})
    threads, cores = int(facts.get("threads") or 0), int(facts.get("cores") or 0)
    for method, cases in tried(run).items() if threads else ():
        # Case -> number of blocks in the launch, and number of blocks that one SM holds at once.
        grids, data = dict[str, tuple[int, int]](), list[Datum]()
        for case, rs in cases.items():
            best = fastest(rs)
            if share := _occupancy(best):
                launch = best.result.launches[0]
                grids[case] = prod(launch["grid"]), max(round(share * threads / prod(launch["block"])), 1)
                data.append(Datum(case, method, best.result.config, "waves", grids[case][0] / grids[case][1] / cores))
        if not grids:
            continue
        count = {case: blocks / room / cores for case, (blocks, room) in grids.items()}
        low, few = min(count, key=lambda c: count[c]), min(grids, key=lambda c: grids[c][0])
        form = "below" if grids[few][0] < cores else "part" if count[low] < 1 else "full"
        case = few if form == "below" else low
        values: dict[str, Any] = {"method": method, "least": count[low], "case": case, "cores": cores,
                                  "blocks": grids[case][0], "room": grids[case][1]}  # fmt: skip
        yield Finding("waves", f"waves/{form}", values, tuple(data))


STUDY = study("block-size", parts, (shapes, occupancies, defaults, wide, waves))
