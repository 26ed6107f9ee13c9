"""`call.process`: a process that a function starts belongs to the call and ends with it (C7, R2)."""

import asyncio
import json
from asyncio.subprocess import PIPE
from dataclasses import replace

import pytest
from tests.leaks import marked_processes

import keephold
from keephold.turn.turn import Response

pytestmark = pytest.mark.slow
TREE = "setsid sh -c 'trap \"\" TERM; echo up; while :; do sleep 300; done' & wait"
"""A shell, and one in a session of its own that ignores SIGTERM."""

_up: list[asyncio.Future[None]] = []


@keephold.tool
async def measure(call: keephold.Call, text: str) -> str:
    """Count the characters of a text, by a program."""
    process = await call.process("wc", "-c", stdin=PIPE)
    out, err = await process.communicate(text.encode())
    assert out is not None and err is None and process.returncode == 0
    return out.decode().strip()


@keephold.tool(actions=("spawn", "fetch", "abort"), timeout_secs=None)
async def serve(call: keephold.Call) -> str:
    """Start a tree of processes, and wait for its end, which never comes."""
    process = await call.process("sh", "-c", TREE)
    assert process.stdout is not None
    call.emit(await process.stdout.readline())
    _up.pop().set_result(None)
    return str(await process.wait())


@keephold.tool
async def leave(call: keephold.Call, how: str) -> str:
    """Start a tree of processes, and return or fail."""
    process = await call.process("sh", "-c", TREE)
    assert process.stdout is not None
    await process.stdout.readline()
    if how == "raise":
        raise keephold.ToolError("it went wrong")
    return "returned"


def quick(tool: keephold.Tool) -> keephold.Tool:
    """The tool, with a short time for what ignores SIGTERM."""
    return replace(tool, spawn=replace(tool.spawn, abort_grace_ms=100))


async def call(turn: keephold.Turn, tool: str, **arguments: str) -> Response:
    (answer,) = await turn.run([keephold.ToolCall("1", tool, arguments)])
    return answer


def sleeps() -> list[int]:
    return [pid for pid, command in marked_processes().items() if "sleep 300" in command]


async def test_Y_a_process_gets_input_and_gives_output() -> None:
    async with keephold.Runtime([measure]) as runtime, runtime.turn() as turn:
        assert (await call(turn, "measure", text="x" * 300_000)).result == "300000"


@pytest.mark.parametrize("how", ["return", "raise"])
async def test_C7_a_process_ends_when_the_function_does(how: str) -> None:
    async with keephold.Runtime([quick(leave)]) as runtime, runtime.turn() as turn:
        answer = await call(turn, "leave", how=how)
        assert answer.is_error == (how == "raise")
        assert sleeps() == []


@pytest.mark.parametrize("how", ["abort", "cancel", "end", "close"])
async def test_C7_a_process_ends_with_the_call(how: str) -> None:
    _up.append(up := asyncio.get_running_loop().create_future())
    async with keephold.Runtime([quick(serve)]) as runtime:
        async with runtime.turn() as turn:
            await call(turn, "serve", action="spawn", id="s")
            await up
            assert len(sleeps()) >= 2  # two shells that have it in their scripts
            if how == "abort":
                await call(turn, "serve", action="abort", id="s")
                assert sleeps() == []
            elif how == "cancel":
                turn.cancel()
            elif how == "close":
                await runtime.close()
        assert sleeps() == []


@keephold.tool
async def two(call: keephold.Call) -> str:
    """Run a short program beside one with children, which reads its input after the other has ended."""
    long = await call.process("sh", "-c", "sh -c 'echo up; read line; echo $line'; echo over", stdin=PIPE)
    assert long.stdout is not None
    await long.stdout.readline()
    await (await call.process("true")).wait()
    out, _ = await long.communicate(b"still\n")
    return f"{out!r} {long.returncode}"


async def test_C7_the_end_of_one_process_leaves_the_others_of_its_call_alone() -> None:
    async with keephold.Runtime([two]) as rt, rt.turn("main") as turn:
        (response,) = await turn.run([keephold.ToolCall(id="1", name="two", arguments={})])
    assert response.result == r"b'still\nover\n' 0"


async def test_F1_a_process_that_cannot_start_says_why() -> None:
    @keephold.tool
    async def broken(call: keephold.Call) -> None:
        """Start a program that does not exist."""
        await call.process("no-such-program")

    async with keephold.Runtime([broken]) as runtime, runtime.turn() as turn:
        answer = await call(turn, "broken")
        assert answer.is_error and "no program `no-such-program`" in answer.result


async def test_Y_a_process_has_no_secrets_but_those_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")

    @keephold.tool
    async def keys(call: keephold.Call) -> list[str]:
        """Return the secret as two processes see it."""
        script = ("sh", "-c", 'echo "$OPENAI_API_KEY$MORE"')
        poor, rich = (
            await call.process(*script, env={"MORE": "m"}),
            await call.process(*script, pass_env=["OPENAI_API_KEY"]),
        )
        return [(out or b"").decode().strip() for out, _ in (await poor.communicate(), await rich.communicate())]

    async with keephold.Runtime([keys]) as runtime, runtime.turn() as turn:
        assert json.loads((await call(turn, "keys")).result) == ["m", "k"]


async def test_Y_a_sync_function_cannot_start_one() -> None:
    @keephold.tool
    def sync(call: keephold.Call) -> None:
        """Try it."""
        asyncio.run(call.process("true"))

    async with keephold.Runtime([sync]) as runtime, runtime.turn() as turn:
        assert "needs an async function" in (await call(turn, "sync")).result
