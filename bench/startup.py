"""`keephold --help` as a process, from its start to its end, p50. Against `python -c pass` of the same interpreter."""

import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from time import perf_counter

from bench.rounds import Bar, Plan, Row, measure


def _p50(command: list[str], length: float) -> float:
    times, until = [], perf_counter() + length
    while (began := perf_counter()) < until:
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(perf_counter() - began)
    return statistics.median(times)


def run(plan: Plan) -> list[Row]:
    bare = [sys.executable, "-c", "pass"]
    ours = [str(Path(sys.executable).with_name("keephold")), "--help"]
    return [
        measure("`keephold --help`, against `python -c pass`", plan, Bar(8), partial(_p50, bare), partial(_p50, ours))
    ]
