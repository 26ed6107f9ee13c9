"""Handles of other processes on the same store: owner-only operations are forwarded to the owner (M3).

A request is a row; the bell wakes the owner, which takes it, acts and writes the reply. Input that a person sends may
be a password, so it is never a row: it goes over the owner's attach socket, or in whispers (`relayed_streams.py`). If
the owner lives but is silent for 5 s, the request is withdrawn and the call fails. One that the owner has taken cannot
be withdrawn, so a request either fails or is carried out. If the owner is dead, its handle is recovered first.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.question import question_key
from keephold.handles.registry import Registry
from keephold.handles.state import EndedBy, Failure, Reply, Waiting
from keephold.store.base import Replied, Request, RequestClosed, Requested, SupportsWhispers
from keephold.tools.base import Action
from keephold.tools.run import FORCE_SECS
from keephold.turn.approvals import Approvals
from keephold.turn.attach_protocol import REPLY, Want
from keephold.turn.owner_connection import OwnerAddress, linked, socket_of
from keephold.turn.prompts import GONE, TAKEN, Decided
from keephold.turn.relayed_streams import POLL_SECS, Poll, PollAnswer
from keephold.turn.replies import error_reply, failed_reply
from keephold.turn.tool_call import ActiveCall, By, ParsedCall, call_on

if TYPE_CHECKING:
    from keephold.turn.actions import Actions
    from keephold.turn.attach_server import Streams
    from keephold.turn.recovery import Recovery

SILENT_SECS = 5.0
_ALIVE_SECS = 0.2
"""Seconds between two checks whether the owner lives, while a request waits for its reply."""
_OF_USE = b"true"
_TAKEN = b""
"""The reply of an owner that has taken a request and not finished: it will be carried out."""


class _Wanted(msgspec.Struct, omit_defaults=True, tag="act"):
    """A request, as it is stored: the whole call, but never a secret."""

    action: Action
    cursor: int
    arguments: dict[str, Any] = {}
    """The other arguments of the call: the input of an `apply`; for a terminal also keys, a size, a view."""
    cause: bytes = b""
    by: By = "model"
    answers: str | None = None
    declines: bool = False
    ends: tuple[Failure, EndedBy] | None = None


class _Decision(msgspec.Struct, omit_defaults=True, tag="decide"):
    """A request that decides an open prompt of the process that gets it (P6), or ends a standing permission."""

    id: str
    said: dict[str, Any] | None
    """As the API takes it; None: revoke the standing permission."""
    by: str | None = None


class _Message(msgspec.Struct, tag="message"):
    """A request that hands a message to a part of the process that gets it."""

    to: str
    text: str


_request = msgspec.json.Decoder(_Wanted | _Decision | _Message | Poll)


class Relay:
    """Forwards calls and decisions to other processes, and carries out theirs."""

    def __init__(self, registry: Registry, approvals: Approvals) -> None:
        self._registry = registry
        self._approvals = approvals
        self._awaited: dict[str, asyncio.Event] = {}
        self._taken: set[str] = set()
        self.mailboxes: dict[str, Callable[[str], Awaitable[bool]]] = {}
        """By name: the parts of this process that take messages of other processes."""
        self.actions: Actions
        self.recovery: Recovery
        self.streams: Streams

    def elsewhere(self, handle: Handle) -> bool:
        """Return whether another process runs the handle."""
        return self._registry.runs_elsewhere(handle)

    # Forwarding

    def forward(self, call: ActiveCall) -> None:
        """Have the owner of a handle carry out a call."""
        self._registry.run_soon(self._forward(call))

    async def _forward(self, call: ActiveCall) -> None:
        handle, cause = call.handle, call.parsed.cause
        try:
            reply = await self._forwarded(handle, call.parsed)
            if reply is not None:
                call.answer(reply)
            elif cause and await self._registry.recorded(handle, cause):
                call.answer(self.actions.show(handle))
            else:  # no process has done it, or will
                self.actions.act(call)
        except KeepholdError as error:
            call.answer(error_reply(error))
        except Exception as error:
            call.answer(failed_reply(call.parsed.call.id, error))

    async def _forwarded(self, handle: Handle, parsed: ParsedCall) -> Reply | None:
        """Return the owner's reply; None if no other process runs the handle any more."""
        store = self._registry.store
        while self.elsewhere(handle):
            owner, reply = handle.owner, None
            assert owner is not None
            if store.alive(owner):
                path = socket_of(store, owner) if _is_typed(parsed) else None
                if path is not None or (_is_typed(parsed) and not _is_open_answer(handle, parsed)):
                    return await self._send(handle, path, parsed)
                reply = await self._request(handle, owner, parsed)
            if reply is not None:
                return reply
            await self._recover(handle, owner, parsed)
        return None

    async def _send(self, handle: Handle, path: str | None, parsed: ParsedCall) -> Reply:
        """Send the owner what a person typed, over its attach socket or by whispers."""
        given, keys = parsed.arguments.get("input", msgspec.UNSET), tuple(parsed.arguments.get("keys", ()))
        answers = _question_answered(handle, parsed)
        want = Want(uid=handle.uid, want="send", input=given, keys=keys, secret=parsed.secret, answers=answers)
        to = OwnerAddress(handle.uid, handle.id, handle.tool.name, path, handle.owner or "")
        async with linked(to, want, self) as link:
            while True:
                kind, payload = await link.receive()
                if kind == REPLY and isinstance(payload, bytes):
                    return Reply(payload.decode(), payload.decode())

    async def _recover(self, handle: Handle, owner: str, parsed: ParsedCall) -> None:
        await self.recovery.take_first(owner, handle.conversation, handle.uid)
        await self._registry.refresh((handle.uid,))
        if handle.owner == owner and parsed.action == "abort":
            await self.recovery.end_left(handle.uid, owner, *parsed.ending)
            await self._registry.refresh((handle.uid,))
        if self.elsewhere(handle) and handle.owner == owner:
            raise _gone(handle)

    async def _request(self, handle: Handle, owner: str, parsed: ParsedCall) -> Reply | None:
        """Have the owner act; None if it dies."""
        assert parsed.action is not None
        wanted = _Wanted(
            parsed.action,
            handle.cursor,
            parsed.arguments,
            parsed.cause,
            parsed.by,
            _question_answered(handle, parsed),
            parsed.declines,
            parsed.ends,
        )
        what = f"runs handle `{handle.id}`"
        body = await self._asked(handle.uid, owner, wanted, what, _longest(handle))
        if body is None:
            return None
        await self._registry.refresh((handle.uid,))
        await self._registry.facts.look(handle.uid)  # the owner has posted what the call changed before its reply
        return msgspec.json.decode(body, type=Reply)

    async def decide(self, id: str, owner: str, said: dict[str, Any] | None, by: str | None) -> Decided:
        """Have the owner decide its open prompt, or, without a decision, revoke its standing permission (P6)."""
        body = await self._asked(id, owner, _Decision(id, said, by), "asks this")
        return GONE if body is None else msgspec.json.decode(body, type=Decided)

    async def tell(self, owner: str, to: str, text: str) -> bool:
        """Give a message to a part of another process. Return whether it was of use there."""
        body = await self._asked("", owner, _Message(to, text), "serves this")
        return body == _OF_USE

    async def poll(self, uid: str, owner: str, poll: Poll) -> PollAnswer:
        """Return the next frames of a session in the owner's process (`turn/relayed_streams.py`)."""
        body = await self._asked(uid, owner, poll, "runs the handle", 2 * POLL_SECS)
        if body is None:
            raise KeepholdError("The runtime that ran the handle is gone; ask again.", code="owner_not_answering")
        return msgspec.msgpack.decode(body, type=PollAnswer)

    @property
    def can_whisper(self) -> bool:
        """Whether input can be sent to processes without a socket here."""
        return isinstance(self._registry.store, SupportsWhispers)

    async def whisper(self, ear: str, message: str) -> None:
        store = self._registry.store
        assert isinstance(store, SupportsWhispers)
        await store.whisper(ear, message)

    async def _asked(
        self, about: str, owner: str, request: msgspec.Struct, what: str, longest: float = 1.0
    ) -> bytes | None:
        """Write a request and wait for the reply; None if the owner dies. It may take `longest` once it has begun."""
        registry, store = self._registry, self._registry.store
        if not store.alive(owner):
            return None
        id, rung = secrets.token_hex(12), asyncio.Event()
        self._awaited[id] = rung
        try:
            await registry.write((Requested(id, about, owner, msgspec.json.encode(request)),), keep=False)
            body, asked_at = None, asyncio.get_running_loop().time()
            while not body:
                if not store.alive(owner):
                    return None
                with contextlib.suppress(TimeoutError):  # no bell rings when a process dies
                    async with asyncio.timeout(_ALIVE_SECS):
                        await rung.wait()
                rung.clear()
                body = await store.reply(id)
                late = asyncio.get_running_loop().time() - asked_at - SILENT_SECS
                if body is None and late > 0 and await self._withdrawn(id, what):
                    raise _silent(what)
                if not body and late > longest:
                    raise _slow(what)
            return body
        finally:
            del self._awaited[id]
            registry.commit((RequestClosed(id),), lambda _: None, lambda _: None)

    async def _withdrawn(self, id: str, what: str) -> bool:
        """Withdraw a request; False if the owner has taken it."""
        try:
            (withdrawn,) = await self._registry.write((RequestClosed(id, unanswered=True),), keep=False)
        except KeepholdError as error:
            raise ToolError(
                f"The process that {what} did not answer, and this cannot be withdrawn ({error.message}). It may still "
                "be carried out: look at the state of the handle before you send it again.",
                code=error.code,
            ) from error
        return bool(withdrawn)

    def notify(self, ids: Iterable[str] | None) -> None:
        """Check for replies to these requests, or to all of them."""
        for id in tuple(self._awaited) if ids is None else ids:
            if id in self._awaited:
                self._awaited[id].set()

    # Serving

    async def serve(self) -> None:
        """Carry out every request to this process."""
        for request in await self._registry.store.requests():
            if request.id not in self._taken:
                self._take(request)

    def _take(self, request: Request) -> None:
        """Carry out a request, unless it is withdrawn before the store has that it is taken."""
        self._taken.add(request.id)

        def taken(results: Sequence[Any]) -> None:
            if results[0]:
                self._serve(request)
            else:
                self._taken.discard(request.id)

        # If the store cannot write, a sweep tries again.
        self._registry.commit((Replied(request.id, _TAKEN),), taken, lambda _: self._taken.discard(request.id))

    def _serve(self, request: Request) -> None:
        match _request.decode(request.body):
            case _Wanted() as wanted:
                self._act(request, wanted)
            case _Decision() as decision:
                self._decide(request, decision)
            case _Message() as message:
                self._registry.run_soon(self._deliver(request, message))
            case Poll() as poll:
                self._registry.run_soon(self._answer_poll(request, poll))

    def _act(self, request: Request, wanted: _Wanted) -> None:
        handle = self._registry.loaded(request.uid)

        def answer(_: object, reply: Reply) -> None:
            self._reply(request, msgspec.json.encode(reply))

        if handle is None:
            refusal = ToolError("the handle is not run here any more; ask again", code="handle_not_found")
            answer(None, error_reply(refusal))
            return
        handle.cursor = max(handle.cursor, wanted.cursor)
        parsed = call_on(handle, wanted.action, wanted.arguments, wanted.by)
        parsed = replace(parsed, cause=wanted.cause, answers=wanted.answers, declines=wanted.declines, ends=wanted.ends)
        try:
            self.actions.act(ActiveCall(parsed, answer, handle=handle))
        except Exception as error:
            answer(None, failed_reply(handle.call_id, error))

    async def _deliver(self, request: Request, message: _Message) -> None:
        used = False
        try:
            if message.to in self.mailboxes:
                used = await self.mailboxes[message.to](message.text)
        finally:
            self._reply(request, _OF_USE if used else b"false")

    async def _answer_poll(self, request: Request, poll: Poll) -> None:
        self._reply(request, msgspec.msgpack.encode(await self.streams.polled(poll)))

    def _decide(self, request: Request, wanted: _Decision) -> None:
        trouble = self._registry.store.trouble
        if wanted.said is None:
            decided: Decided = TAKEN if self._approvals.revoke(wanted.id) else GONE
        elif trouble is not None:
            decided = {"status": "again", "problem": f"the store cannot write ({trouble}); nothing is decided"}
        else:
            decided = self._approvals.decide(wanted.id, wanted.said, wanted.by)
        self._reply(request, msgspec.json.encode(decided))  # after what the decision has written (R4)

    def _reply(self, request: Request, body: bytes) -> None:
        self._registry.write_soon(Replied(request.id, body))
        self._taken.discard(request.id)


def _is_typed(parsed: ParsedCall) -> bool:
    return parsed.by == "person" and parsed.action == "apply" and not parsed.declines


def _is_open_answer(handle: Handle, parsed: ParsedCall) -> bool:
    """Return whether this answers a question that does not ask for a secret; any other input may be a password."""
    state = handle.state
    return isinstance(state, Waiting) and not state.question.secret and not parsed.secret


def _question_answered(handle: Handle, parsed: ParsedCall) -> str | None:
    """Name the question that an `apply` answers, so that it is not taken for input if the question is closed by then.

    C6: whether an `apply` is input or an answer depends on what its sender can see, which is the state in this process.
    """
    state = handle.state
    if parsed.answers or parsed.action != "apply" or not isinstance(state, Waiting) or parsed.backs_out:
        return parsed.answers
    return question_key(state.question, state.number)


def _longest(handle: Handle) -> float:
    """Return how many seconds an owner that has begun may take to settle or to end the handle."""
    spawn = handle.tool.spawn
    return max(spawn.settle_max_ms, spawn.abort_grace_ms) / 1000 + FORCE_SECS


def _silent(what: str) -> ToolError:
    return ToolError(
        f"The process that {what} lives but did not answer within {SILENT_SECS:g} s; it may be stopped or busy. "
        "Nothing was done. Try again.",
        code="owner_not_answering",
    )


def _slow(what: str) -> ToolError:
    return ToolError(
        f"The process that {what} has taken this, but has not finished in time; it may be stopped or busy. It will be "
        "carried out. Do not send it again; look at the state of the handle.",
        code="owner_not_answering",
    )


def _gone(handle: Handle) -> ToolError:
    return ToolError(
        f"The process that ran handle `{handle.id}` is gone, and this one has no tool `{handle.tool.name}` to "
        "resume it. Start a runtime that has the tool, or abort it.",
        code="owner_not_answering",
        transient=True,
    )
