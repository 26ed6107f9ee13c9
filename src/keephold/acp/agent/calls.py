"""The tool calls of one session, as its client sees them, and the handles and terminals behind them (X1).

A call is `pending`, then `in_progress` while its handle runs or waits, then `completed` or `failed`, and never changes
back. A one-shot call ends with its answer; a spawned handle's call ends when the handle stops, even after its turn.
Output is sent at most ten times a second; the final update has all that is shown.

A client with terminals shows a program's output in one. The program stays ours: it is durable, takes input, can be
aborted, and outlives the editor. The client's terminal runs `keephold logs --follow` of its handle, which ends when the
handle does. That needs a store that another process can open; without it, output is sent as text.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from keephold.acp.agent import updates
from keephold.acp.agent.shown import (
    ShownCall,
    absolute,
    agent_name,
    call_id,
    describe,
    ended,
    has_made,
    in_words,
    is_about,
    response_output,
)
from keephold.acp.wire import REQUEST_CANCELLED, Peer, RpcCall, RpcError
from keephold.handles.handle import Handle, Watcher
from keephold.handles.state import Running, Stopped, Waiting
from keephold.store.base import Record, Store, file_of
from keephold.tools.base import Tool
from keephold.turn.prompts import Answer, Approved, AskQuestion, Decision, DeliverResult, Edited, Prompt, RunTool
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response

if TYPE_CHECKING:
    from keephold.runtime import Runtime
    from keephold.tools.call import FileDiff


OUTPUT_BYTES = 1024 * 1024
"""How many bytes of a terminal the client keeps."""


class Terminals:
    """The terminals of one session."""

    def __init__(self, peer: Peer, session: str, store: Store, *, has_terminals: bool) -> None:
        self._peer = peer
        self._session = session
        path = file_of(store) if has_terminals else None
        self._store = None if path is None else path.absolute()
        self.failed = False
        """The client could not make one and is not asked again."""

    def may_show(self, handle: Handle) -> bool:
        """Return whether a terminal can show this handle's output."""
        return self._store is not None and not self.failed and handle.tool.source in ("local", "terminal")

    def open(self, handle: Handle, then: Callable[[str | None], None]) -> None:
        """Ask the client for a terminal for a handle; `then` gets its id, or None if it failed."""
        raw = ["--raw"] if handle.tool.source == "terminal" else []
        store = f"sqlite:///{self._store}"
        params: dict[str, Any] = {
            "sessionId": self._session,
            "command": sys.executable,
            "args": ["-P", "-m", "keephold", "logs", "--follow", *raw, "--store", store, handle.uid],
            "env": [],
            "outputByteLimit": OUTPUT_BYTES,
        }
        self._peer.request("terminal/create", params, answered=lambda call: then(self._made(call)))

    def _made(self, call: RpcCall) -> str | None:
        if call.cancelled():
            return None
        refused = call.exception()
        if (
            refused is not None
        ):  # a client that ties terminals to a prompt cancels those that the prompt's end leaves open
            self.failed = not (isinstance(refused, RpcError) and refused.number == REQUEST_CANCELLED)
            return None
        result = call.result()
        id = result.get("terminalId") if isinstance(result, dict) else None
        self.failed = not (isinstance(id, str) and id)
        return None if self.failed else id

    def release(self, id: str, *, wait: bool = False) -> None:
        """Release the terminal; with `wait`, after it has shown everything. The client keeps showing its content."""
        params = {"sessionId": self._session, "terminalId": id}
        if not wait:
            self._peer.request("terminal/release", params)
            return
        self._peer.request(
            "terminal/wait_for_exit", params, answered=lambda _: self._peer.request("terminal/release", params)
        )


_log = logging.getLogger("keephold.acp")

INTERVAL_SECS = 0.1
"""The shortest interval between two updates of a handle's output."""
SHOWN = 8000
"""Characters of a handle's output that are shown while it runs."""
_AGREED: dict[type[Prompt], str] = {RunTool: "Allowed", DeliverResult: "Delivered", AskQuestion: "Answered"}


class SessionCalls(Watcher):
    """Follow the calls of a session and send their updates."""

    def __init__(
        self,
        runtime: "Runtime",
        session: str,
        send: Callable[[updates.Update], None],
        terminals: Terminals,
        record: Callable[[str, dict[str, Any]], None],
    ) -> None:
        """`record` gets shown content that is not in the transcript, so that a later load can show it."""
        self._runtime = runtime
        self._session = session
        self._send = send
        self._terminals = terminals
        self._record = record
        self._turn = ""
        self._batch: list[ShownCall] = []
        """The calls of the newest batch, in order: a model may give two the same label."""
        self._by_uid: dict[str, ShownCall] = {}
        """The calls that have a handle and have not ended."""
        self._ids: dict[str, int] = {}
        """How often each id was used in this turn: labels are unique in their batch only."""
        self._followed: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._follow(session)

    def close(self) -> None:
        """Send nothing more: the session is closed."""
        self._send = lambda _: None  # listeners of handles may still call it
        for shown in self._by_uid.values():
            self._release(shown)
            if shown.terminal:
                self._terminals.release(shown.terminal)
            if shown.handle is not None:
                shown.handle.unwatch(self)
        self._by_uid.clear()
        for conversation in tuple(self._followed):
            self._unfollow(conversation)

    # The model's calls

    def begin(self, turn: str, used: Iterable[str] = ()) -> None:
        """Begin or resume a turn; `used` are the labels that a resumed turn has used."""
        self._turn, self._ids, self._batch = turn, {}, []
        for label in used:
            self.name(turn, label)

    def name(self, turn: str, label: str) -> str:
        """Return the id of the turn's next call of that label."""
        count = self._ids[label] = self._ids.get(label, 0) + 1
        return call_id(turn, label, count)

    def called(self, calls: Sequence[ToolCall]) -> None:
        self._batch = []
        for call in calls:
            described = describe(call, self._tool(call.name))
            shown = ShownCall(self.name(self._turn, call.id), call, described, self._session)
            self._batch.append(shown)
            self._send(updates.tool_call(shown.id, {**described.fields, "status": "pending"}))

    def resume(self, calls: Iterable[tuple[str, ToolCall, Record | None]]) -> None:
        """Resume an open batch whose calls the client knows: each call's id, and the handle it made."""
        self._batch = []
        for id, call, record in calls:
            shown = ShownCall(id, call, describe(call, self._tool(call.name)), self._session)
            self._batch.append(shown)
            if record is not None:
                self.adopt(shown, self._runtime.registry.adopt(record))

    def answered(self, responses: Iterable[Response]) -> None:
        """End the batch's calls with their responses, in order. Calls that became handles continue."""
        for shown, response in zip(self._batch, responses, strict=False):
            if not shown.over and (shown.handle is None or not shown.handle.stateful):
                failed = response.is_error or response.code == "cancelled"
                self._end(shown, failed, response.model, response_output(response.model))

    def settle(self) -> None:
        """End the turn: send the remaining output, and end the calls that no handle runs for."""
        for shown in self._batch:
            if not shown.over and (shown.handle is None or not shown.handle.active or not shown.handle.stateful):
                self._end(shown, True, "Nothing came of this call: the turn has ended.", None)
        for shown in tuple(self._by_uid.values()):
            if shown.due is not None or shown.terminal == "":  # a client may need time to make a terminal
                self._tell_output(shown)
                if shown.handle is not None and self._terminals.may_show(shown.handle):
                    self._printed(shown)  # the client has not been asked for a terminal yet

    def _tool(self, name: str) -> Tool | None:
        return self._runtime.toolbox.of(self._session).get(name)

    # Handles

    # The registry calls these: a failure to show something must not stop calls from running.

    def created(self, handle: Handle) -> None:
        with self._logged():
            self._created(handle)

    def changed(self, handle: Handle) -> None:
        with self._logged():
            shown = self._by_uid.get(handle.uid)
            if shown is not None:
                self._refresh(shown, handle)
            elif handle.active:
                self._created(handle)

    def stopped(self, handle: Handle) -> None:
        self.changed(handle)

    def showed(self, handle: Handle, diff: "FileDiff") -> None:
        with self._logged():
            self._show(handle, diff)

    @contextmanager
    def _logged(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            _log.exception("something of session %s could not be shown", self._session)

    def _created(self, handle: Handle) -> None:
        if handle.uid in self._by_uid:
            return
        own = handle.conversation == self._session and handle.turn == self._turn
        shown = next((each for each in self._batch if own and has_made(each, handle)), None)
        if shown is None:
            if handle.tool.unrecorded or not handle.active:
                return  # of calls that the model did not make, only lasting ones are shown
            shown = self._show_unrequested(handle)
        self.adopt(shown, handle)

    def adopt(self, shown: ShownCall, handle: Handle) -> None:
        shown.handle, shown.handle_id = handle, handle.id
        self._by_uid[handle.uid] = shown
        self._follow(handle.conversation)
        self._refresh(shown, handle)
        if not shown.over:
            handle.watch(self)

    def found(self, id: str, call: ToolCall, handle: Handle, *, known: bool) -> None:
        """Show a handle of an earlier turn that has not stopped; with `known`, the client knows its call."""
        if handle.uid in self._by_uid:
            return
        described = describe(call, handle.tool)
        shown = ShownCall(id, call, described, self._session)
        if known and isinstance(handle.state, Running | Waiting):
            shown.status = "in_progress"
        elif not known:
            self._send(updates.tool_call(id, {**described.fields, "status": "pending"}))
        self.adopt(shown, handle)

    def _show_unrequested(self, handle: Handle) -> ShownCall:
        """Show a handle that no call of the model made: a sub-agent's, or a workflow's."""
        named = f"{handle.id} ({handle.tool.name})" if handle.stateful else handle.tool.name
        call = ToolCall(handle.uid, handle.tool.name)
        title = named if handle.conversation == self._session else f"{agent_name(handle.conversation)}: {named}"
        action = "spawn" if handle.stateful else None
        described = describe(call, handle.tool)._replace(title=title, action=action, handle_id=handle.id)
        shown = ShownCall(handle.uid, call, described, handle.conversation)
        self._send(updates.tool_call(shown.id, {"title": title, "kind": shown.kind, "status": "pending"}))
        return shown

    def _show(self, handle: Handle, diff: "FileDiff") -> None:
        shown = self._by_uid.get(handle.uid)
        if shown is None or shown.over:
            return
        part = updates.shown_diff(absolute(handle.tool, diff.path), diff.old, diff.new)
        shown.diffs.append(part)
        self._record(shown.id, part)
        self._send(updates.tool_call_update(shown.id, {"content": self._content(shown)}))

    def _refresh(self, shown: ShownCall, handle: Handle) -> None:
        state = handle.state
        if shown.over:
            return
        if isinstance(state, Stopped):
            failed, words, raw = ended(self._runtime.replies, handle, state, SHOWN, in_terminal=bool(shown.terminal))
            self._end(shown, failed, words, raw)
        elif isinstance(state, Running | Waiting):
            question = state.question if isinstance(state, Waiting) else None
            fields: dict[str, Any] = {} if shown.status == "in_progress" else {"status": "in_progress"}
            if question is not shown.question:
                shown.question, shown.note = question, ""
                fields |= {"title": shown.title, "content": self._content(shown)}
            shown.status = "in_progress"
            if fields:
                self._send(updates.tool_call_update(shown.id, fields))
            if handle.output is not None and shown.sent < 0:  # printed before it was followed
                self._printed(shown)

    def show_note(self, shown: ShownCall, note: str) -> None:
        if not shown.over:
            shown.note = note
            self._send(updates.tool_call_update(shown.id, {"content": self._content(shown)}))

    def asked(self, shown: ShownCall, prompt: Prompt, said: Decision | None) -> None:
        """The user was asked about the call and decided, or the prompt was withdrawn (None)."""
        if shown.over:
            return
        if shown.handle is None and shown not in self._batch:  # it was shown for the prompt alone
            agreed, word = isinstance(said, Approved | Edited | Answer), _AGREED[type(prompt)]
            self._end(shown, not agreed, f"{word}." if agreed else f"Not {word.lower()}.", None)
        elif shown.renamed:
            shown.renamed = False
            self._send(updates.tool_call_update(shown.id, {"title": shown.title}))

    # Output

    def printed(self, handle: Handle) -> None:
        shown = self._by_uid.get(handle.uid)
        if shown is not None:
            self._printed(shown)

    def _printed(self, shown: ShownCall) -> None:
        if shown.terminal is not None or shown.due is not None or shown.over or shown.handle is None:
            return
        if self._terminals.may_show(shown.handle):  # not for short calls: a terminal is a process
            shown.due = self._loop.call_later(INTERVAL_SECS, self._open_terminal, shown)
            return
        wait = shown.sent + INTERVAL_SECS - self._loop.time()
        if wait <= 0:
            self._tell_output(shown)
        else:
            shown.due = self._loop.call_later(wait, self._tell_output, shown)

    def _open_terminal(self, shown: ShownCall) -> None:
        shown.due = None
        if shown.handle is not None and not shown.over:
            shown.terminal = ""
            self._terminals.open(shown.handle, lambda id: self._opened(shown, id))

    def _opened(self, shown: ShownCall, id: str | None) -> None:
        if shown.handle is None or shown.handle.uid not in self._by_uid:  # the call has ended, or is not shown any more
            if id is not None:
                self._terminals.release(id)
            return
        shown.terminal = id
        self._tell_output(shown)

    def _tell_output(self, shown: ShownCall) -> None:
        if shown.due is not None:
            shown.due.cancel()
        shown.due, shown.sent = None, self._loop.time()
        self._send(updates.tool_call_update(shown.id, {"content": self._content(shown)}))

    def _content(self, shown: ShownCall, words: str | None = None) -> list[dict[str, Any]]:
        """Return everything to show of a call; `words` are its end."""
        parts = list(shown.diffs)
        handle = shown.handle
        if shown.terminal:
            parts.append(updates.shown_terminal(shown.terminal))
        elif words is None and handle is not None and handle.output is not None:
            printed = self._runtime.replies.tail(handle, SHOWN)
            if printed:
                parts.append(updates.shown_text(updates.fenced(printed)))
        if shown.question is not None and words is None:
            parts.append(updates.shown_text(in_words(shown.question)))
            if shown.note:
                parts.append(updates.shown_text(shown.note))
        if words:
            parts.append(updates.shown_text(words))
        return parts

    def _end(self, shown: ShownCall, failed: bool, words: str, raw: Any) -> None:
        self._release(shown)
        shown.status, shown.question = "failed" if failed else "completed", None
        fields: dict[str, Any] = {"status": shown.status, "content": self._content(shown, words)}
        if shown.renamed:
            fields["title"] = shown.title
        self._send(updates.tool_call_update(shown.id, fields if raw is None else {**fields, "rawOutput": raw}))
        if shown.terminal:
            self._terminals.release(shown.terminal, wait=True)
        if shown.handle is not None:
            self._by_uid.pop(shown.handle.uid, None)
            conversation = shown.handle.conversation
            if conversation != self._session and all(s.conversation != conversation for s in self._by_uid.values()):
                self._unfollow(conversation)

    def _release(self, shown: ShownCall) -> None:
        if shown.due is not None:
            shown.due.cancel()
            shown.due = None

    # Followed conversations

    def _follow(self, conversation: str) -> None:
        if conversation not in self._followed:
            self._followed.add(conversation)
            self._runtime.registry.follow(conversation, self.changed)

    def _unfollow(self, conversation: str) -> None:
        self._followed.discard(conversation)
        self._runtime.registry.unfollow(conversation, self.changed)

    # Prompts

    def asked_about(self, prompt: Prompt) -> ShownCall:
        """Return the call that a prompt is about; show a new one if the client knows none."""
        found = next((shown for shown in self._candidates() if is_about(shown, prompt)), None)
        if found is None:
            call = ToolCall("", prompt.tool)  # a call of a sub-agent that is not shown
            described = describe(call, self._tool(prompt.tool))
            found = ShownCall(self.name(self._turn or "call", prompt.tool), call, described, prompt.conversation)
            self._send(updates.tool_call(found.id, {"title": found.title, "kind": found.kind, "status": "pending"}))
        if isinstance(prompt, RunTool):
            found.asked = True
        else:
            found.renamed = True
        return found

    def _candidates(self) -> Iterable[ShownCall]:
        yield from self._batch
        yield from self._by_uid.values()
