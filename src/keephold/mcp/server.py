"""The MCP server: a runtime's tools, handles, tasks and resources, for clients of both protocol eras (M1, M2).

`Server` is the SDK's server plus three things: the runtime's tools beside the SDK's own, the tasks extension, and
subscriptions to handles. It serves one runtime, which must be open while it serves.
"""

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Collection
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult
from mcp.server.request_state import AESGCMRequestStateCodec, RequestStateSecurity
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    GetPromptResult,
    InputRequiredResult,
    ListResourcesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from mcp_types import Resource as Described
from mcp_types import ResourceTemplate as DescribedTemplate
from mcp_types import Tool as DescribedTool

from keephold.errors import ConfigError, KeepholdError
from keephold.mcp.calls import Calls, Context
from keephold.mcp.hosts import HOST, MCP, Host, find_place
from keephold.mcp.listen import LIST, ONE, Subscriptions, id_of, read_list, read_one
from keephold.mcp.results import SchemaForm, described
from keephold.mcp.tasks import Tasks
from keephold.mcp.tasks_2025 import Tasks2025
from keephold.runtime import Runtime
from keephold.schema.shared import USE, presentation
from keephold.tools.builtin import NAMES, unknown_builtins
from keephold.tools.waiting import need_packages

_STATE_SECS = 7 * 86_400.0
"""The time a client has to return with an answer."""
_KNOWN = ", ".join(("*", *NAMES))
TASK_AFTER_SECS = 0.5
"""After how long a call becomes a task, for clients that know tasks."""
ANSWER_WITHIN_SECS = 45.0
"""After how long a call is answered with its handle."""

SEVERAL = """\
Start several, then call `await` with {"all": [ids]} or {"any": [ids]} and `timeout_secs`: it returns when they have \
finished. For a program that keeps running, such as a server, {"output": [{"id": id, "pattern": regex}]} waits until \
it prints a line. Do not poll in a loop."""
INSTRUCTIONS = """\
Results outlive this connection: ask again by id. Long output is cut; `read_output` reads the rest. A call that lasts \
is answered with its id and `"state":"running"`: call `await` with that id, again if it times out."""
WAITS = """\
`create_wait_handle`, `complete_wait_handle`, `wait_for` and `wait_for_multiple` do the same for work that somebody \
else does: a webhook, a person, another agent."""


class Sealed:
    """Seal the state that a client carries: with a key of this process until the store's is known."""

    def __init__(self) -> None:
        self._codec = AESGCMRequestStateCodec([secrets.token_bytes(32)])

    def use(self, key: bytes) -> None:
        self._codec = AESGCMRequestStateCodec([key])

    def seal(self, payload: bytes) -> str:
        return self._codec.seal(payload)

    def unseal(self, token: str) -> bytes:
        return self._codec.unseal(token)


async def _refusing(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Answer with an error, without a traceback, if the runtime is closed or its store cannot be read."""
    try:
        return await call_next(ctx)
    except KeepholdError as error:
        raise MCPError(INTERNAL_ERROR, error.message) from None


class Server(MCPServer[Any]):
    """An MCP server over a runtime."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        conversation: str | None = None,
        schema: SchemaForm = "generic",
        task_after: float = TASK_AFTER_SECS,
        answer_within: float = ANSWER_WITHIN_SECS,
        client_prompts: Collection[str] = (),
        builtins: Collection[str] | None = None,
        **options: Any,
    ) -> None:
        """`conversation` holds the handles; each authenticated client gets its own, `<conversation>:<principal>`. By
        default it is `mcp`, and on stdio `mcp:<client>:<digest of its directory>`. A call becomes a task after
        `task_after` seconds. A call that lasts longer than `answer_within` seconds is answered with its handle, because
        many clients give up after a minute; 0: never, except for a parked call and one that needs a person.
        `client_prompts` names the principals whose own client may approve their calls and answer exclusive questions,
        instead of the runtime's prompter. `builtins` names the built-ins for clients, `*` all; by default, those that
        can be used here. Further options are those of the SDK's server."""
        if unknown := unknown_builtins(builtins or ()):
            raise ConfigError([f"builtins: there is no built-in `{name!s:.80}`; use {_KNOWN}" for name in unknown])
        need_packages(builtins or ())
        self.runtime = runtime
        self._schema: SchemaForm = schema
        self.conversation = conversation
        self.calls = Calls(runtime, conversation or MCP, client_prompts, builtins, answer_within or None)
        self.tasks = Tasks(self.calls, after=task_after)
        bus = InMemorySubscriptionBus()
        self.subscriptions = Subscriptions(self.calls, self.tasks, bus)
        options.setdefault("name", "keephold")
        options.setdefault("instructions", self._instructions())
        options.setdefault("version", version("keephold"))
        options.setdefault("log_level", "WARNING")
        extensions = [self.tasks, *options.pop("extensions", ())]
        middleware = [
            _refusing,
            find_place,
            Tasks2025(self.calls, self.tasks, self.subscriptions),
            *options.pop("middleware", ()),
        ]
        self._sealed, self.sealed_sessions = Sealed(), Sealed()
        options.setdefault("request_state_security", RequestStateSecurity(codec=self._sealed, ttl=_STATE_SECS))
        super().__init__(
            **options,
            extensions=extensions,
            middleware=middleware,
            subscriptions=bus,
        )
        runtime.on_tools.add(self.subscriptions.tools_changed)
        self._serve("subscriptions/listen", SubscriptionsListenRequestParams, self.subscriptions.listen)
        self._serve("resources/subscribe", SubscribeRequestParams, self.subscriptions.subscribe)
        self._serve("resources/unsubscribe", UnsubscribeRequestParams, self.subscriptions.unsubscribe)
        self._serve("resources/read", ReadResourceRequestParams, self._read)
        self._serve("resources/list", PaginatedRequestParams, self._list_resources)

    def _serve(self, method: str, params: Any, handler: Callable[[Context, Any], Awaitable[Any]]) -> None:
        """Serve a method of the protocol itself, which extensions may not."""
        self._lowlevel_server.add_request_handler(method, params, handler)

    def _tool_input_schema(self, name: str) -> dict[str, Any] | None:
        tool = self.calls.tool(name)
        return super()._tool_input_schema(name) if tool is None else dict(tool.parameters)

    async def list_tools(self) -> list[DescribedTool]:
        """Return the tools registered here, then those of the runtime. The tools of foreign servers that have not
        answered yet are announced when they come (M7): nobody knows whether a server is slow or mute."""
        await self.runtime.connected(0)  # raises if the runtime is closed
        shown = described(list(self.calls.served), self._schema, self.runtime.toolbox.actions)
        return [*await super().list_tools(), *shown]

    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None, context: Any = None
    ) -> GetPromptResult | InputRequiredResult:
        """Answer for an unknown prompt as the protocol says. The SDK says "Internal error" and logs a traceback."""
        if all(prompt.name != name for prompt in await self.list_prompts()):
            raise MCPError(INVALID_PARAMS, f"Unknown prompt: {name:.80}")
        return await super().get_prompt(name, arguments, context)

    async def list_resource_templates(self) -> list[DescribedTemplate]:
        handle = DescribedTemplate(
            name="handle",
            uri_template=ONE,
            description="One handle: its state, times, progress and outcome. Subscribe to hear of changes.",
            mime_type="application/json",
        )
        return [*await super().list_resource_templates(), handle]

    async def _list_resources(self, ctx: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        handles = Described(
            name="handles",
            uri=LIST,
            description="The handles of this conversation. Subscribe to hear of new and changed ones.",
            mime_type="application/json",
        )
        return ListResourcesResult(resources=[*await self.list_resources(), handles])

    async def _read(self, ctx: Context, params: ReadResourceRequestParams) -> Any:
        uri, registry, conversation = str(params.uri), self.runtime.registry, self.calls.conversation(ctx)
        id = id_of(uri)
        if id is None and uri != LIST:
            return await self._handle_read_resource(ctx, params)
        try:
            text = await (read_list(registry, conversation) if id is None else read_one(registry, conversation, id))
        except KeepholdError as error:
            raise MCPError(INVALID_PARAMS, error.message, data={"uri": uri}) from None
        return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type="application/json", text=text)])

    def _instructions(self) -> str:
        """Return how a model uses the tools that are here."""
        toolbox, texts = self.runtime.toolbox, [INSTRUCTIONS]
        if any(tool.actions for tool in toolbox) or self.runtime._servers is not None:  # those may bring stateful tools
            texts = [USE[presentation(self._schema, toolbox.actions)], SEVERAL, *texts]
        if self.calls.tool("wait_for"):
            texts.append(WAITS)
        return "\n".join(texts)

    async def run_stdio_async(self) -> None:
        """Serve the client that has started this process."""
        HOST.set(Host(str(Path.cwd()), self.conversation))
        await super().run_stdio_async()

    async def open(self) -> None:
        """Open the runtime, and use the store's key for state, so that a client may return to any server of the store.

        Make the server before its runtime is opened: recovered calls may need to ask their clients.
        """
        await self.runtime.open()
        secret = await self.runtime.durability.waits.oldest_secret()  # stays when keys are rotated
        self._sealed.use(hashlib.sha256(b"keephold mcp request state" + secret).digest())
        self.sealed_sessions.use(hashlib.sha256(b"keephold mcp session" + secret).digest())

    async def close(self) -> None:
        """End the listening streams in good order."""
        self.subscriptions.close()
