"""Checks that what an agent does not know or cannot read does it no harm."""

from keephold.acp.check.probe import Died, Silent
from keephold.acp.check.recording import table
from keephold.acp.check.scenes import Scenes
from keephold.acp.check.verdict import Failed, check
from keephold.acp.wire import METHOD_NOT_FOUND

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


@check("unknown-method", "a method that the agent does not know is answered with error -32601")
async def unknown_method(scenes: Scenes) -> None:
    async with scenes.agent() as probe:
        for method in ("_keephold/no_such_method", "session/no_such_method"):
            request = probe.request(method, {})
            answer = await probe.answer(request)
            if table(answer.message, "error").get("code") != METHOD_NOT_FOUND:
                raise Failed("an unknown method must be answered with error -32601", [request, answer])


@check("unknown-notification", "an extension notification that the agent does not know is ignored")
async def unknown_notification(scenes: Scenes) -> None:
    async with scenes.agent() as probe:
        sent = probe.send({"method": "_keephold/no_such_notification", "params": {"x": 1}})
        await scenes.session(probe)
        between = probe.log[sent.number + 1 :]
        answers = [entry for entry in between if not entry.ours and isinstance(entry.message, dict)]
        if wrong := [entry for entry in answers if "error" in entry.message]:
            raise Failed("a notification is never answered", [sent, *wrong])


@check("string-ids", "the id of a request may be a string, and is echoed as it was")
async def string_ids(scenes: Scenes) -> None:
    async with scenes.agent() as probe:
        params = {"cwd": str(scenes.directory), "mcpServers": []}
        await probe.ask("session/new", params, id="acp-check")


@check("missing-params", "a prompt without its params is answered with an error")
async def missing_params(scenes: Scenes) -> None:
    async with scenes.agent() as probe:
        request = probe.request("session/prompt", {})
        answer = await probe.answer(request)
        if "error" not in answer.message:
            raise Failed("a prompt without a session was answered with a result", [request, answer])


@check("malformed", "lines that are no messages do not end the connection")
async def malformed(scenes: Scenes) -> None:
    async with scenes.agent() as probe:
        for line in _LINES:
            sent = probe.send_line(line)
            try:
                await scenes.session(probe)
            except (Died, Silent, Failed) as problem:
                raise Failed(f"after a line that is no message: {problem}", [sent]) from None


@check("only-messages", "the agent writes nothing but JSON-RPC messages to its standard output")
async def only_messages(scenes: Scenes) -> None:
    recording = await scenes.plain()
    theirs = [entry for entry in recording.log if not entry.ours]
    for entry in theirs:
        if not isinstance(entry.message, dict):
            raise Failed("a line is no JSON object; what is for people belongs on standard error", [entry])
        if entry.message.get("jsonrpc") != "2.0":
            raise Failed('a message must have "jsonrpc": "2.0"', [entry])
