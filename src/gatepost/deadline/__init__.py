"""Deadlines for any Python program: a budget set once, inherited by calls, tasks and threads, and never exceeded in silence.

Needs nothing but the standard library and is useful without the rest of Gatepost.
"""

from __future__ import annotations

from gatepost.deadline.context import check, current, deadline, propagate, remaining, shield, timeout_for
from gatepost.deadline.value import Deadline, DeadlineExceeded, DeadlinePolicy, Limit

__all__ = [
    "Deadline",
    "DeadlineExceeded",
    "DeadlinePolicy",
    "Limit",
    "check",
    "current",
    "deadline",
    "propagate",
    "remaining",
    "shield",
    "timeout_for",
]
