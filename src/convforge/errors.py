"""The exceptions of convforge.

A bad argument is a ``ValueError`` (or a ``TypeError``) whose text names the value, the rule and what to do.
A valid problem that nothing here can compute is an :class:`UnsupportedProblem`, with every algorithm's reason.
"""

from __future__ import annotations

from collections.abc import Mapping


class UnsupportedProblem(ValueError):
    """No algorithm, or not the one asked for, can compute a valid problem.

    Attributes
    ----------
    problem : str
        Text form of the problem.
    reasons : dict of str to str
        For each algorithm that was asked, why it refused.
    """

    def __init__(self, problem: str, reasons: Mapping[str, str]) -> None:
        self.problem = problem
        self.reasons = dict(reasons)
        lines = "\n".join(f"  {name}: {reason}" for name, reason in self.reasons.items())
        super().__init__(f"nothing that was allowed can compute {problem}:\n{lines}")


class WorkspaceTooSmall(ValueError):
    """A plan was called with less workspace than it said it needs."""
