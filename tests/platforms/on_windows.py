"""What Windows must do, in an interpreter that looks like that of Windows: `python on_windows.py PART STORE`.

`imports`, `runs`, `dies` and `resumes` are about the library. `keephold` is the command, with the words that follow.
"""

# ruff: noqa: E402 (keephold is imported when everything looks like Windows)

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.platforms.like_windows import look_like_windows

look_like_windows()

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import keephold
from keephold.platforms import machine

LINUX = {"keephold.platforms.linux_probe", "keephold.platforms.linux_spawn"}
KEYS: list[keephold.Key] = []


@keephold.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@keephold.tool
def write(call: keephold.Call, size: int) -> str:
    """Print a number of bytes, from a thread."""
    call.emit("x" * size)
    return "written"


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def purchase(call: keephold.Call) -> keephold.Pending:
    """Buy something. The user has to approve it."""
    KEYS.append(await call.completion_key())
    return keephold.Pending(deadline=7 * 86_400)


@keephold.tool
async def start(call: keephold.Call) -> str:
    """Start a process."""
    await call.process("true")
    return "started"


async def note(what: str) -> str:
    print("did", what, flush=True)
    return what


@keephold.tool(on_crash="replay")
async def order(call: keephold.Call) -> str:
    """Do two things, each once."""
    effects = call.durable()
    first = await effects.run_json("charge", "charge", note)
    if call.attempt == 1:
        os._exit(7)
    return f"{first} {await effects.run_json('ship', 'ship', note)}"


def imports() -> None:
    """Import every module of keephold but those that are Linux alone."""
    import importlib
    import pkgutil

    names = [module.name for module in pkgutil.walk_packages(keephold.__path__, "keephold.")]
    for name in names:
        if name not in LINUX and not name.endswith("__main__"):
            importlib.import_module(name)
    assert set(names) > LINUX


async def runs(url: str) -> None:
    """Call functions, complete a parked one, keep more output than memory takes, and start no process."""
    tools = [add, write, purchase, start]
    async with keephold.Runtime(tools, store=url) as runtime, runtime.turn("main") as turn:

        async def say(tool: str, **arguments: object) -> str:
            (response,) = await turn.run([keephold.ToolCall("1", tool, arguments)])
            return str(response.result)

        assert "3" in await say("add", a=1, b=2)
        assert "written" in await say("write", size=3_000_000)
        await say("purchase", action="spawn", id="p")
        assert str(await turn.resolve(KEYS.pop(), {"status": "ok", "payload": "a desk"})) == "accepted"
        assert "a desk" in await say("await", all=["p"])
        print(await say("start"))


async def order_again(url: str) -> None:
    """Run the order, or what a dead process left of it."""
    async with keephold.Runtime([order], store=url) as runtime, runtime.turn("main", resume=True) as turn:
        calls = [keephold.ToolCall("1", "order", {})]
        for response in await (turn.resume() if turn.unfinished else turn.run(calls)):
            print("said", response.result)


def refuses() -> None:
    """Make no tool of a program."""
    for make in (
        lambda: keephold.command(["git", "log"]),
        lambda: keephold.terminal(["python"]),
        lambda: keephold.mcp_server("files", command=["mcp-files"]),
    ):
        try:
            make()
        except keephold.ConfigError as error:
            print(error.message)
    with ThreadPoolExecutor(1) as pool:  # only the main thread gets signals
        assert pool.submit(asyncio.run, listens()).result() is False


async def listens() -> bool:
    try:
        machine.on_signal("SIGTERM", print)
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    part, *words = sys.argv[1:]
    if part == "keephold":
        from keephold.cli import main

        sys.argv = ["keephold", *words]
        main()
    elif part == "imports":
        imports()
    elif part == "refuses":
        refuses()
    else:
        asyncio.run({"runs": runs, "order": order_again}[part](*words))
