"""The end of a turn (T): no live handle outlives it that its policy did not keep.

`abort` ends at once, `await` waits up to its timeout and then ends the rest, `keep` keeps. `inquire` asks the model
once about all of these handles: wait for it, or abort it. Without a model to ask, or with an unusable answer, it counts
as `abort`. A cancelled turn treats `inquire` and `await` as `abort`, too.

The model has to learn the results of the handles that the end waited for. The caller of `end` gets them and may let the
model respond again; otherwise they are queued as notifications.

An exception that leaves a turn's block does not end the turn: calls that a crash would end are aborted, the others stay
(R9). When a runtime closes, calls that would not survive end, and the others are released for the next runtime (R6).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from keephold.errors import KeepholdError
from keephold.handles.handle import Handle, Watcher
from keephold.handles.pace import Pace
from keephold.handles.registry import Registry
from keephold.handles.state import EndedBy, Failure, PendingState, Stopped, name
from keephold.handles.waits import all_stopped
from keephold.store.base import HandleQuery
from keephold.tools.run import FORCE_SECS, Run
from keephold.turn.admission import Admission
from keephold.turn.batch import INTERRUPTED, Batch
from keephold.turn.inquiry import Inquiry, InquiryFailed
from keephold.turn.recovery import Recovery, survives_crash, waits_for_resume
from keephold.turn.replies import encode

if TYPE_CHECKING:
    from keephold.turn.parts import Parts

ROUNDS = 3
"""How often one turn may be ended, with another response of the model in between (T2)."""
PREVIEW = 400
"""Characters of output that the model is shown for each handle it is asked about (T2)."""


class Ending(msgspec.Struct, frozen=True):
    """How a turn ended. `results` holds the results of its handles, `kept` the handles that keep running."""

    results: tuple[dict[str, Any], ...] = ()
    kept: tuple[dict[str, Any], ...] = ()
    model: tuple[dict[str, Any], ...] = ()
    """Both of them as a model gets them."""
    again: bool = False
    """Whether the model gets another response: the turn stays open until `end` is called once more."""
    message: str = ""
    """The automatic message to send to the model then, with the results."""
    aborted: str = ""
    """Why handles were aborted without asking the model about them, in a sentence."""


@dataclass
class _Live:
    """Live handles, by what the end of a turn does to them."""

    kept: list[Handle] = field(default_factory=list)
    waited: list[Handle] = field(default_factory=list)
    asked: list[Handle] = field(default_factory=list)
    """The model decides."""
    unasked: list[Handle] = field(default_factory=list)
    """The model would decide, but there is none to ask."""
    at_once: list[Handle] = field(default_factory=list)
    """Ended at once, one-shot calls included."""


@dataclass
class _Answer:
    """The model's decision about the handles it was asked about."""

    wait: list[Handle] = field(default_factory=list)
    abort: list[Handle] = field(default_factory=list)
    unsaid: list[Handle] = field(default_factory=list)
    """Aborted because the model gave no usable decision about them."""
    why: str = ""

    def sentence(self) -> str:
        """Why handles were aborted that the model should have decided about; empty if none were."""
        ids = ", ".join(f"`{handle.id}`" for handle in self.unsaid)
        return f"Aborted at the end of the turn: {ids}; {self.why}." if ids else ""


class Ender:
    """Ends one turn, in one round or several."""

    def __init__(self, parts: "Parts", conversation: str, turn: str) -> None:
        self._conversation = conversation
        self._turn = turn
        self._registry = parts.registry
        self._admission = parts.admission
        self._replies = parts.replies
        self._inquiries = parts.inquiries
        self._rounds = 0
        self._asking: asyncio.Task[dict[str, str]] | None = None
        self._cut_short = False
        """The turn was cancelled while it ended."""
        self.over: list[Handle] = []
        """The handles that stopped in the last round."""
        self.told: list[Handle] = []
        """Aborted handles that the model knows of: it chose the abort, or `Ending.aborted` names them."""
        self.owed: dict[Handle, dict[str, Any]] = {}
        """The stopped handles that the end waited for, each with what a model is shown (T3)."""

    async def round(self, *, cancelled: bool, may_speak: bool) -> Ending:
        """Apply each live handle's policy and wait until those that must end have ended, one-shot calls included (T4).

        Parked calls are not live and stay. If the turn is cancelled, those of this turn are cancelled, too (T5, D2).
        `may_speak`: the caller can let the model respond again.
        """
        self._rounds += 1
        if cancelled:
            await self._cancel_parked()
        live = self._sort(cancelled)
        self._end([*live.at_once, *live.unasked], "cancel" if cancelled else "turn_end")
        answer = await self._wait_and_ask(live.waited, live.asked)
        await _all_over([*live.at_once, *live.unasked])
        if self._cut_short and not cancelled:
            await self._cancel_parked()
        if live.unasked:
            answer = _Answer(unsaid=live.unasked, why="there is no assistant to ask about them")
        return await self._ending(live, answer, may_speak=may_speak)

    def _sort(self, cancelled: bool) -> "_Live":
        """Sort the live handles of the conversation by what the end of the turn does to them."""
        live = _Live()
        for handle in self._registry.live(self._conversation):
            parks = not cancelled and handle.run is not None and handle.run.is_parking  # parked calls stay (T4)
            if not handle.active or parks:
                continue
            policy = (handle.tool.spawn.on_turn_end or "inquire") if handle.stateful else "abort"
            if handle.stateful and _kept(handle):
                live.kept.append(handle)
            elif not cancelled and policy == "await":
                live.waited.append(handle)
            elif not cancelled and policy == "inquire" and not handle.blocked_on_caller():
                (live.asked if self._inquiries.here else live.unasked).append(handle)
            else:
                live.at_once.append(handle)
        return live

    async def _ending(self, live: "_Live", answer: "_Answer", *, may_speak: bool) -> Ending:
        # One that has parked meanwhile stays (T4), and one that has stopped with its completion was not aborted (R4).
        answer.abort, answer.unsaid = ([h for h in each if _aborted(h)] for each in (answer.abort, answer.unsaid))
        ended = (*live.at_once, *live.waited, *live.asked, *live.unasked)
        self.over = sorted((h for h in ended if h.stateful and not h.active), key=lambda handle: handle.uid)
        model = await self._replies.all_entries(self.over, "model")
        awaited = {*live.waited, *answer.wait}
        self.owed = {handle: shown for handle, shown in zip(self.over, model, strict=True) if handle in awaited}
        self.told = [*answer.abort, *answer.unsaid]
        again = may_speak and bool(answer.wait) and self._rounds < ROUNDS and not self._cut_short
        return Ending(
            results=tuple(await self._replies.all_entries(self.over, "dispatch")),
            kept=tuple(await self._replies.all_entries(live.kept, "dispatch")),
            model=(*model, *await self._replies.all_entries(live.kept, "model")),
            again=again,
            message=_message(model) if again else "",
            aborted=answer.sentence(),
        )

    async def _wait_and_ask(self, waited: Sequence[Handle], asked: Sequence[Handle]) -> "_Answer":
        """T3: wait for the `await` handles while the one inquiry runs."""
        async with asyncio.TaskGroup() as group:
            for handle in waited:
                group.create_task(self._wait(handle))
            answer = group.create_task(self._ask(asked)) if asked else None
        return answer.result() if answer is not None else _Answer()

    # Asking the model (T2)

    async def _ask(self, asked: Sequence[Handle]) -> "_Answer":
        self._asking = asyncio.ensure_future(self._inquire(asked))
        why, actions = "the assistant's answer did not name them", dict[str, str]()
        try:
            actions = await asyncio.shield(self._asking)
        except InquiryFailed as error:
            why = f"the assistant could not be asked about them ({error})"
        except asyncio.CancelledError:
            if not self._asking.cancelled():
                self._asking.cancel()
                raise
            return _Answer()  # the turn was cancelled meanwhile: they are being ended
        finally:
            self._asking = None
        answer = _Answer(why=why)
        for handle in asked:
            choice = actions.get(handle.id)
            if choice == "wait":
                answer.wait.append(handle)
            elif handle.active:  # else it has finished meanwhile
                (answer.unsaid if choice is None else answer.abort).append(handle)
        self._end([*answer.abort, *answer.unsaid], "turn_end")
        await asyncio.gather(*(self._wait(handle) for handle in answer.wait))
        await _all_over([*answer.abort, *answer.unsaid])
        return answer

    async def _inquire(self, asked: Sequence[Handle]) -> dict[str, str]:
        """Return the model's choice for each handle, by id. Raises `InquiryFailed` for an unusable answer."""
        assistant: Mapping[str, Any] = next((h.tool.spawn.assistant for h in asked if h.tool.spawn.assistant), {})
        listed = self._listed(asked)
        inquiry = Inquiry(
            id=await self._new_id(),
            purpose="turn_end",
            conversation=self._conversation,
            turn=self._turn,
            text=(
                "You have finished your answer while these tools still run. Say for each whether to wait for its "
                "result, which you will be given, or to abort it.\n" + encode({"handles": listed})
            ),
            schema=_SCHEMA,
            handles=tuple(listed),
            assistant=assistant,
        )
        answer = await self._inquiries.inquire(inquiry)
        return _read(answer, {handle.id for handle in asked})

    async def _new_id(self) -> str:
        try:
            return await self._inquiries.new_id(self._conversation, self._turn, f"{self._turn}.end")
        except KeepholdError as error:  # the store cannot be read
            raise InquiryFailed(str(error)) from error

    def _listed(self, asked: Iterable[Handle]) -> list[dict[str, Any]]:
        now = self._registry.clock.now()
        return [
            {
                "id": handle.id,
                "tool": handle.tool.name,
                "state": name(handle.state),
                "elapsed_secs": round(now - _since(handle), 1),
                "output_preview": self._replies.tail(handle, PREVIEW),
            }
            for handle in asked
        ]

    # Waiting and ending

    async def _wait(self, handle: Handle) -> None:
        """T3: wait for a handle, unless it waits for a model that has finished its response (A6)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(handle.tool.spawn.turn_end_timeout_secs):
                await _over(handle, or_blocked=True)
        if handle.active and not handle.parked:
            secs = handle.tool.spawn.turn_end_timeout_secs
            blocked = handle.blocked_on_caller()
            why = "it waited for you" if blocked else f"it was waited for for {secs:g} s"
            self._admission.end(handle, Failure(f"Aborted at the end of the turn: {why}.", "aborted"), "turn_end")
            await _over(handle)

    async def _cancel_parked(self) -> None:
        query = HandleQuery(conversation=self._conversation, turn=self._turn)
        async for handles in _parked(self._registry, query):
            self._end(handles, "cancel")  # also one whose parking is written and not visible yet
            await all_stopped(handles)

    def wait_no_longer(self) -> None:
        """T5: the turn is cancelled while it ends. End the handles it waits for or asks about; `round` continues."""
        self._cut_short = True
        live = self._registry.live(self._conversation)
        self._end([handle for handle in live if handle.stateful and not _kept(handle)], "cancel")
        if self._asking is not None:
            self._asking.cancel()

    def interrupt(self) -> list[Handle]:
        """R9: abort the handles that a crash would end, and return them. Their policies are not asked."""
        live = [handle for handle in self._registry.live(self._conversation) if handle.active]
        lost = [each for each in live if not survives_crash(each) and not (each.stateful and _kept(each))]
        self._admission.end_all(lost, INTERRUPTED, "turn_end")
        return lost

    async def interrupted(self, handles: Sequence[Handle]) -> None:
        """Wait until these interrupted handles have stopped, but not for a store that cannot write."""
        grace = max((handle.tool.spawn.abort_grace_ms for handle in handles), default=0) / 1000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace + _CLOSE_SECS):
                await _all_over(handles)

    def _end(self, handles: Sequence[Handle], ended_by: EndedBy) -> None:
        why = "Aborted: the turn was cancelled." if ended_by == "cancel" else "Aborted at the end of the turn."
        self._admission.end_all(handles, Failure(why, "aborted"), ended_by)


_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "handles": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"id": {"type": "string"}, "action": {"type": "string", "enum": ["wait", "abort"]}},
                "required": ["id", "action"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["handles"],
    "additionalProperties": False,
}


def _read(answer: Any, ids: set[str]) -> dict[str, str]:
    """Return the model's choice by id; the list may come bare or as the object's one value."""
    listed = answer.get("handles") if isinstance(answer, dict) else answer
    if not isinstance(listed, list):
        raise InquiryFailed("its answer was not a list of handles")
    chosen: dict[str, str] = {}
    for each in listed:
        id, action = (each.get("id"), each.get("action")) if isinstance(each, dict) else (None, None)
        if not isinstance(id, str) or id not in ids or action not in ("wait", "abort"):
            raise InquiryFailed(f"its answer had {encode(each):.80}, which is none of the handles with an action")
        chosen[id] = action
    return chosen


def _message(results: Sequence[dict[str, Any]]) -> str:
    """Return the message that precedes another response of the model (T2)."""
    return (
        "[Automatic message. It is not from the user.] You have finished your answer; tools that still ran have ended "
        "since:\n" + encode({"completed": results, "pending": []})
    )


def _kept(handle: Handle) -> bool:
    """T1: return whether its tool keeps it, or sets no policy while its process is kept (R7) or the call waits in
    durable effects."""
    chosen = handle.tool.spawn.on_turn_end
    if chosen is not None:
        return chosen == "keep"
    return handle.tool.on_crash == "keep" or (handle.run is not None and handle.run.waits_in_effects)


def _aborted(handle: Handle) -> bool:
    return isinstance(handle.state, Stopped) and handle.state.ended_by in ("turn_end", "cancel")


def _since(handle: Handle) -> float:
    state = handle.state
    return state.created if isinstance(state, PendingState) or state.started is None else state.started


async def _all_over(handles: Sequence[Handle]) -> None:
    """Wait until each has stopped, or has parked while it was ended: then it stays (T4)."""
    pace = Pace()
    for handle in handles:
        await _over(handle)
        await pace.step()


async def _over(handle: Handle, *, or_blocked: bool = False) -> None:
    """Wait until it has stopped or parked or, on request, waits for a model that has finished its response (A6)."""
    watcher = _Over(or_blocked)
    handle.watch(watcher)
    watcher.handle_changed(handle)
    if handle.parked:
        watcher.parked(handle)
    try:
        await watcher.event.wait()
    finally:
        handle.unwatch(watcher)


class _Over(Watcher):
    """Watches one handle at the end of its turn."""

    wants_reading = True

    def __init__(self, or_blocked: bool) -> None:
        self.event = asyncio.Event()
        self._or_blocked = or_blocked

    def stopped(self, handle: Handle) -> None:
        self.event.set()

    def parked(self, handle: Handle) -> None:
        self.event.set()

    def handle_changed(self, handle: Handle) -> None:
        if self._or_blocked and handle.blocked_on_caller():
            self.event.set()


_CLOSE_SECS = FORCE_SECS + 1
"""How many seconds closing waits for calls beyond the longest of their graces."""


async def end_calls(registry: Registry, admission: Admission, recovery: Recovery, batches: Collection[Batch]) -> None:
    """End or release every call. Batches that are not answered by then stay open; the others are recorded."""
    live = registry.live()
    kept = dict.fromkeys(
        [each for each in live if _survives(each, registry, batches) or await _completed(each, recovery)]
    )
    ended = [handle for handle in live if handle not in kept]
    admission.loops.release(list(kept))
    grace = max((handle.tool.spawn.abort_grace_ms for handle in ended), default=0) / 1000
    admission.end_all(ended, Failure("Ended: the runtime was closed.", "aborted"), "shutdown")
    released = [handle.run for handle in kept if handle.run is not None]
    for run in released:
        run.hand_over()
    try:
        async with asyncio.timeout(grace + _CLOSE_SECS):
            await all_stopped(ended)
            await asyncio.sleep(0)  # first deliver the answers that these ends have brought
            for run in released:
                await run.gone()
    except TimeoutError:
        pass
    finally:
        for batch in tuple(batches):
            batch.leave()
        await _recorded(batches)


async def release_waiting(
    registry: Registry, leave: Callable[[list[Handle]], Coroutine[Any, Any, None]]
) -> list[Handle]:
    """Release the calls that another process can resume while this one lives, and return them. `leave` ends the
    connections of their users first."""
    runs = [handle.run for handle in registry.live() if handle.run is not None and _can_move(handle.run)]
    await leave([run.handle for run in runs if run.kept])
    runs = [run for run in runs if run.handle.run is run and _can_move(run)]
    for run in runs:
        run.hand_over()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SECS):
            for run in runs:
                await run.gone()
    gone = [run.handle for run in runs if run.handle.run is None]
    await asyncio.gather(*map(registry.release, gone))
    return gone


def _can_move(run: Run) -> bool:
    """Return whether nothing of a call is cut short if another process resumes it: its process is kept (R7) and has
    been started, or it waits in its durable effects."""
    handle = run.handle
    if run.live is None or handle.unwritten is not None or run.ending or run.handing_over:
        return False
    return run.can_be_taken_over or (handle.tool.on_crash == "replay" and run.waits_in_effects)


async def end_conversation(registry: Registry, admission: Admission, conversation: str, why: Failure) -> None:
    """End every running or parked call of a conversation, regardless of its policy."""
    live = [handle for handle in registry.live(conversation) if handle.active]
    parked = [handle async for page in _parked(registry, HandleQuery(conversation=conversation)) for handle in page]
    ended = list(dict.fromkeys([*live, *parked]))
    admission.end_all(ended, why, "abort")
    await all_stopped(ended)


async def _parked(registry: Registry, query: HandleQuery) -> AsyncIterator[list[Handle]]:
    query = replace(query, parked=True, stateful=None)
    while records := await registry.store.handles(query):
        yield [registry.adopt(record) for record in records]
        query = replace(query, after=records[-1].uid)


async def _recorded(batches: Collection[Batch]) -> None:
    """Wait until the responses of answered batches are in the store."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SECS):
            while batches:  # noqa: ASYNC110 (turns and queues run batches)
                await asyncio.sleep(0.001)


async def _completed(handle: Handle, recovery: Recovery) -> bool:
    try:
        return await recovery.completed(handle)
    except KeepholdError:  # the store cannot be read: continue closing
        return False


def _survives(handle: Handle, registry: Registry, batches: Collection[Batch]) -> bool:
    """Return whether the next runtime can resume it, also as a call of an open batch that can be started again (B9)."""
    if not registry.store.durable:
        return False
    if survives_crash(handle):
        return True
    starts_again = waits_for_resume(handle.decided, handle.tool.source)
    return starts_again and any(batch.resumable and batch.waits_for(handle) for batch in batches)
