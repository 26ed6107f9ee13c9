"""A whole conversation for `test_whole_conversation`: the tools, the person, and what the model says, turn by turn.

The tools wait at gates, so that everything happens when the model is just thinking about something: a handle that is to
end between two requests ends while the second is being answered.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tests.agent.providers.neutral import Asked
from tests.agent.providers.script import Reply, Step, Usage
from tests.patience import PATIENCE

import keephold
from keephold import Call, Question, Runtime, Tool
from keephold.tools.base import Action, QuestionPolicy
from keephold.turn.prompts import Denied, Prompt, RunTool

STATEFUL: tuple[Action, ...] = ("spawn", "fetch", "abort")
QUESTION = "Drop the old tables?"
THINKING = "First the build, then the rest."


class Yard:
    """Where things are built. `order` says in which order what happened."""

    def __init__(self) -> None:
        self.gates: Mapping[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.order: list[str] = []
        self.prompts: list[Prompt] = []
        self.runtime: Runtime | None = None

    async def person(self, prompt: Prompt) -> Any:
        """Somebody who lets nothing be deleted."""
        self.prompts.append(prompt)
        assert isinstance(prompt, RunTool)
        return Denied("not today")

    async def stopped(self, *ids: str) -> None:
        """Until these handles have ended."""
        assert self.runtime is not None
        async with asyncio.timeout(PATIENCE):
            await self.runtime.wait(all=list(ids), conversation="main")

    def tools(self) -> list[Tool]:
        gates, order = self.gates, self.order

        @keephold.tool(actions=STATEFUL)
        async def build(call: Call, target: str) -> str:
            """Build a target."""
            call.emit(f"compiling {target}\n")
            await asyncio.sleep(0)
            order.append(f"built {target}")
            return f"{target} is built"

        @keephold.tool(questions={"drop": QuestionPolicy(target="assistant")})
        async def migrate(call: Call, database: str) -> str:
            """Migrate a database."""
            drop = await call.ask(Question(id="drop", text=QUESTION, answer_type="Boolean"))
            order.append(f"migrated {database}")
            return f"{database} is migrated, old tables {'dropped' if drop else 'kept'}"

        @keephold.tool(run="ask")
        async def delete(path: str) -> str:
            """Delete a file."""
            order.append(f"deleted {path}")
            return "deleted"

        @keephold.tool(actions=STATEFUL, on_turn_end="keep")
        async def watch(call: Call, gate: str) -> str:
            """Watch a gate, also after the turn."""
            await gates[gate].wait()
            return f"somebody came through {gate}"

        @keephold.tool(actions=STATEFUL)
        async def measure(call: Call, what: str) -> str:
            """Measure something; takes long."""
            call.emit("measuring\n")
            await gates["measured"].wait()
            return f"{what}: 42"

        return [build, migrate, delete, watch, measure]

    # What the model says

    def turns(self) -> Sequence[Step]:
        return [
            Reply(
                text="I build it.",
                thinking=THINKING,
                calls=[("build", spawn("b", target="app")), ("await", {"all": ["b"], "timeout_secs": 30})],
                usage=Usage(input_tokens=100, output_tokens=20),
            ),
            Reply(
                calls=[
                    ("migrate", {"database": "main"}),
                    ("delete", {"path": "/etc/passwd"}),
                    ("watch", spawn("w1", gate="north")),
                    ("watch", spawn("w2", gate="south")),
                ]
            ),
            self._while_thinking,
            Reply(text="Nearly done."),
            Reply(text="All is done."),
            Reply(text="You are welcome."),
        ]

    def inquiries(self) -> Sequence[Step]:
        return [Reply(answer={"answer": True}), self._waits]

    async def _while_thinking(self, asked: Asked) -> Reply:
        """A handle that is kept ends between this request and the next."""
        self.gates["north"].set()
        await self.stopped("w1")
        return Reply(calls=[("measure", spawn("m", what="the app"))])

    async def _waits(self, asked: Asked) -> Reply:
        """At the end of the turn something runs; it ends after the model has chosen to wait for it."""
        asyncio.get_running_loop().call_soon(self.gates["measured"].set)
        return Reply(answer={"handles": [{"id": "m", "action": "wait"}]})


def spawn(id: str, **arguments: Any) -> dict[str, Any]:
    return {"action": "spawn", "id": id, **arguments}
