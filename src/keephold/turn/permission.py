"""Permission (P1–P5): whether a call may run, and whether its result may be delivered.

A mode that needs approval asks the user. If no user can be asked, `detached` decides: its `deny` names the setting that
would allow the call; `auto` leaves the decision to the model, which made it by calling. An approval is for one call
with exactly these arguments, unless the user extends it to the tool (`turn/approvals.py`).
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec

from keephold.errors import ToolError
from keephold.handles.handle import Handle
from keephold.handles.state import Failure, Ok, Outcome
from keephold.store.base import Allowed
from keephold.text import plain, to_json
from keephold.tools.base import Action, RunMode, Tool
from keephold.turn.approvals import Approvals
from keephold.turn.prompt_queue import Asking, PromptQueue
from keephold.turn.prompts import (
    Approved,
    Decision,
    DeliverResult,
    Denied,
    Dismissed,
    Edited,
    RunTool,
    StandingPermission,
    digest,
)

Detached = Literal["deny", "defaults", "auto"]

SKIPPED = "Tool skipped by user."
SKIPPED_REMEMBERED = "Tool skipped by user (remembered)."
NOT_DELIVERED = "Result delivery skipped by configuration."
NOT_DELIVERED_BY_USER = "Result delivery skipped by user."


class Ask(NamedTuple):
    """The user has to decide."""

    prompt_queue: PromptQueue
    edit: bool
    """The configuration wants the arguments edited (`run = "edit"`)."""


class Granted(NamedTuple):
    """The user, or a standing permission, allows the call with these arguments."""

    arguments: dict[str, Any]
    allowed: Allowed


Verdict = Outcome | Ask | Allowed | None
"""None: run the call, as the configuration says. `Allowed`: run it. An outcome: how the call ends without running."""
Then = Callable[[Outcome | Granted], None]

Check = Callable[[Any], dict[str, Any]]
"""Checks arguments that the user edited and returns them as the tool takes them, or raises `ToolError`."""


class Permission:
    """Decides by the tools' modes, the user's decisions and the configured `detached`."""

    def __init__(self, detached: Detached, prompt_queue: PromptQueue, approvals: Approvals) -> None:
        self.detached = detached
        self._prompt_queue = prompt_queue
        self._approvals = approvals
        self.finders: list[Callable[[str], PromptQueue | None]] = []
        """Find who is asked about a conversation, instead of the runtime's prompter. The first that knows decides."""
        self.unattended: list[Callable[[str], bool]] = []
        """Whether the calls of a conversation run without asking."""

    # To run

    def to_run(
        self, tool: Tool, action: Action | None, conversation: str, prompt_queue: PromptQueue | None = None
    ) -> Verdict:
        """Decide whether a call of the tool may run; `prompt_queue` is asked, not the runtime's."""
        mode = _mode(tool, action)
        if mode == "unattended":
            return None
        if mode == "skip":
            return Ok(SKIPPED)
        if self._is_unattended(conversation):
            return Allowed("conversation")
        known = self._approvals.standing(conversation, tool.name)
        if known is not None:
            return _standing(known) if known.value else Ok(SKIPPED_REMEMBERED)
        if prompt_queue is None:
            found = (find(conversation) for find in self.finders)
            prompt_queue = next((each for each in found if each is not None), self._prompt_queue)
        if prompt_queue.here:
            return Ask(prompt_queue, mode == "edit")
        if self.detached == "auto":
            return Allowed("detached")
        setting = "run" if action is None or action not in tool.run_actions else f"run_actions.{action}"
        return _denied(tool, f'run (`{setting} = "{mode}"`)', setting)

    def _is_unattended(self, conversation: str) -> bool:
        return any(unattended(conversation) for unattended in self.unattended)

    def ask(self, ask: Ask, prompt: RunTool, check: Check, then: Then) -> Asking:
        """Ask the user. `then` gets the arguments to run with, or how the call ends without running."""
        lasts = msgspec.structs.replace(prompt, until=self._approvals.until(prompt.conversation))
        return _ToRun(ask.prompt_queue, self._approvals, lasts, check, then).asking

    def queue_of(self, handle: Handle) -> PromptQueue:
        """Return who decides about a handle's call that was begun by a dead process."""
        return self._prompt_queue.deciding(handle)

    # To deliver

    def to_deliver(
        self, handle: Handle, outcome: Outcome, text: Callable[[], str], then: Callable[[Outcome], None]
    ) -> Asking | None:
        """Call `then` with the part of an outcome that may be seen (P1): at once, or when the user has decided.

        It is called once, before the end is visible. `text` returns the result as text.
        """
        mode: RunMode = handle.tool.result
        prompt_queue = self._prompt_queue.deciding(handle)
        free = mode == "unattended" or self._is_unattended(handle.conversation)
        if mode == "skip":  # a failure stays a failure: a killed process is never shown as success (S3)
            then(_withheld(outcome, NOT_DELIVERED))
        elif free or (not prompt_queue.here and self.detached == "auto"):
            then(outcome)
        elif not prompt_queue.here:
            then(_denied(handle.tool, f'show its result (`result = "{mode}"`)', "result"))
        else:
            id, result = handle.id if handle.stateful else None, text()
            prompt = DeliverResult(
                tool=handle.tool.name,
                id=id,
                result=result,
                is_error=isinstance(outcome, Failure),
                conversation=handle.conversation,
                edit=mode == "edit",
                uid=handle.uid,
                digest=digest(handle.tool.name, None, id, {"result": result}),
            )
            return prompt_queue.ask(prompt, lambda said: then(_delivered(outcome, said)))
        return None


class _ToRun:
    """One call that the user is asked about, again and again until the decision is valid (P5)."""

    def __init__(
        self,
        prompt_queue: PromptQueue,
        approvals: Approvals,
        prompt: RunTool,
        check: Check,
        then: Then,
    ) -> None:
        self._prompt_queue = prompt_queue
        self._approvals = approvals
        self._prompt = prompt
        self._check = check
        self._then = then
        self.asking = prompt_queue.ask(prompt, self._said, self._said_meanwhile, check)

    def _said(self, decision: Decision) -> None:
        match decision:
            case Approved(remember, by):
                arguments = self._approved()
                if arguments is not None:
                    self._remember(remember, True, by)
                    self._grant(arguments, by)
            case Edited(value, by):
                arguments = self._checked(value)
                if arguments is not None:
                    self._grant(arguments, by)
            case Denied(reason, remember, by):
                self._remember(remember, False, by)
                self._then(Ok(f"Tool skipped by user: {reason}" if reason else SKIPPED))
            case Dismissed(reason) if reason is not None:
                self._then(Failure(f"Permission prompt failed: {reason}", "permission_denied"))
            case _:
                self._then(Ok(SKIPPED))

    def _said_meanwhile(self) -> bool:
        """Apply a decision that was remembered while this prompt was open; return whether one covers it."""
        known = self._approvals.standing(self._prompt.conversation, self._prompt.tool)
        if known is None or (known.value and self._prompt.problem is not None):  # nobody has allowed a refused edit
            return False
        granted = Granted(self._prompt.arguments, _standing(known))
        self._then(granted if known.value else Ok(SKIPPED_REMEMBERED))
        return True

    def _grant(self, arguments: dict[str, Any], by: str | None) -> None:
        self._then(Granted(arguments, Allowed("user", self._approvals.now(), by or self._prompt_queue.who)))

    def _approved(self) -> dict[str, Any] | None:
        """Return the arguments that the user saw; None: they have to be asked again."""
        prompt = self._prompt
        if digest(prompt.tool, prompt.action, prompt.id, prompt.arguments) != prompt.digest:
            self._again("the arguments have changed since you were asked", prompt.arguments)
            return None
        return prompt.arguments if prompt.problem is None else self._checked(prompt.arguments)

    def _checked(self, edited: Any) -> dict[str, Any] | None:
        """Return the edited arguments, checked like the model's; None: the user has to be asked again."""
        try:
            return self._check(edited)
        except ToolError as error:
            try:
                given = plain(edited)
            except (TypeError, ValueError, NotImplementedError):  # not even JSON
                given = None
            self._again(error.message, given if isinstance(given, dict) else self._prompt.arguments)
            return None

    def _again(self, problem: str, arguments: dict[str, Any]) -> None:
        prompt = self._prompt
        new = digest(prompt.tool, prompt.action, prompt.id, arguments)
        self._prompt = msgspec.structs.replace(prompt, problem=problem, arguments=arguments, digest=new)
        self._prompt_queue.ask_again(self.asking, self._prompt)

    def _remember(self, wanted: bool, may_run: bool, by: str | None) -> None:
        prompt = self._prompt
        if wanted:
            who = by or self._prompt_queue.who
            self._approvals.give(prompt.conversation, prompt.tool, may_run, by=who, arguments=prompt.arguments)


def _standing(permission: StandingPermission) -> Allowed:
    return Allowed("standing", permission.at, permission.by, permission.id)


def require(verdict: Outcome | None) -> str | None:
    """For fetch, apply and abort: return None to continue or the text of a skip; raise a refusal."""
    if isinstance(verdict, Failure):
        raise ToolError(verdict.message, code=verdict.code)
    return str(verdict.value) if isinstance(verdict, Ok) else None


def _mode(tool: Tool, action: Action | None) -> RunMode:
    if action is None:
        return tool.run
    return tool.run_actions.get(action, tool.run if action == "spawn" else "unattended")


def _delivered(outcome: Outcome, said: Decision) -> Outcome:
    match said:
        case Approved():
            return outcome
        case Edited(value):
            text = value if isinstance(value, str) else to_json(value).decode()
            return Failure(text, outcome.code) if isinstance(outcome, Failure) else Ok(text)
        case Denied(reason) if reason:
            return _withheld(outcome, f"{NOT_DELIVERED_BY_USER.rstrip('.')}: {reason}")
        case Dismissed(reason) if reason is not None:
            return Failure(f"Result prompt failed: {reason}", "permission_denied")
        case Dismissed():
            return _withheld(outcome, "Result delivery cancelled.")
    return _withheld(outcome, NOT_DELIVERED_BY_USER)


def _withheld(outcome: Outcome, why: str) -> Outcome:
    return Failure(why, outcome.code) if isinstance(outcome, Failure) else Ok(why)


def _denied(tool: Tool, what: str, setting: str) -> Failure:
    table = f"conversation.tools.{tool.name}"
    if tool.kind == "agent":
        table = f"agents.{'<id>' if tool.launching is not None else tool.name}"
    return Failure(
        f"Tool `{tool.name}` needs permission to {what} and nobody is there to give it. "
        f'To allow it, set `{setting} = "unattended"` in [{table}], '
        'or `detached = "auto"` in [conversation].',
        "permission_denied",
    )
