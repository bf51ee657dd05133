"""The bench: suites, the runner, the store, and tables of what was measured.

The runner is imported from its own file: readers of stored results need nothing of it.
"""

from convforge.bench.digests import digest
from convforge.bench.records import Error, Finalist, Finalists, Result, Run
from convforge.bench.store import Store, load_run, load_runs
from convforge.bench.suites import Case, load, select, suite_names
from convforge.bench.tables import csv_table, markdown_table, rich_tables, tables_of
from convforge.bench.verdicts import Verdict, judge

__all__ = [
    "Case",
    "Error",
    "Finalist",
    "Finalists",
    "Result",
    "Run",
    "Store",
    "Verdict",
    "csv_table",
    "digest",
    "judge",
    "load",
    "load_run",
    "load_runs",
    "markdown_table",
    "rich_tables",
    "select",
    "suite_names",
    "tables_of",
]
