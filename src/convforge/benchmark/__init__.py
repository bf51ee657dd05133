"""The bench: suites, the runner, the store, and tables of what was measured.

The runner is imported from its own file: readers of stored results need nothing of it.
"""

from convforge.benchmark.digests import digest
from convforge.benchmark.records import Error, Finalist, Finalists, Result, Run
from convforge.benchmark.store import Store, load_run, load_runs
from convforge.benchmark.suites import Case, load, select, suite_names
from convforge.benchmark.tables import csv_table, markdown_table, rich_tables, tables_of
from convforge.benchmark.verdicts import Verdict, judge

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
