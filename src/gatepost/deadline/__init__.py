"""Deadlines for any Python program: a budget set once, inherited by calls, tasks and threads, and never exceeded in silence.

Needs nothing but the standard library and is useful without the rest of Gatepost.
"""

from __future__ import annotations

from gatepost.deadline.context import check, current, deadline, propagate, remaining, shield, timeout_for
from gatepost.deadline.policy import DeadlinePolicy
from gatepost.deadline.value import Deadline, DeadlineExceeded, Limit
from gatepost.deadline.wire import Problem, ProblemKind

__all__ = [
    "Deadline",
    "DeadlineExceeded",
    "DeadlinePolicy",
    "Limit",
    "Problem",
    "ProblemKind",
    "check",
    "current",
    "deadline",
    "propagate",
    "remaining",
    "shield",
    "timeout_for",
]
