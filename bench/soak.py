"""`python -m bench.soak`: the long tests with their full counts; the figures go to `bench/RESULTS.md`.

Tests run the same with small counts. The exit code is 1 if anything differed, was lost or was left.
"""

import argparse
import random
import sys
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

from tests.crash import clients, races
from tests.crash import kills as crashes
from tests.simulation import interleavings

from bench import kills, serve_load
from bench.machine import facts
from bench.results import FILE, bullets, keep

INTERLEAVINGS = 10_000
KILLS = 200
CRASHES = 1_000
RACES = 1_000
CLIENTS = 2_000
CLIENTS_OF_SERVER, SERVERS = 500, 100

T = TypeVar("T")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description="Run the long tests.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="repeat a run")
    parser.add_argument("--interleavings", type=int, default=INTERLEAVINGS, metavar="N")
    parser.add_argument("--kills", type=int, default=KILLS, metavar="N", help="of runtimes whose tools fork")
    parser.add_argument("--crashes", type=int, default=CRASHES, metavar="N", help="of runtimes with a store")
    parser.add_argument("--races", type=int, default=RACES, metavar="N", help="for a key")
    parser.add_argument("--clients", type=int, default=CLIENTS, metavar="N", help="kills of clients of one file")
    parser.add_argument("--servers", type=int, default=SERVERS, metavar="N", help="of PostgreSQL, 5 clients for each")
    parser.add_argument("--load", type=float, default=serve_load.SECONDS, metavar="S", help="seconds of it on a server")
    given = parser.parse_args()
    machine = facts()
    played = _timed(lambda: interleavings.run(given.interleavings, given.seed))
    killed = _timed(lambda: kills.run(given.kills, given.seed))
    crashed = _timed(lambda: crashes.run(given.crashes, given.seed))
    raced = _timed(lambda: races.soak(given.races))
    shared = _timed(lambda: clients.run(given.clients, given.seed))
    served = _timed(
        lambda: clients.run(given.servers * CLIENTS_OF_SERVER // SERVERS, given.seed, server_kills=given.servers)
    )
    loaded = _timed(lambda: serve_load.run(given.load))
    reports = (played, killed, crashed, raced, shared, served, loaded)
    if all(value == parser.get_default(name) for name, value in vars(given).items() if name != "seed"):
        told = "\n\n".join(map(str, reports))
        keep("Soak", "\n\n".join([bullets(machine), f"```\n{told}\n```"]))
        print(f"kept in bench/{FILE.name}")
    wrong = [crashed.wrong, raced.wrong, shared.wrong, served.wrong, loaded.wrong]
    return 1 if played.differences or killed.left or any(wrong) else 0


def _timed(work: Callable[[], T]) -> T:
    """Run it, print what came of it and how long it took."""
    began = perf_counter()
    report = work()
    print(f"{report}\n({perf_counter() - began:.0f} s)\n", flush=True)
    return report


if __name__ == "__main__":
    sys.exit(main())
