"""A reader's own kernel or program: run under limits, compared with the truth, its likely fault named and timed."""

from convforge.course.grader.cases import DEFAULT, TIMED, Case, cases_of
from convforge.course.grader.kernel import check_kernel
from convforge.course.grader.process import Limits
from convforge.course.grader.program import check_program
from convforge.course.grader.report import Report

__all__ = ["DEFAULT", "TIMED", "Case", "Limits", "Report", "cases_of", "check_kernel", "check_program"]
