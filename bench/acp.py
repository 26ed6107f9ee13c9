"""Updates of an ACP agent: how soon, how surely, and the end of a turn.

**token** `keephold acp` as a process with a SQLite store and a model that is played by a function. Each word of it is
the time at which the model said it; the client, the client library in another process, looks at the clock when its
handler gets the update. So the figure has the way through the agent, the pipe and the client in it, p50.

**drained** From the return of the handler of a turn's last update to the return of `turn.drained()`, p50, with an agent
that sends 1,000 updates and its `turn_complete` at once.

**crowd** 200 sessions of one `keephold acp` at once, each of which gets 20 words a second; every word has a number.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import keephold.acp
from bench.rounds import Plan, Row, seconds

TOKEN_BAR = DRAINED_BAR = 0.001
SESSIONS, RATE = 200, 20
UPDATES = 1000

_CONFIG = '[conversation.assistant]\nmodel = "python:bench.acp_model:model"\n'
_AGENT = f"""
import json, sys

def say(message):
    sys.stdout.write(json.dumps({{"jsonrpc": "2.0", **message}}) + "\\n")

for line in sys.stdin:
    request = json.loads(line)
    match request.get("method"):
        case "initialize":
            offered = {{"_meta": {{"keephold/turnComplete": {{}}}}}}
            say({{"id": request["id"], "result": {{"protocolVersion": 1, "agentCapabilities": offered}}}})
        case "session/new":
            say({{"id": request["id"], "result": {{"sessionId": "s"}}}})
        case "session/prompt":
            for number in range({UPDATES}):
                update = {{"sessionUpdate": "agent_message_chunk", "content": {{"type": "text", "text": str(number)}}}}
                say({{"method": "session/update", "params": {{"sessionId": "s", "update": update}}}})
            over = {{"sessionId": "s", "promptRequestId": str(request["id"]), "stopReason": "end_turn"}}
            say({{"method": "_keephold/turn_complete", "params": over}})
            say({{"id": request["id"], "result": {{"stopReason": "end_turn"}}}})
    sys.stdout.flush()
"""


@asynccontextmanager
async def _agent(words: int, pace: float) -> AsyncIterator[tuple[keephold.acp.Connection, str]]:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "keephold.toml").write_text(_CONFIG)
        root = str(Path(__file__).parent.parent)
        given = {"BENCH_WORDS": str(words), "BENCH_PACE": str(pace), "PYTHONPATH": root}
        store = f"sqlite:///{directory}/store.db"
        command = [sys.executable, "-m", "keephold", "acp", "--config", "keephold.toml", "--store", store]
        async with keephold.acp.connect(command, cwd=directory, env=given) as agent:
            yield agent, directory


def _words(update: dict[str, Any]) -> list[tuple[int, int]]:
    """The numbers and times in an update."""
    if update["sessionUpdate"] != "agent_message_chunk":
        return []
    return [(int(n), int(at)) for n, at in (word.split(":") for word in update["content"]["text"].split())]


async def _token(length: float) -> float:
    taken: list[float] = []

    def heard(update: dict[str, Any]) -> None:
        now = time.monotonic_ns()
        taken.extend((now - at) / 1e9 for _, at in _words(update))

    async with _agent(max(20, int(length * 100)), 0.01) as (agent, directory):
        session = await agent.new_session(directory)
        for _ in range(2):  # what is loaded and compiled once is not counted
            taken.clear()
            turn = session.prompt("go", on_update=heard)
            await turn
            await turn.drained()
    return statistics.median(taken)


async def _drained(length: float) -> float:
    taken: list[float] = []
    last = 0.0

    def heard(_: dict[str, Any]) -> None:
        nonlocal last
        last = perf_counter()

    async with keephold.acp.connect([sys.executable, "-c", _AGENT]) as agent:
        session = await agent.new_session(Path.cwd())
        end = perf_counter() + length
        while perf_counter() < end or len(taken) < 3:
            turn = session.prompt("go", on_update=heard)
            barrier = await turn.drained()
            taken.append(perf_counter() - last)
            assert barrier == "turn_complete"
    return statistics.median(taken)


async def _crowd(length: float) -> tuple[int, int, float]:
    """How many updates came, how many are missing or out of order, and how late they were, p99."""
    words = max(RATE, int(RATE * length))
    came, wrong, late = 0, 0, list[float]()
    async with _agent(words, 1 / RATE) as (agent, directory):

        async def one() -> None:
            nonlocal came, wrong
            expected = 0

            def heard(update: dict[str, Any]) -> None:
                nonlocal expected, came, wrong
                now = time.monotonic_ns()
                for number, at in _words(update):
                    wrong += number != expected
                    expected, came = number + 1, came + 1
                    late.append((now - at) / 1e9)

            session = await agent.new_session(directory)
            turn = session.prompt("go", on_update=heard)
            result = await turn
            await turn.drained()
            wrong += expected != words or result.stop_reason != "end_turn"

        await asyncio.gather(*(one() for _ in range(SESSIONS)))
    return came, wrong, statistics.quantiles(late, n=100)[98]


def run(plan: Plan) -> list[Row]:
    """All three."""
    tokens = [asyncio.run(_token(plan.seconds)) for _ in range(plan.rounds)]
    drained = [asyncio.run(_drained(plan.seconds)) for _ in range(plan.rounds)]
    came, wrong, late = asyncio.run(_crowd(20 * plan.seconds))
    return [
        _row("a word of the model → its update is handled by an ACP client, p50", tokens, TOKEN_BAR),
        _row(f"the last of {UPDATES:,} updates is handled → `drained()` returns, p50", drained, DRAINED_BAR),
        Row(
            what=f"{SESSIONS} sessions at once, {RATE} updates a second: lost or disordered; beside it, how late: p99",
            bare=seconds(late),
            ours=f"{came:,} came",
            result=f"{wrong}",
            bar="0",
            met=wrong == 0,
        ),
    ]


def _row(what: str, measured: list[float], bar: float) -> Row:
    middle = statistics.median(measured)
    return Row(
        what=what,
        bare="",
        ours=seconds(middle),
        result=f"{seconds(middle)} ({seconds(min(measured))}–{seconds(max(measured))})",
        bar=f"≤ {seconds(bar)}",
        met=middle <= bar,
    )
