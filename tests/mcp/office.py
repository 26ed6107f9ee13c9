"""The tools of the servers under test. Gates are files, so that a test can open them in whichever process they are."""

import asyncio
from pathlib import Path
from typing import TypedDict

import keephold
from keephold import Call, Pending, Question, ToolError
from keephold.tools.base import Action

STATEFUL: tuple[Action, ...] = ("spawn", "fetch", "apply", "abort")


class Weighed(TypedDict):
    """What `weigh` returns."""

    name: str
    grams: list[int]


async def opened(gate: str) -> None:
    """Until somebody has made that file."""
    while not Path(gate).exists():  # noqa: ASYNC110 (another process may make it)
        await asyncio.sleep(0.01)


@keephold.tool
async def echo(text: str) -> str:
    """Gives it back."""
    return text


@keephold.tool
async def weigh(name: str, count: int = 2) -> Weighed:
    """Returns an object of a declared form."""
    if not name:
        raise ToolError("nothing to weigh")
    return {"name": name, "grams": list(range(count))}


@keephold.tool
async def wait_at(call: Call, gate: str) -> str:
    """A call that ends when its gate is open."""
    Path(gate + ".begun").touch()
    await opened(gate)
    return f"through {Path(gate).name}"


@keephold.tool(actions=STATEFUL)
async def work(call: Call, gate: str) -> str:
    """The same, to be spawned."""
    call.emit("working\n")
    await opened(gate)
    return f"worked at {Path(gate).name}"


@keephold.tool
async def measure(call: Call, gate: str) -> str:
    """Says how far it is, three times, then waits at its gate."""
    for step in range(1, 4):
        call.progress(step, 3, f"step {step}")
        await asyncio.sleep(0.03)
    await opened(gate)
    return "measured"


@keephold.tool
async def confirm(call: Call, what: str) -> str:
    """Asks a person."""
    sure = await call.ask(Question(id="sure", text=f"Really {what}?", answer_type="Boolean"))
    return f"{what}: {'yes' if sure else 'no'}"


@keephold.tool(actions=STATEFUL)
async def discuss(call: Call, what: str) -> str:
    """Asks whoever has spawned it."""
    sure = await call.ask(Question(id="sure", text=f"Really {what}?", answer_type="Boolean"))
    return f"{what}: {'yes' if sure else 'no'}"


@keephold.tool
async def name_it(call: Call) -> str:
    """Asks a person for one of three words."""
    return str(await call.ask(Question(id="name", text="Which?", answer_type={"Select": {"options": ["a", "b", "c"]}})))


@keephold.tool
async def secret(call: Call) -> str:
    """Asks for what no form may hold."""
    return str(await call.ask(Question(id="password", text="Password?", secret=True)))


@keephold.tool(task="required", on_crash="replay")
async def deploy(call: Call, notes: str) -> str:
    """Notes that it runs, asks, and notes the answer."""
    with Path(notes).open("a") as file:
        file.write(f"attempt {call.attempt}\n")
    sure = await call.ask(Question(id="sure", text="Deploy?", answer_type="Boolean"))
    return f"deployed: {sure}"


@keephold.tool(on_crash="replay")
async def sign(call: Call, notes: str) -> str:
    """The same, not as a task."""
    with Path(notes).open("a") as file:
        file.write(f"attempt {call.attempt}\n")
    return f"signed: {await call.ask(Question(id='sure', text='Sign?', answer_type='Boolean'))}"


@keephold.tool(on_crash="replay")
async def haul(call: Call, gate: str) -> str:
    """Waits at its gate, and is run again after a crash."""
    Path(gate + ".begun").touch()
    await opened(gate)
    return f"hauled in attempt {call.attempt}"


@keephold.tool(task="required")
async def fragile(call: Call, gate: str) -> str:
    """Ends with the process that runs it."""
    await opened(gate)
    return "unharmed"


@keephold.tool(actions=STATEFUL)
async def approve(call: Call, keys: str) -> Pending:
    """Waits for somebody outside, who finds the key in a file."""
    Path(keys).write_text(await call.completion_key())
    return Pending(deadline=3600)


TOOLS = (echo, weigh, wait_at, work, measure, confirm, discuss, name_it, secret, deploy, sign, haul, fragile, approve)

CONFIG = "[mcp]\nbackground_secs = 0\n\n" + "".join(
    f"[conversation.tools.{tool.name}]\n"
    f'source = "python"\nfunction = "tests.mcp.office:{tool.name}"\nrun = "unattended"\n\n'
    for tool in TOOLS
)
"""These tools, and two commands: one that may be run, one that is asked about. The process that a client starts serves
them itself: its end is that of its handles."""
CONFIG += """
[conversation.tools.doze]
source = "local"
command = ["sh", "-c", "echo $$ > \\"$1\\"; sleep 300", "sh", "{{ tool.arguments.pid }}"]
run = "unattended"
parameters.pid = { type = "string", required = true }
spawn = { stateful = true }

[conversation.tools.guarded]
source = "local"
command = ["echo", "{{ tool.arguments.word }}"]
run = "ask"
parameters.word = { type = "string", required = true }
"""
