"""What one change of a config does, from made-up results."""

from __future__ import annotations

from typing import Any

import pytest
from tests.benchmark.fakes import result, run

from convforge.benchmark.config_tables import config_tables, field_tables
from convforge.benchmark.markers import view_markdown
from convforge.benchmark.records import Result


def tried(config: str, ms: float, algorithm: str = "boxes", **more: Any) -> Result:
    """A result in a config."""
    return result(algorithm=algorithm, config=config, samples=(1e-3 * ms,) * 3, **more)


BOXES = (
    tried("strips=4,grain=128,stages=2", 2.0),
    tried("strips=8,grain=64,stages=2", 1.0),
    tried("strips=4,grain=16,stages=2", 3.0),
    tried("strips=4,grain=128,stages=3", 1.5),
)


def test_columns_are_changes_of_one_field_and_the_first_config_is_the_default() -> None:
    (table,) = config_tables(run(), BOXES)
    assert table.names == ("case", "method", "default", "grain=16", "stages=3", "the default")
    (row,) = table.rows
    assert [cell.text for cell in row] == [
        "square_8", "boxes", "*2.00", "*3.00", "*1.50", "strips=4,grain=128,stages=2",
    ]  # fmt: skip
    assert [cell.look for cell in row] == ["", "", "", "", "best", ""]


def test_each_case_has_its_own_default_and_cases_stand_in_natural_order() -> None:
    others = (tried("a=1,b=2", 4.0, case="square_16"), tried("a=1,b=3", 5.0, case="square_16"))
    (table,) = config_tables(run(), (*others, *BOXES))
    assert table.names[3:-1] == ("b=3", "grain=16", "stages=3")
    assert [row[0].text for row in table.rows] == ["square_8", "square_16"]
    assert [cell.text for cell in table.rows[1]][2:] == ["*4.00", "*5.00", "", "", "a=1,b=2"]
    assert [cell.look for cell in table.rows[1]][2:] == ["best", "", "", "", ""]


def test_configs_without_a_time_say_why() -> None:
    failed = result(algorithm="boxes", config="strips=4,grain=16,stages=2", status="failed", reason="wrong")
    (table,) = config_tables(run(), (BOXES[0], failed))
    (row,) = table.rows
    assert [cell.text for cell in row][2:-1] == ["*2.00", "failed"]


def test_methods_with_one_config_or_none_that_differs_in_one_field_have_no_row() -> None:
    with pytest.raises(ValueError, match="with one field of its config changed: measure with --all-configs"):
        view_markdown("configs", run(), (*BOXES[:2], tried("n=1", 1.0, "single")))


def test_each_value_of_a_field_of_words_has_its_fastest_config() -> None:
    every = (
        tried("patch=True,pairs=none,columns=64", 2.0), tried("patch=True,pairs=filters,columns=96", 1.5),
        tried("patch=False,pairs=none,columns=64", 4.0), tried("patch=False,pairs=none,columns=96", 3.0),
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
