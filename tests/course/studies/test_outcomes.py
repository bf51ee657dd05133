"""The rules find in the stored runs what they found when outcomes.txt was written."""

from __future__ import annotations

import pytest
from tests.course.studies.outcomes import RUNS, kept, outcome

from convforge.course.studies import STUDIES

KEPT = kept()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", STUDIES)
def test_outcomes_are_as_kept(name: str) -> None:
    asked = {(run, study): found for (run, study), found in KEPT.items() if study == name and run in RUNS}
    assert asked, "python -m tests.course.studies.outcomes"
    assert {key: outcome(name, RUNS[key[0]]) for key in asked} == asked
