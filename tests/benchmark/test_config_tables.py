"""Tables of what was tried of a method, from made-up results: by shape of block and by field of a config."""

from __future__ import annotations

from typing import Any

import pytest
from tests.benchmark.fakes import result, run

from convforge.algorithms import ON_DEVICE
from convforge.backends.facts import DeviceFacts
from convforge.benchmark.config_tables import Shape, block_tables, config_tables, field_tables, shape_of
from convforge.benchmark.markers import view_markdown
from convforge.benchmark.records import Result
from convforge.problem import parse_problem
from convforge.timing.timer import Timing

H200 = DeviceFacts(
    backend="cuda", name="H200", cores=132, l1_bytes=0, l2_bytes=60 << 20, l3_bytes=0, memory_bytes=140 << 30,
    vector_bytes=16, architecture="sm_90", block_shared_bytes=232448, shared_bytes=233472, registers=65536,
    threads=2048,
)  # fmt: skip


def tried(algorithm: str, config: str, ms: float, occupancy: float | None = 0.5, **more: Any) -> Result:
    """A result in a config."""
    launch = {"kernel": algorithm, "grid": [1], "block": [1], "occupancy": occupancy}
    samples = (1e-3 * ms, 1.01e-3 * ms, 1.02e-3 * ms)
    return result(algorithm=algorithm, config=config, samples=samples, launches=(launch,), **more)


NAIVE = (
    tried("naive", "block_x=32,block_y=4,partition=pixel", 2.0, 0.62),
    tried("naive", "block_x=8,block_y=8,partition=pixel", 4.0),
    tried("naive", "block_x=32,block_y=4,partition=row", 8.0),
)
SHARED = (tried("shared", "block=8", 3.0), tried("shared", "block=16", 1.0, None))
TILED = (
    tried("tiled", "block_m=128,block_n=64,block_k=8,thread_m=8,thread_n=8", 1.0),
    tried("tiled", "block_m=128,block_n=64,block_k=16,thread_m=8,thread_n=8", 0.5),
    tried("tiled", "block_m=32,block_n=32,block_k=8,thread_m=4,thread_n=4", 0.505),
)


def test_columns_are_shapes_from_the_smallest_and_partitions_come_last() -> None:
    (table,) = block_tables(run(), NAIVE + SHARED)
    assert table.names == ("case", "method", "8x8", "32x4", "16x16", "32x4 row", "fastest")
    naive, shared = table.rows
    assert [cell.text for cell in naive] == [
        "square_8", "naive", "*4.04 (50 %)", "*2.02 (62 %)", "", "*8.08 (50 %)", "32x4, the default",
    ]  # fmt: skip
    assert [cell.look for cell in naive] == ["", "", "", "best", "", "", ""]
    assert [cell.text for cell in shared][2:] == [
        "*3.03 (50 %)",
        "",
        "*1.01",
        "",
        "16x16, 3.00x ahead of the default, 8x8",
    ]


def test_tiles_stand_apart_and_of_several_with_one_shape_the_fastest() -> None:
    threads, tiles = block_tables(run(), NAIVE + TILED)
    assert threads.names[2] == "8x8"
    assert tiles.names == ("case", "method", "32x32", "128x64", "fastest")
    assert [cell.text for cell in tiles.rows[0]][2:] == [
        "*0.510 (50 %)", "*0.505 (50 %)", "128x64 with block_k=16, 2.00x ahead of the default",
    ]  # fmt: skip


def test_what_is_no_faster_than_the_default_by_more_than_the_spreads_is_level_with_it() -> None:
    (table,) = block_tables(run(), (tried("a", "block=32", 1.001), tried("a", "block=16", 1.0)))
    assert table.rows[0][-1].text == "16x16, level with the default, 32x32"


def test_shapes_without_a_time_say_why_and_cases_stand_in_natural_order() -> None:
    bad = result(algorithm="a", config="block=32", status="failed", reason="wrong")
    cases = [tried("a", f"block={n}", 1.0, case=f"square_{size}") for size in (16, 9) for n in (8, 16)]
    (table,) = block_tables(run(), (bad, tried("a", "block=8", 1.0, time=Timing((1e-3,), noisy=True)), *cases))
    assert [row[0].text for row in table.rows] == ["square_8", "square_9", "square_16"]
    assert [cell.text for cell in table.rows[0]][2:] == [
        "~*1.00 (50 %)", "", "failed", "8x8; the default, 32x32, has no time",
    ]  # fmt: skip
    (table,) = block_tables(run(), (bad, result(algorithm="a", config="block=8", status="error", reason="it broke")))
    assert table.rows[0][-1].text == "-"


def test_methods_without_shapes_and_runs_with_one_shape_each_have_no_such_table() -> None:
    assert block_tables(run(), (tried("a", "columns=4", 1.0), tried("a", "columns=8", 1.0))) == []
    single = run(tried("a", "block=8", 1.0), tried("b", "block=16", 1.0))
    with pytest.raises(ValueError, match="measure with --all-configs"):
        view_markdown("blocks", single, single.results)


def test_the_markdown_chooses_and_explains() -> None:
    text = view_markdown("blocks", run(*NAIVE, *SHARED, *TILED), [*SHARED, *TILED])
    assert "naive" not in text
    assert "| **\\*1.01** |" in text
    assert "occupancy: resident warps" in text
    assert "along q and along p" in text
    assert "rows x columns" in text


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1c3h2048w2048_k1r3s3_st1_p1_f32_nchw", ("direct_naive", "direct_constant", "direct_shared", "direct_tiled")),
        ("m2048n2048k2048_f32", ("gemm_naive", "gemm_shared", "gemm_tile_1d", "gemm_tile_2d", "gemm_vectorised",
                                 "gemm_warp_tiled")),
    ],
)  # fmt: skip
def test_every_step_of_the_ladders_has_shapes_to_compare(text: str, names: tuple[str, ...]) -> None:
    problem = parse_problem(text)
    for method in ON_DEVICE:
        if method.backend == "cuda" and method.name in names:
            shapes = {shape_of(str(config)) for config in method.configs(problem, H200)}
            assert None not in shapes, method.name
            assert len(shapes) >= 2, method.name
    threads = {shape_of(str(c)) for a in ON_DEVICE if a.key == ("gemm", "cuda", "gemm_shared")
               for c in a.configs(parse_problem("m2048n2048k2048_f32"), H200)}  # fmt: skip
    assert threads == {Shape("threads", n, n) for n in (8, 16, 24, 32)}


def boxes(config: str, ms: float, algorithm: str = "boxes", **more: Any) -> Result:
    """A result in a config."""
    return result(algorithm=algorithm, config=config, samples=(1e-3 * ms,) * 3, **more)


BOXES = (
    boxes("strips=4,alignment=128,stages=2", 2.0),
    boxes("strips=8,alignment=64,stages=2", 1.0),
    boxes("strips=4,alignment=16,stages=2", 3.0),
    boxes("strips=4,alignment=128,stages=3", 1.5),
)


def test_columns_are_changes_of_one_field_and_the_first_config_is_the_default() -> None:
    (table,) = config_tables(run(), BOXES)
    assert table.names == ("case", "method", "default", "alignment=16", "stages=3", "the default")
    (row,) = table.rows
    assert [cell.text for cell in row] == [
        "square_8", "boxes", "*2.00", "*3.00", "*1.50", "strips=4,alignment=128,stages=2",
    ]  # fmt: skip
    assert [cell.look for cell in row] == ["", "", "", "", "best", ""]


def test_each_case_has_its_own_default_and_cases_stand_in_natural_order() -> None:
    others = (boxes("a=1,b=2", 4.0, case="square_16"), boxes("a=1,b=3", 5.0, case="square_16"))
    (table,) = config_tables(run(), (*others, *BOXES))
    assert table.names[3:-1] == ("alignment=16", "b=3", "stages=3")
    assert [row[0].text for row in table.rows] == ["square_8", "square_16"]
    assert [cell.text for cell in table.rows[1]][2:] == ["*4.00", "", "*5.00", "", "a=1,b=2"]
    assert [cell.look for cell in table.rows[1]][2:] == ["best", "", "", "", ""]


def test_configs_without_a_time_say_why() -> None:
    failed = result(algorithm="boxes", config="strips=4,alignment=16,stages=2", status="failed", reason="wrong")
    (table,) = config_tables(run(), (BOXES[0], failed))
    (row,) = table.rows
    assert [cell.text for cell in row][2:-1] == ["*2.00", "failed"]


def test_methods_with_one_config_or_none_that_differs_in_one_field_have_no_row() -> None:
    with pytest.raises(ValueError, match="with one field of its config changed: measure with --all-configs"):
        view_markdown("configs", run(), (*BOXES[:2], boxes("n=1", 1.0, "single")))


def test_each_value_of_a_field_of_words_has_its_fastest_config() -> None:
    every = (
        boxes("patch=True,pairs=none,columns=64", 2.0), boxes("patch=True,pairs=filters,columns=96", 1.5),
        boxes("patch=False,pairs=none,columns=64", 4.0), boxes("patch=False,pairs=none,columns=96", 3.0),
        result(algorithm="boxes", config="patch=False,pairs=pixels,columns=96", status="failed", reason="wrong"),
    )  # fmt: skip
    (table,) = field_tables(run(), every)
    assert table.names == ("case", "method", "fastest", "patch", "pairs", "the fastest")
    (row,) = table.rows
    assert [cell.text for cell in row[2:]] == [
        "*1.50", "True *1.50, False *3.00", "filters *1.50, none *2.00", every[1].config,
    ]  # fmt: skip
    assert row[2].look == "best"
    with pytest.raises(ValueError, match="no method with two values of a field"):
        view_markdown("fields", run(), every[:1])
