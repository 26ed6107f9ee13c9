"""`Call`: the interface of a function tool to its own call (Y, Y3)."""

import asyncio
import threading
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections import deque
from collections.abc import Collection, Coroutine, Mapping
from functools import partial
from typing import IO, Any

import msgspec

from keephold.durable.calls import DurableCall
from keephold.durable.effects import Effects, ProcessEvents
from keephold.durable.journal import Journal
from keephold.durable.keys import Key
from keephold.errors import ToolError
from keephold.handles.handle import Handle
from keephold.handles.question import Question
from keephold.handles.state import Failure, Ok, Outcome
from keephold.handles.view import Handles
from keephold.tools.base import Invocation, Sink
from keephold.tools.child import ChildProcess, Children

_UNREAD_LIMIT = 64 * 1024
_THREAD_OUTPUT_LIMIT = 1024 * 1024


class FileDiff(msgspec.Struct, frozen=True):
    """A change of a file, shown to the user by `call.show`. `old` is None for a new file."""

    path: str
    old: str | None
    new: str


class Call:
    """One call of a function tool. Get it by a parameter annotated `keephold.Call`, or a first one named `call`.

    A sync function runs in a thread. There only `emit`, `show`, `progress`, `cancelled` and the ids work.
    """

    __slots__ = (
        "_asking", "_cancelled", "_children", "_durable", "_inbox", "_invocation", "_loop", "_queued", "_reader",
        "_sink", "_thread_out", "_unread",
    )  # fmt: skip

    def __init__(
        self, invocation: Invocation, sink: Sink, *, threaded: bool = False, durable: DurableCall | None = None
    ) -> None:
        self._invocation = invocation
        self._sink = sink
        self._loop = asyncio.get_running_loop() if threaded else None
        self._thread_out: _ThreadOutput | None = None
        self._inbox: deque[tuple[Any, int]] | None = None
        self._unread = 0
        self._durable = durable
        self._reader: asyncio.Future[Any] | None = None
        self._asking: asyncio.Lock | None = None
        self._queued: list[Question] | None = None
        """Questions that are asked when the open one is answered."""
        self._cancelled = False
        self._children: Children | None = None
        if invocation.entries:
            journal = self._in_store().journal
            if journal is not None:
                self._inbox = deque((value, input_size(value)) for value in journal.inputs)
                self._unread = sum(size for _, size in self._inbox)

    def _in_store(self) -> DurableCall:
        if self._durable is None:
            assert self._invocation.durability is not None
            self._durable = self._invocation.durability.call(self._invocation)
        return self._durable

    @property
    def _journal(self) -> Journal | None:
        return self._in_store().journal if self._invocation.tool.on_crash == "replay" else None

    @property
    def id(self) -> str:
        """The label of the call in its batch."""
        return self._invocation.call_id

    @property
    def uid(self) -> str:
        """The handle's uid, which is never used again."""
        return self._invocation.uid

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt of this call and in its retries, and different for every other call."""
        return self._invocation.retry_of or self._invocation.uid

    @property
    def attempt(self) -> int:
        """1 for the first attempt; above 1, effects that were not recorded may have happened before."""
        return self._invocation.attempt

    @property
    def process_id(self) -> str | None:
        """The process this call belongs to: its own if it was spawned, else the workflow or agent that called it."""
        return self._in_store().process

    @property
    def conversation(self) -> str:
        """The conversation the call belongs to."""
        return self._invocation.conversation

    @property
    def turn(self) -> str:
        """The id of the turn in which the call was made."""
        return self._invocation.turn

    @property
    def cancelled(self) -> bool:
        """Whether the call should end. A sync function should check it now and then."""
        return self._cancelled

    @property
    def handles(self) -> Handles:
        """The conversation's handles."""
        assert self._invocation.handles is not None
        return self._invocation.handles

    def emit(self, text: str | bytes) -> None:
        """Append output, which `fetch` shows while the call runs."""
        data = text.encode() if isinstance(text, str) else bytes(text)
        if self._loop is None:
            self._sink.output(data)
            return
        if self._thread_out is None:
            self._thread_out = _ThreadOutput(self._loop, self)
        self._thread_out.append(data)

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress."""
        if self._loop is None:
            self._sink.progress(done, total, message)
        else:
            self._loop.call_soon_threadsafe(self._sink.progress, done, total, message)

    def show(self, diff: FileDiff) -> None:
        """Show a change of a file to the user, for example in an editor. The model does not see it."""
        show = getattr(self._sink, "show", None)  # a test of a runtime alone has no user
        if show is not None and self._loop is None:
            show(diff)
        elif show is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(show, diff)

    def pass_on(self, handle: Handle) -> None:
        """Report the progress of another handle, for which this call waits."""
        progress = handle.progress
        if progress is not None:
            message = handle.id if progress.message is None else f"{handle.id}: {progress.message}"
            self.progress(progress.done, progress.total, message)

    def input(self) -> Coroutine[Any, Any, Any]:
        """Return the next input of `apply`, unchanged. Raises `EOFError` once the caller has closed the input."""
        self._not_in_a_thread("input")  # here and not in the coroutine, which a sync function would never run
        return self._input()

    def received(self) -> list[Any]:
        """Return all input since the last read, without waiting. Use this or `input`, not both."""
        self._not_in_a_thread("received")
        sent = [value for value, _ in self._inbox or () if value is not None]
        if self._inbox:
            self._inbox = deque(each for each in self._inbox if each[0] is None)
            self._unread = 0
        return sent

    def completion_key(self) -> Coroutine[Any, Any, Key]:
        """Return the key with which an outside system completes this call. Take it, then return `keephold.Pending`."""
        self._not_in_a_thread("completion_key")
        return self._in_store().completion_key()

    def durable(self) -> Effects:
        """Return effects that happen once, also if the process dies in between."""
        self._not_in_a_thread("durable")
        return self._in_store().effects()

    def process_events(self) -> ProcessEvents:
        """Return the events of this call's process, which are appended at least once."""
        self._not_in_a_thread("process_events")
        return self._in_store().process_events()

    def process(
        self,
        *argv: str,
        stdin: int | IO[Any] | None = DEVNULL,
        stdout: int | IO[Any] | None = PIPE,
        stderr: int | IO[Any] | None = STDOUT,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        pass_env: Collection[str] = (),
    ) -> "Coroutine[Any, Any, ChildProcess]":
        """Start a process that belongs to this call and return it, like `asyncio.create_subprocess_exec`.

        It ends when the function returns, raises or is ended, with everything it started. `env` is added to the
        environment, which has no API keys and other secrets except those that `pass_env` names.
        """
        self._not_in_a_thread("process")
        if self._children is None:
            assert self._invocation.guard is not None, "a call runs in a runtime, which has a guard"
            grace = self._invocation.tool.spawn.abort_grace_ms / 1000
            self._children = Children(self._invocation.guard, self.uid, grace)
        streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        return self._children.start(argv, cwd=cwd, env=env, pass_env=pass_env, **streams)

    async def _input(self) -> Any:
        if not (self._invocation.stateful and "apply" in self._invocation.tool.actions):
            raise EOFError('nobody can send input to this call; call the tool with action "spawn", and give it "apply"')
        if self._cancelled:
            raise EOFError("this call is being ended and gets no more input")
        if not self._inbox:
            if self._reader is not None:
                raise RuntimeError("call.input() is already waiting; one reader at a time")
            self._reader = asyncio.get_running_loop().create_future()
            self._sink.reading(True)
            try:
                await self._reader
            finally:
                self._reader = None
                self._sink.reading(False)
        assert self._inbox
        value, _ = self._inbox[0]
        if value is None:
            raise EOFError("the caller closed the input of this call")  # stays in the inbox: the input stays closed
        self._unread -= self._inbox.popleft()[1]
        return value

    def ask(self, question: Question) -> Coroutine[Any, Any, Any]:
        """Ask and wait for the answer. Raises `ToolError` (code `question_unanswered`) if nobody may answer."""
        self._not_in_a_thread("ask")
        return self._ask(question)

    async def _ask(self, question: Question) -> Any:
        if self._cancelled:
            raise ToolError("this call is being ended; nobody answers any more", code="cancelled")
        journal, record = self._journal, None
        if journal is not None and not question.secret:  # a secret is asked for again, not stored
            name = journal.number("ask", question.id)
            entry = journal.recorded("ask", name)
            if entry is not None:
                return msgspec.json.decode(entry.value)
            record = partial(journal.op, "ask", name, given=question)
        if self._asking is None:
            self._asking = asyncio.Lock()
        queued = self._queued = self._queued or []
        queued.append(question)
        try:
            await self._asking.acquire()  # a handle has at most one open question
        finally:
            queued.remove(question)
        try:
            answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            self._sink.ask(question, lambda outcome: None if answered.done() else answered.set_result(outcome), record)
            try:
                outcome = await answered
            except asyncio.CancelledError:
                self._sink.withdraw()  # a timeout of the tool's own, say
                raise
        finally:
            self._asking.release()
        match outcome:
            case Ok(value):
                return value
            case Failure(message, code):
                raise ToolError(message, code=code)
            case _:
                raise AssertionError("a question is answered by a value")

    def _write(self, value: Any, cause: bytes) -> None:
        inbox = self._inbox = self._inbox if self._inbox is not None else deque()
        size = input_size(value)
        self._unread = with_input(self._unread, size, closed=bool(inbox) and inbox[-1][0] is None)
        if self._journal is None:
            self._deliver(value, size)
        else:  # stored before it is acknowledged (E10)
            self._journal.store_input(value, cause, partial(self._deliver, value, size))

    def _deliver(self, value: Any, size: int) -> None:
        assert self._inbox is not None
        self._inbox.append((value, size))
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _not_in_a_thread(self, what: str) -> None:
        if self._loop is not None:
            raise RuntimeError(f"call.{what}() needs an async function; this tool is a sync one and runs in a thread")


def with_input(unread: int, size: int, *, closed: bool) -> int:
    """Return how many bytes of input wait with that many more. Raises `ToolError` if they are too many."""
    if closed:
        raise ToolError("the input of this call is closed; nothing was sent", code="input_not_read")
    if unread + size > _UNREAD_LIMIT:
        raise ToolError(
            "the tool has not read what was sent before: over 64 KiB would be waiting, so nothing was sent; wait until "
            "it reads",
            code="input_not_read",
        )
    return unread + size


def input_size(value: Any) -> int:
    """Return the number of bytes of input. Closing counts none, so it is always possible."""
    if value is None:
        return 0
    return len(value.encode(errors="surrogatepass") if isinstance(value, str) else msgspec.json.encode(value))


class _ThreadOutput:
    """Output of a thread, passed to the loop in as few wake-ups as possible. A thread that is too fast waits (O5)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Call) -> None:
        self._loop = loop
        self._call = call
        self._room = threading.Condition()
        self._pieces: list[bytes] = []
        self._size = 0

    def append(self, data: bytes) -> None:
        with self._room:
            while self._size > _THREAD_OUTPUT_LIMIT and not self._call.cancelled and not self._loop.is_closed():
                self._room.wait(
                    0.1
                )  # with a limit, because nothing wakes it when the call is cancelled or the loop closed
            self._pieces.append(data)
            self._size += len(data)
            first = len(self._pieces) == 1
        if first:
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        with self._room:
            pieces, self._pieces, self._size = self._pieces, [], 0
            self._room.notify_all()
        for piece in pieces:
            self._call._sink.output(piece)
