"""The dashboard and `keephold ps` with 100,000 handles stored.

*Pages*: a page by one connection to `keephold serve`, p50, with 100,000 stopped handles in its SQLite store and 20 that
wait for their completion; against the same with 80 and 20. The whole page, p50, with 5,000. *ps*: the command as a
process, from its start to its end, without a server: it lists the 20.
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

BAR_PAGE, BAR_PS, BAR_DAY, BAR_PS_FEW = Bar(1.5), 0.5, 0.05, 0.12
MANY, DAY, FEW, LIVE = 100_000, 5000, 100, 20
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
        many, day, few = (Path(directory) / f"{name}.db" for name in ("many", "day", "few"))
        asyncio.run(stock(many, stopped=MANY - LIVE, parked=LIVE))
        asyncio.run(stock(day, stopped=DAY - LIVE, parked=LIVE))
        asyncio.run(stock(few, stopped=FEW - LIVE, parked=LIVE))
        listed = {path: [_listing(path) for _ in range(plan.rounds)] for path in (many, few)}
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
        with ours(day) as busy:
            for page in _PAGES:
                took = [asyncio.run(_loading(busy.port, page, plan.seconds)) for _ in range(plan.rounds)]
                pages.append(figure(f"the page `{page}` with {DAY:,} handles stored, p50", BAR_DAY, took))
    return [
        *pages,
        figure(f"`keephold ps` on {MANY:,} handles, {LIVE} of them live", BAR_PS, listed[many]),
        figure(f"`keephold ps` on {FEW} handles, {LIVE} of them live", BAR_PS_FEW, listed[few]),
    ]
