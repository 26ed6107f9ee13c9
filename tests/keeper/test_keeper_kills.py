"""Runtimes that are killed at random moments, while a kept process prints and gets input: nothing is lost or repeated.

`KEEPHOLD_SOAK=1` kills a hundred times, as in the promise that is being proved.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.keeper.runtimes import gone, keeper_of, runtime
from tests.soak import tries

from keephold.tools import marks
from keephold.tools.keeper.record import read_record
from keephold.tools.session import Exit

pytestmark = pytest.mark.slow

PROGRAM = """
(i=0; while :; do i=$((i+1)); echo line $i; sleep 0.001; done) &
while read n; do
    [ "$n" = end ] && exit 9
    echo in $n
done
"""

RUNTIME = """
import asyncio, os, sys
from pathlib import Path
from tests.keeper.runtimes import Runtime

async def main(directory, fence, kind, program):
    runtime = Runtime(Path(directory))
    if fence == 1 and kind == "terminal":
        followed = await runtime.terminal("u", ["sh", "-c", "stty -echo -onlcr;" + program])
        await followed.printed(b"line 1\\n")  # before that, the terminal would echo what is typed
    elif fence == 1:
        followed = await runtime.command("u", program)
    else:
        followed = await runtime.take_back("u", fence)
    stored = Path(directory) / "stored"  # input is stored first
    number = len(stored.read_bytes()) if stored.exists() else 0
    for earlier in range(max(1, number - 2), number + 1):  # it may have been sent, or not
        followed.child.write(b"%d\\n" % earlier, b"%d" % earlier)
    print("up", flush=True)
    with stored.open("ab") as file:
        while True:
            number += 1
            file.write(b"x")
            file.flush()
            followed.child.write(b"%d\\n" % number, b"%d" % number)
            await followed.handed_over()
            await asyncio.sleep(0.001)

directory, fence, kind, program = sys.argv[1:]
asyncio.run(main(directory, int(fence), kind, program))
"""


def live_and_die(directory: Path, fence: int, kind: str) -> None:
    """One runtime: it starts the process or takes it back, types numbers, and is killed."""
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", RUNTIME, str(directory), str(fence), kind, PROGRAM],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    ) as program:
        assert program.stdout is not None
        if fence == 1 or random.random() < 0.8:  # the others are killed while they take it back
            assert program.stdout.readline() == b"up\n"
        time.sleep(random.random() * 0.2)
        program.send_signal(signal.SIGKILL)


@pytest.mark.timeout(tries(240, soak=1200))
@pytest.mark.parametrize("kind", ["command", "terminal"])
async def test_R7_random_kills_lose_and_repeat_nothing(tmp_path: Path, kind: str) -> None:
    kills = tries(4, soak=100)
    for fence in range(1, kills + 1):
        live_and_die(tmp_path, fence, kind)
    record = read_record(tmp_path, "u")
    assert record is not None and record.exit is None
    async with runtime(tmp_path) as rt:
        followed = await rt.take_back("u", kills + 1)
        last = len((tmp_path / "stored").read_bytes())
        for number in range(max(1, last - 2), last + 1):
            followed.child.write(b"%d\n" % number, b"%d" % number)
        await followed.printed(b"in %d\n" % last)
        followed.child.write(b"end\n")
        ended = await followed.end()
        keeper = keeper_of(tmp_path, "u")
    assert ended.exit == Exit(9, None) and ended.total == len(followed.data)
    text = followed.data.decode()
    assert re.fullmatch(r"(?:(?:line|in) \d+\n)*", text)
    assert [int(number) for number in re.findall(r"^in (\d+)$", text, re.M)] == list(range(1, last + 1))
    lines = [int(number) for number in re.findall(r"^line (\d+)$", text, re.M)]
    assert lines == list(range(1, len(lines) + 1))
    await gone(keeper)
    assert marks.find(record.keeper) == []
