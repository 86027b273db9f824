"""The machine a figure was taken on, and how to keep its parts apart: facts, CPU time, memory, pinning, file limits.

Reads the operating system and changes only this process's limits and CPU masks. Every benchmark uses it.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

VERSIONS_SHOWN: Final = ("gatepost", "httptools", "uvloop", "aiohttp", "httpx2")
"""Packages whose version changes what the figures mean."""


def facts() -> dict[str, Any]:
    """Processor, cores, system, interpreter and versions, as a JSON-able mapping."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: version for name in VERSIONS_SHOWN if (version := _version(name)) is not None},
    }


@dataclass(frozen=True, slots=True)
class CpuTime:
    """CPU seconds of this process, all threads."""

    user: float
    system: float

    @property
    def total(self) -> float:
        """User and system together."""
        return self.user + self.system

    def since(self, start: CpuTime) -> CpuTime:
        """What was used after `start`."""
        return CpuTime(self.user - start.user, self.system - start.system)

    def as_dict(self) -> dict[str, float]:
        """For reports."""
        return asdict(self)


def cpu_time() -> CpuTime:
    """CPU seconds this process has used so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return CpuTime(usage.ru_utime, usage.ru_stime)


def rss_bytes() -> int:
    """Memory resident now; where the system does not say (macOS), the highest so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()


def raise_file_limit() -> int:
    """Allow as many open files as this user may have; returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS reports a hard limit it does not grant
            return soft
    return hard


def pin(pid: int, core: int) -> bool:
    """Keep a process (0: this one) on one core, counted within those we may use; False where that is not possible."""
    if sys.platform != "linux":
        return False
    cores = sorted(os.sched_getaffinity(0) if pid == 0 else os.sched_getaffinity(pid))
    if len(cores) < 2:
        return False
    os.sched_setaffinity(pid, {cores[core % len(cores)]})
    return True


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
