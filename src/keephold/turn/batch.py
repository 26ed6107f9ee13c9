"""One batch: the calls that the model emitted in one response (B1, B2, B6, B7).

Every call gets exactly one response, in request order. Before anything runs, all handles the batch
makes are registered, so that a call may name a handle that another one spawns. A batch is answered by callbacks and a
countdown: a call costs a task only if its tool is one.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.state import Failure, PendingState, Reply, Running, Stopped, error_of
from keephold.handles.view import PATIENT, Handles, Patience
from keephold.handles.waits import all_stopped
from keephold.ids import call_id, outside_label
from keephold.store.base import Opened, Record
from keephold.text import to_utf8
from keephold.tools.base import Tool
from keephold.turn.lanes import Lanes
from keephold.turn.notifications import Notification
from keephold.turn.prompt_queue import PromptQueue
from keephold.turn.recovery import survives_crash, waits_for_resume
from keephold.turn.replies import CANCELLED, error_reply, failed_reply
from keephold.turn.suggestions import with_suggestion
from keephold.turn.tool_call import ActiveCall, ParsedCall

if TYPE_CHECKING:
    from keephold.turn.parts import Parts

Claim = Callable[[Record], Awaitable[Record | None]]
"""Claims a call of a dead process; None if another process was first."""

_NUMBERED = 10
"""From this many handles of one label on, names are drawn: looking for the next free number reads each of them."""
CANCEL_GRACE_SECS = 0.05
"""How long a cancelled call may take to return its own result."""
INTERRUPTED = Failure("Aborted: the turn was interrupted.", "aborted")
_NOTED = 5
"""Arguments of a call that a note names."""
_NAMES = 16
"""How many times a chosen id may be taken by the time it is written."""


class Batch:
    """Runs the calls of one batch and collects their replies."""

    def __init__(
        self,
        calls: Sequence[ParsedCall],
        parts: "Parts",
        conversation: str,
        turn: str,
        number: int,
        park_after: float | None = None,
        *,
        resumable: bool = True,
        prompt_queue: PromptQueue | None = None,
        patience: float | None = None,
        step: bool = False,
        waits: Patience = PATIENT,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """`resumable`: its answers are wanted after a crash, so the store records that it is open. `prompt_queue` and
        `patience` are those of `ActiveCall`. `step`: keephold has chosen the labels, for a step of a workflow.
        `waits` limits the waits of its tools (M7); `answer_now` ends that of its caller. `metadata` is
        that of one-shot calls."""
        registry = self._registry = parts.registry
        self._actions = parts.actions
        self._limits = parts.limits
        self._conversation = conversation
        self._turn = turn
        self.number = number
        self._park_at = None if park_after is None else asyncio.get_running_loop().time() + park_after
        self._replies: list[Reply | None] = [None] * len(calls)
        self._left = len(calls)
        self._named: dict[str, int] = {}
        """By uid: how many unanswered calls of this batch name the handle. Such a handle is not blocked yet (A6)."""
        handles = Handles(registry, conversation, self._named, waits)
        self._calls = [
            ActiveCall(
                replace(parsed, cause=f"{turn}:{number}:{parsed.position}".encode())
                if parsed.action == "apply"
                else parsed,
                self._answer,
                handles=handles,
                on_parked=self._parked,
                prompt_queue=prompt_queue,
                patience=patience,
            )
            for parsed in calls
        ]
        self._lanes = Lanes(self._calls, self._start)
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cancelled = False
        self._begun: set[int] = set()
        """Positions of calls that had begun before the batch was resumed (B9)."""
        self.resumable = resumable
        self._step = step
        self._metadata = metadata
        self._names_left = _NAMES
        self._renaming: asyncio.Task[None] | None = None
        self.opened = False
        """Whether the store has recorded it."""
        self._interrupted = False
        self._released: asyncio.Task[None] | None = None
        """Releases calls of an interrupted batch. From then on the batch starts and answers nothing."""
        self.failed: Failure | None = None
        """The error of a parked call that timed out and fails the turn (D11)."""

    def note(self, position: int) -> tuple[Notification, ...]:
        """Return the notification that says how a call was read, if it was not read as it was sent (C9)."""
        parsed = self._calls[position].parsed
        if not parsed.taken or parsed.error is not None:
            return ()
        more = ["…"] if len(parsed.taken) > _NOTED else []
        note = f"Your call of `{parsed.call.name}`: {'; '.join([*parsed.taken[:_NOTED], *more])}."
        return (Notification("call.read", "info", note),)

    @property
    def made(self) -> list[Handle | None]:
        """Return the handle that each call makes."""
        return [call.made for call in self._calls]

    async def run(self) -> list[Reply]:
        """Run it. Cancelling this is as for `replies`."""
        await self.begin()
        return await self.replies()

    async def begin(self) -> None:
        """Hand it to the store. Commits finish in order, so a later batch finds the handles that this one spawns."""
        await self._check_launched(self._calls)
        await self._register()

    async def _register(self) -> None:
        await self._registry.load(self._conversation, self._ids())
        await self._name_launched()
        conflict = self._conflict()
        if conflict is not None:
            self._reject(*conflict)
            return
        new = self._make_handles()
        if not self.resumable:
            self._registry.register(new, self._begin, self._not_begun)
            return
        calls = (
            (each.call.id, each.call.name, each.given, call.made.uid if call.made is not None else None)
            for call, each in ((call, call.parsed) for call in self._calls)
        )
        opened = Opened(self._conversation, self._turn, self.number, tuple(calls))
        self._registry.register(new, self._begin, self._not_begun, opened)

    async def resume(self, claim: Claim, uids: Sequence[str | None]) -> list[Reply]:
        """Answer a batch that was begun before (B9); `uids` are those of the handles that its calls made."""
        self.opened = True
        try:
            await self._take_up(claim, uids)
        except BaseException:
            self.interrupt()  # or calls that are claimed would be left without anybody
            raise
        self._begin()
        return await self.replies()

    async def _take_up(self, claim: Claim, uids: Sequence[str | None]) -> None:
        await self._check_launched(call for call, uid in zip(self._calls, uids, strict=True) if uid is None)
        await self._registry.load(self._conversation, self._ids())
        for call, uid in zip(self._calls, uids, strict=True):
            record = await self._registry.store.handle(uid) if uid is not None else None
            if record is None:
                continue
            source = None if call.parsed.tool is None else call.parsed.tool.source
            runs_again = not isinstance(record.state, Stopped) and waits_for_resume(record.state, source)
            claimed = await claim(record) if runs_again and not self._registry.is_ours(record) else None
            if claimed is not None:
                call.make(self._registry.take_over(claimed))
                call.restore(claimed)
            else:
                call.make(self._registry.adopt(record))
                self._begun.add(call.parsed.position)
        names = self._registry.conversation(self._conversation).names
        for call in self._calls:
            parsed = call.parsed
            named = names.get(parsed.handle_id or "") if parsed.cause and parsed.error is None else None
            if named is not None and await self._registry.recorded(named, parsed.cause):
                call.make(named)
                self._begun.add(parsed.position)

    async def replies(self) -> list[Reply]:
        """Wait until every call is answered, and return the replies. Cancelling this interrupts the batch of a turn
        (R9), and cancels any other (B7)."""
        try:
            await asyncio.shield(self._answered)
        except asyncio.CancelledError:
            if self.resumable and not self._cancelled:
                await self._leave_caller(self.interrupt())
            else:
                self.cancel()
                await asyncio.wait([self._answered])  # within CANCEL_GRACE_SECS: every call is answered by then
            raise
        return [reply for reply in self._replies if reply is not None]

    def _ids(self) -> list[str]:
        ids = (call.parsed.handle_id for call in self._calls)
        return list(dict.fromkeys(id for id in ids if id is not None))

    def _not_begun(self, error: Exception) -> None:
        """Answer every call with the store's refusal: nothing ran."""
        code = error.code if isinstance(error, KeepholdError) else "store_unavailable"
        if code == "batch_rejected" and self._names_left and any(_numbered(call.parsed) for call in self._calls):
            self._names_left -= 1
            self._renaming = asyncio.get_running_loop().create_task(self._begin_again())
            return
        refusal = ToolError(f"{self._nothing_ran}: {error}", code=code)
        if code == "batch_rejected" and len(self._calls) == 1:
            refusal = _once(self._calls[0].parsed) or refusal  # in the words of its rule (W7)
            self._reject(self._calls[0], refusal)
            return
        self._reject(None, refusal)

    def _reject(self, wrong: ActiveCall | None, refusal: ToolError) -> None:
        """Answer every call with the refusal of the batch, for which one of them may be to blame."""
        self._replies = [error_reply(refusal, call.parsed.tool) for call in self._calls]
        if wrong is not None:
            wrong.parsed = replace(wrong.parsed, error=refusal)
            at = wrong.parsed.position
            self._replies[at] = self._suggesting(wrong, error_reply(refusal, wrong.parsed.tool))
        if not self._answered.done():
            self._answered.set_result(None)

    async def _begin_again(self) -> None:
        """W12: choose another id, because another call or process was quicker with this one."""
        try:
            await self._register()
        except KeepholdError as error:  # the store cannot be read, or is closed
            self._names_left = 0
            self._not_begun(error)

    @property
    def _nothing_ran(self) -> str:
        return "Nothing of this batch ran" if self.resumable else "The call was not run"

    def waits_for(self, handle: Handle) -> bool:
        """Return whether the call that made the handle is not answered yet."""
        return any(call.made is handle and self._is_open(call) for call in self._calls)

    def _is_open(self, call: ActiveCall) -> bool:
        return self._replies[call.parsed.position] is None

    def leave(self, why: str = "the runtime was closed", code: str = "runtime_closed") -> None:
        """Stop waiting: unanswered calls stay open in the store (R6, D10)."""
        if not self._answered.done():
            why += " before this batch was answered"
            if self.resumable:
                why += "; it is in the store, and `rt.turn(conversation, resume=True)` takes it up again"
            self._answered.set_exception(KeepholdError(why, code=code))

    async def _leave_caller(self, ended: Sequence[Handle]) -> None:
        """Give calls that are ended a moment to end before their caller continues."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_GRACE_SECS):
                await all_stopped(ended)

    def interrupt(self) -> list[Handle]:
        """R9: nobody waits for it any more. Calls that a crash would end are ended, those that have not started or can
        be started again are released, and the others keep running. The batch stays open in the store, to be resumed.
        Returns those that are being ended."""
        self._interrupted = True
        if not self.opened or self._released is not None or self._registry.closing:
            return []  # `_begin` sees to it, if the store has it; closing does by itself (R6)
        open_calls = [call for call in self._calls if self._is_open(call)]
        for call in open_calls:
            call.withdraw()
        made = [call.made for call in open_calls if call.made is not None and self._registry.runs(call.made)]
        again = [each for each in made if _starts_again(each)]
        lost = [each for each in made if each not in again and not each.stateful and not survives_crash(each)]
        admission = self._actions.admission
        admission.end_all(lost, INTERRUPTED, "turn_end")
        self._released = asyncio.get_running_loop().create_task(admission.release(again))
        return lost

    async def released(self) -> None:
        """Wait until an interrupted batch can be resumed."""
        if self._released is not None:
            await asyncio.shield(self._released)

    async def _check_launched(self, calls: Iterable[ActiveCall]) -> None:
        """Refuse spawns by another name whose arguments are wrong: like those that `read_call` refuses, they make no
        handle."""
        for call in calls:
            parsed = call.parsed
            launching = None if parsed.launch is None or parsed.tool is None else parsed.tool.launching
            if launching is None or launching.check is None:
                continue
            try:
                await launching.check(parsed.arguments)
            except ToolError as error:
                call.parsed = replace(parsed, action=None, handle_id=None, launch=None, error=error)

    async def _name_launched(self) -> None:
        """W12: number the id of a spawn by another name if it is taken."""
        names = self._registry.conversation(self._conversation).names
        spawns = [call.parsed for call in self._calls if call.parsed.action == "spawn"]
        taken = {parsed.handle_id for parsed in spawns if not _numbered(parsed)}
        for call in self._calls:
            launch = call.parsed.launch
            if launch is None or not _numbered(call.parsed):
                continue
            id, count = call.parsed.handle_id, 1
            while id in names or id in taken:
                count += 1
                id = f"{launch.id}_{count}"
                await self._registry.load(self._conversation, (id,))
            if id != call.parsed.handle_id:
                call.parsed = replace(call.parsed, handle_id=id)
            taken.add(id)

    def _conflict(self) -> tuple[ActiveCall, ToolError] | None:
        """B2: an id spawned twice, or one that is active, rejects the whole batch."""
        names = self._registry.conversation(self._conversation).names
        seen: set[str] = set()
        for call in self._calls:
            parsed = call.parsed
            id = parsed.handle_id
            if parsed.action != "spawn" or id is None:
                continue
            once = _once(parsed)
            active = id in names and (names[id].active or once is not None)
            if once is not None and (id in seen or active):
                return call, once
            if id in seen or active:
                why = "is active already" if active else "is spawned twice in this batch"
                return call, ToolError(
                    f"{self._nothing_ran}: handle id `{id}` {why}. Choose another id"
                    + (" or abort the handle first." if active else "."),
                    code="batch_rejected",
                )
            seen.add(id)
        return None

    def _make_handles(self) -> list[tuple[Handle, Record]]:
        """Make a handle for every one-shot call, and for every spawn that has an id, even a wrong one."""
        known = self._registry.conversation(self._conversation)
        room = self._limits.live_handles - len(known.live)
        new, first, now = [], self._lanes.first, self._registry.clock.now()
        for call in self._calls:
            parsed, tool = call.parsed, call.parsed.tool
            spawn = parsed.action == "spawn" and parsed.handle_id is not None
            if tool is None or parsed.action in ("fetch", "apply", "abort") or (parsed.error and not spawn):
                continue
            full = None if tool.unrecorded else self._registry.spool.disk.refusal()
            if full is not None:
                call.parsed = replace(parsed, error=full)
                continue
            counts = spawn and not (tool.launching is not None and tool.launching.parks)
            if counts and room <= 0:
                limit = self._limits.live_handles
                error = ToolError(
                    f"{limit} handles of this conversation are live, which is the limit ([limits] live_handles); "
                    "wait for some of them or abort them",
                    code="limit_exceeded",
                )
                call.parsed = replace(parsed, error=error)
                continue
            room -= counts
            new.append(self._make_handle(call, tool, spawn, now, first=parsed.position in first))
        return new

    def _make_handle(
        self, call: ActiveCall, tool: Tool, spawn: bool, now: float, *, first: bool
    ) -> tuple[Handle, Record]:
        """`first`: the call starts when the batch begins."""
        parsed, launch = call.parsed, call.parsed.launch
        label = to_utf8(parsed.call.id).decode()  # as it can be stored
        label = label if self._step else outside_label(label)
        record = Record(
            uid=self._registry.new_uid(),
            id=parsed.handle_id if spawn and parsed.handle_id else f"call:{label}",
            tool=tool.name,
            conversation=self._conversation,
            turn=self._turn,
            batch=self.number,
            position=parsed.position,
            call_id=label,
            stateful=spawn,
            state=PendingState(now),
            arguments=parsed.arguments,
            kind=tool.kind,
            priority=tool.spawn.priority,
            metadata=None if spawn else self._metadata,
            owner=self._registry.store.owner,
        )
        if launch is not None:
            record.kind, record.priority = launch.kind, launch.priority
            record.metadata = dict(launch.metadata) or None
        handle = Handle(record, tool)
        call.make(handle)
        # The commit that registers the handle records a known state, too: a refused spawn has stopped (B6), and a
        # call that starts at once runs.
        if parsed.error is not None:
            handle.settle(Stopped(now, None, now, error_of(parsed.error)))
            handle.owner = record.owner = None
        elif first and self._actions.may_start(call):
            handle.settle(Running(now, now))
        record.state, record.allowed = handle.state, call.allowed
        if tool.resources and parsed.error is None:
            record.resources = self._actions.resources(call)
        if tool.source == "builtin":
            record.call_id = ""  # a label finds what tools printed (O4)
        if not self.resumable and parsed.error is None and _may_be_over_at_once(handle):
            handle.unwritten = record
        return handle, record

    def _begin(self) -> None:
        self.opened = True
        if self._registry.closing:
            self.leave()
            return
        names = self._registry.conversation(self._conversation).names
        for call in self._calls:
            named = names.get(call.parsed.handle_id or "")
            if named is not None:
                call.named = named
                self._named[named.uid] = self._named.get(named.uid, 0) + 1
        self._lanes.pump()
        if self._interrupted:
            self.interrupt()
        if not self._calls:
            self._answered.set_result(None)

    def _start(self, call: ActiveCall) -> None:
        parsed = call.parsed
        if not self._is_open(call) or self._released is not None:
            return
        begun = parsed.position in self._begun
        if self._cancelled and not begun:
            self._withdraw(call)
            return
        if parsed.error is not None and not begun:
            # B6: the refusal is also the end of its handle.
            refusal = error_reply(parsed.error, parsed.tool) if call.made is None else self._actions.show(call.made)
            self._answer(call, refusal)
            return
        try:
            if begun:
                self._actions.follow(call)
            else:
                self._actions.start(call)
        except Exception as error:  # of a tool's runtime; it must not leave the call without its answer (C9)
            self._answer(call, failed_reply(parsed.call.id, error))

    def _answer(self, call: ActiveCall, reply: Reply) -> None:
        position = call.parsed.position
        if self._replies[position] is not None or self._released is not None:
            return
        self._replies[position] = self._suggesting(call, reply)
        self._left -= 1
        if call.made is not None and self.failed is None:
            self.failed = _fails_turn(call.made)
            if self.failed is not None:
                self.cancel()
        if (named := call.named) is not None:
            self._named[named.uid] -= 1
            if not self._named[named.uid]:
                del self._named[named.uid]
                self._registry.notify_watchers(named)  # it may count as blocked from now on
        call.answered()
        self._lanes.returned(call)
        if self._left == 0 and not self._answered.done():
            self._answered.set_result(None)

    def _suggesting(self, call: ActiveCall, reply: Reply) -> Reply:
        """Add the call that would have worked to the refusal of a wrong one."""
        if call.parsed.error is None and not reply.is_error:
            return reply
        known = self._registry.conversation(self._conversation)
        live = {handle.id: handle for handle in known.live.values() if handle.stateful}
        return with_suggestion(reply, call.parsed, {**live, **known.names})

    def _parked(self, call: ActiveCall) -> None:
        """D10: the serial lane continues; the batch waits, with `park_after` only for a while."""
        self._lanes.returned(call)
        if self._park_at is not None:
            asyncio.get_running_loop().call_at(self._park_at, self._stop_waiting, call)

    def _stop_waiting(self, call: ActiveCall) -> None:
        done = self._answered.done() or self._registry.closing or self._released is not None
        if not done and self._is_open(call) and call.made is not None and call.made.parked:
            self._registry.run_soon(self.promote_to_handle(call.made))

    @property
    def asks_permission(self) -> bool:
        """Whether the user has not yet decided whether an unanswered call may run."""
        return any(call.asking is not None and self._is_open(call) for call in self._calls)

    @property
    def needs_person(self) -> bool:
        """Whether an unanswered call waits for the user: for permission, an answer, or the approval of its result."""
        made = (call.made for call in self._calls if call.made is not None and self._is_open(call))
        return self.asks_permission or any(self._actions.asks_user(handle) for handle in made)

    def answer_now(self) -> None:
        """M7: answer the open calls with the states of their handles; one-shot calls become handles like parked ones
        (D10), and keep their lanes. Tools that wait see to it themselves (`Handles.within`)."""
        for call in self._calls if self.opened else ():
            handle = call.made
            if not self._is_open(call):
                continue
            if handle is None and call.asking is not None:
                call.withdraw()
                why = "Nobody has permitted this in time, so nothing was sent; call again to ask again"
                self._answer(call, error_reply(ToolError(why, code="permission_denied")))
            elif handle is None or handle.stateful:
                self._answer(call, self._actions.show(call.handle))
            elif not handle.tool.unrecorded and handle.kind != "timer":
                self._registry.run_soon(self.promote_to_handle(handle))

    async def promote_to_handle(self, handle: Handle, *, left: bool = False) -> None:
        """Name a one-shot call and answer with that name: it is parked (D10), or its client has left (`left`).

        The name is not one of a handle that has stopped, either: labels of MCP clients are small numbers, which each
        client counts from 1, and the older result could no longer be read."""
        call = next(call for call in self._calls if call.made is handle)
        number = 1
        while True:
            suffix = "" if number == 1 else f"_{number if number < _NUMBERED else secrets.token_hex(4)}"
            id = call_id(call.parsed.call.id) + suffix
            try:
                await self._registry.load(self._conversation, (id,))
            except KeepholdError:
                if self._registry.closing:
                    return  # the next runtime finds it by its label
                raise
            taken = self._registry.conversation(self._conversation).names.get(id)
            if taken is None:
                break
            number += 1
        if left or (self._is_open(call) and handle.active):
            try:
                await self._registry.promote_to_handle(handle, id)
            except KeepholdError as error:
                if error.code == "batch_rejected":  # another process was quicker with the id
                    await self.promote_to_handle(handle, left=left)
                return
            self._answer(call, self._actions.show(handle))

    def cancel(self) -> None:
        """B7: cancel every call; those that do not return soon are answered without a result."""
        if self._cancelled:
            return
        self._cancelled = True
        open_calls = [call for call in self._calls if self._is_open(call)]
        for call in open_calls:
            call.withdraw()
        self._actions.cancel([call.made for call in open_calls if call.made is not None and not call.made.stateful])
        asyncio.get_running_loop().call_later(CANCEL_GRACE_SECS, self._answer_the_rest)

    def _answer_the_rest(self) -> None:
        for call in self._calls:
            if self._is_open(call):
                self._withdraw(call)

    def _withdraw(self, call: ActiveCall) -> None:
        call.withdraw()
        if call.made is not None and call.made.run is None:
            self._actions.cancel([call.made])
        self._answer(call, Reply(CANCELLED, CANCELLED, code="cancelled"))


def _may_be_over_at_once(handle: Handle) -> bool:
    """Return whether a one-shot call that a crash would end anyway may be written when it ends or, if it lasts, soon.

    Most have ended by then, and cost one commit instead of two. No other process can know of such a call before."""
    tool = handle.tool
    lost_with_us = tool.on_crash == "fail" and tool.retry.policy == "never" and tool.source in ("python", "builtin")
    lost_with_us = lost_with_us and tool.engine is None
    return not handle.stateful and isinstance(handle.state, Running) and lost_with_us and tool.result == "unattended"


def _starts_again(handle: Handle) -> bool:
    """As `waits_for_resume`, of a handle that runs or waits here."""
    parks = handle.run is not None and handle.run.is_parking
    return waits_for_resume(handle.decided, handle.tool.source) and not parks


def _once(parsed: ParsedCall) -> ToolError | None:
    """Refuse a spawn by another name whose id is taken, if its tool takes no id twice (W7)."""
    launching = parsed.tool.launching if parsed.tool is not None else None
    if launching is None or not launching.once:
        return None
    return ToolError(launching.once.format(id=parsed.handle_id), code="batch_rejected")


def _numbered(parsed: ParsedCall) -> bool:
    return parsed.launch is not None and parsed.tool is not None and getattr(parsed.tool.launching, "numbered", False)


def _fails_turn(handle: Handle) -> Failure | None:
    """Return the error of a one-shot call whose deadline passed and fails the turn (D11)."""
    state, parking = handle.state, handle.parking
    if handle.stateful or parking is None or parking.on_timeout != "fail_turn" or not isinstance(state, Stopped):
        return None
    return state.outcome if isinstance(state.outcome, Failure) and state.ended_by == "timeout" else None
