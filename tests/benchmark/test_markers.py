"""Tables in documents: written between markers from stored results, and a check that fails when they differ."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from tests.benchmark.fakes import result, run
from tests.benchmark.test_store import HEADER
from typer.testing import CliRunner

from convforge.benchmark.markers import main, marker_specs, table_of, update_files, update_markers
from convforge.benchmark.records import StepTime
from convforge.benchmark.store import Store
from convforge.timing.timer import Timing

DOCUMENT = """# Title

<!-- table:made-up -->
old
<!-- end -->

Text.

<!-- table:made-up methods=rival -->
<!-- end -->
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    with Store.create(folder / "test-2c", HEADER) as store:
        store.append(result().to_record())
        store.append(result(algorithm="rival", ours=False).to_record())
        store.append({"kind": "end", "complete": True})
    return folder


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "README.md"
    path.write_text(DOCUMENT)
    return path


def call(*words: object) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(main)
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def test_shares_of_a_copy(results: Path) -> None:
    from convforge.benchmark.records import CopyTime
    from convforge.benchmark.store import load_runs

    with Store.resume(next(results.rglob("*.jsonl"))) as store:
        store.append(CopyTime("square_8", 768, Timing((0.25e-3,) * 3)).to_record())
        store.append({"kind": "end", "complete": True})
    runs = load_runs(results)
    assert "| a copy |" in table_of("made-up copy=yes", runs)
    assert "1.00 / 25 %" in table_of("made-up copy=yes", runs)
    assert "honest 25 %; rival 25 %" in table_of("made-up", runs)
    with pytest.raises(ValueError, match="copy goes with view=cases alone"):
        table_of("made-up view=steps copy=yes", runs)


def test_tables_are_written_once_and_stay(results: Path, document: Path) -> None:
    assert update_files([document], results) == [document]
    text = document.read_text()
    assert "| honest |" in text
    assert (text.count("| honest |"), text.count("| rival |")) == (1, 2)
    assert "-->\nold" not in text
    assert text.startswith("# Title\n\n<!-- table:made-up -->\n")
    assert "\n<!-- end -->\n\nText.\n" in text
    assert update_files([document], results) == []


def test_the_check_fails_on_a_changed_table_and_writes_nothing(results: Path, document: Path) -> None:
    assert call(document, "--results", results)[0] == 0
    assert call(document, "--results", results, "--check")[0] == 0
    changed = document.read_text().replace("/ 0.00102", "/ 0.00999")
    assert changed != document.read_text()
    document.write_text(changed)
    code, said = call(document, "--results", results, "--check")
    assert code == 1
    assert "out of date" in said
    assert document.read_text() == changed


def test_the_check_fails_when_the_results_change(results: Path, document: Path) -> None:
    call(document, "--results", results)
    with Store.create(results / "test-2c", HEADER | {"run": "later", "started": "2027-01-01T00:00:00+00:00"}) as store:
        store.append(result(samples=(5e-3,) * 3).to_record())
        store.append(result(algorithm="rival", ours=False).to_record())
        store.append({"kind": "end", "complete": True})
    assert call(document, "--results", results, "--check")[0] == 1


def test_documents_without_markers_are_left_alone_and_need_no_results(tmp_path: Path) -> None:
    path = tmp_path / "plain.md"
    path.write_text("plain\n")
    assert update_files([path], tmp_path / "none") == []


@pytest.mark.parametrize(
    "text", ["<!-- table:a -->\nold\n", "<!-- table:a -->\n<!-- table:b -->\n<!-- end -->\n", "x\n<!-- table:a -->"]
)
def test_an_open_marker_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not closed"):
        marker_specs(text)


def test_a_marker_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="names table 'a'"):
        update_markers("<!-- table:a -->\n<!-- end -->\n", {"b": ""})


@pytest.mark.parametrize(
    "spec, said",
    [
        ("made-up size=3", "option 'size=3'"),
        ("made-up sizes=x", "sizes=x"),
        ("none", "no complete run"),
        ("made-up view=none", "option 'view=none'"),
        ("made-up view=steps best=yes", "best goes with view=cases"),
        ("made-up view=sentence methods=direct*", "leave out methods="),
        ("made-up view=ahead methods=direct*", "leave out methods="),
        ("made-up view=steps", "measure with --steps"),
        ("made-up view=blocks", "measure with --all-configs"),
        ("made-up view=configs", "with one field of its config changed: measure with --all-configs"),
        ("made-up device=other", "no complete run"),
    ],
)
def test_a_marker_that_asks_for_what_is_not_there_is_refused(spec: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        table_of(spec, [run(result())])


def test_views_and_the_best_of_several_configs() -> None:
    configs = [result(config=f"block={n}", samples=(n * 1e-3,) * 3) for n in (8, 16)]
    steps = (StepTime("a", Timing((1e-3,)), 1), StepTime("b", Timing((2e-3,)), 1))
    made = run(*configs, result(algorithm="stepped", steps=steps))
    assert "| honest[block=16] |" in table_of("made-up", [made])
    assert "| case | stride | honest | stepped | fastest |" in table_of("made-up best=yes", [made])
    assert "| case | method | 8x8 | 16x16 | fastest |" in table_of("made-up view=blocks methods=honest", [made])
    assert "| case | method | default | block=16 | the default |" in table_of("made-up view=configs", [made])
    assert "| stepped | b | 1 |" in table_of("made-up view=steps", [made])


def test_an_unfinished_run_makes_no_table() -> None:
    with pytest.raises(ValueError, match="no complete run"):
        table_of("made-up", [run(result(), complete=False)])
    cut_off = run(result(algorithm="cut_off"), complete=False)
    assert "| cut_off |" in table_of(f"made-up run={cut_off.run}", [cut_off])
    with pytest.raises(ValueError, match="no complete run"):
        table_of("made-up run=another", [cut_off])
    assert "| honest |" in table_of("made-up", [run(result())])


def test_a_document_at_fault_ends_in_one_line(results: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.md"
    path.write_text("<!-- table:none -->\n<!-- end -->\n")
    code, said = call(path, "--results", results)
    assert code == 2
    assert said.startswith("markers: no complete run is stored for table 'none'")
