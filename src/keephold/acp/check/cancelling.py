"""Checks of `session/cancel` (X4)."""

from keephold.acp.check.probe import Entry
from keephold.acp.check.recording import Recording, signal_fields, stop_reason
from keephold.acp.check.scenes import Scenes, asked
from keephold.acp.check.verdict import Failed, Skipped, check


@check("cancel", "a turn that is cancelled ends with stopReason cancelled")
async def cancel(scenes: Scenes) -> None:
    recording = await scenes.cancelled()
    sent = _cancel(recording)
    if recording.problem is not None:
        raise Failed(recording.problem, [*recording.prompts, sent])
    response = recording.response(recording.prompts[0])
    assert response is not None
    if sent is None:
        raise Skipped("the turn was over before it could be cancelled; give one with --slow-prompt that takes longer")
    if stop_reason(response) != "cancelled":
        hint = "if it was over by then, give one with --slow-prompt that takes longer"
        raise Failed(f"the turn ended with {stop_reason(response)!r} after session/cancel; {hint}", [sent, response])


@check("cancel-order", "on cancel the remaining updates come first, then turn_complete if offered, then the answer")
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


@check("cancel-permission", "a turn that is cancelled while it asks for permission ends with stopReason cancelled")
async def cancel_permission(scenes: Scenes) -> None:
    recording = await scenes.withdrawn()
    question, sent = asked(recording.log), _cancel(recording)
    if recording.problem is not None:
        raise Failed(recording.problem, [*recording.prompts, question, sent])
    response = recording.response(recording.prompts[0])
    assert response is not None
    if question is None:
        raise Skipped("the agent did not ask for permission; give a prompt with --permission-prompt that makes it ask")
    if stop_reason(response) != "cancelled":
        raise Failed(f"the turn ended with {stop_reason(response)!r}", [question, sent, response])


@check("cancel-idle", "a cancel while no turn runs does nothing")
async def cancel_idle(scenes: Scenes) -> None:
    await scenes.plain()
    async with scenes.agent() as probe:
        session = await scenes.session(probe)
        sent = probe.send({"method": "session/cancel", "params": {"sessionId": session}})
        blocks = [{"type": "text", "text": scenes.settings.prompt}]
        answer = await probe.answer(probe.request("session/prompt", {"sessionId": session, "prompt": blocks}))
        if stop_reason(answer) in ("cancelled", "error"):
            raise Failed("the next turn was cancelled", [sent, answer])


def _cancel(recording: Recording) -> Entry | None:
    return next((entry for entry in recording.log if entry.ours and entry.method == "session/cancel"), None)
