"""Checks of the handshake, of sessions (new, loaded, resumed, listed, closed), and of unknown or invalid messages."""

from keephold.acp.check.probe import Died, Probe, Silent, WireEntry
from keephold.acp.check.scenes import Recording, Scenes, is_signal, shake_hands, table
from keephold.acp.check.verdict import Failed, Skipped, must, should
from keephold.acp.rpc import METHOD_NOT_FOUND


@must("sessions", "new-session", "every session/new makes a session with an id of its own")
async def new_session(scenes: Scenes) -> None:
    async with scenes.agent() as probe:
        try:
            same = await scenes.session(probe) == await scenes.session(probe)
        except Skipped as skipped:
            raise scenes.refused or skipped from None
        if same:
            raise Failed("two sessions have the same id", probe.log[-4:])


@should("sessions", "unknown-session", "a prompt for an unknown session is answered with an error")
async def unknown_session(scenes: Scenes) -> None:
    async with scenes.agent() as probe:
        prompt = [{"type": "text", "text": scenes.settings.prompt}]
        request = probe.request("session/prompt", {"sessionId": "acp-check-no-such-session", "prompt": prompt})
        answer = await probe.answer(request)
        if "error" not in answer.message:
            raise Failed("the session does not exist, and the prompt was answered with a result", [request, answer])


@must("sessions", "load-session", "session/load replays the session before its answer, without turn_complete")
async def load_session(scenes: Scenes) -> None:
    recording = await scenes.plain()
    if recording.capabilities.get("loadSession") is not True:
        raise Skipped("the agent does not offer loadSession")
    async with scenes.agent() as probe:
        request, answer = await _reopen(scenes, probe, recording, "session/load")
        replayed = [entry for entry in probe.log if entry.method == "session/update" and not is_signal(entry)]
        if not [entry for entry in replayed if entry.number < answer.number]:
            raise Failed("nothing was replayed before the answer", [request, answer, *replayed])
        if signals := [entry for entry in probe.log if is_signal(entry)]:
            raise Failed("turn_complete belongs to a prompt and must not be replayed", signals)


@must("sessions", "resume-session", "session/resume resumes a session")
async def resume_session(scenes: Scenes) -> None:
    recording = await scenes.plain()
    if "resume" not in recording.session_capabilities:
        raise Skipped("the agent does not offer sessionCapabilities.resume")
    async with scenes.agent() as probe:
        await _reopen(scenes, probe, recording, "session/resume")


@must("sessions", "list-sessions", "session/list is answered with sessions, each with its id")
async def list_sessions(scenes: Scenes) -> None:
    if "list" not in (await scenes.hello()).session_capabilities:
        raise Skipped("the agent does not offer sessionCapabilities.list")
    async with scenes.agent() as probe:
        await scenes.session(probe)
        answer = await probe.answer(probe.request("session/list", {}))
        found = table(answer.message, "result").get("sessions")
        if not isinstance(found, list) or not all(isinstance(each, dict) and each.get("sessionId") for each in found):
            raise Failed("the answer must have `sessions`, a list of objects with a sessionId", [answer])


@must("sessions", "close-session", "session/close is answered")
async def close_session(scenes: Scenes) -> None:
    if "close" not in (await scenes.hello()).session_capabilities:
        raise Skipped("the agent does not offer sessionCapabilities.close")
    async with scenes.agent() as probe:
        session = await scenes.session(probe)
        answer = await probe.answer(probe.request("session/close", {"sessionId": session}))
        if "error" in answer.message:
            raise Failed("session/close was answered with an error", [answer])


async def _reopen(scenes: Scenes, probe: Probe, recording: Recording, method: str) -> tuple[WireEntry, WireEntry]:
    """Load or resume the session of another process."""
    id = recording.prompts[0].params["sessionId"]
    request = probe.request(method, {"sessionId": id, "cwd": str(scenes.directory), "mcpServers": []})
    answer = await probe.answer(request)
    if "error" in answer.message:
        raise Failed(f"{method} was answered with an error", [request, answer])
    await scenes.session(probe)
    return request, answer


@must("handshake", "initialize", "initialize is answered with protocol version 1 and the agent's capabilities")
async def initialize(scenes: Scenes) -> None:
    recording = await scenes.try_hello()
    if recording.problem is not None:
        raise Failed(recording.problem, recording.log[:4])


@must("handshake", "version-negotiation", "a version that the agent does not know is answered with one that it does")
async def version_negotiation(scenes: Scenes) -> None:
    await scenes.hello()
    async with scenes.agent(handshake=False) as probe:
        answer = await shake_hands(probe, protocolVersion=65535)
        version = table(answer.message, "result").get("protocolVersion")
        if "error" in answer.message:
            raise Failed(
                "an unknown version must be answered with a version that is known, not with an error", [answer]
            )
        if type(version) is not int or version == 65535:
            raise Failed(f"the agent claims to speak version {version!r}", [answer])


@should("handshake", "unknown-capabilities", "capabilities and fields that the agent does not know are ignored")
async def unknown_capabilities(scenes: Scenes) -> None:
    await scenes.hello()
    async with scenes.agent(handshake=False) as probe:
        offered = {
            "fs": {"readTextFile": False, "writeTextFile": False, "keepholdNoSuch": True},
            "terminal": False,
            "keepholdNoSuch": {"deep": [1, None]},
            "_meta": {"keephold/no_such": True},
        }
        client = {"name": "acp-check", "title": None, "version": "1", "_meta": {"keephold/no_such": 1}}
        try:
            answer = await shake_hands(probe, clientCapabilities=offered, clientInfo=client)
        except (Died, Silent) as problem:
            raise Failed(f"with unknown capabilities: {problem}", probe.log) from None
        if "error" in answer.message:
            raise Failed("unknown capabilities must be ignored", probe.log)


_LINES = (
    '{"jsonrpc": "2.0", "id": 90001, "method"',
    "this is not JSON",
    '"text"',
    "[]",
    '{"jsonrpc": "2.0", "id": 90002}',
    '{"jsonrpc": "2.0", "id": 90003, "method": 7}',
    '{"jsonrpc": "2.0", "id": 90004, "method": "session/new", "params": "text"}',
    '{"jsonrpc": "2.0", "method": "session/cancel", "params": {}}',
    '{"jsonrpc": "2.0", "id": 90005, "result": {}}',
    '{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "Parse error"}}',
)


@should("robustness", "unknown-method", "a method that the agent does not know is answered with error -32601")
async def unknown_method(scenes: Scenes) -> None:
    async with scenes.agent() as probe:
        for method in ("_keephold/no_such_method", "session/no_such_method"):
            request = probe.request(method, {})
            answer = await probe.answer(request)
            if table(answer.message, "error").get("code") != METHOD_NOT_FOUND:
                raise Failed("an unknown method must be answered with error -32601", [request, answer])


@should("robustness", "unknown-notification", "an extension notification that the agent does not know is ignored")
async def unknown_notification(scenes: Scenes) -> None:
    async with scenes.agent() as probe:
        await scenes.session(probe)  # an agent that makes none is not to blame for what follows
        sent = probe.send({"method": "_keephold/no_such_notification", "params": {"x": 1}})
        await scenes.session(probe)
        between = probe.log[sent.number + 1 :]
        answers = [entry for entry in between if not entry.ours and isinstance(entry.message, dict)]
        if wrong := [entry for entry in answers if "error" in entry.message]:
            raise Failed("a notification is never answered", [sent, *wrong])


@must("robustness", "string-ids", "the id of a request may be a string, and is echoed as it was")
async def string_ids(scenes: Scenes) -> None:
    async with scenes.agent() as probe:
        params = {"cwd": str(scenes.directory), "mcpServers": []}
        await probe.ask("session/new", params, id="acp-check")


@should("robustness", "missing-params", "a prompt without its params is answered with an error")
async def missing_params(scenes: Scenes) -> None:
    async with scenes.agent() as probe:
        request = probe.request("session/prompt", {})
        answer = await probe.answer(request)
        if "error" not in answer.message:
            raise Failed("a prompt without a session was answered with a result", [request, answer])


@should("robustness", "malformed", "invalid lines do not end the connection")
async def malformed(scenes: Scenes) -> None:
    async with scenes.agent() as probe:
        await scenes.session(probe)
        for line in _LINES:
            sent = probe.send_line(line)
            try:
                await scenes.session(probe)
            except (Died, Silent, Failed) as problem:
                raise Failed(f"after an invalid line: {problem}", [sent]) from None


@must("robustness", "only-messages", "the agent writes nothing but JSON-RPC messages to its standard output")
async def only_messages(scenes: Scenes) -> None:
    recording = await scenes.plain()
    theirs = [entry for entry in recording.log if not entry.ours]
    for entry in theirs:
        if not isinstance(entry.message, dict):
            raise Failed("a line is not a JSON object; write logs to standard error", [entry])
        if entry.message.get("jsonrpc") != "2.0":
            raise Failed('a message must have "jsonrpc": "2.0"', [entry])
