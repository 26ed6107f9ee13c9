"""One kept process in its keeper: its input, its output, its files, and the runtime that has it."""

import asyncio
import os
import socket
import time
from typing import TYPE_CHECKING, Any

import msgspec

from keephold.errors import ToolError
from keephold.tools import marks
from keephold.tools.keeper import protocol
from keephold.tools.keeper.files import SpoolFile
from keephold.tools.keeper.protocol import HOLDING, SETTLED
from keephold.tools.keeper.record import (
    KeptExit,
    KeptRecord,
    begin_record,
    boot_id,
    change_record,
    machine_id,
    record_file,
)
from keephold.tools.keeper.times import Record, Times, times_file
from keephold.tools.process import Process
from keephold.tools.session import Exit
from keephold.tools.terminal.pty import Pty
from keephold.tools.terminal.stream import Veil

if TYPE_CHECKING:
    from keephold.tools.keeper.server import Keeper, RuntimeConnection

_CAUSES, _LAST_CAUSES = 1000, 32
"""How many inputs are remembered, so that none is taken twice, and how many of them with the end of the process."""
_AGAIN_SECS = 1.0
"""How often a full disk is tried again."""


class KeeperProcess:
    """A process from its start until its end is recorded. Used on the loop's thread."""

    def __init__(self, keeper: "Keeper", slot: int, request: protocol.Start, peer: "RuntimeConnection") -> None:
        """Start it. Raises `ToolError` if it cannot be started, and then no file is left beside its output."""
        self.uid = request.uid
        self.slot = slot
        self.fence = request.fence
        self.peer: RuntimeConnection | None = peer
        """The runtime that has it."""
        self._keeper = keeper
        self._loop = asyncio.get_running_loop()
        self._grace, self._keep_secs, self._ahead = request.grace, request.keep_secs, request.ahead
        self._veil = Veil(self._printed)
        self._timer: asyncio.TimerHandle | None = None  # the end of `keep_secs`
        self._retries: asyncio.TimerHandle | None = None
        self._causes: dict[bytes, None] = {}
        self._number = 0  # of the last input of this runtime
        self._told = self._seen = self._noted = request.total
        self._stalled = ""
        self._over = False
        self._paused = False
        self._reason = ""
        self._how: Exit | None = None
        self._size = request.terminal or (0, 0)
        self._since = time.time()
        try:
            begin_record(keeper.directory, self._record(request))
            spool, times = keeper.directory / self.uid, times_file(keeper.directory, self.uid)
            self._spool = SpoolFile(keeper.files, spool, request.head, request.ring, request.total)
        except OSError as error:
            record_file(keeper.directory, self.uid).unlink(missing_ok=True)
            raise ToolError(
                f"The command was not started: its output cannot be kept ({error}). Make room on the disk.",
                code="command_not_started",
            ) from error
        self._spool.bound = request.total + self._ahead
        self._times = Times(keeper.files, times, Record(request.total, self._since, *self._size))
        self._generation = keeper.page.begin(slot, request.total)
        try:
            self._child = self._start(request)
        except ToolError:
            self._close()
            record_file(keeper.directory, self.uid).unlink(missing_ok=True)
            raise

    def _record(self, request: protocol.Start) -> KeptRecord:
        return KeptRecord(
            uid=request.uid,
            host=socket.gethostname(),
            machine=machine_id(),
            boot=boot_id(),
            keeper=self._keeper.mark,
            socket=self._keeper.path,
            since=self._since,
            keep_secs=request.keep_secs,
            terminal=request.terminal,
            stdin=request.stdin,
            head=request.head,
            ring=request.ring,
            ahead=request.ahead,
        )

    def _start(self, request: protocol.Start) -> Process | Pty:
        mark = marks.call_mark(self._keeper.mark, self.uid)
        env = {os.fsdecode(name): os.fsdecode(value) for name, value in request.env.items()} | marks.environ(mark)
        argv = [os.fsdecode(word) for word in request.argv]
        cwd = None if request.cwd is None else os.fsdecode(request.cwd)
        if request.terminal is not None:
            rows, cols = request.terminal
            return _Pty(
                self, argv, env=env, cwd=cwd, rows=rows, cols=cols, mark=mark, grace=request.grace,
                on_output=self._veil.feed, on_exit=self._exited, on_sent=self._sent,
            )  # fmt: skip
        return Process(
            argv, env=env, cwd=cwd, stdin=request.stdin, mark=mark, grace=request.grace,
            merge_stderr=True, on_stderr=None,
            on_output=self._veil.feed, on_exit=self._exited, on_sent=self._sent, move=self._move,
        )  # fmt: skip

    # Output

    def reading(self) -> None:
        """Output is about to be read."""
        self._keeper.page.moving(self.slot, self._generation)

    def _move(self, source: int, size: int) -> int:
        self.reading()
        try:
            return self._spool.move(source, size)
        finally:
            self.stored()

    def _printed(self, data: bytes) -> None:
        self._spool.append(data)
        self.stored()

    def stored(self) -> None:
        """Note how far the output has come, tell the runtime, and stop reading while there is no room."""
        if self._over:
            return
        spool, total = self._spool, self._spool.total
        if total > self._noted:
            self._noted = total
            self._times.note(total, time.time())
        holds = spool.holds or self._veil.holds
        self._keeper.page.settled(self.slot, self._generation, total, HOLDING if holds else SETTLED)
        self._tell()
        if spool.holds and not self._paused:
            self._paused = True
            self._child.pause()
        stalled = "" if spool.failure is None else str(spool.failure)
        if stalled and self._retries is None:
            self._retries = self._loop.call_later(_AGAIN_SECS, self._retry)
        if stalled != self._stalled:
            self._stalled = stalled
            self._answer(protocol.Stalled(uid=self.uid, reason=stalled))

    def _retry(self) -> None:
        self._retries = None
        self._release()

    def _release(self) -> None:
        """Store what was held, and read on if there is room again."""
        if self._spool.holds:
            self._spool.release()
            self.stored()
        if self._paused and not self._spool.holds:
            self._paused = False
            self._child.resume()
        self._finish()

    def _tell(self) -> None:
        if self.peer is not None and self._seen == self._told < self._spool.total:
            self._told = self._spool.total
            self.peer.send(protocol.Output(uid=self.uid, total=self._told))

    def seen(self, total: int) -> None:
        """The runtime has read so far."""
        self._seen = self._told = total
        self._spool.bound = total + self._ahead
        self._tell()
        self._release()

    # The runtime that has it

    def attach(self, peer: "RuntimeConnection", fence: int) -> None:
        """Give it to this runtime."""
        if self.peer is not None and self.peer is not peer:
            self.peer.send(protocol.Displaced(uid=self.uid))
        self.peer, self.fence = peer, fence
        self._number = 0
        self._sent()
        answered, total = self._seen, self._spool.total
        self._seen = self._told = total
        self._spool.bound = total + self._ahead
        self._cancel_timer()
        self._change_record(until=None)
        self.introduce(answered)
        self._release()

    def introduce(self, answered: int = 0) -> None:
        """Tell the runtime about the process, and pass its descriptors."""
        assert self.peer is not None
        child = self._child
        if isinstance(child, Process):
            passed = child.paths()
        else:
            passed = {} if child.master is None else {"master": os.dup(child.master)}
        report = protocol.ProcessRunning(
            uid=self.uid,
            pid=child.pid,
            slot=self.slot,
            generation=self._generation,
            total=self._told,
            answered=answered,
            descriptors=tuple(passed),
        )
        self.peer.send(report, list(passed.values()))
        self._tell()

    def detach(self) -> None:
        """The runtime is gone: keep the process for a while."""
        self.peer = None
        self._spool.bound = None
        if self._how is None:
            self._cancel_timer()
            self._timer = self._loop.call_later(self._keep_secs, self._expire)
            self._change_record(until=time.time() + self._keep_secs)
        self._release()

    def _expire(self) -> None:
        self._timer = None
        self.end_because(f"no runtime came back within {self._keep_secs:g} s")

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _change_record(self, **fields: object) -> bool:
        """Return whether the disk took it, or there is nobody who could read it: the directory was removed."""
        try:
            change_record(self._keeper.directory, self.uid, **fields)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    # Input

    def write(self, request: protocol.Write) -> None:
        """Hand over input, unless it came before."""
        self._number = request.number
        if request.cause and request.cause in self._causes:
            self._sent()
            return
        try:
            if isinstance(self._child, Pty):
                self._child.check_room(request.data + request.later)
                self._child.press()
                self._child.write(request.data, later=request.later)
            elif request.data:
                self._child.write(request.data)
        except ToolError as error:
            self._sent()
            self._answer(protocol.Refused(uid=self.uid, reason=error.message))
            return
        self._sent()
        if request.cause:
            self._remember(request.cause)

    def _remember(self, cause: bytes) -> None:
        self._causes[cause] = None
        if len(self._causes) > _CAUSES:
            del self._causes[next(iter(self._causes))]

    def close_stdin(self, number: int) -> None:
        self._number = number
        if isinstance(self._child, Process):
            self._child.close_stdin()
        self._sent()

    def _sent(self) -> None:
        self._keeper.page.handed(self.slot, self._number, self._child.unsent)

    def _answer(self, report: protocol.Report) -> None:
        if self.peer is not None:
            self.peer.send(report)

    def resize(self, rows: int, cols: int) -> None:
        if isinstance(self._child, Pty) and (rows, cols) != self._size:
            self._size = (rows, cols)
            self._child.resize(rows, cols)
            self._times.resized(self._spool.total, time.time(), rows, cols)

    def hide(self, secret: str) -> None:
        """Mask this in the output from now on (K5)."""
        self._veil.hide(secret)

    # The end

    def end(self, grace: float, reason: str = "") -> None:
        """Begin to end it (C7)."""
        self._reason = self._reason or reason
        self._child.end(grace)

    def end_because(self, reason: str) -> None:
        """End it with its own grace, for this reason."""
        self.end(self._grace, reason)

    def _exited(self, how: Exit) -> None:
        self._how = how
        self._cancel_timer()
        self._veil.reveal()
        self._finish()

    def _finish(self) -> None:
        """Record and report the end, once all output is stored."""
        if self._how is None or self._spool.holds or self._over:
            return
        how, total = self._how, self._spool.total
        causes = tuple(self._causes)[-_LAST_CAUSES:]
        end = KeptExit(how.code, how.signal, total, time.time(), self._reason, causes)
        if self.peer is not None:  # first: somebody waits for it, and removes the record once the store has the end
            fields = msgspec.structs.asdict(end)
            del fields["at"]
            self.peer.send(protocol.ProcessEnded(uid=self.uid, **fields))
        if not self._change_record(until=None, exit=end) and self.peer is None:  # nobody would learn of it
            self._retries = self._retries or self._loop.call_later(_AGAIN_SECS, self._retry)
            return
        self._close()
        self._keeper.ended(self)

    def _close(self) -> None:
        self._over = True
        if self._retries is not None:
            self._retries.cancel()
        self._spool.close()
        self._times.close()


class _Pty(Pty):
    """A terminal whose keeper shows that it is being read, before it is."""

    def __init__(self, kept: KeeperProcess, argv: list[str], **given: Any) -> None:
        self._kept = kept
        super().__init__(argv, **given)

    def _read(self) -> None:
        self._kept.reading()
        try:
            super()._read()
        finally:
            self._kept.stored()
