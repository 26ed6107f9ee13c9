"""The checks: of the handshake, of sessions (new, loaded, resumed, listed, closed), of unknown or invalid messages, and
of a turn: its updates, `turn_complete` (X2), `session/cancel` (X4) and `session/request_permission`."""

from typing import Any

from keephold.acp.check.probe import Died, Failed, Probe, Silent, Skipped, WireEntry, must, reject, should
from keephold.acp.check.scenes import (
    Recording,
    Scenes,
    asked,
    is_signal,
    kind,
    shake_hands,
    signal_fields,
    stop_reason,
    update_of,
)
from keephold.acp.wire import METHOD_NOT_FOUND, table

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
STOP_REASONS = ("end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled")
_RANK = {"pending": 0, "in_progress": 1, "completed": 2, "failed": 2}
KINDS = ("allow_once", "allow_always", "reject_once", "reject_always")


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
        found = table(answer.message.get("result")).get("sessions")
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
        version = table(answer.message.get("result")).get("protocolVersion")
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


@should("robustness", "unknown-method", "a method that the agent does not know is answered with error -32601")
async def unknown_method(scenes: Scenes) -> None:
    async with scenes.agent() as probe:
        for method in ("_keephold/no_such_method", "session/no_such_method"):
            request = probe.request(method, {})
            answer = await probe.answer(request)
            if table(answer.message.get("error")).get("code") != METHOD_NOT_FOUND:
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
            except Failed as problem:
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


@must("updates", "prompt", "a prompt is answered with a stop reason")
async def prompt(scenes: Scenes) -> None:
    recording = await scenes.try_plain()
    if not recording.prompts:
        raise Skipped("no session could be made; see `new-session`")
    if recording.problem is not None:
        raise Failed(recording.problem, recording.prompts)
    response = recording.answer
    if "error" in response.message:
        raise Failed("the prompt was answered with an error", [response])
    if stop_reason(response) not in STOP_REASONS:
        raise Failed(f"stopReason must be one of {', '.join(STOP_REASONS)}", [response])


@should("updates", "updates-before-response", "the agent's message comes before the answer to the prompt")
async def updates_before_response(scenes: Scenes) -> None:
    recording, request, response = await _plain(scenes)
    updates = recording.updates(request)
    if not updates:
        raise Skipped("the agent sent no updates for the prompt; give one with --prompt that it talks about")
    if updates[0].number > response.number:
        raise Failed("every update came after the answer", [response, *updates[:1]])


@should("updates", "no-late-updates", "no update of the turn comes after the answer to the prompt")
async def no_late_updates(scenes: Scenes) -> None:
    recording, request, response = await _plain(scenes)
    if late := [entry for entry in recording.updates(request) if entry.number > response.number]:
        raise Failed("an update of the turn came after the answer", [response, *late])


@should("updates", "tool-call-order", "a tool call is announced before it is updated, and its status only goes forward")
async def tool_call_order(scenes: Scenes) -> None:
    recording, request, _ = await _plain(scenes)
    turns = [recording.updates(request)]
    allowed = await scenes.allowed()
    if allowed.problem is None:
        turns.append(allowed.updates(allowed.prompts[0]))
    calls = [[entry for entry in turn if kind(entry) in ("tool_call", "tool_call_update")] for turn in turns]
    for turn in calls:
        seen: dict[Any, WireEntry] = {}
        for entry in turn:
            _follow(entry, seen)
    if not any(calls):
        raise Skipped("the agent made no tool call; give a prompt with --prompt that makes it use a tool")


def _follow(entry: WireEntry, seen: dict[Any, WireEntry]) -> None:
    """Compare an update of a tool call with the last one of the same call that had a status."""
    update = update_of(entry)
    id, status = update.get("toolCallId"), update.get("status")
    before = seen.get(id)
    if kind(entry) == "tool_call":
        status = status or "pending"
    elif before is None:
        raise Failed(f"tool_call_update for `{id}`, which no tool_call has announced", [entry])
    if status is None:
        return
    if status not in _RANK:
        raise Failed(f"the status of a tool call is one of {', '.join(_RANK)}", [entry])
    was = "pending" if before is None else update_of(before).get("status", "pending")
    if _RANK[status] < _RANK[was] or (_RANK[was] == 2 and status != was):
        raise Failed(f"the tool call `{id}` went from {was} to {status}", [before, entry])
    seen[id] = entry


async def _plain(scenes: Scenes) -> tuple[Recording, WireEntry, WireEntry]:
    recording = await scenes.plain()
    return recording, recording.prompts[0], recording.answer


@must("turn_complete", "turn-complete-once", "there is exactly one turn_complete for a prompt")
async def once(scenes: Scenes) -> None:
    recording, prompt, response = await _offered(scenes)
    signals = recording.signals(prompt)
    if not signals:
        raise Failed("the agent offers turn_complete and sent none", [prompt, response])
    if len(signals) > 1:
        raise Failed(f"{len(signals)} turn_complete for one prompt", signals)


@must("turn_complete", "turn-complete-last", "no update of the turn comes between turn_complete and the answer")
async def last(scenes: Scenes) -> None:
    recording, prompt, response = await _offered(scenes)
    signal = _signal(recording, prompt)
    updates = recording.updates(prompt)
    if behind := [entry for entry in updates if signal.number < entry.number < response.number]:
        raise Failed("an update of the turn came after turn_complete", [signal, *behind])


@must("turn_complete", "turn-complete-before-response", "turn_complete comes before the answer to the prompt")
async def before_response(scenes: Scenes) -> None:
    recording, prompt, response = await _offered(scenes)
    signal = _signal(recording, prompt)
    if signal.number > response.number:
        raise Failed("turn_complete came after the answer", [response, signal])


@must("turn_complete", "turn-complete-id", "promptRequestId is the id of the prompt's request, as a string")
async def prompt_request_id(scenes: Scenes) -> None:
    recording, prompt, _ = await _offered(scenes)
    signal = _signal(recording, prompt)
    named, right = signal_fields(signal)[0], str(prompt.message["id"])
    if named != right or not isinstance(named, str):
        raise Failed(f"promptRequestId is {named!r} and must be {right!r}", [prompt, signal])


@must("turn_complete", "turn-complete-reason", "stopReason of turn_complete is that of the answer")
async def same_reason(scenes: Scenes) -> None:
    recording, prompt, response = await _offered(scenes)
    signal = _signal(recording, prompt)
    signalled, answered = signal_fields(signal)[1], stop_reason(response)
    if signalled != answered:
        raise Failed(f"turn_complete says {signalled!r}, and the answer {answered!r}", [signal, response])


@must(
    "turn_complete",
    "two-prompts",
    "of two prompts in one session each has its own turn_complete; an id may be a string",
)
async def two_prompts(scenes: Scenes) -> None:
    _require_offer(await scenes.hello())
    _correlated(await scenes.two_prompts())


@must("turn_complete", "two-sessions", "of two sessions at once each has its own turn_complete")
async def two_sessions(scenes: Scenes) -> None:
    _require_offer(await scenes.hello())
    _correlated(await scenes.two_sessions())


def _correlated(recording: Recording) -> None:
    if recording.problem is not None:
        raise Failed(recording.problem, recording.prompts)
    for prompt in recording.prompts:
        right = str(prompt.message["id"])
        signals = recording.signals(prompt)
        if right not in [signal_fields(signal)[0] for signal in signals]:
            session = prompt.params["sessionId"]
            raise Failed(f"session {session} got no turn_complete for prompt {right!r}", [prompt, *signals])


async def _offered(scenes: Scenes) -> tuple[Recording, WireEntry, WireEntry]:
    _require_offer(await scenes.plain())
    return await _plain(scenes)


def _require_offer(recording: Recording) -> None:
    if not recording.signals_offered:
        offers = 'agentCapabilities._meta["keephold/turnComplete"] nor sessionCapabilities.turnComplete'
        raise Skipped(f"the agent offers neither {offers}")


def _signal(recording: Recording, prompt: WireEntry) -> WireEntry:
    signals = recording.signals(prompt)
    if not signals:
        raise Skipped("there was no turn_complete; see `turn-complete-once`")
    return signals[0]


@must("cancelling", "cancel", "a turn that is cancelled ends with stopReason cancelled")
async def cancel(scenes: Scenes) -> None:
    recording = await scenes.cancelled()
    sent = _cancel(recording)
    if recording.problem is not None:
        raise Failed(recording.problem, [*recording.prompts, sent])
    response = recording.answer
    if sent is None:
        raise Skipped("the turn was over before it could be cancelled; give one with --slow-prompt that takes longer")
    if stop_reason(response) != "cancelled":
        hint = "if it was over by then, give one with --slow-prompt that takes longer"
        raise Failed(f"the turn ended with {stop_reason(response)!r} after session/cancel; {hint}", [sent, response])


@must(
    "cancelling",
    "cancel-order",
    "on cancel the remaining updates come first, then turn_complete if offered, then the answer",
)
async def cancel_order(scenes: Scenes) -> None:
    recording = await scenes.cancelled()
    prompt = recording.prompts[0] if recording.prompts else None
    response = None if prompt is None or recording.problem is not None else recording.response(prompt)
    if prompt is None or response is None or stop_reason(response) != "cancelled":
        raise Skipped("no turn was cancelled; see `cancel`")
    updates = recording.updates(prompt)
    if late := [entry for entry in updates if entry.number > response.number]:
        raise Failed("an update of the cancelled turn came after the answer", [response, *late])
    if not recording.signals_offered:
        return
    signals = recording.signals(prompt)
    if len(signals) != 1:
        raise Failed(f"{len(signals)} turn_complete for the cancelled turn", [response, *signals])
    (signal,) = signals
    if signal.number > response.number:
        raise Failed("turn_complete came after the answer", [response, signal])
    if behind := [entry for entry in updates if entry.number > signal.number]:
        raise Failed("an update of the cancelled turn came after turn_complete", [signal, *behind])
    if signal_fields(signal)[1] != "cancelled":
        raise Failed(f"turn_complete says {signal_fields(signal)[1]!r} and not 'cancelled'", [signal, response])


@must(
    "cancelling",
    "cancel-permission",
    "a turn that is cancelled while it asks for permission ends with stopReason cancelled",
)
async def cancel_permission(scenes: Scenes) -> None:
    recording = await scenes.withdrawn()
    question, response = _asked(recording)
    if stop_reason(response) != "cancelled":
        raise Failed(f"the turn ended with {stop_reason(response)!r}", [question, _cancel(recording), response])


@should("cancelling", "cancel-idle", "a cancel while no turn runs does nothing")
async def cancel_idle(scenes: Scenes) -> None:
    await scenes.plain()
    async with scenes.agent() as probe:
        session = await scenes.session(probe)
        sent = probe.send({"method": "session/cancel", "params": {"sessionId": session}})
        blocks = [{"type": "text", "text": scenes.settings.prompt}]
        answer = await probe.answer(probe.request("session/prompt", {"sessionId": session, "prompt": blocks}))
        if stop_reason(answer) in ("cancelled", "error"):
            raise Failed("the next turn was cancelled", [sent, answer])


def _cancel(recording: Recording) -> WireEntry | None:
    return next((entry for entry in recording.log if entry.ours and entry.method == "session/cancel"), None)


@must("permission", "permission-request", "a request for permission names its tool call and options of known kinds")
async def permission_request(scenes: Scenes) -> None:
    question, _ = _asked(await scenes.allowed())
    call, options = table(question.params.get("toolCall")), question.params.get("options")
    if not isinstance(call.get("toolCallId"), str):
        raise Failed("toolCall must have a toolCallId", [question])
    if not isinstance(options, list) or not options:
        raise Failed("options must be a list with at least one option", [question])
    for option in options:
        whole = isinstance(option, dict) and all(isinstance(option.get(key), str) for key in ("optionId", "name"))
        if not whole or option.get("kind") not in KINDS:
            raise Failed(f"an option has an optionId, a name and a kind of {', '.join(KINDS)}", [question])


@should("permission", "permission-allow", "a turn runs to its end when permission is given")
async def permission_allow(scenes: Scenes) -> None:
    question, response = _asked(await scenes.allowed())
    if stop_reason(response) in ("cancelled", "error"):
        raise Failed(f"permission was given, and the turn ended with {stop_reason(response)!r}", [question, response])


@must("permission", "permission-reject", "a tool call that was refused is not completed, and the turn runs to its end")
async def permission_reject(scenes: Scenes) -> None:
    recording = await scenes.rejected()
    question, response = _asked(recording)
    if reject(question)["outcome"] == "cancelled":
        raise Skipped("the agent offers no option to reject")
    if stop_reason(response) == "error":
        raise Failed("permission was refused, and the prompt was answered with an error", [question, response])
    refused = table(question.params.get("toolCall")).get("toolCallId")
    for entry in recording.updates(recording.prompts[0]):
        update = update_of(entry)
        is_it = kind(entry) in ("tool_call", "tool_call_update") and update.get("toolCallId") == refused
        if is_it and update.get("status") == "completed" and entry.number > question.number:
            raise Failed("the tool call was refused and completed all the same", [question, entry])


def _asked(recording: Recording) -> tuple[WireEntry, WireEntry]:
    question = asked(recording.log)
    if recording.problem is not None:
        raise Failed(recording.problem, [*recording.prompts, question, _cancel(recording)])
    if question is None:
        raise Skipped("the agent did not ask for permission; give a prompt with --permission-prompt that makes it ask")
    return question, recording.answer
