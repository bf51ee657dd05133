"""All studies: their parts are there, they can be measured in the small form, and the page names their rules."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.commands import Ran
from tests.course.studies.made_up import result, rgb, run
from tests.course.studies.stored import stored_runs

from convforge.backends.cpu import cpu_facts, cpu_runtime
from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Run
from convforge.benchmark.store import Store, load_run, load_runs
from convforge.course.studies import STUDIES, find_study
from convforge.course.studies.published import TABLES
from convforge.course.studies.study import HostRows, conduct, methods
from convforge.peers import every_algorithm

ROOT = Path(__file__).parents[3]
GPU = DeviceFacts("cuda", "A Card", 4, l1_bytes=0, l2_bytes=1 << 20, l3_bytes=0, memory_bytes=1 << 34, vector_bytes=16,
                  architecture="sm_90")  # fmt: skip
STORED = stored_runs()


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "whole"])
@pytest.mark.parametrize("facts", [cpu_facts(), GPU], ids=["cpu", "cuda"])
@pytest.mark.parametrize("name", STUDIES)
def test_parts_have_cases_and_methods(name: str, facts: DeviceFacts, quick: bool) -> None:
    parts = STUDIES[name].parts(facts, quick)
    assert bool(parts) is not (name == "partition" and facts.backend == "cpu")
    names = [case.name for part in parts for case in part.cases]
    assert len(set(names)) == len(names)
    for part in parts:
        backend = "cpu" if part.host else facts.backend
        found = {a.operation for a in methods(part, backend)}
        assert {case.problem.operation for case in part.cases} <= found


def test_every_pattern_of_a_part_matches_a_method_of_some_backend() -> None:
    from fnmatch import fnmatchcase

    known = {a.name for a in every_algorithm()}
    patterns = {p for study in STUDIES.values() for facts in (cpu_facts(), GPU)
                for part in study.parts(facts, False) for p in part.methods}  # fmt: skip
    assert [p for p in patterns if not any(fnmatchcase(name, p) for name in known)] == []


@pytest.mark.parametrize("name", STUDIES)
def test_budgets_leave_room_to_compile(name: str) -> None:
    assert STUDIES[name].gpu_s <= 90
    assert STUDIES[name].cpu_s <= 200


@pytest.mark.one_in(5)
@pytest.mark.parametrize("stored", STORED, ids=lambda stored: f"{stored.device}-{stored.suite}")
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_reads_every_stored_run(name: str, stored: Run) -> None:
    study = STUDIES[name]
    for finding in study.findings(stored):
        for text in (finding.sentence, *finding.details):
            assert not re.search(r"[{}]|\bNone\b|\bnan\b|  | to ;", text), text
        assert finding.data or not finding.supported
        cases = set(stored.cases) | {""}
        assert {datum.case for datum in finding.data} <= cases
        json.dumps(finding.to_table())


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", STUDIES)
def test_the_page_names_every_rule(name: str) -> None:
    page = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
    made = run(result("direct_tiled", 1.0, rgb(64)))
    runs = [*STORED, *(table.run for table in TABLES.values()), made]
    rules = {finding.rule for one in runs for finding in STUDIES[name].findings(one)} - {"quality"}
    assert rules
    assert {rule for rule in rules if f"`{rule}`" not in section} == set()


def test_the_h200_s_stored_results() -> None:
    """Figures that the stored files show: a change of a rule that alters what is said of them is seen here."""
    stored = {one.suite: one for one in STORED if one.device.startswith("nvidia-h200")}
    (shared,) = [f for f in find_study("memory").findings(stored["memory"]) if f.rule == "shared-memory"]
    assert shared.form == "pair/faster"
    assert shared.values["n"] == 15
    gains = {r.case: r for r in stored["memory"].results if r.algorithm == "direct_shared"}
    naive = {r.case: r for r in stored["memory"].results if r.algorithm == "direct_naive"}
    case = shared.values["span"]["most_case"]
    times = [stored["memory"].timing(one[case]) for one in (naive, gains)]
    assert times[0] is not None
    assert times[1] is not None
    assert shared.values["span"]["most"] == pytest.approx(times[0].median_s / times[1].median_s)
    (library,) = [f for f in find_study("gemm").findings(stored["gemm"]) if f.rule == "against-library"]
    assert library.form == "library/slower"


# Measured, in the small form.


@pytest.mark.parametrize("name", [pytest.param("gemm", marks=pytest.mark.thorough), "timer"])
def test_a_study_is_measured_and_stored(name: str, tmp_path: Path) -> None:
    study = find_study(name)
    made = conduct(study, cpu_runtime(), tmp_path, quick=True)
    assert made.suite == name
    assert made.complete
    (stored,) = load_runs(tmp_path)
    assert study.findings(stored) == study.findings(made)
    assert {r.status for r in made.results} <= {"ok", "refused"}
    if name == "timer":
        assert all(r.error is not None for r in made.results)
        clocks = {r.config for r in made.results if r.precision == "mistaken"}
        assert clocks == {
            f"clock={c}" for c in ("right", "no_wait", "host_clock", "allocating", "planning", "same_arrays")
        }


def test_a_study_without_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="partition has nothing to measure on cpu; it needs a GPU"):
        conduct(find_study("partition"), cpu_runtime(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_host_s_ceilings_stay_out_of_another_device_s_run(tmp_path: Path) -> None:
    header = {"run": "a", "started": "2026-01-02T03:04:05+00:00", "suite": "size", "device": "x", "machine": {},
              "versions": {}, "commit": None, "dirty": False, "settings": {}}  # fmt: skip
    with Store.create(tmp_path, header) as store, HostRows(store.path) as host:
        for target, peak in ((store, 2.0), (host, 9.0)):
            target.append({"kind": "ceilings", "when": "before", "copy_bytes_per_s": 1.0, "fma_flops_per_s": peak})
        host.append(result("direct_rows", 1.0, rgb(8), backend="cpu").to_record())
    made = load_run(store.path)
    assert made.best_ceilings is not None
    assert made.best_ceilings.fma_flops_per_s == 2.0
    assert len(made.results) == 1


# The command.


def test_the_list_names_every_study(done: Callable[..., Ran]) -> None:
    assert [line.split()[0] for line in done("study", "--list").out.splitlines()] == list(STUDIES)


def test_findings_of_a_stored_file(done: Callable[..., Ran]) -> None:
    (path,) = [one.path for one in STORED if one.suite == "memory"]
    out = " ".join(done("study", "memory", "--from", path).out.split())
    assert "direct_shared is faster than direct_naive on each of 15 cases" in out
    assert "gain: 1.26x (c8_2048_3x3) to 3.26x (c3_2048_7x7)" in out
    (images,) = [one.path for one in STORED if one.device.startswith("nvidia") and one.suite == "images"]
    assert "What the data does not support" in done("study", "size", "--from", images).out
    tables = json.loads(done("study", "memory", "--from", path, "--json").out)["findings"]
    assert {"rule", "form", "values", "data", "supported", "sentence", "details"} == set(tables[0])
    assert "copy_bytes_per_s" in done("study", "memory", "--from", path, "--trace").out


def test_findings_are_said_in_chinese(done: Callable[..., Ran]) -> None:
    from rich.cells import cell_len

    (path,) = [one.path for one in STORED if one.device.startswith("nvidia") and one.suite == "memory"]
    out = done("study", "memory", "--from", path, "--language", "zh").out
    said = out[out.index("结论：") :]
    (images,) = [one.path for one in STORED if one.device.startswith("nvidia") and one.suite == "images"]
    doubtful = done("study", "size", "--from", images, "--language", "zh").out
    assert "数据不足以支持的，以及需要当心的：" in doubtful
    assert "direct_shared在全部15个算例上比direct_naive快" in re.sub(r"\s+", "", said)
    assert max(map(cell_len, said.splitlines())) <= 118
    assert not any(line.strip().startswith(("，", "。", "、", "；", "）")) for line in said.splitlines())
    tables = json.loads(done("study", "memory", "--from", path, "--json", "--language", "zh").out)["findings"]
    assert all(table["sentence"].endswith("。") for table in tables)
    assert "共享内存" in done("study", "--list", "--language", "zh").out


def test_lines_end_where_they_may() -> None:
    from rich.cells import cell_len

    from convforge.cli.study import _folded

    english = "one two (three), four: five"
    assert _folded(english, 10) == ["one two", "(three),", "four: five"]
    chinese = "在全部 15 个算例上（rgb_to_1），加速比为 1.5 倍（a）到 3 倍。“核函数”"
    for width in range(16, 40):
        lines = _folded(chinese, width)
        assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", chinese)
        assert max(map(cell_len, lines)) <= width
        assert not any(line.startswith(tuple("，。、；：）” ")) or line.endswith(tuple("（“ ")) for line in lines)


def test_blocks_are_shown_with_their_occupancy(done: Callable[..., Ran]) -> None:
    (path,) = [one.path for one in STORED if one.suite == "blocks"]
    assert "%)" in done("study", "block-size", "--from", path).out


@pytest.mark.parametrize(
    "words, says",
    [
        ((), "name a study"),
        (("sise",), "did you mean 'size'"),
        (("size", "--from", "x.jsonl", "--quick"), "--from measures nothing"),
        (("size", "--device", "emulator"), "its times say nothing about a GPU"),
        (("size", "--budget", "soon"), "--budget 'soon'"),
        (("--list", "--language", "fr"), "language='fr' is unknown"),
    ],
)
def test_bad_use_is_refused(refused: Callable[..., str], words: tuple[str, ...], says: str) -> None:
    refused(2, "study", *words, says=(says,))
