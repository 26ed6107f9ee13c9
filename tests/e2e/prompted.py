"""The program that tests of the prompter talk to: it has a terminal, and shows prompts there as it is told.

Orders come as JSON lines on standard input, what came of them goes to standard output: the places of `keephold turn`.
A task counts all the while, so that a test can see whether anything holds up the loop.
"""

import asyncio
import os
import signal
import sys
from typing import Any

import msgspec

from keephold.cli import prompter as prompters
from keephold.cli.prompter import open_prompter
from keephold.turn.prompts import Decision, Prompt


class Order(msgspec.Struct):
    """One line of the input. Each field is an order of its own."""

    prompt: Prompt | None = None
    withdraw: bool = False
    ticks: bool = False
    close: bool = False


def say(**what: Any) -> None:
    os.write(1, msgspec.json.encode(what) + b"\n")


async def main() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    def ended(task: "asyncio.Task[Decision]") -> None:
        if task.cancelled():
            say(withdrawn=True)
        else:
            say(decision=task.result())

    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    ticking = asyncio.create_task(tick())
    prompter = open_prompter()
    say(here=prompter is not None, pid=os.getpid())
    shown: asyncio.Task[Decision] | None = None
    async for line in lines:
        order = msgspec.json.decode(line, type=Order)
        assert prompter is not None
        if order.prompt is not None:
            shown = asyncio.ensure_future(prompter(order.prompt))
            shown.add_done_callback(ended)
        if order.withdraw and shown is not None:
            shown.cancel()
        if order.ticks:
            say(ticks=ticks)
        if order.close:
            prompter.close()
            say(closed=True)
    ticking.cancel()
    if prompter is not None:
        prompter.close()


if __name__ == "__main__":
    # A prompt waits this long for a person to stop typing. These tests type when they have seen what they answer.
    prompters.QUIET_SECS = float(os.environ.get("QUIET_SECS", "0.01"))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that goes away is to be noticed, not died of
    asyncio.run(main())
