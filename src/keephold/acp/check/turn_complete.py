"""Checks of `turn_complete` (X2): once, last, before the answer, for the right prompt and with its stop reason."""

from keephold.acp.check.probe import Entry
from keephold.acp.check.recording import Recording, signal_fields, stop_reason
from keephold.acp.check.scenes import Scenes
from keephold.acp.check.verdict import Failed, Skipped, check


@check("turn-complete-once", "there is exactly one turn_complete for a prompt")
async def once(scenes: Scenes) -> None:
    recording, prompt, response = await _offered(scenes)
    signals = recording.signals(prompt)
    if not signals:
        raise Failed("the agent offers turn_complete and sent none", [prompt, response])
    if len(signals) > 1:
        raise Failed(f"{len(signals)} turn_complete for one prompt", signals)


@check("turn-complete-last", "no update of the turn comes between turn_complete and the answer")
async def last(scenes: Scenes) -> None:
    recording, prompt, response = await _offered(scenes)
    signal = _signal(recording, prompt)
    updates = recording.updates(prompt)
    if behind := [entry for entry in updates if signal.number < entry.number < response.number]:
        raise Failed("an update of the turn came after turn_complete", [signal, *behind])


@check("turn-complete-before-response", "turn_complete comes before the answer to the prompt")
async def before_response(scenes: Scenes) -> None:
    recording, prompt, response = await _offered(scenes)
    signal = _signal(recording, prompt)
    if signal.number > response.number:
        raise Failed("turn_complete came after the answer", [response, signal])


@check("turn-complete-id", "promptRequestId is the id of the prompt's request, as a string")
async def prompt_request_id(scenes: Scenes) -> None:
    recording, prompt, _ = await _offered(scenes)
    signal = _signal(recording, prompt)
    named, right = signal_fields(signal)[0], str(prompt.message["id"])
    if named != right or not isinstance(named, str):
        raise Failed(f"promptRequestId is {named!r} and must be {right!r}", [prompt, signal])


@check("turn-complete-reason", "stopReason of turn_complete is that of the answer")
async def same_reason(scenes: Scenes) -> None:
    recording, prompt, response = await _offered(scenes)
    signal = _signal(recording, prompt)
    told, answered = signal_fields(signal)[1], stop_reason(response)
    if told != answered:
        raise Failed(f"turn_complete says {told!r}, and the answer {answered!r}", [signal, response])


@check("two-prompts", "of two prompts in one session each has its own turn_complete; an id may be a string")
async def two_prompts(scenes: Scenes) -> None:
    _require_offer(await scenes.hello())
    _correlated(await scenes.two_prompts())


@check("two-sessions", "of two sessions at once each has its own turn_complete")
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


async def _offered(scenes: Scenes) -> tuple[Recording, Entry, Entry]:
    """The plain turn of an agent that offers the signal."""
    recording = await scenes.plain()
    _require_offer(recording)
    prompt = recording.prompts[0]
    response = recording.response(prompt)
    assert response is not None
    return recording, prompt, response


def _require_offer(recording: Recording) -> None:
    if not recording.signals_offered:
        offers = 'agentCapabilities._meta["keephold/turnComplete"] nor sessionCapabilities.turnComplete'
        raise Skipped(f"the agent offers neither {offers}")


def _signal(recording: Recording, prompt: Entry) -> Entry:
    signals = recording.signals(prompt)
    if not signals:
        raise Skipped("there was no turn_complete; see `turn-complete-once`")
    return signals[0]
