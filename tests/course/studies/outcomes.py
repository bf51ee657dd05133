"""The outcomes of all rules on the stored runs, kept in outcomes.txt: a change of the code must not change them.

``python -m tests.course.studies.outcomes`` writes the file after runs were stored or a rule was changed on purpose.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.course.studies.stored import stored_runs

from convforge.benchmark.records import Run
from convforge.course.studies import STUDIES
from convforge.course.studies.published import TABLES

FILE = Path(__file__).with_name("outcomes.txt")
RUNS = {
    f"{run.device}/{run.path.name}".replace(" ", "-"): run
    for run in (*stored_runs(), *(table.run for table in TABLES.values()))
}


def outcome(name: str, run: Run) -> str:
    """The forms of a study's findings on a run, each with its number; those without support are marked."""
    found = Counter(f"{'' if f.supported else '!'}{f.form}" for f in STUDIES[name].findings(run))
    return " ".join(form if n == 1 else f"{form}*{n}" for form, n in sorted(found.items()))


def kept() -> dict[tuple[str, str], str]:
    """Run and study -> the outcome in the file."""
    lines = (line.split(" ", 2) for line in FILE.read_text(encoding="utf-8").splitlines())
    return {(run, study): found for run, study, found in lines}


if __name__ == "__main__":
    lines = [f"{key} {name} {outcome(name, run)}\n" for key, run in RUNS.items() for name in STUDIES]
    FILE.write_text("".join(lines), encoding="utf-8")
