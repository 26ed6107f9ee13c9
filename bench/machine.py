"""The machine's facts, without which no figure means anything. The time of an fsync comes first."""

import os
import platform
import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import psutil

from bench.rounds import seconds


def facts() -> dict[str, str]:
    """By name, in the order to be shown."""
    return {
        "fsync": f"{seconds(_fsync())} (p50 of writing 4 KiB and fsync, where temporary files are)",
        "cores": f"{os.cpu_count()} × {_processor()}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "load": f"{os.getloadavg()[0]:.2f} when it began (average of a minute; others disturb)",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _fsync() -> float:
    times: list[float] = []
    until = perf_counter() + 1
    with tempfile.TemporaryFile() as file:
        while perf_counter() < until:
            began = perf_counter()
            os.pwrite(file.fileno(), bytes(4096), len(times) * 4096)
            os.fsync(file.fileno())
            times.append(perf_counter() - began)
    return statistics.median(times)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
