"""Suites: tables (CSV) of the benchmark's cases. A suite is given by name, by path, or as one problem's text form.

A suite has the columns name and source, then either `problem` (a text form) or the sizes of a convolution:
n,c,h,w,k,r,s,stride_h,stride_w,pad_h,pad_w,dil,groups. Optional columns: dtype, layout, precision, weights ("normal",
"gaussian" or "shared") and heavy (1: runs only with --heavy).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from convforge.backends.sources import PACKAGE, on_disk
from convforge.benchmark.formats import nearest
from convforge.problem import DTYPES, Conv2dProblem, GemmProblem, Problem, parse_problem

WEIGHTS = ("normal", "gaussian", "shared")
SIZE_COLUMNS = ("n", "c", "h", "w", "k", "r", "s", "stride_h", "stride_w", "pad_h", "pad_w", "dil", "groups")
FURTHER_COLUMNS = ("dtype", "layout", "precision", "weights", "heavy")


@dataclass(frozen=True, slots=True)
class Case:
    """A case: one row of a suite."""

    name: str  # unique in its suite
    problem: Problem
    source: str = ""  # where the sizes are from
    # "normal": random. "gaussian": rank one, as blurs are. "shared": one random filter with sum one for all channels,
    # as in image filters and in libraries that accept only one.
    weights: str = "normal"
    heavy: bool = False  # runs only with --heavy


def suite_folder() -> Path:
    """Folder of the named suites: in an installation next to this file, in a checkout ``benchmarks/``."""
    try:
        return on_disk(PACKAGE / "benchmark" / "suites")
    except OSError:
        return PACKAGE.parents[1] / "benchmarks"


def suite_names() -> list[str]:
    """Names of the suites that come with convforge."""
    return sorted(path.stem for path in suite_folder().glob("*.csv"))


def load(targets: Sequence[str]) -> tuple[str, list[Case]]:
    """Read suites and problems; return their names joined by "+" ("problems" for problems alone), and the cases.

    A target is a suite's name, the path of a CSV, or a problem's text form. Any other target, or a row with an error,
    is a ValueError that names file, line and rule.
    """
    if not targets:
        raise ValueError(f"name a suite ({', '.join(suite_names())}), a path of a CSV, or a problem")
    names: dict[str, None] = {}
    cases: dict[str, Case] = {}
    for target in targets:
        name, found = _load_one(target)
        names[name] = None
        for case in found:
            if case.name in cases and cases[case.name] != case:
                raise ValueError(f"two cases are called {case.name!r}; names must differ")
            cases[case.name] = case
    return "+".join(names), list(cases.values())


def select(
    cases: Iterable[Case], *, sizes: Sequence[int] = (), strides: Sequence[int] = (), heavy: bool = False
) -> list[Case]:
    """The cases of given sizes (height or width of an image, M of a matrix product) and strides.

    Heavy cases need `heavy`. ``ValueError`` if no case is left.
    """
    every = list(cases)
    kept = [case for case in every if (heavy or not case.heavy) and fits(case.problem, sizes, strides)]
    if not kept:
        known_sizes = sorted({size for case in every for size in sizes_of(case.problem)})
        known_strides = sorted({stride for case in every for stride in case.problem.stride})
        raise ValueError(
            f"no case has sizes {_listed(sizes)} and strides {_listed(strides)}; there are sizes "
            f"{_listed(known_sizes)} and strides {_listed(known_strides)}"
            + ("" if heavy else "; heavy cases run with --heavy")
        )
    return kept


def fits(problem: Problem, sizes: Iterable[int], strides: Iterable[int]) -> bool:
    """True if one of the problem's sizes and one of its strides are among those given; an empty list allows all."""
    pairs = ((set(sizes), sizes_of(problem)), (set(strides), problem.stride))
    return all(not wanted or not wanted.isdisjoint(own) for wanted, own in pairs)


def _load_one(target: str) -> tuple[str, list[Case]]:
    if target in suite_names():
        return target, read_suite(suite_folder() / f"{target}.csv")
    if target.endswith(".csv") or Path(target).is_file():
        return Path(target).stem, read_suite(Path(target))
    try:
        problem = parse_problem(target)
    except ValueError as fault:
        if "is not a problem" not in str(fault):
            raise
        known, hint = ", ".join(suite_names()), nearest(target, suite_names())
        raise ValueError(f"{target!r} is no suite ({known}), no CSV file and no problem's text form{hint}") from None
    return "problems", [Case(str(problem), problem)]


def read_suite(path: Path) -> list[Case]:
    """Read the cases of a CSV file; ``ValueError`` names the file and the line of an error."""
    try:
        # "utf-8-sig" removes the byte order mark that spreadsheets write before the first column's name.
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text of UTF-8; a suite is a CSV file") from None
    reader = csv.DictReader(text.splitlines(keepends=True))
    _check_columns(path, set(reader.fieldnames or ()))
    cases: dict[str, Case] = {}
    for row in reader:
        try:
            if None in row:
                raise ValueError("more cells than there are columns")
            case = _case({column: cell or "" for column, cell in row.items()})
            if case.name in cases:
                raise ValueError(f"a second case is called {case.name!r}")
        except ValueError as fault:
            raise ValueError(f"{path}, line {reader.line_num}: {fault}") from None
        cases[case.name] = case
    if not cases:
        raise ValueError(f"{path} has no case")
    return list(cases.values())


def _check_columns(path: Path, found: set[str]) -> None:
    needed = {"name", "source", *(["problem"] if "problem" in found else SIZE_COLUMNS)}
    if missing := needed - found:
        raise ValueError(
            f"{path} lacks the columns {', '.join(sorted(missing))}; a suite has cells parted by commas, of the "
            f"columns name, source and problem, or name, source, {', '.join(SIZE_COLUMNS)}"
        )
    if unknown := found - needed - set(FURTHER_COLUMNS):
        raise ValueError(f"{path} has unknown columns {', '.join(sorted(unknown))}")


def _case(row: Mapping[str, str]) -> Case:
    problem = parse_problem(row["problem"]) if row.get("problem") else _convolution(row)
    weights, heavy = row.get("weights") or "normal", row.get("heavy") or "0"
    if not row["name"]:
        raise ValueError("a case needs a name")
    if weights not in WEIGHTS:
        raise ValueError(f"weights={weights!r} is unknown; choose one of {', '.join(WEIGHTS)}")
    if weights != "normal" and not isinstance(problem, Conv2dProblem):
        raise ValueError(f"weights={weights!r} goes with convolutions alone")
    if heavy not in ("0", "1"):
        raise ValueError(f"heavy={heavy!r} must be 0 or 1")
    return Case(row["name"], problem, row["source"], weights, heavy == "1")


def _convolution(row: Mapping[str, str]) -> Conv2dProblem:
    if row.get("problem") == "":
        raise ValueError("problem is missing")
    for column in SIZE_COLUMNS:
        if not row[column].strip().lstrip("+-").isdigit():
            raise ValueError(f"{column}={row[column]!r} must be a whole number")
    size = {column: int(row[column]) for column in SIZE_COLUMNS}
    text = "n{n}c{c}h{h}w{w}_k{k}r{r}s{s}_st{stride_h}x{stride_w}_p{pad_h}x{pad_w}_d{dil}_g{groups}".format_map(size)
    dtype = row.get("dtype") or "f32"
    if any(part not in DTYPES for part in dtype.split("-")):
        raise ValueError(f"dtype={dtype!r} is unknown; choose of {', '.join(DTYPES)}")
    problem = parse_problem(f"{text}_{dtype}_{(row.get('layout') or 'nchw').lower()}")
    assert isinstance(problem, Conv2dProblem)
    return replace(problem, precision=row.get("precision") or "strict")


def sizes_of(problem: Problem) -> tuple[int, ...]:
    """The sizes by which a case is selected: height and width of images, rows of a matrix product."""
    return problem.sides[:1] if isinstance(problem, GemmProblem) else problem.sides


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) or "of any kind"
