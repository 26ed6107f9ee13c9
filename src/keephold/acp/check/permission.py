"""Checks of `session/request_permission`."""

from keephold.acp.check.probe import Entry, reject
from keephold.acp.check.recording import Recording, kind, stop_reason, table
from keephold.acp.check.scenes import Scenes, asked
from keephold.acp.check.verdict import Failed, Skipped, check

KINDS = ("allow_once", "allow_always", "reject_once", "reject_always")


@check("permission-request", "a request for permission names its tool call and options of known kinds")
async def permission_request(scenes: Scenes) -> None:
    question, _ = _asked(await scenes.allowed())
    call, options = table(question.params, "toolCall"), question.params.get("options")
    if not isinstance(call.get("toolCallId"), str):
        raise Failed("toolCall must have a toolCallId", [question])
    if not isinstance(options, list) or not options:
        raise Failed("options must be a list with at least one option", [question])
    for option in options:
        whole = isinstance(option, dict) and all(isinstance(option.get(key), str) for key in ("optionId", "name"))
        if not whole or option.get("kind") not in KINDS:
            raise Failed(f"an option has an optionId, a name and a kind of {', '.join(KINDS)}", [question])


@check("permission-allow", "a turn goes on to its end when permission is given")
async def permission_allow(scenes: Scenes) -> None:
    question, response = _asked(await scenes.allowed())
    if stop_reason(response) in ("cancelled", "error"):
        raise Failed(f"permission was given, and the turn ended with {stop_reason(response)!r}", [question, response])


@check("permission-reject", "a tool call that was refused is not completed, and the turn goes on to its end")
async def permission_reject(scenes: Scenes) -> None:
    recording = await scenes.rejected()
    question, response = _asked(recording)
    if reject(question)["outcome"] == "cancelled":
        raise Skipped("the agent offers no option to reject")
    if stop_reason(response) == "error":
        raise Failed("permission was refused, and the prompt was answered with an error", [question, response])
    refused = table(question.params, "toolCall").get("toolCallId")
    for entry in recording.updates(recording.prompts[0]):
        update = table(entry.params, "update")
        is_it = kind(entry) in ("tool_call", "tool_call_update") and update.get("toolCallId") == refused
        if is_it and update.get("status") == "completed" and entry.number > question.number:
            raise Failed("the tool call was refused and completed all the same", [question, entry])


def _asked(recording: Recording) -> tuple[Entry, Entry]:
    """The question and the answer to the prompt."""
    question = asked(recording.log)
    if recording.problem is not None:
        raise Failed(recording.problem, [*recording.prompts, question])
    response = recording.response(recording.prompts[0])
    assert response is not None
    if question is None:
        raise Skipped("the agent did not ask for permission; give a prompt with --permission-prompt that makes it ask")
    return question, response
