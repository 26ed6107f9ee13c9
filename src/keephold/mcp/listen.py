"""Serve `subscriptions/listen` and `resources/subscribe`: notify clients of changed handles and tasks (W8, M2).

The resources are `keephold://handles/{id}` and the list `keephold://handles`. A stream acknowledges its filter, sends
the current state of every task, then each change, so a late client misses nothing. Changes of one thing that wait
together are sent once.
"""

import asyncio
import contextlib
from collections.abc import Callable, Hashable
from typing import Any
from urllib.parse import unquote

import msgspec
from mcp.server.session import ServerSession
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY, SubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import (
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
    event_matches,
    event_to_notification,
)
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    EmptyResult,
    Notification,
    SubscribeRequestParams,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotification,
    SubscriptionsAcknowledgedNotificationParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)

from keephold.errors import KeepholdError
from keephold.handles.handle import Handle, Watcher
from keephold.handles.registry import Registry
from keephold.mcp.calls import Calls, Context
from keephold.mcp.tasks import Tasks, declares

LIST = "keephold://handles"
ONE = "keephold://handles/{id}"
_LISTED = 1000


def id_of(uri: str) -> str | None:
    return unquote(uri[len(LIST) + 1 :]) if uri.startswith(LIST + "/") else None


async def read_one(registry: Registry, conversation: str, id: str) -> str:
    """Return one handle as JSON. Raises `ToolError` if there is none."""
    await registry.load(conversation, (id,))
    return _json(registry.find(id, conversation).info())


async def read_list(registry: Registry, conversation: str) -> str:
    """Return the newest live and stopped handles of a conversation as JSON, oldest first."""
    live = await registry.page(conversation=conversation, status="pending", limit=_LISTED, newest=True)
    over = await registry.page(conversation=conversation, state="stopped", limit=_LISTED, newest=True)
    handles = sorted([*live, *over], key=lambda handle: handle.uid)
    return _json({"handles": handles, "truncated": _LISTED in (len(live), len(over))})


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


class Changes(Watcher):
    """Call `changed` with every watched handle that changes."""

    def __init__(self, changed: Callable[[Handle], None]) -> None:
        self._changed = changed
        self._handles: list[Handle] = []
        self._registry: Registry | None = None
        self._conversation = ""
        self._id: str | None = None

    def add(self, handle: Handle) -> None:
        if handle.active:
            handle.watch(self)
            self._handles.append(handle)

    def follow(self, registry: Registry, conversation: str, id: str | None = None) -> None:
        """Watch all handles of a conversation, or those of an id, including future ones."""
        self._id = id
        self._registry, self._conversation = registry, conversation
        registry.follow(conversation, self._followed)

    def _followed(self, handle: Handle) -> None:
        if self._id is None:
            self._changed(handle)
        elif handle.id == self._id and handle not in self._handles:  # a watched handle reports itself
            self.add(handle)
            self._changed(handle)

    def close(self) -> None:
        for handle in self._handles:
            handle.unwatch(self)
        if self._registry is not None:
            self._registry.unfollow(self._conversation, self._followed)

    def stopped(self, handle: Handle) -> None:
        self._changed(handle)

    parked = handle_changed = progressed = stopped


MOST = 10_000
"""How many streams may listen at once."""


class Subscriptions:
    """The clients that listen."""

    def __init__(self, calls: Calls, tasks: Tasks, bus: SubscriptionBus) -> None:
        self._calls = calls
        self._tasks = tasks
        self._bus = bus
        self._streams: set[_Stream] = set()
        self._sessions: dict[int, _Subscriber] = {}
        self._joined: dict[int, ServerSession] = {}

    # 2026: one stream for everything a client wants to hear

    async def listen(self, ctx: Context, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """Serve one stream until its client leaves."""
        if ctx.request_id is None:
            raise MCPError(INVALID_REQUEST, "subscriptions/listen requires a request id")
        if len(self._streams) >= MOST:
            raise MCPError(INTERNAL_ERROR, "Subscription limit reached")
        wanted = params.notifications
        tasks = await self._wanted_tasks(ctx, wanted)
        uris = list(wanted.resource_subscriptions or ())
        honored = SubscriptionFilter.model_validate(
            {
                "toolsListChanged": wanted.tools_list_changed or None,
                "promptsListChanged": wanted.prompts_list_changed or None,
                "resourcesListChanged": wanted.resources_list_changed or None,
                "resourceSubscriptions": uris or None,
                **({"taskIds": [task.uid for task in tasks]} if tasks else {}),
            }
        )
        stream, meta = _Stream(), {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        named = frozenset(uris)
        leave = self._bus.subscribe(
            lambda event: stream.put(event, event) if event_matches(honored, named, event) else None
        )
        changes = Changes(lambda handle: stream.put(("task", handle.uid), handle))
        resources: list[Changes] = []
        self._streams.add(stream)
        try:
            resources = await self._watch_resources(ctx, uris, lambda uri: stream.put(uri, ResourceUpdated(uri=uri)))
            acknowledged = SubscriptionsAcknowledgedNotificationParams(notifications=honored, _meta=meta)
            await ctx.session.send_notification(
                SubscriptionsAcknowledgedNotification(params=acknowledged), related_request_id=ctx.request_id
            )
            for task in tasks:
                changes.add(task)
                stream.put(("task", task.uid), task)
            while (event := await stream.get()) is not None:
                notification = await self._notification(event, meta)
                await ctx.session.send_notification(notification, related_request_id=ctx.request_id)
        finally:
            leave()
            changes.close()
            for each in resources:
                each.close()
            self._streams.discard(stream)
        return SubscriptionsListenResult(_meta=meta)

    async def _wanted_tasks(self, ctx: Context, wanted: SubscriptionFilter) -> list[Handle]:
        """Return the tasks of a filter that belong to this principal; others are left out."""
        ids = (wanted.model_extra or {}).get("taskIds")
        tasks: list[Handle] = []
        for id in ids if isinstance(ids, list) and declares(ctx) else ():
            try:
                tasks.append(await self._tasks.named(ctx, str(id), header=False))
            except MCPError:
                continue
        return tasks

    async def _notification(self, event: Any, meta: dict[str, Any]) -> Any:
        if isinstance(event, Handle):
            params = {**await self._tasks.detailed(event), "_meta": meta}
            return Notification[dict[str, Any], str](method="notifications/tasks", params=params)
        return event_to_notification(event, meta)

    async def _watch_resources(self, ctx: Context, uris: list[str], changed: Callable[[str], None]) -> list[Changes]:
        registry, conversation = self._calls.runtime.registry, self._calls.conversation(ctx)
        watching: list[Changes] = []
        for uri in uris:
            each = Changes(lambda _, uri=uri: changed(uri))  # type: ignore[misc]
            id = id_of(uri)
            if id is not None:
                each.follow(registry, conversation, id)
                with contextlib.suppress(KeepholdError):  # it may be created later
                    await registry.load(conversation, (id,))
                    each.add(registry.find(id, conversation))
            elif uri == LIST:
                each.follow(registry, conversation)
            watching.append(each)
        return watching

    # 2025: a subscription for each resource, notified to the session

    async def subscribe(self, ctx: Context, params: SubscribeRequestParams) -> EmptyResult:
        uri, connection = str(params.uri), ctx.session._connection
        mine = self._sessions.get(id(connection))
        if mine is None:
            mine = self._sessions[id(connection)] = _Subscriber(ctx.session)
            connection.exit_stack.callback(self._left, id(connection))
        if uri not in mine.subscribed:
            mine.subscribed[uri] = Changes(lambda _: None)  # reserve it, in case it is requested again meanwhile
            (changes,) = await self._watch_resources(ctx, [uri], mine.changed)
            if uri in mine.subscribed:
                mine.subscribed[uri] = changes
            else:  # the client has left or unsubscribed
                changes.close()
        return EmptyResult()

    async def unsubscribe(self, ctx: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        mine = self._sessions.get(id(ctx.session._connection))
        changes = mine.subscribed.pop(str(params.uri), None) if mine is not None else None
        if changes is not None:
            changes.close()
        return EmptyResult()

    def _left(self, connection: int) -> None:
        self._sessions.pop(connection).close()

    # For the server

    def joined(self, ctx: Context) -> None:
        """Notify this 2025 client of changed tools, which it cannot subscribe to."""
        connection = ctx.session._connection
        if id(connection) not in self._joined:
            self._joined[id(connection)] = ctx.session
            connection.exit_stack.callback(self._joined.pop, id(connection), None)

    def tools_changed(self) -> None:
        run_soon = self._calls.runtime.registry.run_soon
        run_soon(self._bus.publish(ToolsListChanged()))
        for session in self._joined.values():
            run_soon(session.send_tool_list_changed())

    def close(self) -> None:
        for stream in tuple(self._streams):
            stream.close()


class _Subscriber:
    """The subscriptions of a 2025 client, and the task that notifies it."""

    def __init__(self, session: ServerSession) -> None:
        self.subscribed: dict[str, Changes] = {}
        self._session = session
        self._stream = _Stream()
        self._sending = asyncio.create_task(self._send())

    def changed(self, uri: str) -> None:
        self._stream.put(uri, ResourceUpdated(uri=uri))

    async def _send(self) -> None:
        while isinstance(event := await self._stream.get(), ResourceUpdated):
            with contextlib.suppress(Exception):  # the client is leaving; its subscriptions end with its connection
                await self._session.send_resource_updated(event.uri)

    def close(self) -> None:
        self._sending.cancel()
        while self.subscribed:
            self.subscribed.popitem()[1].close()


class _Stream:
    """The events that wait to be sent on one stream: each thing once, in the order it first came."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, Handle | ServerEvent] = {}
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, key: Hashable, event: Handle | ServerEvent) -> None:
        self._waiting.setdefault(key, event)
        self._changed.set()

    async def get(self) -> Handle | ServerEvent | None:
        """Return the next event; None when the stream is closed and empty."""
        while not self._waiting:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.pop(next(iter(self._waiting)))

    def close(self) -> None:
        self._closed = True
        self._changed.set()
