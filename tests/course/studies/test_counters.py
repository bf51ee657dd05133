"""The profiler's counters: a stand-in for ncu checks what it is asked and answers as the real one does."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.backends.emulated import needs_emulator
from tests.course.studies.made_up import launch, one, result, run

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Counters, Profile, Run
from convforge.benchmark.store import Store, load_run
from convforge.course.studies import counters, memory
from convforge.course.studies.counters import Call, NoCounters, count, find_profiler, make_calls
from convforge.errors import Reason

PROBLEM = "n1c3h64w64_k1r3s3_p1_f32_nchw"
CALLS = [
    Call("a", "conv2d", "direct_naive", PROBLEM, "block_x=32,block_y=4,partition=pixel,resident=1280",
         ("direct_naive",)),
    Call("a", "conv2d", "direct_shared", PROBLEM, "x", ("direct_shared",)),
]  # fmt: skip
# As Nsight Compute writes it: the program's own words, its own, a row of names, a row of units, a row a launch.
TABLE = """hello from the program
==PROF== Disconnected from process 7
"ID","Process ID","Kernel Name","Block Size","{metrics}"
"","","","","{units}"
{rows}
"""
STAND_IN = """#!{python}
import json, sys
assert "--csv" in sys.argv and "none" == sys.argv[sys.argv.index("--clock-control") + 1]
kernels = sys.argv[sys.argv.index("--kernel-name") + 1]
job = json.load(open(sys.argv[-1]))
assert sys.argv[-3] == "-c" and "make_calls(sys.argv[1])" in sys.argv[-2], sys.argv
assert kernels == "regex:^(" + "|".join(dict.fromkeys(k for c in job["calls"] for k in c["kernels"])) + ")$"
{body}
"""


def table(*kernels: str) -> str:
    metrics = [metric for found in counters.METRICS.values() for metric in found]
    values = {"dram__bytes_read.sum": "1,048,576", "dram__bytes_write.sum": "1000",
              "l1tex__t_bytes.sum": "5e6", "l1tex__t_sector_hit_rate.pct": "87.50",
              "lts__t_sector_hit_rate.pct": "25.0"}  # fmt: skip
    assert set(values) == set(metrics)
    rows = "\n".join(
        f'"{i}","7","{kernel}","(32, 4, 1)",' + ",".join(f'"{values[metric]}"' for metric in metrics)
        for i, kernel in enumerate(kernels)
    )
    return TABLE.format(metrics='","'.join(metrics), units='","'.join("byte" for _ in metrics), rows=rows)


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "ncu"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return program


def stands_in(program: Path, body: str) -> None:
    program.write_text(STAND_IN.format(python=sys.executable, body=body), encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_counts_are_added_up_and_belong_to_their_calls(ncu: Path) -> None:
    stands_in(ncu, f"print({table('direct_naive(Naive)', 'direct_shared')!r})")
    first, second = count(CALLS, "cuda")
    assert (first.method, first.kernel, second.method) == ("direct_naive", "direct_naive", "direct_shared")
    assert first.dram_bytes == 1048576 + 1000
    assert (first.l1_bytes, first.l1_hit, first.l2_hit) == (5e6, 0.875, 0.25)


@pytest.mark.parametrize(
    "body, says",
    [
        ("print('==ERROR== ERR_NVGPUCTRPERM - no permission'); print('done'); sys.exit(1)", "ERR_NVGPUCTRPERM"),
        (f"print({table('direct_naive')!r})", "saw 1 launches where 2"),
        (f"print({table('direct_shared', 'direct_naive')!r})", "or others"),
        ("print('nothing')", "saw 0 launches"),
        (f"print({table('direct_naive', 'direct_shared').replace('dram__bytes_read.sum', 'other')!r})",
         "ncu has no dram__bytes_read"),
        (f"print({table('direct_naive', 'direct_shared').replace('87.50', 'n/a')!r})", "ncu has no l1tex"),
    ],
)  # fmt: skip
def test_why_there_are_no_counters(ncu: Path, body: str, says: str) -> None:
    stands_in(ncu, body)
    with pytest.raises(NoCounters, match=says):
        count(CALLS, "cuda")


def test_a_profiler_that_does_not_end(ncu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "TIMEOUT_S", 0.5)
    stands_in(ncu, "import time; time.sleep(60)")
    with pytest.raises(NoCounters, match="did not end within"):
        count(CALLS, "cuda")


def test_without_a_profiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(counters, "PLACES", ())
    with pytest.raises(NoCounters, match="not installed"):
        find_profiler()


@needs_emulator
def test_the_profiled_process_makes_the_calls(tmp_path: Path) -> None:
    """On the emulator, which has the same kernels; a config that is unknown is no call."""
    call = {"case": "a", "operation": "conv2d", "method": "direct_naive", "problem": "n1c3h8w8_k1r3s3_p1_f32_nchw",
            "config": "block_x=32,block_y=4,partition=pixel,resident=1280", "kernels": ["direct_naive"]}  # fmt: skip
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"device": "emulator", "calls": [call]}), encoding="utf-8")
    make_calls(str(job))
    job.write_text(json.dumps({"device": "emulator", "calls": [call | {"config": "block_x=7"}]}), encoding="utf-8")
    with pytest.raises(StopIteration):
        make_calls(str(job))


# What the study of memory says of them.


def counted(method: str, l1_bytes: float, dram_bytes: float = 4e6) -> Counters:
    return Counters("c3_3x3", method, "", method, dram_bytes, l1_bytes, 0.8, 0.25)


def memory_run(*counters: Counters, reason: str | None = None, scratch: int = 0) -> Run:
    launches = tuple(info | {"scratch_bytes": scratch} for info in launch((32, 4), (1,), 0.5))
    rows = [result(c.method, 1e-3, PROBLEM, case="c3_3x3", launches=launches) for c in counters]
    rows = rows or [result("direct_naive", 1e-3, PROBLEM, case="c3_3x3")]
    return run(*rows, profile=Profile(counters, reason))


def test_hit_rates_are_said_with_what_moves() -> None:
    made = memory_run(counted("direct_naive", 9e6))
    finding = one("memory", made, "hit-rates")
    assert (finding.form, finding.supported) == ("hit-rates/counted", True)
    assert finding.values["moved"] / made.results[0].least_bytes == finding.values["times"]
    assert "finds 80 % of its requests in L1 and 25 % of the rest in L2" in finding.sentence
    assert any(line.startswith("bytes to and from memory: 4.00 MB") for line in finding.details)
    assert {datum.what: datum.value for datum in finding.data} == {"l1_hit": 0.8, "l2_hit": 0.25, "dram_bytes": 4e6}


def test_what_stays_in_the_cache_is_no_byte_saved() -> None:
    made = memory_run(counted("direct_naive", 9e6, dram_bytes=10.0))
    finding = one("memory", made, "hit-rates")
    assert finding.form == "hit-rates/kept"
    assert any("the rest of the output is in the last cache" in line for line in finding.details)


@pytest.mark.parametrize("shared, form", [(3e6, "fewer"), (9e6, "more"), (12e6, "more")])
def test_what_shared_memory_asks_of_l1(shared: float, form: str) -> None:
    made = memory_run(counted("direct_naive", 9e6), counted("direct_shared", shared))
    finding = one("memory", made, "asked-of-l1")
    assert finding.form == f"asked/{form}"
    times = f"{shared / 9e6:.2f}x"
    says = "direct_naive requests 3.00x as many" if form == "fewer" else f"direct_shared requests {times} as many"
    assert says in finding.sentence


@pytest.mark.parametrize("dram_bytes, form", [(4e6, "counted"), (10.0, "kept")])
def test_a_hit_rate_says_nothing_of_shared_memory(dram_bytes: float, form: str) -> None:
    finding = one("memory", memory_run(counted("direct_shared", 9e6, dram_bytes), scratch=4096), "hit-rates")
    assert finding.form == f"hit-rates/{form}-shared"
    assert "reads from shared memory are in no cache and are not counted" in finding.details


def test_without_counters_the_reason_is_said() -> None:
    finding = one("memory", memory_run(reason=Reason("NVIDIA's profiler ncu is not installed")), "hit-rates")
    assert (finding.form, finding.supported) == ("hit-rates/not-counted", False)
    assert "ncu is not installed" in finding.sentence
    assert one("memory", run(result("direct_naive", 1e-3, PROBLEM)), "hit-rates").form == "hit-rates/none"


class Card:
    """A runtime that is asked for its facts and its number alone."""

    device = 1

    def __init__(self, backend: str) -> None:
        self.facts = DeviceFacts(backend, "A Card", 4, 0, 0, 0, 0, 0, "")


@pytest.mark.parametrize("reason", [None, Reason("ncu did not end within {limit}", limit="9 s")], ids=str)
def test_the_profile_is_stored_behind_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: Reason | None
) -> None:
    asked: list[Call] = []

    def stands_in(calls: Sequence[Call], device: str) -> list[Counters]:
        assert device == "cuda:1"
        asked.extend(calls)
        if reason is not None:
            raise NoCounters(reason)
        return [counted(call.method, 1e6) for call in calls]

    monkeypatch.setattr(memory, "count", stands_in)
    header = {"run": "a", "started": "2026-01-02T03:04:05+00:00", "suite": "memory", "device": "x", "machine": {},
              "versions": {}, "commit": None, "dirty": False, "settings": {}}  # fmt: skip
    one_channel = PROBLEM.replace("c3", "c1")
    with Store.create(tmp_path, header) as store:
        for r in (
            result("direct_naive", 1e-3, PROBLEM, case="c3_3x3", launches=launch((32, 4), (1,), 0.5)),
            result("direct_naive", 1e-3, one_channel, case="c1_3x3"),
            result("direct_shared", None, PROBLEM, case="c3_3x3"),
        ):
            store.append(r.to_record())
        memory.profile(Card("cpu"), store, False)  # type: ignore[arg-type]
        assert not asked
        memory.profile(Card("cuda"), store, False)  # type: ignore[arg-type]
    made = load_run(store.path)
    assert [(call.case, call.method, call.kernels) for call in asked] == [("c3_3x3", "direct_naive", ("k",))]
    assert made.complete
    assert made.profile == Profile(() if reason else (counted("direct_naive", 1e6),), reason)
