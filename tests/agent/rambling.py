"""A model that says anything, and tools for it: what a seed draws, for conversations that are meddled with.

Everything it says is drawn from its generator in the order in which it is asked, so in virtual time a seed gives the
same conversation every time.
"""

import asyncio
import json
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelRateLimitError,
    ModelServerError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import ModelMessage, ModelRequest
from pydantic_ai.models.function import AgentInfo
from tests.agent.scripted import Line, Reply, Script, Sent, problems

import keephold
from keephold import Call, Pending, Question, ToolError
from keephold.policies import QuestionPolicy

ALL: Any = ("spawn", "fetch", "apply", "abort")
HANDLES = ("a", "b", "c")
AGENT = """
[agents.helper]
model = "python:tests.agent.scripted:helper"
run = "unattended"
"""
KEPT = ("kept", "parks")
"""Tools whose handles may outlive a turn."""
_REQUESTS = 14
"""After that many requests of a turn the model only says its last word."""


@keephold.tool
async def note(call: Call, text: str, secs: float = 0) -> str:
    """Take a note."""
    await asyncio.sleep(secs)
    return f"noted {text}"


@keephold.tool(actions=ALL)
async def work(call: Call, secs: float = 1) -> str:
    """Takes its time, and what it is told."""
    call.emit("working\n")
    await asyncio.sleep(secs)
    return "worked"


@keephold.tool(actions=ALL, on_turn_end="keep")
async def kept(call: Call, secs: float = 1) -> str:
    """Outlives its turn."""
    await asyncio.sleep(secs)
    return "kept on"


@keephold.tool(actions=ALL, on_turn_end="await", turn_end_timeout_secs=5)
async def awaited(call: Call, secs: float = 1) -> str:
    """The turn waits for it."""
    await asyncio.sleep(secs)
    return "waited for"


@keephold.tool(actions=ALL, on_turn_end="abort")
async def listens(call: Call) -> str:
    """Works until it hears a word."""
    return f"heard {await call.input()}"


@keephold.tool(questions={"sure": QuestionPolicy(target="assistant")})
async def asks(call: Call, secs: float = 0) -> str:
    """Asks the assistant."""
    await asyncio.sleep(secs)
    return f"sure: {await call.ask(Question(id='sure', text='Sure?', answer_type='Boolean'))}"


@keephold.tool(actions=ALL)
async def wonders(call: Call, secs: float = 0) -> str:
    """Asks whoever talks to it."""
    await asyncio.sleep(secs)
    return f"which: {await call.ask(Question(id='which', text='Which?', answer_type='Text'))}"


@keephold.tool
async def breaks(call: Call, kind: str = "") -> str:
    """Fails."""
    raise ToolError("it broke") if kind == "told" else RuntimeError("it broke badly")


@keephold.tool
async def parks(call: Call, secs: float = 40, fatal: bool = False) -> Pending:
    """Waits for somebody outside, who never comes."""
    await call.completion_key()
    return Pending(deadline=secs, on_timeout="fail_turn" if fatal else "error_as_result")


TOOLS = (note, work, kept, awaited, listens, asks, wonders, breaks, parks)


class Rambler(Script):
    """Says anything. With `quick`, nothing that makes a request wait or be made again."""

    def __init__(self, rng: Random, *, quick: bool = False) -> None:
        super().__init__(answers=self._inquired)
        self._rng = rng
        self._quick = quick
        self._calls = 0
        self.left = _REQUESTS

    def next(self, messages: list[ModelMessage], info: AgentInfo) -> Line:
        rng = self._rng
        if not info.instructions:
            return "So far so good." if rng.random() < 0.5 else UserError("no summary")
        self.read.append(list(messages))
        self.invalid += problems(messages)
        for one, other in pairwise(messages):
            if isinstance(one, ModelRequest) and isinstance(other, ModelRequest):
                self.invalid.append("two requests follow one another")
        self.left -= 1
        if self.left < 0:
            return "That is all."
        if rng.random() < 0.12:
            return self._failure()
        spoken = ["Quick."] if self._quick else []
        return Reply(
            text=[rng.choice(["Well. ", "", "Näher! ", "x" * 300]) for _ in range(rng.randint(0, 3))] + spoken,
            thinks=rng.choice(["", "", "Hm."]),
            calls=[self._call() for _ in range(rng.choice([0, 0, 1, 1, 2, 3, 5]))],
            pause=0 if self._quick else rng.choice([0, 0, 0.1, 3]),
            finish=rng.choice([None, None, None, "stop", "tool_call", "length", "content_filter", "error"]),
            breaks=self._failure() if rng.random() < 0.08 else None,
            usage=(rng.randint(0, 3000), rng.randint(0, 50)) if rng.random() < 0.5 else None,
        )

    def _failure(self) -> Exception:
        lasting: Sequence[Exception] = (
            UserError("no such thing"),
            RuntimeError("a bug of the model's code"),
            ContentFilterError("refused"),
            ModelHTTPError(400, "scripted", "bad request"),
            ModelContextWindowExceededError("scripted", "too long"),
        )
        passing = (
            ModelServerError("scripted", "down"),
            ModelRateLimitError("scripted", "slowly"),
            UnexpectedModelBehavior("nonsense"),
        )
        return self._rng.choice(lasting if self._quick or self._rng.random() < 0.3 else passing)

    def _inquired(self, text: str) -> Any:
        rng = self._rng
        if rng.random() < 0.2:
            return rng.choice([UserError("no"), "nonsense", {"answer": "perhaps"}, {}])
        if '{"handles"' not in text:
            return {"answer": rng.choice([True, False])}
        listed = json.loads(text[text.index('{"handles"') :])["handles"]
        return {"handles": [{"id": each["id"], "action": rng.choice(["wait", "abort"])} for each in listed]}

    def _call(self) -> Sent:
        rng = self._rng
        self._calls += 1
        id = "c" if rng.random() < 0.15 else f"c{self._calls}"
        handle = rng.choice(HANDLES)
        secs = 0.0 if self._quick and rng.random() < 0.7 else rng.choice([0, 0.01, 0.02] if self._quick else [0, 1, 50])
        kind = rng.randrange(16)
        spawnable = ["work", "kept", "awaited", "listens", "wonders", "helper"]
        if kind <= 1:
            return id, "note", {"text": handle, "secs": secs}
        if kind <= 5:
            tool = rng.choice(spawnable)
            more: dict[str, Any] = (
                {"prompt": "Go."} if tool == "helper" else {} if tool == "listens" else {"secs": secs}
            )
            return id, tool, {"action": "spawn", "id": handle, **more}
        if kind <= 8:
            action = rng.choice(["fetch", "apply", "abort"])
            tool = rng.choice(spawnable)
            return id, tool, {"action": action, "id": handle, **({"input": "go"} if action == "apply" else {})}
        if kind == 9:
            for_long = not self._quick and rng.random() < 0.5
            wanted: dict[str, Any] = {} if for_long else {"timeout_secs": 0 if self._quick else 7}
            return id, "await", {rng.choice(["all", "any"]): rng.sample(HANDLES, rng.randint(1, 3)), **wanted}
        if kind == 10:
            return id, "asks", {"secs": secs}
        if kind == 11:
            return id, "breaks", {"kind": rng.choice(["told", ""])}
        if kind == 12 and not self._quick:
            return id, "parks", {"secs": rng.choice([1, 20, 90]), "fatal": rng.random() < 0.2}
        if kind == 13:
            return id, "helper", {"prompt": "Go."}
        broken: Any = rng.choice(['{"text": ', "[]", "", "null", "\\ud800", {}, {"id": 3}, {"action": "spawn"}])
        return id, rng.choice(["note", "work", "nobody", "n", "await"]), broken
