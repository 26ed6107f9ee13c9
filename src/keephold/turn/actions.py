"""What each kind of call does: one-shot, spawn, fetch, apply, abort (C1–C8).

`start` begins a call and sees to it that its `answer` is called, once or more; the first counts.
"""

import asyncio
from collections.abc import Callable, Container, Sequence
from typing import Any

from keephold.durable.calls import Durability
from keephold.errors import ToolError
from keephold.handles.handle import Handle, OnStop, Watcher
from keephold.handles.observing import answered
from keephold.handles.question import answer_fits, expected, question_key
from keephold.handles.registry import Registry
from keephold.handles.state import Failure, Outcome, Pending, Reply, Running, Stopped, Waiting, name
from keephold.handles.view import Handles
from keephold.limits import Limits
from keephold.schema.arguments import decode_input
from keephold.store.base import Rewritten
from keephold.tools.base import Action, Invocation, Launching, Tool
from keephold.tools.toolbox import Toolbox
from keephold.turn.admission import Admission
from keephold.turn.permission import ASK, Permission, Verdict, require
from keephold.turn.questions import not_answered
from keephold.turn.relay import Relay
from keephold.turn.replies import CANCELLED, Replies, aborted, error_reply, failed_reply
from keephold.turn.send_input import read_input
from keephold.turn.settle import Settle, printed
from keephold.turn.slot import By, Slot, backs_out, checked_again, slot_of

Answer = Callable[[Reply], None]


class Actions:
    """The calls of one runtime, begun."""

    def __init__(
        self,
        registry: Registry,
        durability: Durability,
        admission: Admission,
        permission: Permission,
        replies: Replies,
        relay: Relay,
        toolbox: Toolbox,
        limits: Limits,
    ) -> None:
        self._registry = registry
        self._limits = limits
        self._toolbox = toolbox
        self._durability = durability
        self._relay = relay
        self._admission = admission
        self._permission = permission
        self._replies = replies

    def start(
        self, slot: Slot, handles: Handles, already_handled: Container[str], answer: Answer, parked: Callable[[], None]
    ) -> None:
        """Begin the call of a slot. Raises `ToolError` if the call itself is wrong (C9).

        `parked` is called when a one-shot call waits for its completion from outside (D10).
        """
        if slot.action is None or slot.action == "spawn":
            self._start_handle(slot, handles, already_handled, answer, parked)
            return
        handle = self._named_handle(slot, handles)
        if self._relay.elsewhere(handle):
            self._relay.ask(handle, slot, answer)
        else:
            self.act(slot, handle, answer)

    async def perform(
        self,
        handle: Handle,
        action: Action,
        arguments: dict[str, Any] | None = None,
        *,
        by: By,
        secret: bool = False,
        answers: str | None = None,
        declines: bool = False,
    ) -> Reply:
        """Fetch, apply or abort a handle outside any batch, in whichever process it runs; a refusal is an error reply.

        `secret`, `answers` and `declines` are those of `Slot`. The store never gets a secret, nor what a person types.
        """
        slot = slot_of(handle, action, arguments or {}, by)
        slot.secret, slot.answers, slot.declines = secret, answers, declines
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def answer(reply: Reply) -> None:
            if not answered.done():
                answered.set_result(reply)

        try:
            if self._relay.elsewhere(handle):
                self._relay.ask(handle, slot, answer)
            else:
                self.act(slot, handle, answer)
        except ToolError as error:
            return error_reply(error)
        return await answered

    def act(self, slot: Slot, handle: Handle, answer: Answer) -> None:
        """Fetch, apply or abort a handle of this runtime, or one that nobody runs, if that is permitted (P1)."""
        tool = handle.tool
        if slot.action == "apply":
            if slot.by == "person" and not slot.declines:
                slot.arguments = read_input(handle, slot.arguments)
            _check_takes_input(handle)  # before anybody is asked about it
        if slot.declines:
            self._decline(slot, handle, answer)
            return
        verdict = None
        if slot.by != "person":
            verdict = self._permission.to_run(tool, slot.action, handle.conversation, slot.people)
        if verdict == ASK:
            ended = OnStop(lambda _: self._ended_meanwhile(slot, handle, answer))

            def said(verdict: Outcome | None) -> None:
                handle.unwatch(ended)
                self._act_or_refuse(slot, handle, verdict, answer)

            self._ask(slot, tool, handle.conversation, said)
            if handle.active:
                handle.watch(ended)
        else:
            self._act(slot, handle, verdict, answer)

    def _decline(self, slot: Slot, handle: Handle, answer: Answer) -> None:
        """Q7: the user does not want to answer the question."""
        state = handle.state
        _check_asks(handle, slot.answers or "")
        assert isinstance(state, Waiting) and handle.run is not None
        handle.watch(OnStop(lambda _: answer(self._replies.handle(handle))))
        handle.run.end(not_answered(state.question.id, None), "self")

    def _act(self, slot: Slot, handle: Handle, verdict: Outcome | None, answer: Answer) -> None:
        skipped = require(verdict)
        if skipped is not None:
            answer(Reply(skipped, skipped))
        elif slot.action == "fetch":
            self._fetch(handle, slot.arguments.get("view"), answer)
        elif slot.action == "apply":
            self._apply(handle, slot, answer)
        else:
            self._abort(handle, slot.by, answer)

    def _fetch(self, handle: Handle, view: str | None, answer: Answer) -> None:
        """C5. A terminal is looked at once, so that the reply says whether its program waits for input."""
        if handle.tool.source == "terminal" and handle.run is not None:
            handle.run.probe()
            self._registry.when_visible(lambda: answer(self._replies.handle(handle, view)))
        else:
            answer(self._replies.handle(handle, view))

    def _ended_meanwhile(self, slot: Slot, handle: Handle, answer: Answer) -> None:
        if slot.asking is not None:  # P5: a prompt is withdrawn when its handle ends
            slot.withdraw()
            why = f"Handle `{handle.id}` has stopped while the person was asked to permit this; call again"
            answer(error_reply(ToolError(why, code="not_running")))

    def _act_or_refuse(self, slot: Slot, handle: Handle, verdict: Outcome | None, answer: Answer) -> None:
        try:
            self._act(slot, handle, verdict, answer)
        except Exception as error:
            answer(failed_reply(slot.call.id, error))

    def _ask(self, slot: Slot, tool: Tool, conversation: str, then: Callable[[Outcome | None], None]) -> None:
        """Ask the person; `then` gets None to go on, with the arguments that the person let pass in the slot."""

        def check(edited: Any) -> dict[str, Any]:
            return checked_again(slot, tool, edited, self._toolbox, self._limits)

        def said(verdict: Outcome | dict[str, Any]) -> None:
            slot.asking = None
            if isinstance(verdict, dict):
                slot.arguments = verdict
                then(None)
            else:
                then(verdict)

        uid = slot.handle.uid if slot.handle is not None else None
        told = answered(self._registry, uid, "permission", said)
        slot.asking = self._permission.ask(
            tool, slot.action, slot.handle_id, slot.arguments, conversation, check, told, slot.people, uid
        )

    def _named_handle(self, slot: Slot, handles: Handles) -> Handle:
        assert slot.tool is not None and slot.handle_id is not None
        handle = handles.named(slot.handle_id)
        if handle.tool.name != slot.tool.name:
            raise ToolError(
                f"Handle `{handle.id}` belongs to tool `{handle.tool.name}`, not to `{slot.tool.name}`; "
                f"call `{handle.tool.name}` for it",
                code="handle_of_another_tool",
            )
        return handle

    def _start_handle(
        self, slot: Slot, handles: Handles, already_handled: Container[str], answer: Answer, parked: Callable[[], None]
    ) -> None:
        handle = slot.handle
        assert handle is not None and slot.tool is not None
        verdict = self.verdict(slot, handle.conversation)
        if verdict != ASK or isinstance(handle.decided, Stopped):
            verdict = None if verdict == ASK else verdict
            self._start_allowed(slot, handle, verdict, handles, already_handled, answer, parked)
            return
        given = slot.arguments
        ended = OnStop(lambda _: self._ended_unstarted(slot, handle, answer))

        def said(verdict: Outcome | None) -> None:
            handle.unwatch(ended)
            if verdict is None and slot.arguments is not given:
                self._rewrite(slot, handle)
            self._start_allowed(slot, handle, verdict, handles, already_handled, answer, parked)

        self._ask(slot, slot.tool, handle.conversation, said)
        handle.watch(ended)
        if slot.patience is not None and handle.stateful:
            loop = asyncio.get_running_loop()
            loop.call_later(slot.patience, self._still_asked, slot, handle, answer)

    def _still_asked(self, slot: Slot, handle: Handle, answer: Answer) -> None:
        """Whoever spawned it is not to wait for a person any longer: the handle is pending, and goes on by itself."""
        if slot.asking is not None:
            answer(self._replies.handle(handle))

    def _ended_unstarted(self, slot: Slot, handle: Handle, answer: Answer) -> None:
        if slot.asking is not None:  # P5: a prompt is withdrawn when its handle ends
            slot.withdraw()
            answer(self._shown(handle))

    def _rewrite(self, slot: Slot, handle: Handle) -> None:
        """P5: what a person edited is what runs and what is recorded."""
        op = Rewritten(handle.uid, handle.fence, slot.arguments, self.resources(slot, handle))
        self._registry.commit((op,), lambda _: None, lambda _: None, keep=True)

    def _start_allowed(
        self,
        slot: Slot,
        handle: Handle,
        refusal: Outcome | None,
        handles: Handles,
        already_handled: Container[str],
        answer: Answer,
        parked: Callable[[], None],
    ) -> None:
        if isinstance(handle.decided, Stopped):  # ended while the person was asked
            self._registry.when_visible(lambda: answer(self._shown(handle)))
            return
        if refusal is not None:
            self.stop_unstarted(slot, refusal, answer)
            return
        invocation = self._invocation(slot, handle, handles)
        if not handle.stateful:
            handle.watch(_OneShot(self, already_handled, answer, parked))
        self._admission.admit(handle, invocation)
        if handle.stateful and handle.decided is handle.state:
            self._spawned(handle, answer)
        elif handle.stateful:
            self._registry.when_visible(lambda: self._spawned(handle, answer))
        else:
            self.give_up_if_hopeless(handle, already_handled)

    def _invocation(self, slot: Slot, handle: Handle, handles: Handles | None) -> Invocation:
        assert slot.tool is not None
        return Invocation(
            tool=slot.tool,
            arguments=slot.arguments,
            uid=handle.uid,
            call_id=slot.call.id,
            conversation=handle.conversation,
            turn=handle.turn,
            stateful=handle.stateful,
            handles=handles,
            durability=self._durability,
            attempt=handle.attempt,
            fence=handle.fence,
        )

    def verdict(self, slot: Slot, conversation: str) -> Verdict:
        """Whether a call may run at all."""
        assert slot.tool is not None
        if slot.tool.requires_durable and not self._registry.store.durable:
            return Failure(
                f"Tool `{slot.tool.name}` needs a store that outlives the process, and this one is `memory:`. "
                'Open the runtime with store="sqlite:///work.db", or set [store] url.',
                "requires_durable",
            )
        return self._permission.to_run(slot.tool, slot.action, conversation, slot.people)

    def may_start(self, slot: Slot, conversation: str) -> bool:
        """Whether nothing stands between the call and its start, so that it may be registered as running."""
        tool = slot.tool
        return tool is not None and not self._admission.queues(tool) and self.verdict(slot, conversation) is None

    def resources(self, slot: Slot, handle: Handle) -> tuple[str, ...]:
        """The names of the resources the call needs (B5)."""
        return self._admission.resources(self._invocation(slot, handle, None))

    def follow(self, slot: Slot, already_handled: Container[str], answer: Answer, parked: Callable[[], None]) -> None:
        """Answer a call that was begun before this batch was taken up again (B9)."""
        handle = slot.handle
        assert handle is not None
        if handle.stateful:
            self._spawned(handle, answer)
        else:
            handle.watch(_OneShot(self, already_handled, answer, parked))
            if handle.parked:
                parked()

    def stop_unstarted(self, slot: Slot, outcome: Outcome, answer: Answer) -> None:
        """The call never runs: it is refused, skipped or invalid (B6)."""
        handle = slot.handle
        assert handle is not None
        self._registry.end(handle, outcome)
        self._registry.when_visible(lambda: answer(self._shown(handle)))

    def _shown(self, handle: Handle) -> Reply:
        """The end of a call that never ran."""
        outcome = handle.state.outcome if isinstance(handle.state, Stopped) else None
        if handle.tool.launching is not None and isinstance(outcome, Failure):
            return error_reply(ToolError(outcome.message, code=outcome.code), handle.tool)
        return self._replies.handle(handle) if handle.stateful else self._replies.outcome(handle)

    def _spawned(self, handle: Handle, answer: Answer) -> None:
        """C4: without `apply` it answers as soon as it has started, with it when it has settled."""
        if handle.tool.launching is not None:
            self._launched(handle, handle.tool.launching, answer)
        elif isinstance(handle.state, Running) and "apply" in handle.tool.actions and not handle.parked:
            self._settle(handle, 0, answer)
        else:
            answer(self._replies.handle(handle))

    def _launched(self, handle: Handle, how: Launching, answer: Answer) -> None:
        """A spawn by another name is answered in its own words (W7, W12)."""
        if how.parks and handle.active and not handle.parked:
            handle.watch(_OnPark(lambda _: self._launched(handle, how, answer)))
        else:
            self._registry.run_soon(self._tell_launched(handle, how, answer))

    async def _tell_launched(self, handle: Handle, how: Launching, answer: Answer) -> None:
        try:
            answer(self._replies.object(await how.reply(handle, self._durability)))
        except Exception as error:
            answer(failed_reply(handle.call_id, error, handle.tool))

    def show(self, handle: Handle) -> Reply:
        """A handle's state as a reply (C3)."""
        return self._replies.handle(handle)

    def one_shot_stopped(self, handle: Handle, answer: Answer) -> None:
        answer(self._replies.outcome(handle))

    def give_up_if_hopeless(self, handle: Handle, already_handled: Container[str]) -> None:
        """B5: a one-shot call must not wait for what only its own caller can free."""
        holder = self._admission.hopeless(handle, already_handled) if isinstance(handle.state, Pending) else None
        if holder is not None:
            error = Failure(
                f"Handle `{holder.id}` (tool `{holder.tool.name}`) holds what this call needs and will not free it "
                "by itself; finish or abort it first",
                "resource_held",
            )
            self._admission.end(handle, error, "self")

    def _apply(self, handle: Handle, slot: Slot, answer: Answer) -> None:
        """C6: input for a running tool, the answer for a waiting one; which of them, is what the caller can see."""
        if slot.by == "model" and handle.run is not None and handle.run.unseen:
            handle.run.probe()  # a password prompt that nobody has noticed yet is not the assistant's to answer (Q4)
        if handle.decided is handle.state:
            self._apply_now(handle, slot, answer)
        else:
            self._registry.when_visible(lambda: self._apply_or_refuse(handle, slot, answer))

    def _apply_or_refuse(self, handle: Handle, slot: Slot, answer: Answer) -> None:
        try:
            self._apply_now(handle, slot, answer)
        except ToolError as error:
            answer(error_reply(error))

    def _apply_now(self, handle: Handle, slot: Slot, answer: Answer) -> None:
        given, state, run, since = slot.arguments.get("input"), handle.state, handle.run, printed(handle)
        _check_takes_input(handle)
        assert run is not None
        if handle.driver is not None and slot.by == "model":
            raise ToolError(
                f"A person is driving handle `{handle.id}` at the moment; nothing was sent. Look with `fetch`, or wait "
                "until it is handed back.",
                code="driven_by_person",
            )
        if slot.answers is not None:
            _check_asks(handle, slot.answers)
        if slot.secret and not (isinstance(state, Waiting) and state.question.secret):
            raise ToolError(f"Handle `{handle.id}` asks for no secret now; nothing was sent", code="not_running")
        if isinstance(state, Waiting) and not backs_out(slot):
            if slot.by == "model" and not run.open_to_caller:
                raise ToolError(
                    f"Only a person may answer question `{state.question.id}` of handle `{handle.id}`; it stays open. "
                    "Wait for them with `await`, or abort the handle.",
                    code="question_exclusive",
                )
            value = decode_input(given, state.question)
            if not answer_fits(state.question, value):
                raise ToolError(
                    f"the answer to question `{state.question.id}` of handle `{handle.id}` must be "
                    f"{expected(state.question)}; the question stays open",
                    code="bad_answer",
                )
            run.answer(value, slot.cause)
        else:
            run.write(slot.arguments, slot.cause)
        self._registry.when_visible(lambda: self._settle(handle, since, answer))

    def _settle(self, handle: Handle, since: int, answer: Answer) -> None:
        Settle(handle, lambda because: answer(self._replies.handle(handle, because=because)), since=since)

    def _abort(self, handle: Handle, by: By, answer: Answer) -> None:
        """C7: the reply is the stopped state; aborting twice is harmless."""
        if handle.active:
            handle.watch(OnStop(lambda _: answer(self._replies.handle(handle))))
            self._admission.end(handle, aborted(by), "abort")
        else:
            answer(self._replies.handle(handle))

    def cancel(self, handles: Sequence[Handle]) -> None:
        """B7: the turn is cancelled; tell one-shot calls."""
        self._admission.end_all(handles, Failure(CANCELLED, "cancelled"), "cancel")


def _check_takes_input(handle: Handle) -> None:
    """C6: on a handle that is pending, parked, over or being ended, an `apply` is an error that says so."""
    state, run = handle.state, handle.run
    if handle.parked:
        raise ToolError(
            f"Handle `{handle.id}` waits for its completion from outside and takes no input", code="not_running"
        )
    if run is None or run.ending or run.delivering or not isinstance(state, Running | Waiting):
        what = name(state)
        if isinstance(state, Running | Waiting):  # as far as can be seen yet
            what = "being ended" if run is not None and run.ending else "over"
        raise ToolError(
            f"Handle `{handle.id}` is {what}; only a running or waiting one takes input", code="not_running"
        )


def _check_asks(handle: Handle, answers: str) -> None:
    """Refuse an answer if its question, named by id or key, is not open; empty stands for any question."""
    state = handle.state
    if isinstance(state, Waiting) and answers in ("", state.question.id, question_key(state.question, state.number)):
        return
    which = "no question" if not answers else f"no question `{answers}`"
    raise ToolError(f"Handle `{handle.id}` asks {which} now; nothing was sent", code="not_running")


class _OnPark(OnStop):
    """Told once: that it is parked, or has stopped before it was."""

    __slots__ = ()

    def parked(self, handle: Handle) -> None:
        handle.unwatch(self)
        self.stopped(handle)


class _OneShot(Watcher):
    """Watches the handle of a one-shot call."""

    __slots__ = ("_actions", "_already_handled", "_answer", "_parked")

    def __init__(
        self, actions: Actions, already_handled: Container[str], answer: Answer, parked: Callable[[], None]
    ) -> None:
        self._actions = actions
        self._already_handled = already_handled
        self._answer = answer
        self._parked = parked

    def stopped(self, handle: Handle) -> None:
        self._actions.one_shot_stopped(handle, self._answer)

    def parked(self, handle: Handle) -> None:
        self._parked()

    def handle_changed(self, handle: Handle) -> None:
        self._actions.give_up_if_hopeless(handle, self._already_handled)
