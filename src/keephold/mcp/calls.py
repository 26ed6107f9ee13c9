"""Serve `tools/call`: queue each call in its principal's conversation, and answer it (M3, M4, M5).

If the client leaves, only its wait ends; the call keeps running as a handle. Questions of the call go to the client, in
the way its protocol version has (see `elicit.py`).
"""

import asyncio
import contextlib
import hashlib
import re
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)

from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle, OnStop, Watcher
from keephold.handles.view import Patience
from keephold.ids import root_of
from keephold.mcp.elicit import Elicit, ElicitationPrompter
from keephold.mcp.hosts import HOST, MCP, is_hosted
from keephold.mcp.results import content_of, result
from keephold.runtime import Runtime
from keephold.store.base import HandleQuery
from keephold.tools.base import Tool
from keephold.tools.toolbox import ServedTools, Tools, has
from keephold.turn.single_calls import QueuedCall
from keephold.turn.tool_call import ToolCall

if TYPE_CHECKING:
    from keephold.mcp.tasks import Tasks

Context = ServerRequestContext[Any, Any]

PRINCIPAL = "keephold.principal"
"""The key of a request's scope under which the HTTP server puts the principal."""
GONE = "keephold.gone"
"""The key of a request's scope for the event that a 2025 client has disconnected, which the SDK does not report."""
RESUMES = "keephold.resumes"
"""The key of a request's scope that says: its client has resumed the stream of an earlier call (`sessions.py`)."""
LEFT = "keephold/left"
"""The key in the `_meta` of an answer that nobody takes."""
REQUEST = "mcp.request"
"""The key in a handle's metadata for the session and the request of its call."""
PROGRESS_SECS = 5.0
"""The interval of progress notifications for a running call."""
_BACK_SECS = 3600.0
"""The time a client has to return with input for a call that only this server knows."""
_UNKNOWN_SECS = 0.5
PERSON_SECS = 30.0
"""After how long a call that needs a person is answered, if its client cannot ask its user."""
_TIMED_OUT = re.compile(r"time[sd]?[ -]?out", re.IGNORECASE)
"""The reason that clients give when they stop waiting; the SDKs for Python and TypeScript say `timed out`."""
_CANCELLED_SECS = 0.05
"""The time within which a cancellation arrives; after it, the client has left."""


@dataclass(slots=True)
class Served:
    """A call that is being served."""

    tool: Tool
    visit: QueuedCall
    asker: ElicitationPrompter | None
    conversation: str

    @property
    def handle(self) -> Handle | None:
        return self.visit.handle


class Calls:
    """The calls of one server."""

    tasks: "Tasks"
    """A call that asks is followed like a task until its client returns."""

    def __init__(
        self,
        runtime: Runtime,
        conversation: str = MCP,
        client_prompts: Collection[str] = (),
        builtins: Collection[str] | None = None,
        answer_within: float | None = None,
    ) -> None:
        self.runtime = runtime
        self._answer_within = answer_within
        self._conversation = conversation
        self._client_prompts = frozenset(client_prompts)
        self._asking: dict[str, Served] = {}
        """By `requestState`: calls with a handle of their own, or none, whose client is to return with input."""
        self._cancelled: dict[tuple[int, Any], str] = {}
        """By connection and request: calls that their client has cancelled, and why."""
        self.served = ServedTools(runtime.toolbox, lambda: bool(runtime.agent_functions.ids), builtins)
        runtime.offers.finders.append(self._offered)

    def tool(self, name: str) -> Tool | None:
        """Return the tool of that name, if clients may call it (K10)."""
        return self.served.find(name) if has(self.served, name) else None

    def _offered(self, conversation: str) -> Tools | None:
        ours = conversation == self._conversation or conversation.startswith(f"{self._conversation}:")
        return self.served if ours and root_of(conversation) == conversation else None

    def conversation(self, ctx: Context) -> str:
        """Return the conversation of the client that sent a request."""
        host = HOST.get()
        if host is not None:
            return host.conversation(self._conversation, ctx)
        principal = ctx.request.scope.get(PRINCIPAL) if ctx.request is not None else None
        return self._conversation if principal is None else f"{self._conversation}:{principal}"

    def decides(self, conversation: str) -> bool:
        """Return whether the client of a conversation may approve calls and answer exclusive questions (K9).

        A principal's client may answer by itself, so it decides only where the owner has said so. Any other client was
        started by the owner. The conversation's name tells, also after a crash; metadata would not, as models write
        it."""
        name = conversation.removeprefix(f"{self._conversation}:")
        return conversation == self._conversation or name in self._client_prompts or is_hosted(name)

    async def begin(
        self, ctx: Context, tool: Tool, params: CallToolRequestParams, park_after: float | None = 30
    ) -> Served:
        asker = ElicitationPrompter() if elicits(ctx) else None
        if asker is not None and ctx.session.can_send_request:
            asker.ask_by(by_request(ctx))
        call = ToolCall(str(ctx.request_id), params.name, dict(params.arguments or {}))
        conversation = self.conversation(ctx)
        prompt_queue = (
            None if asker is None else self.runtime.prompt_queue.joined(asker, decides=self.decides(conversation))
        )
        try:
            desk = self.runtime.call_queue(conversation)
            waits = Patience(self._answer_within, _unknown_secs(ctx))
            visit = await desk.begin(
                call, park_after=park_after, prompt_queue=prompt_queue, waits=waits, metadata=_request_metadata(ctx)
            )
        except KeepholdError as error:  # the runtime is closing, or its store cannot be read
            raise MCPError(INTERNAL_ERROR, error.message) from None
        served = Served(tool, visit, asker, desk.conversation)
        if asker is not None:
            asker.handle = served.handle
        return served

    async def call(self, ctx: Context, tool: Tool, params: CallToolRequestParams) -> HandlerResult:
        """Answer a call, or return the input that it needs first."""
        if params.request_state is None:
            return await self.answer(ctx, await self.begin(ctx, tool, params))
        said = {key: plain(each) for key, each in (params.input_responses or {}).items()}
        handle = await self.tasks.find(ctx, params.request_state)
        if handle is not None:
            await self.tasks.answer(handle, said)
            return await self._follow(ctx, handle)
        served = self._asking.get(params.request_state)
        if served is None or served.conversation != self.conversation(ctx) or served.asker is None:
            # A new call could repeat work that was done: refuse the retry.
            raise MCPError(
                INVALID_PARAMS, "the call that this requestState belongs to is not waiting for input any more"
            )
        del self._asking[params.request_state]
        await served.asker.taken(said)
        return await self.answer(ctx, served)

    async def resumed(self, ctx: Context) -> HandlerResult:
        """Answer a call whose client lost its connection, or whose server was restarted, by its handle."""
        registry, conversation, wanted = self.runtime.registry, self.conversation(ctx), _request_metadata(ctx) or {}
        live = (handle for handle in registry.live(conversation) if (handle.metadata or {}).items() >= wanted.items())
        handle = next(live, None)
        if handle is None:
            query = HandleQuery(conversation=conversation, stateful=None, metadata=wanted, newest=True, limit=1)
            handle = next((registry.adopt(record) for record in await registry.store.handles(query)), None)
        if handle is None:
            return result(None, "The connection was lost, and nothing is known of this call any more; call again", True)
        self.tasks.ask_by(handle, by_request(ctx) if ctx.session.can_send_request else None)
        return await self._follow(ctx, handle)

    async def _follow(self, ctx: Context, handle: Handle) -> HandlerResult:
        """Wait for the answer of a one-shot call that an earlier request began, here or in another process."""
        returns = not ctx.session.can_send_request  # a 2026 client returns with its input; a 2025 client is asked
        watcher = _Progress()
        handle.watch(watcher)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._answer_within):
                    while handle.active and not (returns and self.tasks.requests(handle)):
                        await watcher.changed.wait()
                        watcher.changed.clear()
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(_CANCELLED_SECS, self._unfollowed, handle, _request(ctx))
            raise
        finally:
            handle.unwatch(watcher)
        requests = self.tasks.requests(handle) if returns else None
        if handle.active and requests:
            return self._needs_input(requests, handle.uid)
        if handle.active:  # it has an id since its client was sent for input
            return result(handle.tool, self.runtime.replies.handle(handle).model, False)
        return await self.tasks.outcome(handle)

    def _unfollowed(self, handle: Handle, request: tuple[int, Any]) -> None:
        if self._was_cancelled(request) and handle.active:
            self.runtime.registry.run_soon(self.tasks.cancel(handle))

    def _needs_input(self, requests: dict[str, Any], state: str) -> HandlerResult:
        return InputRequiredResult.model_validate({"inputRequests": requests, "requestState": state})

    async def answer(self, ctx: Context, served: Served) -> HandlerResult:
        """Return the answer to a call, or the input that it needs first."""
        asker, handle = served.asker, served.handle
        answered = asyncio.ensure_future(served.visit.response())
        wanted = progress_token_from_params(ctx.params) is not None
        reporting = asyncio.create_task(report(ctx, handle)) if wanted and handle is not None else None
        asked = None
        if asker is not None and not ctx.session.can_send_request:
            asked = asyncio.ensure_future(asker.asked.wait())
        gone = asyncio.create_task(_until_gone(ctx)) if ctx.session.can_send_request and ctx.request else None
        try:
            await self._until_one(served, [each for each in (answered, asked, gone) if each is not None])
            if not answered.done() and gone is not None and gone.done():
                served.visit.gone()
            elif not answered.done() and asker is not None:
                return await self._wait_for_input(served, asker)
            if not answered.done():
                nobody = result(served.tool, "nobody takes this answer", True)
                nobody.meta = {LEFT: True}
                return nobody
            response = answered.result()
            said = response.model, response.is_error, response.notifications
            return result(served.tool, *said, code=response.code, content=await self._content(served))
        except asyncio.CancelledError:
            self.client_left(ctx, served)
            raise
        finally:
            for task in (reporting, asked, gone):
                if task is not None:
                    task.cancel()
            if not answered.done():
                answered.cancel()  # only the wait ends; the call keeps running

    async def _until_one(self, served: Served, waits: list[asyncio.Future[Any]]) -> None:
        """Wait until the first of them is done. If the call lasts, have it answered before its client gives up (M7):
        sooner if it needs a person whom the client cannot ask."""
        within, asker, first = self._answer_within, served.asker, asyncio.FIRST_COMPLETED
        patience = PERSON_SECS if within is None else min(PERSON_SECS, within)
        if (await asyncio.wait(waits, timeout=patience, return_when=first))[0]:
            return
        asks_others = served.visit.needs_person and (asker is None or not asker.asked.is_set())
        if not asks_others and within is not None:
            await asyncio.wait(waits, timeout=within - patience, return_when=first)
        if asks_others or within is not None:
            served.visit.answer_now()
        await asyncio.wait(waits, return_when=first)

    async def _content(self, served: Served) -> list[Mapping[str, Any]]:
        """Return the images and the like of the calls whose end an answered call shows: its own, or those that `await`
        and `fetch` name."""
        reply, handle = await served.visit.reply(), served.handle
        shown = {uid for uid, state, _ in reply.showed if state == "stopped"}
        if handle is not None and not handle.stateful:
            shown.add(handle.uid)
        return [block for uid in sorted(shown) for block in content_of(self.runtime.registry.loaded(uid))]

    async def _wait_for_input(self, served: Served, asker: ElicitationPrompter) -> HandlerResult:
        """Ask the client to return with input. Any server finds a one-shot call by its uid; other calls, such as a
        spawn that needs approval, are known only here."""
        requests, handle = asker.requests(), served.handle
        if handle is not None and not handle.stateful:
            await self.tasks.mark(handle, asker, True)
            served.visit.leave()
            return self._needs_input(requests, handle.uid)
        state = secrets.token_urlsafe(16)
        self._asking[state] = served
        if handle is not None:  # a spawn may be aborted before the client returns
            handle.watch(OnStop(lambda _: self._never_back(state)))
        asyncio.get_running_loop().call_later(_BACK_SECS, self._never_back, state)
        return self._needs_input(requests, state)

    def _never_back(self, state: str) -> None:
        served = self._asking.pop(state, None)
        if served is not None:
            served.visit.cancel()

    def cancelled(self, ctx: Context) -> None:
        key = (_channel(ctx), (ctx.params or {}).get("requestId"))
        self._cancelled[key] = str((ctx.params or {}).get("reason"))
        asyncio.get_running_loop().call_later(10 * _CANCELLED_SECS, self._cancelled.pop, key, None)

    def client_left(self, ctx: Context, served: Served) -> None:
        """Detach the client at once. Whether it has cancelled the call or left (M3) is known a moment later."""
        served.visit.detach()
        asyncio.get_running_loop().call_later(_CANCELLED_SECS, self._left, served, _request(ctx))

    def _left(self, served: Served, request: tuple[int, Any]) -> None:
        if self._was_cancelled(request):
            served.visit.cancel()
        else:
            served.visit.gone()

    def _was_cancelled(self, request: tuple[int, Any]) -> bool:
        """Return whether the client has cancelled the call on purpose. One that gave up waiting has not: it may come
        back for the result."""
        why = self._cancelled.get(request)
        return why is not None and _TIMED_OUT.search(why) is None


def _unknown_secs(ctx: Context) -> float:
    """Return how long an unknown id is waited for: frameworks open a connection for every call, so over HTTP an `await`
    may overtake its spawn."""
    return 0.0 if ctx.request is None else _UNKNOWN_SECS


def _request_metadata(ctx: Context) -> dict[str, Any] | None:
    """Return the metadata by which a 2025 client over HTTP finds the handle of its call again."""
    session = ctx.session._connection.session_id
    if session is None:
        return None
    return {REQUEST: f"{hashlib.sha256(session.encode()).hexdigest()[:16]}:{ctx.request_id}"}


def _channel(ctx: Context) -> int:
    """Return the id of the client's channel: at 2026 each request has a connection of its own."""
    return id(ctx.session._connection.outbound)


def _request(ctx: Context) -> tuple[int, Any]:
    return _channel(ctx), ctx.request_id


def elicits(ctx: Context) -> bool:
    """Return whether the client can show its user a form."""
    capabilities = ctx.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def by_request(ctx: Context, meta: dict[str, Any] | None = None) -> Elicit:
    """Ask by a request to the client, related to the one it waits for."""

    async def elicit(message: str, schema: dict[str, Any]) -> Mapping[str, Any]:
        params = {"message": message, "requestedSchema": schema, "_meta": meta}
        request = ElicitRequest(params=ElicitRequestFormParams.model_validate(params))
        beside = ServerMessageMetadata(related_request_id=ctx.request_id)
        said = await ctx.session.send_request(request, ElicitResult, metadata=beside)
        return {"action": said.action, "content": said.content}

    return elicit


def plain(said: Any) -> Any:
    return said.model_dump(by_alias=True, exclude_none=True) if hasattr(said, "model_dump") else said


async def _until_gone(ctx: Context) -> None:
    """Wait until a 2025 client over HTTP has disconnected."""
    gone = ctx.request.scope.get(GONE) if ctx.request is not None else None
    await (gone.wait() if gone is not None else asyncio.Event().wait())


class _Progress(Watcher):
    __slots__ = ("changed",)

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    def stopped(self, handle: Handle) -> None:
        self.changed.set()

    progressed = handle_changed = stopped


async def report(ctx: Context, handle: Handle) -> None:
    """Send the call's progress when it changes, and every few seconds so that the client keeps waiting (M4)."""
    watcher, began, last = _Progress(), time.monotonic(), -1.0
    handle.watch(watcher)
    if handle.progress is not None:
        watcher.changed.set()
    try:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROGRESS_SECS):
                    await watcher.changed.wait()
            watcher.changed.clear()
            if not handle.active:
                return
            progress, elapsed = handle.progress, time.monotonic() - began
            last = max(elapsed if progress is None else progress.done, last + 1e-3)  # each must be greater
            message = (progress and progress.message) or f"{handle.tool.name}: {elapsed:.0f} s"
            await ctx.session.report_progress(last, None if progress is None else progress.total, message)
    finally:
        handle.unwatch(watcher)


def unknown(served: ServedTools, name: str) -> HandlerResult:
    try:
        served.find(name)
    except ToolError as error:
        return result(None, error.message, True)
    raise AssertionError("only called where there is none")
