"""`python -m bench`: measure, print two tables with the machine's facts, and keep them in `bench/RESULTS.md`.

Names of benchmarks, or of a table, choose some of them; `--quick` measures briefly. A table is kept only if it is whole
and was not measured briefly. A missed bar is printed and is not a failure: the exit code is 0.
"""

import argparse
import inspect
import sys
from time import perf_counter
from types import ModuleType

from bench import (
    acp,
    agent_request,
    collecting,
    command,
    crowd,
    dbos_peer,
    durable_commits,
    durable_parked,
    durable_replay,
    durable_steps,
    durable_wake,
    fanout,
    kept,
    mcp_calls,
    mcp_parked,
    mcp_start,
    mcp_wake,
    memory,
    pauses,
    postgres,
    serve_complete,
    serve_pages,
    serve_streams,
    startup,
    temporal,
    terminal,
    throughput,
    wake,
    workflow,
)
from bench.machine import facts
from bench.results import FILE, bullets, keep, table
from bench.rounds import FULL, QUICK, Plan, Row

TABLES: dict[str, dict[str, ModuleType]] = {
    "Bench": {
        "wake": wake,
        "crowd": crowd,
        "fanout": fanout,
        "command": command,
        "throughput": throughput,
        "memory": memory,
        "pauses": pauses,
        "startup": startup,
    },
    "Durable": {
        "durable-steps": durable_steps,
        "durable-wake": durable_wake,
        "durable-commits": durable_commits,
        "durable-replay": durable_replay,
        "durable-parked": durable_parked,
        "collecting": collecting,
        "workflow": workflow,
        "dbos": dbos_peer,
    },
    "PostgreSQL": {"postgres": postgres},
    "Temporal": {"temporal": temporal},
    "Terminals": {"terminal": terminal},
    "Kept": {"kept": kept},
    "MCP": {"mcp-wake": mcp_wake, "mcp-calls": mcp_calls, "mcp-parked": mcp_parked, "mcp-start": mcp_start},
    "Agent": {"agent-request": agent_request, "acp": acp},
    "Serve": {"serve-complete": serve_complete, "serve-streams": serve_streams, "serve-pages": serve_pages},
}
BENCHMARKS = {name: module for benchmarks in TABLES.values() for name, module in benchmarks.items()}
HEAD = ("what", "against", "keephold", "result (min–max)", "bar", "met")


def main() -> None:
    given = _arguments()
    plan = QUICK if given.quick else FULL
    for heading, benchmarks in TABLES.items():
        chosen = [name for name in benchmarks if not given.names or {name, heading.lower()} & set(given.names)]
        if chosen:
            _measure(heading, chosen, plan)


def _measure(heading: str, chosen: list[str], plan: Plan) -> None:
    """One table, and its section if it is whole."""
    machine = facts()
    print(f"{heading}\n\n{bullets(machine)}\n")
    rows = [row for name in chosen for row in _run(name, BENCHMARKS[name], plan)]
    measured = table(HEAD, map(_cells, rows))
    print(f"\n{measured}\n\n{_verdict(rows)}")
    if plan is FULL and len(chosen) == len(TABLES[heading]):
        keep(heading, "\n\n".join([bullets(machine), measured, _verdict(rows), _what_is_measured(heading, plan)]))
        print(f"kept in bench/{FILE.name}\n")
    else:
        print("not kept: only a whole table without --quick is\n")


def _arguments() -> argparse.Namespace:
    names = [*map(str.lower, TABLES), *BENCHMARKS]
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure what keephold costs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="short rounds, to see that it runs; figures are rough")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in names]
    if unknown:
        parser.error(f"no benchmark is named {', '.join(unknown)}; there are {', '.join(names)}")
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


def _what_is_measured(heading: str, plan: Plan) -> str:
    intro = (
        f"A result is the median of {plan.rounds} rounds of about {plan.seconds:g} s or more, in which ours and what "
        "it is compared with take turns: of their ratios, or of their differences where it has a sign; `against` and "
        "`keephold` are the medians of the rounds. The benchmarks:"
    )
    parts = [f"**{name}** {inspect.getdoc(module)}" for name, module in TABLES[heading].items()]
    return "\n\n".join([intro, *parts])


if __name__ == "__main__":
    main()
