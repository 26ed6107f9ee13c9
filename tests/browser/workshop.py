"""What the server under the browser has: builds, a terminal, tools that ask, one that is replayed, and a workflow.

Gates are files, so that a test decides when something goes on, in whichever process it is.
"""

import asyncio
from pathlib import Path
from typing import Any

import keephold
from keephold import Call, Question
from keephold.tools.base import Action

STATEFUL: tuple[Action, ...] = ("spawn", "fetch", "apply", "abort")


async def opened(gate: str) -> None:
    """Until somebody has made that file."""
    while not Path(gate).exists():  # noqa: ASYNC110 (another process may make it)
        await asyncio.sleep(0.02)


@keephold.tool(actions=STATEFUL)
async def publish(call: Call, version: str) -> str:
    """Asks a person, and nobody else, before it publishes."""
    call.emit(f"keephold-{version}.tar.gz is ready\n")
    where = await call.ask(
        Question(
            id="where",
            text=f"Where should {version} go?",
            pre_amble="`make test` has passed.",
            answer_type={"Select": {"options": ["staging", "production"]}},
        )
    )
    return f"{version} is on {where}"


@keephold.tool(actions=STATEFUL, on_crash="replay")
async def name_release(call: Call) -> str:
    """Asks a person for a name; asks again if its process dies."""
    return f"called {await call.ask(Question(id='name', text='What shall it be called?'))}"


@keephold.tool(actions=STATEFUL)
async def survey(call: Call) -> str:
    """Asks a person three things, one after another; what answers them stands in the same place."""
    select = {"Select": {"options": ["one", "two"]}}
    first = await call.ask(Question(id="first", text="The first?", answer_type=select))
    second = await call.ask(Question(id="second", text="The second?", answer_type=select))
    sure = await call.ask(Question(id="sure", text="Is that all?", answer_type="Boolean"))
    return f"{first}, {second}, {sure}"


@keephold.tool(actions=STATEFUL, on_crash="replay")
async def release(call: Call, gate: str) -> str:
    """Takes recorded steps, waits at its gate, and takes a last one; is run again if its process dies."""
    effects = call.durable()

    async def done(given: Any) -> Any:
        return {"tagged": given}

    await effects.run_json("tag", "v1", done)
    call.progress(1, 2, "tagged")
    await opened(gate)
    await effects.run_json("push", "v1", done)
    return "released"


@keephold.tool
async def check(name: str) -> dict[str, Any]:
    """A step of a workflow."""
    return {"name": name, "good": True}


@keephold.tool
async def held(gate: str) -> str:
    """A step of a workflow that waits at its gate."""
    await opened(gate)
    return "through"


@keephold.tool(actions=STATEFUL)
async def shout(call: Call, text: str) -> str:
    """Prints and returns what it is given, whatever that is."""
    call.emit(text + "\n")
    return text


TOOLS = (publish, name_release, survey, release, check, held, shout)

CONFIG = "".join(
    f"[conversation.tools.{tool.name}]\n"
    f'source = "python"\nfunction = "tests.browser.workshop:{tool.name}"\nrun = "unattended"\n\n'
    for tool in TOOLS
)
CONFIG += """
[conversation.tools.publish.questions.where]
exclusive = true

[conversation.tools.name_release.questions.name]
exclusive = true

[conversation.tools.survey.questions]
first = { exclusive = true }
second = { exclusive = true }
sure = { exclusive = true }

[conversation.tools.build]
source = "local"
description = "Build a target; prints as it goes and ends when its gate is open."
command = { program = '''
n=0
until [ -e "$PWD/{{ tool.arguments.target }}.built" ]; do
    n=$((n+1)); echo "compiling {{ tool.arguments.target }}: part $n"; sleep 0.2
done
echo "built {{ tool.arguments.target }}"
''', shell = true }
run = "unattended"
parameters.target = { type = "string", required = true }
spawn = { stateful = true }

[conversation.tools.shell]
source = "terminal"
description = "A shell."
command = ["bash", "--norc", "--noprofile"]
env = { PS1 = "$ " }
run = "unattended"

[conversation.tools.deploy]
source = "local"
description = "Deploy to a host. A person has to allow it."
command = ["echo", "deployed to {{ tool.arguments.host }}"]
run = "ask"
parameters.host = { type = "string", required = true }
spawn = { stateful = true }
"""

STEPS = [
    {"id": "check", "type": "tool", "config": {"name": "check", "arguments": {"name": "unit"}}},
    {"id": "gate", "type": "tool", "config": {"name": "held", "arguments": {"gate": {"cel": "input.gate"}}}},
    {"id": "report", "type": "transform", "config": {"expression": "'all is well'"}},
]
"""A workflow that stands at its second step until its gate is open."""
