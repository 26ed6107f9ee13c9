"""Checks of a turn's updates: their order, and that they come before the answer."""

from typing import Any

from keephold.acp.check.probe import Entry
from keephold.acp.check.recording import Recording, kind, stop_reason, table
from keephold.acp.check.scenes import Scenes
from keephold.acp.check.verdict import Failed, Skipped, check

STOP_REASONS = ("end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled")
_RANK = {"pending": 0, "in_progress": 1, "completed": 2, "failed": 2}


@check("prompt", "a prompt is answered with a stop reason")
async def prompt(scenes: Scenes) -> None:
    recording = await scenes.try_plain()
    if not recording.prompts:
        raise Skipped("there is no session; see `new-session`")
    if recording.problem is not None:
        raise Failed(recording.problem, recording.prompts)
    response = recording.response(recording.prompts[0])
    assert response is not None
    if "error" in response.message:
        raise Failed("the prompt was answered with an error", [response])
    if stop_reason(response) not in STOP_REASONS:
        raise Failed(f"stopReason must be one of {', '.join(STOP_REASONS)}", [response])


@check("updates-before-response", "what the agent has to say comes before the answer to the prompt")
async def updates_before_response(scenes: Scenes) -> None:
    recording, request, response = await _plain(scenes)
    updates = recording.updates(request)
    if not updates:
        raise Skipped("the agent sent no updates for the prompt; give one with --prompt that it talks about")
    if updates[0].number > response.number:
        raise Failed("every update came after the answer", [response, *updates[:1]])


@check("no-late-updates", "no update of the turn comes after the answer to the prompt")
async def no_late_updates(scenes: Scenes) -> None:
    recording, request, response = await _plain(scenes)
    if late := [entry for entry in recording.updates(request) if entry.number > response.number]:
        raise Failed("an update of the turn came after the answer", [response, *late])


@check("tool-call-order", "a tool call is announced before it is updated, and its status only goes forward")
async def tool_call_order(scenes: Scenes) -> None:
    recording, request, _ = await _plain(scenes)
    turns = [recording.updates(request)]
    allowed = await scenes.allowed()
    if allowed.problem is None:
        turns.append(allowed.updates(allowed.prompts[0]))
    told = [[entry for entry in turn if kind(entry) in ("tool_call", "tool_call_update")] for turn in turns]
    for turn in told:
        seen: dict[Any, Entry] = {}
        for entry in turn:
            _follow(entry, seen)
    if not any(told):
        raise Skipped("the agent made no tool call; give a prompt with --prompt that makes it use a tool")


def _follow(entry: Entry, seen: dict[Any, Entry]) -> None:
    """Compare an update of a tool call with the last one of the same call that had a status."""
    update = table(entry.params, "update")
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
    was = "pending" if before is None else table(before.params, "update").get("status", "pending")
    if _RANK[status] < _RANK[was] or (_RANK[was] == 2 and status != was):
        raise Failed(f"the tool call `{id}` went from {was} to {status}", [before, entry])
    seen[id] = entry


async def _plain(scenes: Scenes) -> tuple[Recording, Entry, Entry]:
    recording = await scenes.plain()
    request = recording.prompts[0]
    response = recording.response(request)
    assert response is not None
    return recording, request, response
