"""A deployment that waits for an approval and survives `kill -9`. Run it: `python examples/approval.py`.

Three processes share one store, a SQLite file. A *worker* runs the tool. It is killed while the tool waits, and another
worker resumes the call. An *approver* has only the store and the key. This program starts and kills them all.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keephold

MAIL = Path("approval.key")
"""The way the key reaches the approver: a file in a private directory. In a real program: a link in a message."""
WAITS = "the tool waits for an approval"


def say(text: str) -> None:
    print(text, flush=True)


def send(key: keephold.Key) -> None:
    MAIL.write_text(key)


def received() -> str:
    return MAIL.read_text()


# The tool


async def build(input: dict[str, Any]) -> dict[str, Any]:
    say(f"step `build` runs, for {input['env']}")
    return {"release": "r-17"}


async def install(input: dict[str, Any]) -> str:
    say(f"step `install` runs, with {input['release']}")
    return "installed"


@keephold.tool(actions=("spawn", "fetch", "abort"), on_crash="replay")
async def deploy(call: keephold.Call, env: str) -> str:
    """Build, wait for an approval, install."""
    say(f"the tool begins, attempt {call.attempt}")
    fx = call.durable()
    built = await fx.run_json("build", {"env": env}, build)  # runs once: its result is in the store
    key = await fx.external_event_key("approval")  # the same key in every attempt
    send(key)  # repeated in every attempt, which is harmless; an effect that must not repeat belongs in a step
    say(WAITS)
    approval = await fx.await_event_json(key)
    done = await fx.run_json("install", {"env": env, "release": built["release"]}, install)
    return f"{built['release']} {done} in {env}, approved by {approval['by']}"


# The processes


async def work(store: str) -> None:
    """Run a batch, or resume the one that a dead process left."""
    calls = [
        keephold.ToolCall("1", "deploy", {"action": "spawn", "id": "d", "env": "production"}),
        keephold.ToolCall("2", "await", {"all": ["d"]}),
    ]
    async with keephold.Runtime([deploy], store=store) as rt, rt.turn("main", resume=True) as turn:
        *_, awaited = await (turn.resume() if turn.unfinished else turn.run(calls))
        say(f"the batch is answered: {awaited.result}")


async def approve(store: str) -> None:
    """Resolve the event. This needs only the key; the runtime has no tools."""
    async with keephold.Runtime(store=store) as rt:
        for by in ("Ada", "Bob"):
            outcome = await rt.resolve(received(), {"status": "ok", "payload": {"by": by}})
            say(f"{by} approves: {outcome}")


# The demonstration


@contextmanager
def started(role: str, store: str) -> "Iterator[subprocess.Popen[str]]":
    """Start a process of that role, and kill it when the block is left."""
    command = [sys.executable, str(Path(__file__).resolve()), role, store]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def follow(name: str, process: "subprocess.Popen[str]", until: str | None = None) -> None:
    """Print the output of a process, up to a line or to its end."""
    assert process.stdout is not None
    for line in process.stdout:
        print(f"  {name}: {line}", end="", flush=True)
        if line.rstrip() == until:
            return
    if process.wait() != 0:
        raise SystemExit(f"the {name} failed")


def play(store: str) -> None:
    with started("work", store) as first:
        follow("first worker", first, until=WAITS)
        first.kill()  # SIGKILL: it cannot prepare for that
    print("  (kill -9)")
    with started("work", store) as second:
        follow("second worker", second, until=WAITS)
        with started("approve", store) as approver:
            follow("approver", approver)
        follow("second worker", second)


def main() -> None:
    print("A deployment that waits for an approval, and whose worker is killed:")
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        play("sqlite:///deploy.db")
        os.chdir("/")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        asyncio.run({"work": work, "approve": approve}[sys.argv[1]](sys.argv[2]))
