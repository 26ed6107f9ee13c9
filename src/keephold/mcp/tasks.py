"""Tasks: one-shot calls as handles that a client can return to (M2, SEP-2663).

A task's id is its handle's uid. For clients that know tasks, a call becomes one if it takes longer than a moment, asks
something, or its tool requires it. The store knows that before the client does.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, CallToolRequestParams, RequestParams
from mcp_types.jsonrpc import HEADER_MISMATCH
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from keephold.errors import KeepholdError
from keephold.handles.handle import Handle, OnStop
from keephold.handles.question import form_answer, form_of, question_form, question_key
from keephold.handles.state import Failure, Outcome, Running, State, Stopped, Waiting
from keephold.mcp.calls import Calls, Context, Served, elicits, plain, unknown
from keephold.mcp.elicit import Elicit, ElicitationPrompter, elicitation
from keephold.mcp.results import content_of, may_be_task, result
from keephold.store.base import Annotated, TakenBack
from keephold.text import instant
from keephold.turn.prompt_queue import PromptQueue
from keephold.turn.questions import is_exclusive
from keephold.turn.tool_call import By

TASKS = "io.modelcontextprotocol/tasks"
MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)
MARK = "mcp.task"
"""The handle's metadata key that marks a task; its value says whether the client can ask its user."""
POLL_MS = 1000
_MAILBOX = "tasks"
PROTOCOL_ERRORS = ("crashed", "mcp_error", "not_storable", "store_unavailable")
"""Error codes that are not the tool's own answer: a task that ends with one has failed."""


class TaskRef(RequestParams):
    """Names a task."""

    task_id: str = Field(alias="taskId")


class TaskInput(TaskRef):
    """Answers to a task's input requests."""

    input_responses: dict[str, Any] = Field(default_factory=dict, alias="inputResponses")


class _Answered(msgspec.Struct):
    """Answers to prompts of a task that another server runs."""

    uid: str
    responses: dict[str, Any]


def _asks(handle: Handle) -> dict[str, dict[str, Any]]:
    """Return the prompts that the server which runs a task has shown."""
    mark = (handle.metadata or {}).get(MARK)
    return dict(mark.get("asks") or {}) if isinstance(mark, Mapping) and handle.active else {}


class Tasks(Extension):
    """The extension: serves `tools/call` of the runtime's tools, and `tasks/*`."""

    identifier = TASKS

    def __init__(self, calls: Calls, *, after: float) -> None:
        """A call that has not ended `after` seconds becomes a task."""
        self._calls = calls
        self._after = after
        self._askers: dict[str, ElicitationPrompter] = {}
        self._shown: dict[str, dict[str, Any]] = {}
        """By uid: the prompts that other servers are shown."""
        calls.runtime.relay.mailboxes[_MAILBOX] = self._answered_elsewhere
        # first: it knows its tasks, an ACP agent takes any handle
        calls.runtime.prompt_queue.finders.insert(0, self._found)
        calls.tasks = self

    def methods(self) -> list[MethodBinding]:
        return [
            MethodBinding("tasks/get", TaskRef, self._get, MODERN),
            MethodBinding("tasks/update", TaskInput, self._update, MODERN),
            MethodBinding("tasks/cancel", TaskRef, self._cancel, MODERN),
        ]

    # tools/call

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Context, call_next: CallNext
    ) -> HandlerResult:
        tool = self._calls.tool(params.name)
        if tool is None:
            served = await call_next(ctx)
            return unknown(self._calls.served, params.name) if _says_unknown(served, params.name) else served
        modern = ctx.protocol_version in MODERN
        if modern and tool.task == "required":
            require_client_extension(ctx, TASKS)
        if not modern or not declares(ctx) or not may_be_task(tool) or params.request_state:
            return await self._calls.call(ctx, tool, params)
        begun = await self._calls.begin(ctx, tool, params, park_after=None)
        handle = begun.handle
        try:
            if handle is not None and not handle.stateful and not await self._over_soon(begun):
                return {"resultType": "task", **self.flat(await self.announce(begun, elicits(ctx)))}
        except asyncio.CancelledError:
            self._calls.client_left(ctx, begun)
            raise
        return await self._calls.answer(ctx, begun)

    async def _over_soon(self, begun: Served) -> bool:
        """Return whether the call ends within a moment, without asking anything."""
        handle = begun.handle
        assert handle is not None
        if begun.tool.task == "required":
            return False
        waits = [asyncio.ensure_future(until_stopped(handle))]
        if begun.asker is not None:
            waits.append(asyncio.ensure_future(begun.asker.asked.wait()))
        try:
            await asyncio.wait(waits, timeout=self._after, return_when="FIRST_COMPLETED")
            return not handle.active
        finally:
            for wait in waits:
                wait.cancel()

    async def announce(self, begun: Served, elicits: bool) -> Handle:
        """Make the call a task. The store has it when this returns."""
        handle = begun.handle
        assert handle is not None
        begun.visit.detach()
        if begun.asker is not None:
            begun.asker.ask_by(None)
        await self.mark(handle, begun.asker, elicits)
        return handle

    async def mark(self, handle: Handle, asker: ElicitationPrompter | None, elicits: bool) -> None:
        """Record the mark, so that the process that runs the call, also after a crash, asks its client."""
        if asker is not None and handle.uid not in self._askers:
            self._keep(handle, asker)
        self._calls.runtime.registry.write_down(handle)
        try:
            await self._calls.runtime.registry.write((self._marked(handle, elicits),))
        except KeepholdError as error:
            if error.code != "already_stopped":
                raise

    def _marked(self, handle: Handle, elicits: bool) -> Annotated:
        """Mark a task, and show other servers its prompts; its questions are in its state."""
        asker = self._askers.get(handle.uid)
        self._shown[handle.uid] = asks = {} if asker is None else asker.approvals()
        return Annotated(handle.uid, metadata={MARK: {"elicits": elicits, **({"asks": asks} if asks else {})}})

    def _keep(self, handle: Handle, asker: ElicitationPrompter) -> None:
        asker.handle, asker.patient = handle, True
        asker.changed = lambda: self._prompts_changed(handle, asker)
        self._askers[handle.uid] = asker
        handle.watch(OnStop(self._forget))

    def _prompts_changed(self, handle: Handle, asker: ElicitationPrompter) -> None:
        registry = self._calls.runtime.registry
        registry.notify_watchers(handle)
        if handle.active and self._shown.get(handle.uid, {}) != asker.approvals():
            registry.commit((self._marked(handle, elicits=True),), lambda _: None, lambda _: None)

    def _forget(self, handle: Handle) -> None:
        self._askers.pop(handle.uid, None)
        self._shown.pop(handle.uid, None)

    def _found(self, handle: Handle) -> PromptQueue | None:
        """Return the prompts of a task recovered after a crash: its client answers when it returns."""
        mark = (handle.metadata or {}).get(MARK)
        if not isinstance(mark, Mapping) or not mark.get("elicits"):
            return None
        asker = ElicitationPrompter()
        self._keep(handle, asker)
        return self._calls.runtime.prompt_queue.joined(asker, decides=self._calls.decides(handle.conversation))

    # tasks/*

    async def _get(self, ctx: Context, params: TaskRef) -> HandlerResult:
        handle = await self.named(ctx, params.task_id)
        return {"resultType": "complete", **await self.detailed(handle)}

    async def _update(self, ctx: Context, params: TaskInput) -> HandlerResult:
        handle = await self.named(ctx, params.task_id)
        await self.answer(handle, {key: plain(said) for key, said in params.input_responses.items()})
        return {"resultType": "complete"}

    async def _cancel(self, ctx: Context, params: TaskRef) -> HandlerResult:
        await self.cancel(await self.named(ctx, params.task_id))
        return {"resultType": "complete"}

    async def named(self, ctx: Context, task_id: str, *, header: bool = True) -> Handle:
        """Return the task if it belongs to this principal; else raise as if it did not exist."""
        if ctx.protocol_version in MODERN:
            require_client_extension(ctx, TASKS)
            if header:
                _check_header(ctx, task_id)
        handle = await self.find(ctx, task_id)
        if handle is None:
            raise MCPError(code=INVALID_PARAMS, message="Task not found")
        return handle

    async def find(self, ctx: Context, task_id: str) -> Handle | None:
        """Like `named`, but return None if the task does not exist."""
        registry = self._calls.runtime.registry
        await registry.refresh((task_id,))
        handle = registry.loaded(task_id)
        if handle is None:
            record = await registry.store.handle(task_id)
            handle = registry.adopt(record) if record is not None else None
        mine = handle is not None and handle.conversation == self._calls.conversation(ctx)
        if handle is None or not mine or registry.expired(handle.state, handle.conversation):
            return None
        return handle

    async def answer(self, handle: Handle, responses: Mapping[str, Any]) -> None:
        """Answer a task's input requests. The store has the accepted answers when this returns."""
        asker, runtime = self._askers.get(handle.uid), self._calls.runtime
        if asker is not None:
            await asker.taken(responses)
        elif handle.owner is not None and runtime.relay.elsewhere(handle) and _asks(handle):
            told = msgspec.json.encode(_Answered(handle.uid, dict(responses))).decode()
            await runtime.relay.tell(handle.owner, _MAILBOX, told)
        elif isinstance(handle.state, Waiting) and runtime.relay.elsewhere(handle):
            question, perform = handle.state.question, runtime.actions.perform
            by: By = "person" if self._calls.decides(handle.conversation) else "principal"
            key = question_key(question, handle.state.number)
            refused = by == "principal" and is_exclusive(handle, question)  # a request is stored, so it has no secret
            said = None if refused else responses.get(key)
            content = said.get("content") if isinstance(said, Mapping) else None
            if isinstance(said, Mapping) and said.get("action") in ("decline", "cancel"):
                await perform(handle, "apply", by=by, answers=key, declines=True)
            elif isinstance(content, Mapping) and (question.id in content or form_of(question) is not None):
                given = {"input": form_answer(question, content)}
                await perform(handle, "apply", given, by=by, answers=key, secret=question.secret)
        await runtime.registry.write(())

    async def _answered_elsewhere(self, message: str) -> bool:
        answered = msgspec.json.decode(message, type=_Answered)
        asker = self._askers.get(answered.uid)
        if asker is not None:
            await asker.taken(answered.responses)
        return asker is not None

    async def cancel(self, handle: Handle) -> None:
        """Abort a task; one that has stopped stays as it is."""
        if handle.active:
            await self._calls.runtime.actions.perform(handle, "abort", by="principal")

    # How a task is shown

    def flat(self, handle: Handle) -> dict[str, Any]:
        """Return a task without its outcome (SEP-2663)."""
        state = handle.state
        shown: dict[str, Any] = {
            "taskId": handle.uid,
            "status": self.status(handle),
            "createdAt": instant(state.created),
            "lastUpdatedAt": instant(_updated(state)),
            "ttlMs": self.ttl_ms,
            "pollIntervalMs": POLL_MS,
        }
        message = _message(handle)
        return shown if message is None else {**shown, "statusMessage": message}

    @property
    def ttl_ms(self) -> int:
        return int(self._calls.runtime.registry.retention * 1000)

    def status(self, handle: Handle) -> str:
        match handle.state:
            case Stopped(outcome=Failure(code=code)) if code in PROTOCOL_ERRORS:
                return "failed"
            case Stopped() as state:
                return "cancelled" if state.deliberate else "completed"
        return "input_required" if self.requests(handle) else "working"

    def requests(self, handle: Handle) -> dict[str, dict[str, Any]]:
        asker = self._askers.get(handle.uid)
        if asker is not None:
            return asker.requests()
        mark = (handle.metadata or {}).get(MARK)
        if isinstance(handle.state, Waiting) and isinstance(mark, Mapping) and mark.get("elicits"):
            question, number = handle.state.question, handle.state.number
            if is_exclusive(handle, question) and not self._calls.decides(handle.conversation):
                return {}
            return {question_key(question, number): elicitation(question_form(question, None))}
        return _asks(handle)

    async def detailed(self, handle: Handle) -> dict[str, Any]:
        """Return a task with its outcome or its input requests."""
        shown = self.flat(handle)
        state, status = handle.state, shown["status"]
        if status == "completed":
            assert isinstance(state, Stopped)
            shown["result"] = await self.outcome(handle)
        elif status == "failed" and isinstance(state, Stopped):
            shown["error"] = protocol_error(state.outcome)
        elif status == "input_required":
            shown["inputRequests"] = self.requests(handle)
        return shown

    async def outcome(self, handle: Handle) -> dict[str, Any]:
        """Return the answer of a stopped task's call."""
        runtime = self._calls.runtime
        reply = runtime.replies.outcome(handle)
        if handle.parking is not None or handle.stateful:  # this replaces its notification (D9)
            taken = TakenBack(handle.conversation, ((handle.uid, "stopped"),))
            await runtime.registry.write((taken,))
        answer = result(handle.tool, reply.model, reply.is_error, code=reply.code, content=content_of(handle))
        return answer.model_dump(by_alias=True, exclude_none=True, mode="json")

    def ask_by(self, handle: Handle, elicit: Elicit | None) -> None:
        """Ask the task's prompts in this way; None: wait for `tasks/update`."""
        asker = self._askers.get(handle.uid)
        if asker is not None:
            asker.ask_by(elicit)


async def until_stopped(handle: Handle) -> bool:
    """Return when the handle has stopped."""
    over = asyncio.Event()
    watcher = OnStop(lambda _: over.set())
    handle.watch(watcher)
    try:
        return await over.wait()
    finally:
        handle.unwatch(watcher)


def declares(ctx: Context) -> bool:
    """Return whether the client declared tasks with this request."""
    capabilities = ctx.session.client_capabilities
    return TASKS in ((capabilities.extensions if capabilities is not None else None) or {})


def protocol_error(outcome: Outcome) -> dict[str, Any]:
    """Return an error that is not the tool's own answer as JSON-RPC has it."""
    message = outcome.message if isinstance(outcome, Failure) else "the call has failed"
    return {"code": INTERNAL_ERROR, "message": message}


def _updated(state: State) -> float:
    match state:
        case Stopped():
            return state.stopped
        case Waiting():
            return state.asked
        case Running():
            return state.started
    return state.created


def _message(handle: Handle) -> str | None:
    progress = handle.progress
    if isinstance(handle.state, Waiting):
        return handle.state.question.text
    if isinstance(handle.state, Stopped) and isinstance(handle.state.outcome, Failure):
        return handle.state.outcome.message
    if progress is None or not handle.active:
        return None
    of = "" if progress.total is None else f" of {progress.total:g}"
    return progress.message or f"{progress.done:g}{of}"


def _check_header(ctx: Context, task_id: str) -> None:
    """Refuse a header that names another task; real clients leave the header out, so a missing one is accepted."""
    headers = getattr(ctx.request, "headers", None)
    named = headers.get("mcp-name") if headers is not None else None
    if named is not None and named != task_id:
        raise MCPError(code=HEADER_MISMATCH, message=f"Mcp-Name header {named!r} does not match taskId {task_id!r}")


def _says_unknown(served: HandlerResult, name: str) -> bool:
    content = getattr(served, "content", None) or [None]
    return getattr(content[0], "text", None) == f"Unknown tool: {name}"
