"""Which method to take: a choice by rule where nothing is measured."""

from convforge.tuning.heuristic import Choice, choose

__all__ = ["Choice", "choose"]
