"""The store: what is written comes back, a torn line loses itself alone, damage is named."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.benchmark.fakes import result

from convforge.benchmark.records import CopyTime, Finalist, Finalists, Result, StepTime
from convforge.benchmark.store import Store, load_run, load_runs, run_id, unfinished
from convforge.errors import Reason
from convforge.timing.timer import Timing

HEADER: dict[str, Any] = {
    "run": "made-up-1", "started": "2026-01-02T03:04:05+00:00", "suite": "made-up", "device": "test-2c", "machine": {},
    "versions": {}, "commit": None, "dirty": False, "settings": {"methods": []},
}  # fmt: skip
RESULT = result(
    prepared_time=Timing((1.0, 2.0, 4.0), calls=2, noisy=True, few=True, ring=3, cold=True),
    launches=({"kernel": "k", "grid": [1], "block": [2]},),
    library_versions={"numpy": "2"},
    workspace_bytes=7,
    first_call_s=0.5,
    prepare_s=0.25,
    note="a note",
    steps=(StepTime("expansion", Timing((1.0, 2.0)), 2, 96), StepTime("product", Timing((4.0,)), 2)),
)


def stored(folder: Path, *records: dict[str, Any], run: str = "made-up-1") -> Path:
    with Store.create(folder, HEADER | {"run": run}) as store:
        for record in records:
            store.append(record)
    return store.path


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    final = Finalists("square_8", (Finalist("honest", "", Timing((1.0, 2.0))),))
    refused = result(algorithm="picky", status="refused", reason="no")
    path = stored(
        tmp_path, RESULT.to_record(), refused.to_record(), final.to_record(), {"kind": "end", "complete": True}
    )
    run = load_run(path)
    assert run.results == (RESULT, refused)
    assert run.finals == (final,)
    assert run.complete
    assert run.timing(RESULT) == Timing((1.0, 2.0))


def test_reasons_come_back_as_data_and_texts_as_they_stand(tmp_path: Path) -> None:
    inner = Reason("{what} holds {value}, not {count}", what="x", value=math.inf, count=3)
    parts = [Reason.quoted("a {text} of {another} library; it is long"), Reason("{first}: {why}", first=1.5, why=inner)]
    joined = Reason.joined([*parts, inner])
    rows = [
        result(algorithm=str(i), status="refused", reason=reason, note=reason)
        for i, reason in enumerate((inner, parts[0], parts[1], joined, None))
    ]
    read = load_run(stored(tmp_path, *(row.to_record() for row in rows))).results
    said = [None if row.reason is None else str(row.reason) for row in read]
    assert said == [None if row.reason is None else str(row.reason) for row in rows]
    assert said[3] == ("a {text} of {another} library; it is long; 1.5: x holds inf, not 3; x holds inf, not 3")
    assert [row.note for row in read] == [row.reason for row in read]
    assert read[1].to_record()["reason"] == "a {text} of {another} library; it is long"
    again = load_run(stored(tmp_path, *(row.to_record() for row in read), run="again")).results
    assert again == read


def test_a_copy_comes_back_and_the_later_one_of_a_case_counts(tmp_path: Path) -> None:
    first, later = (CopyTime("square_8", n, Timing((1.0, 2.0), ring=3, cold=True)) for n in (768, 800))
    other = CopyTime("square_9", 992, Timing((4.0,), noisy=True))
    path = stored(tmp_path, first.to_record(), RESULT.to_record(), other.to_record(), later.to_record())
    run = load_run(path)
    assert run.copies == (later, other)
    assert run.copy_of("square_9") == other
    assert run.copy_of("square_7") is None
    assert later.bytes_per_s == 800 / 1.5
    line = json.loads(path.read_text().splitlines()[1])
    assert set(line) == {"kind", "case", "bytes", "time"}


def test_a_run_that_is_older_than_copies_is_read_as_before(tmp_path: Path) -> None:
    run = load_run(stored(tmp_path, RESULT.to_record(), {"kind": "end", "complete": True}))
    assert run.copies == ()
    assert run.of_copy(RESULT, RESULT.time) is None


def test_the_lines_have_the_documented_fields(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in stored(tmp_path, RESULT.to_record()).read_text().splitlines()]
    assert lines[0]["kind"] == "run"
    assert lines[0]["schema"] == 1
    assert set(lines[1]) == {
        "kind", "case", "problem", "operation", "algorithm", "backend", "ours", "precision", "config", "status",
        "reason", "error", "time", "prepared_time", "transfer_time", "steps", "first_call_s", "prepare_s",
        "workspace_bytes", "launches", "flops", "least_bytes", "digest", "library_versions", "note", "weights",
        "carried",
    }  # fmt: skip
    assert set(lines[1]["error"]) == {"rms", "max", "bound_ratio"}
    assert {"median_s", "spread", "samples", "noisy", "ring", "cold"} <= set(lines[1]["time"])


def test_records_from_before_there_were_steps_are_read(tmp_path: Path) -> None:
    record = {name: value for name, value in RESULT.to_record().items() if name not in ("steps", "transfer_time")}
    (old,) = load_run(stored(tmp_path, record)).results
    assert old == dataclasses.replace(RESULT, steps=())


def test_a_record_is_on_the_disk_before_the_store_is_closed(tmp_path: Path) -> None:
    store = Store.create(tmp_path, HEADER)
    store.append(RESULT.to_record())
    assert load_run(store.path).results == (RESULT,)
    store.close()


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_a_torn_last_line_loses_itself_alone(tmp_path: Path, cut: int) -> None:
    second = result(algorithm="rival", ours=False)
    path = stored(tmp_path, RESULT.to_record(), second.to_record())
    path.write_bytes(path.read_bytes()[:-cut])
    assert load_run(path).results == (RESULT,)
    with Store.resume(path) as store:
        store.append(second.to_record())
        store.append({"kind": "end", "complete": True})
    assert load_run(path).results == (RESULT, second)
    assert load_run(path).complete


def test_damage_inside_is_named(tmp_path: Path) -> None:
    path = stored(tmp_path, RESULT.to_record(), RESULT.to_record())
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:50], lines[2]]) + "\n")
    with pytest.raises(ValueError, match="line 2 is damaged"):
        load_run(path)
    broken = {name: value for name, value in RESULT.to_record().items() if name != "status"}
    with pytest.raises(ValueError, match=r"line 2: .*status"):
        load_run(stored(tmp_path / "b", broken))
    with pytest.raises(ValueError, match="unknown kind 'else'"):
        load_run(stored(tmp_path / "c", {"kind": "else"}))


@pytest.mark.parametrize(
    "text", ["", "{}\n", '{"kind":"result"}\n', '{"kind":"run","schema":99}\n', '{"kind":"run","schema":1}\n', "[]\n"]
)
def test_a_file_that_is_no_run_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.jsonl"):
        load_run(path)


def test_a_result_that_is_not_ok_cannot_have_a_time() -> None:
    with pytest.raises(ValueError, match="has no time"):
        Result.from_record(RESULT.to_record() | {"status": "failed"})
    times = {"time": None, "prepared_time": None}
    with pytest.raises(ValueError, match="has no time"):
        Result.from_record(RESULT.to_record() | times | {"status": "failed"})
    assert Result.from_record(RESULT.to_record() | times | {"status": "failed", "steps": []}).status == "failed"


def test_not_a_number_is_stored_as_null(tmp_path: Path) -> None:
    record = RESULT.to_record()
    record["error"] = {"rms": math.nan, "max": math.inf, "bound_ratio": 2.0}
    (back,) = load_run(stored(tmp_path, record)).results
    assert back.error is not None
    assert (back.error.rms, back.error.max, back.error.bound_ratio) == (None, None, 2.0)


def test_of_two_records_of_a_row_the_later_counts_and_the_old_final_falls(tmp_path: Path) -> None:
    final = Finalists("square_8", (Finalist("honest", "", Timing((9.0,))),))
    later = result(samples=[5.0])
    run = load_run(stored(tmp_path, RESULT.to_record(), final.to_record(), later.to_record()))
    assert run.results == (later,)
    assert not run.finals


def test_a_folder_is_read_with_its_folders_oldest_first(tmp_path: Path) -> None:
    stored(tmp_path / "b", run="one")
    stored(tmp_path / "a", run="two")
    assert [run.run for run in load_runs(tmp_path)] == ["one", "two"]
    assert load_runs(tmp_path / "a" / "two.jsonl")[0].run == "two"
    with pytest.raises(FileNotFoundError):
        load_runs(tmp_path / "none")


def test_only_an_unfinished_run_of_the_same_choice_can_be_resumed(tmp_path: Path) -> None:
    path = stored(tmp_path, RESULT.to_record())
    assert unfinished(tmp_path, "made-up", {"methods": []}) == path
    assert unfinished(tmp_path, "made-up", {"methods": ["direct*"]}) is None
    assert unfinished(tmp_path, "another", {"methods": []}) is None
    assert unfinished(tmp_path / "none", "made-up", {}) is None
    assert unfinished(tmp_path, "made-up", {"methods": [], "later": False}) == path, "older than the setting"
    assert unfinished(tmp_path, "made-up", {"methods": [], "later": True}) is None
    with Store.resume(path) as store:
        store.append({"kind": "end", "complete": True})
    assert unfinished(tmp_path, "made-up", {"methods": []}) is None


def test_ids_are_file_names() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert run_id("a/b c", when) == "a-b-c-20260102T030405Z"


def test_an_existing_run_is_never_overwritten(tmp_path: Path) -> None:
    first, second = stored(tmp_path, RESULT.to_record()), stored(tmp_path)
    assert [load_run(path).run for path in (first, second)] == ["made-up-1", "made-up-1-2"]
    assert load_run(first).results == (RESULT,)
