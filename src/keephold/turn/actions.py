"""Carry out each kind of call: one-shot, spawn, fetch, apply, abort (C1–C8).

`start` begins a call and sees to it that the call is answered, once or more; the first answer counts. `send` is what
the user types, which no model sends.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from keephold.durable.calls import Durability
from keephold.errors import ToolError
from keephold.handles.handle import Handle, OnStop, Watcher
from keephold.handles.observing import answered
from keephold.handles.question import answer_fits, expected, problem_with, question_key, read_answer
from keephold.handles.registry import Registry
from keephold.handles.state import EndedBy, Failure, Outcome, PendingState, Reply, Running, Stopped, Waiting, name
from keephold.handles.view import Handles
from keephold.limits import Limits
from keephold.schema.arguments import decode_input
from keephold.schema.shared import verb_of
from keephold.store.base import Allowed, Record, Rewritten
from keephold.tools.base import Action, Invocation, Launching, Tool
from keephold.tools.toolbox import Toolbox
from keephold.turn.admission import Admission
from keephold.turn.permission import Ask, Granted, Permission, require
from keephold.turn.prompts import RunTool, digest
from keephold.turn.questions import is_exclusive, not_answered
from keephold.turn.relay import Relay
from keephold.turn.replies import CANCELLED, Replies, error_reply, failed_reply
from keephold.turn.settle import Settle, printed
from keephold.turn.tool_call import (
    ActiveCall,
    By,
    ParsedCall,
    ToolCall,
    by_handle,
    call_on,
    checked_again,
)


class Actions:
    """Carries out the calls of one runtime."""

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
        self.admission = admission
        self._permission = permission
        self._replies = replies

    def start(self, call: ActiveCall) -> None:
        """Begin a call of a batch. Raises `ToolError` if the call itself is wrong (C9)."""
        if call.made is not None:
            self._start_handle(call)
            return
        call.handle = self._named_handle(call)
        self.act_anywhere(call)

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
        ends: tuple[Failure, EndedBy] | None = None,
    ) -> Reply:
        """Fetch, apply or abort a handle outside any batch, in whichever process it runs; a refusal is an error reply.

        `secret`, `answers`, `declines` and `ends` are those of `ParsedCall`. The store never gets a secret, nor what a
        person types.
        """
        parsed = call_on(handle, action, arguments or {}, by)
        parsed = replace(parsed, secret=secret, answers=answers, declines=declines, ends=ends)
        done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def answer(_: ActiveCall, reply: Reply) -> None:
            if not done.done():
                done.set_result(reply)

        call = ActiveCall(parsed, answer, handle=handle)
        try:
            self.act_anywhere(call)
            return await done
        except ToolError as error:
            return error_reply(error)
        finally:
            call.withdraw()  # if this was cancelled: nobody waits for the decision

    async def send(
        self,
        handle: Handle,
        given: Any | UnsetType,
        keys: Sequence[str] = (),
        *,
        secret: bool = False,
        answers: str | None = None,
    ) -> Reply:
        """Send a handle what the user types, and return its state when it has settled; None closes its stdin.

        This is an `apply` that no model made. It may answer what only a person may (Q4), and needs no permission.
        Raises `ToolError`.
        """
        arguments: dict[str, Any] = {"keys": list(keys)} if keys else {}
        if given is not UNSET:
            arguments["input"] = given
        reply = await self.perform(handle, "apply", arguments, by="person", secret=secret, answers=answers)
        if reply.is_error:
            raise ToolError(reply.result, code=reply.code or "tool_error")
        return reply

    def act_anywhere(self, call: ActiveCall) -> None:
        """Like `act`, in whichever process runs the handle."""
        if self._relay.elsewhere(call.handle):
            self._relay.forward(call)
        else:
            self.act(call)

    def act(self, call: ActiveCall) -> None:
        """Fetch, apply or abort a handle of this runtime, or one that no process runs, if that is permitted (P1)."""
        parsed, handle = call.parsed, call.handle
        if parsed.action == "apply":
            if parsed.by == "person" and not parsed.declines:
                call.parsed = replace(parsed, arguments=_read_input(handle, parsed.arguments))
            _check_takes_input(handle)  # before the user is asked about it
        if parsed.declines:
            self._when_visible(call, self._decline)
            return
        verdict = self._decide(call, handle.tool)
        if not isinstance(verdict, Ask):
            self._act(call, verdict)
            return
        stopped = OnStop(lambda _: self._stopped_while_asked(call))

        def decided(verdict: Outcome | None) -> None:
            handle.unwatch(stopped)
            try:
                self._act(call, verdict)
            except Exception as error:
                call.answer(failed_reply(parsed.call.id, error))

        self._ask(call, verdict, handle.tool, decided)
        if handle.active:
            handle.watch(stopped)

    def _decline(self, call: ActiveCall) -> None:
        """Q7: the user does not want to answer the question."""
        handle, state = call.handle, call.handle.state
        _check_takes_input(handle)
        _check_asks(handle, call.parsed.answers or "")
        assert isinstance(state, Waiting) and handle.run is not None
        handle.watch(OnStop(lambda _: call.answer(self._replies.handle(handle))))
        handle.run.end(not_answered(state.question.id, None), "self")

    def _act(self, call: ActiveCall, verdict: Outcome | None) -> None:
        skipped = require(verdict)
        if skipped is not None:
            call.answer(Reply(skipped, skipped))
        elif call.parsed.action == "fetch":
            self._fetch(call)
        elif call.parsed.action == "apply":
            self._apply(call)
        else:
            self._abort(call)

    def _fetch(self, call: ActiveCall) -> None:
        """C5. A terminal is probed once, so that the reply says whether its program waits for input."""
        handle, arguments = call.handle, call.parsed.arguments
        show = partial(self._replies.handle, handle, arguments.get("view"), scrollback=arguments.get("scrollback") or 0)
        if handle.tool.source == "terminal" and handle.run is not None:
            handle.run.probe()
            self._registry.when_visible(lambda: call.answer(show()))
        else:
            call.answer(show())

    def _stopped_while_asked(self, call: ActiveCall) -> None:
        if call.asking is not None:  # P5: a prompt is withdrawn when its handle ends
            call.withdraw()
            why = f"Handle `{call.handle.id}` has stopped while the person was asked to permit this; call again"
            call.answer(error_reply(ToolError(why, code="not_running")))

    # Permission

    def _decide(self, call: ActiveCall, tool: Tool) -> Outcome | Ask | None:
        """P1: decide whether a call may run. No other place does."""
        parsed = call.parsed
        if parsed.by != "model" or parsed.ends is not None:  # a principal only answers questions
            return None
        keeps = tool.on_crash == "keep" and parsed.action == "spawn"
        store = self._registry.store
        if keeps and store.durable and store.directory is None:
            return Failure(
                f'Tool `{tool.name}` keeps its process on this machine (`on_crash = "keep"`), and only a store in a '
                'file of this machine can do that. Open the runtime with store="sqlite:///work.db".',
                "requires_durable",
            )
        if (tool.requires_durable or keeps) and parsed.action in (None, "spawn") and not store.durable:
            return Failure(
                f"Tool `{tool.name}` needs a store that outlives the process, and this one is `memory:`. "
                'Open the runtime with store="sqlite:///work.db", or set [store] url.',
                "requires_durable",
            )
        verdict = self._permission.to_run(tool, parsed.action, call.handle.conversation, call.prompt_queue)
        if not isinstance(verdict, Allowed):
            return verdict
        call.allowed = verdict
        return None

    def _ask(self, call: ActiveCall, ask: Ask, tool: Tool, then: Callable[[Outcome | None], None]) -> None:
        """Ask the user; `then` gets None to run the call, with the permitted arguments in it."""
        parsed, made = call.parsed, call.made.uid if call.made is not None else None
        toolbox = self._toolbox.of(call.handle.conversation)

        def check(edited: Any) -> dict[str, Any]:
            return checked_again(parsed, tool, edited, toolbox, self._limits)

        def decided(verdict: Outcome | Granted) -> None:
            call.asking = None
            if isinstance(verdict, Granted):
                call.allowed = verdict.allowed
                if verdict.arguments is not parsed.arguments:
                    call.parsed = replace(parsed, arguments=verdict.arguments)
                then(None)
            else:
                then(verdict)

        prompt = RunTool(
            tool=tool.name,
            action=parsed.action,
            id=parsed.handle_id,
            arguments=parsed.arguments,
            conversation=call.handle.conversation,
            edit=ask.edit,
            digest=digest(tool.name, parsed.action, parsed.handle_id, parsed.arguments),
            uid=call.handle.uid,
        )
        asking = self._permission.ask(ask, prompt, check, answered(self._registry, made, "permission", decided))
        call.asking = asking if asking.then is not None else None  # None: a decision since `_decide` covers this call

    def _named_handle(self, call: ActiveCall) -> Handle:
        parsed = call.parsed
        assert parsed.tool is not None and parsed.handle_id is not None and call.handles is not None
        handle = call.handles.named(parsed.handle_id)
        if verb_of(parsed.tool.name) is not None:
            call.parsed = by_handle(parsed, handle.tool, self._toolbox.of(handle.conversation))
        elif handle.tool.name != parsed.tool.name:
            raise ToolError(
                f"Handle `{handle.id}` belongs to tool `{handle.tool.name}`, not to `{parsed.tool.name}`; "
                f"call `{handle.tool.name}` for it",
                code="handle_of_another_tool",
            )
        return handle

    # Starting

    def may_start(self, call: ActiveCall) -> bool:
        """Decide whether the call starts at once, so that it may be registered as running."""
        tool = call.parsed.tool
        assert tool is not None
        if not self.admission.queues(tool):
            call.verdict = self._decide(call, tool)
        return call.verdict is None

    def start_again(self, handle: Handle, record: Record) -> None:
        """Start a call that a dead process registered and never started: its user may not have permitted it (P5)."""
        parsed = ParsedCall(
            call=ToolCall(handle.call_id, handle.tool.name),
            tool=handle.tool,
            action="spawn" if handle.stateful else None,
            arguments=record.arguments,
            handle_id=handle.id if handle.stateful else None,
        )
        prompt_queue = self._permission.queue_of(handle)
        call = ActiveCall(
            parsed, lambda *_: None, handles=Handles(self._registry, handle.conversation), prompt_queue=prompt_queue
        )
        call.make(handle)
        call.restore(record)
        self._start_handle(call)

    def _start_handle(self, call: ActiveCall) -> None:
        handle, tool, given, allowed = call.handle, call.parsed.tool, call.parsed, call.allowed
        assert tool is not None
        if isinstance(handle.decided, Stopped):
            call.verdict = None
        elif isinstance(call.verdict, UnsetType):
            call.verdict = self._decide(call, tool)
        verdict = call.verdict
        if not isinstance(verdict, Ask):
            if call.allowed != allowed:
                self._record_permission(call, edited=False)
            self._start_allowed(call, verdict)
            return
        stopped = OnStop(lambda _: self._stopped_unstarted(call))

        def decided(refusal: Outcome | None) -> None:
            handle.unwatch(stopped)
            if refusal is None:
                self._record_permission(call, edited=call.parsed is not given)
            self._start_allowed(call, refusal)

        self._ask(call, verdict, tool, decided)
        handle.watch(stopped)
        if call.patience is not None and handle.stateful:
            asyncio.get_running_loop().call_later(call.patience, self._answer_pending, call)

    def _answer_pending(self, call: ActiveCall) -> None:
        """Answer a spawn whose permission is still open; it starts by itself when the user permits it."""
        if call.asking is not None:
            call.answer(self._replies.handle(call.handle))

    def _stopped_unstarted(self, call: ActiveCall) -> None:
        if call.asking is not None:  # P5: a prompt is withdrawn when its handle ends
            call.withdraw()
            call.answer(self._unstarted(call.handle))

    def _record_permission(self, call: ActiveCall, *, edited: bool) -> None:
        """Record what allowed the call (P6), and the arguments if the user edited them: those are the ones that run."""
        handle = call.handle
        arguments, resources = (call.parsed.arguments, self.resources(call)) if edited else (None, ())
        op = Rewritten(handle.uid, handle.fence, arguments, resources, call.allowed)
        self._registry.write_soon(op)

    def _start_allowed(self, call: ActiveCall, refusal: Outcome | None) -> None:
        handle = call.handle
        stopped = isinstance(handle.decided, Stopped)  # while the user was asked
        if refusal is not None and not stopped:
            self._registry.end(handle, refusal)
        if refusal is not None or stopped:
            self._registry.when_visible(lambda: call.answer(self._unstarted(handle)))
            return
        invocation = self._invocation(call)
        if not handle.stateful:
            handle.watch(_OneShot(self, call))
        self.admission.admit(handle, invocation)
        if not handle.stateful:
            self.give_up_if_hopeless(call)
        else:
            self._admitted(call)

    def _admitted(self, call: ActiveCall) -> None:
        """Answer a spawn when it is known whether it has started."""
        handle = call.handle
        if self.admission.lanes.asking(handle):
            self._registry.when_visible(partial(self._admitted, call))
        elif handle.decided is handle.state:
            self._spawned(call)
        else:
            self._registry.when_visible(partial(self._spawned, call))

    def _invocation(self, call: ActiveCall) -> Invocation:
        parsed, handle = call.parsed, call.handle
        assert parsed.tool is not None
        return Invocation(
            tool=parsed.tool,
            arguments=parsed.arguments,
            uid=handle.uid,
            call_id=parsed.call.id,
            conversation=handle.conversation,
            turn=handle.turn,
            stateful=handle.stateful,
            handles=call.handles,
            durability=self._durability,
            attempt=handle.attempt,
            fence=handle.fence,
            guard=self.admission.guard,
        )

    def resources(self, call: ActiveCall) -> tuple[str, ...]:
        """Return the names of the resources the call needs (B5)."""
        return self.admission.resources(self._invocation(call))

    def follow(self, call: ActiveCall) -> None:
        """Answer a call that was begun before this batch was resumed (B9)."""
        if call.handle.stateful:
            self._spawned(call)
        else:
            call.handle.watch(_OneShot(self, call))
            if call.handle.parked:
                call.parked()

    def _unstarted(self, handle: Handle) -> Reply:
        """Make the reply to a call that never ran: it was refused, skipped or invalid (B6)."""
        outcome = handle.state.outcome if isinstance(handle.state, Stopped) else None
        if handle.tool.launching is not None and isinstance(outcome, Failure):
            return error_reply(ToolError(outcome.message, code=outcome.code), handle.tool)
        return self._replies.handle(handle) if handle.stateful else self._replies.outcome(handle)

    def _spawned(self, call: ActiveCall) -> None:
        """C4: answer at once or, if the tool takes input, when it has settled."""
        handle = call.handle
        if handle.tool.launching is not None:
            self._launched(call, handle.tool.launching)
        elif isinstance(handle.state, Running) and "apply" in handle.tool.actions and not handle.parked:
            self._settle(call, 0)
        elif handle.run is not None and handle.run.can_park:
            asyncio.get_running_loop().call_soon(self._begun, call, self._replies.handle(handle))
        else:
            call.answer(self._replies.handle(handle))

    def _begun(self, call: ActiveCall, reply: Reply) -> None:
        """Answer the spawn of a function that has made its first step (D9).

        If it has taken its completion key, it is about to park: the reply says so, which saves the model a fetch. Any
        other reply is as of the start: a function does not seem to stop at once or not by how busy the loop is.
        """
        handle = call.handle
        if handle.parked:
            call.answer(self._replies.handle(handle))
        elif isinstance(handle.state, Running) and handle.run is not None and handle.run.has_key:
            self._settle(call, 0)
        else:
            call.answer(reply)

    def _launched(self, call: ActiveCall, how: Launching) -> None:
        """Answer a spawn by another name in the words of its tool (W7, W12)."""
        handle = call.handle
        if how.parks and handle.active and not handle.parked:
            handle.watch(_OnPark(lambda _: self._launched(call, how)))
        else:
            self._registry.run_soon(self._answer_launched(call, how))

    async def _answer_launched(self, call: ActiveCall, how: Launching) -> None:
        handle = call.handle
        try:
            record = await self._registry.store.handle(handle.uid)
            assert record is not None
            call.answer(self._replies.object(await how.reply(handle, record)))
        except Exception as error:
            call.answer(failed_reply(handle.call_id, error, handle.tool))

    def asks_user(self, handle: Handle) -> bool:
        """Return whether a question of the handle is open, or the user is asked about its result."""
        return isinstance(handle.state, Waiting) or self.admission.is_delivering(handle.uid)

    def show(self, handle: Handle) -> Reply:
        """Return a handle's state as a reply (C3)."""
        return self._replies.handle(handle)

    def one_shot_stopped(self, call: ActiveCall) -> None:
        call.answer(self._replies.outcome(call.handle))

    def give_up_if_hopeless(self, call: ActiveCall) -> None:
        """B5: end a one-shot call that waits for a resource which only its own caller can free."""
        handle = call.handle
        if not isinstance(handle.state, PendingState) or call.handles is None:
            return
        holder = self.admission.hopeless(handle, call.handles.already_handled)
        if holder is not None:
            error = Failure(
                f"Handle `{holder.id}` (tool `{holder.tool.name}`) holds what this call needs and will not free it "
                "by itself; finish or abort it first",
                "resource_held",
            )
            self.admission.end(handle, error, "self")

    # Apply and abort

    def _apply(self, call: ActiveCall) -> None:
        """C6: input for a running tool, the answer for a waiting one; which of them depends on the visible state."""
        handle = call.handle
        if call.parsed.by != "person" and handle.run is not None and handle.run.unseen:
            handle.run.probe()  # the model may not answer a password prompt that was not noticed yet (Q4)
        self._when_visible(call, self._apply_now)

    def _when_visible(self, call: ActiveCall, act: Callable[[ActiveCall], None]) -> None:
        """Act when what was decided about the handle is visible: now, or later, when a refusal is an error reply. Until
        the store can write, nothing is done."""

        def later() -> None:
            try:
                act(call)
            except Exception as error:
                call.answer(failed_reply(call.parsed.call.id, error))

        if call.handle.decided is call.handle.state:
            act(call)
        else:
            self._registry.when_visible(later, lambda error: call.answer(error_reply(_nothing_sent(error))))

    def _apply_now(self, call: ActiveCall) -> None:
        parsed, handle = call.parsed, call.handle
        state, run, since = handle.state, handle.run, printed(handle)
        _check_takes_input(handle)
        assert run is not None
        if handle.driver is not None and parsed.by != "person":
            raise ToolError(
                f"A person is driving handle `{handle.id}` at the moment; nothing was sent. Look with `fetch`, or wait "
                "until it is handed back.",
                code="driven_by_person",
            )
        if parsed.answers is not None:
            _check_asks(handle, parsed.answers)
        stored = run.records_input or (isinstance(state, Waiting) and not parsed.backs_out)
        if stored and (trouble := self._registry.store.trouble) is not None:
            raise _nothing_sent(trouble)  # a crash would lose what was acknowledged (R4)
        if parsed.secret and not (isinstance(state, Waiting) and state.question.secret):
            raise ToolError(f"Handle `{handle.id}` asks for no secret now; nothing was sent", code="not_running")
        if isinstance(state, Waiting) and not parsed.backs_out:
            refused = not run.open_to_caller if parsed.by == "model" else is_exclusive(handle, state.question)
            if parsed.by != "person" and refused:
                raise ToolError(
                    f"Only a person may answer question `{state.question.id}` of handle `{handle.id}`; it stays open. "
                    "Wait for them with `await`, or abort the handle.",
                    code="question_exclusive",
                )
            value = decode_input(parsed.arguments.get("input"), state.question)
            if not answer_fits(state.question, value):
                wrong, right = problem_with(state.question, value), expected(state.question)
                raise ToolError(
                    f"{'' if wrong.endswith(right) else f'{wrong}; '}the answer to question `{state.question.id}` of "
                    f"handle `{handle.id}` must be {right}; the question stays open",
                    code="bad_answer",
                )
            run.answer(value, parsed.cause)
        else:
            run.write(parsed.arguments, parsed.cause)
        failed = (lambda error: call.answer(error_reply(_not_written(error)))) if stored else None
        self._registry.when_visible(lambda: self._settle(call, since), failed)

    def _settle(self, call: ActiveCall, since: int) -> None:
        handle = call.handle
        Settle(handle, lambda because: call.answer(self._replies.handle(handle, because=because)), since=since)

    def _abort(self, call: ActiveCall) -> None:
        """C7: the reply is the stopped state; aborting twice is harmless."""
        handle = call.handle
        if handle.active:
            handle.watch(OnStop(lambda _: call.answer(self._replies.handle(handle))))
            self.admission.end(handle, *call.parsed.ending)
        else:
            call.answer(self._replies.handle(handle))

    def cancel(self, handles: Sequence[Handle]) -> None:
        """B7: the turn is cancelled; end one-shot calls."""
        self.admission.end_all(handles, Failure(CANCELLED, "cancelled"), "cancel")


def _read_input(handle: Handle, arguments: dict[str, Any]) -> dict[str, Any]:
    """Check what the user sends to a handle of this process; text becomes an answer of the open question's type."""
    if not arguments:
        raise ToolError(
            "there is nothing to send: give a text or keys, or null to close its stdin", code="invalid_arguments"
        )
    given, keys = arguments.get("input"), arguments.get("keys")
    if given is None and keys and "input" in arguments:
        raise ToolError("send either keys or the end of the input (null), not both", code="invalid_arguments")
    if keys and "keys" not in handle.tool.action_parameters.get("apply", {}):
        raise ToolError(
            f"tool `{handle.tool.name}` is not a terminal and takes no keys; send a text", code="invalid_arguments"
        )
    if isinstance(handle.state, Waiting) and isinstance(given, str):
        return {**arguments, "input": read_answer(handle.state.question, given)}
    return arguments


def _nothing_sent(why: object) -> ToolError:
    return ToolError(
        f"the store cannot write ({why}); nothing was sent, and an open question stays open", code="store_unavailable"
    )


def _not_written(why: object) -> ToolError:
    return ToolError(
        f"that was taken, and is written as soon as it can be; a crash before would lose it: {why}",
        code="store_unavailable",
    )


def _check_takes_input(handle: Handle) -> None:
    """C6: refuse an `apply` on a handle that is pending, parked, stopped or being ended."""
    state, run = handle.state, handle.run
    if handle.parked:
        raise ToolError(
            f"Handle `{handle.id}` waits for its completion from outside and takes no input", code="not_running"
        )
    if run is None or run.ending or run.delivering or not isinstance(state, Running | Waiting):
        what = name(state)
        if isinstance(state, Running | Waiting):  # its end is decided, and not visible yet
            what = "being ended" if run is not None and run.ending else "over"
            if run is None and not isinstance(handle.decided, Stopped):
                what = "resumed after a crash, and it is not its turn yet"
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
    """Calls back once: when the handle is parked, or has stopped before."""

    __slots__ = ()

    def parked(self, handle: Handle) -> None:
        handle.unwatch(self)
        self.stopped(handle)


class _OneShot(Watcher):
    """Watches the handle of a one-shot call."""

    __slots__ = ("_actions", "_call")

    def __init__(self, actions: Actions, call: ActiveCall) -> None:
        self._actions = actions
        self._call = call

    def stopped(self, handle: Handle) -> None:
        self._actions.one_shot_stopped(self._call)

    def parked(self, handle: Handle) -> None:
        self._call.parked()

    def handle_changed(self, handle: Handle) -> None:
        self._actions.give_up_if_hopeless(self._call)
