"""The benchmark: suites, the runner, the store, and tables of the results.

The runner is not imported here, because readers of stored results do not need it: import it from its own module.
"""

from convforge.benchmark.digests import digest
from convforge.benchmark.records import Result, Run
from convforge.benchmark.store import load_runs
from convforge.benchmark.tables import csv_table, markdown_table
from convforge.benchmark.verdicts import judge

__all__ = ["Result", "Run", "csv_table", "digest", "judge", "load_runs", "markdown_table"]
