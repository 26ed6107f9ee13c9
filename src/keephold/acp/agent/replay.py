"""Show a stored session again: its transcript as the updates that were sent (X1).

Tool calls get the same ids as before, so a client that kept its own history finds them. Completed turns are not
signalled again (X2).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from keephold.acp.agent.calls import SHOWN
from keephold.acp.agent.shown import ShownEnd, call_id, describe, ended, response_output
from keephold.acp.agent.updates import (
    Update,
    message,
    shown_text,
    text,
    thought,
    tool_call,
    tool_call_update,
    user_message,
)
from keephold.acp.wire import Peer
from keephold.handles.state import PendingState, Stopped
from keephold.store.base import HandleQuery, Record, Store, TranscriptLine
from keephold.tools.base import Tool
from keephold.turn.notifications import AUTOMATIC
from keephold.turn.tool_call import ToolCall

if TYPE_CHECKING:
    from keephold.agent.conversation import Conversation


SHOWN_LINE = "shown"
"""The kind of line that holds a call's shown content."""
TURN_COMPLETE_LINE = "turn_complete"
"""The kind of line that records a sent `turn_complete` (X2)."""
_BATCH = "keephold/batch"
"""The metadata key of a request's batch number."""
HandlesByCall = Mapping[tuple[str, int, int], Record]
"""A conversation's handles by turn, batch and position: labels of calls are not unique."""


class Replayed(NamedTuple):
    """A session as the client knows it after the replay."""

    updates: list[Update]
    open: list[tuple[str, ToolCall, Record | None]]
    """Unanswered calls of an interrupted turn, each with its id and the handle it made."""
    live: list[tuple[str, ToolCall, Record]]
    """Handles that have not stopped, each with the id of its call."""
    used: list[str]
    """The labels that the interrupted turn used before the unanswered ones."""
    messages: int
    """The number of messages of the model in the newest turn."""


class _ReplayedCall(NamedTuple):
    id: str
    position: int
    call: ToolCall
    content: list[dict[str, Any]]


class _Replay:
    """Go through the lines of a transcript."""

    def __init__(
        self,
        tool: Callable[[str], Tool | None],
        handles: HandlesByCall,
        end: Callable[[Record], ShownEnd],
        interrupted: str | None,
    ) -> None:
        self._tool, self._handles, self._end, self._interrupted = tool, handles, end, interrupted
        self.updates: list[Update] = []
        self.live: list[tuple[str, ToolCall, Record]] = []
        self._turn = ""
        self._labels: list[str] = []
        self._messages = self._prompts = 0
        self._batch = 0
        """The number of the turn's newest answered batch."""
        self._calls: list[_ReplayedCall] = []
        """The unanswered calls of the next batch."""
        self._shown: dict[str, _ReplayedCall] = {}

    def take(self, line: TranscriptLine) -> None:
        if line.turn != self._turn:
            self._end_unanswered()
            self._turn, self._labels, self._batch = line.turn, [], 0
            self._messages = self._prompts = 0
        body = msgspec.json.decode(line.body)
        if line.kind == SHOWN_LINE:
            self._show(body)
        elif line.kind == "request":
            self._request(body)
        elif line.kind == "response":
            self._end_unanswered()
            self._messages += 1
            for part in body.get("parts", ()):
                self._said(part)

    def _request(self, body: Mapping[str, Any]) -> None:
        batch = (body.get("metadata") or {}).get(_BATCH, self._batch)
        ran = batch > self._batch  # else it was refused as a whole, or interrupted
        self._batch = batch
        for part in body.get("parts", ()):
            self._asked(part, ran)

    def _asked(self, part: Mapping[str, Any], ran: bool) -> None:
        content = part.get("content")
        if part.get("part_kind") == "tool-return":
            self._returned(part, ran)
        elif part.get("part_kind") == "user-prompt" and not str(content).startswith(AUTOMATIC):
            self._prompts += 1
            self.updates += [user_message(block, f"{self._turn}.u{self._prompts}") for block in _blocks(content)]

    def _said(self, part: Mapping[str, Any]) -> None:
        kind, content = part.get("part_kind"), part.get("content")
        if kind == "text" and content:
            self.updates.append(message(str(content), f"{self._turn}.m{self._messages}"))
        elif kind == "thinking" and content:
            self.updates.append(thought(str(content), f"{self._turn}.t{self._messages}"))
        elif kind == "tool-call":
            call = ToolCall(part["tool_call_id"], part["tool_name"], part.get("args") or {})
            self._labels.append(call.id)
            count = self._labels.count(call.id)
            id = call_id(self._turn, call.id, count)
            told = self._shown[id] = _ReplayedCall(id, len(self._calls), call, [])
            self._calls.append(told)
            self.updates.append(tool_call(id, {**describe(call, self._tool(call.name)).fields, "status": "pending"}))

    def _returned(self, part: Mapping[str, Any], ran: bool) -> None:
        told = next((each for each in self._calls if each.call.id == part.get("tool_call_id")), None)
        if told is None:
            return
        self._calls.remove(told)
        record = self._made(told, self._batch) if ran else None
        if record is not None and isinstance(record.state, Stopped):
            self._over(told, *self._end(record))
        elif record is not None and record.stateful:  # its call ends with the handle
            if not isinstance(record.state, PendingState):
                self._update(told, {"status": "in_progress"})
            self.live.append((told.id, told.call, record))
        else:
            words = part.get("content")
            words = words if isinstance(words, str) else msgspec.json.encode(words).decode()
            self._over(told, part.get("outcome") != "success", words, response_output(words))

    def _made(self, told: _ReplayedCall, batch: int) -> Record | None:
        """Return the handle that a call of that batch made, if the store still has it."""
        record = self._handles.get((self._turn, batch, told.position))
        return record if record is not None and record.tool == told.call.name else None

    def _over(self, told: _ReplayedCall, failed: bool, words: str, raw: Any) -> None:
        if words:
            told.content.append(shown_text(words))
        fields: dict[str, Any] = {"status": "failed" if failed else "completed"}
        self._update(told, fields if raw is None else {**fields, "rawOutput": raw})

    def _show(self, body: Mapping[str, Any]) -> None:
        told = self._shown.get(body.get("toolCallId", ""))
        if told is not None:
            told.content.append(body["content"])
            self._update(told, {})

    def _update(self, told: _ReplayedCall, fields: dict[str, Any]) -> None:
        if told.content:
            fields["content"] = list(told.content)
        self.updates.append(tool_call_update(told.id, fields))

    def _end_unanswered(self) -> None:
        """End unanswered calls that the transcript has passed."""
        for told in self._calls:
            self._over(told, True, "Interrupted.", None)
        self._calls = []

    def result(self) -> Replayed:
        still: list[tuple[str, ToolCall, Record | None]] = []
        used: list[str] = []
        if self._turn == self._interrupted:
            still = [(told.id, told.call, self._made(told, self._batch + 1)) for told in self._calls]
            used = self._labels[: len(self._labels) - len(still)]
        else:
            self._end_unanswered()
        return Replayed(self.updates, still, self.live, used, self._messages)


def replay(
    lines: Sequence[TranscriptLine],
    *,
    tool: Callable[[str], Tool | None],
    handles: HandlesByCall,
    end: Callable[[Record], ShownEnd],
    interrupted: str | None,
) -> Replayed:
    """Return the transcript as updates.

    `handles` are those that its calls made; `end` describes a stopped one; `interrupted` is the turn that never ended,
    if any.
    """
    going = _Replay(tool, handles, end, interrupted)
    for line in lines:
        going.take(line)
    return going.result()


def _blocks(content: Any) -> Iterator[dict[str, Any]]:
    """Yield a user's message as content blocks."""
    for part in [content] if isinstance(content, str) else content or ():
        if isinstance(part, str):
            yield text(part)
        elif not isinstance(part, dict):
            continue
        elif part.get("kind") == "binary" and str(part.get("media_type", "")).startswith("image/"):
            yield {"type": "image", "data": _base64(part["data"]), "mimeType": part["media_type"]}
        elif isinstance(part.get("content"), str):
            yield text(part["content"])
        else:
            yield text(f"[{part.get('media_type') or part.get('kind') or 'attachment'}]")


def _base64(data: str) -> str:
    """ACP uses standard base64; pydantic writes the URL-safe form."""
    return data.translate(str.maketrans("-_", "+/"))


_PAGE = 1000
_DRAIN = 100
"""The number of updates after which to wait for the client."""


async def replay_session(conversation: "Conversation", peer: Peer | None) -> Replayed:
    """Read a conversation's transcript and show it to a client, if one is given."""
    runtime = conversation.runtime
    registry = runtime.registry

    def end(record: Record) -> ShownEnd:
        assert isinstance(record.state, Stopped)
        handle = registry.revive(record)
        try:
            return ended(runtime.replies, handle, record.state, SHOWN)
        finally:
            if handle.output is not None:
                handle.output.close()

    turn = await registry.store.turn(conversation.id) if conversation.interrupted else None
    before = replay(
        await conversation.lines(),
        tool=runtime.toolbox.of(conversation.id).get,
        handles=await _handles(registry.store, conversation.id),
        end=end,
        interrupted=None if turn is None else turn.turn,
    )
    for at, update in enumerate(before.updates if peer is not None else ()):
        assert peer is not None
        peer.notify("session/update", {"sessionId": conversation.id, "update": update})
        if at % _DRAIN == _DRAIN - 1:
            await peer.drain()
    return before


async def _handles(store: Store, conversation: str) -> HandlesByCall:
    found: dict[tuple[str, int, int], Record] = {}
    after: str | None = None
    while page := await store.handles(HandleQuery(conversation=conversation, stateful=None, after=after, limit=_PAGE)):
        found.update(((record.turn, record.batch, record.position), record) for record in page)
        after = page[-1].uid
    return found
