"""What the pages of kernels say that can be made from the sources and the stored results, as Markdown."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "convforge"
PAGES = ROOT / "docs" / "kernels"

# For which problem defaults are given, by operation.
TYPICAL = {
    "conv2d": "n1c3h2048w2048_k1r3s3_st1_p1_f32_nchw",
    "gemm": "m4096n4096k4096_f32",
    "max_pool2d": "max_n32c64h112w112_r3s3_st2_p1_f32",
    "relu": "relu1048576",
}
# What differs from TYPICAL, by method or operation: CPU methods are at home on smaller problems.
CPU_TYPICAL = {
    "conv2d": "n1c64h56w56_k64r3s3_st1_p1_f32_nchw",
    "gemm": "m512n512k512_f32",
    "gemm_1x1": "n1c64h56w56_k64r1s1_st1_p0_f32_nchw",
    "depthwise": "n1c64h56w56_k64r3s3_st1_p1_g64_f32_nchw",
}
# Asked of every method, so that its page says what it refuses; a problem that no method of an operation refuses says
# nothing.
PROBES = {
    "conv2d": (
        "n1c3h64w64_k1r3s3_st1_p1_f32_nchw", "n1c3h65w65_k1r3s3_st1_p1_f32_nchw", "n1c64h56w56_k64r3s3_st1_p1_f32_nchw",
        "n1c8h64w64_k8r3s3_st2_p1_g8_f32_nchw", "n1c8h64w64_k8r3s3_st1_p1_g8_f32_nhwc",
        "n1c3h64w64_k3r63s63_st1_p31_f32_nchw", "n1c64h64w64_k64r31s31_st1_p15_f32_nchw",
        "n1c512h14w14_k512r3s3_st1_p1_f32_nhwc", "n1c1h64w64_k1r201s201_st1_p100_f32_nchw",
        "n1c3h64w64_k3r3s3_st1_p1_u8-i8-u8-i32_nchw", "n1c3h64w64_k3r3s3_st1_p1_f64_nchw",
        "n1c3h64w64_k1r3s3_st1_p1_d2_f32_nchw", "n1c64h56w56_k64r3s3_st1_p1_f16_nhwc",
        "n1c64h56w56_k64r3s3_st1_p1_f16_nchw", "n1c3h64w64_k64r7s7_st2_p3_f16_nchw",
        "n1c64h64w64_k3r3s3_st1_p1_f16_nhwc", "n1c64h56w56_k64r3s3_st1_p1_f8e4m3-f8e4m3-f16-f32_nhwc",
        "n1c64h56w56_k64r3s3_st1_p1_g64_u8-i8-u8-i32_nhwc",
    ),
    "gemm": ("m512n512k512_f32", "m512n512k512_f64", "m3n5k7_f32", "m512n512k512_f16"),
    "max_pool2d": ("max_n1c64h56w56_r3s3_st2_p1_f32", "max_n1c64h56w56_r3s3_st2_p1_u8"),
    "relu": ("relu4096_f32", "relu4096_f16"),
}  # fmt: skip
# Rows and methods of a page's table of results, at most.
MOST_CASES, MOST_METHODS = 6, 4


def on_gpu() -> list[Any]:
    """Every method of ours whose kernels are CUDA C++, in the order of the ladder."""
    from convforge.algorithms import ON_DEVICE

    return [a for a in ON_DEVICE if a.backend == "cuda"]


def on_cpu() -> dict[str, list[Any]]:
    """Folder below algorithms -> its methods of the CPU, in the order of the ladder."""
    from convforge.algorithms import OURS

    found: dict[str, list[Any]] = {}
    for a in OURS:
        found.setdefault(folder_of(a), []).append(a)
    return found


def folder_of(algorithm: Any) -> str:
    """The folder below algorithms in which a method stands."""
    return str(type(algorithm).__module__).split(".")[2]


def page_names() -> list[str]:
    """The pages below docs/kernels that there must be, in the order of the ladder."""
    return [*(a.name for a in on_gpu()), *(f"cpu/{folder}" for folder in on_cpu())]


@cache
def stored_runs() -> tuple[Any, ...]:
    """All stored runs."""
    from convforge.benchmark.store import load_runs

    return tuple(load_runs(ROOT / "benchmarks" / "results"))


@cache
def gpu_facts() -> Any:
    """The GPU that was measured last."""
    from convforge.backends.facts import DeviceFacts

    runs = [run for run in stored_runs() if run.machine["facts"]["backend"] == "cuda"]
    return DeviceFacts.from_table(max(runs, key=lambda run: run.started).machine["facts"])


# What a kernel's file says at its top.


def header(source: str) -> tuple[str, list[tuple[str, str]]]:
    """The comment that a .cu file begins with: its first sentences, and its entries by name."""
    lines = []
    for line in source.splitlines():
        if not line.startswith("//"):
            break
        lines.append(line[2:].removeprefix(" "))
    first: list[str] = []
    entries: list[list[str]] = []
    for line in lines:
        words = re.match(r"(?P<name>[A-Z]\w* [a-z]+(?=  )|[A-Z]\w*)(?P<gap> +)(?P<text>.*)", line)
        if words and (len(words["name"] + words["gap"]) >= 10 or words["name"] == "Since"):
            entries.append([words["name"], words["text"]])
        elif entries and line.strip():
            entries[-1].append(line.strip())
        elif line.strip():
            first.append(line.strip())
    return " ".join(first), [(name, " ".join(text)) for name, *text in entries]


def in_words(text: str) -> str:
    """Plain text as Markdown: names of constants and formulas stand as they are, what is in backticks as code."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*_<>\[\]$])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def plain(text: str) -> str:
    """A docstring's text as Markdown: of its roles what they name."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")


def kernel_files(algorithm: Any) -> list[Path]:
    """The .cu files of a method's own, or where it has none, of the family that computes for it."""
    from convforge.benchmark.digests import code_files, stored_problem

    key = (algorithm.operation, algorithm.name)
    measured = (r.problem for run in stored_runs() for r in run.results if (r.operation, r.algorithm) == key and r.time)
    texts = dict.fromkeys((TYPICAL[algorithm.operation], *PROBES[algorithm.operation], *measured))
    problems = [stored_problem(algorithm, text) for text in texts]
    return code_files(algorithm, problems, gpu_facts())


# Parts of a page, as Markdown.


def facts_of(algorithm: Any) -> str:
    """A table of what a method says of itself."""
    after = [a for a in on_gpu() if a.since == algorithm.name and a.operation == algorithm.operation]
    rows = [
        ("in one line", algorithm.summary),
        ("operation", algorithm.operation),
        ("step before", link(algorithm.since) if algorithm.since else "none: a ladder begins here"),
        ("step after", ", ".join(link(a.name) for a in after) or "none yet"),
        ("arithmetic", f"`{algorithm.precision}`"),
        ("a NaN reaches", f"`{algorithm.nan_spread}`"),
        ("files", ", ".join(f"`{path.relative_to(PACKAGE)}`" for path in kernel_files(algorithm))),
    ]
    return table(("", ""), rows)


def link(name: str) -> str:
    """A link to a method's page, where it has one."""
    return f"[{name}](/kernels/{name}.md)" if name in {a.name for a in on_gpu()} else f"`{name}`"


def threads_of(algorithm: Any) -> str:
    """What the kernels' files say of threads, tiles and limits."""
    parts = []
    for path in kernel_files(algorithm):
        first, entries = header(path.read_text(encoding="utf-8"))
        parts.append(in_words(first) + "\n\n" + "\n\n".join(f"{name}\n: {in_words(text)}" for name, text in entries))
    return "\n\n".join(parts)


def parameters_of(algorithm: Any, text: str, facts: Any) -> str:
    """The fields of a method's config, with the default for a problem on a device."""
    from numpydoc.docscrape import NumpyDocString

    from convforge.problem import parse_problem

    problem = asked(algorithm, parse_problem(text))
    configs = algorithm.configs(problem, facts)
    default, rows = configs[0], []
    for kind in reversed(type(default).__mro__):
        if "Attributes" in (kind.__doc__ or ""):
            entries = NumpyDocString(inspect.cleandoc(kind.__doc__))["Attributes"]
            described = [(entry.name.split(", "), " ".join(entry.desc)) for entry in entries]
        else:
            described = [([name], text) for name, text in field_comments(kind).items()]
        for names, words in described:
            values = ", ".join(str(getattr(default, name)) for name in names)
            rows.append((", ".join(f"`{name}`" for name in names), plain(words), f"`{values}`"))
    if not rows:
        return "It has none: there is one config."
    said = f"{len(configs)} configs are worth comparing on it." if len(configs) > 1 else "It is the only config there."
    sets = ' A call sets another: `config="NAME=VALUE,..."`.' if problem.operation in ("conv2d", "gemm") else ""
    note = f"The default is that for `{text}` on {facts.name}. {said}{sets}"
    return table(("field", "what it is", "default"), rows) + "\n\n" + note


def field_comments(kind: type) -> dict[str, str]:
    """The comment of every field that a dataclass itself declares: on its line, or on the lines above it."""
    fields = inspect.get_annotations(kind) if dataclasses.is_dataclass(kind) else {}
    if not fields:
        return {}
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        code, _, comment = line.partition("#")
        name = re.match(r"    (\w+): ", code)
        if name is not None and name[1] in fields:
            found[name[1]] = " ".join([*above, comment.strip()]).strip()
        above = [*above, comment.strip()] if comment and not code.strip() else []
    return {name: f"{text[0].upper()}{text[1:]}." if text else "" for name, text in found.items()}


def asked(algorithm: Any, problem: Any) -> Any:
    """A problem that allows a method's arithmetic."""
    return problem.replace(precision=algorithm.precision) if problem.operation == "conv2d" else problem


def refusals_of(algorithm: Any, facts: Any) -> str:
    """What a method says to problems of many kinds, where it refuses them."""
    from convforge.algorithms import refusal
    from convforge.problem import parse_problem

    rows: dict[str, str] = {}
    for text in PROBES[algorithm.operation]:
        problem = asked(algorithm, parse_problem(text))
        if (reason := refusal(algorithm, problem, facts)) is not None:
            rows.setdefault(str(reason), str(problem))
    if not rows:
        return "Nothing: it takes every kind of problem that these pages ask the methods of its operation for."
    return table(("asked", "refused, as"), [(f"`{text}`", in_words(reason)) for reason, text in rows.items()])


def results_of(algorithms: Sequence[Any], backend: str) -> str:
    """Tables of the stored results of methods, each beside the steps around it: a table a suite and device."""
    from convforge.benchmark.markers import table_of
    from convforge.benchmark.tables import LEGEND

    mine = {a.name for a in algorithms}
    beside = [*(a.since for a in algorithms if a.since), *(a.name for a in on_gpu() if a.since in mine)]
    parts = []
    for run in newest_runs(backend):
        times = [r for r in run.results if r.algorithm in mine and r.backend == backend and r.status == "ok"]
        if not times:
            continue
        cases = spread(list(dict.fromkeys(r.case for r in times)), MOST_CASES)
        there = {r.algorithm for r in run.results if r.case in cases and r.status == "ok"}
        peers = [r.algorithm for r in run.results if not r.ours and r.case in cases and r.status == "ok"][:1]
        near = [name for name in dict.fromkeys(beside) if name in there - mine][: max(MOST_METHODS - len(mine), 1)]
        methods = ",".join((*mine, *near, *peers))
        spec = f"{run.suite} cases={','.join(cases)} methods={methods} device={run.device} best=yes"
        text = table_of(spec, stored_runs())
        if parts:  # what the figures mean is said once
            text = "\n".join(line for line in text.splitlines() if LEGEND not in line.replace("\\", ""))
        parts.append(f"From the suite `{run.suite}`:\n\n{text}")
    return "\n\n".join(parts) or "No stored result has it yet."


def newest_runs(backend: str) -> list[Any]:
    """The newest complete run of every suite on every device of a kind."""
    found: dict[tuple[str, str], Any] = {}
    for run in sorted(stored_runs(), key=lambda run: run.started):
        if run.complete and run.machine["facts"]["backend"] == backend and suite_exists(run.suite):
            found[run.suite, run.device] = run
    return [found[key] for key in sorted(found)]


def suite_exists(name: str) -> bool:
    """Whether a suite is one of the bench's own, not a study's or a list of problems."""
    from convforge.benchmark.suites import suite_names

    return name in suite_names()


def spread(items: list[str], most: int) -> list[str]:
    """At most so many of some items, the first and the last among them."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def sources_of(files: Iterable[Path], up: str) -> str:
    """Files as they stand."""
    parts = []
    for path in files:
        language = "c++" if path.suffix == ".cu" else "python"
        name = path.relative_to(ROOT).as_posix()
        parts.append(f"`{name}`:\n\n```{{literalinclude}} {up}{name}\n:language: {language}\n```")
    return "\n\n".join(parts)


# Whole pages, as sections by title and text; one without a title comes first.

INTRODUCTION = """\
Drawn from a run of the kernel on the emulator, on a small problem with small blocks, access by access. Green: pixels
under the block's outputs; orange: its halo. A number is how often the block's threads ask for the element; caches and
what a compiler keeps in registers are not part of it."""
DRAWN = "What the threads do"


def gpu_sections(method: Any, typical: str, up: str, drawn: bool = True) -> list[tuple[str, str]]:
    """All but the title, the prose and the pictures of a kernel's page; these follow the words of :data:`DRAWN`.

    Parameters
    ----------
    typical : str
        The problem for which defaults are given; that of the operation where it is empty.
    up : str
        The way from the page's folder to the repository's.
    drawn : bool
        There are pictures.
    """
    return [
        ("", facts_of(method)),
        ("Threads and tiles", threads_of(method)),
        *([(DRAWN, INTRODUCTION)] if drawn else []),
        ("Parameters", parameters_of(method, typical or TYPICAL[method.operation], gpu_facts())),
        ("What it refuses", refusals_of(method, gpu_facts())),
        ("Measured", results_of([method], "cuda")),
        ("Source", sources_of(kernel_files(method), up)),
    ]


def cpu_sections(folder: str, up: str) -> list[tuple[str, str]]:
    """All but the title and the prose of a page of CPU methods: a section each, their results and sources."""
    from convforge.backends.cpu import cpu_facts
    from convforge.benchmark.digests import code_files

    methods, parts = on_cpu()[folder], []
    for a in methods:
        typical = CPU_TYPICAL.get(a.name, CPU_TYPICAL.get(a.operation, TYPICAL[a.operation]))
        rows = [
            ("in one line", a.summary),
            ("how it works", f"[its entry](/methods.md#{a.name}) among the methods of the CPU"),
            ("step before", f"[{a.since}](/methods.md#{a.since})" if a.since else "none: a ladder begins here"),
            ("arithmetic", f"`{a.precision}`"),
            ("a NaN reaches", f"`{a.nan_spread}`"),
        ]
        parameters = "**Parameters.**\n\n" + parameters_of(a, typical, cpu_facts())
        refusals = "**What it refuses.**\n\n" + refusals_of(a, cpu_facts())
        parts.append((a.name, "\n\n".join((table(("", ""), rows), parameters, refusals))))
    files = sorted({file for a in methods for file in code_files(a, (), cpu_facts())})
    return [*parts, ("Measured", results_of(methods, "cpu")), ("Source", sources_of(files, up))]
