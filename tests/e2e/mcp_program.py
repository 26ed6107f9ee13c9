"""An MCP server to be used by keephold: `python mcp_program.py stdio`, or `… http PORT`, and `legacy` for the old era.

What it has done is noted, a line each, in the file that `MCP_NOTES` names: the tests see it from outside.
"""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
import mcp.types as types
from mcp.server import MCPServer
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import Context, Elicit, Image, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from pydantic import BaseModel, Field

MODERN = frozenset({"2026-07-28"})
TASKS = "io.modelcontextprotocol/tasks"
PUSHES = "push" in sys.argv


def note(text: str) -> None:
    with Path(os.environ["MCP_NOTES"]).open("a") as file:
        file.write(text + "\n")


# Tasks (SEP-2663), kept in memory


class Ref(types.RequestParams):
    task_id: str


class Answers(Ref):
    input_responses: dict[str, Any]


class Task:
    """A task: its state, and what it waits for."""

    def __init__(self) -> None:
        self.id = secrets.token_urlsafe(16)
        self.state: dict[str, Any] = {"status": "working", "statusMessage": "begun", "ttlMs": None}
        self.answers: dict[str, Any] = {}
        self.changed = asyncio.Event()
        self.work: asyncio.Task[None] | None = None

    def shown(self) -> dict[str, Any]:
        at = "2026-01-01T00:00:00Z"
        return {"taskId": self.id, "createdAt": at, "lastUpdatedAt": at, "pollIntervalMs": 50, **self.state}

    def put(self, **state: Any) -> None:
        self.state = {"ttlMs": None, **state}
        self.changed.set()
        self.changed = asyncio.Event()

    async def ask(self, message: str, schema: dict[str, Any]) -> Any:
        key = secrets.token_hex(4)
        params = {"mode": "form", "message": message, "requestedSchema": schema}
        self.put(status="input_required", inputRequests={key: {"method": "elicitation/create", "params": params}})
        while key not in self.answers:  # noqa: ASYNC110 (a request brings it)
            await asyncio.sleep(0.01)
        self.put(status="working", statusMessage="answered")
        return self.answers[key]


async def work(task: Task, name: str, arguments: dict[str, Any]) -> None:
    try:
        text = "built"
        if name == "build_sampling":
            task.put(status="input_required", inputRequests={"k": {"method": "sampling/createMessage", "params": {}}})
        if name == "build_asking":
            one = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
            first = await task.ask("First?", one)
            second = await task.ask("Second?", one)
            text = f"built {first.get('content')} {second.get('content')}"
        await until_released(arguments["file"])
        note(f"worked {name}")
        task.put(status="completed", result={"content": [{"type": "text", "text": text}], "isError": False})
    except asyncio.CancelledError:
        note(f"task cancelled {name}")
        task.put(status="cancelled")


async def until_released(file: str) -> None:
    while not Path(file).exists():  # noqa: ASYNC110 (another process makes it)
        await asyncio.sleep(0.01)


class Tasks(Extension):
    identifier = TASKS

    def __init__(self) -> None:
        self.all: dict[str, Task] = {}

    def methods(self) -> Sequence[MethodBinding]:
        return [
            MethodBinding("tasks/get", Ref, self.get, MODERN),
            MethodBinding("tasks/update", Answers, self.update, MODERN),
            MethodBinding("tasks/cancel", Ref, self.cancel, MODERN),
        ]

    def find(self, id: str) -> Task:
        if id not in self.all:
            raise MCPError(code=types.INVALID_PARAMS, message="Task not found")
        return self.all[id]

    async def get(self, ctx: Any, params: Ref) -> dict[str, Any]:
        note("tasks/get")
        return {"resultType": "complete", **self.find(params.task_id).shown()}

    async def update(self, ctx: Any, params: Answers) -> dict[str, Any]:
        note(f"tasks/update {sorted(map(str, params.input_responses.values()))}")
        self.find(params.task_id).answers |= params.input_responses
        return {"resultType": "complete"}

    async def cancel(self, ctx: Any, params: Ref) -> dict[str, Any]:
        task = self.find(params.task_id)
        if task.work is not None:
            task.work.cancel()
        return {"resultType": "complete"}

    async def intercept_tool_call(self, params: Any, ctx: Any, call_next: Any) -> Any:
        capabilities = ctx.session.client_capabilities
        declared = (capabilities.extensions if capabilities else None) or {}
        if TASKS not in declared or not params.name.startswith("build"):
            return await call_next(ctx)
        note(f"called {params.name}")
        task = Task()
        self.all[task.id] = task
        task.work = asyncio.get_running_loop().create_task(work(task, params.name, params.arguments or {}))
        return {"resultType": "task", **task.shown()}


class TaskTold(BaseModel):
    """`notifications/tasks`, which `mcp` has no type for."""

    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: dict[str, Any]


class Listen:
    """`subscriptions/listen` that also tells of tasks; without `push` of nothing but lists."""

    def __init__(self, tasks: Tasks, others: ListenHandler) -> None:
        self._tasks = tasks
        self._others = others

    async def __call__(self, ctx: Any, params: types.SubscriptionsListenRequestParams) -> Any:
        wanted = (params.notifications.model_extra or {}).get("taskIds")
        if not wanted:
            return await self._others(ctx, params)
        if not PUSHES:
            raise MCPError(code=types.INVALID_PARAMS, message="no tasks are pushed")
        meta = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        task = self._tasks.find(wanted[0])
        while True:
            changed = task.changed
            told: Any = TaskTold(params={**task.shown(), "_meta": meta})
            await ctx.session.send_notification(told, related_request_id=ctx.request_id)
            await changed.wait()


async def only_legacy(ctx: Any, call_next: Any) -> Any:
    if ctx.method == "server/discover":
        raise MCPError(code=types.METHOD_NOT_FOUND, message="Method not found")
    return await call_next(ctx)


async def legacy_on_pipes() -> None:
    """As a server of before 2026-07-28, which does not know `server/discover`."""
    async with stdio_server() as (read, write), anyio.create_task_group() as group:
        put, rest = anyio.create_memory_object_stream[Any](0)

        async def sift() -> None:
            async with put:
                async for item in read:
                    request = getattr(item, "message", None)
                    if isinstance(request, types.JSONRPCRequest) and request.method == "server/discover":
                        unknown = types.ErrorData(code=types.METHOD_NOT_FOUND, message="Method not found")
                        refusal = types.JSONRPCError(jsonrpc="2.0", id=request.id, error=unknown)
                        await write.send(SessionMessage(refusal))
                    else:
                        await put.send(item)

        group.start_soon(sift)
        lowlevel = server._lowlevel_server
        await lowlevel.run(rest, write, lowlevel.create_initialization_options())
        group.cancel_scope.cancel()


# Its tools

extension = Tasks()
server = MCPServer(
    "program", version="1", extensions=[extension], middleware=[only_legacy] if "legacy" in sys.argv else []
)
server._lowlevel_server.add_request_handler(
    "subscriptions/listen",
    types.SubscriptionsListenRequestParams,
    Listen(extension, ListenHandler(server._subscriptions)),
)


@server.tool()
def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


@server.tool()
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """Words and a picture."""
    return ["here:", Image(data=b"x" * 3000, format="png")]


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ToolError(why)


@server.tool()
def identify(id: str) -> str:
    """Has a parameter of a name that stateful tools have for themselves."""
    return id


@server.tool()
def environment(name: str) -> str:
    """A variable."""
    return os.environ.get(name, "(none)")


@server.tool()
async def slow(file: str, ctx: Context[Any]) -> str:
    """Wait until the file is there."""
    note("slow began")
    await ctx.report_progress(1, 3, "waiting")
    try:
        await until_released(file)
    except asyncio.CancelledError:
        note("slow cancelled")
        raise
    return "done"


@server.tool()
def die() -> str:
    """Die in the middle of a call."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@server.tool()
def die_once(file: str) -> str:
    """Die in the first call."""
    if Path(file).exists():
        return "alive"
    Path(file).touch()
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@server.tool()
async def confirm(text: str, ctx: Context[Any]) -> str:
    """Asks as old servers do, by a request of its own."""
    answer = await ctx.elicit(text, Sure)
    return f"{text} {answer.data.sure}" if answer.action == "accept" else f"{text} {answer.action}"


class Sure(BaseModel):
    sure: bool


@server.tool()
def fork() -> str:
    """Leave a process in a session of its own."""
    child = subprocess.Popen(["sleep", "300"], start_new_session=True, stdin=subprocess.DEVNULL)
    return str(child.pid)


class Choice(BaseModel):
    colour: Literal["red", "blue"] = Field(description="Which colour?")
    name: str = Field(description="What name?")


async def choose(ctx: Context[Any]) -> Elicit[Choice]:
    return Elicit("Paint it?", Choice)


@server.tool()
async def paint(choice: Annotated[Choice, Resolve(choose)]) -> str:
    """Asks, in either era."""
    return f"{choice.colour} {choice.name}"


class Many(BaseModel):
    count: int
    mail: str = Field(json_schema_extra={"format": "email"})
    sure: bool = True
    f0: str = "f0"
    f1: str = "f1"
    f2: str = "f2"
    f3: str = "f3"
    f4: str = "f4"
    f5: str = "f5"
    f6: str = "f6"
    f7: str = "f7"
    f8: str = "f8"


async def how_many(ctx: Context[Any]) -> Elicit[Many]:
    return Elicit("How many?", Many)


@server.tool()
async def number(many: Annotated[Many, Resolve(how_many)]) -> str:
    """Asks for twelve fields."""
    return f"{many.count} {many.mail} {many.sure} {[many.f0, many.f7]}"


@server.tool()
async def nested(ctx: Context[Any]) -> str:
    """Asks for something that cannot be asked."""
    inner = {"type": "object", "properties": {"inner": {"type": "object"}}, "required": ["inner"]}
    params = types.ElicitRequestFormParams(message="Well?", requested_schema=inner)
    answer = await ctx.session.send_request(types.ElicitRequest(params=params), types.ElicitResult)
    raise ToolError(answer.action)


@server.tool()
async def roots(ctx: Context[Any]) -> str:
    """The client's directories, as old servers ask for them."""
    listed = await ctx.session.send_request(types.ListRootsRequest(), types.ListRootsResult)
    return " ".join(str(root.uri) for root in listed.roots)


@server.tool()
async def grow(ctx: Context[Any]) -> str:
    """Have one more tool."""
    server.add_tool(lambda: "late", name="late", description="Came later.")
    await changed(ctx)
    return "grown"


@server.tool()
async def shrink(ctx: Context[Any]) -> str:
    """Have one tool less."""
    server.remove_tool("late")
    await changed(ctx)
    return "shrunk"


async def changed(ctx: Context[Any]) -> None:
    if ctx.request_context.protocol_version in MODERN:
        await ctx.notify_tools_changed()
    else:
        await ctx.session.send_tool_list_changed()


@server.tool()
def build(file: str) -> str:
    """A task, for those who follow tasks."""
    return "built at once"


@server.tool()
def build_asking(file: str) -> str:
    """A task that asks twice."""
    return "built at once"


@server.tool()
def build_sampling(file: str) -> str:
    """A task that asks for what is not offered."""
    return "built at once"


class Place(BaseModel):
    """A place on a map."""

    name: str = Field(description="The name on the map.")
    kind: Literal["town", "river", "peak"] = "town"
    height: float | None = Field(default=None, description="Metres above the sea.")


class Route(BaseModel):
    """The way between places."""

    start: Place
    end: Place
    via: list[Place] = []


def route(first: Place, last: Place, avoid: list[Place] | None = None) -> Route:
    """Find a route between two places, avoiding others. Use it before you travel; it changes nothing."""
    return Route(start=first, end=last)


def forget(name: str, sure: Annotated[bool, Field(description="Really.")] = False) -> str:
    """Forget a place."""
    return f"forgot {name}"


if "many" in sys.argv:
    reads = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
    ends = types.ToolAnnotations(title="Forget", destructive_hint=True, idempotent_hint=True)
    for each in range(26):
        server.tool(f"route_{each}", title=f"Route {each}", annotations=reads)(route)
        server.tool(f"forget_{each}", annotations=ends)(forget)


if __name__ == "__main__":
    note(f"started {os.getpid()}")
    if "http" in sys.argv:
        server.run("streamable-http", port=int(sys.argv[sys.argv.index("http") + 1]))
    elif "sse" in sys.argv:
        server.run("sse", port=int(sys.argv[sys.argv.index("sse") + 1]))
    elif "legacy" in sys.argv:
        anyio.run(legacy_on_pipes)
    else:
        server.run("stdio")
