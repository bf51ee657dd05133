"""Checks a user's kernel or program: runs it within limits, compares it with float64, names likely bugs, times it."""

from convforge.course.grader.check import check_kernel, check_program
from convforge.course.grader.judge import DEFAULT, TIMED, Case, cases_of
from convforge.course.grader.process import Limits
from convforge.course.grader.report import Report

__all__ = ["DEFAULT", "TIMED", "Case", "Limits", "Report", "cases_of", "check_kernel", "check_program"]
