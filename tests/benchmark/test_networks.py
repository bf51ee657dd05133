"""benchmarks/networks.py: its networks, its order, and small rows measured on the CPU."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.benchmark.scripts import script_named
from tests.benchmark.test_sheets import run_script
from tests.kinds import module

from convforge.benchmark.sheet_tables import sheet_markdown
from convforge.benchmark.sheets import load_sheets

torch = module("torch")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # of torch.fx's fuse


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_named("networks")


@pytest.fixture
def small(script: ModuleType) -> tuple[Any, Any]:
    """A network of two layers, and its pictures."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(script.torch_swap.unit(3, 4), script.torch_swap.unit(4, 4))
    return script.torch_swap.settled(model, 12), torch.randn(2, 3, 12, 12)


def test_the_networks_are_those_of_their_papers(script: ModuleType) -> None:
    with torch.device("meta"):
        made = {name: network.make(script.WIDTH) for name, network in script.NETWORKS.items()}
    counts = {name: sum(p.numel() for p in model.parameters()) for name, model in made.items()}
    assert counts["ResNet-18"] == 11_689_512
    assert counts["ResNet-50"] == 25_557_032
    assert counts["MobileNetV2"] == 3_504_872
    strides = [layer.kernel_size for layer in made["ResNet-50"].modules()
               if isinstance(layer, torch.nn.Conv2d) and layer.stride == (2, 2)]  # fmt: skip
    assert strides == [(7, 7), *[(3, 3), (1, 1)] * 3], "the stride is that of the 3x3, and of the way around"
    unet = [layer for layer in made["U-Net"].modules() if isinstance(layer, torch.nn.Conv2d)]
    assert [layer.in_channels for layer in unet if layer.kernel_size == (3, 3)].count(1024) == 2
    assert len(unet) == 2 * 9 + 1


def test_the_most_important_rows_come_first(script: ModuleType) -> None:
    rows = script.every_row((1, 32))
    assert len(rows) == 48
    groups = list(dict.fromkeys((row["dtype"], row["format"], row["batch"]) for row in rows))
    assert groups[:5] == [
        ("float16", "channels_last", 32), ("float32", "channels_last", 32), ("float16", "channels_last", 1),
        ("float32", "channels_last", 1), ("bfloat16", "channels_last", 32),
    ]  # fmt: skip
    assert [row["network"] for row in rows[:4]] == ["ResNet-18", "ResNet-50", "MobileNetV2", "U-Net"]


def test_fewer_pictures_where_memory_does_not_hold_them(script: ModuleType) -> None:
    assert script.fitting(32, 8, 59e9) == (32, "")
    assert script.fitting(32, 0, 99e9) == (32, "")
    pictures, why = script.fitting(32, 8, 72e9)
    assert (pictures, why) == (8, "8 images: 32 take about 72 GB of GPU memory, more than 60 GB")


def test_compiling_that_takes_long_is_given_up(script: ModuleType) -> None:
    before, begin = signal.getsignal(signal.SIGALRM), time.monotonic()
    with pytest.raises(script.Late, match="it was not compiled within 0 s"):
        script.within(0.05, lambda: time.sleep(20))
    assert time.monotonic() - begin < 10
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert script.within(5.0, lambda: "made") == "made"


def test_a_gpus_clock_is_that_of_its_events(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            calls.append("event")

        def synchronize(self) -> None:
            calls.append("waited")

        def elapsed_time(self, end: Event) -> float:
            return 6.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("idle"))
    assert script.Replays().time(lambda: calls.append("run"), 3) == pytest.approx(6e-3)
    assert calls == ["idle", "event", "run", "run", "run", "event", "waited"]


def test_a_wrong_side_has_no_time_and_a_fault_has_a_reason(
    script: ModuleType, small: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(model: Any, x: Any, mode: str | None = None) -> Any:
        raise RuntimeError("Cannot find a working triton installation\nmore lines")

    monkeypatch.setattr(script.torch_swap, "compiled", compiled)
    monkeypatch.setattr(script, "autotuned", lambda model, x: script.Side(lambda: model(x) * float("nan")))
    monkeypatch.setattr(script, "replaced", lambda model, x, row, budget_s: script.Side(lambda: model(x) * 1.001))
    row = script.measured(*small, True, 1.0)
    assert row["faults"] == {
        "compiled": "not possible here (RuntimeError: Cannot find a working triton installation)"
    }  # fmt: skip
    assert row["wrong"] == ["convforge", "max-autotune"]
    assert row["errors"]["max-autotune"] is None
    assert row["errors"]["convforge"] == pytest.approx(1e-3, rel=0.1)
    assert set(row["times"]) == {"eager"}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype, sides", [("float32", {"eager", "convforge"}),
                                          ("float16", {"eager", "folded", "convforge"})])  # fmt: skip
def test_every_side_of_a_type_is_held_against_float64(
    script: ModuleType, small: tuple[Any, Any], dtype: str, sides: set[str]
) -> None:
    model, x = (one.to(getattr(torch, dtype)) for one in small)
    torch.manual_seed(0)  # of inputs that differ in their last bit
    row = script.measured(model, x, False, 1.0)
    assert set(row["times"]) == set(row["errors"]) == sides, row["faults"]
    assert set(row["faults"].values()) == {"torch.compile was not run"}
    assert 0 < row["errors"]["eager"] <= row["bound"]
    assert row["layers"] == 2
    assert row["replace_s"] > 0


def test_a_row_that_fails_as_a_whole_is_stored_with_the_reason(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(script, "network_of", fails)
    row = script.row_of(script.every_row((1, 2))[0], "cpu", 8, False, 1.0)
    assert row["note"] == "not possible here (RuntimeError: no memory)"
    assert (row["times"], row["lost"]) == ({}, False)


def test_a_run_goes_on_where_the_budget_ended(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def row_of(about: dict[str, Any], *_: Any) -> dict[str, Any]:
        asked.append(tuple(about.values()))
        return about | {"pictures": about["batch"], "note": "", "layers": None, "ours_layers": None, "lost": False,
                        "replace_s": None, "errors": {}, "wrong": [], "faults": {}, "times": {}}  # fmt: skip

    monkeypatch.setattr(script, "row_of", row_of)
    words = ["--out", str(tmp_path), "--resume"]
    said = run_script(script, *words, "--budget", "1e-9")
    assert "go on with --resume" in said
    assert not asked
    run_script(script, *words, "--dtype", "float16", "--network", "U-Net", "--batch", "2")
    assert asked == [("U-Net", 2, "channels_last", "float16"), ("U-Net", 2, "contiguous", "float16")]
    (made,) = load_sheets(tmp_path)
    assert not made.complete
    run_script(script, *words)
    assert len(asked) == len(set(asked)) == 48, "no row twice"
    (made,) = load_sheets(tmp_path)
    assert made.complete


@pytest.mark.thorough
def test_a_row_of_the_script_is_as_the_table_takes_it(script: ModuleType, tmp_path: Path) -> None:
    words = ["--network", "ResNet-18", "--dtype", "float32", "--format", "channels_last", "--batch", "1"]
    said = run_script(script, "--out", str(tmp_path), "--budget", "8", *words)
    assert "layers by convforge" in said
    (made,) = load_sheets(tmp_path)
    (row,) = made.rows
    assert row["layers"] == 20
    assert not row["wrong"]
    text = sheet_markdown("networks", [made])
    assert "float32 against eager" in text
    assert "| ResNet-18 | 1 | channels\\_last | float32 |" in text
    assert "47 rows were not reached" in text
