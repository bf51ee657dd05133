"""The bench: suites, the runner, the store, and tables of what was measured.

The runner is imported from its own file: readers of stored results need nothing of it.
"""

from convforge.benchmark.digests import digest
from convforge.benchmark.records import Result, Run
from convforge.benchmark.store import load_runs
from convforge.benchmark.tables import csv_table, markdown_table
from convforge.benchmark.verdicts import judge

__all__ = ["Result", "Run", "csv_table", "digest", "judge", "load_runs", "markdown_table"]
