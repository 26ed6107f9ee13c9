"""An editor for tests: `keephold acp` as a process, driven by the Python ACP SDK, which checks all that it says."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import acp
from acp import schema
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
TOOLS = ("look", "change", "job", "waits", "floods", "asks", "wonders", "hangs", "fails")
CONFIG = """
[conversation.assistant]
model = "python:tests.acp.agents.playing:model"
"""
ASKED = """
[conversation.tools.asked]
source = "local"
command = ["sh", "-c", "echo ran {{ tool.arguments.word }}"]
parameters.word = { type = "string", required = true }

[conversation.tools.build]
source = "local"
run = "unattended"
command = ["sh", "-c", "echo begun; while ! test -e {{ tool.arguments.file }}; do sleep 0.02; done; echo ended"]
parameters.file = { type = "string", required = true }
spawn.stateful = true
spawn.lifecycle.on_turn_end = "keep"
"""
_REQUESTS: dict[str, Any] = {
    "session/request_permission": schema.RequestPermissionRequest,
    "elicitation/create": schema.CreateFormSessionElicitationRequest,
    "terminal/create": schema.CreateTerminalRequest,
    "terminal/release": schema.ReleaseTerminalRequest,
    "terminal/wait_for_exit": schema.WaitForTerminalExitRequest,
}
_RESULTS: dict[str, Any] = {
    "initialize": schema.InitializeResponse,
    "session/new": schema.NewSessionResponse,
    "session/load": schema.LoadSessionResponse,
    "session/resume": schema.ResumeSessionResponse,
    "session/list": schema.ListSessionsResponse,
    "session/close": schema.CloseSessionResponse,
    "session/set_mode": schema.SetSessionModeResponse,
    "session/set_config_option": schema.SetSessionConfigOptionResponse,
    "session/prompt": schema.PromptResponse,
}


def config(directory: Path, more: str = "") -> Path:
    """A configuration with the tools of `playing`."""
    tools = "".join(
        f'[conversation.tools.{name}]\nsource = "python"\nrun = "unattended"\n'
        f'function = "tests.acp.agents.playing:{name}"\n'
        for name in TOOLS
    )
    file = directory / "keephold.toml"
    file.write_text(CONFIG + tools + ASKED + more)
    return file


def script(*steps: dict[str, Any]) -> str:
    """A prompt that makes the model do this."""
    return json.dumps(list(steps))


class Editor:
    """The person's side, and everything that was said."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        """With "in" or "out", in order."""
        self.problems: list[str] = []
        """Messages that the schema does not take as they are."""
        self.more = asyncio.Event()
        self.permission: Callable[[dict[str, Any]], str | Awaitable[str | None] | None] = lambda _: "allow_once"
        self.elicited: Callable[[str], dict[str, Any]] = lambda _: {"action": "cancel"}
        self.terminals: dict[str, asyncio.subprocess.Process] = {}
        self._methods: dict[Any, str] = {}
        self.connection: acp.ClientSideConnection
        self.process: asyncio.subprocess.Process
        self.capabilities: schema.AgentCapabilities

    # What the SDK calls

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None: ...

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **kwargs: Any
    ) -> schema.RequestPermissionResponse:
        asked = {"toolCall": tool_call.model_dump(by_alias=True), "options": [each.option_id for each in options]}
        chosen = self.permission(asked)
        if isinstance(chosen, Awaitable):
            chosen = await chosen
        if chosen is None:
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        return schema.RequestPermissionResponse(outcome=schema.AllowedOutcome(option_id=chosen, outcome="selected"))

    async def create_elicitation(self, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        message = next(each for each in given if isinstance(each, str) and "Which" in each)
        answer = self.elicited(message)
        accepted = answer["action"] == "accept"
        return (schema.AcceptElicitationResponse if accepted else schema.CancelElicitationResponse).model_validate(
            answer
        )

    async def create_terminal(
        self, session_id: str, command: str, args: Any = None, env: Any = None, cwd: Any = None, **kwargs: Any
    ) -> schema.CreateTerminalResponse:
        id = f"terminal-{len(self.terminals)}"
        process = await asyncio.create_subprocess_exec(
            command, *(args or ()), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        self.terminals[id] = process
        return schema.CreateTerminalResponse(terminal_id=id)

    async def wait_for_terminal_exit(self, session_id: str, terminal_id: str, **kwargs: Any) -> Any:
        code = await self.terminals[terminal_id].wait()
        return schema.WaitForTerminalExitResponse(exit_code=code)

    async def release_terminal(self, session_id: str, terminal_id: str, **kwargs: Any) -> Any:
        return schema.ReleaseTerminalResponse()

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None: ...

    # What was said

    def observe(self, event: Any) -> None:
        way = "in" if event.direction.value == "incoming" else "out"
        message = event.message
        self.messages.append((way, message))
        if way == "out" and "method" in message and "id" in message:
            self._methods[message["id"]] = message["method"]
        if way == "in":
            try:
                self._check(message)
            except Exception as error:  # the SDK logs what an observer raises, and goes on
                self.problems.append(str(error))
        self.more.set()

    def _check(self, message: dict[str, Any]) -> None:
        assert message["jsonrpc"] == "2.0"
        method = message.get("method")
        if method == "session/update":
            if message["params"]["update"]["sessionUpdate"] != "turn_complete":
                _fits(schema.SessionNotification, message["params"])
        elif method == "$/cancel_request":
            _fits(schema.CancelRequestNotification, message["params"])
        elif method in _REQUESTS:
            _fits(_REQUESTS[method], message["params"])
        elif method is not None:
            assert method == "_keephold/turn_complete"
        elif "result" in message and self._methods[message["id"]] in _RESULTS:
            _fits(_RESULTS[self._methods[message["id"]]], message["result"])

    def updates(self, session: str | None = None, since: int = 0) -> list[dict[str, Any]]:
        """The updates so far, of a session or of all, from the message of that number on."""
        return [
            message["params"]["update"]
            for way, message in self.messages[since:]
            if way == "in"
            and message.get("method") == "session/update"
            and session in (None, message["params"]["sessionId"])
        ]

    def calls(self, session: str | None = None, since: int = 0) -> dict[str, list[dict[str, Any]]]:
        """The updates of tool calls, by the end of their ids."""
        found: dict[str, list[dict[str, Any]]] = {}
        for update in self.updates(session, since):
            if update["sessionUpdate"] == "tool_call":
                assert update["toolCallId"] not in found
                found[update["toolCallId"]] = [update]
            elif update["sessionUpdate"] == "tool_call_update":
                found[update["toolCallId"]].append(update)
        return {id.rpartition(".")[2]: updates for id, updates in found.items()}

    def text(self, session: str | None = None, since: int = 0) -> str:
        """What the assistant has said."""
        chunks = (each for each in self.updates(session, since) if each["sessionUpdate"] == "agent_message_chunk")
        return "".join(each["content"]["text"] for each in chunks)

    async def until(self, condition: Callable[[], Any], within: float = 20) -> None:
        """Until it is so; a hang is an error."""
        async with asyncio.timeout(within):
            while not condition():
                self.more.clear()
                await self.more.wait()

    # What the person does

    async def new(self, cwd: str = "/tmp") -> str:
        return str((await self.connection.new_session(cwd=cwd, mcp_servers=[])).session_id)

    async def prompt(self, session: str, *steps: dict[str, Any]) -> str:
        """Run a turn; its stop reason."""
        async with asyncio.timeout(PATIENCE):
            answer = await self.connection.prompt(prompt=[acp.text_block(script(*steps))], session_id=session)
        return str(answer.stop_reason)

    def signals(self) -> list[dict[str, Any]]:
        """The ends of turns that were told."""
        return [m["params"] for way, m in self.messages if m.get("method") == "_keephold/turn_complete" and way == "in"]


def statuses(updates: list[dict[str, Any]]) -> list[str]:
    """How a call went on."""
    return [update["status"] for update in updates if "status" in update]


def shown(update: dict[str, Any]) -> str:
    """The texts of a call's content."""
    return "\n".join(part["content"]["text"] for part in update.get("content", ()) if part["type"] == "content")


def _fits(model: Any, given: dict[str, Any]) -> None:
    """That the schema takes the message, and loses nothing of it: it is lenient, and drops what it does not know."""
    read = model.model_validate(given).model_dump(by_alias=True, exclude_unset=True, mode="json")
    assert _plain(read) == _plain(given), f"{model.__name__} makes {read} of {given}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    return [_plain(each) for each in value] if isinstance(value, list) else value


@asynccontextmanager
async def editor(
    directory: Path,
    *options: str,
    store: str | None = None,
    capabilities: dict[str, Any] | None = None,
    more: str = "",
    found: dict[str, str] | None = None,
) -> AsyncIterator[Editor]:
    """`keephold acp` in a directory, and an editor that is connected to it. With `found`, an environment, sessions find
    their configurations."""
    chosen = ["--config", str(config(directory, more))] if found is None else []
    person = Editor()
    words = ["-m", "keephold", "acp", *chosen, "--store", store or f"sqlite:///{directory}/store.db"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **(found or {})}
    with (directory / "stderr").open("ab") as stderr:
        async with acp.spawn_agent_process(
            person,  # type: ignore[arg-type]
            sys.executable,
            *words,
            *options,
            env=env,
            transport_kwargs={"stderr": stderr.fileno(), "limit": 1 << 24, "shutdown_timeout": 20.0},
            observers=[person.observe],
            use_unstable_protocol=True,
        ) as (connection, process):
            person.connection, person.process = connection, process
            said = schema.ClientCapabilities.model_validate(capabilities or {})
            answer = await connection.initialize(protocol_version=1, client_capabilities=said)
            assert answer.agent_capabilities is not None
            person.capabilities = answer.agent_capabilities
            yield person
    for shown in person.terminals.values():
        with suppress(ProcessLookupError):
            shown.kill()
        await shown.communicate()
    assert person.problems == []
