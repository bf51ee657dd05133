"""A reader's own kernel or program: run under limits, held against the truth, its likely fault named, timed, graded."""

from convforge.own.cases import DEFAULT, TIMED, Case, cases_of
from convforge.own.kernel import check_kernel
from convforge.own.process import Limits
from convforge.own.program import check_program
from convforge.own.report import Report

__all__ = ["DEFAULT", "TIMED", "Case", "Limits", "Report", "cases_of", "check_kernel", "check_program"]
