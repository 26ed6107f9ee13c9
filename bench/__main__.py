"""`python -m bench`: measure, print one table with the machine's facts, and keep it in `bench/RESULTS.md`.

Names of benchmarks choose some of them; `--quick` measures briefly. Such a run is printed and not kept: what is kept is
always whole. A bar that is missed is said and is no failure: the exit code is 0.
"""

import argparse
import inspect
import sys
from time import perf_counter
from types import ModuleType

from bench import command, crowd, fanout, memory, startup, throughput, wake
from bench.machine import facts
from bench.results import FILE, bullets, keep, table
from bench.rounds import FULL, QUICK, Plan, Row

BENCHMARKS = {
    "wake": wake,
    "crowd": crowd,
    "fanout": fanout,
    "command": command,
    "throughput": throughput,
    "memory": memory,
    "startup": startup,
}
HEAD = ("what", "bare", "holdfast", "result (min–max)", "bar", "met")


def main() -> None:
    given = _arguments()
    plan = QUICK if given.quick else FULL
    chosen = {name: module for name, module in BENCHMARKS.items() if not given.names or name in given.names}
    machine = facts()
    print(bullets(machine) + "\n")
    rows = [row for name, module in chosen.items() for row in _run(name, module, plan)]
    measured = table(HEAD, map(_cells, rows))
    print(f"\n{measured}\n\n{_verdict(rows)}")
    if plan is FULL and len(chosen) == len(BENCHMARKS):
        keep("Bench", "\n\n".join([bullets(machine), measured, _verdict(rows), _what_is_measured(plan)]))
        print(f"kept in bench/{FILE.name}")
    else:
        print("not kept: only a whole run without --quick is")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure what holdfast costs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="short rounds, to see that it runs; figures are rough")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark is named {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    return given


def _run(name: str, module: ModuleType, plan: Plan) -> list[Row]:
    print(f"{name} …", end=" ", file=sys.stderr, flush=True)
    began = perf_counter()
    rows: list[Row] = module.run(plan)
    print(f"{perf_counter() - began:.0f} s", file=sys.stderr)
    return rows


def _cells(row: Row) -> tuple[str, ...]:
    met = {True: "yes", False: "NO", None: ""}[row.met]
    return row.what, row.bare, row.ours, row.result, row.bar, met


def _verdict(rows: list[Row]) -> str:
    missed = [row.what for row in rows if row.met is False]
    bars = sum(row.met is not None for row in rows)
    if not missed:
        return f"All {bars} bars are met."
    return f"{bars - len(missed)} of {bars} bars are met. Not met: {'; '.join(missed)}."


def _what_is_measured(plan: Plan) -> str:
    intro = (
        f"A result is the median of {plan.rounds} ratios, one for each pair of alternating rounds of about "
        f"{plan.seconds:g} s or more; `bare` and `holdfast` are the medians of the rounds. What is measured:"
    )
    parts = [f"**{name}** {inspect.getdoc(module)}" for name, module in BENCHMARKS.items()]
    return "\n\n".join([intro, *parts])


if __name__ == "__main__":
    main()
