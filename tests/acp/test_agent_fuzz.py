"""`keephold acp` and a client that does anything, at any time; the process is ended or killed, and come back to.

Each play is drawn from a seed: `KEEPHOLD_SEED=…` tries others, `KEEPHOLD_FUZZ=…` multiplies how many there are. A
failure names its seed; what was said is in the log that it shows.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from tests.acp.editor import ROOT, config
from tests.acp.watching import Seen, Watch
from tests.acp.wild import CONFIG, Wild, Words
from tests.patience import until

SEED = int(os.environ.get("KEEPHOLD_SEED", "20260101"))
TIMES = int(os.environ.get("KEEPHOLD_FUZZ", "1"))
PLAYS = 5


class Warm(NamedTuple):
    """The process that forks for each run."""

    pid: int
    door: str


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    place = tmp_path_factory.mktemp("warm")
    door = str(place / "door")
    serving = [sys.executable, "-m", "tests.acp.agents.warm", door]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(serving, stdout=subprocess.PIPE, env=env, cwd=place) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield Warm(process.pid, door)
        process.terminate()


class Play:
    """One store, and processes that serve it one after the other."""

    def __init__(self, seed: str, warm: Warm, place: Path) -> None:
        self.rng, self.warm, self.place = Random(seed), warm, place
        self.words = Words(self.rng, place)
        self.file = config(place, CONFIG.replace("EFFECTS", str(place / "effects")))
        self.sessions: dict[str, Seen] = {}
        self.watch = Watch(self.sessions)

    async def connect(self) -> Wild:
        for seen in self.sessions.values():
            seen.open, seen.calls, seen.opened_by = False, {}, 0
            seen.opening.clear()
            seen.prompts.clear()
        self.watch = Watch(self.sessions)
        client = Wild(self.rng, self.watch, self.place)
        await client.start(self.warm.pid, self.warm.door, self.file)
        return client

    async def round(self) -> None:
        """Anything, and then an end of some kind."""
        client, rng = await self.connect(), self.rng
        for _ in range(rng.choice([3, 10, 25])):
            for _ in range(rng.choice([1, 1, 1, 2, 4])):
                client.act(self.words)
            client.flush()
            await asyncio.sleep(rng.choice([0, 0.002, 0.01, 0.05, 0.2]))
        how = rng.choice(["kill", "end of input", "settled", "SIGTERM"])
        self.watch.log.append(("end", how))
        if how == "settled":
            await self.settle(client)
        self.watch.leaving = True
        if how == "kill":
            client.kill()
        elif how == "SIGTERM":
            os.kill(client.pid, signal.SIGTERM)
        await self.over(client)

    async def settle(self, client: Wild) -> None:
        """Every request is answered, whatever was said before."""
        sleepless = asyncio.create_task(self._cancel_all(client))
        try:
            await client.until(lambda: not self.watch.asked)
        except TimeoutError:
            self.watch.wrong.append(f"never answered: {self.watch.asked}")
        finally:
            sleepless.cancel()
        if self.watch.garbage > 0:
            self.watch.wrong.append(f"{self.watch.garbage} lines of garbage were not answered")

    async def _cancel_all(self, client: Wild) -> None:
        while True:
            for id, seen in self.sessions.items():
                if seen.prompts:
                    client.notify("session/cancel", sessionId=id)
            client.flush()
            await asyncio.sleep(0.5)

    async def over(self, client: Wild) -> None:
        """The process ends, and leaves nothing that runs."""
        try:
            await client.gone()
        except TimeoutError:
            self.watch.wrong.append("it does not end")
            client.kill()
            raise
        await until(lambda: not marked(client.pid))
        self.check()

    async def again(self) -> None:
        """Each session is loaded and goes on; every call that is shown comes to an end, once."""
        client = await self.connect()
        wanted = {id: seen for id, seen in self.sessions.items() if not seen.deleted}
        listed = client.request("session/list")
        for id in wanted:
            client.request("session/load", sessionId=id, cwd="/tmp", mcpServers=[])
        client.flush()
        await client.until(lambda: not self.watch.asked)
        known = {each["sessionId"] for each in self.watch.answered[listed]["result"]["sessions"]}
        for id, seen in wanted.items():
            if seen.said and id not in known and len(known) < 50:
                self.watch.wrong.append(f"session {id} is not listed")
        for id, seen in wanted.items():
            if seen.open:
                client.prompt(id, {"text": ["going on"]})  # what was open is gone on with, and some of it hangs
        client.flush()
        await asyncio.sleep(0.3)
        await self.settle(client)
        prompts = {id: client.prompt(id, {"text": ["once more"]}) for id, seen in wanted.items() if seen.open}
        client.flush()
        await client.until(lambda: not self.watch.asked)
        for id, prompt in prompts.items():
            if self.watch.answered[prompt].get("result") != {"stopReason": "end_turn"}:
                self.watch.wrong.append(f"session {id} cannot go on: {self.watch.answered[prompt]}")
            for call in self.sessions[id].left_open:
                if call.get("ran_here"):  # what had not begun before was begun now, and is kept
                    continue
                self.watch.wrong.append(f"session {id} has a call that never ends: {call}")
        await self.over(client)

    def check(self) -> None:
        assert not self.watch.wrong, self.watch.wrong[:5]
        file = self.place / "effects"
        done = Counter(file.read_text().split()) if file.exists() else Counter[str]()
        assert not [word for word, count in done.items() if count > 1]

    async def run(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            await self.round()
        await self.again()


def marked(owner: int) -> list[str]:
    """Processes that a runtime in the process `owner` has started (R2)."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            if f"-{owner}-".encode() in environment.partition(b"KEEPHOLD_MARK=")[2]:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # gone, or another user's
            continue
    return found


def told(log: list[tuple[str, Any]]) -> str:
    return "\n".join(f"{at} {way} {json.dumps(message)[:300]}" for at, (way, message) in enumerate(log, 1))


@pytest.mark.parametrize("at", range(PLAYS * TIMES))
async def test_X1_a_client_that_does_anything(tmp_path: Path, warm: Warm, at: int) -> None:
    seed = f"{SEED}:{at}"
    play = Play(seed, warm, tmp_path)
    try:
        await play.run()
    except BaseException as error:
        error.add_note(f"seed {seed}\n{told(play.watch.log)}\n{(tmp_path / 'stderr').read_text()[-3000:]}")
        raise


COMPLETE = {"sessionId": "s", "promptRequestId": "2", "stopReason": "end_turn"}
WRONG: dict[str, list[Any]] = {
    "answered twice": [("in", {"id": 1, "result": {"sessionId": "s"}})],
    "never made": [("in", {"id": 9, "result": {}})],
    "its turn_complete said None": [("in", {"id": 2, "result": {"stopReason": "end_turn"}})],
    "of no prompt": [("in", {"method": "_keephold/turn_complete", "params": {**COMPLETE, "promptRequestId": "3"}})],
    "turn_complete twice": [("in", {"method": "_keephold/turn_complete", "params": COMPLETE})] * 2,
    "not marked": [
        ("in", {"method": "_keephold/turn_complete", "params": COMPLETE}),
        ("update", {"sessionUpdate": "agent_message_chunk"}),
    ],
    "not open": [
        ("out", {"id": 3, "method": "session/close", "params": {"sessionId": "s"}}),
        ("in", {"id": 3, "result": {}}),
        ("update", {"sessionUpdate": "agent_message_chunk", "_meta": {"keephold/background": True}}),
    ],
    "a call is not": [
        ("update", {"sessionUpdate": "tool_call", "toolCallId": "c", "status": "pending"}),
        ("in", {"method": "_keephold/turn_complete", "params": COMPLETE}),
    ],
    "a call that is over": [
        ("update", {"sessionUpdate": "tool_call", "toolCallId": "c", "status": "pending"}),
        ("update", {"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed"}),
        ("update", {"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "failed"}),
    ],
    "that was never made": [("update", {"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "failed"})],
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_seen(what: str) -> None:
    watch = Watch()
    watch.sent({"id": 1, "method": "session/new", "params": {}})
    watch.heard({"id": 1, "result": {"sessionId": "s"}})
    watch.sent({"id": 2, "method": "session/prompt", "params": {"sessionId": "s"}})
    for way, message in WRONG[what]:
        if way == "out":
            watch.sent(message)
        elif way == "in":
            watch.heard(message)
        else:
            watch.heard({"method": "session/update", "params": {"sessionId": "s", "update": message}})
    assert any(what in wrong for wrong in watch.wrong), watch.wrong
