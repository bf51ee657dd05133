"""Tables and verdicts from made-up results: change the figures and the words must change."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from tests.benchmark.fakes import result, run

from convforge.benchmark.frame import select
from convforge.benchmark.markers import view_markdown
from convforge.benchmark.records import CopyTime, Error, Finalist, Finalists, Result, StepTime
from convforge.benchmark.tables import csv_table, markdown_table, rich_tables, tables_of
from convforge.benchmark.verdicts import judge
from convforge.timing.ceilings import Ceilings
from convforge.timing.timer import Timing

FAST, SLOW, NEAR = (1e-3, 1.01e-3, 1.02e-3), (2e-3, 2.02e-3, 2.04e-3), (1.005e-3, 1.015e-3, 1.025e-3)


def shown(width: int = 200, **pair: tuple[float, ...]) -> str:
    return markdown_table(run(*(result(algorithm=name, samples=s, ours=name != "rival") for name, s in pair.items())))


def test_the_faster_one_wins_whichever_it_is() -> None:
    assert "honest, 2.00x ahead of rival" in shown(honest=FAST, rival=SLOW)
    assert "rival, 2.00x ahead of honest" in shown(honest=SLOW, rival=FAST)


def test_times_closer_than_their_spreads_are_a_tie() -> None:
    assert "tie: honest, rival" in shown(honest=FAST, rival=NEAR)
    verdict = judge(run(result(samples=FAST), result(algorithm="rival", samples=NEAR, ours=False)), "square_8")
    assert verdict.order == "level"
    assert len(verdict.fastest) == 2


def test_the_final_overrules_the_first_timing() -> None:
    ours, peer = result(samples=FAST), result(algorithm="rival", samples=SLOW, ours=False)
    final = Finalists("square_8", (Finalist("honest", "", Timing(SLOW)), Finalist("rival", "", Timing(FAST))))
    assert judge(run(ours, peer), "square_8").fastest == (ours,)
    assert judge(run(ours, peer, finals=(final,)), "square_8").fastest == (peer,)


def test_a_narrower_arithmetic_is_shown_but_never_wins() -> None:
    narrow = result(algorithm="narrow", samples=(1e-6,) * 3, precision="tf32")
    verdict = judge(run(result(samples=FAST), narrow), "square_8")
    assert [r.algorithm for r in verdict.fastest] == ["honest"]
    assert "narrow (tf32)" in markdown_table(run(result(samples=FAST), narrow))
    asked = result(algorithm="narrow", samples=(1e-6,) * 3, precision="tf32", problem="m8n8k8_f32_math-tf32")
    assert [r.algorithm for r in judge(run(asked), "square_8").fastest] == ["narrow"]


def test_cells_say_ms_and_gflops_and_whose_best_it_is() -> None:
    text = shown(honest=(1e-6,) * 3, rival=(2e-6,) * 3)  # 1024 operations
    assert "**\\*0.00100 / 1.02**" in text
    assert "_\\*0.00200 / 0.512_" in text


def test_noise_staleness_and_the_largest_error_are_marked() -> None:
    noisy = result(time=Timing(FAST, noisy=True), error=Error(3e-5, 1.0, 0.5))
    (table,) = tables_of(run(noisy))
    assert table.rows[0][2].text.startswith("~*")
    assert table.rows[-1][2].text == "3.0e-05"


def test_what_has_no_time_is_listed_with_its_reason() -> None:
    text = markdown_table(
        run(
            result(),
            result(algorithm="picky", status="refused", reason="it would rather not"),
            result(algorithm="silent", status="failed", reason="output not written", case="square_9"),
        )
    )
    assert "picky refused on square\\_8: it would rather not" in text
    assert "silent failed on square\\_9: output not written" in text
    assert "| - |" in text  # nothing was timed for square_9


def test_hot_and_few_are_said() -> None:
    text = markdown_table(run(result(time=Timing(FAST, few=True, cold=False))))
    assert "Hot in the cache" in text
    assert "Fewer samples" in text
    assert "Hot in the cache" not in shown(honest=FAST)


def test_a_run_that_moved_or_did_not_end_is_doubtful() -> None:
    ceilings = (("before", Ceilings(1e9, 1e9)), ("after", Ceilings(2e9, 1e9)))
    text = markdown_table(run(result(), ceilings=ceilings, complete=False))
    assert "did not hold still" in text
    assert "not complete" in text


def test_every_operation_has_its_own_table_and_cases_stand_in_natural_order() -> None:
    found = tables_of(
        run(result(case="a_1024"), result(case="a_64"), result(case="r", algorithm="relu", problem="relu64_f32"))
    )
    assert [t.names for t in found] == [("case", "stride", "honest", "fastest"), ("case", "stride", "relu", "fastest")]
    assert [row[0].text for row in found[0].rows] == ["a_64", "a_1024", "largest RMS error"]


def test_several_configs_of_a_method_are_several_columns() -> None:
    (table,) = tables_of(run(result(config="tile=1", samples=SLOW), result(config="tile=2", samples=FAST)))
    assert table.names[2:] == ("honest[tile=1]", "honest[tile=2]", "fastest")
    assert table.rows[0][-1].text == "honest[tile=2]"


def test_choosing_rows_and_columns() -> None:
    conv = "n1c1h{0}w{0}_k1r3s3_st{1}_p1_f32_nchw"
    many = run(
        *(
            result(case=f"c{h}s{s}", algorithm=name, problem=conv.format(h, s))
            for h in (8, 16)
            for s in (1, 2)
            for name in ("direct_a", "fft")
        )
    )
    (table,) = tables_of(many, select(many, methods=["direct*"], sizes=[16], strides=[2]))
    assert table.names == ("case", "stride", "direct_a", "fastest")
    assert [row[0].text for row in table.rows[:-1]] == ["c16s2"]
    assert table.rows[0][1].text == "2"
    (table,) = tables_of(many, select(many, cases=["c8*"]))
    assert [row[0].text for row in table.rows[:-1]] == ["c8s1", "c8s2"]


def test_csv_has_every_result_whatever_its_status() -> None:
    text = csv_table(run(result(samples=FAST), result(algorithm="picky", status="refused", reason="a, b")))
    first, second = csv.DictReader(io.StringIO(text))
    assert (first["ms"], first["gflops"], first["rms_error"], first["fastest"]) == (
        "1.01",
        "0.00101386",
        "1e-07",
        "True",
    )
    assert (second["status"], second["reason"], second["ms"]) == ("refused", "a, b", "")


@pytest.mark.parametrize("width", [60, 100, 400])
def test_the_terminals_table_shows_every_method_at_any_width(width: int) -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width)
    console.print(rich_tables(run(*(result(algorithm=f"method_{i}") for i in range(12))), width))
    file = console.file
    assert isinstance(file, io.StringIO)
    text = file.getvalue()
    assert all(f"method_{i}" in text for i in range(12))
    assert max(map(len, text.splitlines())) <= width
    heads = text.count("stride")
    assert heads == 1 if width == 400 else heads > 1


def test_an_empty_run_has_a_table_too() -> None:
    assert "Measured 2026-01-02 on A Test, 2 cores, commit 0123456789" in markdown_table(run())


def with_transfer() -> tuple[Result, ...]:
    """Two of ours and a rival; the slower of ours on the device is the faster one on host arrays."""
    return (
        result(algorithm="first", samples=FAST, transfer_time=Timing((8e-3,) * 3)),
        result(algorithm="second", samples=SLOW, transfer_time=Timing((6e-3,) * 3, noisy=True)),
        result(algorithm="rival", samples=SLOW, ours=False, transfer_time=Timing((1e-3,) * 3)),
    )


def test_a_column_with_transfer_where_it_was_measured() -> None:
    (table,) = tables_of(run(*with_transfer()))
    assert table.names[-2:] == ("with transfer", "fastest")
    assert table.rows[0][-2].text == "~6.00 (second)"
    assert all(len(row) == len(table.names) for row in table.rows)
    assert any("copies to and from the device" in note for note in table.notes)
    (plain,) = tables_of(run(result(samples=FAST)))
    assert "with transfer" not in plain.names
    assert not plain.notes


def test_transfers_in_the_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table(run(*with_transfer())))))
    assert [row["transfer_ms"] for row in rows] == ["8", "6", "1"]


CEILINGS = (("before", Ceilings(1e12, 1e12)), ("after", Ceilings(9e11, 1e12)))


def stepped(case: str = "square_8", *, cold: bool = True, scale: float = 1.0, **more: Any) -> Result:
    """A result of two steps: 0.12 ms for 96 MB, and 0.36 ms."""
    steps = (
        StepTime("expansion", Timing((scale * 0.12e-3,) * 3, cold=cold), 2, 96_000_000),
        StepTime("product", Timing((scale * 0.36e-3,) * 3, noisy=True, cold=cold), 2),
    )
    call = Timing((scale * 0.5e-3,) * 3)
    return result(case=case, algorithm="im2col", samples=SLOW, steps=steps, prepared_time=call, **more)


def test_the_steps_stand_below_the_table_in_a_line() -> None:
    (table,) = tables_of(run(stepped(), result(algorithm="rival", ours=False), ceilings=CEILINGS))
    assert table.notes == ("im2col: expansion 0.120 ms (80 % of the copy ceiling), product 0.360 ms",)
    (table,) = tables_of(run(stepped(cold=False), ceilings=CEILINGS))
    assert table.notes == ("im2col: expansion 0.120 ms (80 % of the copy ceiling, hot in the cache), product 0.360 ms",)
    (table,) = tables_of(run(stepped()))
    assert table.notes == ("im2col: expansion 0.120 ms, product 0.360 ms",), "no ceilings were measured"


def test_of_many_cases_the_largest_are_told() -> None:
    many = [stepped(f"square_{n}", scale=n, problem=f"m{n}n{n}k{n}_f32") for n in (8, 2, 16, 4)]
    (table,) = tables_of(run(*many))
    (note,) = table.notes
    assert note.startswith("im2col: on square_16 expansion 1.92 ms, product 5.76 ms; on square_8 expansion 0.960 ms")
    assert note.endswith("; and on square_2")


def test_the_table_of_steps() -> None:
    made = run(stepped(), stepped("square_64"), result(case="square_9"), ceilings=CEILINGS)
    text = view_markdown("steps", made, made.results)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert lines[0][:5] == ["case", "method", "step", "launches", "ms"]
    assert [line[0] for line in lines[2:]] == ["square\\_8"] * 3 + ["square\\_64"] * 3, "square_9 has no steps"
    expansion, product, call = lines[2:5]
    assert expansion[2:] == ["expansion", "2", "\\*0.120", "25 %", "96.0", "800", "80 %", "cold"]
    assert product[2:] == ["product", "2", "~\\*0.360", "75 %", "", "", "", "cold"]
    assert call[2:6] == ["the call, prepared", "", "0.500", "104 %"]
    with pytest.raises(ValueError, match="measure with --steps"):
        view_markdown("steps", run(result()), [result()])


def test_steps_in_the_csv() -> None:
    stepping, plain = csv.DictReader(io.StringIO(csv_table(run(stepped(), result(algorithm="honest")))))
    assert (stepping["steps"], plain["steps"]) == ("expansion=0.12 product=0.36", "")


def test_the_fastest_of_a_methods_configs_alone() -> None:
    many = (
        result(config="tile=1", samples=SLOW), result(config="tile=2", samples=FAST),
        result(config="tile=3", samples=NEAR), result(config="tile=4", status="error", reason="it broke"),
        result(case="square_9", config="tile=1", status="refused", reason="no"),
        result(algorithm="rival", samples=SLOW, ours=False),
    )  # fmt: skip
    (table,) = tables_of(run(*many), best=True)
    assert table.names == ("case", "stride", "honest", "rival", "fastest")
    assert [row[2].text.split(" / ")[0] for row in table.rows[:2]] == ["*1.01", "refused"]
    assert table.rows[0][-1].text == "honest, 2.00x ahead of rival", "two configs of one method do not tie"
    assert table.rows[0][2].look == "best"


def copied(case: str = "square_8", seconds: float = 0.5e-3, **more: Any) -> CopyTime:
    """A copy of as many bytes as the product of two 8x8 matrices moves."""
    return CopyTime(case, 768, Timing((seconds,) * 3, **more))


def test_the_share_of_a_copy_in_place_of_gflops() -> None:
    results = (
        result(samples=(1e-3,) * 3, prepared_time=Timing((0.8e-3,) * 3)),
        result(algorithm="rival", samples=(2e-3,) * 3, ours=False),
    )
    both = run(*results, result(case="square_9"), copies=(copied(),))
    (table,) = tables_of(both, copy=True)
    assert table.names == ("case", "stride", "honest", "rival", "a copy", "fastest")
    assert [cell.text for cell in table.rows[0][2:5]] == ["*1.00 / 50 %", "*2.00 / 25 %", "0.500 / 0.00154 GB/s"]
    assert [cell.text for cell in table.rows[1][2:5]] == ["*1.00 / -", "", "-"]
    assert all(len(row) == len(table.names) for row in table.rows)
    assert "share of a copy" in markdown_table(both, copy=True)
    assert "nominal GFLOP/s" not in markdown_table(both, copy=True)


def test_a_copy_of_a_few_bytes_more_counts_by_its_bandwidth() -> None:
    twice = run(result(samples=(1e-3,) * 3), copies=(CopyTime("square_8", 1536, Timing((1e-3,) * 3)),))
    assert twice.of_copy(twice.results[0], twice.timing(twice.results[0])) == pytest.approx(0.5)


def test_the_shares_stand_below_the_table_where_memory_is_the_limit() -> None:
    many = [result(case=f"square_{n}", problem=f"m{n}n{n}k{n}_f32", samples=(n * 1e-3,) * 3) for n in (8, 16, 512)]
    copies = tuple(CopyTime(r.case, r.least_bytes, Timing((0.4e-3 * i,) * 3)) for i, r in enumerate(many, 1))
    ceilings = (("before", Ceilings(20e9, 100e9)),)  # 5 operations a byte; the products do 1.3, 2.7 and 85
    (table,) = tables_of(run(*many, copies=copies, ceilings=ceilings))
    assert table.notes[-1] == "Of a copy of the same bytes, where memory is the limit: honest 5.0 %."
    (table,) = tables_of(run(*many, copies=copies))
    assert table.notes[-1] == "Of a copy of the same bytes, where memory is the limit: honest 0.2 % to 5.0 %."
    (table,) = tables_of(run(*many, ceilings=ceilings))
    assert table.notes == (), "an older run"
    (alone,) = tables_of(run(many[0], copies=copies[1:]))
    assert alone.notes == ()


def test_copies_in_the_csv() -> None:
    results = result(samples=(1e-3,) * 3), result(algorithm="picky", status="refused", reason="no")
    first, second = csv.DictReader(io.StringIO(csv_table(run(*results, copies=(copied(),)))))
    assert (first["copy_ms"], first["of_copy"]) == ("0.5", "0.5")
    assert (second["copy_ms"], second["of_copy"]) == ("0.5", "")
    (old,) = csv.DictReader(io.StringIO(csv_table(run(result()))))
    assert (old["copy_ms"], old["of_copy"]) == ("", "")
