"""Run other programs as sub-agents over ACP (G2): each is started for one run and ended with it.

The agent's messages are the handle's output, and `apply` sends a further prompt. Its permission requests become
questions of the handle that only the user may answer.
"""

import asyncio
from pathlib import Path
from typing import Any

from keephold.acp.client.connection import connect
from keephold.acp.client.session import PermissionRequest, Session
from keephold.acp.wire import ConnectionLost, RpcError
from keephold.agent.subagents import as_message
from keephold.config.model import AgentSettings
from keephold.errors import KeepholdError, ToolError
from keephold.handles.question import Question
from keephold.tools.call import Call
from keephold.tools.guard import Guard
from keephold.tools.waiting.agents import PERMISSION

START_SECS = 60.0
"""The time a program has to answer the handshake and to open a session."""


async def run_program(
    id: str, settings: AgentSettings, root: Path, guard: Guard, call: Call, prompt: str
) -> dict[str, Any]:
    """Run one program: prompt it until no further message was sent. Raises `ToolError`."""
    assert settings.command is not None
    cwd = root / Path(settings.cwd).expanduser()  # noqa: ASYNC240 (reads the environment only)
    guard.ensure()
    run = _Run(call)
    try:
        async with (
            asyncio.timeout(START_SECS) as starting,
            connect(
                settings.command,
                cwd=cwd,
                env={**settings.env, **guard.environ(call.uid)},
                pass_env=settings.pass_env,
                on_permission=run.permit,
            ) as agent,
        ):
            session = await agent.new_session(cwd)
            starting.reschedule(None)
            stop = await run.converse(session, prompt)
    except TimeoutError:
        if not starting.expired():
            raise
        why = f"it did not shake hands within {START_SECS:g} s; is it an ACP agent?"
        raise ToolError(f"Agent `{id}` failed: {why}", code="model_failed") from None
    except (ConnectionLost, RpcError, KeepholdError) as error:
        if isinstance(error, ToolError):
            raise
        raise ToolError(f"Agent `{id}` failed: {error}", code="model_failed") from error
    finally:
        guard.end(call.uid)  # also processes that it started in sessions of their own (C7)
    if stop in ("refusal", "max_turn_requests", "cancelled"):
        raise ToolError(f"Agent `{id}` did not finish: {stop}. It had said: {run.said}", code="model_failed")
    return {"response": run.said, "finishReason": "length" if stop == "max_tokens" else "stop"}


class _Run:
    """The messages and questions of one run."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._line = True
        self._called = False
        """The agent has called a tool since its last message."""
        self.said = ""
        """The text of the newest turn since its last tool call that was followed by text."""

    async def converse(self, session: Session, prompt: str) -> str:
        """Prompt, and prompt again with the messages that `apply` has sent; return the last stop reason."""
        said = [prompt]
        while True:
            self.said = ""
            turn = session.prompt("\n\n".join(said), on_update=self._updated)
            try:
                result = await turn
                await turn.drained()
            except asyncio.CancelledError:
                turn.cancel()
                raise
            said = [text for text in map(as_message, self._call.received()) if text]
            if not said or result.stop_reason != "end_turn":
                return result.stop_reason

    def _updated(self, update: dict[str, Any]) -> None:
        match update:
            case {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": str(text)}}:
                self.said = text if self._called else self.said + text
                self._called = False
                self._emit(text)
            case {"sessionUpdate": "tool_call", "title": title}:
                self._called = True
                self._emit(f"{'' if self._line else chr(10)}→ {title!s:.200}\n")
            case {"sessionUpdate": "plan", "entries": [*entries]}:
                done = sum(1 for each in entries if isinstance(each, dict) and each.get("status") == "completed")
                self._call.progress(done, len(entries))

    def _emit(self, text: str) -> None:
        self._call.emit(text)
        self._line = text.endswith("\n")

    async def permit(self, permission: PermissionRequest) -> str | None:
        """Ask the user. If the user cannot be asked, reject."""
        names: dict[str, str] = {}
        for option in permission.options:
            id, name = option["optionId"], str(option.get("name") or option["optionId"])
            names[f"{name} ({option.get('kind', id)})" if name in names else name] = id
        title = permission.tool_call.get("title") or permission.tool_call.get("toolCallId") or "a tool call"
        question = Question(
            id=PERMISSION, text=f"May it run: {title}?", answer_type={"Select": {"options": list(names)}}
        )
        try:
            chosen = await self._call.ask(question)
        except ToolError:
            return permission.option("reject_once", "reject_always")
        return str(names[chosen])
