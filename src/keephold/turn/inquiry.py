"""Side questions to a model, beside the conversation (Q2, Q6, Q7, T2).

`Runtime(inquiry=…)` takes a coroutine function that gets an `Inquiry` and returns the JSON object the model answered
with, which keephold checks against `schema`. An exception counts as a failed inquiry. `Inquiries` asks through it:
checks the answer, asks once more, and records both. An inquiry never becomes part of the conversation: request and
answer are rows of their own.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from keephold.errors import KeepholdError
from keephold.handles.handle import Handle
from keephold.handles.question import Question, answer_fits, answer_schema, expected, form_of
from keephold.handles.registry import Registry
from keephold.handles.state import Failure, Ok, Outcome
from keephold.store.base import Inquired
from keephold.text import plain

_log = logging.getLogger("keephold.turn")

ATTEMPTS = 2
"""How often a model is asked one question (Q7)."""
TIMEOUT_SECS = 120.0
_ALL = 1_000_000
_CLOSE_SECS = 1.0
"""How long closing waits for inquiries that clean up."""


class Inquiry(msgspec.Struct, frozen=True, kw_only=True):
    """One structured question to a model."""

    id: str
    """`<call_id>.<question_id>.<attempt>`, or `<turn>.end.<round>` at the end of a turn (Q6)."""
    purpose: Literal["question", "turn_end"]
    conversation: str
    turn: str
    text: str
    """The request, in words for the model."""
    schema: dict[str, Any]
    """JSON Schema of the answer, an object."""
    tool: str | None = None
    """The tool that asks, if one does."""
    handles: tuple[dict[str, Any], ...] = ()
    """At the end of a turn: the handles that still run, as T2 lists them."""
    assistant: Mapping[str, Any] = {}
    """Settings of the model to ask: the question's or tool's own over the conversation's."""


Inquire = Callable[[Inquiry], Awaitable[Any]]
"""Asks the model and returns its answer, decoded. Cancelled when the answer is no longer needed."""


class InquiryFailed(Exception):
    """The model gave no answer: it failed, took too long, or there is none."""


class Inquiries:
    """Asks by the runtime's inquiry function."""

    def __init__(
        self,
        registry: Registry,
        inquire: Inquire | None,
        *,
        assistant: Mapping[str, Any] | None = None,
        timeout: float = TIMEOUT_SECS,
    ) -> None:
        self._registry = registry
        self._inquire = inquire
        self._assistant = dict(assistant or {})
        self._timeout = timeout
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[Any]] = set()
        """Running calls of the inquiry function; a cancelled one may still clean up."""
        self._asked: dict[tuple[str, str], Counter[str]] = {}
        """By turn: how often each question was asked."""

    def use(self, inquire: Inquire) -> None:
        """Ask by this function, unless one is set."""
        self._inquire = self._inquire or inquire

    @property
    def here(self) -> bool:
        """Whether there is a model to ask."""
        return self._inquire is not None

    def ask(
        self, handle: Handle, question: Question, assistant: Mapping[str, Any], then: Callable[[Outcome], None]
    ) -> "asyncio.Task[None]":
        """Have the model answer a tool's question. `then` gets the answer, or why there is none, unless cancelled."""

        async def answer() -> None:
            then(await self._answer(handle, question, assistant))

        task = asyncio.create_task(answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, handle: Handle, question: Question, assistant: Mapping[str, Any]) -> Outcome:
        problem = ""
        for _ in range(ATTEMPTS):
            try:
                id = await self.new_id(handle.conversation, handle.turn, f"{handle.call_id}.{question.id}")
            except KeepholdError as error:  # the store cannot be read
                return _failed(handle, question, str(error))
            inquiry = Inquiry(
                id=id,
                purpose="question",
                conversation=handle.conversation,
                turn=handle.turn,
                text=_text(handle, question) + problem,
                schema=_schema(question),
                tool=handle.tool.name,
                assistant=assistant,
            )
            try:
                given = await self.inquire(inquiry, uid=handle.uid)
            except InquiryFailed as error:
                return _failed(handle, question, str(error))
            if isinstance(given, dict) and set(given) == {"answer"} and answer_fits(question, given["answer"]):
                return Ok(given["answer"])
            problem = f'\n\nYour last answer was not {{"answer": …}} with {expected(question)}.'
        return _failed(handle, question, f"it did not answer with {expected(question)}")

    async def new_id(self, conversation: str, turn: str, of: str) -> str:
        """Return an id that the turn has not used, not even before a restart (Q6)."""
        key = (conversation, turn)
        if key not in self._asked:
            rows = await self._registry.store.inquiries(conversation, turn, limit=_ALL)
            self._asked.setdefault(key, Counter(row.id.rpartition(".")[0] for row in rows))
        self._asked[key][of] += 1
        return f"{of}.{self._asked[key][of]}"

    def forget(self, conversation: str, turn: str) -> None:
        """Forget a turn that has ended."""
        self._asked.pop((conversation, turn), None)

    async def inquire(self, inquiry: Inquiry, *, uid: str | None = None) -> Any:
        """Return the model's answer, recorded with the request (Q6). Raises `InquiryFailed` if there is none."""
        if self._inquire is None:
            raise InquiryFailed("there is no model to ask")
        inquiry = msgspec.structs.replace(inquiry, assistant={**self._assistant, **inquiry.assistant})
        asking = asyncio.create_task(self._called(self._inquire, inquiry))
        self._calls.add(asking)
        asking.add_done_callback(self._calls.discard)
        answer, error = None, None
        try:
            done, _ = await asyncio.wait([asking], timeout=self._timeout)
            if not done:
                error = f"it did not answer within {self._timeout:g} s"
                asking.cancel()
            elif asking.cancelled():  # by the function itself
                error = "the inquiry was cancelled"
            else:
                answer, error = asking.result()
        except asyncio.CancelledError:
            error = "cancelled: nobody needs the answer any more"
            asking.cancel()  # only closing waits for it
            raise
        finally:
            await self._record(inquiry, uid, answer, error)
        if error is not None:
            raise InquiryFailed(error)
        return answer

    async def _called(self, inquire: Inquire, inquiry: Inquiry) -> tuple[Any, str | None]:
        try:
            return plain(await inquire(inquiry)), None
        except Exception as failure:
            _log.error("inquiry %s failed", inquiry.id, exc_info=failure)
            return None, f"{type(failure).__name__}: {failure}"

    async def _record(self, inquiry: Inquiry, uid: str | None, answer: Any, error: str | None) -> None:
        record = Inquired(
            id=inquiry.id,
            conversation=inquiry.conversation,
            turn=inquiry.turn,
            uid=uid,
            at=self._registry.clock.now(),
            request=plain(inquiry),
            answer=answer,
            error=error,
        )
        try:
            await self._registry.write((record,))
        except KeepholdError as failure:
            _log.error("inquiry %s could not be recorded: %s", inquiry.id, failure)

    async def close(self) -> None:
        """Cancel every inquiry."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks or self._calls:
            await asyncio.wait({*self._tasks, *self._calls}, timeout=_CLOSE_SECS)


def _schema(question: Question) -> dict[str, Any]:
    """JSON Schema of `{"answer": …}` for a question (Q2)."""
    answer = answer_schema(question)
    if form_of(question) is not None:
        answer["additionalProperties"] = False
    return {"type": "object", "properties": {"answer": answer}, "required": ["answer"], "additionalProperties": False}


def _text(handle: Handle, question: Question) -> str:
    asks = f"Tool `{handle.tool.name}` is paused and asks: {question.text}"
    return f"{question.pre_amble}\n\n{asks}" if question.pre_amble else asks


def _failed(handle: Handle, question: Question, why: str) -> Failure:
    return Failure(
        f'Tool `{handle.tool.name}` asked "{question.text}" (`{question.id}`). The question went to a model, and '
        f"that failed: {why}. Call the tool again, or continue without it.",
        "inquiry_failed",
    )
