"""The scenes played with the agent, and their recordings: each scene is played once, in a process of its own.

After a turn's answer, the scene waits until the agent has made another session: everything written before that has been
read by then. No timer decides that nothing more came.
"""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from keephold.acp.check.probe import CANCELLED, Died, Failed, Probe, Silent, Skipped, WireEntry, is_answer, reject
from keephold.acp.wire import AUTH_REQUIRED, PROTOCOL_VERSION, TURN_COMPLETE, error_of, is_background, table
from keephold.errors import KeepholdError

TURN_KINDS = frozenset(
    ("user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan")
)
"""Updates that are part of a turn. Others describe the session (its title, its commands) and may come at any time."""


@dataclass
class Recording:
    """All messages, and the prompts that were sent. `problem`: why the scene could not be completed."""

    log: list[WireEntry]
    capabilities: dict[str, Any]
    info: dict[str, Any] = field(default_factory=dict)
    prompts: list[WireEntry] = field(default_factory=list)
    problem: str | None = None
    skipped: str = ""
    """Why no check can be made on it."""

    @property
    def signals_offered(self) -> bool:
        return TURN_COMPLETE in table(self.capabilities.get("_meta")) or "turnComplete" in self.session_capabilities

    @property
    def session_capabilities(self) -> dict[str, Any]:
        return table(self.capabilities.get("sessionCapabilities"))

    def response(self, prompt: WireEntry) -> WireEntry | None:
        id = prompt.message["id"]
        return next((entry for entry in self.log[prompt.number + 1 :] if is_answer(entry, id)), None)

    @property
    def answer(self) -> WireEntry:
        """The answer to the first prompt, if the scene has no problem."""
        answer = self.response(self.prompts[0])
        assert answer is not None
        return answer

    def updates(self, prompt: WireEntry) -> list[WireEntry]:
        """Return the updates of the prompt's turn: of its session, up to the next prompt there."""
        return [entry for entry in self._after(prompt) if kind(entry) in TURN_KINDS and not is_background(entry.params)]

    def signals(self, prompt: WireEntry) -> list[WireEntry]:
        """Return every `turn_complete` of the prompt's session up to the next prompt there, with any id."""
        return [entry for entry in self._after(prompt) if is_signal(entry)]

    def _after(self, prompt: WireEntry) -> list[WireEntry]:
        session = prompt.params["sessionId"]
        later = [other.number for other in self.prompts if other.params["sessionId"] == session]
        end = min((number for number in later if number > prompt.number), default=len(self.log))
        between = self.log[prompt.number + 1 : end]
        return [entry for entry in between if not entry.ours and entry.params.get("sessionId") == session]


def update_of(entry: WireEntry) -> dict[str, Any]:
    return table(entry.params.get("update"))


def kind(entry: WireEntry) -> str | None:
    return update_of(entry).get("sessionUpdate") if entry.method == "session/update" else None


def is_signal(entry: WireEntry) -> bool:
    return entry.method == "_keephold/turn_complete" or kind(entry) == "turn_complete"


def signal_fields(entry: WireEntry) -> tuple[Any, Any]:
    fields = entry.params if entry.method == "_keephold/turn_complete" else update_of(entry)
    return fields.get("promptRequestId"), fields.get("stopReason")


def stop_reason(response: WireEntry) -> Any:
    if "error" in response.message:
        return "error"
    return table(response.message.get("result")).get("stopReason")


Play: TypeAlias = Callable[[Probe, Recording], Awaitable[object]]
SceneMethod: TypeAlias = Callable[["Scenes", Probe, "Recording"], Awaitable[None]]


class Settings(msgspec.Struct, frozen=True):
    """How to examine an agent: its command, the timeout of an answer, and the prompts."""

    command: tuple[str, ...]
    timeout: float = 60.0
    pass_env: tuple[str, ...] = ()
    auth: str | None = None
    """The method to authenticate with after every handshake."""
    prompt: str = "List the files of the working directory with a tool, if you have one, and say how many there are."
    permission_prompt: str = "With a tool, write the word hello into the file acp-check.txt in the working directory."
    slow_prompt: str = "Run the command `sleep 300` with a tool. If you have none for that, count to 10000 in words."


def scene(play: SceneMethod) -> Callable[["Scenes"], Awaitable[Recording]]:
    """Make a method that plays a scene into one that returns its recording. Skipped if no prompt is answered."""

    async def recorded(scenes: "Scenes") -> Recording:
        await scenes.plain()
        return await scenes._play(play.__name__, partial(play, scenes))

    return recorded


class Scenes:
    """The scenes with one agent. A scene is played when a check first asks for it."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self.settings = settings
        self.directory = directory
        self._played: dict[str, Recording] = {}
        self._made_session = False
        self.refused: Failed | Skipped | None = None
        """Why the agent makes no sessions: the verdict of `new-session`."""

    @asynccontextmanager
    async def agent(self, *, handshake: bool = True) -> AsyncIterator[Probe]:
        """Start the agent for one check alone."""
        if handshake:
            await self.hello()
        probe = self._start()
        try:
            if handshake:
                await self._begin(probe)
            yield probe
        finally:
            await probe.close()

    async def session(self, probe: Probe) -> str:
        """Make a session. Raises `Skipped` if the agent has never made one: only `new-session` fails for that."""
        if self.refused is None:
            try:
                id = await self._new_session(probe)
            except (Failed, Skipped) as problem:
                if self._made_session:
                    raise
                silent = isinstance(problem, Died | Silent)
                self.refused = Failed(str(problem), probe.log[-1:]) if silent else problem
            else:
                self._made_session = True
                return id
        raise Skipped("no session could be made; see `new-session`")

    async def _new_session(self, probe: Probe) -> str:
        answer = await probe.answer(probe.request("session/new", {"cwd": str(self.directory), "mcpServers": []}))
        error = table(answer.message.get("error"))
        if error.get("code") == AUTH_REQUIRED:
            raise Skipped(f"the agent requires authentication: {error.get('message')}; {_offered(probe)}")
        if "error" in answer.message:
            raise Failed(f"session/new was answered with an error: {error_of(answer.message['error'])}", [answer])
        id = table(answer.message.get("result")).get("sessionId")
        if not isinstance(id, str) or not id:
            raise Failed("session/new was not answered with a sessionId", [answer])
        return id

    @property
    def problem(self) -> str:
        """Why the agent could not be used, if a scene says so."""
        problems = (recording.problem for recording in self._played.values() if recording.problem)
        return next(problems, str(self.refused or ""))

    @property
    def agent_info(self) -> dict[str, Any]:
        return next((recording.info for recording in self._played.values() if recording.info), {})

    # Scenes

    async def try_hello(self) -> Recording:
        """The handshake alone, with any outcome."""
        return await self._play("hello", _nothing)

    async def hello(self) -> Recording:
        """The handshake alone. Raises `Skipped` if it failed."""
        recording = await self.try_hello()
        if recording.problem is not None:
            raise Skipped("there was no handshake; see `initialize`")
        return recording

    async def plain(self) -> Recording:
        """One prompt. Raises `Skipped` if it was not answered."""
        recording = await self.try_plain()
        if recording.problem is not None:
            raise Skipped("a prompt was not answered; see `prompt`")
        return recording

    async def try_plain(self) -> Recording:
        """One prompt, with any outcome."""
        await self.hello()
        return await self._play("plain", lambda probe, recording: self._turn(probe, recording, self.settings.prompt))

    @scene
    async def two_prompts(self, probe: Probe, recording: Recording) -> None:
        """Two prompts in one session, the second one with a string for an id."""
        first = await self._turn(probe, recording, self.settings.prompt)
        session = first.params["sessionId"]
        await self._turn(probe, recording, self.settings.prompt, session=session, id="second prompt")

    @scene
    async def two_sessions(self, probe: Probe, recording: Recording) -> None:
        """Two sessions with a prompt each, at the same time."""
        sessions = [await self.session(probe) for _ in range(2)]
        prompts = [_prompt(probe, recording, session, self.settings.prompt) for session in sessions]
        for prompt in prompts:
            await probe.answer(prompt)

    @scene
    async def cancelled(self, probe: Probe, recording: Recording) -> None:
        """A long prompt, cancelled as soon as the agent is seen to have read it."""
        session = await self.session(probe)
        prompt = _prompt(probe, recording, session, self.settings.slow_prompt)
        behind = probe.request("session/new", {"cwd": str(self.directory), "mcpServers": []})

        def begun() -> bool | None:
            return bool(recording.updates(prompt) or probe.answered(behind) or probe.answered(prompt)) or None

        with suppress(Silent):  # the agent shows nothing and does one thing at a time; it may still obey the cancel
            await probe.until(begun, "show that it has read session/prompt")
        if probe.answered(prompt) is None:
            probe.send({"method": "session/cancel", "params": {"sessionId": session}})
        await probe.until(lambda: probe.answered(prompt), "answer session/prompt after session/cancel")
        await probe.answer(behind)

    @scene
    async def allowed(self, probe: Probe, recording: Recording) -> None:
        """A prompt that makes the agent ask for permission, which is given."""
        await self._turn(probe, recording, self.settings.permission_prompt)

    @scene
    async def rejected(self, probe: Probe, recording: Recording) -> None:
        """The same, with permission refused."""
        probe.permit = reject
        await self._turn(probe, recording, self.settings.permission_prompt)

    @scene
    async def withdrawn(self, probe: Probe, recording: Recording) -> None:
        """The same, with the turn cancelled while the question is open."""
        probe.permit = lambda request: None
        session = await self.session(probe)
        prompt = _prompt(probe, recording, session, self.settings.permission_prompt)
        await probe.until(lambda: probe.answered(prompt) or asked(probe.log), "ask for permission or answer")
        if probe.answered(prompt) is None:
            probe.send({"method": "session/cancel", "params": {"sessionId": session}})
            probe.permit = lambda request: CANCELLED
            for request in [each for each in probe.log if _is_question(each)]:
                probe.send({"id": request.message["id"], "result": {"outcome": CANCELLED}})
        await probe.until(lambda: probe.answered(prompt), "answer session/prompt after session/cancel")

    def _start(self) -> Probe:
        return Probe(self.settings.command, self.settings.timeout, self.settings.pass_env)

    async def _turn(
        self, probe: Probe, recording: Recording, text: str, *, session: str | None = None, id: str | None = None
    ) -> WireEntry:
        session = session or await self.session(probe)
        prompt = _prompt(probe, recording, session, text, id)
        await probe.answer(prompt)
        return prompt

    async def _play(self, name: str, play: Play) -> Recording:
        if name not in self._played:
            probe = self._start()
            recording = Recording(probe.log, probe.capabilities, probe.info)
            try:
                await self._begin(probe)
                await play(probe, recording)
                if recording.prompts:
                    await self.session(probe)
            except Failed as problem:
                recording.problem = _echoed(probe) or str(problem)
            except Skipped as reason:
                recording.skipped = str(reason)
            finally:
                await probe.close()
            self._played[name] = recording
        if why := self._played[name].skipped:
            raise Skipped(why)
        return self._played[name]

    async def _begin(self, probe: Probe) -> None:
        _verify(await shake_hands(probe))
        if self.settings.auth is None:
            return
        try:
            answer = await probe.ask("authenticate", {"methodId": self.settings.auth})
        except (Died, Silent) as problem:
            raise KeepholdError(f"authentication failed: {problem}", code="acp_error") from None
        if "error" in answer:
            why = f"the agent refused to authenticate: {error_of(answer['error'])}; {_offered(probe)}"
            raise KeepholdError(why, code="acp_error")


async def shake_hands(probe: Probe, **more: Any) -> WireEntry:
    """Send `initialize` and record the agent's capabilities."""
    offered = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
    params = {"protocolVersion": PROTOCOL_VERSION, "clientCapabilities": offered} | more
    answer = await probe.answer(probe.request("initialize", params))
    result = table(answer.message.get("result"))
    probe.capabilities |= table(result.get("agentCapabilities"))
    probe.info |= table(result.get("agentInfo"))
    methods = result.get("authMethods")
    tables = [each for each in methods if isinstance(each, dict)] if isinstance(methods, list) else []
    probe.auth_methods = [str(each.get("id")) for each in tables]
    return answer


def _offered(probe: Probe) -> str:
    if not probe.auth_methods:
        return "it offers no method for --auth; log in with its own command"
    return f"choose a method with --auth: {', '.join(f'`{name}`' for name in probe.auth_methods)}"


def _verify(answer: WireEntry) -> None:
    """Raise `Failed` unless it is a right answer to `initialize`."""
    result = table(answer.message.get("result"))
    if "error" in answer.message:
        raise Failed(f"initialize was answered with an error: {error_of(answer.message['error'])}", [answer])
    if type(result.get("protocolVersion")) is not int:
        raise Failed("protocolVersion must be an integer", [answer])
    if result["protocolVersion"] != PROTOCOL_VERSION:
        raise Failed(f"asked for protocol version 1, the agent chose {result['protocolVersion']}", [answer])
    if not isinstance(result.get("agentCapabilities", {}), dict):
        raise Failed("agentCapabilities must be an object", [answer])


def _echoed(probe: Probe) -> str | None:
    """Explain that the program writes back what it reads, as `cat` and a terminal do: each answer is our own then."""
    if any(not entry.ours and entry.message == probe.log[0].message for entry in probe.log):
        return "the agent echoes its input: `initialize` came back as it was sent; name a program that speaks ACP"
    return None


def asked(log: list[WireEntry]) -> WireEntry | None:
    return next((entry for entry in log if _is_question(entry)), None)


def _is_question(entry: WireEntry) -> bool:
    return not entry.ours and entry.method == "session/request_permission" and "id" in entry.message


def _prompt(probe: Probe, recording: Recording, session: str, text: str, id: str | None = None) -> WireEntry:
    blocks = [{"type": "text", "text": text}]
    prompt = probe.request("session/prompt", {"sessionId": session, "prompt": blocks}, id)
    recording.prompts.append(prompt)
    return prompt


async def _nothing(probe: Probe, recording: Recording) -> None:
    """Do nothing after the handshake."""


@asynccontextmanager
async def scenes(settings: Settings) -> AsyncIterator[Scenes]:
    """Play scenes in a working directory of their own, where an agent may write."""
    with tempfile.TemporaryDirectory(prefix="acp-check-") as path:
        yield Scenes(settings, Path(path))
