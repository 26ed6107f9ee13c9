"""SIGKILL at random moments to a process in which all scenes run side by side; `make soak` runs the full count.

    python -m tests.crash.kills COUNT SEED

A life has one to three kills, half of them at a random moment from the first breath on, half at a random commit. Then
it must come to its end. A life depends on the seed and its number alone, as far as a kill by the clock can.
"""

import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count as counting
from pathlib import Path

from tests.crash.driver import Life, Nursery
from tests.crash.scenes import SCENES
from tests.crash.world import effects

LONGEST = 0.25
"""Seconds after which a life's scenes are over, more or less."""
COMMITS = 60
"""The same in transactions."""


@dataclass
class Report:
    """What came of it."""

    seed: int
    kills: int = 0
    handles: int = 0
    told: int = 0
    """Reports of children that were compared with their stores."""
    steps: int = 0
    again: int = 0
    """Steps that were done, and those of them that were done before and had not been recorded (E4)."""
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = (
            f"{self.kills} SIGKILLs in {len(self.seconds)} lives with seed {self.seed}, {self.handles} handles, "
            f"{self.told} acknowledgements compared, {self.steps} steps done, {self.again} of them again because the "
            f"first time was not recorded; a life took {1000 * statistics.median(self.seconds):.0f} ms (median): "
            f"{len(self.wrong)} wrong"
        )
        return "\n\n".join([told, *self.wrong])


def run(count: int, seed: int, *, workers: int = 2) -> Report:
    """Kill so many processes, in as many lives as it takes."""
    report, numbers, lock = Report(seed), counting(), threading.Lock()
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(workers) as pool:

        def work() -> None:
            with Nursery() as nursery:
                while report.kills < count and len(report.wrong) < 5:
                    number = next(numbers)
                    _live(nursery, Path(directory) / str(number), random.Random(f"{seed}:{number}"), report, lock)

        for worker in [pool.submit(work) for _ in range(workers)]:
            worker.result()
    return report


def _live(nursery: Nursery, directory: Path, chance: random.Random, report: Report, lock: threading.Lock) -> None:
    life, began = Life(nursery, directory, tuple(SCENES), new=True), time.monotonic()
    wrong = None
    try:
        for _ in range(chance.randint(1, 3)):
            if chance.random() < 0.5:
                life.kill_randomly(chance, LONGEST)
            else:
                life.run(kill=f"{chance.choice(('before', 'after'))}:{chance.randint(1, COMMITS)}")
        life.finish()
    except AssertionError as error:
        wrong = f"life {directory.name}: {error}"
    steps = [effect[:2] for effect in effects(directory) if effect.what not in ("begin", "hook")]
    with lock:
        report.kills += life.deaths
        report.handles += len(life.snapshots[-1].handles) if life.snapshots else 0
        report.told += len(life.told)
        report.steps += len(steps)
        report.again += len(steps) - len(set(steps))
        report.seconds.append(time.monotonic() - began)
        report.wrong += [wrong] if wrong is not None else []
    if wrong is None:
        shutil.rmtree(directory)


if __name__ == "__main__":
    print(result := run(int(sys.argv[1]), int(sys.argv[2])))
    sys.exit(1 if result.wrong else 0)
