"""The dashboard and `keephold ps` with 100,000 handles stored.

*Pages*: a page by one connection to `keephold serve`, p50, with 100,000 stopped handles in its SQLite store and 20 that
wait for their completion; against the same with 80 and 20. *ps*: the command as a process, from its start to its end,
on the larger store, without a server: it lists the 20.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

from bench.gaps import figure
from bench.rounds import Bar, Plan, Row, measure
from bench.serve_clients import Plain, connected
from bench.serve_servers import ours
from bench.serve_stock import stock

BAR_PAGE, BAR_PS = Bar(1.5), 0.5
MANY, FEW, LIVE = 100_000, 100, 20
_PAGES = ("/", "/handles")


async def _loading(port: int, page: str, length: float) -> float:
    times = []
    async with connected(port, 1, Plain) as (one,):
        until = perf_counter() + length
        while (began := perf_counter()) < until:
            assert b"</html>" in await one.get(page)
            times.append(perf_counter() - began)
    return statistics.median(times)


def _listing(path: Path) -> float:
    program = str(Path(sys.executable).with_name("keephold"))
    began = perf_counter()
    done = subprocess.run([program, "ps", "--store", f"sqlite:///{path}"], capture_output=True, text=True, check=True)
    took = perf_counter() - began
    assert done.stdout.count("hook-") == LIVE, done.stdout
    return took


def run(plan: Plan) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        many, few = Path(directory) / "many.db", Path(directory) / "few.db"
        asyncio.run(stock(many, stopped=MANY - LIVE, parked=LIVE))
        asyncio.run(stock(few, stopped=FEW - LIVE, parked=LIVE))
        listed = [_listing(many) for _ in range(plan.rounds)]
        with ours(few) as small, ours(many) as large:
            pages = [
                measure(
                    f"the page `{page}` with {MANY:,} handles stored, p50, against with {FEW}",
                    plan,
                    BAR_PAGE,
                    partial(_loading, small.port, page),
                    partial(_loading, large.port, page),
                )
                for page in _PAGES
            ]
    return [*pages, figure(f"`keephold ps` on {MANY:,} handles, {LIVE} of them live", BAR_PS, listed)]
