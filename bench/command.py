"""One one-shot command, `/bin/true`, from `turn.run` to its response; p50.

Against `asyncio.create_subprocess_exec` of the same program with pipes for stdout and stderr, and `communicate`.
"""

import asyncio
import statistics
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

import keephold
from bench.rounds import Bar, Plan, Row, measure

CONFIG = """
[conversation.tools.nothing]
source = "local"
command = ["/bin/true"]
run = "unattended"
"""


async def _bare(length: float) -> float:
    times, until = [], perf_counter() + length
    pipe = asyncio.subprocess.PIPE
    while (began := perf_counter()) < until:
        process = await asyncio.create_subprocess_exec(
            "/bin/true", stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
        await process.communicate()
        times.append(perf_counter() - began)
        assert process.returncode == 0
    return statistics.median(times)


async def _ours(config: Path, length: float) -> float:
    times = []
    call = keephold.ToolCall("1", "nothing")
    async with keephold.Runtime(config=config) as rt, rt.turn("bench") as turn:
        await turn.run([call])  # the guard starts with the first command
        until = perf_counter() + length
        while (began := perf_counter()) < until:
            (response,) = await turn.run([call])
            times.append(perf_counter() - began)
            assert not response.is_error, response.result
    return statistics.median(times)


def run(plan: Plan) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "keephold.toml"
        config.write_text(CONFIG)
        what = "one-shot command through a turn, p50, against `create_subprocess_exec` + `communicate`"
        return [measure(what, plan, Bar(1.3), _bare, partial(_ours, config))]
