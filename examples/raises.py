"""An agent loop that raises in the middle, and is started again. Run it: `python examples/raises.py`.

A model has made three calls: start a build, ask for an approval, wait for the build. Meanwhile the connection to the
model breaks, and nothing catches the `ConnectionError`. The build keeps running and the approval stays open. The next
run of the same program finds both, and answers the three calls.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import keephold

STORE = "sqlite:///agent.db"
KEY, FINISH = Path("approval.key"), Path("finish")
asked = asyncio.Event()
BUILD = "echo compiling; while [ ! -e finish ]; do sleep 0.05; done; echo compiled"


def say(text: str) -> None:
    print(f"  {text}", flush=True)


def send(key: keephold.Key) -> None:
    """Send the key to the person who approves. In a real program: a link in a message."""
    KEY.write_text(key)
    asked.set()


def received() -> str:
    return KEY.read_text()


# The tools


@keephold.tool
async def approve(call: keephold.Call) -> keephold.Pending:
    """Ask for an approval, which may take a week."""
    send(await call.completion_key())
    return keephold.Pending(deadline=7 * 86_400)


build = keephold.command(BUILD, shell=True, name="build", actions=("spawn", "fetch", "abort"), on_crash="keep")

CALLS = [
    keephold.ToolCall("1", "build", {"action": "spawn", "id": "app"}),
    keephold.ToolCall("2", "approve"),
    keephold.ToolCall("3", "await", {"all": ["app"]}),
]


# The agent loop


async def agent() -> None:
    """Answer the calls of the model, or those that an earlier run has left unanswered."""
    async with keephold.Runtime([build, approve], store=STORE) as rt, rt.turn("main", resume=True) as turn:
        if turn.unfinished is not None:
            say(f"finds a batch of {len(turn.unfinished.calls)} calls")
            responses = await turn.resume()
        else:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(turn.run(CALLS))
                group.create_task(breaks())
            responses = running.result()
        for response in responses:
            say(f"{response.id}: {response.result}")


async def breaks() -> None:
    """Raise while the calls run, as a connection to a model does."""
    await asked.wait()
    raise ConnectionError("the connection to the model broke")


async def person() -> None:
    """Approve. This needs only the store and the key."""
    async with keephold.Runtime(store=STORE) as rt:
        approval = {"status": "ok", "payload": {"approved_by": "Ada"}}
        say(f"Ada approves: {await rt.resolve(received(), approval)}")


# The demonstration


def run(role: str) -> int:
    """Run a process of that role to its end, show why it failed, if it has, and return its exit code."""
    done = subprocess.run([sys.executable, str(Path(__file__).resolve()), role], stderr=subprocess.PIPE, text=True)
    for line in done.stderr.splitlines():
        if "Error: " in line:
            say(line.strip(" |"))
    return done.returncode


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        print("The first run of the agent:", flush=True)
        assert run("agent") == 1
        print("No agent runs:", flush=True)
        FINISH.touch()
        assert run("person") == 0
        print("The second run of the agent:", flush=True)
        assert run("agent") == 0
        os.chdir("/")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        asyncio.run({"agent": agent, "person": person}[sys.argv[1]]())
