"""Deadlines for any Python program: a budget set once, inherited by calls, tasks and threads, and never exceeded in silence.

Needs nothing but the standard library and is useful without the rest of Gatepost.
"""

from __future__ import annotations

from gatepost.deadline.context import check, current, deadline, propagate, remaining, shield, timeout_for
from gatepost.deadline.metrics import COUNTERS, Counters, Metric
from gatepost.deadline.policy import DeadlinePolicy
from gatepost.deadline.value import Deadline, DeadlineExceeded, Limit
from gatepost.deadline.ways_out import no_deadline, run_to_completion
from gatepost.deadline.wire import Problem, ProblemKind

__all__ = [
    "COUNTERS",
    "Counters",
    "Deadline",
    "DeadlineExceeded",
    "DeadlinePolicy",
    "Limit",
    "Metric",
    "Problem",
    "ProblemKind",
    "check",
    "current",
    "deadline",
    "no_deadline",
    "propagate",
    "remaining",
    "run_to_completion",
    "shield",
    "timeout_for",
]
