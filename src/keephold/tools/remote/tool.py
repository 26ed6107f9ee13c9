"""A tool of a server as a tool of ours, and one call of it.

A call that the server answers just runs; a crash in the middle ends it, because its effects are unknown. A call that
became a task of the server is followed (`following`), also by the next runtime.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from keephold.errors import ConfigError, ToolError
from keephold.schema.canonical import check_parameters
from keephold.tools.base import Action, Invocation, Live, Sink, Tool
from keephold.tools.function import _Task
from keephold.tools.remote.asking import Asker
from keephold.tools.remote.connection import AWAY_SECS, Connection

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as ListedTool

    from keephold.tools.remote.link import ServerLink

_ANYTHING = {"type": "object", "properties": {}, "additionalProperties": True}
_STEP = "task "
"""Name of the journal's step that keeps the task of a call; the number of the attempt follows."""


class Remote:
    """Runs one tool of one server."""

    def __init__(self, connection: Connection, tool: str) -> None:
        self.connection = connection
        self.tool = tool
        self._begun: set[str] = set()
        """Calls that run here, or will be tried again here."""

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        asker = Asker(invocation, sink)
        live = _Running(asker.call, sink)
        live.start(self._run, {"asker": asker})
        return live

    async def _run(self, asker: Asker) -> Any:
        self.connection.used_by(asker.call.conversation)
        again = False
        try:
            return await self._value(asker)
        except ToolError as error:
            again = error.transient
            if asker.notes and error.code != "mcp_disconnected":
                text = "\n".join((error.message, *(f"({note})" for note in asker.notes)))
                raise ToolError(text, code=error.code, transient=error.transient) from None
            raise
        finally:
            asker.close()
            if not again:
                self._begun.discard(asker.call.uid)

    async def _value(self, asker: Asker) -> Any:
        task = self._recorded(asker)
        if task is None:
            self._check_begun(asker.invocation)
            link = await self.connection.ready()
            self._check_there()
            result = await self._result(link, asker)
        else:
            await self.connection.again(AWAY_SECS)
            result = await self._followed(asker, task["taskId"], task["pollIntervalMs"])
        from keephold.tools.remote.following import outcome_of

        return outcome_of(result)

    def _recorded(self, asker: Asker) -> Any:
        """Return the task that this call became before its process died. A task that failed here is not followed again
        (R5).
        """
        call = asker.invocation
        if asker.journal is None or call.uid in self._begun:
            return None
        entries = [entry for entry in call.entries if entry.kind == "step" and entry.name.startswith(_STEP)]
        newest = max(entries, key=lambda entry: int(entry.name.removeprefix(_STEP)), default=None)
        return None if newest is None else msgspec.json.decode(newest.value)

    def _check_begun(self, call: Invocation) -> None:
        """Fail a call whose process died in the middle: its effects are unknown, so it is not repeated (R1, R5)."""
        retry = call.tool.retry.policy
        if call.attempt > 1 and retry != "idempotent" and call.uid not in self._begun:
            text = "The process that ran this call ended before the server had answered it."
            raise ToolError(text, code="crashed", transient=retry == "never")
        self._begun.add(call.uid)

    def _check_there(self) -> None:
        server, listed = self.connection.server.name, self.connection.tools or {}
        tool = listed.get(self.tool)
        if tool is None:
            text = f"tool `{self.tool}` of MCP server `{server}` is gone: the server does not list it"
            raise ToolError(text, code="unknown_tool")
        if tool.execution is not None and tool.execution.task_support == "required":
            text = (
                f"tool `{self.tool}` of MCP server `{server}` can only be called as a task of protocol 2025-11-25, "
                "which is not supported; tasks of 2026-07-28 are"
            )
            raise ToolError(text, code="mcp_error")

    async def _result(self, link: "ServerLink", asker: Asker) -> "CallToolResult":
        from mcp.shared.exceptions import MCPError
        from pydantic import ValidationError

        from keephold.tools.remote.following import failure, is_lost
        from keephold.tools.remote.link import current
        from keephold.tools.remote.tasks import TaskMade

        async def report(progress: float, total: float | None, message: str | None) -> None:
            asker.call.progress(progress, total, message)

        current.set(asker)  # of this task, which is the call's own
        link.calls.add(asker)
        try:
            arguments = asker.invocation.arguments
            return await link.client.call_tool(self.tool, arguments, progress_callback=report)
        except TaskMade as made:
            task = made.task
        except MCPError as error:
            if is_lost(error) or link.is_over:
                raise self.connection.gone(link.no_login or error.message.lower()) from None
            raise failure(self.connection.server, error) from None
        except (ValidationError, RuntimeError) as error:
            raise failure(self.connection.server, error) from None
        finally:
            link.calls.discard(asker)
        return await self._followed(asker, task.task_id, task.poll_interval_ms, new=True)

    async def _followed(self, asker: Asker, task: str, poll_ms: int | None, *, new: bool = False) -> "CallToolResult":
        """Return the result of a task. A new one is recorded first, so that it is found again."""
        from keephold.tools.remote.following import TaskFollower

        async def made(task: Any) -> Any:
            return task

        call, following = asker.call, TaskFollower(self.connection, asker, task, poll_ms)
        try:
            if new and asker.journal is not None:
                known = {"taskId": task, "pollIntervalMs": poll_ms}
                await call.durable().run_json(f"{_STEP}{call.attempt}", known, made)
            return await following.result()
        except BaseException:
            if not getattr(asker.sink, "handing_over", False):  # otherwise the next runtime follows it (R6)
                await following.cancel()
            raise


class _Running(_Task):
    """A running call. It takes no input: `apply` answers the server's questions."""

    __slots__ = ()

    def write(self, data: Any) -> None:
        raise ToolError(
            "this tool takes no input while it runs; `apply` answers its question when it asks one", code="not_running"
        )

    def write_recorded(self, data: Any, cause: bytes) -> None:
        self.write(data)


def unlisted(connection: Connection, name: str, tool: str, like: Tool) -> Tool:
    """Make a tool that has settings of its own and whose server has not described it yet: callable, not offered."""
    return replace(like, name=name, runtime=Remote(connection, tool), parameters=_ANYTHING, offered=False)


def listed(connection: Connection, name: str, tool: "ListedTool", like: Tool) -> Tool:
    """Make the tool as its server describes it. Raises `ConfigError` if its schema is invalid."""
    parameters = {"type": "object", **tool.input_schema}
    annotations = tool.annotations
    description = like.description or tool.description or tool.title or (annotations and annotations.title) or ""
    return replace(
        like,
        name=name,
        runtime=Remote(connection, tool.name),
        parameters=parameters,
        description=description,
        actions=_actions(name, parameters, like.actions),
        returns=tool.output_schema,
        hints={**_hints(tool), **like.hints},
    )


def _hints(tool: "ListedTool") -> dict[str, Any]:
    """Return the title and the annotations. They are the server's claims: shown to clients, never trusted here."""
    given = {} if tool.annotations is None else tool.annotations.model_dump(by_alias=True, exclude_none=True)
    return {**given, "title": tool.title} if tool.title else given


def _actions(name: str, parameters: dict[str, Any], wanted: tuple[Action, ...]) -> tuple[Action, ...]:
    """Return the actions, or none: a tool with parameters of such names, or schemas that refer to their own root, can
    only be called one-shot (C1).
    """
    try:
        check_parameters(name, parameters, wanted)
    except ConfigError:
        check_parameters(name, parameters, ())
        return ()
    return wanted
