"""The table of whole networks, from made-up rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.benchmark.test_sheets import sheet, timing

from convforge.benchmark.model_tables import ratio
from convforge.benchmark.sheet_tables import sheet_markdown

SETTINGS: dict[str, Any] = {"device": "cuda", "count": 5, "factor": 2.0, "floors": {"float32": 1e-5, "float16": 1e-3}}


def row(network: str, dtype: str, times: dict[str, float], **more: Any) -> dict[str, Any]:
    """A row with times of sides in microseconds."""
    errors = dict.fromkeys(times, 1.2e-6)
    return {
        "network": network, "batch": 32, "format": "channels_last", "dtype": dtype, "pictures": 32, "note": "",
        "layers": 20, "ours_layers": 14, "replace_s": 31.4, "bound": 1e-5, "errors": errors, "wrong": [], "faults": {},
        "times": {side: timing(us) for side, us in times.items()},
    } | more  # fmt: skip


def test_ratios_and_their_geometric_means_by_type(tmp_path: Path) -> None:
    rows = [
        row("A", "float32", {"eager": 2000, "compiled": 1500, "max-autotune": 1600, "convforge": 1000}),
        row("B", "float32", {"eager": 4500, "compiled": 1500, "max-autotune": 1000, "convforge": 1000}),
        row("A", "float16", {"eager": 900, "folded": 800, "max-autotune": 500, "convforge": 1000}),
        row("B", "float16", {"eager": 4000, "folded": 2000, "max-autotune": 3000, "convforge": 1000}),
        row("C", "bfloat16", {"eager": 1029, "folded": 971, "max-autotune": 1029, "convforge": 1000}),
    ]
    assert [ratio(one) for one in rows[:3]] == pytest.approx([1.5, 1.0, 0.5])
    text = sheet_markdown("networks", [sheet(tmp_path, "networks", rows, **SETTINGS)])
    assert text.startswith(
        "PyTorch's time over convforge's, geometric means: float32 against eager 3.000x (2 rows), float32 against "
        "torch.compile 1.225x (2 rows), float16 against the fastest 1.000x (2 rows), bfloat16 against the fastest "
        "0.971x (1 row). Slower than PyTorch's fastest by more than 3 %: 1 of 5 rows (A, batch 32, channels_last, "
        "float16). All outputs keep to the bound.\n"
    )
    assert "| A | 32 | channels\\_last | float32 | 2.00 |  | 1.50 | 1.60 | 1.00 | 1.500x | 14 of 20 | 31 |" in text
    assert "each in a CUDA graph" in text
    assert "1e-05 in float32, 1e-03 in float16" in text


def test_a_wrong_row_a_fault_and_a_failure_are_named(tmp_path: Path) -> None:
    late = "it was not compiled within 44 s"
    rows = [
        row("A", "float32", {"eager": 2000, "convforge": 1000}, faults={"compiled": late, "max-autotune": late}),
        row("B", "float16", {"eager": 900, "folded": 800}, wrong=["convforge"],
            errors={"eager": 1e-3, "folded": 1e-3, "convforge": None}),
        row("C", "float16", {"eager": 900}, faults={"convforge": "not possible here"}, ours_layers=None, layers=None,
            replace_s=None, pictures=8, note="8 images: 32 take about 72 GB"),
    ]  # fmt: skip
    text = sheet_markdown("networks", [sheet(tmp_path, "networks", rows, complete=False, **SETTINGS)])
    assert "torch.compile 1" not in text
    assert "Slower than PyTorch's fastest by more than 3 %: 0 of 1 rows." in text
    assert "In 1 of them a side of PyTorch has no time: the fastest is of the others." in text
    assert "convforge failed, and so has no time: C, batch 8, channels_last, float16." in text
    assert "Wrong, and so without a time: B, batch 32, channels_last, float16 (convforge)." in text
    assert "| no number | 1.0e-03 |" in text
    assert "| C | 8 | channels\\_last | float16 | 0.900 |  |  |  |  |  |  |  |  | 1.2e-06 |" in text
    assert "compiled has no time: it was not compiled within 44 s (A, batch 32" in text
    assert "8 images: 32 take about 72 GB." in text
    assert "2 rows were not reached: go on with" in text


def test_what_is_too_noisy_to_rank_is_not_counted_as_slower(tmp_path: Path) -> None:
    unsteady = row("A", "float16", {})
    unsteady["times"] = {"eager": timing(1000.0, 0.2), "convforge": timing(1060.0, 0.2)}
    text = sheet_markdown("networks", [sheet(tmp_path, "networks", [unsteady], **SETTINGS | {"device": "cpu"})])
    assert "Slower than PyTorch's fastest by more than 3 %: 0 of 1 rows. Too noisy to rank" in text
    assert "each called" in text
    nothing = row("A", "float16", {"eager": 900}, faults={"convforge": "no memory"})
    text = sheet_markdown("networks", [sheet(tmp_path, "networks", [nothing], **SETTINGS)])
    assert text.startswith("No row has a time of both sides. convforge failed")


def test_each_row_is_the_newest_whole_comparison_of_its_network(tmp_path: Path) -> None:
    """Sides of a row are of one run; a row that lacks a side of PyTorch does not take the place of one that has all."""
    late, whole = {"max-autotune": "it was not compiled within 44 s"}, {"eager": 900.0, "max-autotune": 700.0}
    old = sheet(tmp_path, "networks", [
        row("A", "float16", whole | {"convforge": 500.0}), row("B", "float16", whole | {"convforge": 600.0}),
        row("C", "float16", {"eager": 900.0, "convforge": 610.0}, faults=late),
        row("D", "float16", whole | {"convforge": 620.0}),
    ], **SETTINGS)  # fmt: skip
    new = sheet(tmp_path, "networks", [
        row("A", "float16", whole | {"convforge": 400.0}),
        row("B", "float16", {"eager": 900.0, "convforge": 410.0}, faults=late),
        row("C", "float16", {"eager": 900.0, "convforge": 420.0}, faults=late),
        row("D", "float16", {"eager": 900.0}, faults={"convforge": "it broke"} | late),
    ], complete=False, **SETTINGS)  # fmt: skip
    old.started, old.commit = "2026-01-01T00:00:00+00:00", "a" * 40
    new.started, new.commit = "2026-01-02T00:00:00+00:00", "b" * 40
    text = sheet_markdown("networks", [new, old])
    found = {line[0]: (line[8], line[-1]) for row in text.splitlines() if row.startswith("| ")
             and (line := [cell.strip() for cell in row.split("|")[1:-1]])}  # fmt: skip
    assert {name: found[name] for name in "ABCD"} == {
        "A": ("0.400", "b" * 10), "B": ("0.600", "a" * 10), "C": ("0.420", "b" * 10), "D": ("", "b" * 10),
    }  # fmt: skip
    assert "commit aaaaaaaaaa" in text
    assert "commit bbbbbbbbbb" in text
    assert "convforge failed, and so has no time: D" in text
