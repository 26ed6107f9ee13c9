"""Checks of sessions: new, loaded, resumed, listed, closed."""

from keephold.acp.check.probe import Entry, Probe
from keephold.acp.check.recording import Recording, is_signal, table
from keephold.acp.check.scenes import Scenes
from keephold.acp.check.verdict import Failed, Skipped, check


@check("new-session", "every session/new makes a session with an id of its own")
async def new_session(scenes: Scenes) -> None:
    async with scenes.agent() as probe:
        if await scenes.session(probe) == await scenes.session(probe):
            raise Failed("two sessions have the same id", probe.log[-4:])


@check("unknown-session", "a prompt for a session that there is not is answered with an error")
async def unknown_session(scenes: Scenes) -> None:
    async with scenes.agent() as probe:
        prompt = [{"type": "text", "text": scenes.settings.prompt}]
        request = probe.request("session/prompt", {"sessionId": "acp-check-no-such-session", "prompt": prompt})
        answer = await probe.answer(request)
        if "error" not in answer.message:
            raise Failed("the session does not exist, and the prompt was answered with a result", [request, answer])


@check("load-session", "session/load replays the session before its answer, without turn_complete")
async def load_session(scenes: Scenes) -> None:
    recording = await scenes.plain()
    if recording.capabilities.get("loadSession") is not True:
        raise Skipped("the agent does not offer loadSession")
    async with scenes.agent() as probe:
        request, answer = await _go_on(scenes, probe, recording, "session/load")
        told = [entry for entry in probe.log if entry.method == "session/update" and not is_signal(entry)]
        if not [entry for entry in told if entry.number < answer.number]:
            raise Failed("nothing was replayed before the answer", [request, answer, *told])
        if signals := [entry for entry in probe.log if is_signal(entry)]:
            raise Failed("turn_complete belongs to a prompt and must not be replayed", signals)


@check("resume-session", "session/resume goes on with a session")
async def resume_session(scenes: Scenes) -> None:
    recording = await scenes.plain()
    if "resume" not in recording.session_capabilities:
        raise Skipped("the agent does not offer sessionCapabilities.resume")
    async with scenes.agent() as probe:
        await _go_on(scenes, probe, recording, "session/resume")


@check("list-sessions", "session/list is answered with sessions, each with its id")
async def list_sessions(scenes: Scenes) -> None:
    if "list" not in (await scenes.hello()).session_capabilities:
        raise Skipped("the agent does not offer sessionCapabilities.list")
    async with scenes.agent() as probe:
        await scenes.session(probe)
        answer = await probe.answer(probe.request("session/list", {}))
        found = table(answer.message, "result").get("sessions")
        if not isinstance(found, list) or not all(isinstance(each, dict) and each.get("sessionId") for each in found):
            raise Failed("the answer must have `sessions`, a list of objects with a sessionId", [answer])


@check("close-session", "session/close is answered")
async def close_session(scenes: Scenes) -> None:
    if "close" not in (await scenes.hello()).session_capabilities:
        raise Skipped("the agent does not offer sessionCapabilities.close")
    async with scenes.agent() as probe:
        session = await scenes.session(probe)
        answer = await probe.answer(probe.request("session/close", {"sessionId": session}))
        if "error" in answer.message:
            raise Failed("session/close was answered with an error", [answer])


async def _go_on(scenes: Scenes, probe: Probe, recording: Recording, method: str) -> tuple[Entry, Entry]:
    """Go on with the session of another process."""
    id = recording.prompts[0].params["sessionId"]
    request = probe.request(method, {"sessionId": id, "cwd": str(scenes.directory), "mcpServers": []})
    answer = await probe.answer(request)
    if "error" in answer.message:
        raise Failed(f"{method} was answered with an error", [request, answer])
    await scenes.session(probe)
    return request, answer
