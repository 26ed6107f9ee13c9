"""SIGKILL to clients that share a store, and to the PostgreSQL server under them; `make soak` runs the full counts.

    python -m tests.crash.clients KILLS SERVER_KILLS SEED

Some clients work side by side, each in conversations of its own: commands, terminals, questions, retries,
notifications, journaled steps around an event, and in a file also processes that are kept. Each is killed at random
moments and started again. The others take over its calls meanwhile; its successor resumes its turns. At last every
client finishes what it has begun. With `SERVER_KILLS`, the store is on a PostgreSQL server of its own, which is killed,
too. Everything that a client was told must then be in the store, once, and nothing may be open.

    python -m tests.crash.clients SOCKET

is the nursery of the clients.
"""

import asyncio
import itertools
import json
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.check import left_open, orphans, unwritten
from tests.crash.child import nursery
from tests.crash.driver import Child, Nursery
from tests.crash.notified import Ear, listening
from tests.crash.roles import ROLES
from tests.crash.snapshot import Snapshot
from tests.crash.stage import Commits, runtime_of, store_url
from tests.crash.talk import Play, until_it_writes
from tests.crash.tools import config_file
from tests.crash.world import Report, World, effects
from tests.postgres import QUICK, Server, own_server

from keephold import KeepholdError, Runtime

CLIENTS = 3
"""How many work at a time."""
WORDS, LONGEST = 40, 10.0
"""What a client reports at most, and the seconds that it lives at most, until it is killed."""
_AWAY = ("store_unavailable", "store_unusable", "turn_open")
"""Errors that pass: the server is away, or has not noticed that a client is dead."""
_CONFIG = """
[conversation.tools."*"]
source = "local"
run = "unattended"

[conversation.tools.say]
command = ["sh", "-c", "sleep 0.02; echo said"]

[conversation.tools.job]
command = ["sh", "-c", "echo begun; sleep 0.1; echo done"]
spawn = { stateful = true }

[conversation.tools.shell]
source = "terminal"
command = ["sh", "-c", "read first; read second; echo $first $second"]
"""
_KEPT = """
[conversation.tools.kept]
command = ["sh", "-c", "for each in 1 2 3 4 5; do sleep 0.1; echo $each; done"]
on_crash = "keep"
spawn = { stateful = true }
"""

_words = itertools.count(1)


# A client


async def commands(play: Play, ear: Ear) -> None:
    await ear.spawn("job", "j")
    await ear.run(("say", {}))
    await ear.finish("j")


async def terminal(play: Play, ear: Ear) -> None:
    await ear.spawn("shell", "t")
    while (await ear.wait("t")).get("needs_input"):
        await ear.run(("shell", {"action": "apply", "id": "t", "input": "a line\n"}))
    await ear.stopped("t")


async def question(play: Play, ear: Ear) -> None:
    await ear.spawn("talker", "q")
    while (await ear.wait("q")).get("needs_input"):
        said = f"words {next(_words)} of run {play.world.run}"
        (response,) = await ear.run(("talker", {"action": "apply", "id": "q", "input": said}))
        play.world.say("applied", id="q", said=said, is_error=response.is_error)
    await ear.stopped("q")


async def retries(play: Play, ear: Ear) -> None:
    await ear.spawn("safely", "s")
    await ear.spawn("again", "i")
    await ear.finish("s", "i")


async def notifications(play: Play, ear: Ear) -> None:
    text = f"told {next(_words)} in run {play.world.run}"
    await play.runtime.notify("a.b", "warning", text, conversation=ear.conversation)
    play.world.say("notified", text=text)
    await ear.run(("hello", {"name": "you"}))


async def steps(play: Play, ear: Ear) -> None:
    await ear.spawn("pipeline", "p")
    await ear.spawn("deploy", "d", env="test")
    keys = play.runtime.keys
    while (info := await ear.look("d")) is not None and info.state != "stopped":
        key = (await keys("d", conversation=ear.conversation)).get("approved")
        if key is not None:
            sent = {"status": "ok", "payload": play.world.run}
            outcome = await play.runtime.resolve(key, sent)
            facts = {"key_id": key.key_id, "uid": info.uid, "sent": sent}
            play.world.say("resolved", status=outcome.status, terminal=outcome.terminal, **facts)
        await asyncio.sleep(0.01)
    await ear.finish("p", "d")


async def kept(play: Play, ear: Ear) -> None:
    await ear.spawn("kept", "k")
    await ear.finish("k")


Scene = Callable[[Play, Ear], Awaitable[None]]
_SCENES: tuple[Scene, ...] = (commands, terminal, question, retries, notifications, steps)


async def _opened(world: World) -> Runtime:
    while True:
        runtime = runtime_of(world, Commits(), commands=True)
        try:
            return await runtime.__aenter__()
        except KeepholdError as error:
            await runtime.close()
            if error.code not in _AWAY:
                raise
            await asyncio.sleep(0.05)


async def _played(scene: Scene, play: Play, conversation: str) -> None:
    """Play a scene to its end: again from the top when the store was away."""
    while True:
        try:
            async with listening(play, conversation) as ear:
                await scene(play, ear)
            return
        except KeepholdError as error:
            if error.code not in _AWAY:
                raise
            await asyncio.sleep(0.05)


async def client(world: World, request: dict[str, Any]) -> str:
    """Play one round of scenes after the other, from the one that was not finished, until it is killed."""
    scenes = _SCENES if store_url(world.directory) else (*_SCENES, kept)
    runtime = await _opened(world)
    for number in itertools.count(request["round"]):
        names = [f"{scene.__name__}-{request['slot']}-{number}" for scene in scenes]
        play = Play(runtime, world)
        await asyncio.gather(*(_played(scene, play, name) for scene, name in zip(scenes, names, strict=True)))
        world.say("finished", round=number)
        if request["last"]:
            break
    await until_it_writes(runtime.close)
    return "done"


# Those who kill them


@dataclass
class Workload:
    """One store, its clients, and everything they said."""

    seed: int
    directory: Path
    kills: int
    """How many clients are to be killed."""
    server: Server | None = None
    server_kills: int = 0
    killed: int = 0
    crashes: int = 0
    """How often the server was killed."""
    told: list[Report] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    handles: int = 0
    lines: int = 0
    again: int = 0
    _runs: "itertools.count[int]" = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __str__(self) -> str:
        rounds = sum(report["kind"] == "finished" for report in self.told)
        server = f" and {self.crashes} of the server" if self.server is not None else ""
        told = (
            f"{self.killed} SIGKILLs of {CLIENTS} clients of one store{server} with seed {self.seed}, "
            f"{rounds} rounds, {self.handles} handles, {len(self.told)} acknowledgements compared, "
            f"{self.lines} steps recorded, {self.again} done again because the first time was not recorded: "
            f"{len(self.wrong)} wrong"
        )
        return "\n\n".join([told, *self.wrong])

    @property
    def _more(self) -> bool:
        return not self.wrong and (self.killed < self.kills or self.crashes < self.server_kills)

    def play(self) -> None:
        """Kill clients and the server as often as wanted, let the clients finish, and compare."""
        with Nursery("tests.crash.clients") as nursery, ThreadPoolExecutor(CLIENTS + 1) as pool:
            working = [pool.submit(self._slot, nursery, slot) for slot in range(CLIENTS)]
            working.append(pool.submit(self._kill_server))
            for each in working:
                each.result()
        if not self.wrong:
            self._compare()

    def _slot(self, nursery: Nursery, slot: int) -> None:
        chance, at = random.Random(f"{self.seed}:{slot}"), 0
        while self._more:
            at = self._one(nursery, slot, at, chance.randint(0, WORDS))
        self._one(nursery, slot, at, None)

    def _one(self, nursery: Nursery, slot: int, at: int, words: int | None) -> int:
        """Start a client and kill it when it has said so much; None: let it finish. Returns the round that it had not
        finished."""
        with self._lock:
            number = next(self._runs)
        request = {"directory": str(self.directory), "role": "client", "run": number, "clock": 0.0, "kill": None,
            "told": [], "slot": slot, "round": at, "last": words is None}  # fmt: skip
        child = nursery.start(self, number, request)
        if words is not None:
            until = time.monotonic() + LONGEST
            while child.code is None and len(child.reports) < words and time.monotonic() < until:
                child.hear_for(0.02)
            child.kill()
        child.ended()
        self._heard(child, finishes=words is None)
        finished = [report["round"] for report in child.reports if report["kind"] == "finished"]
        return max(finished, default=at - 1) + 1

    def _heard(self, child: Child, *, finishes: bool) -> None:
        errors = self.directory / "stderr"
        with self._lock:
            self.told += child.reports
            self.killed += child.code == -signal.SIGKILL
            if child.code not in (0, -signal.SIGKILL) or (finishes and child.verdict != "done"):
                self.wrong.append(f"run {child.number} ended with {child.code}:\n{errors.read_text()[-6000:]}")

    def _kill_server(self) -> None:
        chance = random.Random(f"{self.seed}:server")
        while self.server is not None and self._more:
            time.sleep(chance.uniform(0.5, 5.0))
            self.server.kill()
            self.server.start()
            self.crashes += 1

    # What was said, and what is there

    def _compare(self) -> None:
        store = Snapshot.of(self.directory)
        done = [effect for effect in effects(self.directory) if effect.what not in ("begin", "hook")]
        self.handles, self.lines = len(store.handles), len(store.journal)
        self.again = len(done) - len({(effect.uid, effect.what) for effect in done})
        self.wrong += [problem for report in self.told for problem in unwritten(report, store)]
        self.wrong += left_open(store)
        self.wrong += [f"R2: process {pid} is left" for pid in orphans(self.told)]
        self.wrong += self._unheard()
        last = {(effect.uid, effect.what): effect for effect in done}
        for (uid, kind, name), (ok, value) in store.journal.items():
            if kind == "step" and ok and last[uid, name].run != value["run"]:
                self.wrong.append(f"E2: step {name} of {uid} was recorded by run {value['run']}: {last[uid, name]}")
        for effect, count in Counter(done).items():
            if count > 1:
                self.wrong.append(f"E2: {effect} was done {count} times in one run")

    def _unheard(self) -> Iterator[str]:
        """Every notification that a client has queued was delivered with one batch."""
        carriers: dict[str, set[str]] = defaultdict(set)
        for report in self.told:
            for text in report.get("notifications", ()):
                carriers[text].add(json.dumps([id for id, *_ in report["responses"]]))
        for report in self.told:
            if report["kind"] == "notified" and len(carriers[report["text"]]) != 1:
                yield f"N3: {report} was delivered with {carriers[report['text']]}"


def run(kills: int, seed: int, *, server_kills: int = 0) -> Workload:
    """Kill so many clients of a file or, if the server is to be killed, too, of a PostgreSQL server."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workload = Workload(seed, directory, kills, server_kills=server_kills)
        config_file(directory).write_text(_CONFIG if server_kills else _CONFIG + _KEPT)
        if server_kills:
            workload.server = stack.enter_context(own_server(*QUICK))
            (directory / "store-url").write_text(workload.server.url)
        workload.play()
        return workload


if __name__ == "__main__":
    if len(sys.argv) == 2:
        import keephold.store.postgres.store  # noqa: F401 (now, and not in each client)

        ROLES["client"] = client
        with socket.socket(fileno=int(sys.argv[1])) as control:
            nursery(control)
    else:
        print(result := run(int(sys.argv[1]), int(sys.argv[3]), server_kills=int(sys.argv[2])))
        sys.exit(1 if result.wrong else 0)
