"""`python -m bench.soak`: the long tests with their full counts; the figures go to `bench/RESULTS.md`.

Tests run the same with small counts. The exit code is 1 if anything differed or was left.
"""

import argparse
import random
import sys
from time import perf_counter

from tests.simulation import interleavings

from bench import kills
from bench.machine import facts
from bench.results import FILE, bullets, keep

INTERLEAVINGS = 10_000
KILLS = 200


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description="Run the long tests.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="repeat a run")
    parser.add_argument("--interleavings", type=int, default=INTERLEAVINGS, metavar="N")
    parser.add_argument("--kills", type=int, default=KILLS, metavar="N")
    given = parser.parse_args()
    machine = facts()
    began = perf_counter()
    played = interleavings.run(given.interleavings, given.seed)
    print(f"{played}\n({perf_counter() - began:.0f} s)\n", flush=True)
    began = perf_counter()
    killed = kills.run(given.kills, given.seed)
    print(f"{killed}\n({perf_counter() - began:.0f} s)")
    if (given.interleavings, given.kills) == (INTERLEAVINGS, KILLS):
        keep("Soak", "\n\n".join([bullets(machine), f"```\n{played}\n\n{killed}\n```"]))
        print(f"kept in bench/{FILE.name}")
    return 1 if played.differences or killed.left else 0


if __name__ == "__main__":
    sys.exit(main())
