"""The tools of the crash tests: one for each way in which a call can live through a crash, or not."""

import asyncio
from pathlib import Path
from typing import Any, Final

from tests.crash.world import World, here

import keephold
from keephold import Call, Effects, Key, Pending, Question, ToolError
from keephold.policies import RetryPolicy

_SPAWN: Final = ("spawn", "fetch", "abort")
_LIVE_SECS = 0.01
"""How long a call works on nothing: long enough for a kill to hit it."""
_QUICKLY = {"max_attempts": 20, "base_delay_ms": 4, "max_delay_ms": 8}
FAMILY = """
setsid sh -c 'while :; do sleep 30; done' </dev/null >/dev/null 2>&1 &
setsid setsid sh -c 'trap "" TERM HUP; while :; do sleep 30; done' </dev/null >/dev/null 2>&1 &
(while :; do sleep 30; done) &
echo up
wait
"""
CONFIG = f"""
[conversation.tools.family]
source = "local"
run = "unattended"
command = ["sh", "-c", '''{FAMILY}''']
spawn = {{ stateful = true, abort_grace_ms = 100 }}
"""


def config_file(directory: Path) -> Path:
    return directory / "keephold.toml"


def said(step: str, run: int) -> str:
    """What a step prints."""
    return f"step {step} in run {run}\n"


async def step(call: Call, fx: Effects, name: str, given: Any = None) -> Any:
    """A journaled step that leaves a line in the world. Its value says in which run it was done."""
    world: World = here()

    async def act(given: Any) -> Any:
        world.act(call.uid, name)
        call.emit(said(name, world.run))
        return {"step": name, "run": world.run, "given": given}

    value = await fx.run_json(name, given, act)
    world.say("step", uid=call.uid, step=name, value=value)
    return value


def _begin(call: Call) -> None:
    here().act(call.uid, "begin")
    here().say("begun", uid=call.uid, call=call.id, attempt=call.attempt)


def _tell_key(call: Call, key: Key, name: str) -> None:
    here().say("key", uid=call.uid, name=name, key=str(key), key_id=key.key_id)


@keephold.tool
async def hello(name: str) -> str:
    """Greet."""
    return f"hello {name}"


@keephold.tool(scheduling="serial")
async def in_turn(call: Call, name: str) -> str:
    """Greet, one at a time. Whoever is not first has not started when the process dies early."""
    _begin(call)
    await asyncio.sleep(_LIVE_SECS)
    return f"hello {name}"


@keephold.tool(actions=_SPAWN)
async def plain(call: Call) -> str:
    """`fail`: a crash ends it."""
    _begin(call)
    await asyncio.sleep(_LIVE_SECS)
    return "done"


@keephold.tool(actions=_SPAWN, on_crash="replay")
async def pipeline(call: Call) -> Any:
    """Steps: one after the other, one that fails, some at once; a sleep and a process event between them."""
    _begin(call)
    fx = call.durable()
    first = await step(call, fx, "first", {"n": 1})

    async def fail(_: Any) -> Any:
        here().act(call.uid, "fails")
        raise ToolError(f"no luck in run {here().run}", code="unlucky")

    try:
        await fx.run_json("fails", None, fail)
    except ToolError as error:
        here().say("failed", uid=call.uid, step="fails", message=error.message)
        luck = error.message
    if call.process_id is not None:
        await call.process_events().emit("seen")
        await fx.emit_process_event("half", {"first": first})
    await fx.sleep(_LIVE_SECS)
    both = await asyncio.gather(step(call, fx, "left"), step(call, fx, "right"))
    return {"first": first, "luck": luck, "both": both}


@keephold.tool(actions=_SPAWN, on_crash="replay")
async def deploy(call: Call, env: str) -> Any:
    """Two steps around an approval from outside."""
    _begin(call)
    fx = call.durable()
    made = await step(call, fx, "create", {"env": env})
    key = await fx.external_event_key("approved")
    _tell_key(call, key, call.conversation)
    approved = await fx.await_event_json(key)
    return {"made": made, "approved": approved, "released": await step(call, fx, "release", approved)}


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"), on_crash="replay")
async def talker(call: Call) -> Any:
    """A question, then a line of input, then a step."""
    _begin(call)
    who = await call.ask(Question(id="who", text="Who is it?"))
    return await step(call, call.durable(), "greet", {"who": who, "line": await call.input()})


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"), on_crash="replay", on_turn_end="keep")
async def keeper(call: Call) -> Any:
    """Keeps what it is told, beyond the end of the turn, until it is told to end."""
    _begin(call)
    lines = []
    while (line := await call.input()) != "end":
        lines.append(line)
    return lines


@keephold.tool(actions=_SPAWN)
async def approve(call: Call, deadline: float | None = None, slow: bool = False, fatal: bool = False) -> Pending:
    """Waits for its completion, nobody runs it. A slow one is completed before it waits."""
    _begin(call)
    _tell_key(call, await call.completion_key(), call.conversation)
    if slow:
        await asyncio.sleep(_LIVE_SECS)
    return Pending(deadline=deadline, on_timeout="fail_turn" if fatal else "error_as_result")


@keephold.tool(actions=_SPAWN)
async def rent(call: Call) -> Pending:
    """The same, with work outside that must be ended if the call is."""
    _begin(call)
    await call.completion_key()
    return Pending()


@rent.on_cancel
async def give_back(key: Key, arguments: dict[str, Any]) -> None:
    here().act(key.key_id, "hook")


@keephold.tool(actions=_SPAWN, on_crash="external", deadline_secs=60)
async def outside(call: Call) -> Pending:
    """Parked from the commit that takes its key, also if the process dies before it says so."""
    _begin(call)
    _tell_key(call, await call.completion_key(), call.conversation)
    await asyncio.sleep(_LIVE_SECS)
    return Pending(deadline=60)


@keephold.tool(actions=_SPAWN, resources=["thing"])
async def borrow(call: Call) -> Pending:
    """Holds the thing until it is completed from outside."""
    _begin(call)
    _tell_key(call, await call.completion_key(), call.conversation)
    return Pending()


@keephold.tool(actions=_SPAWN, on_crash="replay", resources=["thing"])
async def use(call: Call, after: str) -> Any:
    """Needs the thing, and must not have it before the other one has stopped."""
    _begin(call)
    waited = await call.handles.wait(all=[after], timeout=0)
    if waited.timed_out:
        raise ToolError(f"{after} still has the thing")
    return await step(call, call.durable(), "use")


@keephold.tool(actions=_SPAWN, on_crash="replay", scheduling="serial")
async def queued(call: Call) -> Any:
    """One at a time."""
    _begin(call)
    fx = call.durable()
    first = await step(call, fx, "in")
    await fx.sleep(_LIVE_SECS / 2)
    return [first, await step(call, fx, "out")]


async def _luckless(call: Call) -> str:
    """Fails once, for a reason that passes."""
    _begin(call)
    await asyncio.sleep(_LIVE_SECS / 2)
    if call.attempt < 2:
        raise ToolError("not now", transient=True)
    return "at last"


safely = keephold.tool(name="safely", actions=_SPAWN, retry=RetryPolicy(policy="safe", **_QUICKLY))(_luckless)
again = keephold.tool(name="again", actions=_SPAWN, retry=RetryPolicy(policy="idempotent", **_QUICKLY))(_luckless)

TOOLS = (
    hello, in_turn, plain, pipeline, deploy, talker, keeper, approve, rent, outside, borrow, use, queued, safely, again,
)  # fmt: skip
