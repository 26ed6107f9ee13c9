"""1 GiB from `head -c 1G /dev/zero` through a one-shot command tool whose `max_output` is above it.

Timed from `turn.run` to its response and one `fdatasync` of what was kept. Against a bare asyncio reader: the same
command, `StreamReader.read`, `os.write` of each piece to a file in the same directory, one `fdatasync`. The figure is
a speed, so the ratio is of speeds.
"""

import asyncio
import os
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

import keephold
from bench.rounds import Bar, Plan, Row, measure

SIZE = 1 << 30
CONFIG = """
[conversation.tools.zeros]
source = "local"
command = ["head", "-c", "1G", "/dev/zero"]
run = "unattended"
output = { max_output = "2GiB" }
"""


async def _bare(_: float) -> float:
    with tempfile.TemporaryFile() as file:
        began = perf_counter()
        process = await asyncio.create_subprocess_exec(
            "head", "-c", "1G", "/dev/zero", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        while piece := await process.stdout.read(SIZE):
            os.write(file.fileno(), piece)
        await process.wait()
        os.fdatasync(file.fileno())
        took = perf_counter() - began
        assert os.fstat(file.fileno()).st_size == SIZE
    return took


async def _ours(config: Path, _: float) -> float:
    async with keephold.Runtime(config=config) as rt, rt.turn("bench") as turn:
        began = perf_counter()
        await turn.run([keephold.ToolCall("1", "zeros")])
        output = (await rt.registry.find_call("1", "bench")).output
        assert output is not None
        output.sync()
        took = perf_counter() - began
        assert output.total == SIZE and output.gap is None and output.failure is None
    return took


def _speed(took: float) -> str:
    return f"{SIZE / took / 1e6:.0f} MB/s"


def run(plan: Plan) -> list[Row]:
    """One run a round: it takes about a second."""
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "keephold.toml"
        config.write_text(CONFIG)
        what = "1 GiB through a command tool, against a bare asyncio reader, both to a file and one `fdatasync`"
        return [measure(what, plan, Bar(0.5, "speed"), _bare, partial(_ours, config), show=_speed)]
