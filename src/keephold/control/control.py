"""The operations on a runtime from outside: its views for reading, and here those that change something.

Clients were authenticated before (`serve/door.py`) and act as the runtime's user, so they may do what a model may not,
such as answering an exclusive question.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, NotRequired, TypedDict, cast

import msgspec

from keephold.control import output
from keephold.control.open_requests import OpenRequests, permission_json, still_open
from keephold.control.runtime_view import RuntimeView
from keephold.errors import KeepholdError
from keephold.handles.handle import Handle
from keephold.handles.question import question_key, requested_question
from keephold.handles.state import Reply, Waiting
from keephold.handles.view import Conditions, Handles, WaitQuery, conditions
from keephold.handles.waits import groups_of
from keephold.runtime import Runtime
from keephold.store.base import Forgotten
from keephold.tools.base import Tool
from keephold.turn.prompts import GONE, Decided

ReplyJson = Annotated[dict[str, Any], msgspec.Meta(description="A handle's state, as a model's reply shows it.")]


class WaitResult(TypedDict):
    """The handles that a wait was for."""

    completed: list[dict[str, Any]]
    pending: list[dict[str, Any]]
    timed_out: NotRequired[bool]
    needs_input: NotRequired[bool]


class RetriedCall(TypedDict):
    """The new handle of a repeated call, and the uid of the first one."""

    id: str
    uid: str
    retry_of: str


class Revoked(TypedDict):
    """How many keys were revoked."""

    revoked: int


class RevokedPermission(TypedDict):
    """Whether there was such a standing permission."""

    revoked: bool


class Forgot(TypedDict):
    """How many lines of a transcript were deleted."""

    lines: int


class Control:
    """Reads a runtime through `store_view`, `runtime_view` and `requests`, and acts on it."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        snapshot: Callable[[], dict[str, Any]] | None = None,
        served: Iterable[Tool] | None = None,
    ) -> None:
        """`snapshot` returns this process's counters; `served` are the tools of MCP clients, if they are not the usual
        ones."""
        self.runtime = runtime
        self._store = runtime.registry.store
        self.requests = OpenRequests(runtime)
        self.runtime_view = RuntimeView(runtime, self.requests.count, snapshot, served)
        self.store_view = self.runtime_view.store_view

    # Output

    async def output(
        self,
        uid: str,
        *,
        offset: int = 0,
        limit: int = output.PIECE,
        from_end: int | None = None,
        pattern: str | None = None,
    ) -> output.OutputPiece:
        """Return a piece of a handle's output, or the lines that contain a literal pattern (`output.output`)."""
        record = await self.store_view.record(uid)
        return await output.output(
            self.runtime, record, offset=offset, limit=limit, from_end=from_end, pattern=pattern or None
        )

    async def follow(self, uid: str, offset: int = 0) -> AsyncGenerator[dict[str, Any], None]:
        """Yield a handle's output and state changes until it has stopped (`output.follow`)."""
        async with aclosing(output.follow(self.runtime, await self.store_view.record(uid), offset)) as following:
            async for told in following:
                yield told

    # Handles

    async def apply(
        self,
        uid: str,
        input: Any | msgspec.UnsetType = msgspec.UNSET,
        keys: Sequence[str] = (),
        *,
        secret: bool = False,
        answers: str | None = None,
    ) -> dict[str, Any]:
        """Send a handle input or keys, or answer its open question, as the user (C6); None closes its stdin.

        With `answers`, send it only as the answer to that question (`turn/tool_call.py`). Returns the reply of C3."""
        handle = await self._known(uid)
        reply = await self.runtime.actions.send(handle, input, keys, secret=secret, answers=answers)
        return _decoded(reply)

    async def abort(self, uid: str) -> dict[str, Any]:
        """Abort a handle in any process (C7), and return the reply of C3. A second abort does nothing."""
        handle = await self._known(uid)
        reply = await self.runtime.actions.perform(handle, "abort", by="person")
        if reply.is_error and handle.active:
            raise KeepholdError(reply.result, code=reply.code or "tool_error")
        return _decoded(reply)

    async def retry(self, uid: str) -> RetriedCall:
        """Repeat a call that failed or was ended. After a crash loop (R8) the new handle has its journal."""
        await self.store_view.record(uid)
        again = await self.runtime.recovery.retry(uid)
        return {"id": again.id, "uid": again.uid, "retry_of": again.retry_of or uid}

    async def _known(self, uid: str) -> Handle:
        """Return this runtime's handle of that uid. Raises `KeepholdError` if there is none."""
        return self.runtime.registry.adopt(await self.store_view.record(uid))

    async def wait(
        self,
        *,
        all: Sequence[str] = (),
        any: Sequence[str] = (),
        output: Conditions = (),
        ready: Sequence[str] = (),
        timeout: float | None = None,
        conversation: str | None = None,
    ) -> WaitResult:
        """Wait for handles, by uid, or by id in a conversation (A2, A3, A9)."""
        patterns = conditions(output)
        named = tuple(dict.fromkeys((*any, *all, *(ref for ref, _ in patterns), *ready)))
        if not named:
            raise KeepholdError("At least one handle ID required", code="invalid_arguments")
        registry = self.runtime.registry
        records = {ref: await self.store_view.record(ref, conversation) for ref in named}
        handles = {ref: registry.adopt(record) for ref, record in records.items()}
        await registry.refresh(record.uid for record in records.values())
        groups = groups_of(handles, all, any, patterns, ready)
        everyone = {handle.uid for handle in handles.values()}  # a question to the model does not end this wait
        where = conversation or next(iter(records.values())).conversation
        query = WaitQuery(groups, tuple(dict.fromkeys(handles.values())), timeout)
        waited = await Handles(registry, where, everyone).wait_for(query)
        return cast(WaitResult, self.runtime.replies.values(waited))

    # Open requests

    async def request(self, id: str) -> dict[str, Any]:
        """Return one open request. Raises `KeepholdError` if it is not open any more."""
        return still_open(id, await self.requests.get(id))

    async def decide(self, id: str, said: Mapping[str, Any], by: str | None = None) -> Decided:
        """Decide an open request of any process: `{"status": "taken" | "again" | "gone", "problem"}`.

        `by` says who decides, for the record."""
        approvals, question = self.runtime.approvals, requested_question(id)
        if id in approvals.open:
            self._check_writable()
            decided = approvals.decide(id, said, by)
            if decided["status"] == "taken":  # a decision counts once it is written (R4)
                await self._written()
            return decided
        if question is not None:
            return await self._answer_elsewhere(*question, said)
        return await self._decide_elsewhere(id, dict(said), by)

    async def _decide_elsewhere(self, id: str, said: dict[str, Any] | None, by: str | None) -> Decided:
        """Have the process that asks take the decision (P6); None revokes a standing permission."""
        for post in await self.requests.elsewhere.posts("prompt" if said is not None else "standing"):
            if post.id == id:
                return await self.runtime.relay.decide(id, post.owner, said, by)
        return GONE

    async def permissions(self) -> list[dict[str, Any]]:
        """List the standing permissions of all processes, oldest first."""
        here = [permission_json(each) for each in self.runtime.approvals.permissions()]
        return sorted(here + await self.requests.elsewhere.permissions(), key=lambda each: each["at"])

    async def revoke_permission(self, id: str) -> RevokedPermission:
        """End a standing permission of any process: the next call asks again."""
        here = self.runtime.approvals.revoke(id)
        if here:
            await self._written()
        return {"revoked": here or (await self._decide_elsewhere(id, None, None))["status"] == "taken"}

    async def _written(self) -> None:
        """Wait until the decision is on the disk."""
        try:
            await self.runtime.registry.write((), keep=False)
        except KeepholdError as error:
            raise KeepholdError(
                f"that was taken, and is written as soon as it can be; a crash before would lose it: {error.message}",
                code=error.code,
            ) from error

    def _check_writable(self) -> None:
        """Refuse an answer while the store cannot write: a crash would lose an answer that was reported as taken."""
        if self._store.trouble is not None:
            raise KeepholdError(
                f"the store cannot write ({self._store.trouble}); nothing was sent, and the question stays open",
                code="store_unavailable",
            )

    async def answer(self, uid: str, answer: Any, *, question: str | None = None) -> dict[str, Any]:
        """Answer the open question of a handle, and return the reply of C3. The answer is never sent as input.

        With `question`, an id or key, answer only that question."""
        record = await self.store_view.record(uid)
        handle = self.runtime.registry.loaded(uid)
        state = record.state if handle is None or self.runtime.relay.elsewhere(handle) else handle.state
        if not isinstance(state, Waiting):
            raise KeepholdError(f"Handle `{record.id}` asks no question now; nothing was sent", code="not_running")
        return await self.apply(uid, answer, secret=state.question.secret, answers=question or "")

    async def _answer_elsewhere(self, uid: str, number: str, said: Mapping[str, Any]) -> Decided:
        record = await self._store.handle(uid)
        state = None if record is None else record.state
        ours = self.runtime.registry.loaded(uid)
        if record is not None and record.owner == self._store.owner and ours is not None:
            state = ours.decided  # an answer may not be written yet
        if not isinstance(state, Waiting) or str(state.number) != number:
            return {"status": "gone", "problem": "that question is not open any more"}
        if said.get("decision") not in ("answer", "cancel"):
            return {"status": "again", "problem": "`decision` must be one of answer, cancel here"}
        key = question_key(state.question, state.number)
        try:
            if said["decision"] == "cancel":
                await self._decline(uid, key)
            else:
                await self.answer(uid, said.get("value"), question=key)
        except KeepholdError as error:
            if error.code in ("store_unavailable", "owner_not_answering"):
                raise
            again = error.code in ("bad_answer", "invalid_arguments")
            return {"status": "again" if again else "gone", "problem": error.message}
        return {"status": "taken", "problem": None}

    async def _decline(self, uid: str, question: str) -> None:
        """End a handle whose question the user does not answer (Q7), if it still asks that question. If its process is
        dead, abort it."""
        handle = await self._known(uid)
        if handle.owner is None or not self._store.alive(handle.owner):
            await self.abort(uid)
            return
        reply = await self.runtime.actions.perform(handle, "apply", by="person", answers=question, declines=True)
        if reply.is_error and reply.code != "input_cancelled":
            raise KeepholdError(reply.result, code=reply.code or "tool_error")

    # The rest

    async def complete(self, key: str, resolution: Mapping[str, Any]) -> dict[str, Any]:
        """Complete the wait that a key stands for (D5)."""
        outcome = await self.runtime.resolve(key, resolution)
        return {"status": outcome.status, "terminal": outcome.terminal}

    async def revoke(self, conversation: str) -> Revoked:
        """Revoke all open keys of a conversation; calls parked on them stop."""
        return {"revoked": await self.runtime.revoke_keys(conversation)}

    async def forget(self, conversation: str) -> Forgot:
        """Delete a conversation's transcript; its handles stay until their retention is over."""
        described = await self._store.conversation(conversation)
        await self.runtime.registry.write((Forgotten(conversation),), keep=False)
        return {"lines": described.lines if described is not None else 0}

    async def collect(
        self, *, older_than: float | None = None, dry_run: bool = False, vacuum: bool = False
    ) -> dict[str, Any]:
        """Delete what retention would delete now (`retention.py`)."""
        from keephold.control.retention import collect

        return await collect(self.runtime.registry, older_than=older_than, dry_run=dry_run, vacuum=vacuum)


def _decoded(reply: Reply) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(reply.result)
    except msgspec.DecodeError:  # a one-shot call's plain result
        decoded = reply.result
    return decoded if isinstance(decoded, dict) else {"state": "stopped", "result": decoded}
