"""benchmarks/crosscheck.py without a GPU: what it reads of NVBench's JSON, what it calls apart, and its calls."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer
from tests.backends.emulated import needs_emulator
from tests.benchmark.scripts import script_named
from typer.testing import CliRunner

from convforge.timing.timer import Timing


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_named("crosscheck")


def written(name: str, *, cold: float, batch: float | None, skipped: bool = False) -> dict[str, Any]:
    """A benchmark as NVBench writes it."""

    def summary(tag: str, kind: str, value: Any) -> dict[str, Any]:
        return {"tag": tag, "data": [{"name": "value", "type": kind, "value": value}]}

    summaries = [
        summary("nv/cold/time/gpu/median", "float64", str(cold)),
        summary("nv/cold/sample_size", "int64", "120"),
        summary("nv/json/bin", "string", "a file"),
    ]
    summaries += [] if batch is None else [summary("nv/batch/time/gpu/mean", "float64", str(batch))]
    return {"name": name, "states": [{"is_skipped": skipped, "summaries": summaries}]}


def test_what_nvbench_wrote_is_read(script: ModuleType) -> None:
    root = {"benchmarks": [written("a", cold=1e-4, batch=9e-5), written("b", cold=1.0, batch=None, skipped=True)]}
    assert script.figures(root) == {
        "a": {"nv/cold/time/gpu/median": 1e-4, "nv/cold/sample_size": 120.0, "nv/batch/time/gpu/mean": 9e-5}
    }


@pytest.mark.parametrize("ours, agrees", [(1.0, True), (1.049, True), (0.951, True), (1.06, False), (0.94, False)])
def test_more_than_five_per_cent_is_apart(script: ModuleType, ours: float, agrees: bool) -> None:
    found = script.compare(Timing((ours,) * 3), Timing((ours,) * 3), {script.COLD: 2.0, script.BATCH: 1.0})
    assert found["agrees"] is agrees
    assert found["difference_batch"] == pytest.approx(ours - 1)
    assert found["difference_cold"] == pytest.approx(ours / 2 - 1)


def test_a_drift_between_our_two_times_shows(script: ModuleType) -> None:
    found = script.compare(Timing((1.0,) * 3), Timing((1.2,) * 3), {script.COLD: 1.1, script.BATCH: 1.0})
    assert found["drift"] == pytest.approx(0.2)
    assert found["ours_s"] == pytest.approx(1.1)
    assert found["difference_batch"] == pytest.approx(0.1)


def test_a_time_that_is_missing_is_a_fault(script: ModuleType) -> None:
    with pytest.raises(ValueError, match="NVBench gave no nv/cold/time/gpu/median; it gave nothing"):
        script.compare(Timing((1.0,) * 3), Timing((1.0,) * 3), {})
    with pytest.raises(ValueError, match="NVBench gave no nv/batch/time/gpu/mean; it gave nv/cold/time/gpu/median"):
        script.compare(Timing((1.0,) * 3), Timing((1.0,) * 3), {script.COLD: 1.0})


@needs_emulator
def test_the_whole_with_a_made_up_nvbench(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the emulator, small: NVBench's calls go over the whole ring, and on the stream that it names."""
    from convforge.call.dispatch import runtime_of

    small = (("direct_naive", "n1c3h20w20_k1r3s3_st1_p1_f32_nchw"), ("gemm_vectorised", "m20n20k20_f32"))
    monkeypatch.setattr(script, "KERNELS", small)
    monkeypatch.setattr(script, "runtime_of", lambda device: runtime_of("emulator"))
    honest, subjects, streams = script.Subject.of, [], []

    def of(name: str, text: str, device: str) -> Any:
        subject = honest(name, text, "emulator")
        call = subject.call

        def noted(i: int, stream: Any = None) -> None:
            streams.append((name, i, stream))
            call(i, None)

        subject.call = noted
        subjects.append(subject)
        return subject

    monkeypatch.setattr(script.Subject, "of", of)
    monkeypatch.setattr(script.Subject, "ours", lambda self: Timing((1e-3,) * 3))
    monkeypatch.setattr(script.importlib.metadata, "version", lambda name: "0.3.0")
    package, made_up = ModuleType("cuda"), MadeUp()
    monkeypatch.setattr(package, "bench", made_up, raising=False)
    monkeypatch.setitem(sys.modules, "cuda", package)
    monkeypatch.setitem(sys.modules, "cuda.bench", made_up)
    app = typer.Typer()
    app.command()(script.main)
    done = CliRunner().invoke(app, ["--out", str(tmp_path)])
    assert done.exit_code == 1, "the second is 10 % apart"
    assert "more than 5% apart: gemm_vectorised" in done.output
    (path,) = tmp_path.rglob("crosscheck-*.json")
    stored = json.loads(path.read_text())
    assert [(row["algorithm"], row["agrees"]) for row in stored["kernels"]] == [
        ("direct_naive", True),
        ("gemm_vectorised", False),
    ]
    assert stored["versions"]["cuda-bench"] == "0.3.0"
    for subject in subjects:
        slots = subject.material.ring.size.slots
        turns = [i for name, i, stream in streams if name == subject.name and stream == "theirs"]
        assert turns == [*range(slots), 0], "every slot in turn, on NVBench's stream"
        assert subject.material.verify("strict", slots, {}).ok


class MadeUp(ModuleType):
    """What the script uses of cuda.bench; a kernel takes 1 ms, the second one 1.1."""

    def __init__(self) -> None:
        super().__init__("cuda.bench")
        self.registered: list[Any] = []

    def register(self, run: Any) -> Any:
        made = SimpleNamespace(run=run, name="")
        made.set_name = lambda name: setattr(made, "name", name)
        self.registered.append(made)
        return made

    def run_all_benchmarks(self, argv: list[str]) -> None:
        found = []
        for at, made in enumerate(self.registered):

            def run(launch: Any, *, batched: bool) -> None:
                assert batched
                for _ in range(257):  # once round a ring of 256 small slots, and one more
                    launch(SimpleNamespace(get_stream=lambda: "theirs"))

            made.run(SimpleNamespace(exec=run))
            found.append(written(made.name, cold=2e-3, batch=1e-3 * (1.02 if at == 0 else 1.1)))
        Path(argv[argv.index("--json") + 1]).write_text(json.dumps({"benchmarks": found}))
