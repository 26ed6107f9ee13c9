"""One session of keephold's agent: a conversation, its turns, and the updates and requests to its client (X1, X2).

Updates leave in the order of events. All updates of a prompt's turn are sent before its end is signalled, and the end
before the prompt is answered, also with an error. Updates between turns are sent at once.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from keephold.acp.agent import updates
from keephold.acp.agent.calls import SessionCalls, Terminals
from keephold.acp.agent.params import Client, title_of
from keephold.acp.agent.permissions import decided, elsewhere, filled_in, permission
from keephold.acp.agent.replay import SHOWN_LINE, TURN_COMPLETE_LINE, Replayed
from keephold.acp.agent.shown import ShownCall
from keephold.acp.wire import BACKGROUND, INTERNAL_ERROR, ConnectionLost, Id, Peer, RpcCall, RpcError, invalid_params
from keephold.agent import events
from keephold.errors import KeepholdError
from keephold.handles.question import question_form
from keephold.ids import root_of
from keephold.store import base as store
from keephold.text import to_json
from keephold.turn.prompt_queue import LeftOpen
from keephold.turn.prompts import Answer, AskQuestion, Decision, Dismissed, Prompt, too_long
from keephold.turn.tool_call import ToolCall

if TYPE_CHECKING:
    from keephold.agent.conversation import Conversation
    from keephold.agent.conversations import Conversations
    from keephold.agent.models import Assistant

_log = logging.getLogger("keephold.acp")

Mode = Literal["ask", "unattended"]
MODES = [
    {"id": "ask", "name": "Ask", "description": "You are asked before tools run whose settings say so."},
    {"id": "unattended", "name": "Unattended", "description": "Tools run without asking."},
]


class Opening(NamedTuple):
    """How a client has opened a session."""

    cwd: str
    additional: Sequence[str] = ()
    """Further directories."""
    problems: Callable[[], list[str]] = list
    """Return what is wrong with the MCP servers that it brought."""
    notice: str = ""
    """Shown at the beginning of the next turn: a client may ignore updates before it has the session's id."""


class Models:
    """The models that a session can choose from: the configured one or that of --model, and `[acp] models`."""

    def __init__(self, agents: "Conversations", first: str | None) -> None:
        self._agents = agents
        settings = agents.config.conversation.assistant
        named = (first or settings.model, *agents.config.acp.models)
        self.names = list(dict.fromkeys(name for name in named if name))

    def open(self, name: str) -> "Assistant":
        """Return the model. Raises `KeepholdError` if it cannot be used, for example without its key."""
        return self._agents.assistant(self._agents.config.conversation.assistant, name)


class AgentSession:
    """One open session."""

    def __init__(
        self,
        peer: Peer,
        client: Client,
        conversation: "Conversation",
        how: Opening,
        before: store.ConversationRow | None,
        mode: Mode,
        models: Models,
    ) -> None:
        """`before` is the stored row, None if nothing was said in the session."""
        known = {} if before is None else before.metadata
        self.conversation = conversation
        self.id = conversation.id
        self.mode: Mode = mode
        self._models = models
        self._model = models.names[0] if models.names else ""
        self._next: Assistant | None = None
        """The model of the next turn, if it was changed."""
        self._how = how
        self._said: set[str] = set()
        """The notices and problems that were shown."""
        self._peer = peer
        self._client = client
        self._named = isinstance(known.get("title"), str)
        about = {"cwd": how.cwd, "additionalDirectories": list(how.additional) or None}
        self._about: dict[str, Any] = {key: value for key, value in about.items() if known.get(key) != value}
        """Metadata to store with the first prompt: a session that is only opened leaves no trace."""
        self._requests: set[RpcCall] = set()
        """The open requests to the user."""
        self.closing = False
        """The session takes no more prompts."""
        self._cancelled = False
        self._turn = ""
        self._messages = 0
        """The number of the turn's newest message."""
        self._before = 0
        """The number of messages in the interrupted turn."""
        self._started = False
        """The running prompt's turn has begun."""
        self._used: list[str] = []
        self._open: list[tuple[str, ToolCall, store.Record | None]] = []
        """Calls of an interrupted turn that the client knows."""
        self._over: asyncio.Event = asyncio.Event()
        """Set while no turn runs."""
        self._over.set()
        runtime = conversation.runtime
        self._terminals = Terminals(peer, self.id, runtime.registry.store, has_terminals=client.terminals)
        self.calls = SessionCalls(runtime, self.id, self.update, self._terminals, self._record)
        if known.get("model") in models.names[1:]:
            with contextlib.suppress(KeepholdError):  # it cannot be used any more: the configured one is
                self._use(str(known["model"]))

    def update(self, update: updates.Update) -> None:
        if not self.busy:
            update = {**update, "_meta": {BACKGROUND: True}}
        self._peer.notify("session/update", {"sessionId": self.id, "update": update})

    def choices(self) -> dict[str, Any]:
        """Return the fields of an answer that opens a session."""
        modes = {"currentModeId": self.mode, "availableModes": MODES}
        return {"modes": modes, "configOptions": self.options()}

    def options(self) -> list[dict[str, Any]]:
        """Return what the user can choose, with the present choices."""
        modes = [{"value": each["id"], "name": each["name"], "description": each["description"]} for each in MODES]
        found = [updates.select("mode", "Mode", self.mode, modes)]
        if self._models.names:
            named = [{"value": each, "name": each} for each in self._models.names]
            found.append(updates.select("model", "Model", self._model, named))
        return found

    def choose(self, id: str, value: str, *, asked: bool = False) -> None:
        """Set one of the options; a model counts from the next turn on. With `asked`, the answer has the options."""
        option = next((each for each in self.options() if each["id"] == id), None)
        if option is None:
            raise invalid_params(f"there is no option `{id}`; there are mode and model")
        values = [each["value"] for each in option["options"]]
        if value not in values:
            raise invalid_params(f"there is no {id} `{value}`; there are {', '.join(values)}")
        if id == "model":
            self._use(value)
            self._about["model"] = value
        else:
            self.mode = value  # type: ignore[assignment]
            self.update(updates.current_mode(value))
        if not asked:
            self.update(updates.config_options(self.options()))

    def _use(self, model: str) -> None:
        try:
            self._next = self._models.open(model)
        except KeepholdError as error:
            raise RpcError(INTERNAL_ERROR, error.message, {"code": error.code}) from error
        self._model = model

    def restore(self, before: Replayed, *, known: bool) -> None:
        """Follow the handles and open calls of an earlier session; with `known`, the client was shown them."""
        runtime = self.conversation.runtime
        self._used, self._before, self._open = before.used, before.messages, before.open if known else []
        for id, call, record in before.live:
            self.calls.found(id, call, runtime.registry.adopt(record), known=known)
        for handle in runtime.registry.live():
            if handle.conversation != self.id and root_of(handle.conversation) == self.id:  # of a sub-agent
                self.calls.created(handle)

    # A turn

    @property
    def busy(self) -> bool:
        return not self._over.is_set()

    def begin(self) -> None:
        """A turn runs from now on until `run` has returned."""
        self._cancelled = self._started = False
        self._over.clear()

    async def run(self, request: Id, blocks: Sequence[Any], content: Any) -> dict[str, str]:
        """Run a whole turn; the result or exception answers the prompt."""
        stop, error = "error", None
        try:
            await self._describe(blocks)
            for text in (self._how.notice, *self._how.problems()):
                if text and text not in self._said:
                    self._said.add(text)
                    self.update(updates.message(f"{text}\n\n", f"{self.id}.{len(self._said)}"))
            if self._next is not None:
                await self.conversation.use(self._next)
                self._next = None
            answer = await self.conversation.prompt(content, listener=self._on_event)
            stop, error = answer.stop_reason, answer.error
        except KeepholdError as failed:
            error = failed.message
        except Exception as failed:
            _log.exception("a turn of session %s failed", self.id)
            error = f"{type(failed).__name__}: {failed}"
        finally:
            self._give_up()
            self.calls.settle()
            await self._complete("null" if request is None else str(request), stop)
            self._over.set()
        if stop == "error":
            raise RpcError(INTERNAL_ERROR, error or "the turn has failed")
        return {"stopReason": stop}

    def cancel(self) -> None:
        if self.busy:
            self._cancelled = True
            self.conversation.cancel()

    async def close(self) -> None:
        """End the running turn, and stop updates and requests. Kept handles continue, and open questions wait until the
        session is opened again."""
        self.closing = True
        self.cancel()
        try:
            await self._over.wait()
        except asyncio.CancelledError:  # its client wants it open after all
            self.closing = False
            raise
        for call in tuple(self._requests):
            call.cancel()
        self.calls.close()

    async def _describe(self, blocks: Sequence[Any]) -> None:
        if not self._named:
            self._about["title"] = title_of(blocks)
        if self._about:
            await self.conversation.describe(**self._about)
            self._about = {}
        if not self._named:
            self._named = True
            self.update(updates.session_info(title_of(blocks), self.conversation.runtime.registry.clock.now()))

    async def _complete(self, request: str, stop: str) -> None:
        """Signal that the turn is over, after the store has it (X2)."""
        told = {"promptRequestId": request, "stopReason": stop}
        if self._started:
            await self._write(TURN_COMPLETE_LINE, told)
        if self._client.signal == "extension":
            self._peer.notify("_keephold/turn_complete", {"sessionId": self.id, **told})
        elif self._client.signal == "update":
            self.update(updates.turn_complete(request, stop))

    def _record(self, id: str, content: dict[str, Any]) -> None:
        registry = self.conversation.runtime.registry
        registry.run_soon(self._write(SHOWN_LINE, {"toolCallId": id, "content": content}))

    async def _write(self, kind: str, body: dict[str, Any]) -> None:
        registry = self.conversation.runtime.registry
        if not self._turn or registry.closing:
            return
        line = (kind, msgspec.json.encode(body))
        with contextlib.suppress(KeepholdError):  # the store cannot write at present; it is shown all the same
            await registry.write(
                (store.TranscriptAppended(self.id, self._turn, registry.clock.now(), (line,)),), keep=False
            )

    def _on_event(self, event: events.Event) -> None:
        match event:
            case events.TurnStarted(turn, resumed):
                self._turn, self._started = turn, True
                self._messages = self._before + 1 if resumed else 1
                self.calls.begin(turn, self._used if resumed else ())
                if not resumed:
                    self._give_up()
                if self._cancelled:  # cancelled before there was a turn: the prompt is kept
                    self.conversation.cancel()
            case events.Text(text):
                self.update(updates.message(text, self._message("m")))
            case events.Thought(text):
                self.update(updates.thought(text, self._message("t")))
            case events.Called(calls) if self._open and [c.id for c in calls] == [c.id for _, c, _ in self._open]:
                for each in calls:
                    self.calls.name(self._turn, each.id)  # skip the ids that they have
                self.calls.resume(self._open)
                self._open = []
            case events.Called(calls):
                self._give_up()
                self.calls.called(calls)
            case events.Answered(responses):
                self._messages += 1
                self.calls.answered(responses)
            case events.Restarted():
                self.update(
                    updates.message("\n\n[The answer broke off. It is asked for again.]\n\n", self._message("m"))
                )
            case events.Retrying(_, delay, why):
                self.update(
                    updates.thought(f"[The model is asked again in {delay:.0f} s: {why}]\n", self._message("t"))
                )
            case events.Compacted():
                told = "[What was said before has been summarised to make room.]\n"
                self.update(updates.thought(told, self._message("t")))
            case events.Used(usage) if usage.context_window is not None:
                before, cost = self.conversation.usage.cost, usage.cost
                total = cost if before is None or cost is None else before + cost
                self.update(updates.usage(usage.context_tokens, usage.context_window, total))

    def _message(self, kind: str) -> str:
        """Return the id of the model's newest message, or of the thoughts before it."""
        return f"{self._turn}.{kind}{self._messages}"

    def _give_up(self) -> None:
        """End the open calls that nothing resumes."""
        if self._open:
            self.calls.resume(self._open)
            self.calls.settle()
            self._open = []

    # The user

    async def ask(self, prompt: Prompt) -> Decision:
        """Ask the user. Cancel this to withdraw the question. Raises `LeftOpen` if they cannot be asked."""
        shown = self.calls.asked_about(prompt)
        said: Decision | None = None
        try:
            said = await self._ask(prompt, shown)
            return said
        finally:
            self.calls.asked(shown, prompt, said)

    async def _ask(self, prompt: Prompt, shown: ShownCall) -> Decision:
        asked = permission(prompt, shown.title)
        if asked is None:
            assert isinstance(prompt, AskQuestion), "all others are choices"
            return await self._ask_text(prompt, shown)
        if problem := too_long(to_json(asked.fields["content"]).decode()):
            return Dismissed(problem)
        call = {"toolCallId": shown.id, "kind": shown.kind, **asked.fields}
        params = {"sessionId": self.id, "toolCall": call, "options": asked.options}
        said = await self._request("session/request_permission", params)
        return said if isinstance(said, Dismissed) else decided(asked, said)

    async def _ask_text(self, prompt: AskQuestion, shown: ShownCall) -> Decision:
        question, handle = prompt.question, shown.handle
        if self._client.forms and not question.secret:
            message, schema = question_form(question, prompt.problem)
            form = {"mode": "form", "message": message, "requestedSchema": schema}
            params = {"sessionId": self.id, "toolCallId": shown.id, **form}
            said = await self._request("elicitation/create", params)
            return said if isinstance(said, Dismissed) else filled_in(question, said)
        runtime = self.conversation.runtime
        path = store.file_of(runtime.registry.store)
        note = elsewhere(question, "" if handle is None else handle.uid, None if path is None else f"sqlite:///{path}")
        self.calls.show_note(shown, note)
        if handle is not None and handle.stateful and path is not None:
            raise LeftOpen  # it is answered elsewhere; other prompts can be asked meanwhile
        if runtime.permission.detached == "defaults" and question.default is not None and not question.secret:
            return Answer(question.default)
        return Dismissed(note)

    async def _request(self, method: str, params: dict[str, Any]) -> Any:
        """Return the client's answer; `Cancelled` if it cannot answer."""
        call = self._peer.request(method, params)
        self._requests.add(call)
        try:
            return await call
        except RpcError as error:
            return Dismissed(f"the client could not ask: {error.message}")
        except ConnectionLost:  # no answer: the question stays open for the next process (R6)
            raise LeftOpen from None
        except asyncio.CancelledError:
            if self.closing:
                raise LeftOpen from None
            raise
        finally:
            self._requests.discard(call)
